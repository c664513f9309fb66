//! A token bucket: a burst of events at once, then a number per second.

use std::time::{Duration, Instant};

/// A bound on the rate of events.
#[derive(Debug)]
pub struct Rate {
    per_second: u32,
    /// Most that may happen at once.
    burst: u32,
    /// Nanoseconds' worth of tokens: one is a second divided by the rate.
    saved: Duration,
    /// The time at which `saved` was computed.
    then: Instant,
}

impl Rate {
    /// A full bucket. `per_second` is at least 1.
    pub fn new(burst: u32, per_second: u32) -> Rate {
        let mut rate = Rate {
            per_second,
            burst,
            saved: Duration::ZERO,
            then: Instant::now(),
        };
        rate.saved = rate.full();
        rate
    }

    fn token(&self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }

    fn full(&self) -> Duration {
        self.token() * self.burst
    }

    /// Whether there is a token.
    pub fn has(&mut self, now: Instant) -> bool {
        self.saved = (self.saved + now.saturating_duration_since(self.then)).min(self.full());
        self.then = self.then.max(now);
        self.saved >= self.token()
    }

    /// Whether most of the burst is left: there were few events lately.
    pub fn has_plenty(&mut self, now: Instant) -> bool {
        self.has(now) && self.saved >= self.full() / 2
    }

    /// Takes a token; false if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        let has = self.has(now);
        if has {
            self.saved -= self.token();
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut rate = Rate::new(64, 20);
        let start = Instant::now();
        let mut taken = |ms: u64| {
            let now = start + Duration::from_millis(ms);
            (0..1000).filter(|_| rate.take(now)).count()
        };
        assert_eq!(taken(0), 64);
        assert_eq!(taken(0), 0);
        assert_eq!((1..=1000).map(&mut taken).sum::<usize>(), 20);
        assert_eq!(taken(1_000_000), 64, "no more is saved than the burst");
        assert_eq!(taken(10), 0, "an older clock reading gives nothing");
    }
}
