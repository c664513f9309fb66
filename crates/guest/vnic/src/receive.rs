//! The receive side: from the internal receive queue into the guest's buffers.
//!
//! Packets wait in the inbox, still lying in their senders' memory. Delivering one gathers as many posted
//! buffers as it needs, then writes virtio-net header, head and tail straight into them. When there are not
//! enough buffers the packet waits, and the ring asks for a kick.
//!
//! [`Wait`] has the states of a ring without buffers.
//!
//! A packet that waits keeps the buffers that were found for it, so that each is examined once, and only
//! buffers that are posted later are a reason to try again.
//!
//! So a receiver that posts no buffers holds its senders' chains once, for a bounded time. One that posts
//! some now and then holds no more than `backlog` says.
//!
//! ```text
//!   burst    packets that fit one buffer each and need no offload in software: the short way
//!   offload  any packet, with the offloads that this receiver lacks: checksums, segmentation
//!   write    one frame into as many buffers as it needs
//!   posted   buffers found in advance
//!   wait     for how long packets wait for buffers
//!   copy     copies for mirrors, which do not wait
//!   cursor   a place in the buffers, and copying to it
//!   receive_limit  the bandwidth, and packets that wait for it
//!   classes  classes of those packets
//!   device_queue  a queue of a device, by which packets leave without the forwarder
//! ```

mod burst;
mod classes;
mod copy;
mod cursor;
mod device_queue;
mod offload;
mod posted;
#[cfg(test)]
mod queue_tests;
mod receive_limit;
#[cfg(test)]
mod tests;
mod wait;
mod write;

use crate::Call;
use crate::backlog::{Backlog, Now};
use crate::counters::{Counters, add_alone};
use crate::features::Features;
use crate::packet::Packet;
use crate::transmit::{RingSetup, TransmitSide};
use crate::turn::{BURST_WORK, Turn};
pub use copy::Copied;
use device_queue::OutQueue;
pub use device_queue::{QueueCounts, WhySlow};
use flow::DropReason;
use guest_memory::GuestMemory;
use lock_free::{Receiver, Shared, Unique};
use posted::Posted;
use receive_limit::ReceiveLimit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use virtqueue::{Chain, DeviceQueue, QueueError};
pub use wait::{STALL_TIMEOUT_MS, Wait};
use write::Gathered;

/// Packets that are delivered in the order in which they came, whoever sent them: those of a burst.
const SHORT: usize = crate::BURST;

/// Is called with the outcome of each packet, besides the counters.
pub trait Observer {
    /// The packet is in the receiver's ring.
    fn delivered(&mut self, packet: &Packet);
    /// The packet was dropped on the receiver's side.
    fn dropped(&mut self, packet: &Packet, reason: DropReason);
}

/// The consumer of a port's internal receive queue, with the guest's ring while there is one.
#[derive(Debug)]
pub struct ReceiveSide {
    ring: Option<ReceiveRing>,
    inbox: Receiver<Shared<Packet>>,
    /// The packet whose turn it is, if it could not be delivered (wholly).
    pending: Option<Pending>,
    /// The packets behind it, by sender, if they wait for buffers or are many.
    backlog: Backlog,
    /// The bandwidth if it is bounded, or was until now.
    limit: Option<Box<ReceiveLimit>>,
    /// A queue of the device behind the port, if there is one.
    queue: Option<Box<OutQueue>>,
    wait: Wait,
    /// When `wait` began, by [`cpu::now_us`], and how many packets had been delivered then.
    wait_us: u64,
    taken: u64,
    account: Arc<Counters>,
    tally: Tally,
}

/// A packet to be delivered.
#[derive(Debug)]
struct Pending {
    packet: Shared<Packet>,
    /// How many segments of it were delivered.
    done: u32,
    /// When it was found to lack buffers, or came behind one that did, by [`cpu::now_us`].
    since_us: Option<u64>,
    /// The packet is a copy, for which its sender lends nothing.
    is_copy: bool,
}

/// Delivered packets that are not in the counters yet, which are updated once per run, not per packet.
#[derive(Debug, Default)]
struct Tally {
    packets: u32,
    segments: u32,
    bytes: u64,
    /// The sender of the last ones, and how many they were.
    origin: Option<(Arc<Counters>, u64)>,
}

impl Tally {
    fn flush(&mut self, receiver: &Counters) {
        self.flush_origin();
        if self.packets > 0 {
            add_alone(&receiver.transmitted, self.packets.into());
            add_alone(&receiver.transmitted_bytes, self.bytes);
        }
        if self.segments > 0 {
            receiver.segments.fetch_add(self.segments.into(), Relaxed);
        }
        (self.packets, self.bytes, self.segments) = (0, 0, 0);
    }

    fn flush_origin(&mut self) {
        if let Some((account, delivered)) = self.origin.take() {
            account.delivered.fetch_add(delivered, Relaxed);
        }
    }
}

#[derive(Debug)]
struct ReceiveRing {
    queue: DeviceQueue,
    posted: Posted,
    features: Features,
    /// As of `features`.
    header_len: u32,
    call: Call,
    /// A call that the driver asked for was put off.
    owes_call: bool,
    mtu: u32,
    scratch: Chain,
    /// Bytes of frames written since last counted.
    copied: u64,
    /// Buffers gathered for the frame being written, or for the one that waits for more.
    gathered: Gathered,
    /// Done since last taken, as [`Turn`] counts it.
    work: u64,
    /// Descriptors examined for frames that are not written the short way.
    #[cfg(test)]
    looked_at: u64,
}

/// How far a packet got.
enum Outcome {
    Delivered {
        segments: u64,
    },
    /// A part of it, after which others have their turn.
    Partly {
        done: u32,
    },
    NoBuffers {
        done: u32,
    },
    Dropped(DropReason),
    Broken(QueueError),
}

/// The outcome of a packet that lacks buffers.
enum MustWait {
    Yes,
    /// More have come.
    No,
    Never(DropReason),
}

/// The time. Reading it takes a division, so it is for packets that wait only.
fn now(ms: u64) -> Now {
    Now {
        ms,
        us: cpu::now_us(),
    }
}

fn drop_packet(account: &Counters, packet: &Packet, reason: DropReason, observer: &mut impl Observer) {
    let reason = if packet.is_mirrored {
        DropReason::MirrorLost
    } else {
        reason
    };
    account.egress_dropped(reason, 1);
    packet.account.dropped(reason, 1);
    observer.dropped(packet, reason);
}

impl ReceiveSide {
    pub(crate) fn new(inbox: Receiver<Shared<Packet>>, account: Arc<Counters>) -> Self {
        ReceiveSide {
            ring: None,
            inbox,
            pending: None,
            backlog: Backlog::default(),
            limit: None,
            queue: None,
            wait: Wait::No,
            wait_us: 0,
            taken: 0,
            account,
            tally: Tally::default(),
        }
    }

    pub(crate) fn start(&mut self, setup: RingSetup, mtu: u16) -> Result<(), QueueError> {
        let mut queue = setup.queue()?;
        queue.disable_kicks();
        self.wait = Wait::No;
        self.ring = Some(ReceiveRing {
            owes_call: queue.has_history(),
            queue,
            posted: Posted::new(),
            features: setup.features,
            header_len: setup.features.header_len(),
            call: setup.call,
            mtu: mtu.into(),
            scratch: Chain::default(),
            copied: 0,
            gathered: Gathered::default(),
            work: 0,
            #[cfg(test)]
            looked_at: 0,
        });
        Ok(())
    }

    /// Ends the ring; returns its base. Queued packets are dropped by the next [`run`](Self::run).
    pub fn stop(&mut self) -> Option<u16> {
        self.forget_way();
        self.ring.take().map(|mut ring| {
            ring.put_back();
            ring.queue.base()
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.ring.is_some()
    }

    pub(crate) fn set_call(&mut self, call: Call) {
        if let Some(ring) = &mut self.ring {
            ring.call = call;
        }
    }

    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        if let Some(ring) = &mut self.ring {
            ring.mtu = mtu.into();
        }
    }

    pub(crate) fn move_to(&mut self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        ring.put_back();
        ring.queue.move_to(memory)
    }

    /// Whether the guest's memory vanished.
    pub fn is_broken(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.queue.memory().is_broken())
    }

    /// Whether packets wait for buffers.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// Delivers packets of one port without a detour through the inbox: as many as possible from the first
    /// on. Returns their number. The caller holds the port's transmit side, and no other thread has seen the
    /// packets. The caller must queue the others: packets that need more than copying, all if packets are
    /// queued already, and those that meet a malformed ring, so that one place deals with it. The driver sees
    /// them after [`publish_with`](Self::publish_with).
    pub fn deliver_now(&mut self, packets: &[Unique<Packet>]) -> usize {
        let queued = self.pending.is_some() || self.wait != Wait::No || self.has_others();
        let Some(ring) = self.ring.as_mut().filter(|_| !queued) else {
            return 0;
        };
        let (mut done, mut bytes) = (0, 0);
        ring.work = 0;
        // Packets that take long are left to `run`, which looks at the clock.
        while done < packets.len() && ring.work < BURST_WORK {
            let before = ring.copied;
            done += ring.deliver_burst(&packets[done..]);
            bytes += ring.copied - before;
            if let Some(packet) = packets.get(done) {
                if !ring.deliver_large(packet) {
                    break;
                }
                done += 1;
                bytes += packet.frame_len() as u64;
            }
        }
        self.tally.bytes += bytes;
        self.tally.packets += done as u32;
        if let Some(packet) = packets.first() {
            add_alone(&packet.account.handed_over, done as u64);
        }
        done
    }

    /// Delivers queued packets, as far as the turn goes, and publishes them to the guest, whose driver may be
    /// [owed a call](Self::owes_call) afterwards. Returns whether there is more to do at once. On an error
    /// the ring is gone.
    pub fn run(&mut self, now_ms: u64, turn: Turn, observer: &mut impl Observer) -> Result<bool, QueueError> {
        if self.limit.is_some() {
            return self.run_limited(now_ms, turn, observer);
        }
        if self.queue.is_some() {
            return self.run_with_queue(now_ms, turn, observer);
        }
        self.run_ring(now_ms, turn, observer)
    }

    /// As [`run`](Self::run), by the ring.
    fn run_ring(
        &mut self,
        now_ms: u64,
        mut turn: Turn,
        observer: &mut impl Observer,
    ) -> Result<bool, QueueError> {
        let mut waits = false;
        let mut result = Ok(());
        while !turn.is_over() {
            if !self.backlog.is_empty() || self.inbox.has_more_than(SHORT) {
                self.sort_inbox(now_ms, observer);
            }
            let Some(next) = self.next() else { break };
            match self.attempt(next, now_ms, observer) {
                Ok(false) => {}
                Ok(true) => {
                    waits = true;
                    self.queue_up(now(now_ms), observer);
                    break;
                }
                Err(error) => result = Err(error),
            }
            // Attempts count as well: a driver could post too few buffers again and again, faster than they
            // are examined.
            turn.spend(self.take_work());
        }
        self.end_run();
        result.map(|()| !waits && (self.pending.is_some() || self.has_others() || self.has_unsent()))
    }

    /// Work since it was taken last.
    fn take_work(&mut self) -> u64 {
        self.ring
            .as_mut()
            .map_or(0, |ring| std::mem::take(&mut ring.work))
    }

    /// Tries to deliver a packet; true if it waits for buffers. On an error the ring is gone.
    #[inline]
    fn attempt(
        &mut self,
        mut next: Pending,
        now_ms: u64,
        observer: &mut impl Observer,
    ) -> Result<bool, QueueError> {
        let packet = &next.packet;
        let outcome = match &mut self.ring {
            None => Outcome::Dropped(DropReason::PortRemoved),
            Some(_) if packet.is_broken() => Outcome::Dropped(DropReason::SenderGone),
            Some(ring) => ring.deliver(packet, next.done),
        };
        let mut waits = false;
        match outcome {
            Outcome::Delivered { segments } => {
                self.count_delivered(packet, segments, observer);
                if let Some(since_us) = next.since_us {
                    self.backlog.record_wait(since_us, now(now_ms));
                }
            }
            Outcome::Partly { done } => {
                self.wait_no_more();
                next.done = done;
                self.pending = Some(next);
            }
            Outcome::Dropped(reason) => self.give_up(packet, reason, observer),
            Outcome::NoBuffers { done } => {
                next.done = done;
                match self.decide_wait(now(now_ms), &mut next) {
                    Ok(MustWait::Never(reason)) => self.give_up(&next.packet, reason, observer),
                    Ok(wait) => {
                        waits = matches!(wait, MustWait::Yes);
                        self.pending = Some(next);
                    }
                    Err(error) => self.break_down(&next.packet, error, observer)?,
                }
            }
            Outcome::Broken(error) => self.break_down(packet, error, observer)?,
        }
        Ok(waits)
    }

    /// Counts and publishes what was delivered.
    #[inline]
    fn end_run(&mut self) {
        add_alone(&self.account.copied_out, self.backlog.take_moved());
        self.publish();
        // No packet waits any more if the one that waited was dropped for another reason.
        if self.pending.is_none() && self.wait != Wait::Stalled {
            self.wait_no_more();
        }
    }

    /// The packet to be delivered next.
    fn next(&mut self) -> Option<Pending> {
        if let Some(pending) = self.pending.take() {
            return Some(pending);
        }
        if let Some(unsent) = self.queue.as_mut().and_then(|queue| queue.unsent.pop_front()) {
            return Some(unsent);
        }
        let (packet, since_us, is_copy) = match self.backlog.pop() {
            Some(waiting) => waiting,
            None => (self.inbox.pop()?, None, false),
        };
        Some(Pending {
            packet,
            done: 0,
            since_us,
            is_copy,
        })
    }

    /// Packets that wait behind the last turn, but for those that came since.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        let limited = self.limit.as_ref().map_or(0, |limit| limit.waiting());
        let unsent = self.queue.as_ref().map_or(0, |queue| queue.unsent.len() as u32);
        self.backlog.waiting() + u32::from(self.pending.is_some()) + limited + unsent
    }

    /// Whether there are more behind the oldest packet.
    fn has_others(&self) -> bool {
        !self.backlog.is_empty() || !self.inbox.is_empty()
    }

    /// The packet whose turn it is waits for buffers: the packets behind it wait too, as far as their senders
    /// lend them.
    fn queue_up(&mut self, now: Now, observer: &mut impl Observer) {
        let account = &*self.account;
        let refuse = |packet: Shared<Packet>, reason| drop_packet(account, &packet, reason, observer);
        self.backlog.review(self.wait_us, now, refuse);
        self.sort_inbox(now.ms, observer);
    }

    /// Moves the packets that came last from the inbox, where they lie in the order in which they came, to
    /// the backlog, where senders have turns. So the inbox fills up only while no thread serves this side.
    fn sort_inbox(&mut self, now_ms: u64, observer: &mut impl Observer) {
        if self.inbox.is_empty() {
            return;
        }
        let account = &*self.account;
        let mut refuse = |packet: Shared<Packet>, reason| drop_packet(account, &packet, reason, observer);
        let waits = self.wait != Wait::No || self.backlog.waits();
        let now = waits.then(|| now(now_ms));
        // Senders may be faster than this.
        for _ in 0..self.inbox.capacity() {
            let Some(packet) = self.inbox.pop() else { break };
            self.backlog.push(packet, now, &mut refuse);
        }
    }

    /// In how many microseconds the receive side should run even if no buffers come: the receiver may be slow
    /// by then and hold up others, or its bandwidth lets a packet pass.
    pub fn watch_us(&self, now_ms: u64) -> Option<u64> {
        let oldest = self.pending.as_ref().filter(|_| self.wait.until().is_some());
        match oldest {
            Some(oldest) => self.backlog.watch_us(&oldest.packet, oldest.is_copy, now(now_ms)),
            None if self.limit.is_some() => self.limit_us(),
            None => self.queue_us(),
        }
    }

    /// Whether packets go through the internal queue: the bandwidth is bounded, or a device's queue takes
    /// them.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some() || self.queue.is_some()
    }

    /// After a failed delivery: asks for a kick if there are still no buffers, and advances `wait`. Returns
    /// whether the packet is to be dropped instead, and why.
    fn decide_wait(&mut self, now: Now, packet: &mut Pending) -> Result<MustWait, QueueError> {
        let Some(ring) = &mut self.ring else {
            return Ok(MustWait::Yes);
        };
        let before = self.wait;
        self.wait = before.look(now.ms);
        match (before, self.wait) {
            (Wait::No, _) => {
                let taken = self.account.transmitted.load(Relaxed) + u64::from(self.tally.packets);
                self.backlog.begins(taken.wrapping_sub(self.taken));
                (self.wait_us, self.taken) = (now.us, taken);
            }
            (Wait::First(_), Wait::Renotified(_)) => ring.owes_call = true,
            _ => {}
        }
        let since_us = *packet.since_us.get_or_insert(now.us);
        self.backlog.record_wait(since_us, now);
        // Fewer buffers than needed may be there; only new ones are a reason to try again.
        if ring.queue.enable_kicks()? {
            return Ok(MustWait::No);
        }
        if self.wait == Wait::Stalled {
            return Ok(MustWait::Never(DropReason::ReceiverStalled));
        }
        let overdue = self
            .backlog
            .is_overdue(&packet.packet, since_us, self.wait_us, now);
        if overdue {
            return Ok(MustWait::Never(DropReason::ReceiverSlow));
        }
        packet.is_copy = packet.is_copy || self.backlog.copy_oldest(&mut packet.packet, since_us, now);
        Ok(MustWait::Yes)
    }

    /// Buffers have come, or no packet needs them any more: the guest need not kick for each buffer that it
    /// posts.
    fn wait_no_more(&mut self) {
        if self.wait != Wait::No {
            self.wait = Wait::No;
            if let Some(ring) = &mut self.ring {
                ring.queue.disable_kicks();
            }
        }
    }

    /// The ring is malformed: it is not used any more.
    fn break_down(
        &mut self,
        packet: &Packet,
        error: QueueError,
        observer: &mut impl Observer,
    ) -> Result<(), QueueError> {
        self.give_up(packet, DropReason::ReceiverBroken, observer);
        self.publish();
        self.call();
        self.ring = None;
        Err(error)
    }

    fn count_delivered(&mut self, packet: &Packet, segments: u64, observer: &mut impl Observer) {
        self.wait_no_more();
        self.tally.packets += 1;
        self.tally.bytes += packet.frame_len() as u64;
        self.tally.segments += segments as u32;
        match &mut self.tally.origin {
            Some((account, delivered)) if Arc::ptr_eq(account, &packet.account) => *delivered += 1,
            _ => {
                self.tally.flush_origin();
                self.tally.origin = Some((packet.account.clone(), 1));
            }
        }
        observer.delivered(packet);
    }

    /// Drops the packet that was to be delivered, and releases the buffers that were found for it.
    fn give_up(&mut self, packet: &Packet, reason: DropReason, observer: &mut impl Observer) {
        if let Some(ring) = &mut self.ring {
            ring.put_back();
        }
        drop_packet(&self.account, packet, reason, observer);
    }

    /// Publishes the packets that were [delivered](Self::deliver_now) to the receiver, and their chains to
    /// the sender, with one fence for both. The receiver's driver may be [owed a call](Self::owes_call)
    /// afterwards.
    pub fn publish_with(&mut self, sender: &mut TransmitSide) {
        self.count();
        if let Some(ring) = &mut self.ring {
            ring.queue.show_both(&mut sender.queue);
        }
        self.publish_counted();
    }

    /// Publishes the delivered packets to the guest.
    pub fn publish(&mut self) {
        self.count();
        self.publish_counted();
    }

    fn publish_counted(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if ring.queue.has_unpublished() {
            if ring.queue.publish() {
                ring.owes_call = true;
            } else {
                ring.call.notify(false, &self.account.receive_calls);
            }
        }
    }

    /// Counts delivered packets before they are published, so that a packet that a guest can see is counted.
    fn count(&mut self) {
        self.tally.flush(&self.account);
        if let Some(ring) = &mut self.ring
            && ring.copied > 0
        {
            add_alone(&self.account.copied_out, std::mem::take(&mut ring.copied));
        }
    }

    /// Whether the driver asked to be called for the published packets. The thread that delivered calls it,
    /// with [`call`](Self::call), at once or soon.
    #[inline]
    pub fn owes_call(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.owes_call)
    }

    /// Makes the call that is owed to the driver, if any.
    pub fn call(&mut self) {
        if let Some(ring) = &mut self.ring
            && std::mem::take(&mut ring.owes_call)
        {
            ring.call.notify(true, &self.account.receive_calls);
        }
    }

    /// Whether packets are queued that could be delivered now.
    pub fn has_queued(&self) -> bool {
        match self.pending {
            Some(_) => self.wait == Wait::No,
            None => self.has_others() || self.has_unsent(),
        }
    }

    /// Ends a stall if the guest has posted buffers; to be asked when it kicked.
    pub fn look_for_buffers(&mut self) -> bool {
        let some = self
            .ring
            .as_mut()
            .is_some_and(|ring| ring.posted.len() > 0 || ring.queue.look().is_ok_and(|count| count > 0));
        if some && self.wait == Wait::Stalled {
            self.wait_no_more();
        }
        some
    }
}
