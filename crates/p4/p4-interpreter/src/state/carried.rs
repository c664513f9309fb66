//! What one version of a program leaves to the next.
//!
//! An array is left if the next version has one of the same name, size and type. Counts of entries are left
//! to entries with the same keys and priority; they are added when no packet runs through the former version
//! any more, so that none is lost.

use super::{CounterValue, State};
use p4_ir::{Counter, Meter, Program, Register, Table, TableId};
use p4_tables::{Count, DEFAULT, Handle};

/// A version's program and state.
type Version<'a> = (&'a Program, &'a State);

impl State {
    /// Takes the arrays of a former version where names and types agree. `keeps_meter` may refuse a meter,
    /// given its numbers in this version and in the former one: its rates have changed.
    pub fn succeed(
        &mut self,
        program: &Program,
        (before, former): Version<'_>,
        keeps_meter: impl Fn(usize, usize) -> bool,
    ) {
        self.exclusive = former.exclusive.clone();
        for (own, counter) in self.counters.iter_mut().zip(&program.counters) {
            if let Some(same) = before
                .counters
                .iter()
                .position(|other| is_same_counter(counter, other))
            {
                own.cells = former.counters[same].cells.clone();
            }
        }
        for (at, (own, meter)) in self.meters.iter_mut().zip(&program.meters).enumerate() {
            let same = before.meters.iter().position(|other| is_same_meter(meter, other));
            if let Some(same) = same.filter(|same| keeps_meter(at, *same)) {
                own.cells = former.meters[same].cells.clone();
            }
        }
        for (own, register) in self.registers.iter_mut().zip(&program.registers) {
            if let Some(same) = before
                .registers
                .iter()
                .position(|other| is_same_register(register, other))
            {
                own.cells = former.registers[same].cells.clone();
            }
        }
        for (at, table) in program
            .tables
            .iter()
            .enumerate()
            .filter(|(_, table)| table.meter.is_some())
        {
            let same = before
                .tables
                .iter()
                .position(|other| has_same_meters((program, table), (before, other)));
            if let Some(same) = same {
                self.share_meters(at as u32, same as u32, former);
            }
        }
    }

    /// Takes the meters of a former version's table for entries that have the same rates.
    fn share_meters(&mut self, at: u32, same: u32, former: &State) {
        let old = former.tables.look();
        let tables = self.tables.get_mut();
        let (Ok(old), Ok(own)) = (old.table(same), tables.table(at)) else {
            return;
        };
        let in_old = |handle: Handle| {
            let (pattern, priority) = own.pattern(handle)?;
            old.find(&pattern, priority)
        };
        let pairs = own.handles().filter_map(|handle| Some((handle, in_old(handle)?)));
        let shared = pairs
            .chain([(DEFAULT, DEFAULT)])
            .filter_map(|(to, from)| {
                let rates = own.meter(to)?.rates()?;
                let meter = old.shared_meter(from)?;
                (meter.rates() == Some(rates)).then_some((to, meter))
            })
            .collect::<Vec<_>>();
        for (to, meter) in shared {
            // A table without meters has no use for one.
            let _ = tables.share_meter(at, to, meter);
        }
    }

    /// Lets idle times of entries go on: packets were last seen when the former version saw them, and now for
    /// entries that it did not have. Without a former version, all begin now.
    pub fn begin_idle_times(&self, program: &Program, former: Option<Version<'_>>, now: u64) {
        let tables = self.tables.look();
        let old = former.map(|(before, former)| (before, former.tables.look()));
        for (at, table) in program.tables.iter().enumerate() {
            let Some(own) = timed(&tables, at) else { continue };
            let old = old.as_ref().and_then(|(before, old)| {
                let same = before
                    .tables
                    .iter()
                    .position(|other| has_same_keys(table, other))?;
                timed(old, same)
            });
            let last = |handle: Handle| {
                let (pattern, priority) = own.pattern(handle)?;
                let old = old?;
                old.last_use(old.find(&pattern, priority)?)
            };
            own.handles()
                .for_each(|handle| own.note_use(handle, last(handle).unwrap_or(now)));
        }
    }

    /// Takes over when entries of a former version were last used, through which no packet runs any more.
    pub fn add_uses(&self, program: &Program, (before, former): Version<'_>) {
        let (own, old) = (self.tables.look(), former.tables.look());
        for (at, table) in program.tables.iter().enumerate() {
            let same = before.tables.iter().position(|other| has_same_keys(table, other));
            let tables = timed(&own, at).zip(same.and_then(|same| timed(&old, same)));
            let Some((own, old)) = tables else { continue };
            for handle in own.handles() {
                let from = own
                    .pattern(handle)
                    .and_then(|(pattern, priority)| old.find(&pattern, priority));
                if let Some(last) = from.and_then(|from| old.last_use(from)) {
                    own.note_earlier_use(handle, last);
                }
            }
        }
    }

    /// When a packet last met the entry at a position, in nanoseconds; `None`: its table does not keep that.
    pub fn last_use(&self, table: TableId, entry: usize) -> Option<u64> {
        let tables = self.tables.look();
        let own = tables.table(u32::from(table.0)).ok()?;
        own.last_use(own.at(entry)?)
    }

    /// Adds what entries of a former version have counted to the same entries of this one. Packets no longer
    /// run through the former version.
    pub fn add_counts(&self, program: &Program, (before, former): Version<'_>) {
        let (own, old) = (self.tables.look(), former.tables.look());
        for (at, table) in program.tables.iter().enumerate() {
            let same = before
                .tables
                .iter()
                .position(|other| has_same_counts(table, other));
            let tables = same.map(|same| (own.table(at as u32), old.table(same as u32)));
            let Some((Ok(own), Ok(old))) = tables else {
                continue;
            };
            if let Some(count) = old.counted(DEFAULT) {
                own.add_counted(DEFAULT, count);
            }
            for handle in old.handles() {
                let to = old
                    .pattern(handle)
                    .and_then(|(pattern, priority)| own.find(&pattern, priority));
                if let (Some(to), Some(count)) = (to, old.counted(handle)) {
                    own.add_counted(to, count);
                }
            }
        }
    }
}

impl State {
    /// What the entry at a position has counted; behind the last one, what the table's default has. `None`:
    /// the table does not count, or has fewer entries.
    pub fn entry_count(&self, table: TableId, entry: usize) -> Option<CounterValue> {
        let tables = self.tables.look();
        let own = tables.table(u32::from(table.0)).ok()?;
        let count = own.counted(handle(own, entry)?)?;
        Some(CounterValue {
            packets: count.packets,
            bytes: count.bytes,
        })
    }

    /// Sets what [`entry_count`](Self::entry_count) reads.
    pub fn set_entry_count(&self, table: TableId, entry: usize, to: CounterValue) -> Option<()> {
        let tables = self.tables.look();
        let own = tables.table(u32::from(table.0)).ok()?;
        let count = Count {
            packets: to.packets,
            bytes: to.bytes,
        };
        own.set_counted(handle(own, entry)?, count).ok()
    }
}

/// The handle of the entry at a position; behind the last one, that of the table's default.
fn handle(own: &p4_tables::Table, entry: usize) -> Option<Handle> {
    own.at(entry).or((entry == own.len()).then_some(DEFAULT))
}

/// The table with a number, if it keeps times of last packets.
fn timed(tables: &p4_tables::Tables, number: usize) -> Option<&p4_tables::Table> {
    let table = tables.table(number as u32).ok()?;
    table.spec().idle.then_some(table)
}

/// What a version would lose if another one took its place: arrays, and counts of entries. Each is named,
/// with what does not agree.
#[must_use]
pub fn losses(before: &Program, after: &Program) -> Vec<String> {
    let mut lost = Vec::new();
    for counter in before.counters.iter().filter(|one| one.table.is_none()) {
        let name = &counter.identity.name;
        let other = after.counters.iter().find(|other| other.identity.name == *name);
        if !other.is_some_and(|other| is_same_counter(other, counter)) {
            let shape =
                |one: &Counter| format!("{} cells that count {:?}", one.size, one.unit).to_lowercase();
            lost.push(difference("counter", name, shape(counter), other.map(shape)));
        }
    }
    for meter in before.meters.iter().filter(|one| one.table.is_none()) {
        let name = &meter.identity.name;
        let other = after.meters.iter().find(|other| other.identity.name == *name);
        if !other.is_some_and(|other| is_same_meter(other, meter)) {
            let unit = |one: &Meter| if one.bytes { "bytes" } else { "packets" };
            let shape = |one: &Meter| format!("{} cells that measure {}", one.size, unit(one));
            lost.push(difference("meter", name, shape(meter), other.map(shape)));
        }
    }
    for register in &before.registers {
        let name = &register.identity.name;
        let other = after.registers.iter().find(|other| other.identity.name == *name);
        if !other.is_some_and(|other| is_same_register(other, register)) {
            let shape = |one: &Register| format!("{} cells of {} bits", one.size, one.width);
            lost.push(difference("register", name, shape(register), other.map(shape)));
        }
    }
    let counting = before.tables.iter().filter(|table| table.counter.is_some());
    let gone = counting.filter(|table| !after.tables.iter().any(|other| has_same_counts(other, table)));
    lost.extend(gone.map(|table| {
        let name = &table.identity.name;
        format!("counts of the entries of table {name}: there is no such table with such keys")
    }));
    lost
}

fn difference(what: &str, name: &str, shape: String, other: Option<String>) -> String {
    match other {
        Some(other) => format!("{what} {name}: {shape}, then {other}"),
        None => format!("{what} {name}: {shape}, then none"),
    }
}

fn is_same_counter(one: &Counter, other: &Counter) -> bool {
    one.identity.name == other.identity.name && one.unit == other.unit && one.size == other.size
}

fn is_same_meter(one: &Meter, other: &Meter) -> bool {
    one.identity.name == other.identity.name && one.bytes == other.bytes && one.size == other.size
}

fn is_same_register(one: &Register, other: &Register) -> bool {
    one.identity.name == other.identity.name && one.width == other.width && one.size == other.size
}

/// Whether two tables count on their entries, which have the same keys.
fn has_same_counts(one: &Table, other: &Table) -> bool {
    one.counter.is_some() && other.counter.is_some() && has_same_keys(one, other)
}

/// Whether two tables measure their entries in the same unit, which have the same keys.
fn has_same_meters((program, one): (&Program, &Table), (before, other): (&Program, &Table)) -> bool {
    let in_bytes = |program: &Program, table: &Table| Some(program.meters[table.meter?.0.index()].bytes);
    in_bytes(program, one) == in_bytes(before, other) && has_same_keys(one, other)
}

fn has_same_keys(one: &Table, other: &Table) -> bool {
    let keys = one.keys.iter().zip(&other.keys);
    one.identity.name == other.identity.name
        && one.keys.len() == other.keys.len()
        && keys
            .into_iter()
            .all(|(a, b)| (&a.name, a.kind, a.width) == (&b.name, b.kind, b.width))
}
