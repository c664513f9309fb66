//! A program of a running instance: its entries, counters, registers and meters.
//!
//! The control process has a program as bytes. So they are fetched, changed here, where names and values are
//! understood, and put in the place of those that were fetched; if another user was quicker, that is refused.
//! The data plane puts all changes in force at once. Cells are read and set directly.

use super::{commands, entries};
use crate::cli::{P4CounterVerb, P4EntryArgs, P4EntryVerb, P4MeterVerb, P4RegisterVerb};
use crate::output;
use crate::verbs::Session;
use anyhow::{Context, Result, anyhow, bail, ensure};
use management::sealed;
use management::{P4Array, Reply, Request};
use p4_ir::setup::{self, Setup};
use p4_ir::{Checked, Identity, Program};
use p4_stf::script::Rate;
use p4_stf::{EntryVerb, ProfileEdit};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::os::fd::AsFd;

/// An entry of a table, with what it counted where it counts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Entry")]
pub struct EntryRow {
    entry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// A cell of a counter.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4CounterCell")]
pub struct CounterRow {
    name: String,
    cell: usize,
    packets: u64,
    bytes: u64,
}

/// A cell of a register.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4RegisterCell")]
pub struct RegisterRow {
    name: String,
    cell: usize,
    /// Hexadecimal, beginning with `0x`.
    value: String,
}

/// The rates of a meter.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Meter")]
pub struct MeterRow {
    name: String,
    cell: MeterCell,
    /// Per second and at once, with a colon between them.
    committed: String,
    /// Likewise.
    peak: String,
}

/// Cells of a meter.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum MeterCell {
    One(u32),
    /// `all`.
    All(&'static str),
}

/// See the module's description.
pub struct Running {
    name: String,
    tag: u64,
    program: Checked,
    setup: Setup,
}

impl Running {
    /// The program of this name, if there is one.
    ///
    /// # Errors
    /// The instance refuses, or goes away.
    pub fn find(session: &mut Session<'_>, name: &str) -> Result<Option<Running>> {
        let switches = super::switches(session)?;
        let exists = switches
            .iter()
            .any(|switch| switch.name == name && !switch.state.starts_with("lost"));
        exists.then(|| Running::fetch(session, name)).transpose()
    }

    /// The program of this name.
    ///
    /// # Errors
    /// The instance refuses, or goes away.
    pub fn fetch(session: &mut Session<'_>, name: &str) -> Result<Running> {
        let (mut bytes, mut first) = (Vec::new(), None);
        loop {
            let request = Request::P4Program {
                name: name.into(),
                offset: bytes.len(),
            };
            let Reply::P4Program(piece) = session.call(&request)? else {
                bail!("another answer than asked for")
            };
            ensure!(
                *first.get_or_insert(piece.tag) == piece.tag && !piece.bytes.0.is_empty(),
                "P4 switch {name} has another program by now; try again"
            );
            bytes.extend(piece.bytes.0);
            if bytes.len() >= piece.length {
                let (program, setup) = setup::decode(&bytes).context("of another version of Hyper-Switch")?;
                let (name, tag) = (name.into(), piece.tag);
                return Ok(Running {
                    name,
                    tag,
                    program,
                    setup,
                });
            }
        }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// By which the instance knows it.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The program, and what was given with it.
    pub fn into_parts(self) -> (Checked, Setup) {
        (self.program, self.setup)
    }

    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        setup::encode(&self.program, &self.setup)
    }

    /// Makes a change of an action profile.
    ///
    /// # Errors
    /// The change makes no sense, or the instance refuses.
    pub fn edit_profile(
        mut self,
        session: &mut Session<'_>,
        profile: &str,
        edit: &ProfileEdit,
    ) -> Result<()> {
        (self.program, self.setup) = p4_stf::edit_profile((self.program, self.setup), profile, edit)?;
        self.put(session)
    }

    /// Puts it in the place of the one that was fetched.
    fn put(&self, session: &mut Session<'_>) -> Result<()> {
        let request = Request::P4Load {
            name: self.name.parse().map_err(|error| anyhow!("{error}"))?,
            ports: None,
            operations: None,
            replaces: Some(self.tag),
            changes: false,
            writes: Vec::new(),
        };
        session.show_sent(&request, sealed(&self.encode())?.as_fd())
    }

    /// All cells of an array.
    ///
    /// # Errors
    /// The instance refuses, or goes away.
    pub fn cells(&self, session: &mut Session<'_>, array: P4Array) -> Result<Vec<Vec<u64>>> {
        let mut cells: Vec<Vec<u64>> = Vec::new();
        loop {
            let request = Request::P4Read {
                name: self.name.clone(),
                tag: self.tag,
                array,
                from: u32::try_from(cells.len())?,
            };
            let Reply::P4Cells(page) = session.call(&request)? else {
                bail!("another answer than asked for")
            };
            let stride = usize::try_from(page.stride)?.max(1);
            cells.extend(page.words.chunks(stride).map(<[u64]>::to_vec));
            if !page.more || page.words.is_empty() {
                return Ok(cells);
            }
        }
    }

    fn write(&self, session: &mut Session<'_>, array: P4Array, cell: u32, words: Vec<u64>) -> Result<()> {
        session.show(self.write_request(array, cell, words))
    }

    /// Sets cells from a number on.
    pub fn write_request(&self, array: P4Array, cell: u32, words: Vec<u64>) -> Request {
        Request::P4Write {
            name: self.name.clone(),
            tag: self.tag,
            array,
            cell,
            words,
        }
    }
}

/// `hyperswitch p4 entry`.
///
/// # Errors
/// An entry makes no sense, or the instance refuses.
pub fn entry(session: &mut Session<'_>, verb: &P4EntryVerb) -> Result<()> {
    match verb {
        P4EntryVerb::Add(args) => change(session, EntryVerb::Add, args),
        P4EntryVerb::Set(args) => change(session, EntryVerb::Set, args),
        P4EntryVerb::Delete(args) => change(session, EntryVerb::Delete, args),
        P4EntryVerb::List { name, table } => list_entries(session, name, table.as_deref()),
    }
}

fn change(session: &mut Session<'_>, verb: EntryVerb, args: &P4EntryArgs) -> Result<()> {
    let mut running = Running::fetch(session, &args.name)?;
    let mut lines = args.entries.clone();
    if let Some(file) = &args.file {
        let text = String::from_utf8(super::run::limited(file, entries::MAX_FILE)?).context("not text")?;
        let own = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim());
        lines.extend(own.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    ensure!(!lines.is_empty(), "no entry is given");
    if verb == EntryVerb::Add && lines.iter().any(|line| commands::is_command(line)) {
        let all = commands::read(&lines.join("\n"), running.program())?;
        let parts = p4_stf::extend((running.program, running.setup), &all);
        (running.program, running.setup) = parts
            .map_err(|(number, error)| anyhow::Error::new(error).context(format!("command {number}")))?;
        return running.put(session);
    }
    let read = lines.iter().map(|line| {
        let read = match verb {
            EntryVerb::Add | EntryVerb::Set => commands::entry(line, running.program()),
            EntryVerb::Delete => commands::meant(line, running.program()),
        };
        read.with_context(|| line.clone())
    });
    let read = read.collect::<Result<Vec<_>>>()?;
    let changed = p4_stf::change((running.program, running.setup), verb, &read);
    (running.program, running.setup) =
        changed.map_err(|(number, error)| anyhow::Error::new(error).context(lines[number].clone()))?;
    running.put(session)
}

fn list_entries(session: &mut Session<'_>, name: &str, wanted: Option<&str>) -> Result<()> {
    let running = Running::fetch(session, name)?;
    let program = running.program();
    let mut rows = Vec::new();
    for (number, table) in program.tables.iter().enumerate() {
        if wanted.is_some_and(|wanted| !commands::is_meant(&table.identity.name, wanted)) {
            continue;
        }
        let counts = match table.counter {
            Some(_) => running.cells(session, P4Array::Entries(u16::try_from(number)?))?,
            None => Vec::new(),
        };
        for (at, entry) in table.entries.iter().enumerate() {
            let line = commands::line(program, table, entry);
            rows.push(match counts.get(at).map(Vec::as_slice) {
                Some(&[packets, bytes]) => EntryRow {
                    entry: line,
                    packets: Some(packets),
                    bytes: Some(bytes),
                },
                _ => EntryRow {
                    entry: line,
                    packets: None,
                    bytes: None,
                },
            });
        }
    }
    show(session, &rows)
}

/// Rows as lines, or as JSON.
///
/// # Errors
/// Standard output cannot be written.
pub fn show(session: &Session<'_>, rows: &[impl Serialize]) -> Result<()> {
    if session.json {
        return output::json(&rows);
    }
    let word = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        ("entry" | "name", Value::String(text)) => text.clone(),
        (key, Value::String(text)) => format!("{key} {text}"),
        (key, value) => format!("{key} {value}"),
    };
    let mut lines = String::new();
    for row in rows {
        let row = serde_json::to_value(row)?;
        let words = row.as_object().into_iter().flatten().map(word);
        lines += &(words.collect::<Vec<_>>().join("  ") + "\n");
    }
    output::print(&lines)
}

/// Arrays that are meant by a name, or all: numbers with names.
fn arrays<'a>(
    what: &str,
    all: impl Iterator<Item = &'a Identity>,
    wanted: Option<&str>,
) -> Result<Vec<(u16, String)>> {
    let named = all
        .zip(0..)
        .map(|(identity, number)| (number, identity.name.clone()));
    let meant: Vec<_> = named
        .filter(|(_, name)| wanted.is_none_or(|wanted| commands::is_meant(name, wanted)))
        .collect();
    match wanted {
        Some(wanted) if meant.is_empty() => bail!("there is no {what} {wanted}"),
        _ => Ok(meant),
    }
}

fn one(mut arrays: Vec<(u16, String)>) -> Result<u16> {
    ensure!(arrays.len() == 1, "several have this name");
    Ok(arrays.remove(0).0)
}

/// `hyperswitch p4 counter`.
///
/// # Errors
/// There is no such counter or cell, or the instance refuses.
pub fn counter(session: &mut Session<'_>, verb: &P4CounterVerb) -> Result<()> {
    let (P4CounterVerb::List { name, .. } | P4CounterVerb::Set { name, .. }) = verb;
    let running = Running::fetch(session, name)?;
    // Counters of tables are listed with entries.
    let counters = || running.program().counters.iter().map(|counter| &counter.identity);
    match verb {
        P4CounterVerb::List { counter, .. } => {
            let mut rows = Vec::new();
            for (number, name) in arrays("counter", counters(), counter.as_deref())? {
                let cells = running.cells(session, P4Array::Counter(number))?;
                for (cell, words) in cells.iter().enumerate().filter(|(_, words)| **words != [0, 0]) {
                    rows.push(CounterRow {
                        name: name.clone(),
                        cell,
                        packets: words[0],
                        bytes: words[1],
                    });
                }
            }
            show(session, &rows)
        }
        P4CounterVerb::Set {
            counter,
            cell,
            packets,
            bytes,
            ..
        } => {
            let number = one(arrays("counter", counters(), Some(counter))?)?;
            running.write(session, P4Array::Counter(number), *cell, vec![*packets, *bytes])
        }
    }
}

/// `hyperswitch p4 register`.
///
/// # Errors
/// There is no such register or cell, or the instance refuses.
pub fn register(session: &mut Session<'_>, verb: &P4RegisterVerb) -> Result<()> {
    let (P4RegisterVerb::List { name, .. } | P4RegisterVerb::Set { name, .. }) = verb;
    let running = Running::fetch(session, name)?;
    let registers = || {
        running
            .program()
            .registers
            .iter()
            .map(|register| &register.identity)
    };
    match verb {
        P4RegisterVerb::List { register, .. } => {
            let mut rows = Vec::new();
            for (number, name) in arrays("register", registers(), register.as_deref())? {
                let cells = running.cells(session, P4Array::Register(number))?;
                for (cell, words) in cells
                    .iter()
                    .enumerate()
                    .filter(|(_, words)| words.iter().any(|word| *word > 0))
                {
                    let digits: String = words.iter().rev().map(|word| format!("{word:016x}")).collect();
                    let digits = digits.trim_start_matches('0');
                    rows.push(RegisterRow {
                        name: name.clone(),
                        cell,
                        value: format!("0x{digits}"),
                    });
                }
            }
            show(session, &rows)
        }
        P4RegisterVerb::Set {
            register,
            cell,
            value,
            ..
        } => {
            let number = one(arrays("register", registers(), Some(register))?)?;
            let width = running.program().registers[usize::from(number)].width;
            ensure!(
                value.0.len() <= usize::from(width).div_ceil(64).max(1),
                "the register is {width} bits wide"
            );
            running.write(session, P4Array::Register(number), *cell, value.0.clone())
        }
    }
}

/// `hyperswitch p4 meter`.
///
/// # Errors
/// There is no such meter or cell, or the instance refuses.
pub fn meter(session: &mut Session<'_>, verb: &P4MeterVerb) -> Result<()> {
    let (P4MeterVerb::List { name } | P4MeterVerb::Set { name, .. }) = verb;
    let mut running = Running::fetch(session, name)?;
    match verb {
        P4MeterVerb::List { .. } => {
            let rows = running.setup.meters.iter().map(|own| {
                let name = &running.program().meters[own.meter.index()].identity.name;
                let rate = |rate: setup::Rate| format!("{}:{}", rate.per_second, rate.burst);
                MeterRow {
                    name: name.clone(),
                    cell: own.cell.map_or(MeterCell::All("all"), MeterCell::One),
                    committed: rate(own.committed),
                    peak: rate(own.peak),
                }
            });
            show(session, &rows.collect::<Vec<_>>())
        }
        P4MeterVerb::Set {
            meter,
            cell,
            committed,
            peak,
            ..
        } => {
            let cell = match cell.as_str() {
                "all" => None,
                number => Some(number.parse().with_context(|| format!("{number} is no cell"))?),
            };
            let rates = [rate(committed)?, rate(peak)?];
            running.setup = p4_stf::set_rates((&running.program, running.setup), meter, cell, &rates)?;
            running.put(session)
        }
    }
}

fn rate(text: &str) -> Result<Rate> {
    let numbers = text.split_once(':').context("RATE:BURST is wanted")?;
    Ok(Rate {
        per_second: numbers.0.parse().with_context(|| format!("{text} is no rate"))?,
        burst: numbers.1.parse().with_context(|| format!("{text} is no rate"))?,
    })
}
