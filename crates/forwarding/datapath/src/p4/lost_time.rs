//! Time of a turn in which the thread did not have its core.
//!
//! The clock goes on while another task has the core. For how long, only a system call tells, which takes a
//! third of the time of a usual turn; whether it happened costs nothing ([`cpu::has_kept_core`]). So nothing
//! beyond usual is charged for a turn, or a part of one, that lost its core. What a program gains by that is
//! bounded by the kernel's slices: a turn in some milliseconds.

/// See the module's description.
#[derive(Default)]
pub(super) struct LostTime {
    is_watched: bool,
}

impl LostTime {
    /// A turn begins.
    pub fn begin(&mut self) {
        cpu::watch_core();
        self.is_watched = true;
    }

    /// What is charged for a part of the turn, which ends now and took longer than usual by the clock: not
    /// more than usual if the core was lost. Where that is not known, the clock counts.
    pub fn charged(&mut self, took_ns: u64, usual_ns: u64) -> u64 {
        let is_lost = self.is_watched && cpu::has_kept_core() == Some(false);
        if !is_lost {
            return took_ns;
        }
        self.begin();
        took_ns.min(usual_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn a_turn_that_lost_its_core_is_a_usual_one() {
        let mut lost = LostTime::default();
        assert_eq!(lost.charged(90_000, 10_000), 90_000, "no turn has begun");
        lost.begin();
        if cpu::has_kept_core().is_none() {
            return;
        }
        // Other programs may take the core at any time, but not always.
        let long = || {
            let mut lost = LostTime::default();
            lost.begin();
            lost.charged(90_000, 10_000)
        };
        assert!((0..1_000).any(|_| long() == 90_000));
        lost.begin();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
                scope.spawn(|| {
                    while !is_done.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while cpu::has_kept_core() == Some(true) {}
            is_done.store(true, Relaxed);
        });
        assert_eq!(lost.charged(90_000, 10_000), 10_000);
        assert!(
            (0..1_000).any(|_| lost.charged(90_000, 10_000) == 90_000),
            "a further part"
        );
    }
}
