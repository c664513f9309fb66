//! The length of a worker's breaks. A break begins when there is nothing left to do and ends when something comes, whether the
//! worker looks for work or sleeps meanwhile. The next packet is expected after the average of the last few breaks, which says whether it is worth while to
//! stay awake for it ([`placement::Policy::linger_for_ns`]).

/// The weight of the newest break is one of so many.
const WEIGHT: u64 = 8;

/// The longest time that a break counts for. A worker that was not needed for long recognises a fast stream within some ten
/// packets.
const LONGEST_NS: u64 = 250_000;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    average_ns: u64,
    since_ns: Option<u64>,
}

impl Breaks {
    /// Begins a break, as there is nothing to do; repeated calls change nothing.
    pub fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    /// The time since which there has been nothing to do.
    pub fn since_ns(&self) -> Option<u64> {
        self.since_ns
    }

    /// Ends the break: something has come.
    pub fn end(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.since_ns.take() {
            let length_ns = now_ns.saturating_sub(since_ns).min(LONGEST_NS);
            self.average_ns = (self.average_ns * (WEIGHT - 1) + length_ns) / WEIGHT;
        }
    }

    /// The time after which something is expected.
    pub fn expected_ns(&self) -> u64 {
        self.average_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The break that is expected after packets at this distance.
    fn after(breaks: &mut Breaks, distance_ns: u64, packets: u64) -> u64 {
        for number in 0..packets {
            breaks.begin(number * distance_ns);
            breaks.begin(number * distance_ns + distance_ns / 2);
            breaks.end((number + 1) * distance_ns);
        }
        breaks.expected_ns()
    }

    #[test]
    fn the_expectation_follows_the_rate() {
        let mut breaks = Breaks::default();
        assert!(after(&mut breaks, 10_000, 100) <= 10_000);
        assert!(after(&mut breaks, 100_000, 40) > 90_000);
        after(&mut breaks, 1_000_000_000, 100);
        assert!(after(&mut breaks, 10_000, 16) < 50_000, "it finds back");
    }

    #[test]
    fn work_without_a_break_says_nothing() {
        let mut breaks = Breaks::default();
        after(&mut breaks, 20_000, 50);
        let before = breaks.expected_ns();
        breaks.end(u64::MAX);
        assert_eq!(breaks.expected_ns(), before);
    }
}
