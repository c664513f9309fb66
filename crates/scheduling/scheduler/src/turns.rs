//! The scheduler's demands on the forwarder, and the turns that it gives to rings.

use crate::account::Account;
use crate::executor::Executor;
use crate::forwarding_threads::ForwardingThreads;
use crate::home::Homes;
use crate::kick_limit::PAUSE_NS;
use crate::ring_id::RingId;
use crate::schedule::Schedule;
use crate::timers::Due;
use placement::VnicId;
use std::sync::Arc;

/// The forwarder of one thread, which serves rings. Numbers of rings that do not exist (any more) have no
/// effect.
pub trait Rings {
    /// The vNICs whose rings these are.
    type Homes: Homes;

    /// Has [`homes`](Self::homes) show the vNICs that there are now.
    fn refresh(&mut self);

    /// The vNICs as of the last [`refresh`](Self::refresh).
    fn homes(&self) -> &Self::Homes;

    /// Serves a ring for one turn, which is bounded. If work is left, the ring is put on the schedule again.
    fn serve(&mut self, ring: RingId, schedule: &mut Schedule);

    /// The ring's guest kicked. Returns how many packets have gone through the ring so far; `None` if there
    /// is no such ring.
    fn on_kick(&mut self, ring: RingId) -> Option<u64>;

    /// Whether there is something to do at a polled transmit ring that no thread holds.
    fn has_work(&mut self, ring: RingId) -> bool;

    /// Looks at a polled transmit ring, the one number `looked` in its round, and serves it for one turn if
    /// there is something to do, as [`has_work`](Self::has_work) and [`serve`](Self::serve) do. If there is
    /// something at other polled rings as well, all of them are queued instead, since the order is not the
    /// forwarder's to choose. True if something was served or queued. Claims may be kept until
    /// [`give_up_claims`](Self::give_up_claims).
    fn serve_found(&mut self, ring: RingId, looked: usize, schedule: &mut Schedule) -> bool {
        if !self.has_work(ring) {
            return false;
        }
        if schedule.queue_others(looked, |other| self.has_work(other)) {
            schedule.later(ring);
        } else {
            self.serve(ring, schedule);
        }
        true
    }

    /// Releases what [`serve_found`](Self::serve_found) has left claimed from look to look. Rings that other
    /// threads wanted meanwhile are put on the schedule.
    fn give_up_claims(&mut self, _schedule: &mut Schedule) {}

    /// Has the guest kick again for a transmit ring; true if something came meanwhile. False if another
    /// thread holds the ring: that thread polls it from then on.
    fn enable_kicks(&mut self, ring: RingId) -> bool;

    /// The ring's guest has kicked in vain too often: its kicks are not received for a moment.
    fn kicks_paused(&mut self, ring: RingId);

    /// Notes that the guest of a vNIC sends while all its known threads sleep: there may be others.
    fn missed_threads(&mut self, vnic: VnicId);

    /// Adds the forwarder's counts to those that others read, if that was not done a moment ago.
    fn flush_stats(&mut self);

    /// Prepares for sleep: flushes counts, and keeps nothing that others may wait for.
    fn before_sleep(&mut self);
}

/// The work of one forwarding thread.
pub struct Scheduler<R> {
    /// The forwarder.
    pub rings: R,
    /// The thread's schedule.
    pub schedule: Schedule,
}

impl<R: Rings> Scheduler<R> {
    /// A scheduler for the calling thread; `me` is the executor that it serves if it is a worker.
    pub fn new(shared: Arc<ForwardingThreads>, me: Option<Arc<Executor>>, rings: R) -> Scheduler<R> {
        Scheduler {
            rings,
            schedule: Schedule::new(shared, me),
        }
    }

    /// Gives one ring its turn; false if none is queued.
    #[inline(never)]
    pub fn step(&mut self) -> bool {
        self.give_up_claims();
        if self.schedule.queue.is_empty() {
            return false;
        }
        self.rings.refresh();
        while let Some(ring) = self.schedule.resumed.pop() {
            let home = self.rings.homes().home(ring.vnic());
            if home.is_some_and(|home| !home.resume_kicks(ring)) {
                let at_ns = self.schedule.now_ns() + PAUSE_NS;
                self.schedule.set_timer(at_ns, ring, Due::Kicks);
            }
        }
        if let Some(ring) = self.schedule.next(self.rings.homes())
            && !self.schedule.gave_way(ring, self.rings.homes())
        {
            self.schedule.queue.begin_turn(ring, cpu::now_ns);
            self.rings.serve(ring, &mut self.schedule);
            self.schedule.queue.end_turn(cpu::now_ns);
        }
        true
    }

    /// Releases the claims that looks have kept.
    #[inline]
    pub(crate) fn give_up_claims(&mut self) {
        self.rings.give_up_claims(&mut self.schedule);
    }

    /// Leaves all that this thread would serve, now or at some time, to the threads that have the rings'
    /// kicks: this one ends.
    pub(crate) fn resign(&mut self) {
        self.give_up_claims();
        self.rings.refresh();
        let Schedule {
            shared,
            queue,
            timers,
            polled,
            ..
        } = &mut self.schedule;
        polled.take().for_each(|ring| queue.push(ring));
        timers.expire(u64::MAX, |ring, _| queue.push(ring));
        let homes = self.rings.homes();
        while let Some(ring) = queue.pop() {
            if let Some(home) = homes.home(ring.vnic()) {
                home.post(|| shared.placement.executor_of(home));
            }
        }
    }

    /// Runs a piece of work and accounts for it. The time since the last charge is busy if packets were
    /// moved.
    #[inline]
    pub fn accounted<T>(&mut self, account: &Account, work: impl FnOnce(&mut Scheduler<R>) -> T) -> T {
        let result = work(self);
        account.add(std::mem::take(&mut self.schedule.progress));
        result
    }

    /// Notes which thread of a vNIC's guest kicked: the kick has just woken this thread.
    pub(crate) fn note_kicker(&mut self, vnic: VnicId) {
        self.rings.refresh();
        if let (Some(here), Some(home)) = (self.schedule.here(), self.rings.homes().home(vnic)) {
            self.schedule.shared.placement.note_kicker(home, here);
        }
    }

    /// Handles a kick: the guest's ring is served here, or by a worker that suits better.
    pub(crate) fn on_kick(&mut self, ring: RingId) {
        self.rings.refresh();
        let Some(packets) = self.rings.on_kick(ring) else {
            return;
        };
        // While the ring waits for its turn, further kicks are none of its guest's fault.
        if !self.schedule.queue.contains(ring) {
            self.limit_kicks(ring, packets);
        }
        if !ring.is_transmit() || !self.schedule.sent_on(ring.vnic(), self.rings.homes()) {
            self.schedule.later(ring);
        }
    }

    fn limit_kicks(&mut self, ring: RingId, packets: u64) {
        let (schedule, home) = (&mut self.schedule, self.rings.homes().home(ring.vnic()));
        if home.is_some_and(|home| home.pauses_kicks(ring, packets, || schedule.now_ns())) {
            schedule.set_timer(schedule.now_ns() + PAUSE_NS, ring, Due::Kicks);
            self.rings.kicks_paused(ring);
        }
    }
}
