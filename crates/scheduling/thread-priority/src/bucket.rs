//! The token bucket that bounds a thread's time in the raised class. Tokens are nanoseconds.
//!
//! The bucket fills only while the thread sleeps, which makes it fair under a flood. A thread that uses less
//! than its share of a core sleeps, and may be raised for as long as it works. A thread that would use more
//! is runnable all the time, gets no tokens, and competes in the normal class.

/// See the module's description. Time awake is counted as if the thread ran all the time, an error in favour
/// of other tasks.
#[derive(Clone, Debug)]
pub struct Bucket {
    tokens_ns: u64,
}

impl Bucket {
    /// Most tokens: the longest time for which a raised thread keeps other tasks from a core.
    pub const BURST_NS: u64 = 5_000_000;
    /// Time asleep for one token: at most a tenth of a core is used in the raised class.
    pub const ASLEEP_PER_TOKEN: u64 = 9;
    /// Time away for one token, for a thread that is not raised: a part of that time it may have waited for a
    /// core.
    pub const AWAY_PER_TOKEN: u64 = 64;
    /// Tokens below which a lowered thread stays lowered, lest it change class for every packet.
    pub const ENOUGH_NS: u64 = 500_000;

    /// A full bucket.
    pub fn full() -> Bucket {
        Bucket {
            tokens_ns: Bucket::BURST_NS,
        }
    }

    /// Adds tokens for a sleep in the raised class, in which the thread runs as soon as it is woken.
    pub fn on_sleep(&mut self, ns: u64) {
        self.fill(ns / Bucket::ASLEEP_PER_TOKEN);
    }

    /// Adds tokens for a sleep in another class, after which the thread perhaps waited for a core.
    pub fn on_absence(&mut self, ns: u64) {
        self.fill(ns / Bucket::AWAY_PER_TOKEN);
    }

    fn fill(&mut self, tokens_ns: u64) {
        self.tokens_ns = self.tokens_ns.saturating_add(tokens_ns).min(Bucket::BURST_NS);
    }

    /// Takes tokens for time awake in the raised class.
    pub fn used(&mut self, ns: u64) {
        self.tokens_ns = self.tokens_ns.saturating_sub(ns);
    }

    /// Whether the thread has to leave the raised class.
    pub fn is_empty(&self) -> bool {
        self.tokens_ns == 0
    }

    /// Whether the thread may come back to the raised class.
    pub fn has_enough(&self) -> bool {
        self.tokens_ns >= Bucket::ENOUGH_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_flooded_thread_runs_dry_and_stays_so() {
        let mut bucket = Bucket::full();
        bucket.used(Bucket::BURST_NS - 1);
        assert!(!bucket.is_empty());
        bucket.used(1_000);
        assert!(bucket.is_empty());
        // It never sleeps for long.
        for _ in 0..100 {
            bucket.on_sleep(1_000);
        }
        assert!(!bucket.has_enough());
    }

    #[test]
    fn waiting_for_a_core_is_hardly_sleep() {
        let mut bucket = Bucket::full();
        bucket.used(u64::MAX);
        // It shares the core with a task that computes for 10 s, and waits for half of the time.
        let mut raised = 0;
        for _ in 0..1250 {
            bucket.on_absence(4_000_000);
            if bucket.has_enough() {
                bucket.used(u64::MAX);
                raised += Bucket::ENOUGH_NS + 4_000_000 / Bucket::AWAY_PER_TOKEN;
            }
        }
        assert!(raised > 0 && raised < 100_000_000, "{raised} ns of 10 s");
    }

    #[test]
    fn a_pause_makes_up_for_it() {
        let mut bucket = Bucket::full();
        bucket.used(u64::MAX);
        bucket.on_absence(Bucket::ENOUGH_NS * Bucket::AWAY_PER_TOKEN);
        assert!(bucket.has_enough());
        bucket.on_sleep(u64::MAX);
        bucket.used(Bucket::BURST_NS);
        assert!(bucket.is_empty(), "it holds no more than a burst");
    }

    proptest! {
        /// For any behaviour of a thread, its raised time is at most a burst and a tenth of all time.
        #[test]
        fn the_raised_share_is_bounded(periods in prop::collection::vec((1u64..10_000_000, 1u64..2_000_000), 1..200)) {
            let (mut bucket, mut raised, mut all) = (Bucket::full(), 0u64, 0u64);
            for (asleep, awake) in periods {
                bucket.on_sleep(asleep);
                // As with a check after each microsecond.
                let mut left = awake;
                while left > 0 && !bucket.is_empty() {
                    let step = left.min(1_000);
                    bucket.used(step);
                    raised += step;
                    left -= step;
                }
                all += asleep + awake;
                prop_assert!(raised <= Bucket::BURST_NS + all / (Bucket::ASLEEP_PER_TOKEN + 1) + 1_000 * 200);
            }
        }
    }
}
