//! Messages between a controller, such as the control process, and the data plane.
//!
//! There may be several controllers, each with a channel of its own. A controller's messages are about its
//! own ports, switches and flows: those of others do not exist for it. It numbers its ports within the range
//! of [`ControllerId::port`](flow::ControllerId::port); numbers of other controllers are refused with EPERM,
//! in flows too.
//!
//! Requests carry a serial number that the answer repeats; requests are executed in order. Answers come in
//! the same order, except for those with statistics of flows that have ended, which may come later. Lists of
//! ports and counters come in several messages of which all but the last have `more` set; lists of flows are
//! requested page by page. Events come without a request.

use crate::error::RequestError;
use crate::p4::{P4Answer, P4Attachment, P4Request};
use crate::port_counts::PortCounts;
use crate::rules::{RuleAnswer, RuleRequest};
use crate::work::WorkReport;
use flow::{
    Action, Context, ControllerId, DropReason, Filters, Flow, FlowId, FlowKey, FlowMask, FlowStats, ListId,
    MeterSpec, MeterStats, Mirror, PortCounters, PortId, PortRates, PutMode, RateClass, Stage, SwitchId,
    Userspace,
};
use rule_list::{LogRecord, Verdict};
use serde::{Deserialize, Serialize};

/// Changes whenever a message changes; both sides come from one binary, so a mismatch means a mixed update.
pub const VERSION: u32 = 29;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToDataPlane {
    /// Repeated in the answer.
    pub serial: u32,
    /// The request itself.
    pub request: Request,
}

/// Requests of a controller to the data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one send or receive; a box would only add an allocation"
)]
pub enum Request {
    /// First message on a channel. Packets that this controller's earlier process still held are counted as
    /// lost.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Creates a port. One descriptor for [`Connection::Listener`], none for [`Connection::Attached`].
    PortAdd(PortSpec),
    /// Connects a port with [`Connection::Attached`]. One descriptor: the connected vhost-user stream. An
    /// existing connection is closed.
    PortAttach {
        /// The port.
        port: PortId,
    },
    /// Removes a port and whatever is queued for it.
    PortDel {
        /// The port.
        port: PortId,
    },
    /// Changes properties that can change without the guest noticing.
    PortSet {
        /// The port.
        port: PortId,
        /// New largest IP packet.
        mtu: u16,
        /// New rate of misses, per second.
        miss_rate: u32,
    },
    /// Changes the bandwidths of a port, which has none at first. Refused with EINVAL if one is out of range.
    PortRates {
        /// The port.
        port: PortId,
        /// The bandwidths.
        rates: PortRates,
    },
    /// Changes the classes of packets to a port; of one whose bandwidth is not bounded, there are none.
    /// Refused with EINVAL if they are not valid.
    PortClasses {
        /// The port.
        port: PortId,
        /// By ascending numbers.
        classes: Vec<RateClass>,
    },
    /// Takes a port down, or up again. Ports are up at first. While one is down, its packets and packets for
    /// it are dropped as [`DropReason::PortDisabled`]; its guest stays connected.
    PortEnable {
        /// The port.
        port: PortId,
        /// Whether it is up.
        up: bool,
    },
    /// Changes the filters of a port. Packets meet the flows or the rule list of each filter
    /// ([`Filter`](flow::Filter)).
    PortFilters {
        /// The port.
        port: PortId,
        /// The filters; lists may be those of any controller, and need not exist.
        filters: Filters,
    },
    /// Puts mirrors in the place of those that a port has. Refused with E2BIG if there are more than
    /// [`MAX_MIRRORS`](flow::MAX_MIRRORS), with EPERM if one names another controller's port, with EINVAL if
    /// one cannot be at this port.
    PortMirrors {
        /// The port whose packets are copied.
        port: PortId,
        /// The mirrors; their ports and lists need not exist.
        mirrors: Vec<Mirror>,
    },
    /// Says which P4 switches the packets of a port meet, which need not exist: as long as one is missing,
    /// the port's packets are dropped. Refused with EEXIST if another port has the number at its forwarder,
    /// with EINVAL if it has a forwarder and filters, which would not be met, and with ENOSPC if there are
    /// too many stages. Answered when all packets that come meet them.
    PortP4 {
        /// The port.
        port: PortId,
        /// In the place of those before.
        attachment: P4Attachment,
    },
    /// Has packets to a port with [`Connection::Driver`] leave by a queue of the device as far as that takes
    /// them, or no longer. One descriptor if there is a queue: a packet socket that is bound to the device
    /// and receives nothing; and a second one if packets come by a queue, too: a packet socket with a receive
    /// ring. Refused with EPERM if this data plane may not use queues, with EINVAL if the port cannot have
    /// one.
    PortQueue {
        /// The port.
        port: PortId,
        /// Bytes of the virtio-net header that the socket takes, 10 or 12; `None` without a queue.
        header_len: Option<u8>,
        /// Bytes of the virtio-net header in front of each message of the second socket.
        receives: Option<u8>,
    },
    /// Filters of a queue by which packets come are about to change. No error if there is no such queue.
    PortSteering {
        /// The port.
        port: PortId,
        /// How.
        change: Steering,
    },
    /// Sets the vCPU threads of a port's guest.
    PortThreads {
        /// The port; the built-in controller may name those of others, too.
        port: PortId,
        /// Slots of the threads in the memory of [`VmState`](crate::supervisor::ToChild::VmState).
        slots: Vec<u16>,
    },
    /// Answer: [`Answer::Ports`].
    PortList,
    /// Asks for the counters of all ports, which costs far less than [`PortList`](Self::PortList). Answer:
    /// [`Answer::Counters`].
    Counters,
    /// Answer: [`Answer::Ports`] with one.
    PortGet {
        /// The port.
        port: PortId,
    },
    /// Installs a flow. Refused with EEXIST or ENOENT where the mode does not allow it, with ENOSPC where a
    /// limit is reached, and with EPERM if it names another controller's port. It applies to packets from the
    /// answer on. Answer: [`Answer::Ended`].
    FlowPut {
        /// The flow.
        flow: Flow,
        /// How it is put beside flows that exist.
        mode: PutMode,
    },
    /// Removes a flow; no error if there is none. Answer: [`Answer::Ended`].
    FlowDel {
        /// Switch of the flow.
        switch: SwitchId,
        /// The flow.
        id: FlowId,
    },
    /// Removes all flows of a switch.
    FlowFlush {
        /// The switch.
        switch: SwitchId,
    },
    /// Answer: [`Answer::FlowStats`] with one, or none if there is no such flow.
    FlowGet {
        /// Switch of the flow.
        switch: SwitchId,
        /// The flow.
        id: FlowId,
    },
    /// Asks for a page of flows, in the order of identifiers. A controller that asks for all pages gets each
    /// flow that exists all the time exactly once; other requests are served between pages. Answer:
    /// [`Answer::Flows`] or [`Answer::FlowStats`].
    FlowList {
        /// The switch.
        switch: SwitchId,
        /// Flows with higher identifiers; all if `None`.
        after: Option<FlowId>,
        /// The detail of each entry.
        detail: Detail,
    },
    /// Makes or replaces a meter of that number, which then begins to count. Refused with EINVAL if its rate
    /// is 0, with EFBIG if there are [`MAX_METERS`](flow::MAX_METERS). Answer: [`Answer::Meter`], of the one
    /// that was replaced.
    MeterSet {
        /// The number: any, and the controller's own.
        meter: u32,
        /// The meter.
        spec: MeterSpec,
    },
    /// Answer: [`Answer::Meter`].
    MeterGet {
        /// The meter.
        meter: u32,
    },
    /// Removes a meter; no error if there is none. Flows that name it let packets pass from then on. Answer:
    /// [`Answer::Meter`].
    MeterDel {
        /// The meter.
        meter: u32,
    },
    /// Removes all meters.
    MeterFlush,
    /// About rule lists and sets. Answer: as each request says; pages as [`Answer::Rules`].
    Rules(RuleRequest),
    /// About P4 switches. Answer: as each request says; pages as [`Answer::P4`].
    P4(P4Request),
    /// Sends a packet back into the data plane, and ends its upcall if it was one. No answer.
    Execute(Execute),
    /// Ends an upcall by dropping its packet. No answer.
    Discard {
        /// The upcall.
        upcall: UpcallId,
        /// Why.
        reason: DropReason,
    },
    /// Ends an upcall about whose packet another process decides from now on: the packet may come back by
    /// [`Request::Execute`] as a packet of its own, or not. No answer.
    Taken {
        /// The upcall.
        upcall: UpcallId,
    },
    /// Runs a packet through the real tables without forwarding it. Answer: [`Answer::Trace`].
    Trace {
        /// The port the packet is to come from.
        in_port: PortId,
        /// Ethernet frame, 14 to 65,553 bytes. A packet without an Ethernet header ([`FlowKey::no_ethernet`])
        /// has one here, too, whose addresses are zero.
        #[serde(with = "serde_bytes")]
        frame: Vec<u8>,
    },
    /// Traces the effect of `actions` on a packet of `in_port`: the second half of a trace, after a miss.
    /// Answer: [`Answer::Trace`].
    TraceActions {
        /// The port the packet is to come from.
        in_port: PortId,
        /// The stage where the packet goes on.
        stage: Stage,
        /// Ethernet frame.
        #[serde(with = "serde_bytes")]
        frame: Vec<u8>,
        /// The actions.
        actions: Vec<Action>,
    },
    /// Does nothing. Answer: [`Answer::Done`], when all earlier requests have been executed.
    Barrier,
    /// Answer: [`Answer::Work`].
    Work,
    /// Starts copying a port's packets to a socket. One descriptor: a `SOCK_SEQPACKET` or `SOCK_DGRAM`
    /// socket, on which [`CapturedPacket`]s are sent without waiting. Ends when its peer is closed.
    Capture {
        /// The port.
        port: PortId,
        /// Bytes kept of each frame, at most 65,553.
        snap_length: u32,
    },
}

/// Data plane to control process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one send or receive; a box would only add an allocation"
)]
pub enum FromDataPlane {
    /// Answers the request with that serial number.
    Answer {
        /// The request's.
        serial: u32,
        /// The result.
        result: Result<Answer, RequestError>,
    },
    /// A packet without a flow, or one whose flow says so. Each is ended by exactly one `Execute`, `Discard`
    /// or `Taken`.
    Upcall(Upcall),
    /// A port changed state; or, if nothing changed, its guest sends while all its known threads sleep: it
    /// may have other threads by now.
    PortState {
        /// The port.
        port: PortId,
        /// State of the port now.
        state: PortState,
        /// As in [`PortInfo`].
        peer: Option<u32>,
        /// As in [`PortInfo`].
        shortfall: Option<String>,
    },
    /// State of another controller's port, for the built-in controller, which registers the threads of all
    /// ports' guests ([`PortThreads`](Request::PortThreads)). A port that was removed is disconnected.
    ForeignPort {
        /// The port.
        port: PortId,
        /// How it is connected.
        connection: Connection,
        /// State of the port now.
        state: PortState,
        /// As in [`PortInfo`].
        peer: Option<u32>,
    },
    /// Packets that rules of the controller's lists noted, [`MAX_RECORDS`](crate::rules::MAX_RECORDS) at
    /// most.
    RuleRecords(Vec<LogRecord>),
}

/// Results of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done; nothing to say.
    Done,
    /// To `Hello`.
    Welcome {
        /// The controller's own number.
        controller: ControllerId,
        /// Number of worker threads, for `status`.
        workers: u32,
        /// Process identifier.
        pid: u32,
    },
    /// To `PortList`.
    Ports {
        /// Some of the ports.
        ports: Vec<PortInfo>,
        /// Another answer follows.
        more: bool,
    },
    /// To `Counters`.
    Counters {
        /// Some of the ports, with what they have counted since they were created.
        ports: PortCounts,
        /// Another answer follows.
        more: bool,
    },
    /// To `FlowPut` and `FlowDel`: the flows that ended, with their statistics. The answer comes at once if
    /// there are none, otherwise when all forwarding threads have flushed their counts for these flows.
    Ended {
        /// At most two: one with the same identifier, and one for the same packets.
        flows: Vec<EndedFlow>,
        /// False if a thread did not flush its counts for seconds: these are missing.
        complete: bool,
    },
    /// To `FlowList` with [`Detail::Full`].
    Flows {
        /// A page.
        flows: Vec<(Flow, FlowStats)>,
        /// The ways of those whose packets come from a veth pair.
        ways: Vec<(FlowId, Way)>,
        /// There are more, after the last of these.
        more: bool,
    },
    /// To `FlowList` with [`Detail::Terse`].
    FlowStats {
        /// A page.
        flows: Vec<(FlowId, FlowStats)>,
        /// There are more, after the last of these.
        more: bool,
    },
    /// To `MeterSet`, `MeterGet` and `MeterDel`: the meter's statistics, if there is or was one.
    Meter(Option<MeterStats>),
    /// To `Rules`, where a page was asked for.
    Rules(RuleAnswer),
    /// To `P4`, where a page was asked for.
    P4(P4Answer),
    /// To `Trace` and `TraceActions`.
    Trace(Vec<TraceStep>),
    /// To `Work`.
    Work(WorkReport),
}

/// How much of a flow is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// Identifier and statistics.
    Terse,
    /// All.
    Full,
}

/// A flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedFlow {
    /// Identifier of the flow.
    pub id: FlowId,
    /// Last statistics of the flow.
    pub stats: FlowStats,
}

/// Specification of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Number of the port.
    pub port: PortId,
    /// The switch it belongs to.
    pub switch: SwitchId,
    /// Name of the port, for messages.
    pub name: String,
    /// How its VMM or driver domain is reached.
    pub connection: Connection,
    /// Largest IP packet in bytes, 68 to 65,535, offered as VIRTIO_NET_F_MTU and enforced on delivery.
    pub mtu: u16,
    /// Packets per second that may go to the control process, and at most so many in one burst after a pause;
    /// further ones are dropped as [`DropReason::MissRate`].
    pub miss_rate: u32,
    /// MAC address offered through the vhost-user configuration space, if the VMM asks for it.
    pub mac: Option<[u8; 6]>,
    /// Virtio feature bits never to offer.
    pub masked_features: u64,
    /// The port's filters, from its first packet on.
    pub filters: Filters,
    /// The port's mirrors, from its first packet on.
    pub mirrors: Vec<Mirror>,
    /// P4 switches that the port's packets meet, from the first one on.
    pub p4: P4Attachment,
}

/// Which side connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Connection {
    /// The data plane accepts on a listening socket, one connection at a time, again after each ends.
    Listener,
    /// Connected streams arrive by `PortAttach`.
    Attached,
    /// Attached connections from our own driver domain, whose descriptors need no gate.
    Driver,
    /// As `Driver`, for a veth pair: packets between two such ports may stay in the kernel.
    Veth,
}

/// Life of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortState {
    /// No VMM or driver domain is connected.
    Disconnected,
    /// A VMM is connected, its driver is not running.
    Connected,
    /// The driver runs both rings; packets flow.
    Running,
    /// The guest broke a rule of the protocol or of its rings; waiting for it to reset or reconnect. The text
    /// is for users.
    Broken(String),
}

/// State of a port's guest: that of its most active thread, in the order running, runnable, blocked. The core
/// is the one on which that thread runs or ran last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestState {
    /// The guest runs on this core.
    Running(u32),
    /// The guest is ready to run on this core.
    Runnable(u32),
    /// The guest is blocked, and ran on this core last.
    Blocked(u32),
    /// Not known.
    #[default]
    Unknown,
}

/// A port as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// As given.
    pub spec: PortSpec,
    /// Now.
    pub state: PortState,
    /// Process that is connected or, where the data plane was given a connection, the process that listened
    /// there. `None` while not connected, and for a process in a PID name space that cannot be seen from
    /// here.
    pub peer: Option<u32>,
    /// What its VMM wants and the port does not have, and what to do, for users. Stays when the VMM has hung
    /// up.
    pub shortfall: Option<String>,
    /// State of its guest.
    pub guest: GuestState,
    /// Virtio feature bits the driver accepted; 0 while not connected.
    pub features: u64,
    /// Since the port was created.
    pub counters: PortCounters,
    /// Work for it that its front end makes costly.
    pub costly: Costly,
    /// Of a veth pair: what the kernel forwards.
    pub kernel_path: Option<KernelPathState>,
    /// Of an uplink with a queue of its device: what has left by it.
    pub device_queue: Option<DeviceQueueState>,
}

/// How the filters of a queue are about to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Steering {
    /// One is programmed after the answer: packets wait in the queue until the forwarder's ring has this
    /// mark, as those before them are there.
    Arm(u16),
    /// One is removed: for a while, packets in the queue go before those in the forwarder's ring.
    Leave,
}

/// What has come by a queue of a port's device, without a forwarder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalsState {
    /// Packets that came by it.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames that could not be used: too long, or cut.
    pub unusable: u64,
    /// Times packets in it had to wait for the forwarder's, since a filter was programmed.
    pub armed: u64,
    /// Of these, times that the forwarder did not mark its ring in time: packets may have been overtaken.
    pub overdue: u64,
    /// Times a filter was removed.
    pub left: u64,
    /// The longest wait for the forwarder, in microseconds.
    pub longest_wait_us: u64,
}

/// What has left by a queue of a port's device, without a forwarder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceQueueState {
    /// Why packets go through the forwarder now, for users; `None` if they do not.
    pub obstacle: Option<String>,
    /// Packets that left by it.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// System calls that sent them.
    pub calls: u64,
    /// Times packets began to take it.
    pub armed: u64,
    /// Times packets went through the forwarder again since there was no room.
    pub full: u64,
    /// Times they did so for another reason.
    pub left: u64,
    /// Times the forwarder did not send in time what it had, so that packets went on through it.
    pub overdue: u64,
    /// The longest wait for the forwarder, in microseconds.
    pub longest_wait_us: u64,
    /// What has come by a queue; `None` if nothing can.
    pub arrivals: Option<ArrivalsState>,
}

/// The packets from a port that the kernel forwards by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPathState {
    /// Kinds of packets that it forwards.
    pub flows: u32,
    /// Kinds that it could forward, but does not now.
    pub waiting: u32,
    /// Why it forwards none, for users.
    pub obstacle: Option<String>,
    /// The longest that a change of how the port's packets go has waited for programs in the kernel.
    pub longest_wait_ns: u64,
}

/// By which way packets from a veth pair go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// The kernel forwards them by itself.
    Kernel,
    /// Through the data plane, for this reason, for users.
    DataPlane(String),
}

/// Work for a port that is done by threads of its own or seldom, since the port's front end makes it costly.
/// Times are in microseconds of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costly {
    /// The last call of its driver, if calls are.
    pub call_us: Option<u64>,
    /// To begin or end receiving its kicks last, if that is not done now.
    pub kick_us: Option<u64>,
}

/// Identifies one upcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UpcallId {
    /// The port the packet came from.
    pub port: PortId,
    /// Counts up per port.
    pub serial: u64,
}

/// A packet for the control process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upcall {
    /// Name.
    pub id: UpcallId,
    /// The packet's switch.
    pub switch: SwitchId,
    /// Why.
    pub cause: UpcallCause,
    /// The packet's key, as it is now.
    pub key: FlowKey,
    /// Metadata beside the key, if the packet has any.
    pub context: Option<Box<Context>>,
    /// The packet.
    pub packet: Packet,
}

/// Why there was an upcall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpcallCause {
    /// No flow of the stage matched.
    Miss {
        /// The stage: a filter, or forwarding.
        stage: Stage,
    },
    /// [`Action::Userspace`] with this.
    Action(Userspace),
}

/// A packet on its way between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// The virtio-net header as in memory, little endian (VIRTIO 1.2, 5.1.6); `num_buffers` is meaningless.
    pub vnet_header: [u8; 12],
    /// Ethernet frame, 14 to 65,553 bytes.
    #[serde(with = "serde_bytes")]
    pub frame: Vec<u8>,
}

/// A packet to process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execute {
    /// The upcall this ends, if any.
    pub upcall: Option<UpcallId>,
    /// The port the packet counts as coming from.
    pub in_port: PortId,
    /// The stage where the packet goes on: `actions` are those of a flow there, so [`Action::Continue`] in a
    /// filter leads to the next stage.
    pub stage: Stage,
    /// Of its key: the recirculation id with which it came up, or 0.
    pub recirc_id: u32,
    /// Of its key: the hash with which it came up, or 0.
    pub dp_hash: u32,
    /// Of its key: the frame's Ethernet header is not the packet's, only its Ethernet type is.
    pub no_ethernet: bool,
    /// What to do. An empty list drops the packet as [`DropReason::NoAction`].
    pub actions: Vec<Action>,
    /// The packet.
    pub packet: Packet,
}

/// One step of a traced packet. Microflow caches are left out: each worker has its own, and they contain only
/// results of the megaflow table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceStep {
    /// The header snapshot was parsed.
    Parsed(FlowKey),
    /// One subtable of the megaflow table was searched.
    Subtable {
        /// Mask of the subtable.
        mask: FlowMask,
        /// Whether a flow matched.
        hit: bool,
    },
    /// A flow was found.
    Matched(Flow),
    /// A rule list of a filter was searched.
    Rule {
        /// The filter.
        stage: Stage,
        /// The list, as the filter names it.
        list: ListId,
        /// What was found.
        found: FoundRule,
    },
    /// No flow: the packet would go to the control process.
    Miss {
        /// The stage without a flow for it.
        stage: Stage,
        /// The packet's key there.
        key: FlowKey,
    },
    /// An action was applied.
    Action(Action),
    /// A copy would be delivered to this port.
    Delivered(PortId),
    /// The packet, or this copy, would be dropped.
    Dropped {
        /// The receiver, where the drop is on its side.
        port: Option<PortId>,
        /// Why.
        reason: DropReason,
    },
    /// By which way such packets go, if they come from a veth pair.
    Way(Way),
}

/// What a rule list says about a traced packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundRule {
    /// The first rule that matches.
    Rule {
        /// Number of the rule.
        number: u32,
        /// What happens to the packet.
        verdict: Verdict,
    },
    /// A rule on trial, which matches before the one that decides.
    Trial {
        /// Number of the rule.
        number: u32,
        /// What would happen to the packet.
        verdict: Verdict,
    },
    /// No rule matches.
    Default(Verdict),
    /// There is no such list.
    NoList,
}

/// A packet seen at a captured port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPacket {
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// Direction.
    pub direction: CaptureDirection,
    /// Set when this packet was dropped.
    pub dropped: Option<DropReason>,
    /// Length of the whole frame in bytes.
    pub length: u32,
    /// Packets lost before this one because the reader was slow.
    pub lost: u64,
    /// Virtio-net header as the sender gave it.
    pub vnet_header: [u8; 12],
    /// The first `snap_length` bytes of the frame.
    #[serde(with = "serde_bytes")]
    pub frame: Vec<u8>,
}

/// Seen from the port's guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CaptureDirection {
    /// The guest sent it.
    FromGuest,
    /// The guest received it (or would have).
    ToGuest,
}
