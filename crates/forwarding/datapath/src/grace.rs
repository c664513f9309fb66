//! Grace periods: when has every forwarding thread flushed its counts into the flows' statistics, and let go
//! of an earlier table of ports?
//!
//! A thread counts in a cache of its own, and flushes the counts every few milliseconds and before it sleeps.
//! So the statistics of a flow that has ended are final once every thread has flushed after the end: the
//! quiescent states of RCU (McKenney and Slingwine, 1998). A thread that sleeps has flushed, is *offline*,
//! and holds up no period.
//!
//! A thread that ends flows begins a period, and then looks which threads are online. A thread that wakes
//! goes online, and then looks which flows live. Each side has a fence between the two steps, so that one of
//! them sees the other; no packet costs a fence.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// In place of a period: the thread is offline.
const OFFLINE: u64 = u64::MAX;

/// All forwarding threads of a data plane.
#[derive(Default)]
pub(crate) struct GracePeriods {
    /// The period that began last.
    current: AtomicU64,
    members: Mutex<Vec<Arc<Seen>>>,
}

/// The last period that had begun when a thread flushed last, or [`OFFLINE`]; on a cache line of its own.
#[repr(align(64))]
struct Seen(AtomicU64);

impl GracePeriods {
    /// Begins a period, for all flows that have ended before.
    pub fn begin(&self) -> u64 {
        let period = self.current.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        period
    }

    /// Whether all threads have flushed since that period began, so that statistics of flows that had ended
    /// are final.
    pub fn is_over(&self, period: u64) -> bool {
        let members = self.members.lock();
        members
            .iter()
            .all(|seen| seen.0.load(Ordering::Acquire) >= period)
    }

    /// Adds a thread, which is offline.
    pub fn join(self: &Arc<Self>) -> Member {
        let seen = Arc::new(Seen(AtomicU64::new(OFFLINE)));
        self.members.lock().push(seen.clone());
        Member {
            periods: self.clone(),
            seen,
        }
    }
}

/// One thread's part.
pub(crate) struct Member {
    periods: Arc<GracePeriods>,
    seen: Arc<Seen>,
}

impl Member {
    /// The thread calls this after it was offline, before it looks flows up.
    pub fn online(&self) {
        let current = self.periods.current.load(Ordering::Acquire);
        self.seen.0.store(current, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread flushes its counts, and looks at each decision and port that it holds again before using
    /// it. `flush` says false if it cannot let go of an earlier table of ports yet: periods go on.
    pub fn quiescent(&self, flush: impl FnOnce() -> bool) {
        let current = self.periods.current.load(Ordering::Acquire);
        if flush() {
            self.seen.0.store(current, Ordering::Release);
        }
    }

    /// The thread flushes its counts, and looks no flow or port up until it is online again.
    pub fn offline(&self, flush: impl FnOnce()) {
        flush();
        self.seen.0.store(OFFLINE, Ordering::Release);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut members = self.periods.members.lock();
        members.retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_lasts_until_each_thread_online_has_told() {
        let periods = Arc::new(GracePeriods::default());
        let [one, other] = [periods.join(), periods.join()];
        let first = periods.begin();
        assert!(periods.is_over(first), "all sleep");
        one.online();
        assert!(periods.is_over(first), "it woke up later");
        other.online();
        let second = periods.begin();
        assert!(!periods.is_over(second));
        one.quiescent(|| {
            assert!(!periods.is_over(second));
            false
        });
        other.offline(|| {});
        assert!(!periods.is_over(second), "one goes on with what it knows");
        other.online();
        let second = periods.begin();
        one.quiescent(|| true);
        assert!(!periods.is_over(second));
        other.offline(|| assert!(!periods.is_over(second)));
        assert!(periods.is_over(second));
        let third = periods.begin();
        assert!(!periods.is_over(third));
        other.online();
        drop(one);
        assert!(periods.is_over(third), "a thread that has ended");
        // A period that began while it flushed is not over.
        let mut fourth = 0;
        other.quiescent(|| {
            fourth = periods.begin();
            true
        });
        assert!(!periods.is_over(fourth));
    }

    /// What threads count while flows live is in the flows when the period is over.
    #[test]
    fn nothing_is_told_later() {
        use std::sync::atomic::AtomicBool;
        const FLOWS: usize = 2_000;
        let periods = Arc::new(GracePeriods::default());
        let flows: Arc<Vec<(AtomicBool, AtomicU64)>> = Arc::new(
            (0..FLOWS)
                .map(|_| (AtomicBool::new(true), AtomicU64::new(0)))
                .collect(),
        );
        let ending = Arc::new(AtomicBool::new(false));
        let at = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (flows, ending, at, member) = (flows.clone(), ending.clone(), at.clone(), periods.join());
                std::thread::spawn(move || {
                    while !ending.load(Ordering::Relaxed) {
                        member.online();
                        for _ in 0..3 {
                            let (live, told) = &flows[at.load(Ordering::Relaxed) as usize];
                            let mut counted = 0;
                            for _ in 0..5 {
                                counted += u64::from(live.load(Ordering::Acquire));
                            }
                            member.quiescent(|| {
                                told.fetch_add(counted, Ordering::Relaxed);
                                true
                            });
                        }
                        member.offline(|| {});
                    }
                })
            })
            .collect();
        let mut last = Vec::new();
        for (number, (live, told)) in flows.iter().enumerate() {
            at.store(number as u64, Ordering::Relaxed);
            std::hint::spin_loop();
            live.store(false, Ordering::Release);
            let period = periods.begin();
            while !periods.is_over(period) {
                std::thread::yield_now();
            }
            last.push(told.load(Ordering::Relaxed));
        }
        ending.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let end: Vec<_> = flows
            .iter()
            .map(|(_, told)| told.load(Ordering::Relaxed))
            .collect();
        assert_eq!(last, end);
    }
}
