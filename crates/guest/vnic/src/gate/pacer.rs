//! When a gate may go on, and how much of a message it reads at once.

use super::Allowance;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The pace of one connection. What its port owes outlives it.
pub(super) struct Pacer {
    allowance: Arc<Mutex<Allowance>>,
    /// When the VMM's socket may be read.
    free_at: Instant,
}

impl Pacer {
    pub fn new(allowance: Arc<Mutex<Allowance>>) -> Pacer {
        Pacer {
            allowance,
            free_at: Instant::now(),
        }
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        self.allowance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the VMM's socket is not read.
    pub fn pause(&self) -> Duration {
        self.free_at.saturating_duration_since(Instant::now())
    }

    /// Counts a message, after which the next one may have to wait.
    pub fn count(&mut self, is_change: bool) {
        let now = Instant::now();
        let wait = self.allowance().charge(is_change, now);
        self.free_at = now + wait;
    }

    /// Begins work whose cost the VMM may determine; false if it has to wait.
    pub fn begin(&mut self) -> bool {
        let begun = self.allowance().pace.begin(cpu::now_us());
        if let Err(us) = begun {
            self.free_at = Instant::now() + Duration::from_micros(us);
        }
        begun.is_ok()
    }

    /// Waits until such work may begin.
    pub fn wait(&mut self) {
        while !self.begin() {
            std::thread::sleep(self.pause());
        }
    }

    /// Does such work and measures it.
    pub fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let start_ns = cpu::processor_ns();
        let result = work();
        let took_us = cpu::processor_ns().saturating_sub(start_ns) / 1000;
        self.allowance().pace.end(took_us, cpu::now_us());
        result
    }

    /// Whether such work lately took far too long.
    pub fn is_slow(&self) -> bool {
        self.allowance().pace.is_long()
    }

    /// How many of some bytes are read at once.
    pub fn at_once(&self, bytes: usize) -> usize {
        if self.is_slow() { bytes.min(1) } else { bytes }
    }
}
