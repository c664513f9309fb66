//! Grace periods: when has every forwarding thread told flows what it counted for them?
//!
//! Threads count in caches of their own, and tell flows every few milliseconds, and before they sleep. So the statistics of a
//! flow that has ended are its last ones once every thread has told after the end: the quiescent states of RCU (McKenney and
//! Slingwine, 1998). A thread is *offline* while it sleeps, having told, and holds up no period then.
//!
//! One who ends flows begins a period and then looks which threads are online; a thread goes online and then looks which flows
//! live. A fence on each side, none of them per packet, has one of the two see the other.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What a thread that is offline has seen.
const OFFLINE: u64 = u64::MAX;

/// All forwarding threads of a data plane.
#[derive(Default)]
pub(crate) struct GracePeriods {
    /// The one that began last.
    current: AtomicU64,
    members: Mutex<Vec<Arc<Seen>>>,
}

/// The last period that had begun when a thread told last, or [`OFFLINE`]; on a cache line of its own.
#[repr(align(64))]
struct Seen(AtomicU64);

impl GracePeriods {
    /// Begins a period. What was ended before is what it is about.
    pub fn begin(&self) -> u64 {
        let period = self.current.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        period
    }

    /// Whether all threads have told since that period began: their counts can be read then.
    pub fn is_over(&self, period: u64) -> bool {
        let members = self.members.lock();
        members
            .iter()
            .all(|seen| seen.0.load(Ordering::Acquire) >= period)
    }

    /// A thread that is offline.
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
    /// To be called before flows are looked up, after the thread was offline.
    pub fn online(&self) {
        let current = self.periods.current.load(Ordering::Acquire);
        self.seen.0.store(current, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread tells all that it has counted, and holds no decision that it has not looked at again afterwards.
    pub fn quiescent(&self, tell: impl FnOnce()) {
        let current = self.periods.current.load(Ordering::Acquire);
        tell();
        self.seen.0.store(current, Ordering::Release);
    }

    /// As [`quiescent`](Self::quiescent), and no flow is looked up until it is online again.
    pub fn offline(&self, tell: impl FnOnce()) {
        tell();
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
        one.quiescent(|| assert!(!periods.is_over(second)));
        assert!(!periods.is_over(second));
        other.offline(|| assert!(!periods.is_over(second)));
        assert!(periods.is_over(second));
        let third = periods.begin();
        assert!(!periods.is_over(third));
        other.online();
        drop(one);
        assert!(periods.is_over(third), "a thread that has ended");
        // What began while it told is not over.
        let mut fourth = 0;
        other.quiescent(|| fourth = periods.begin());
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
