//! What became of a list's rules: packets, bytes and the time of the last one, apart from the rules so that
//! look-ups do not share cache lines with them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A rule's counts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Packets that the rule decided about.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Time of the last one, by the caller's clock; 0 for never.
    pub last: u64,
}

/// The counts of all rules of a list, and behind them those of its default. Any thread may add.
#[derive(Debug)]
pub(crate) struct Counters {
    packets: Box<[AtomicU64]>,
    bytes: Box<[AtomicU64]>,
    last: Box<[AtomicU64]>,
}

impl Counters {
    pub fn new(rules: usize) -> Counters {
        let zeros = || (0..=rules).map(|_| AtomicU64::new(0)).collect();
        Counters {
            packets: zeros(),
            bytes: zeros(),
            last: zeros(),
        }
    }

    pub fn add(&self, place: usize, counts: RuleCounts) {
        self.packets[place].fetch_add(counts.packets, Ordering::Relaxed);
        self.bytes[place].fetch_add(counts.bytes, Ordering::Relaxed);
        self.last[place].fetch_max(counts.last, Ordering::Relaxed);
    }

    pub fn get(&self, place: usize) -> RuleCounts {
        RuleCounts {
            packets: self.packets[place].load(Ordering::Relaxed),
            bytes: self.bytes[place].load(Ordering::Relaxed),
            last: self.last[place].load(Ordering::Relaxed),
        }
    }

    /// Takes the counts away. What other threads add meanwhile stays, or is taken.
    pub fn take(&self, place: usize) -> RuleCounts {
        RuleCounts {
            packets: self.packets[place].swap(0, Ordering::Relaxed),
            bytes: self.bytes[place].swap(0, Ordering::Relaxed),
            last: self.last[place].load(Ordering::Relaxed),
        }
    }

    pub fn memory(&self) -> usize {
        3 * size_of_val(&*self.packets)
    }
}
