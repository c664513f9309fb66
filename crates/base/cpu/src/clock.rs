//! Clocks for what happens too often for the system's: the processor's cycle counter, and the time of the
//! kernel's last timer tick ([`tick_ms`]).
//!
//! The counter counts at a constant rate, which is not the core's momentary frequency ([`Rate`] finds it),
//! goes on while the core sleeps, and agrees between cores to within what it takes to move from one to
//! another: that is so for the invariant TSC of x86-64 processors since 2008 and for the generic timer of all
//! AArch64 ones. Reading it is a single instruction of about 20 cycles, no system call, and does not wait for
//! instructions before it: differences below a hundred cycles mean nothing.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter now. Differences are to be taken with `wrapping_sub`; after a migration between cores, one may
/// be slightly negative.
#[inline]
#[must_use]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has RDTSC, and Linux forbids it only to those who ask (PR_SET_TSC).
    let cycles = unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    let cycles = {
        let cycles: u64;
        // SAFETY: Linux lets programs read the virtual counter; the instruction touches nothing but its
        // target.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) cycles, options(nomem, nostack)) };
        cycles
    };
    cycles
}

/// Milliseconds of the system's monotonic clock as of the last timer tick, 1 to 10 ms ago: a load from
/// memory, no reading of a clock.
#[inline]
#[must_use]
pub fn tick_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for writing. The clock exists since Linux 2.6.32; without it, `now` stays as it
    // is.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    (now.tv_sec * 1000 + now.tv_nsec / 1_000_000).cast_unsigned()
}

/// Processor time of the calling thread in nanoseconds: what it spent in system calls is in it, the time
/// without a core is not. A system call.
#[must_use]
pub fn processor_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for writing. The clock exists since Linux 2.6.12; without it, `now` stays as it
    // is.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned()
}

/// How long [`cycles_per_us`] looks when it is asked for the first time, and how often.
const CALIBRATION: (Duration, usize) = (Duration::from_micros(200), 3);

/// How many cycles the counter counts in a microsecond, at least 1. The first call finds out, which takes
/// less than a millisecond of the processor's time; a process has its first one before it forwards.
#[must_use]
pub fn cycles_per_us() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    let rate = *RATE.get_or_init(calibrate);
    #[cfg(feature = "assume")]
    let rate = rate.max(ASSUMED.load(std::sync::atomic::Ordering::Relaxed));
    rate
}

/// Bits of a fraction: so a year by multiplication differs from one by division by less than a millisecond.
const FRACTION: u32 = 40;

/// Nanoseconds in a cycle, in units of a [`FRACTION`]: a division takes tens of cycles.
#[inline]
fn ns_per_cycle() -> u64 {
    let of = |rate: u64| (1000 << FRACTION) / rate;
    #[cfg(feature = "assume")]
    let found = of(cycles_per_us());
    #[cfg(not(feature = "assume"))]
    let found = {
        static FOUND: OnceLock<u64> = OnceLock::new();
        *FOUND.get_or_init(|| of(cycles_per_us()))
    };
    found
}

fn calibrate() -> u64 {
    // A thread that loses its core between two readings finds too low a rate, never too high a one.
    let one = |_| {
        let rate = Rate::begin();
        while rate.start.elapsed() < CALIBRATION.0 {
            std::hint::spin_loop();
        }
        rate.per_second()
    };
    let best = (0..CALIBRATION.1).map(one).max().unwrap_or(0);
    (best / 1_000_000).max(1)
}

#[cfg(feature = "assume")]
static ASSUMED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Assumes a higher rate from now on: time by the counter passes more slowly, as it should under a tool that
/// slows the program down.
#[cfg(feature = "assume")]
pub fn assume_cycles_per_us(rate: u64) {
    ASSUMED.store(rate, std::sync::atomic::Ordering::Relaxed);
}

/// Microseconds by the counter, from some time on. Cores may disagree about less than one.
#[inline]
#[must_use]
pub fn now_us() -> u64 {
    cycles() / cycles_per_us()
}

/// Nanoseconds by the counter, from some time on, to within two cycles per microsecond.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    ((u128::from(cycles()) * u128::from(ns_per_cycle())) >> FRACTION) as u64
}

/// When a turn is to end, by the counter: asking whether it has passed costs as much as reading that.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(u64);

impl Deadline {
    /// So many microseconds from now on.
    #[inline]
    #[must_use]
    pub fn after_us(us: u64) -> Deadline {
        Deadline(cycles().wrapping_add(us.saturating_mul(cycles_per_us())))
    }

    /// Whether that time has come.
    #[inline]
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.had_passed_at(cycles())
    }

    /// Whether that time had come when the counter was read last, as `cycles`.
    #[inline]
    #[must_use]
    pub fn had_passed_at(self, cycles: u64) -> bool {
        cycles.wrapping_sub(self.0).cast_signed() >= 0
    }

    /// For how many microseconds it has passed.
    #[must_use]
    pub fn late_us(self) -> u64 {
        let late = cycles().wrapping_sub(self.0).cast_signed().max(0);
        late.cast_unsigned() / cycles_per_us()
    }
}

/// Finds out how fast the counter counts, by the system clock, without waiting: the longer ago it was begun,
/// the more exact the answer (after a millisecond, to about one in a thousand).
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    start: Instant,
    cycles: u64,
}

impl Rate {
    /// Begins.
    #[must_use]
    pub fn begin() -> Rate {
        Rate {
            start: Instant::now(),
            cycles: cycles(),
        }
    }

    /// Cycles per second since [`begin`](Self::begin).
    #[must_use]
    pub fn per_second(&self) -> u64 {
        let counted = u128::from(cycles().wrapping_sub(self.cycles));
        let nanoseconds = self.start.elapsed().as_nanos().max(1);
        u64::try_from(counted * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The best of several attempts: a thread may lose its core between two readings.
    #[track_caller]
    fn at_last(mut attempt: impl FnMut() -> Result<(), String>) {
        let results: Vec<_> = (0..10).map(|_| attempt()).take_while(Result::is_err).collect();
        assert!(results.len() < 10, "{results:?}");
    }

    #[test]
    fn counts_at_a_constant_rate() {
        at_last(|| {
            let rate = Rate::begin();
            std::thread::sleep(Duration::from_millis(20));
            let first = rate.per_second();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {}
            let second = rate.per_second();
            assert!(first > 1_000_000, "{first} per second");
            let is_constant = first.abs_diff(second) < first / 100;
            is_constant
                .then_some(())
                .ok_or_else(|| format!("asleep {first}, awake {second}"))
        });
    }

    #[test]
    fn ticks_keep_up_with_the_system_s_clock() {
        at_last(|| {
            let (start, ticks) = (Instant::now(), tick_ms());
            std::thread::sleep(Duration::from_millis(50));
            let (passed, ticked) = (start.elapsed().as_millis() as u64, tick_ms() - ticks);
            let keeps_up = passed.abs_diff(ticked) <= 12;
            keeps_up
                .then_some(())
                .ok_or_else(|| format!("{passed} ms passed, {ticked} were counted"))
        });
    }

    #[test]
    fn deadlines_pass() {
        assert!(Deadline::after_us(0).has_passed());
        assert!(!Deadline::after_us(3_600_000_000).has_passed());
        let (start, begin_us) = (Instant::now(), now_us());
        let deadline = Deadline::after_us(20_000);
        while !deadline.has_passed() {}
        let (passed, counted) = (start.elapsed(), now_us() - begin_us);
        assert!(passed >= Duration::from_millis(15), "{passed:?}");
        assert!(counted >= 19_000, "{counted} us");
    }

    #[test]
    fn goes_forward() {
        let mut last = cycles();
        for _ in 0..10_000 {
            let now = cycles();
            assert!(now.wrapping_sub(last).cast_signed() > -10_000, "{last} {now}");
            last = now;
        }
    }
}
