//! A queue of the device behind a port: packets leave straight from their senders' memory, by one call for up
//! to 32 of them, and no forwarder is woken.
//!
//! The port's ring, which a forwarder serves, is the slow path. All packets of the port take one way at a
//! time, so no order has to be kept between both but when the way changes:
//!
//! | [`State`] | packets | next |
//! |---|---|---|
//! | slow | go into the ring | arming, when the pause since the last change is over |
//! | arming | wait for at most 10 ms | fast, when the forwarder has sent what the ring had; else slow |
//! | fast | are sent | slow at once, when the queue takes no more: what it has taken is the device's |
//!
//! A forwarder makes its buffers available again when it has sent what they had. So the ring itself says when
//! the forwarder has nothing left, and a forwarder that lies about it has its own frames overtaken.
//!
//! A call can take as long as a turn. The calling thread holds the receive side, and the sender's transmit
//! side at most: it keeps no claims of others (`datapath`'s `deliver`).
//!
//! Packets that need more than copying, such as segmentation that the device cannot do, make the way slow.
//! Safe direction of error: the ring takes everything.

use super::{Observer, Pending, ReceiveSide};
use crate::packet::{Packet, Piece};
use crate::turn::{BURST, BURST_WORK, Turn};
use accelerator::{Declined, Full, Queue, State, Way};
use flow::DropReason;
use guest_memory::Messages;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use virtqueue::QueueError;
use wire::VnetHeader;

/// Time in microseconds before the queue is tried, and tried again. Longer than any thread takes from looking
/// whether the port takes packets at once to copying them.
const PAUSE_US: u64 = 100_000;

/// Likewise, after the device did not work.
const LONG_PAUSE_US: u64 = 1_000_000;

/// Time in microseconds between two looks at a ring that is to become empty.
const LOOK_US: u64 = 50;

/// Packets that may wait for that: far less than there is room for.
const MOST_WAITING: usize = 512;

/// Why packets take the slow path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WhySlow {
    /// No packet does.
    #[default]
    Fast,
    /// None has come since the queue was opened.
    Unused,
    /// The forwarder has still to send what it has.
    Arming,
    /// The forwarder did not send in time what it has.
    Overdue,
    /// The socket's queue was full.
    SocketFull,
    /// The device's queue was full.
    DeviceFull,
    /// The device does not work.
    Device,
    /// A packet needs an offload that the device lacks.
    Offload,
    /// The forwarder is not connected.
    NoForwarder,
}

impl WhySlow {
    const ALL: [WhySlow; 9] = [
        WhySlow::Fast,
        WhySlow::Unused,
        WhySlow::Arming,
        WhySlow::Overdue,
        WhySlow::SocketFull,
        WhySlow::DeviceFull,
        WhySlow::Device,
        WhySlow::Offload,
        WhySlow::NoForwarder,
    ];
}

/// What a queue has counted, for any thread to read.
#[derive(Debug, Default)]
pub struct QueueCounts {
    /// Packets that left by the queue.
    pub packets: AtomicU64,
    /// Bytes of these.
    pub bytes: AtomicU64,
    /// Calls that sent some.
    pub calls: AtomicU64,
    /// Times the way became fast.
    pub armed: AtomicU64,
    /// Times the way became slow since there was no room.
    pub full: AtomicU64,
    /// Times the way became slow for another reason.
    pub left: AtomicU64,
    /// Times the forwarder did not send in time what it had.
    pub overdue: AtomicU64,
    /// The longest time for which packets waited for the forwarder, in microseconds.
    pub longest_wait_us: AtomicU64,
    why: AtomicU8,
}

impl QueueCounts {
    /// Why packets take the slow path at present.
    pub fn why_slow(&self) -> WhySlow {
        let why = WhySlow::ALL.get(usize::from(self.why.load(Relaxed)));
        why.copied().unwrap_or_default()
    }

    fn set_why(&self, why: WhySlow) {
        self.why.store(why as u8, Relaxed);
    }
}

/// The queue, and the way of the port's packets.
#[derive(Debug)]
pub(super) struct OutQueue {
    queue: Box<dyn Queue>,
    way: Way,
    /// Until when the way stays slow, by [`cpu::now_us`].
    slow_until_us: u64,
    /// Packets that were taken to be sent, in order.
    pub(super) unsent: VecDeque<Pending>,
    counts: Arc<QueueCounts>,
    /// Whether the queue is to end, once no packet is unsent.
    is_closed: bool,
}

/// What packets do now.
enum Now {
    TakeRing,
    Wait,
    TakeQueue,
}

impl OutQueue {
    /// Makes the way slow for at least that time.
    fn leave(&mut self, why: WhySlow, pause_us: u64) {
        let now_us = cpu::now_us();
        if self.way.state() == State::Arming {
            self.way.give_up();
        } else {
            self.way.detach();
            self.way.on_removed(now_us);
            self.way.on_sent();
        }
        self.slow_until_us = now_us + pause_us;
        let counts = &self.counts;
        counts.set_why(why);
        match why {
            WhySlow::SocketFull | WhySlow::DeviceFull => counts.full.fetch_add(1, Relaxed),
            WhySlow::Overdue => counts.overdue.fetch_add(1, Relaxed),
            _ => counts.left.fetch_add(1, Relaxed),
        };
    }

    /// Goes on with the change to the queue; `is_sent`: the forwarder has nothing left.
    fn arm(&mut self, is_sent: bool, has_room: bool, now_us: u64) -> Now {
        if self.way.state() == State::Slow {
            if self.is_closed || now_us < self.slow_until_us || !self.way.attach() {
                return Now::TakeRing;
            }
            // The mark is what was given to the forwarder until now.
            let _ = self.way.ask_for_mark(now_us);
            self.way.on_mark(1);
            self.counts.set_why(WhySlow::Arming);
        }
        if self.way.state() == State::Arming {
            if !is_sent && (self.way.is_overdue(now_us) || !has_room) {
                self.leave(WhySlow::Overdue, PAUSE_US);
                return Now::TakeRing;
            }
            if !self.way.serves_queue(u64::from(is_sent), now_us) {
                return Now::Wait;
            }
            let counts = &self.counts;
            counts.set_why(WhySlow::Fast);
            counts.armed.fetch_add(1, Relaxed);
            counts
                .longest_wait_us
                .fetch_max(self.way.counts().longest_wait_us, Relaxed);
        }
        Now::TakeQueue
    }
}

impl ReceiveSide {
    pub(crate) fn set_queue(&mut self, queue: Option<Box<dyn Queue>>, counts: &Arc<QueueCounts>) {
        if queue.is_none() {
            if let Some(queue) = &mut self.queue {
                queue.leave(WhySlow::Fast, 0);
                queue.is_closed = true;
            }
            return self.end_closed();
        }
        let before = self.queue.take();
        let unsent = before.map(|before| before.unsent).unwrap_or_default();
        if let Some(queue) = queue {
            counts.set_why(WhySlow::Unused);
            self.queue = Some(Box::new(OutQueue {
                queue,
                way: Way::default(),
                slow_until_us: cpu::now_us() + PAUSE_US,
                unsent,
                counts: counts.clone(),
                is_closed: false,
            }));
        }
    }

    /// Forgets a queue that was closed, once it has no packets.
    fn end_closed(&mut self) {
        let is_over = |queue: &OutQueue| queue.is_closed && queue.unsent.is_empty();
        if self.queue.as_ref().is_some_and(|queue| is_over(queue)) {
            self.queue = None;
        }
    }

    /// Has the next packet try the queue, whatever pause there is.
    #[cfg(test)]
    pub(super) fn end_pause(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.slow_until_us = 0;
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.unsent.is_empty())
    }

    /// The forwarder is gone, with what its ring had.
    pub(super) fn forget_way(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.leave(WhySlow::NoForwarder, PAUSE_US);
        }
    }

    /// In how many microseconds to look at a ring again that is to become empty.
    pub(super) fn queue_us(&self) -> Option<u64> {
        let queue = self.queue.as_ref()?;
        (queue.way.state() == State::Arming).then_some(LOOK_US)
    }

    /// As [`run`](Self::run), of a port with a queue.
    pub(super) fn run_with_queue(
        &mut self,
        now_ms: u64,
        mut turn: Turn,
        observer: &mut impl Observer,
    ) -> Result<bool, QueueError> {
        match self.choose_way() {
            Now::TakeRing => {
                let result = self.run_ring(now_ms, turn, observer);
                self.end_closed();
                return result;
            }
            Now::Wait => return Ok(false),
            Now::TakeQueue => {}
        }
        let mut goes_on = true;
        while goes_on && !turn.is_over() {
            goes_on = self.send_batch(&mut turn, observer);
        }
        let is_fast = self
            .queue
            .as_ref()
            .is_some_and(|queue| queue.way.state() == State::Fast);
        if !is_fast {
            return self.run_ring(now_ms, turn, observer);
        }
        self.end_run();
        Ok(self.has_others() || self.has_unsent())
    }

    fn choose_way(&mut self) -> Now {
        let has_packets = self.has_others() || self.has_unsent() || self.pending.is_some();
        let is_begun = self.pending.as_ref().is_some_and(|pending| pending.done > 0);
        let has_room = !self.inbox.has_more_than(MOST_WAITING);
        let (Some(queue), Some(ring)) = (&mut self.queue, &self.ring) else {
            return Now::TakeRing;
        };
        if !has_packets || is_begun {
            return Now::TakeRing;
        }
        queue.arm(ring.queue.has_all_back(), has_room, cpu::now_us())
    }

    /// Sends up to a burst of packets; false if there are no more, or the way has become slow.
    fn send_batch(&mut self, turn: &mut Turn, observer: &mut impl Observer) -> bool {
        let (mut batch, mut bytes) = (Vec::with_capacity(BURST), 0);
        let mut needs_ring = false;
        while batch.len() < BURST && bytes < BURST_WORK {
            let Some(next) = self.next() else { break };
            if next.packet.is_broken() {
                self.give_up(&next.packet, DropReason::SenderGone, observer);
                continue;
            }
            if !self
                .ring
                .as_ref()
                .is_some_and(|ring| ring.goes_as_it_is(&next.packet))
            {
                needs_ring = true;
                self.put_unsent([next]);
                break;
            }
            bytes += next.packet.frame_len() as u64;
            batch.push(next);
        }
        let came = batch.len();
        let refused = self.send(&mut batch, observer);
        turn.spend(bytes);
        (1..came).for_each(|_| turn.spend(0));
        self.put_unsent(batch);
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let why = match refused {
            Some(Declined::Full(Full::Socket)) => WhySlow::SocketFull,
            Some(Declined::Full(Full::Device)) => WhySlow::DeviceFull,
            Some(Declined::Device) => WhySlow::Device,
            _ if needs_ring => WhySlow::Offload,
            _ => return came == BURST || self.has_unsent() || self.has_others(),
        };
        let pause_us = if why == WhySlow::Device {
            LONG_PAUSE_US
        } else {
            PAUSE_US
        };
        queue.leave(why, pause_us);
        false
    }

    /// Puts packets back that were taken last, in front of others.
    fn put_unsent(&mut self, packets: impl IntoIterator<Item = Pending, IntoIter: DoubleEndedIterator>) {
        if let Some(queue) = &mut self.queue {
            let packets = packets.into_iter().rev();
            packets.for_each(|packet| queue.unsent.push_front(packet));
        }
    }

    /// Sends packets, and takes those out that are done. Says why the queue did not take the next one.
    fn send(&mut self, batch: &mut Vec<Pending>, observer: &mut impl Observer) -> Option<Declined> {
        while !batch.is_empty() {
            let queue = self.queue.as_mut()?;
            let header_len = queue.queue.header_len();
            let headers: Vec<_> = batch.iter().map(|next| header_of(&next.packet)).collect();
            let mut messages = Messages::with_capacity(batch.len());
            for (next, header) in batch.iter().zip(&headers) {
                messages.push_bytes(&header[..header_len]);
                push_frame(&next.packet, &mut messages);
            }
            let sent = queue.queue.send(&mut messages);
            drop(messages);
            let taken = sent.taken.min(batch.len());
            let (packets, bytes) = (&queue.counts.packets, &queue.counts.bytes);
            packets.fetch_add(taken as u64, Relaxed);
            let frames = batch[..taken].iter().map(|next| next.packet.frame_len() as u64);
            bytes.fetch_add(frames.sum(), Relaxed);
            queue.counts.calls.fetch_add(1, Relaxed);
            for next in batch.drain(..taken) {
                self.count_delivered(&next.packet, 0, observer);
            }
            let reason = match sent.refused {
                Some(Declined::TooLong) => DropReason::ExceedsMtu,
                Some(Declined::SenderGone) => DropReason::SenderGone,
                Some(Declined::Frame) => DropReason::BadOffload,
                other if other.is_some() || taken == 0 => return other.or(Some(Declined::Device)),
                _ => continue,
            };
            if !batch.is_empty() {
                let refused = batch.remove(0);
                self.give_up(&refused.packet, reason, observer);
            }
        }
        None
    }
}

/// The virtio-net header that asks for the packet's offloads.
fn header_of(packet: &Packet) -> [u8; VnetHeader::LEN] {
    let header = VnetHeader {
        num_buffers: 1,
        ..*packet.offload.header()
    };
    header.to_bytes()
}

/// Adds head and tail of a packet to a message, and ends it.
fn push_frame<'a>(packet: &'a Packet, messages: &mut Messages<'a>) {
    messages.push_bytes(packet.head.bytes());
    packet.tail(0, packet.tail_len).for_each(|piece| match piece {
        Piece::Guest(memory, range) => messages.push_guest(memory, range),
        Piece::Bytes(bytes) => messages.push_bytes(bytes),
    });
    messages.end();
}
