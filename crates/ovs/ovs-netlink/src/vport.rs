//! Ports of datapaths: `OVS_VPORT_CMD_*`, `OVS_VPORT_ATTR_*`.

use crate::attribute::{AttributeSet, Rule, Table, Writer};
pub use crate::datapath::Command;
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::key::NO_PORT;
use crate::message::Header;
use crate::name::{MAX_INTERFACE, Name};
use crate::number::{MAX_SOCKETS, counters, numbers, write_numbers};

const PORT_NO: u16 = 1;
const TYPE: u16 = 2;
const NAME: u16 = 3;
const OPTIONS: u16 = 4;
const UPCALL_PID: u16 = 5;
const STATS: u16 = 6;
const IFINDEX: u16 = 8;
const NETNSID: u16 = 9;

static SET: AttributeSet<10> = AttributeSet {
    name: "OVS_VPORT_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Padding, Unknown};
        [
            Unknown,
            Exactly(4),
            Exactly(4),
            Between(0, 256),
            Any,
            Between(4, 4 * MAX_SOCKETS),
            Exactly(64),
            Padding,
            Exactly(4),
            Exactly(4),
        ]
    },
};

const DST_PORT: u16 = 1;
const EXTENSION: u16 = 2;
static TUNNEL: AttributeSet<3> = AttributeSet {
    name: "OVS_TUNNEL_ATTR",
    rules: [Rule::Unknown, Rule::Exactly(2), Rule::Any],
};

const GBP: u16 = 1;
static EXTENSIONS: AttributeSet<2> = AttributeSet {
    name: "OVS_VXLAN_EXT",
    rules: [Rule::Unknown, Rule::Between(0, 4)],
};

/// The kind of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A network device that exists.
    Netdev = 1,
    /// A network device that the datapath makes.
    Internal = 2,
    /// GRE tunnels.
    Gre = 3,
    /// VXLAN tunnels.
    Vxlan = 4,
    /// Geneve tunnels.
    Geneve = 5,
}

impl Kind {
    fn read(number: u32) -> Result<Self, Error> {
        Ok(match number {
            1 => Self::Netdev,
            2 => Self::Internal,
            3 => Self::Gre,
            4 => Self::Vxlan,
            5 => Self::Geneve,
            _ => return Err(Error::PortKind(number)),
        })
    }
}

/// Options of tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// UDP port.
    pub port: Option<u16>,
    /// VXLAN headers carry a group policy.
    pub group_policy: bool,
}

/// Selects a port by name, else by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Which {
    /// Number of the datapath; with a name, 0 stands for any datapath.
    pub datapath: u32,
    /// Name.
    pub name: Option<Name>,
    /// Number; ignored if there is a name.
    pub port: Option<u32>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes a port.
    New {
        /// Number of the datapath.
        datapath: u32,
        /// Name.
        name: Name,
        /// Kind of the port.
        kind: Kind,
        /// Wanted number.
        port: Option<u32>,
        /// Sockets for upcalls; 0 for none.
        upcall_pids: Vec<u32>,
        /// Options of tunnels.
        options: Option<Options>,
        /// Wanted interface index of an internal port.
        ifindex: Option<u32>,
    },
    /// Deletes a port.
    Delete(Which),
    /// Asks for a port.
    Get(Which),
    /// Changes a port; absent properties stay as they are.
    Set {
        /// The port.
        which: Which,
        /// Kind of the port, which must not change.
        kind: Option<Kind>,
        /// Sockets for upcalls.
        upcall_pids: Option<Vec<u32>>,
        /// Options of tunnels.
        options: Option<Options>,
    },
    /// Asks for all ports of this datapath.
    Dump {
        /// Number of the datapath.
        datapath: u32,
    },
}

counters! {
    /// `struct ovs_vport_stats`: received from the port, transmitted to it.
    Stats {
        /// Packets received.
        rx_packets,
        /// Packets transmitted.
        tx_packets,
        /// Bytes received.
        rx_bytes,
        /// Bytes transmitted.
        tx_bytes,
        /// Bad packets received.
        rx_errors,
        /// Packets that could not be transmitted.
        tx_errors,
        /// Received packets that were dropped.
        rx_dropped,
        /// Packets to transmit that were dropped.
        tx_dropped,
    }
}

/// A port, as replies, dumps and notifications describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vport {
    /// The event, or [`Command::Get`].
    pub command: Command,
    /// Number of the datapath.
    pub datapath: u32,
    /// Number.
    pub port: u32,
    /// Kind of the port.
    pub kind: Kind,
    /// Name.
    pub name: Name,
    /// Options of tunnels.
    pub options: Option<Options>,
    /// Sockets for upcalls. ovs-vswitchd refuses a reply without them, even if sockets are chosen by
    /// processor.
    pub upcall_pids: Vec<u32>,
    /// Counts of packets.
    pub stats: Option<Stats>,
    /// Interface index.
    pub ifindex: Option<u32>,
    /// Number of its network namespace, if that is not the datapath's.
    pub netns_id: Option<i32>,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        let datapath = message.datapath;
        if message.dump {
            if command != Command::Get {
                return Err(message.unknown());
            }
            table.only(&[])?;
            return Ok(Self::Dump { datapath });
        }
        let allowed: &[u16] = match command {
            Command::New => &[PORT_NO, TYPE, NAME, OPTIONS, UPCALL_PID, IFINDEX],
            Command::Delete | Command::Get => &[PORT_NO, NAME],
            Command::Set => &[PORT_NO, TYPE, NAME, OPTIONS, UPCALL_PID],
        };
        table.only(allowed)?;
        let pids = table.bytes(UPCALL_PID).map(read_pids).transpose()?;
        let kind = table.u32(TYPE).map(Kind::read).transpose()?;
        let options = table.bytes(OPTIONS).map(read_options).transpose()?;
        let which = read_which(datapath, &table)?;
        Ok(match command {
            Command::New => Self::New {
                datapath,
                name: table.required(NAME, which.name)?,
                kind: table.required(TYPE, kind)?,
                port: which.port,
                upcall_pids: table.required(UPCALL_PID, pids)?,
                options,
                ifindex: table.u32(IFINDEX),
            },
            Command::Delete => Self::Delete(which.check(&table)?),
            Command::Get => Self::Get(which.check(&table)?),
            Command::Set => Self::Set {
                which: which.check(&table)?,
                kind,
                upcall_pids: pids,
                options,
            },
        })
    }

    /// Writes the request.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let (command, datapath) = match self {
            Self::New { datapath, .. } => (Command::New, *datapath),
            Self::Delete(which) => (Command::Delete, which.datapath),
            Self::Get(which) => (Command::Get, which.datapath),
            Self::Set { which, .. } => (Command::Set, which.datapath),
            Self::Dump { datapath } => (Command::Get, *datapath),
        };
        let start = (Family::Vport, command as u8, datapath);
        family::write(writer, header, start, |writer| match self {
            Self::New {
                name,
                kind,
                port,
                upcall_pids,
                options,
                ifindex,
                ..
            } => {
                writer.optional_u32(PORT_NO, *port);
                writer.u32(TYPE, *kind as u32);
                writer.attribute(NAME, &name.terminated());
                write_numbers(UPCALL_PID, upcall_pids, writer);
                write_options(options.as_ref(), writer);
                writer.optional_u32(IFINDEX, *ifindex);
            }
            Self::Delete(which) | Self::Get(which) => which.write(writer),
            Self::Set {
                which,
                kind,
                upcall_pids,
                options,
            } => {
                which.write(writer);
                writer.optional_u32(TYPE, kind.map(|kind| kind as u32));
                if let Some(pids) = upcall_pids {
                    write_numbers(UPCALL_PID, pids, writer);
                }
                write_options(options.as_ref(), writer);
            }
            Self::Dump { .. } => {}
        });
    }
}

impl Which {
    fn check(self, table: &Table<'_, 10>) -> Result<Self, Error> {
        if self.name.is_none() && self.port.is_none() {
            return Err(table.missing(PORT_NO));
        }
        Ok(self)
    }

    fn write(&self, writer: &mut Writer) {
        writer.optional_u32(PORT_NO, self.port);
        if let Some(name) = &self.name {
            writer.attribute(NAME, &name.terminated());
        }
    }
}

impl Vport {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        let which = read_which(message.datapath, &table)?;
        let pids = table.bytes(UPCALL_PID).map(read_pids).transpose()?;
        Ok(Self {
            command,
            datapath: message.datapath,
            port: table.required(PORT_NO, which.port)?,
            kind: Kind::read(table.required(TYPE, table.u32(TYPE))?)?,
            name: table.required(NAME, which.name)?,
            options: table.bytes(OPTIONS).map(read_options).transpose()?,
            upcall_pids: table.required(UPCALL_PID, pids)?,
            stats: table.bytes(STATS).and_then(Stats::from_bytes),
            ifindex: table.u32(IFINDEX),
            netns_id: table.u32(NETNSID).map(u32::cast_signed),
        })
    }

    /// Writes the reply.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let start = (Family::Vport, self.command as u8, self.datapath);
        family::write(writer, header, start, |writer| {
            writer.u32(PORT_NO, self.port);
            writer.u32(TYPE, self.kind as u32);
            writer.attribute(NAME, &self.name.terminated());
            writer.optional_u32(IFINDEX, self.ifindex);
            writer.optional_u32(NETNSID, self.netns_id.map(i32::cast_unsigned));
            if let Some(stats) = self.stats {
                writer.attribute(STATS, &stats.to_bytes());
            }
            write_numbers(UPCALL_PID, &self.upcall_pids, writer);
            write_options(self.options.as_ref(), writer);
        });
    }
}

fn read_which(datapath: u32, table: &Table<'_, 10>) -> Result<Which, Error> {
    let name = table.bytes(NAME);
    let name = name
        .map(|name| Name::read(SET.name, NAME, name, MAX_INTERFACE))
        .transpose()?;
    let port = table.u32(PORT_NO);
    match port {
        Some(number) if number >= NO_PORT => Err(Error::PortNumber(number)),
        _ => Ok(Which { datapath, name, port }),
    }
}

fn read_pids(bytes: &[u8]) -> Result<Vec<u32>, Error> {
    if !bytes.len().is_multiple_of(4) {
        return Err(Error::Size {
            set: SET.name,
            kind: UPCALL_PID,
            found: bytes.len(),
        });
    }
    Ok(numbers(bytes))
}

fn read_options(bytes: &[u8]) -> Result<Options, Error> {
    let table = Table::read(&TUNNEL, bytes)?;
    let extensions = match table.bytes(EXTENSION) {
        Some(bytes) => Table::read(&EXTENSIONS, bytes)?,
        None => Table::empty(&EXTENSIONS),
    };
    Ok(Options {
        port: table.u16(DST_PORT),
        group_policy: extensions.has(GBP),
    })
}

fn write_options(options: Option<&Options>, writer: &mut Writer) {
    let Some(options) = options else { return };
    writer.nested(OPTIONS, |writer| {
        if let Some(port) = options.port {
            writer.u16(DST_PORT, port);
        }
        if options.group_policy {
            writer.nested(EXTENSION, |writer| writer.flag(GBP, true));
        }
    });
}
