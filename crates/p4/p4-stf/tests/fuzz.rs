//! Programs, entries, packets and scripts with faults, through the whole of it: loader, checker, engine,
//! tables.
//!
//! Each case changes a program of the project (a number, a name, some bytes of its JSON) or its script (lines
//! twice, swapped, words and digits of other places), and runs what is still accepted. Nothing may panic, and
//! no case may take long. `cargo test` tries a few hundred. `make fuzz-p4 MINUTES=60` goes on for an hour,
//! from another seed each time; a failure names the seed of its case.

#![allow(clippy::unwrap_used, reason = "tests")]

use fastrand::Rng;
use p4_stf::{folder, run, script};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Far more than the slowest program needs in a debug build on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const CASES: u64 = 300;

/// JSON and script of each program with both.
fn programs() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4-bmv2/programs");
    let tests = folder::find(&root).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    tests
        .iter()
        .map(|test| (read(&test.program), read(&test.script)))
        .collect()
}

/// Where the number begins and ends that `at` falls on, counting numbers of the text.
fn number_at(text: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&i| bytes[i].is_ascii_digit() && (i == 0 || !bytes[i - 1].is_ascii_alphanumeric()))
        .collect();
    let start = *starts.get(at % starts.len().max(1))?;
    let len = bytes[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    Some((start, start + len))
}

fn change_json(json: &str, random: &mut Rng) -> String {
    let mut text = json.to_owned();
    for _ in 0..random.usize(1..4) {
        match random.u8(..6) {
            0..3 => {
                let values = [0, 1, 2, 3, 7, 8, 9, 16, 32, 64, 65, 128, 511, 4096, u64::MAX];
                if let Some((from, to)) = number_at(&text, random.usize(..)) {
                    let value = values[random.usize(..values.len())];
                    text.replace_range(from..to, &value.to_string());
                }
            }
            3 | 4 => {
                // A word for another one.
                let quotes: Vec<usize> = text.match_indices('"').map(|(at, _)| at).collect();
                let word = |at: usize| (quotes[2 * at] + 1, quotes[2 * at + 1]);
                let count = quotes.len() / 2;
                if count > 1 {
                    let (from, to) = word(random.usize(..count));
                    let (a, b) = word(random.usize(..count));
                    let other = text[a..b].to_owned();
                    text.replace_range(from..to, &other);
                }
            }
            _ => {
                let mut bytes = text.into_bytes();
                let at = random.usize(..bytes.len());
                bytes[at] = b"0123456789[]{}:,\"-ae"[random.usize(..20)];
                text = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
    }
    text
}

fn change_script(script: &str, random: &mut Rng) -> String {
    let mut lines: Vec<String> = script.lines().map(str::to_owned).collect();
    for _ in 0..random.usize(1..6) {
        let (a, b) = (random.usize(..lines.len()), random.usize(..lines.len()));
        match random.u8(..5) {
            0 => lines.swap(a, b),
            1 => lines.insert(a, lines[b].clone()),
            2 => {
                let words: Vec<&str> = lines[b].split(' ').collect();
                let word = words[random.usize(..words.len())].to_owned();
                let mut own: Vec<String> = lines[a].split(' ').map(str::to_owned).collect();
                let at = random.usize(..own.len());
                own[at] = word;
                lines[a] = own.join(" ");
            }
            _ => {
                let digits: Vec<usize> = lines[a]
                    .char_indices()
                    .filter(|(_, c)| c.is_ascii_hexdigit())
                    .map(|(at, _)| at)
                    .collect();
                if !digits.is_empty() {
                    let at = digits[random.usize(..digits.len())];
                    lines[a].replace_range(at..=at, &format!("{:x}", random.u8(..16)));
                }
            }
        }
    }
    lines.join("\n")
}

/// Lines that are not as they were, to make a test of.
fn changed(before: &str, after: &str) -> String {
    let lines = before.lines().zip(after.lines()).zip(1..);
    let told = lines.filter(|((before, after), _)| before != after).take(8);
    told.map(|((before, after), number)| format!("\n  {number}: {before}\n   -> {after}"))
        .collect()
}

/// Whether the program was still accepted.
fn case(json: &str, script: &str) -> bool {
    let Ok(program) = p4_bmv2::load(json.as_bytes(), None) else {
        return false;
    };
    if let Ok(lines) = script::parse(script) {
        // Whether packets are as expected is not asked.
        let _ = run(program, &lines);
    }
    true
}

/// One case from its seed: whether the program was still accepted, and the time it took.
fn try_seed(programs: &[(String, String)], seed: u64) -> (bool, Duration) {
    let mut random = Rng::with_seed(seed);
    let (original, script) = &programs[random.usize(..programs.len())];
    let json = if random.u8(..3) == 0 {
        original.clone()
    } else {
        change_json(original, &mut random)
    };
    let script = change_script(script, &mut random);
    let start = Instant::now();
    let accepted = catch_unwind(AssertUnwindSafe(|| case(&json, &script)))
        .unwrap_or_else(|_| panic!("case {seed} panics:{}", changed(original, &json)));
    (accepted, start.elapsed())
}

#[test]
fn nothing_panics_or_hangs() {
    let programs = programs();
    let minutes: Option<u64> = std::env::var("P4_FUZZ_MINUTES")
        .ok()
        .map(|text| text.parse().unwrap());
    let first = minutes.map_or(1, |_| fastrand::u64(..1 << 48));
    let end = Instant::now() + Duration::from_secs(60 * minutes.unwrap_or(0));
    let (mut cases, mut accepted, mut slowest) = (0, 0, Duration::ZERO);
    while minutes.map_or(cases < CASES, |_| Instant::now() < end) {
        let seed = first + cases;
        let (sound, took) = try_seed(&programs, seed);
        assert!(took < TIMEOUT, "case {seed} took {took:?}");
        slowest = slowest.max(took);
        accepted += u64::from(sound);
        cases += 1;
    }
    println!("{cases} cases from seed {first}: {accepted} programs accepted, the slowest took {slowest:?}");
    // Changes that nothing survives would test the reader only.
    assert!(accepted * 4 > cases, "{accepted} of {cases}");
}

/// A mask applied to a value of no bits: the bounds of a width were the wrong way round.
#[test]
fn a_mask_over_no_bits() {
    let programs = programs();
    for seed in [
        113_827_403_716_016,
        139_104_541_694_934,
        163_887_228_522_984,
        215_418_010_183_230,
    ] {
        try_seed(&programs, seed);
    }
}
