//! What a controller reads and sets of a P4 switch's arrays while packets flow.
//!
//! Cells of registers and counters are atomics: neither side waits for the other. A value of several words
//! may be half of one packet's and half of the next one's, unless cells are set while no packet runs.

use super::version::{P4Refused, Version};
use control_protocol::p4::{MAX_CELL_WORDS, P4Answer, P4Array, P4CellWrite};
use p4_interpreter::CounterValue;
use p4_ir::{CounterId, Register, RegisterId, TableId};

/// Reads cells from a number on, as many as an answer has room for.
pub(super) fn read(version: &Version, array: P4Array, from: u32) -> Result<P4Answer, P4Refused> {
    let (cells, stride) = shape(version, array).ok_or(P4Refused::NoCell { array, cell: from })?;
    let room = MAX_CELL_WORDS as u32 / stride;
    let end = from.saturating_add(room).min(cells);
    let mut words = Vec::with_capacity(MAX_CELL_WORDS);
    for cell in from..end {
        add_cell(version, array, cell, &mut words)?;
    }
    Ok(P4Answer::Cells {
        words,
        stride,
        more: end < cells,
    })
}

/// Cells of an array, and words of one.
fn shape(version: &Version, array: P4Array) -> Option<(u32, u32)> {
    let program = version.engine.program();
    let tables = version.state.tables().look();
    // A program has fewer entries than a u32 counts.
    Some(match array {
        P4Array::Counter(number) => (program.counters.get(usize::from(number))?.size, 2),
        P4Array::Register(number) => {
            let register = program.registers.get(usize::from(number))?;
            (register.size, words_of(register))
        }
        P4Array::Entries(number) => {
            let table = tables.table(number.into()).ok()?;
            (table.spec().counters.then_some(table.len())? as u32 + 1, 2)
        }
        P4Array::Idle(number) => {
            let table = tables.table(number.into()).ok()?;
            (table.spec().idle.then_some(table.len())? as u32, 1)
        }
    })
}

fn add_cell(version: &Version, array: P4Array, cell: u32, words: &mut Vec<u64>) -> Result<(), P4Refused> {
    let state = &version.state;
    match array {
        P4Array::Counter(number) => {
            let count = state.counter(CounterId(number), cell.into())?;
            words.extend([count.packets, count.bytes]);
        }
        P4Array::Register(number) => words.extend(state.register(RegisterId(number), cell.into())?),
        P4Array::Entries(number) => {
            let count = state.entry_count(TableId(number), cell as usize);
            let count = count.unwrap_or_default();
            words.extend([count.packets, count.bytes]);
        }
        P4Array::Idle(number) => {
            let last = state.last_use(TableId(number), cell as usize);
            words.push(version.now().saturating_sub(last.unwrap_or(0)));
        }
    }
    Ok(())
}

/// Sets cells from a number on.
pub(super) fn write(version: &Version, array: P4Array, from: u32, words: &[u64]) -> Result<(), P4Refused> {
    let registers = &version.engine.program().registers;
    let stride = match array {
        P4Array::Counter(_) | P4Array::Entries(_) => 2,
        P4Array::Register(number) => match registers.get(usize::from(number)) {
            Some(register) => words_of(register),
            None => return Err(P4Refused::NoCell { array, cell: from }),
        },
        P4Array::Idle(_) => return Err(P4Refused::NoCell { array, cell: from }),
    };
    for (cell, words) in (from..=u32::MAX).zip(words.chunks(stride as usize)) {
        set(version, array, cell, words)?;
    }
    Ok(())
}

/// Sets cells of several arrays, or none if one cannot be set. No packet runs meanwhile.
pub(super) fn write_all(version: &Version, writes: &[P4CellWrite]) -> Result<(), P4Refused> {
    let mut former = Vec::new();
    let written = writes.iter().try_for_each(|write| {
        former.push(read_as_long(version, write)?);
        self::write(version, write.array, write.cell, &write.words)
    });
    written.inspect_err(|_| {
        for (write, words) in writes.iter().zip(former).rev() {
            // The cells were there.
            let _ = self::write(version, write.array, write.cell, &words);
        }
    })
}

/// Words of the cells that are to be written.
fn read_as_long(version: &Version, write: &P4CellWrite) -> Result<Vec<u64>, P4Refused> {
    let (array, cell) = (write.array, write.cell);
    let missing = || P4Refused::NoCell { array, cell };
    let (cells, stride) = shape(version, array).ok_or_else(missing)?;
    let count = write.words.len() / stride as usize;
    if count == 0 || !write.words.len().is_multiple_of(stride as usize) {
        return Err(missing());
    }
    let mut words = Vec::with_capacity(write.words.len());
    for cell in (cell..cells).take(count) {
        add_cell(version, array, cell, &mut words)?;
    }
    if words.len() < write.words.len() {
        return Err(missing());
    }
    Ok(words)
}

fn set(version: &Version, array: P4Array, cell: u32, words: &[u64]) -> Result<(), P4Refused> {
    let state = &version.state;
    let missing = || P4Refused::NoCell { array, cell };
    let count = || match *words {
        [packets, bytes] => Ok(CounterValue { packets, bytes }),
        _ => Err(missing()),
    };
    match array {
        P4Array::Counter(number) => state.set_counter(CounterId(number), cell.into(), count()?)?,
        P4Array::Register(number) => state.set_register(RegisterId(number), cell.into(), words)?,
        P4Array::Entries(number) => {
            let set = state.set_entry_count(TableId(number), cell as usize, count()?);
            set.ok_or_else(missing)?;
        }
        P4Array::Idle(_) => return Err(missing()),
    }
    Ok(())
}

/// Words of a register's cell.
fn words_of(register: &Register) -> u32 {
    u32::from(register.width).div_ceil(64).max(1)
}
