//! What a sender's receivers know of it: whether others wait for it too, and how much it has under way.
//!
//! The sender's transmit side writes, and any thread reads.

use crate::turn::BURST;
use flow::{PortId, Share};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::Relaxed};

/// For how long a sender counts as one that serves several, after it sent to others in turn, in milliseconds.
const SEVERAL_MS: u32 = 10_000;

/// For how long a sender waits for its receiver's bandwidth before it looks whether others wait for it, and
/// between two such looks, in milliseconds.
const HELD_MS: u32 = 1000;
const LOOK_MS: u32 = 100;

/// In [`Lender::room`]: no receiver says how much it has room for.
const ANY: u32 = u32::MAX;

/// A sender's state for other threads, as its transmit side published it last.
#[derive(Debug)]
pub struct Lender {
    /// The port it last sent to.
    last: AtomicU32,
    /// When it sent to another one than before, or to a group of stations; 0 for never. The data plane's
    /// clock, which wraps around after 49 days.
    changed_ms: AtomicU32,
    /// When it sent to another one than before, in seconds plus one; 0 for never.
    alternated_s: AtomicU16,
    /// What the port gets of receivers whose bandwidth is bounded, packed.
    share: AtomicU32,
    /// Bytes of the sender's packets for which its receiver has room, if that one's bandwidth is bounded;
    /// else [`ANY`].
    room: AtomicU32,
    /// Since when its ring was not read to its end because its receiver had no room, by [`clock_ms`]; 0: it
    /// was read.
    held_ms: AtomicU32,
    /// More than a burst was under way when packets were fetched last.
    has_many: AtomicBool,
}

impl Default for Lender {
    fn default() -> Self {
        Lender {
            last: AtomicU32::new(u32::MAX),
            changed_ms: AtomicU32::new(0),
            alternated_s: AtomicU16::new(0),
            share: AtomicU32::new(Share::default().pack()),
            room: AtomicU32::new(ANY),
            held_ms: AtomicU32::new(0),
            has_many: AtomicBool::new(false),
        }
    }
}

impl Lender {
    /// The sender sends to that port. Called once per burst.
    #[inline]
    pub fn sends_to(&self, port: PortId, now_ms: u64) {
        if self.last.load(Relaxed) != port.0 {
            self.turn_to(port, now_ms);
        }
    }

    /// The sender sends to that port, among others mostly, what is for a group of stations.
    pub fn floods_to(&self, port: PortId, now_ms: u64) {
        if self.last.load(Relaxed) != port.0 {
            self.changed_ms.store((now_ms as u32).max(1), Relaxed);
        }
    }

    #[cold]
    fn turn_to(&self, port: PortId, now_ms: u64) {
        let last = self.last.swap(port.0, Relaxed);
        if last != u32::MAX {
            self.changed_ms.store((now_ms as u32).max(1), Relaxed);
            let seconds = (now_ms / 1000) as u16;
            self.alternated_s.store(seconds.wrapping_add(1).max(1), Relaxed);
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

    /// Changes what the port gets of receivers whose bandwidth is bounded.
    pub(crate) fn set_share(&self, share: Share) {
        self.share.store(share.pack(), Relaxed);
    }

    pub(crate) fn share(&self) -> Share {
        Share::unpack(self.share.load(Relaxed))
    }

    /// The receiver has room for that many bytes more; 0: nothing is to be fetched for now.
    pub(crate) fn set_room(&self, bytes: usize) {
        self.room.store(u32::try_from(bytes).unwrap_or(ANY), Relaxed);
    }

    /// The receiver says no longer how much it has room for.
    pub(crate) fn forget_room(&self) {
        self.room.store(ANY, Relaxed);
    }

    /// Bytes for which the receiver has room, if it says so.
    pub(crate) fn room(&self) -> Option<u32> {
        Some(self.room.load(Relaxed)).filter(|room| *room != ANY)
    }

    /// The receiver has no room: begins to count the time unless that has begun, and returns how long the
    /// sender still waits at most, in milliseconds.
    pub(crate) fn wait_for_room(&self, now_ns: u64) -> u32 {
        let now_ms = clock_ms(now_ns);
        let held_ms = match self.held_ms.load(Relaxed) {
            0 => now_ms,
            held_ms => held_ms,
        };
        self.held_ms.store(held_ms, Relaxed);
        HELD_MS.saturating_sub(now_ms.wrapping_sub(held_ms))
    }

    /// The sender looks ahead although its receiver has no room; it does so again after a while.
    pub(crate) fn look_ahead(&self, now_ns: u64) {
        let then_ms = clock_ms(now_ns).wrapping_sub(HELD_MS - LOOK_MS);
        self.held_ms.store(then_ms.max(1), Relaxed);
    }

    /// Nothing is left in the sender's ring.
    pub(crate) fn caught_up(&self) {
        self.held_ms.store(0, Relaxed);
    }

    /// Whether the sender sent to several ports in turn lately.
    pub(crate) fn serves_several(&self, now_ms: u64) -> bool {
        let changed_ms = self.changed_ms.load(Relaxed);
        changed_ms != 0 && (now_ms as u32).wrapping_sub(changed_ms) < SEVERAL_MS
    }

    /// Whether the sender sent to several ports in turn lately, what is for groups of stations aside.
    pub(crate) fn alternates(&self, now_ms: u64) -> bool {
        let alternated_s = self.alternated_s.load(Relaxed);
        let passed_s = ((now_ms / 1000) as u16)
            .wrapping_add(1)
            .wrapping_sub(alternated_s);
        alternated_s != 0 && u32::from(passed_s) <= SEVERAL_MS / 1000
    }
}

/// Milliseconds, never 0. Wraps around.
fn clock_ms(now_ns: u64) -> u32 {
    ((now_ns / 1_000_000) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_takes_no_more_than_before() {
        assert!(size_of::<Lender>() <= 24);
    }

    #[test]
    fn who_sends_to_one_port_serves_one() {
        let lender = Lender::default();
        for _ in 0..3 {
            lender.sends_to(PortId(5), 100);
            assert!(!lender.serves_several(100) && !lender.alternates(100));
        }
        lender.sends_to(PortId(6), 100);
        assert!(lender.serves_several(100) && lender.alternates(100));
        let later_ms = 100 + u64::from(SEVERAL_MS);
        lender.sends_to(PortId(6), later_ms);
        assert!(!lender.serves_several(later_ms) && !lender.alternates(later_ms + 1000));
    }

    #[test]
    fn who_floods_now_and_then_does_not_alternate() {
        let lender = Lender::default();
        lender.sends_to(PortId(5), 0);
        lender.floods_to(PortId(5), 100);
        assert!(!lender.serves_several(100));
        lender.floods_to(PortId(6), 100);
        lender.sends_to(PortId(5), 100);
        assert!(lender.serves_several(100) && !lender.alternates(100));
    }
}
