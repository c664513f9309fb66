//! When the idle loop of a core is to poll instead of halting.
//!
//! A core that halts is woken late: within microseconds on bare metal, in up to a millisecond where it
//! belongs to a hypervisor. For a guest that waits for an answer this is most of a round trip. So a worker
//! keeps its core from halting while an answer is expected soon. Guests converse if the worker's gaps are
//! ended by kicks of guests that were notified since the worker was woken before: such a guest went on after
//! an answer. A break counts as in time if it was no longer than the bound; most of the last ones have to be.
//! Nothing else sets the constraint: not a stream, whose sender receives nothing, nor a conversation with
//! pauses.
//!
//! The cost is bounded: a core polls no longer than the bound after each packet, and as good as nothing once
//! there are none. The safe direction of error is to let the core halt.

/// Number of gaps that are remembered.
const GAPS: u32 = u16::BITS;

/// Number of them that have to be in time.
const ENOUGH: u32 = GAPS * 3 / 4;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct IdlePoll {
    bound_ns: u64,
    /// The last gaps, one bit each: whether they ended in time, with a guest that had an answer.
    in_time: u16,
    woken_ns: u64,
}

impl IdlePoll {
    /// With this bound on the time after each packet.
    pub fn new(bound_ns: u64) -> IdlePoll {
        IdlePoll {
            bound_ns,
            in_time: 0,
            woken_ns: 0,
        }
    }

    /// Notes that the worker was woken after a break since `since_ns`. `notified_ns` is when one of the
    /// guests that woke it was notified last, if guests did.
    pub fn woken(&mut self, now_ns: u64, since_ns: u64, notified_ns: Option<u64>) {
        let answered = notified_ns.is_some_and(|notified_ns| notified_ns > self.woken_ns);
        let in_time = now_ns.saturating_sub(since_ns) <= self.bound_ns;
        self.in_time = self.in_time << 1 | u16::from(answered && in_time);
        self.woken_ns = now_ns;
    }

    /// The time for which the idle loop is to poll from now on, in a break since `since_ns`; `None`: not at
    /// all.
    pub fn poll_for_ns(&self, now_ns: u64, since_ns: u64) -> Option<u64> {
        let left_ns = (since_ns + self.bound_ns).checked_sub(now_ns);
        left_ns.filter(|left_ns| *left_ns > 0 && self.in_time.count_ones() >= ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND_NS: u64 = 500_000;

    /// A worker that serves a packet within 10 us of each wake-up.
    struct Worker {
        poll: IdlePoll,
        now_ns: u64,
        notified_ns: u64,
    }

    impl Worker {
        fn new() -> Worker {
            Worker {
                poll: IdlePoll::new(BOUND_NS),
                now_ns: 1_000_000_000,
                notified_ns: 0,
            }
        }

        fn polls_for_ns(&self) -> Option<u64> {
            self.poll.poll_for_ns(self.now_ns, self.now_ns)
        }

        /// The guest kicks every `gap_ns`, so many times, and is notified in between if it is `answered`. How
        /// often the core was kept from halting meanwhile.
        fn kicks(&mut self, times: usize, gap_ns: u64, answered: bool) -> usize {
            let kept = |worker: &mut Worker| {
                let kept = worker.polls_for_ns().is_some();
                if answered {
                    worker.notified_ns = worker.now_ns + gap_ns / 2;
                }
                let since_ns = worker.now_ns;
                worker.now_ns += gap_ns;
                worker
                    .poll
                    .woken(worker.now_ns, since_ns, Some(worker.notified_ns));
                worker.now_ns += 10_000;
                kept
            };
            (0..times).filter(|_| kept(self)).count()
        }
    }

    #[test]
    fn a_conversation_keeps_the_core_awake_and_its_end_lets_it_halt() {
        let mut worker = Worker::new();
        assert_eq!(worker.kicks(1000, 150_000, true), 988, "all but the first ones");
        let (since_ns, poll) = (worker.now_ns, &worker.poll);
        assert_eq!(poll.poll_for_ns(since_ns, since_ns), Some(BOUND_NS));
        assert_eq!(poll.poll_for_ns(since_ns + 400_000, since_ns), Some(100_000));
        for later_ns in [BOUND_NS, BOUND_NS + 1, u64::MAX / 2] {
            assert_eq!(poll.poll_for_ns(since_ns + later_ns, since_ns), None);
        }
    }

    #[test]
    fn an_answer_may_come_before_the_break_begins() {
        // Notifying the guest on a core that sleeps takes the worker longer than that guest's answer.
        let mut poll = IdlePoll::new(BOUND_NS);
        for number in 1..=16 {
            let woken_ns = number * 300_000;
            poll.woken(woken_ns, woken_ns - 10_000, Some(woken_ns - 50_000));
        }
        assert!(poll.poll_for_ns(16 * 300_000, 16 * 300_000).is_some());
    }

    #[test]
    fn streams_and_slow_conversations_do_not() {
        for (gap_ns, answered) in [
            (100_000, false),
            (10_000, false),
            (BOUND_NS + 1, true),
            (1_000_000, true),
            (1_000_000_000, true),
        ] {
            let mut worker = Worker::new();
            assert_eq!(worker.kicks(1000, gap_ns, answered), 0, "{gap_ns} ns, {answered}");
            worker.kicks(16, 100_000, true);
            let kept = worker.kicks(1000, gap_ns, answered);
            assert_eq!(kept, 5, "after a conversation, {gap_ns} ns, {answered}");
        }
    }

    #[test]
    fn wake_ups_by_other_threads_are_no_conversation() {
        let mut worker = Worker::new();
        worker.kicks(16, 100_000, true);
        for _ in 0..5 {
            assert!(worker.polls_for_ns().is_some());
            let since_ns = worker.now_ns;
            worker.now_ns += 100_000;
            worker.poll.woken(worker.now_ns, since_ns, None);
        }
        assert_eq!(worker.polls_for_ns(), None);
    }

    #[test]
    fn a_late_answer_now_and_then_changes_nothing() {
        let mut worker = Worker::new();
        worker.kicks(16, 100_000, true);
        for _ in 0..100 {
            assert_eq!(worker.kicks(3, 100_000, true), 3);
            assert_eq!(worker.kicks(1, 2_000_000, true), 1);
        }
    }

    #[test]
    fn a_bound_of_nothing_is_never() {
        let mut poll = IdlePoll::new(0);
        (1..100).for_each(|time| poll.woken(time, time, Some(time)));
        assert_eq!(poll.poll_for_ns(100, 100), None);
    }
}
