//! The token bucket that bounds the raised time of all threads of this process on one core. Tokens are
//! nanoseconds.
//!
//! A thread has a bucket of its own ([`Bucket`](crate::Bucket)), but a process may have many threads: the
//! driver domain has one per interface. Ten threads, each within its bound, could hold a core in the
//! real-time class. So a thread is raised only while the bucket of its core has tokens as well. Time alone
//! fills it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets: cores beyond that share them.
const CORES: usize = 1024;

static BUCKETS: [CoreBucket; CORES] = [const { CoreBucket::full() }; CORES];

/// The time from which times are counted.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct CoreBucket {
    /// When the bucket will be full again (generic cell rate algorithm).
    full_ns: AtomicU64,
}

impl CoreBucket {
    /// Most tokens: the longest time for which raised threads keep other tasks from a core, one after the
    /// other.
    pub const BURST_NS: u64 = 10_000_000;
    /// Time for one token: at most a fifth of a core is used in the raised class.
    pub const TIME_PER_TOKEN: u64 = 5;
    /// Tokens below which lowered threads stay lowered.
    const ENOUGH_NS: u64 = 1_000_000;

    const fn full() -> CoreBucket {
        CoreBucket {
            full_ns: AtomicU64::new(0),
        }
    }

    /// The bucket of a core.
    pub fn of(core: usize) -> &'static CoreBucket {
        &BUCKETS[core % CORES]
    }

    /// Takes tokens for time awake in the raised class.
    pub fn used(&self, ns: u64, now_ns: u64) {
        self.full_ns.fetch_max(now_ns, Relaxed);
        self.full_ns
            .fetch_add(ns.saturating_mul(Self::TIME_PER_TOKEN), Relaxed);
    }

    /// Whether threads on this core have to leave the raised class.
    pub fn is_empty(&self, now_ns: u64) -> bool {
        self.tokens_ns(now_ns) == 0
    }

    /// Whether threads on this core may come back to the raised class.
    pub fn has_enough(&self, now_ns: u64) -> bool {
        self.tokens_ns(now_ns) >= Self::ENOUGH_NS
    }

    fn tokens_ns(&self, now_ns: u64) -> u64 {
        let missing_ns = self.full_ns.load(Relaxed).saturating_sub(now_ns) / Self::TIME_PER_TOKEN;
        Self::BURST_NS.saturating_sub(missing_ns)
    }
}

/// A time as buckets of cores count it.
pub(crate) fn since_start_ns(now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(*START).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bucket;

    const STEP_NS: u64 = 10_000;

    /// Time for which a core is used in the raised class, of so much time, by threads that take turns and are
    /// each raised as long as their own bucket allows.
    fn raised(threads: usize, time_ns: u64) -> u64 {
        let (core, mut buckets, mut raised) = (CoreBucket::full(), vec![Bucket::full(); threads], 0);
        let mut is_raised = vec![false; threads];
        for step in 0..time_ns / STEP_NS {
            let (now_ns, turn) = (step * STEP_NS, step as usize % threads);
            for (thread, bucket) in buckets.iter_mut().enumerate() {
                if thread != turn {
                    bucket.on_sleep(STEP_NS);
                    continue;
                }
                let may = if is_raised[thread] {
                    !bucket.is_empty() && !core.is_empty(now_ns)
                } else {
                    bucket.has_enough() && core.has_enough(now_ns)
                };
                is_raised[thread] = may;
                if may {
                    bucket.used(STEP_NS);
                    core.used(STEP_NS, now_ns);
                    raised += STEP_NS;
                }
            }
        }
        raised
    }

    #[test]
    fn threads_together_hold_a_core_for_a_fifth_of_the_time() {
        let time_ns = 1_000_000_000;
        let most_ns = CoreBucket::BURST_NS + time_ns / CoreBucket::TIME_PER_TOKEN + STEP_NS;
        for threads in [1, 2, 10, 100] {
            let raised_ns = raised(threads, time_ns);
            assert!(raised_ns <= most_ns, "{threads} threads: {raised_ns} ns");
        }
        assert!(raised(10, time_ns) > most_ns / 2, "but they may");
    }

    #[test]
    fn it_is_full_again_after_a_while() {
        let core = CoreBucket::full();
        core.used(10 * CoreBucket::BURST_NS, 0);
        assert!(core.is_empty(0) && !core.has_enough(45 * CoreBucket::BURST_NS));
        assert!(core.has_enough(50 * CoreBucket::BURST_NS));
        assert_eq!(core.tokens_ns(50 * CoreBucket::BURST_NS), CoreBucket::BURST_NS);
        assert_eq!(core.tokens_ns(u64::MAX), CoreBucket::BURST_NS);
    }
}
