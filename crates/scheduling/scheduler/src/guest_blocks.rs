//! Whether a port's guest blocks soon after it kicked, so that waiting for that is worth while.
//!
//! A worker that waits until its core is free cannot end the wait by itself. So it learns: the time that it
//! waited is published ([`vm_state::VmState::waited_ns`]), and divided by the number of packets that it found
//! then. If a guest blocks soon, or goes on sending, that is at most [`BOUND_NS`] per packet. The packets of
//! a guest that computes instead are fetched at once, for a while. Each port has a state of its own;
//! [`Backoff`] has the times after which waiting is tried again.

use crate::backoff::Backoff;

/// Longest time that a worker waits, on average, for each packet that it finds then.
const BOUND_NS: u64 = 50_000;

/// Longest time that a wait counts for, lest a single wait outweigh all short ones.
const LONGEST_NS: u64 = 2 * BOUND_NS;

/// The weight of the newest wait is one of so many.
const WEIGHT: u64 = 8;

/// Time for which a guest that does not block is not waited for, at first.
const FIRST_NS: u64 = 20_000_000;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct GuestBlocks {
    /// Time waited per packet, a moving average.
    average_ns: u64,
    backoff: Backoff,
}

impl Default for GuestBlocks {
    fn default() -> Self {
        GuestBlocks {
            average_ns: 0,
            backoff: Backoff::new(FIRST_NS),
        }
    }
}

impl GuestBlocks {
    /// Notes how long a worker waited for each packet that it found then.
    pub fn note(&mut self, now_ns: u64, per_packet_ns: u64) {
        let newest = per_packet_ns.min(LONGEST_NS);
        self.average_ns = (self.average_ns * (WEIGHT - 1) + newest) / WEIGHT;
        if self.average_ns > BOUND_NS {
            self.backoff.failed(now_ns);
            self.average_ns = 0;
        } else {
            self.backoff.succeeded(now_ns);
        }
    }

    /// Whether waiting is worth while.
    pub fn may(&self, now_ns: u64) -> bool {
        self.backoff.may(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `times` kicks are waited for, if each wait takes `wait_ns` and the guest kicks every
    /// millisecond.
    fn waited_for(
        waits: &mut GuestBlocks,
        now_ns: &mut u64,
        times: usize,
        wait_ns: impl Fn(usize) -> u64,
    ) -> usize {
        let mut count = 0;
        for number in 0..times {
            *now_ns += 1_000_000;
            if waits.may(*now_ns) {
                count += 1;
                waits.note(*now_ns, wait_ns(number));
            }
        }
        count
    }

    #[test]
    fn who_blocks_within_the_bound_is_always_waited_for() {
        let (mut waits, mut now_ns) = (GuestBlocks::default(), 0);
        assert_eq!(waited_for(&mut waits, &mut now_ns, 1000, |_| BOUND_NS), 1000);
        // Now and then something comes between.
        let mut waits = GuestBlocks::default();
        let seldom = |number: usize| {
            if number.is_multiple_of(10) {
                4_000_000
            } else {
                10_000
            }
        };
        assert_eq!(waited_for(&mut waits, &mut now_ns, 1000, seldom), 1000);
    }

    #[test]
    fn who_computes_is_hardly_waited_for_and_forgiven() {
        let (mut waits, mut now_ns) = (GuestBlocks::default(), 0);
        let count = waited_for(&mut waits, &mut now_ns, 10_000, |_| 300_000);
        assert!((10..150).contains(&count), "{count} of 10000");
        let count = waited_for(&mut waits, &mut now_ns, 10_000, |_| 20_000);
        assert!(count > 8_000, "{count} of 10000");
        assert!(!waits.backoff.failed_within(now_ns, u64::MAX / 2));
    }
}
