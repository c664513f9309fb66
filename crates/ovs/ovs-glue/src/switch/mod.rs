//! The kernel, as ovs-vswitchd sees it: datapaths, their ports, and requests about them.
//!
//! A datagram's messages are begun one after the other (`job`). Answers, error numbers and notifications are
//! those of `net/openvswitch` and `net/netlink` of Linux 6.1.

mod ct_limit;
mod device;
mod dp;
mod dump;
mod flow;
mod job;
mod meter;
mod netfilter;
mod packet;
mod verbs;
mod vport;

use crate::capabilities::Capabilities;
use crate::datapath::{Answer as Told, Datapath, DatapathId, FlowId, PortNo, PortSpec, Question, Ticket};
use crate::placeholder::Placeholders;
use crate::server::{Answer, Caller, Notice, Service};
use dump::Dump;
use job::{Asked, Job};
use ovs_netlink::attribute::Writer;
use ovs_netlink::family::Family;
use ovs_netlink::flow::Omit;
use ovs_netlink::message::{Flags, Header, Message};
use ovs_netlink::name::Name;
use ovs_netlink::{Errno, Error, Reply, Request, vport as vports};
pub use packet::Next;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Datapaths at one time. ovs-vswitchd has one, and removes others.
const MAX_DATAPATHS: usize = 16;
/// `NETLINK_GENERIC` of `linux/netlink.h`.
const GENERIC: u32 = 16;
/// `NETLINK_NETFILTER`.
const NETFILTER: u32 = 12;
/// Multicast groups of netfilter (`NFNLGRP_MAX`).
const NETFILTER_GROUPS: u32 = 9;

/// A datapath as ovs-vswitchd knows it.
struct Bridge {
    name: Name,
    features: u32,
    masks_cache: u32,
    /// Sockets for upcalls, if they are named per processor.
    cpu_sockets: Vec<u32>,
    ports: BTreeMap<PortNo, Vport>,
    /// Upcalls lost on the way from the data plane to ovs-vswitchd.
    lost: u64,
}

struct Vport {
    spec: PortSpec,
    name: Name,
    /// Index of its network device, if it has one.
    interface: Option<u32>,
    /// The namespace of that device, if it is another one.
    namespace: Option<i32>,
    /// Sockets for upcalls, if they are named per port.
    sockets: Vec<u32>,
}

/// See the module.
pub struct Switch<D, P> {
    /// The data plane.
    pub datapath: D,
    /// Network devices of the ports.
    pub placeholders: P,
    capabilities: Capabilities,
    bridges: BTreeMap<DatapathId, Bridge>,
    /// Ports by name.
    names: HashMap<Name, (DatapathId, PortNo)>,
    /// Requests under way, one per caller.
    jobs: HashMap<Caller, Job>,
    /// The questions that the data plane was asked.
    asked: HashMap<Ticket, Asked>,
    last_ticket: u64,
    /// Callers whose requests wait for room in the data plane.
    stalled: VecDeque<Caller>,
    answers: VecDeque<(Caller, Answer)>,
    /// A datapath that has lost a port, once that was told.
    to_announce: Option<DatapathId>,
}

/// The result of a request.
#[derive(Default)]
struct Outcome {
    reply: Option<Vec<u8>>,
    notice: Option<Notice>,
    dump: Option<Dump>,
}

/// The result of a request so far.
enum Step {
    /// The request is done.
    Done(Outcome),
    /// The data plane is to be asked, and then it goes on.
    Ask(DatapathId, Question, Then),
    /// The message was no request.
    Unanswered,
}

impl From<Outcome> for Step {
    fn from(outcome: Outcome) -> Self {
        Step::Done(outcome)
    }
}

/// The purpose of the data plane's answer.
enum Then {
    /// Nothing is told.
    Nothing,
    /// The flow is told if an echo is wanted.
    FlowChanged(DatapathId, FlowId, Omit),
    /// The flow in the answer is told, to members of the group as well if it was changed.
    TellFlow(DatapathId, ovs_netlink::flow::Command, Omit, To),
    /// The meter in the answer is told.
    TellMeter(DatapathId, ovs_netlink::meter::Command, u32),
    /// The steps are told.
    TellTrace(DatapathId),
    /// The counts of a queue are told.
    TellQueue,
    /// The counters of a port are told.
    TellCounters(DatapathId, PortNo),
    /// The port is told, and removed if that was what was wanted.
    Port(DatapathId, PortNo, vports::Command, To),
}

/// The receivers of a notification.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// The caller.
    Asker,
    /// All that listen.
    All,
}

type Result<T> = std::result::Result<T, Refusal>;

/// An error number for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal(Errno);

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

fn refused<T>(errno: Errno) -> Result<T> {
    Err(Refusal(errno))
}

/// The answer to a request that only asks.
fn reply(header: Header, reply: &Reply<'_>) -> Result<Outcome> {
    Ok(Outcome {
        reply: Some(written(header, reply)?),
        ..Outcome::default()
    })
}

/// The answer to a request that changes something (`genl_notify`): the client is answered if it asked for an
/// echo, and the members of the family's group are notified.
fn notify(header: Header, family: Family, reply: &Reply<'_>) -> Result<Outcome> {
    let message = written(header, reply)?;
    let echo = header.flags.contains(Flags::ECHO);
    Ok(Outcome {
        reply: echo.then(|| message.clone()),
        notice: family.group().map(|group| Notice {
            group,
            to_cause: !echo,
            datagram: message,
        }),
        dump: None,
    })
}

fn tell(to: To, header: Header, family: Family, told: &Reply<'_>) -> Result<Outcome> {
    match to {
        To::Asker => reply(header, told),
        To::All => notify(header, family, told),
    }
}

/// A message that answers a request, whose header is given.
fn written(header: Header, reply: &Reply<'_>) -> Result<Vec<u8>> {
    let mut writer = Writer::new();
    let flags = Flags::default();
    reply.write(Header { flags, ..header }, &mut writer);
    Ok(writer.finish()?)
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// A switch without datapaths.
    pub fn new(datapath: D, placeholders: P, capabilities: Capabilities) -> Self {
        Self {
            datapath,
            placeholders,
            capabilities,
            bridges: BTreeMap::new(),
            names: HashMap::new(),
            jobs: HashMap::new(),
            asked: HashMap::new(),
            last_ticket: 0,
            stalled: VecDeque::new(),
            answers: VecDeque::new(),
            to_announce: None,
        }
    }

    fn carry_out(&mut self, message: &Message<'_>) -> Result<Step> {
        let header = message.header;
        if !self.has_family(Family::of_number(header.kind)) {
            return refused(Errno::ENOENT);
        }
        match Request::read(message)? {
            Request::Control(request) => {
                let family = request.family().filter(|family| self.has_family(Some(*family)));
                let told = Reply::Control(family.ok_or(Errno::ENOENT)?.into());
                reply(header, &told).map(Step::Done)
            }
            Request::Datapath(request) => self.dp(header, request).map(Step::Done),
            Request::Vport(request) => self.vport(header, request),
            Request::Flow(number, request) => self.flow(header, number, request),
            Request::Execute(execute) => self.execute(&execute).map(Step::Done),
            Request::Meter(number, request) => self.meter(header, number, request),
            Request::CtLimit(request) => self.ct_limit(header, request).map(Step::Done),
        }
    }

    /// Goes on with a request that asked the data plane.
    fn proceed(&mut self, header: Header, then: Then, answer: Told) -> Result<Step> {
        match (then, answer) {
            (Then::Nothing, _) => Ok(Outcome::default().into()),
            (Then::FlowChanged(datapath, id, omit), _) => Ok(flow::changed(header, datapath, id, omit)),
            (Then::TellFlow(datapath, command, omit, to), Told::Flow(flow)) => {
                let told = flow::tell(datapath, flow, command, omit);
                Ok(tell(to, header, Family::Flow, &told)?.into())
            }
            (Then::TellMeter(datapath, command, id), Told::Meter(seen)) => {
                Ok(meter::tell(header, datapath, (command, id), seen)?.into())
            }
            (Then::TellTrace(datapath), Told::Trace(steps)) => {
                Ok(self.tell_trace(header, datapath, &steps)?.into())
            }
            (Then::TellQueue, Told::Meter(seen)) => Ok(verbs::tell_queue(header, seen)?.into()),
            (Then::TellCounters(datapath, port), _) => Ok(self.tell_counters(header, datapath, port)?.into()),
            // Not what was asked for.
            (Then::TellFlow(..) | Then::TellMeter(..) | Then::TellQueue | Then::TellTrace(_), _) => {
                refused(Errno::EIO)
            }
            (Then::Port(datapath, number, command, to), _) => {
                let told = Reply::Vport(self.tell_vport(datapath, number, command)?);
                if command == vports::Command::Delete {
                    self.remove_vport(datapath, number);
                }
                Ok(tell(to, header, Family::Vport, &told)?.into())
            }
        }
    }

    fn has_family(&self, family: Option<Family>) -> bool {
        family.is_some_and(|family| family != Family::CtLimit || self.capabilities.zone_limits)
    }

    /// The datapath of this number.
    fn bridge(&self, number: u32) -> Result<(DatapathId, &Bridge)> {
        let id = DatapathId(number);
        Ok((id, self.bridges.get(&id).ok_or(Errno::ENODEV)?))
    }
}

impl<D: Datapath, P: Placeholders> Service for Switch<D, P> {
    fn has_group(&self, protocol: u32, group: u32) -> bool {
        match protocol {
            GENERIC => Family::ALL.iter().any(|family| family.group() == Some(group)),
            // They exist, and stay silent.
            NETFILTER => (1..=NETFILTER_GROUPS).contains(&group),
            _ => false,
        }
    }

    fn request(&mut self, caller: Caller, protocol: u32, datagram: &[u8]) {
        self.jobs.insert(caller, Job::new(protocol, datagram));
        self.advance(caller);
    }

    fn go_on(&mut self, caller: Caller) {
        self.continue_job(caller);
    }

    fn forget(&mut self, caller: Caller) {
        self.jobs.remove(&caller);
    }

    fn next_answer(&mut self) -> Option<(Caller, Answer)> {
        if self.answers.is_empty() {
            self.follow_datapath();
        }
        self.answers.pop_front()
    }
}

/// An interface's name as text, if the kernel would take it (`dev_valid_name`).
fn text(name: &Name) -> Result<&str> {
    let text = std::str::from_utf8(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
    let odd = |byte: u8| byte == b'/' || byte == b':' || byte.is_ascii_whitespace();
    if text == "." || text == ".." || text.bytes().any(odd) {
        return refused(Errno::EINVAL);
    }
    Ok(text)
}
