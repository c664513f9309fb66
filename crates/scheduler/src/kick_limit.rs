//! Kicks that lead to nothing, and a guest that goes on with them.
//!
//! A kick wakes a worker before anybody can know whether there is something in the ring. A guest that kicks without end takes the
//! worker's time in the raised class from its neighbours, for as little as a write to an eventfd. So each vNIC may kick
//! [`BURST`] times in vain, and once per [`PERIOD_NS`] from then on. Kicks of a ring that exceeds this are not received for
//! [`PAUSE_NS`], after which the ring is served once, whatever its guest did.
//!
//! A kick is in vain if nothing was moved when its ring was served next. A driver that obeys the ring's notification suppression
//! kicks in vain now and then, when a worker that polls is faster than the kick; it does not come near the limit.

use crate::ring_id::RingId;

/// Kicks in vain at once.
const BURST: u64 = 64;

/// The time after which there may be one more, in nanoseconds.
const PERIOD_NS: u64 = 4_000_000;

/// How long a ring's kicks are not received, in nanoseconds.
pub(crate) const PAUSE_NS: u64 = 1_000_000;

/// A token bucket, as the generic cell rate algorithm keeps it. Times are in nanoseconds of any one clock.
#[derive(Debug, Default)]
pub(crate) struct KickLimit {
    /// When the bucket will be full again.
    full_ns: u64,
}

impl KickLimit {
    /// A kick was in vain; true if it exceeds the limit.
    pub fn exceeds(&mut self, now_ns: u64) -> bool {
        let full_ns = self.full_ns.max(now_ns) + PERIOD_NS;
        let exceeds = full_ns > now_ns + BURST * PERIOD_NS;
        if !exceeds {
            self.full_ns = full_ns;
        }
        exceeds
    }
}

/// Rings of one thread that were kicked and have not been served since, and rings whose kicks are to be received again.
#[derive(Debug, Default)]
pub(crate) struct Kicked {
    pending: Vec<RingId>,
    pub resumed: Vec<RingId>,
}

impl Kicked {
    /// A ring was kicked.
    pub fn add(&mut self, ring: RingId) {
        if !self.pending.contains(&ring) {
            self.pending.push(ring);
        }
    }

    /// The ring is served; whether it was kicked since it was served last.
    #[inline]
    pub fn take(&mut self, ring: RingId) -> bool {
        let at = self.pending.iter().position(|kicked| *kicked == ring);
        at.map(|at| self.pending.swap_remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_per_period() {
        let mut limit = KickLimit::default();
        let start_ns = 1_000_000_000;
        let within = |limit: &mut KickLimit, now_ns| (0..1000).filter(|_| !limit.exceeds(now_ns)).count();
        assert_eq!(within(&mut limit, start_ns), BURST as usize);
        assert_eq!(within(&mut limit, start_ns + PERIOD_NS - 1), 0);
        assert_eq!(within(&mut limit, start_ns + PERIOD_NS), 1);
        assert_eq!(within(&mut limit, start_ns + 11 * PERIOD_NS), 10);
        assert_eq!(
            within(&mut limit, start_ns + 1000 * PERIOD_NS),
            BURST as usize,
            "a full bucket"
        );
    }
}
