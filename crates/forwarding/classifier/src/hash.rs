//! Keyed hashing of flow keys.
//!
//! Guests choose keys. A guest that could predict which keys collide could fill a bucket and make every
//! look-up in it slow. So the hash is NH (Black et al., *UMAC*, CRYPTO 1999; RFC 4418 5.2): word pairs are
//! added to secret words, multiplied, and summed. Two different keys collide in its 128 bits with a
//! probability of 2^-64 over the choice of the secret, whatever the keys are; and the multiplications do not
//! wait for each other. A last secret multiplication spreads the result, as tables look at a few bits only.
//!
//! The secret is drawn once per process, and results never leave it.

use std::array;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use flow::KEY_WORDS;

/// Pairs of words in a key.
pub(crate) const PAIRS: usize = KEY_WORDS / 2;

/// The process's secret.
#[derive(Debug)]
pub(crate) struct Seed {
    words: [u64; KEY_WORDS],
    /// The secret for contexts.
    context: [u64; KEY_WORDS],
    last: u64,
}

impl Seed {
    /// The secret of all tables and caches of the process.
    pub(crate) fn process() -> &'static Seed {
        static SEED: OnceLock<Seed> = OnceLock::new();
        SEED.get_or_init(|| Seed {
            words: array::from_fn(|_| random_word()),
            context: array::from_fn(|_| random_word()),
            // An even factor would lose the highest bit.
            last: random_word() | 1,
        })
    }

    /// Secret words that are all zero: keys collide in which the words of a pair have changed places.
    #[cfg(test)]
    pub(crate) fn known() -> &'static Seed {
        static SEED: Seed = Seed {
            words: [0; KEY_WORDS],
            context: [0; KEY_WORDS],
            last: 1,
        };
        &SEED
    }

    /// One pair's part of the sum.
    #[inline]
    pub(crate) fn pair(&self, pair: usize, words: [u64; 2]) -> u128 {
        let first = words[0].wrapping_add(self.words[2 * pair]);
        let second = words[1].wrapping_add(self.words[2 * pair + 1]);
        u128::from(first) * u128::from(second)
    }

    /// The part in a sum of a key's word and its mask, which have that number.
    pub(crate) fn word(&self, number: usize, words: [u64; 2]) -> u128 {
        let secret = if number < PAIRS {
            &self.words
        } else {
            &self.context
        };
        let at = 2 * (number % PAIRS);
        let first = words[0].wrapping_add(secret[at]);
        let second = words[1].wrapping_add(secret[at + 1]);
        u128::from(first) * u128::from(second)
    }

    /// A context's part of the sum.
    pub(crate) fn context(&self, words: impl Fn(usize) -> u64) -> u128 {
        let pairs = (0..PAIRS).map(|pair| {
            let first = words(2 * pair).wrapping_add(self.context[2 * pair]);
            let second = words(2 * pair + 1).wrapping_add(self.context[2 * pair + 1]);
            u128::from(first) * u128::from(second)
        });
        pairs.fold(0, u128::wrapping_add)
    }

    /// The hash for a sum of pairs.
    #[inline]
    pub(crate) fn finish(&self, sum: u128) -> u64 {
        let (high, low) = ((sum >> 64) as u64, sum as u64);
        let product = u128::from(high ^ low.rotate_left(32)) * u128::from(self.last);
        (product >> 64) as u64 ^ product as u64
    }

    /// The hash of any words.
    pub(crate) fn of_words(&self, words: [u64; 4]) -> u64 {
        let pairs = [[words[0], words[1]], [words[2], words[3]]];
        let sum = (0..).zip(pairs).map(|(number, pair)| self.pair(number, pair));
        self.finish(sum.fold(0, u128::wrapping_add))
    }

    /// The hash of the first `2 * COUNT` words of keys that do not differ in others.
    #[inline]
    pub(crate) fn pairs<const COUNT: usize>(&self, word: impl Fn(usize) -> u64) -> u64 {
        let pairs = (0..COUNT).map(|pair| self.pair(pair, [word(2 * pair), word(2 * pair + 1)]));
        self.finish(pairs.fold(0, u128::wrapping_add))
    }
}

/// The standard library's hash maps are keyed from the system's random number generator; an empty hash under
/// such a key is as good as the key.
fn random_word() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::FlowKey;
    use std::collections::HashSet;

    #[test]
    fn every_word_matters_and_low_bits_spread() {
        let seed = Seed::process();
        assert_eq!(seed.last % 2, 1);
        let mut hashes = HashSet::new();
        let mut buckets = [0u32; 64];
        for word in 0..KEY_WORDS {
            for bit in 0..64 {
                let mut key = FlowKey::default();
                key.words[word] = 1 << bit;
                let hash = seed.pairs::<PAIRS>(|word| key.words[word]);
                assert!(hashes.insert(hash), "word {word} bit {bit} collides");
                buckets[(hash & 63) as usize] += 1;
            }
        }
        // 1024 keys in 64 buckets: 16 each, standard deviation 4.
        assert!(buckets.iter().all(|&count| count < 56), "{buckets:?}");
    }

    /// A sum's bits all count, and leave no bit of the hash to be guessed.
    #[test]
    fn sums_are_spread_over_the_hash() {
        let seed = Seed::process();
        let mut ones = [0; 64];
        for _ in 0..16 {
            let sum = u128::from(random_word()) << 64 | u128::from(random_word());
            for bit in 0..128 {
                let hash = seed.finish(sum ^ 1 << bit);
                assert_ne!(hash, seed.finish(sum), "bit {bit} makes no difference");
                (0..64).for_each(|place| ones[place] += hash >> place & 1);
            }
        }
        // Half of 2048, standard deviation 23 if they were independent.
        assert!(ones.iter().all(|ones| (700..1350).contains(ones)), "{ones:?}");
    }

    /// What a word is, and which of a pair it is, makes a difference.
    #[test]
    fn words_that_change_or_change_places_change_sums() {
        let seed = Seed::process();
        let context = |words: [u64; KEY_WORDS]| seed.context(|word| words[word]);
        let words = array::from_fn(|word| word as u64 + 1);
        for word in 0..KEY_WORDS {
            let mut changed = words;
            changed[word] += 1;
            assert_ne!(context(words), context(changed), "word {word}");
        }
        for pair in 0..PAIRS {
            let mut swapped = words;
            swapped.swap(2 * pair, 2 * pair + 1);
            assert_ne!(context(words), context(swapped), "pair {pair}");
            assert_ne!(seed.pair(pair, [1, 2]), seed.pair(pair, [2, 1]), "pair {pair}");
        }
    }
}
