//! Netlink messages of a datagram: headers, acknowledgements, ends of dumps.
//!
//! A datagram holds messages one after the other, each aligned to 4 bytes; the last need not be padded. Each
//! has a 16-byte header (`struct nlmsghdr`); those of generic netlink go on with a 4-byte header (`struct
//! genlmsghdr`), those of the `ovs_*` families with the datapath's number (`struct ovs_header`). An error in
//! one message's contents does not concern the others; an error in a length field ends the datagram, since it
//! is not known where the next message begins.

use crate::attribute::Writer;
use crate::error::{Errno, Error};

/// Bytes of `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// Bytes of `struct genlmsghdr`.
pub const GENERIC_HEADER: usize = 4;
/// Most bytes that one message may have. The parts of a dump are far shorter; the packet of an upcall is at
/// most one attribute.
pub const MAX_MESSAGE: usize = 1 << 20;

/// Message type: nothing, to be ignored.
pub const NOOP: u16 = 1;
/// Message type: error number or acknowledgement.
pub const ERROR: u16 = 2;
/// Message type: end of a dump.
pub const DONE: u16 = 3;
/// Message types below this one are netlink's own.
pub const FIRST_TYPE: u16 = 0x10;

/// Flags of a message, `NLM_F_*`. The meaning of some bits depends on whether the message is a request to
/// make something, a request to get something, or an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// The message is a request.
    pub const REQUEST: Self = Self(0x1);
    /// The message is one of several that answer a dump.
    pub const MULTI: Self = Self(0x2);
    /// The sender wants an acknowledgement also in case of success.
    pub const ACK: Self = Self(0x4);
    /// The sender wants a reply with the result of its request.
    pub const ECHO: Self = Self(0x8);
    /// The two bits that ask for a dump.
    pub const DUMP: Self = Self(0x300);
    /// In requests that make an object: an existing one may not be replaced.
    pub const EXCLUSIVE: Self = Self(0x200);
    /// In requests that make an object: it may be created.
    pub const CREATE: Self = Self(0x400);

    /// Whether all bits of `other` are set. A dump needs both bits of [`Self::DUMP`], as in the kernel.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// `struct nlmsghdr`, without the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Message type: a number below [`FIRST_TYPE`], or a family.
    pub kind: u16,
    /// Flags.
    pub flags: Flags,
    /// Sequence number, chosen by the sender of the request; answers repeat it.
    pub sequence: u32,
    /// Netlink port (`nl_pid`) of the requesting socket; answers repeat it. Zero in notifications and
    /// upcalls.
    pub port: u32,
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Header of the message.
    pub header: Header,
    /// The bytes behind the header, without padding.
    pub payload: &'a [u8],
}

/// Iterator over the messages of a datagram, in order. It ends after an error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// The messages of `datagram`.
#[must_use]
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

impl<'a> Messages<'a> {
    fn read(&mut self) -> Result<Message<'a>, Error> {
        let header = self.rest.first_chunk::<HEADER>().ok_or(Error::Cut {
            what: "netlink header",
            needed: HEADER,
            found: self.rest.len(),
        })?;
        let claimed = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let length = usize::try_from(claimed).unwrap_or(usize::MAX);
        if length < HEADER || length > self.rest.len() {
            return Err(Error::Length {
                what: "netlink message",
                claimed: length,
                room: self.rest.len(),
            });
        }
        if length > MAX_MESSAGE {
            return Err(Error::TooLong {
                what: "netlink message",
                found: length,
                limit: MAX_MESSAGE,
            });
        }
        let message = Message {
            header: Header {
                kind: u16::from_ne_bytes([header[4], header[5]]),
                flags: Flags(u16::from_ne_bytes([header[6], header[7]])),
                sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
                port: u32::from_ne_bytes([header[12], header[13], header[14], header[15]]),
            },
            payload: &self.rest[HEADER..length],
        };
        let next = length.next_multiple_of(4).min(self.rest.len());
        self.rest = &self.rest[next..];
        Ok(message)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.read();
        if message.is_err() {
            self.rest = &[];
        }
        Some(message)
    }
}

/// `struct genlmsghdr`, without its reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generic {
    /// The family's command.
    pub command: u8,
    /// The family's version. The kernel ignores it.
    pub version: u8,
}

impl<'a> Message<'a> {
    /// The generic netlink header, and the bytes behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Cut`] if the payload is shorter than the header.
    pub fn generic(&self) -> Result<(Generic, &'a [u8]), Error> {
        let (header, rest) = fixed::<GENERIC_HEADER>(self.payload, "generic netlink header")?;
        let [command, version, _, _] = *header;
        Ok((Generic { command, version }, rest))
    }

    /// The status in an answer of netlink's own: acknowledgement, error or end of a dump. `None` for other
    /// messages.
    ///
    /// # Errors
    ///
    /// The message is too short for its type, or the error number is not one.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        let done = match self.header.kind {
            ERROR => false,
            DONE => true,
            _ => return Ok(None),
        };
        let (number, _) = fixed::<4>(self.payload, "netlink status")?;
        let number = i32::from_ne_bytes(*number);
        if !(-4095..=0).contains(&number) {
            return Err(Error::Value {
                what: "netlink error number",
                value: u64::from(number.cast_unsigned()),
            });
        }
        let errno = (number != 0).then_some(Errno(-number));
        Ok(Some(if done {
            Status::Done(errno)
        } else {
            Status::Answer(errno)
        }))
    }
}

/// An answer of netlink's own to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `NLMSG_ERROR`: an error, or, without one, an acknowledgement.
    Answer(Option<Errno>),
    /// `NLMSG_DONE`: the end of a dump, with an error if it ended early.
    Done(Option<Errno>),
}

impl Status {
    /// Writes the message that answers `request`. As in the kernel, an error repeats the whole request, an
    /// acknowledgement only its header.
    pub fn write(self, request: &Message<'_>, writer: &mut Writer) {
        let (kind, flags, errno) = match self {
            Self::Answer(errno) => (ERROR, Flags::default(), errno),
            Self::Done(errno) => (DONE, Flags::MULTI, errno),
        };
        let header = Header {
            kind,
            flags,
            ..request.header
        };
        writer.message(header, |writer| {
            writer.raw(&errno.map_or(0, |errno| -errno.0).to_ne_bytes());
            if kind == ERROR {
                let repeated = if errno.is_some() { request.payload } else { &[] };
                // The length of the whole request, even if only its header follows.
                writer.header(request.header, HEADER + request.payload.len());
                writer.raw(repeated);
            }
        });
    }
}

/// The first `N` bytes, and the bytes behind them.
pub(crate) fn fixed<'a, const N: usize>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), Error> {
    bytes.split_first_chunk::<N>().ok_or(Error::Cut {
        what,
        needed: N,
        found: bytes.len(),
    })
}
