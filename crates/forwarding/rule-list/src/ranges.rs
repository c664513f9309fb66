//! Ranges of 16-bit numbers and the conditions that stand for them: a segment tree (Bentley, 1977).
//!
//! Ports have too many ranges that overlap for a trie of prefixes to be made quickly. Here each number of
//! bits and each value of them has a node, found without a walk: 256 lower bytes in a tree of their own
//! under each upper byte that is used. A range is in the nodes of the fewest prefixes that cover it.

use crate::condition::prefixes;
use crate::rule::Range;

/// Nodes of the prefixes of a byte, numbered like a heap: 1 has no bit, 2 and 3 have one, 256 and on all
/// eight.
#[derive(Debug)]
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
}

/// Ranges, each with conditions.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Prefixes of up to seven bits; longer ones are marked here as well.
    upper: Box<Tree>,
    /// Prefixes of eight bits and more, by the upper byte.
    lower: [Option<Box<Tree>>; 256],
    /// Conditions in lists: each with the place of the next one in its node, and one more; 0 for the last.
    conditions: Vec<(u32, u32)>,
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges {
            upper: Box::default(),
            lower: [const { None }; 256],
            conditions: Vec::new(),
        }
    }
}

impl Ranges {
    pub fn insert(&mut self, range: Range, condition: u32) {
        for prefix in prefixes(range) {
            let (value, len) = ((prefix.value >> 112) as usize, u32::from(prefix.len));
            let (tree, node) = if len < 8 {
                (&mut self.upper, 1 << len | value >> (16 - len))
            } else {
                self.upper.mark(256 + value / 256);
                let tree = self.lower[value / 256].get_or_insert_default();
                (tree, 1 << (len - 8) | (value % 256) >> (16 - len))
            };
            tree.mark(node);
            self.conditions.push((condition, tree.first[node]));
            tree.first[node] = self.conditions.len() as u32;
        }
    }

    /// Shows the conditions of all ranges with this number. Returns how many first bits of the number were
    /// compared.
    pub fn walk(&self, number: u16, mut found: impl FnMut(u32)) -> u32 {
        let [upper, lower] = number.to_be_bytes();
        let compared = self.walk_tree(&self.upper, upper, &mut found);
        match &self.lower[usize::from(upper)] {
            Some(tree) => 8 + self.walk_tree(tree, lower, &mut found),
            None => compared,
        }
    }

    /// Goes down a tree to where no condition is left. Returns the number of bits compared.
    fn walk_tree(&self, tree: &Tree, byte: u8, found: &mut impl FnMut(u32)) -> u32 {
        for len in 0..=8 {
            let node = 1 << len | usize::from(byte) >> (8 - len);
            if !tree.is_used(node) {
                return len;
            }
            let mut next = tree.first[node];
            while next > 0 {
                let (condition, after) = self.conditions[next as usize - 1];
                found(condition);
                next = after;
            }
            if len < 8 && !tree.is_used(2 * node) && !tree.is_used(2 * node + 1) {
                return len;
            }
        }
        8
    }

    pub fn memory(&self) -> usize {
        let trees = 1 + self.lower.iter().flatten().count();
        size_of::<Ranges>() + trees * size_of::<Tree>() + self.conditions.capacity() * size_of::<(u32, u32)>()
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
        /// bits it compared.
        #[test]
        fn a_walk_finds_the_ranges_with_a_number(
            ends in prop::collection::vec((number(), number()), 0..12),
            numbers in prop::collection::vec(number(), 1..20),
            other in any::<u16>(),
        ) {
            let in_order = |(one, other): (u16, u16)| Range { first: one.min(other), last: one.max(other) };
            let ends: Vec<Range> = ends.into_iter().map(in_order).collect();
            let mut ranges = Ranges::default();
            (0..).zip(&ends).for_each(|(condition, range)| ranges.insert(*range, condition));
            let walk = |number| {
                let mut seen = Vec::new();
                let compared = ranges.walk(number, |condition| seen.push(condition));
                seen.sort();
                (seen, compared)
            };
            let borders = ends.iter().flat_map(|range| [range.first, range.last, range.last.wrapping_add(1)]);
            for number in numbers.into_iter().chain(borders) {
                let with = (0..).zip(&ends).filter(|(_, range)| (range.first..=range.last).contains(&number));
                let expected: Vec<u32> = with.map(|(condition, _)| condition).collect();
                let (seen, compared) = walk(number);
                prop_assert_eq!(&seen, &expected);
                let rest = u16::MAX.checked_shr(compared).unwrap_or(0);
                let alike = number & !rest | other & rest;
                prop_assert_eq!(walk(alike), (seen, compared));
            }
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
