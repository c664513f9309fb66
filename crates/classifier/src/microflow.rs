//! The exact-match cache of one worker thread.
//!
//! Most packets belong to a connection that had one a moment ago. The cache remembers the entry for
//! whole keys, so that they need one hash and one comparison, whatever the number of masks. A slot is two cache
//! lines: the hash, the flow, the key, and what was counted since the flow's
//! own counters were told, which are shared with other threads and therefore dear.
//!
//! Two ways per set, no chains: a packet that finds both taken replaces the one used less recently, so neither
//! look-up nor insertion ever takes longer than the other. When there are more connections than slots, replacing
//! helps nobody: a slot that is in use is then given away only now and then ([`STUBBORNNESS`]).
//!
//! An entry that has ended is a miss, and is let go when its place is needed; it is safe to be late with that, as it
//! costs only memory.
//!
//! A key names its input port, and ports are unique in the process, so one cache serves all switches.

use crate::entry::FlowEntry;
use crate::hash::Seed;
use flow::ExactKey;
use std::sync::Arc;

/// Entries of a cache unless told otherwise: 512 KiB.
pub const DEFAULT_CACHE_ENTRIES: usize = 4096;

const WAYS: usize = 2;

/// One in so many insertions replaces a flow that is in use.
const STUBBORNNESS: u32 = 8;

/// A place in the cache, as good as the key it was found for until the next insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Slot {
    /// Of the key, if there is an entry.
    hash: u64,
    entry: Option<Arc<FlowEntry>>,
    key: ExactKey,
    /// Used later than the other way of the set.
    recent: bool,
    /// On the list of those that were counted.
    counted: bool,
    tcp_flags: u16,
    packets: u32,
    bytes: u64,
}

impl Slot {
    #[inline]
    fn is_live(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.is_live())
    }

    /// Tells the flow what was counted.
    fn tell(&mut self, now_ms: u64) {
        if let Some(entry) = self.entry.as_ref().filter(|_| self.packets > 0) {
            entry.record(self.packets.into(), self.bytes, self.tcp_flags, now_ms);
        }
        (self.packets, self.bytes, self.tcp_flags, self.counted) = (0, 0, 0, false);
    }
}

/// Exact keys and the flows they belong to.
#[derive(Debug)]
pub struct MicroflowCache {
    /// The ways of a set are neighbours. None before the first insertion, as not every thread has one.
    slots: Box<[Slot]>,
    entries: usize,
    set_mask: usize,
    seed: &'static Seed,
    /// Slots with counts that their flows have not been told.
    counted: Vec<u32>,
    insertions: u32,
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
        MicroflowCache {
            slots: Box::default(),
            entries,
            set_mask: entries / WAYS - 1,
            seed: Seed::process(),
            counted: Vec::new(),
            insertions: 0,
        }
    }

    /// The hash of a key, to be passed to the other functions.
    #[inline]
    pub fn hash(&self, key: &ExactKey) -> u64 {
        if key.is_short() {
            self.seed.pairs::<{ ExactKey::SHORT_WORDS / 2 }>(&key.words)
        } else {
            self.seed.pairs::<{ ExactKey::WORDS / 2 }>(&key.words)
        }
    }

    /// The place of a key, if it is there and its flow has not ended.
    #[inline]
    pub fn find(&self, hash: u64, key: &ExactKey) -> Option<Place> {
        let place = self.place(hash, key)?;
        self.slots[place.0 as usize].is_live().then_some(place)
    }

    /// Counts a packet of the flow at a place, which is told by [`tell`](Self::tell); and the flow, unless it has
    /// ended meanwhile.
    #[inline]
    pub fn hit(&mut self, place: Place, bytes: usize, tcp_flags: u16) -> Option<&Arc<FlowEntry>> {
        let slot = &mut self.slots[place.0 as usize];
        slot.packets += 1;
        slot.bytes += bytes as u64;
        slot.tcp_flags |= tcp_flags;
        if !(slot.counted && slot.recent) {
            self.note(place);
        }
        let entry = self.slots[place.0 as usize].entry.as_ref()?;
        entry.is_live().then_some(entry)
    }

    /// A place is counted, and used later than its neighbour.
    #[cold]
    fn note(&mut self, place: Place) {
        let slot = &mut self.slots[place.0 as usize];
        if !slot.counted {
            self.counted.push(place.0);
        }
        (slot.counted, slot.recent) = (true, true);
        self.slots[place.0 as usize ^ 1].recent = false;
    }

    /// Tells all flows what was counted. To be called every few milliseconds, and before the thread sleeps.
    pub fn tell(&mut self, now_ms: u64) {
        for place in self.counted.drain(..) {
            self.slots[place as usize].tell(now_ms);
        }
    }

    /// Remembers that `key` belongs to `entry`, instead of whatever was known of it - if there is a place for it.
    #[inline]
    pub fn insert(&mut self, hash: u64, key: &ExactKey, entry: &Arc<FlowEntry>, now_ms: u64) {
        self.insertions = self.insertions.wrapping_add(1);
        if self.slots.is_empty() {
            self.slots = (0..self.entries).map(|_| Slot::default()).collect();
            self.counted.reserve(self.entries);
        }
        let Some(place) = self.place(hash, key).or_else(|| self.victim(hash)) else {
            return;
        };
        let slot = &mut self.slots[place.0 as usize];
        let counted = slot.counted;
        slot.tell(now_ms);
        // Still on the list.
        slot.counted = counted;
        slot.hash = hash;
        slot.entry = Some(Arc::clone(entry));
        slot.key = *key;
        slot.recent = true;
        self.slots[place.0 as usize ^ 1].recent = false;
    }

    /// Keys it can hold.
    pub fn capacity(&self) -> usize {
        self.entries
    }

    /// Keys held, of ended flows as well.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.entry.is_some()).count()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a key is, live or not.
    #[inline]
    fn place(&self, hash: u64, key: &ExactKey) -> Option<Place> {
        let first = self.set(hash);
        let way = |way: usize| {
            let slot = self.slots.get(first + way)?;
            let same = slot.hash == hash && slot.key == *key && slot.entry.is_some();
            same.then_some(Place((first + way) as u32))
        };
        way(0).or_else(|| way(1))
    }

    /// The first slot of the set.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        (hash as usize & self.set_mask) * WAYS
    }

    /// The place for a new key: a free one, one whose flow has ended, or now and then the one used less recently.
    fn victim(&self, hash: u64) -> Option<Place> {
        let first = self.set(hash);
        let free = (first..first + WAYS).find(|&slot| !self.slots[slot].is_live());
        let older = || first + usize::from(self.slots[first].recent);
        let replace = self.insertions.is_multiple_of(STUBBORNNESS);
        free.or_else(|| replace.then(older))
            .map(|slot| Place(slot as u32))
    }
}
