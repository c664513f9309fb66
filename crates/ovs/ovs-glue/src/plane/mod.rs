//! Our own data plane, behind its channel.
//!
//! A datapath is a switch of the data plane; there is one. A question goes to the channel at once and is
//! answered when the data plane has answered: many questions are under way. The data plane carries them out
//! in their order, so a flow is written down here when it is sent, and taken back if it was refused.
//!
//! The data plane maps guests' memory, so what it says is not believed further than needed ([`controller`]):
//! an answer that does not suit its question is `EIO`, and counted ([`PlaneCounters`]), and the supervisor
//! replaces a data plane that lies or is silent. When it has gone, questions are answered by what is known
//! here; the next one gets ports, under the same numbers, meters and flows again. No counter goes back.
//!
//! | module | contents |
//! |---|---|
//! | `questions` | questions, and the meaning of their answers |
//! | `flows` | flows as they were installed, and their counts |
//! | `flow_shares` | how many flows each port may have |
//! | `restore` | flows for a data plane that takes the place of another |
//! | `meters` | meters as they were set |
//! | `limits` | limits of ports: policing and queues |
//! | `policies` | policies of ports: rule lists of the built-in controller |
//! | `ports` | ports, and how guests reach them |
//! | `clients` | connections to VMMs that listen |
//! | `watch` | the descriptor to wait for |
//! | `devices` | ports that are network devices of the host, and the driver domain |
//! | `connecting` | answers about new ports, which wait for their devices |
//! | `packets` | packets for ovs-vswitchd |
//! | `upcalls` | messages that wait for ovs-vswitchd, and ports' turns |
//! | `originals` | packets of which ovs-vswitchd sees one segment |

mod clients;
mod connecting;
mod devices;
mod flow_shares;
mod flows;
mod limits;
mod meters;
mod originals;
mod packets;
mod policies;
mod ports;
mod questions;
mod restore;
mod upcalls;
mod watch;

use crate::datapath::{
    Answer, Datapath, DatapathId, DeviceSettings, Errno, PortNo, PortSpec, Question, Ticket, Upcall,
    UpcallKind,
};
use crate::translate::{self, key_of, port_id, port_number};
use control_protocol::data_plane::{self as protocol, Execute as Injected, Packet, Request, UpcallCause};
use control_protocol::supervisor::FromChild;
use controller::{Client, DriverClient, Lost};
use flow::{
    Action, Context, ControllerId, DropReason, Edit, FieldId, FlowKey, PortCounters, Program, SetField,
    Stage, SwitchId,
};
pub use limits::{Limits, MAX_QUEUES, QUEUE_LIMIT};
pub use meters::MAX_METERS;
use ovs_netlink::ct_limit::{Zone, ZoneLimit};
use ovs_netlink::datapath::{MegaflowStats, Stats};
use ovs_netlink::packet::Execute;
use ovs_netlink::vport;
use ports::PlanePorts;
pub use ports::Plug;
use questions::Pending;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::{Peer, Watch};

/// Messages of the data plane that are taken in before others have their turn.
const BURST: usize = 1024;

/// The one switch.
const SWITCH: SwitchId = SwitchId(1);

/// The options in which data planes differ.
#[derive(Clone, Debug)]
pub struct Options {
    /// Misses per second of a port; ovs-vswitchd has limits of its own.
    pub miss_rate: u32,
    /// Where the sockets of virtual machines are; no other user may write there.
    pub directory: PathBuf,
    /// Virtual machines of ports, by name. Ports that are not named have none.
    pub plugs: BTreeMap<String, Plug>,
}

/// Counts of a data plane's violations, and of refused requests whose answers nobody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneCounters {
    /// Answers and packets that nobody asked for, or that mean nothing.
    pub violations: u64,
    /// Data planes that went away.
    pub lost: u64,
    /// Ports that it did not take.
    pub ports_refused: u64,
    /// Flows of the data plane before that it did not take.
    pub flows_refused: u64,
    /// Flows of ports that had their share.
    pub flows_beyond_share: u64,
    /// Limits of ports that it did not take.
    pub limits_refused: u64,
    /// Packets for ovs-vswitchd that it was given.
    pub upcalls: u64,
    /// Packets for ovs-vswitchd, or segments of such packets, for which there was no room.
    pub upcalls_dropped: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Plane {
    options: Options,
    client: Client<Pending>,
    driver: DriverClient,
    devices: devices::Devices,
    watch: Watch,
    /// The datapath, if there is one.
    datapath: Option<DatapathId>,
    ports: PlanePorts,
    flows: flows::Flows,
    restore: restore::Restore,
    meters: meters::PlaneMeters,
    limits: limits::PlaneLimits,
    policies: policies::PlanePolicies,
    /// Distinguishes this process's flows from those that an earlier one left in the data plane.
    generation: u64,
    answers: VecDeque<(Ticket, Result<Answer, Errno>)>,
    awaited: connecting::Awaited,
    upcalls: upcalls::Upcalls,
    originals: originals::Originals,
    handed: packets::Handed,
    carriers: VecDeque<(PortNo, bool)>,
    missed: u64,
    counters: PlaneCounters,
}

impl Plane {
    /// Without a data plane for now.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn new(options: Options) -> std::io::Result<Plane> {
        Ok(Plane {
            client: Client::default(),
            driver: DriverClient::new(ControllerId::OVS),
            options,
            devices: devices::Devices::default(),
            watch: Watch::new()?,
            datapath: None,
            ports: PlanePorts::default(),
            flows: flows::Flows::default(),
            restore: restore::Restore::default(),
            meters: meters::PlaneMeters::default(),
            limits: limits::PlaneLimits::default(),
            policies: policies::PlanePolicies::default(),
            generation: now_ms(),
            answers: VecDeque::new(),
            awaited: connecting::Awaited::default(),
            upcalls: upcalls::Upcalls::default(),
            originals: originals::Originals::default(),
            handed: packets::Handed::default(),
            carriers: VecDeque::new(),
            missed: 0,
            counters: PlaneCounters::default(),
        })
    }

    /// Takes a new data plane in the place of the one before.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn connect(&mut self, channel: control_protocol::Channel) -> std::io::Result<()> {
        self.lose(None);
        self.client.attach(channel, now_ms());
        self.client.gather(true);
        self.ports.told.clear();
        self.request(Request::PortList, Vec::new(), Pending::Ports);
        self.begin_restore();
        self.tell_meters();
        self.watch.follow(Peer::DataPlane, self.client.interest())
    }

    /// Whether there is a data plane that has told its ports.
    pub fn is_ready(&self) -> bool {
        self.client.is_connected() && self.ports.are_known
    }

    /// The counts so far.
    pub fn counters(&self) -> PlaneCounters {
        let violations = self.client.violations() + self.driver.violations();
        PlaneCounters {
            violations: self.counters.violations + violations,
            ..self.counters
        }
    }

    /// Sends a request. Without a data plane, whoever waits for the answer asks the next one.
    fn request(&mut self, request: Request, fds: Vec<OwnedFd>, pending: Pending) {
        drop(self.client.ask(request, fds, pending).err());
    }

    /// Sends as much as there is room for.
    fn send(&mut self) {
        let now = Instant::now();
        self.originals.review(now);
        let is_due = self.handed.due().is_some_and(|due| due <= now);
        if is_due || self.client.has_to_send() {
            for upcall in self.handed.take() {
                self.client.end_upcall(Request::Taken { upcall });
            }
        }
        self.client.flush();
        self.driver.flush();
        self.follow_channels();
    }

    fn follow_channels(&mut self) {
        let followed = [
            self.watch.follow(Peer::DataPlane, self.client.interest()),
            self.watch.follow(Peer::Driver, self.driver.interest()),
        ];
        for error in followed.into_iter().filter_map(Result::err) {
            log::error!("a channel cannot be waited for: {error}");
        }
    }

    /// What the supervisor is to be told now.
    pub fn complaint(&mut self) -> Option<FromChild> {
        let now_ms = now_ms();
        let complaint = self.client.complaint(now_ms);
        complaint.or_else(|| self.driver.complaint(now_ms))
    }

    /// Time until [`Datapath::flush`] has something to do, or [`Plane::complaint`] something to say.
    pub fn time_left(&self) -> Option<Duration> {
        let to_tell = self.has_to_tell();
        let to_tell = to_tell.map(|due| due.saturating_duration_since(Instant::now()));
        let due_ms = [
            self.next_attempt(),
            self.next_unconnected(),
            self.client.due_ms(),
            self.driver.due_ms(),
        ];
        let due_ms = due_ms.into_iter().flatten().min();
        let due = due_ms.map(|due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms())));
        [to_tell, due].into_iter().flatten().min()
    }

    /// When [`Datapath::flush`] has something to say or to forget that can wait until then.
    pub fn has_to_tell(&self) -> Option<Instant> {
        [self.handed.due(), self.originals.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The data plane has gone, or its channel is given up for this reason.
    fn lose(&mut self, lost: Option<Lost>) {
        let unanswered = self.client.detach(lost, now_ms());
        self.counters.lost += u64::from(unanswered.is_some());
        self.watch.forget(Peer::DataPlane);
        self.flows.lose();
        for pending in unanswered.into_iter().flatten() {
            if let Pending::Asked(ticket, asked) = pending {
                // Not an error where there is another answer: ovs-vswitchd removes a port of which it is
                // refused the statistics.
                let answer = self.without_data_plane(asked);
                self.answers.push_back((ticket, answer));
            }
        }
        self.meters.lose();
        self.limits.lose();
        self.upcalls.clear();
        self.originals.clear();
        self.handed.take();
        let left = self.ports.lose();
        self.carriers.extend(left.into_iter().map(|port| (port, false)));
    }

    fn upcall(&mut self, upcall: protocol::Upcall) {
        let id = upcall.id;
        let port = port_number(id.port);
        let known = port.filter(|port| self.ports.has(*port));
        let (Some(datapath), Some(port)) = (self.datapath, known) else {
            self.counters.violations += 1;
            return self.discard(id);
        };
        self.counters.upcalls += 1;
        let (kind, to) = match upcall.cause {
            UpcallCause::Miss { .. } => {
                self.missed += 1;
                (UpcallKind::Miss, packets::Use::Decides)
            }
            UpcallCause::Action(to) => {
                let purpose = packets::Use::of(&to.data);
                let kind = UpcallKind::Action {
                    socket: to.pid,
                    userdata: Some(to.data.into_vec()).filter(|data| !data.is_empty()),
                    egress_tunnel: None,
                    actions: None,
                };
                (kind, purpose)
            }
        };
        let context = upcall.context.as_deref().unwrap_or(&Context::NONE);
        let hash = hash_of(&upcall.key);
        let shown = packets::shown(upcall.packet, to);
        let keys: Vec<_> = packets::keys(&upcall.key, &shown.frames)
            .map(|key| Box::new(key_of(&key, context)))
            .collect();
        let begins_behind_ethernet = upcall.key.no_ethernet() != 0;
        let now = Instant::now();
        let keep = |original| self.originals.keep(port, original, now);
        let serial = shown.original.map_or(0, keep);
        let messages = shown.frames.into_iter().zip(keys).map(|(mut packet, key)| {
            if begins_behind_ethernet {
                packets::begin_behind_ethernet(&mut packet);
            }
            Upcall {
                datapath,
                port,
                kind: kind.clone(),
                packet,
                key,
                mru: None,
                length: None,
                serial,
                hash,
            }
        });
        let (dropped, lost) = self.upcalls.push(port, id, messages);
        self.counters.upcalls_dropped += dropped + shown.left_out as u64;
        lost.into_iter().for_each(|lost| self.discard(lost));
    }

    /// The packet that ovs-vswitchd saw the first segment of, if that is what it sends back.
    fn original(&self, from: PortNo, execute: &Execute<'_>) -> Option<Packet> {
        let (serial, behind) = (execute.hash?, execute.eth_type.is_some());
        self.originals.find(from, serial, execute.packet, behind).cloned()
    }

    fn discard(&mut self, upcall: protocol::UpcallId) {
        let reason = DropReason::ControlLost;
        self.client.end_upcall(Request::Discard { upcall, reason });
    }

    /// Takes in what the data plane has said, a bounded number of messages.
    fn read(&mut self) -> Result<(), Lost> {
        for _ in 0..BURST {
            let Some(event) = self.client.receive(self.ports.all.len())? else {
                break;
            };
            self.take(event);
        }
        Ok(())
    }

    /// Gives up a data plane that does not list its ports.
    fn check(&mut self) {
        if let Err(lost) = self.client.check(now_ms()) {
            self.lose(Some(lost));
        }
    }
}

impl Datapath for Plane {
    fn create(&mut self, datapath: DatapathId) -> Result<(), Errno> {
        if self.datapath.is_some() {
            return Err(Errno::EBUSY);
        }
        self.datapath = Some(datapath);
        self.tell_meters();
        Ok(())
    }

    fn remove(&mut self, _: DatapathId) {
        self.meters.clear();
        self.tell_meters();
        self.datapath = None;
        for port in self.ports.numbers() {
            self.drop_port(port);
        }
        self.flows.clear();
        self.upcalls.clear();
        self.client.tell(Request::FlowFlush { switch: SWITCH });
    }

    fn stats(&self, _: DatapathId) -> (Stats, Option<MegaflowStats>) {
        let (received, lost) = self.ports.sums();
        let stats = Stats {
            hit: received.saturating_sub(self.missed),
            missed: self.missed,
            lost: lost + self.counters.upcalls_dropped,
            flows: self.flows.len() as u64,
        };
        // Each port has masks of its own, and searches of them are not counted.
        (stats, None)
    }

    fn add_port(&mut self, _: DatapathId, port: &PortSpec) -> Result<(), Errno> {
        self.make_port(port)
    }

    fn remove_port(&mut self, _: DatapathId, port: PortNo) {
        self.drop_port(port);
    }

    fn number_of(&self, name: &str) -> Option<PortNo> {
        let found = self.ports.told.values().find(|told| told.spec.name == name)?;
        port_number(found.spec.port)
    }

    fn set_device(&mut self, _: DatapathId, port: PortNo, settings: DeviceSettings) {
        self.set_mtu(port, settings.mtu);
        self.set_up(port, settings.up);
    }

    fn next_carrier(&mut self) -> Option<(DatapathId, PortNo, bool)> {
        let (port, connected) = self.carriers.pop_front()?;
        Some((self.datapath?, port, connected))
    }

    fn next_device(&mut self) -> Option<(DatapathId, PortNo)> {
        self.attach_devices();
        let port = self.devices.wanting.pop_front()?;
        Some((self.datapath?, port))
    }

    fn attach_device(&mut self, _: DatapathId, port: PortNo, index: u32, device: Option<OwnedFd>) {
        self.attach_tap(port, index, device);
    }

    fn next_gone(&mut self) -> Option<(DatapathId, PortNo)> {
        let port = self.devices.gone.pop_front()?;
        Some((self.datapath?, port))
    }

    fn has_guest(&self, _: DatapathId, port: PortNo) -> bool {
        let port = self.ports.all.get(&port);
        port.is_some_and(|port| port.end == ports::End::Guest)
    }

    fn renew_device(&mut self, _: DatapathId, port: PortNo) {
        self.device_renewed(port);
    }

    fn port_stats(&self, _: DatapathId, port: PortNo) -> vport::Stats {
        let port = self.ports.all.get(&port);
        port.map(ports::Port::stats).unwrap_or_default()
    }

    fn port_counters(&self, _: DatapathId, port: PortNo) -> PortCounters {
        let port = self.ports.all.get(&port);
        port.map(|port| port.counters.clone()).unwrap_or_default()
    }

    fn ask(&mut self, ticket: Ticket, _: DatapathId, question: Question) {
        if let Err(errno) = self.send_question(ticket, question) {
            self.answers.push_back((ticket, Err(errno)));
        }
    }

    fn next_answer(&mut self) -> Option<(Ticket, Result<Answer, Errno>)> {
        self.answer_connected();
        self.answers.pop_front()
    }

    fn has_room(&self) -> bool {
        self.client.has_room()
    }

    fn exchange(&mut self) {
        self.exchange_with_driver();
        self.send();
        if let Err(lost) = self.read() {
            self.lose(Some(lost));
        }
        self.client.flush();
        self.check();
        self.follow_channels();
    }

    fn flush(&mut self) {
        self.check();
        self.connect_clients();
        self.send();
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn execute(&mut self, execute: &Execute<'_>) -> Result<(), Errno> {
        let metadata = &execute.metadata;
        if metadata.tunnel.is_some() {
            return Err(Errno::EINVAL);
        }
        let from = PortNo(metadata.in_port.unwrap_or(0));
        if !self.ports.has(from) {
            return Err(Errno::EINVAL);
        }
        let in_port = port_id(from).ok_or(Errno::EINVAL)?;
        let marks = [
            (FieldId::SkbPriority, metadata.priority),
            (FieldId::SkbMark, metadata.mark),
        ];
        let marks = marks.into_iter().filter(|(_, value)| *value != 0);
        let mut actions: Vec<_> = marks
            .map(|(field, value)| Action::Edit(Edit::Set(SetField::whole(field, value.into()))))
            .collect();
        actions.extend(translate::actions(&execute.actions)?);
        // What the data plane would find out later, with nobody there to be told.
        Program::compile(&actions, Stage::Forward).map_err(|_| Errno::EINVAL)?;
        if execute.probe {
            return Ok(());
        }
        let injected = Injected {
            upcall: None,
            in_port,
            stage: Stage::Forward,
            recirc_id: metadata.recirc_id,
            dp_hash: metadata.dp_hash,
            no_ethernet: execute.eth_type.is_some(),
            actions,
            packet: self.original(from, execute).unwrap_or_else(|| Packet {
                vnet_header: [0; 12],
                frame: packets::frame(execute.eth_type, execute.packet),
            }),
        };
        if self.client.end_upcall(Request::Execute(injected)) {
            Ok(())
        } else {
            Err(Errno::ENOBUFS)
        }
    }

    fn set_zone_limit(&mut self, _: Zone, _: u32) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn remove_zone_limit(&mut self, _: Zone) {}

    fn zone_limit(&self, zone: Zone) -> ZoneLimit {
        ZoneLimit {
            zone,
            limit: 0,
            count: 0,
        }
    }

    fn limited_zones(&self) -> Vec<Zone> {
        Vec::new()
    }

    fn next_upcall(&mut self, has_room: &dyn Fn(&Upcall) -> bool) -> Option<Upcall> {
        let message = self.upcalls.next(has_room)?;
        if let Some(upcall) = message.ends {
            // What ovs-vswitchd sends in answer is a packet of its own.
            self.handed.add(upcall);
        }
        Some(message.upcall)
    }
}

/// Packets of one flow have the same.
fn hash_of(key: &FlowKey) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as u32
}

/// Milliseconds of the monotonic clock, as ovs-vswitchd counts them.
fn now_ms() -> u64 {
    u64::try_from(process::monotonic().as_millis()).unwrap_or(u64::MAX)
}
