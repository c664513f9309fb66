//! What look-ups behind the first ones compare, and the cache for packets that meet such look-ups.
//!
//! Caches compare the bits that a packet's first look-ups compare ([`MaskUnion`](crate::mask_union)). Later
//! passes and egress filters may compare more, but only of packets that come to them. So a decision says
//! which bits the look-ups behind the first ones compared. If its first flows do not cover these bits, the
//! decision is in the cache twice: under the bits of the first look-ups, where it only says which further
//! bits are to be compared, and under all of these bits. Packets that go elsewhere have one look, and share
//! their entries.
//!
//! A decision is used only under a mask that has all bits it depends on. Those of its first flows are in each
//! port's union for as long as they live; the others are compared with the mask at each look. So no entry has
//! to be found when filters come or go, and an entry that says to look further is a hint which may be out of
//! date.

use crate::behind_bits::Words;
use crate::decision::Decision;
use crate::microflow::{MicroflowCache, Place};
use crate::train::Train;
use flow::ExactKey;
use std::array;
use std::sync::Arc;

/// Most masks under which the cache is asked about a packet. Each has bits that the one before lacks.
const MAX_MASKS: usize = 4;

impl MicroflowCache {
    /// The mask for a further look at the cache about packets for which [`hit`](Self::hit) found nothing
    /// under this mask. `None` if nothing is known, or if packets are to be walked as they need no further
    /// look any more: `promoted` says whether bits of lists are compared at the first one.
    pub fn further(
        &self,
        hash: u64,
        key: &ExactKey,
        mask: impl Fn(usize) -> u64 + Copy,
        promoted: bool,
    ) -> Option<Words> {
        let mut words = array::from_fn(mask);
        let decision = self.at(self.place(hash, key, mask)?)?;
        decision.is_live().then_some(())?;
        let behind = decision.behind()?;
        if promoted && behind.was_promoted(key, &words) {
            return None;
        }
        behind.widen(key, &mut words);
        Some(words)
    }

    /// The decision about a key under a mask of [`further`](Self::further), with its place. Counts the
    /// packets, unless the decision counts apart.
    pub fn hit_behind(
        &mut self,
        key: &ExactKey,
        mut mask: Words,
        train: &Train,
    ) -> Option<(Place, &Arc<Decision>)> {
        for _ in 1..MAX_MASKS {
            let under = |word| mask[word];
            let place = self.place(self.hash(key, under), key, under)?;
            let decision = self.at(place).filter(|decision| decision.is_live())?;
            match decision.behind().filter(|behind| !behind.is_within(key, &mask)) {
                Some(behind) => behind.widen(key, &mut mask),
                None => {
                    let counts_apart = decision.counts_apart();
                    self.touch(place);
                    if !counts_apart {
                        self.count(place, train);
                    }
                    return Some((place, self.at(place)?));
                }
            }
        }
        None
    }

    /// Stores the decision about a packet that was walked: where [`hit`](Self::hit) or
    /// [`hit_behind`](Self::hit_behind) will find it.
    pub fn remember(
        &mut self,
        key: &ExactKey,
        mask: impl Fn(usize) -> u64 + Copy,
        decision: &Arc<Decision>,
        now_ms: u64,
    ) {
        let Some(behind) = decision.behind() else {
            return self.insert(self.hash(key, mask), key, mask, decision, now_ms);
        };
        let mut words: Words = array::from_fn(mask);
        for _ in 0..MAX_MASKS {
            let under = |word| words[word];
            let hash = self.hash(key, under);
            let there = self
                .further(hash, key, under, false)
                .filter(|further| *further != words);
            let is_last = behind.is_within(key, &words);
            if is_last || there.is_none() {
                self.insert(hash, key, under, decision, now_ms);
            }
            if is_last {
                return;
            }
            match there {
                Some(further) => words = further,
                None => behind.widen(key, &mut words),
            }
        }
    }
}
