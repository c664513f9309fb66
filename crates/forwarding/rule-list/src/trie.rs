//! Prefixes and the numbers that stand for them: a binary trie without one-way branches (Morrison,
//! *PATRICIA*, JACM 1968).
//!
//! All values are 128 bits wide and begin at the highest bit, so one trie serves ports, MACs and both kinds
//! of IP addresses. A walk visits the prefixes of a value from the shortest to the longest, and returns how
//! many of the value's first bits it has compared: any value that begins with these bits takes the same
//! walk.
//!
//! A change touches the nodes on one path and allocates at most one chunk, so it takes the same time in a
//! trie of a hundred thousand prefixes as in a trie of ten.

use smallvec::SmallVec;

/// The first `len` bits of a value; the other bits are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    /// The bits, the first one highest.
    pub value: u128,
    /// 0 to 128.
    pub len: u8,
}

impl Prefix {
    /// The first `len` bits of a value that is `width` bits wide, 1 to 128; bits behind the prefix are cut
    /// off.
    pub fn new(value: u128, width: u32, len: u32) -> Prefix {
        let len = len.min(width);
        Prefix {
            value: value << (128 - width) & ones(len),
            len: len as u8,
        }
    }

    /// The bits that the prefix compares.
    pub fn mask(self) -> u128 {
        ones(self.len.into())
    }

    fn is_beginning_of(self, value: u128) -> bool {
        (self.value ^ value) & self.mask() == 0
    }

    /// The longest prefix of both.
    fn common(self, other: Prefix) -> Prefix {
        let equal = (self.value ^ other.value).leading_zeros();
        Prefix::new(self.value, 128, equal.min(self.len.into()).min(other.len.into()))
    }
}

/// The highest `count` bits.
pub(crate) fn ones(count: u32) -> u128 {
    u128::MAX.checked_shl(128 - count).unwrap_or(0)
}

/// Numbers that share a prefix, in order.
pub(crate) type Numbers = SmallVec<[u32; 2]>;

/// A node, in a cache line of its own.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Node {
    prefix: Prefix,
    /// Nodes with longer prefixes, by the bit that follows this prefix; [`ROOT`] stands for none.
    children: [u32; 2],
    /// Empty in a node that only joins two others.
    numbers: Numbers,
}

const ROOT: u32 = 0;

/// Nodes of a chunk: 64 KiB.
const CHUNK: u32 = 1024;

/// Prefixes, each with at least one number.
#[derive(Clone, Debug)]
pub(crate) struct Trie {
    /// Chunks never move, so that no change copies a large trie.
    chunks: Vec<Vec<Node>>,
    free: Vec<u32>,
}

impl Default for Trie {
    fn default() -> Self {
        Trie {
            chunks: vec![vec![Node::default()]],
            free: Vec::new(),
        }
    }
}

impl Trie {
    /// Shows the numbers of each prefix of a value to `found`, the shortest prefix first. Returns how many
    /// of the value's first bits the walk has compared.
    pub fn walk(&self, value: u128, mut found: impl FnMut(&[u32])) -> u32 {
        let mut node = self.get(ROOT);
        loop {
            if !node.numbers.is_empty() {
                found(&node.numbers);
            }
            let len = u32::from(node.prefix.len);
            if node.children == [ROOT; 2] {
                return len;
            }
            let child = node.children[bit(value, len)];
            if child == ROOT {
                return len + 1;
            }
            node = self.get(child);
            if !node.prefix.is_beginning_of(value) {
                return (node.prefix.value ^ value).leading_zeros() + 1;
            }
        }
    }

    /// Gives a prefix one more number. False if the prefix has that number already.
    pub fn insert(&mut self, prefix: Prefix, number: u32) -> bool {
        let mut at = ROOT;
        loop {
            let node = self.get(at);
            if node.prefix == prefix {
                let numbers = &mut self.get_mut(at).numbers;
                let place = numbers.binary_search(&number);
                if let Err(place) = place {
                    numbers.insert(place, number);
                }
                return place.is_err();
            }
            let side = bit(prefix.value, node.prefix.len.into());
            let child = node.children[side];
            if child == ROOT {
                let leaf = self.add(prefix, [ROOT; 2]);
                self.get_mut(at).children[side] = leaf;
                at = leaf;
                continue;
            }
            let longer = self.get(child).prefix;
            let common = prefix.common(longer);
            if common == longer {
                at = child;
                continue;
            }
            let mut children = [ROOT; 2];
            children[bit(longer.value, common.len.into())] = child;
            let fork = self.add(common, children);
            self.get_mut(at).children[side] = fork;
            at = fork;
        }
    }

    /// Takes a number from a prefix. False if the prefix does not have it.
    pub fn remove(&mut self, prefix: Prefix, number: u32) -> bool {
        let (mut at, mut above) = (ROOT, [ROOT; 2]);
        while self.get(at).prefix != prefix {
            let node = self.get(at);
            if node.prefix.len >= prefix.len || !node.prefix.is_beginning_of(prefix.value) {
                return false;
            }
            above = [at, above[0]];
            at = node.children[bit(prefix.value, node.prefix.len.into())];
            if at == ROOT {
                return false;
            }
        }
        let numbers = &mut self.get_mut(at).numbers;
        let Ok(place) = numbers.binary_search(&number) else {
            return false;
        };
        numbers.remove(place);
        let [parent, grandparent] = above;
        self.cut_out(at, parent);
        self.cut_out(parent, grandparent);
        true
    }

    /// The numbers that a prefix has.
    pub fn numbers(&self, prefix: Prefix) -> &[u32] {
        let mut node = self.get(ROOT);
        while node.prefix.len < prefix.len && node.prefix.is_beginning_of(prefix.value) {
            match node.children[bit(prefix.value, node.prefix.len.into())] {
                ROOT => return &[],
                child => node = self.get(child),
            }
        }
        if node.prefix == prefix { &node.numbers } else { &[] }
    }

    /// Bytes of all nodes.
    pub fn memory(&self) -> usize {
        let nodes: usize = self.chunks.iter().map(Vec::capacity).sum();
        nodes * size_of::<Node>() + self.free.capacity() * size_of::<u32>()
    }

    /// Removes a node that neither has numbers nor joins two others.
    fn cut_out(&mut self, at: u32, parent: u32) {
        let node = self.get(at);
        let only = match node.children {
            [child, ROOT] | [ROOT, child] => child,
            _ => return,
        };
        if at == ROOT || !node.numbers.is_empty() {
            return;
        }
        for child in &mut self.get_mut(parent).children {
            if *child == at {
                *child = only;
            }
        }
        *self.get_mut(at) = Node::default();
        self.free.push(at);
    }

    fn add(&mut self, prefix: Prefix, children: [u32; 2]) -> u32 {
        let node = Node {
            prefix,
            children,
            numbers: Numbers::new(),
        };
        if let Some(at) = self.free.pop() {
            *self.get_mut(at) = node;
            return at;
        }
        let last = self.chunks.len() - 1;
        if self.chunks[last].len() < CHUNK as usize {
            self.chunks[last].push(node);
            return last as u32 * CHUNK + self.chunks[last].len() as u32 - 1;
        }
        let mut chunk = Vec::with_capacity(CHUNK as usize);
        chunk.push(node);
        self.chunks.push(chunk);
        (last as u32 + 1) * CHUNK
    }

    fn get(&self, at: u32) -> &Node {
        &self.chunks[(at / CHUNK) as usize][(at % CHUNK) as usize]
    }

    fn get_mut(&mut self, at: u32) -> &mut Node {
        &mut self.chunks[(at / CHUNK) as usize][(at % CHUNK) as usize]
    }
}

/// The bit that follows the first `len` ones, of which there are fewer than 128.
fn bit(value: u128, len: u32) -> usize {
    (value << len >> 127) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Short prefixes of few bits, which often agree.
    fn prefix() -> impl Strategy<Value = Prefix> {
        (0..32u128, 0..=5u32, any::<bool>()).prop_map(|(value, len, long)| {
            let value = Prefix::new(value, 5, if long { 5 } else { len });
            let tail = if long && len > 0 { u128::from(len) } else { 0 };
            Prefix::new(
                value.value | tail,
                128,
                if tail > 0 { 128 } else { value.len.into() },
            )
        })
    }

    proptest! {
        /// A walk finds what a look at each prefix finds, and so does every value that agrees in the bits
        /// it compared.
        #[test]
        fn a_trie_is_a_set_of_prefixes(
            history in prop::collection::vec((prefix(), 0..3u32, any::<bool>()), 1..60),
            value in prefix(),
            other in any::<u128>(),
        ) {
            let mut trie = Trie::default();
            let mut twin = BTreeSet::new();
            for (prefix, number, add) in history {
                if add {
                    prop_assert_eq!(trie.insert(prefix, number), twin.insert((prefix.len, prefix.value, number)));
                } else {
                    prop_assert_eq!(trie.remove(prefix, number), twin.remove(&(prefix.len, prefix.value, number)));
                }
                let of_prefix = twin.iter().filter(|there| (there.0, there.1) == (prefix.len, prefix.value));
                let numbers: Vec<u32> = of_prefix.map(|there| there.2).collect();
                prop_assert_eq!(trie.numbers(prefix), &numbers[..]);
                let walk = |value| {
                    let mut seen = Vec::new();
                    let bits = trie.walk(value, |numbers| seen.extend_from_slice(numbers));
                    (seen, bits)
                };
                let (seen, bits) = walk(value.value);
                let is_there = |&&(len, start, _): &&(u8, u128, u32)| {
                    Prefix { value: start, len }.is_beginning_of(value.value)
                };
                let expected: Vec<u32> = twin.iter().filter(is_there).map(|there| there.2).collect();
                prop_assert_eq!(&seen, &expected);
                let alike = value.value & ones(bits) | other & !ones(bits);
                prop_assert_eq!(walk(alike), (seen, bits));
            }
            for (len, value, number) in std::mem::take(&mut twin) {
                let prefix = Prefix { value, len };
                prop_assert!(trie.remove(prefix, number));
            }
            prop_assert_eq!(trie.chunks[0].len(), trie.free.len() + 1, "an empty trie has its root only");
        }
    }

    #[test]
    fn chunks_hold_more_than_one_chunk_of_nodes() {
        let mut trie = Trie::default();
        let prefix = |number: u32| Prefix::new(number.into(), 32, 32);
        (0..5000).for_each(|number| assert!(trie.insert(prefix(number * 7), number)));
        for number in 0..5000 {
            let mut seen = Vec::new();
            trie.walk(prefix(number * 7).value, |numbers| {
                seen.extend_from_slice(numbers)
            });
            assert_eq!(seen, [number]);
        }
        assert!(trie.chunks.len() > 1 && trie.memory() >= 5000 * size_of::<Node>());
    }
}
