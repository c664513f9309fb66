//! Longest prefixes: a trie of six bits a step.
//!
//! A node covers six bits of the field. One word says which of the 63 prefixes of zero to five bits end in
//! it, another which of its 64 children exist; the prefixes' handles and the children lie one behind the
//! other, so that their number among the set bits finds them (Eatherton et al., *Tree Bitmap*, CCR 2004). The
//! prefixes of a node are numbered like a heap: `1` is the empty one, `2` and `3` those of one bit, and so
//! on. The prefixes of six given bits are then six fixed bits of that word, and the longest is the highest
//! one that is set. A look-up takes `width / 6 + 1` steps at most, each of one node, for any set of entries.
//!
//! A table may have exact fields besides. They are looked up first, and lead to a trie of their own.
//!
//! Children and handles live in arenas of blocks of 1, 2, 4 ... 64 elements. A block that becomes free serves
//! the next one of its size, so memory is at most the sum of the largest needs per size. Copies of the tries
//! share the arenas' chunks in which they do not differ.

use std::sync::Arc;

use crate::blocks::Blocks;
use crate::error::Error;
use crate::key::{FieldPlace, KeyLayout, MAX_KEY_WORDS, MatchKind, Pattern, Words, low_bits};
use crate::map::Map;

/// Bits of a step.
const STRIDE: u32 = 6;
/// The numbers of a step's prefixes, by its bits.
const PREFIXES: [u64; 64] = prefixes();

const fn prefixes() -> [u64; 64] {
    let mut table = [0; 64];
    let mut bits = 0;
    while bits < 64 {
        let mut length = 0;
        while length < STRIDE {
            table[bits] |= 1 << ((1 << length) | (bits >> (STRIDE - length)));
            length += 1;
        }
        bits += 1;
    }
    table
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Bit `i`: prefix number `i` ends here.
    ends: u64,
    /// Bit `i`: there is a child for the bits `i`.
    children: u64,
    /// Block of the prefixes' handles.
    handles: u32,
    /// Block of the children.
    nodes: u32,
}

/// Tries, one for each combination of the exact fields.
#[derive(Clone, Debug)]
pub(crate) struct Lpm {
    /// The field with the prefixes.
    place: FieldPlace,
    /// The bits of the exact fields; the map is empty if there are none.
    exact: Words,
    tries: Map,
    /// Exact fields and root of each trie; maps of long keys compare with them.
    trie_keys: Arc<Vec<(Words, u32)>>,
    free_tries: Vec<u32>,
    nodes: Arena<Node>,
    handles: Arena<u32>,
    /// Whether there are no exact fields, so that there is only one trie.
    single: bool,
    root: u32,
}

impl Lpm {
    /// Tries for a layout whose field for prefixes is at `place`.
    pub(crate) fn new(layout: &KeyLayout, place: FieldPlace) -> Lpm {
        let mut exact: Words = smallvec::smallvec![0; layout.words()];
        for place in layout
            .places()
            .iter()
            .filter(|place| place.kind == MatchKind::Exact)
        {
            let all: Words = smallvec::smallvec![u64::MAX; place.words()];
            place.put_all(&mut exact, &all);
        }
        let mut nodes = Arena::new();
        let root = nodes.take(1);
        Lpm {
            place,
            single: exact.iter().all(|&word| word == 0),
            tries: Map::new(exact.len()),
            exact,
            trie_keys: Arc::default(),
            free_tries: Vec::new(),
            nodes,
            handles: Arena::new(),
            root,
        }
    }

    /// The handle of the longest prefix that matches.
    #[inline]
    pub(crate) fn get(&self, key: &[u64]) -> Option<u32> {
        let root = if self.single {
            self.root
        } else {
            self.root_for(key)?
        };
        let mut best = None;
        let mut node = self.nodes.get(root);
        let mut steps = Steps::new(&self.place, key);
        loop {
            let bits = steps.next_bits();
            let ends = node.ends & PREFIXES[bits as usize];
            if ends != 0 {
                let last = 63 - ends.leading_zeros();
                best = Some(node.handles + (node.ends & low_bits(last)).count_ones());
            }
            if node.children >> bits & 1 == 0 {
                break;
            }
            node = self
                .nodes
                .get(node.nodes + (node.children & low_bits(bits)).count_ones());
        }
        best.map(|at| *self.handles.get(at))
    }

    /// The handle of exactly this pattern.
    pub(crate) fn find(&self, pattern: &Pattern) -> Option<u32> {
        let root = self.root_of(pattern)?;
        let (path, number) = self.path(root, pattern);
        let node = self.nodes.get(*path.last()?);
        let complete = path.len() as u32 == pattern.prefix_length(&self.place) / STRIDE + 1;
        let found = complete && node.ends >> number & 1 == 1;
        found.then(|| *self.handles.get(node.handles + rank(node.ends, number)))
    }

    /// Adds a pattern that is not there.
    pub(crate) fn insert(&mut self, pattern: &Pattern, handle: u32) -> Result<(), Error> {
        let mut at = match self.root_of(pattern) {
            Some(root) => root,
            None => self.add_trie(pattern)?,
        };
        let length = pattern.prefix_length(&self.place);
        let place = self.place;
        let mut steps = Steps::new(&place, &pattern.value);
        for _ in 0..length / STRIDE {
            at = self.child(at, steps.next_bits());
        }
        let number = number(steps.next_bits(), length % STRIDE);
        let mut node = *self.nodes.get(at);
        node.handles = self.handles.insert(
            node.handles,
            node.ends.count_ones(),
            rank(node.ends, number),
            handle,
        );
        node.ends |= 1 << number;
        *self.nodes.get_mut(at) = node;
        Ok(())
    }

    /// Removes a pattern that is there.
    pub(crate) fn remove(&mut self, pattern: &Pattern) {
        let Some(root) = self.root_of(pattern) else { return };
        let (path, number) = self.path(root, pattern);
        let Some(&last) = path.last() else { return };
        let mut node = *self.nodes.get(last);
        node.handles = self
            .handles
            .remove(node.handles, node.ends.count_ones(), rank(node.ends, number));
        node.ends &= !(1 << number);
        *self.nodes.get_mut(last) = node;
        self.prune(&path, pattern);
        let node = self.nodes.get(root);
        if node.ends == 0 && node.children == 0 && !self.single {
            self.remove_trie(pattern);
        }
    }

    /// Bytes in use.
    pub(crate) fn memory(&self) -> usize {
        self.tries.memory()
            + self.trie_keys.capacity() * size_of::<(Words, u32)>()
            + self
                .trie_keys
                .iter()
                .filter(|(key, _)| key.spilled())
                .map(|(key, _)| key.len() * 8)
                .sum::<usize>()
            + self.free_tries.capacity() * size_of::<u32>()
            + self.nodes.memory()
            + self.handles.memory()
    }

    /// Removes nodes at the end of a path that hold nothing.
    fn prune(&mut self, path: &[u32], pattern: &Pattern) {
        let mut steps = Steps::new(&self.place, &pattern.value);
        let bits: Vec<u32> = path.iter().map(|_| steps.next_bits()).collect();
        for (pair, &bits) in path.windows(2).zip(&bits).rev() {
            let child = self.nodes.get(pair[1]);
            if child.ends != 0 || child.children != 0 {
                return;
            }
            let mut node = *self.nodes.get(pair[0]);
            node.nodes = self
                .nodes
                .remove(node.nodes, node.children.count_ones(), rank(node.children, bits));
            node.children &= !(1 << bits);
            *self.nodes.get_mut(pair[0]) = node;
        }
    }

    /// The nodes that lead to a pattern as far as they exist, and its number in its own node.
    fn path(&self, root: u32, pattern: &Pattern) -> (Vec<u32>, u32) {
        let length = pattern.prefix_length(&self.place);
        let mut steps = Steps::new(&self.place, &pattern.value);
        let mut path = vec![root];
        let mut at = root;
        for _ in 0..length / STRIDE {
            let bits = steps.next_bits();
            let node = self.nodes.get(at);
            if node.children >> bits & 1 == 0 {
                return (path, 0);
            }
            at = node.nodes + rank(node.children, bits);
            path.push(at);
        }
        (path, number(steps.next_bits(), length % STRIDE))
    }

    /// The child of a node, made if it does not exist.
    fn child(&mut self, at: u32, bits: u32) -> u32 {
        let mut node = *self.nodes.get(at);
        if node.children >> bits & 1 == 0 {
            let count = node.children.count_ones();
            node.nodes = self
                .nodes
                .insert(node.nodes, count, rank(node.children, bits), Node::default());
            node.children |= 1 << bits;
            *self.nodes.get_mut(at) = node;
        }
        node.nodes + rank(node.children, bits)
    }

    fn masked(&self, key: &[u64]) -> Words {
        key.iter()
            .zip(&self.exact)
            .map(|(key, mask)| key & mask)
            .collect()
    }

    fn trie(&self, masked: &[u64]) -> Option<(u32, u32)> {
        let trie = self
            .tries
            .get(masked, |trie| self.trie_keys[trie as usize].0[..] == *masked)?;
        Some((trie, self.trie_keys[trie as usize].1))
    }

    fn root_of(&self, pattern: &Pattern) -> Option<u32> {
        if self.single {
            Some(self.root)
        } else {
            self.root_for(&pattern.value)
        }
    }

    /// The root for a key's exact fields, found without allocation.
    fn root_for(&self, key: &[u64]) -> Option<u32> {
        let mut scratch = [0; MAX_KEY_WORDS];
        let masked = &mut scratch[..key.len()];
        for (masked, (key, mask)) in masked.iter_mut().zip(key.iter().zip(&self.exact)) {
            *masked = key & mask;
        }
        Some(self.trie(masked)?.1)
    }

    fn add_trie(&mut self, pattern: &Pattern) -> Result<u32, Error> {
        let masked = self.masked(&pattern.value);
        let trie = self
            .free_tries
            .last()
            .copied()
            .unwrap_or(self.trie_keys.len() as u32);
        self.tries.insert(&masked, trie)?;
        self.free_tries.pop();
        let root = self.nodes.take(1);
        *self.nodes.get_mut(root) = Node::default();
        let keys = Arc::make_mut(&mut self.trie_keys);
        match keys.get_mut(trie as usize) {
            Some(key) => *key = (masked, root),
            None => keys.push((masked, root)),
        }
        Ok(root)
    }

    fn remove_trie(&mut self, pattern: &Pattern) {
        let masked = self.masked(&pattern.value);
        let Some((trie, root)) = self.trie(&masked) else {
            return;
        };
        self.tries.remove(&masked);
        self.nodes.give(root, 1);
        self.free_tries.push(trie);
    }
}

/// How many bits below bit `at` are set.
fn rank(bits: u64, at: u32) -> u32 {
    (bits & low_bits(at)).count_ones()
}

/// The number in its node of the prefix of `length` bits that six bits begin with.
fn number(bits: u32, length: u32) -> u32 {
    1 << length | bits >> (STRIDE - length)
}

/// The bits of a field, six at a time from its most significant one; zeros after its end.
struct Steps<'a> {
    place: &'a FieldPlace,
    key: &'a [u64],
    /// Fields of up to 64 bits: the remaining bits of the value, at the top of the word.
    left: u64,
    /// Wider fields: bits already taken.
    taken: u32,
}

impl<'a> Steps<'a> {
    #[inline]
    fn new(place: &'a FieldPlace, key: &'a [u64]) -> Steps<'a> {
        let left = if place.width <= 64 {
            place.get(key, 0) << (64 - place.width)
        } else {
            0
        };
        Steps {
            place,
            key,
            left,
            taken: 0,
        }
    }

    #[inline]
    fn next_bits(&mut self) -> u32 {
        if self.place.width <= 64 {
            let bits = self.left >> (64 - STRIDE);
            self.left <<= STRIDE;
            return bits as u32;
        }
        let bits = self.wide();
        self.taken += STRIDE;
        bits
    }

    fn wide(&self) -> u32 {
        let remaining = self.place.width.saturating_sub(self.taken);
        if remaining < STRIDE {
            let bits = self.place.get(self.key, 0) & low_bits(remaining);
            return (bits << (STRIDE - remaining)) as u32;
        }
        let lowest = remaining - STRIDE;
        let (word, shift) = ((lowest / 64) as usize, lowest % 64);
        let mut bits = self.place.get(self.key, word) >> shift;
        if shift > 64 - STRIDE {
            bits |= self.place.get(self.key, word + 1) << (64 - shift);
        }
        (bits & low_bits(STRIDE)) as u32
    }
}

/// Elements of a chunk. A batch copies the chunks in which it changes elements.
const CHUNK: usize = 1024;

/// Blocks of 1, 2, 4 ... 64 elements in chunks that copies share.
#[derive(Clone, Debug)]
struct Arena<T> {
    chunks: Blocks<T, CHUNK>,
    /// Elements ever taken.
    end: u32,
    /// Free blocks, by the logarithm of their size.
    free: [Vec<u32>; 7],
}

impl<T: Copy + Default> Arena<T> {
    fn new() -> Arena<T> {
        Arena {
            chunks: Blocks::new(1),
            end: 0,
            free: Default::default(),
        }
    }

    #[inline]
    fn get(&self, at: u32) -> &T {
        &self.chunks.row(at)[0]
    }

    fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks.row_mut(at)[0]
    }

    /// Takes a block of `size` elements, a power of two up to 64. Its content is arbitrary.
    fn take(&mut self, size: u32) -> u32 {
        if let Some(block) = self.free[size.ilog2() as usize].pop() {
            return block;
        }
        // A block does not lie across chunks. The remaining elements of a chunk become free blocks.
        while self.end as usize % CHUNK + size as usize > CHUNK {
            let filler = 1u32 << self.end.trailing_zeros().min(6);
            self.free[filler.ilog2() as usize].push(self.end);
            self.end += filler;
            self.chunks.reach(self.end - 1);
        }
        let block = self.end;
        self.end += size;
        self.chunks.reach(self.end - 1);
        block
    }

    fn give(&mut self, block: u32, size: u32) {
        self.free[size.ilog2() as usize].push(block);
    }

    /// Inserts an element at `index` into a block of `count` elements, and returns the block that holds them
    /// then. Zero elements have no block.
    fn insert(&mut self, block: u32, count: u32, index: u32, element: T) -> u32 {
        let (size, wanted) = (count.next_power_of_two(), (count + 1).next_power_of_two());
        let new = if count == 0 || wanted != size {
            self.take(wanted)
        } else {
            block
        };
        for at in (0..count).rev() {
            let moved = *self.get(block + at);
            *self.get_mut(new + at + u32::from(at >= index)) = moved;
        }
        *self.get_mut(new + index) = element;
        if new != block && count > 0 {
            self.give(block, size);
        }
        new
    }

    /// Removes the element at `index` from a block of `count` elements, and returns the block that holds the
    /// others.
    fn remove(&mut self, block: u32, count: u32, index: u32) -> u32 {
        let (size, wanted) = (count.next_power_of_two(), (count - 1).next_power_of_two());
        if count == 1 {
            self.give(block, 1);
            return 0;
        }
        let new = if wanted == size { block } else { self.take(wanted) };
        for at in (0..count).filter(|&at| at != index) {
            let moved = *self.get(block + at);
            *self.get_mut(new + at - u32::from(at > index)) = moved;
        }
        if new != block {
            self.give(block, size);
        }
        new
    }

    fn memory(&self) -> usize {
        let free: usize = self.free.iter().map(Vec::capacity).sum();
        self.chunks.memory() + free * size_of::<u32>()
    }
}
