//! STF scripts: packets in, packets expected, entries and state between them.
//!
//! One command a line; `#` begins a comment. Command words are not case-sensitive. The format is the one that
//! p4c's tests are written in (`testdata/p4_16_samples/*.stf` of p4lang/p4c), with BMv2's command line for
//! replication, registers and meters. Whatever a script holds, reading it ends with commands or an error that
//! names the line.

pub use crate::comparison::{Comparison, Unit};
use crate::error::{Problem, ScriptError};
pub use crate::limits::{MAX_LINE, MAX_PACKET, MAX_PORT, MAX_SCRIPT};
use crate::number::Digits;

/// A command and its line, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number of the line.
    pub line: usize,
    /// The command in it.
    pub command: Command,
}

/// A packet that is expected to leave by a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Hexadecimal digits in lower case; `*` is any one. `None`: any packet.
    pub digits: Option<String>,
    /// Whether there must be nothing after them.
    pub complete: bool,
}

/// An entry, or with `keys` empty a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Add {
    /// The table's name or its end.
    pub table: String,
    /// The larger wins.
    pub priority: u32,
    /// Names and values of keys.
    pub keys: Vec<(String, KeyValue)>,
    /// The action's name or its end.
    pub action: String,
    /// Names and values of arguments.
    pub arguments: Vec<(String, Digits)>,
    /// The name by which `check_counter` may refer to the entry.
    pub id: Option<String>,
}

/// An entry's match of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// A number, perhaps with gaps.
    Digits(Digits),
    /// `LOW->HIGH` (as on BMv2's command line), for ranges.
    Range(Digits, Digits),
    /// `VALUE/LENGTH`, for prefixes.
    Prefix(Digits, u32),
}

/// Which cell of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// By number.
    Index(u64),
    /// Index of the entry with this name.
    Entry(String),
}

/// Rate in units a microsecond and burst in units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Units a second.
    pub per_second: u64,
    /// Units.
    pub burst: u64,
}

impl Eq for Rate {}

/// A line about action profiles. A profile is named by itself, or by a table that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileCommand {
    /// Makes a member of a profile.
    Member {
        /// The profile.
        profile: String,
        /// Name of an action of its tables.
        action: String,
        /// Arguments by their names.
        arguments: Vec<(String, Digits)>,
    },
    /// Makes a group of a profile.
    Group(String),
    /// Puts a member of a profile into a group, or once more.
    Join {
        /// The profile.
        profile: String,
        /// Number of the member.
        member: u32,
        /// Number of the group.
        group: u32,
    },
    /// Adds an entry, without an action, that leads to a member or to a group.
    Add(Add, Leads),
    /// Has a table's default do what a member does: the table, and the member's number.
    SetDefault(String, u32),
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// A member, by its number.
    Member(u32),
    /// A group, by its number.
    Group(u32),
}

/// The command in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sends a packet.
    Packet(u32, Vec<u8>),
    /// Expects one.
    Expect(u32, Expectation),
    /// Adds an entry.
    Add(Add),
    /// Sets a table's default.
    SetDefault(Add),
    /// Removes all entries.
    RemoveAll,
    /// Everything sent has been processed.
    Wait,
    /// Compares a counter; without a comparison with zero.
    CheckCounter(String, Cell, Option<(Unit, Comparison, u64)>),
    /// Clone session to a port.
    MirroringAdd(u64, u32),
    /// Clone session to a multicast group.
    MirroringAddGroup(u64, u64),
    /// Removes a clone session.
    MirroringDelete(u64),
    /// Makes a multicast group.
    GroupCreate(u64),
    /// Makes a node: replica number and ports.
    NodeCreate(u16, Vec<u32>),
    /// Gives a node other ports.
    NodeUpdate(usize, Vec<u32>),
    /// Puts a node into a group.
    NodeAssociate(u64, usize),
    /// Sets a counter: index, packets, bytes.
    CounterWrite(String, u64, u64, u64),
    /// Sets a register's cell.
    RegisterWrite(String, u64, Digits),
    /// Sets all cells of a register to zero.
    RegisterReset(String),
    /// Sets the rates of one cell of a meter, or of all.
    MeterRates(String, Option<u64>, [Rate; 2]),
    /// Reads something only to show it: kind of the thing, name, index.
    Show(Shown, String, u64),
    /// Fills an action profile. No line of a script says that, but BMv2's command line.
    Profile(ProfileCommand),
}

/// An object that a command shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A clone session.
    Mirroring,
    /// A counter's cell.
    Counter,
    /// A register's cell.
    Register,
    /// A meter's cell.
    Meter,
}

type Parsed<T> = Result<T, Problem>;

/// Reads a script.
///
/// # Errors
///
/// The first line that is no command.
pub fn parse(text: &str) -> Result<Vec<Line>, ScriptError> {
    if text.len() > MAX_SCRIPT {
        let problem = Problem::ScriptTooLong(text.len());
        return Err(ScriptError { line: 1, problem });
    }
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error = |problem| ScriptError {
            line: index + 1,
            problem,
        };
        if line.len() > MAX_LINE {
            return Err(error(Problem::LineTooLong(line.len())));
        }
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            lines.push(Line {
                line: index + 1,
                command: command(line).map_err(error)?,
            });
        }
    }
    Ok(lines)
}

fn command(line: &str) -> Parsed<Command> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word.to_ascii_lowercase().as_str() {
        "packet" => packet(rest),
        "expect" => expect(rest),
        "add" => Ok(Command::Add(add(rest)?)),
        "setdefault" => set_default(rest),
        "remove" if rest.eq_ignore_ascii_case("all") => Ok(Command::RemoveAll),
        "wait" if rest.is_empty() => Ok(Command::Wait),
        "check_counter" => check_counter(rest),
        other => by_words(other, &rest.split_whitespace().collect::<Vec<_>>()),
    }
}

/// Commands whose arguments are words.
const COMMANDS: [&str; 18] = [
    "mirroring_add",
    "mirroring_add_mc",
    "mirroring_delete",
    "mirroring_get",
    "mc_mgrp_create",
    "mc_node_create",
    "mc_node_update",
    "mc_node_associate",
    "counter_read",
    "counter_write",
    "register_read",
    "register_write",
    "register_reset",
    "meter_get_rates",
    "meter_set_rates",
    "meter_array_set_rates",
    "wait",
    "remove",
];

/// Commands as BMv2's command line takes them.
fn by_words(word: &str, arguments: &[&str]) -> Parsed<Command> {
    Ok(match (word, arguments) {
        ("mirroring_add", [session, to]) => Command::MirroringAdd(number(session)?, port(to)?),
        ("mirroring_add_mc", [session, group]) => {
            Command::MirroringAddGroup(number(session)?, number(group)?)
        }
        ("mirroring_delete", [session]) => Command::MirroringDelete(number(session)?),
        ("mirroring_get", [session]) => Command::Show(Shown::Mirroring, String::new(), number(session)?),
        ("mc_mgrp_create", [group]) => Command::GroupCreate(number(group)?),
        ("mc_node_create", [rid, ports @ ..]) => Command::NodeCreate(number(rid)?, self::ports(ports)?),
        ("mc_node_update", [node, ports @ ..]) => Command::NodeUpdate(number(node)?, self::ports(ports)?),
        ("mc_node_associate", [group, node]) => Command::NodeAssociate(number(group)?, number(node)?),
        ("counter_read", [name, index]) => show(Shown::Counter, name, index)?,
        ("counter_write", [name, index, packets, bytes]) => Command::CounterWrite(
            (*name).to_owned(),
            number(index)?,
            number(packets)?,
            number(bytes)?,
        ),
        ("register_read", [name]) => Command::Show(Shown::Register, (*name).to_owned(), 0),
        ("register_read", [name, index]) => show(Shown::Register, name, index)?,
        ("register_write", [name, index, value]) => {
            Command::RegisterWrite((*name).to_owned(), number(index)?, digits(value)?)
        }
        ("register_reset", [name]) => Command::RegisterReset((*name).to_owned()),
        ("meter_get_rates", [name, index]) => show(Shown::Meter, name, index)?,
        ("meter_set_rates", [name, index, rates @ ..]) => {
            Command::MeterRates((*name).to_owned(), Some(number(index)?), self::rates(rates)?)
        }
        ("meter_array_set_rates", [name, rates @ ..]) => {
            Command::MeterRates((*name).to_owned(), None, self::rates(rates)?)
        }
        _ if COMMANDS.contains(&word) => return Err(Problem::WrongArguments(word.to_owned())),
        _ => return Err(Problem::NoCommand(shortened(word))),
    })
}

fn show(what: Shown, name: &str, index: &str) -> Parsed<Command> {
    Ok(Command::Show(what, name.to_owned(), number(index)?))
}

fn number<T: TryFrom<u64>>(text: &str) -> Parsed<T> {
    let number = Digits::small(text).and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| malformed(text, "a number that could be here"))
}

fn digits(text: &str) -> Parsed<Digits> {
    let digits = Digits::parse(text).filter(|digits| !digits.has_gaps());
    digits.ok_or_else(|| malformed(text, "a number"))
}

fn port(text: &str) -> Parsed<u32> {
    match number(text)? {
        port if port <= MAX_PORT => Ok(port),
        port => Err(Problem::PortTooLarge(port)),
    }
}

fn ports(texts: &[&str]) -> Parsed<Vec<u32>> {
    texts.iter().map(|text| port(text)).collect()
}

fn rates(texts: &[&str]) -> Parsed<[Rate; 2]> {
    let rate = |text: &&str| -> Parsed<Rate> {
        let (rate, burst) = text
            .split_once(':')
            .ok_or_else(|| malformed(text, "RATE:BURST"))?;
        let per_microsecond = rate
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=1e12).contains(rate));
        let per_microsecond = per_microsecond.ok_or_else(|| malformed(rate, "a rate"))?;
        Ok(Rate {
            per_second: (per_microsecond * 1e6).round() as u64,
            burst: number(burst)?,
        })
    };
    match texts {
        [committed, peak] => Ok([rate(committed)?, rate(peak)?]),
        _ => Err(Problem::Missing("a meter has two rates: committed and peak")),
    }
}

/// Port and digits of a packet.
fn port_and_digits(rest: &str) -> Parsed<(u32, String)> {
    let (to, digits) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let digits: String = digits.chars().filter(|letter| !letter.is_whitespace()).collect();
    Ok((port(to)?, digits.to_ascii_lowercase()))
}

fn packet(rest: &str) -> Parsed<Command> {
    let (port, digits) = port_and_digits(rest)?;
    if digits.is_empty() {
        return Err(Problem::Missing("a packet has bytes"));
    }
    if let Some(wrong) = digits.chars().find(|letter| !letter.is_ascii_hexdigit()) {
        return Err(Problem::NotHexadecimal(wrong));
    }
    if digits.len() % 2 == 1 {
        return Err(Problem::HalfByte);
    }
    if digits.len() / 2 > MAX_PACKET {
        return Err(Problem::PacketTooLong(digits.len() / 2));
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
    let bytes = digits
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| nibble(pair[0]) << 4 | nibble(pair[1]));
    Ok(Command::Packet(port, bytes.collect()))
}

fn expect(rest: &str) -> Parsed<Command> {
    let (rest, complete) = rest
        .strip_suffix('$')
        .map_or((rest, false), |rest| (rest.trim_end(), true));
    let (port, digits) = port_and_digits(rest)?;
    if let Some(wrong) = digits
        .chars()
        .find(|&letter| !letter.is_ascii_hexdigit() && letter != '*')
    {
        return Err(Problem::NotExpectable(wrong));
    }
    let digits = (complete || !digits.is_empty()).then_some(digits);
    Ok(Command::Expect(port, Expectation { digits, complete }))
}

/// The arguments of an action: names and numbers, with commas between them.
fn arguments(text: &str) -> Parsed<Vec<(String, Digits)>> {
    let arguments = text
        .split(',')
        .map(str::trim)
        .filter(|argument| !argument.is_empty());
    let arguments = arguments.map(|argument| {
        let pair = argument.split_once(':');
        let (name, value) = pair.ok_or_else(|| malformed(argument, "NAME:NUMBER"))?;
        Ok((name.trim().to_owned(), digits(value.trim())?))
    });
    arguments.collect()
}

/// `TABLE [PRIORITY] KEY:VALUE ... ACTION(ARG:NUMBER, ...) [= ID]`
fn add(rest: &str) -> Parsed<Add> {
    let end = rest
        .rfind(')')
        .ok_or(Problem::Missing("the action has no arguments in parentheses"))?;
    let (before, after) = (&rest[..end], rest[end + 1..].trim());
    let open = before
        .rfind('(')
        .ok_or(Problem::Missing("a parenthesis is missing"))?;
    let id = match (after.strip_prefix('='), after.is_empty()) {
        (Some(id), _) if !id.trim().is_empty() => Some(id.trim().to_owned()),
        (None, true) => None,
        _ => return Err(malformed(after, "`= ID`")),
    };
    let arguments = arguments(&before[open + 1..])?;
    let spaced = without_blanks_at_colons(&before[..open]);
    let mut words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let action = words
        .pop()
        .filter(|word| !word.contains(':'))
        .ok_or(Problem::Missing("there is no action"))?;
    let mut words = words.into_iter().peekable();
    let table = words
        .next()
        .ok_or(Problem::Missing("there is no table, or no action"))?;
    let priority = match words.peek() {
        Some(word) if !word.contains(':') => number(word)?,
        _ => 0,
    };
    words.next_if(|word| !word.contains(':'));
    let keys = words.map(|word| {
        let (name, value) = word
            .rsplit_once(':')
            .ok_or_else(|| malformed(&word, "KEY:VALUE"))?;
        Ok((name.to_owned(), key_value(value)?))
    });
    Ok(Add {
        table,
        priority,
        keys: keys.collect::<Parsed<Vec<_>>>()?,
        action,
        arguments,
        id,
    })
}

fn key_value(text: &str) -> Parsed<KeyValue> {
    let gaps = |text: &str| Digits::parse(text).ok_or_else(|| malformed(text, "a value"));
    if let Some((low, high)) = text.split_once("->") {
        return Ok(KeyValue::Range(digits(low)?, digits(high)?));
    }
    if let Some((value, length)) = text.split_once('/') {
        return Ok(KeyValue::Prefix(digits(value)?, number(length)?));
    }
    Ok(KeyValue::Digits(gaps(text)?))
}

fn without_blanks_at_colons(text: &str) -> String {
    text.split(':').map(str::trim).collect::<Vec<_>>().join(":")
}

fn set_default(rest: &str) -> Parsed<Command> {
    let default = add(rest)?;
    if !default.keys.is_empty() || default.id.is_some() {
        return Err(Problem::KeyedDefault);
    }
    Ok(Command::SetDefault(default))
}

fn check_counter(rest: &str) -> Parsed<Command> {
    let (name, rest) = rest
        .split_once('(')
        .ok_or(Problem::Missing("the counter has no cell in parentheses"))?;
    let (cell, condition) = rest
        .split_once(')')
        .ok_or(Problem::Missing("a parenthesis is missing"))?;
    let cell = match cell.trim().strip_prefix('$') {
        Some(id) => Cell::Entry(id.to_owned()),
        None => Cell::Index(number(cell.trim())?),
    };
    let condition = condition.trim();
    let condition = if condition.is_empty() {
        None
    } else {
        Some(self::condition(condition)?)
    };
    Ok(Command::CheckCounter(name.trim().to_owned(), cell, condition))
}

fn condition(text: &str) -> Parsed<(Unit, Comparison, u64)> {
    let wrong = || malformed(text, "a condition");
    let lower = text.to_ascii_lowercase();
    let (unit, rest) = match (lower.strip_prefix("packets"), lower.strip_prefix("bytes")) {
        (Some(rest), _) => (Unit::Packets, rest.trim()),
        (_, Some(rest)) => (Unit::Bytes, rest.trim()),
        _ => return Err(wrong()),
    };
    // Those of two letters first.
    let signs = [
        Comparison::Equal,
        Comparison::Unequal,
        Comparison::AtMost,
        Comparison::AtLeast,
        Comparison::Less,
        Comparison::Greater,
    ];
    let found = signs
        .into_iter()
        .find_map(|sign| Some((sign, rest.strip_prefix(sign.sign())?)));
    let (sign, value) = found.ok_or_else(wrong)?;
    Ok((unit, sign, number(value.trim())?))
}

fn malformed(text: &str, form: &'static str) -> Problem {
    Problem::Malformed {
        text: shortened(text),
        form,
    }
}

/// The part of a script's text that an error shows.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}
