//! What of packets makes a difference: the union of flows' masks.
//!
//! Caches compare no more of a key than that, so that packets which all flows treat alike share an entry: where flows look at
//! nothing but Ethernet addresses, one serves all connections between two stations.
//!
//! It changes while others look at it, and they need not see all of a change at once. An entry was made when the union
//! covered its flow's mask. The union is widened before a flow can be found, and narrowed after flows have ended; so
//! whoever reads it and then finds that the flow lives has read all bits of its mask, in each word. Two keys that are equal
//! under two such unions are equal under that mask.

use flow::{ExactKey, FlowMask};
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a key, by word.
type Words = [AtomicU64; ExactKey::WORDS];

/// See the module's description. One thread at a time changes it. Apart from what is written more often.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Significant {
    /// Of usual packets' keys.
    short: Words,
    /// Of other packets' keys.
    long: Words,
}

impl Default for Significant {
    /// All of it.
    fn default() -> Self {
        Significant {
            short: array::from_fn(|_| AtomicU64::new(u64::MAX)),
            long: array::from_fn(|_| AtomicU64::new(u64::MAX)),
        }
    }
}

impl Significant {
    /// The words of the mask for keys of the form of this one, as they are when they are asked for.
    #[inline]
    pub fn mask<'a>(&'a self, key: &ExactKey) -> impl Fn(usize) -> u64 + Copy + use<'a> {
        let words = if key.is_short() { &self.short } else { &self.long };
        |word| words[word].load(Ordering::Acquire)
    }

    /// No more than these masks' union, as no other flow is left.
    pub fn set(&self, union: &FlowMask) {
        self.change(union, |_, bits| bits);
    }

    /// Also that mask.
    pub fn widen(&self, mask: &FlowMask) {
        self.change(mask, |before, bits| before | bits);
    }

    fn change(&self, mask: &FlowMask, merge: impl Fn(u64, u64) -> u64) {
        let short = self.short.iter().zip(ExactKey::short_mask(mask));
        let long = self.long.iter().zip(ExactKey::long_mask(mask));
        for (word, bits) in short.chain(long) {
            let before = word.load(Ordering::Relaxed);
            let after = merge(before, bits);
            if after != before {
                word.store(after, Ordering::Release);
            }
        }
    }
}
