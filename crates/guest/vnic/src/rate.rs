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

    /// Takes a token, in advance if there is none; returns how long its owner has to wait. Callers that wait
    /// get tokens in the order in which they asked.
    pub fn reserve(&mut self, now: Instant) -> Duration {
        if !self.has(now) {
            self.then += self.token() - self.saved;
            self.saved = self.token();
        }
        self.saved -= self.token();
        self.then.saturating_duration_since(now)
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
    fn tokens_that_are_taken_in_advance_come_one_after_the_other() {
        let mut rate = Rate::new(3, 20);
        let start = Instant::now();
        let mut reserve = |ms: u64| rate.reserve(start + Duration::from_millis(ms)).as_millis();
        assert_eq!([0; 5].map(&mut reserve), [0, 0, 0, 50, 100]);
        assert_eq!([60, 60].map(&mut reserve), [90, 140], "at 150 and 200");
        assert_eq!([1000, 1000, 1000, 1000].map(&mut reserve), [0, 0, 0, 50]);
    }

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
