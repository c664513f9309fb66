//! Rounds of polling: rings whose guests need not kick, and a few of others.

use crate::home::{Home, Homes as _};
use crate::ring_id::RingId;
use crate::timers::Due;
use crate::turns::{Rings, Scheduler};
use placement::{Kicks, VcpuState, View as _};

/// Number of transmit rings, served by others, that are looked at in one round of polling.
const SCAN: u32 = 4;

impl<R: Rings> Scheduler<R> {
    /// Looks at the rings that are polled, but at no more than `most`, and at others each time; true if
    /// something came and is queued.
    pub(crate) fn poll(&mut self, most: usize) -> bool {
        self.give_up_claims();
        self.rings.refresh();
        for _ in 0..most.min(self.schedule.polled.len()) {
            if let Some(ring) = self.schedule.polled.turn() {
                self.look_at(ring);
            }
        }
        !self.schedule.queue.is_empty()
    }

    /// As [`poll`](Self::poll) with all rings, for a thread that has nothing else to do and whose core nobody
    /// wants: what comes in one ring only is served at once. True if something was served or is queued.
    pub(crate) fn poll_and_serve(&mut self) -> bool {
        if !self.schedule.queue.is_empty() {
            return self.poll(usize::MAX);
        }
        self.rings.refresh();
        self.schedule.queue.begin_turn_alone();
        for looked in 1..=self.schedule.polled.len() {
            if let Some(ring) = self.schedule.polled.turn()
                && self.rings.serve_found(ring, looked, &mut self.schedule)
            {
                return true;
            }
        }
        !self.schedule.queue.is_empty()
    }

    /// As [`poll`](Self::poll), for a thread that has something to do, which looks at few rings. It asks the
    /// guests of the others for kicks: they would wait for many such looks.
    pub(crate) fn poll_few(&mut self, most: usize) {
        self.poll(most);
        while let Some(ring) = self.schedule.polled.take_surplus(most) {
            if self.rings.enable_kicks(ring) {
                self.schedule.later(ring);
            }
        }
    }

    fn look_at(&mut self, ring: RingId) {
        if self.rings.has_work(ring) {
            self.schedule.later(ring);
        }
    }

    /// Other work of a helper (Hyper-Switch 3.4): looks at a few transmit rings that others serve, and at
    /// drivers that are owed a notification and sleep meanwhile; true if something is queued.
    pub(crate) fn look_around(&mut self) -> bool {
        let schedule = &self.schedule;
        let Some(here) = schedule
            .here()
            .filter(|_| schedule.shared.placement.knows_vcpus())
        else {
            return false;
        };
        self.rings.refresh();
        let count = self.rings.homes().count();
        for _ in 0..SCAN.min(count) {
            self.schedule.scan_cursor = (self.schedule.scan_cursor + 1) % count;
            let (homes, placement) = (self.rings.homes(), &self.schedule.shared.placement);
            let Some(vnic) = homes.nth(self.schedule.scan_cursor).map(Home::vnic) else {
                continue;
            };
            if !self.schedule.polled.contains(RingId::transmit(vnic))
                && placement.policy.polls(&placement.view(homes), here, vnic)
            {
                self.look_at(RingId::transmit(vnic));
            }
        }
        let (placement, queue) = (&self.schedule.shared.placement, &mut self.schedule.queue);
        let view = placement.view(self.rings.homes());
        let is_blocked = |ring: RingId| match view.receiver(ring.vnic()) {
            VcpuState::Blocked(cpu) => placement.policy.on_block(&view, cpu).is_some(),
            _ => false,
        };
        let timers = &mut self.schedule.timers;
        timers.take_early(Due::Notify, is_blocked, |ring| queue.push(ring));
        !self.schedule.queue.is_empty()
    }

    /// Ends polling: asks for kicks again, or hands rings to a helper, if another task waited for this core
    /// when the work was done. `waited_since_ns` is then when the last break ended in which a helper would
    /// have gone to sleep. True if something came meanwhile and is queued.
    pub fn stop_polling(&mut self, waited_since_ns: Option<u64>) -> bool {
        self.rings.refresh();
        for ring in self.schedule.polled.take() {
            let homes = self.rings.homes();
            let Some(home) = homes.home(ring.vnic()) else {
                continue;
            };
            match waited_since_ns {
                None => home.forget_waits(),
                Some(since_ns) if self.schedule.handed_off(home, homes, since_ns) => continue,
                Some(_) if self.schedule.misses_threads(home, homes) => {
                    self.rings.missed_threads(ring.vnic())
                }
                Some(_) => {}
            }
            if self.rings.enable_kicks(ring) {
                self.schedule.later(ring);
            }
        }
        !self.schedule.queue.is_empty()
    }

    /// The time for which polling is worth while after the last packet, if longer than the policy's
    /// hysteresis: a sender that runs will go on sending. A ring is never left without kicks by a worker that
    /// sleeps, which could not see its guest fall asleep.
    pub(crate) fn patience_ns(&mut self) -> u64 {
        if !self.schedule.shared.placement.knows_vcpus() {
            return 0;
        }
        self.rings.refresh();
        let placement = &self.schedule.shared.placement;
        let now_ns = placement.now_ns();
        let view = placement.view(self.rings.homes());
        let until = |ring: RingId| match placement.policy.leave(&view, ring.vnic()) {
            Kicks::OffUntil(at_ns) => at_ns.saturating_sub(now_ns),
            Kicks::On => 0,
        };
        self.schedule.polled.fresh().map(until).max().unwrap_or(0)
    }
}
