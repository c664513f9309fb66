//! Why a change of a table was refused.
//!
//! Entries come from controllers, files and tenants. For every wrong entry the answer is one of these errors,
//! and the tables stay as they were.

use thiserror::Error;

/// Why a layout, a pattern, an entry or a batch was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A key has too many fields, or more bits than [`crate::MAX_KEY_WORDS`] words hold.
    #[error("a key of {words} words exceeds the limit of {limit}")]
    KeyTooWide {
        /// Words that the fields would need.
        words: usize,
        /// [`crate::MAX_KEY_WORDS`].
        limit: usize,
    },
    /// A field without bits.
    #[error("key field {field} is 0 bits wide")]
    EmptyField {
        /// Number of the field.
        field: usize,
    },
    /// More than one field with a longest prefix in a table that has nothing but exact fields besides.
    #[error("key field {field} is a second longest prefix")]
    SecondPrefix {
        /// Number of the second one.
        field: usize,
    },
    /// The number of matches differs from that of the key's fields.
    #[error("{found} fields are given where the key has {expected}")]
    WrongFields {
        /// Fields of the key.
        expected: usize,
        /// Matches given.
        found: usize,
    },
    /// A match of another kind than the field's.
    #[error("key field {field} needs another kind of match")]
    WrongKind {
        /// Number of the field.
        field: usize,
    },
    /// A value, mask or bound has bits beyond the field's width.
    #[error("key field {field}: the value does not fit in {width} bits")]
    WrongWidth {
        /// Number of the field.
        field: usize,
        /// Width of the field in bits.
        width: u32,
    },
    /// The value has bits that the mask or the prefix leaves out.
    #[error("key field {field}: the value has bits outside its mask")]
    BitsOutsideMask {
        /// Number of the field.
        field: usize,
    },
    /// A prefix longer than its field.
    #[error("key field {field}: prefix length {length} exceeds {width} bits")]
    PrefixTooLong {
        /// Number of the field.
        field: usize,
        /// The length given.
        length: u32,
        /// The field's width in bits.
        width: u32,
    },
    /// A range whose low bound is above its high one.
    #[error("key field {field}: the range is empty")]
    EmptyRange {
        /// Number of the field.
        field: usize,
    },
    /// The pattern was made for another layout.
    #[error("the pattern does not belong to this table's key")]
    ForeignPattern,
    /// A priority in a table whose entries never overlap, or where the longest prefix decides.
    #[error("entries of this table have no priority")]
    PriorityWithoutMeaning,
    /// An entry with this match key (and this priority) exists.
    #[error("an entry with this key exists")]
    Duplicate,
    /// No entry has this match key (and this priority).
    #[error("there is no entry with this key")]
    NotFound,
    /// The table, profile or set has as many entries as it may have.
    #[error("{limit} entries are the limit")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The entry would bring one more mask than the table may have. Each mask costs every look-up a probe.
    #[error("{limit} different masks are the limit")]
    TooManyMasks {
        /// The limit.
        limit: usize,
    },
    /// Too many keys share their hash. The hash is keyed with a secret, so no sender of entries can bring it
    /// about.
    #[error("too many keys share one place of the table")]
    Crowded,
    /// The entry is one of the program's constants, or the table has only those.
    #[error("constant entries cannot be changed")]
    Constant,
    /// More words of arguments than the table has room for.
    #[error("{words} words of arguments exceed the limit of {limit}")]
    TooManyArguments {
        /// Words given.
        words: usize,
        /// The table's limit.
        limit: usize,
    },
    /// A table without action profile got a member or a group, or one with a profile got an action.
    #[error("the table wants {expected}")]
    WrongTarget {
        /// The kind of target that the table needs.
        expected: &'static str,
    },
    /// No such table, profile or value set.
    #[error("there is no {what} number {number}")]
    Unknown {
        /// Kind of the object.
        what: &'static str,
        /// The number given.
        number: u32,
    },
    /// A member or group that entries or groups refer to cannot be removed.
    #[error("{what} {number} is in use")]
    InUse {
        /// Kind of the object.
        what: &'static str,
        /// The object's number.
        number: u32,
    },
    /// The table keeps no such state, for example no meters.
    #[error("the table has no {what}")]
    NotKept {
        /// Name of the state.
        what: &'static str,
    },
    /// More changes than a batch may have.
    #[error("{limit} changes are the limit of a batch")]
    BatchTooLarge {
        /// The limit.
        limit: usize,
    },
    /// A meter's rates or bursts are out of range.
    #[error("a meter's {what} is out of range")]
    MeterRate {
        /// The part that is out of range.
        what: &'static str,
    },
}

impl Error {
    /// The number of the key's field that is wrong, if it is one. The text of such an error begins with
    /// `key field` and the number.
    #[must_use]
    pub fn key_field(&self) -> Option<usize> {
        match *self {
            Error::EmptyField { field }
            | Error::SecondPrefix { field }
            | Error::WrongKind { field }
            | Error::WrongWidth { field, .. }
            | Error::BitsOutsideMask { field }
            | Error::PrefixTooLong { field, .. }
            | Error::EmptyRange { field } => Some(field),
            _ => None,
        }
    }
}

/// A refused batch: none of its changes was made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("change {index}: {error}")]
pub struct BatchError {
    /// The first change that was refused, counted from 0.
    pub index: usize,
    /// Why.
    pub error: Error,
}
