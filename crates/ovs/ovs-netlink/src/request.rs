//! Requests and replies of all families.

use crate::attribute::Writer;
use crate::control;
use crate::ct_limit;
use crate::datapath::{self, Datapath};
use crate::error::Error;
use crate::family::{Family, FamilyMessage};
use crate::flow::{self, Flow};
use crate::message::{Flags, Header, Message};
use crate::meter;
use crate::packet::{Execute, Upcall};
use crate::vport::{self, Vport};

/// A request of user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Descriptions of families.
    Control(control::Request),
    /// Datapaths.
    Datapath(datapath::Request),
    /// Ports.
    Vport(vport::Request),
    /// Flows of the datapath with this number.
    Flow(u32, flow::Request),
    /// A packet to execute.
    Execute(Box<Execute<'a>>),
    /// Meters of the datapath with this number.
    Meter(u32, meter::Request),
    /// Limits of connection tracking.
    CtLimit(ct_limit::Request),
}

/// A message from the datapath: a reply, a part of a dump, a notification or an upcall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A family.
    Control(control::Description),
    /// A datapath.
    Datapath(Datapath),
    /// A port.
    Vport(Vport),
    /// A flow of the datapath with this number.
    Flow(u32, Flow),
    /// A packet from the datapath with this number.
    Upcall(u32, Upcall<'a>),
    /// A meter of the datapath with this number.
    Meter(u32, meter::Reply),
    /// Limits of connection tracking.
    CtLimit(ct_limit::Reply),
}

impl<'a> Request<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The message is no request, its family or command is unknown, or an attribute is wrong.
    /// [`Error::errno`] is the kernel's answer.
    pub fn read(message: &Message<'a>) -> Result<Self, Error> {
        let flags = message.header.flags;
        if !flags.contains(Flags::REQUEST) {
            return Err(Error::Value {
                what: "flags of a request",
                value: u64::from(flags.0),
            });
        }
        let message = FamilyMessage::read(message)?;
        Ok(match message.family {
            Family::Control => Self::Control(control::Request::read(&message)?),
            Family::Datapath => Self::Datapath(datapath::Request::read(&message)?),
            Family::Vport => Self::Vport(vport::Request::read(&message)?),
            Family::Flow => Self::Flow(message.datapath, flow::Request::read(&message)?),
            Family::Packet => Self::Execute(Box::new(Execute::read(&message)?)),
            Family::Meter => Self::Meter(message.datapath, meter::Request::read(&message)?),
            Family::CtLimit => Self::CtLimit(ct_limit::Request::read(&message)?),
        })
    }

    /// Whether it is a request for a dump.
    #[must_use]
    pub fn is_dump(&self) -> bool {
        match self {
            Self::Datapath(request) => *request == datapath::Request::Dump,
            Self::Vport(request) => matches!(request, vport::Request::Dump { .. }),
            Self::Flow(_, request) => matches!(request, flow::Request::Dump { .. }),
            Self::Control(_) | Self::Execute(_) | Self::Meter(..) | Self::CtLimit(_) => false,
        }
    }

    /// Writes the request. The header's type is set to the family's; the flags that make it a request, and a
    /// dump, are set.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        let dump = if self.is_dump() {
            Flags::DUMP
        } else {
            Flags::default()
        };
        let header = Header {
            flags: header.flags | Flags::REQUEST | dump,
            ..header
        };
        match self {
            Self::Control(request) => request.write(header, writer),
            Self::Datapath(request) => request.write(header, writer),
            Self::Vport(request) => request.write(header, writer),
            Self::Flow(datapath, request) => request.write(header, *datapath, writer),
            Self::Execute(request) => request.write(header, writer),
            Self::Meter(datapath, request) => request.write(header, *datapath, writer),
            Self::CtLimit(request) => request.write(header, writer),
        }
    }
}

impl<'a> Reply<'a> {
    /// Reads a reply. Errors, acknowledgements and ends of dumps are not replies; see [`Message::status`].
    ///
    /// # Errors
    ///
    /// The message's family or command is unknown, or an attribute is wrong.
    pub fn read(message: &Message<'a>) -> Result<Self, Error> {
        let message = FamilyMessage::read(message)?;
        Ok(match message.family {
            Family::Control => Self::Control(control::Description::read(&message)?),
            Family::Datapath => Self::Datapath(Datapath::read(&message)?),
            Family::Vport => Self::Vport(Vport::read(&message)?),
            Family::Flow => Self::Flow(message.datapath, Flow::read(&message)?),
            Family::Packet => Self::Upcall(message.datapath, Upcall::read(&message)?),
            Family::Meter => Self::Meter(message.datapath, meter::Reply::read(&message)?),
            Family::CtLimit => Self::CtLimit(ct_limit::Reply::read(&message)?),
        })
    }

    /// Writes the reply. The header's type is set to the family's, its flags stay as they are.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        match self {
            Self::Control(reply) => reply.write(header, writer),
            Self::Datapath(reply) => reply.write(header, writer),
            Self::Vport(reply) => reply.write(header, writer),
            Self::Flow(datapath, reply) => reply.write(header, *datapath, writer),
            Self::Upcall(datapath, reply) => reply.write(header, *datapath, writer),
            Self::Meter(datapath, reply) => reply.write(header, *datapath, writer),
            Self::CtLimit(reply) => reply.write(header, writer),
        }
    }
}
