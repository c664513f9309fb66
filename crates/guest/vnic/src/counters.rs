//! A port's counters while packets flow.

use crate::lender::Lender;
use flow::{DropReason, PortCounters};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const REASONS: usize = DropReason::ALL.len();

/// Reasons on a receiver's side, from `PortDown` on: what happens to a packet before, no receiver counts.
const OF_RECEIVERS: usize = REASONS - DropReason::PortDown as usize;

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
        self.drops[usize::from(reason as u8)].fetch_add(packets, Relaxed);
    }

    /// Packets for this port that were dropped on its side.
    pub fn egress_dropped(&self, reason: DropReason, packets: u64) {
        let place = usize::from(reason as u8).checked_sub(REASONS - OF_RECEIVERS);
        debug_assert!(place.is_some(), "{reason} is no reason of a receiver");
        if let Some(place) = place {
            self.egress_drops[place].fetch_add(packets, Relaxed);
        }
    }

    /// Upcalls of this port that ended without coming back.
    pub fn discarded(&self, reason: DropReason, packets: u64) {
        self.discards[usize::from(reason as u8)].fetch_add(packets, Relaxed);
    }

    /// The counters now. Not atomic as a whole while packets flow.
    pub fn read(&self) -> PortCounters {
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
            calls: self.transmit_calls.made.load(Relaxed) + self.receive_calls.made.load(Relaxed),
            calls_apart: self.transmit_calls.apart.load(Relaxed) + self.receive_calls.apart.load(Relaxed),
            calls_suppressed: self.transmit_calls.suppressed.load(Relaxed)
                + self.receive_calls.suppressed.load(Relaxed),
            kicks: self.kicks.load(Relaxed),
            kick_pauses: self.kick_pauses.load(Relaxed),
            ..PortCounters::default()
        };
        for &reason in DropReason::ALL {
            let number = usize::from(reason as u8);
            counters.dropped.add(reason, self.drops[number].load(Relaxed));
            counters
                .discarded
                .add(reason, self.discards[number].load(Relaxed));
        }
        for (reason, drops) in DropReason::ALL[REASONS - OF_RECEIVERS..]
            .iter()
            .zip(&self.egress_drops)
        {
            counters.egress_dropped.add(*reason, drops.load(Relaxed));
        }
        counters
    }
}
