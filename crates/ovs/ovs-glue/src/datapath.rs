//! The interface between the glue and a data plane.
//!
//! Keys, masks, actions and counters are the codec's. Each call returns at once: none waits for the data
//! plane, for a guest or for ovs-vswitchd. For facts that only the data plane knows there is a [`Question`],
//! asked with a [`Ticket`] under which the answer comes later, so that many are under way at one time.
//! Questions take effect in the order in which they are asked, and so do the other calls among them. Error
//! numbers are those that ovs-vswitchd is told, so they are the kernel's.

use flow::{DropReason, PortCounters};
pub use ovs_netlink::Errno;
use ovs_netlink::action::Action;
use ovs_netlink::ct_limit::{Zone, ZoneLimit};
use ovs_netlink::datapath::{MegaflowStats, Stats as DatapathStats};
use ovs_netlink::flow::{Stats, Ufid};
use ovs_netlink::key::{Key, Match, Tunnel};
use ovs_netlink::meter::Band;
use ovs_netlink::packet::Execute;
use ovs_netlink::vport::{Kind, Options, Stats as PortStats};
use rustix::fd::{BorrowedFd, OwnedFd};

/// A datapath, which the kernel names by the interface index of its local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatapathId(pub u32);

/// A port within a datapath, below [`ovs_netlink::key::NO_PORT`]; 0 is the local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNo(pub u32);

/// The port whose network device bears the datapath's name.
pub const LOCAL: PortNo = PortNo(0);

/// A port to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Number of the port.
    pub number: PortNo,
    /// Name of the port, 1 to 15 bytes, unique among the ports of all datapaths.
    pub name: String,
    /// Kind of the port.
    pub kind: Kind,
    /// A tunnel's options.
    pub options: Option<Options>,
}

/// The settings of a port's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Whether it is administratively up; OpenFlow's port modification sets it.
    pub up: bool,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
}

/// How a flow is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlowId {
    /// By the number that ovs-vswitchd gave it.
    Ufid(Ufid),
    /// By the key with which it was installed.
    Key(Box<Key>),
}

/// A flow as installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Name of the flow.
    pub id: FlowId,
    /// What it matches.
    pub matches: Box<Match>,
    /// What it does.
    pub actions: Vec<Action>,
}

/// The statistics of a flow or meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Packets and bytes.
    pub stats: Stats,
    /// When the last one came: milliseconds of the monotonic clock. `None`: none came.
    pub used: Option<u64>,
    /// TCP flags of all of them.
    pub tcp_flags: u8,
}

/// A flow and its statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Name of the flow.
    pub id: FlowId,
    /// Match and actions of the flow, if they were asked for.
    pub rule: Option<Rule>,
    /// Statistics of the flow.
    pub seen: Seen,
}

/// The match and the actions of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it matches.
    pub matches: Box<Match>,
    /// What it does.
    pub actions: Vec<Action>,
}

/// How to treat a flow that may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// The flow must not be there (`EEXIST`).
    Create,
    /// The flow is made, or its actions are replaced; statistics are kept.
    CreateOrModify,
}

/// Why a packet comes to ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpcallKind {
    /// No flow matched.
    Miss,
    /// A flow's `userspace` action.
    Action {
        /// The socket it names, where sockets are not named per processor.
        socket: u32,
        /// User data of the action.
        userdata: Option<Vec<u8>>,
        /// The tunnel key that the packet would leave with.
        egress_tunnel: Option<Tunnel>,
        /// The flow's actions, if they were asked for.
        actions: Option<Vec<Action>>,
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
    /// Key of the packet.
    pub key: Box<Key>,
    /// Longest fragment it came in.
    pub mru: Option<u16>,
    /// Length before a `trunc` action cut it.
    pub length: Option<u32>,
    /// Number that [`Execute::hash`] repeats when the packet comes back unchanged; not 0.
    pub serial: u64,
    /// Packets of one flow have the same: they go to the same socket, in order.
    pub hash: u32,
}

/// A meter. At most one band, which drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterSpec {
    /// Whether rates are in kilobits per second; else in packets.
    pub kilobits: bool,
    /// Bands.
    pub bands: Vec<Band>,
}

/// The statistics of a meter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterSeen {
    /// All packets that met it.
    pub seen: Seen,
    /// The drops of each band.
    pub bands: Vec<Stats>,
}

/// The name of a question, given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How much is wanted to be known of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Name and statistics.
    Seen,
    /// All.
    Whole,
}

/// The way of a packet that is traced. The packet itself goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// A flow was found. `None`: one that is not known here, of an earlier process.
    Matched(Option<FlowId>),
    /// No flow was found.
    Missed,
    /// A copy would be delivered to this port.
    Delivered(PortNo),
    /// The packet would be dropped, or a copy for this port.
    Dropped(Option<PortNo>, DropReason),
}

/// A question that only the data plane can answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Installs a flow. `EEXIST` as [`PutMode`] says or if another flow has the same match; `ENOSPC` if there
    /// is no room.
    PutFlow(FlowSpec, PutMode),
    /// Replaces the actions of a flow, if given, and clears its statistics, if wanted. `ENOENT` if there is
    /// none.
    SetFlow {
        /// The flow.
        id: FlowId,
        /// New actions of the flow.
        actions: Option<Vec<Action>>,
        /// Whether it counts from zero again.
        clear: bool,
    },
    /// A flow. `ENOENT` if there is none.
    Flow(FlowId, Detail),
    /// Removes a flow and returns its last statistics. `ENOENT` if there is none.
    RemoveFlow(FlowId, Detail),
    /// Removes all flows.
    FlushFlows,
    /// Some of the flows after this place, in an order that flows which come and go do not change. All places
    /// are above 0.
    FlowsAfter(u64, Detail),
    /// Brings [`Datapath::port_stats`] up to date.
    PortStats(PortNo),
    /// Waits until a new port's device is attached, or cannot be, at most half a second. Ports whose guests
    /// come when they like are answered at once, and so are ports beyond the first 16 within a second.
    Connected(PortNo),
    /// Makes or replaces a meter; the answer is the statistics of the one before. `EFBIG` if there is no
    /// room.
    SetMeter(u32, MeterSpec),
    /// The statistics of a meter.
    Meter(u32),
    /// Removes a meter, if there is one; the answer is its statistics.
    RemoveMeter(u32),
    /// The statistics of a queue of a port, as of a meter; none if it is not one that is counted.
    Queue(PortNo, u16),
    /// The way that a packet from a port would take. `ENODEV` if there is no such port, `EIO` without a data
    /// plane.
    Trace {
        /// The port.
        port: PortNo,
        /// Ethernet frame.
        frame: Vec<u8>,
    },
}

/// The answer to a question, unless it is an error number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// To [`Question::Flow`] and [`Question::RemoveFlow`].
    Flow(Flow),
    /// To [`Question::FlowsAfter`].
    Flows {
        /// Flows and their places, which rise.
        flows: Vec<(u64, Flow)>,
        /// There may be more, after this place.
        more_after: Option<u64>,
    },
    /// To [`Question::SetMeter`], [`Question::Meter`], [`Question::RemoveMeter`] and [`Question::Queue`];
    /// `None` if there is or was no such meter.
    Meter(Option<MeterSeen>),
    /// To [`Question::Trace`].
    Trace(Vec<TraceStep>),
}

/// A data plane.
pub trait Datapath {
    /// Makes an empty datapath.
    fn create(&mut self, datapath: DatapathId) -> Result<(), Errno>;
    /// Removes a datapath with its ports, flows and meters.
    fn remove(&mut self, datapath: DatapathId);
    /// Counters of a datapath; those of its masks, if they are counted.
    fn stats(&self, datapath: DatapathId) -> (DatapathStats, Option<MegaflowStats>);

    /// The number under which a port of this name is known from before, if it is.
    fn number_of(&self, name: &str) -> Option<PortNo>;
    /// Adds a port.
    fn add_port(&mut self, datapath: DatapathId, port: &PortSpec) -> Result<(), Errno>;
    /// Removes a port. Its flows stay.
    fn remove_port(&mut self, datapath: DatapathId, port: PortNo);
    /// The port's device was made, or its settings changed. While it is down, nothing leaves to the port, and
    /// what comes from it is dropped. Called at once after a port with a device was added, and not for ports
    /// without.
    fn set_device(&mut self, datapath: DatapathId, port: PortNo, settings: DeviceSettings);
    /// The next port whose guest connected or went away since the last call, and whether it is connected. A
    /// port whose guest was never there counts as connected until the data plane says otherwise.
    fn next_carrier(&mut self) -> Option<(DatapathId, PortNo, bool)>;
    /// The next port whose other end is to be its own network device. It is answered by
    /// [`Datapath::attach_device`].
    fn next_device(&mut self) -> Option<(DatapathId, PortNo)>;
    /// Gives a port its device: its interface index, and a descriptor of the TAP. Without one it is the
    /// device that the port had already.
    fn attach_device(&mut self, datapath: DatapathId, port: PortNo, index: u32, device: Option<OwnedFd>);
    /// The next port whose own network device, which was attached, has gone: the process that had it says so.
    fn next_gone(&mut self) -> Option<(DatapathId, PortNo)>;
    /// Whether a port's other end is a virtual machine.
    fn has_guest(&self, datapath: DatapathId, port: PortNo) -> bool;
    /// The port's network device was made again.
    fn renew_device(&mut self, datapath: DatapathId, port: PortNo);
    /// Counters of a port since it was made, seen from the switch, as they were when it was last asked for
    /// them.
    fn port_stats(&self, datapath: DatapathId, port: PortNo) -> PortStats;
    /// Statistics of a port in all detail, since the present data plane has the port.
    fn port_counters(&self, datapath: DatapathId, port: PortNo) -> PortCounters;

    /// Asks. The answer comes once, whatever happens to the data plane.
    fn ask(&mut self, ticket: Ticket, datapath: DatapathId, question: Question);
    /// The next answer, in whatever order they come.
    fn next_answer(&mut self) -> Option<(Ticket, Result<Answer, Errno>)>;
    /// Whether more may be asked now. Questions asked nevertheless are not lost; they take memory until they
    /// are answered.
    fn has_room(&self) -> bool;
    /// Takes in what the data plane has said, and says what waits to be said. To be called whenever
    /// [`Datapath::changes`] is readable; what was taken in is to be looked at before waiting for that again.
    fn exchange(&mut self);
    /// Says what waits to be said. To be called before waiting.
    fn flush(&mut self);
    /// Readable when there is something to exchange. `None`: there never is.
    fn changes(&self) -> Option<BorrowedFd<'_>>;

    /// Carries out actions on a packet. If it is a probe, nothing leaves.
    fn execute(&mut self, execute: &Execute<'_>) -> Result<(), Errno>;

    /// Sets how many connections a zone may have.
    fn set_zone_limit(&mut self, zone: Zone, limit: u32) -> Result<(), Errno>;
    /// Removes a limit.
    fn remove_zone_limit(&mut self, zone: Zone);
    /// The limit of a zone and the connections it has.
    fn zone_limit(&self, zone: Zone) -> ZoneLimit;
    /// Zones with limits of their own, and the default.
    fn limited_zones(&self) -> Vec<Zone>;

    /// The next packet for ovs-vswitchd for which there is room. Ports have turns, and wait for no other
    /// port's room.
    fn next_upcall(&mut self, has_room: &dyn Fn(&Upcall) -> bool) -> Option<Upcall>;
}
