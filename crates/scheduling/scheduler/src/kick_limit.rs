//! Kicks that lead to nothing, and a guest that goes on with them.
//!
//! A kick wakes a worker before anybody can know whether there is something in the ring. A guest that kicks
//! without end takes the worker's time in the raised class from its neighbours, for as little as a write to
//! an eventfd. So a ring may be kicked [`BURST`] times in vain, and once per [`PERIOD_NS`] from then on.
//! Kicks beyond that are not received for [`PAUSE_NS`], after which the ring is served once, whatever its
//! guest did.
//!
//! A kick was in vain if no packet has gone through the ring when the next one is received. A driver kicks
//! for packets and buffers that it has added. At times a worker that polls is faster than the kick, but it
//! has found something then. The safe direction of error is to receive a kick.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Kicks in vain at once.
const BURST: u64 = 64;

/// The time after which there may be one more, in nanoseconds.
const PERIOD_NS: u64 = 4_000_000;

/// How long a ring's kicks are not received, in nanoseconds.
pub(crate) const PAUSE_NS: u64 = 1_000_000;

/// No number of packets.
const UNKNOWN: u64 = u64::MAX;

/// The kicks of one ring. Times are in nanoseconds of any one clock. Threads that receive kicks of the ring
/// at the same time may count one less.
#[derive(Debug)]
pub(crate) struct KickLimit {
    /// Packets that had gone through the ring at the last kick.
    packets: AtomicU64,
    /// When the token bucket will be full again (generic cell rate algorithm).
    full_ns: AtomicU64,
}

impl Default for KickLimit {
    fn default() -> Self {
        KickLimit {
            packets: AtomicU64::new(UNKNOWN),
            full_ns: AtomicU64::new(0),
        }
    }
}

impl KickLimit {
    /// A kick was received, when so many packets had gone through the ring; true if too many were in vain.
    pub fn count_kick(&self, packets: u64, now_ns: impl FnOnce() -> u64) -> bool {
        self.packets.swap(packets, Relaxed) == packets && self.charge(now_ns())
    }

    /// The next kick is not in vain, whatever comes of it.
    pub fn forgive(&self) {
        self.packets.store(UNKNOWN, Relaxed);
    }

    fn charge(&self, now_ns: u64) -> bool {
        let full_ns = self.full_ns.load(Relaxed).max(now_ns) + PERIOD_NS;
        let exceeds = full_ns > now_ns + BURST * PERIOD_NS;
        if !exceeds {
            self.full_ns.store(full_ns, Relaxed);
        }
        exceeds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000_000;

    /// Of 1000 kicks in vain, those within the limit.
    fn within(limit: &KickLimit, now_ns: u64) -> u64 {
        (0..1000)
            .map(|_| u64::from(!limit.count_kick(7, || now_ns)))
            .sum()
    }

    #[test]
    fn a_burst_and_then_one_per_period() {
        let limit = KickLimit::default();
        assert_eq!(
            within(&limit, START_NS),
            1 + BURST,
            "nothing is known of the first"
        );
        assert_eq!(within(&limit, START_NS + PERIOD_NS - 1), 0);
        assert_eq!(within(&limit, START_NS + PERIOD_NS), 1);
        assert_eq!(within(&limit, START_NS + 11 * PERIOD_NS), 10);
        assert_eq!(
            within(&limit, START_NS + 1000 * PERIOD_NS),
            BURST,
            "a full bucket"
        );
    }

    #[test]
    fn kicks_between_which_packets_came_do_not_count() {
        let limit = KickLimit::default();
        assert!((0..1000).all(|packets| !limit.count_kick(packets, || START_NS)));
        assert_eq!(within(&limit, START_NS), 1 + BURST);
        assert!(!limit.count_kick(8, || START_NS) && limit.count_kick(8, || START_NS));
        limit.forgive();
        assert!(!limit.count_kick(8, || START_NS) && limit.count_kick(8, || START_NS));
    }
}
