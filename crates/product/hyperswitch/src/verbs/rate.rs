//! What a port did per second, between two readings of its counters.

use crate::cli::SortBy;
use management::Counters;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What happened per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Rate {
    pub received: f64,
    pub received_bytes: f64,
    pub transmitted: f64,
    pub transmitted_bytes: f64,
    pub dropped: BTreeMap<String, f64>,
    pub upcalls: f64,
}

impl Rate {
    /// Counters only grow, but a port that was added again, or a new data plane, begins at 0.
    pub fn between(before: &Counters, now: &Counters, elapsed: Duration) -> Rate {
        let per_second = |before: u64, now: u64| now.saturating_sub(before) as f64 / elapsed.as_secs_f64();
        let of = |value: fn(&Counters) -> u64| per_second(value(before), value(now));
        let drops = now.dropped.iter().map(|(reason, count)| {
            let earlier = before.dropped.get(reason).copied().unwrap_or(0);
            (reason.clone(), per_second(earlier, *count))
        });
        Rate {
            received: of(|counters| counters.received),
            received_bytes: of(|counters| counters.received_bytes),
            transmitted: of(|counters| counters.transmitted),
            transmitted_bytes: of(|counters| counters.transmitted_bytes),
            dropped: drops.filter(|(_, rate)| *rate > 0.0).collect(),
            upcalls: of(|counters| counters.upcalls),
        }
    }

    /// Packets of any reason.
    pub fn drops(&self) -> f64 {
        // A sum of nothing is -0.0.
        self.dropped.values().sum::<f64>() + 0.0
    }

    /// Adds another port's.
    pub fn add(&mut self, other: &Rate) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.transmitted += other.transmitted;
        self.transmitted_bytes += other.transmitted_bytes;
        self.upcalls += other.upcalls;
        for (reason, rate) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += rate;
        }
    }
}

impl SortBy {
    /// What comes first is greatest; none is greater by name.
    pub fn key(self, rate: &Rate) -> f64 {
        match self {
            SortBy::Name => 0.0,
            SortBy::Rx => rate.received,
            SortBy::Tx => rate.transmitted,
            SortBy::Drops => rate.drops(),
        }
    }
}
