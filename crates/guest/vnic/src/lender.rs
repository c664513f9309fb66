//! What a sender's receivers know of it: whether others wait for it too, and how much it has under way.
//!
//! The sender's transmit side writes, and any thread reads.

use crate::turn::BURST;
use flow::PortId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// For how long a sender counts as one that serves several, after it sent to others in turn, in milliseconds.
const SEVERAL_MS: u64 = 10_000;

/// A sender's state for other threads, as its transmit side published it last.
#[derive(Debug)]
pub struct Lender {
    /// The port it last sent to.
    last: AtomicU32,
    /// When that was another one than before; 0 for never (the data plane's clock, milliseconds).
    changed_ms: AtomicU64,
    /// More than a burst was under way when packets were fetched last.
    has_many: AtomicBool,
}

impl Default for Lender {
    fn default() -> Self {
        Lender {
            last: AtomicU32::new(u32::MAX),
            changed_ms: AtomicU64::new(0),
            has_many: AtomicBool::new(false),
        }
    }
}

impl Lender {
    /// The sender sends to that port. Called once per burst.
    #[inline]
    pub fn sends_to(&self, port: PortId, now_ms: u64) {
        let last = self.last.load(Relaxed);
        if last != port.0 {
            self.last.store(port.0, Relaxed);
            if last != u32::MAX {
                self.changed_ms.store(now_ms.max(1), Relaxed);
            }
        }
    }

    /// Says how many of the sender's packets are under way. Called once per burst.
    #[inline]
    pub(crate) fn set_under_way(&self, packets: usize) {
        self.has_many.store(packets > BURST, Relaxed);
    }

    /// Whether more than a burst of the sender's packets are under way.
    #[inline]
    pub(crate) fn has_many(&self) -> bool {
        self.has_many.load(Relaxed)
    }

    /// Whether the sender sent to several ports in turn lately.
    pub(crate) fn serves_several(&self, now_ms: u64) -> bool {
        let changed_ms = self.changed_ms.load(Relaxed);
        changed_ms != 0 && now_ms.saturating_sub(changed_ms) < SEVERAL_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_to_one_port_serves_one() {
        let lender = Lender::default();
        for _ in 0..3 {
            lender.sends_to(PortId(5), 100);
            assert!(!lender.serves_several(100));
        }
        lender.sends_to(PortId(6), 100);
        assert!(lender.serves_several(100));
        lender.sends_to(PortId(6), 100 + SEVERAL_MS);
        assert!(!lender.serves_several(100 + SEVERAL_MS));
    }
}
