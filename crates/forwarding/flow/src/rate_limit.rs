//! Bandwidths of ports.

use serde::{Deserialize, Serialize};

/// The most bits per second that pass, and the bytes that may pass at once after a pause. Frames count from
/// the Ethernet header on, as in `PortCounters`; one that the receiver or the switch is to segment is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Bits per second, within [`RATES`](RateLimit::RATES).
    pub bits_per_second: u64,
    /// Bytes, at least [`LEAST_BURST`](RateLimit::LEAST_BURST).
    pub burst: u32,
}

impl RateLimit {
    /// Bits per second that a limit may have.
    pub const RATES: std::ops::RangeInclusive<u64> = 100_000..=100_000_000_000;

    /// Least burst in bytes: a frame of the usual largest size.
    pub const LEAST_BURST: u32 = 1600;

    /// The burst of a limit for which none is given: bytes of 10 ms. A thread that comes late by less loses
    /// nothing, and a second has a hundredth more at most.
    pub fn usual_burst(bits_per_second: u64) -> u32 {
        let bytes = bits_per_second / 8 / 100;
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .max(RateLimit::LEAST_BURST)
    }

    /// Whether rate and burst are within their bounds.
    pub fn is_valid(&self) -> bool {
        Self::RATES.contains(&self.bits_per_second) && self.burst >= Self::LEAST_BURST
    }
}

/// The bandwidths that a port may have, seen from the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRates {
    /// Of packets from the guest; beyond it, they stay in the guest's ring.
    pub from: Option<RateLimit>,
    /// Of packets to the guest; beyond it, they wait, and those for which there is no room are dropped.
    pub to: Option<RateLimit>,
}

impl PortRates {
    /// Whether both are within their bounds.
    pub fn are_valid(&self) -> bool {
        let mut limits = self.from.iter().chain(&self.to);
        limits.all(RateLimit::is_valid)
    }
}
