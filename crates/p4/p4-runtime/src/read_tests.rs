use super::*;
use crate::proto::{CloneSessionEntry, MulticastGroupEntry, update_type::INSERT};
use crate::testing::{self, Found, read_as, route, update};

fn pipeline(name: &str) -> Pipeline {
    Pipeline::load(Some(&testing::program(name).0)).unwrap()
}

fn read(pipeline: &Pipeline, request: Kind) -> Vec<Kind> {
    read_as(pipeline, request, &Scope::Full).unwrap()
}

fn entry(entry: TableEntry) -> Kind {
    Kind::TableEntry(Box::new(entry))
}

fn table(id: u32) -> TableEntry {
    TableEntry {
        table_id: id,
        ..TableEntry::default()
    }
}

/// The router with three routes, of which the second one has metadata.
fn routed() -> (Pipeline, [TableEntry; 3]) {
    let mut router = pipeline("router");
    let mut routes = [1, 2, 3].map(|net| route(&router.program, [10, net, 0, 0], 16, net));
    routes[1].metadata = b"mine".to_vec();
    routes[1].controller_metadata = 77;
    for route in routes.clone() {
        router.apply(&update(INSERT, entry(route)), &Scope::Full).unwrap();
    }
    (router, routes)
}

#[test]
fn entries_are_read_as_they_were_written() {
    let (router, routes) = routed();
    let id = routes[0].table_id;
    let all: Vec<_> = routes.iter().cloned().map(entry).collect();
    assert_eq!(read(&router, entry(table(0))), all);
    assert_eq!(read(&router, entry(table(id))), all);
    let by_key = TableEntry {
        action: None,
        ..routes[2].clone()
    };
    assert_eq!(read(&router, entry(by_key)), all[2..]);
    let by_metadata = TableEntry {
        metadata: b"mine".to_vec(),
        ..table(id)
    };
    assert_eq!(read(&router, entry(by_metadata)), all[1..2]);
    let by_cookie = TableEntry {
        controller_metadata: 77,
        ..table(id)
    };
    assert_eq!(read(&router, entry(by_cookie)), all[1..2]);
    let by_action = TableEntry {
        action: Some(testing::direct(
            testing::action(&router.program, "discard"),
            vec![],
        )),
        ..table(id)
    };
    assert!(read(&router, entry(by_action)).is_empty());
    let absent = route(&router.program, [10, 9, 0, 0], 16, 1);
    assert!(read(&router, entry(absent)).is_empty());
}

#[test]
fn defaults_are_read_apart() {
    let (router, _) = routed();
    let defaults = TableEntry {
        is_default_action: true,
        ..table(0)
    };
    let found = read(&router, entry(defaults));
    assert_eq!(
        found.len(),
        router
            .program
            .tables
            .iter()
            .filter(|table| table.identity.id.is_some())
            .count()
    );
    let is_default = |kind: &Kind| matches!(kind, Kind::TableEntry(entry) if entry.is_default_action);
    assert!(found.iter().all(is_default));
}

#[test]
fn wrong_requests_are_refused() {
    let (router, routes) = routed();
    let mut wrong_key = routes[0].clone();
    wrong_key.r#match[0].field_id = 9;
    for wrong in [
        entry(table(7)),
        entry(wrong_key),
        Kind::Extern(Default::default()),
    ] {
        read_as(&router, wrong, &Scope::Full).unwrap_err();
    }
    let mut found = Found::default();
    router
        .read(&Entity { kind: None }, &Scope::Full, &mut found)
        .unwrap_err();
    let neither = Kind::Replication(Box::default());
    read_as(&router, neither, &Scope::Full).unwrap_err();
}

#[test]
fn a_role_finds_its_own_objects_only() {
    let (router, routes) = routed();
    let scope = |ids: &[u32]| Scope::Part {
        writes: Default::default(),
        reads: ids.iter().copied().collect(),
        replicates: false,
        sets_pipeline: false,
        has_packets: false,
    };
    let (own, other) = (scope(&[routes[0].table_id]), scope(&[1]));
    assert_eq!(read_as(&router, entry(table(0)), &own).unwrap().len(), 3);
    assert!(read_as(&router, entry(table(0)), &other).unwrap().is_empty());
    assert!(
        read_as(&router, entry(table(routes[0].table_id)), &other)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn cells_are_read_one_or_all() {
    let firewall = pipeline("stateful_firewall");
    let register = &firewall.program.registers[0];
    let request = |register_id, index: Option<i64>| {
        Kind::RegisterEntry(Box::new(RegisterEntry {
            register_id,
            index: index.map(|index| Index { index }),
            data: None,
        }))
    };
    let id = register.identity.id.unwrap();
    let one = read(&firewall, request(id, Some(1)));
    let expected = RegisterEntry {
        register_id: id,
        index: Some(Index { index: 1 }),
        data: Some(P4Data {
            bitstring: Some(vec![1]),
            r#struct: None,
        }),
    };
    assert_eq!(one, [Kind::RegisterEntry(Box::new(expected))]);
    assert_eq!(read(&firewall, request(id, None)).len(), register.size as usize);
    assert!(read(&firewall, request(0, None)).len() >= register.size as usize);
    read_as(&firewall, request(id, Some(-1)), &Scope::Full).unwrap_err();
    read_as(&firewall, request(7, None), &Scope::Full).unwrap_err();
}

#[test]
fn counts_of_entries_are_read_with_them_or_alone() {
    let name = [
        "firewall",
        "l2_firewall",
        "rate_limiter",
        "kitchen_sink",
        "telemetry",
    ]
    .into_iter()
    .find(|name| {
        let (_, program) = testing::program(name);
        let counts = |table: &Table| table.counter.is_some() && table.entries.is_empty() && !table.constant;
        program.tables.iter().any(counts)
    })
    .unwrap();
    let counting = pipeline(name);
    let mut tables = counting.program.tables.iter();
    let table_id = tables
        .find(|table| table.counter.is_some())
        .unwrap()
        .identity
        .id
        .unwrap();
    let default = TableEntry {
        is_default_action: true,
        counter_data: Some(CounterData::default()),
        ..table(table_id)
    };
    let count = |kind: &Kind| match kind {
        Kind::TableEntry(entry) => entry.counter_data,
        Kind::DirectCounterEntry(entry) => entry.data,
        _ => None,
    };
    let expected = Some(CounterData {
        packet_count: 0,
        byte_count: 100,
    });
    assert_eq!(count(&read(&counting, entry(default.clone()))[0]), expected);
    let table_entry = Some(default);
    let alone = DirectCounterEntry {
        table_entry,
        data: None,
    };
    let found = read(&counting, Kind::DirectCounterEntry(Box::new(alone)));
    assert_eq!(count(&found[0]), expected);
    let without = Kind::DirectCounterEntry(Box::default());
    read_as(&counting, without, &Scope::Full).unwrap_err();
}

#[test]
fn groups_and_sessions_are_read_by_number_or_all() {
    let mut router = pipeline("router");
    let replication = |one| Kind::Replication(Box::new(PacketReplicationEngineEntry { r#type: Some(one) }));
    let group = |multicast_group_id| {
        replication(Replication::Group(MulticastGroupEntry {
            multicast_group_id,
            metadata: vec![1],
            ..MulticastGroupEntry::default()
        }))
    };
    let session = |session_id| {
        replication(Replication::Session(CloneSessionEntry {
            session_id,
            ..CloneSessionEntry::default()
        }))
    };
    for kind in [group(1), group(2), session(3)] {
        router.apply(&update(INSERT, kind), &Scope::Full).unwrap();
    }
    assert_eq!(read(&router, group(0)), [group(1), group(2)]);
    assert_eq!(read(&router, group(2)), [group(2)]);
    assert_eq!(read(&router, session(0)), [session(3)]);
    assert!(read(&router, session(4)).is_empty());
}
