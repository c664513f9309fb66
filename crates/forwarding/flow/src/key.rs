//! The flow key: every header field a decision may depend on, packed into 64-bit words.
//!
//! Words are ordered by layer (metadata, Ethernet, IP, transport, neighbour discovery), so that a staged
//! lookup is a prefix of the words; later words of metadata go with the first ones. Masking, comparing and
//! hashing work on words and know no fields; [`crate::FIELDS`] knows where a field lies.

use crate::field::Field;
use serde::{Deserialize, Serialize};

/// 64-bit words in a key.
pub const KEY_WORDS: usize = 16;

/// Bit in a VLAN TCI field that says "tag present" (the CFI/DEI position, as in the OVS kernel datapath), so
/// that an untagged packet (0) differs from one tagged with VLAN 0.
pub const VLAN_PRESENT: u16 = 0x1000;

/// The packet's header fields and most metadata. See [`FIELDS`](crate::FIELDS) for the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct FlowKey {
    /// The packed words.
    pub words: [u64; KEY_WORDS],
}

/// Bits of a key that a flow compares: those that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct FlowMask(pub FlowKey);

impl FlowKey {
    /// The key with every bit outside `mask` cleared.
    #[inline]
    pub fn masked(&self, mask: &FlowMask) -> FlowKey {
        let mut words = self.words;
        for (word, mask) in words.iter_mut().zip(&mask.0.words) {
            *word &= mask;
        }
        FlowKey { words }
    }
}

impl FlowMask {
    /// Matches all bits.
    pub const EXACT: FlowMask = FlowMask(FlowKey {
        words: [u64::MAX; KEY_WORDS],
    });

    /// Matches no bit.
    pub const ANY: FlowMask = FlowMask(FlowKey {
        words: [0; KEY_WORDS],
    });

    /// Matches the bits that either mask matches.
    #[must_use]
    pub fn union(mut self, other: &FlowMask) -> FlowMask {
        for (word, other) in self.0.words.iter_mut().zip(&other.0.words) {
            *word |= other;
        }
        self
    }

    /// Matches the bits that this mask matches and the other one does not.
    #[must_use]
    pub fn without(mut self, other: &FlowMask) -> FlowMask {
        for (word, other) in self.0.words.iter_mut().zip(&other.0.words) {
            *word &= !other;
        }
        self
    }

    /// Whether there is a bit that both masks match.
    pub fn meets(&self, other: &FlowMask) -> bool {
        let mut pairs = self.0.words.iter().zip(&other.0.words);
        pairs.any(|(one, other)| one & other != 0)
    }

    /// The bits that tell kinds of frames apart, of which a link has few: tags, type, protocol.
    #[must_use]
    pub fn of_kinds(&self) -> FlowMask {
        let mut kinds = FlowMask::ANY;
        kinds.0.set_vlan_tpid(self.0.vlan_tpid());
        kinds.0.set_vlan_tci(self.0.vlan_tci());
        kinds.0.set_inner_tpid(self.0.inner_tpid());
        kinds.0.set_inner_tci(self.0.inner_tci());
        kinds.0.set_eth_type(self.0.eth_type());
        kinds.0.set_ip_proto(self.0.ip_proto());
        kinds
    }

    /// Whether the mask tells connections of TCP and UDP apart: it has both ports whole.
    pub fn tells_connections_apart(&self) -> bool {
        self.0.tp_src() == u16::MAX && self.0.tp_dst() == u16::MAX
    }

    /// Whether the field, one of the key, is compared in all its bits.
    pub fn is_exact(&self, field: &Field) -> bool {
        field.get(&self.0.words) == field.ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_field_changes_only_that_field() {
        let mut key = FlowKey {
            words: [u64::MAX; KEY_WORDS],
        };
        key.set_eth_type(0x0800);
        assert_eq!(key.eth_type(), 0x0800);
        assert_eq!(key.eth_dst(), 0xffff_ffff_ffff);
        key.set_ip_src(0x0102_0304);
        assert_eq!((key.ip_src(), key.ip_dst()), (0x0102_0304, u128::MAX));
    }
}
