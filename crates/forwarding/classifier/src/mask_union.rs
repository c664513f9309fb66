//! The union of the masks of the flows that a port's packets may meet first: the bits of a key that any of
//! them matches.
//!
//! Caches compare these bits of a key and no others, so packets that all flows treat alike share a cache
//! entry. Where flows match Ethernet addresses only, one entry serves all connections between two stations.
//!
//! What flows of later passes and egress filters match is not in it, as few packets come to them; it is in
//! the decisions about those packets ([`crate::behind`]). Where the first flows match the ports of TCP and
//! UDP, no two connections share an entry, and all is in the union. So are tags, types and protocols that
//! actions read, of which a link has few, and what few packets of a sender differ in of what rule lists note
//! ([`crate::rule_bits`]). Other bits that lists note come into the union of a port most of whose packets
//! would have a further look for them ([`crate::promotion`]).
//!
//! The union changes while other threads read it, and a reader need not see all of a change at once. When a
//! cache entry was made, the union covered its flow's mask. The union is widened before a flow can be found,
//! and narrowed after flows have ended. So a thread that reads the union and then finds the flow alive has
//! read all bits of the flow's mask, in each word. Two keys that are equal under two such unions are equal
//! under that mask.

use crate::promotion::{Promotion, rounded};
use crate::rule_bits::{self, Sources};
use flow::{ExactKey, FlowMask, Unseen};
use parking_lot::Mutex;
use std::array;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bits of a key, by word.
type Words = [AtomicU64; ExactKey::WORDS];

/// What packets of a port are compared by. It has cache lines of its own, apart from memory that is written
/// more often.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MaskUnion {
    /// For keys of usual packets.
    short: Words,
    /// For keys of other packets.
    long: Words,
    /// Fewest unknown fields, as a number, of which one may be compared by any flow that packets of the port
    /// may meet; [`NONE`] if there is no such flow.
    hides: AtomicU8,
    /// The [`Sources`] that are compared as ingress lists have noted them.
    sources: AtomicU8,
    /// Other bits that rule lists note.
    promotion: Promotion,
    /// Held while the bits change. The other bits that are compared as rule lists note them.
    changes: Mutex<Option<Box<FlowMask>>>,
}

/// More than any number of an [`Unseen`].
const NONE: u8 = u8::MAX;

/// The masks of flows that packets of a port may meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    /// Of flows that first look-ups may find, and of what actions read the bits that tell kinds of frames
    /// apart.
    pub first: FlowMask,
    /// Of all, and what actions read.
    pub all: FlowMask,
    /// What rule lists that packets may come to ask for, whichever rules they have. Caches do not compare
    /// that, but a field of it must not be unknown.
    pub rules: FlowMask,
}

impl Masks {
    /// What caches compare. Where first look-ups tell connections apart, all is compared at once: further
    /// looks would find no packets alike.
    fn compared(&self) -> &FlowMask {
        if self.first.tells_connections_apart() {
            &self.all
        } else {
            &self.first
        }
    }
}

impl Default for MaskUnion {
    /// All bits.
    fn default() -> Self {
        MaskUnion {
            short: array::from_fn(|_| AtomicU64::new(u64::MAX)),
            long: array::from_fn(|_| AtomicU64::new(u64::MAX)),
            hides: AtomicU8::new(hides(&FlowMask::EXACT)),
            sources: AtomicU8::default(),
            promotion: Promotion::default(),
            changes: Mutex::default(),
        }
    }
}

/// Fewest unknown fields of which one is in the mask.
fn hides(mask: &FlowMask) -> u8 {
    let meets = |unseen: &&Unseen| unseen.bits().meets(mask);
    Unseen::ALL
        .iter()
        .find(meets)
        .map_or(NONE, |&unseen| unseen as u8)
}

impl MaskUnion {
    /// The mask for keys of this one's form, by word. Each word is read at the time of the call.
    #[inline]
    pub fn mask<'a>(&'a self, key: &ExactKey) -> impl Fn(usize) -> u64 + Copy + use<'a> {
        let words = if key.is_short() { &self.short } else { &self.long };
        |word| words[word].load(Ordering::Acquire)
    }

    /// Whether any flow that packets of the port may meet compares a field that is unknown.
    pub fn meets(&self, unseen: Unseen) -> bool {
        unseen as u8 >= self.hides.load(Ordering::Acquire)
    }

    /// Becomes the union of these masks, as no flow with another mask is left.
    pub fn set(&self, masks: &Masks) {
        let promoted = self.changes.lock();
        let mut mask = masks.compared().union(&self.sources());
        if let Some(promoted) = &*promoted {
            mask = mask.union(promoted);
        }
        self.change(&mask, |_, bits| bits);
        self.hides
            .store(hides(&masks.all.union(&masks.rules)), Ordering::Release);
    }

    /// No field of these may be unknown from now on, as packets of the port may come to rule lists.
    pub fn forbid_unknown(&self, fields: &FlowMask) {
        self.hides.fetch_min(hides(fields), Ordering::Release);
    }

    /// What rule lists tell kinds of packets apart by is compared from now on, as packets of the port may
    /// come to lists.
    pub fn add_kinds(&self) {
        let _changes = self.changes.lock();
        self.change(&rule_bits::of_kinds(), |before, bits| before | bits);
    }

    /// Has the sources compared from now on of which an ingress list has noted a bit.
    pub fn add_sources(&self, noted: &FlowMask) {
        let noted = Sources::in_mask(noted);
        if noted.0 & !self.sources.load(Ordering::Acquire) != 0 {
            let _changes = self.changes.lock();
            self.change(&noted.mask(), |before, bits| before | bits);
            // Whoever reads this reads the bits.
            self.sources.fetch_or(noted.0, Ordering::Release);
        }
    }

    fn sources(&self) -> FlowMask {
        Sources(self.sources.load(Ordering::Acquire)).mask()
    }

    /// Counts packets that have a further look. True if the bits that lists note for them should be
    /// [promoted](Self::promote). `sent` says how many packets the port has sent.
    pub fn count_further(&self, packets: u32, sent: impl FnOnce() -> u64) -> bool {
        self.promotion.count(packets, sent)
    }

    /// Has the bits compared that lists note from now on.
    pub fn promote(&self) {
        self.promotion.set(true);
    }

    pub fn is_promoted(&self) -> bool {
        self.promotion.is_on()
    }

    fn add_promoted(&self, noted: &FlowMask) -> FlowMask {
        let mut promoted = self.changes.lock();
        let before = promoted.as_deref().copied().unwrap_or_default();
        let after = before.union(&rounded(&noted.without(&rule_bits::of_kinds())));
        if after != before {
            self.change(&after, |before, bits| before | bits);
            *promoted = Some(Box::new(after));
        }
        after
    }

    /// The bits of rule lists' answers that are compared, where a list has noted these. Each decision that
    /// relies on them is ended before [`set`](Self::set) follows [`forget_lists`](Self::forget_lists).
    pub fn of_lists(&self, noted: &FlowMask) -> FlowMask {
        let compared = rule_bits::of_kinds().union(&self.sources());
        if self.promotion.is_on() {
            compared.union(&self.add_promoted(noted))
        } else {
            compared
        }
    }

    /// No decision that is made from now on relies on what lists noted before. To be followed by
    /// [`set`](Self::set) when all decisions that do have ended.
    pub fn forget_lists(&self) {
        let mut promoted = self.changes.lock();
        self.sources.store(0, Ordering::Release);
        self.promotion.set(false);
        *promoted = None;
    }

    /// Adds what a flow compares and its actions read, before packets of the port can meet it. `is_first`
    /// says that first look-ups may find it. Returns whether connections are told apart since, so that
    /// [`set`](Self::set) has to add all.
    #[must_use]
    pub fn widen(&self, mask: &FlowMask, read: &FlowMask, is_first: bool) -> bool {
        let both = mask.union(read);
        self.hides.fetch_min(hides(&both), Ordering::Release);
        let promoted = self.changes.lock();
        // Promoted bits say nothing about flows.
        let before = promoted.is_none() && self.tells_connections_apart();
        if before {
            self.change(&both, |before, bits| before | bits);
        } else {
            let first = if is_first { *mask } else { FlowMask::ANY };
            self.change(&first.union(&read.of_kinds()), |before, bits| before | bits);
        }
        !before && self.tells_connections_apart()
    }

    fn tells_connections_apart(&self) -> bool {
        let mut mask = FlowMask::ANY;
        for (word, union) in mask.0.words.iter_mut().zip(&self.long) {
            *word = union.load(Ordering::Relaxed);
        }
        mask.tells_connections_apart()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> FlowMask {
        let mut ports = FlowMask::ANY;
        ports.0.set_tp_src(u16::MAX);
        ports.0.set_tp_dst(u16::MAX);
        ports
    }

    /// Decisions rely on all that flows compare where first flows tell connections apart.
    #[test]
    fn flows_that_tell_connections_apart_have_all_compared_beside_promoted_bits() {
        let union = MaskUnion::default();
        let none = FlowMask::ANY;
        union.set(&Masks {
            first: none,
            all: none,
            rules: rule_list::fields(),
        });
        assert!(!ports().meets(&union.of_lists(&ports())));
        union.promote();
        assert_eq!(union.of_lists(&ports()).without(&rule_bits::of_kinds()), ports());
        assert!(union.tells_connections_apart(), "by lists");
        assert!(union.widen(&ports(), &none, true));
        union.forget_lists();
        assert!(!ports().meets(&union.of_lists(&ports())));
    }
}
