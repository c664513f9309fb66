//! The key of a flow and its mask: nested `OVS_KEY_ATTR_*`.
//!
//! A [`Key`] has the values of a packet's fields. A [`Mask`] has the same fields, and in them the bits that
//! matter. Reading follows Linux 6.1 (`net/openvswitch/flow_netlink.c`, `ovs_nla_get_match`):
//!
//! * Which header attributes a key must have follows from its Ethernet type and transport protocol. An
//!   Ethernet type that is absent means an 802.3 frame; absent Ethernet addresses mean a packet that begins
//!   with its network header.
//! * A VLAN tag is an Ethernet type, `VLAN` and `ENCAP`, which holds the attributes behind the tag; at most
//!   two tags are taken off, a third one stays as the Ethernet type.
//! * Without a mask all fields of the key match exactly. In a mask an absent or zero attribute is a wildcard,
//!   except for VLAN tags, whose presence is always matched. Ethernet type and input port match exactly or
//!   not at all. Headers can be matched only together with the field that says that they are present.
//!
//! Unlike the kernel, attributes of headers that the packet does not have are refused in keys.

mod fields;
mod mask;
mod metadata;
mod nsh;
mod read;
mod tunnel;
mod write;

pub use fields::{Arp, Ethernet, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Ports, Tuple4, Tuple6, Vlan};
pub use metadata::{Connection, ConnectionTuple, Metadata, NO_PORT};
pub use nsh::{MAX_NSH_CONTEXT, Nsh, NshBase, NshContext, NshHeader};
pub use tunnel::{MAX_TUNNEL_OPTIONS, Tunnel, TunnelAddresses, TunnelFlags, TunnelOptions};

use crate::attribute::{AttributeSet, Rule};

/// Most MPLS labels of a key (`MPLS_LABEL_DEPTH`).
pub const MAX_LABELS: usize = 3;
/// Most VLAN tags that are taken off.
pub const MAX_TAGS: usize = 2;
/// In a tag: the tag is present (`VLAN_CFI_MASK`).
pub const TAG_PRESENT: u16 = 0x1000;

/// Ethernet types that decide which headers a key has.
pub mod ether {
    /// An 802.3 frame; a key without Ethernet type (`ETH_P_802_2`).
    pub const LENGTH: u16 = 0x0004;
    /// Least number that is an Ethernet type.
    pub const FIRST: u16 = 0x0600;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// An encapsulated Ethernet frame (`ETH_P_TEB`).
    pub const BRIDGED: u16 = 0x6558;
    /// Reverse ARP.
    pub const RARP: u16 = 0x8035;
    /// VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// Service VLAN tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS, unicast.
    pub const MPLS: u16 = 0x8847;
    /// MPLS, multicast.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// Network service header.
    pub const NSH: u16 = 0x894f;

    /// Whether a VLAN tag follows.
    #[must_use]
    pub fn is_vlan(kind: u16) -> bool {
        matches!(kind, VLAN | SERVICE_VLAN)
    }

    /// Whether MPLS labels follow.
    #[must_use]
    pub fn is_mpls(kind: u16) -> bool {
        matches!(kind, MPLS | MPLS_MULTICAST)
    }
}

/// Transport protocols that decide which headers a key has.
pub mod ip {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// Fragment type of fragments that have no transport header.
    pub const LATER_FRAGMENT: u8 = 2;
    /// Greatest fragment type; the kernel admits 3, though no packet has it.
    pub const MAX_FRAGMENT: u8 = 3;
    /// ICMPv6 types of neighbour solicitation and advertisement.
    pub const NEIGHBOUR: [u8; 2] = [135, 136];
}

/// The fields of a packet that flows match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// Metadata.
    pub metadata: Metadata,
    /// Ethernet addresses; none if the packet begins with its network header.
    pub ethernet: Option<Ethernet>,
    /// VLAN tags, the outer first.
    pub vlans: [Option<Vlan>; MAX_TAGS],
    /// Ethernet type behind the tags; [`ether::LENGTH`] for 802.3 frames.
    pub eth_type: u16,
    /// Network header, as the Ethernet type says.
    pub network: Network,
    /// Transport header, as the network header says.
    pub transport: Transport,
}

/// The bits of a key's fields that matter.
///
/// A mask has the same headers as its key, also if they are all zero, that is, wildcards. It has no tag where
/// the key has none, or one that the packet ends in: the kernel always checks whether a packet has tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask(pub Key);

/// A key and which of its bits matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// The values.
    pub key: Key,
    /// The bits that matter.
    pub mask: Mask,
}

/// Network header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Network {
    /// None, or one that is not parsed.
    #[default]
    None,
    /// IPv4.
    Ipv4(Ipv4),
    /// IPv6.
    Ipv6(Ipv6),
    /// ARP or reverse ARP.
    Arp(Arp),
    /// MPLS label stack entries.
    Mpls(Labels),
    /// Network service header.
    Nsh(Nsh),
}

/// Transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// None, or one that is not parsed.
    #[default]
    None,
    /// TCP, with its 12 bits of flags.
    Tcp {
        /// Ports.
        ports: Ports,
        /// Flags.
        flags: u16,
    },
    /// UDP.
    Udp(Ports),
    /// SCTP.
    Sctp(Ports),
    /// ICMP.
    Icmp(Icmp),
    /// ICMPv6; neighbour discovery exactly for solicitations and advertisements.
    Icmpv6 {
        /// Type and code.
        icmp: Icmp,
        /// The neighbour discovery message.
        neighbour: Option<NeighbourDiscovery>,
    },
}

/// MPLS label stack entries, the outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    entries: [u32; MAX_LABELS],
    depth: usize,
}

impl Labels {
    /// A stack of these entries; `None` if there are more than [`MAX_LABELS`].
    #[must_use]
    pub fn new(entries: &[u32]) -> Option<Self> {
        let mut labels = Self {
            depth: entries.len(),
            ..Self::default()
        };
        labels.entries.get_mut(..entries.len())?.copy_from_slice(entries);
        Some(labels)
    }

    /// The entries: in a key at least one, in a mask none if all are wildcards.
    #[must_use]
    pub fn entries(&self) -> &[u32] {
        &self.entries[..self.depth]
    }
}

/// Attributes of a key.
pub(crate) mod attr {
    pub const ENCAP: u16 = 1;
    pub const PRIORITY: u16 = 2;
    pub const IN_PORT: u16 = 3;
    pub const ETHERNET: u16 = 4;
    pub const VLAN: u16 = 5;
    pub const ETHERTYPE: u16 = 6;
    pub const IPV4: u16 = 7;
    pub const IPV6: u16 = 8;
    pub const TCP: u16 = 9;
    pub const UDP: u16 = 10;
    pub const ICMP: u16 = 11;
    pub const ICMPV6: u16 = 12;
    pub const ARP: u16 = 13;
    pub const ND: u16 = 14;
    pub const SKB_MARK: u16 = 15;
    pub const TUNNEL: u16 = 16;
    pub const SCTP: u16 = 17;
    pub const TCP_FLAGS: u16 = 18;
    pub const DP_HASH: u16 = 19;
    pub const RECIRC_ID: u16 = 20;
    pub const MPLS: u16 = 21;
    pub const CT_STATE: u16 = 22;
    pub const CT_ZONE: u16 = 23;
    pub const CT_MARK: u16 = 24;
    pub const CT_LABELS: u16 = 25;
    pub const CT_ORIG_TUPLE_IPV4: u16 = 26;
    pub const CT_ORIG_TUPLE_IPV6: u16 = 27;
    pub const NSH: u16 = 28;
    /// One more than the last.
    pub const COUNT: usize = 29;
}

/// The attributes that a key may hold. 29 to 31 are internal to the kernel or to user space; ovs-vswitchd 3.1
/// does not send 32.
pub(crate) static SET: AttributeSet<{ attr::COUNT }> = AttributeSet {
    name: "OVS_KEY_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Unknown};
        [
            Unknown,
            Any,
            Exactly(4),
            Exactly(4),
            Exactly(12),
            Exactly(2),
            Exactly(2),
            Exactly(12),
            Exactly(40),
            Exactly(4),
            Exactly(4),
            Exactly(2),
            Exactly(2),
            Exactly(24),
            Exactly(28),
            Exactly(4),
            Any,
            Exactly(4),
            Exactly(2),
            Exactly(4),
            Exactly(4),
            Between(4, 4 * MAX_LABELS),
            Exactly(4),
            Exactly(2),
            Exactly(4),
            Exactly(16),
            Exactly(16),
            Exactly(40),
            Any,
        ]
    },
};

pub(crate) type Table<'a> = crate::attribute::Table<'a, { attr::COUNT }>;
