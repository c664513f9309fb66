//! The exact-match key: the fields of a flow key in the shortest form.

use crate::key::{FlowKey, FlowMask, KEY_WORDS};
use crate::unseen::Unseen;
use std::ops::BitOr;

/// A short form of a packet's flow key: packets with equal exact keys have equal flow keys. Caches compare
/// and hash exact keys, whole or under masks of their own. Flows have masks of flow keys, into which exact
/// keys can be [turned](Self::flow_key).
///
/// There are two forms. The key of a usual packet - TCP or UDP in IPv4 without tags, options and fragments -
/// has the header bytes as they are, in the first [`SHORT_WORDS`](Self::SHORT_WORDS) words, and anything in
/// the others. The key of another packet has the words of its flow key, except those that only neighbour
/// discovery uses; neighbour discovery has no exact key. Within a form, equal flow keys make equal exact
/// keys. An unusual packet may differ from a usual one in something that no flow key has, such as a wrong
/// version or the encapsulation of RFC 1042.
///
/// A key with fields that are [unknown](Unseen) differs from all keys in which other fields are.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct ExactKey {
    /// The words. TCP flags are where a flow key has them.
    pub words: [u64; ExactKey::WORDS],
}

impl PartialEq for ExactKey {
    #[inline]
    fn eq(&self, other: &ExactKey) -> bool {
        self.is_equal_in(other, |_| u64::MAX)
    }
}

/// Bits of word 3, none of which a flow key uses.
const SHORT: u64 = 1 << 63;
const NONE: u64 = 1 << 62;
/// The number of an [`Unseen`].
const UNSEEN: u64 = 7 << UNSEEN_SHIFT;
const UNSEEN_SHIFT: u32 = 59;

impl ExactKey {
    /// Words of a key.
    pub const WORDS: usize = 10;
    /// Words of a usual packet's key.
    pub const SHORT_WORDS: usize = 6;
    /// The value for a packet that has no exact key.
    pub const NONE: ExactKey = {
        let mut words = [0; ExactKey::WORDS];
        words[3] = NONE;
        ExactKey { words }
    };

    /// Makes this the key of a usual packet, from input port and transport ports, two words of Ethernet
    /// header, those fields of word 4 that are not in these words, and addresses.
    #[inline]
    pub fn set_short(&mut self, ports: u64, ethernet: [u64; 2], ip: u64, addresses: u64) {
        let [first, second] = ethernet;
        self.words[..Self::SHORT_WORDS].copy_from_slice(&[ports, first, second, SHORT, ip, addresses]);
    }

    /// The key of any other packet.
    pub fn of(key: &FlowKey) -> ExactKey {
        const { assert!(ExactKey::WORDS < KEY_WORDS) }
        match key.words.split_first_chunk() {
            Some((&words, rest)) if rest.iter().all(|&word| word == 0) => ExactKey { words },
            _ => ExactKey::NONE,
        }
    }

    /// The key of an unusual packet, in which those fields are unknown.
    #[must_use]
    pub fn with_unseen(mut self, unseen: Unseen) -> ExactKey {
        const { assert!(Unseen::ALL.len() <= 1 << UNSEEN.count_ones()) }
        self.words[3] = self.words[3] & !UNSEEN | (unseen as u64) << UNSEEN_SHIFT;
        self
    }

    /// The fields that are unknown.
    #[inline]
    pub fn unseen(&self) -> Unseen {
        if self.is_short() {
            return Unseen::Nothing;
        }
        let number = (self.words[3] & UNSEEN) >> UNSEEN_SHIFT;
        Unseen::ALL[(number as usize).min(Unseen::ALL.len() - 1)]
    }

    /// The flow key; `None` if there is no exact key either.
    #[inline]
    pub fn flow_key(&self) -> Option<FlowKey> {
        if self.is_none() {
            return None;
        }
        let mut key = FlowKey::default();
        if !self.is_short() {
            key.words[..Self::WORDS].copy_from_slice(&self.words);
            key.words[3] &= !UNSEEN;
            return Some(key);
        }
        let [ports, first, second, _, ip, addresses, ..] = self.words;
        let (first, second) = (first.swap_bytes(), second.swap_bytes());
        let ports_swapped = ((ports >> 32) as u32).swap_bytes();
        let addresses = addresses.swap_bytes();
        key.words[0] = ports & 0xffff_ffff;
        key.words[1] = first & !0xffff | second >> 16 & 0xffff;
        key.words[2] = first << 48 | second >> 32 << 16;
        key.words[4] = ip | (second & 0xff) << 8;
        key.words[6] = addresses >> 32;
        key.words[8] = addresses & 0xffff_ffff;
        key.words[9] = u64::from(ports_swapped & 0xffff) << 48 | u64::from(ports_swapped >> 16) << 32;
        Some(key)
    }

    /// How many words of the key have a meaning.
    #[inline]
    fn len(&self) -> usize {
        if self.is_short() {
            Self::SHORT_WORDS
        } else {
            Self::WORDS
        }
    }

    /// The key with every bit outside the mask cleared. `mask` gives the words of a mask for this key's form.
    #[inline]
    pub fn masked(&self, mask: impl Fn(usize) -> u64) -> ExactKey {
        let mut key = ExactKey::default();
        for word in 0..self.len() {
            key.words[word] = self.words[word] & mask(word);
        }
        key
    }

    /// Whether the key equals `other` in all bits of the mask. `mask` gives the words of a mask for this
    /// key's form.
    #[inline]
    pub fn is_equal_in(&self, other: &ExactKey, mask: impl Fn(usize) -> u64) -> bool {
        let difference = |word| (self.words[word] ^ other.words[word]) & mask(word);
        let differences = (0..Self::SHORT_WORDS).map(difference).fold(0, BitOr::bitor);
        differences == 0
            && (self.is_short() || (Self::SHORT_WORDS..Self::WORDS).all(|word| difference(word) == 0))
    }

    /// The mask for keys of usual packets that compares what `mask` compares of their [flow
    /// keys](Self::flow_key), and always the input port and the form.
    pub fn short_mask(mask: &FlowMask) -> [u64; Self::WORDS] {
        let [_, destination, source, _, ip, _, from, _, to, transport, ..] = mask.0.words;
        let ports = (transport >> 48) as u32 | (transport >> 32 << 16) as u32;
        let first = destination & !0xffff | source >> 48;
        let second = source >> 16 << 32 | (destination & 0xffff) << 16 | ip >> 8 & 0xff;
        let addresses = from << 32 | to & 0xffff_ffff;
        let mut key = ExactKey::default();
        key.set_short(
            u64::from(ports.swap_bytes()) << 32 | u64::from(u32::MAX),
            [first, second].map(u64::swap_bytes),
            ip,
            addresses.swap_bytes(),
        );
        key.words[3] |= NONE;
        key.words
    }

    /// The exact key's mask for keys of packets that are not of the usual form.
    pub fn long_mask(mask: &FlowMask) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words.copy_from_slice(&mask.0.words[..Self::WORDS]);
        words[0] |= u64::from(u32::MAX);
        words[3] |= SHORT | NONE | UNSEEN;
        words
    }

    /// Whether this is the key of a usual packet, which has only the first [`SHORT_WORDS`](Self::SHORT_WORDS)
    /// words.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.words[3] & SHORT != 0
    }

    /// Whether the packet has no exact key.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.words[3] & NONE != 0
    }

    /// As [`FlowKey::tcp_flags`].
    #[inline]
    pub fn tcp_flags(&self) -> u16 {
        (self.words[4] >> 32) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FIELDS;

    #[test]
    fn flow_keys_leave_the_marks_alone() {
        for field in FIELDS.iter().filter(|field| field.word == 3) {
            assert_eq!((field.ones() as u64) << field.shift & (SHORT | NONE | UNSEEN), 0);
        }
    }

    #[test]
    fn neighbour_discovery_has_none() {
        let mut key = FlowKey::default();
        key.set_tcp_flags(0x12);
        let exact = ExactKey::of;
        assert_eq!(exact(&key).tcp_flags(), 0x12);
        assert!(!exact(&key).is_none() && !exact(&key).is_short());
        key.set_nd_target(1);
        assert!(exact(&key).is_none());
    }

    #[test]
    fn keys_in_which_other_fields_are_unknown_differ_under_each_mask() {
        let mut key = FlowKey::default();
        key.set_inner_tpid(u16::MAX);
        let of = |unseen| ExactKey::of(&key).with_unseen(unseen);
        let mask = ExactKey::long_mask(&FlowMask::ANY);
        for one in Unseen::ALL {
            assert_eq!(of(one).unseen(), one);
            assert_eq!(of(one).flow_key(), Some(key));
            for other in Unseen::ALL {
                let equal = of(one).is_equal_in(&of(other), |word| mask[word]);
                assert_eq!(equal, one == other);
            }
        }
    }
}
