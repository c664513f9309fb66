//! The work of the data plane's threads, as they count it. Users see the counts unchanged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// All threads that forward packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WorkReport {
    /// How fast the counter of `busy-cycles` and `awake-cycles` counts: the TSC of x86-64, the generic timer
    /// of AArch64. Known the better the longer the data plane runs, to 1 in 1,000 after a millisecond.
    pub cycles_per_second: u64,
    /// Notifications sent to drivers, over all ports that there are.
    pub calls: u64,
    /// Notifications that drivers did not want, over all ports that there are.
    pub calls_suppressed: u64,
    /// Packets without a flow, and how long their answers took.
    pub misses: Misses,
    /// The threads, in the order of their start.
    pub workers: Vec<WorkerReport>,
}

/// Upper bounds of the times that [`Misses::counts`] counts, in microseconds.
pub const MISS_BOUNDS_US: [u64; 12] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 200_000, 1_000_000,
];

/// Packets without a flow that a controller has decided about: how long each waited, from its arrival in the
/// queue of its port to the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Misses {
    /// Packets up to each bound (20, 50, 100, 200 and 500 us, 1, 2, 5, 10, 50, 200 ms and 1 s) and above the
    /// bound before, and those above the last.
    pub counts: Vec<u64>,
    /// Sum of their times, in microseconds.
    pub total_us: u64,
}

impl Misses {
    /// Adds a packet that waited for so long.
    pub fn add(&mut self, waited: Duration) {
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let place = MISS_BOUNDS_US.iter().position(|bound| us <= *bound);
        self.counts.resize(MISS_BOUNDS_US.len() + 1, 0);
        self.counts[place.unwrap_or(MISS_BOUNDS_US.len())] += 1;
        self.total_us = self.total_us.saturating_add(us);
    }
}

/// Counts of one thread since it started. All but `name` and `tid` only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WorkerReport {
    /// Name of the thread: `worker-0`, or `channel` for the one that forwards what the control process sends.
    pub name: String,
    /// Number of the thread, in the data plane's PID name space.
    pub tid: u32,
    /// Cycles in steps that moved at least one packet, everything included: the poll that found it, messages,
    /// fetching, looking up, copying, returning buffers, calling guests. A step takes up to 8 bursts from one
    /// port. Polls that found nothing do not count.
    pub busy_cycles: u64,
    /// Cycles not asleep: `busy-cycles`, polls that found nothing, and the time in which other tasks had the
    /// core meanwhile.
    pub awake_cycles: u64,
    /// Bursts taken from transmit rings, of 1 to 32 packets.
    pub bursts: u64,
    /// Packets in them.
    pub packets: u64,
    /// Packets (and copies) written into receive rings.
    pub delivered: u64,
    /// Times it handed copies to a receiver over to another worker.
    pub offloads: u64,
    /// Times it left work to another worker because a task that is not ours was ready to run on its core.
    pub aborts: u64,
    /// Rounds of polling transmit rings whose guests need not kick.
    pub polls: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it was woken because there was work, not because of a time-out.
    pub wakeups: u64,
    /// Kicks of guests that it took.
    pub kicks: u64,
    /// Cycles for which it kept its core from halting (`idle-poll-us`), whether the core was idle then or
    /// not.
    pub idle_poll_cycles: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_below_its_bound() {
        let mut misses = Misses::default();
        for us in [0, 20, 21, 1_000_000, 1_000_001] {
            misses.add(Duration::from_micros(us));
        }
        assert_eq!(misses.counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(misses.total_us, 2_000_042);
    }
}
