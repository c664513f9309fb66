//! Flows: `OVS_FLOW_CMD_*`, `OVS_FLOW_ATTR_*`.

use crate::action::{self, Action};
use crate::attribute::{AttributeSet, Rule, Writer};
pub use crate::datapath::Command;
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::key::{Key, Mask, Match};
use crate::message::Header;
use crate::number::counters;

/// Most bytes of a unique flow identifier (`MAX_UFID_LENGTH`).
pub const MAX_UFID: usize = 16;

const KEY: u16 = 1;
const ACTIONS: u16 = 2;
const STATS: u16 = 3;
const TCP_FLAGS: u16 = 4;
const USED: u16 = 5;
const CLEAR: u16 = 6;
const MASK: u16 = 7;
const PROBE: u16 = 8;
const UFID: u16 = 9;
const UFID_FLAGS: u16 = 10;

static SET: AttributeSet<12> = AttributeSet {
    name: "OVS_FLOW_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Padding, Unknown};
        [
            Unknown,
            Any,
            Any,
            Exactly(16),
            Exactly(1),
            Exactly(8),
            Exactly(0),
            Any,
            Exactly(0),
            Between(1, MAX_UFID),
            Exactly(4),
            Padding,
        ]
    },
};

type Table<'a> = crate::attribute::Table<'a, 12>;

/// Unique flow identifier: 1 to [`MAX_UFID`] bytes that the user chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ufid {
    bytes: [u8; MAX_UFID],
    length: usize,
}

impl Ufid {
    /// `None` if there are no bytes, or more than [`MAX_UFID`].
    #[must_use]
    pub fn new(identifier: &[u8]) -> Option<Self> {
        let length = identifier.len();
        let mut bytes = [0; MAX_UFID];
        bytes.get_mut(..length)?.copy_from_slice(identifier);
        (length > 0).then_some(Self { bytes, length })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The parts of flows with an identifier that replies may leave out (`OVS_UFID_F_OMIT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omit {
    /// The key.
    pub key: bool,
    /// The mask.
    pub mask: bool,
    /// The actions.
    pub actions: bool,
}

impl Omit {
    const KEY: u32 = 1;
    const MASK: u32 = 2;
    const ACTIONS: u32 = 4;

    fn read(table: &Table<'_>) -> Result<Self, Error> {
        let flags = table.u32(UFID_FLAGS).unwrap_or(0);
        if flags & !(Self::KEY | Self::MASK | Self::ACTIONS) != 0 {
            return Err(Error::Value {
                what: "OVS_FLOW_ATTR_UFID_FLAGS",
                value: u64::from(flags),
            });
        }
        Ok(Self {
            key: flags & Self::KEY != 0,
            mask: flags & Self::MASK != 0,
            actions: flags & Self::ACTIONS != 0,
        })
    }

    fn write(self, writer: &mut Writer) {
        let flag = |there, flag| if there { flag } else { 0 };
        let flags =
            flag(self.key, Self::KEY) | flag(self.mask, Self::MASK) | flag(self.actions, Self::ACTIONS);
        if flags != 0 {
            writer.u32(UFID_FLAGS, flags);
        }
    }
}

/// Selects the flow with the identifier, or the one that was installed with exactly this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// By identifier. A key may be sent as well, and is ignored.
    Ufid(Ufid, Option<Box<Key>>),
    /// By key.
    Key(Box<Key>),
}

/// A request. The header's flags say whether a new flow may replace an existing one, and whether a reply is
/// wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Installs a flow.
    New {
        /// The packets that it matches.
        flow: Box<Match>,
        /// Actions of the flow.
        actions: Vec<Action>,
        /// Identifier of the flow; without one its key identifies it.
        ufid: Option<Ufid>,
        /// The parts that a reply may leave out.
        omit: Omit,
        /// A probe: the sender only wants to know whether the datapath supports this.
        probe: bool,
    },
    /// Changes a flow.
    Set {
        /// The packets that it matches; required with new actions, or without an identifier.
        flow: Option<Box<Match>>,
        /// New actions, if they change.
        actions: Option<Vec<Action>>,
        /// Identifier of the flow.
        ufid: Option<Ufid>,
        /// Resets its counters.
        clear: bool,
        /// The parts that a reply may leave out.
        omit: Omit,
        /// As in [`Self::New`].
        probe: bool,
    },
    /// Asks for a flow.
    Get {
        /// The flow.
        which: Which,
        /// The parts that the reply may leave out.
        omit: Omit,
        /// As in [`Self::New`].
        probe: bool,
    },
    /// Deletes a flow, and asks what it was.
    Delete {
        /// The flow.
        which: Which,
        /// The parts that the reply may leave out.
        omit: Omit,
        /// As in [`Self::New`].
        probe: bool,
    },
    /// Deletes all flows.
    Flush,
    /// Asks for all flows.
    Dump {
        /// The parts that replies may leave out.
        omit: Omit,
    },
}

counters! {
    /// `struct ovs_flow_stats`.
    Stats {
        /// Packets.
        packets,
        /// Bytes.
        bytes,
    }
}

/// A flow, as replies, dumps and notifications describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The event, or [`Command::Get`].
    pub command: Command,
    /// Identifier, if it was installed with one.
    pub ufid: Option<Ufid>,
    /// Key. For flows without an identifier it is the one they were installed with; for others it may be
    /// masked.
    pub key: Option<Box<Key>>,
    /// Mask; only with a key.
    pub mask: Option<Box<Mask>>,
    /// Actions of the flow.
    pub actions: Option<Vec<Action>>,
    /// Counters of the flow; absent if it matched no packet.
    pub stats: Option<Stats>,
    /// All TCP flags seen; absent if none.
    pub tcp_flags: Option<u8>,
    /// When it was last used, in milliseconds of the monotonic clock; absent if never.
    pub used: Option<u64>,
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
        let omit = Omit::read(&table)?;
        if message.dump {
            if command != Command::Get {
                return Err(message.unknown());
            }
            table.only(&[UFID_FLAGS, PROBE])?;
            return Ok(Self::Dump { omit });
        }
        let ufid = table.bytes(UFID).and_then(Ufid::new);
        let probe = table.has(PROBE);
        match command {
            Command::New => {
                table.only(&[KEY, MASK, ACTIONS, PROBE, UFID, UFID_FLAGS])?;
                let flow = table.required(KEY, read_match(&table)?)?;
                let actions = table.required(ACTIONS, read_actions(&table, &flow)?)?;
                Ok(Self::New {
                    flow,
                    actions,
                    ufid,
                    omit,
                    probe,
                })
            }
            Command::Set => {
                table.only(&[KEY, MASK, ACTIONS, CLEAR, PROBE, UFID, UFID_FLAGS])?;
                read_set(&table, ufid, omit)
            }
            Command::Get => {
                table.only(&[KEY, PROBE, UFID, UFID_FLAGS])?;
                let which = table.required(KEY, read_which(&table, ufid)?)?;
                Ok(Self::Get { which, omit, probe })
            }
            Command::Delete => {
                table.only(&[KEY, PROBE, UFID, UFID_FLAGS])?;
                Ok(match read_which(&table, ufid)? {
                    Some(which) => Self::Delete { which, omit, probe },
                    None => Self::Flush,
                })
            }
        }
    }

    /// Writes the request to this datapath.
    pub fn write(&self, header: Header, datapath: u32, writer: &mut Writer) {
        let command = match self {
            Self::New { .. } => Command::New,
            Self::Set { .. } => Command::Set,
            Self::Get { .. } | Self::Dump { .. } => Command::Get,
            Self::Delete { .. } | Self::Flush => Command::Delete,
        };
        family::write(
            writer,
            header,
            (Family::Flow, command as u8, datapath),
            |writer| {
                self.write_attributes(writer);
            },
        );
    }

    fn write_attributes(&self, writer: &mut Writer) {
        match self {
            Self::New {
                flow,
                actions,
                ufid,
                omit,
                probe,
            } => {
                write_start(ufid.as_ref(), *omit, *probe, writer);
                flow.write(writer, KEY, MASK);
                write_actions(Some(actions), writer);
            }
            Self::Set {
                flow,
                actions,
                ufid,
                clear,
                omit,
                probe,
            } => {
                write_start(ufid.as_ref(), *omit, *probe, writer);
                if let Some(flow) = flow {
                    flow.write(writer, KEY, MASK);
                }
                write_actions(actions.as_deref(), writer);
                writer.flag(CLEAR, *clear);
            }
            Self::Get { which, omit, probe } | Self::Delete { which, omit, probe } => {
                let (ufid, key) = match which {
                    Which::Ufid(ufid, key) => (Some(ufid), key.as_ref()),
                    Which::Key(key) => (None, Some(key)),
                };
                write_start(ufid, *omit, *probe, writer);
                if let Some(key) = key {
                    writer.nested(KEY, |writer| key.write(writer));
                }
            }
            Self::Dump { omit } => omit.write(writer),
            Self::Flush => {}
        }
    }
}

impl Flow {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        let command = Command::read(message)?;
        let table = Table::read(&SET, message.attributes)?;
        table.only(&[KEY, MASK, ACTIONS, STATS, TCP_FLAGS, USED, UFID])?;
        let (key, mask) = if table.has(MASK) {
            let flow = *table.required(KEY, read_match(&table)?)?;
            (Some(Box::new(flow.key)), Some(Box::new(flow.mask)))
        } else {
            (read_key(&table)?, None)
        };
        Ok(Self {
            command,
            ufid: table.bytes(UFID).and_then(Ufid::new),
            key,
            mask,
            actions: table.bytes(ACTIONS).map(action::read).transpose()?,
            stats: table.bytes(STATS).and_then(Stats::from_bytes),
            tcp_flags: table.u8(TCP_FLAGS),
            used: table.u64(USED),
        })
    }

    /// Writes the reply of this datapath.
    pub fn write(&self, header: Header, datapath: u32, writer: &mut Writer) {
        let start = (Family::Flow, self.command as u8, datapath);
        family::write(writer, header, start, |writer| {
            if let Some(ufid) = &self.ufid {
                writer.attribute(UFID, ufid.as_bytes());
            }
            if let Some(key) = &self.key {
                writer.nested(KEY, |writer| key.write(writer));
            }
            if let Some(mask) = &self.mask {
                writer.nested(MASK, |writer| mask.write(writer));
            }
            if let Some(used) = self.used {
                writer.u64(USED, used);
            }
            if let Some(stats) = self.stats {
                writer.attribute(STATS, &stats.to_bytes());
            }
            if let Some(flags) = self.tcp_flags {
                writer.u8(TCP_FLAGS, flags);
            }
            write_actions(self.actions.as_deref(), writer);
        });
    }
}

fn read_key(table: &Table<'_>) -> Result<Option<Box<Key>>, Error> {
    let key = table.bytes(KEY);
    key.map(|key| Key::read(key).map(Box::new)).transpose()
}

fn read_match(table: &Table<'_>) -> Result<Option<Box<Match>>, Error> {
    let key = table.bytes(KEY);
    key.map(|key| Match::read(key, table.bytes(MASK)).map(Box::new))
        .transpose()
}

fn read_which(table: &Table<'_>, ufid: Option<Ufid>) -> Result<Option<Which>, Error> {
    let key = read_key(table)?;
    Ok(match ufid {
        Some(ufid) => Some(Which::Ufid(ufid, key)),
        None => key.map(Which::Key),
    })
}

/// Reads the actions, and checks that they suit the flow.
fn read_actions(table: &Table<'_>, flow: &Match) -> Result<Option<Vec<Action>>, Error> {
    let Some(bytes) = table.bytes(ACTIONS) else {
        return Ok(None);
    };
    let actions = action::read(bytes)?;
    action::check(&actions, flow)?;
    Ok(Some(actions))
}

fn read_set(table: &Table<'_>, ufid: Option<Ufid>, omit: Omit) -> Result<Request, Error> {
    let flow = read_match(table)?;
    let actions = match &flow {
        Some(flow) => read_actions(table, flow)?,
        None if table.has(ACTIONS) || table.has(MASK) || ufid.is_none() => return Err(table.missing(KEY)),
        None => None,
    };
    Ok(Request::Set {
        flow,
        actions,
        ufid,
        clear: table.has(CLEAR),
        omit,
        probe: table.has(PROBE),
    })
}

fn write_start(ufid: Option<&Ufid>, omit: Omit, probe: bool, writer: &mut Writer) {
    if let Some(ufid) = ufid {
        writer.attribute(UFID, ufid.as_bytes());
    }
    omit.write(writer);
    writer.flag(PROBE, probe);
}

fn write_actions(actions: Option<&[Action]>, writer: &mut Writer) {
    if let Some(actions) = actions {
        writer.nested(ACTIONS, |writer| action::write(actions, writer));
    }
}
