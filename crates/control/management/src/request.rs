//! Requests of users.

use crate::event::EventMark;
use configuration::{
    AddressLimit, AddressSource, Dscp, Guard, MacAddr, MacLimit, MaxBurst, MaxRate, MissRate, Mtu, Name,
    P4StageConfig, PortConfig, Priority, StormBits, StormControl, SwitchConfig, VlanConfig, VlanPriority,
    Weight,
};
use control_protocol::p4::{P4Array, P4CellWrite};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Longest request in bytes, newline included. A longer one ends the connection.
pub const MAX_REQUEST: usize = 1 << 20;

/// Longest text of a configuration in bytes.
pub const MAX_CONFIGURATION: u64 = 8 << 20;

/// One request: one line of JSON, `{"verb":"port-show","port":"vm1"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "verb",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
pub enum Request {
    /// Answer: [`Reply::Version`](crate::Reply::Version).
    Version,
    /// Answer: [`Reply::Status`](crate::Reply::Status).
    Status,
    /// Adds a switch, with ports if it has any. It lasts until it is deleted or `hyperswitch run` ends.
    SwitchAdd {
        /// The switch.
        switch: SwitchConfig,
    },
    /// Deletes a switch that was added at run time, with its ports.
    SwitchDel {
        /// Name of the switch.
        switch: String,
    },
    /// Answer: [`Reply::Switches`](crate::Reply::Switches).
    SwitchList,
    /// Adds a port. It lasts until it is deleted or `hyperswitch run` ends.
    PortAdd {
        /// The switch's name.
        switch: String,
        /// The port.
        config: Box<PortConfig>,
        /// A port that is there already, just so, is no error.
        #[serde(default)]
        exists_ok: bool,
    },
    /// Deletes a port that was added at run time.
    PortDel {
        /// Name of the port.
        port: String,
    },
    /// Changes a port; for one from the configuration file until the next reload.
    PortSet {
        /// Name of the port.
        port: String,
        /// What to change.
        changes: PortChanges,
    },
    /// Answer: [`Reply::Ports`](crate::Reply::Ports) with one port.
    PortShow {
        /// Name of the port.
        port: String,
    },
    /// Answer: [`Reply::Ports`](crate::Reply::Ports).
    PortList {
        /// Only of this switch.
        #[serde(default)]
        switch: Option<String>,
    },
    /// Answer: [`Reply::Macs`](crate::Reply::Macs).
    MacList {
        /// Only of this switch.
        #[serde(default)]
        switch: Option<String>,
    },
    /// Forgets learned MAC addresses, and flows with them. Static ones stay.
    MacFlush {
        /// Only of this switch.
        #[serde(default)]
        switch: Option<String>,
        /// Only on this port.
        #[serde(default)]
        port: Option<String>,
    },
    /// Removes flows; the next packet of each kind is decided again.
    FlowFlush {
        /// Only of this switch.
        #[serde(default)]
        switch: Option<String>,
    },
    /// Answer: [`Reply::Flows`](crate::Reply::Flows).
    FlowList {
        /// Only of this switch.
        #[serde(default)]
        switch: Option<String>,
    },
    /// Answer: [`Reply::Stats`](crate::Reply::Stats).
    Stats {
        /// Only of this port.
        #[serde(default)]
        port: Option<String>,
    },
    /// Answer: [`Reply::Events`](crate::Reply::Events).
    Events {
        /// Only later ones.
        #[serde(default)]
        after: Option<EventMark>,
    },
    /// Answer: [`Reply::Snapshot`](crate::Reply::Snapshot).
    Snapshot,
    /// Answer: [`Reply::Placement`](crate::Reply::Placement).
    Placement,
    /// Answer: [`Reply::Trace`](crate::Reply::Trace).
    Trace {
        /// The port the packet is to come from.
        port: String,
        /// Ethernet frame, 14 to 65,553 bytes.
        frame: Hex,
    },
    /// Copies a port's packets to the `SOCK_SEQPACKET` socket sent along with the request. The data plane
    /// writes postcard-encoded [`CapturedPacket`](control_protocol::data_plane::CapturedPacket)s until its
    /// peer is closed.
    Capture {
        /// Name of the port.
        port: String,
        /// Bytes kept of each frame, at most 65,553.
        snap_length: u32,
    },
    /// Answer: [`Reply::Policies`](crate::Reply::Policies).
    PolicyList,
    /// Answer: [`Reply::Policy`](crate::Reply::Policy).
    PolicyShow {
        /// Name of a rule list, or of a port: then of its guards' list.
        policy: String,
    },
    /// Answer: [`Reply::PolicyJudged`](crate::Reply::PolicyJudged).
    PolicyJudged {
        /// Name of a rule list.
        policy: String,
        /// Where to begin: 0, or what the answer before said.
        from: u32,
    },
    /// Answer: [`Reply::PolicyLog`](crate::Reply::PolicyLog).
    PolicyLog {
        /// Records behind the one with this number; all if `None`.
        after: Option<u64>,
    },
    /// Puts a P4 program in force as the forwarder of ports, in the place of a program of that name. The
    /// program with its entries, as `p4_ir::setup` encodes them, is in the sealed memfd, at its beginning,
    /// that is sent along with the request. It lasts until it is unloaded or `hyperswitch run` ends.
    P4Load {
        /// Name of the P4 switch.
        name: Name,
        /// The ports that are bound to it; all others are freed. Absent: they stay as they are.
        ports: Option<Vec<P4Place>>,
        /// Most operations of a pass that it is allowed; absent: as many as usual. Without `ports` they stay
        /// as they are.
        #[serde(default)]
        operations: Option<u32>,
        /// The tag of the program in whose place this one is put; if it is another one by now, the request is
        /// refused. Absent: whichever there is.
        replaces: Option<u64>,
        /// Whether the descriptor has no program, but a batch of changes of the entries of the one that is
        /// replaced, as `p4_ir::changes` encodes it.
        #[serde(default)]
        changes: bool,
        /// Cells that get values in the moment in which the version comes into force.
        #[serde(default)]
        writes: Vec<P4CellWrite>,
    },
    /// Bytes of a P4 switch's program with its entries, as they were loaded. Answer:
    /// [`Reply::P4Program`](crate::Reply::P4Program).
    P4Program {
        /// Name of the P4 switch.
        name: String,
        /// The first byte.
        offset: usize,
    },
    /// Cells of an array of a P4 switch. Answer: [`Reply::P4Cells`](crate::Reply::P4Cells).
    P4Read {
        /// Name of the P4 switch.
        name: String,
        /// The tag of the program that the array's number belongs to.
        tag: u64,
        /// The array.
        array: P4Array,
        /// The first cell.
        from: u32,
    },
    /// Sets cells of a register, a counter, or what entries have counted.
    P4Write {
        /// Name of the P4 switch.
        name: String,
        /// The tag of the program that the array's number belongs to.
        tag: u64,
        /// The array.
        array: P4Array,
        /// The first cell.
        cell: u32,
        /// Words of the cells, the least significant first.
        words: Vec<u64>,
    },
    /// Sets cells of arrays at once: each packet sees all of them as they were, or as they are to be.
    P4WriteAll {
        /// Name of the P4 switch.
        name: String,
        /// The tag of the program that the arrays' numbers belong to.
        tag: u64,
        /// The cells.
        writes: Vec<P4CellWrite>,
    },
    /// Returns to the program, with its entries, and to the ports that were in force before the last
    /// [`P4Load`](Self::P4Load) with ports, or before the configuration file changed them.
    P4Rollback {
        /// Name of the P4 switch.
        name: String,
    },
    /// Changes the ports of a P4 switch, whose program stays. The configuration file's ports return with the
    /// next reload.
    P4Ports {
        /// Name of the P4 switch.
        name: String,
        /// Ports to bind, and links as `PROGRAM:NUMBER`; in the place of what had the number.
        set: Vec<P4Place>,
        /// Numbers to free before; of a link, at either end.
        remove: Vec<u16>,
    },
    /// Makes P4 switches stages, or gives them other places as stages, or ends that: all at once. The
    /// configuration file's stages return with the next reload.
    P4Stages {
        /// What each is to be from now on, by its name; one without is no stage.
        set: Vec<(String, Option<P4StageConfig>)>,
    },
    /// Ends a P4 switch that was loaded. Its ports are forwarded by their switch from then on.
    P4Unload {
        /// Name of the P4 switch.
        name: String,
    },
    /// Answer: [`Reply::P4`](crate::Reply::P4).
    P4List,
    /// Joins the process that serves clients of a device with the data plane, in the place of the connection
    /// before. One descriptor: a `SOCK_SEQPACKET` socket for
    /// [`P4Request::Connect`](control_protocol::p4::P4Request::Connect). Answer:
    /// [`Reply::Done`](crate::Reply::Done).
    P4Connect {
        /// Name of the P4 switch.
        name: String,
    },
    /// The devices of `[p4runtime]`. Answer: [`Reply::P4Devices`](crate::Reply::P4Devices).
    P4Devices,
    /// Reads the configuration file again. Answer: [`Reply::Reloaded`](crate::Reply::Reloaded).
    Reload,
    /// Reads the configuration file, and changes nothing. Answer:
    /// [`Reply::Reloaded`](crate::Reply::Reloaded), with what a reload would change.
    ReloadPlan,
    /// Puts a configuration in force in place of the file's, which is not changed. Its text is in the sealed
    /// memfd, at its beginning, that is sent along with the request. Answer:
    /// [`Reply::Reloaded`](crate::Reply::Reloaded).
    Apply {
        /// Name of the text, for errors.
        file: String,
        /// Seconds after which the configuration before returns, unless this one is confirmed.
        confirm: Option<u32>,
    },
    /// As [`Apply`](Self::Apply), and changes nothing. Answer:
    /// [`Reply::Reloaded`](crate::Reply::Reloaded), with what would change.
    ApplyPlan {
        /// Name of the text, for errors.
        file: String,
    },
    /// Answer: [`Reply::Unconfirmed`](crate::Reply::Unconfirmed).
    Unconfirmed,
    /// Keeps the configuration that waits to be confirmed.
    Confirm {
        /// Which one: its [`number`](crate::Unconfirmed::number).
        number: u64,
    },
    /// What is in force, as a configuration. Answer: [`Reply::Config`](crate::Reply::Config).
    ConfigShow,
    /// Later requests of this connection may take so long before they are given up, at most a day.
    Timeout {
        /// At least 1.
        seconds: u32,
    },
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// When `line` is none.
    pub fn from_json(line: &[u8]) -> Result<Request, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// The request as it is sent: one line of JSON.
    ///
    /// # Errors
    /// When a path in it is no Unicode text.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Whether it may be made again when it is not known whether it was carried out.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        matches!(self.effect(), Effect::Told | Effect::ToldToOwner)
    }

    /// Whether users of `view.sock` may make it.
    #[must_use]
    pub fn is_query(&self) -> bool {
        matches!(self.effect(), Effect::Told | Effect::OnConnection)
    }

    fn effect(&self) -> Effect {
        match self {
            Request::Version
            | Request::Status
            | Request::SwitchList
            | Request::PortShow { .. }
            | Request::PortList { .. }
            | Request::MacList { .. }
            | Request::FlowList { .. }
            | Request::Stats { .. }
            | Request::Placement
            | Request::Snapshot
            | Request::Events { .. }
            | Request::Trace { .. }
            | Request::PolicyList
            | Request::PolicyShow { .. }
            | Request::PolicyJudged { .. }
            | Request::PolicyLog { .. }
            | Request::P4List
            | Request::P4Devices
            | Request::Unconfirmed
            | Request::ConfigShow
            | Request::P4Program { .. }
            | Request::ReloadPlan => Effect::Told,
            Request::ApplyPlan { .. } | Request::P4Read { .. } => Effect::ToldToOwner,
            Request::Timeout { .. } => Effect::OnConnection,
            Request::SwitchAdd { .. }
            | Request::SwitchDel { .. }
            | Request::PortAdd { .. }
            | Request::PortDel { .. }
            | Request::PortSet { .. }
            | Request::Capture { .. }
            | Request::P4Load { .. }
            | Request::P4Ports { .. }
            | Request::P4Stages { .. }
            | Request::P4Unload { .. }
            | Request::P4Rollback { .. }
            | Request::P4Write { .. }
            | Request::P4WriteAll { .. }
            | Request::P4Connect { .. }
            | Request::MacFlush { .. }
            | Request::FlowFlush { .. }
            | Request::Apply { .. }
            | Request::Confirm { .. }
            | Request::Reload => Effect::Done,
        }
    }
}

/// Effect of a request.
enum Effect {
    /// An answer, without bytes of packets.
    Told,
    /// An answer that may have bytes of packets, as a P4 program's cells may, or to a text that is sent
    /// along.
    ToldToOwner,
    /// A setting of the connection that makes it.
    OnConnection,
    /// A change, or a capture.
    Done,
}

/// Changes of a port that is in use. `None` leaves a property as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct PortChanges {
    /// Largest IP packet; a running guest learns of it at its next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// VLANs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanConfig>,
    /// MAC addresses the port may learn. Those already learned stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_limit: Option<MacLimit>,
    /// Packets per second that may need a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_rate: Option<MissRate>,
    /// Packets per second of each class that goes to all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storm_control: Option<StormControl>,
    /// Bits per second of these classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storm_control_bits: Option<StormBits>,
    /// Bits per second that the port may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate_from: Option<MaxRate>,
    /// Bits per second that the port may receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rate_to: Option<MaxRate>,
    /// Bytes that pass at once after a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_burst: Option<MaxBurst>,
    /// Weight where a bandwidth is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Priority where a bandwidth is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Bits per second that the port gets at least where a bandwidth is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<MaxRate>,
    /// Static addresses; replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_macs: Option<Vec<MacAddr>>,
    /// Port isolation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<bool>,
    /// Unknown unicast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flood: Option<bool>,
    /// What the guest must not do; replaces all guards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guards: Option<BTreeSet<Guard>>,
    /// Access control list for packets from the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_from: Option<AclChange>,
    /// Access control list for packets to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_to: Option<AclChange>,
    /// Security groups; replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<Name>>,
    /// Whether what is dropped is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_drops: Option<bool>,
    /// Where further addresses come from that the guest may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_source: Option<AddressSource>,
    /// How many of these there may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_limit: Option<AddressLimit>,
    /// Whether leases of a DHCP server behind the port count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp_server: Option<bool>,
    /// Priority that VLAN tags of packets from the port get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_priority: Option<VlanPriority>,
    /// Codepoint that IP packets from the port get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
}

/// The access control list that a port has from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AclChange {
    /// No list.
    None,
    /// The list with this name.
    Acl(Name),
}

impl AclChange {
    fn list(&self) -> Option<Name> {
        match self {
            AclChange::None => None,
            AclChange::Acl(name) => Some(name.clone()),
        }
    }
}

impl PortChanges {
    /// Changes `port`.
    pub fn apply(&self, port: &mut PortConfig) {
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
        }
        if self.mtu.is_some() {
            port.mtu = self.mtu;
        }
        set(&mut port.vlan, &self.vlan);
        set(&mut port.mac_limit, &self.mac_limit);
        set(&mut port.miss_rate, &self.miss_rate);
        set(&mut port.storm_control, &self.storm_control);
        set(&mut port.storm_control_bits, &self.storm_control_bits);
        set(&mut port.max_rate_from, &self.max_rate_from);
        set(&mut port.max_rate_to, &self.max_rate_to);
        set(&mut port.max_burst, &self.max_burst);
        set(&mut port.weight, &self.weight);
        set(&mut port.priority, &self.priority);
        set(&mut port.min_rate, &self.min_rate);
        set(&mut port.static_macs, &self.static_macs);
        set(&mut port.isolated, &self.isolated);
        set(&mut port.flood, &self.flood);
        set(&mut port.guards, &self.guards);
        set(&mut port.acl_from, &self.acl_from.as_ref().map(AclChange::list));
        set(&mut port.acl_to, &self.acl_to.as_ref().map(AclChange::list));
        set(&mut port.security_groups, &self.security_groups);
        set(&mut port.log_drops, &self.log_drops);
        set(&mut port.address_source, &self.address_source);
        set(&mut port.address_limit, &self.address_limit);
        set(&mut port.dhcp_server, &self.dhcp_server);
        set(&mut port.vlan_priority, &self.vlan_priority);
        set(&mut port.dscp, &self.dscp);
    }

    /// Merges later changes into these; where both name a value, the later one wins.
    pub fn then(self, later: PortChanges) -> PortChanges {
        PortChanges {
            mtu: later.mtu.or(self.mtu),
            vlan: later.vlan.or(self.vlan),
            mac_limit: later.mac_limit.or(self.mac_limit),
            miss_rate: later.miss_rate.or(self.miss_rate),
            storm_control: later.storm_control.or(self.storm_control),
            storm_control_bits: later.storm_control_bits.or(self.storm_control_bits),
            max_rate_from: later.max_rate_from.or(self.max_rate_from),
            max_rate_to: later.max_rate_to.or(self.max_rate_to),
            max_burst: later.max_burst.or(self.max_burst),
            weight: later.weight.or(self.weight),
            priority: later.priority.or(self.priority),
            min_rate: later.min_rate.or(self.min_rate),
            static_macs: later.static_macs.or(self.static_macs),
            isolated: later.isolated.or(self.isolated),
            flood: later.flood.or(self.flood),
            guards: later.guards.or(self.guards),
            acl_from: later.acl_from.or(self.acl_from),
            acl_to: later.acl_to.or(self.acl_to),
            security_groups: later.security_groups.or(self.security_groups),
            log_drops: later.log_drops.or(self.log_drops),
            address_source: later.address_source.or(self.address_source),
            address_limit: later.address_limit.or(self.address_limit),
            dhcp_server: later.dhcp_server.or(self.dhcp_server),
            vlan_priority: later.vlan_priority.or(self.vlan_priority),
            dscp: later.dscp.or(self.dscp),
        }
    }
}

/// A port's place at a P4 switch, or the end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct P4Place {
    /// Number by which the program knows the port, 0 to 510.
    pub number: u16,
    /// Name of the port, or `PROGRAM:NUMBER`: a port of another program.
    pub port: String,
}

/// Bytes, written in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hex(pub Vec<u8>);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Hex {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ERROR: &str = "expected an even number of hexadecimal digits";
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok()))
            .collect::<Option<_>>()
            .ok_or(ERROR)?;
        if !digits.len().is_multiple_of(2) {
            return Err(ERROR);
        }
        Ok(Hex(digits
            .chunks_exact(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()))
    }
}

impl TryFrom<String> for Hex {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Hex> for String {
    fn from(hex: Hex) -> Self {
        hex.to_string()
    }
}
