//! A port's counters while packets flow.
//!
//! A scrape reads the counters of a thousand ports that no cache has, so what it costs is the number of cache
//! lines and pages that these lie in. Counters of all ports lie side by side ([`Counters::of_many`]), and
//! those by reason, which most ports never need, apart. What else a scrape wants to know of few ports has a
//! mark here.

use crate::lender::Lender;
use cpu::{Access, prefetch};
use flow::{DropCounts, DropReason, PortCounters};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

const REASONS: usize = DropReason::ALL.len();

/// Reasons on a receiver's side, from `PortDown` on: what happens to a packet before, no receiver counts.
const OF_RECEIVERS: usize = REASONS - DropReason::PortDown as usize;

const CACHE_LINE: usize = 64;

/// A port's account as a sender and receiver: [`PortCounters`] to which any thread may add, except for those
/// that belong to a side. Callers add once per batch where they can.
///
/// The order is that in memory: what the transmit side writes with most bursts, then what other threads and
/// the receive side do. Counters at the end are written seldom. With the head of the allocation that follows
/// they are longer than a cache line, so no port's thread takes a line from that of its neighbour.
#[derive(Debug, Default)]
#[allow(missing_docs)] // Field by field as in `PortCounters`.
#[repr(C)]
pub struct Counters {
    pub received: AtomicU64,
    pub received_bytes: AtomicU64,
    /// Delivered likewise, by the transmit side.
    pub(crate) handed_over: AtomicU64,
    /// Heads, by the transmit side.
    pub copied_in: AtomicU64,
    pub(crate) transmit_calls: Calls,
    pub kicks: AtomicU64,
    /// The sender's state that its receivers need.
    pub lender: Lender,
    pub delivered: AtomicU64,
    pub copies: AtomicU64,
    pub transmitted: AtomicU64,
    pub transmitted_bytes: AtomicU64,
    /// Bytes written, by the receive side.
    pub copied_out: AtomicU64,
    pub(crate) receive_calls: Calls,
    pub segments: AtomicU64,
    pub injected: AtomicU64,
    pub upcalls: AtomicU64,
    /// Bytes copied for the control process, by any thread.
    pub copied_up: AtomicU64,
    pub kick_pauses: AtomicU64,
    by_reason: OnceLock<Box<ByReason>>,
    /// A bit for each [`Mark`].
    marks: AtomicU8,
}

/// Calls of a ring's driver, counted by the holder of the side.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub made: AtomicU64,
    /// Of those, calls that were left to the call thread.
    pub apart: AtomicU64,
    pub suppressed: AtomicU64,
}

/// Counters by reason, once one is not zero.
#[derive(Debug)]
struct ByReason {
    drops: [AtomicU64; REASONS],
    discards: [AtomicU64; REASONS],
    egress_drops: [AtomicU64; OF_RECEIVERS],
}

impl Default for ByReason {
    fn default() -> Self {
        let none = || [const { AtomicU64::new(0) }; REASONS];
        ByReason {
            drops: none(),
            discards: none(),
            egress_drops: [const { AtomicU64::new(0) }; OF_RECEIVERS],
        }
    }
}

/// What else there is to know of a port that counts here. A mark stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// A worker may receive the port's kicks.
    Served = 1,
    /// The port's bandwidth was limited.
    Limited = 2,
    /// Packets come by a queue of its device besides: its forwarder may mark the ring.
    Queued = 4,
}

/// Adds to a counter that only the holder of one side of a port changes, without the locked operation that a
/// shared counter needs.
#[inline]
pub(crate) fn add_alone(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

fn counts_of(reasons: &[DropReason], counts: &[AtomicU64]) -> DropCounts {
    let mut all = DropCounts::default();
    for (reason, count) in reasons.iter().zip(counts) {
        all.add(*reason, count.load(Relaxed));
    }
    all
}

impl Counters {
    /// Counters of so many ports, which lie side by side as far as the allocator puts them there.
    pub fn of_many(ports: usize) -> Vec<Arc<Counters>> {
        let mut all: Vec<Arc<Counters>> = (0..ports).map(|_| Arc::default()).collect();
        // By address, as ports are mostly read in the order in which they are made.
        all.sort_unstable_by_key(|counters| std::cmp::Reverse(Arc::as_ptr(counters)));
        all
    }

    /// Notes that something is known of the port.
    pub fn mark(&self, mark: Mark) {
        if !self.has(mark) {
            self.marks.fetch_or(mark as u8, Relaxed);
        }
    }

    /// Whether it was marked so.
    pub fn has(&self, mark: Mark) -> bool {
        self.marks.load(Relaxed) & mark as u8 != 0
    }

    /// Whether there is any mark.
    pub fn is_marked(&self) -> bool {
        self.marks.load(Relaxed) != 0
    }

    fn by_reason(&self) -> &ByReason {
        self.by_reason.get_or_init(Box::default)
    }

    /// Packets of this port that were dropped.
    pub fn dropped(&self, reason: DropReason, packets: u64) {
        self.by_reason().drops[usize::from(reason as u8)].fetch_add(packets, Relaxed);
    }

    /// Packets for this port that were dropped on its side.
    pub fn egress_dropped(&self, reason: DropReason, packets: u64) {
        let place = usize::from(reason as u8).checked_sub(REASONS - OF_RECEIVERS);
        debug_assert!(place.is_some(), "{reason} is no reason of a receiver");
        if let Some(place) = place {
            self.by_reason().egress_drops[place].fetch_add(packets, Relaxed);
        }
    }

    /// Upcalls of this port that ended without coming back.
    pub fn discarded(&self, reason: DropReason, packets: u64) {
        self.by_reason().discards[usize::from(reason as u8)].fetch_add(packets, Relaxed);
    }

    /// Asks the processor for what [`numbers`](Self::numbers) reads.
    pub fn prefetch(&self) {
        let first: *const u8 = std::ptr::from_ref(self).cast();
        for line in 0..size_of::<Counters>().div_ceil(CACHE_LINE) {
            prefetch(first.wrapping_add(line * CACHE_LINE), Access::Read);
        }
    }

    /// Counters besides those by reason, as of [`PortCounters::of_numbers`]. How often packets waited for
    /// bandwidth is not known here.
    pub fn numbers(&self, bandwidth_waits: u64) -> [u64; PortCounters::NUMBERS] {
        let (calls, calls_suppressed) = self.calls();
        let copied = [&self.copied_in, &self.copied_out, &self.copied_up];
        [
            self.received.load(Relaxed),
            self.received_bytes.load(Relaxed),
            self.injected.load(Relaxed),
            self.copies.load(Relaxed),
            self.delivered.load(Relaxed) + self.handed_over.load(Relaxed),
            self.upcalls.load(Relaxed),
            self.transmitted.load(Relaxed),
            self.transmitted_bytes.load(Relaxed),
            copied.iter().map(|copied| copied.load(Relaxed)).sum(),
            self.segments.load(Relaxed),
            calls,
            self.transmit_calls.apart.load(Relaxed) + self.receive_calls.apart.load(Relaxed),
            calls_suppressed,
            self.kicks.load(Relaxed),
            self.kick_pauses.load(Relaxed),
            bandwidth_waits,
            // The kernel path counts apart.
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ]
    }

    /// Whether a packet was dropped.
    pub fn has_drops(&self) -> bool {
        self.by_reason.get().is_some()
    }

    /// The counters now. Not atomic as a whole while packets flow.
    pub fn read(&self) -> PortCounters {
        let counters = PortCounters::of_numbers(self.numbers(0));
        let Some(by_reason) = self.by_reason.get() else {
            return counters;
        };
        PortCounters {
            dropped: counts_of(DropReason::ALL, &by_reason.drops),
            discarded: counts_of(DropReason::ALL, &by_reason.discards),
            egress_dropped: counts_of(
                &DropReason::ALL[REASONS - OF_RECEIVERS..],
                &by_reason.egress_drops,
            ),
            ..counters
        }
    }

    /// Notifications sent to the driver, and those that it had suppressed.
    pub fn calls(&self) -> (u64, u64) {
        let [transmit, receive] = [&self.transmit_calls, &self.receive_calls];
        (
            transmit.made.load(Relaxed) + receive.made.load(Relaxed),
            transmit.suppressed.load(Relaxed) + receive.suppressed.load(Relaxed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_read_where_it_was_counted() {
        for (number, &reason) in DropReason::ALL.iter().enumerate() {
            let (counters, mut expected) = (Counters::default(), PortCounters::default());
            counters.dropped(reason, 1);
            counters.discarded(reason, 2);
            expected.dropped.add(reason, 1);
            expected.discarded.add(reason, 2);
            if number >= REASONS - OF_RECEIVERS {
                counters.egress_dropped(reason, 3);
                expected.egress_dropped.add(reason, 3);
            }
            assert_eq!(counters.read(), expected, "{reason}");
        }
        let counters = Counters::default();
        assert!(!counters.has_drops());
        counters.egress_dropped(DropReason::PortRemoved, 4);
        assert!(counters.has_drops());
        assert_eq!(counters.read().egress_dropped.total(), 4);
        assert_eq!(counters.read().dropped.total(), 0);
    }

    #[test]
    fn each_number_is_read_where_it_was_counted() {
        let counters = Counters::default();
        let shared = [
            &counters.received,
            &counters.received_bytes,
            &counters.injected,
            &counters.copies,
            &counters.delivered,
            &counters.upcalls,
            &counters.transmitted,
            &counters.transmitted_bytes,
            &counters.copied_out,
            &counters.segments,
            &counters.receive_calls.made,
            &counters.receive_calls.apart,
            &counters.receive_calls.suppressed,
            &counters.kicks,
            &counters.kick_pauses,
        ];
        (1..)
            .zip(shared)
            .for_each(|(number, counter)| counter.store(number, Relaxed));
        counters.handed_over.store(100, Relaxed);
        counters.copied_in.store(200, Relaxed);
        counters.copied_up.store(1000, Relaxed);
        counters.transmit_calls.made.store(300, Relaxed);
        counters.transmit_calls.apart.store(400, Relaxed);
        counters.transmit_calls.suppressed.store(500, Relaxed);
        let read = counters.read();
        let expected = PortCounters {
            received: 1,
            received_bytes: 2,
            injected: 3,
            copies: 4,
            delivered: 105,
            upcalls: 6,
            transmitted: 7,
            transmitted_bytes: 8,
            copied_bytes: 1209,
            segments: 10,
            calls: 311,
            calls_apart: 412,
            calls_suppressed: 513,
            kicks: 14,
            kick_pauses: 15,
            ..PortCounters::default()
        };
        assert_eq!(read, expected);
        assert_eq!(read.numbers(), counters.numbers(0));
    }

    /// What is written with each burst is a cache line and more from what a neighbour's thread writes so.
    #[test]
    fn neighbours_share_no_cache_line_that_is_written_often() {
        const HEAD_OF_ARC: usize = 16;
        let seldom = size_of::<Counters>() - std::mem::offset_of!(Counters, injected);
        assert!(seldom + HEAD_OF_ARC >= CACHE_LINE, "{seldom}");
    }
}
