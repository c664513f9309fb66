//! Meters: token buckets that decide at [`Action::Meter`](crate::Action::Meter) whether a packet may go on.
//!
//! The semantics are the kernel's (`net/openvswitch/meter.c`): a meter has one band at most, whose bucket
//! begins full; a packet for which the bucket has too few tokens is dropped; where the meter does not exist,
//! packets go on.

use crate::DropReason;
use serde::{Deserialize, Serialize};

/// Most meters of a controller: some for each of its ports.
pub const MAX_METERS: u32 = 32_768;

/// Specification of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterSpec {
    /// The unit of its rate.
    pub unit: MeterUnit,
    /// The band that drops packets; a meter without a band only counts.
    pub band: Option<MeterBand>,
    /// What packets that it drops are counted as.
    pub reason: DropReason,
}

impl MeterSpec {
    /// A meter whose packets that are dropped are counted as `meter`.
    pub fn new(unit: MeterUnit, band: Option<MeterBand>) -> MeterSpec {
        MeterSpec {
            unit,
            band,
            reason: DropReason::Metered,
        }
    }
}

/// The unit of a meter's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeterUnit {
    /// Packets. One that the receiver or the switch is to segment is one.
    Packets,
    /// Thousands of bits, from the Ethernet header on.
    Kilobits,
}

/// Drops packets that exceed a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterBand {
    /// Units per second, not 0.
    pub rate: u32,
    /// Units that may pass at once after a pause. With 0, nothing passes.
    pub burst: u32,
}

/// A meter's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterStats {
    /// Packets that came to it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Of these, packets that its band dropped.
    pub dropped_packets: u64,
    /// Bytes of the dropped packets.
    pub dropped_bytes: u64,
    /// Milliseconds since it was used last, or set.
    pub idle_ms: u64,
}
