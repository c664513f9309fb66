//! The table of fields: everything that the Open vSwitch kernel datapath of Linux 6.1 matches.
//!
//! The table is the only place that knows where a field lies. It makes the accessors of [`FlowKey`] and
//! [`Context`], [`FieldId`], and [`FIELDS`] with names and places. Words below [`KEY_WORDS`] are those of a
//! key, the others those of a context. Values are in host byte order.
//!
//! MPLS and NSH have no IP addresses, and lie where those would be.

use crate::context::Context;
use crate::key::{FlowKey, KEY_WORDS};
use serde::{Deserialize, Serialize};

/// Whether an Ethernet type announces an MPLS label stack (RFC 5332 3).
#[inline]
pub const fn is_mpls(eth_type: u16) -> bool {
    matches!(eth_type, 0x8847 | 0x8848)
}

/// Whether an Ethernet type announces a VLAN tag (IEEE 802.1Q-2018 9.5).
#[inline]
pub const fn is_vlan(eth_type: u16) -> bool {
    matches!(eth_type, 0x8100 | 0x88a8)
}

/// What a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Facts about a packet that are not in its bytes. Zero in a packet that comes from a guest, except for
    /// the port.
    Metadata,
    /// Ethernet and VLAN tags.
    Link,
    /// IP and ARP.
    Network,
    /// TCP, UDP, SCTP, ICMP.
    Transport,
    /// ARP's hardware addresses and IPv6 neighbour discovery.
    NeighbourDiscovery,
    /// MPLS label stack entries (RFC 3032).
    Mpls,
    /// Network service header (RFC 8300).
    Nsh,
    /// The tunnel a packet came through, or is sent into.
    Tunnel,
    /// The packet's connection, described by the fields of its first packet.
    Connection,
}

/// Where a field lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in `ovs-fields(7)` where the field exists there.
    pub name: &'static str,
    /// The layer it belongs to.
    pub layer: Layer,
    /// Index of its word, or of the higher one of two; from [`KEY_WORDS`] on in the context.
    pub word: usize,
    /// Lowest bit in the word.
    pub shift: u32,
    /// Width in bits: 1 to 64, or 128.
    pub bits: u32,
}

impl Field {
    /// Whether the field lies in the context, not in the key.
    pub const fn is_in_context(&self) -> bool {
        self.word >= KEY_WORDS
    }

    /// Whether the field is metadata, which no byte of the packet holds.
    pub const fn is_metadata(&self) -> bool {
        matches!(self.layer, Layer::Metadata | Layer::Tunnel | Layer::Connection)
    }

    /// Whether packets of that Ethernet type may have the field.
    pub const fn applies_to(&self, eth_type: u16) -> bool {
        const NSH: u16 = 0x894f;
        match self.layer {
            Layer::Mpls => is_mpls(eth_type),
            Layer::Nsh => eth_type == NSH,
            Layer::Network | Layer::Transport => !is_mpls(eth_type) && eth_type != NSH,
            _ => true,
        }
    }

    /// A value with all bits of the field set.
    pub const fn ones(&self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// The field's value in the words of a key, or of a context if it lies there.
    #[inline]
    pub fn get(&self, words: &[u64; KEY_WORDS]) -> u128 {
        let word = self.word % KEY_WORDS;
        if self.bits == 128 {
            return u128::from(words[word]) << 64 | u128::from(words[word + 1]);
        }
        u128::from(words[word] >> self.shift) & self.ones()
    }

    /// Sets those bits of the field that are in `mask` to their values in `value`.
    #[inline]
    pub fn set(&self, words: &mut [u64; KEY_WORDS], value: u128, mask: u128) {
        let word = self.word % KEY_WORDS;
        let mask = mask & self.ones();
        let mut change = |word: usize, shift: u32, value: u64, mask: u64| {
            words[word] = words[word] & !(mask << shift) | (value & mask) << shift;
        };
        if self.bits == 128 {
            change(word, 0, (value >> 64) as u64, (mask >> 64) as u64);
            change(word + 1, 0, value as u64, mask as u64);
        } else {
            change(word, self.shift, value as u64, mask as u64);
        }
    }
}

macro_rules! accessors {
    ($of:ident: $(#[$doc:meta])* $name:ident $set:ident u128 $word:literal 0 128) => {
        impl $of {
            $(#[$doc])*
            #[inline]
            pub fn $name(&self) -> u128 {
                const WORD: usize = $word % KEY_WORDS;
                u128::from(self.words[WORD]) << 64 | u128::from(self.words[WORD + 1])
            }

            #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
            #[inline]
            pub fn $set(&mut self, value: u128) {
                const WORD: usize = $word % KEY_WORDS;
                self.words[WORD] = (value >> 64) as u64;
                self.words[WORD + 1] = value as u64;
            }
        }
    };
    ($of:ident: $(#[$doc:meta])* $name:ident $set:ident $ty:ident $word:literal $shift:literal $bits:literal) => {
        impl $of {
            $(#[$doc])*
            #[inline]
            pub fn $name(&self) -> $ty {
                ((self.words[$word % KEY_WORDS] >> $shift) & (u64::MAX >> (64 - $bits))) as $ty
            }

            #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), "); excess bits are cut off.")]
            #[inline]
            pub fn $set(&mut self, value: $ty) {
                let ones = u64::MAX >> (64 - $bits);
                let word = &mut self.words[$word % KEY_WORDS];
                *word = *word & !(ones << $shift) | ((value as u64 & ones) << $shift);
            }
        }
    };
}

macro_rules! fields {
    ($($(#[$doc:meta])* $id:ident, $of:ident $layer:ident: $name:ident $set:ident $ty:ident = $word:tt, $shift:tt, $bits:tt;)*) => {
        /// A field, by its place in [`FIELDS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum FieldId {
            $($(#[$doc])* $id,)*
        }

        impl FieldId {
            /// All of them, in order.
            pub const ALL: &'static [FieldId] = &[$(FieldId::$id,)*];
        }

        /// All fields.
        pub const FIELDS: &[Field] = &[
            $(Field {
                name: stringify!($name),
                layer: Layer::$layer,
                word: $word,
                shift: $shift,
                bits: $bits,
            },)*
        ];

        $(accessors! { $of: $(#[$doc])* $name $set $ty $word $shift $bits })*
    };
}

impl FieldId {
    /// The field.
    #[inline]
    pub fn field(self) -> &'static Field {
        &FIELDS[usize::from(self as u8)]
    }
}

fields! {
    /// Port the packet came in on.
    InPort, FlowKey Metadata: in_port set_in_port u32 = 0, 0, 32;
    /// Pass through the tables, 0 for the first.
    RecircId, FlowKey Metadata: recirc_id set_recirc_id u32 = 0, 32, 32;
    /// Destination MAC address, first byte in the highest bits of the 48.
    EthDst, FlowKey Link: eth_dst set_eth_dst u64 = 1, 16, 48;
    /// Ethernet type behind all VLAN tags; 0 for an 802.3 length field.
    EthType, FlowKey Link: eth_type set_eth_type u16 = 1, 0, 16;
    /// Source MAC address.
    EthSrc, FlowKey Link: eth_src set_eth_src u64 = 2, 16, 48;
    /// Outer VLAN tag control information with [`VLAN_PRESENT`](crate::VLAN_PRESENT); 0 when untagged.
    VlanTci, FlowKey Link: vlan_tci set_vlan_tci u16 = 2, 0, 16;
    /// Outer tag protocol identifier; 0 when untagged.
    VlanTpid, FlowKey Link: vlan_tpid set_vlan_tpid u16 = 3, 0, 16;
    /// Inner VLAN tag control information with [`VLAN_PRESENT`](crate::VLAN_PRESENT); 0 when not
    /// double-tagged.
    InnerTci, FlowKey Link: inner_tci set_inner_tci u16 = 3, 16, 16;
    /// Inner tag protocol identifier.
    InnerTpid, FlowKey Link: inner_tpid set_inner_tpid u16 = 3, 32, 16;
    /// 1 for a packet without an Ethernet header, whose Ethernet type is known nevertheless. None comes from
    /// a guest.
    NoEthernet, FlowKey Metadata: no_ethernet set_no_ethernet u8 = 3, 48, 1;
    /// IP protocol or IPv6 upper-layer protocol; ARP: operation (low 8 bits).
    IpProto, FlowKey Network: ip_proto set_ip_proto u8 = 4, 0, 8;
    /// Type of service / traffic class.
    IpTos, FlowKey Network: ip_tos set_ip_tos u8 = 4, 8, 8;
    /// Time to live / hop limit.
    IpTtl, FlowKey Network: ip_ttl set_ip_ttl u8 = 4, 16, 8;
    /// 0 whole packet, 1 first fragment, 2 later fragment (`enum ovs_frag_type`).
    IpFrag, FlowKey Network: ip_frag set_ip_frag u8 = 4, 24, 8;
    /// TCP flags, 12 bits with the reserved ones.
    TcpFlags, FlowKey Transport: tcp_flags set_tcp_flags u16 = 4, 32, 16;
    /// IPv6 flow label, 20 bits.
    Ipv6Label, FlowKey Network: ipv6_label set_ipv6_label u32 = 9, 0, 20;
    /// TCP, UDP or SCTP source port; ICMP type.
    TpSrc, FlowKey Transport: tp_src set_tp_src u16 = 9, 32, 16;
    /// TCP, UDP or SCTP destination port; ICMP code.
    TpDst, FlowKey Transport: tp_dst set_tp_dst u16 = 9, 48, 16;
    /// ARP sender hardware address, or ND source link-layer address.
    NdSll, FlowKey NeighbourDiscovery: nd_sll set_nd_sll u64 = 10, 0, 48;
    /// ARP target hardware address, or ND target link-layer address.
    NdTll, FlowKey NeighbourDiscovery: nd_tll set_nd_tll u64 = 11, 0, 48;
    /// IP source address; IPv4 (and ARP sender protocol address) in the low 32 bits.
    IpSrc, FlowKey Network: ip_src set_ip_src u128 = 5, 0, 128;
    /// IP destination address; IPv4 (and ARP target protocol address) in the low 32 bits.
    IpDst, FlowKey Network: ip_dst set_ip_dst u128 = 7, 0, 128;
    /// IPv6 neighbour discovery target address.
    NdTarget, FlowKey NeighbourDiscovery: nd_target set_nd_target u128 = 12, 0, 128;
    /// Outermost MPLS label stack entry: label, traffic class, bottom of stack, time to live.
    MplsLse, FlowKey Mpls: mpls_lse set_mpls_lse u32 = 5, 0, 32;
    /// Second label stack entry.
    MplsLse1, FlowKey Mpls: mpls_lse1 set_mpls_lse1 u32 = 5, 32, 32;
    /// Third label stack entry.
    MplsLse2, FlowKey Mpls: mpls_lse2 set_mpls_lse2 u32 = 6, 0, 32;
    /// NSH flags (O and unassigned bits).
    NshFlags, FlowKey Nsh: nsh_flags set_nsh_flags u8 = 5, 0, 2;
    /// NSH time to live.
    NshTtl, FlowKey Nsh: nsh_ttl set_nsh_ttl u8 = 5, 8, 6;
    /// NSH metadata type, with the four bits before it, which are unassigned.
    NshMdtype, FlowKey Nsh: nsh_mdtype set_nsh_mdtype u8 = 5, 16, 8;
    /// NSH next protocol.
    NshNp, FlowKey Nsh: nsh_np set_nsh_np u8 = 5, 24, 8;
    /// NSH service path identifier (24 bits) and service index (8 bits).
    NshPathHdr, FlowKey Nsh: nsh_path_hdr set_nsh_path_hdr u32 = 5, 32, 32;
    /// First context header of metadata type 1.
    NshC1, FlowKey Nsh: nsh_c1 set_nsh_c1 u32 = 6, 0, 32;
    /// Second context header.
    NshC2, FlowKey Nsh: nsh_c2 set_nsh_c2 u32 = 6, 32, 32;
    /// Third context header.
    NshC3, FlowKey Nsh: nsh_c3 set_nsh_c3 u32 = 7, 0, 32;
    /// Fourth context header.
    NshC4, FlowKey Nsh: nsh_c4 set_nsh_c4 u32 = 7, 32, 32;
    /// Connection state (`OVS_CS_F_*`).
    CtState, FlowKey Metadata: ct_state set_ct_state u16 = 14, 0, 16;
    /// Connection tracking zone.
    CtZone, FlowKey Metadata: ct_zone set_ct_zone u16 = 14, 16, 16;
    /// Mark of the connection.
    CtMark, FlowKey Metadata: ct_mark set_ct_mark u32 = 14, 32, 32;
    /// What the last hash action computed; 0 if there was none.
    DpHash, FlowKey Metadata: dp_hash set_dp_hash u32 = 15, 0, 32;
    /// Mark of the packet (`pkt_mark`).
    SkbMark, FlowKey Metadata: skb_mark set_skb_mark u32 = 15, 32, 32;

    /// Tunnel identifier: VNI, key or the like.
    TunId, Context Tunnel: tun_id set_tun_id u64 = 16, 0, 64;
    /// Outer source address; IPv4 in the low 32 bits.
    TunSrc, Context Tunnel: tun_src set_tun_src u128 = 17, 0, 128;
    /// Outer destination address; not 0 where there is a tunnel.
    TunDst, Context Tunnel: tun_dst set_tun_dst u128 = 19, 0, 128;
    /// Tunnel flags: key, checksum, do not fragment, OAM, IPv6 (`TUNNEL_*` of `net/ip_tunnels.h`).
    TunFlags, Context Tunnel: tun_flags set_tun_flags u16 = 21, 0, 16;
    /// Outer type of service.
    TunTos, Context Tunnel: tun_tos set_tun_tos u8 = 21, 16, 8;
    /// Outer time to live.
    TunTtl, Context Tunnel: tun_ttl set_tun_ttl u8 = 21, 24, 8;
    /// Outer source port.
    TunTpSrc, Context Tunnel: tun_tp_src set_tun_tp_src u16 = 21, 32, 16;
    /// Outer destination port.
    TunTpDst, Context Tunnel: tun_tp_dst set_tun_tp_dst u16 = 21, 48, 16;
    /// VXLAN group policy identifier.
    TunGbpId, Context Tunnel: tun_gbp_id set_tun_gbp_id u16 = 22, 0, 16;
    /// VXLAN group policy flags.
    TunGbpFlags, Context Tunnel: tun_gbp_flags set_tun_gbp_flags u8 = 22, 16, 8;
    /// Number of an interned list of tunnel options; 0 for none.
    TunOptions, Context Tunnel: tun_options set_tun_options u32 = 22, 32, 32;
    /// Priority of the packet, for queues.
    SkbPriority, Context Metadata: skb_priority set_skb_priority u32 = 23, 0, 32;
    /// Protocol of the connection's first packet.
    CtNwProto, Context Connection: ct_nw_proto set_ct_nw_proto u8 = 23, 32, 8;
    /// Label of the connection.
    CtLabel, Context Connection: ct_label set_ct_label u128 = 24, 0, 128;
    /// Source address of the connection's first packet; IPv4 in the low 32 bits.
    CtNwSrc, Context Connection: ct_nw_src set_ct_nw_src u128 = 26, 0, 128;
    /// Destination address of the connection's first packet.
    CtNwDst, Context Connection: ct_nw_dst set_ct_nw_dst u128 = 28, 0, 128;
    /// Source port of the connection's first packet.
    CtTpSrc, Context Connection: ct_tp_src set_ct_tp_src u16 = 30, 0, 16;
    /// Destination port of the connection's first packet.
    CtTpDst, Context Connection: ct_tp_dst set_ct_tp_dst u16 = 30, 16, 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields that are never in one packet.
    fn exclude_each_other(one: Layer, other: Layer) -> bool {
        let instead_of_ip = |layer| matches!(layer, Layer::Mpls | Layer::Nsh);
        one != other
            && (instead_of_ip(one) || instead_of_ip(other))
            && [one, other]
                .iter()
                .all(|&layer| instead_of_ip(layer) || layer == Layer::Network)
    }

    fn bits(field: &Field) -> [u64; KEY_WORDS] {
        let mut words = [0; KEY_WORDS];
        field.set(&mut words, u128::MAX, u128::MAX);
        words
    }

    #[test]
    fn fields_that_may_meet_do_not_overlap() {
        for (at, one) in FIELDS.iter().enumerate() {
            for other in &FIELDS[at + 1..] {
                let meet = one.is_in_context() == other.is_in_context()
                    && bits(one)
                        .iter()
                        .zip(bits(other))
                        .any(|(one, other)| one & other != 0);
                assert!(
                    !meet || exclude_each_other(one.layer, other.layer),
                    "{} {}",
                    one.name,
                    other.name
                );
            }
        }
    }

    #[test]
    fn a_field_has_as_many_bits_as_it_says_and_reads_what_was_set() {
        for (id, field) in FieldId::ALL.iter().zip(FIELDS) {
            assert_eq!(id.field(), field);
            let mut words = [0; KEY_WORDS];
            field.set(&mut words, u128::MAX, u128::MAX);
            assert_eq!(
                words.iter().map(|word| word.count_ones()).sum::<u32>(),
                field.bits
            );
            assert_eq!(field.get(&words), field.ones());
            field.set(&mut words, 0, 1);
            assert_eq!(field.get(&words), field.ones() & !1);
        }
    }

    #[test]
    fn accessors_and_table_agree() {
        let mut key = FlowKey::default();
        key.set_ip_dst(7 << 64 | 9);
        key.set_ct_mark(0xabcd);
        assert_eq!(FieldId::IpDst.field().get(&key.words), 7 << 64 | 9);
        assert_eq!(FieldId::CtMark.field().get(&key.words), 0xabcd);
        let mut context = Context::default();
        context.set_tun_dst(3 << 100);
        context.set_ct_nw_proto(6);
        assert_eq!(FieldId::TunDst.field().get(&context.words), 3 << 100);
        assert_eq!((context.tun_dst(), context.ct_nw_proto()), (3 << 100, 6));
    }
}
