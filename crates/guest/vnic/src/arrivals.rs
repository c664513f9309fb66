//! Packets that come by a queue of a device, beside those in its forwarder's ring.
//!
//! Filters in the kernel or the device divide frames between both: a queue has those for a few addresses.
//! They are decided about as others of the port are. The holder of the port's transmit side takes packets
//! from ring and queue, so none is overtaken but as crate `accelerator`'s `way` has it:
//!
//! | the queue is | after | packets are taken from |
//! |---|---|---|
//! | idle | it was opened | the ring; and from the queue, which has none |
//! | arming | the controller said that a filter will be programmed | the ring, up to its mark or for 10 ms at most |
//! | serving | the forwarder has marked its ring, or the time was over | both in turn, a burst each |
//! | leaving | the controller said that a filter will be removed, for 0.1 s | the queue until it is empty, then what the ring had before |
//!
//! All filters of a device share its queue. While one is new, packets for others wait as well.
//!
//! A frame is copied into a slot of the queue's own, by the kernel or from its ring, and no guest can change
//! it. So the queue outlives the forwarder's ring. Slots are bounded: without one, frames wait in the kernel.

use crate::counters::add_alone;
use crate::transmit::EXTRA_SLOTS;
use crate::turn::{BURST, BURST_WORK, MAX_SLOTS};
use crate::{Counters, Fetched, Mark, Packet, TransmitSide};
use accelerator::{Arrivals, Arrived, State, Way};
use flow::PortId;
use guest_memory::GuestMemory;
use lock_free::{PoolOwner, Unique};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use virtqueue::QueueError;
use wire::{GSO_NONE, VnetHeader};

/// Time in microseconds for which the queue goes before the ring after it was said that a filter goes.
const LEAVE_US: u64 = 100_000;

/// Time in microseconds for which a queue that was closed must have had no frame.
const CLOSE_US: u64 = 100_000;

/// Time in microseconds between two looks at a queue that waits for a mark, or is to close.
const LOOK_US: u64 = 10_000;

/// Frames that cannot be used which a turn takes at most.
const MOST_UNUSABLE: usize = 64;

/// What a queue has counted, for any thread to read.
#[derive(Debug, Default)]
pub struct ArrivalCounts {
    /// Packets that came by the queue.
    pub packets: AtomicU64,
    /// Bytes of these.
    pub bytes: AtomicU64,
    /// Frames that could not be used.
    pub unusable: AtomicU64,
    /// Times that the queue's packets waited for a mark.
    pub armed: AtomicU64,
    /// Of these, times that there was none in time.
    pub overdue: AtomicU64,
    /// Times that a filter was removed.
    pub left: AtomicU64,
    /// The longest wait for a mark, in microseconds.
    pub longest_wait_us: AtomicU64,
}

/// The queue, and when packets are taken from it.
#[derive(Debug)]
pub struct ArrivalQueue {
    queue: Box<dyn Arrivals>,
    /// A queue that was there before, with frames that came before.
    earlier: Option<Box<dyn Arrivals>>,
    pool: PoolOwner<Packet>,
    account: Arc<Counters>,
    way: Way,
    /// The mark that is waited for.
    mark: u16,
    /// Until when the queue goes before the ring, by [`cpu::now_us`].
    leaves_until_us: u64,
    /// Since when a queue that is to close has had no frame.
    closes_since_us: Option<u64>,
    /// The ring has a burst next.
    is_rings_turn: bool,
    /// The port's bandwidth has no packet pass until the next turn.
    is_held: bool,
    counts: Arc<ArrivalCounts>,
}

/// What is done with packets of a queue now.
enum Turn {
    /// Packets of the queue wait.
    Waits,
    /// Packets of the queue are taken.
    Takes,
    /// Packets of the queue are taken, and the ring's afterwards.
    TakesFirst,
}

impl ArrivalQueue {
    /// A queue of a port, with the one that it had before.
    pub fn new(
        queue: Box<dyn Arrivals>,
        before: Option<ArrivalQueue>,
        port: PortId,
        account: &Arc<Counters>,
        counts: Arc<ArrivalCounts>,
    ) -> ArrivalQueue {
        let no_memory = Arc::new(GuestMemory::new());
        let slots = MAX_SLOTS + EXTRA_SLOTS;
        ArrivalQueue {
            queue,
            earlier: before.map(|before| before.queue),
            pool: PoolOwner::new(slots, || Packet::new(port, account.clone(), no_memory.clone())),
            account: account.clone(),
            way: Way::default(),
            mark: 0,
            leaves_until_us: 0,
            closes_since_us: None,
            is_rings_turn: false,
            is_held: false,
            counts,
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> &Arc<ArrivalCounts> {
        &self.counts
    }

    /// A filter will be programmed, after which the forwarder marks its ring with this number.
    pub fn arm(&mut self, mark: u16) {
        self.way = Way::default();
        // A way that begins is slow.
        let _ = self.way.attach();
        self.mark = mark;
    }

    /// A filter will be removed.
    pub fn leave(&mut self) {
        self.leaves_until_us = cpu::now_us() + LEAVE_US;
        self.counts.left.fetch_add(1, Relaxed);
    }

    /// Has the queue end once it is empty and stays so.
    pub fn close(&mut self) {
        self.closes_since_us = Some(cpu::now_us());
    }

    /// Whether it was closed and is to be forgotten.
    pub fn is_over(&mut self) -> bool {
        let Some(since_us) = self.closes_since_us else {
            return false;
        };
        let now_us = cpu::now_us();
        if self.has_frames() {
            self.closes_since_us = Some(now_us);
        }
        now_us.saturating_sub(since_us) >= CLOSE_US && !self.has_frames()
    }

    /// In how many microseconds it is to be looked at again without a reason.
    pub fn watch_us(&mut self) -> Option<u64> {
        let waits = self.way.state() == State::Arming && self.has_frames();
        (waits || self.closes_since_us.is_some()).then_some(LOOK_US)
    }

    /// Whether there is something that may be taken.
    pub fn has_work(&mut self) -> bool {
        let may_take = !self.is_held && self.way.state() != State::Arming;
        may_take && self.pool.has_above(EXTRA_SLOTS as usize) && self.has_frames()
    }

    fn has_frames(&mut self) -> bool {
        let earlier = self.earlier.as_mut().and_then(|earlier| earlier.oldest());
        earlier.is_some() || self.queue.oldest().is_some()
    }

    /// Fills `burst`, which is empty, with at most `most` packets from the queue or from the ring.
    ///
    /// # Errors
    ///
    /// The ring is broken.
    pub fn fetch(
        &mut self,
        mut ring: Option<&mut TransmitSide>,
        most: usize,
        burst: &mut Vec<Unique<Packet>>,
    ) -> Result<Fetched, QueueError> {
        while self.pool.has_returned() {
            self.pool.reclaim(Packet::clear);
        }
        self.is_held = false;
        let (most, now_us) = (most.min(BURST), cpu::now_us());
        let mark = ring.as_mut().and_then(|ring| ring.take_mark());
        let turn = self.choose(mark, now_us);
        let most_of_ring = match turn {
            // One by one, so that what is behind the mark stays there: a filter may be gone already.
            Turn::Waits => 1,
            Turn::Takes if self.is_rings_turn => most,
            Turn::Takes | Turn::TakesFirst => {
                let come = ring.as_mut().map_or(Ok(0), |ring| ring.come())?;
                if !self.may_pass(ring.as_deref_mut()) {
                    self.is_held = true;
                    return Ok(Fetched::Waits);
                }
                if self.take(ring.as_deref(), most, burst) {
                    self.is_rings_turn = matches!(turn, Turn::Takes);
                    return Ok(Fetched::Full);
                }
                if matches!(turn, Turn::TakesFirst) {
                    come.min(most)
                } else {
                    most
                }
            }
        };
        self.is_rings_turn = false;
        let (fetched, is_marked) = match ring {
            Some(ring) if most_of_ring > 0 => {
                ring.reclaim();
                (ring.fetch_few(most_of_ring, burst)?, ring.is_marked())
            }
            _ => (Fetched::Empty, false),
        };
        let goes_on = fetched == Fetched::Empty && (is_marked || self.has_work());
        Ok(if goes_on { Fetched::Full } else { fetched })
    }

    fn choose(&mut self, mark: Option<u16>, now_us: u64) -> Turn {
        if self.way.state() == State::Arming {
            if self.has_frames() {
                let _ = self.way.ask_for_mark(now_us);
            }
            if mark == Some(self.mark) {
                let _ = self.way.ask_for_mark(now_us);
                self.way.on_mark(0);
            }
            if !self.way.serves_queue(0, now_us) {
                return Turn::Waits;
            }
            let (counted, counts) = (self.way.counts(), &self.counts);
            counts.armed.fetch_add(counted.armed, Relaxed);
            counts.overdue.fetch_add(counted.overdue, Relaxed);
            counts.longest_wait_us.fetch_max(counted.longest_wait_us, Relaxed);
        }
        let goes_first = now_us < self.leaves_until_us || self.closes_since_us.is_some();
        if goes_first || self.earlier.is_some() {
            Turn::TakesFirst
        } else {
            Turn::Takes
        }
    }

    /// Whether the port's bandwidth, which belongs to its ring, has packets pass now.
    fn may_pass(&self, ring: Option<&mut TransmitSide>) -> bool {
        !self.account.has(Mark::Limited) || ring.is_none_or(TransmitSide::may_pass_others)
    }

    /// Takes packets from the queue; false if there were none.
    fn take(&mut self, ring: Option<&TransmitSide>, most: usize, burst: &mut Vec<Unique<Packet>>) -> bool {
        self.account.lender.set_under_way(self.pool.outstanding());
        let (mut bytes, mut unusable) = (0, 0);
        while burst.len() < most && bytes < BURST_WORK && unusable < MOST_UNUSABLE {
            let Some(longest) = self.find_oldest() else { break };
            if !self.pool.has_above(EXTRA_SLOTS as usize) {
                break;
            }
            let Some(mut slot) = self.pool.take() else { break };
            let from = self.earlier.as_mut().unwrap_or(&mut self.queue);
            match slot.receive(longest, |room| from.receive(room)) {
                Ok(len) => {
                    bytes += len as u64;
                    if let Some(ring) = ring {
                        let header = VnetHeader::from_bytes(&slot.header);
                        let is_whole = header.gso_type == GSO_NONE;
                        ring.charge_other(len, if is_whole { 0 } else { header.gso_size });
                    }
                    burst.push(slot);
                }
                Err(arrived) => {
                    unusable += 1;
                    let is_lost = arrived == Arrived::Unusable;
                    self.counts.unusable.fetch_add(is_lost.into(), Relaxed);
                    slot.clear();
                    self.pool.put_back(slot);
                }
            }
        }
        let packets = burst.len() as u64;
        add_alone(&self.account.received, packets);
        add_alone(&self.account.received_bytes, bytes);
        add_alone(&self.account.copied_in, bytes);
        add_alone(&self.counts.packets, packets);
        add_alone(&self.counts.bytes, bytes);
        packets > 0
    }

    /// How long the oldest frame can be, if there is one; an earlier queue that is empty ends.
    fn find_oldest(&mut self) -> Option<usize> {
        if let Some(earlier) = &mut self.earlier {
            let oldest = earlier.oldest();
            if oldest.is_some() {
                return oldest;
            }
            self.earlier = None;
        }
        self.queue.oldest()
    }
}

#[cfg(test)]
mod tests;
