//! A bound on a rate that threads share.
//!
//! A bucket is one moment, as in the virtual scheduling of ITU-T I.371 (GCRA): until then, the rate pays for
//! the events that have passed. An event may pass if that moment, moved on by what the event costs, lies no
//! further ahead than the burst. A moment that is over counts as now, so no more is saved than the burst.
//!
//! The moment is one atomic integer, and nothing is held while it changes: a thread that loses its core
//! holds up nobody. An exchange fails only if another thread has taken a token meanwhile, so the tokens that
//! there are bound the tries.
//!
//! Direction of error: a clock reading older than the last one gives nothing, and a cost is rounded up, so
//! fewer events may pass than the rate allows, never more.

use crate::sync::{AtomicU64, Ordering};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A bound on the rate of events in several threads. See the module's description.
#[derive(Debug)]
pub struct SharedBucket {
    /// Time in which the rate pays for one event, in nanoseconds.
    cost_ns: u64,
    /// Time in which the rate pays for the burst, in nanoseconds.
    burst_ns: u64,
    /// The moment until which the rate pays for what has passed.
    paid_ns: AtomicU64,
}

impl SharedBucket {
    /// A full bucket for `burst` events at once, and `per_second` of them later, which is at least 1.
    pub fn new(burst: u32, per_second: u32) -> SharedBucket {
        let cost_ns = SECOND.div_ceil(per_second.max(1).into());
        SharedBucket {
            cost_ns,
            burst_ns: u64::from(burst) * cost_ns,
            paid_ns: AtomicU64::new(0),
        }
    }

    /// Takes a token; false if there is none. `now_ns` is of any clock that counts from a fixed moment.
    pub fn take(&self, now_ns: u64) -> bool {
        let most_ns = now_ns.saturating_add(self.burst_ns);
        let mut paid_ns = self.paid_ns.load(Ordering::Relaxed);
        loop {
            let next_ns = paid_ns.max(now_ns).checked_add(self.cost_ns);
            let Some(next_ns) = next_ns.filter(|next_ns| *next_ns <= most_ns) else {
                return false;
            };
            let order = Ordering::Relaxed;
            match self.paid_ns.compare_exchange(paid_ns, next_ns, order, order) {
                Ok(_) => return true,
                Err(other) => paid_ns = other,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a count of the time that is saved.
        #[test]
        fn a_bucket_is_a_count_of_saved_time(
            burst in 0..50u32,
            per_second in prop_oneof![1..10u32, 1..=u32::MAX],
            steps in prop::collection::vec((0..2_000_000_000u64, 1..40u32), 1..100),
        ) {
            let bucket = SharedBucket::new(burst, per_second);
            let cost = SECOND.div_ceil(per_second.into());
            let full = u64::from(burst) * cost;
            let (mut saved, mut now_ns) = (full, 0);
            for (pause_ns, events) in steps {
                now_ns += pause_ns;
                saved = (saved + pause_ns).min(full);
                for _ in 0..events {
                    let passes = saved >= cost;
                    saved -= if passes { cost } else { 0 };
                    prop_assert_eq!(bucket.take(now_ns), passes);
                }
            }
        }
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let bucket = SharedBucket::new(1000, 10_000);
        let taken = |ms: u64| (0..5000).filter(|_| bucket.take(ms * 1_000_000)).count();
        assert_eq!((taken(7), taken(7)), (1000, 0));
        assert_eq!((8..=107).map(taken).sum::<usize>(), 1000, "ten in a millisecond");
        assert_eq!(taken(10_000), 1000, "no more is saved");
        assert_eq!(taken(9_000), 0, "an older clock reading gives nothing");
        assert!(
            !SharedBucket::new(1, 1).take(u64::MAX),
            "time that cannot be counted brings nothing"
        );
    }

    #[test]
    fn threads_together_get_the_rate_and_not_more() {
        let bucket = SharedBucket::new(100, 1000);
        let step = std::sync::atomic::AtomicU64::new(0);
        let thread = || {
            // Two seconds, in steps of 10 us.
            let moments =
                std::iter::repeat_with(|| step.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed));
            let moments = moments.take_while(|now_ns| *now_ns < 2 * SECOND);
            moments.filter(|now_ns| bucket.take(*now_ns)).count()
        };
        let passed: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(thread));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!((2090..=2100).contains(&passed), "{passed}");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Three threads want a token at the same moment, of which there are two.
    #[test]
    fn no_token_is_taken_twice_and_none_is_lost() {
        loom::model(|| {
            let bucket = Arc::new(SharedBucket::new(2, 1));
            let threads = [(); 2].map(|()| {
                let bucket = bucket.clone();
                loom::thread::spawn(move || bucket.take(SECOND))
            });
            let own = bucket.take(SECOND);
            let others = threads.map(|thread| thread.join().unwrap());
            let taken = others.into_iter().filter(|taken| *taken).count() + usize::from(own);
            assert_eq!(taken, 2);
            assert!(!bucket.take(SECOND) && bucket.take(2 * SECOND));
        });
    }
}
