//! Limits on how often one place in the source may log.
//!
//! A window of fixed length opens with the first line; a burst passes, further lines are counted, and the
//! first line after the window reports the count. Where each port has a limit of its own, a window that
//! follows close upon another one is twice as long, and one line passes in it: what a port repeats for hours
//! is told about every hour, and hundreds of such ports hide no other lines. All state is one atomic word, so
//! that a limit can be a `static` and be used from the packet path without a lock.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bits of the word that count lines.
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Bits above that say how often the window was doubled; the others hold its start in milliseconds (34
/// years).
const GROWTH_BITS: u32 = 4;
const GROWTH_MASK: u64 = (1 << GROWTH_BITS) - 1;

/// A window is doubled so often at most: 43 minutes.
const GROWTH_MAX: u64 = 9;

/// Limits how often a line is logged. Usable as a `static`.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// Start of the window, its growth, and lines wanted in it, packed.
    state: AtomicU64,
}

/// What to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Log it, and how many lines were left out before it (at most 2^20 are counted).
    Say {
        /// Lines suppressed in the window before this one.
        suppressed: u64,
    },
    /// Do not log it.
    Suppress,
}

impl RateLimit {
    /// Lines that pass per window.
    pub const BURST: u64 = 5;

    /// Length of a window in milliseconds.
    pub const INTERVAL_MS: u64 = 5000;

    /// A limit that has counted no lines.
    pub const fn new() -> Self {
        RateLimit {
            state: AtomicU64::new(0),
        }
    }

    /// Asks for one line at `now_ms`, milliseconds on any clock that does not run backwards. A reading that
    /// is a little older than another thread's counts in that thread's window.
    pub fn check(&self, now_ms: u64) -> Verdict {
        self.ask(now_ms, 0)
    }

    /// As [`check`](Self::check), with windows that grow while lines go on coming.
    pub fn check_growing(&self, now_ms: u64) -> Verdict {
        self.ask(now_ms, GROWTH_MAX)
    }

    fn ask(&self, now_ms: u64, most_growth: u64) -> Verdict {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (start, count) = (state >> (COUNT_BITS + GROWTH_BITS), state & COUNT_MAX);
            let growth = state >> COUNT_BITS & GROWTH_MASK;
            let passing = if growth == 0 { Self::BURST } else { 1 };
            let (length, elapsed) = (Self::INTERVAL_MS << growth, now_ms.saturating_sub(start));
            let opens = count == 0 || elapsed >= length;
            let next = if opens {
                let goes_on = count > 0 && elapsed < 2 * length;
                let growth = if goes_on { (growth + 1).min(most_growth) } else { 0 };
                pack(now_ms, growth, 1)
            } else {
                pack(start, growth, (count + 1).min(COUNT_MAX))
            };
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) if opens => {
                    return Verdict::Say {
                        suppressed: count.saturating_sub(passing),
                    };
                }
                Ok(_) if count < passing => return Verdict::Say { suppressed: 0 },
                Ok(_) => return Verdict::Suppress,
                Err(actual) => state = actual,
            }
        }
    }
}

fn pack(start_ms: u64, growth: u64, count: u64) -> u64 {
    start_ms << (COUNT_BITS + GROWTH_BITS) | growth << COUNT_BITS | count
}

/// One limit per port. Usable as a `static`: 32 KB that cost nothing until they are written.
#[derive(Debug)]
pub struct PortLimits([RateLimit; PortLimits::PORTS]);

impl PortLimits {
    /// Ports that have a limit of their own; numbers beyond share them.
    pub const PORTS: usize = 4096;

    /// Limits that have counted no lines.
    pub const fn new() -> Self {
        PortLimits([const { RateLimit::new() }; PortLimits::PORTS])
    }

    /// The limit of a port.
    pub fn of(&self, port: u32) -> &RateLimit {
        &self.0[port as usize % Self::PORTS]
    }
}

impl Default for PortLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// The function behind [`limited!`](crate::limited), with the limit of the call site. Reads the monotonic
/// clock.
pub fn log_limited(limit: &RateLimit, level: log::Level, target: &str, message: fmt::Arguments<'_>) {
    say(limit.check(now_ms()), level, target, message);
}

/// The function behind [`limited_by!`](crate::limited_by), with the limit of call site and port.
pub fn log_limited_by(limit: &RateLimit, level: log::Level, target: &str, message: fmt::Arguments<'_>) {
    say(limit.check_growing(now_ms()), level, target, message);
}

fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn say(verdict: Verdict, level: log::Level, target: &str, message: fmt::Arguments<'_>) {
    match verdict {
        Verdict::Say { suppressed: 0 } => log::log!(target: target, level, "{message}"),
        Verdict::Say { suppressed } => {
            log::log!(target: target, level, "{message} ({suppressed} similar messages suppressed)");
        }
        Verdict::Suppress => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_silence_then_the_count() {
        let limit = RateLimit::new();
        for _ in 0..RateLimit::BURST {
            assert_eq!(limit.check(1000), Verdict::Say { suppressed: 0 });
        }
        for _ in 0..7 {
            assert_eq!(limit.check(1000 + RateLimit::INTERVAL_MS - 1), Verdict::Suppress);
        }
        assert_eq!(
            limit.check(1000 + RateLimit::INTERVAL_MS),
            Verdict::Say { suppressed: 7 }
        );
        assert_eq!(
            limit.check(1000 + RateLimit::INTERVAL_MS),
            Verdict::Say { suppressed: 0 }
        );
        assert_eq!(
            limit.check(1_000_000),
            Verdict::Say { suppressed: 0 },
            "nothing was lost in that window"
        );
    }

    #[test]
    fn what_a_port_repeats_for_hours_is_told_less_and_less_often() {
        let limit = RateLimit::new();
        let said = |from_ms: u64, to_ms: u64| {
            let times = (from_ms..to_ms).step_by(500);
            times
                .filter(|now_ms| limit.check_growing(*now_ms) != Verdict::Suppress)
                .count()
        };
        let minute_ms = 60_000;
        assert!(said(0, minute_ms) <= 9);
        said(minute_ms, 120 * minute_ms);
        let day = said(120 * minute_ms, 1_560 * minute_ms);
        assert!((24..40).contains(&day), "{day} lines in a day");
        // After a long silence it may say more again.
        let later_ms = 10_000 * minute_ms;
        assert_eq!(said(later_ms, later_ms + 5_000), 5);
    }

    #[test]
    fn a_port_that_says_much_silences_no_other() {
        static LIMITS: PortLimits = PortLimits::new();
        for _ in 0..1000 {
            LIMITS.of(7).check(1000);
        }
        assert_eq!(LIMITS.of(7).check(1000), Verdict::Suppress);
        for port in (0..4096).filter(|port| *port != 7) {
            assert_eq!(LIMITS.of(port).check(1000), Verdict::Say { suppressed: 0 });
        }
        // Numbers beyond the last limit share the limits.
        assert_eq!(LIMITS.of(7 + 4096).check(1000), Verdict::Suppress);
    }

    #[test]
    fn an_older_clock_reading_does_not_open_a_window() {
        let limit = RateLimit::new();
        for _ in 0..RateLimit::BURST {
            limit.check(10_000);
        }
        assert_eq!(limit.check(9_999), Verdict::Suppress);
    }

    #[test]
    fn the_count_saturates() {
        let limit = RateLimit {
            state: AtomicU64::new(pack(0, 0, COUNT_MAX)),
        };
        assert_eq!(limit.check(0), Verdict::Suppress);
        let suppressed = COUNT_MAX - RateLimit::BURST;
        assert_eq!(limit.check(RateLimit::INTERVAL_MS), Verdict::Say { suppressed });
    }

    #[test]
    fn threads_together_get_one_burst() {
        let limit = RateLimit::new();
        let said: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..10_000)
                            .filter(|_| limit.check(1) != Verdict::Suppress)
                            .count()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap() as u64)
                .sum()
        });
        assert_eq!(said, RateLimit::BURST);
        let suppressed = 40_000 - RateLimit::BURST;
        assert_eq!(
            limit.check(RateLimit::INTERVAL_MS + 1),
            Verdict::Say { suppressed }
        );
    }
}
