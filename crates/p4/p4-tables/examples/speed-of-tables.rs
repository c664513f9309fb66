//! Prints the times of look-ups and insertions: `cargo run --release -p p4-tables --example speed-of-tables`.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use p4_tables::{
    Change, DEFAULT, Entry, KeyField, KeyLayout, Match, MatchKind, Pattern, Shared, Table, TableSpec, Tables,
    Target,
};

/// Numbers without order (Steele et al., *SplitMix*, OOPSLA 2014).
fn mixed(number: u64) -> u64 {
    let mut word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn layout(fields: &[(MatchKind, u32)]) -> KeyLayout {
    let fields: Vec<KeyField> = fields
        .iter()
        .map(|&(kind, width)| KeyField { kind, width })
        .collect();
    KeyLayout::new(&fields).expect("the fields are sound")
}

fn entry(pattern: Pattern, priority: u32) -> Entry {
    let target = Target::Action {
        action: 1,
        arguments: [7].as_slice().into(),
    };
    Entry {
        pattern,
        priority,
        target,
        idle_timeout_ns: 0,
    }
}

/// Nanoseconds of a look-up, without and with reading the action that it leads to; best of five rounds.
fn time(tables: &Tables, table: &Table, keys: &[[u64; 2]]) -> (f64, f64) {
    let words = table.layout().words();
    let round = |act: bool| {
        let start = Instant::now();
        let mut sum = 0;
        for key in keys {
            let handle = table.lookup(&key[..words]).unwrap_or(DEFAULT);
            let argument = if act {
                tables
                    .action(table, handle, || 0)
                    .map_or(0, |(_, words)| words[0])
            } else {
                0
            };
            sum ^= argument ^ u64::from(handle);
        }
        black_box(sum);
        start.elapsed().as_nanos() as f64 / keys.len() as f64
    };
    let best = |act| (0..5).map(|_| round(act)).fold(f64::MAX, f64::min);
    (best(false), best(true))
}

fn measure(name: &str, layout: KeyLayout, count: u64, make: impl Fn(u64) -> (Pattern, u32, [u64; 2])) {
    let mut tables = Tables::new();
    let number = tables
        .add_table(TableSpec::new(layout, count as usize, 1))
        .expect("the table is sound");
    let mut keys = Vec::new();
    for index in 0..count {
        let (pattern, priority, key) = make(index);
        // Random prefixes may repeat.
        let change = Change::Insert {
            table: number,
            entry: entry(pattern, priority),
        };
        if tables.apply(&[change], 0).is_ok() {
            keys.push(key);
        }
    }
    let table = tables.table(number).expect("it was added");
    let lookups: Vec<[u64; 2]> = (0..if table.masks() > 0 { 200_000 } else { 1_000_000 })
        .map(|index| keys[mixed(index) as usize % keys.len()])
        .collect();
    let (lookup, action) = time(&tables, table, &lookups);
    println!(
        "{name}: {} entries, {} masks, {} bytes each; look-up {lookup:.0} ns, with its action {action:.0} ns",
        table.len(),
        table.masks(),
        table.memory() / table.len(),
    );
}

fn exact(words: u64) {
    let fields = if words == 1 {
        layout(&[(MatchKind::Exact, 48)])
    } else {
        layout(&[(MatchKind::Exact, 104)])
    };
    measure(
        &format!("exact, {words} words"),
        fields.clone(),
        1_000_000,
        |index| {
            let key = [
                mixed(index) & 0xffff_ffff_ffff,
                if words == 1 { 0 } else { index & 0xff },
            ];
            (fields.pattern(&[Match::Exact(&key)]).expect("it fits"), 0, key)
        },
    );
}

fn prefixes() {
    let fields = layout(&[(MatchKind::Lpm, 32)]);
    measure("prefixes", fields.clone(), 100_000, |index| {
        // Lengths as on the Internet: half of them 24, most others 16 to 23, few longer.
        let word = mixed(index);
        let length = match word >> 60 {
            0..8 => 24,
            8..15 => 16 + (word >> 40 & 7) as u32,
            _ => 25 + (word >> 40 & 7) as u32,
        };
        let value = word as u32 & (u32::MAX << (32 - length));
        let pattern = fields
            .pattern(&[Match::Lpm {
                value: &[value.into()],
                length,
            }])
            .expect("it fits");
        (pattern, 0, [(value | mixed(word) as u32 >> length).into(), 0])
    });
}

fn ternary(masks: u64) {
    let fields = layout(&[(MatchKind::Ternary, 104)]);
    measure("ternary", fields.clone(), 10_000, |index| {
        let mask = [
            !(0xffu64 << (index % masks % 8 * 8)),
            0xff_ffff_ffff & !(index % masks / 8),
        ];
        let key = [mixed(index), mixed(index) >> 7 & 0xff_ffff_ffff];
        let value = [key[0] & mask[0], key[1] & mask[1]];
        let pattern = fields
            .pattern(&[Match::Ternary {
                value: &value,
                mask: &mask,
            }])
            .expect("it fits");
        (pattern, 1 + (mixed(index) % 1000) as u32, key)
    });
}

/// Entries inserted a second in batches of 1,000 while four threads look up in bursts of 32.
fn insertions() {
    const ENTRIES: u64 = 1_000_000;
    let fields = layout(&[(MatchKind::Exact, 48)]);
    let mut tables = Tables::new();
    let number = tables
        .add_table(TableSpec::new(fields.clone(), ENTRIES as usize, 1))
        .expect("the table is sound");
    let shared = Shared::new(tables);
    let (done, lookups, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut applying = Duration::ZERO;
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (shared, done, lookups, longest) = (&shared, &done, &lookups, &longest);
            scope.spawn(move || {
                let mut index = reader << 32;
                while !done.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let tables = shared.read();
                    longest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
                    let table = tables.table(number).expect("it was added");
                    for _ in 0..32 {
                        index += 1;
                        black_box(table.lookup(&[mixed(index % ENTRIES) & 0xffff_ffff_ffff]));
                    }
                    drop(tables);
                    lookups.fetch_add(32, Ordering::Relaxed);
                }
            });
        }
        for first in (0..ENTRIES).step_by(1000) {
            let change = |index| {
                let key = [mixed(index) & 0xffff_ffff_ffff];
                let pattern = fields.pattern(&[Match::Exact(&key)]).expect("it fits");
                Change::Insert {
                    table: number,
                    entry: entry(pattern, 0),
                }
            };
            let batch: Vec<Change> = (first..first + 1000).map(change).collect();
            let start = Instant::now();
            shared.apply(&batch, 0).expect("all keys differ");
            applying += start.elapsed();
        }
        done.store(true, Ordering::Relaxed);
    });
    println!(
        "insertions beside four readers: {:.0} a second; {:.1} million look-ups a second; a reader waited {} us at most",
        ENTRIES as f64 / applying.as_secs_f64(),
        lookups.load(Ordering::Relaxed) as f64 / applying.as_secs_f64() / 1e6,
        longest.load(Ordering::Relaxed),
    );
}

/// The bound that this machine sets: the time to read a random word of 64 MiB.
fn reads() {
    const WORDS: usize = 8 << 20;
    let memory: Vec<u64> = (0..WORDS as u64).collect();
    let places: Vec<usize> = (0..1_000_000)
        .map(|index| mixed(index) as usize % WORDS)
        .collect();
    let round = || {
        let start = Instant::now();
        black_box(places.iter().fold(0, |sum, &place| sum ^ memory[place]));
        start.elapsed().as_nanos() as f64 / places.len() as f64
    };
    let independent = (0..5).map(|_| round()).fold(f64::MAX, f64::min);
    let chase = || {
        let start = Instant::now();
        let last = (0..1_000_000).fold(0, |at, _| mixed(memory[at]) as usize % WORDS);
        black_box(last);
        start.elapsed().as_nanos() as f64 / 1e6
    };
    let dependent = (0..5).map(|_| chase()).fold(f64::MAX, f64::min);
    println!("a read from 64 MiB: {independent:.0} ns, when it waits for the one before {dependent:.0} ns");
}

fn main() {
    // Names of measurements, or none for all.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|other| other == name);
    if wants("reads") {
        reads();
    }
    if wants("exact") {
        exact(1);
        exact(2);
    }
    if wants("prefixes") {
        prefixes();
    }
    if wants("ternary") {
        [8, 32, 128].into_iter().for_each(ternary);
    }
    if wants("insertions") {
        insertions();
    }
}
