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
use std::collections::HashMap;

/// Seconds' worth of work that a port may save up.
const SAVED_SECONDS: u64 = 4;

/// Counts since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// Times that a station was seen at one port more than it was known to be at.
    pub made: u64,
    /// Flows that were re-examined later, since a port's token bucket was empty.
    pub deferred: u64,
}

/// The token bucket of a port.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// In thousandths of a flow.
    tokens: u64,
    filled_ms: u64,
}

/// What learning has cost lately.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// The token buckets of ports that have spent tokens.
    buckets: HashMap<PortId, TokenBucket>,
    /// Flows per second and port; `None` for no limit.
    limit: Option<u64>,
    counts: MoveCounts,
}

impl Moves {
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Flows that may be re-examined at once because of any one port, per second; four times as many after a
    /// pause.
    pub fn set_limit(&mut self, flows_per_second: u64) {
        self.limit = Some(flows_per_second.clamp(1, 1 << 20));
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
        let most = limit * SAVED_SECONDS * 1000;
        let full = TokenBucket {
            tokens: most,
            filled_ms: now_ms,
        };
        let bucket = self.buckets.entry(port).or_insert(full);
        let passed = now_ms.saturating_sub(bucket.filled_ms).min(1 << 32);
        bucket.tokens = (bucket.tokens + passed * limit).min(most);
        bucket.filled_ms = bucket.filled_ms.max(now_ms);
        let whole = usize::try_from(bucket.tokens / 1000).unwrap_or(usize::MAX);
        let now = flows.min(whole);
        bucket.tokens -= now as u64 * 1000;
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
