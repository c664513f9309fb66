//! When bits that rule lists note are compared at the first look already.
//!
//! Lists that tell connections apart cost a further look for each packet that comes to them
//! ([`crate::behind`]). That is right where few packets of a sender do. But most packets of a port may come
//! to its own lists, or to those of the one port that it sends to. Then the further look finds no packets
//! alike that the first one could have found, and the bits are *promoted*: the port's mask union has them.
//!
//! Each port counts the packets that have a further look. When there are [`WINDOW`] of them, and they are at
//! least half of what the port sent meanwhile, then from now on the union gets what lists note in walks for
//! the port's packets. A guest decides by that about entries for its own packets only.
//!
//! Lists compare prefixes, which are long where rules are close to each other. Prefixes are promoted in steps
//! of four bits: so the union changes a few times only, and each entry is split into few.

use flow::FlowMask;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Packets with a further look after which their share is examined.
const WINDOW: u32 = 1024;

/// The state of one port.
#[derive(Debug, Default)]
pub(crate) struct Promotion {
    /// Packets that had a further look, since the last examination.
    further: AtomicU32,
    /// Packets that the port had sent until the last examination, modulo 2^32.
    sent: AtomicU32,
    /// Whether the bits are promoted that lists note.
    is_on: AtomicBool,
}

impl Promotion {
    /// Counts packets with a further look. True if their share is large. `sent` says how many packets the
    /// port has sent so far. To be called by the thread that serves the port.
    pub fn count(&self, packets: u32, sent: impl FnOnce() -> u64) -> bool {
        let further = self.further.load(Ordering::Relaxed) + packets;
        if further < WINDOW {
            self.further.store(further, Ordering::Relaxed);
            return false;
        }
        self.further.store(0, Ordering::Relaxed);
        let sent = sent() as u32;
        let before = self.sent.swap(sent, Ordering::Relaxed);
        2 * further >= sent.wrapping_sub(before)
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }
}

/// The mask with prefixes rounded up.
pub(crate) fn rounded(mask: &FlowMask) -> FlowMask {
    const LOWEST: u64 = 0x1111_1111_1111_1111;
    let mut rounded = *mask;
    // Rules compare single flags.
    rounded.0.set_tcp_flags(0);
    for word in &mut rounded.0.words {
        let any_of_four = *word | *word >> 1 | *word >> 2 | *word >> 3;
        *word = (any_of_four & LOWEST) * 0xf;
    }
    rounded.union(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_rounded_up_to_steps_and_flags_are_left_alone() {
        let mut mask = FlowMask::ANY;
        mask.0.set_tp_src(0x8000);
        mask.0.set_tp_dst(0xfff8);
        mask.0.set_ip_dst(0xffff_e000);
        mask.0.set_tcp_flags(0x12);
        let rounded = rounded(&mask).0;
        assert_eq!((rounded.tp_src(), rounded.tp_dst()), (0xf000, 0xffff));
        assert_eq!((rounded.ip_dst(), rounded.ip_src()), (0xffff_f000, 0));
        assert_eq!(rounded.tcp_flags(), 0x12);
    }

    #[test]
    fn the_share_of_packets_with_a_further_look_decides() {
        let promotion = Promotion::default();
        let mut sent = 1_000_000;
        let mut window = |others: u64| {
            let mut is_large = false;
            for _ in 0..WINDOW / 32 {
                assert!(!is_large, "before the window has ended");
                sent += 32 + others;
                is_large = promotion.count(32, || sent);
            }
            is_large
        };
        assert!(!window(0), "the port sent a million packets before");
        assert!(window(0) && window(32) && !window(33) && window(31));
    }
}
