//! Counters that the data plane keeps per port.

use crate::DropCounts;
use serde::{Deserialize, Serialize};

/// Counters of one port. All of them only grow.
///
/// The counters of the *origin* side keep the conservation law, at any moment when no packet is under way:
/// `received + injected + copies == delivered + dropped.total() + upcalls`, where `upcalls` packets left for
/// the control process and come back as `injected`, or are counted in `discarded`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Packets read from this port's transmit ring.
    pub received: u64,
    /// Bytes of those packets, Ethernet header included, without virtio-net header.
    pub received_bytes: u64,
    /// Packets of this port that the control process sent back into the data plane, and answers to this
    /// port's packets that a rule rejected.
    pub injected: u64,
    /// Additional copies made of this port's packets: a packet with n outputs counts n - 1 here, and each
    /// copy for a mirror one.
    pub copies: u64,
    /// Packets (and copies) of this port that reached a receiver's ring, or clients of a P4 switch.
    pub delivered: u64,
    /// Packets (and copies) of this port that were dropped, on its own side or on a receiver's.
    pub dropped: DropCounts,
    /// Packets (and copies) of this port that were handed to the control process.
    pub upcalls: u64,
    /// Of the upcalls, packets that the control process decided to drop, or that were lost when it ended.
    pub discarded: DropCounts,

    /// Packets written into this port's receive ring.
    pub transmitted: u64,
    /// Bytes of those.
    pub transmitted_bytes: u64,
    /// Bytes of frames that were copied: heads and misses when they are read from this port's guest, and all
    /// bytes that are written to it. Where frames are long, the sum over all ports is little more than the
    /// sum of `transmitted_bytes`, as payload is copied once.
    pub copied_bytes: u64,
    /// Packets for this port that were dropped on its side; each also counts in its origin's `dropped`.
    pub egress_dropped: DropCounts,
    /// Packets into which frames for this port were segmented because it lacks a segmentation offload.
    pub segments: u64,

    /// Notifications ("calls") sent to the driver.
    pub calls: u64,
    /// Of those, notifications that were left to the thread for costly ones. Several that wait there become
    /// one.
    pub calls_apart: u64,
    /// Notifications that the driver had suppressed (EVENT_IDX or NO_INTERRUPT).
    pub calls_suppressed: u64,
    /// Kicks received from the driver.
    pub kicks: u64,
    /// Times a ring's kicks were not received for a millisecond, since too many of them had led to nothing.
    pub kick_pauses: u64,
    /// Times packets from or to this port began to wait for its bandwidth (`max-rate-from`, `max-rate-to`).
    pub bandwidth_waits: u64,

    /// Packets of this port, a veth pair, that the kernel forwarded by itself; `received` and `delivered`
    /// have them, too.
    pub kernel_path: u64,
    /// Bytes of those.
    pub kernel_path_bytes: u64,
    /// Times a kind of this port's packets was taken off the kernel path: its decision ended, or something
    /// had to see the packets.
    pub kernel_path_withdrawn: u64,
    /// Times a kind of this port's packets did not come on the kernel path because the port has as many kinds
    /// there as a port may have.
    pub kernel_path_over_share: u64,
    /// Times a kind of this port's packets did not come on the kernel path because the kernel's table had no
    /// room at the kind's place.
    pub kernel_path_no_room: u64,
    /// Times a kind of this port's packets gave its place up for one of a port that has fewer.
    pub kernel_path_displaced: u64,
    /// Times a kind of this port's packets came on the kernel path without a gap between packets, which may
    /// have overtaken others.
    pub kernel_path_without_gap: u64,
}

/// Makes the functions that have counters as a list of numbers, of which there are all but those by reason.
macro_rules! numbers {
    ($($name:ident),* $(,)?) => {
        impl PortCounters {
            /// Counters besides those by reason.
            pub const NUMBERS: usize = [$(stringify!($name)),*].len();

            /// The counters besides those by reason, in the order of [`of_numbers`](Self::of_numbers).
            pub fn numbers(&self) -> [u64; PortCounters::NUMBERS] {
                [$(self.$name),*]
            }

            /// Counters without drops.
            pub fn of_numbers(numbers: [u64; PortCounters::NUMBERS]) -> PortCounters {
                let [$($name),*] = numbers;
                PortCounters {
                    dropped: DropCounts::default(),
                    discarded: DropCounts::default(),
                    egress_dropped: DropCounts::default(),
                    $($name),*
                }
            }
        }
    };
}

numbers! {
    received, received_bytes, injected, copies, delivered, upcalls,
    transmitted, transmitted_bytes, copied_bytes, segments,
    calls, calls_apart, calls_suppressed, kicks, kick_pauses, bandwidth_waits,
    kernel_path, kernel_path_bytes, kernel_path_withdrawn, kernel_path_over_share,
    kernel_path_no_room, kernel_path_displaced, kernel_path_without_gap,
}

impl PortCounters {
    /// Packets that have come in and not yet been accounted for. Zero whenever nothing is under way.
    pub fn in_flight(&self) -> i64 {
        let come = self.received + self.injected + self.copies;
        let gone = self.delivered + self.dropped.total() + self.upcalls;
        come.wrapping_sub(gone).cast_signed()
    }
}
