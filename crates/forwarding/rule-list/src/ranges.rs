//! Ranges of 16-bit numbers and the conditions that stand for them: a segment tree (Bentley, 1977).
//!
//! Ports have too many ranges that overlap for a trie of prefixes to be made quickly. Here each number of
//! bits and each value of them has a node, found without a walk: 256 lower bytes in a tree of their own
//! under each upper byte that is used. A range is in the nodes of the fewest prefixes that cover it.

use crate::condition::prefixes;
use crate::rule::Range;
use crate::trie::Prefix;
use std::collections::HashMap;

/// Nodes of the prefixes of a byte, numbered like a heap: 1 has no bit, 2 and 3 have one, 256 and on all
/// eight.
#[derive(Clone, Debug)]
struct Tree {
    /// Per node the place of its first condition in [`Ranges::conditions`], and one more; 0 for none.
    first: [u32; 512],
    /// One bit per node: whether the node, or one below it, has a condition.
    used: [u64; 8],
}

impl Default for Tree {
    fn default() -> Self {
        Tree {
            first: [0; 512],
            used: [0; 8],
        }
    }
}

impl Tree {
    fn is_used(&self, node: usize) -> bool {
        self.used[node / 64] >> (node % 64) & 1 == 1
    }

    /// Marks a node and those above it.
    fn mark(&mut self, mut node: usize) {
        while node > 0 && !self.is_used(node) {
            self.used[node / 64] |= 1 << (node % 64);
            node /= 2;
        }
    }

    /// Marks a node no longer, and those above it, as far as these have no condition.
    fn unmark(&mut self, mut node: usize) {
        let has_used_child = |tree: &Tree, node: usize| {
            let children = [2 * node, 2 * node + 1];
            node < 256 && children.into_iter().any(|child| tree.is_used(child))
        };
        while node > 0 && self.first[node] == 0 && !has_used_child(self, node) {
            self.used[node / 64] &= !(1 << (node % 64));
            node /= 2;
        }
    }
}

/// Ranges, each with a condition.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    /// Prefixes of up to seven bits; longer ones are marked here as well.
    upper: Box<Tree>,
    /// Prefixes of eight bits and more, by the upper byte.
    lower: [Option<Box<Tree>>; 256],
    /// Conditions in lists: each with the place of the next one in its node, and one more; 0 for the last.
    conditions: Vec<(u32, u32)>,
    /// The first one of the places that are free, in a list as well.
    free: u32,
    /// The condition of each range.
    numbers: HashMap<Range, u32>,
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges {
            upper: Box::default(),
            lower: [const { None }; 256],
            conditions: Vec::new(),
            free: 0,
            numbers: HashMap::new(),
        }
    }
}

/// A tree by the upper byte of its values, or the tree of upper bytes, and a node.
fn place_of(prefix: Prefix) -> (Option<usize>, usize) {
    let (value, len) = ((prefix.value >> 112) as usize, u32::from(prefix.len));
    if len < 8 {
        (None, 1 << len | value >> (16 - len))
    } else {
        (Some(value / 256), 1 << (len - 8) | (value % 256) >> (16 - len))
    }
}

/// Takes a condition out of the list of a node. Its place becomes the first one that is free.
fn cut_out(first: &mut u32, conditions: &mut [(u32, u32)], condition: u32, free: &mut u32) {
    let mut at = *first;
    let mut before = None;
    while let Some(&(found, next)) = (at as usize)
        .checked_sub(1)
        .and_then(|place| conditions.get(place))
    {
        if found == condition {
            match before {
                None => *first = next,
                Some(before) => conditions[before as usize - 1].1 = next,
            }
            conditions[at as usize - 1].1 = *free;
            *free = at;
            return;
        }
        (before, at) = (Some(at), next);
    }
}

/// Goes down a tree to where no condition is left, and shows where the conditions of each node begin. Returns
/// the number of bits compared.
fn walk_tree(tree: &Tree, byte: u8, found: &mut impl FnMut(u32)) -> u32 {
    for len in 0..=8 {
        let node = 1 << len | usize::from(byte) >> (8 - len);
        if !tree.is_used(node) {
            return len;
        }
        found(tree.first[node]);
        if len < 8 && !tree.is_used(2 * node) && !tree.is_used(2 * node + 1) {
            return len;
        }
    }
    8
}

impl Ranges {
    /// The condition of a range.
    pub fn number_of(&self, range: Range) -> Option<u32> {
        self.numbers.get(&range).copied()
    }

    /// Adds a range that is not there, with its condition.
    pub fn insert(&mut self, range: Range, condition: u32) {
        self.numbers.insert(range, condition);
        for prefix in prefixes(range) {
            let (upper, node) = place_of(prefix);
            let tree = match upper {
                None => &mut self.upper,
                Some(upper) => {
                    self.upper.mark(256 + upper);
                    self.lower[upper].get_or_insert_default()
                }
            };
            tree.mark(node);
            let entry = (condition, tree.first[node]);
            tree.first[node] = match self.free {
                0 => {
                    self.conditions.push(entry);
                    self.conditions.len() as u32
                }
                free => {
                    let place = &mut self.conditions[free as usize - 1];
                    self.free = std::mem::replace(place, entry).1;
                    free
                }
            };
        }
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range) {
        let Some(condition) = self.numbers.remove(&range) else {
            return;
        };
        for prefix in prefixes(range) {
            let (upper, node) = place_of(prefix);
            let tree = match upper {
                None => Some(&mut self.upper),
                Some(upper) => self.lower[upper].as_mut(),
            };
            let Some(tree) = tree else { continue };
            cut_out(
                &mut tree.first[node],
                &mut self.conditions,
                condition,
                &mut self.free,
            );
            tree.unmark(node);
            if let Some(upper) = upper.filter(|_| !tree.is_used(1)) {
                self.lower[upper] = None;
                self.upper.unmark(256 + upper);
            }
        }
    }

    /// Shows the conditions of all ranges with this number. Returns how many first bits of the number were
    /// compared.
    pub fn walk(&self, number: u16, mut found: impl FnMut(u32)) -> u32 {
        self.walk_nodes(number, |mut next| {
            while next > 0 {
                let (condition, after) = self.conditions[next as usize - 1];
                found(condition);
                next = after;
            }
        })
    }

    /// How many first bits of a number [`walk`](Self::walk) compares, whose work is more by a step for each
    /// range with the number.
    pub fn compared(&self, number: u16) -> u32 {
        self.walk_nodes(number, |_| ())
    }

    fn walk_nodes(&self, number: u16, mut found: impl FnMut(u32)) -> u32 {
        let [upper, lower] = number.to_be_bytes();
        let compared = walk_tree(&self.upper, upper, &mut found);
        match &self.lower[usize::from(upper)] {
            Some(tree) => 8 + walk_tree(tree, lower, &mut found),
            None => compared,
        }
    }

    pub fn memory(&self) -> usize {
        let trees = 1 + self.lower.iter().flatten().count();
        size_of::<Ranges>()
            + trees * size_of::<Tree>()
            + self.conditions.capacity() * size_of::<(u32, u32)>()
            + self.numbers.capacity() * size_of::<(Range, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Borders of bytes, and numbers anywhere.
    fn number() -> impl Strategy<Value = u16> {
        prop_oneof![
            any::<u16>(),
            0..600u16,
            Just(u16::MAX),
            (0..256u16).prop_map(|upper| upper * 256)
        ]
    }

    proptest! {
        /// A walk finds the ranges that have the number, and finds them for every number that agrees in the
        /// bits it compared. What was removed leaves nothing.
        #[test]
        fn a_walk_finds_the_ranges_with_a_number(
            ends in prop::collection::vec((number(), number(), prop::bool::weighted(0.3)), 0..12),
            numbers in prop::collection::vec(number(), 1..20),
            other in any::<u16>(),
        ) {
            let mut ranges = Ranges::default();
            let mut twin: Vec<(u32, Range)> = Vec::new();
            for (condition, (one, other, goes)) in (0..).zip(ends) {
                let range = Range { first: one.min(other), last: one.max(other) };
                if ranges.number_of(range).is_none() {
                    ranges.insert(range, condition);
                    twin.push((condition, range));
                }
                if goes {
                    let (condition, range) = twin.swap_remove(usize::from(one) % twin.len());
                    prop_assert_eq!(ranges.number_of(range), Some(condition));
                    ranges.remove(range);
                    prop_assert_eq!(ranges.number_of(range), None);
                }
            }
            let mut fresh = Ranges::default();
            twin.iter().for_each(|(condition, range)| fresh.insert(*range, *condition));
            let walk = |ranges: &Ranges, number| {
                let mut seen = Vec::new();
                let compared = ranges.walk(number, |condition| seen.push(condition));
                seen.sort();
                (seen, compared)
            };
            let borders = twin.iter().flat_map(|(_, range)| [range.first, range.last, range.last.wrapping_add(1)]);
            for number in numbers.into_iter().chain(borders) {
                let with = twin.iter().filter(|(_, range)| (range.first..=range.last).contains(&number));
                let mut expected: Vec<u32> = with.map(|(condition, _)| *condition).collect();
                expected.sort();
                let (seen, compared) = walk(&ranges, number);
                prop_assert_eq!(&seen, &expected);
                prop_assert_eq!(ranges.compared(number), compared);
                prop_assert_eq!(walk(&fresh, number), (seen.clone(), compared));
                let rest = u16::MAX.checked_shr(compared).unwrap_or(0);
                let alike = number & !rest | other & rest;
                prop_assert_eq!(walk(&ranges, alike), (seen, compared));
            }
            twin.iter().for_each(|(_, range)| ranges.remove(*range));
            prop_assert!(!ranges.upper.is_used(1) && ranges.lower.iter().all(Option::is_none));
        }
    }

    #[test]
    fn no_bit_is_compared_without_need() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.walk(7, |_| ()), 0);
        ranges.insert(
            Range {
                first: 0,
                last: 32767,
            },
            0,
        );
        assert_eq!((ranges.walk(7, |_| ()), ranges.walk(40_000, |_| ())), (1, 1));
        ranges.insert(Range::one(443), 1);
        assert_eq!(
            (
                ranges.walk(443, |_| ()),
                ranges.walk(80, |_| ()),
                ranges.walk(40_000, |_| ())
            ),
            (16, 8, 1)
        );
    }
}
