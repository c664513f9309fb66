//! Why an engine or its state was not made.

use thiserror::Error;

/// Why a checked program cannot run here, or a change of its state was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// An expression is nested too deeply.
    #[error("an expression is nested deeper than {limit} levels")]
    TooDeep {
        /// Levels that are allowed.
        limit: u16,
    },
    /// Something has more parts than the engine has room for.
    #[error("a {what} is too large for this engine")]
    TooLarge {
        /// What it is.
        what: &'static str,
    },
    /// The program calls a function that the target does not have.
    #[error("the target has no function `{name}`")]
    UnknownExtern {
        /// The extern's name in the program.
        name: String,
    },
    /// Registers, counters and meters together would need too much memory.
    #[error("`{name}` brings the program's state to {bytes} bytes, but only {limit} are allowed")]
    TooMuchState {
        /// The array that exceeds the limit.
        name: String,
        /// Bytes needed up to it.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// An index beyond an array.
    #[error("`{name}` has {size} cells, there is no number {index}")]
    OutOfRange {
        /// The array.
        name: String,
        /// Cells that the array has.
        size: u32,
        /// The index given.
        index: u64,
    },
    /// More of something than is allowed.
    #[error("{limit} {what} are the limit")]
    Full {
        /// The quantity that exceeds its limit.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// A value does not fit.
    #[error("a {what} is {expected}")]
    Wrong {
        /// Name of the value.
        what: &'static str,
        /// What it must be.
        expected: String,
    },
    /// An entry that the program cannot have.
    #[error("{0}")]
    WrongEntry(String),
    /// A table's own error.
    #[error(transparent)]
    Table(#[from] p4_tables::Error),
}
