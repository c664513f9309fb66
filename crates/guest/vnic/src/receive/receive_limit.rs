//! The bandwidth of what a guest receives, if it is bounded. What exceeds it waits, in turn by sender.
//!
//! Senders lend the packets, and where one has as much here as the rate brings in [`WAIT_MS`], or its part
//! of that, it is *held*: its ring is not read until half of that is delivered, so the guest's own queue is
//! where packets wait, and none is lost. Of a sender that serves others as well, copies are kept, so that
//! nobody else's packets are held up. These have room for what the rate brings in that time, within the
//! bounds of [`ROOM`]; when there is no more, the sender that has most loses its newest (`max-rate`).
//!
//! Whether a sender serves others is not known while it is held. So after a second in which its ring was not
//! read to its end, it looks ahead, a burst at a time. What it then has for this receiver waits here as well,
//! up to [`MOST_LENT`] packets; what is over is lost.
//!
//! Where a port has [`classes`](super::classes), packets wait by class.
//!
//! Packets of a higher priority go first. Those of one priority are shared between senders, see
//! [`fair_queue`](crate::backlog). Each priority has its own room.
//!
//! A packet that is longer than what may pass is delivered, and the debt is paid by waiting, somewhat longer
//! than necessary: packets go in batches, not one wake-up each. Packets with a priority do not wait for the
//! debt that one frame of the largest size makes, and are paid for by all. When the receiver lacks buffers,
//! all packets wait for those, as the module `backlog` describes.

use super::classes::Classes;
use super::{Pending, ReceiveSide, now};
use crate::backlog::{FairQueue, MOST_LENT, Portion, Waiting};
use crate::packet::{MAX_FRAME, Packet};
use crate::receive::{Observer, Wait, drop_packet};
use crate::turn::{MAX_SLOTS, Turn};
use flow::{DropReason, RateClass, RateLimit};
use lock_free::Shared;
use pacing::ByteBucket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use virtqueue::QueueError;

/// For how long packets wait at most, in milliseconds, if the room suffices.
const WAIT_MS: u64 = 50;

/// The least and the most room for copies that wait, in bytes: two frames of the largest size, and what a
/// receiver may cost in copies.
const ROOM: (usize, usize) = (128 << 10, 1 << 20);

/// Likewise for packets that senders lend: two usual frames, and as many large ones as a few senders have.
const LENT_ROOM: (usize, usize) = (3000, 8 << 20);

/// Most packets of a priority that wait.
const CAPACITY: usize = 8 * MAX_SLOTS as usize;

/// Longest time for which packets wait after the debt is paid, in nanoseconds.
const GATHER_NS: u64 = 1_000_000;

/// A receiver's bandwidth, and the packets that wait for it. Used by the holder of the receive side.
#[derive(Debug)]
pub(super) struct ReceiveLimit {
    /// `None`: the limit was removed, and what waits is still to be delivered.
    bucket: Option<ByteBucket>,
    /// By priority, the highest first; those that had packets.
    levels: Vec<Level>,
    /// In place of `levels`, from whose time packets may be left.
    classes: Option<Classes>,
    rate: u64,
    /// Bytes of copies that may wait, and the time in which the rate brings them.
    room: usize,
    room_ns: u64,
    /// Bytes that may be lent.
    lent_room: usize,
    /// Nothing without a priority is delivered before this time, by [`cpu::now_ns`].
    until_ns: u64,
    /// When a class may have packets delivered, as it was said last.
    class_until_ns: u64,
    waits: Arc<AtomicU64>,
}

/// Packets of one priority.
#[derive(Debug)]
struct Level {
    priority: u8,
    queue: FairQueue,
}

impl ReceiveLimit {
    fn new(waits: Arc<AtomicU64>) -> ReceiveLimit {
        ReceiveLimit {
            bucket: None,
            levels: Vec::new(),
            classes: None,
            rate: 1,
            room: 0,
            room_ns: 0,
            lent_room: 0,
            until_ns: 0,
            class_until_ns: 0,
            waits,
        }
    }

    fn set(&mut self, limit: RateLimit, now_ns: u64) {
        let (rate, burst) = (limit.bits_per_second, limit.burst);
        match &mut self.bucket {
            Some(bucket) => bucket.set(rate, burst),
            None => self.bucket = Some(ByteBucket::new(rate, burst, now_ns)),
        }
        let bytes = usize::try_from(rate / 8 * WAIT_MS / 1000).unwrap_or(usize::MAX);
        self.rate = rate;
        self.room = bytes.clamp(ROOM.0, ROOM.1);
        self.room_ns = self.room as u64 * 8 * 1_000_000_000 / rate;
        self.lent_room = bytes.clamp(LENT_ROOM.0, LENT_ROOM.1);
        self.until_ns = 0;
    }

    /// Changes the classes; packets stay, in the class of their number.
    fn set_classes(&mut self, classes: &[RateClass], now_ns: u64) {
        let before = self.classes.take();
        if !classes.is_empty() {
            let mut next = Classes::new(classes, now_ns);
            before.into_iter().for_each(|before| next.take_over(before));
            self.classes = Some(next);
            return;
        }
        let mut before = before;
        while let Some(waiting) = before.as_mut().and_then(Classes::pop_any) {
            self.level(0).push(waiting);
        }
    }

    fn levels_are_empty(&self) -> bool {
        self.levels.iter().all(|level| level.queue.is_empty())
    }

    fn is_empty(&self) -> bool {
        self.levels_are_empty() && self.classes.as_ref().is_none_or(Classes::is_empty)
    }

    /// Packets that wait for the bandwidth.
    pub(super) fn waiting(&self) -> u32 {
        let levels = self.levels.iter().map(|level| level.queue.waiting());
        levels.sum::<u32>() + self.classes.as_ref().map_or(0, Classes::waiting)
    }

    /// The classes, if the packet that is next is one of theirs.
    fn next_classes(&self) -> Option<&Classes> {
        let classes = self.classes.as_ref()?;
        (self.levels_are_empty() && !classes.is_empty()).then_some(classes)
    }

    /// The priority of the packet that is next, of those that are queued here.
    fn next_priority(&self, now_ns: u64) -> u8 {
        if let Some(classes) = self.next_classes() {
            return classes.next_priority(now_ns);
        }
        let next = self.levels.iter().find(|level| !level.queue.is_empty());
        next.map_or(0, |level| level.priority)
    }

    /// Whether a packet may be delivered now. If not, says until when none without a priority may.
    /// `is_elsewhere`: the packet that is next is not queued here.
    fn may_deliver(&mut self, is_elsewhere: bool, now_ns: u64) -> bool {
        let has_priority = self.next_priority(now_ns) > 0;
        let classes = self.next_classes().filter(|_| !is_elsewhere);
        let Some(bucket) = &self.bucket else {
            return true;
        };
        if let Some(classes) = classes.filter(|classes| !classes.may_deliver(now_ns)) {
            let due_ns = classes.due_ns();
            if std::mem::replace(&mut self.class_until_ns, due_ns) != due_ns {
                self.waits.fetch_add(1, Relaxed);
            }
            return false;
        }
        if has_priority && bucket.paid_ns() <= now_ns + self.ahead_ns() {
            return true;
        }
        if now_ns < self.until_ns {
            return false;
        }
        if bucket.available(now_ns) > 0 {
            return true;
        }
        // Not so long that what comes meanwhile has no room.
        let longest_ns = GATHER_NS.min(bucket.burst_ns() / 2);
        self.until_ns = bucket.paid_ns().saturating_add(longest_ns.min(self.room_ns / 4));
        self.waits.fetch_add(1, Relaxed);
        false
    }

    /// The debt for which packets with a priority do not wait.
    fn ahead_ns(&self) -> u64 {
        u64::from(MAX_FRAME) * 8 * 1_000_000_000 / self.rate + GATHER_NS
    }

    /// When a packet may be delivered, if none may now.
    fn next_ns(&self, now_ns: u64) -> u64 {
        let paid_ns = self.bucket.as_ref().map_or(0, ByteBucket::paid_ns);
        let classes = self.next_classes().filter(|classes| !classes.may_deliver(now_ns));
        if let Some(classes) = classes {
            classes.due_ns()
        } else if self.next_priority(now_ns) > 0 {
            self.until_ns.min(paid_ns.saturating_sub(self.ahead_ns()))
        } else {
            self.until_ns
        }
    }

    pub(super) fn charge(&mut self, bytes: u64, now_ns: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(bytes, now_ns);
        }
    }

    fn level(&mut self, priority: u8) -> &mut FairQueue {
        let is_above = |level: &Level| level.priority > priority;
        let at = self.levels.partition_point(is_above);
        if self.levels.get(at).is_none_or(|level| level.priority != priority) {
            let queue = FairQueue::default();
            self.levels.insert(at, Level { priority, queue });
        }
        &mut self.levels[at].queue
    }

    /// Appends a packet, or gives it or others of senders that have more to `refuse`. Returns how many of its
    /// bytes were copied.
    fn push(
        &mut self,
        mut packet: Shared<Packet>,
        now_ms: u64,
        mut refuse: impl FnMut(Shared<Packet>),
    ) -> usize {
        let (is_limited, room, lent_room) = (self.bucket.is_some(), self.room, self.lent_room);
        let share = packet.account.lender.share();
        let portion = Portion::of(share, self.rate);
        if let Some(classes) = &mut self.classes {
            return classes.push(&packet, (portion, self.rate), refuse);
        }
        let queue = self.level(share.priority);
        // A packet for several receivers need not wait for the slowest of them.
        let is_lent = !packet.account.lender.alternates(now_ms) && !packet.is_for_group();
        let (origin, size) = (packet.origin, if is_lent { 0 } else { packet.frame_len() });
        let has_room = !is_limited
            || queue.make_room(origin, CAPACITY, &mut refuse)
                && match is_lent {
                    true => queue.packets_of(origin) < MOST_LENT,
                    false => queue.make_room_for_bytes(origin, size, room, &mut refuse),
                };
        if !has_room {
            refuse(packet);
            return 0;
        }
        let mut moved = 0;
        if !is_lent {
            (packet, moved) = Packet::copy_out(&packet);
        }
        let waiting = Waiting {
            packet,
            since_us: None,
            bytes: size,
        };
        queue.push_of(portion, waiting);
        if is_lent && is_limited {
            queue.hold(origin, lent_room);
        }
        moved
    }

    fn pop(&mut self, now_ns: u64) -> Option<Waiting> {
        let lent_room = self.lent_room;
        let Some(level) = self.levels.iter_mut().find(|level| !level.queue.is_empty()) else {
            return self.classes.as_mut()?.pop(now_ns);
        };
        level.queue.pop_bytes(lent_room)
    }

    /// As [`pop`](Self::pop), also of a class that may not have packets delivered yet.
    fn pop_any(&mut self, now_ns: u64) -> Option<Waiting> {
        let popped = self.pop(now_ns);
        popped.or_else(|| self.classes.as_mut()?.pop_any())
    }
}

impl ReceiveSide {
    /// Bounds the bandwidth from now on, or no longer. The caller then has a worker serve the port.
    /// `waits` counts how often packets begin to wait.
    pub(crate) fn set_limit(&mut self, limit: Option<RateLimit>, waits: &Arc<AtomicU64>) {
        match limit {
            Some(limit) => {
                let state = self
                    .limit
                    .get_or_insert_with(|| Box::new(ReceiveLimit::new(waits.clone())));
                state.set(limit, cpu::now_ns());
            }
            None => {
                if let Some(state) = &mut self.limit {
                    state.bucket = None;
                    state.set_classes(&[], 0);
                }
            }
        }
    }

    /// Changes the classes of packets, if the bandwidth is bounded. The caller then has a worker serve the
    /// port.
    pub(crate) fn set_classes(&mut self, classes: &[RateClass]) {
        if let Some(limit) = self.limit.as_mut().filter(|limit| limit.bucket.is_some()) {
            limit.set_classes(classes, cpu::now_ns());
        }
    }

    /// As [`run`](Self::run), as far as the bandwidth goes.
    pub(super) fn run_limited(
        &mut self,
        now_ms: u64,
        mut turn: Turn,
        observer: &mut impl Observer,
    ) -> Result<bool, QueueError> {
        let (mut waits, mut result) = (false, Ok(()));
        while !turn.is_over() && !waits {
            // One of those that came last may go before those that wait.
            if self.has_classes() || !self.may_deliver() || self.has_queue() {
                self.sort_inbox_of_limited(now_ms, observer);
            }
            if !self.may_deliver() {
                break;
            }
            let Some(next) = self.next_limited() else { break };
            match self.attempt(next, now_ms, observer) {
                Ok(must_wait) => waits = must_wait,
                Err(error) => result = Err(error),
            }
            turn.spend(self.take_work());
        }
        if waits {
            self.wait_for_buffers(now_ms, observer);
        }
        self.end_run();
        let more = !waits && (self.pending.is_some() || self.has_queue() || !self.inbox.is_empty());
        let more = more && self.may_deliver();
        if !self.has_queue() && self.limit.as_ref().is_some_and(|limit| limit.bucket.is_none()) {
            self.limit = None;
        }
        result.map(|()| more)
    }

    /// A packet lacks buffers: those behind it wait for buffers, no longer for the bandwidth.
    fn wait_for_buffers(&mut self, now_ms: u64, observer: &mut impl Observer) {
        let (account, now, now_ns) = (&*self.account, now(now_ms), cpu::now_ns());
        let mut refuse = |packet: Shared<Packet>, reason| drop_packet(account, &packet, reason, observer);
        while let Some(waiting) = self.limit.as_mut().and_then(|limit| limit.pop_any(now_ns)) {
            self.backlog.push(waiting.packet, Some(now), &mut refuse);
        }
        self.queue_up(now, observer);
    }

    /// Whether a packet may be delivered. One that is to be dropped need not wait.
    fn may_deliver(&mut self) -> bool {
        let is_dropped = self.ring.is_none() || self.wait == Wait::Stalled;
        let is_elsewhere = !self.backlog.is_empty();
        is_dropped
            || self.pending.is_some()
            || (self.limit.as_mut()).is_none_or(|limit| limit.may_deliver(is_elsewhere, cpu::now_ns()))
    }

    fn has_classes(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.classes.is_some())
    }

    /// Whether packets wait in a queue, behind which those that come have to wait too.
    fn has_queue(&self) -> bool {
        let limit = self.limit.as_ref();
        !self.backlog.is_empty() || limit.is_some_and(|limit| !limit.is_empty())
    }

    /// The packet to be delivered next. It is paid for when it is taken.
    fn next_limited(&mut self) -> Option<Pending> {
        if let Some(pending) = self.pending.take() {
            return Some(pending);
        }
        let is_dropped = self.ring.is_none() || self.wait == Wait::Stalled;
        let (limit, now_ns) = (self.limit.as_mut()?, cpu::now_ns());
        // The backlog has what waited for buffers, and came before.
        let (packet, since_us, is_copy) = if let Some(waiting) = self.backlog.pop() {
            waiting
        } else {
            let queued = match is_dropped {
                true => limit.pop_any(now_ns),
                false => limit.pop(now_ns),
            };
            let queued = queued.map(|waiting| waiting.packet);
            let inbox = Some(&mut self.inbox).filter(|_| limit.classes.is_none());
            let next = queued.or_else(|| inbox?.pop());
            (next?, None, false)
        };
        limit.charge(packet.frame_len() as u64, now_ns);
        Some(Pending {
            packet,
            done: 0,
            since_us,
            is_copy,
        })
    }

    /// Moves the packets that came last from the inbox to those that wait for the bandwidth.
    fn sort_inbox_of_limited(&mut self, now_ms: u64, observer: &mut impl Observer) {
        let (Some(limit), account) = (&mut self.limit, &*self.account) else {
            return;
        };
        let mut moved = 0;
        // Senders may be faster than this.
        for _ in 0..self.inbox.capacity() {
            let Some(packet) = self.inbox.pop() else { break };
            let refuse =
                |packet: Shared<Packet>| drop_packet(account, &packet, DropReason::MaxRate, observer);
            moved += limit.push(packet, now_ms, refuse);
        }
        self.backlog.add_moved(moved);
    }

    /// In how many microseconds the receive side should run because a packet may be delivered then.
    #[cold]
    pub(super) fn limit_us(&self) -> Option<u64> {
        // A turn may have ended before the inbox was sorted.
        let has_packets = self.has_queue() || !self.inbox.is_empty();
        let limit = self.limit.as_ref().filter(|_| has_packets)?;
        let now_ns = cpu::now_ns();
        Some(limit.next_ns(now_ns).saturating_sub(now_ns).div_ceil(1000))
    }
}
