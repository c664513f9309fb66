//! Limits of connection tracking: `OVS_CT_LIMIT_CMD_*`. They hold for all datapaths; the datapath's number in
//! the messages is 0.

use crate::attribute::{AttributeSet, Rule, Table, Writer};
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::message::Header;

/// Most zones that one message may name: as many as fit in an attribute.
pub const MAX_ZONES: usize = 5000;

const SET_COMMAND: u8 = 1;
const DELETE: u8 = 2;
const GET: u8 = 3;
const ZONE_LIMIT: u16 = 1;
/// Bytes of `struct ovs_zone_limit`.
const SIZE: usize = 12;

static SET: AttributeSet<2> = AttributeSet {
    name: "OVS_CT_LIMIT_ATTR",
    rules: [Rule::Unknown, Rule::Between(0, MAX_ZONES * SIZE)],
};

/// The connections that a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zone {
    /// All zones without a limit of their own (`OVS_ZONE_LIMIT_DEFAULT_ZONE`).
    Default,
    /// One zone.
    Zone(u16),
}

/// `struct ovs_zone_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLimit {
    /// Zone.
    pub zone: Zone,
    /// Most connections; 0 for no limit.
    pub limit: u32,
    /// Present number of connections, in replies.
    pub count: u32,
}

/// A request. Where only zones matter, the other fields are zero or ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Sets limits.
    Set(Vec<ZoneLimit>),
    /// Removes limits.
    Delete(Vec<ZoneLimit>),
    /// Asks for the limits of these zones, or of all.
    Get(Option<Vec<ZoneLimit>>),
}

/// The command that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Limits were set.
    Set = SET_COMMAND,
    /// Limits were removed.
    Delete = DELETE,
    /// Limits were asked for.
    Get = GET,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The command that a reply answers.
    pub command: Command,
    /// The limits, in the answer to [`Command::Get`].
    pub limits: Option<Vec<ZoneLimit>>,
}

impl Command {
    fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        match message.command {
            SET_COMMAND if !message.dump => Ok(Self::Set),
            DELETE if !message.dump => Ok(Self::Delete),
            GET if !message.dump => Ok(Self::Get),
            _ => Err(message.unknown()),
        }
    }
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        let limits = table.bytes(ZONE_LIMIT).map(read_limits).transpose()?;
        Ok(match command {
            Command::Get => Self::Get(limits),
            Command::Set => Self::Set(table.required(ZONE_LIMIT, limits)?),
            Command::Delete => Self::Delete(table.required(ZONE_LIMIT, limits)?),
        })
    }

    /// Writes the request.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let (command, limits) = match self {
            Self::Set(limits) => (Command::Set, Some(limits)),
            Self::Delete(limits) => (Command::Delete, Some(limits)),
            Self::Get(limits) => (Command::Get, limits.as_ref()),
        };
        write(command, limits, header, writer);
    }
}

impl Reply {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        let limits = table.bytes(ZONE_LIMIT).map(read_limits).transpose()?;
        Ok(Self { command, limits })
    }

    /// Writes the reply.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        write(self.command, self.limits.as_ref(), header, writer);
    }
}

fn write(command: Command, limits: Option<&Vec<ZoneLimit>>, header: Header, writer: &mut Writer) {
    family::write(writer, header, (Family::CtLimit, command as u8, 0), |writer| {
        if let Some(limits) = limits {
            let bytes: Vec<u8> = limits.iter().flat_map(|limit| limit.to_bytes()).collect();
            writer.attribute(ZONE_LIMIT, &bytes);
        }
    });
}

/// The attribute is an array of structs, though it is called nested.
fn read_limits(bytes: &[u8]) -> Result<Vec<ZoneLimit>, Error> {
    let (limits, rest) = bytes.as_chunks::<SIZE>();
    if !rest.is_empty() {
        return Err(Error::Size {
            set: SET.name,
            kind: ZONE_LIMIT,
            found: bytes.len(),
        });
    }
    limits.iter().map(ZoneLimit::from_bytes).collect()
}

impl ZoneLimit {
    fn from_bytes(bytes: &[u8; SIZE]) -> Result<Self, Error> {
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let zone = match (number(0), u16::try_from(number(0))) {
            (u32::MAX, _) => Zone::Default,
            (_, Ok(zone)) => Zone::Zone(zone),
            (other, Err(_)) => {
                return Err(Error::Value {
                    what: "zone",
                    value: u64::from(other),
                });
            }
        };
        Ok(Self {
            zone,
            limit: number(4),
            count: number(8),
        })
    }

    fn to_bytes(self) -> Vec<u8> {
        let zone = match self.zone {
            Zone::Default => u32::MAX,
            Zone::Zone(zone) => u32::from(zone),
        };
        [zone, self.limit, self.count].map(u32::to_ne_bytes).concat()
    }
}
