//! States of ports that groups of action profiles watch.

use std::sync::atomic::{AtomicU64, Ordering};

/// Ports that can be watched have lower numbers.
pub const WATCHED_PORTS: u16 = 512;

/// Which ports are down. At first, all are up.
#[derive(Debug, Default)]
pub struct PortStates {
    down: [AtomicU64; WATCHED_PORTS as usize / 64],
}

impl PortStates {
    /// Says whether a port is up. Packets see it at once. Nothing happens for a port that cannot be watched.
    pub fn set_up(&self, port: u16, is_up: bool) {
        let bit = 1 << (port % 64);
        let Some(word) = self.down.get(usize::from(port / 64)) else {
            return;
        };
        // Most calls change nothing, and then no cache line is taken from other threads.
        if is_up != (word.load(Ordering::Relaxed) & bit == 0) {
            match is_up {
                true => word.fetch_and(!bit, Ordering::Relaxed),
                false => word.fetch_or(bit, Ordering::Relaxed),
            };
        }
    }

    /// Whether a port is up. Ports that cannot be watched are.
    #[inline]
    pub fn is_up(&self, port: u16) -> bool {
        let word = self.down.get(usize::from(port / 64));
        word.is_none_or(|word| word.load(Ordering::Relaxed) >> (port % 64) & 1 == 0)
    }
}
