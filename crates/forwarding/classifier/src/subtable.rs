//! All flows with one mask of keys and contexts: a hash table over the bits the mask has, searched in stages.
//!
//! A mask that reaches into several layers is hashed layer by layer (Pfaff et al., NSDI 2015, 5.3): link,
//! network, transport, each of which is a prefix of the key's words. After each layer but the last, a filter
//! says whether any flow may begin like the key; mostly none does, and the look-up ends there.
//!
//! A subtable never grows by itself: growing takes time in proportion to the flows, while look-ups would
//! wait. When [`Subtable::is_full`], the owner makes a larger one with [`Subtable::grown`] while look-ups go
//! on.

use crate::decision::Decision;
use crate::entry::FlowEntry;
use crate::hash::Seed;
use crate::prefixes::Prefixes;
use cpu::{Access, prefetch};
use flow::{Context, Flow, FlowKey, FlowMask};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Flows that a new subtable has room for, at least.
const LEAST_ROOM: usize = 4;

/// The first of two words of metadata at the end of the key.
const METADATA: usize = 14;

/// The last layer in which a mask has bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// Words 0 to 3, and all other metadata: nearly all flows name one port, and later passes differ in
    /// little else.
    Link,
    /// Words 4 to 8.
    Network,
    /// Word 9.
    Transport,
    /// Words 10 to 13, after the transport layer.
    NeighbourDiscovery,
}

impl Depth {
    fn of(mask: &FlowMask) -> Depth {
        let has = |words: std::ops::Range<usize>| mask.0.words[words].iter().any(|&word| word != 0);
        if has(10..METADATA) {
            Depth::NeighbourDiscovery
        } else if has(9..10) {
            Depth::Transport
        } else if has(4..9) {
            Depth::Network
        } else {
            Depth::Link
        }
    }
}

/// A hash good enough for a filter. Where words differ by a power of two, the sums' halves differ in the
/// secret's bits, shifted: those that the shift takes out of one half are in the other.
#[inline]
fn folded(sum: u128) -> u64 {
    (sum >> 64) as u64 ^ sum as u64
}

/// A flow with its hash, which saves following the pointer for most that do not match, and its decision,
/// which is prefetched together with the flow.
#[derive(Debug)]
struct Hashed {
    hash: u64,
    decision: Arc<Decision>,
    entry: Arc<FlowEntry>,
}

/// A place of a subtable where the flow of some packet most likely is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    subtable: &'a Subtable,
    /// Of the packet.
    hash: u64,
    place: &'a Hashed,
}

impl<'a> Candidate<'a> {
    fn is_likely(&self) -> bool {
        self.place.hash == self.hash
    }

    /// Prefetches the flow and its decision.
    #[inline]
    pub fn prefetch(&self) {
        if self.is_likely() {
            self.place.entry.prefetch();
            self.place.decision.prefetch();
        }
    }

    /// Prefetches what a walk reads of the flow besides. The flow itself is read.
    #[inline]
    pub fn prefetch_for_walk(&self) {
        if self.is_likely() {
            self.place.entry.prefetch_for_walk();
        }
    }

    /// The flow, if packets with this key and context belong to it.
    #[inline]
    pub fn get(&self, key: &FlowKey, context: &Context) -> Option<&'a Arc<FlowEntry>> {
        let found = self.is_likely() && self.subtable.is_match(&self.place.entry.flow, key, context);
        found.then_some(&self.place.entry)
    }
}

#[derive(Debug)]
pub(crate) struct Subtable {
    mask: FlowMask,
    /// The mask of contexts, if the flows compare any of their bits.
    context: Option<Box<Context>>,
    depth: Depth,
    /// Whether the mask has bits in the last words.
    metadata: bool,
    /// Link layers of flows, if the mask reaches further.
    links: Prefixes,
    /// Link and network layers of flows, if the mask reaches further.
    networks: Prefixes,
    flows: HashTable<Hashed>,
    seed: &'static Seed,
    hits: Hits,
}

/// Number of look-ups that ended here, by which subtables are sorted. On a cache line apart from what
/// look-ups read.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Hits(AtomicU64);

impl Subtable {
    /// An empty subtable for flows with the masks of this one.
    pub(crate) fn for_flow(flow: &Flow) -> Subtable {
        let context = flow.context.as_ref().map(|context| Box::new(context.mask));
        Subtable::with_room(flow.mask, context, LEAST_ROOM)
    }

    fn with_room(mask: FlowMask, context: Option<Box<Context>>, room: usize) -> Subtable {
        let flows = HashTable::with_capacity(room);
        let depth = Depth::of(&mask);
        let prefixes = |needed| Prefixes::new(if needed { flows.capacity() } else { 0 });
        Subtable {
            mask,
            context,
            depth,
            metadata: mask.0.words[METADATA..].iter().any(|&word| word != 0),
            links: prefixes(depth > Depth::Link),
            networks: prefixes(depth > Depth::Network),
            flows,
            seed: Seed::process(),
            hits: Hits::default(),
        }
    }

    /// Whether the next flow needs another subtable.
    pub(crate) fn is_full(&self) -> bool {
        self.flows.len() == self.flows.capacity()
    }

    /// A copy with room for half as many flows again.
    pub(crate) fn grown(&self) -> Subtable {
        let room = self.flows.len() + (self.flows.len() / 2).max(LEAST_ROOM);
        let mut grown = Subtable::with_room(self.mask, self.context.clone(), room);
        grown.hits.0 = AtomicU64::new(self.hits());
        self.flows
            .iter()
            .for_each(|flow| grown.add(Arc::clone(&flow.entry)));
        grown
    }

    pub(crate) fn mask(&self) -> &FlowMask {
        &self.mask
    }

    /// Whether a flow has these masks.
    pub(crate) fn is_for(&self, flow: &Flow) -> bool {
        self.mask == flow.mask
            && self.context.as_deref() == flow.context.as_ref().map(|context| &context.mask)
    }

    pub(crate) fn has_masks_of(&self, other: &Subtable) -> bool {
        self.mask == other.mask && self.context == other.context
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.0.load(Ordering::Relaxed)
    }

    /// Counts look-ups that ended here.
    pub(crate) fn hit(&self, count: u64) {
        self.hits.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Halves the count of hits, so that the order of subtables follows the traffic.
    pub(crate) fn age_hits(&mut self) {
        *self.hits.0.get_mut() /= 2;
    }

    /// The place where [`get`](Self::get) most likely finds a flow. Prefetches it, without waiting.
    #[inline]
    pub(crate) fn candidate(&self, key: &FlowKey, context: &Context) -> Option<Candidate<'_>> {
        let hash = self.hash(key, context);
        let place = self.flows.iter_hash(hash).next()?;
        prefetch(place, Access::Read);
        Some(Candidate {
            subtable: self,
            hash,
            place,
        })
    }

    /// Whether packets with this key and context belong to a flow of this subtable.
    #[inline]
    fn is_match(&self, flow: &Flow, key: &FlowKey, context: &Context) -> bool {
        matches(&flow.key, key, &self.mask) && (self.context.is_none() || self.matches_context(flow, context))
    }

    /// The flow that packets with this key and context belong to.
    #[inline]
    pub(crate) fn get(&self, key: &FlowKey, context: &Context) -> Option<&Arc<FlowEntry>> {
        let mut sum = self.link(key, context);
        if self.depth > Depth::Link {
            if !self.links.may_have(folded(sum)) {
                return None;
            }
            sum = sum.wrapping_add(self.network(key));
        }
        if self.depth > Depth::Network {
            if !self.networks.may_have(folded(sum)) {
                return None;
            }
            sum = sum.wrapping_add(self.transport(key));
        }
        let hash = self.seed.finish(sum);
        let is_wanted = |flow: &Hashed| flow.hash == hash && self.is_match(&flow.entry.flow, key, context);
        Some(&self.flows.find(hash, is_wanted)?.entry)
    }

    fn hash(&self, key: &FlowKey, context: &Context) -> u64 {
        let mut sum = self.link(key, context);
        if self.depth > Depth::Link {
            sum = sum.wrapping_add(self.network(key));
        }
        if self.depth > Depth::Network {
            sum = sum.wrapping_add(self.transport(key));
        }
        self.seed.finish(sum)
    }

    #[inline]
    fn link(&self, key: &FlowKey, context: &Context) -> u128 {
        let mut sum = self.pair(0, key).wrapping_add(self.pair(1, key));
        if self.metadata {
            sum = sum.wrapping_add(self.pair(METADATA / 2, key));
        }
        if let Some(mask) = &self.context {
            sum = sum.wrapping_add(self.seed.context(|word| context.words[word] & mask.words[word]));
        }
        sum
    }

    /// The network layer's part of the hash.
    ///
    /// The pair of words that it shares with the transport layer is added twice, with one word cleared each
    /// time: with w and v the words, p and q their secrets, that is (w + p)q + p(v + q), whose differences
    /// are as hard to predict as those of (w + p)(v + q).
    #[inline]
    fn network(&self, key: &FlowKey) -> u128 {
        let address = self.seed.pair(4, [self.word(8, key), 0]);
        address
            .wrapping_add(self.pair(2, key))
            .wrapping_add(self.pair(3, key))
    }

    #[inline]
    fn transport(&self, key: &FlowKey) -> u128 {
        let transport = self.seed.pair(4, [0, self.word(9, key)]);
        if self.depth == Depth::NeighbourDiscovery {
            (5..METADATA / 2).fold(transport, |sum, number| sum.wrapping_add(self.pair(number, key)))
        } else {
            transport
        }
    }

    #[inline]
    fn pair(&self, number: usize, key: &FlowKey) -> u128 {
        let words = [self.word(2 * number, key), self.word(2 * number + 1, key)];
        self.seed.pair(number, words)
    }

    #[inline]
    fn word(&self, word: usize, key: &FlowKey) -> u64 {
        key.words[word] & self.mask.0.words[word]
    }

    /// Adds a flow that has this mask and whose key is not there yet. The subtable is not full.
    pub(crate) fn insert(&mut self, entry: Arc<FlowEntry>) {
        debug_assert!(self.is_for(&entry.flow) && self.same_match(&entry.flow).is_none());
        debug_assert!(!self.is_full());
        self.add(entry);
    }

    /// The flow for exactly the packets that `flow`, which has this mask, is for.
    pub(crate) fn same_match(&self, flow: &Flow) -> Option<&Arc<FlowEntry>> {
        self.get(&flow.key, context_of(flow))
    }

    fn add(&mut self, entry: Arc<FlowEntry>) {
        let hash = self.count(&entry.flow, Prefixes::add);
        let decision = Arc::clone(&entry.decision);
        let flow = Hashed {
            hash,
            decision,
            entry,
        };
        self.flows.insert_unique(hash, flow, |flow| flow.hash);
    }

    /// Takes out the flow with exactly the match of this one, which is there.
    pub(crate) fn remove(&mut self, flow: &Flow) -> Option<Arc<FlowEntry>> {
        let hash = self.count(flow, Prefixes::remove);
        let same = |other: &Hashed| {
            let other_flow = &other.entry.flow;
            other.hash == hash && other_flow.key == flow.key && other_flow.context == flow.context
        };
        match self.flows.entry(hash, same, |flow| flow.hash) {
            Entry::Occupied(flow) => Some(flow.remove().0.entry),
            Entry::Vacant(_) => None,
        }
    }

    /// Counts a flow in or out in the filters; returns its hash.
    fn count(&mut self, flow: &Flow, change: impl Fn(&mut Prefixes, u64)) -> u64 {
        let (key, context) = (&flow.key, context_of(flow));
        let link = self.link(key, context);
        if self.depth > Depth::Link {
            change(&mut self.links, folded(link));
        }
        if self.depth > Depth::Network {
            let network = link.wrapping_add(self.network(key));
            change(&mut self.networks, folded(network));
        }
        self.hash(key, context)
    }

    #[cold]
    fn matches_context(&self, flow: &Flow, context: &Context) -> bool {
        let mask = self.context.as_deref().unwrap_or(&Context::NONE);
        context.masked(mask) == *context_of(flow)
    }
}

/// The bits of contexts that a flow matches, with all other bits cleared.
fn context_of(flow: &Flow) -> &Context {
    flow.context
        .as_ref()
        .map_or(&Context::NONE, |context| &context.context)
}

/// Whether a flow's key is what `mask` leaves of `key`.
#[inline]
fn matches(flow: &FlowKey, key: &FlowKey, mask: &FlowMask) -> bool {
    let words = flow.words.iter().zip(&key.words).zip(&mask.0.words);
    words.fold(0, |differences, ((flow, key), mask)| {
        differences | (flow ^ key) & mask
    }) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{ContextMatch, FlowId, KEY_WORDS, SwitchId};

    fn key(words: [u64; 2]) -> FlowKey {
        let mut key = FlowKey::default();
        key.words[..2].copy_from_slice(&words);
        key
    }

    fn flow(id: u128, key: FlowKey, mask: FlowMask) -> Flow {
        Flow::new(FlowId(id), SwitchId(0), key, mask, Vec::new())
    }

    /// With known secrets two keys have the same hashes in all layers, and are different keys all the same.
    #[test]
    fn keys_with_equal_hashes_are_told_apart() {
        let [one, other] = [key([1, 2]), key([2, 1])];
        for words in [2, KEY_WORDS] {
            let mut mask = FlowMask::ANY;
            mask.0.words[..words].fill(u64::MAX);
            let flows = [flow(1, one, mask), flow(2, other, mask)];
            let mut table = Subtable::for_flow(&flows[0]);
            table.seed = Seed::known();
            let found = |table: &Subtable| {
                [one, other].map(|key| {
                    let found = table.get(&key, &Context::NONE).map(|entry| entry.flow.id);
                    // The first of equal hashes is the candidate, whatever its key.
                    let candidate = table.candidate(&key, &Context::NONE);
                    let hinted = candidate.and_then(|candidate| candidate.get(&key, &Context::NONE));
                    assert!(hinted.is_none_or(|entry| Some(entry.flow.id) == found));
                    found
                })
            };
            let [hash, equal] = [&flows[0], &flows[1]].map(|flow| table.count(flow, |_, _| ()));
            assert_eq!(hash, equal);
            let entries = flows
                .each_ref()
                .map(|flow| Arc::new(FlowEntry::new(flow.clone()).unwrap()));
            table.insert(Arc::clone(&entries[0]));
            assert_eq!(found(&table), [Some(FlowId(1)), None]);
            table.insert(Arc::clone(&entries[1]));
            assert_eq!(found(&table), [Some(FlowId(1)), Some(FlowId(2))]);
            let removed = table.remove(&flows[1]).map(|entry| entry.flow.id);
            assert_eq!(removed, Some(FlowId(2)));
            assert_eq!(found(&table), [Some(FlowId(1)), None]);
        }
    }

    #[test]
    fn contexts_with_equal_hashes_are_told_apart() {
        let context = |words: [u64; 2]| {
            let mut context = Context::NONE;
            context.words[..2].copy_from_slice(&words);
            context
        };
        let [one, other] = [context([1, 2]), context([2, 1])];
        let mask = context([u64::MAX; 2]);
        let flow = Flow {
            context: Some(Box::new(ContextMatch { context: one, mask })),
            ..flow(1, FlowKey::default(), FlowMask::ANY)
        };
        let mut table = Subtable::for_flow(&flow);
        table.seed = Seed::known();
        let key = FlowKey::default();
        assert_eq!(table.hash(&key, &one), table.hash(&key, &other));
        table.insert(Arc::new(FlowEntry::new(flow).unwrap()));
        assert!(table.get(&key, &one).is_some());
        assert!(table.get(&key, &other).is_none());
    }

    /// Nearly all look-ups of packets that begin like no flow end at a filter.
    #[test]
    fn filters_tell_beginnings_apart() {
        const FLOWS: u64 = 128;
        const ROOM: usize = 1024;
        // Numbers in order would often be evenly far apart under the hash, and meet again and again.
        let of = |number: u64| {
            const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
            let mixed = (number + 1).wrapping_mul(FACTOR);
            let mixed = (mixed ^ mixed >> 31).wrapping_mul(FACTOR);
            let mut key = FlowKey::default();
            key.set_eth_dst(mixed >> 16 ^ mixed & 0xffff);
            key.set_ip_src(u128::from(mixed) << 64 | u128::from(mixed.rotate_left(29)));
            key
        };
        let mut mask = FlowMask::ANY;
        mask.0.set_eth_dst(u64::MAX);
        let shallow = Subtable::with_room(mask, None, ROOM);
        assert_eq!(shallow.links.counters(), Prefixes::new(0).counters());
        for depth in [Depth::Network, Depth::Transport] {
            let mut mask = FlowMask::ANY;
            mask.0.set_eth_dst(u64::MAX);
            mask.0.set_ip_src(u128::MAX);
            mask.0
                .set_tp_dst(if depth == Depth::Transport { u16::MAX } else { 0 });
            let mut table = Subtable::with_room(mask, None, ROOM);
            assert_eq!(table.depth, depth);
            for number in 0..FLOWS {
                let entry = FlowEntry::new(flow(number.into(), of(number), mask)).unwrap();
                table.insert(Arc::new(entry));
            }
            let (mut links, mut networks) = (0, 0);
            for key in (FLOWS..FLOWS + 1000).map(of) {
                let link = table.link(&key, &Context::NONE);
                let network = link.wrapping_add(table.network(&key));
                links += u32::from(table.links.may_have(folded(link)));
                networks += u32::from(table.networks.may_have(folded(network)));
            }
            // One in 64 at most is expected, and most in a filter that is too small. Few secrets are much
            // worse.
            assert!(links < 700, "{links} of 1000");
            if depth == Depth::Transport {
                assert!(networks < 700, "{networks} of 1000");
            } else {
                assert_eq!(table.networks.counters(), Prefixes::new(0).counters());
            }
        }
    }

    /// A growing table takes at most twice the memory, and grows often enough.
    #[test]
    fn a_full_table_grows_to_less_than_twice_its_size() {
        let mut mask = FlowMask::ANY;
        mask.0.set_eth_dst(u64::MAX);
        let mut table = Subtable::for_flow(&flow(0, FlowKey::default(), mask));
        let mut grown = 0;
        for number in 0..1000 {
            if table.is_full() {
                let full = table.len();
                table = table.grown();
                grown += 1;
                assert_eq!(table.len(), full);
                let room = table.flows.capacity();
                assert!(
                    room > full && room <= 2 * full.max(LEAST_ROOM),
                    "{room} after {full}"
                );
            }
            let mut key = FlowKey::default();
            key.set_eth_dst(number);
            let entry = FlowEntry::new(flow(number.into(), key, mask)).unwrap();
            table.insert(Arc::new(entry));
        }
        assert!((5..20).contains(&grown), "{grown} times");
    }

    #[test]
    fn hits_of_long_ago_count_less() {
        let mut table = Subtable::for_flow(&flow(0, FlowKey::default(), FlowMask::ANY));
        table.hit(8);
        table.age_hits();
        table.hit(1);
        assert_eq!((table.hits(), table.grown().hits()), (5, 5));
    }

    #[test]
    fn both_halves_of_a_sum_are_in_the_filters_hash() {
        let halves = [0x0f0f_3333_5555_00ff, 0x00ff_0f0f_3333_5555];
        let [high, low] = halves.map(u128::from);
        assert_eq!(folded(high << 64 | low), halves[0] ^ halves[1]);
        assert_eq!([folded(high << 64), folded(low)], halves);
    }

    /// Two flows with one hash would make each other slow.
    #[test]
    fn each_word_of_the_mask_is_in_the_hash() {
        let mut mask = FlowMask::ANY;
        mask.0.words.fill(u64::MAX);
        let table = Subtable::for_flow(&flow(1, FlowKey::default(), mask));
        let hash = |key: &FlowKey| table.hash(key, &Context::NONE);
        for word in 0..KEY_WORDS {
            let mut key = FlowKey::default();
            key.words[word] = 1;
            assert_ne!(hash(&key), hash(&FlowKey::default()), "word {word}");
        }
    }

    #[test]
    fn bits_outside_the_masks_make_no_difference() {
        let (mut mask, mut context_mask) = (FlowMask::ANY, Context::NONE);
        mask.0.set_eth_dst(0xff);
        context_mask.set_tun_id(0xff);
        let mut context = Context::NONE;
        context.set_tun_id(5);
        let flow = Flow {
            context: Some(Box::new(ContextMatch {
                context,
                mask: context_mask,
            })),
            ..flow(1, FlowKey::default(), mask)
        };
        let mut table = Subtable::for_flow(&flow);
        table.insert(Arc::new(FlowEntry::new(flow).unwrap()));
        let found = |mac, tunnel| {
            let (mut key, mut context) = (FlowKey::default(), Context::NONE);
            key.set_eth_dst(mac);
            context.set_tun_id(tunnel);
            context.set_skb_priority(7);
            let found = table.get(&key, &context).is_some();
            let candidate = table.candidate(&key, &context);
            assert_eq!(
                candidate.is_some_and(|place| place.get(&key, &context).is_some()),
                found
            );
            found
        };
        assert!(found(0, 5) && found(0x100, 0x105));
        assert!(!found(1, 5) && !found(0, 6));
    }
}
