//! How long to wait before starting a child again.
//!
//! A child that died once should be back soon: while the control process is gone, misses queue. Starting a
//! child that dies at once every time must not keep a core busy. So the wait doubles with each death from
//! [`MANY`] deaths within [`MEMORY`] on, up to a limit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The wait that is doubled.
pub const FIRST: Duration = Duration::from_millis(100);

/// Longest wait.
pub const LONGEST: Duration = Duration::from_secs(5);

/// Deaths from which on waits double.
pub const MANY: usize = 5;

/// How long a death counts.
pub const MEMORY: Duration = Duration::from_secs(60);

/// The waits of one child.
#[derive(Debug)]
pub struct Backoff {
    /// The wait as long as there were few deaths.
    first: Duration,
    deaths: VecDeque<Instant>,
}

impl Backoff {
    /// Before the first death.
    pub fn new(first: Duration) -> Self {
        Backoff {
            first,
            deaths: VecDeque::new(),
        }
    }

    /// The child has died: how long to wait now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let counts = |death: &Instant| now.saturating_duration_since(*death) < MEMORY;
        self.deaths.push_back(now);
        while self.deaths.front().is_some_and(|death| !counts(death)) {
            self.deaths.pop_front();
        }
        match self.deaths.len().checked_sub(MANY) {
            None => self.first,
            Some(more) => (0..=more).fold(FIRST, |wait, _| (wait * 2).min(LONGEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut Backoff, start: Instant, times: u32) -> Vec<u128> {
        (0..times).map(|_| backoff.wait(start).as_millis()).collect()
    }

    #[test]
    fn doubles_from_the_fifth_death_in_a_minute_on_up_to_a_limit() {
        let start = Instant::now();
        let mut backoff = Backoff::new(FIRST);
        let doubling = [100, 100, 100, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
        assert_eq!(waits(&mut backoff, start, 11), doubling);
        assert_eq!(backoff.wait(start + MEMORY - Duration::from_millis(1)), LONGEST);
        assert_eq!(backoff.wait(start + MEMORY), FIRST);
        let mut forwarder = Backoff::new(Duration::ZERO);
        assert_eq!(waits(&mut forwarder, start, 6), [0, 0, 0, 0, 200, 400]);
    }

    #[test]
    fn deaths_that_are_rare_do_not_add_up() {
        let mut now = Instant::now();
        let mut backoff = Backoff::new(FIRST);
        for _ in 0..20 {
            assert_eq!(backoff.wait(now), FIRST);
            now += Duration::from_secs(15);
        }
    }

    #[test]
    fn a_storm_is_bounded() {
        for first in [FIRST, Duration::ZERO] {
            let mut backoff = Backoff::new(first);
            let start = Instant::now();
            let (mut passed, mut starts) = (Duration::ZERO, 0);
            while passed < Duration::from_secs(60) {
                passed += backoff.wait(start + passed);
                starts += 1;
            }
            assert!(starts <= 22, "{starts} starts in a minute");
        }
    }
}
