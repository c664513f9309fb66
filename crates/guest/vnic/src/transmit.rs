//! The transmit side: from the guest's ring to packet slots.
//!
//! A burst is fetched in two passes: translate all chains, then copy all headers. The first pass prefetches
//! the lines that the second reads. A slot holds its chain until the payload was copied to all receivers; the
//! chain of a frame that is complete in its snapshot is done at once. The guest gets chains back in its own
//! order, so that the used index tells a successor of this process where to go on (`virtqueue`). When no slot
//! is free, chains stay in the ring: the guest's own queue is the back-pressure. A burst ends after [`BURST`]
//! packets, or earlier after as much work as a turn may have.

use crate::Call;
use crate::counters::{Counters, Mark, add_alone};
use crate::features::{Features, RING_EVENT_IDX, RING_INDIRECT_DESC};
use crate::packet::{InChain, MAX_FRAME, Packet};
use crate::turn::{BURST, BURST_WORK, DESCRIPTOR_WORK, MAX_SLOTS};
use completion::Completion;
use flow::{DropReason, PortId};
use guest_memory::GuestMemory;
use lock_free::{PoolOwner, Unique};
pub(crate) use send_limit::SendLimit;
use send_limit::{Fetching, counted_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtqueue::{ChainError, DeviceQueue, Direction, QueueAddresses, QueueError};
use wire::{GSO_NONE, Snapshot, VnetHeader};

/// Slots kept for copies with another head.
pub(crate) const EXTRA_SLOTS: u32 = 64;

/// Bytes prefetched before a packet is read: header and head.
pub(crate) const HEAD_PREFETCH: u32 = (VnetHeader::LEN + Snapshot::CAPACITY) as u32;

/// Shortest frame: an Ethernet header.
const MIN_FRAME: u32 = 14;

/// Why fetching stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The burst is full; there may be more.
    Full,
    /// The ring is empty.
    Empty,
    /// All slots are under way; go on after some have come back.
    NoSlots,
    /// The port has sent as much as it may; go on after [`TransmitSide::wait_ns`].
    Waits,
}

/// A guest's running transmit ring.
#[derive(Debug)]
pub struct TransmitSide {
    pub(crate) queue: DeviceQueue,
    pool: PoolOwner<Packet>,
    header_len: u32,
    call: Call,
    port: PortId,
    account: Arc<Counters>,
    fetching: Fetching,
    limit: Option<Arc<SendLimit>>,
    /// Chains were given back without the call the guest wanted.
    owes_call: bool,
    /// Number of the last [mark](VnetHeader::mark) in the ring, until it is taken; 0 for none.
    mark: u16,
    completion: Completion,
}

/// The parameters of a ring, as vhost-user negotiated them.
#[derive(Debug)]
pub(crate) struct RingSetup {
    pub memory: Arc<GuestMemory>,
    pub addresses: QueueAddresses,
    pub base: u16,
    pub features: Features,
    pub call: Call,
}

impl RingSetup {
    pub(crate) fn queue(&self) -> Result<DeviceQueue, QueueError> {
        let (event_idx, indirect) = (
            self.features.has(RING_EVENT_IDX),
            self.features.has(RING_INDIRECT_DESC),
        );
        DeviceQueue::new(
            self.memory.clone(),
            self.addresses,
            self.base,
            event_idx,
            indirect,
        )
    }
}

impl TransmitSide {
    pub(crate) fn new(setup: RingSetup, port: PortId, account: Arc<Counters>) -> Result<Self, QueueError> {
        let mut queue = setup.queue()?;
        queue.disable_kicks();
        let pool = new_pool(&queue, port, &account);
        let header_len = setup.features.header_len();
        Ok(TransmitSide {
            owes_call: queue.has_history(),
            queue,
            pool,
            header_len,
            call: setup.call,
            port,
            account,
            fetching: Fetching::Free,
            limit: None,
            mark: 0,
            completion: Completion::default(),
        })
    }

    pub(crate) fn set_call(&mut self, call: Call) {
        self.call = call;
    }

    /// Bounds what is fetched from now on, or no longer. The caller then has a worker serve the port.
    pub(crate) fn set_limit(&mut self, limit: Option<Arc<SendLimit>>) {
        if self.fetching != Fetching::Draining {
            self.fetching = Fetching::start(limit.as_ref());
        }
        self.limit = limit;
    }

    pub(crate) fn base(&self) -> u16 {
        self.queue.base()
    }

    /// Stops fetching. Returns whether all packets fetched before have been delivered or dropped.
    pub(crate) fn drain(&mut self) -> bool {
        self.fetching = Fetching::Draining;
        self.reclaim();
        // Calling may wait for the VMM, and this may be the thread that has to end its session: left to a
        // worker.
        self.publish();
        self.pool.outstanding() == 0
    }

    /// Goes on with other memory, after [`drain`](Self::drain). Packets that are still under way keep the old
    /// one; their chains are taken again.
    pub(crate) fn move_to(&mut self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        self.queue.rewind_all();
        self.queue.move_to(memory)?;
        self.pool = new_pool(&self.queue, self.port, &self.account);
        self.fetching = Fetching::start(self.limit.as_ref());
        Ok(())
    }

    /// Fills `burst`, which is empty and has room for [`BURST`] packets, from the ring. Chains that cannot
    /// become packets are counted and given back.
    pub fn fetch(&mut self, burst: &mut Vec<Unique<Packet>>) -> Result<Fetched, QueueError> {
        if self.fetching != Fetching::Free {
            return self.fetch_limited(burst, cpu::now_ns(), BURST);
        }
        self.fetch_while(burst, |_| true)
    }

    /// As [`fetch`](Self::fetch), with at most `most` packets, which is not 0.
    pub fn fetch_few(&mut self, most: usize, burst: &mut Vec<Unique<Packet>>) -> Result<Fetched, QueueError> {
        if self.fetching != Fetching::Free {
            return self.fetch_limited(burst, cpu::now_ns(), most);
        }
        let mut chains = 0;
        self.fetch_while(burst, |_| {
            chains += 1;
            chains < most
        })
    }

    /// Asks before the next packets are fetched for how many the receiver has room, if it has said so.
    pub fn heed_receiver(&mut self) {
        if self.fetching == Fetching::Free && self.account.lender.room().is_some() {
            self.fetching = Fetching::Limited;
        }
    }

    /// As [`fetch_few`](Self::fetch_few), up to the packet with which the port has sent as much as it or its
    /// receiver may.
    #[cold]
    #[inline(never)]
    fn fetch_limited(
        &mut self,
        burst: &mut Vec<Unique<Packet>>,
        now_ns: u64,
        most: usize,
    ) -> Result<Fetched, QueueError> {
        if self.fetching == Fetching::Draining {
            return Ok(Fetched::Empty);
        }
        let limit = self.limit.clone();
        let room = self.account.lender.room().map_or(u64::MAX, u64::from);
        let available = match &limit {
            Some(limit) => limit.available(now_ns),
            None => Some(u64::MAX),
        };
        let mut available = available.unwrap_or(0);
        if room > 0 {
            available = available.min(room);
        } else if available > 0 && self.account.lender.wait_for_room(now_ns) == 0 {
            self.account.lender.look_ahead(now_ns);
        } else {
            available = 0;
        }
        if available == 0 {
            self.fetching = Fetching::Waiting;
            return Ok(Fetched::Waits);
        }
        // The receiver says again what it has room for, if these are for the same one.
        self.account.lender.forget_room();
        self.fetching = Fetching::start(limit.as_ref());
        let (mut bytes, mut chains) = (0, 0);
        let fetched = self.fetch_while(burst, |chain_len| {
            bytes += u64::from(chain_len);
            chains += 1;
            bytes < available && chains < most
        });
        let counted = burst.iter().map(|packet| {
            let header = VnetHeader::from_bytes(&packet.header);
            counted_bytes(
                packet.frame_len(),
                if header.gso_type == GSO_NONE {
                    0
                } else {
                    header.gso_size
                },
            )
        });
        if let Some(limit) = limit {
            limit.charge(counted.sum(), now_ns);
        }
        if fetched == Ok(Fetched::Empty) {
            self.account.lender.caught_up();
        }
        fetched
    }

    /// How long fetching waits at most, after [`Fetched::Waits`]. If it waits for the receiver of its
    /// packets, the thread that delivers them has this side served earlier.
    pub fn wait_ns(&self) -> u64 {
        let now_ns = cpu::now_ns();
        let of_limit = self.limit.as_ref().map_or(0, |limit| limit.left_ns(now_ns));
        if of_limit > 0 || self.account.lender.room() != Some(0) {
            return of_limit;
        }
        u64::from(self.account.lender.wait_for_room(now_ns)) * 1_000_000
    }

    /// Fetches packets until `goes_on`, which is called with the length of each chain, says no after one.
    #[inline(always)]
    fn fetch_while(
        &mut self,
        burst: &mut Vec<Unique<Packet>>,
        goes_on: impl FnMut(u32) -> bool,
    ) -> Result<Fetched, QueueError> {
        let slots = self.pool.available().saturating_sub(EXTRA_SLOTS as usize);
        if slots == 0 {
            return Ok(Fetched::NoSlots);
        }
        self.account.lender.set_under_way(self.pool.outstanding());
        let room = slots.min(BURST);
        let mut heads = [0; BURST];
        let first = self.queue.next_place();
        let count = self.queue.take_heads(&mut heads[..room])?;
        let translated = self.translate(first, &heads[..count], burst, goes_on);
        if translated < count {
            self.queue.rewind((count - translated) as u16);
        }
        let tails = self.read_heads(burst);
        if tails == 0 && burst.len() == translated {
            self.queue.give_back_all(first, &heads[..translated]);
        } else {
            self.give_back_complete(burst);
        }
        self.queue.show();
        Ok(if count == BURST || translated < count {
            Fetched::Full
        } else if count == room {
            Fetched::NoSlots
        } else {
            Fetched::Empty
        })
    }

    /// First pass: translates the chains, the first of which has that place. Returns how many of them; much
    /// work ends the pass early.
    #[inline(never)]
    fn translate(
        &mut self,
        first: u16,
        heads: &[u16],
        burst: &mut Vec<Unique<Packet>>,
        mut goes_on: impl FnMut(u32) -> bool,
    ) -> usize {
        let mut work = 0;
        for (done, &head) in heads.iter().enumerate() {
            if work >= BURST_WORK {
                return done;
            }
            let Some(mut slot) = self.pool.take() else {
                return done;
            };
            slot.place = first.wrapping_add(done as u16);
            let result = self
                .queue
                .chain(head, Direction::FromDriver, HEAD_PREFETCH, &mut slot.chain);
            let len = slot.chain.len();
            work += u64::from(len) + DESCRIPTOR_WORK * u64::from(slot.chain.walked());
            match result {
                Ok(()) => burst.push(slot),
                Err(ChainError::Malformed) => self.refuse(slot, DropReason::MalformedChain),
                Err(ChainError::TooLong) => self.refuse(slot, DropReason::ChainTooLong),
            }
            if !goes_on(len) {
                return done + 1;
            }
        }
        heads.len()
    }

    /// Second pass: reads the heads. Chains that are no packets are given back. Returns how many bytes lie
    /// behind the heads.
    #[inline(never)]
    fn read_heads(&mut self, burst: &mut Vec<Unique<Packet>>) -> u64 {
        let (mut bytes, mut behind, mut at) = (0, 0, 0);
        while let Some(packet) = burst.get_mut(at) {
            match self.snapshot(packet) {
                Ok(frame_len) => {
                    bytes += u64::from(frame_len);
                    behind += u64::from(packet.tail_len);
                    at += 1;
                }
                Err(reason) => self.refuse(burst.remove(at), reason),
            }
        }
        if !burst.is_empty() {
            add_alone(&self.account.received, burst.len() as u64);
            add_alone(&self.account.received_bytes, bytes);
            add_alone(&self.account.copied_in, bytes - behind);
        }
        behind
    }

    /// Gives back the chains of frames that are complete in their snapshots.
    #[inline(never)]
    fn give_back_complete(&mut self, burst: &[Unique<Packet>]) {
        for packet in burst.iter().filter(|packet| packet.in_chain == InChain::Nothing) {
            self.queue.give_back(packet.place, packet.chain.head);
        }
    }

    /// Reads virtio-net header and head, and returns the frame's length.
    #[inline]
    fn snapshot(&mut self, packet: &mut Packet) -> Result<u32, DropReason> {
        let frame_len = packet.chain.len().wrapping_sub(self.header_len);
        if !(MIN_FRAME..=MAX_FRAME).contains(&frame_len) {
            return Err(if packet.chain.len() < MIN_FRAME + self.header_len {
                DropReason::ShortFrame
            } else {
                DropReason::OversizedFrame
            });
        }
        let head_len = frame_len.min(Snapshot::CAPACITY as u32);
        let prefix = self.header_len as usize;
        let copy = packet.head.fill_behind(prefix, head_len as usize);
        packet.chain.read_at(self.queue.memory(), 0, copy);
        // Behind a short header the frame begins, where others have `num_buffers`, which nobody reads from a
        // sender.
        if let Some(header) = copy.first_chunk() {
            packet.header = *header;
        }
        packet.tail_len = frame_len - head_len;
        packet.tail_start = self.header_len + head_len;
        packet.in_chain = if packet.tail_len > 0 {
            InChain::Tail
        } else {
            InChain::Nothing
        };
        Ok(frame_len)
    }

    /// Copies the tails of packets to our memory and gives their chains back, as a switch does that does not
    /// share memory with the receivers.
    pub fn detach(&mut self, burst: &mut [Unique<Packet>]) {
        for packet in burst
            .iter_mut()
            .filter(|packet| packet.in_chain != InChain::Nothing)
        {
            let copied = packet.detach();
            add_alone(&self.account.copied_in, copied as u64);
            self.queue.give_back(packet.place, packet.chain.head);
        }
    }

    /// Takes back packets that were delivered and that no other thread has seen.
    #[inline(never)]
    pub fn finish(&mut self, packets: impl Iterator<Item = Unique<Packet>>) {
        packets.for_each(|packet| self.finish_one(packet));
    }

    /// As [`finish`](Self::finish), for one of them.
    #[inline(always)]
    pub fn finish_one(&mut self, mut packet: Unique<Packet>) {
        if packet.in_chain != InChain::Nothing {
            self.queue.give_back(packet.place, packet.chain.head);
        }
        packet.clear();
        self.pool.put_back(packet);
    }

    /// The number of the mark that the ring has had since the last call.
    pub fn take_mark(&mut self) -> Option<u16> {
        Some(std::mem::take(&mut self.mark)).filter(|mark| *mark != 0)
    }

    /// Whether there is a mark to be taken.
    pub(crate) fn is_marked(&self) -> bool {
        self.mark != 0
    }

    /// Whether packets that are not from the ring may pass now; otherwise the ring waits, too.
    pub(crate) fn may_pass_others(&mut self) -> bool {
        let Some(limit) = &self.limit else { return true };
        let may_pass = self.fetching != Fetching::Draining && limit.available(cpu::now_ns()).is_some();
        if !may_pass && self.fetching != Fetching::Draining {
            self.fetching = Fetching::Waiting;
        }
        may_pass
    }

    /// Charges what came past the ring, bytes of a frame to be cut into segments of that many bytes.
    pub(crate) fn charge_other(&self, frame_len: usize, segment: u16) {
        if let Some(limit) = &self.limit {
            limit.charge(counted_bytes(frame_len, segment), cpu::now_ns());
        }
    }

    /// Packets that the ring has now.
    pub(crate) fn come(&mut self) -> Result<usize, QueueError> {
        Ok(self.queue.look()?.into())
    }

    /// Notes a mark: a header without a frame.
    fn note_mark(&mut self, packet: &Packet) -> bool {
        let mut header = [0; VnetHeader::LEN];
        if !self.account.has(Mark::Queued) || packet.chain.len() as usize != header.len() {
            return false;
        }
        packet.chain.read_at(self.queue.memory(), 0, &mut header);
        let mark = VnetHeader::from_bytes(&header).marked();
        self.mark = mark.unwrap_or(self.mark);
        mark.is_some()
    }

    #[cold]
    fn refuse(&mut self, packet: Unique<Packet>, reason: DropReason) {
        self.queue.give_back(packet.place, packet.chain.head);
        if reason == DropReason::ShortFrame && self.note_mark(&packet) {
            return self.pool.put_back(packet);
        }
        self.pool.put_back(packet);
        add_alone(&self.account.received, 1);
        self.account.dropped(reason, 1);
        telemetry::limited_by!(
            self.port.0,
            log::Level::Info,
            "port {}: dropped a packet: {}",
            self.port,
            reason.description()
        );
    }

    /// A slot for a copy of one of this port's packets with another head.
    pub fn spare(&mut self) -> Option<Unique<Packet>> {
        self.pool.take()
    }

    /// Whether there are packets to fetch or chains to give back. A broken ring is work: fetching finds out.
    pub fn has_work(&mut self) -> bool {
        self.pool.has_returned()
            || self.is_fetching() && self.has_slots() && self.queue.look().unwrap_or(1) > 0
    }

    /// Whether fetching would find an empty ring, and nothing else.
    pub fn is_empty(&mut self) -> bool {
        self.fetching == Fetching::Free && matches!(self.queue.look(), Ok(0))
    }

    /// Whether the ring may be looked at for packets.
    fn is_fetching(&self) -> bool {
        self.fetching < Fetching::Waiting
    }

    /// Whether a packet could be fetched.
    pub fn has_slots(&self) -> bool {
        self.pool.has_above(EXTRA_SLOTS as usize)
    }

    /// Gives back the chains of packets that are done.
    #[inline]
    pub fn reclaim(&mut self) {
        if self.pool.has_returned() {
            self.reclaim_all();
        }
    }

    /// A packet that is a copy with another head drops the original when it is reclaimed itself, which takes
    /// further rounds.
    #[inline(never)]
    fn reclaim_all(&mut self) {
        let queue = &mut self.queue;
        while self.pool.has_returned() {
            self.pool.reclaim(|packet| {
                if packet.in_chain != InChain::Nothing {
                    queue.give_back(packet.place, packet.chain.head);
                }
                packet.clear();
            });
        }
    }

    /// Publishes the chains that were given back. The driver may be [owed a call](Self::owes_call)
    /// afterwards.
    #[inline]
    pub fn publish(&mut self) {
        let wanted = if self.queue.has_unpublished() {
            self.queue.publish()
        } else if self.owes_call {
            self.queue.look_for_notification()
        } else {
            return;
        };
        if wanted {
            self.queue.put_off_notification();
        } else {
            self.completion.clear();
            self.call.notify(false, &self.account.transmit_calls);
        }
        self.owes_call = wanted;
    }

    /// Whether the driver wants to be called for chains that were given back. The thread that published calls
    /// it, with [`call`](Self::call), at once or soon.
    #[inline]
    pub fn owes_call(&self) -> bool {
        self.owes_call
    }

    /// The time until which the call that is owed is put off, `interval_ns` after it was owed first at most
    /// and on the clock of `now_ns`; `None`: it is to be made now.
    pub fn put_off_call(&mut self, now_ns: u64, interval_ns: u64) -> Option<u64> {
        let received = self.account.transmitted.load(Ordering::Relaxed);
        let event = self.queue.suppression_seen();
        self.completion.put_off(received, event, now_ns, interval_ns)
    }

    /// Makes the call that is owed to the driver, if any.
    pub fn call(&mut self) {
        if std::mem::take(&mut self.owes_call) {
            self.queue.notified();
            self.call.notify(true, &self.account.transmit_calls);
        }
    }

    /// Makes the call that is owed, before the ring goes.
    pub(crate) fn call_if_owed(&mut self) {
        if self.call.never_waits() {
            self.publish();
            self.call();
        }
    }

    /// Asks for a kick at the next packet; true if one is there already.
    pub fn enable_kicks(&mut self) -> Result<bool, QueueError> {
        if !self.is_fetching() {
            return Ok(false);
        }
        self.queue.enable_kicks()
    }

    /// Asks for no kicks while the ring is polled.
    pub fn disable_kicks(&mut self) {
        self.queue.disable_kicks();
    }

    /// Looks for no packets, and asks for no kicks, until the next fetch, for which the caller sets a timer.
    pub fn wait(&mut self) {
        self.disable_kicks();
        if self.fetching != Fetching::Draining {
            self.fetching = Fetching::Waiting;
        }
    }

    /// Whether the guest's memory vanished.
    pub fn is_broken(&self) -> bool {
        self.queue.memory().is_broken()
    }
}

fn new_pool(queue: &DeviceQueue, port: PortId, account: &Arc<Counters>) -> PoolOwner<Packet> {
    let slots = u32::from(queue.size()).min(MAX_SLOTS) + EXTRA_SLOTS;
    PoolOwner::new(slots, || {
        Packet::new(port, account.clone(), queue.memory().clone())
    })
}

mod completion;
mod send_limit;
#[cfg(test)]
mod tests;
