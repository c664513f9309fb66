//! The flow key: every header field a decision may depend on, packed into 64-bit words.
//!
//! Words are ordered by layer (metadata, Ethernet, IP, transport, neighbour discovery), so that a staged
//! lookup is a prefix of the words. Masking, comparing and hashing work on words and know no fields; the
//! field table below is the only place that knows where a field lies. Values are in host byte order.

use serde::{Deserialize, Serialize};

/// 64-bit words in a key.
pub const KEY_WORDS: usize = 16;

/// Bit in a VLAN TCI field that says "tag present" (the CFI/DEI position, as in the OVS kernel datapath), so
/// that an untagged packet (0) differs from one tagged with VLAN 0.
pub const VLAN_PRESENT: u16 = 0x1000;

/// Where a field lies in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in `ovs-fields(7)` where the field exists there.
    pub name: &'static str,
    /// Word index, below [`KEY_WORDS`].
    pub word: usize,
    /// Lowest bit in the word.
    pub shift: u32,
    /// Width in bits, 1 to 64.
    pub bits: u32,
}

/// The packet's header fields. See [`FIELDS`] for the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct FlowKey {
    /// The packed words.
    pub words: [u64; KEY_WORDS],
}

/// Which bits of a key matter: ones are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct FlowMask(pub FlowKey);

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident, $set:ident: $ty:ty = $word:literal, $shift:literal, $bits:literal;)*) => {
        /// All single-word fields.
        pub const FIELDS: &[Field] = &[
            $(Field { name: stringify!($name), word: $word, shift: $shift, bits: $bits },)*
        ];

        impl FlowKey {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&self) -> $ty {
                    ((self.words[$word] >> $shift) & (u64::MAX >> (64 - $bits))) as $ty
                }

                #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), "); excess bits are cut off.")]
                #[inline]
                pub fn $set(&mut self, value: $ty) {
                    let ones = u64::MAX >> (64 - $bits);
                    self.words[$word] = self.words[$word] & !(ones << $shift) | ((value as u64 & ones) << $shift);
                }
            )*
        }
    };
}

fields! {
    /// Port the packet came in on.
    in_port, set_in_port: u32 = 0, 0, 32;
    /// Pass through the tables, 0 for the first.
    recirc_id, set_recirc_id: u32 = 0, 32, 32;
    /// Destination MAC address, first byte in the highest bits of the 48.
    eth_dst, set_eth_dst: u64 = 1, 16, 48;
    /// Ethernet type behind all VLAN tags; 0 for an 802.3 length field.
    eth_type, set_eth_type: u16 = 1, 0, 16;
    /// Source MAC address.
    eth_src, set_eth_src: u64 = 2, 16, 48;
    /// Outer VLAN tag control information with [`VLAN_PRESENT`]; 0 when untagged.
    vlan_tci, set_vlan_tci: u16 = 2, 0, 16;
    /// Outer tag protocol identifier; 0 when untagged.
    vlan_tpid, set_vlan_tpid: u16 = 3, 0, 16;
    /// Inner VLAN tag control information with [`VLAN_PRESENT`]; 0 when not double-tagged.
    inner_tci, set_inner_tci: u16 = 3, 16, 16;
    /// Inner tag protocol identifier.
    inner_tpid, set_inner_tpid: u16 = 3, 32, 16;
    /// IP protocol or IPv6 upper-layer protocol; ARP: operation (low 8 bits).
    ip_proto, set_ip_proto: u8 = 4, 0, 8;
    /// Type of service / traffic class.
    ip_tos, set_ip_tos: u8 = 4, 8, 8;
    /// Time to live / hop limit.
    ip_ttl, set_ip_ttl: u8 = 4, 16, 8;
    /// 0 whole packet, 1 first fragment, 2 later fragment (`enum ovs_frag_type`).
    ip_frag, set_ip_frag: u8 = 4, 24, 8;
    /// TCP flags, 12 bits with the reserved ones.
    tcp_flags, set_tcp_flags: u16 = 4, 32, 16;
    /// IPv6 flow label, 20 bits.
    ipv6_label, set_ipv6_label: u32 = 9, 0, 32;
    /// TCP, UDP or SCTP source port; ICMP type.
    tp_src, set_tp_src: u16 = 9, 32, 16;
    /// TCP, UDP or SCTP destination port; ICMP code.
    tp_dst, set_tp_dst: u16 = 9, 48, 16;
    /// ARP sender hardware address, or ND source link-layer address.
    nd_sll, set_nd_sll: u64 = 10, 0, 48;
    /// ARP target hardware address, or ND target link-layer address.
    nd_tll, set_nd_tll: u64 = 11, 0, 48;
}

/// First word of the 128-bit addresses.
const IP_SRC: usize = 5;
const IP_DST: usize = 7;
const ND_TARGET: usize = 12;

impl FlowKey {
    /// IP source address; IPv4 (and ARP sender protocol address) in the low 32 bits.
    #[inline]
    pub fn ip_src(&self) -> u128 {
        self.wide(IP_SRC)
    }

    /// Sets [`ip_src`](Self::ip_src).
    #[inline]
    pub fn set_ip_src(&mut self, value: u128) {
        self.set_wide(IP_SRC, value);
    }

    /// IP destination address; IPv4 (and ARP target protocol address) in the low 32 bits.
    #[inline]
    pub fn ip_dst(&self) -> u128 {
        self.wide(IP_DST)
    }

    /// Sets [`ip_dst`](Self::ip_dst).
    #[inline]
    pub fn set_ip_dst(&mut self, value: u128) {
        self.set_wide(IP_DST, value);
    }

    /// IPv6 neighbour discovery target address.
    #[inline]
    pub fn nd_target(&self) -> u128 {
        self.wide(ND_TARGET)
    }

    /// Sets [`nd_target`](Self::nd_target).
    #[inline]
    pub fn set_nd_target(&mut self, value: u128) {
        self.set_wide(ND_TARGET, value);
    }

    #[inline]
    fn wide(&self, word: usize) -> u128 {
        u128::from(self.words[word]) << 64 | u128::from(self.words[word + 1])
    }

    #[inline]
    fn set_wide(&mut self, word: usize, value: u128) {
        self.words[word] = (value >> 64) as u64;
        self.words[word + 1] = value as u64;
    }

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
    /// Compares everything.
    pub const EXACT: FlowMask = FlowMask(FlowKey {
        words: [u64::MAX; KEY_WORDS],
    });

    /// Compares nothing.
    pub const ANY: FlowMask = FlowMask(FlowKey {
        words: [0; KEY_WORDS],
    });

    /// Compares what either does.
    #[must_use]
    pub fn union(mut self, other: &FlowMask) -> FlowMask {
        for (word, other) in self.0.words.iter_mut().zip(&other.0.words) {
            *word |= other;
        }
        self
    }

    /// Whether the field is compared in all its bits.
    pub fn is_exact(&self, field: &Field) -> bool {
        let ones = u64::MAX >> (64 - field.bits);
        (self.0.words[field.word] >> field.shift) & ones == ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let mut used = [0u64; KEY_WORDS];
        for field in FIELDS {
            let bits = (u64::MAX >> (64 - field.bits)) << field.shift;
            assert_eq!(used[field.word] & bits, 0, "{}", field.name);
            used[field.word] |= bits;
        }
        for word in [IP_SRC, IP_DST, ND_TARGET] {
            assert_eq!(used[word] | used[word + 1], 0, "wide field at {word}");
            used[word] = u64::MAX;
            used[word + 1] = u64::MAX;
        }
    }

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
