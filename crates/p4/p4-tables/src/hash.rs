//! Keyed hashing of table keys.
//!
//! The senders of packets or entries must not be able to predict which keys collide. The hash is NH (Black et
//! al., *UMAC*, CRYPTO 1999; RFC 4418 5.2): pairs of words are added to secret words, multiplied and summed.
//! Two different keys of equal length collide in its 128 bits with a probability of 2^-64 over the choice of
//! the secret. A last secret multiplication spreads the sum over all 64 bits.

use std::array;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use crate::key::MAX_KEY_WORDS;

struct Secret {
    words: [u64; MAX_KEY_WORDS],
    last: u64,
}

/// The process's secret. The standard library keys its maps with random numbers of the system; the hash of no
/// bytes under such a key is as unpredictable as the key.
fn secret() -> &'static Secret {
    static SECRET: OnceLock<Secret> = OnceLock::new();
    let random = || RandomState::new().build_hasher().finish();
    // An even factor would lose the highest bit.
    SECRET.get_or_init(|| Secret {
        words: array::from_fn(|_| random()),
        last: random() | 1,
    })
}

/// The hash of a key of at most [`MAX_KEY_WORDS`] words. Keys of different lengths are not compared.
#[inline(always)]
pub(crate) fn hash(key: &[u64]) -> u64 {
    let secret = secret();
    let pairs = key.chunks(2).zip(secret.words.chunks_exact(2));
    let sum = pairs.fold(0u128, |sum, (pair, secret)| {
        let second = pair.get(1).copied().unwrap_or(0);
        let product =
            u128::from(pair[0].wrapping_add(secret[0])) * u128::from(second.wrapping_add(secret[1]));
        sum.wrapping_add(product)
    });
    let folded = (sum >> 64) as u64 ^ (sum as u64).rotate_left(32);
    let product = u128::from(folded) * u128::from(secret.last);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_bit_matters_and_both_ends_spread() {
        let mut hashes = HashSet::new();
        let (mut low, mut high) = ([0u32; 64], [0u32; 64]);
        for bit in 0..1024 {
            let mut key = [0u64; 16];
            key[bit / 64] = 1 << (bit % 64);
            let hash = hash(&key);
            assert!(hashes.insert(hash), "bit {bit} collides");
            low[(hash & 63) as usize] += 1;
            high[(hash >> 58) as usize] += 1;
        }
        // 1024 keys in 64 places: 16 each, standard deviation 4.
        assert!(
            low.iter().chain(&high).all(|&count| count < 56),
            "{low:?} {high:?}"
        );
    }
}
