//! The exact-match cache of one worker thread.
//!
//! Most packets belong to a connection that had one a moment ago. The cache remembers the entry for
//! whole keys, so that they need one hash and one comparison, whatever the number of masks.
//!
//! Two ways per set, no chains: a packet that finds both taken replaces the one used less recently, so neither
//! look-up nor insertion ever takes longer than the other. An entry that has ended is a miss and is let go
//! when it is met, when its place is needed, or by [`MicroflowCache::purge_dead`]; it is safe to be late with
//! that, as it costs only memory.
//!
//! A key names its input port, and ports are unique in the process, so one cache serves all switches.

use crate::entry::FlowEntry;
use crate::hash::Seed;
use flow::{FlowKey, KEY_WORDS};
use std::sync::Arc;

/// Entries of a cache unless told otherwise: 562 KiB, of which little more than what is used is touched.
pub const DEFAULT_CACHE_ENTRIES: usize = 4096;

const WAYS: usize = 2;

/// Exact keys and the flows they belong to.
#[derive(Debug)]
pub struct MicroflowCache {
    /// Valid where `flows` has an entry. Apart from them and without a type of its own, because zeroed
    /// words cost no memory before they are used.
    keys: Vec<[u64; KEY_WORDS]>,
    /// The ways of a set are neighbours.
    flows: Vec<Option<Arc<FlowEntry>>>,
    /// High half of the hash of each key, to tell most others without touching it.
    tags: Vec<u32>,
    /// Per set, the way used last.
    recent: Vec<u8>,
    set_mask: usize,
}

impl Default for MicroflowCache {
    fn default() -> Self {
        MicroflowCache::new(DEFAULT_CACHE_ENTRIES)
    }
}

impl MicroflowCache {
    /// An empty cache for `entries` keys, rounded up to a power of two, at least 2.
    pub fn new(entries: usize) -> MicroflowCache {
        let entries = entries.max(WAYS).next_power_of_two();
        let mut flows = Vec::new();
        flows.resize_with(entries, || None);
        MicroflowCache {
            keys: vec![[0; KEY_WORDS]; entries],
            flows,
            tags: vec![0; entries],
            recent: vec![0; entries / WAYS],
            set_mask: entries / WAYS - 1,
        }
    }

    /// The live flow remembered for `key`. One that has ended is forgotten.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey) -> Option<&Arc<FlowEntry>> {
        let (set, tag) = self.place(key);
        let slot = self.find(set, tag, key)?;
        if self.flows[slot].as_ref().is_some_and(|entry| !entry.is_live()) {
            self.flows[slot] = None;
        } else {
            self.touch(set, slot);
        }
        self.flows[slot].as_ref()
    }

    /// Remembers that `key` belongs to `entry`, instead of whatever was known of it.
    #[inline]
    pub fn insert(&mut self, key: &FlowKey, entry: &Arc<FlowEntry>) {
        let (set, tag) = self.place(key);
        let slot = self.find(set, tag, key).unwrap_or_else(|| self.victim(set));
        self.keys[slot] = key.words;
        self.tags[slot] = tag;
        self.flows[slot] = Some(Arc::clone(entry));
        self.touch(set, slot);
    }

    /// Lets go of entries that have ended; returns how many. Takes time in proportion to the cache's size.
    pub fn purge_dead(&mut self) -> usize {
        let mut purged = 0;
        for slot in &mut self.flows {
            if slot.as_ref().is_some_and(|entry| !entry.is_live()) {
                *slot = None;
                purged += 1;
            }
        }
        purged
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.flows.fill_with(|| None);
    }

    /// Keys it can hold.
    pub fn capacity(&self) -> usize {
        self.flows.len()
    }

    /// Keys held, of ended flows as well.
    pub fn len(&self) -> usize {
        self.flows.iter().flatten().count()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.flows.iter().all(Option::is_none)
    }

    /// Set and tag: different bits of the hash.
    #[inline]
    fn place(&self, key: &FlowKey) -> (usize, u32) {
        let hash = Seed::process().hash(key);
        ((hash as usize) & self.set_mask, (hash >> 32) as u32)
    }

    #[inline]
    fn find(&self, set: usize, tag: u32, key: &FlowKey) -> Option<usize> {
        let slots = set * WAYS..(set + 1) * WAYS;
        slots.into_iter().find(|&slot| {
            self.tags[slot] == tag && self.flows[slot].is_some() && self.keys[slot] == key.words
        })
    }

    /// The slot to use for a new key: a free one, one that has ended, or else the one used less recently.
    #[inline]
    fn victim(&self, set: usize) -> usize {
        let mut slots = set * WAYS..(set + 1) * WAYS;
        let free = |slot: &usize| self.flows[*slot].as_ref().is_none_or(|entry| !entry.is_live());
        slots
            .find(free)
            .unwrap_or(set * WAYS + usize::from(self.recent[set] ^ 1))
    }

    #[inline]
    fn touch(&mut self, set: usize, slot: usize) {
        let way = (slot % WAYS) as u8;
        if self.recent[set] != way {
            self.recent[set] = way;
        }
    }
}
