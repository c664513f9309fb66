//! The packets that a decision holds for, if it stands on rules.
//!
//! Decisions that stand on flows alone end with their flows. A list of rules outlives most changes of it, and
//! sets change by member, so these decisions say about which packets they are: a change then ends those that
//! it may concern and no others.
//!
//! There are as many classes as kinds of packets, and guests make up kinds. So a class has those words of the
//! key that lists looked at, which are few.

use crate::hash::Seed;
use flow::{FlowKey, FlowMask, KEY_WORDS};
use smallvec::SmallVec;

/// Words that most lists look at.
const USUAL: usize = 8;

/// Packets that rule lists judge alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// The port that packets come from.
    pub in_port: u32,
    /// Packets were changed before a list saw them, so that their key does not say what it saw.
    pub was_changed: bool,
    /// Words of the key with bits that decided in any list, one bit each.
    present: u16,
    /// Words of packets as they came under the bits that decided, and these bits.
    words: SmallVec<[[u64; 2]; USUAL]>,
}

const _: () = assert!(KEY_WORDS <= u16::BITS as usize);

impl Class {
    /// Packets that agree with `key` in the bits `noted`.
    pub fn new(key: &FlowKey, noted: &FlowMask, was_changed: bool) -> Class {
        let mut class = Class {
            in_port: key.in_port(),
            was_changed,
            present: 0,
            words: SmallVec::new(),
        };
        for (at, (key, noted)) in key.words.iter().zip(&noted.0.words).enumerate() {
            if *noted != 0 {
                class.present |= 1 << at;
                class.words.push([key & noted, *noted]);
            }
        }
        class
    }

    /// The words, each with its number in a key.
    fn words(&self) -> impl Iterator<Item = (usize, [u64; 2])> {
        let numbers = (0..KEY_WORDS).filter(|at| self.present >> at & 1 == 1);
        numbers.zip(self.words.iter().copied())
    }

    /// The key of packets as they came, under the bits that decided, and these bits.
    pub fn key(&self) -> (FlowKey, FlowMask) {
        let (mut key, mut noted) = (FlowKey::default(), FlowMask::ANY);
        for (at, words) in self.words() {
            [key.words[at], noted.0.words[at]] = words;
        }
        (key, noted)
    }

    /// Guests choose keys, so the hash is keyed by a secret.
    pub fn hash(&self) -> u64 {
        let seed = Seed::process();
        let sum = self
            .words()
            .fold(0u128, |sum, (at, words)| sum.wrapping_add(seed.word(at, words)));
        seed.finish(sum) ^ u64::from(self.in_port) << 1 ^ u64::from(self.was_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A key with that bit, and a mask with it.
    fn bit(word: usize, bit: u32) -> (FlowKey, FlowMask) {
        let mut key = FlowKey::default();
        key.words[word] = 1 << bit;
        (key, FlowMask(key))
    }

    #[test]
    fn a_class_has_the_bits_that_decided_and_no_others() {
        let whole = FlowKey {
            words: [u64::MAX; KEY_WORDS],
        };
        for word in 0..KEY_WORDS {
            let (key, noted) = bit(word, 7);
            assert_eq!(Class::new(&whole, &noted, false).key(), (key, noted));
        }
        let many = Class::new(&whole, &FlowMask::EXACT, false);
        assert_eq!(many.key(), (whole, FlowMask::EXACT));
        let zeros = Class::new(&FlowKey::default(), &FlowMask::EXACT, false);
        assert_eq!(zeros.key(), (FlowKey::default(), FlowMask::EXACT));
    }

    #[test]
    fn each_bit_of_key_and_mask_makes_another_hash() {
        let mut hashes = HashSet::new();
        for (word, place) in (0..KEY_WORDS).flat_map(|word| [0, 31, 63].map(|place| (word, place))) {
            let (key, noted) = bit(word, place);
            for key in [key, FlowKey::default()] {
                assert!(
                    hashes.insert(Class::new(&key, &noted, false).hash()),
                    "{word} {place}"
                );
            }
        }
    }
}
