//! A token bucket: so many events at once, and then a number per second.
//!
//! A bucket saves tokens while nothing happens, up to its *burst*, and each event takes one. Tokens are
//! counted in parts that no rate rounds. The caller reads the clock, and may use any one that counts from a
//! fixed moment; a reading older than the last one gives nothing. These buckets bound events that
//! one thread counts, or several under a lock. A bucket that threads share without one (crate `lock-free`), a
//! meter, whose tokens many threads take at once, and the raised class, whose tokens come by sleeping, are
//! other things (crates `datapath` and `thread-priority`).

use std::time::{Duration, Instant};

/// Parts of a token: as many as nanoseconds in a second, so that a nanosecond brings `per_second` of them.
const TOKEN: u64 = 1_000_000_000;

/// A bound on the rate of events.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: u32,
    burst: u32,
    /// Parts of tokens that are there.
    saved: u64,
    /// When they were there, in nanoseconds of the caller's clock.
    then_ns: u64,
}

impl TokenBucket {
    /// A full bucket for `burst` events at once, and `per_second` of them later.
    pub fn new(burst: u32, per_second: u32) -> TokenBucket {
        TokenBucket {
            per_second,
            burst,
            saved: u64::from(burst) * TOKEN,
            then_ns: 0,
        }
    }

    /// Sets another burst and rate. What was saved stays, up to the new burst.
    pub fn set(&mut self, burst: u32, per_second: u32) {
        (self.burst, self.per_second) = (burst, per_second);
        self.saved = self.saved.min(u64::from(burst) * TOKEN);
    }

    /// Adds the tokens that time has brought.
    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.then_ns);
        let earned = passed_ns.saturating_mul(self.per_second.into());
        self.saved = self
            .saved
            .saturating_add(earned)
            .min(u64::from(self.burst) * TOKEN);
        self.then_ns = self.then_ns.max(now_ns);
    }

    /// Takes a token; false if there is none.
    pub fn take(&mut self, now: Duration) -> bool {
        self.take_up_to(1, now) == 1
    }

    /// Takes up to `wanted` tokens; returns how many there were.
    pub fn take_up_to(&mut self, wanted: u64, now: Duration) -> u64 {
        self.fill(nanoseconds(now));
        let taken = wanted.min(self.saved / TOKEN);
        self.saved -= taken * TOKEN;
        taken
    }

    /// Takes a token, in advance if there is none; returns how long its owner has to wait. Callers that wait
    /// get tokens in the order in which they asked. The rate is at least 1.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        let now_ns = nanoseconds(now);
        self.fill(now_ns);
        if self.saved < TOKEN {
            let rate = u64::from(self.per_second.max(1));
            let missing_ns = (TOKEN - self.saved).div_ceil(rate);
            self.then_ns = self.then_ns.saturating_add(missing_ns);
            self.saved += missing_ns * rate;
        }
        self.saved -= TOKEN;
        Duration::from_nanos(self.then_ns.saturating_sub(now_ns))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock for callers that have an [`Instant`]: the time since the first call in this process.
pub fn since_first(now: Instant) -> Duration {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    now.saturating_duration_since(*FIRST.get_or_init(|| now))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of many events at a time may happen.
    fn taken(bucket: &mut TokenBucket, ms: u64) -> u64 {
        let now = Duration::from_millis(ms);
        (0..5000).map(|_| u64::from(bucket.take(now))).sum()
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        for (burst, per_second) in [(64, 20), (300, 300), (1, 1), (1000, 7)] {
            let mut bucket = TokenBucket::new(burst, per_second);
            assert_eq!(taken(&mut bucket, 5), burst.into());
            assert_eq!(taken(&mut bucket, 5), 0);
            let later: u64 = (1..=1000).map(|ms| taken(&mut bucket, 5 + ms)).sum();
            assert_eq!(later, per_second.into(), "tokens come one by one");
            assert_eq!(taken(&mut bucket, 10_000_000), burst.into(), "no more is saved");
            assert_eq!(taken(&mut bucket, 10), 0, "an older clock reading gives nothing");
        }
    }

    #[test]
    fn many_tokens_are_taken_at_once() {
        let mut bucket = TokenBucket::new(400, 100);
        assert_eq!(bucket.take_up_to(150, Duration::ZERO), 150);
        assert_eq!(bucket.take_up_to(1000, Duration::ZERO), 250);
        assert_eq!(bucket.take_up_to(1, Duration::from_millis(9)), 0);
        assert_eq!(bucket.take_up_to(2, Duration::from_millis(10)), 1);
    }

    #[test]
    fn tokens_that_are_taken_in_advance_come_one_after_the_other() {
        let mut bucket = TokenBucket::new(3, 20);
        let mut reserve = |ms: u64| bucket.reserve(Duration::from_millis(ms)).as_millis();
        assert_eq!([0; 5].map(&mut reserve), [0, 0, 0, 50, 100]);
        assert_eq!([60, 60].map(&mut reserve), [90, 140], "at 150 and 200");
        assert_eq!([1000, 1000, 1000, 1000].map(&mut reserve), [0, 0, 0, 50]);
    }

    #[test]
    fn a_lower_rate_forfeits_what_was_saved() {
        let mut bucket = TokenBucket::new(1000, 1000);
        bucket.set(10, 10);
        assert_eq!(taken(&mut bucket, 0), 10);
        bucket.set(1000, 1000);
        assert_eq!(taken(&mut bucket, 0), 0);
        assert_eq!(taken(&mut bucket, 100), 100);
    }

    #[test]
    fn no_rate_and_no_time_overflows() {
        let mut bucket = TokenBucket::new(u32::MAX, u32::MAX);
        assert_eq!(bucket.take_up_to(u64::MAX, Duration::MAX), u32::MAX.into());
        let mut none = TokenBucket::new(0, 0);
        assert!(!none.take(Duration::MAX));
        assert_eq!(
            TokenBucket::new(0, 1).reserve(Duration::ZERO),
            Duration::from_secs(1)
        );
        assert_eq!(TokenBucket::new(0, 1).reserve(Duration::MAX), Duration::ZERO);
    }
}
