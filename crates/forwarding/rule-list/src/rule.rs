//! Rules as a controller states them.

use flow::PortId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// A set of addresses, MACs or ports, by the number that its controller chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SetId(pub u32);

/// A rule. Its number keeps the rule's counters when the list is replaced by another version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Unique in the list; chosen by the controller.
    pub number: u32,
    /// Rules of greater priority are tried first; among equals, those that were added first.
    pub priority: u32,
    /// The packets that the rule is about.
    pub matches: Match,
    /// What happens to these packets.
    pub verdict: Verdict,
    /// The rule is on trial: it counts the packets that it would decide about, and later rules decide.
    pub trial: bool,
    /// Packets that the rule decides about, or would decide about, are noted for users.
    pub log: bool,
}

/// What a rule says about packets that match it, and a list about packets that match no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The packet passes this list.
    Allow,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender is told by RST or ICMP.
    Reject,
    /// The packet passes this list with these marks.
    Mark(Marks),
    /// The packet passes this list, and a copy goes to the controller of its port.
    Copy,
    /// The packet goes to the controller of its port, which decides.
    Ask,
}

impl Verdict {
    /// What the controller gets with a packet that comes for [`Verdict::Copy`].
    pub const COPIED: &[u8] = b"copy";

    /// What the controller gets with a packet that comes for [`Verdict::Ask`].
    pub const ASKED: &[u8] = b"ask";

    /// Whether packets pass the list.
    pub fn passes(&self) -> bool {
        matches!(self, Verdict::Allow | Verdict::Mark(_) | Verdict::Copy)
    }
}

/// Marks that packets get, in the place of their own. Each packet must have the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marks {
    /// Priority in the outer VLAN tag, 0 to 7.
    pub vlan_priority: Option<u8>,
    /// Differentiated services codepoint of IP, 0 to 63 (RFC 2474).
    pub dscp: Option<u8>,
}

impl Marks {
    /// Whether the numbers fit their fields.
    pub fn are_valid(&self) -> bool {
        self.vlan_priority.is_none_or(|priority| priority < 8) && self.dscp.is_none_or(|dscp| dscp < 64)
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let priority = self
            .vlan_priority
            .map(|priority| format!("vlan-priority={priority}"));
        let dscp = self.dscp.map(|dscp| format!("dscp={dscp}"));
        let parts: Vec<String> = priority.into_iter().chain(dscp).collect();
        f.write_str(&parts.join(","))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Allow => f.write_str("allow"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Reject => f.write_str("reject"),
            Verdict::Mark(marks) => write!(f, "mark({marks})"),
            Verdict::Copy => f.write_str("copy"),
            Verdict::Ask => f.write_str("ask"),
        }
    }
}

/// Conditions on a packet, all of which must hold. `None` is no condition.
///
/// Some conditions imply others, so that no rule matches bytes that are not the field that its author
/// meant:
///
/// | condition | implies |
/// |---|---|
/// | an IP prefix | its version's Ethernet type, unless the rule asks for ARP |
/// | a set of IP addresses, a protocol | IPv4 or IPv6, unless the rule says which Ethernet type |
/// | ports | protocol TCP, UDP or SCTP, which the rule must say; not a later fragment |
/// | ICMP type, code | protocol ICMP with IPv4 or ICMPv6 with IPv6, the protocol said by the rule; not a later fragment |
/// | TCP flags | protocol TCP, said by the rule; not a later fragment |
/// | address that a neighbour discovery message is about | ICMPv6 with IPv6, said by the rule |
/// | link-layer address in a message | Ethernet type ARP or RARP, or protocol ICMPv6 with IPv6, said by the rule |
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Match {
    /// The port that the packet came from: in an egress filter, the other port.
    pub in_port: Option<Ports>,
    /// Source MAC address.
    pub eth_src: Option<Macs>,
    /// Destination MAC address.
    pub eth_dst: Option<Macs>,
    /// Ethernet type behind all VLAN tags.
    pub eth_type: Option<u16>,
    /// Outer VLAN tag.
    pub vlan: Option<Vlan>,
    /// Source address of IP, or of an ARP packet's sender.
    pub ip_src: Option<Addresses>,
    /// Destination address of IP, or of an ARP packet's target.
    pub ip_dst: Option<Addresses>,
    /// IP protocol, or an ARP packet's operation.
    pub ip_proto: Option<u8>,
    /// Whether the packet is a fragment.
    pub fragment: Option<Fragment>,
    /// Ports, or type and code of ICMP.
    pub transport: Option<Transport>,
    /// TCP flags.
    pub tcp_flags: Option<TcpFlags>,
    /// IPv6 address that a neighbour solicitation or advertisement is about; `::` in other packets.
    pub nd_target: Option<IpPrefix>,
    /// Sender's hardware address in ARP, or source link-layer address in neighbour discovery; zero where
    /// there is none.
    pub nd_sll: Option<MacPrefix>,
    /// Target's hardware address in ARP, or target link-layer address in neighbour discovery; zero where
    /// there is none.
    pub nd_tll: Option<MacPrefix>,
    /// State of the packet's connection. A list with such a rule is refused, as there are no connections
    /// yet.
    pub connection: Option<ConnectionState>,
}

/// Condition on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ports {
    /// One port.
    One(PortId),
    /// A port of a set.
    Set(SetId),
}

/// Condition on a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Macs {
    /// An address that begins with the prefix.
    Prefix(MacPrefix),
    /// An address of a set.
    Set(SetId),
}

/// Condition on an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Addresses {
    /// An address that begins with the prefix.
    Prefix(IpPrefix),
    /// An address of a set.
    Set(SetId),
}

/// The first `len` bits of a MAC address, 0 to 48; other bits must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the type")]
pub struct MacPrefix {
    /// First byte in the highest bits of the 48.
    pub address: u64,
    pub len: u8,
}

/// The first `len` bits of an IP address, 0 to 32 or 128; other bits must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the type")]
pub struct IpPrefix {
    pub address: IpAddr,
    pub len: u8,
}

/// Condition on the outer VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Vlan {
    /// The packet has no tag.
    Untagged,
    /// The packet has a tag.
    Tagged,
    /// The packet has a tag with this VLAN, 0 to 4095.
    Id(u16),
}

/// Condition on fragments of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fragment {
    /// The packet is whole.
    No,
    /// The packet is whole or a first fragment, so that it has a transport header.
    NotLater,
    /// The packet is a later fragment, without transport header.
    Later,
}

/// Condition on the transport header. Ranges of all values are no condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Ports of TCP, UDP or SCTP.
    Ports {
        /// Source port.
        source: Range,
        /// Destination port.
        destination: Range,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// Type, up to 255.
        kind: Range,
        /// Code, up to 255.
        code: Range,
    },
}

/// Numbers from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the type")]
pub struct Range {
    pub first: u16,
    pub last: u16,
}

impl Range {
    /// All numbers.
    pub const ALL: Range = Range {
        first: 0,
        last: u16::MAX,
    };

    /// One number.
    pub const fn one(number: u16) -> Range {
        Range {
            first: number,
            last: number,
        }
    }
}

/// Condition on TCP flags: those in `mask` are as in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see the type")]
pub struct TcpFlags {
    pub value: u16,
    pub mask: u16,
}

/// Condition on the connection that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConnectionState {
    /// The packet would begin a connection.
    New,
    /// The packet belongs to a connection of which both directions were seen.
    Established,
    /// The packet belongs to a connection that another one announced, or is an ICMP error about one.
    Related,
    /// The packet fits no connection and begins none.
    Invalid,
}
