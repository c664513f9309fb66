//! One thread's run queue, timers and polled rings.

use crate::account::{Account, Progress};
use crate::executor::Executor;
use crate::forwarding_threads::ForwardingThreads;
use crate::polled::Polled;
use crate::ring_id::RingId;
use crate::run_queue::RunQueue;
use crate::sole_sender::SoleSender;
use crate::timers::{Due, Timers};
use placement::Cpu;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest turn in microseconds, besides what is begun then (`vnic::Turn`).
const TURN_US: (u64, u64) = (10, 100);

/// Time in which all rings that wait have a turn, in microseconds, unless there are so many that their turns
/// would be too short.
const ROUND_US: u64 = 400;

/// The rings that a forwarding thread will serve: at once, when polling finds something, and at some time.
/// The forwarder adds to it while it serves a ring.
pub struct Schedule {
    pub(crate) shared: Arc<ForwardingThreads>,
    /// The executor through which others reach this thread, if it is a worker.
    pub(crate) me: Option<Arc<Executor>>,
    pub(crate) queue: RunQueue,
    pub(crate) timers: Timers,
    pub(crate) polled: Polled,
    /// Rings whose kicks are to be received again.
    pub(crate) resumed: Vec<RingId>,
    /// The place at which the look at rings that others serve goes on.
    pub(crate) scan_cursor: u32,
    pub(crate) sole_sender: SoleSender,
    /// Work since the last time it was accounted for.
    pub progress: Progress,
    /// What was accounted for before; none if nobody does.
    pub(crate) account: Option<Arc<Account>>,
}

impl Schedule {
    pub(crate) fn new(shared: Arc<ForwardingThreads>, me: Option<Arc<Executor>>) -> Schedule {
        Schedule {
            shared,
            me,
            queue: RunQueue::default(),
            timers: Timers::default(),
            polled: Polled::default(),
            resumed: Vec::new(),
            scan_cursor: 0,
            sole_sender: SoleSender::default(),
            progress: Progress::default(),
            account: None,
        }
    }

    /// Serves a ring soon.
    #[inline]
    pub fn later(&mut self, ring: RingId) {
        self.queue.push(ring);
    }

    /// Serves a ring at a time of [`now_ns`](Self::now_ns), or earlier if that is set already.
    pub fn set_timer(&mut self, at_ns: u64, ring: RingId, due: Due) {
        self.timers.set(at_ns, ring, due);
    }

    /// Serves a ring at a time of [`now_ns`](Self::now_ns), and not at an earlier one that was set for this
    /// reason.
    pub fn reset_timer(&mut self, at_ns: u64, ring: RingId, due: Due) {
        self.timers.reset(at_ns, ring, due);
    }

    /// Polls a transmit ring from now on: it is empty, and its guest need not kick. `fresh`: something came
    /// through it in this turn.
    pub fn poll_from_now(&mut self, ring: RingId, fresh: bool) {
        self.polled.add(ring, fresh);
    }

    /// Looks at the polled rings after the first `looked` ones of this round, and queues those that have
    /// work; true if there are any.
    #[inline]
    pub fn queue_others(&mut self, looked: usize, mut has_work: impl FnMut(RingId) -> bool) -> bool {
        let Schedule { polled, queue, .. } = self;
        let others = polled.after(looked).filter(|ring| has_work(*ring));
        others.for_each(|ring| queue.push(ring));
        !queue.is_empty()
    }

    /// How long a turn at a ring may take, in microseconds: less while many others wait.
    #[inline]
    pub fn turn_us(&self) -> u64 {
        let others = self.queue.len() as u64;
        if others < ROUND_US / TURN_US.1 {
            return TURN_US.1;
        }
        (ROUND_US / others).max(TURN_US.0)
    }

    /// Packets that this thread has taken from rings so far.
    pub fn packets(&self) -> u64 {
        let before = self.account.as_ref().map_or(0, |account| account.packets());
        before.wrapping_add(self.progress.packets)
    }

    /// How many rings wait for a turn.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Nanoseconds since start: the clock of timers.
    pub fn now_ns(&self) -> u64 {
        self.shared.placement.now_ns()
    }

    /// Whether rings are polled.
    pub(crate) fn is_polling(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Queues rings whose time has come, and returns the time for which this thread may sleep: none while a
    /// ring is queued; else until the next timer, or for ever (`None`).
    pub fn next_deadline(&mut self) -> Option<Duration> {
        let mut next_ns = None;
        if !self.timers.is_empty() {
            let now_ns = self.shared.placement.now_ns();
            let (queue, resumed) = (&mut self.queue, &mut self.resumed);
            next_ns = self.timers.expire(now_ns, |ring, due| {
                queue.push(ring);
                if due == Due::Kicks {
                    resumed.push(ring);
                }
            });
        }
        if self.queue.is_empty() {
            next_ns.map(Duration::from_nanos)
        } else {
            Some(Duration::ZERO)
        }
    }

    pub(crate) fn is_me(&self, executor: &Arc<Executor>) -> bool {
        self.me.as_ref().is_some_and(|me| Arc::ptr_eq(me, executor))
    }

    /// The core that this thread is bound to.
    pub(crate) fn here(&self) -> Option<Cpu> {
        self.me.as_ref()?.cpu
    }
}
