//! State that a program keeps between packets: entries, registers, counters, meters, groups and clone
//! sessions.
//!
//! A [`State`] is separate from its [`Engine`], so one engine can serve several states (tenants), and a state
//! can outlive a change of the engine. All workers share it:
//!
//! * Tables are read under a lock that is taken once per burst ([`State::read`]); changes are prepared beside
//!   it.
//! * Cells of registers and counters are relaxed atomics. A program that both reads and writes a register
//!   expects that no other packet does so in between; such programs run one burst at a time ([`ReadGuard`]
//!   holds a lock then).
//! * Meters have a lock per cell. A program with meters runs one burst at a time, too.
//! * Groups and sessions change rarely: a lock that packets take when they are replicated.
//!
//! A state of another version of the program ([`State::succeed`]) has the same arrays wherever names and
//! types agree: what one version writes, the other reads, so nothing is lost while both run. One that differs
//! in entries alone ([`State::changed`]) shares with the state before whatever does not change.
//!
//! The memory of arrays is bounded by [`StateLimits`] before anything is allocated. Indices come from
//! packets: those beyond an array read zero and change nothing.

mod carried;
mod changed;
mod given;
mod replication;

pub use carried::losses;
pub use replication::{CloneSession, Replica};

use crate::engine::Engine;
use crate::error::Error;
use crate::hash::{Algorithm, Crc, CrcParameters};
use crate::tables::{Tables, TablesReadGuard};
use p4_ir::{CounterUnit, Op, Program};
use p4_tables::{Colour, Meter, MeterRates};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Limits of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    /// Bytes of registers, counters and meters together.
    pub bytes: u64,
    /// Multicast groups.
    pub groups: usize,
    /// Replicas of a group or a clone session.
    pub replicas: usize,
    /// Clone sessions.
    pub sessions: usize,
}

impl Default for StateLimits {
    fn default() -> Self {
        StateLimits {
            bytes: 256 << 20,
            groups: 4096,
            replicas: crate::context::MAX_COPIES,
            sessions: 1024,
        }
    }
}

/// A cell of a counter, or what it counts of packets that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValue {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl CounterValue {
    /// One packet of so many bytes.
    #[must_use]
    pub fn one(bytes: usize) -> CounterValue {
        CounterValue {
            packets: 1,
            bytes: bytes as u64,
        }
    }
}

#[derive(Debug, Default)]
struct CounterCell {
    packets: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Clone, Debug)]
struct CounterArray {
    name: String,
    cells: Arc<[CounterCell]>,
    packets: bool,
    bytes: bool,
}

#[derive(Clone, Debug)]
struct MeterArray {
    name: String,
    cells: Arc<[Meter]>,
    bytes: bool,
}

#[derive(Clone, Debug)]
struct RegisterArray {
    name: String,
    /// `words` per cell, least significant first.
    cells: Arc<[AtomicU64]>,
    words: usize,
    width: u32,
}

/// State that a program keeps between packets. See the module's description.
#[derive(Debug)]
pub struct State {
    pub(crate) tables: Tables,
    counters: Vec<CounterArray>,
    meters: Vec<MeterArray>,
    registers: Vec<RegisterArray>,
    groups: RwLock<HashMap<u64, Arc<[Replica]>>>,
    sessions: RwLock<HashMap<u64, CloneSession>>,
    /// Per calculation: the next number of round robin.
    turns: Vec<AtomicU64>,
    /// Per calculation that has parameters to set.
    custom: Vec<RwLock<Option<Arc<Algorithm>>>>,
    limits: StateLimits,
    /// Held while a burst runs, if the program runs alone. Versions with the same arrays have one lock.
    exclusive: Arc<Mutex<()>>,
    runs_alone: bool,
}

/// The right to run packets: while it exists, tables do not change.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    state: &'a State,
    tables: TablesReadGuard<'a>,
    _exclusive: Option<MutexGuard<'a, ()>>,
}

impl<'a> ReadGuard<'a> {
    pub(crate) fn state(&self) -> &'a State {
        self.state
    }

    #[inline]
    pub(crate) fn tables(&self) -> &TablesReadGuard<'a> {
        &self.tables
    }
}

impl State {
    /// A fresh state: constant entries, and nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::TooMuchState`], [`Error::Table`].
    pub fn new(engine: &Engine, limits: StateLimits) -> Result<Self, Error> {
        let program = engine.program();
        check_size(program, limits.bytes)?;
        Ok(State {
            tables: Tables::new(engine)?,
            counters: program.counters.iter().map(counter_array).collect(),
            meters: program.meters.iter().map(meter_array).collect(),
            registers: program.registers.iter().map(register_array).collect(),
            groups: RwLock::default(),
            sessions: RwLock::default(),
            turns: program.calculations.iter().map(|_| AtomicU64::new(0)).collect(),
            custom: program
                .calculations
                .iter()
                .map(|one| RwLock::new(custom(one.algorithm)))
                .collect(),
            limits,
            exclusive: Arc::default(),
            runs_alone: needs_exclusion(program) || !program.meters.is_empty(),
        })
    }

    /// The right to run the packets of a burst. Changes of tables wait until the guard is dropped.
    pub fn read(&self) -> ReadGuard<'_> {
        let exclusive = self.runs_alone.then(|| self.exclusive.lock());
        self.guard(exclusive)
    }

    /// As [`read`](Self::read); `None` if the program runs alone, and runs elsewhere.
    pub fn try_read(&self) -> Option<ReadGuard<'_>> {
        let exclusive = match self.runs_alone {
            true => Some(self.exclusive.try_lock()?),
            false => None,
        };
        Some(self.guard(exclusive))
    }

    fn guard<'a>(&'a self, exclusive: Option<MutexGuard<'a, ()>>) -> ReadGuard<'a> {
        ReadGuard {
            state: self,
            _exclusive: exclusive,
            tables: self.tables.read(),
        }
    }

    /// Whether packets run one after the other, as they change something that others read: registers that
    /// are read and written, and meters. [`read`](Self::read) holds up whoever comes second.
    pub fn runs_alone(&self) -> bool {
        self.runs_alone
    }

    /// Says whether a port is up that members of groups watch. Ports are up at first.
    pub fn set_port_up(&self, port: u16, is_up: bool) {
        self.tables.look().ports().set_up(port, is_up);
    }

    /// The tables, to change them.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    // Registers.

    #[inline]
    fn register_cell(&self, register: usize, index: u64) -> Option<&[AtomicU64]> {
        let array = self.registers.get(register)?;
        let at = usize::try_from(index).ok()?.checked_mul(array.words)?;
        array.cells.get(at..at.checked_add(array.words)?)
    }

    pub(crate) fn read_register(&self, register: usize, index: u64) -> u64 {
        self.register_cell(register, index)
            .map_or(0, |cell| cell[0].load(Relaxed))
    }

    pub(crate) fn write_register(&self, register: usize, index: u64, value: u64) {
        if let Some(cell) = self.register_cell(register, index) {
            cell[0].store(value, Relaxed);
        }
    }

    pub(crate) fn read_wide_register(&self, register: usize, index: u64, words: &mut [u64]) {
        words.fill(0);
        if let Some(cell) = self.register_cell(register, index) {
            for (word, cell) in words.iter_mut().zip(cell) {
                *word = cell.load(Relaxed);
            }
        }
    }

    pub(crate) fn write_wide_register(&self, register: usize, index: u64, words: &[u64]) {
        if let Some(cell) = self.register_cell(register, index) {
            for (&word, cell) in words.iter().zip(cell) {
                cell.store(word, Relaxed);
            }
        }
    }

    /// A cell of a register, least significant word first.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn register(&self, register: p4_ir::RegisterId, index: u64) -> Result<Vec<u64>, Error> {
        let cell = self.register_cell(register.index(), index);
        let cell = cell.ok_or_else(|| self.no_register(register, index))?;
        Ok(cell.iter().map(|word| word.load(Relaxed)).collect())
    }

    /// Sets a cell of a register; bits beyond its width are refused.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Wrong`].
    pub fn set_register(&self, register: p4_ir::RegisterId, index: u64, words: &[u64]) -> Result<(), Error> {
        let cell = self.register_cell(register.index(), index);
        let cell = cell.ok_or_else(|| self.no_register(register, index))?;
        let width = self.registers[register.index()].width;
        let fits = words.iter().enumerate().all(|(at, &word)| {
            let left = width.saturating_sub(64 * at as u32).min(64);
            word & !crate::bits::mask(left) == 0 || word == 0
        });
        if !fits {
            return Err(Error::Wrong {
                what: "register's value",
                expected: format!("{width} bits wide"),
            });
        }
        for (at, cell) in cell.iter().enumerate() {
            cell.store(words.get(at).copied().unwrap_or(0), Relaxed);
        }
        Ok(())
    }

    /// Sets all cells of a register to zero.
    pub fn reset_register(&self, register: p4_ir::RegisterId) {
        if let Some(array) = self.registers.get(register.index()) {
            array.cells.iter().for_each(|word| word.store(0, Relaxed));
        }
    }

    fn no_register(&self, register: p4_ir::RegisterId, index: u64) -> Error {
        match self.registers.get(register.index()) {
            Some(array) => out_of_range(&array.name, array.cells.len() / array.words.max(1), index),
            None => out_of_range("registers", self.registers.len(), u64::from(register.0)),
        }
    }

    // Counters.

    pub(crate) fn count(&self, counter: usize, index: u64, train: CounterValue) {
        let Some(array) = self.counters.get(counter) else {
            return;
        };
        let cell = usize::try_from(index)
            .ok()
            .and_then(|index| array.cells.get(index));
        if let Some(cell) = cell {
            if array.packets {
                cell.packets.fetch_add(train.packets, Relaxed);
            }
            if array.bytes {
                cell.bytes.fetch_add(train.bytes, Relaxed);
            }
        }
    }

    /// A cell of a counter that is no table's.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn counter(&self, counter: p4_ir::CounterId, index: u64) -> Result<CounterValue, Error> {
        let cell = self.counter_cell(counter, index)?;
        Ok(CounterValue {
            packets: cell.packets.load(Relaxed),
            bytes: cell.bytes.load(Relaxed),
        })
    }

    /// Sets a cell of a counter that is no table's.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn set_counter(
        &self,
        counter: p4_ir::CounterId,
        index: u64,
        value: CounterValue,
    ) -> Result<(), Error> {
        let cell = self.counter_cell(counter, index)?;
        cell.packets.store(value.packets, Relaxed);
        cell.bytes.store(value.bytes, Relaxed);
        Ok(())
    }

    fn counter_cell(&self, counter: p4_ir::CounterId, index: u64) -> Result<&CounterCell, Error> {
        let array = self.counters.get(counter.index());
        let array =
            array.ok_or_else(|| out_of_range("counters", self.counters.len(), u64::from(counter.0)))?;
        let cell = usize::try_from(index)
            .ok()
            .and_then(|index| array.cells.get(index));
        cell.ok_or_else(|| out_of_range(&array.name, array.cells.len(), index))
    }

    // Meters.

    pub(crate) fn measure(&self, meter: usize, index: u64, length: u64, now: u64, colour: u64) -> u64 {
        let Some(array) = self.meters.get(meter) else {
            return 0;
        };
        let cell = usize::try_from(index)
            .ok()
            .and_then(|index| array.cells.get(index));
        let before = match colour {
            0 => Colour::Green,
            1 => Colour::Yellow,
            _ => Colour::Red,
        };
        let tokens = if array.bytes { length } else { 1 };
        cell.map_or(0, |cell| cell.execute(tokens, now, before) as u64)
    }

    /// Sets the rates of a meter's cell; `None`: every packet is green. `now` is in nanoseconds.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Table`].
    pub fn set_meter(
        &self,
        meter: p4_ir::MeterId,
        index: u64,
        rates: Option<MeterRates>,
        now: u64,
    ) -> Result<(), Error> {
        Ok(self.meter_cell(meter, index)?.set(rates, now)?)
    }

    /// The rates of a meter's cell.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    pub fn meter(&self, meter: p4_ir::MeterId, index: u64) -> Result<Option<MeterRates>, Error> {
        Ok(self.meter_cell(meter, index)?.rates())
    }

    /// Cells of a meter that is no table's.
    pub fn meter_cells(&self, meter: p4_ir::MeterId) -> u64 {
        self.meters
            .get(meter.index())
            .map_or(0, |array| array.cells.len() as u64)
    }

    fn meter_cell(&self, meter: p4_ir::MeterId, index: u64) -> Result<&Meter, Error> {
        let array = self.meters.get(meter.index());
        let array = array.ok_or_else(|| out_of_range("meters", self.meters.len(), u64::from(meter.0)))?;
        let cell = usize::try_from(index)
            .ok()
            .and_then(|index| array.cells.get(index));
        cell.ok_or_else(|| out_of_range(&array.name, array.cells.len(), index))
    }

    // Hashes.

    pub(crate) fn next_turn(&self, calculation: usize) -> u64 {
        self.turns
            .get(calculation)
            .map_or(0, |turn| turn.fetch_add(1, Relaxed))
    }

    pub(crate) fn custom_hash(&self, calculation: usize) -> Arc<Algorithm> {
        let custom = self
            .custom
            .get(calculation)
            .and_then(|custom| custom.read().clone());
        custom.unwrap_or_else(|| Arc::new(Algorithm::Identity))
    }

    /// Sets the parameters of a `crc16_custom` or `crc32_custom`.
    ///
    /// # Errors
    ///
    /// [`Error::Wrong`] if the calculation has no parameters.
    pub fn set_crc(&self, calculation: p4_ir::CalculationId, parameters: CrcParameters) -> Result<(), Error> {
        let custom = self.custom.get(calculation.index());
        let mut custom = match custom.map(RwLock::write) {
            Some(custom) if custom.is_some() => custom,
            _ => {
                return Err(Error::Wrong {
                    what: "calculation",
                    expected: "a custom CRC".into(),
                });
            }
        };
        *custom = Some(Arc::new(Algorithm::Crc(Crc::new(parameters))));
        Ok(())
    }
}

fn out_of_range(name: &str, size: usize, index: u64) -> Error {
    Error::OutOfRange {
        name: name.to_owned(),
        size: size as u32,
        index,
    }
}

fn register_words(register: &p4_ir::Register) -> usize {
    usize::from(register.width).div_ceil(64).max(1)
}

fn check_size(program: &Program, limit: u64) -> Result<(), Error> {
    let counters = program
        .counters
        .iter()
        .map(|array| (&array.identity.name, array.size, size_of::<CounterCell>()));
    let meters = program
        .meters
        .iter()
        .map(|array| (&array.identity.name, array.size, size_of::<Meter>()));
    let registers = program
        .registers
        .iter()
        .map(|array| (&array.identity.name, array.size, register_words(array) * 8));
    let mut bytes = 0_u64;
    for (name, size, cell) in counters.chain(meters).chain(registers) {
        bytes = bytes.saturating_add(u64::from(size) * cell as u64);
        if bytes > limit {
            return Err(Error::TooMuchState {
                name: name.clone(),
                bytes,
                limit,
            });
        }
    }
    Ok(())
}

fn counter_array(counter: &p4_ir::Counter) -> CounterArray {
    CounterArray {
        name: counter.identity.name.clone(),
        cells: (0..counter.size).map(|_| CounterCell::default()).collect(),
        packets: counter.unit != CounterUnit::Bytes,
        bytes: counter.unit != CounterUnit::Packets,
    }
}

fn meter_array(meter: &p4_ir::Meter) -> MeterArray {
    MeterArray {
        name: meter.identity.name.clone(),
        cells: (0..meter.size).map(|_| Meter::default()).collect(),
        bytes: meter.bytes,
    }
}

fn register_array(register: &p4_ir::Register) -> RegisterArray {
    let words = register_words(register);
    RegisterArray {
        name: register.identity.name.clone(),
        cells: (0..register.size as usize * words)
            .map(|_| AtomicU64::new(0))
            .collect(),
        words,
        width: u32::from(register.width),
    }
}

fn custom(algorithm: p4_ir::Algorithm) -> Option<Arc<Algorithm>> {
    let parameters = match algorithm {
        p4_ir::Algorithm::Crc16Custom => CrcParameters::CRC16,
        p4_ir::Algorithm::Crc32Custom => CrcParameters::CRC32,
        _ => return None,
    };
    Some(Arc::new(Algorithm::Crc(Crc::new(parameters))))
}

/// Whether the program both reads and writes some register.
fn needs_exclusion(program: &Program) -> bool {
    let mut read = vec![false; program.registers.len()];
    let mut written = read.clone();
    for op in program.actions.iter().flat_map(|action| &action.ops) {
        match op {
            Op::RegisterRead(_, register, _) => read[register.index()] = true,
            Op::RegisterWrite(register, ..) => written[register.index()] = true,
            _ => {}
        }
    }
    read.iter().zip(&written).any(|(&read, &written)| read && written)
}
