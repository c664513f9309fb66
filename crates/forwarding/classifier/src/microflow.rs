//! The exact-match cache of one worker thread.
//!
//! Most packets are treated like one that came a moment ago. The cache keeps the decision for a key, or
//! rather for the bits of the key that any flow matches
//! ([`PortFlows::mask_union`](crate::PortFlows::mask_union)), so that packets need one hash and one
//! comparison, whatever the number of masks. A slot is two cache lines. The first has the hash, the flow and
//! all of a usual packet's key. The second has the other words of the key, and the counts since they were
//! last flushed to the flows' statistics, which other threads share and which are therefore slow to write.
//!
//! Each set has two ways, and no chains. A key that finds both taken goes to a second set ([`second_set`]),
//! which is looked at only if the key is not in the first one. So neither look-up nor insertion ever takes
//! much longer than usual. The cache grows with the number of connections, a set at a time, by linear hashing
//! (W. Litwin, VLDB 1980): an insertion that finds one in [`FULLNESS`] slots taken appends a set, which gets
//! its share of another one's keys. So no insertion stands still for the others, and a thread with few
//! connections needs little memory, all of it near.
//!
//! When there are more connections than slots, replacing does not help: a slot that is taken is then replaced
//! only once in [`REPLACEMENT_INTERVAL`] insertions, by the one of its set that was used less recently. The
//! other insertions read nothing of the decisions that are there, which would mostly have to come from
//! memory.
//!
//! A decision that has ended is a miss, and is dropped when its place is needed; dropping it late costs only
//! memory.
//!
//! A key names its input port, and ports are unique in the process, so one cache serves all switches.

mod second_set;

pub use second_set::second;

use crate::decision::{Counter, Decision};
use crate::hash::Seed;
use crate::tally::Tally;
use crate::train::Train;
use cpu::{Access, prefetch};
use flow::ExactKey;
use std::sync::Arc;

/// Entries of a cache at first: 512 KiB.
pub const FIRST_CACHE_ENTRIES: usize = 4096;
/// Entries that a cache grows to by default: 16 MiB.
pub const DEFAULT_CACHE_ENTRIES: usize = 131_072;

const WAYS: usize = 2;

/// The cache grows when one in so many slots is taken: keys that find their set taken are few then.
const FULLNESS: usize = 3;

/// The slots that the same keys can take.
type Set = [Slot; WAYS];

/// One in this many insertions replaces a slot that is taken.
const REPLACEMENT_INTERVAL: u32 = 32;

/// The place of a decision in a cache, until the next insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    set: u32,
    way: u8,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Slot {
    /// Hash of the key, if there is a decision.
    hash: u64,
    decision: Option<Arc<Decision>>,
    key: ExactKey,
    /// Used later than the other way of the set.
    recent: bool,
    /// On the list of slots with counts.
    counted: bool,
    train: Train,
}

impl Slot {
    #[inline]
    fn prefetch(&self) {
        prefetch(&raw const self.hash, Access::Read);
        prefetch(&raw const self.train, Access::Write);
    }

    #[inline]
    fn is_live(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.is_live())
    }

    /// Whether the decision holds, and its packets are counted when they come: the usual case.
    #[inline]
    fn counts_at_once(&self) -> bool {
        self.decision
            .as_ref()
            .is_some_and(|decision| decision.counts_at_once())
    }

    /// The decision, if it holds under any mask and counts apart. `other` is the other way.
    #[inline(never)]
    fn hit_apart(&mut self, other: &mut Slot) -> Option<&Arc<Decision>> {
        let decision = self
            .decision
            .as_ref()
            .filter(|decision| decision.holds_and_counts_apart())?;
        (self.recent, other.recent) = (true, false);
        Some(decision)
    }

    /// Whether the slot is for that key, live or not.
    #[inline]
    fn is_for(&self, hash: u64, key: &ExactKey, mask: impl Fn(usize) -> u64) -> bool {
        self.hash == hash && self.key.is_equal_in(key, mask) && self.decision.is_some()
    }

    /// Adds the slot's counts to the flows' statistics.
    fn flush_stats(&mut self, now_ms: u64) {
        let mut tally = Tally::default();
        self.tally(&mut tally, now_ms);
        tally.flush(now_ms);
    }

    /// Adds the slot's counts to the flows' statistics, or to the tally.
    fn tally(&mut self, tally: &mut Tally<Counter>, now_ms: u64) {
        let train = std::mem::take(&mut self.train);
        if let Some(decision) = self.decision.as_ref().filter(|_| train.packets > 0) {
            decision.tally(&train, tally, now_ms);
        }
        self.counted = false;
    }
}

/// Keys with their decisions.
#[derive(Debug)]
pub struct MicroflowCache {
    /// Empty before the first insertion, as not every thread inserts. Then there is room for all, which is no
    /// memory before it is used.
    sets: Vec<Set>,
    /// How many sets there may be.
    most: usize,
    /// The bits of a hash that tell a set: of which there are as many, or some are still to come.
    set_mask: usize,
    /// Keys held, of ended flows as well.
    held: usize,
    seed: &'static Seed,
    /// Slots with counts that are not yet in their flows' statistics.
    counted: Vec<Place>,
    insertions: u32,
}

impl Default for MicroflowCache {
    fn default() -> Self {
        MicroflowCache::new(DEFAULT_CACHE_ENTRIES)
    }
}

impl MicroflowCache {
    /// An empty cache that grows up to `entries` keys, rounded up to a power of two, at least 2.
    pub fn new(entries: usize) -> MicroflowCache {
        let most = entries.max(WAYS).next_power_of_two() / WAYS;
        MicroflowCache {
            sets: Vec::new(),
            most,
            set_mask: most.min(FIRST_CACHE_ENTRIES / WAYS) - 1,
            held: 0,
            seed: Seed::process(),
            counted: Vec::new(),
            insertions: 0,
        }
    }

    /// The hash of the key under the mask. The other functions take it together with key and mask.
    #[inline]
    pub fn hash(&self, key: &ExactKey, mask: impl Fn(usize) -> u64) -> u64 {
        let word = |word: usize| key.words[word] & mask(word);
        if key.is_short() {
            self.seed.pairs::<{ ExactKey::SHORT_WORDS / 2 }>(word)
        } else {
            self.seed.pairs::<{ ExactKey::WORDS / 2 }>(word)
        }
    }

    /// Prefetches what [`hit`](Self::hit) reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(set) = self.sets.get(self.set(hash)) {
            set.iter().for_each(Slot::prefetch);
        }
    }

    /// Prefetches what the decision about a key consists of, if the slots are there already.
    #[inline]
    pub fn prefetch_decision(&self, hash: u64) {
        let set = self.sets.get(self.set(hash));
        let slot = set.and_then(|set| set.iter().find(|slot| slot.hash == hash));
        if let Some(decision) = slot.and_then(|slot| slot.decision.as_ref()) {
            prefetch(Arc::as_ptr(decision), Access::Read);
        }
    }

    /// The decision about a key in the set of this hash, if one is known and holds. Counts the packets,
    /// unless the decision [counts apart](Decision::counts_apart); [`flush_stats`](Self::flush_stats) adds
    /// them to the flows' statistics.
    #[inline]
    pub fn hit(
        &mut self,
        hash: u64,
        key: &ExactKey,
        mask: impl Fn(usize) -> u64 + Copy,
        train: &Train,
    ) -> Option<&Arc<Decision>> {
        let index = self.set(hash);
        let set = self.sets.get_mut(index)?;
        let way = way_of(set, hash, key, mask)?;
        let [slot, other] = in_order(set, way);
        if !slot.counts_at_once() {
            return slot.hit_apart(other);
        }
        slot.train.append(train);
        if !slot.counted {
            slot.counted = true;
            self.counted.push(Place {
                set: index as u32,
                way: way as u8,
            });
        }
        if !slot.recent {
            (slot.recent, other.recent) = (true, false);
        }
        slot.decision.as_ref()
    }

    /// The place of a key's decision, in either of its sets.
    pub fn place(&self, hash: u64, key: &ExactKey, mask: impl Fn(usize) -> u64 + Copy) -> Option<Place> {
        [hash, second(hash)].into_iter().find_map(|hash| {
            let set = self.set(hash);
            let way = way_of(self.sets.get(set)?, hash, key, mask)?;
            Some(Place {
                set: set as u32,
                way: way as u8,
            })
        })
    }

    /// The decision at a place.
    pub fn at(&self, place: Place) -> Option<&Arc<Decision>> {
        self.slot(place).decision.as_ref()
    }

    /// Notes that the decision at a place was used.
    pub(crate) fn touch(&mut self, place: Place) {
        let [slot, other] = in_order(&mut self.sets[place.set as usize], place.way.into());
        (slot.recent, other.recent) = (true, false);
    }

    /// Counts packets of a decision that [counts apart](Decision::counts_apart), which its meters let pass,
    /// as [`hit`](Self::hit) counts those of others.
    pub fn count(&mut self, place: Place, train: &Train) {
        let slot = &mut self.sets[place.set as usize][usize::from(place.way)];
        slot.train.append(train);
        if !slot.counted {
            slot.counted = true;
            self.counted.push(place);
        }
    }

    /// Adds all counts to the flows' statistics. The thread calls this every few milliseconds, and before it
    /// sleeps.
    pub fn flush_stats(&mut self, now_ms: u64) {
        /// So many others are counted while one more piece of a decision comes from memory, which says where
        /// the next one is.
        const AHEAD: usize = 6;
        let mut tally = Tally::default();
        for at in 0..self.counted.len() {
            let later = |stage: usize| {
                self.counted
                    .get(at + stage * AHEAD)
                    .map(|&place| self.slot(place))
            };
            let decision = |stage| later(stage).and_then(|slot| slot.decision.as_ref());
            later(4).inspect(|slot| slot.prefetch());
            decision(3).inspect(|decision| decision.prefetch());
            decision(2).inspect(|decision| decision.prefetch_list());
            decision(1).inspect(|decision| decision.prefetch_counters());
            let Place { set, way } = self.counted[at];
            self.sets[set as usize][usize::from(way)].tally(&mut tally, now_ms);
        }
        tally.flush(now_ms);
        self.counted.clear();
    }

    /// Stores the decision for a key, in place of an earlier one, if there is a slot for it.
    #[inline]
    pub fn insert(
        &mut self,
        hash: u64,
        key: &ExactKey,
        mask: impl Fn(usize) -> u64 + Copy,
        decision: &Arc<Decision>,
        now_ms: u64,
    ) {
        self.insertions = self.insertions.wrapping_add(1);
        if self.sets.is_empty() {
            self.sets.reserve_exact(self.most);
            self.counted.reserve_exact(self.most * WAYS);
            self.sets.resize_with(self.set_mask + 1, Set::default);
        } else if FULLNESS * self.held > self.sets.len() * WAYS && self.sets.len() < self.most {
            self.split(now_ms);
        }
        let replace = self.insertions.is_multiple_of(REPLACEMENT_INTERVAL);
        let Some((hash, way)) = self.room_for(hash, key, mask, replace, now_ms) else {
            return;
        };
        let index = self.set(hash);
        let [slot, other] = in_order(&mut self.sets[index], way);
        self.held += usize::from(slot.decision.is_none());
        let counted = slot.counted;
        slot.flush_stats(now_ms);
        // Still on the list.
        slot.counted = counted;
        slot.hash = hash;
        slot.decision = Some(Arc::clone(decision));
        // All of it: the mask of a later look may have other bits than this one.
        slot.key = *key;
        (slot.recent, other.recent) = (true, false);
    }

    /// Appends a set, to which the keys of another one go whose hashes differ in the bit that tells the two.
    fn split(&mut self, now_ms: u64) {
        let new = self.sets.len();
        if new > self.set_mask {
            self.set_mask = 2 * self.set_mask + 1;
        }
        let old = new & (self.set_mask / 2);
        let mut set = Set::default();
        for (slot, to) in self.sets[old].iter_mut().zip(&mut set) {
            if slot.decision.is_some() && slot.hash as usize & self.set_mask == new {
                let counted = slot.counted;
                slot.flush_stats(now_ms);
                *to = std::mem::take(slot);
                // Still on the list.
                slot.counted = counted;
            }
        }
        self.sets.push(set);
    }

    /// Keys that the cache can hold as it is now.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Keys held, of ended flows as well.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether the cache holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, place: Place) -> &Slot {
        &self.sets[place.set as usize][usize::from(place.way)]
    }

    /// The number of a key's set.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        let set = hash as usize & self.set_mask;
        if set < self.sets.len() {
            set
        } else {
            set & (self.set_mask / 2)
        }
    }
}

/// The way of a set where a key is, live or not.
#[inline]
fn way_of(set: &Set, hash: u64, key: &ExactKey, mask: impl Fn(usize) -> u64 + Copy) -> Option<usize> {
    if set[0].is_for(hash, key, mask) {
        Some(0)
    } else {
        set[1].is_for(hash, key, mask).then_some(1)
    }
}

/// The slot of that way, and the slot of the other way.
#[inline]
fn in_order(set: &mut Set, way: usize) -> [&mut Slot; WAYS] {
    let [first, second] = set;
    if way == 0 {
        [first, second]
    } else {
        [second, first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Meter, Part, compose};
    use crate::entry::FlowEntry;
    use flow::{Action, Flow, FlowId, FlowKey, FlowMask, Program, Stage, SwitchId};

    fn entry(id: u128) -> FlowEntry {
        let flow = Flow::new(
            FlowId(id),
            SwitchId(0),
            FlowKey::default(),
            FlowMask::ANY,
            Vec::new(),
        );
        FlowEntry::new(flow).unwrap()
    }

    /// A hit reads two lines of the processor's cache: hash and decision with the key's front, and the rest.
    #[test]
    fn a_slot_is_two_lines_of_the_processors_cache() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (128, 64));
    }

    /// Keys that differ under the mask have different hashes, others the same.
    #[test]
    fn hashes_are_of_the_bits_under_the_mask() {
        let cache = MicroflowCache::new(8);
        let long = ExactKey::default();
        let mut short = ExactKey::default();
        short.set_short(1, [2, 3], 4, 5);
        assert!(short.is_short() && !long.is_short());
        for (key, words) in [(short, ExactKey::SHORT_WORDS), (long, ExactKey::WORDS)] {
            for word in 0..words {
                let mut other = key;
                other.words[word] ^= 1;
                let without = |at| if at == word { u64::MAX - 1 } else { u64::MAX };
                assert_ne!(cache.hash(&key, |_| u64::MAX), cache.hash(&other, |_| u64::MAX));
                assert_eq!(cache.hash(&key, without), cache.hash(&other, without));
            }
        }
    }

    #[test]
    fn a_decision_that_counts_apart_is_hit_and_counted_where_it_is() {
        let flow = Arc::new(entry(1));
        let program = Program::compile(
            &[Action::Meter(3), Action::Output(flow::PortId(7))],
            Stage::Forward,
        );
        let meter = Meter { at: 0, behind: 0..1 };
        let decision = compose(program.unwrap(), &[Part::of(&flow)], &[meter], None, None);
        assert!(decision.counts_apart());
        let (key, mask) = (ExactKey::default(), |_| u64::MAX);
        let mut cache = MicroflowCache::new(8);
        let mut train = Train::default();
        train.add(64, 0);
        cache.insert(7, &key, mask, &decision, 0);
        let found = cache.hit(7, &key, mask, &train).unwrap();
        assert!(Arc::ptr_eq(found, &decision));
        cache.flush_stats(0);
        assert_eq!(flow.stats(0).packets, 0, "the meter has not been asked");
        cache.count(cache.place(7, &key, mask).unwrap(), &train);
        cache.flush_stats(0);
        assert_eq!(flow.stats(0).packets, 1);
        flow.kill();
        assert!(cache.hit(7, &key, mask, &train).is_none());
    }

    /// Keys whose set is still to come are where the split that makes it looks for them.
    #[test]
    fn a_growing_cache_keeps_its_keys() {
        const KEYS: u64 = 6000;
        let (mask, decision) = (|_| u64::MAX, entry(1).decision);
        let keyed = |number: u64| {
            let mut key = ExactKey::default();
            key.words[0] = number;
            (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20, key)
        };
        let mut cache = MicroflowCache::new(4 * FIRST_CACHE_ENTRIES);
        for (hash, key) in (0..KEYS).map(keyed) {
            cache.insert(hash, &key, mask, &decision, 0);
        }
        assert!(cache.capacity() > 2 * FIRST_CACHE_ENTRIES);
        let found = (0..KEYS)
            .map(keyed)
            .filter(|(hash, key)| cache.place(*hash, key, mask).is_some());
        let found = found.count() as u64;
        assert!(found > KEYS * 95 / 100, "{found} of {KEYS}");
    }

    /// Hashes come from the caller: the lower half says the first set, and the upper half the second one.
    #[test]
    fn keys_that_find_both_sets_taken_have_others_give_way() {
        let flows: Vec<_> = (0..7).map(entry).collect();
        let (mask, mut train) = (|_| u64::MAX, Train::default());
        train.add(100, 0);
        let hash = |first: u64, second: u64| second << 32 | first;
        let keys = [
            hash(7, 8),
            hash(7, 9),
            hash(7, 8),
            hash(7, 8),
            hash(7, 8),
            hash(7, 8),
        ];
        let keyed = |number: usize| {
            let mut key = ExactKey::default();
            key.words[0] = number as u64;
            (keys[number], key)
        };
        let mut cache = MicroflowCache::new(64);
        let found_by = |cache: &mut MicroflowCache, number: usize| {
            let (hash, key) = keyed(number);
            let hit = |hash| cache.hit(hash, &key, mask, &train).is_some();
            [hash, second(hash)].map(hit)
        };
        let insert = |cache: &mut MicroflowCache, number: usize| {
            let (hash, key) = keyed(number);
            cache.insert(hash, &key, mask, &flows[number].decision, 0);
        };
        (0..2).for_each(|number| insert(&mut cache, number));
        assert_eq!(found_by(&mut cache, 1), [true, false]);
        (2..4).for_each(|number| insert(&mut cache, number));
        assert_eq!(found_by(&mut cache, 3), [false, true], "in its second set");
        insert(&mut cache, 4);
        assert_eq!(found_by(&mut cache, 4), [true, false]);
        assert_eq!(found_by(&mut cache, 1), [false, true], "it gave way");
        insert(&mut cache, 5);
        assert_eq!(
            found_by(&mut cache, 5),
            [false, false],
            "all others have the same two sets"
        );
        assert!((0..5).all(|number| found_by(&mut cache, number) != [false; 2]));
        assert_eq!(cache.len(), 5);
        cache.flush_stats(0);
        let counted: Vec<u64> = flows.iter().map(|flow| flow.stats(0).packets).collect();
        assert_eq!(counted, [1, 3, 1, 2, 2, 0, 0]);
    }

    /// To count is part of forwarding, which allocates nothing.
    #[test]
    fn there_is_room_to_count_in_every_slot() {
        let mut cache = MicroflowCache::new(64);
        let key = ExactKey::default();
        cache.insert(7, &key, |_| u64::MAX, &entry(1).decision, 0);
        assert!(cache.counted.capacity() >= 64);
    }

    /// The hash comes from the caller: here it is the same for both keys.
    #[test]
    fn keys_with_equal_hashes_are_told_apart() {
        let [one, other] = [1, 2].map(|mac| {
            let mut key = FlowKey::default();
            key.set_eth_dst(mac);
            ExactKey::of(&key)
        });
        let decisions = [1, 2].map(|id| entry(id).decision);
        let (hash, train) = (7, Train::default());
        let mask = |_| u64::MAX;
        let mut cache = MicroflowCache::new(8);
        assert!(cache.is_empty());
        cache.insert(hash, &one, mask, &decisions[0], 0);
        assert!(!cache.is_empty());
        assert!(cache.hit(hash, &other, mask, &train).is_none());
        cache.insert(hash, &other, mask, &decisions[1], 0);
        for (key, decision) in [one, other].iter().zip(&decisions) {
            let found = cache.hit(hash, key, mask, &train).unwrap();
            assert!(Arc::ptr_eq(found, decision));
            let place = cache.place(hash, key, mask).unwrap();
            assert!(cache.at(place).is_some_and(|at| Arc::ptr_eq(at, decision)));
        }
        assert_eq!(cache.len(), 2);
    }
}
