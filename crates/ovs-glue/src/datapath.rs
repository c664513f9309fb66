//! What the glue asks of a data plane.
//!
//! Keys, masks and actions are netlink attributes, as they came and as they are answered. Each call returns at once: none
//! waits for a guest or for ovs-vswitchd. Error numbers are those that ovs-vswitchd is told, so they are the kernel's.

pub use ovs_netlink::Errno;

/// A datapath: what the kernel calls by the interface index of its local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatapathId(pub u32);

/// A port within a datapath, below 65,536; 0 is the local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNo(pub u32);

/// The port whose network device bears the datapath's name.
pub const LOCAL: PortNo = PortNo(0);

/// What a port is (`enum ovs_vport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A network device of the host.
    Netdev,
    /// A port whose network device is made for it: the host's stack, or a virtual machine.
    Internal,
    /// A tunnel by its number: 3 GRE, 4 VXLAN, 5 Geneve.
    Tunnel(u32),
}

/// A port to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Its number.
    pub number: PortNo,
    /// Its name, 1 to 15 bytes, unique among the ports of all datapaths.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// A tunnel's options (`OVS_TUNNEL_ATTR_*`).
    pub options: Vec<u8>,
}

/// Counters of a port since it was made, seen from the switch (`struct ovs_vport_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets from the port.
    pub rx_packets: u64,
    /// Packets to the port.
    pub tx_packets: u64,
    /// Bytes from the port.
    pub rx_bytes: u64,
    /// Bytes to the port.
    pub tx_bytes: u64,
    /// Malformed packets from the port.
    pub rx_errors: u64,
    /// Packets that the port failed to take.
    pub tx_errors: u64,
    /// Packets from the port that were dropped.
    pub rx_dropped: u64,
    /// Packets to the port that were dropped.
    pub tx_dropped: u64,
}

/// Counters of a datapath (`struct ovs_dp_stats`, `struct ovs_dp_megaflow_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatapathStats {
    /// Packets that matched a flow.
    pub hit: u64,
    /// Packets that matched none.
    pub missed: u64,
    /// Upcalls that were lost inside the data plane.
    pub lost: u64,
    /// Flows.
    pub flows: u64,
    /// Masks looked at.
    pub mask_hit: u64,
    /// Masks.
    pub masks: u32,
    /// Packets whose flow was found in a cache.
    pub cache_hit: u64,
}

/// How a flow is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowId {
    /// By the number that ovs-vswitchd gave it, 1 to 16 bytes.
    Unique(Vec<u8>),
    /// By its key, unmasked, as it came.
    Key(Vec<u8>),
}

/// A flow as installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Its name.
    pub id: FlowId,
    /// `OVS_KEY_ATTR_*`.
    pub key: Vec<u8>,
    /// The same, of the bits that matter; `None`: all of them.
    pub mask: Option<Vec<u8>>,
    /// `OVS_ACTION_ATTR_*`.
    pub actions: Vec<u8>,
}

/// What a flow has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last one came: milliseconds of the monotonic clock; 0: none came.
    pub used: u64,
    /// TCP flags of all of them.
    pub tcp_flags: u8,
}

/// A flow and what it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The flow.
    pub spec: FlowSpec,
    /// Its statistics.
    pub stats: FlowStats,
}

/// What is to happen to a flow that may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// It must not be there (`EEXIST`).
    Create,
    /// It is made, or its actions are replaced; statistics are kept.
    CreateOrModify,
}

/// A packet that ovs-vswitchd sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execute {
    /// The frame.
    pub packet: Vec<u8>,
    /// Its metadata (`OVS_KEY_ATTR_*`).
    pub key: Vec<u8>,
    /// What to do with it.
    pub actions: Vec<u8>,
    /// Whether it only asks whether such actions are understood: nothing leaves.
    pub probe: bool,
    /// Longest fragment it came in; `None`: it came whole.
    pub mru: Option<u16>,
    /// The [`Upcall::serial`] that it answers; then the packet is unchanged.
    pub serial: Option<u64>,
}

/// Why a packet comes to ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpcallKind {
    /// No flow matched.
    Miss,
    /// A flow's `userspace` action.
    Action {
        /// The socket it names; `u32::MAX`: any.
        socket: u32,
        /// Its user data.
        userdata: Option<Vec<u8>>,
        /// The tunnel key that the packet would leave with.
        egress_tunnel: Option<Vec<u8>>,
        /// The flow's actions, if they were asked for.
        actions: Option<Vec<u8>>,
    },
}

/// A packet for ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// The datapath.
    pub datapath: DatapathId,
    /// The port it came from.
    pub port: PortNo,
    /// Why.
    pub kind: UpcallKind,
    /// The frame, at most 65,531 bytes.
    pub packet: Vec<u8>,
    /// Its key (`OVS_KEY_ATTR_*`).
    pub key: Vec<u8>,
    /// Longest fragment it came in.
    pub mru: Option<u16>,
    /// Length before a `trunc` action cut it.
    pub length: Option<u32>,
    /// Number by which the packet is known again in [`Execute`]; not 0.
    pub serial: u64,
    /// Packets of one flow have the same: they go to the same socket, in order.
    pub hash: u32,
}

/// A meter (`OVS_METER_*`): one band, which drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterSpec {
    /// Whether rates are in kilobits per second; else in packets.
    pub kbps: bool,
    /// Band, if it has one: rate and burst.
    pub band: Option<(u32, u32)>,
}

/// What a meter has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that its band dropped.
    pub band_packets: u64,
    /// Their bytes.
    pub band_bytes: u64,
    /// As [`FlowStats::used`].
    pub used: u64,
}

/// A data plane.
pub trait Datapath {
    /// Makes an empty datapath.
    fn create(&mut self, datapath: DatapathId) -> Result<(), Errno>;
    /// Removes a datapath with its ports, flows and meters.
    fn remove(&mut self, datapath: DatapathId);
    /// Counters of a datapath.
    fn stats(&self, datapath: DatapathId) -> DatapathStats;

    /// Adds a port.
    fn add_port(&mut self, datapath: DatapathId, port: &PortSpec) -> Result<(), Errno>;
    /// Removes a port. Its flows stay.
    fn remove_port(&mut self, datapath: DatapathId, port: PortNo);
    /// Counters of a port.
    fn port_stats(&self, datapath: DatapathId, port: PortNo) -> PortStats;

    /// Installs a flow. `EEXIST` as [`PutMode`] says or if another flow has the same match; `ENOSPC` if there is no room.
    fn put_flow(&mut self, datapath: DatapathId, flow: FlowSpec, mode: PutMode) -> Result<(), Errno>;
    /// Replaces the actions of a flow, if given, and clears its statistics, if wanted. `ENOENT` if there is none.
    fn set_flow(
        &mut self,
        datapath: DatapathId,
        id: &FlowId,
        actions: Option<Vec<u8>>,
        clear: bool,
    ) -> Result<(), Errno>;
    /// A flow. `ENOENT` if there is none.
    fn flow(&self, datapath: DatapathId, id: &FlowId) -> Result<Flow, Errno>;
    /// Removes a flow and returns its last statistics. `ENOENT` if there is none.
    fn remove_flow(&mut self, datapath: DatapathId, id: &FlowId) -> Result<Flow, Errno>;
    /// Removes all flows.
    fn flush_flows(&mut self, datapath: DatapathId);
    /// The flow after the one named, in an order that flows which come and go do not change.
    fn flow_after(&self, datapath: DatapathId, after: Option<&FlowId>) -> Option<Flow>;

    /// Carries out actions on a packet.
    fn execute(&mut self, datapath: DatapathId, execute: Execute) -> Result<(), Errno>;

    /// Makes or replaces a meter and returns what the one before had seen. `EFBIG` if there is no room.
    fn set_meter(
        &mut self,
        datapath: DatapathId,
        id: u32,
        meter: MeterSpec,
    ) -> Result<Option<MeterStats>, Errno>;
    /// A meter.
    fn meter(&self, datapath: DatapathId, id: u32) -> Option<(MeterSpec, MeterStats)>;
    /// Removes a meter and returns what it had seen.
    fn remove_meter(&mut self, datapath: DatapathId, id: u32) -> Option<(MeterSpec, MeterStats)>;

    /// Sets how many connections a zone may have, 0: any number; `zone` `None`: a zone without a limit of its own.
    fn set_zone_limit(&mut self, zone: Option<u16>, limit: u32) -> Result<(), Errno>;
    /// Removes a zone's own limit.
    fn remove_zone_limit(&mut self, zone: u16);
    /// The limit of a zone and the connections it has.
    fn zone_limit(&self, zone: Option<u16>) -> (u32, u32);
    /// Zones with limits of their own.
    fn limited_zones(&self) -> Vec<u16>;

    /// The next packet for ovs-vswitchd. Asked only while there is room for one.
    fn next_upcall(&mut self) -> Option<Upcall>;
}
