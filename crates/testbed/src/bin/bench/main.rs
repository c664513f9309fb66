//! `make bench`: what the specification promises in numbers, measured on this machine.
//!
//! Absolute numbers of a shared machine mean little, so everything that can be is compared in one interleaved run: ours,
//! the kernel's bridge, ours, the bridge, and so on; medians of the rounds and their ratio are what counts. Results
//! go to `docs/performance/latest.json` and `latest.md`. `BENCH_ROUNDS` (5) and `BENCH_SECONDS` (4) shorten or lengthen it.

#![forbid(unsafe_code)]

mod idle;
mod report;
mod throughput;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// How long to measure.
pub struct Effort {
    /// Rounds, each of which measures every contender once.
    pub rounds: usize,
    /// Seconds per measurement.
    pub seconds: u32,
}

fn number(variable: &str, default: u32) -> Result<u32> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

/// The middle of the values, the mean of the two middle ones of an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (_, _) if sorted.is_empty() => f64::NAN,
        (middle, 1) => sorted[middle],
        (middle, _) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo").lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, name)| name.to_owned())
    });
    json!({
        "processor": processor,
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

fn main() -> Result<()> {
    if let Some(obstacle) = testbed::lab::obstacle() {
        anyhow::bail!("benchmarks: {obstacle}");
    }
    let effort = Effort {
        rounds: usize::try_from(number("BENCH_ROUNDS", 5)?)?,
        seconds: number("BENCH_SECONDS", 4)?,
    };
    ensure!(
        effort.rounds > 0 && effort.seconds > 0,
        "nothing would be measured"
    );
    let mut results = json!({ "machine": machine() });
    results["guest_to_guest"] = throughput::guest_to_guest(&effort)?;
    results["packet_loop"] = throughput::packet_loop(&effort)?;
    results["idle"] = idle::measure()?;
    report::write(&results)
}
