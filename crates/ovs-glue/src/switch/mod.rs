//! What ovs-vswitchd believes to be the kernel: datapaths, their ports, and requests about them.
//!
//! A datagram's messages are carried out one after the other. Answers, error numbers and notifications are those of
//! `net/openvswitch` and `net/netlink` of Linux 6.1.

mod ct_limit;
mod device;
mod dp;
mod dump;
mod flow;
mod meter;
mod netfilter;
mod packet;
mod vport;

use crate::capabilities::Capabilities;
use crate::datapath::{Datapath, DatapathId, PortNo, PortSpec};
use crate::placeholder::Placeholders;
use crate::server::{Answer, Notice, Service};
pub use dump::Dump;
use ovs_netlink::attribute::Writer;
use ovs_netlink::family::Family;
use ovs_netlink::message::{FIRST_TYPE, Flags, Header, Message, Status, messages};
use ovs_netlink::name::Name;
use ovs_netlink::{Errno, Error, Reply, Request};
use std::collections::{BTreeMap, HashMap};

/// Datapaths at one time. ovs-vswitchd has one, and removes others.
const MAX_DATAPATHS: usize = 16;
/// `NETLINK_GENERIC` of `linux/netlink.h`.
const GENERIC: u32 = 16;
/// `NETLINK_NETFILTER`.
const NETFILTER: u32 = 12;
/// Its multicast groups (`NFNLGRP_MAX`).
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
    /// Its ports' network devices.
    pub placeholders: P,
    capabilities: Capabilities,
    bridges: BTreeMap<DatapathId, Bridge>,
    /// Ports by name.
    names: HashMap<Name, (DatapathId, PortNo)>,
}

/// What a request comes to.
#[derive(Default)]
struct Outcome {
    reply: Option<Vec<u8>>,
    notice: Option<Notice>,
    dump: Option<Dump>,
}

type Result<T> = std::result::Result<T, Refusal>;

/// An error number for whoever asked.
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

/// The answer to a request that changes something (`genl_notify`): whoever asked is answered if it wanted an echo; the
/// members of the family's group are told.
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
        }
    }

    fn carry_out(&mut self, message: &Message<'_>) -> Result<Outcome> {
        let header = message.header;
        if !self.has_family(Family::of_number(header.kind)) {
            return refused(Errno::ENOENT);
        }
        match Request::read(message)? {
            Request::Control(request) => {
                let family = request.family().filter(|family| self.has_family(Some(*family)));
                reply(header, &Reply::Control(family.ok_or(Errno::ENOENT)?.into()))
            }
            Request::Datapath(request) => self.dp(header, request),
            Request::Vport(request) => self.vport(header, request),
            Request::Flow(number, request) => self.flow(header, number, request),
            Request::Execute(execute) => self.execute(&execute),
            Request::Meter(number, request) => self.meter(header, number, request),
            Request::CtLimit(request) => self.ct_limit(header, request),
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
    type Dump = Dump;

    fn has_group(&self, protocol: u32, group: u32) -> bool {
        match protocol {
            GENERIC => Family::ALL.iter().any(|family| family.group() == Some(group)),
            // They exist, and stay silent.
            NETFILTER => (1..=NETFILTER_GROUPS).contains(&group),
            _ => false,
        }
    }

    fn request(&mut self, protocol: u32, datagram: &[u8]) -> Answer<Dump> {
        let mut answer = Answer::default();
        // What follows an error in a length is not looked at, as in the kernel.
        for message in messages(datagram).map_while(std::result::Result::ok) {
            let flags = message.header.flags;
            if !flags.contains(Flags::REQUEST) {
                continue;
            }
            let outcome = match protocol {
                _ if message.header.kind < FIRST_TYPE => Ok(Outcome::default()),
                GENERIC => self.carry_out(&message),
                NETFILTER => netfilter::carry_out(&message),
                _ => refused(Errno::EOPNOTSUPP),
            };
            let status = match outcome {
                // As in the kernel, a socket has one dump at a time.
                Ok(outcome) if outcome.dump.is_some() && answer.dump.is_some() => Some(Some(Errno::EBUSY)),
                Ok(outcome) => {
                    answer.datagrams.extend(outcome.reply);
                    answer.notices.extend(outcome.notice);
                    let acknowledge = flags.contains(Flags::ACK) && outcome.dump.is_none();
                    answer.dump = answer.dump.or(outcome.dump);
                    acknowledge.then_some(None)
                }
                Err(Refusal(errno)) => {
                    log::debug!("refused with {errno}: {:?}", message.header);
                    Some(Some(errno))
                }
            };
            if let Some(errno) = status {
                answer.datagrams.extend(acknowledgement(&message, errno));
            }
        }
        answer
    }

    fn dump(&mut self, dump: &mut Dump) -> (Vec<u8>, bool) {
        self.continue_dump(dump)
    }
}

/// `NLMSG_ERROR`. `None` cannot happen: it repeats a message that was short enough.
fn acknowledgement(message: &Message<'_>, errno: Option<Errno>) -> Option<Vec<u8>> {
    let mut writer = Writer::new();
    Status::Answer(errno).write(message, &mut writer);
    writer.finish().ok()
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
