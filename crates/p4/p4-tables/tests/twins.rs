//! Every kind of table against a linear scan over its entries, under random histories.

#![allow(clippy::unwrap_used)]

use p4_tables::{
    Change, DEFAULT, Entry, Error, KeyField, KeyLayout, Match, MatchKind, TableSpec, Tables, Target, Words,
};
use proptest::prelude::*;

use MatchKind::{Exact, Lpm, Optional as Opt, Range, Ternary};

/// A match in the simplest form.
#[derive(Clone, Debug, PartialEq)]
enum Plain {
    Masked { value: u128, mask: u128, length: u32 },
    Range { low: u128, high: u128 },
}

impl Plain {
    fn matches(&self, key: u128) -> bool {
        match *self {
            Plain::Masked { value, mask, .. } => key & mask == value,
            Plain::Range { low, high } => low <= key && key <= high,
        }
    }
}

#[derive(Clone, Debug)]
struct Twin {
    fields: Vec<Plain>,
    priority: u32,
    age: usize,
    action: u32,
}

/// Choices drawn from one word, so that a history can be shrunk.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Values that often agree, also in their first bits, and lie at the borders.
    fn value(&mut self, width: u32) -> u128 {
        let all = u128::MAX >> (128 - width);
        let value = match self.below(6) {
            0 => 0,
            1 => all,
            2 => 1 << (width - 1),
            3 => self.below(4).into(),
            4 => u128::from(self.below(8)) << (width / 2),
            _ => u128::from(self.below(4)) << width.saturating_sub(2),
        };
        value & all
    }

    fn plain(&mut self, field: KeyField) -> Plain {
        let all = u128::MAX >> (128 - field.width);
        let value = self.value(field.width);
        let masked = |mask: u128, length| Plain::Masked {
            value: value & mask,
            mask,
            length,
        };
        match field.kind {
            Exact => masked(all, field.width),
            Lpm => {
                let lengths = [0, 1, 5, 6, 7, field.width / 2, field.width - 1, field.width];
                let length = lengths[self.below(8) as usize].min(field.width);
                masked(all & !all.checked_shr(length).unwrap_or(0), length)
            }
            Ternary => masked([0, all, 3, all & !7, all >> 1][self.below(5) as usize] & all, 0),
            Opt => masked([0, all][self.below(2) as usize], 0),
            Range => {
                let other = self.value(field.width);
                Plain::Range {
                    low: value.min(other),
                    high: value.max(other),
                }
            }
        }
    }
}

fn words(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn pattern(layout: &KeyLayout, fields: &[KeyField], plain: &[Plain]) -> p4_tables::Pattern {
    let values: Vec<([u64; 2], [u64; 2])> = plain
        .iter()
        .map(|plain| match *plain {
            Plain::Masked { value, mask, .. } => (words(value), words(mask)),
            Plain::Range { low, high } => (words(low), words(high)),
        })
        .collect();
    let matches: Vec<Match<'_>> = fields
        .iter()
        .zip(plain)
        .zip(&values)
        .map(|((field, plain), (first, second))| match (field.kind, plain) {
            (Lpm, Plain::Masked { length, .. }) => Match::Lpm {
                value: first,
                length: *length,
            },
            (Ternary, _) => Match::Ternary {
                value: first,
                mask: second,
            },
            (Opt, Plain::Masked { mask: 0, .. }) => Match::Optional(None),
            (Opt, _) => Match::Optional(Some(first)),
            (Range, _) => Match::Range {
                low: first,
                high: second,
            },
            _ => Match::Exact(first),
        })
        .collect();
    layout.pattern(&matches).unwrap()
}

fn best<'a>(twins: &'a [Twin], key: &[u128]) -> Option<&'a Twin> {
    let length = |twin: &Twin| -> u32 {
        let lengths = twin.fields.iter().map(|field| {
            if let Plain::Masked { length, .. } = field {
                *length
            } else {
                0
            }
        });
        lengths.sum()
    };
    let matching = twins.iter().filter(|twin| {
        twin.fields
            .iter()
            .zip(key)
            .all(|(field, &key)| field.matches(key))
    });
    // Without priorities, entries that match differ in the prefix only.
    matching.max_by_key(|twin| {
        (
            twin.priority,
            if twin.priority == 0 { length(twin) } else { 0 },
            usize::MAX - twin.age,
        )
    })
}

const LIMIT: usize = 24;

/// Compares what some keys find with a linear scan.
fn compare(
    (tables, table): (&Tables, u32),
    fields: &[KeyField],
    twins: &[Twin],
    draw: &mut Draw,
) -> Result<(), TestCaseError> {
    let found = tables.table(table).unwrap();
    prop_assert_eq!(found.len(), twins.len());
    for _ in 0..4 {
        let key: Vec<u128> = fields.iter().map(|field| draw.value(field.width)).collect();
        let values: Vec<[u64; 2]> = key.iter().map(|&value| words(value)).collect();
        let values: Vec<&[u64]> = values.iter().map(|value| &value[..]).collect();
        let packed = found.layout().key(&values).unwrap();
        let handle = found.lookup(&packed).unwrap_or(DEFAULT);
        let action = tables.action(found, handle, || 0).map(|(action, _)| action);
        let expected = best(twins, &key).map(|twin| twin.action);
        prop_assert_eq!(action, expected, "key {:x?}", key);
    }
    Ok(())
}

/// Compares the order of entries with a vector's, in which the last one takes a removed one's place.
fn compare_order(
    table: &p4_tables::Table,
    fields: &[KeyField],
    order: &[(Vec<Plain>, u32)],
) -> Result<(), TestCaseError> {
    for (at, (plain, priority)) in order.iter().enumerate() {
        let expected = table.find(&pattern(table.layout(), fields, plain), *priority);
        prop_assert_eq!(table.at(at), expected);
    }
    prop_assert_eq!(table.at(order.len()), None);
    Ok(())
}

/// Makes a change of the order.
fn reorder(order: &mut Vec<(Vec<Plain>, u32)>, plain: &[Plain], priority: u32, is_new: bool) {
    if is_new {
        order.push((plain.to_vec(), priority));
    } else if let Some(at) = order
        .iter()
        .position(|(own, rank)| own == plain && *rank == priority)
    {
        order.swap_remove(at);
    }
}

fn run(fields: &[KeyField], history: &[u64]) -> Result<(), TestCaseError> {
    let layout = KeyLayout::new(fields).unwrap();
    let prioritised = layout.has_priorities();
    let mut tables = Tables::new();
    let table = tables
        .add_table(TableSpec::new(layout.clone(), LIMIT, 1))
        .unwrap();
    let mut twins: Vec<Twin> = Vec::new();
    let mut order = Vec::new();
    // Copies from before share whatever has not changed, and are as they were.
    let mut copies: Vec<(Tables, Vec<Twin>)> = Vec::new();
    for (age, &word) in history.iter().enumerate() {
        let mut draw = Draw(word);
        let plain: Vec<Plain> = fields.iter().map(|&field| draw.plain(field)).collect();
        // Priorities from 1 on, so that a length never decides where they do.
        let priority = if prioritised { 1 + draw.below(3) as u32 } else { 0 };
        let same = twins
            .iter()
            .position(|twin| twin.fields == plain && twin.priority == priority);
        let action = age as u32;
        let entry = Entry {
            pattern: pattern(&layout, fields, &plain),
            priority,
            target: Target::Action {
                action,
                arguments: Words::new(),
            },
            idle_timeout_ns: 0,
        };
        let (change, expected) = match draw.below(8) {
            0..5 => {
                let expected = match same {
                    Some(_) => Err(Error::Duplicate),
                    None if twins.len() == LIMIT => Err(Error::Full { limit: LIMIT }),
                    None => Ok(()),
                };
                if expected.is_ok() {
                    reorder(&mut order, &plain, priority, true);
                    twins.push(Twin {
                        fields: plain,
                        priority,
                        age,
                        action,
                    });
                }
                (Change::Insert { table, entry }, expected)
            }
            5 => {
                if let Some(at) = same {
                    twins[at].action = action;
                }
                (
                    Change::Modify { table, entry },
                    same.map(|_| ()).ok_or(Error::NotFound),
                )
            }
            _ if draw.below(2) == 0 && !twins.is_empty() => {
                let twin = twins.remove(draw.below(twins.len() as u64) as usize);
                reorder(&mut order, &twin.fields, twin.priority, false);
                let pattern = pattern(&layout, fields, &twin.fields);
                (
                    Change::Remove {
                        table,
                        pattern,
                        priority: twin.priority,
                    },
                    Ok(()),
                )
            }
            _ => {
                if let Some(at) = same {
                    twins.remove(at);
                    reorder(&mut order, &plain, priority, false);
                }
                let change = Change::Remove {
                    table,
                    pattern: entry.pattern,
                    priority,
                };
                (change, same.map(|_| ()).ok_or(Error::NotFound))
            }
        };
        let result = tables.apply(&[change], 0).map_err(|refused| refused.error);
        prop_assert_eq!(result, expected);
        compare((&tables, table), fields, &twins, &mut draw)?;
        compare_order(tables.table(table).unwrap(), fields, &order)?;
        if !copies.is_empty() {
            let (former, own) = &copies[draw.below(copies.len() as u64) as usize];
            compare((former, table), fields, own, &mut draw)?;
        }
        if copies.len() < 8 || draw.below(2) == 0 {
            copies.truncate(7);
            copies.insert(0, (tables.clone(), twins.clone()));
        }
    }
    Ok(())
}

fn fields(fields: &[(MatchKind, u32)]) -> Vec<KeyField> {
    fields
        .iter()
        .map(|&(kind, width)| KeyField { kind, width })
        .collect()
}

fn any_key() -> impl Strategy<Value = Vec<KeyField>> {
    prop::sample::select(vec![
        fields(&[(Exact, 9)]),
        fields(&[(Exact, 48), (Exact, 12), (Exact, 1)]),
        fields(&[(Exact, 128)]),
        fields(&[(Exact, 128), (Exact, 16), (Exact, 128)]),
        fields(&[(Lpm, 32)]),
        fields(&[(Lpm, 36)]),
        fields(&[(Lpm, 64)]),
        fields(&[(Lpm, 70)]),
        fields(&[(Lpm, 128)]),
        fields(&[(Exact, 12), (Lpm, 32)]),
        fields(&[(Exact, 128), (Lpm, 128), (Exact, 3)]),
        fields(&[(Ternary, 16)]),
        fields(&[(Ternary, 8), (Exact, 9), (Lpm, 32), (Opt, 16)]),
        fields(&[(Ternary, 128), (Opt, 128)]),
        fields(&[(Range, 16)]),
        fields(&[(Range, 16), (Ternary, 8), (Range, 100), (Exact, 4)]),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn tables_do_as_linear_scans_do(fields in any_key(), history in prop::collection::vec(any::<u64>(), 1..120)) {
        run(&fields, &history)?;
    }

    /// A refused batch leaves everything as it was.
    #[test]
    fn refused_batches_change_nothing(fields in any_key(), history in prop::collection::vec(any::<u64>(), 2..60)) {
        let layout = KeyLayout::new(&fields).unwrap();
        let mut tables = Tables::new();
        let table = tables.add_table(TableSpec { counters: true, ..TableSpec::new(layout.clone(), 1000, 1) }).unwrap();
        let change = |word: u64| {
            let mut draw = Draw(word);
            let plain: Vec<Plain> = fields.iter().map(|&field| draw.plain(field)).collect();
            let priority = if layout.has_priorities() { draw.below(3) as u32 } else { 0 };
            let pattern = pattern(&layout, &fields, &plain);
            let target = Target::Action { action: word as u32, arguments: [word].as_slice().into() };
            match draw.below(4) {
                0 => Change::Remove { table, pattern, priority },
                1 => Change::Modify { table, entry: Entry { pattern, priority, target, idle_timeout_ns: 0 } },
                _ => Change::Insert { table, entry: Entry { pattern, priority, target, idle_timeout_ns: 0 } },
            }
        };
        let changes: Vec<Change> = history.iter().map(|&word| change(word)).collect();
        let (before, batch) = changes.split_at(changes.len() / 2);
        for change in before {
            let _ = tables.apply(std::slice::from_ref(change), 0);
        }
        for handle in tables.table(table).unwrap().handles() {
            tables.table(table).unwrap().count(handle, u64::from(handle));
        }
        let dump = |tables: &Tables| {
            let table = tables.table(table).unwrap();
            let row = |handle| (table.pattern(handle), table.counted(handle), format!("{:?}", table.found(handle)), table.lookup(table.pattern(handle).unwrap().0.value()));
            let mut rows: Vec<String> = table.handles().map(|handle| format!("{handle} {:?}", row(handle))).collect();
            rows.sort();
            (rows, table.len(), table.masks())
        };
        let expected = dump(&tables);
        let last = Change::Remove { table: 9, pattern: layout.pattern(&[]).unwrap_or_else(|_| match &changes[0] {
            Change::Remove { pattern, .. } => pattern.clone(),
            Change::Insert { entry, .. } | Change::Modify { entry, .. } => entry.pattern.clone(),
            _ => unreachable!(),
        }), priority: 0 };
        let batch: Vec<Change> = batch.iter().cloned().chain([last]).collect();
        prop_assert!(tables.apply(&batch, 0).is_err());
        prop_assert_eq!(dump(&tables), expected);
    }
}

/// Small keys that fill many segments, so that growth, splits and second buckets are met.
#[test]
fn large_exact_tables_keep_every_entry() {
    for words in [1usize, 2, 3] {
        let fields = vec![
            KeyField {
                kind: Exact,
                width: 64
            };
            words
        ];
        let layout = KeyLayout::new(&fields).unwrap();
        let mut tables = Tables::new();
        let table = tables
            .add_table(TableSpec::new(layout.clone(), 20_000, 0))
            .unwrap();
        let key = |number: u64| -> Vec<u64> { (0..words as u64).map(|word| number << (8 * word)).collect() };
        let entry = |number: u64| Entry {
            pattern: {
                let key = key(number);
                let values: Vec<Match<'_>> = key
                    .iter()
                    .map(|word| Match::Exact(std::slice::from_ref(word)))
                    .collect();
                layout.pattern(&values).unwrap()
            },
            priority: 0,
            target: Target::Action {
                action: number as u32,
                arguments: Words::new(),
            },
            idle_timeout_ns: 0,
        };
        let insert: Vec<Change> = (0..20_000)
            .map(|number| Change::Insert {
                table,
                entry: entry(number),
            })
            .collect();
        tables.apply(&insert, 0).unwrap();
        let full = tables.apply(
            &[Change::Insert {
                table,
                entry: entry(20_000),
            }],
            0,
        );
        assert_eq!(full.unwrap_err().error, Error::Full { limit: 20_000 });
        let remove = (0..20_000).step_by(3).map(|number| {
            let Entry {
                pattern, priority, ..
            } = entry(number);
            Change::Remove {
                table,
                pattern,
                priority,
            }
        });
        tables.apply(&remove.collect::<Vec<_>>(), 0).unwrap();
        let found = tables.table(table).unwrap();
        for number in 0..20_001 {
            let action = found
                .lookup(&key(number))
                .and_then(|handle| tables.action(found, handle, || 0));
            let expected = (number % 3 != 0 && number < 20_000).then_some((number as u32, &[][..]));
            assert_eq!(action, expected, "{words} words, key {number}");
        }
        // A bound on the memory per entry: buckets, pattern, target.
        assert!(
            found.memory() / 20_000 < 100 + 8 * words,
            "{} bytes an entry",
            found.memory() / 20_000
        );
    }
}

/// Many prefixes: nodes and handles fill several chunks of memory, and are taken out again.
#[test]
fn large_prefix_tables_find_the_longest() {
    const COUNT: u64 = 30_000;
    let layout = KeyLayout::new(&[KeyField { kind: Lpm, width: 32 }]).unwrap();
    let mut tables = Tables::new();
    let table = tables
        .add_table(TableSpec::new(layout.clone(), COUNT as usize, 0))
        .unwrap();
    let mut twin = std::collections::HashMap::new();
    for number in 0..COUNT {
        let mut draw = Draw(number);
        let length = 8 + draw.below(25) as u32;
        let value = (draw.below(1 << 30) << 2) as u32 & (u32::MAX << (32 - length));
        let pattern = layout
            .pattern(&[Match::Lpm {
                value: &[value.into()],
                length,
            }])
            .unwrap();
        let target = Target::Action {
            action: number as u32,
            arguments: Words::new(),
        };
        let insert = Change::Insert {
            table,
            entry: Entry {
                pattern: pattern.clone(),
                priority: 0,
                target,
                idle_timeout_ns: 0,
            },
        };
        let added = tables.apply(&[insert], 0).is_ok();
        assert_eq!(added, !twin.contains_key(&(value, length)));
        if added {
            twin.insert((value, length), number as u32);
        }
        if number % 3 == 0 {
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
            twin.remove(&(value, length));
        }
    }
    let found = tables.table(table).unwrap();
    assert_eq!(found.len(), twin.len());
    let keys: Vec<(u32, u32)> = twin.keys().copied().collect();
    for (number, &(value, length)) in keys.iter().enumerate() {
        let key = value
            | (Draw(number as u64).below(1 << 31) as u32)
                .checked_shr(length)
                .unwrap_or(0);
        let longest = (0..=32u32).rev().find_map(|length| {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            twin.get(&(key & mask, length)).copied()
        });
        let action = found
            .lookup(&[key.into()])
            .and_then(|handle| tables.action(found, handle, || 0));
        assert_eq!(action.map(|(action, _)| action), longest, "{key:08x}");
    }
    let remove = keys.iter().map(|&(value, length)| Change::Remove {
        table,
        pattern: layout
            .pattern(&[Match::Lpm {
                value: &[value.into()],
                length,
            }])
            .unwrap(),
        priority: 0,
    });
    tables.apply(&remove.collect::<Vec<_>>(), 0).unwrap();
    assert!(tables.table(table).unwrap().is_empty());
}
