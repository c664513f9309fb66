//! Replies to users. Everything is plain data with names instead of numbers, fit to be printed as JSON; the
//! CLI formats tables.

use crate::error_report::ErrorReport;
use crate::event::Events;
use crate::request::{Hex, P4Place};
use crate::snapshot::Snapshot;
use configuration::{Config, P4StageConfig, PortConfig, PortKind, SwitchConfig};
use control_protocol::work::WorkReport;
use flow::{FlowKey, FlowMask};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The answer to a request: one line of JSON, `{"ok":...}` or `{"error":{"error":"...",...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The request was executed.
    Ok(Reply),
    /// The request was refused, and nothing has changed.
    Error(ErrorReport),
}

impl Response {
    /// Reads an answer.
    ///
    /// # Errors
    /// When `line` is none.
    pub fn from_json(line: &[u8]) -> Result<Response, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// The answer without the end of its line.
    ///
    /// # Errors
    /// When a path in it is no Unicode text.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

/// What a request yields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Nothing but success.
    Done,
    /// To `version`.
    Version(VersionInfo),
    /// To `status`.
    Status(Status),
    /// To `switch-list`.
    Switches(Vec<SwitchInfo>),
    /// To `port-list` and `port-show`.
    Ports(Vec<PortInfo>),
    /// To `mac-list`.
    Macs(Vec<MacInfo>),
    /// To `flow-list`.
    Flows(Vec<FlowInfo>),
    /// To `stats`.
    Stats(Stats),
    /// To `placement`.
    Placement(WorkReport),
    /// To `trace`.
    Trace(TraceReport),
    /// To `policy-list`.
    Policies(Vec<PolicyInfo>),
    /// To `policy-show`.
    Policy(PolicyRules),
    /// To `policy-judged`.
    PolicyJudged(PolicyJudged),
    /// To `policy-log`.
    PolicyLog(PolicyLog),
    /// To `p4-list`.
    P4(Vec<P4Switch>),
    /// To `p4-devices`.
    P4Devices(Vec<P4Device>),
    /// To `p4-program`.
    P4Program(P4Piece),
    /// To `p4-read`.
    P4Cells(P4Cells),
    /// To `reload`, `reload-plan`, `apply` and `apply-plan`.
    Reloaded(ReloadSummary),
    /// To `unconfirmed`; none if no configuration waits to be confirmed.
    Unconfirmed(Option<Unconfirmed>),
    /// To `config-show`.
    Config(Box<Config>),
    /// To `events`.
    Events(Events),
    /// To `snapshot`.
    Snapshot(Box<Snapshot>),
}

/// A configuration that is in force, and waits to be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Unconfirmed {
    /// Differs from that of every other one.
    pub number: u64,
    /// Name of the file.
    pub file: String,
    /// What was in the file.
    pub text: String,
    /// Seconds after which the configuration before returns.
    pub seconds_left: u64,
}

/// A device of P4Runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct P4Device {
    /// Number by which clients know it.
    pub id: u64,
    /// Name of the P4 switch.
    pub name: String,
    /// Tag of its program, if it has one.
    pub tag: Option<u64>,
}

/// Bytes of a P4 switch's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct P4Piece {
    /// Tag of the program.
    pub tag: u64,
    /// Bytes of all of it.
    pub length: usize,
    /// Bytes from the offset on.
    pub bytes: Hex,
}

/// Cells of an array of a P4 switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct P4Cells {
    /// Words of the cells, one behind the other.
    pub words: Vec<u64>,
    /// Words of one cell.
    pub stride: u32,
    /// Whether there are further cells.
    pub more: bool,
}

/// A P4 program in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct P4Switch {
    /// Name of the P4 switch.
    pub name: String,
    /// Ports that are bound to it, in the order of the program's numbers.
    pub ports: Vec<P4Place>,
    /// Where it is a stage, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<P4StageConfig>,
    /// Whether the data plane has the program: `in force`, `on its way`, or why it was refused.
    pub state: String,
    /// Operations of one pass at most, look-ups among entries included.
    pub operations: u64,
    /// Bytes of memory of tables and scratch memory.
    pub memory: u64,
    /// Packets received.
    pub packets: u64,
    /// Packets among them that did not run, since the verdict about their kind was kept.
    pub repeated: u64,
    /// Packets that left, copies among them.
    pub outputs: u64,
    /// Parsers that ended with an error.
    pub parser_errors: u64,
    /// Digests that the program has sent.
    pub digests: u64,
    /// Time that forwarding threads took for packets of its ports, in milliseconds.
    pub busy_ms: u64,
    /// Turns of its ports that were passed on to others, as it had more than its share of time.
    pub passed_on: u64,
    /// What went to clients of P4Runtime and came from them.
    pub clients: P4Clients,
    /// Packets and copies that the program or its limits ended, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// What a P4 switch and clients of P4Runtime sent each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct P4Clients {
    /// Packets to clients.
    pub packets_in: u64,
    /// Packets to clients that were dropped: too many in a second, or nobody reads them.
    pub packets_in_lost: u64,
    /// Packets of clients that ran.
    pub packets_out: u64,
    /// Packets of clients that did not run: no frame, too many under way, or no port to leave by.
    pub packets_out_lost: u64,
    /// Packets of clients, and copies of them, that the program or a receiver dropped.
    pub packets_out_dropped: u64,
    /// Digests that reached no client.
    pub digests_lost: u64,
}

/// Versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct VersionInfo {
    /// Of the running control process.
    pub version: String,
    /// Of the messages between control process and data plane.
    pub data_plane_protocol: u32,
}

/// State of the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Of the running control process.
    pub version: String,
    /// Seconds since the control process started.
    pub uptime_seconds: u64,
    /// Run directory.
    pub run_dir: PathBuf,
    /// Configuration file, if any.
    pub config: Option<PathBuf>,
    /// The supervised processes.
    pub processes: Vec<Process>,
    /// `None` while not connected.
    pub data_plane: Option<DataPlaneStatus>,
    /// Whether the states of cores and guests are known.
    pub vm_state: Box<VmStateStatus>,
    /// How forwarding threads are scheduled; `None` while not known.
    #[serde(default)]
    pub priority: Option<Box<PriorityStatus>>,
    /// The cores that may be kept from halting; `None` while not known.
    #[serde(default)]
    pub idle_poll: Option<Box<IdlePollStatus>>,
    /// Whether a driver domain is connected.
    pub driver_connected: bool,
    /// Number of switches.
    pub switches: usize,
    /// Number of ports.
    pub ports: usize,
    /// Of those, with a running guest driver.
    pub ports_running: usize,
    /// MAC addresses known.
    pub macs: usize,
    /// Flows installed.
    pub flows: usize,
    /// Conditions that need attention, one sentence each.
    pub warnings: Vec<String>,
}

/// What the supervisor knows by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Supervision {
    /// Of the running supervisor.
    pub version: String,
    /// The supervisor's own process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// The supervised processes.
    pub processes: Vec<Process>,
}

/// A supervised process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Process {
    /// `data-plane`, `control`, `driver`, `ovs`, or `forwarder-` with a number.
    pub role: String,
    /// `None` while waiting to be restarted.
    pub pid: Option<u32>,
    /// How often it was started again after ending unasked.
    pub restarts: u32,
    /// How it ended last ("killed by signal 9").
    pub last_exit: Option<String>,
    /// Parts of its isolation that failed, and why; `None` until it has reported.
    #[serde(default)]
    pub missing: Option<Vec<String>>,
    /// Why it does not work although it runs.
    #[serde(default)]
    pub trouble: Option<String>,
    /// What a forwarder serves, and how.
    #[serde(default)]
    pub serves: Option<String>,
    /// When it was started, in milliseconds since 1970-01-01 UTC.
    #[serde(default)]
    pub started_ms: Option<u64>,
}

impl Process {
    /// What is wrong with it at the moment, if anything is.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let role = &self.role;
        match (&self.trouble, self.pid) {
            (Some(trouble), _) => Some(format!("{role} {trouble}")),
            (None, None) => {
                let end = self.last_exit.as_deref().unwrap_or("has ended");
                Some(format!("{role} {end}, and is being started again"))
            }
            (None, Some(_)) => None,
        }
    }
}

impl From<&control_protocol::supervisor::ProcessStatus> for Process {
    fn from(status: &control_protocol::supervisor::ProcessStatus) -> Self {
        Process {
            role: status.role.to_string(),
            pid: status.pid,
            restarts: status.restarts,
            last_exit: status.last_exit.clone(),
            missing: status.missing.clone(),
            trouble: status.trouble.clone(),
            serves: status.serves.clone(),
            started_ms: status.started_ms,
        }
    }
}

/// Whether eBPF programs publish the states of cores and vCPUs. Otherwise there are only hints in the rings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct VmStateStatus {
    /// Whether the eBPF programs publish states.
    pub published: bool,
    /// Why they do not.
    pub reason: Option<String>,
}

/// A reason, if one was given.
fn said(reason: &str) -> Option<String> {
    Some(reason.to_owned()).filter(|reason| !reason.is_empty())
}

/// The scheduling class of forwarding threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PriorityStatus {
    /// As in the configuration.
    pub class: placement_config::Priority,
    /// Why a better one was refused.
    pub refused: Option<String>,
}

impl From<&control_protocol::supervisor::PriorityStatus> for PriorityStatus {
    fn from(status: &control_protocol::supervisor::PriorityStatus) -> Self {
        PriorityStatus {
            class: status.class,
            refused: said(&status.refused),
        }
    }
}

/// The cores that the data plane may keep from halting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IdlePollStatus {
    /// How many.
    pub cores: u32,
    /// Why no others.
    pub refused: Option<String>,
}

impl From<&control_protocol::supervisor::IdlePollStatus> for IdlePollStatus {
    fn from(status: &control_protocol::supervisor::IdlePollStatus) -> Self {
        IdlePollStatus {
            cores: status.cores,
            refused: said(&status.refused),
        }
    }
}

/// The data plane as the control process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DataPlaneStatus {
    /// Process identifier.
    pub pid: u32,
    /// Worker threads.
    pub workers: u32,
}

/// Where an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The configuration file.
    Config,
    /// A request.
    Runtime,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SwitchInfo {
    /// Where it comes from.
    pub origin: Origin,
    /// As configured; `port` is left empty.
    pub config: SwitchConfig,
    /// Number of ports, those of host and uplink included.
    pub ports: usize,
    /// MAC addresses known.
    pub macs: usize,
    /// Flows installed.
    pub flows: usize,
    /// Times that a MAC address was seen on one port more than it was known to be on, since the control
    /// process started.
    pub mac_moves: u64,
    /// MAC addresses that several ports use now, where the configuration does not say whose they are.
    pub contested_macs: usize,
    /// Flows that were adapted a little later, because a port had caused many such changes already.
    pub deferred_flows: u64,
}

/// A port. The ports of host and uplink of switch `sw0` are called `sw0:host` and `sw0:uplink`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortInfo {
    /// Name of the port.
    pub name: String,
    /// Name of the port's switch.
    pub switch: String,
    /// Number in the data plane.
    pub number: u32,
    /// Where it comes from.
    pub origin: Origin,
    /// The kind of its connection.
    #[serde(rename = "type")]
    pub kind: PortKind,
    /// As configured; `None` for the ports of host and uplink.
    pub config: Option<PortConfig>,
    /// vhost-user: the socket in use.
    pub socket: Option<PathBuf>,
    /// TAP or uplink: the interface in use.
    pub interface: Option<String>,
    /// TAP: its network namespace, if not the host's.
    pub netns: Option<String>,
    /// TAP or uplink: the addresses that the interface had when it was opened or changed, with prefix
    /// lengths, but for those of the link alone. Those of the host's interfaces are always those of now.
    pub addresses: Vec<String>,
    /// TAP or uplink: the hardware address, as the addresses. vhost-user: the one that is offered, if any.
    pub mac: Option<String>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// VLANs, as text.
    pub vlan: String,
    /// `disconnected`, `connected`, `running`, `broken`, or `unknown` while there is no data plane.
    pub state: String,
    /// Why, when it is broken or cannot be connected.
    pub problem: Option<String>,
    /// Virtio feature bits the driver accepted; 0 while not connected.
    pub features: u64,
    /// Threads of its VMM that run the guest, or the one that serves its interface, as far as they are known.
    pub vcpus: Vec<u32>,
    /// State of the guest's threads: `running`, `runnable` or `blocked`, each `on core N`. `None` when it is
    /// not known.
    pub guest: Option<String>,
    /// Work for it that its VMM makes costly, and that is done seldom or by other threads than those that
    /// forward packets.
    #[serde(default)]
    pub costly: Vec<String>,
    /// Rule lists that judge its packets, with their direction and state, and mirrors that copy them: `to:
    /// groups web (in force)`, `mirror ids to watch: from, to`.
    #[serde(default)]
    pub policies: Vec<String>,
    /// MAC addresses learned or static on it.
    pub macs: usize,
    /// Number of these addresses that other ports use as well.
    pub contested_macs: usize,
    /// Uplink: its device. `None` while it is not open, or the driver domain does not answer.
    #[serde(default)]
    pub device: Option<DeviceInfo>,
    /// veth: what the kernel forwards by itself.
    #[serde(default)]
    pub kernel_path: Option<KernelPathInfo>,
    /// Uplink with `uplink-fast-path`: what leaves by a queue of its device.
    #[serde(default)]
    pub device_queue: Option<DeviceQueueInfo>,
}

/// Packets that leave by a queue of an uplink's device, without its forwarder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceQueueInfo {
    /// Why packets go through the forwarder now; `None` if they do not.
    pub obstacle: Option<String>,
    /// Packets that left by the queue.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// System calls that sent them.
    pub calls: u64,
    /// Times packets began to take the queue.
    pub armed: u64,
    /// Times packets went through the forwarder again, since the socket or the device had no room.
    pub full: u64,
    /// Times they did so for another reason.
    pub left: u64,
    /// Times the forwarder did not send in 10 ms what it had, so that packets went on through it.
    pub overdue: u64,
    /// Longest time for which packets waited for that, in microseconds.
    pub longest_wait_us: u64,
    /// Packets that come by a queue.
    pub arrivals: ArrivalsInfo,
}

/// Packets that come by a queue of a device, past its forwarder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ArrivalsInfo {
    /// Why none does; `None` if those do for which there are filters.
    pub obstacle: Option<String>,
    /// Stations whose packets do.
    pub filters: u32,
    /// Packets that came by the queue.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames that could not be used.
    pub unusable: u64,
    /// Filters that were programmed.
    pub programmed: u64,
    /// Filters that were given up for a station with more packets.
    pub evicted: u64,
    /// Filters that were removed otherwise: few packets came, or the station went away.
    pub removed: u64,
    /// Filters that could not be programmed.
    pub refused: u64,
    /// Times that packets in the queue had to wait for the forwarder's.
    pub waits: u64,
    /// Of these, times that the forwarder took longer than 10 ms, so that packets may have been overtaken.
    pub overdue: u64,
    /// Longest such wait in microseconds.
    pub longest_wait_us: u64,
}

/// Packets from a veth pair that the kernel forwards by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KernelPathInfo {
    /// Kinds of packets that it forwards: pairs of source and destination address.
    pub flows: u32,
    /// Kinds that it could forward, but does not now.
    pub waiting: u32,
    /// Why it forwards none.
    pub obstacle: Option<String>,
    /// Longest time that a change of how the port's packets go has waited for the kernel, in nanoseconds.
    #[serde(default)]
    pub longest_wait_ns: u64,
}

/// A device of the host that is an uplink, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceInfo {
    /// Whether the other end of its cable is there.
    pub carrier: bool,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Speed in Mb/s; `None` if the device does not say.
    pub speed: Option<u32>,
    /// What has passed through it, and what the kernel has dropped.
    pub counters: DeviceCounters,
}

macro_rules! device_counters {
    ($($name:ident),*) => {
        /// Counters of a device, see [`control_protocol::driver::DeviceCounters`] for their exact meaning.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case", default)]
        #[expect(missing_docs, reason = "the contract has them")]
        pub struct DeviceCounters {
            $(pub $name: u64,)*
        }

        impl From<&control_protocol::driver::DeviceCounters> for DeviceCounters {
            fn from(counters: &control_protocol::driver::DeviceCounters) -> Self {
                DeviceCounters { $($name: counters.$name),* }
            }
        }

        impl DeviceCounters {
            /// All of them by name, for metrics.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

device_counters!(
    received,
    received_bytes,
    transmitted,
    transmitted_bytes,
    receive_drops,
    receive_errors,
    transmit_drops,
    transmit_errors,
    ring_full
);

impl From<&control_protocol::driver::DeviceState> for DeviceInfo {
    fn from(state: &control_protocol::driver::DeviceState) -> Self {
        DeviceInfo {
            carrier: state.carrier,
            mtu: state.mtu,
            speed: state.speed,
            counters: DeviceCounters::from(&state.counters),
        }
    }
}

/// A MAC table entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MacInfo {
    /// Switch.
    pub switch: String,
    /// VLAN; 0 for untagged frames of ports without VLAN. `None` for a static address, valid in all.
    pub vlan: Option<u16>,
    /// Address, `52:54:00:00:00:01`.
    pub mac: String,
    /// Port it is on.
    pub port: String,
    /// Configured, not learned.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// Other ports use it as well; each has an entry.
    pub contested: bool,
    /// Seconds since it was last seen; `None` for a static address.
    pub age_seconds: Option<u64>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FlowInfo {
    /// Unique in its switch, in hexadecimal.
    pub id: String,
    /// Switch.
    pub switch: String,
    /// What it matches, ports by name: `in_port=vm1,eth_dst=...`.
    #[serde(rename = "match")]
    pub matches: String,
    /// What it does, ports by name.
    pub actions: Vec<String>,
    /// Packets that matched.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Milliseconds since the last match; `None` when nothing ever matched.
    pub idle_ms: Option<u64>,
    /// Of a port of type `veth`: by which way the packets go.
    #[serde(default)]
    pub way: Option<Way>,
}

/// By which way packets from a port of type `veth` go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The kernel forwards them by itself.
    KernelPath,
    /// Through the data plane, for this reason.
    DataPlane(String),
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Way::KernelPath => f.write_str("kernel path"),
            Way::DataPlane(reason) => write!(f, "data plane: {reason}"),
        }
    }
}

/// A rule list that ports have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyInfo {
    /// What the list is made of: `to: acl office, groups web`.
    pub name: String,
    /// Number in the data plane.
    pub number: u32,
    /// Number of rules.
    pub rules: usize,
    /// `allow`, `drop` or `reject`: what happens to packets that match no rule.
    pub default: String,
    /// Ports that have the list.
    pub ports: Vec<String>,
    /// `in force`, `on its way`, or why the data plane refused it.
    pub state: String,
}

/// A rule list with its rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyRules {
    /// The list.
    pub policy: PolicyInfo,
    /// Rules in the order in which they are tried; the last one is the list's default.
    pub rules: Vec<PolicyRule>,
}

/// A rule, and what it counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyRule {
    /// Number in the list; none for the default.
    pub number: Option<u32>,
    /// Where the rule comes from: `acl office rule 2`.
    pub origin: String,
    /// `allow`, `drop` or `reject`.
    pub action: String,
    /// The rule only counts.
    pub trial: bool,
    /// Packets of the rule are logged.
    pub log: bool,
    /// Conditions on packets.
    #[serde(rename = "match")]
    pub matches: String,
    /// Packets that the rule decided about.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Milliseconds since the last one; `None` when there was none.
    pub idle_ms: Option<u64>,
}

/// Kinds of packets that cached decisions of a list are about: some of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyJudged {
    /// What they are.
    pub kinds: Vec<JudgedKind>,
    /// How many are left out here.
    pub further: u32,
    /// Where to go on, if there are more.
    pub next: Option<u32>,
}

/// Packets that a list judges alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JudgedKind {
    /// The port that the packets come from.
    pub in_port: String,
    /// What they have in common.
    pub key: FlowKey,
    /// The bits of the key that they have in common.
    pub noted: FlowMask,
    /// A list saw them changed, so that the key does not say what it saw.
    pub was_changed: bool,
    /// Number of the rule that decides; none for the default.
    pub rule: Option<u32>,
    /// Where the rule comes from: `acl office rule 2`.
    pub origin: String,
    /// `allow`, `drop`, `reject` or marks.
    pub action: String,
    /// Ports that they go to, or the first ones.
    pub outputs: Vec<String>,
}

/// Packets that rules noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyLog {
    /// In the order of their numbers.
    pub records: Vec<PolicyRecord>,
    /// Whether there are records behind these.
    pub more: bool,
}

/// A packet that a rule noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyRecord {
    /// Greater than that of each earlier record.
    pub number: u64,
    /// Time of the packet in milliseconds since 1970.
    pub time_ms: u64,
    /// The rule's list.
    pub policy: String,
    /// Where the rule comes from: `acl office rule 2`.
    pub origin: String,
    /// `allow`, `drop`, `reject` or marks.
    pub action: String,
    /// The rule is on trial, so that later rules decided.
    pub trial: bool,
    /// The port whose packets the list judges.
    pub port: String,
    /// `from` or `to`: direction of the packet at that port.
    pub direction: String,
    /// The port that the packet came from.
    pub sender: String,
    /// Source address: IP with port, IP, or MAC.
    pub source: String,
    /// Destination address likewise.
    pub destination: String,
    /// All fields of the packet that are known.
    pub packet: String,
    /// Length of the frame.
    pub bytes: u32,
    /// Packets of the rule that came since its record before, and have none.
    pub skipped: u64,
}

/// Counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Stats {
    /// Per port.
    pub ports: Vec<PortStats>,
    /// Sum over those ports.
    pub total: Box<Counters>,
}

/// Counters of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortStats {
    /// Port.
    pub port: String,
    /// Name of the port's switch.
    pub switch: String,
    /// Since the data plane knows the port.
    pub counters: Counters,
}

/// Numbers of counters by the name of their reason.
type ByReason = fn(&Counters) -> &BTreeMap<String, u64>;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),*; $($(#[doc = $map_doc:literal])* $map:ident),*) => {
        /// Counters, see [`flow::PortCounters`] for their exact meaning; drops by the name of their reason.
        /// What an older version does not count is 0.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case", default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
            $($(#[doc = $map_doc])* pub $map: BTreeMap<String, u64>,)*
            /// Packets that came in and are not accounted for yet; 0 when nothing is under way.
            pub in_flight: i64,
        }

        impl From<&flow::PortCounters> for Counters {
            fn from(counters: &flow::PortCounters) -> Self {
                Counters {
                    $($name: counters.$name,)*
                    $($map: counters.$map.iter().map(|(reason, count)| (reason.name().into(), count)).collect(),)*
                    in_flight: counters.in_flight(),
                }
            }
        }

        impl Counters {
            /// All counters that are numbers: name, meaning, and value.
            pub const NUMBERS: &[(&str, &str, fn(&Counters) -> u64)] = &[
                $((stringify!($name), concat!($($doc),*), |counters| counters.$name),)*
            ];

            /// All counters by reason: name, meaning, and numbers by the name of their reason.
            pub const BY_REASON: &[(&str, &str, ByReason)] = &[
                $((stringify!($map), concat!($($map_doc),*), |counters| &counters.$map),)*
            ];

            /// Adds `other` to this.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)*
                $(for (reason, count) in &other.$map {
                    *self.$map.entry(reason.clone()).or_default() += count;
                })*
                self.in_flight += other.in_flight;
            }
        }
    };
}

counters! {
    /// Packets the guest sent.
    received,
    /// Bytes of the packets received.
    received_bytes,
    /// Packets the control process sent back into the data plane.
    injected,
    /// Additional copies made of this port's packets.
    copies,
    /// Packets from the port that reached a receiver.
    delivered,
    /// Packets from the port that went to the control process.
    upcalls,
    /// Packets written to the guest.
    transmitted,
    /// Bytes of the packets transmitted.
    transmitted_bytes,
    /// Bytes of frames copied on their way: heads when read, everything when written.
    copied_bytes,
    /// Packets this port's frames were cut into.
    segments,
    /// Notifications sent to the guest.
    calls,
    /// Of those, notifications that were left to the thread for costly ones.
    calls_apart,
    /// Notifications the guest did not want.
    calls_suppressed,
    /// Notifications from the guest.
    kicks,
    /// Times a ring's kicks were not received for a millisecond, since too many of them had led to nothing.
    kick_pauses,
    /// Times packets from or to this port began to wait for its bandwidth.
    bandwidth_waits,
    /// Packets from the port that the kernel forwarded by itself.
    kernel_path,
    /// Bytes of those.
    kernel_path_bytes,
    /// Times a kind of the port's packets was taken off the kernel path.
    kernel_path_withdrawn,
    /// Times a kind did not come on the kernel path because the port has its share there.
    kernel_path_over_share,
    /// Times a kind did not come on the kernel path because the kernel's table had no room for it.
    kernel_path_no_room,
    /// Times a kind left the kernel path for one of a port that has fewer there.
    kernel_path_displaced,
    /// Times a kind came on the kernel path without a gap between packets.
    kernel_path_without_gap;
    /// Packets from the port that were dropped, wherever that was.
    dropped,
    /// Packets the control process decided to drop.
    discarded,
    /// Packets to this port that were dropped on its side.
    egress_dropped
}

/// The steps of a traced packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TraceReport {
    /// Switch.
    pub switch: String,
    /// Port it came from.
    pub port: String,
    /// What happened, in order.
    pub steps: Vec<TraceStep>,
}

/// One step of a traced packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "step", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum TraceStep {
    /// The headers were parsed.
    Parsed {
        /// All fields that are not zero.
        key: String,
    },
    /// One subtable of the megaflow table was searched.
    Subtable {
        /// Names of the fields it compares.
        fields: Vec<String>,
        /// Whether a flow matched.
        hit: bool,
    },
    /// A flow was found.
    Matched {
        /// The flow, without counters.
        flow: FlowInfo,
    },
    /// A rule list of a filter was searched.
    Rule {
        /// The filter.
        stage: String,
        /// Name of the list.
        list: String,
        /// The rule that matched, with its origin and conditions; none for the list's default, and if
        /// there is no such list.
        rule: Option<String>,
        /// `allow`, `drop` or `reject`; none if there is no such list.
        verdict: Option<String>,
        /// The rule is on trial, so that later rules decide.
        trial: bool,
    },
    /// A P4 program forwarded the packet.
    Program {
        /// Name of the program.
        program: String,
        /// Number of the port by which the packet came.
        number: u16,
        /// What it did, as text: states of the parser, tables with keys and actions, changes, outputs.
        lines: Vec<String>,
    },
    /// No flow: the packet would go to the control process.
    Miss,
    /// The control process would make this decision.
    Decided {
        /// VLAN the packet belongs to, if it may enter.
        vlan: Option<u16>,
        /// Reasons, one sentence each.
        because: Vec<String>,
        /// What the flow would match.
        #[serde(rename = "match")]
        matches: String,
        /// What it would do.
        actions: Vec<String>,
    },
    /// An action was applied.
    Action {
        /// The action.
        action: String,
    },
    /// A copy would be delivered.
    Delivered {
        /// To this port.
        port: String,
    },
    /// The packet, or this copy, would be dropped.
    Dropped {
        /// The receiver, where the drop is on its side.
        port: Option<String>,
        /// Name of the reason.
        reason: String,
        /// The reason in a sentence.
        description: String,
    },
    /// By which way such packets go, if they come from a port of type `veth`.
    Way {
        /// The way.
        way: Way,
    },
}

/// What a reload changed, or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ReloadSummary {
    /// The changes made, in order, as text. Empty: the file described the present state.
    pub changes: Vec<String>,
    /// The ports among them that cannot change in place.
    pub replaced: Vec<Replacement>,
    /// The ports among them, removed or replaced, to which a virtual machine is connected.
    #[serde(default)]
    pub in_use: Vec<PortInUse>,
    /// What the configuration asks for and cannot be, or not yet.
    pub warnings: Vec<String>,
}

/// A port that is removed and added again, since it cannot change in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Replacement {
    /// The port.
    pub port: String,
    /// The keys of the configuration that it cannot change in place.
    pub keys: Vec<String>,
    /// What that costs its user, in a sentence.
    pub loss: String,
}

/// A port to which a virtual machine is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortInUse {
    /// The port.
    pub port: String,
    /// `connected` or `running`.
    pub state: String,
    /// Process of the VMM, if it is known.
    pub pid: Option<u32>,
    /// Name of that process (`/proc/<pid>/comm`).
    pub program: Option<String>,
}

impl std::fmt::Display for PortInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} is in use ({}", self.port, self.state)?;
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        if let Some(program) = &self.program {
            write!(f, ", {program}")?;
        }
        f.write_str(")")
    }
}

impl std::fmt::Display for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Replacement { port, keys, loss } = self;
        write!(
            f,
            "port {port} replaced, since {} changed: {loss}",
            keys.join(" and ")
        )
    }
}
