//! Sets of a list's rules, one bit per rule in the order in which rules are tried.

use crate::MAX_RULES;
use smallvec::SmallVec;

/// 64-bit words for all rules of a list.
const WORDS: usize = MAX_RULES / 64;

/// Rules that share a condition: their positions one by one if they are few, else one bit for each rule of
/// the list.
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
        // Beyond this many, positions take more room than bits, and more steps.
        let few = rules.div_ceil(64) * 2;
        if let RuleBits::Few(positions) = self {
            if positions.len() < few {
                positions.push(rule);
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

fn set(words: &mut [u64], rule: u16) {
    words[usize::from(rule / 64)] |= 1 << (rule % 64);
}

/// The rules of a list that may still match a packet.
#[derive(Debug)]
pub(crate) struct Candidates {
    words: [u64; WORDS],
    /// Words that the list has.
    end: usize,
    /// Words before this one are zero.
    begin: usize,
}

impl Candidates {
    pub fn all(rules: usize) -> Candidates {
        let mut candidates = Candidates {
            words: [0; WORDS],
            end: rules.div_ceil(64),
            begin: 0,
        };
        fill(&mut candidates.words, rules);
        candidates
    }

    /// The rule that is tried first.
    pub fn first(&mut self) -> Option<u16> {
        let zeros = self.words[self.begin..self.end]
            .iter()
            .position(|&word| word != 0)?;
        self.begin += zeros;
        Some((self.begin * 64) as u16 + self.words[self.begin].trailing_zeros() as u16)
    }

    /// Takes a candidate out.
    pub fn remove(&mut self, rule: u16) {
        self.words[usize::from(rule / 64)] &= !(1 << (rule % 64));
    }

    /// Begins to look at one more dimension: [`Narrowing::allow`] says which candidates stay.
    pub fn narrow(&mut self) -> Narrowing<'_> {
        Narrowing {
            stay: [0; WORDS],
            candidates: self,
        }
    }
}

/// Candidates that stay.
#[derive(Debug)]
pub(crate) struct Narrowing<'a> {
    stay: [u64; WORDS],
    candidates: &'a mut Candidates,
}

impl Narrowing<'_> {
    pub fn allow(&mut self, rules: &RuleBits) {
        match rules {
            RuleBits::Few(positions) => positions.iter().for_each(|&rule| set(&mut self.stay, rule)),
            RuleBits::Many(words) => {
                let range = self.candidates.begin..self.candidates.end;
                for (stay, word) in self.stay[range.clone()].iter_mut().zip(&words[range]) {
                    *stay |= word;
                }
            }
        }
    }

    pub fn finish(self) {
        let range = self.candidates.begin..self.candidates.end;
        for (word, stay) in self.candidates.words[range.clone()]
            .iter_mut()
            .zip(&self.stay[range])
        {
            *word &= stay;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(mut candidates: Candidates) -> Vec<u16> {
        let mut left = Vec::new();
        while let Some(rule) = candidates.first() {
            left.push(rule);
            candidates.words[usize::from(rule / 64)] &= !(1 << (rule % 64));
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
            let mut narrowing = candidates.narrow();
            narrowing.allow(&many);
            narrowing.allow(&last);
            narrowing.finish();
            let expected: Vec<u16> = (0..rules as u16)
                .filter(|rule| rule % 2 == 0 || usize::from(*rule) == rules - 1)
                .collect();
            assert_eq!(left(candidates), expected);
            let mut others = RuleBits::all(rules);
            even.iter().for_each(|&rule| others.remove(rule));
            let mut candidates = Candidates::all(rules);
            let mut narrowing = candidates.narrow();
            narrowing.allow(&others);
            narrowing.finish();
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
