//! Packets: `OVS_PACKET_CMD_*`, `OVS_PACKET_ATTR_*`.

use crate::action::{self, Action};
use crate::attribute::{AttributeSet, Rule, Table, Writer};
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::key::{Key, Metadata, Tunnel};
use crate::message::Header;

/// Least bytes of a packet.
pub const LEAST_LENGTH: usize = 14;

const MISS: u8 = 1;
const ACTION: u8 = 2;
const EXECUTE: u8 = 3;

const PACKET: u16 = 1;
const KEY: u16 = 2;
const ACTIONS: u16 = 3;
const USERDATA: u16 = 4;
const EGRESS_TUN_KEY: u16 = 5;
const PROBE: u16 = 8;
const MRU: u16 = 9;
const LEN: u16 = 10;
const HASH: u16 = 11;
/// An attribute of later kernels, which ovs-vswitchd 3.7 sends to older ones too.
const UPCALL_PID: u16 = 12;

static SET: AttributeSet<13> = AttributeSet {
    name: "OVS_PACKET_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Unknown};
        [
            Unknown,
            Between(LEAST_LENGTH, u16::MAX as usize),
            Any,
            Any,
            Any,
            Any,
            Unknown,
            Unknown,
            Exactly(0),
            Exactly(2),
            Exactly(4),
            Exactly(8),
            Exactly(4),
        ]
    },
};

/// A packet on which actions are to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execute<'a> {
    /// Number of the datapath.
    pub datapath: u32,
    /// The packet, from its first header on.
    pub packet: &'a [u8],
    /// Metadata of the packet.
    pub metadata: Metadata,
    /// Ethernet type of the packet, if it begins with its network header.
    pub eth_type: Option<u16>,
    /// The actions. They are not checked against the packet's key; see [`action::check()`].
    pub actions: Vec<Action>,
    /// A probe: the sender only wants to know whether the datapath supports this.
    pub probe: bool,
    /// Greatest fragment that it was reassembled from, in bytes.
    pub mru: Option<u16>,
    /// [`Upcall::hash`], if the packet is that of an upcall.
    pub hash: Option<u64>,
    /// Socket for upcalls that the actions cause.
    pub upcall_pid: Option<u32>,
}

/// Why a packet goes to user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The packet matched no flow.
    Miss = MISS,
    /// An action sent it.
    Action = ACTION,
}

/// A packet that goes to user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcall<'a> {
    /// Why it goes to user space.
    pub reason: Reason,
    /// The packet.
    pub packet: &'a [u8],
    /// Key of the packet as it was received.
    pub key: Box<Key>,
    /// [`action::Userspace::userdata`] of the action.
    pub userdata: Option<&'a [u8]>,
    /// Outer headers that it would get at the tunnel port.
    pub egress_tunnel: Option<Tunnel>,
    /// The flow's actions.
    pub actions: Option<Vec<Action>>,
    /// Greatest fragment that it was reassembled from, in bytes.
    pub mru: Option<u16>,
    /// Length of the packet in bytes before it was truncated.
    pub length: Option<u32>,
    /// Hash of the packet, not 0; it is repeated when the packet comes back to be executed unchanged.
    pub hash: Option<u64>,
}

impl<'a> Execute<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'a>) -> Result<Self, Error> {
        if message.command != EXECUTE || message.dump {
            return Err(message.unknown());
        }
        let table = Table::read(&SET, message.attributes)?;
        table.only(&[PACKET, KEY, ACTIONS, PROBE, MRU, LEN, HASH, UPCALL_PID])?;
        let (metadata, eth_type) = Key::read_metadata(table.required(KEY, table.bytes(KEY))?)?;
        Ok(Self {
            datapath: message.datapath,
            packet: table.required(PACKET, table.bytes(PACKET))?,
            metadata,
            eth_type,
            actions: action::read(table.required(ACTIONS, table.bytes(ACTIONS))?)?,
            probe: table.has(PROBE),
            mru: table.u16(MRU),
            hash: table.u64(HASH),
            upcall_pid: table.u32(UPCALL_PID),
        })
    }

    /// Writes the request.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let start = (Family::Packet, EXECUTE, self.datapath);
        family::write(writer, header, start, |writer| {
            writer.attribute(PACKET, self.packet);
            writer.nested(KEY, |writer| self.metadata.write_execute(self.eth_type, writer));
            writer.nested(ACTIONS, |writer| action::write(&self.actions, writer));
            writer.flag(PROBE, self.probe);
            if let Some(mru) = self.mru {
                writer.u16(MRU, mru);
            }
            if let Some(hash) = self.hash {
                writer.u64(HASH, hash);
            }
            writer.optional_u32(UPCALL_PID, self.upcall_pid);
        });
    }
}

impl<'a> Upcall<'a> {
    /// Reads an upcall.
    ///
    /// # Errors
    ///
    /// The message is no upcall, or an attribute is wrong, missing or without a meaning in it.
    pub fn read(message: &FamilyMessage<'a>) -> Result<Self, Error> {
        let reason = match message.command {
            MISS => Reason::Miss,
            ACTION => Reason::Action,
            _ => return Err(message.unknown()),
        };
        let table = Table::read(&SET, message.attributes)?;
        table.only(&[PACKET, KEY, ACTIONS, USERDATA, EGRESS_TUN_KEY, MRU, LEN, HASH])?;
        Ok(Self {
            reason,
            packet: table.required(PACKET, table.bytes(PACKET))?,
            key: Box::new(Key::read(table.required(KEY, table.bytes(KEY))?)?),
            userdata: table.bytes(USERDATA),
            egress_tunnel: table.bytes(EGRESS_TUN_KEY).map(Tunnel::read).transpose()?,
            actions: table.bytes(ACTIONS).map(action::read).transpose()?,
            mru: table.u16(MRU),
            length: table.u32(LEN),
            hash: table.u64(HASH),
        })
    }

    /// Writes the upcall of this datapath. The packet comes last, as from the kernel.
    pub fn write(&self, header: Header, datapath: u32, writer: &mut Writer) {
        let start = (Family::Packet, self.reason as u8, datapath);
        family::write(writer, header, start, |writer| {
            writer.nested(KEY, |writer| self.key.write(writer));
            if let Some(userdata) = self.userdata {
                writer.attribute(USERDATA, userdata);
            }
            if let Some(tunnel) = &self.egress_tunnel {
                writer.nested(EGRESS_TUN_KEY, |writer| tunnel.write(writer));
            }
            if let Some(actions) = &self.actions {
                writer.nested(ACTIONS, |writer| action::write(actions, writer));
            }
            if let Some(mru) = self.mru {
                writer.u16(MRU, mru);
            }
            writer.optional_u32(LEN, self.length);
            if let Some(hash) = self.hash {
                writer.u64(HASH, hash);
            }
            writer.attribute(PACKET, self.packet);
        });
    }
}
