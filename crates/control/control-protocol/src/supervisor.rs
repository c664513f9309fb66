//! From the supervisor to its children.

use crate::forwarder::OpenInterface;
use flow::{ControllerId, PortId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The descriptor under which a child finds its channel to the supervisor.
pub const CHANNEL_FD: i32 = 3;

/// A supervised process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Maps guest memory and forwards.
    DataPlane,
    /// Decides about packets, and serves users.
    Control,
    /// The broker: opens, configures and watches TAPs and network devices.
    Driver,
    /// Answers Open vSwitch's control plane, where that is configured.
    Ovs,
    /// Serves metrics, where that is configured.
    View,
    /// Forwards for interfaces that the broker has opened. Started when the broker asks for it.
    Forwarder(ForwarderId),
    /// Serves clients of P4Runtime, where that is configured.
    P4Runtime,
}

/// Number of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ForwarderId(pub u8);

impl ForwarderId {
    /// The forwarder of all TAPs.
    pub const TAPS: ForwarderId = ForwarderId(0);
    /// The forwarder of network devices for which there is no one of their own.
    pub const SHARED: ForwarderId = ForwarderId(33);
    /// Numbers are below this one.
    pub const LIMIT: u8 = 34;

    /// Forwarders that serve one network device each.
    pub fn of_devices() -> impl Iterator<Item = ForwarderId> {
        (Self::TAPS.0 + 1..Self::SHARED.0).map(ForwarderId)
    }
}

impl Role {
    /// The roles that there always are, in the order they are started.
    pub const ALL: [Role; 6] = [
        Role::DataPlane,
        Role::Driver,
        Role::Control,
        Role::Ovs,
        Role::View,
        Role::P4Runtime,
    ];

    /// Name of its kind, and the hidden subcommand.
    pub const fn name(self) -> &'static str {
        match self {
            Role::DataPlane => "data-plane",
            Role::Control => "control",
            Role::Driver => "driver",
            Role::Ovs => "ovs",
            Role::View => "view",
            Role::Forwarder(_) => "forwarder",
            Role::P4Runtime => "p4runtime",
        }
    }

    /// A number that no other role has.
    pub fn number(self) -> u32 {
        match self {
            Role::DataPlane => 0,
            Role::Control => 1,
            Role::Driver => 2,
            Role::Ovs => 3,
            Role::Forwarder(id) => 4 + u32::from(id.0),
            Role::View => 4 + u32::from(ForwarderId::LIMIT),
            Role::P4Runtime => 4 + u32::from(u8::MAX) + 1,
        }
    }
}

/// As shown to users.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Forwarder(id) => write!(f, "{}-{}", self.name(), id.0),
            _ => f.write_str(self.name()),
        }
    }
}

/// Messages of the supervisor to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToChild {
    /// A fresh channel to the named peer is attached (one descriptor); it replaces any earlier one. For
    /// controllers, the broker and forwarders; and between control process and `view` or `p4runtime`, where
    /// it is a stream of requests of users.
    Peer(Role),
    /// A fresh channel to a controller is attached (one descriptor); it replaces any earlier one to the same.
    /// For the processes that serve controllers: data plane and driver domain.
    Controller(ControllerId),
    /// Status of all processes, for the control process to show. Sent at each change.
    Processes(Vec<ProcessStatus>),
    /// Whether the states of cores and vCPU threads are known. For data plane, control process and driver
    /// domain, before any channel between them.
    VmState(VmStates),
    /// The configuration of placement (data plane, before anything else).
    Placement(placement_config::Config),
    /// The class in which the kernel lets forwarding threads be scheduled: for use (data plane, driver
    /// domain), or to be shown to users (control process). Before anything else.
    Priority(PriorityStatus),
    /// The cores that the data plane may keep from halting, and the descriptors of their files, in the same
    /// order (data plane, before [`VmState`](ToChild::VmState)). Several messages, since each has few
    /// descriptors.
    Constraints(Vec<u16>),
    /// The number of those cores, to be shown to users (control process). Before anything else.
    IdlePoll(IdlePollStatus),
    /// The program that hides devices from the host's stack (one descriptor), or why there is none, for users
    /// (broker). Before anything else.
    HidingProgram(Result<(), String>),
    /// The program that hands frames to AF_XDP sockets, and its map of sockets (two descriptors), or why
    /// there is none, for users (broker). Before anything else.
    SteeringProgram(Result<(), String>),
    /// The program that divides frames between an uplink and its queue, and its table (two descriptors), or
    /// why there is none, for users (broker). Before anything else.
    FanOut(Result<(), String>),
    /// What veth pairs take, or why there is none, for users (broker). Three descriptors: the program at
    /// their ends, the network namespace for these, and the host's. Before anything else.
    VethMeans(Result<(), String>),
    /// The table of the kernel path (one descriptor), if the kernel has one (data plane, before
    /// [`VmState`](ToChild::VmState)).
    KernelPath,
    /// An interface that the broker has had kept, with the descriptors of [`FromChild::Keep`] (broker; see
    /// [`FromChild::Recall`]).
    Kept(OpenInterface),
    /// The answer to [`FromChild::Recall`] is complete up to this port; `None`: there are no further ones.
    Recalled(Option<PortId>),
    /// Re-read the configuration (control process).
    Reload,
    /// Answer with [`FromChild::Pong`] and the same number, as soon as the main thread comes to it.
    Ping(u32),
    /// Finish in an orderly way and exit 0.
    Shutdown,
}

/// Where the states of cores and vCPU threads are published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmStates {
    /// In the memory behind the descriptor attached (`vm-state`).
    Published,
    /// Nowhere; the reason is for users.
    Unavailable(String),
}

/// The scheduling class that the kernel granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityStatus {
    /// Never `Auto`.
    pub class: placement_config::Priority,
    /// Why a better class was refused, for users; empty if none was.
    pub refused: String,
}

/// The cores that the data plane may keep from halting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdlePollStatus {
    /// How many.
    pub cores: u32,
    /// Why no others, for users; empty if there are none.
    pub refused: String,
}

/// One supervised process as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Which one.
    pub role: Role,
    /// Process identifier; `None` while waiting to be restarted.
    pub pid: Option<u32>,
    /// How often it was started again after ending unasked.
    pub restarts: u32,
    /// How it ended last, for users ("killed by signal 9").
    pub last_exit: Option<String>,
    /// Parts of its isolation that failed, and why; `None` until it has reported.
    pub missing: Option<Vec<String>>,
    /// Why it does not work although it runs, for users ("stopped by signal 19").
    pub trouble: Option<String>,
    /// What a forwarder serves, and how, for users.
    pub serves: Option<String>,
    /// When it was started, in milliseconds since 1970-01-01 UTC; `None` while waiting to be restarted.
    pub started_ms: Option<u64>,
}

/// Messages of a process to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromChild {
    /// The child has given up the rights that it does not need, except for these: sentences without a full
    /// stop, for users. Sent once, before anything else reaches the process.
    Isolated(Vec<String>),
    /// Answer to [`ToChild::Ping`].
    Pong(u32),
    /// The process of that role has owed an answer for [`ANSWER_MS`]. The supervisor asks it itself, and
    /// replaces it if it hangs.
    Owes(Role),
    /// A thread of the sender makes no progress.
    Stuck(StuckThread),
    /// The process of that role violates the protocol and is to be ended and started again. Only controllers
    /// may send this: the control process about all others, `ovs` about data plane and driver domain, the
    /// broker about forwarders.
    Replace(Role),
    /// The forwarders that there are to be, and what each serves, for users (broker). Others are ended.
    Forwarders(Vec<(ForwarderId, String)>),
    /// Keep this interface for the next broker, in the place of what was kept for its port. Descriptors: its
    /// device if it is open, and the link of the program that hides it from the host if there is one.
    Keep(OpenInterface),
    /// What was kept for this port is of no use any more (broker).
    Forget(PortId),
    /// Hand out what was kept, from the first port behind this one on (broker). The answer is some
    /// [`ToChild::Kept`] and one [`ToChild::Recalled`].
    Recall(Option<PortId>),
}

/// Largest [`OpenInterface`] that is kept, in bytes.
pub const MAX_KEPT: usize = 4096;

/// Milliseconds after which an answer that a process owes is worth a look at the process.
pub const ANSWER_MS: u64 = 250;

/// A thread that has work and does not go on. Sent again as long as that is so, and useless a moment later:
/// the supervisor may read it when the thread has long gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckThread {
    /// Number of the thread.
    pub tid: u32,
    /// Progress of the thread so far; another number means that it went on in between.
    pub beats: u32,
    /// When this was so, in milliseconds of `CLOCK_MONOTONIC`.
    pub at_ms: u64,
}
