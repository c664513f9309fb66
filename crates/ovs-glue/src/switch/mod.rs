//! What ovs-vswitchd believes to be the kernel: datapaths, their ports, and requests about them.
//!
//! A datagram's messages are carried out one after the other. Answers, error numbers and notifications are those of
//! `net/openvswitch/datapath.c` and `net/netlink` of Linux 6.1.

mod control;
mod ct_limit;
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
use crate::uapi::{CONTROL, CT_LIMIT, DATAPATH, FAMILIES, FLOW, Family, METER, PACKET, VPORT};
pub use dump::Dump;
use ovs_netlink::attribute::Writer;
use ovs_netlink::message::{FIRST_TYPE, Flags, Generic, Header, Message, Status, messages};
use ovs_netlink::{Errno, Error};
use std::collections::{BTreeMap, HashMap};

/// Datapaths at one time. ovs-vswitchd has one, and removes others.
const MAX_DATAPATHS: usize = 16;
/// `NETLINK_GENERIC` of `linux/netlink.h`.
const GENERIC: u32 = 16;
/// `NETLINK_NETFILTER`.
const NETFILTER: u32 = 12;

/// A datapath as ovs-vswitchd knows it.
struct Bridge {
    name: String,
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
    interface: u32,
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
    names: HashMap<String, (DatapathId, PortNo)>,
}

/// A request to one of the `ovs_*` families.
#[derive(Clone, Copy)]
struct Request<'a> {
    header: Header,
    family: &'static Family,
    command: u8,
    /// `dp_ifindex` of `struct ovs_header`.
    datapath: u32,
    attributes: &'a [u8],
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

impl Request<'_> {
    fn has(&self, flags: Flags) -> bool {
        self.header.flags.contains(flags)
    }

    /// A message that answers this request.
    fn message(&self, command: u8, datapath: DatapathId, body: impl FnOnce(&mut Writer)) -> Result<Vec<u8>> {
        let mut writer = Writer::new();
        let header = Header {
            flags: Flags::default(),
            kind: self.family.number,
            ..self.header
        };
        write_message(&mut writer, header, self.family, command, datapath, body);
        Ok(writer.finish()?)
    }

    /// The answer to a request that only asks.
    fn reply(&self, command: u8, datapath: DatapathId, body: impl FnOnce(&mut Writer)) -> Result<Outcome> {
        Ok(Outcome {
            reply: Some(self.message(command, datapath, body)?),
            ..Outcome::default()
        })
    }

    /// The answer to a request that changes something (`genl_notify`): whoever asked is answered if it wanted an echo;
    /// the members of the family's group are told.
    fn notify(&self, message: Vec<u8>) -> Outcome {
        let echo = self.has(Flags::ECHO);
        Outcome {
            reply: echo.then(|| message.clone()),
            notice: Some(Notice {
                group: self.family.group,
                to_cause: !echo,
                datagram: message,
            }),
            dump: None,
        }
    }
}

/// A message of an `ovs_*` family.
fn write_message(
    writer: &mut Writer,
    header: Header,
    family: &Family,
    command: u8,
    datapath: DatapathId,
    body: impl FnOnce(&mut Writer),
) {
    let version = family.version;
    writer.message(header, |writer| {
        writer.generic(Generic { command, version });
        writer.raw(&datapath.0.to_ne_bytes());
        body(writer);
    });
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
        let known = |family: &&&'static Family| family.number == message.header.kind;
        let family = *FAMILIES.iter().find(known).ok_or(Errno::ENOENT)?;
        if family == &CT_LIMIT && !self.capabilities.zone_limits {
            return refused(Errno::ENOENT);
        }
        let (Generic { command, .. }, rest) = message.generic()?;
        if family == &CONTROL {
            return self.control(message.header, command, rest);
        }
        let (datapath, attributes) = rest.split_first_chunk().ok_or(Errno::EINVAL)?;
        let request = Request {
            header: message.header,
            family,
            command,
            datapath: u32::from_ne_bytes(*datapath),
            attributes,
        };
        let dump = request.has(Flags::DUMP);
        match (family.number, dump) {
            (number, false) if number == DATAPATH.number => self.dp(&request),
            (number, false) if number == VPORT.number => self.vport(&request),
            (number, false) if number == FLOW.number => self.flow(&request),
            (number, false) if number == PACKET.number => self.packet(&request),
            (number, false) if number == METER.number => self.meter(&request),
            (number, false) if number == CT_LIMIT.number => self.ct_limit(&request),
            (_, true) => self.begin_dump(&request),
            _ => refused(Errno::EOPNOTSUPP),
        }
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
        let generic = group != 0 && FAMILIES.iter().any(|family| family.group == group);
        // Those of netfilter exist, and stay silent.
        protocol == GENERIC && generic || protocol == NETFILTER && (1..=9).contains(&group)
    }

    fn request(&mut self, _: u32, protocol: u32, datagram: &[u8]) -> Answer<Dump> {
        let mut answer = Answer::default();
        // What follows an error in a length is not looked at, as in the kernel.
        for message in messages(datagram).map_while(std::result::Result::ok) {
            if !message.header.flags.contains(Flags::REQUEST) {
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
                    answer
                        .notices
                        .extend(outcome.notice.filter(|notice| notice.group != 0));
                    let dumps = outcome.dump.is_some();
                    answer.dump = answer.dump.or(outcome.dump);
                    (message.header.flags.contains(Flags::ACK) && !dumps).then_some(None)
                }
                Err(Refusal(errno)) => Some(Some(errno)),
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

/// An interface's name from an attribute: ends with one zero byte (`nla_policy` of type `NLA_NUL_STRING`).
fn name(value: &[u8]) -> Result<&str> {
    let end = value.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
    let name = std::str::from_utf8(&value[..end]).map_err(|_| Errno::EINVAL)?;
    let odd = |byte: u8| byte == b'/' || byte == b':' || byte.is_ascii_whitespace();
    if name.is_empty() || name == "." || name == ".." || name.bytes().any(odd) {
        return refused(Errno::EINVAL);
    }
    Ok(name)
}

fn write_name(writer: &mut Writer, kind: u16, name: &str) {
    writer.nested(kind, |writer| {
        writer.raw(name.as_bytes());
        writer.raw(&[0]);
    });
}

/// Netlink port ids from an attribute: one at least.
fn socket_ids(value: &[u8]) -> Result<Vec<u32>> {
    let (chunks, rest) = value.as_chunks();
    if chunks.is_empty() || !rest.is_empty() {
        return refused(Errno::EINVAL);
    }
    Ok(chunks.iter().map(|id| u32::from_ne_bytes(*id)).collect())
}

/// Numbers one after the other, in the machine's order.
fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}
