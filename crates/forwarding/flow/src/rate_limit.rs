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
    /// Of packets to the guest; beyond it, they wait.
    pub to: Option<RateLimit>,
    /// What the port gets of receivers whose bandwidth is bounded.
    pub share: Share,
}

impl PortRates {
    /// Whether all are within their bounds.
    pub fn are_valid(&self) -> bool {
        let mut limits = self.from.iter().chain(&self.to);
        limits.all(RateLimit::is_valid) && self.share.is_valid()
    }
}

/// A class of the packets to a port whose bandwidth is bounded. An edit says which packets are of it
/// ([`Edit::Class`](crate::Edit::Class)).
///
/// Classes that are below their least rate get the bandwidth first, then all of them, those of a higher
/// priority before others. Classes of one priority share in the ratio of their least rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateClass {
    /// 0 to [`MOST`](RateClass::MOST). Packets that are of no class, or one that the port has not, are of
    /// class 0.
    pub number: u8,
    /// 0 to [`HIGHEST`](RateClass::HIGHEST), which goes first.
    pub priority: u8,
    /// Bits per second, up to the largest of [`RATES`](RateLimit::RATES); 0: none.
    pub least_rate: u64,
    /// What the class gets at most; packets beyond it wait.
    pub most: Option<RateLimit>,
}

impl RateClass {
    /// The largest number.
    pub const MOST: u8 = 64;
    /// The priority that goes first.
    pub const HIGHEST: u8 = 7;
    /// Number of priorities.
    pub const PRIORITIES: usize = RateClass::HIGHEST as usize + 1;

    fn is_valid(&self) -> bool {
        self.number <= RateClass::MOST
            && self.priority <= RateClass::HIGHEST
            && self.least_rate <= *RateLimit::RATES.end()
            && self.most.is_none_or(|most| most.is_valid())
    }

    /// Whether a port may have these classes: each is within its bounds, and numbers ascend.
    pub fn are_valid(classes: &[RateClass]) -> bool {
        classes.iter().all(RateClass::is_valid) && classes.is_sorted_by(|a, b| a.number < b.number)
    }
}

/// What a sender gets of a receiver whose bandwidth is bounded, while others want it, too.
///
/// Packets of a higher priority go first. Senders of one priority share what is left: first those that have a
/// least rate get it, then the others in the ratio of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// 0 to [`HIGHEST`](Share::HIGHEST), which goes first.
    pub priority: u8,
    /// 1 to [`MOST_WEIGHT`](Share::MOST_WEIGHT). Without meaning beside a least rate.
    pub weight: u8,
    /// Bits per second, in units of [`UNIT`](Share::UNIT); 0: none.
    pub least_rate: u32,
}

impl Share {
    /// The priority that goes first.
    pub const HIGHEST: u8 = 7;
    /// The largest weight.
    pub const MOST_WEIGHT: u8 = 100;
    /// Unit of least rates, in bits per second.
    pub const UNIT: u64 = 100_000;
    /// The least rate that is too large.
    const RATES: u32 = 1 << 20;

    /// Whether all are within their bounds.
    pub fn is_valid(self) -> bool {
        self.priority <= Share::HIGHEST
            && (1..=Share::MOST_WEIGHT).contains(&self.weight)
            && self.least_rate < Share::RATES
    }

    /// One number for a valid share, 0 for the usual one.
    pub fn pack(self) -> u32 {
        self.least_rate << 12 | u32::from(self.priority) << 8 | (u32::from(self.weight).saturating_sub(1))
    }

    /// The share of such a number.
    pub fn unpack(packed: u32) -> Share {
        Share {
            priority: (packed >> 8 & 0xf) as u8,
            weight: (packed & 0xff) as u8 + 1,
            least_rate: packed >> 12,
        }
    }
}

impl Default for Share {
    /// What ports get for which nothing is said.
    fn default() -> Self {
        Share {
            priority: 0,
            weight: 1,
            least_rate: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_one_number() {
        assert_eq!(Share::default().pack(), 0);
        for (priority, weight, least_rate) in [(0, 1, 0), (7, 100, (1 << 20) - 1), (3, 17, 1000)] {
            let share = Share {
                priority,
                weight,
                least_rate,
            };
            assert!(share.is_valid());
            assert_eq!(Share::unpack(share.pack()), share);
        }
        for (priority, weight, least_rate) in [(8, 1, 0), (0, 0, 0), (0, 101, 0), (0, 1, 1 << 20)] {
            assert!(
                !Share {
                    priority,
                    weight,
                    least_rate
                }
                .is_valid()
            );
        }
    }
}
