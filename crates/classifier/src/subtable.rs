//! All flows with one mask: a hash table over the bits the mask has.

use crate::entry::FlowEntry;
use crate::hash::{PAIRS, Seed};
use flow::{FlowKey, FlowMask};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pair of words in which the mask has bits.
#[derive(Clone, Copy, Debug)]
struct MaskedPair {
    number: usize,
    mask: [u64; 2],
}

impl MaskedPair {
    #[inline]
    fn of(&self, key: &FlowKey) -> [u64; 2] {
        [
            key.words[2 * self.number] & self.mask[0],
            key.words[2 * self.number + 1] & self.mask[1],
        ]
    }
}

/// A flow with its hash, which saves following the pointer for most that do not match.
#[derive(Debug)]
struct Hashed {
    hash: u64,
    entry: Arc<FlowEntry>,
}

#[derive(Debug)]
pub(crate) struct Subtable {
    mask: FlowMask,
    /// The only words that look-ups hash and compare.
    pairs: Box<[MaskedPair]>,
    flows: HashTable<Hashed>,
    /// Look-ups that ended here, for ordering only.
    hits: AtomicU64,
}

impl Subtable {
    pub(crate) fn new(mask: FlowMask) -> Subtable {
        let words = &mask.0.words;
        let pairs = (0..PAIRS)
            .map(|number| MaskedPair {
                number,
                mask: [words[2 * number], words[2 * number + 1]],
            })
            .filter(|pair| pair.mask != [0, 0])
            .collect();
        Subtable {
            mask,
            pairs,
            flows: HashTable::new(),
            hits: AtomicU64::new(0),
        }
    }

    pub(crate) fn mask(&self) -> &FlowMask {
        &self.mask
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Lets old hits count half, so that the order follows the traffic.
    pub(crate) fn age_hits(&mut self) {
        *self.hits.get_mut() /= 2;
    }

    /// The flow that `key` belongs to.
    #[inline]
    pub(crate) fn lookup(&self, key: &FlowKey) -> Option<&Arc<FlowEntry>> {
        let found = self.get(key);
        if found.is_some() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// As [`lookup`](Self::lookup), without counting.
    #[inline]
    pub(crate) fn get(&self, key: &FlowKey) -> Option<&Arc<FlowEntry>> {
        let hash = self.hash(key);
        self.flows
            .find(hash, |flow| self.same(flow, hash, key))
            .map(|flow| &flow.entry)
    }

    /// Adds a flow that has this mask and whose key is not there yet.
    pub(crate) fn insert(&mut self, entry: Arc<FlowEntry>) {
        debug_assert!(entry.flow.mask == self.mask && self.get(&entry.flow.key).is_none());
        let hash = self.hash(&entry.flow.key);
        self.flows
            .insert_unique(hash, Hashed { hash, entry }, |flow| flow.hash);
    }

    /// Takes out the flow with exactly this masked key.
    pub(crate) fn remove(&mut self, key: &FlowKey) -> Option<Arc<FlowEntry>> {
        let hash = self.hash(key);
        let pairs = &self.pairs;
        let same = |flow: &Hashed| flow.hash == hash && equal(pairs, &flow.entry.flow.key, key);
        match self.flows.entry(hash, same, |flow| flow.hash) {
            Entry::Occupied(flow) => Some(flow.remove().0.entry),
            Entry::Vacant(_) => None,
        }
    }

    #[inline]
    fn hash(&self, key: &FlowKey) -> u64 {
        let seed = Seed::process();
        let mut sum = 0u128;
        for pair in &self.pairs {
            sum = sum.wrapping_add(seed.pair(pair.number, pair.of(key)));
        }
        seed.finish(sum)
    }

    #[inline]
    fn same(&self, flow: &Hashed, hash: u64, key: &FlowKey) -> bool {
        flow.hash == hash && equal(&self.pairs, &flow.entry.flow.key, key)
    }
}

/// Whether two keys agree wherever the mask has bits.
#[inline]
fn equal(pairs: &[MaskedPair], left: &FlowKey, right: &FlowKey) -> bool {
    pairs.iter().all(|pair| pair.of(left) == pair.of(right))
}
