//! Packets that come by a queue of a port's device, beside its forwarder's ring.
//!
//! A queue is one more source of the port's packets: what comes by it takes the port's walk from the
//! beginning, with the same filters, stages, mirrors and limits. When packets are taken from which of both is
//! crate `vnic`'s (`arrivals`). The queue belongs to who holds the port's transmit side.

use crate::deliver::{Sender, Step, vanished};
use crate::p4::Diverted;
use crate::pipeline::Walk;
use crate::port::Port;
use accelerator::Arrivals;
use control_protocol::data_plane::{ArrivalsState, Steering};
use lock_free::Unique;
use scheduler::Due;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vnic::{ArrivalCounts, ArrivalQueue, BURST, Fetched, Host, Packet, QueueError};

const NS_PER_US: u64 = 1000;

impl Walk {
    /// Fetches packets of a port whose ring is not alone, or whose packets are not looked up as they come.
    #[cold]
    #[inline(never)]
    pub fn fetch_diverted(
        &mut self,
        sender: &mut Sender<'_>,
        step: &mut Step<'_>,
    ) -> Result<Diverted, QueueError> {
        if sender.port.vnic.is_queued() {
            // The thread is the kernel's while it reads a long frame: it keeps no rings of others.
            step.kept.give_up(step.ports, step.schedule);
        }
        if sender.port.vnic.is_looked_up() {
            fetch_few(sender, BURST, &mut self.burst.packets, step).map(Diverted::Fetched)
        } else {
            self.serve_diverted(sender, step)
        }
    }
}

/// Fetches at most `most` packets of a port, from its ring or its queue.
pub(crate) fn fetch_few(
    sender: &mut Sender<'_>,
    most: usize,
    packets: &mut Vec<Unique<Packet>>,
    step: &mut Step<'_>,
) -> Result<Fetched, QueueError> {
    let port = sender.port;
    sender.transmit.with(|side| match side {
        Some(side) if guest_memory::fault_count() > 0 && side.is_broken() => Err(vanished()),
        side if port.vnic.is_queued() => port.with_arrivals(|queue| {
            let fetched = queue.fetch(side.as_mut(), most, packets);
            if let Some(watch_us) = queue.watch_us() {
                let at_ns = step.schedule.now_ns() + watch_us * NS_PER_US;
                step.schedule.set_timer(at_ns, port.transmit_ring(), Due::Slow);
            }
            fetched
        }),
        Some(side) => {
            side.reclaim();
            side.fetch_few(most, packets)
        }
        None => Ok(Fetched::Empty),
    })
}

impl Port {
    /// Calls `f` with the queue; without one, there is nothing to fetch, and the next turn knows.
    fn with_arrivals(
        &self,
        f: impl FnOnce(&mut ArrivalQueue) -> Result<Fetched, QueueError>,
    ) -> Result<Fetched, QueueError> {
        let mut place = self.arrivals();
        let Some(queue) = place.as_mut() else {
            self.vnic.set_queued(false);
            return Ok(Fetched::Full);
        };
        if queue.is_over() {
            self.home.unwatch_arrivals();
            *place = None;
            self.vnic.set_queued(false);
            return Ok(Fetched::Full);
        }
        f(queue)
    }

    /// Whether packets have come by the queue that may be taken.
    #[cold]
    #[inline(never)]
    pub fn has_arrivals(&self) -> bool {
        self.arrivals().as_mut().is_some_and(ArrivalQueue::has_work)
    }

    /// Has packets come by a queue of the port's device besides, or no longer.
    ///
    /// # Errors
    ///
    /// Nothing can be waited for at its descriptor.
    pub fn set_arrivals(self: &Arc<Port>, queue: Option<Box<dyn Arrivals>>) -> std::io::Result<()> {
        if queue.is_none() && !self.vnic.is_queued() {
            return Ok(());
        }
        let mut place = self.arrivals();
        let Some(queue) = queue else {
            place.iter_mut().for_each(ArrivalQueue::close);
            return Ok(());
        };
        self.home
            .watch_arrivals(queue.descriptor(), || self.first_executor())?;
        let counts = Arc::new(ArrivalCounts::default());
        let before = place.take();
        let queue = ArrivalQueue::new(queue, before, self.id(), &self.vnic.account, counts);
        *place = Some(queue);
        self.vnic.set_queued(true);
        Ok(())
    }

    /// Filters of the queue are about to change.
    pub fn steer(&self, change: Steering) {
        if !self.vnic.is_queued() {
            return;
        }
        if let Some(queue) = self.arrivals().as_mut() {
            match change {
                Steering::Arm(mark) => queue.arm(mark),
                Steering::Leave => queue.leave(),
            }
        }
        self.schedule();
    }

    /// What has come by the queue, if there is one.
    pub fn arrivals_state(&self) -> Option<ArrivalsState> {
        if !self.vnic.is_queued() {
            return None;
        }
        let counts = self.arrivals().as_ref()?.counts().clone();
        Some(ArrivalsState {
            packets: counts.packets.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            unusable: counts.unusable.load(Relaxed),
            armed: counts.armed.load(Relaxed),
            overdue: counts.overdue.load(Relaxed),
            left: counts.left.load(Relaxed),
            longest_wait_us: counts.longest_wait_us.load(Relaxed),
        })
    }
}
