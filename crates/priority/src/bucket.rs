//! The token bucket that bounds a thread's time in the raised class. Tokens are nanoseconds.
//!
//! It fills only while the thread sleeps. That is what makes it fair under a flood: a thread that uses less than its share
//! of a core sleeps, and may be raised for as long as it works; one that would use more is runnable all the time, gets no
//! tokens, and competes in the normal class.

/// See the module's description. Time awake is counted as if the thread ran all the time, which errs towards others.
#[derive(Clone, Debug)]
pub struct Bucket {
    tokens_ns: u64,
}

impl Bucket {
    /// What it holds at most: the longest time for which a raised thread keeps others from a core.
    pub const BURST_NS: u64 = 5_000_000;
    /// Time asleep for one token: at most a fifth of a core is used in the raised class.
    pub const ASLEEP_PER_TOKEN: u64 = 4;
    /// Tokens below which a thread that was lowered stays so, lest it change class for every packet.
    pub const ENOUGH_NS: u64 = 500_000;

    /// A full one.
    pub fn full() -> Bucket {
        Bucket {
            tokens_ns: Bucket::BURST_NS,
        }
    }

    /// The thread slept.
    pub fn slept(&mut self, ns: u64) {
        let more = self.tokens_ns.saturating_add(ns / Bucket::ASLEEP_PER_TOKEN);
        self.tokens_ns = more.min(Bucket::BURST_NS);
    }

    /// The thread was awake in the raised class.
    pub fn used(&mut self, ns: u64) {
        self.tokens_ns = self.tokens_ns.saturating_sub(ns);
    }

    /// Whether the thread has to leave the raised class.
    pub fn is_empty(&self) -> bool {
        self.tokens_ns == 0
    }

    /// Whether it may come back.
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
            bucket.slept(1_000);
        }
        assert!(!bucket.has_enough());
    }

    #[test]
    fn a_pause_makes_up_for_it() {
        let mut bucket = Bucket::full();
        bucket.used(u64::MAX);
        bucket.slept(Bucket::ENOUGH_NS * Bucket::ASLEEP_PER_TOKEN);
        assert!(bucket.has_enough());
        bucket.slept(u64::MAX);
        bucket.used(Bucket::BURST_NS);
        assert!(bucket.is_empty(), "it holds no more than a burst");
    }

    proptest! {
        /// Whatever a thread does, its raised time is within a burst and a fifth of all time.
        #[test]
        fn the_raised_share_is_bounded(periods in prop::collection::vec((1u64..10_000_000, 1u64..2_000_000), 1..200)) {
            let (mut bucket, mut raised, mut all) = (Bucket::full(), 0u64, 0u64);
            for (asleep, awake) in periods {
                bucket.slept(asleep);
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
