//! Errors: a line that is no command, a command that cannot be done, and a difference from what a script
//! expects.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::comparison::{Comparison, Unit};
use crate::limits::{MAX_LINE, MAX_NODES, MAX_PACKET, MAX_PORT, MAX_SCRIPT};

/// A script that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct ScriptError {
    /// Line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The error in a line. Quoted text is shortened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The script has too many bytes.
    #[error("the script has {0} bytes, {MAX_SCRIPT} are the limit")]
    ScriptTooLong(usize),
    /// The line has too many bytes.
    #[error("{0} bytes, {MAX_LINE} are the limit")]
    LineTooLong(usize),
    /// The first word names no command.
    #[error("there is no command `{0}`")]
    NoCommand(String),
    /// The command takes other arguments.
    #[error("`{0}` has wrong arguments")]
    WrongArguments(String),
    /// Some text does not have the form that is expected at its place.
    #[error("`{text}` is not {form}")]
    Malformed {
        /// The text.
        text: String,
        /// The form.
        form: &'static str,
    },
    /// Something is missing.
    #[error("{0}")]
    Missing(&'static str),
    /// A port's number is too large.
    #[error("port {0} is larger than {MAX_PORT}")]
    PortTooLarge(u32),
    /// A packet holds something else than hexadecimal digits.
    #[error("`{0}` is not a hexadecimal digit")]
    NotHexadecimal(char),
    /// An expectation holds something else than hexadecimal digits and `*`.
    #[error("`{0}` is neither a hexadecimal digit nor `*`")]
    NotExpectable(char),
    /// A packet has an odd number of digits.
    #[error("half a byte is missing")]
    HalfByte,
    /// A packet has too many bytes.
    #[error("{0} bytes, {MAX_PACKET} are the limit of a packet")]
    PacketTooLong(usize),
    /// A default entry has keys, or a name.
    #[error("a default has neither keys nor a name")]
    KeyedDefault,
}

/// A name that does not identify one element of the program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing has that name.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// The kind of element.
        what: String,
        /// The name.
        name: String,
    },
    /// Several elements have that name.
    #[error("{what} `{name}` may be `{candidates}`", candidates = candidates.join("` or `"))]
    Ambiguous {
        /// The kind of element.
        what: String,
        /// The name.
        name: String,
        /// Two elements that have it.
        candidates: [String; 2],
    },
    /// No key of the table has that name.
    #[error("table `{table}` has no key `{name}`, but {}", known.join(", "))]
    UnknownKey {
        /// The table.
        table: String,
        /// The name.
        name: String,
        /// Names of its keys.
        known: Vec<String>,
    },
    /// No parameter of the action has that name.
    #[error("action `{action}` has no parameter `{name}`, but {}", known.join(", "))]
    UnknownParameter {
        /// The action.
        action: String,
        /// The name.
        name: String,
        /// Names of its parameters.
        known: Vec<String>,
    },
}

/// A command that cannot be executed, or a counter that has another value than the command expects.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// A name is unknown or ambiguous.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The command is not one for a program that has not begun.
    #[error("{0} cannot be given to a program before its first packet")]
    NotBefore(&'static str),
    /// The command is only for a program that has not begun.
    #[error("{0} can be given to a program only before its first packet")]
    OnlyBefore(&'static str),
    /// A table has no action profile.
    #[error("the table has no action profile: its entries name actions")]
    NoProfile,
    /// An action profile lacks a member or a group.
    #[error("action profile {profile} has no {what} {number}")]
    NotInProfile {
        /// Name of the profile.
        profile: String,
        /// Member or group.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// An action profile has such a member or group already.
    #[error("action profile {profile} has {what} {number} already")]
    InProfile {
        /// Name of the profile.
        profile: String,
        /// Member or group.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// There is no entry with such keys and priority.
    #[error("there is no entry with these keys and this priority")]
    NoEntry,
    /// An array has fewer cells: its name, and their number.
    #[error("{0} has {1} cells, 0 to {last} in number", last = .1.saturating_sub(1))]
    NoCell(String, u32),
    /// The program with its entries is not sound.
    #[error(transparent)]
    Unsound(#[from] p4_ir::CheckError),
    /// The engine's state refuses.
    #[error(transparent)]
    State(#[from] p4_interpreter::Error),
    /// The tables refuse.
    #[error(transparent)]
    Tables(#[from] p4_tables::Error),
    /// The entry is not one of its table.
    #[error("table `{table}`: {error}")]
    Entry {
        /// The table.
        table: String,
        /// What is wrong.
        error: Box<CommandError>,
    },
    /// A key's value is none that the key can have.
    #[error("key `{key}`{problem}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong, to stand behind the name.
        problem: String,
    },
    /// A key is given twice.
    #[error("key `{0}` is given twice")]
    RepeatedKey(String),
    /// A key's value has a form that its match kind does not take.
    #[error("key `{0}` wants another kind of value")]
    WrongKind(String),
    /// An argument is given twice.
    #[error("argument `{0}` is given twice")]
    RepeatedArgument(String),
    /// An argument is not given.
    #[error("argument `{0}` is missing")]
    MissingArgument(String),
    /// An argument is too large.
    #[error("argument `{name}` does not fit in {width} bits")]
    ArgumentTooLarge {
        /// Name of the parameter.
        name: String,
        /// Bits that it has.
        width: u32,
    },
    /// A register's new value has more than this many bits.
    #[error("the value has more than {0} bits")]
    ValueTooLarge(u32),
    /// No entry was given that name.
    #[error("no entry was named `{0}`")]
    UnknownEntry(String),
    /// The entry with that name was removed.
    #[error("entry `{0}` is gone")]
    RemovedEntry(String),
    /// The counter belongs to another table than the entry.
    #[error("`{counter}` does not count the table of entry `{entry}`")]
    OtherTable {
        /// The counter's name, as written.
        counter: String,
        /// The entry's name.
        entry: String,
    },
    /// The table has no entry with that number.
    #[error("table `{table}` has no entry number {index}")]
    NoSuchEntry {
        /// The table.
        table: String,
        /// The number.
        index: u64,
    },
    /// The script makes too many nodes.
    #[error("{MAX_NODES} nodes are the limit")]
    TooManyNodes,
    /// No node has that number.
    #[error("there is no node {0}")]
    UnknownNode(usize),
    /// No multicast group has that number.
    #[error("there is no group {0}")]
    UnknownGroup(u64),
    /// A counter is expected to be zero.
    #[error("{counter}: {packets} packets, {bytes} bytes, not 0")]
    NotZero {
        /// The counter's name, as written.
        counter: String,
        /// Packets counted.
        packets: u64,
        /// Bytes counted.
        bytes: u64,
    },
    /// A counter does not compare as expected.
    #[error("{counter}: {value} {unit}, not {} {wanted}", comparison.sign())]
    OtherCount {
        /// The counter's name, as written.
        counter: String,
        /// Value of the counter.
        value: u64,
        /// In which unit.
        unit: Unit,
        /// The comparison that does not hold.
        comparison: Comparison,
        /// Right side of the comparison.
        wanted: u64,
    },
}

/// The first difference between what a program does and what a script expects.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Difference {
    /// The program cannot run.
    #[error(transparent)]
    Program(p4_interpreter::Error),
    /// A command cannot be done, or a counter differs.
    #[error("line {line}: {error}")]
    Command {
        /// The command's line.
        line: usize,
        /// Why.
        error: CommandError,
    },
    /// A packet did not leave.
    #[error("{at}: expected {expected}, nothing left")]
    NothingLeft {
        /// Which one.
        at: Expected,
        /// Digits of the packet.
        expected: String,
    },
    /// Another packet left.
    #[error("{at}: expected {expected}\n      got {sent}")]
    OtherLeft {
        /// Which one is expected.
        at: Expected,
        /// Digits of the packet that was expected.
        expected: String,
        /// The digits of the one that left.
        sent: String,
    },
    /// More packets left than were expected.
    #[error("port {port}: {sent} packets left, {expected} were expected; the next is {next}")]
    MoreLeft {
        /// The port.
        port: u32,
        /// Packets that left.
        sent: usize,
        /// Packets that were expected.
        expected: usize,
        /// Digits of the first that was not.
        next: String,
    },
}

/// A packet that a line of a script expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("line {line}: port {port}, packet {packet}")]
pub struct Expected {
    /// The line.
    pub line: usize,
    /// The port by which the packet should leave.
    pub port: u32,
    /// Number of the packet among those expected at the port, from 1 on.
    pub packet: usize,
}

/// A file or folder that could not be read.
#[derive(Debug, Error)]
#[error("{}: {error}", path.display())]
pub struct Unreadable {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// Why a test of a folder failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The engine panicked.
    #[error("the engine panicked")]
    Panicked,
    /// A file could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The program is none.
    #[error("program: {0}")]
    Program(#[from] p4_bmv2::LoadError),
    /// The script is not text.
    #[error("script: {0}")]
    NotText(#[from] std::string::FromUtf8Error),
    /// The script is none.
    #[error("script: {0}")]
    Script(#[from] ScriptError),
    /// Other packets left than expected.
    #[error(transparent)]
    Difference(#[from] Difference),
    /// The test failed only with the program that its P4Info was joined to.
    #[error("with P4Info: {0}")]
    WithP4Info(Box<Failure>),
}
