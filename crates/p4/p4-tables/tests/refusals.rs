//! Patterns, entries and batches that are refused, each with its own error.

#![allow(clippy::unwrap_used)]

mod common;

use common::{action, entry, exact, layout};
use p4_tables::{Change, Entry, Error, KeyField, KeyLayout, Match, MatchKind, TableSpec, Tables, Target};

#[test]
fn wrong_patterns_are_refused() {
    let all = layout(&[
        (MatchKind::Exact, 9),
        (MatchKind::Lpm, 70),
        (MatchKind::Ternary, 8),
        (MatchKind::Range, 16),
    ]);
    let good = [
        Match::Exact(&[511]),
        Match::Lpm {
            value: &[0, 0x20],
            length: 1,
        },
        Match::Ternary {
            value: &[1],
            mask: &[1],
        },
        Match::Range {
            low: &[2],
            high: &[2],
        },
    ];
    assert!(all.pattern(&good).is_ok());
    let with = |field: usize, wrong: Match<'static>| {
        let mut matches = good;
        matches[field] = wrong;
        all.pattern(&matches).unwrap_err()
    };
    assert_eq!(
        all.pattern(&good[..3]),
        Err(Error::WrongFields {
            expected: 4,
            found: 3
        })
    );
    assert_eq!(
        with(0, Match::Exact(&[512])),
        Error::WrongWidth { field: 0, width: 9 }
    );
    assert_eq!(
        with(0, Match::Exact(&[0, 1])),
        Error::WrongWidth { field: 0, width: 9 }
    );
    assert_eq!(with(0, Match::Optional(None)), Error::WrongKind { field: 0 });
    assert_eq!(
        with(
            1,
            Match::Lpm {
                value: &[0, 0x40],
                length: 9
            }
        ),
        Error::WrongWidth { field: 1, width: 70 }
    );
    assert_eq!(
        with(
            1,
            Match::Lpm {
                value: &[],
                length: 71
            }
        ),
        Error::PrefixTooLong {
            field: 1,
            length: 71,
            width: 70
        }
    );
    assert_eq!(
        with(
            1,
            Match::Lpm {
                value: &[1],
                length: 69
            }
        ),
        Error::BitsOutsideMask { field: 1 }
    );
    assert_eq!(
        with(
            2,
            Match::Ternary {
                value: &[2],
                mask: &[1]
            }
        ),
        Error::BitsOutsideMask { field: 2 }
    );
    assert_eq!(
        with(
            2,
            Match::Ternary {
                value: &[],
                mask: &[256]
            }
        ),
        Error::WrongWidth { field: 2, width: 8 }
    );
    assert_eq!(
        with(
            3,
            Match::Range {
                low: &[2],
                high: &[1]
            }
        ),
        Error::EmptyRange { field: 3 }
    );
    assert_eq!(
        with(
            3,
            Match::Range {
                low: &[2],
                high: &[65536]
            }
        ),
        Error::WrongWidth { field: 3, width: 16 }
    );
    let empty = KeyLayout::new(&[KeyField {
        kind: MatchKind::Exact,
        width: 0,
    }]);
    assert_eq!(empty, Err(Error::EmptyField { field: 0 }));
    let wide = [KeyField {
        kind: MatchKind::Exact,
        width: u32::MAX,
    }];
    assert!(matches!(KeyLayout::new(&wide), Err(Error::KeyTooWide { .. })));
    let prefixes = layout(&[(MatchKind::Lpm, 8), (MatchKind::Exact, 8), (MatchKind::Lpm, 8)]);
    let refused = Tables::new().add_table(TableSpec::new(prefixes, 1, 0));
    assert_eq!(refused, Err(Error::SecondPrefix { field: 2 }));
}

#[test]
fn wrong_entries_are_refused() {
    let (narrow, wide) = (
        layout(&[(MatchKind::Exact, 8)]),
        layout(&[(MatchKind::Exact, 100)]),
    );
    let ternary = layout(&[(MatchKind::Ternary, 8)]);
    let mut tables = Tables::new();
    let table = tables.add_table(TableSpec::new(narrow.clone(), 10, 1)).unwrap();
    let masks = tables
        .add_table(TableSpec {
            mask_limit: 2,
            ..TableSpec::new(ternary.clone(), 10, 1)
        })
        .unwrap();
    let keyless = tables.add_table(TableSpec::new(layout(&[]), 10, 1)).unwrap();
    let mut insert = |table, entry| {
        tables
            .apply(&[Change::Insert { table, entry }], 0)
            .map_err(|refused| refused.error)
    };
    let right = entry(exact(&narrow, 1), action(1, 1));
    let refused = [
        (table, entry(exact(&wide, 1), action(1, 1)), Error::ForeignPattern),
        (keyless, right.clone(), Error::ForeignPattern),
        (
            keyless,
            entry(layout(&[]).pattern(&[]).unwrap(), action(1, 1)),
            Error::ForeignPattern,
        ),
        (
            table,
            Entry {
                priority: 1,
                ..right.clone()
            },
            Error::PriorityWithoutMeaning,
        ),
        (
            table,
            Entry {
                idle_timeout_ns: 1,
                ..right.clone()
            },
            Error::NotKept { what: "idle times" },
        ),
        (
            table,
            Entry {
                target: Target::Member(1),
                ..right.clone()
            },
            Error::WrongTarget {
                expected: "an action",
            },
        ),
        (
            7,
            right.clone(),
            Error::Unknown {
                what: "table",
                number: 7,
            },
        ),
    ];
    for (table, entry, error) in refused {
        assert_eq!(insert(table, entry), Err(error));
    }
    let arguments = Target::Action {
        action: 1,
        arguments: [1, 2].as_slice().into(),
    };
    let many = Entry {
        target: arguments,
        ..right.clone()
    };
    assert_eq!(
        insert(table, many),
        Err(Error::TooManyArguments { words: 2, limit: 1 })
    );
    let mask = |mask: u64| {
        entry(
            ternary
                .pattern(&[Match::Ternary {
                    value: &[0],
                    mask: &[mask],
                }])
                .unwrap(),
            action(1, 1),
        )
    };
    assert_eq!(
        [1, 2, 3].map(|bits| insert(masks, mask(bits))),
        [Ok(()), Ok(()), Err(Error::TooManyMasks { limit: 2 })]
    );
    let batch = vec![Change::SetDefault { table, target: None }; p4_tables::MAX_BATCH + 1];
    assert!(matches!(
        tables.apply(&batch, 0).unwrap_err().error,
        Error::BatchTooLarge { .. }
    ));
    assert!(tables.table(table).unwrap().is_empty());
    assert_eq!(
        tables.table(table).unwrap().lookup(&[1, 2]),
        None,
        "a key of another length"
    );
}

#[test]
fn masks_end_with_their_entries() {
    let ternary = layout(&[(MatchKind::Ternary, 32)]);
    let mut tables = Tables::new();
    let table = tables
        .add_table(TableSpec {
            mask_limit: 1,
            ..TableSpec::new(ternary.clone(), 10, 1)
        })
        .unwrap();
    for bit in 0..32 {
        let mask = [1 << bit];
        let pattern = ternary
            .pattern(&[Match::Ternary {
                value: &mask,
                mask: &mask,
            }])
            .unwrap();
        tables
            .apply(
                &[Change::Insert {
                    table,
                    entry: entry(pattern.clone(), action(1, bit)),
                }],
                0,
            )
            .unwrap();
        assert!(
            tables
                .table(table)
                .unwrap()
                .lookup(&[u64::from(u32::MAX)])
                .is_some()
        );
        tables
            .apply(
                &[Change::Remove {
                    table,
                    pattern,
                    priority: 0,
                }],
                0,
            )
            .unwrap();
        assert_eq!(tables.table(table).unwrap().masks(), 0);
    }
}
