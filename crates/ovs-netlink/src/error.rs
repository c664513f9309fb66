//! What can be wrong with a message, and the error number that a peer is answered with.

use std::fmt;

/// An error number of Linux (`asm-generic/errno.h`), positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The symbolic name, of those that this protocol uses.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1,
    ENOENT = 2,
    EIO = 5,
    E2BIG = 7,
    EAGAIN = 11,
    ENOMEM = 12,
    EBUSY = 16,
    EEXIST = 17,
    ENODEV = 19,
    EINVAL = 22,
    EFBIG = 27,
    ENOSPC = 28,
    ERANGE = 34,
    EOVERFLOW = 75,
    EMSGSIZE = 90,
    EOPNOTSUPP = 95,
    EAFNOSUPPORT = 97,
    ENOBUFS = 105,
}

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}

/// Why bytes are no message, or why a value cannot be written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are fewer bytes than the fixed part needs.
    #[error("{what} needs {needed} bytes, {found} are there")]
    Cut {
        /// What ends too early.
        what: &'static str,
        /// Bytes of its fixed part.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// A length field is below its header's size, or beyond the end of what holds it.
    #[error("{what} claims {claimed} bytes, {room} are there")]
    Length {
        /// What the length is of.
        what: &'static str,
        /// The length field.
        claimed: usize,
        /// Bytes that are there.
        room: usize,
    },
    /// An attribute that has no meaning here.
    #[error("{set}: attribute {kind} is unknown")]
    Unknown {
        /// Name of the attribute set, as `OVS_KEY_ATTR`.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that may be there once only.
    #[error("{set}: attribute {kind} is repeated")]
    Repeated {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that must be there.
    #[error("{set}: attribute {kind} is missing")]
    Missing {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that must not be there beside the others, or with these values of others.
    #[error("{set}: attribute {kind} does not belong here")]
    Misplaced {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute whose value has not the size that its kind has.
    #[error("{set}: attribute {kind} has {found} bytes")]
    Size {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
        /// Bytes of the value.
        found: usize,
    },
    /// A field with a value that has no meaning.
    #[error("{what} cannot be {value:#x}")]
    Value {
        /// Name of the field.
        what: &'static str,
        /// What was found.
        value: u64,
    },
    /// A name that is longer than an interface's may be, empty, or without its final zero.
    #[error("{set}: attribute {kind} is no name")]
    Name {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// A kind of port that does not exist.
    #[error("no port has type {0}")]
    PortKind(u32),
    /// A port number beyond the greatest.
    #[error("no port has number {0}")]
    PortNumber(u32),
    /// A message type that is no family of ours.
    #[error("no family has number {0}")]
    Family(u16),
    /// A command that the family does not have, or not in this form.
    #[error("{family} has no command {command}{}", if *.dump { " that dumps" } else { "" })]
    Command {
        /// Name of the family.
        family: &'static str,
        /// The command's number.
        command: u8,
        /// Whether a dump was asked for.
        dump: bool,
    },
    /// Attributes are nested deeper than the bound.
    #[error("{what} are nested more than {limit} deep")]
    TooDeep {
        /// What is nested.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// More elements than the bound.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// More bytes than the bound, or than a length field can say.
    #[error("{what} of {found} bytes, at most {limit} fit")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// The bound.
        limit: usize,
    },
}

impl Error {
    /// The number that the kernel answers such a request with (`net/netlink/genetlink.c`, `lib/nlattr.c`, `net/openvswitch`).
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Family(_) => Errno::ENOENT,
            Self::Command { .. } => Errno::EOPNOTSUPP,
            Self::Name { .. } => Errno::ERANGE,
            Self::PortKind(_) => Errno::EAFNOSUPPORT,
            Self::PortNumber(_) => Errno::EFBIG,
            Self::TooDeep { .. } => Errno::EOVERFLOW,
            Self::TooLong { .. } => Errno::EMSGSIZE,
            _ => Errno::EINVAL,
        }
    }
}
