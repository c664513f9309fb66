//! The schema of the configuration.
//!
//! The types are written for the reader of the file: kebab-case keys, defaults for everything that has a
//! sensible one. Ports without `vlan` carry untagged frames only; that a guest can tag its way into a VLAN
//! takes an explicit `trunk`, the safe direction of error.

use crate::access::{AccessConfig, Group, SocketMode};
use crate::mark::{Dscp, VlanPriority};
use crate::mirror::MirrorConfig;
use crate::p4::P4Config;
use crate::p4runtime::P4RuntimeConfig;
use crate::per_class::PerClass;
use crate::policy::{AclConfig, AddressSource, AllowedPair, GroupConfig, Guard, PortPolicyConfig, SetConfig};
use crate::trunk::Trunk;
use crate::value::{
    AddressLimit, AgeingSeconds, InterfaceName, IpPrefix, MacAddr, MacLimit, MaxBurst, MaxRate, MissRate,
    Mtu, Name, Netns, Priority, StormRate, TableSize, UserId, VlanId, Weight, kebab_text,
};
use crate::view::ViewConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration file: the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// The switches; packets never cross from one to another.
    #[serde(default, rename = "switch")]
    pub switches: Vec<SwitchConfig>,
    /// Sets that rules name.
    #[serde(default, rename = "set", skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetConfig>,
    /// Access control lists that ports name.
    #[serde(default, rename = "acl", skip_serializing_if = "Vec::is_empty")]
    pub acls: Vec<AclConfig>,
    /// Security groups that ports are members of.
    #[serde(default, rename = "security-group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
    /// Policies with a name, which hosts, uplinks and ports of Open vSwitch have.
    #[serde(default, rename = "port-policy", skip_serializing_if = "Vec::is_empty")]
    pub port_policies: Vec<PortPolicyConfig>,
    /// Copies of ports' packets for other ports.
    #[serde(default, rename = "mirror", skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorConfig>,
    /// Who may connect to the switch's sockets.
    #[serde(default, skip_serializing_if = "is_default")]
    pub access: AccessConfig,
    /// P4 programs that forward the packets of ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub p4: Vec<P4Config>,
    /// Which cores do the data plane's work. Changes take effect when the switch is started again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub placement: placement_config::Config,
    /// Metrics. Changes take effect when the switch is started again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub view: ViewConfig,
    /// Open vSwitch's control plane. Changes take effect when the switch is started again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ovs: OvsConfig,
    /// Clients of P4Runtime. Devices may change; the rest takes effect when the switch is started again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub p4runtime: P4RuntimeConfig,
}

pub(crate) fn is_default<T: Default + PartialEq>(part: &T) -> bool {
    *part == T::default()
}

/// Whether an ovs-vswitchd may drive switches in the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct OvsConfig {
    /// Whether ovs-vswitchd may drive the data plane.
    pub enabled: bool,
    /// The socket of its database; default: that of `hyperswitch ovs start`, or else the system's.
    pub database: Option<PathBuf>,
    /// Whether ovs-vswitchd is told that connections can be tracked, without which ovn-controller installs
    /// nothing. They cannot: packets that would have to be tracked are dropped.
    pub claim_connections: bool,
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SwitchConfig {
    /// Unique among switches.
    pub name: Name,
    /// What its ports can reach.
    #[serde(rename = "type", default)]
    pub kind: SwitchKind,
    /// Seconds after which a MAC address that was not seen is forgotten.
    #[serde(default)]
    pub mac_ageing: AgeingSeconds,
    /// MAC addresses the switch learns in all.
    #[serde(default)]
    pub mac_table_size: TableSize,
    /// Whether frames to an unknown unicast address go to all ports, or are dropped (`flood-disabled`).
    #[serde(default = "yes")]
    pub flood: bool,
    /// What happens to frames for a MAC address that several ports use.
    #[serde(default)]
    pub contested_macs: ContestedMacs,
    /// Default of the ports' `mtu`.
    #[serde(default)]
    pub mtu: Mtu,
    /// The network device that joins an external switch to the world; required there, forbidden elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<InterfaceName>,
    /// How frames of the uplink are read and written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_back_end: UplinkBackEnd,
    /// Whether frames leave by the uplink, and come for busy guests, without its forwarder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uplink_fast_path: bool,
    /// Name of the uplink's `port-policy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_policy: Option<Name>,
    /// The host's own interface to an internal or external switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostConfig>,
    /// Ports besides those of host and uplink.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortConfig>,
}

/// What the ports of a switch can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchKind {
    /// Each other, the host and, through an uplink, the outside.
    External,
    /// Each other and the host.
    Internal,
    /// Each other.
    #[default]
    Private,
}

/// How frames of an uplink are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkBackEnd {
    /// A packet socket.
    #[default]
    Packet,
    /// An AF_XDP socket, or a packet socket where that is not possible.
    AfXdp,
}

/// What happens to frames for a MAC address that several ports use, where the configuration does not say
/// whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContestedMacs {
    /// Frames go to all of these ports, so that the right one gets them.
    #[default]
    Deliver,
    /// Frames are dropped (`contested`), so that no wrong port gets them.
    Drop,
}

/// The host's interface to a switch: a TAP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostConfig {
    /// Name of the interface; default: the first 15 bytes of the switch's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
    /// Addresses to assign.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpPrefix>,
    /// Hardware address; default: the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Default: the switch's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// VLANs the host sees; default: untagged frames only.
    #[serde(default)]
    pub vlan: VlanConfig,
    /// Name of the `port-policy` of the host's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Name>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PortConfig {
    /// Unique among the ports of all switches. `control` is taken by the control socket.
    pub name: Name,
    /// The kind of its connection.
    #[serde(rename = "type", default)]
    pub kind: PortKind,
    /// vhost-user: the socket; default `<run dir>/<name>.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// vhost-user: which side listens on the socket; default `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PortMode>,
    /// vhost-user: the user to whom the socket belongs, or the directory of one that the switch makes;
    /// default: the user to whom the directories on the way belong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserId>,
    /// vhost-user, `server`: group of the socket; default: that of `[access]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// vhost-user, `server`: permissions of the socket; default: those of `[access]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<SocketMode>,
    /// VLANs the port carries; default: untagged frames only.
    #[serde(default)]
    pub vlan: VlanConfig,
    /// Largest IP packet; default: the switch's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// MAC address: offered to a vhost-user guest, set on a TAP. While the port runs, the address is on this
    /// port, and not learned elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// MAC addresses the port may learn; frames from others are dropped (`mac-limit`).
    #[serde(default)]
    pub mac_limit: MacLimit,
    /// Packets per second that may need a decision because they match no flow; further ones are dropped
    /// (`miss-rate`).
    #[serde(default)]
    pub miss_rate: MissRate,
    /// Broadcasts, multicasts, and frames to unknown unicast addresses per second that the port may send;
    /// further ones are dropped (`storm-broadcast`, `storm-multicast`, `storm-unknown`). 0: no limit.
    #[serde(default)]
    pub storm_control: StormControl,
    /// Bits per second of these frames, besides.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storm_control_bits: StormBits,
    /// Bits per second that the port may send; what is over stays in its guest's ring.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_rate_from: MaxRate,
    /// Bits per second that the port may receive; what is over waits, and is dropped (`max-rate`) if there is
    /// no more room.
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
    /// Addresses that are on this port and nowhere else; they neither age nor move, nor count to `mac-limit`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_macs: Vec<MacAddr>,
    /// Isolated ports talk only to ports that are not.
    #[serde(default)]
    pub isolated: bool,
    /// Whether frames to an unknown unicast address go out of this port.
    #[serde(default = "yes")]
    pub flood: bool,
    /// TAP and veth: interface name; default: the first 15 bytes of the port's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
    /// TAP and veth: network namespace of the interface; default: the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Addresses of the guest, which the guard `spoof` lets it use; a TAP or veth gets them assigned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpPrefix>,
    /// Further addresses that the guard `spoof` lets the guest use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_pairs: Vec<AllowedPair>,
    /// What the guest must not do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub guards: BTreeSet<Guard>,
    /// Where further addresses come from that the guard `spoof` lets the guest use.
    #[serde(default, skip_serializing_if = "is_default")]
    pub address_source: AddressSource,
    /// Most addresses that come so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub address_limit: AddressLimit,
    /// Whether leases of a DHCP server behind the port count.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dhcp_server: bool,
    /// Access control list for packets from the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl_from: Option<Name>,
    /// Access control list for packets to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl_to: Option<Name>,
    /// Security groups that the port is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<Name>,
    /// Whether packets that guards, lists and groups drop are logged: some of them, if there are many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub log_drops: bool,
    /// Priority that VLAN tags of packets from the port get; default: the sender's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub vlan_priority: VlanPriority,
    /// Codepoint that IP packets from the port get; default: the sender's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dscp: Dscp,
}

/// Packets per second of each class of frames that go to all ports.
pub type StormControl = PerClass<StormRate>;

/// Bits per second of each class of frames that go to all ports.
pub type StormBits = PerClass<MaxRate>;

/// The kind of a port's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A guest's VMM.
    #[default]
    VhostUser,
    /// A TAP for the host or a container.
    Tap,
    /// A veth pair for a container.
    Veth,
}

impl PortKind {
    /// Whether the switch makes an interface for it.
    pub fn is_interface(self) -> bool {
        match self {
            PortKind::Tap | PortKind::Veth => true,
            PortKind::VhostUser => false,
        }
    }
}

/// Which side listens on a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortMode {
    /// The switch listens, the VMM connects.
    #[default]
    Server,
    /// The VMM listens, the switch connects, again whenever the connection ends.
    Client,
}

/// VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawVlan", into = "RawVlan")]
pub enum VlanConfig {
    /// Untagged frames only, in a VLAN of their own.
    #[default]
    Untagged,
    /// `{ access = 10 }`: untagged frames, which belong to that VLAN.
    Access(VlanId),
    /// `{ trunk = [10, 20], native = 10 }` or `{ trunk = "all" }`: tagged frames of those VLANs. Untagged
    /// frames belong to the native VLAN, whose frames leave untagged. Without `native`, untagged frames are
    /// dropped by a port with listed VLANs, and pass untagged through one with all.
    Trunk {
        /// The VLANs.
        vlans: Trunk,
        /// The native VLAN; it need not be listed.
        native: Option<VlanId>,
    },
    /// `{ primary = 10, isolated = 200 }`, `{ primary = 10, community = 201 }` or `{ primary = 10,
    /// promiscuous = [200, 201] }`: untagged frames of a private VLAN (RFC 5517).
    Private {
        /// The primary VLAN, to which promiscuous ports send.
        primary: VlanId,
        /// The port's part.
        role: PrivateRole,
    },
}

/// A port's part in a private VLAN.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PrivateRole {
    /// Talks to promiscuous ports only, in that secondary VLAN.
    Isolated(VlanId),
    /// Talks to promiscuous ports and to ports of the same community, in that secondary VLAN.
    Community(VlanId),
    /// Talks to all ports; hears those of these secondary VLANs.
    Promiscuous(BTreeSet<VlanId>),
}

#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawVlan {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<VlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trunk: Option<Trunk>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    native: Option<VlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    primary: Option<VlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    isolated: Option<VlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    community: Option<VlanId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promiscuous: Option<BTreeSet<VlanId>>,
}

impl RawVlan {
    /// The part in a private VLAN, if any key of one is there.
    fn role(&self) -> Result<Option<(VlanId, PrivateRole)>, &'static str> {
        let role = match (self.isolated, self.community, &self.promiscuous) {
            (None, None, None) => None,
            (Some(vlan), None, None) => Some(PrivateRole::Isolated(vlan)),
            (None, Some(vlan), None) => Some(PrivateRole::Community(vlan)),
            (None, None, Some(vlans)) => Some(PrivateRole::Promiscuous(vlans.clone())),
            _ => return Err("a port is one of `isolated`, `community` and `promiscuous`"),
        };
        let (primary, role) = match (self.primary, role) {
            (None, None) => return Ok(None),
            (Some(primary), Some(role)) => (primary, role),
            (Some(_), None) => {
                return Err(
                    "`primary` needs one of `isolated = N`, `community = N` and `promiscuous = [N, ...]`",
                );
            }
            (None, Some(_)) => return Err("a part in a private VLAN needs its `primary = N`"),
        };
        if self.access.is_some() || self.trunk.is_some() || self.native.is_some() {
            return Err("`primary` excludes `access`, `trunk` and `native`");
        }
        if role.secondaries().contains(&primary) {
            return Err("the secondary VLANs of a private VLAN differ from its `primary`");
        }
        Ok(Some((primary, role)))
    }
}

impl TryFrom<RawVlan> for VlanConfig {
    type Error = &'static str;

    fn try_from(raw: RawVlan) -> Result<Self, Self::Error> {
        if let Some((primary, role)) = raw.role()? {
            return Ok(VlanConfig::Private { primary, role });
        }
        match (raw.access, raw.trunk, raw.native) {
            (None, None, None) => Ok(VlanConfig::Untagged),
            (Some(vlan), None, None) => Ok(VlanConfig::Access(vlan)),
            (None, Some(vlans), native) => Ok(VlanConfig::Trunk { vlans, native }),
            (None, None, Some(_)) => Err("`native` needs `trunk`; for a port in one VLAN use `access`"),
            (Some(_), ..) => Err(
                "`access` excludes `trunk` and `native`; allowed: { access = N } or { trunk = [N, ...], native = N }",
            ),
        }
    }
}

impl From<VlanConfig> for RawVlan {
    fn from(vlan: VlanConfig) -> Self {
        match vlan {
            VlanConfig::Untagged => RawVlan::default(),
            VlanConfig::Access(vlan) => RawVlan {
                access: Some(vlan),
                ..RawVlan::default()
            },
            VlanConfig::Trunk { vlans, native } => RawVlan {
                trunk: Some(vlans),
                native,
                ..RawVlan::default()
            },
            VlanConfig::Private { primary, role } => {
                let mut raw = RawVlan {
                    primary: Some(primary),
                    ..RawVlan::default()
                };
                match role {
                    PrivateRole::Isolated(vlan) => raw.isolated = Some(vlan),
                    PrivateRole::Community(vlan) => raw.community = Some(vlan),
                    PrivateRole::Promiscuous(vlans) => raw.promiscuous = Some(vlans),
                }
                raw
            }
        }
    }
}

impl fmt::Display for VlanConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VlanConfig::Untagged => f.write_str("untagged"),
            VlanConfig::Access(vlan) => write!(f, "access {vlan}"),
            VlanConfig::Trunk { vlans, native } => {
                write!(f, "trunk {vlans}")?;
                native.map_or(Ok(()), |native| write!(f, " native {native}"))
            }
            VlanConfig::Private { primary, role } => {
                write!(f, "private {primary} ")?;
                match role {
                    PrivateRole::Isolated(vlan) => write!(f, "isolated {vlan}"),
                    PrivateRole::Community(vlan) => write!(f, "community {vlan}"),
                    PrivateRole::Promiscuous(vlans) => {
                        f.write_str("promiscuous ")?;
                        list(vlans, f)
                    }
                }
            }
        }
    }
}

/// Writes VLANs, with commas between them.
fn list(vlans: &BTreeSet<VlanId>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (position, vlan) in vlans.iter().enumerate() {
        write!(f, "{}{vlan}", if position > 0 { "," } else { "" })?;
    }
    Ok(())
}

kebab_text!(UplinkBackEnd: Packet "packet", AfXdp "af-xdp");
kebab_text!(SwitchKind: External "external", Internal "internal", Private "private");
kebab_text!(PortKind: VhostUser "vhost-user", Tap "tap", Veth "veth");
kebab_text!(PortMode: Server "server", Client "client");

impl SwitchConfig {
    /// A switch with defaults and without ports.
    pub fn new(name: Name, kind: SwitchKind) -> Self {
        SwitchConfig {
            name,
            kind,
            mac_ageing: AgeingSeconds::default(),
            mac_table_size: TableSize::default(),
            flood: true,
            contested_macs: ContestedMacs::default(),
            mtu: Mtu::default(),
            uplink: None,
            uplink_back_end: UplinkBackEnd::default(),
            uplink_fast_path: false,
            uplink_policy: None,
            host: None,
            ports: Vec::new(),
        }
    }

    /// Name of the port of the host's interface.
    pub fn host_port(&self) -> String {
        format!("{}:host", self.name)
    }

    /// Name of the uplink's port.
    pub fn uplink_port(&self) -> String {
        format!("{}:uplink", self.name)
    }

    /// Name of the host's interface, for an internal or external switch.
    pub fn host_interface(&self) -> Option<InterfaceName> {
        if self.kind == SwitchKind::Private {
            return None;
        }
        let given = self.host.as_ref().and_then(|host| host.interface.clone());
        Some(given.unwrap_or_else(|| shortened(&self.name)))
    }
}

impl PortConfig {
    /// A port with defaults.
    pub fn new(name: Name, kind: PortKind) -> Self {
        PortConfig {
            name,
            kind,
            socket: None,
            mode: None,
            owner: None,
            group: None,
            socket_mode: None,
            vlan: VlanConfig::Untagged,
            mtu: None,
            mac: None,
            mac_limit: MacLimit::default(),
            miss_rate: MissRate::default(),
            storm_control: StormControl::default(),
            storm_control_bits: StormBits::default(),
            max_rate_from: MaxRate::NONE,
            max_rate_to: MaxRate::NONE,
            max_burst: MaxBurst::DEFAULT,
            weight: Weight::default(),
            priority: Priority::default(),
            min_rate: MaxRate::NONE,
            static_macs: Vec::new(),
            isolated: false,
            flood: true,
            interface: None,
            netns: None,
            addresses: Vec::new(),
            allowed_pairs: Vec::new(),
            guards: BTreeSet::new(),
            address_source: AddressSource::default(),
            address_limit: AddressLimit::default(),
            dhcp_server: false,
            acl_from: None,
            acl_to: None,
            security_groups: Vec::new(),
            log_drops: false,
            vlan_priority: VlanPriority::default(),
            dscp: Dscp::default(),
        }
    }

    /// The socket of a vhost-user port.
    pub fn socket_path(&self, run_dir: &Path) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| run_dir.join(format!("{}.sock", self.name)))
    }

    /// The interface of a TAP port.
    pub fn interface_name(&self) -> InterfaceName {
        self.interface.clone().unwrap_or_else(|| shortened(&self.name))
    }
}

fn shortened(name: &Name) -> InterfaceName {
    let text = name.as_str();
    text[..text.len().min(15)]
        .parse()
        .expect("a name is ASCII, and every start of it is an interface name")
}

fn yes() -> bool {
    true
}
