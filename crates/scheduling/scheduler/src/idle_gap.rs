//! Gaps in a worker's work. A gap begins when there is nothing left to do and ends when something comes,
//! whether the worker looks for work or sleeps meanwhile. The next packet is expected after the average of
//! the last few gaps, which says whether it is worth while to stay awake for it
//! ([`placement::Policy::linger_for_ns`]).

/// The weight of the newest gap is one of so many.
const WEIGHT: u64 = 8;

/// The longest time that a gap counts for. A worker that was not needed for long recognises a fast stream
/// within some ten packets.
const LONGEST_NS: u64 = 250_000;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct IdleGap {
    average_ns: u64,
    since_ns: Option<u64>,
    /// The length from which on a gap is long, and the end of the last long one.
    long_ns: u64,
    long_until_ns: u64,
}

impl IdleGap {
    /// Gaps of which those of more than `long_ns` are long.
    pub fn new(long_ns: u64) -> IdleGap {
        IdleGap {
            average_ns: 0,
            since_ns: None,
            long_ns,
            long_until_ns: 0,
        }
    }

    /// Begins a gap, as there is nothing to do; repeated calls change nothing.
    pub fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// The time since which there has been nothing to do.
    pub fn since_ns(&self) -> Option<u64> {
        self.since_ns
    }

    /// Ends the gap: something has come.
    pub fn end(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.since_ns.take() {
            let length_ns = now_ns.saturating_sub(since_ns);
            if length_ns > self.long_ns {
                self.long_until_ns = now_ns;
            }
            let length_ns = length_ns.min(LONGEST_NS);
            self.average_ns = (self.average_ns * (WEIGHT - 1) + length_ns) / WEIGHT;
        }
    }

    /// Something has come before a gap began.
    #[inline]
    pub fn skip(&mut self) {
        self.average_ns = self.average_ns * (WEIGHT - 1) / WEIGHT;
    }

    /// The time after which something is expected.
    pub fn expected_ns(&self) -> u64 {
        self.average_ns
    }

    /// Expects something at once, whatever the last gaps were.
    pub fn forget(&mut self) {
        self.average_ns = 0;
    }

    /// When the last long gap ended; 0 if there was none.
    pub fn long_until_ns(&self) -> u64 {
        self.long_until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_NS: u64 = 50_000;

    /// The gap that is expected after packets at this distance.
    fn after(gaps: &mut IdleGap, distance_ns: u64, packets: u64) -> u64 {
        for number in 0..packets {
            gaps.begin(number * distance_ns);
            gaps.begin(number * distance_ns + distance_ns / 2);
            gaps.end((number + 1) * distance_ns);
        }
        gaps.expected_ns()
    }

    #[test]
    fn the_expectation_follows_the_rate() {
        let mut gaps = IdleGap::new(LONG_NS);
        assert!(after(&mut gaps, 10_000, 100) <= 10_000);
        assert!(after(&mut gaps, 100_000, 40) > 90_000);
        after(&mut gaps, 1_000_000_000, 100);
        assert!(after(&mut gaps, 10_000, 16) < 50_000, "it finds back");
    }

    #[test]
    fn a_worker_that_is_handed_a_ring_forgets_that_it_was_not_needed() {
        let mut gaps = IdleGap::new(LONG_NS);
        after(&mut gaps, 1_000_000_000, 100);
        gaps.forget();
        assert_eq!(gaps.expected_ns(), 0);
        assert!(after(&mut gaps, 1_000_000_000, 4) > 75_000, "but not for long");
    }

    #[test]
    fn the_last_long_break_is_known() {
        let mut gaps = IdleGap::new(LONG_NS);
        after(&mut gaps, LONG_NS, 10);
        assert_eq!(gaps.long_until_ns(), 0);
        after(&mut gaps, LONG_NS + 1, 10);
        assert_eq!(gaps.long_until_ns(), 10 * (LONG_NS + 1));
        gaps.begin(20 * LONG_NS);
        gaps.end(21 * LONG_NS);
        assert_eq!(gaps.long_until_ns(), 10 * (LONG_NS + 1));
    }

    #[test]
    fn a_break_that_does_not_begin_counts_as_one_that_ends_at_once() {
        let [mut skipped, mut short] = [(); 2].map(|()| IdleGap::new(LONG_NS));
        for gaps in [&mut skipped, &mut short] {
            after(gaps, 200_000, 10);
        }
        for _ in 0..4 {
            skipped.skip();
            short.begin(7);
            short.end(7);
            assert_eq!(skipped.expected_ns(), short.expected_ns());
        }
        assert!(skipped.expected_ns() < 100_000, "it polls again");
    }

    #[test]
    fn work_without_a_break_says_nothing() {
        let mut gaps = IdleGap::new(LONG_NS);
        after(&mut gaps, 20_000, 50);
        let before = gaps.expected_ns();
        gaps.end(u64::MAX);
        assert_eq!(gaps.expected_ns(), before);
    }
}
