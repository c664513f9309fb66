use super::*;
use crate::proto::{self, CloneSessionEntry, Param, PortKind, Replica};
use crate::testing::{self, route, update};
use tonic::Code::{AlreadyExists, InvalidArgument, NotFound, OutOfRange, PermissionDenied, Unimplemented};

const FULL: Scope = Scope::Full;

fn pipeline(name: &str) -> Pipeline {
    Pipeline::load(Some(&testing::program(name).0)).unwrap()
}

fn entry(entry: TableEntry) -> Kind {
    Kind::TableEntry(Box::new(entry))
}

fn code(pipeline: &mut Pipeline, verb: i32, kind: Kind) -> Code {
    pipeline
        .apply(&update(verb, kind), &FULL)
        .map_or_else(|failure| failure.code, |_| Code::Ok)
}

use update_type::{DELETE, INSERT, MODIFY};

/// The next hop of a route.
fn hop(entry: &Entry) -> Option<u64> {
    match &entry.target {
        EntryTarget::Action(action) => action.arguments[0].to_u64(),
        _ => None,
    }
}

#[test]
fn entries_are_inserted_modified_and_deleted() {
    let mut router = pipeline("router");
    let route = |hop| entry(route(&router.program, [10, 1, 0, 0], 16, hop));
    let (first, second) = (route(1), route(2));
    assert_eq!(code(&mut router, MODIFY, first.clone()), NotFound);
    assert_eq!(code(&mut router, INSERT, first.clone()), Code::Ok);
    assert_eq!(code(&mut router, INSERT, second.clone()), AlreadyExists);
    assert_eq!(code(&mut router, MODIFY, second), Code::Ok);
    let table = testing::table(&router.program, "routes");
    assert_eq!(table.entries.len(), 1);
    assert_eq!(hop(&table.entries[0]), Some(2));
    // What is deleted is named by its key; nothing else matters.
    let mut key = testing::route(&router.program, [10, 1, 0, 0], 16, 1);
    key.action = Some(testing::direct(1, vec![Param::default()]));
    key.idle_timeout_ns = -1;
    assert_eq!(code(&mut router, DELETE, entry(key.clone())), Code::Ok);
    assert_eq!(code(&mut router, DELETE, entry(key)), NotFound);
    assert!(testing::table(&router.program, "routes").entries.is_empty());
}

#[test]
fn the_entries_that_are_left_are_found_after_one_is_deleted() {
    let mut router = pipeline("router");
    let route = |net| entry(route(&testing::program("router").1, [10, net, 0, 0], 16, net));
    for net in 1..=5 {
        assert_eq!(code(&mut router, INSERT, route(net)), Code::Ok);
    }
    for net in [2, 5, 1] {
        assert_eq!(code(&mut router, DELETE, route(net)), Code::Ok);
    }
    for net in [3, 4] {
        assert_eq!(code(&mut router, MODIFY, route(net)), Code::Ok);
    }
    let table = testing::table(&router.program, "routes");
    let hops = table.entries.iter().map(|entry| hop(entry).unwrap());
    assert_eq!(hops.collect::<std::collections::BTreeSet<_>>(), [3, 4].into());
}

#[test]
fn an_entry_without_an_action_is_modified_and_not_inserted() {
    let mut router = pipeline("router");
    let mut without = route(&router.program, [10, 1, 0, 0], 16, 7);
    let with = entry(without.clone());
    without.action = None;
    assert_eq!(code(&mut router, INSERT, entry(without.clone())), InvalidArgument);
    assert_eq!(code(&mut router, INSERT, with), Code::Ok);
    assert_eq!(code(&mut router, MODIFY, entry(without)), Code::Ok);
    let table = testing::table(&router.program, "routes");
    assert_eq!(hop(&table.entries[0]), Some(7));
}

#[test]
fn wrong_entries_change_nothing() {
    let mut router = pipeline("router");
    let right = route(&router.program, [10, 1, 0, 0], 16, 1);
    let changed = |change: &dyn Fn(&mut TableEntry)| {
        let mut wrong = right.clone();
        change(&mut wrong);
        entry(wrong)
    };
    let cases = [
        (changed(&|wrong| wrong.table_id = 7), NotFound),
        (changed(&|wrong| wrong.table_id = 0), NotFound),
        (changed(&|wrong| wrong.priority = 1), InvalidArgument),
        (changed(&|wrong| wrong.is_const = true), InvalidArgument),
        (changed(&|wrong| wrong.idle_timeout_ns = 1), InvalidArgument),
        (changed(&|wrong| wrong.r#match[0].field_id = 2), InvalidArgument),
        (
            changed(&|wrong| wrong.meter_config = Some(proto::MeterConfig::default())),
            InvalidArgument,
        ),
        (
            changed(&|wrong| wrong.metadata = vec![0; 5000]),
            Code::ResourceExhausted,
        ),
        (Kind::Extern(Default::default()), Unimplemented),
    ];
    for (wrong, expected) in cases {
        assert_eq!(code(&mut router, INSERT, wrong.clone()), expected, "{wrong:?}");
    }
    assert_eq!(code(&mut router, 0, entry(right.clone())), InvalidArgument);
    let without = Update {
        r#type: INSERT,
        entity: None,
    };
    assert_eq!(router.apply(&without, &FULL).unwrap_err().code, InvalidArgument);
    assert_eq!(router.changed, Changed::Nothing);
}

#[test]
fn a_full_table_takes_no_more() {
    let mut router = pipeline("router");
    let id = testing::table_id(&router.program, "routes");
    let number = router.table(id).unwrap();
    router.program.tables[number].size = 2;
    for net in 1..=2 {
        let kind = entry(route(&router.program, [10, net, 0, 0], 16, 1));
        assert_eq!(code(&mut router, INSERT, kind), Code::Ok);
    }
    let kind = entry(route(&router.program, [10, 3, 0, 0], 16, 1));
    assert_eq!(code(&mut router, INSERT, kind), Code::ResourceExhausted);
}

#[test]
fn constant_tables_stay_and_defaults_return() {
    let mut router = pipeline("router");
    let id = testing::table_id(&router.program, "routes");
    let number = router.table(id).unwrap();
    let own = router.program.tables[number].default.clone();
    let via = testing::action(&router.program, "via");
    let param = Param {
        param_id: 1,
        value: vec![9],
    };
    let default = TableEntry {
        table_id: id,
        is_default_action: true,
        action: Some(testing::direct(via, vec![param])),
        ..TableEntry::default()
    };
    assert_eq!(code(&mut router, INSERT, entry(default.clone())), InvalidArgument);
    assert_eq!(code(&mut router, DELETE, entry(default.clone())), InvalidArgument);
    assert_eq!(code(&mut router, MODIFY, entry(default.clone())), Code::Ok);
    assert_ne!(router.program.tables[number].default, own);
    let reset = TableEntry {
        action: None,
        ..default.clone()
    };
    assert_eq!(code(&mut router, MODIFY, entry(reset)), Code::Ok);
    assert_eq!(router.program.tables[number].default, own);
    let mut with_key = route(&router.program, [10, 1, 0, 0], 16, 1);
    with_key.is_default_action = true;
    assert_eq!(code(&mut router, MODIFY, entry(with_key)), InvalidArgument);
    router.program.tables[number].constant = true;
    let kind = entry(route(&router.program, [10, 1, 0, 0], 16, 1));
    assert_eq!(code(&mut router, INSERT, kind), PermissionDenied);
    router.notes.defaults[number].as_mut().unwrap().constant_arguments = true;
    assert_eq!(code(&mut router, MODIFY, entry(default)), PermissionDenied);
}

#[test]
fn groups_and_sessions_are_written() {
    let mut router = pipeline("router");
    let replica = Replica {
        port_kind: Some(PortKind::EgressPort(1)),
        ..Replica::default()
    };
    let group = |metadata: &[u8]| {
        let group = MulticastGroupEntry {
            multicast_group_id: 4,
            replicas: vec![replica.clone()],
            metadata: metadata.to_vec(),
        };
        let r#type = Some(Replication::Group(group));
        Kind::Replication(Box::new(PacketReplicationEngineEntry { r#type }))
    };
    assert_eq!(code(&mut router, DELETE, group(b"")), NotFound);
    assert_eq!(code(&mut router, INSERT, group(b"x")), Code::Ok);
    assert_eq!(code(&mut router, INSERT, group(b"")), AlreadyExists);
    assert_eq!(router.notes.groups[&4], b"x");
    assert_eq!(code(&mut router, MODIFY, group(b"")), Code::Ok);
    assert!(router.notes.groups.is_empty());
    assert_eq!(router.setup.groups.len(), 1);
    assert_eq!(code(&mut router, DELETE, group(b"")), Code::Ok);
    assert!(router.setup.groups.is_empty());
    let session = Kind::Replication(Box::new(PacketReplicationEngineEntry {
        r#type: Some(Replication::Session(CloneSessionEntry {
            session_id: 5,
            replicas: vec![replica],
            ..CloneSessionEntry::default()
        })),
    }));
    assert_eq!(code(&mut router, INSERT, session.clone()), Code::Ok);
    assert_eq!(code(&mut router, MODIFY, session.clone()), Code::Ok);
    assert_eq!(code(&mut router, DELETE, session), Code::Ok);
    let neither = PacketReplicationEngineEntry { r#type: None };
    assert_eq!(
        code(&mut router, INSERT, Kind::Replication(Box::new(neither))),
        InvalidArgument
    );
}

#[test]
fn cells_are_named_and_their_values_fit() {
    let mut firewall = pipeline("stateful_firewall");
    let register = firewall.program.registers[0].clone();
    let register_id = register.identity.id.unwrap();
    let write = |index: Option<i64>, value: &[u8]| {
        let bitstring = Some(value.to_vec());
        Kind::RegisterEntry(Box::new(RegisterEntry {
            register_id,
            index: index.map(|index| Index { index }),
            data: Some(P4Data {
                bitstring,
                r#struct: None,
            }),
        }))
    };
    let made = firewall
        .apply(&update(MODIFY, write(Some(3), &[1])), &FULL)
        .unwrap()
        .unwrap();
    let expected = CellWrite {
        array: P4Array::Register(0),
        cells: 3..4,
        row: None,
        words: vec![1],
    };
    assert_eq!(made, expected);
    let all = firewall
        .apply(&update(MODIFY, write(None, &[0])), &FULL)
        .unwrap()
        .unwrap();
    assert_eq!(all.cells, 0..register.size);
    let too_wide = vec![1; usize::from(register.width).div_ceil(8) + 1];
    let cases = [
        (INSERT, write(Some(3), &[1]), InvalidArgument),
        (DELETE, write(Some(3), &[1]), InvalidArgument),
        (MODIFY, write(Some(-1), &[1]), InvalidArgument),
        (MODIFY, write(Some(register.size.into()), &[1]), OutOfRange),
        (MODIFY, write(Some(0), &too_wide), OutOfRange),
        (MODIFY, write(Some(0), &[]), OutOfRange),
    ];
    for (verb, wrong, expected) in cases {
        assert_eq!(code(&mut firewall, verb, wrong.clone()), expected, "{wrong:?}");
    }
}

#[test]
fn a_role_writes_its_own_objects_only() {
    let mut router = pipeline("router");
    let right = entry(route(&router.program, [10, 1, 0, 0], 16, 1));
    let scope = |ids: &[u32]| Scope::Part {
        writes: ids.iter().copied().collect(),
        reads: Default::default(),
        replicates: false,
        sets_pipeline: false,
        has_packets: false,
    };
    let other = scope(&[testing::table_id(&router.program, "next_hops")]);
    let own = scope(&[testing::table_id(&router.program, "routes")]);
    let refused = router.apply(&update(INSERT, right.clone()), &other).unwrap_err();
    assert_eq!(refused.code, PermissionDenied);
    router.apply(&update(INSERT, right), &own).unwrap();
    let neither = Kind::Replication(Box::default());
    assert_eq!(
        router.apply(&update(INSERT, neither), &own).unwrap_err().code,
        PermissionDenied
    );
}
