//! Errors in a message, and the error number with which the peer is answered.

use std::fmt;

/// An error number of Linux (`asm-generic/errno.h`), positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The symbolic name, if this protocol uses the number.
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
    EPROTONOSUPPORT = 93,
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

/// Why bytes are not a valid message, or why a value cannot be written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are fewer bytes than the fixed part needs.
    #[error("{what} needs {needed} bytes, but has {found}")]
    Cut {
        /// Name of the part that ends too early.
        what: &'static str,
        /// Bytes of its fixed part.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// A length field is below its header's size, or beyond the end of the message or attribute that contains
    /// it.
    #[error("{what} claims {claimed} bytes, but {room} are left")]
    Length {
        /// Name of the part that the length belongs to.
        what: &'static str,
        /// The length field.
        claimed: usize,
        /// Bytes that are left.
        room: usize,
    },
    /// An attribute that has no meaning here.
    #[error("{set}: attribute {kind} is unknown")]
    Unknown {
        /// Name of the attribute set, for example `OVS_KEY_ATTR`.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that may appear only once.
    #[error("{set}: attribute {kind} is repeated")]
    Repeated {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that must be present.
    #[error("{set}: attribute {kind} is missing")]
    Missing {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute that must not be present beside the others, or beside these values of the others.
    #[error("{set}: attribute {kind} does not belong here")]
    Misplaced {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
    },
    /// An attribute whose value has another size than its kind allows.
    #[error("{set}: attribute {kind} has the wrong size of {found} bytes")]
    Size {
        /// Name of the attribute set.
        set: &'static str,
        /// Number of the attribute.
        kind: u16,
        /// Bytes of the value.
        found: usize,
    },
    /// A field with an invalid value.
    #[error("{what} cannot be {value:#x}")]
    Value {
        /// Name of the field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// A name that is too long, empty, or without its final zero.
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
    /// A message type that is none of our families.
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
        /// Name of the nested parts.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// More elements than the bound.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Name of the elements.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// More bytes than the bound, or than a length field can hold.
    #[error("{what} has {found} bytes, but at most {limit} are possible")]
    TooLong {
        /// Name of the part that is too long.
        what: &'static str,
        /// Bytes found.
        found: usize,
        /// The bound.
        limit: usize,
    },
}

impl Error {
    /// The number with which the kernel answers such a request (`net/netlink/genetlink.c`, `lib/nlattr.c`,
    /// `net/openvswitch`).
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
