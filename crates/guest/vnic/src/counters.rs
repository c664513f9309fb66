//! A port's counters while packets flow.

use crate::lender::Lender;
use cpu::{Access, prefetch};
use flow::{DropCounts, DropReason, PortCounters};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const REASONS: usize = DropReason::ALL.len();

/// Reasons on a receiver's side, from `PortDown` on: what happens to a packet before, no receiver counts.
const OF_RECEIVERS: usize = REASONS - DropReason::PortDown as usize;

/// Counters by reason in a group, which has one bit of [`Counters::occurred`]: half a cache line.
const GROUP: usize = 4;
/// The first group of each kind of counters by reason.
const DROPS: u32 = 0;
const DISCARDS: u32 = DROPS + REASONS.div_ceil(GROUP) as u32;
const EGRESS_DROPS: u32 = DISCARDS + REASONS.div_ceil(GROUP) as u32;
const _: () = assert!(EGRESS_DROPS as usize + OF_RECEIVERS.div_ceil(GROUP) <= 64);

/// The group of a counter by reason, in the order of its kind.
fn group(first: u32, number: usize) -> u32 {
    first + (number / GROUP) as u32
}

/// Adds the counters of a kind whose groups have a bit.
fn add_groups(occurred: u64, first: u32, reasons: &[DropReason], counts: &[AtomicU64], to: &mut DropCounts) {
    let groups = reasons.chunks(GROUP).zip(counts.chunks(GROUP)).enumerate();
    for (number, (reasons, counts)) in groups {
        if occurred & 1 << group(first, number * GROUP) != 0 {
            for (reason, count) in reasons.iter().zip(counts) {
                to.add(*reason, count.load(Relaxed));
            }
        }
    }
}

/// A port's account as a sender and receiver: [`PortCounters`] to which any thread may add, except for those
/// that belong to a side. Callers add once per batch where they can.
#[derive(Debug)]
#[allow(missing_docs)] // Field by field as in `PortCounters`.
pub struct Counters {
    pub received: AtomicU64,
    pub received_bytes: AtomicU64,
    pub injected: AtomicU64,
    pub copies: AtomicU64,
    pub delivered: AtomicU64,
    /// Delivered likewise, by the transmit side.
    pub(crate) handed_over: AtomicU64,
    drops: [AtomicU64; REASONS],
    pub upcalls: AtomicU64,
    discards: [AtomicU64; REASONS],
    pub transmitted: AtomicU64,
    pub transmitted_bytes: AtomicU64,
    /// Heads, by the transmit side.
    pub copied_in: AtomicU64,
    /// Bytes written, by the receive side.
    pub copied_out: AtomicU64,
    /// Bytes copied for the control process, by any thread.
    pub copied_up: AtomicU64,
    egress_drops: [AtomicU64; OF_RECEIVERS],
    pub segments: AtomicU64,
    pub(crate) transmit_calls: Calls,
    pub(crate) receive_calls: Calls,
    pub kicks: AtomicU64,
    pub kick_pauses: AtomicU64,
    /// The groups of counters by reason in which one is not zero, a bit each ([`group`]).
    occurred: AtomicU64,
    /// The sender's state that its receivers need.
    pub lender: Lender,
}

/// Calls of a ring's driver, counted by the holder of the side.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub made: AtomicU64,
    /// Of those, calls that were left to the call thread.
    pub apart: AtomicU64,
    pub suppressed: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let none = || [const { AtomicU64::new(0) }; REASONS];
        let none_egress = [const { AtomicU64::new(0) }; OF_RECEIVERS];
        Counters {
            received: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
            drops: none(),
            upcalls: AtomicU64::new(0),
            discards: none(),
            transmitted: AtomicU64::new(0),
            transmitted_bytes: AtomicU64::new(0),
            copied_in: AtomicU64::new(0),
            copied_out: AtomicU64::new(0),
            copied_up: AtomicU64::new(0),
            egress_drops: none_egress,
            segments: AtomicU64::new(0),
            transmit_calls: Calls::default(),
            receive_calls: Calls::default(),
            kicks: AtomicU64::new(0),
            kick_pauses: AtomicU64::new(0),
            occurred: AtomicU64::new(0),
            lender: Lender::default(),
        }
    }
}

/// Adds to a counter that only the holder of one side of a port changes, without the locked operation that a
/// shared counter needs.
#[inline]
pub(crate) fn add_alone(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Counters {
    /// Packets of this port that were dropped.
    pub fn dropped(&self, reason: DropReason, packets: u64) {
        let number = usize::from(reason as u8);
        self.drops[number].fetch_add(packets, Relaxed);
        self.note(DROPS, number);
    }

    /// Notes that a counter by reason is not zero. A reader of many ports so leaves out most of the 16 cache
    /// lines that these counters take at each.
    fn note(&self, first: u32, number: usize) {
        let bit = 1 << group(first, number);
        if self.occurred.load(Relaxed) & bit == 0 {
            self.occurred.fetch_or(bit, Relaxed);
        }
    }

    /// Packets for this port that were dropped on its side.
    pub fn egress_dropped(&self, reason: DropReason, packets: u64) {
        let place = usize::from(reason as u8).checked_sub(REASONS - OF_RECEIVERS);
        debug_assert!(place.is_some(), "{reason} is no reason of a receiver");
        if let Some(place) = place {
            self.egress_drops[place].fetch_add(packets, Relaxed);
            self.note(EGRESS_DROPS, place);
        }
    }

    /// Upcalls of this port that ended without coming back.
    pub fn discarded(&self, reason: DropReason, packets: u64) {
        let number = usize::from(reason as u8);
        self.discards[number].fetch_add(packets, Relaxed);
        self.note(DISCARDS, number);
    }

    /// Asks the processor for what [`read`](Self::read) reads of a port without drops.
    pub fn prefetch(&self) {
        for counter in [
            &self.received,
            &self.handed_over,
            &self.upcalls,
            &self.transmitted,
            &self.copied_up,
            &self.segments,
            &self.receive_calls.made,
            &self.kick_pauses,
            &self.occurred,
        ] {
            prefetch(counter, Access::Read);
        }
    }

    /// The counters now. Not atomic as a whole while packets flow.
    pub fn read(&self) -> PortCounters {
        let (calls, calls_suppressed) = self.calls();
        let mut counters = PortCounters {
            received: self.received.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            injected: self.injected.load(Relaxed),
            copies: self.copies.load(Relaxed),
            delivered: self.delivered.load(Relaxed) + self.handed_over.load(Relaxed),
            upcalls: self.upcalls.load(Relaxed),
            transmitted: self.transmitted.load(Relaxed),
            transmitted_bytes: self.transmitted_bytes.load(Relaxed),
            copied_bytes: [&self.copied_in, &self.copied_out, &self.copied_up]
                .iter()
                .map(|copied| copied.load(Relaxed))
                .sum(),
            segments: self.segments.load(Relaxed),
            calls,
            calls_apart: self.transmit_calls.apart.load(Relaxed) + self.receive_calls.apart.load(Relaxed),
            calls_suppressed,
            kicks: self.kicks.load(Relaxed),
            kick_pauses: self.kick_pauses.load(Relaxed),
            ..PortCounters::default()
        };
        let occurred = self.occurred.load(Relaxed);
        if occurred != 0 {
            let of_receivers = &DropReason::ALL[REASONS - OF_RECEIVERS..];
            add_groups(
                occurred,
                DROPS,
                DropReason::ALL,
                &self.drops,
                &mut counters.dropped,
            );
            add_groups(
                occurred,
                DISCARDS,
                DropReason::ALL,
                &self.discards,
                &mut counters.discarded,
            );
            add_groups(
                occurred,
                EGRESS_DROPS,
                of_receivers,
                &self.egress_drops,
                &mut counters.egress_dropped,
            );
        }
        counters
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

    /// No count is left out for a group that seems empty.
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
        counters.egress_dropped(DropReason::PortRemoved, 4);
        assert_eq!(counters.read().egress_dropped.total(), 4);
        assert_eq!(counters.read().dropped.total(), 0);
    }
}
