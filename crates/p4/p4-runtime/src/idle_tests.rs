use super::*;
use crate::arbitration::Scope;
use crate::proto::{Entity, ExactMatch, FieldMatch, FieldMatchType, Kind, update_type};
use crate::rates::timed;
use crate::testing::{self, update};
use p4_ir::Program;
use tonic::Code;
use tonic::Code::InvalidArgument;
use update_type::{DELETE, INSERT, MODIFY};

const HOUR: i64 = 3_600_000_000_000;

fn pipeline() -> Pipeline {
    Pipeline::load(Some(&testing::program("l2_switch").0)).unwrap()
}

/// A station of the switch, whose entry has an idle time.
pub fn station(program: &Program, number: u8, idle_timeout_ns: i64) -> TableEntry {
    let table = testing::table(program, "smac");
    let value = |key: &p4_ir::Key| match key.width {
        48 => vec![2, 0, 0, 0, 0, number],
        _ => vec![number],
    };
    let field = |key: &p4_ir::Key| FieldMatch {
        field_id: key.id,
        field_match_type: Some(FieldMatchType::Exact(ExactMatch { value: value(key) })),
    };
    TableEntry {
        table_id: table.identity.id.unwrap(),
        r#match: table.keys.iter().map(field).collect(),
        action: Some(testing::direct(testing::action(program, "NoAction"), Vec::new())),
        idle_timeout_ns,
        ..TableEntry::default()
    }
}

fn code(pipeline: &mut Pipeline, verb: i32, entry: TableEntry) -> Code {
    let kind = Kind::TableEntry(Box::new(entry));
    let done = pipeline.apply(&update(verb, kind), &Scope::Full);
    let code = done.map_or_else(|failure| failure.code, |_| Code::Ok);
    assert_eq!(pipeline.timed, timed(&pipeline.program));
    code
}

/// Times of entries, in hours.
struct Times(Vec<u64>, Vec<TableEntry>);

impl Reader for Times {
    fn cells(&mut self, array: P4Array, cells: std::ops::Range<u32>) -> Done<Vec<Vec<u64>>> {
        assert!(matches!(array, P4Array::Idle(_)) && cells.len() == self.0.len());
        Ok(self.0.iter().map(|hours| vec![hours * HOUR as u64]).collect())
    }

    fn found(&mut self, kind: Kind) -> Done<()> {
        match kind {
            Kind::TableEntry(found) => self.1.push(*found),
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

#[test]
fn idle_times_are_written_read_and_kept() {
    let mut switch = pipeline();
    let entries = [1, 2].map(|number| station(&switch.program, number, HOUR * i64::from(number - 1)));
    for entry in &entries {
        assert_eq!(code(&mut switch, INSERT, entry.clone()), Code::Ok);
    }
    assert_eq!(switch.timed, 1);
    let request = |entry: TableEntry| Entity {
        kind: Some(Kind::TableEntry(Box::new(entry))),
    };
    let mut wanted = TableEntry {
        table_id: entries[0].table_id,
        ..TableEntry::default()
    };
    let mut found = Times(vec![3, 4], Vec::new());
    switch
        .read(&request(wanted.clone()), &Scope::Full, &mut found)
        .unwrap();
    assert_eq!(found.1, entries);
    wanted.time_since_last_hit = Some(IdleTimeout::default());
    found.1.clear();
    switch
        .read(&request(wanted.clone()), &Scope::Full, &mut found)
        .unwrap();
    let elapsed = |entry: &TableEntry| entry.time_since_last_hit.unwrap().elapsed_ns;
    assert_eq!(
        found.1.iter().map(elapsed).collect::<Vec<_>>(),
        [3 * HOUR, 4 * HOUR]
    );
    let mut next = pipeline();
    next.inherit(&switch).unwrap();
    assert_eq!((&next.program, next.timed), (&switch.program, 1));
    // A table without idle times has none to read; one that keeps none at the moment answers without.
    wanted.table_id = testing::table_id(&switch.program, "dmac");
    let refused = switch
        .read(&request(wanted.clone()), &Scope::Full, &mut found)
        .unwrap_err();
    assert_eq!(refused.code, InvalidArgument);
    assert_eq!(code(&mut switch, MODIFY, station(&next.program, 2, 0)), Code::Ok);
    assert_eq!(switch.timed, 0);
    wanted.table_id = entries[0].table_id;
    found.1.clear();
    switch.read(&request(wanted), &Scope::Full, &mut found).unwrap();
    assert!(found.1.len() == 2 && found.1.iter().all(|entry| entry.time_since_last_hit.is_none()));
    assert_eq!(code(&mut switch, MODIFY, station(&next.program, 2, 5)), Code::Ok);
    assert_eq!(code(&mut switch, DELETE, station(&next.program, 2, 0)), Code::Ok);
    assert_eq!(switch.timed, 0);
}

#[test]
fn wrong_idle_times_are_refused() {
    let mut switch = pipeline();
    let right = station(&switch.program, 1, HOUR);
    let cases = [
        TableEntry {
            idle_timeout_ns: -1,
            ..right.clone()
        },
        TableEntry {
            time_since_last_hit: Some(IdleTimeout::default()),
            ..right.clone()
        },
        TableEntry {
            is_default_action: true,
            r#match: Vec::new(),
            ..right.clone()
        },
    ];
    for wrong in cases {
        let verb = if wrong.is_default_action { MODIFY } else { INSERT };
        assert_eq!(code(&mut switch, verb, wrong), InvalidArgument);
    }
    let mut router = Pipeline::load(Some(&testing::program("router").0)).unwrap();
    let elsewhere = TableEntry {
        idle_timeout_ns: 1,
        ..testing::route(&router.program, [10, 1, 0, 0], 16, 1)
    };
    assert_eq!(code(&mut router, INSERT, elsewhere), InvalidArgument);
}

#[test]
fn idle_entries_are_told_of_once_in_their_time() {
    let mut switch = pipeline();
    // The last one's time is over at each look.
    for (number, timeout) in [(1, HOUR), (2, 4 * HOUR), (3, 0), (4, 1)] {
        let entry = station(&switch.program, number, timeout);
        assert_eq!(code(&mut switch, INSERT, entry), Code::Ok);
    }
    let mut watch = IdleWatch::default();
    let mut look = |switch: &Pipeline, hours: [u64; 4]| {
        let found = watch
            .look(switch, &mut Times(hours.to_vec(), Vec::new()))
            .unwrap();
        let stations = found.iter().flat_map(|(_, entries)| entries);
        let timeouts = stations.map(|entry| entry.idle_timeout_ns);
        (timeouts.collect::<Vec<_>>(), watch.told.len())
    };
    assert_eq!(look(&switch, [0, 3, 9, 0]), (vec![], 0));
    assert_eq!(look(&switch, [1, 3, 9, 1]), (vec![HOUR, 1], 2));
    assert_eq!(look(&switch, [1, 4, 9, 1]), (vec![4 * HOUR, 1], 3));
    assert_eq!(look(&switch, [1, 4, 9, 0]), (vec![], 2), "one was met");
    assert_eq!(look(&switch, [0, 4, 9, 0]), (vec![], 1));
    assert_eq!(look(&switch, [2, 4, 9, 0]), (vec![HOUR], 2));
    let gone = station(&switch.program, 4, 0);
    assert_eq!(code(&mut switch, DELETE, gone), Code::Ok);
    let mut without = pipeline();
    assert_eq!(
        code(&mut without, INSERT, station(&switch.program, 9, HOUR)),
        Code::Ok
    );
    let found = watch.look(&without, &mut Times(vec![0], Vec::new())).unwrap();
    assert!(
        found.is_empty() && watch.told.is_empty(),
        "entries that are gone are forgotten"
    );
    assert!(watch.due(Instant::now()) > Instant::now());
}
