//! The schema of policies: sets, access control lists, security groups, and what ports say of them.
//!
//! Directions are named as seen from the guest: *from* the port come the packets that its guest sends,
//! *to* the port go those that it receives. What rules mean, and which contradict each other, crate
//! `policy` knows.

use crate::mark::{Dscp, VlanPriority};
use crate::per_class::PerClass;
use crate::policy_value::{
    AddressMatch, EthernetType, FlagMatch, MacBlock, MacMatch, Network, NumberRange, Protocol, VlanMatch,
};
use crate::schema::{PortConfig, PortKind, StormBits, StormControl, is_default};
use crate::value::{MacAddr, MaxBurst, MaxRate, Name, Priority, StormRate, Weight, kebab_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A set of addresses, of MAC addresses, or of ports: exactly one of the three lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SetConfig {
    /// Unique among sets.
    pub name: Name,
    /// IP addresses and networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<Network>>,
    /// MAC addresses and blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macs: Option<Vec<MacBlock>>,
    /// Names of ports, which need not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Name>>,
}

/// Rules that are tried in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AclConfig {
    /// Unique among lists.
    pub name: Name,
    /// What happens to packets that match no rule, where the port has no security groups.
    pub default: RuleAction,
    /// The rules.
    #[serde(default, rename = "rule")]
    pub rules: Vec<RuleConfig>,
}

/// Rules that each allow something. A direction without rules is not limited by this group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GroupConfig {
    /// Unique among groups.
    pub name: Name,
    /// What may go to members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<RuleConfig>>,
    /// What may come from members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<RuleConfig>>,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    /// The packet passes.
    Allow,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender is told.
    Reject,
}

/// Which fragments a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FragmentMatch {
    /// Whole packets.
    None,
    /// Whole packets and first fragments.
    First,
    /// Fragments behind the first, which have no ports.
    Later,
}

/// State of a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionMatch {
    /// No packet has gone either way.
    New,
    /// Packets have gone both ways.
    Established,
    /// Announced by another connection.
    Related,
    /// None that there can be.
    Invalid,
}

/// A rule. Each key that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuleConfig {
    /// What happens to packets that match. Required in lists; rules of groups allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RuleAction>,
    /// Rules of greater priority are tried first, and equal ones in their order; default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// Source address of IP, or of an ARP message's sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<AddressMatch>,
    /// Destination address of IP, or of an ARP message's target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<AddressMatch>,
    /// Source MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mac: Option<MacMatch>,
    /// Destination MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_mac: Option<MacMatch>,
    /// Ethernet type behind all tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethernet_type: Option<EthernetType>,
    /// Outer VLAN tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanMatch>,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Source port of TCP, UDP or SCTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<NumberRange>,
    /// Destination port of TCP, UDP or SCTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<NumberRange>,
    /// Type of ICMP or ICMPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<NumberRange>,
    /// Code of ICMP or ICMPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<NumberRange>,
    /// TCP flags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_flags: Option<FlagMatch>,
    /// Fragments of IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragments: Option<FragmentMatch>,
    /// The port that the packet came from, or a set of ports: for packets to the port only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Name>,
    /// Security group of which the other side is a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_group: Option<Name>,
    /// State of the packet's connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionMatch>,
    /// Whether the rule only counts what it would decide, and later rules decide. In access control lists
    /// only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub trial: bool,
    /// Whether packets of the rule are logged: some of them, if there are many.
    #[serde(default, skip_serializing_if = "is_false")]
    pub log: bool,
    /// Whether replies to what the rule allows are allowed, too. In groups only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replies: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Policies with a name, for ports whose own settings are elsewhere: those of a switch's host and uplink, and
/// those of Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PortPolicyConfig {
    /// Unique among these policies.
    pub name: Name,
    /// MAC and IP addresses that the guard `spoof` lets pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_pairs: Vec<AllowedPair>,
    /// What the other end of the port must not do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub guards: BTreeSet<Guard>,
    /// Whether leases of a DHCP server behind the port count.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dhcp_server: bool,
    /// Access control list for packets from the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl_from: Option<Name>,
    /// Access control list for packets to the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl_to: Option<Name>,
    /// Security groups whose rules say what may go to the port and come from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<Name>,
    /// Whether packets that guards, lists and groups drop are logged: some of them, if there are many.
    #[serde(default, skip_serializing_if = "is_false")]
    pub log_drops: bool,
    /// Broadcasts, multicasts, and frames to unknown unicast addresses per second that the port may send;
    /// default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_control: Option<StormControl>,
    /// Bits per second of these frames, besides.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storm_control_bits: StormBits,
    /// Bits per second that the port may send; what is over waits at its other end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_rate_from: MaxRate,
    /// Bits per second that the port may receive; what is over waits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_rate_to: MaxRate,
    /// Bytes that pass at once after a pause, in each direction; default: those of 10 ms.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_burst: MaxBurst,
    /// Weight of what the port sends where a bandwidth is shared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weight: Weight,
    /// Priority of what the port sends where a bandwidth is shared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Bits per second that the port gets at least where a bandwidth is shared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_rate: MaxRate,
    /// Priority that VLAN tags of packets from the port get; default: the sender's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub vlan_priority: VlanPriority,
    /// Codepoint that IP packets from the port get; default: the sender's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dscp: Dscp,
}

impl PortPolicyConfig {
    /// A port with these policies.
    pub fn as_port(&self) -> PortConfig {
        PortConfig {
            allowed_pairs: self.allowed_pairs.clone(),
            guards: self.guards.clone(),
            dhcp_server: self.dhcp_server,
            acl_from: self.acl_from.clone(),
            acl_to: self.acl_to.clone(),
            security_groups: self.security_groups.clone(),
            log_drops: self.log_drops,
            storm_control: self.storm_control.unwrap_or(PerClass::all(StormRate::NONE)),
            storm_control_bits: self.storm_control_bits,
            max_rate_from: self.max_rate_from,
            max_rate_to: self.max_rate_to,
            max_burst: self.max_burst,
            weight: self.weight,
            priority: self.priority,
            min_rate: self.min_rate,
            vlan_priority: self.vlan_priority,
            dscp: self.dscp,
            ..PortConfig::new(self.name.clone(), PortKind::default())
        }
    }
}

/// What a port's guest must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Send from addresses that are not its own.
    Spoof,
    /// Answer as a DHCP server.
    Dhcp,
    /// Announce itself as a router, or redirect.
    Router,
    /// Take part in the spanning tree.
    Bpdu,
}

/// Where addresses come from that the guard `spoof` lets a port's guest use, besides those that are stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AddressSource {
    /// From nowhere else.
    #[default]
    Configuration,
    /// From leases of DHCP servers whose ports say that they are some.
    Dhcp,
    /// From packets that use them first.
    FirstUse,
}

kebab_text!(AddressSource: Configuration "configuration", Dhcp "dhcp", FirstUse "first-use");

/// Addresses that a port's guest may use besides its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AllowedPair {
    /// MAC address.
    pub mac: MacAddr,
    /// IP address or network that goes with it.
    pub address: Network,
}

kebab_text!(Guard: Spoof "spoof", Dhcp "dhcp", Router "router", Bpdu "bpdu");
