//! Batches appear at once; profiles, constants, value sets, idle times; look-ups allocate nothing.

#![allow(clippy::unwrap_used)]

mod common;

use common::{action, entry, exact, layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use p4_tables::{
    Author, Change, Count, DEFAULT, Entry, Error, GroupMember, KeyLayout, Match, MatchKind, ProfileChange,
    ProfileSpec, Shared, TableSpec, Tables, Target, Words,
};

/// Each batch gives all entries of two tables the same new argument; readers never see two arguments under
/// one lock.
#[test]
fn batches_appear_at_once() {
    const KEYS: u64 = 64;
    let layout = layout(&[(MatchKind::Exact, 32)]);
    let mut tables = Tables::new();
    let numbers = [0, 1].map(|_| tables.add_table(TableSpec::new(layout.clone(), 100, 1)).unwrap());
    let changes = |round: u64| -> Vec<Change> {
        let keys = (0..KEYS).flat_map(|key| numbers.map(|table| (table, key)));
        let change = |(table, key)| {
            let entry = entry(exact(&layout, key), action(1, round));
            if round == 0 {
                Change::Insert { table, entry }
            } else {
                Change::Modify { table, entry }
            }
        };
        keys.map(change).collect()
    };
    tables.apply(&changes(0), 0).unwrap();
    let shared = Shared::new(tables);
    let (done, bursts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let tables = shared.read();
                    let argument = |number, key| {
                        let table = tables.table(number).unwrap();
                        tables
                            .action(table, table.lookup(&[key]).unwrap(), || 0)
                            .unwrap()
                            .1[0]
                    };
                    let first = argument(numbers[0], 0);
                    for key in 0..KEYS {
                        assert_eq!(numbers.map(|number| argument(number, key)), [first; 2]);
                    }
                    bursts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut round = 1;
        while round < 200 || bursts.load(Ordering::Relaxed) < 100 {
            shared.apply(&changes(round), 0).unwrap();
            // A batch whose last change is refused is never seen either.
            let mut refused = changes(1_000_000);
            refused.push(Change::SetDefault {
                table: 9,
                target: None,
            });
            assert_eq!(shared.apply(&refused, 0).unwrap_err().index, 2 * KEYS as usize);
            round += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Packets that still meet the tables from before a batch count for the tables behind it, and rows that the
/// batch has freed are no new entry's yet.
#[test]
fn tables_before_and_behind_a_batch_have_one_count_for_each_entry() {
    let key = layout(&[(MatchKind::Exact, 32)]);
    let mut tables = Tables::new();
    let spec = TableSpec {
        counters: true,
        idle: true,
        ..TableSpec::new(key.clone(), 10_000, 1)
    };
    let table = tables.add_table(spec).unwrap();
    let insert = |value| Change::Insert {
        table,
        entry: entry(exact(&key, value), action(1, value)),
    };
    let first: Vec<Change> = (0..1000).map(insert).collect();
    tables.apply(&first, 0).unwrap();
    let handle = |tables: &Tables, value| tables.table(table).unwrap().lookup(&[value]).unwrap();
    let counted = |tables: &Tables, value| {
        let handle = handle(tables, value);
        tables.table(table).unwrap().counted(handle).unwrap().packets
    };
    let removed = handle(&tables, 500);
    let remove = Change::Remove {
        table,
        pattern: exact(&key, 500),
        priority: 0,
    };
    let batch: Vec<Change> = [remove].into_iter().chain((1000..3000).map(insert)).collect();
    let next = tables.changed(&batch, Author::Program, 5).unwrap();
    // The tables from before are as they were.
    assert_eq!(
        (handle(&tables, 500), tables.table(table).unwrap().len()),
        (removed, 1000)
    );
    assert_eq!(next.table(table).unwrap().lookup(&[500]), None);
    tables.table(table).unwrap().count(removed, 64);
    tables.table(table).unwrap().count(handle(&tables, 7), 64);
    next.table(table).unwrap().count(handle(&next, 7), 64);
    assert_eq!((counted(&tables, 7), counted(&next, 7)), (2, 2));
    assert!((1000..3000).all(|value| counted(&next, value) == 0));
    // The next batch takes the row, with fresh counts.
    let last = next.changed(&[insert(3000)], Author::Program, 6).unwrap();
    assert_eq!(handle(&last, 3000), removed);
    assert_eq!(counted(&last, 3000), 0);
    // Entries that the program had cannot be changed by controllers.
    let by_controller = last.changed(
        &[Change::SetDefault { table, target: None }],
        Author::Controller,
        0,
    );
    assert!(by_controller.is_ok());
    let remove = Change::Remove {
        table,
        pattern: exact(&key, 3000),
        priority: 0,
    };
    let refused = last.changed(std::slice::from_ref(&remove), Author::Controller, 0);
    assert_eq!(refused.unwrap_err().error, Error::Constant);
    assert!(last.changed(&[remove], Author::Program, 0).is_ok());
}

/// Masks that lose their last entry make room for others.
#[test]
fn constants_defaults_counters_and_idle_times() {
    let key = layout(&[(MatchKind::Exact, 8)]);
    let spec = TableSpec::new(key.clone(), 10, 1);
    let mut tables = Tables::new();
    let table = tables
        .add_table(TableSpec {
            counters: true,
            meters: true,
            idle: true,
            default: Some(action(9, 9)),
            ..spec.clone()
        })
        .unwrap();
    let fixed = tables
        .add_table(TableSpec {
            constant: true,
            constant_default: true,
            ..spec
        })
        .unwrap();
    let constant = tables
        .add_constant(table, &entry(exact(&key, 1), action(1, 1)))
        .unwrap();
    tables
        .add_constant(fixed, &entry(exact(&key, 1), action(1, 1)))
        .unwrap();
    let changed = entry(exact(&key, 1), action(2, 2));
    for table in [table, fixed] {
        let remove = Change::Remove {
            table,
            pattern: exact(&key, 1),
            priority: 0,
        };
        for change in [
            Change::Modify {
                table,
                entry: changed.clone(),
            },
            remove,
        ] {
            assert_eq!(tables.apply(&[change], 0).unwrap_err().error, Error::Constant);
        }
    }
    let default = |table| Change::SetDefault {
        table,
        target: Some(action(3, 3)),
    };
    assert_eq!(
        tables.apply(&[default(fixed)], 0).unwrap_err().error,
        Error::Constant
    );
    let run = |tables: &Tables| {
        let table = tables.table(table).unwrap();
        tables
            .action(table, DEFAULT, || 0)
            .map(|(action, arguments)| (action, arguments[0]))
    };
    assert_eq!(run(&tables), Some((9, 9)));
    tables.apply(&[default(table)], 0).unwrap();
    assert_eq!(run(&tables), Some((3, 3)));
    tables
        .apply(&[Change::SetDefault { table, target: None }], 0)
        .unwrap();
    assert_eq!(run(&tables), Some((9, 9)));

    let added = Entry {
        idle_timeout_ns: 100,
        ..entry(exact(&key, 2), action(2, 2))
    };
    tables
        .apply(
            &[Change::Insert {
                table,
                entry: added.clone(),
            }],
            1000,
        )
        .unwrap();
    let seen = tables.table(table).unwrap();
    let handle = seen.lookup(&[2]).unwrap();
    seen.count(handle, 60);
    assert_eq!(
        seen.counted(handle),
        Some(Count {
            packets: 1,
            bytes: 60
        })
    );
    assert_eq!(seen.counted(constant), Some(Count::default()));
    assert!(seen.meter(handle).is_some());
    let idle = |tables: &Tables, now| {
        let (mut idle, mut from) = (Vec::new(), 0);
        while let Some(next) = tables.table(table).unwrap().idle(now, from, 1, &mut idle) {
            from = next;
        }
        idle
    };
    assert_eq!(idle(&tables, 1099), []);
    assert_eq!(idle(&tables, 1100), [handle]);
    tables.table(table).unwrap().note_use(handle, 1050);
    assert_eq!(idle(&tables, 1149), []);
    let modified = Entry {
        target: action(4, 4),
        ..added
    };
    tables
        .apply(
            &[Change::Modify {
                table,
                entry: modified,
            }],
            1150,
        )
        .unwrap();
    assert_eq!(
        tables.table(table).unwrap().counted(handle),
        Some(Count {
            packets: 1,
            bytes: 60
        })
    );
    assert_eq!(idle(&tables, 1249), []);
    // The next entry in the row begins at zero.
    let remove = Change::Remove {
        table,
        pattern: exact(&key, 2),
        priority: 0,
    };
    tables.apply(&[remove], 1150).unwrap();
    let next = Change::Insert {
        table,
        entry: entry(exact(&key, 3), action(2, 2)),
    };
    tables.apply(&[next], 1150).unwrap();
    let seen = tables.table(table).unwrap();
    assert_eq!(seen.counted(seen.lookup(&[3]).unwrap()), Some(Count::default()));
}

/// A table of such a key whose entries choose in a profile, and the profile, of so many members and slots of
/// a group.
fn with_profile(key: &KeyLayout, [limit, group_limit]: [usize; 2]) -> (Tables, u32, u32) {
    let mut tables = Tables::new();
    let profile = tables.add_profile(ProfileSpec {
        limit,
        group_limit,
        argument_words: 1,
    });
    let spec = TableSpec {
        profile: Some(profile),
        default: Some(action(9, 9)),
        ..TableSpec::new(key.clone(), 10, 1)
    };
    let table = tables.add_table(spec).unwrap();
    (tables, profile, table)
}

/// A member whose action has its number, and its argument too.
fn add_member(member: u32) -> ProfileChange {
    ProfileChange::AddMember {
        member,
        action: member,
        arguments: [u64::from(member)].as_slice().into(),
    }
}

#[test]
fn profiles_choose_by_hash_and_keep_what_is_used() {
    let key = layout(&[(MatchKind::Exact, 8)]);
    let (mut tables, profile, table) = with_profile(&key, [4, 3]);
    let change = |change| Change::Profile { profile, change };
    let member = |member| change(add_member(member));
    let group = |members: &[(u32, u32)]| {
        change(ProfileChange::AddGroup {
            group: 5,
            members: members.iter().copied().map(GroupMember::from).collect(),
        })
    };
    let to = |value, target| Change::Insert {
        table,
        entry: entry(exact(&key, value), target),
    };
    let good = [
        member(30),
        member(10),
        group(&[(30, 1), (10, 2)]),
        to(1, Target::Group(5)),
        to(2, Target::Member(10)),
    ];
    // Any cut of it that is refused leaves nothing.
    let refused: Vec<Change> = good.iter().cloned().chain([group(&[])]).collect();
    assert_eq!(tables.apply(&refused, 0).unwrap_err().error, Error::Duplicate);
    assert_eq!(tables.profile(profile).unwrap().members(), 0);
    tables.apply(&good, 0).unwrap();
    let run = |tables: &Tables, value, hash| {
        let table = tables.table(table).unwrap();
        let handle = table.lookup(&[value]).unwrap_or(DEFAULT);
        tables.action(table, handle, || hash).map(|(action, _)| action)
    };
    assert_eq!(
        [0, 1, 2, 3, u64::MAX].map(|hash| run(&tables, 1, hash)),
        [10, 10, 30, 10, 10].map(Some)
    );
    assert_eq!(run(&tables, 2, 0), Some(10));
    assert_eq!(run(&tables, 3, 0), Some(9));
    let error = |tables: &mut Tables, change: Change| tables.apply(&[change], 0).unwrap_err().error;
    let in_use = |what, number| Error::InUse { what, number };
    assert_eq!(
        error(&mut tables, change(ProfileChange::RemoveMember { member: 30 })),
        in_use("member", 30)
    );
    assert_eq!(
        error(&mut tables, change(ProfileChange::RemoveGroup { group: 5 })),
        in_use("group", 5)
    );
    assert_eq!(
        error(&mut tables, to(4, Target::Member(7))),
        Error::Unknown {
            what: "member",
            number: 7
        }
    );
    assert_eq!(
        error(&mut tables, to(4, action(1, 1))),
        Error::WrongTarget {
            expected: "a member or a group of its action profile"
        }
    );
    let modify = |members: &[(u32, u32)]| {
        change(ProfileChange::ModifyGroup {
            group: 5,
            members: members.iter().copied().map(GroupMember::from).collect(),
        })
    };
    assert_eq!(error(&mut tables, modify(&[(30, 4)])), Error::Full { limit: 3 });
    assert_eq!(
        error(&mut tables, modify(&[(30, u32::MAX), (10, u32::MAX)])),
        Error::Full { limit: 3 }
    );
    tables.apply(&[modify(&[])], 0).unwrap();
    assert_eq!(run(&tables, 1, 0), Some(9), "an empty group leads to the default");
    tables
        .apply(&[change(ProfileChange::RemoveMember { member: 30 })], 0)
        .unwrap();
    let remove = |value| Change::Remove {
        table,
        pattern: exact(&key, value),
        priority: 0,
    };
    tables
        .apply(
            &[
                remove(1),
                remove(2),
                change(ProfileChange::RemoveGroup { group: 5 }),
            ],
            0,
        )
        .unwrap();
    tables
        .apply(&[change(ProfileChange::RemoveMember { member: 10 })], 0)
        .unwrap();
    tables.apply(&[1, 2, 3, 4].map(member), 0).unwrap();
    assert_eq!(error(&mut tables, member(5)), Error::Full { limit: 4 });
}

#[test]
fn value_sets_hold_patterns() {
    let key = layout(&[
        (MatchKind::Exact, 16),
        (MatchKind::Ternary, 8),
        (MatchKind::Range, 8),
    ]);
    let pattern = |value| {
        let ternary = Match::Ternary {
            value: &[2],
            mask: &[3],
        };
        key.pattern(&[
            Match::Exact(&[value]),
            ternary,
            Match::Range {
                low: &[5],
                high: &[7],
            },
        ])
        .unwrap()
    };
    let mut tables = Tables::new();
    let set = tables.add_value_set(key.clone(), 2);
    let add = |value| Change::AddValue {
        set,
        pattern: pattern(value),
    };
    tables.apply(&[add(1), add(2)], 0).unwrap();
    assert_eq!(tables.apply(&[add(2)], 0).unwrap_err().error, Error::Duplicate);
    assert_eq!(
        tables.apply(&[add(3)], 0).unwrap_err().error,
        Error::Full { limit: 2 }
    );
    let contains = |tables: &Tables, values: [u64; 3]| {
        let key = key.key(&[&values[..1], &values[1..2], &values[2..]]).unwrap();
        tables.value_set(set).unwrap().contains(&key)
    };
    assert!(contains(&tables, [1, 6, 5]) && contains(&tables, [2, 2, 7]));
    assert!(!contains(&tables, [3, 2, 6]) && !contains(&tables, [1, 1, 6]) && !contains(&tables, [1, 2, 8]));
    tables
        .apply(
            &[Change::RemoveValue {
                set,
                pattern: pattern(1),
            }],
            0,
        )
        .unwrap();
    assert!(!contains(&tables, [1, 6, 5]));
}

#[test]
fn look_ups_do_not_allocate() {
    let kinds: [&[(MatchKind, u32)]; 6] = [
        &[(MatchKind::Exact, 48)],
        &[(MatchKind::Exact, 300)],
        &[(MatchKind::Lpm, 32)],
        &[(MatchKind::Exact, 32), (MatchKind::Lpm, 128)],
        &[(MatchKind::Ternary, 200)],
        &[(MatchKind::Range, 100)],
    ];
    for fields in kinds {
        let layout = layout(fields);
        let mut tables = Tables::new();
        let table = tables
            .add_table(TableSpec {
                counters: true,
                ..TableSpec::new(layout.clone(), 10, 1)
            })
            .unwrap();
        let one: Vec<Match<'_>> = fields
            .iter()
            .map(|&(kind, width)| match kind {
                MatchKind::Exact => Match::Exact(&[1]),
                MatchKind::Lpm => Match::Lpm {
                    value: &[1],
                    length: width,
                },
                MatchKind::Ternary => Match::Ternary {
                    value: &[1],
                    mask: &[3],
                },
                _ => Match::Range {
                    low: &[1],
                    high: &[2, 1],
                },
            })
            .collect();
        let entry = entry(layout.pattern(&one).unwrap(), action(1, 1));
        tables.apply(&[Change::Insert { table, entry }], 0).unwrap();
        let values: Vec<&[u64]> = fields.iter().map(|_| &[1][..]).collect();
        let key: Words = layout.key(&values).unwrap();
        let shared = Shared::new(tables);
        let info = allocation_counter::measure(|| {
            let tables = shared.read();
            let table = tables.table(table).unwrap();
            let handle = table.lookup(&key).unwrap();
            table.count(handle, 1);
            assert!(tables.action(table, handle, || 0).is_some());
        });
        assert_eq!(info.count_total, 0, "{fields:?}");
    }
}

#[test]
fn members_that_watch_a_port_which_is_down_are_left_out() {
    let key = layout(&[(MatchKind::Exact, 8)]);
    let (mut tables, profile, table) = with_profile(&key, [600, 600]);
    let change = |change| Change::Profile { profile, change };
    let member = |member| change(add_member(member));
    let watching = |member, weight, port| GroupMember {
        watch: Some(port),
        ..GroupMember::from((member, weight))
    };
    let members = vec![watching(1, 2, 7), (2, 1).into(), watching(3, 1, 511)];
    let insert = Change::Insert {
        table,
        entry: entry(exact(&key, 1), Target::Group(5)),
    };
    let add = ProfileChange::AddGroup { group: 5, members };
    tables
        .apply(&[member(1), member(2), member(3), change(add), insert], 0)
        .unwrap();
    let chosen = |tables: &Tables| {
        let table = tables.table(table).unwrap();
        let handle = table.lookup(&[1]).unwrap();
        [0, 1, 2, 3].map(|hash| tables.action(table, handle, || hash).unwrap().0)
    };
    assert_eq!(chosen(&tables), [1, 1, 2, 3]);
    tables.ports().set_up(7, false);
    assert_eq!(chosen(&tables), [2, 3, 2, 3]);
    tables.ports().set_up(511, false);
    assert_eq!(chosen(&tables), [2; 4]);
    // Undone, a change of the group leaves the ports that were watched.
    let modify = ProfileChange::ModifyGroup {
        group: 5,
        members: vec![watching(1, 1, 7)],
    };
    tables.apply(&[change(modify.clone()), member(1)], 0).unwrap_err();
    assert_eq!(chosen(&tables), [2; 4]);
    tables.apply(&[change(modify)], 0).unwrap();
    assert_eq!(chosen(&tables), [9; 4], "none is left: the default");
    tables.ports().set_up(7, true);
    assert_eq!(chosen(&tables), [1; 4]);
    tables.ports().set_up(9999, false);
    let many = ProfileChange::ModifyGroup {
        group: 5,
        members: vec![watching(1, 513, 7)],
    };
    let refused = tables.apply(&[change(many)], 0).unwrap_err();
    assert_eq!(refused.error, Error::Full { limit: 512 });
}
