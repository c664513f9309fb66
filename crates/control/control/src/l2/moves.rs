//! A bound on what learning costs at once.
//!
//! A station that is learned at a port, or at a further one, changes all flows from and to it, in the data
//! plane as well. Guests determine how often that happens and how many such flows there are, and it costs all
//! ports. So each port has a token bucket: re-examining a flow because of a station that was learned there
//! takes a token. Flows for which there is none are re-examined later, in pieces
//! ([`LearningSwitch::refresh_stale`](super::LearningSwitch::refresh_stale)).
//!
//! A bound on costs must not decide where a station is: the station is learned at once in any case, and what
//! is late are flows that exist already.

use flow::PortId;
use pacing::TokenBucket;
use std::collections::HashMap;
use std::time::Duration;

/// Seconds' worth of work that a port may save up.
const SAVED_SECONDS: u32 = 4;

/// Counts since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// Times that a station was seen at one port more than it was known to be at.
    pub made: u64,
    /// Flows that were re-examined later, since a port's token bucket was empty.
    pub deferred: u64,
}

/// What learning has cost lately.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// The token buckets of ports that have spent tokens.
    buckets: HashMap<PortId, TokenBucket>,
    /// Flows per second and port; `None` for no limit.
    limit: Option<u32>,
    counts: MoveCounts,
}

impl Moves {
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Flows that may be re-examined at once because of any one port, per second; four times as many after a
    /// pause.
    pub fn set_limit(&mut self, flows_per_second: u64) {
        self.limit = Some(flows_per_second.clamp(1, 1 << 20) as u32);
    }

    /// A station was seen at one more port.
    pub fn count(&mut self) {
        self.counts.made += 1;
    }

    /// Takes tokens of a port for so many flows; returns how many of them may be re-examined at once.
    pub fn spend(&mut self, port: PortId, flows: usize, now_ms: u64) -> usize {
        let Some(limit) = self.limit.filter(|_| flows > 0) else {
            return flows;
        };
        let full = || TokenBucket::new(limit * SAVED_SECONDS, limit);
        let bucket = self.buckets.entry(port).or_insert_with(full);
        bucket.set(limit * SAVED_SECONDS, limit);
        let taken = bucket.take_up_to(flows as u64, Duration::from_millis(now_ms));
        let now = usize::try_from(taken).unwrap_or(flows);
        self.counts.deferred += (flows - now) as u64;
        now
    }

    /// The port was removed.
    pub fn forget_port(&mut self, port: PortId) {
        self.buckets.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_spends_its_own_tokens() {
        let mut moves = Moves::default();
        assert_eq!(moves.spend(PortId(2), 1_000_000, 0), 1_000_000, "no limit yet");
        moves.set_limit(100);
        assert_eq!(moves.spend(PortId(2), 150, 0), 150);
        assert_eq!(moves.spend(PortId(2), 1000, 0), 250, "400 are saved up");
        assert_eq!(moves.spend(PortId(2), 1, 9), 0);
        assert_eq!(moves.spend(PortId(2), 2, 10), 1);
        assert_eq!(moves.spend(PortId(2), 1000, 1010), 100);
        assert_eq!(moves.spend(PortId(1), 300, 1010), 300, "others have their own");
        assert_eq!(moves.counts().deferred, 750 + 1 + 1 + 900);
        // A year without moves does not save up a year's tokens.
        assert_eq!(moves.spend(PortId(2), 1000, 31_557_600_000), 400);
        moves.forget_port(PortId(2));
        assert_eq!(moves.spend(PortId(2), 1000, 31_557_600_000), 400);
    }
}
