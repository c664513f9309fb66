//! Sets of a list's rules, one bit per rule in the order in which rules are tried.

use crate::MAX_RULES;
use smallvec::SmallVec;

/// 64-bit words for all rules of a list.
const WORDS: usize = MAX_RULES / 64;

/// Rules that share a condition: their positions one by one, in order, if they are few, else one bit for each
/// rule of the list.
#[derive(Debug)]
pub(crate) enum RuleBits {
    Few(SmallVec<[u16; 8]>),
    Many(Box<[u64]>),
}

impl Default for RuleBits {
    fn default() -> Self {
        RuleBits::Few(SmallVec::new())
    }
}

/// Where the rules of a list are in its next version.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// By place in the former version; [`Moves::GONE`] for rules that the next one does not have.
    places: Vec<u16>,
    /// Places of rules that the former version does not have.
    pub added: Vec<u16>,
    /// Rules of the next version.
    pub rules: usize,
}

const _: () = assert!(MAX_RULES <= Moves::GONE as usize);

impl Moves {
    const GONE: u16 = u16::MAX;

    /// No rule of `former` ones has a place yet in a version of `rules`.
    pub fn new(former: usize, rules: usize) -> Moves {
        Moves {
            places: vec![Moves::GONE; former],
            added: Vec::new(),
            rules,
        }
    }

    pub fn set(&mut self, former: u16, place: u16) {
        self.places[usize::from(former)] = place;
    }

    pub fn place(&self, former: u16) -> Option<u16> {
        let place = self.places[usize::from(former)];
        (place != Moves::GONE).then_some(place)
    }
}

impl RuleBits {
    /// All of the first `rules` ones.
    pub fn all(rules: usize) -> RuleBits {
        let mut words = vec![0; rules.div_ceil(64)];
        fill(&mut words, rules);
        RuleBits::Many(words.into())
    }

    /// The rules by their places in the next version of the list.
    pub fn moved(&self, moves: &Moves) -> RuleBits {
        let mut moved = RuleBits::default();
        self.for_each(|rule| {
            if let Some(place) = moves.place(rule) {
                moved.add(place, moves.rules);
            }
        });
        moved
    }

    fn for_each(&self, mut f: impl FnMut(u16)) {
        match self {
            RuleBits::Few(positions) => positions.iter().for_each(|&rule| f(rule)),
            RuleBits::Many(words) => {
                for (at, &word) in (0u16..).zip(words) {
                    let mut left = word;
                    while left != 0 {
                        f(at * 64 + left.trailing_zeros() as u16);
                        left &= left - 1;
                    }
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            RuleBits::Few(positions) => positions.is_empty(),
            RuleBits::Many(words) => words.iter().all(|&word| word == 0),
        }
    }

    /// Adds a rule that is not there, in a list of `rules`.
    pub fn add(&mut self, rule: u16, rules: usize) {
        if let RuleBits::Few(positions) = self {
            if positions.len() < most_few(rules) {
                let place = positions.partition_point(|&other| other < rule);
                positions.insert(place, rule);
                return;
            }
            let mut words = vec![0; rules.div_ceil(64)];
            positions.iter().for_each(|&rule| set(&mut words, rule));
            *self = RuleBits::Many(words.into());
        }
        if let RuleBits::Many(words) = self {
            set(words, rule);
        }
    }

    /// Has the rules one by one if they have become few, in a list of `rules`.
    pub fn pack(&mut self, rules: usize) {
        if let RuleBits::Many(words) = self {
            let count: u32 = words.iter().map(|word| word.count_ones()).sum();
            if count as usize <= most_few(rules) {
                let mut positions = SmallVec::new();
                self.for_each(|rule| positions.push(rule));
                *self = RuleBits::Few(positions);
            }
        }
    }

    pub fn contains(&self, rule: u16) -> bool {
        match self {
            RuleBits::Few(positions) => positions.binary_search(&rule).is_ok(),
            RuleBits::Many(words) => is_set(words, rule),
        }
    }

    pub fn remove(&mut self, rule: u16) {
        match self {
            RuleBits::Few(positions) => positions.retain(|other| *other != rule),
            RuleBits::Many(words) => words[usize::from(rule / 64)] &= !(1 << (rule % 64)),
        }
    }

    pub fn memory(&self) -> usize {
        match self {
            RuleBits::Few(positions) if positions.spilled() => positions.capacity() * size_of::<u16>(),
            RuleBits::Few(_) => 0,
            RuleBits::Many(words) => size_of_val(&**words),
        }
    }
}

/// Sets the bits of the first `rules` rules.
fn fill(words: &mut [u64], rules: usize) {
    words[..rules / 64].fill(u64::MAX);
    let rest = rules % 64;
    if rest > 0 {
        words[rules / 64] = (1 << rest) - 1;
    }
}

/// Most rules that are kept one by one: with more, a look-up has fewer steps by bits.
fn most_few(rules: usize) -> usize {
    (rules.div_ceil(64) / 2).max(8)
}

fn is_set(words: &[u64], rule: u16) -> bool {
    words[usize::from(rule / 64)] >> (rule % 64) & 1 == 1
}

fn set(words: &mut [u64], rule: u16) {
    words[usize::from(rule / 64)] |= 1 << (rule % 64);
}

/// The rules of a list that may still match a packet. Once a dimension has left few, they are looked at one
/// by one.
#[derive(Debug)]
pub(crate) struct Candidates {
    few: Option<Positions>,
    words: [u64; WORDS],
    /// Words that the list has.
    end: usize,
    /// Words before this one are zero.
    begin: usize,
}

/// Most candidates that are looked at one by one.
const MOST_CANDIDATES: usize = 32;

pub(crate) type Positions = SmallVec<[u16; MOST_CANDIDATES]>;

impl Candidates {
    pub fn all(rules: usize) -> Candidates {
        let mut candidates = Candidates {
            few: None,
            words: [0; WORDS],
            end: rules.div_ceil(64),
            begin: 0,
        };
        fill(&mut candidates.words, rules);
        candidates
    }

    /// The rule that is tried first.
    pub fn first(&mut self) -> Option<u16> {
        if let Some(few) = &self.few {
            return few.first().copied();
        }
        let zeros = self.words[self.begin..self.end]
            .iter()
            .position(|&word| word != 0)?;
        self.begin += zeros;
        Some((self.begin * 64) as u16 + self.words[self.begin].trailing_zeros() as u16)
    }

    /// Candidates one by one, in order, if they are few.
    pub fn few_mut(&mut self) -> Option<&mut Positions> {
        self.few.as_mut()
    }

    /// Takes a candidate out.
    pub fn remove(&mut self, rule: u16) {
        match &mut self.few {
            Some(few) => few.retain(|other| *other != rule),
            None => self.words[usize::from(rule / 64)] &= !(1 << (rule % 64)),
        }
    }

    /// Leaves those that one of `allowed` has. No two of these have a rule in common.
    pub fn narrow(&mut self, allowed: &[&RuleBits]) {
        if let Some(few) = &mut self.few {
            return few.retain(|rule| allowed.iter().any(|rules| rules.contains(*rule)));
        }
        let mut stay = Positions::new();
        let mut many: SmallVec<[&[u64]; 4]> = SmallVec::new();
        for rules in allowed {
            match rules {
                RuleBits::Few(positions) => {
                    let candidates = positions.iter().filter(|rule| is_set(&self.words, **rule));
                    stay.extend(candidates.copied());
                }
                RuleBits::Many(words) => many.push(words),
            }
        }
        if many.is_empty() && stay.len() <= MOST_CANDIDATES {
            stay.sort_unstable();
            self.few = Some(stay);
            return;
        }
        self.and_any(&many);
        stay.iter().for_each(|&rule| set(&mut self.words, rule));
    }

    /// Leaves those that any of these has.
    fn and_any(&mut self, many: &[&[u64]]) {
        let range = self.begin..self.end;
        let words = &mut self.words[range.clone()];
        match many {
            [] => words.fill(0),
            [one] => {
                for (word, one) in words.iter_mut().zip(&one[range]) {
                    *word &= one;
                }
            }
            [first, others @ ..] => {
                let mut any = [0; WORDS];
                let any = &mut any[range.clone()];
                any.copy_from_slice(&first[range.clone()]);
                for other in others {
                    for (any, word) in any.iter_mut().zip(&other[range.clone()]) {
                        *any |= word;
                    }
                }
                for (word, any) in words.iter_mut().zip(any) {
                    *word &= *any;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Rules are in groups, a large one and small ones, as in a dimension; each dimension leaves those of
        /// some groups.
        #[test]
        fn candidates_are_those_that_each_dimension_leaves(
            rules in prop_oneof![1..300usize, 1000..3000usize],
            dimensions in prop::collection::vec((any::<u64>(), 1..40u64, 0..4u8), 1..6),
        ) {
            let mut candidates = Candidates::all(rules);
            let mut twin: BTreeSet<u16> = (0..rules as u16).collect();
            for (seed, groups, large) in dimensions {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut bits: Vec<RuleBits> = (0..groups).map(|_| RuleBits::default()).collect();
                let mut of_groups = vec![BTreeSet::new(); groups as usize];
                for rule in 0..rules as u16 {
                    let group = if random.u8(..4) < large { 0 } else { random.u64(..groups) } as usize;
                    bits[group].add(rule, rules);
                    of_groups[group].insert(rule);
                }
                bits[0].pack(rules);
                let allowed: Vec<usize> = (0..groups as usize).filter(|_| random.bool()).collect();
                candidates.narrow(&allowed.iter().map(|&group| &bits[group]).collect::<Vec<_>>());
                twin.retain(|rule| allowed.iter().any(|&group| of_groups[group].contains(rule)));
                prop_assert_eq!(candidates.first(), twin.first().copied());
                if let Some(first) = twin.pop_first().filter(|_| random.bool()) {
                    candidates.remove(first);
                } else {
                    twin.extend(candidates.first());
                }
            }
            prop_assert_eq!(left(candidates), twin.into_iter().collect::<Vec<_>>());
        }

        /// The next version lacks some rules and has others.
        #[test]
        fn rules_are_found_at_their_places_in_the_next_version(
            stay in prop::collection::vec((0..3u8, any::<bool>()), 1..1500),
        ) {
            let (former, next) = (stay.len(), stay.iter().map(|one| usize::from(one.0 > 0) + usize::from(one.0 > 1)));
            let mut moves = Moves::new(former, next.sum());
            let (mut bits, mut expected) = (RuleBits::default(), BTreeSet::new());
            let mut place = 0;
            for (at, (places, has)) in (0u16..).zip(stay) {
                if has {
                    bits.add(at, former);
                }
                if places > 0 {
                    moves.set(at, place);
                    expected.extend(has.then_some(place));
                    place += 1;
                }
                if places > 1 {
                    moves.added.push(place);
                    place += 1;
                }
            }
            let moved = bits.moved(&moves);
            prop_assert_eq!(moved.is_empty(), expected.is_empty());
            prop_assert!((0..place).all(|rule| moved.contains(rule) == expected.contains(&rule)));
        }
    }

    fn left(mut candidates: Candidates) -> Vec<u16> {
        let mut left = Vec::new();
        while let Some(rule) = candidates.first() {
            left.push(rule);
            candidates.remove(rule);
        }
        left
    }

    #[test]
    fn candidates_stay_if_anything_allows_them() {
        for rules in [1, 63, 64, 65, 200, MAX_RULES] {
            assert_eq!(left(Candidates::all(rules)).len(), rules);
            let mut many = RuleBits::default();
            let even: Vec<u16> = (0..rules as u16).step_by(2).collect();
            even.iter().for_each(|&rule| many.add(rule, rules));
            let mut last = RuleBits::default();
            last.add(rules as u16 - 1, rules);
            let mut candidates = Candidates::all(rules);
            if rules % 2 == 1 {
                // An even place, which one of them has.
                candidates.narrow(&[&many]);
            } else {
                candidates.narrow(&[&many, &last]);
            }
            let expected: Vec<u16> = (0..rules as u16)
                .filter(|rule| rule % 2 == 0 || usize::from(*rule) == rules - 1)
                .collect();
            assert_eq!(left(candidates), expected);
            let mut others = RuleBits::all(rules);
            even.iter().for_each(|&rule| others.remove(rule));
            let mut candidates = Candidates::all(rules);
            candidates.narrow(&[&others]);
            assert_eq!(left(candidates).len(), rules - even.len());
        }
    }

    #[test]
    fn many_rules_take_a_bit_each() {
        let mut rules = RuleBits::default();
        (0..10_000).for_each(|rule| rules.add(rule, 10_000));
        assert_eq!(rules.memory(), 157 * 8);
    }
}
