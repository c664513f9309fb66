//! The union of the masks of a port's flows: the bits of a packet's key that any flow matches.
//!
//! Caches compare these bits of a key and no others, so packets that all flows treat alike share a cache entry. Where flows
//! match Ethernet addresses only, one entry serves all connections between two stations.
//!
//! The union changes while other threads read it, and a reader need not see all of a change at once. When a cache entry was
//! made, the union covered its flow's mask. The union is widened before a flow can be found, and narrowed after flows have
//! ended. So a thread that reads the union and then finds the flow alive has read all bits of the flow's mask, in each
//! word. Two keys that are equal under two such unions are equal under that mask.

use flow::{ExactKey, FlowMask};
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a key, by word.
type Words = [AtomicU64; ExactKey::WORDS];

/// See the module's description. One thread at a time changes it. It has cache lines of its own, apart from memory that is
/// written more often.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MaskUnion {
    /// For keys of usual packets.
    short: Words,
    /// For keys of other packets.
    long: Words,
    /// The bits in the words of flow keys that exact keys do not have, all in one.
    behind: AtomicU64,
}

impl Default for MaskUnion {
    /// All bits.
    fn default() -> Self {
        MaskUnion {
            short: array::from_fn(|_| AtomicU64::new(u64::MAX)),
            long: array::from_fn(|_| AtomicU64::new(u64::MAX)),
            behind: AtomicU64::new(u64::MAX),
        }
    }
}

impl MaskUnion {
    /// The mask for keys of this one's form, by word. Each word is read at the time of the call.
    #[inline]
    pub fn mask<'a>(&'a self, key: &ExactKey) -> impl Fn(usize) -> u64 + Copy + use<'a> {
        let words = if key.is_short() { &self.short } else { &self.long };
        |word| words[word].load(Ordering::Acquire)
    }

    /// Whether any of the bits may be in the union.
    pub fn meets(&self, bits: &FlowMask) -> bool {
        let (words, behind) = bits.0.words.split_at(ExactKey::WORDS);
        let union = self.long.iter().map(|word| word.load(Ordering::Acquire));
        words.iter().zip(union).any(|(bits, union)| bits & union != 0)
            || self.behind.load(Ordering::Acquire) != 0 && behind.iter().any(|&bits| bits != 0)
    }

    /// Becomes this union, as no flow with another mask is left.
    pub fn set(&self, union: &FlowMask) {
        self.change(union, |_, bits| bits);
    }

    /// Adds this mask.
    pub fn widen(&self, mask: &FlowMask) {
        self.change(mask, |before, bits| before | bits);
    }

    fn change(&self, mask: &FlowMask, merge: impl Fn(u64, u64) -> u64) {
        let short = self.short.iter().zip(ExactKey::short_mask(mask));
        let long = self.long.iter().zip(ExactKey::long_mask(mask));
        let behind = mask.0.words[ExactKey::WORDS..]
            .iter()
            .fold(0, |union, bits| union | bits);
        for (word, bits) in short.chain(long).chain([(&self.behind, behind)]) {
            let before = word.load(Ordering::Relaxed);
            let after = merge(before, bits);
            if after != before {
                word.store(after, Ordering::Release);
            }
        }
    }
}
