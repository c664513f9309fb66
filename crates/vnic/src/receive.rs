//! The receive side: from the internal receive queue into the guest's buffers.
//!
//! Packets wait in the inbox, still lying in their senders' memory. Delivering one gathers as many posted
//! buffers as it needs, then writes virtio-net header, head and tail straight into them. When there are not
//! enough buffers the packet waits, and the ring asks for a kick.
//!
//! | [`Wait`] | enters when | allowed |
//! |---|---|---|
//! | `No` | buffers were there | deliver |
//! | `Since(t)` | the oldest packet found too few buffers at t | try again on a kick; after [`STALL_TIMEOUT_MS`] become `Stalled` |
//! | `Stalled` | the time was up | everything queued is dropped, new packets are dropped at once; a buffer ends it |
//!
//! So a receiver that posts no buffers holds its senders' chains once, for a bounded time.

use crate::Call;
use crate::counters::{Counters, add_alone};
use crate::features::{
    Features, NET_GUEST_CSUM, NET_GUEST_ECN, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_MRG_RXBUF,
};
use crate::packet::{Packet, Piece};
use crate::transmit::{BURST, HEAD_PREFETCH, RingSetup};
use flow::DropReason;
use guest_memory::{GuestMemory, GuestRange, copy};
use ring::{Receiver, Shared, Unique};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use virtqueue::{Chain, DeviceQueue, Direction, QueueError};
use wire::{GSO_TCPV4, Snapshot, Sum, VnetHeader, finish_checksum, segments};

/// How long packets wait for a receiver that posts no buffers, in milliseconds. Longer than a busy guest's
/// scheduling delays, shorter than anybody's patience.
pub const STALL_TIMEOUT_MS: u64 = 100;

/// Most bytes of a packet's tail, and of the place it goes to, that are asked for ahead of copying it.
const TAIL_PREFETCH: u32 = 1536;

/// Bytes of payload checksummed at a time.
const BOUNCE: usize = 2048;

/// What becomes of packets is told here, besides being counted.
pub trait Observer {
    /// The packet is in the receiver's ring.
    fn delivered(&mut self, packet: &Packet);
    /// It was dropped on the receiver's side.
    fn dropped(&mut self, packet: &Packet, reason: DropReason);
}

/// Whether packets wait for buffers. See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No.
    No,
    /// Since then (the caller's clock, milliseconds).
    Since(u64),
    /// Too long.
    Stalled,
}

/// The consumer of a port's internal receive queue, with the guest's ring while there is one.
#[derive(Debug)]
pub struct ReceiveSide {
    ring: Option<ReceiveRing>,
    inbox: Receiver<Shared<Packet>>,
    /// The oldest packet, if it could not be delivered (wholly), and how many segments of it were.
    pending: Option<(Shared<Packet>, usize)>,
    wait: Wait,
    account: Arc<Counters>,
    tally: Tally,
}

/// Delivered packets that are not in the counters yet: those are told once per run, not per packet.
#[derive(Debug, Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    segments: u64,
    /// The sender of the last ones, and how many they were.
    origin: Option<(Arc<Counters>, u64)>,
}

impl Tally {
    fn flush(&mut self, receiver: &Counters) {
        self.flush_origin();
        if self.packets > 0 {
            add_alone(&receiver.transmitted, self.packets);
            add_alone(&receiver.transmitted_bytes, self.bytes);
        }
        if self.segments > 0 {
            receiver.segments.fetch_add(self.segments, Relaxed);
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
    features: Features,
    /// As of `features`.
    header_len: u32,
    call: Call,
    /// A call that the driver wants was put off.
    owes_call: bool,
    mtu: u32,
    scratch: Chain,
    /// Bytes of frames written since last counted.
    copied: u64,
    /// Buffers gathered for the frame being written: head and length of each chain, and their ranges in order.
    chains: Vec<(u16, u32)>,
    ranges: Vec<GuestRange>,
}

/// How far a packet got.
enum Outcome {
    Delivered { segments: u64 },
    NoBuffers { done: usize },
    Dropped(DropReason),
    Broken(QueueError),
}

/// Why buffers could not be gathered.
enum Shortage {
    /// Not now.
    Now,
    /// Never: the packet does not fit the buffers this driver posts.
    Never,
    Broken(QueueError),
}

impl ReceiveSide {
    pub(crate) fn new(inbox: Receiver<Shared<Packet>>, account: Arc<Counters>) -> Self {
        ReceiveSide {
            ring: None,
            inbox,
            pending: None,
            wait: Wait::No,
            account,
            tally: Tally::default(),
        }
    }

    pub(crate) fn start(&mut self, setup: RingSetup, mtu: u16) -> Result<(), QueueError> {
        let mut queue = setup.queue()?;
        queue.disable_kicks();
        self.wait = Wait::No;
        self.ring = Some(ReceiveRing {
            queue,
            features: setup.features,
            header_len: setup.features.header_len(),
            call: setup.call,
            owes_call: false,
            mtu: mtu.into(),
            scratch: Chain::default(),
            copied: 0,
            chains: Vec::new(),
            ranges: Vec::new(),
        });
        Ok(())
    }

    /// Ends the ring; returns its base. What is queued is dropped by the next [`run`](Self::run).
    pub fn stop(&mut self) -> Option<u16> {
        self.ring.take().map(|ring| ring.queue.base())
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
        self.ring
            .as_mut()
            .map_or(Ok(()), |ring| ring.queue.move_to(memory))
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

    /// Delivers packets of one port, whose transmit side the caller holds, that nobody else has seen, without a detour
    /// through the inbox: as many as possible from the first on, and returns how many. The others must be queued: those
    /// that need more than copying, all if packets are queued already, and those for which the ring is malformed, so that
    /// this is dealt with in one place. The driver may be [owed a call](Self::owes_call) afterwards.
    pub fn deliver_now(&mut self, packets: &[Unique<Packet>]) -> usize {
        let queued = self.pending.is_some() || self.wait != Wait::No || !self.inbox.is_empty();
        let Some(ring) = self.ring.as_mut().filter(|_| !queued) else {
            return 0;
        };
        let (mut done, mut bytes) = (0, 0);
        while done < packets.len() {
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
        self.tally.packets += done as u64;
        if let Some(packet) = packets.first() {
            add_alone(&packet.account.handed_over, done as u64);
        }
        self.publish();
        done
    }

    /// Delivers what is queued, at most `budget` packets, and shows it to the guest, whose driver may be
    /// [owed a call](Self::owes_call) afterwards. Returns whether there may be more to do at once. On an error the ring
    /// is gone.
    pub fn run(
        &mut self,
        now_ms: u64,
        budget: usize,
        observer: &mut impl Observer,
    ) -> Result<bool, QueueError> {
        let mut left = budget;
        let mut result = Ok(());
        while left > 0 {
            let Some((packet, done)) = self.pending.take().or_else(|| Some((self.inbox.pop()?, 0))) else {
                break;
            };
            let outcome = match &mut self.ring {
                None => Outcome::Dropped(DropReason::PortRemoved),
                Some(_) if packet.is_broken() => Outcome::Dropped(DropReason::SenderGone),
                Some(ring) => ring.deliver(&packet, done),
            };
            match outcome {
                Outcome::Delivered { segments } => self.count_delivered(&packet, segments, observer),
                Outcome::Dropped(reason) => self.count_dropped(&packet, reason, observer),
                Outcome::NoBuffers { done } => match self.must_wait(now_ms) {
                    Ok(true) if self.wait == Wait::Stalled => {
                        self.count_dropped(&packet, DropReason::ReceiverStalled, observer);
                    }
                    Ok(wait) => {
                        self.pending = Some((packet, done));
                        if wait {
                            break;
                        }
                        continue;
                    }
                    Err(error) => result = self.break_down(&packet, error, observer),
                },
                Outcome::Broken(error) => result = self.break_down(&packet, error, observer),
            }
            left -= 1;
        }
        self.publish();
        let waiting = self.pending.is_some();
        // Nobody waits if what waited was dropped for another reason.
        if !waiting && matches!(self.wait, Wait::Since(_)) {
            self.wait = Wait::No;
        }
        result.map(|()| left == 0 && !waiting)
    }

    /// After a failed delivery: whether there are still no buffers, asking for a kick if so. Advances `wait`.
    fn must_wait(&mut self, now_ms: u64) -> Result<bool, QueueError> {
        let Some(ring) = &mut self.ring else {
            return Ok(true);
        };
        self.wait = match self.wait {
            Wait::No => Wait::Since(now_ms),
            Wait::Since(since) if now_ms.saturating_sub(since) >= STALL_TIMEOUT_MS => Wait::Stalled,
            wait => wait,
        };
        // Fewer buffers than needed may be there; only new ones are a reason to try again.
        Ok(!ring.queue.enable_kicks()?)
    }

    /// The ring is malformed: it is not used any more.
    fn break_down(
        &mut self,
        packet: &Packet,
        error: QueueError,
        observer: &mut impl Observer,
    ) -> Result<(), QueueError> {
        self.count_dropped(packet, DropReason::ReceiverBroken, observer);
        self.publish();
        self.call();
        self.ring = None;
        Err(error)
    }

    fn count_delivered(&mut self, packet: &Packet, segments: u64, observer: &mut impl Observer) {
        self.wait = Wait::No;
        self.tally.packets += 1;
        self.tally.bytes += packet.frame_len() as u64;
        self.tally.segments += segments;
        match &mut self.tally.origin {
            Some((account, delivered)) if Arc::ptr_eq(account, &packet.account) => *delivered += 1,
            _ => {
                self.tally.flush_origin();
                self.tally.origin = Some((packet.account.clone(), 1));
            }
        }
        observer.delivered(packet);
    }

    fn count_dropped(&mut self, packet: &Packet, reason: DropReason, observer: &mut impl Observer) {
        self.account.egress_dropped(reason, 1);
        packet.account.dropped(reason, 1);
        observer.dropped(packet, reason);
    }

    /// Shows the guest what was delivered; counts it first, so that whoever sees a packet sees it counted.
    fn publish(&mut self) {
        self.tally.flush(&self.account);
        let Some(ring) = &mut self.ring else { return };
        if ring.queue.has_unpublished() {
            add_alone(&self.account.copied_out, std::mem::take(&mut ring.copied));
            if ring.queue.publish() {
                ring.owes_call = true;
            } else {
                ring.call.notify(false, &self.account.receive_calls);
            }
        }
    }

    /// Whether the driver wants to be called for what it was shown. Whoever delivered sees to that, with
    /// [`call`](Self::call), at once or soon.
    #[inline]
    pub fn owes_call(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.owes_call)
    }

    /// Calls the driver, if it is owed that.
    pub fn call(&mut self) {
        if let Some(ring) = &mut self.ring
            && std::mem::take(&mut ring.owes_call)
        {
            ring.call.notify(true, &self.account.receive_calls);
        }
    }

    /// Whether packets are queued that could be delivered now.
    pub fn has_queued(&self) -> bool {
        self.pending.is_none() && !self.inbox.is_empty()
    }

    /// Ends a stall if the guest has posted buffers; to be asked when it kicked.
    pub fn has_buffers(&mut self) -> bool {
        let some = self
            .ring
            .as_mut()
            .is_some_and(|ring| ring.queue.look().is_ok_and(|count| count > 0));
        if some && self.wait == Wait::Stalled {
            self.wait = Wait::No;
        }
        some
    }
}

impl ReceiveRing {
    /// Delivers packets that fit one buffer each and go as they are: all buffers are found first, then filled while
    /// the next ones come into the cache. Returns how many, which ends before the first packet that is different.
    fn deliver_burst(&mut self, packets: &[Unique<Packet>]) -> usize {
        let (mut heads, mut targets) = ([0; BURST], [GuestRange::default(); BURST]);
        let wanted = packets.len().min(BURST);
        let taken = self.queue.take_heads(&mut heads[..wanted]).unwrap_or(0);
        let fitting = self.find_targets(&packets[..taken], &heads[..taken], &mut targets[..taken]);
        self.queue.untake((taken - fitting) as u16);
        self.fill_all(&packets[..fitting], &heads[..fitting], &targets[..fitting]);
        fitting
    }

    /// First pass: the buffers that packets go to, and for how many packets there are fitting ones. All slices are equally
    /// long.
    #[inline(never)]
    fn find_targets(&self, packets: &[Unique<Packet>], heads: &[u16], targets: &mut [GuestRange]) -> usize {
        for (at, ((packet, &head), target)) in packets.iter().zip(heads).zip(&mut *targets).enumerate() {
            let needed = self.header_len + packet.frame_len() as u32;
            match self.queue.buffer(head, needed.min(HEAD_PREFETCH)) {
                Some(buffer) if buffer.len() >= needed && self.goes_as_it_is(packet) => *target = buffer,
                _ => return at,
            }
        }
        packets.len()
    }

    /// Second pass: fills them. All slices are equally long.
    #[inline(never)]
    fn fill_all(&mut self, packets: &[Unique<Packet>], heads: &[u16], targets: &[GuestRange]) {
        for (at, ((packet, &head), &target)) in packets.iter().zip(heads).zip(targets).enumerate() {
            if let Some(next) = packets.get(at + 1)
                && next.tail_len > 0
            {
                self.prefetch_tail(next, targets[at + 1]);
            }
            self.fill(packet, head, target);
        }
    }

    /// Asks for what is to be copied besides the head, if it lies in one piece, and for the place it goes to.
    #[inline]
    fn prefetch_tail(&self, packet: &Packet, target: GuestRange) {
        let Some((from, tail)) = packet.tail_in_one() else {
            return;
        };
        from.prefetch(tail, TAIL_PREFETCH);
        let behind = target.split_at(HEAD_PREFETCH).1;
        self.queue
            .memory()
            .prefetch(behind, tail.len().min(TAIL_PREFETCH));
    }

    #[inline]
    fn goes_as_it_is(&self, packet: &Packet) -> bool {
        let offload = &packet.offload;
        offload.l3_len(&packet.layers, packet.frame_len()) <= self.mtu as usize
            && (!offload.needs_checksum()
                || self.features.has(NET_GUEST_CSUM) && self.can_take_segmented(packet))
    }

    /// Writes a frame into a buffer that has room for it and gives that back, unpublished.
    #[inline]
    fn fill(&mut self, packet: &Packet, head: u16, buffer: GuestRange) {
        let header = VnetHeader {
            num_buffers: 1,
            ..*packet.offload.header()
        };
        let header = header.to_bytes();
        let memory = &**self.queue.memory();
        let front = match header.first_chunk::<{ VnetHeader::SHORT_LEN }>() {
            Some(short) if self.header_len as usize == VnetHeader::SHORT_LEN => {
                memory.write_both(buffer, short, packet.head.bytes())
            }
            _ => memory.write_both(buffer, &header, packet.head.bytes()),
        };
        let mut written = front as u32;
        if packet.tail_len > 0 {
            written += copy_tail(packet, memory, buffer.split_at(written).1) as u32;
        }
        self.copied += u64::from(written - self.header_len);
        self.queue.give_back(head, written);
    }

    /// Delivers a packet that goes as it is over several buffers; false, with nothing done, if that is not possible now.
    fn deliver_large(&mut self, packet: &Packet) -> bool {
        self.goes_as_it_is(packet) && matches!(self.deliver(packet, 0), Outcome::Delivered { .. })
    }

    fn deliver(&mut self, packet: &Packet, done: usize) -> Outcome {
        if packet.offload.l3_len(&packet.layers, packet.frame_len()) > self.mtu as usize {
            return Outcome::Dropped(DropReason::ExceedsMtu);
        }
        if !self.can_take_segmented(packet) {
            return self.deliver_segments(packet, done);
        }
        let (header, checksum) =
            self.split_checksum(*packet.offload.header(), packet.offload.needs_checksum());
        let frame = Frame {
            header,
            head: packet.head.bytes(),
            packet,
            offset: 0,
            len: packet.tail_len,
            checksum,
        };
        match self.write(&frame) {
            Ok(()) => Outcome::Delivered { segments: 0 },
            Err(shortage) => shortage.outcome(0),
        }
    }

    fn can_take_segmented(&self, packet: &Packet) -> bool {
        let Some(kind) = packet.offload.segmentation() else {
            return true;
        };
        let tso = if kind == GSO_TCPV4 {
            NET_GUEST_TSO4
        } else {
            NET_GUEST_TSO6
        };
        let ecn = if packet.offload.has_ecn() {
            NET_GUEST_ECN
        } else {
            0
        };
        self.features.has(NET_GUEST_CSUM | tso | ecn)
    }

    /// What goes to the receiver in the header, and what is left to do for one that does not complete checksums:
    /// start and offset of the checksum.
    fn split_checksum(&self, header: VnetHeader, needed: bool) -> (VnetHeader, Option<(usize, usize)>) {
        if !needed || self.features.has(NET_GUEST_CSUM) {
            return (header, None);
        }
        let checksum = (usize::from(header.csum_start), usize::from(header.csum_offset));
        (VnetHeader::default(), Some(checksum))
    }

    /// Software segmentation, for a receiver that lacks the offload (Linux: `tcp_gso_segment`).
    fn deliver_segments(&mut self, packet: &Packet, done: usize) -> Outcome {
        let (head, frame_len) = (packet.head.bytes(), packet.frame_len());
        let Ok(all) = segments(head, &packet.layers, &packet.offload, frame_len) else {
            return Outcome::Dropped(DropReason::CannotSegment);
        };
        let mut count = done;
        for segment in all.skip(done) {
            let (header, checksum) = self.split_checksum(segment.vnet_header(), true);
            // The segment's payload may begin in the head and end in the tail.
            let start = segment.payload_offset.min(head.len());
            let end = (segment.payload_offset + segment.payload_len).min(head.len());
            let mut front = [0u8; 2 * Snapshot::MAX_LEN];
            let header_len = segment.header().len();
            let front_len = header_len + (end - start);
            front[..header_len].copy_from_slice(segment.header());
            front[header_len..front_len].copy_from_slice(&head[start..end]);
            let tail_len = (segment.payload_len - (end - start)) as u32;
            let offset = segment.payload_offset.saturating_sub(head.len()) as u32;
            let frame = Frame {
                header,
                head: &front[..front_len],
                packet,
                offset,
                len: tail_len,
                checksum,
            };
            if let Err(shortage) = self.write(&frame) {
                return shortage.outcome(count);
            }
            count += 1;
        }
        Outcome::Delivered {
            segments: count as u64,
        }
    }

    /// Writes one frame into posted buffers and gives them back, unpublished.
    fn write(&mut self, frame: &Frame<'_>) -> Result<(), Shortage> {
        let header_len = self.header_len as usize;
        let total = header_len + frame.head.len() + frame.len as usize;
        self.gather(total)?;
        let memory = &**self.queue.memory();
        let mut tail_at = Cursor::at(&self.ranges, header_len + frame.head.len());
        let mut front = [0u8; VnetHeader::LEN + 2 * Snapshot::MAX_LEN];
        let head_end = header_len + frame.head.len();
        front[header_len..head_end].copy_from_slice(frame.head);
        let tail = frame.packet.tail(frame.offset, frame.len);
        if let Some((start, offset)) = frame.checksum {
            let mut sum = Sum::new();
            tail.for_each(|piece| copy_and_sum(piece, &mut sum, memory, &mut tail_at));
            // The callers made sure that the field lies in the head.
            if !finish_checksum(&mut front[header_len..head_end], start, offset, &sum) {
                debug_assert!(false, "checksum field outside the head");
            }
        } else {
            tail.for_each(|piece| tail_at.put(piece, memory));
        }
        self.copied += frame.head.len() as u64 + tail_at.moved;
        let count = u16::try_from(self.chains.len()).unwrap_or(u16::MAX);
        let header = VnetHeader {
            num_buffers: count,
            ..frame.header
        };
        front[..header_len].copy_from_slice(&header.to_bytes()[..header_len]);
        Cursor::at(&self.ranges, 0).write(&front[..head_end], memory);
        let mut left = total as u32;
        for &(head, len) in &self.chains {
            self.queue.give_back(head, len.min(left));
            left = left.saturating_sub(len);
        }
        Ok(())
    }

    /// Takes buffers for `total` bytes from the ring, all or none.
    fn gather(&mut self, total: usize) -> Result<(), Shortage> {
        self.chains.clear();
        self.ranges.clear();
        let mut room = 0usize;
        while room < total {
            match self.queue.take(Direction::ToDriver, &mut self.scratch) {
                Ok(Some(Ok(()))) => {}
                Ok(None) => return Err(self.put_back(Shortage::Now)),
                Ok(Some(Err(_))) => {
                    self.queue.untake(1);
                    return Err(self.put_back(Shortage::Broken(QueueError::ReceiveChain)));
                }
                Err(error) => return Err(self.put_back(Shortage::Broken(error))),
            }
            self.chains.push((self.scratch.head, self.scratch.len()));
            self.ranges.extend_from_slice(self.scratch.segments());
            room += self.scratch.len() as usize;
            let all = self.chains.len() == usize::from(self.queue.size());
            if room < total && (all || !self.features.has(NET_MRG_RXBUF)) {
                return Err(self.put_back(Shortage::Never));
            }
        }
        Ok(())
    }

    fn put_back(&mut self, shortage: Shortage) -> Shortage {
        self.queue
            .untake(u16::try_from(self.chains.len()).expect("a queue has at most 32768 chains"));
        shortage
    }
}

/// A frame to be written: `head`, then `len` bytes of the packet's tail from `offset` on.
struct Frame<'a> {
    header: VnetHeader,
    head: &'a [u8],
    packet: &'a Packet,
    offset: u32,
    len: u32,
    /// Start and offset of a checksum to be completed.
    checksum: Option<(usize, usize)>,
}

impl Shortage {
    fn outcome(self, done: usize) -> Outcome {
        match self {
            Shortage::Now => Outcome::NoBuffers { done },
            Shortage::Never => Outcome::Dropped(DropReason::BufferTooSmall),
            Shortage::Broken(error) => Outcome::Broken(error),
        }
    }
}

/// A place in the gathered buffers.
struct Cursor<'a> {
    ranges: &'a [GuestRange],
    current: GuestRange,
    /// Bytes copied so far, by way of our memory counted twice.
    moved: u64,
}

impl<'a> Cursor<'a> {
    fn in_one(buffer: GuestRange) -> Cursor<'a> {
        Cursor {
            ranges: &[],
            current: buffer,
            moved: 0,
        }
    }

    fn at(ranges: &'a [GuestRange], offset: usize) -> Cursor<'a> {
        let mut skip = offset as u32;
        for (index, range) in ranges.iter().enumerate() {
            let (skipped, rest) = range.split_at(skip);
            skip -= skipped.len();
            if rest.len() > 0 {
                return Cursor {
                    ranges: &ranges[index + 1..],
                    current: rest,
                    moved: 0,
                };
            }
        }
        Cursor::in_one(GuestRange::default())
    }

    /// The rest of the current buffer, or the next one; `None` at the end.
    fn room(&mut self) -> Option<GuestRange> {
        if self.current.len() == 0 {
            let (&first, rest) = self.ranges.split_first()?;
            (self.current, self.ranges) = (first, rest);
        }
        Some(self.current)
    }

    fn advance(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        self.current = self.current.split_at(bytes as u32).1;
    }

    #[inline]
    fn put(&mut self, piece: Piece<'_>, to: &GuestMemory) {
        match piece {
            Piece::Guest(from, range) => self.copy(from, range, to),
            Piece::Bytes(bytes) => self.write(bytes, to),
        }
    }

    #[inline]
    fn copy(&mut self, from: &GuestMemory, mut range: GuestRange, to: &GuestMemory) {
        while range.len() > 0 {
            let Some(room) = self.room() else { return };
            let copied = copy(from, range, to, room);
            if copied == 0 {
                return;
            }
            range = range.split_at(copied as u32).1;
            self.advance(copied);
        }
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8], to: &GuestMemory) {
        while !bytes.is_empty() {
            let Some(room) = self.room() else { return };
            let written = to.write(room, bytes);
            if written == 0 {
                return;
            }
            bytes = &bytes[written..];
            self.advance(written);
        }
    }
}

/// Copies a packet's tail to a buffer; returns how many bytes.
#[inline]
fn copy_tail(packet: &Packet, to: &GuestMemory, buffer: GuestRange) -> usize {
    if let Some((from, tail)) = packet.tail_in_one() {
        return copy(from, tail, to, buffer);
    }
    let mut behind = Cursor::in_one(buffer);
    packet
        .tail(0, packet.tail_len)
        .for_each(|piece| behind.put(piece, to));
    behind.moved as usize
}

/// Copies a piece by way of our memory, so that what is summed is what is written.
fn copy_and_sum(piece: Piece<'_>, sum: &mut Sum, to: &GuestMemory, cursor: &mut Cursor<'_>) {
    match piece {
        Piece::Bytes(bytes) => {
            sum.add(bytes);
            cursor.write(bytes, to);
        }
        Piece::Guest(from, mut range) => {
            let mut bounce = [0u8; BOUNCE];
            while range.len() > 0 {
                let read = from.read(range, &mut bounce);
                if read == 0 {
                    return;
                }
                sum.add(&bounce[..read]);
                cursor.moved += read as u64;
                cursor.write(&bounce[..read], to);
                range = range.split_at(read as u32).1;
            }
        }
    }
}
