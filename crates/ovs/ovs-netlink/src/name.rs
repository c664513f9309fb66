//! Names: bytes that end with a zero.

use std::fmt;

use crate::error::Error;

/// Most bytes of an interface's name, without the zero (`IFNAMSIZ`).
pub const MAX_INTERFACE: usize = 15;

/// A name: at least one byte, none of them zero. Each kind of object has its own limit of the length.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// `None` if `bytes` is empty or has a zero.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        (!bytes.is_empty() && !bytes.contains(&0)).then_some(Self(bytes))
    }

    /// The bytes, without a zero.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads attribute `kind` of `set`: at most `most` bytes and then a zero. Bytes behind the zero are
    /// ignored.
    pub(crate) fn read(set: &'static str, kind: u16, value: &[u8], most: usize) -> Result<Self, Error> {
        let end = value.iter().position(|byte| *byte == 0);
        match end {
            Some(end @ 1..) if end <= most => Ok(Self(value[..end].to_vec())),
            _ => Err(Error::Name { set, kind }),
        }
    }

    /// The bytes with a zero.
    pub(crate) fn terminated(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.push(0);
        bytes
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}
