//! How long to wait before starting a child again.
//!
//! A child that died once should be back soon: while the control process is gone, misses queue. Starting a
//! child that dies at once every time must not keep a core busy. So the wait doubles with each death up to a
//! limit, and begins anew when the child has lived long enough.

use std::time::Duration;

/// First wait.
pub const FIRST: Duration = Duration::from_millis(100);

/// Longest wait.
pub const LONGEST: Duration = Duration::from_secs(5);

/// A life of this length makes the next wait the first again.
pub const PROVEN: Duration = Duration::from_secs(10);

/// The waits of one child.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    /// Before the first death.
    pub fn new() -> Self {
        Backoff { next: FIRST }
    }

    /// The child died after living this long: how long to wait now.
    pub fn wait(&mut self, lived: Duration) -> Duration {
        if lived >= PROVEN {
            self.next = FIRST;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_limit_and_starts_over_after_a_long_life() {
        let mut backoff = Backoff::new();
        let waits: Vec<u128> = (0..8).map(|_| backoff.wait(Duration::ZERO).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.wait(PROVEN - Duration::from_millis(1)), LONGEST);
        assert_eq!(backoff.wait(PROVEN), FIRST);
        assert_eq!(backoff.wait(Duration::ZERO), FIRST * 2);
    }

    #[test]
    fn a_storm_is_bounded() {
        let mut backoff = Backoff::new();
        let mut now = Duration::ZERO;
        let mut starts = 0;
        while now < Duration::from_secs(60) {
            now += backoff.wait(Duration::ZERO);
            starts += 1;
        }
        assert!(starts <= 18, "{starts} starts in a minute");
    }
}
