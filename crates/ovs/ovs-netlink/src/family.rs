//! The families, the numbers that the glue gives them, and the headers with which all their messages begin.

use crate::attribute::Writer;
use crate::error::Error;
use crate::message::{self, Flags, Generic, Header, Message};

/// A generic netlink family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `nlctrl`: describes the families.
    Control,
    /// Datapaths.
    Datapath,
    /// Ports of datapaths.
    Vport,
    /// Flows.
    Flow,
    /// Packets.
    Packet,
    /// Meters.
    Meter,
    /// Limits of connection tracking.
    CtLimit,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 7] = [
        Self::Control,
        Self::Datapath,
        Self::Vport,
        Self::Flow,
        Self::Packet,
        Self::Meter,
        Self::CtLimit,
    ];

    /// Message type of the family's messages. That of `nlctrl` is fixed; the kernel numbers the others in the
    /// order in which they are registered.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Control => message::FIRST_TYPE,
            Self::Datapath => 0x20,
            Self::Vport => 0x21,
            Self::Flow => 0x22,
            Self::Packet => 0x23,
            Self::Meter => 0x24,
            Self::CtLimit => 0x25,
        }
    }

    /// The family with this message type.
    #[must_use]
    pub fn of_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }

    /// The family's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "nlctrl",
            Self::Datapath => "ovs_datapath",
            Self::Vport => "ovs_vport",
            Self::Flow => "ovs_flow",
            Self::Packet => "ovs_packet",
            Self::Meter => "ovs_meter",
            Self::CtLimit => "ovs_ct_limit",
        }
    }

    /// The family's version.
    #[must_use]
    pub fn version(self) -> u8 {
        match self {
            Self::Control | Self::Datapath => 2,
            _ => 1,
        }
    }

    /// Number of the multicast group that has the family's name. The family for packets has none: upcalls go
    /// to single sockets.
    #[must_use]
    pub fn group(self) -> Option<u32> {
        match self {
            Self::Control | Self::Packet => None,
            _ => Some(u32::from(self.number())),
        }
    }

    /// Bytes between generic netlink header and attributes: the datapath's number, except for `nlctrl`.
    #[must_use]
    pub fn header_size(self) -> usize {
        if self == Self::Control { 0 } else { 4 }
    }

    /// The greatest attribute.
    #[must_use]
    pub fn max_attribute(self) -> u32 {
        match self {
            Self::Control => 7,
            Self::Datapath | Self::Vport | Self::Meter => 9,
            Self::Flow => 11,
            Self::Packet => 12,
            Self::CtLimit => 1,
        }
    }
}

/// A message to or from a family, whose headers have been read and whose attributes have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyMessage<'a> {
    /// The family.
    pub family: Family,
    /// The command.
    pub command: u8,
    /// The message asks for a dump.
    pub dump: bool,
    /// Number of the datapath: the interface index of its local port; 0 stands for none.
    pub datapath: u32,
    /// The attributes.
    pub attributes: &'a [u8],
}

impl<'a> FamilyMessage<'a> {
    /// Reads the headers with which the messages of all families begin.
    ///
    /// # Errors
    ///
    /// The message belongs to no family, or is cut short.
    pub fn read(message: &Message<'a>) -> Result<Self, Error> {
        let number = message.header.kind;
        let family = Family::of_number(number).ok_or(Error::Family(number))?;
        let (Generic { command, .. }, rest) = message.generic()?;
        let (datapath, attributes) = if family == Family::Control {
            (0, rest)
        } else {
            let (datapath, rest) = message::fixed::<4>(rest, "header of an ovs family")?;
            (u32::from_ne_bytes(*datapath), rest)
        };
        Ok(Self {
            family,
            command,
            dump: message.header.flags.contains(Flags::DUMP),
            datapath,
            attributes,
        })
    }

    /// The error that the family does not have the command, or cannot dump with it.
    #[must_use]
    pub fn unknown(&self) -> Error {
        Error::Command {
            family: self.family.name(),
            command: self.command,
            dump: self.dump,
        }
    }
}

/// Writes a message of `family`, with the attributes that `body` writes. The header's type is set to the
/// family's; its flags stay as they are.
pub(crate) fn write(
    writer: &mut Writer,
    header: Header,
    (family, command, datapath): (Family, u8, u32),
    body: impl FnOnce(&mut Writer),
) {
    let header = Header {
        kind: family.number(),
        ..header
    };
    let generic = Generic {
        command,
        version: family.version(),
    };
    writer.message(header, |writer| {
        writer.generic(generic);
        if family.header_size() > 0 {
            writer.raw(&datapath.to_ne_bytes());
        }
        body(writer);
    });
}
