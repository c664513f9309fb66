//! Exponential back-off of a method that may fail. After a failure the method is not tried for a while, which
//! doubles with each failure. So fruitless trials take a bounded, small part of all time, and a method that
//! has become right is found out again.

/// The longest pause between trials, as a multiple of the first one.
const MOST: u64 = 64;

/// See the module's description. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub(crate) struct Backoff {
    first_ns: u64,
    /// The time of the last failure, and the time for which the method is not tried from then on.
    failed_ns: Option<u64>,
    pause_ns: u64,
}

impl Backoff {
    /// A method that is not repeated for `first_ns` at first.
    pub const fn new(first_ns: u64) -> Backoff {
        Backoff {
            first_ns,
            failed_ns: None,
            pause_ns: first_ns,
        }
    }

    /// Whether the method may be tried.
    pub fn may(&self, now_ns: u64) -> bool {
        self.failed_ns
            .is_none_or(|failed_ns| now_ns >= failed_ns + self.pause_ns)
    }

    /// Notes a failure.
    pub fn failed(&mut self, now_ns: u64) {
        let again = self.failed_ns.replace(now_ns).is_some();
        self.pause_ns = if again {
            (self.pause_ns * 2).min(MOST * self.first_ns)
        } else {
            self.first_ns
        };
    }

    /// Notes a success. A failure is forgotten after successes for as long as the pause that it caused.
    pub fn succeeded(&mut self, now_ns: u64) {
        if (self.failed_ns).is_some_and(|failed_ns| now_ns >= failed_ns + 2 * self.pause_ns) {
            self.failed_ns = None;
        }
    }

    /// Whether the last failure was less than `ns` ago.
    pub fn failed_within(&self, now_ns: u64, ns: u64) -> bool {
        self.failed_ns.is_some_and(|failed_ns| now_ns < failed_ns + ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_forgotten() {
        let mut backoff = Backoff::new(10);
        assert!(backoff.may(0) && !backoff.failed_within(0, 5));
        let (mut now_ns, mut pauses) = (100, Vec::new());
        for _ in 0..9 {
            backoff.failed(now_ns);
            let pause = (0..).find(|ns| backoff.may(now_ns + ns)).unwrap();
            pauses.push(pause);
            now_ns += pause;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 640, 640]);
        backoff.succeeded(now_ns);
        assert!(backoff.failed_within(now_ns, 641) && !backoff.failed_within(now_ns, 640));
        backoff.succeeded(now_ns + 640);
        assert!(!backoff.failed_within(now_ns + 640, u64::MAX / 2));
        backoff.failed(now_ns + 640);
        assert!(backoff.may(now_ns + 650), "as at first");
    }
}
