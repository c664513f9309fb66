//! Reads of a pipeline: what matches a request, in the order of the program.
//!
//! A request that leaves its key out asks for all that the role may read. A request for something that the
//! role may not read finds nothing.

use crate::arbitration::Scope;
use crate::bytestring;
use crate::entry::{self, EntryKey};
use crate::failure::{Done, Failure};
use crate::pipeline::{Pipeline, find};
use crate::proto::{
    CounterData, CounterEntry, DigestEntry, DirectCounterEntry, Entity, Index, Kind, P4Data,
    PacketReplicationEngineEntry, RegisterEntry, Replication, TableAction, TableActionType, TableEntry,
};
use crate::rates::write_rates;
use crate::replication;
use crate::write::{cells, position};
use control_protocol::p4::P4Array;
use p4_ir::{Bits, EntryAction, EntryTarget, Identity, Table};
use std::ops::Range;

/// Where a read gets the values of cells from, and where it puts what it finds.
pub trait Reader {
    /// Values of cells, each of its words.
    ///
    /// # Errors
    /// The values cannot be had.
    fn cells(&mut self, array: P4Array, cells: Range<u32>) -> Done<Vec<Vec<u64>>>;

    /// Takes what was found.
    ///
    /// # Errors
    /// There is too much of it.
    fn found(&mut self, kind: Kind) -> Done<()>;
}

impl Pipeline {
    /// Finds what a request asks for.
    ///
    /// # Errors
    /// The request makes no sense, or is about something that does not exist.
    pub fn read(&self, request: &Entity, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        let request = request.kind.as_ref();
        match request.ok_or_else(|| Failure::invalid("the request has no entity"))? {
            Kind::TableEntry(given) => self.read_entries(given, scope, reader),
            Kind::DirectCounterEntry(given) => self.read_direct_counters(given, scope, reader),
            Kind::CounterEntry(given) => self.read_counters(given, scope, reader),
            Kind::RegisterEntry(given) => self.read_registers(given, scope, reader),
            Kind::MeterEntry(given) => self.read_meters(given, scope, reader),
            Kind::Replication(given) => self.read_replication(given, reader),
            Kind::Digest(given) => self.read_digests(given, scope, reader),
            Kind::ActionProfileMember(given) => self.read_members(given, scope, reader),
            Kind::ActionProfileGroup(given) => self.read_action_groups(given, scope, reader),
            Kind::DirectMeterEntry(given) => self.read_direct_meters(given, scope, reader),
            Kind::ValueSet(given) => self.read_value_sets(given, scope, reader),
            Kind::Extern(_) => Err(Failure::unimplemented("there are no externs of other kinds")),
        }
    }

    fn read_digests(&self, given: &DigestEntry, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        let all = self.program.digests.iter().map(|digest| &digest.identity);
        for number in self.meant("digest", all, given.digest_id, scope)? {
            let id = self.program.digests[number].identity.id.unwrap_or(0);
            if let Some(config) = self.notes.digests.get(&id) {
                let (digest_id, config) = (id, Some(*config));
                reader.found(Kind::Digest(DigestEntry { digest_id, config }))?;
            }
        }
        Ok(())
    }

    /// Tables that a request means.
    pub(crate) fn tables(&self, id: u32, scope: &Scope) -> Done<Vec<usize>> {
        self.meant(
            "table",
            self.program.tables.iter().map(|table| &table.identity),
            id,
            scope,
        )
    }

    /// Positions of objects that a request means, by number or all.
    pub(crate) fn meant<'a>(
        &self,
        what: &str,
        all: impl Iterator<Item = &'a Identity> + Clone,
        id: u32,
        scope: &Scope,
    ) -> Done<Vec<usize>> {
        if id != 0 {
            let at = find(what, all, id)?;
            return Ok(if scope.may_read(id) { vec![at] } else { Vec::new() });
        }
        let is_known = |identity: &Identity| identity.id.is_some_and(|id| scope.may_read(id));
        let known = all.enumerate().filter(|(_, identity)| is_known(identity));
        Ok(known.map(|(at, _)| at).collect())
    }

    fn read_entries(&self, given: &TableEntry, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        if given.meter_counter_data.is_some() {
            return Err(Failure::unimplemented("meters do not count"));
        }
        for number in self.tables(given.table_id, scope)? {
            let counts = given
                .counter_data
                .is_some()
                .then(|| self.counts(number, reader))
                .transpose()?;
            if given.is_default_action {
                let counts = counts.flatten().and_then(|counts| counts.last().copied());
                if let Some(mut found) = self.default_entry(number, counts) {
                    found.meter_config = given.meter_config.and_then(|_| self.default_rates(number));
                    reader.found(Kind::TableEntry(Box::new(found)))?;
                }
                continue;
            }
            let times = self.times_since_last_hit(number, given, reader)?;
            for at in self.rows(number, given)? {
                let counts = counts.as_ref().and_then(Option::as_ref);
                let count = counts.and_then(|counts| counts.get(at).copied());
                let mut found = self.entry(number, at, count);
                let rates = self.program.tables[number].entries[at].rates;
                found.time_since_last_hit = times.get(at).copied();
                found.meter_config = given.meter_config.and(rates).map(write_rates);
                reader.found(Kind::TableEntry(Box::new(found)))?;
            }
        }
        Ok(())
    }

    /// Positions of a table's entries that a request means.
    pub(crate) fn rows(&self, number: usize, given: &TableEntry) -> Done<Vec<usize>> {
        let table = &self.program.tables[number];
        let of_all = given.table_id == 0;
        if !of_all && !given.r#match.is_empty() {
            let key = entry::read_key(table, &given.r#match, given.priority)
                .map_err(|failure| failure.within(format_args!("table {}", table.identity.name)))?;
            return Ok(self.positions[number].get(&key).copied().into_iter().collect());
        }
        let action = given.action.as_ref().and_then(|action| action.r#type.as_ref());
        let leads_there = |entry: &p4_ir::Entry| match (action, &entry.target) {
            (Some(TableActionType::Action(wanted)), EntryTarget::Action(own)) => {
                self.program.actions[own.action.index()].identity.id == Some(wanted.action_id)
            }
            (Some(TableActionType::Action(_)), _) => false,
            (Some(TableActionType::ActionProfileMemberId(id)), own) => *own == EntryTarget::Member(*id),
            (Some(TableActionType::ActionProfileGroupId(id)), own) => *own == EntryTarget::Group(*id),
            (Some(TableActionType::ActionProfileActionSet(_)), own) => matches!(own, EntryTarget::Choices(_)),
            (None, _) => true,
        };
        let matches = |entry: &p4_ir::Entry| {
            let note = || self.note_of(number, &entry.keys, entry.priority);
            of_all
                || (given.priority == 0 || i64::from(given.priority) == i64::from(entry.priority))
                    && leads_there(entry)
                    && (given.metadata.is_empty() || note().0 == given.metadata)
                    && (given.controller_metadata == 0 || note().1 == given.controller_metadata)
        };
        let entries = table.entries.iter().enumerate();
        Ok(entries
            .filter(|(_, entry)| matches(entry))
            .map(|(at, _)| at)
            .collect())
    }

    /// Metadata of an entry, in both forms.
    fn note_of(&self, number: usize, keys: &[p4_ir::KeyMatch], priority: u32) -> (Vec<u8>, u64) {
        let notes = &self.notes.entries[number];
        if notes.is_empty() {
            return Default::default();
        }
        let key = EntryKey {
            keys: keys.to_vec(),
            priority,
        };
        let note = notes.get(&key).cloned().unwrap_or_default();
        (note.metadata, note.controller_metadata)
    }

    pub(crate) fn entry(&self, number: usize, at: usize, count: Option<CounterData>) -> TableEntry {
        let table = &self.program.tables[number];
        let own = &table.entries[at];
        let (metadata, controller_metadata) = self.note_of(number, &own.keys, own.priority);
        TableEntry {
            table_id: table.identity.id.unwrap_or(0),
            r#match: entry::write_key(table, &own.keys),
            priority: i32::try_from(own.priority).unwrap_or(i32::MAX),
            action: self.write_target(&own.target),
            idle_timeout_ns: i64::try_from(own.idle_timeout_ns).unwrap_or(i64::MAX),
            counter_data: count,
            metadata,
            controller_metadata,
            is_const: table.constant,
            ..TableEntry::default()
        }
    }

    fn default_entry(&self, number: usize, count: Option<CounterData>) -> Option<TableEntry> {
        let table = &self.program.tables[number];
        let own = table.default.as_ref()?;
        Some(TableEntry {
            table_id: table.identity.id.unwrap_or(0),
            action: self.action(&own.entry),
            is_default_action: true,
            counter_data: count,
            is_const: own.constant_arguments,
            ..TableEntry::default()
        })
    }

    fn write_target(&self, own: &EntryTarget) -> Option<TableAction> {
        let r#type = match own {
            EntryTarget::Action(own) => return self.action(own),
            EntryTarget::Member(id) => TableActionType::ActionProfileMemberId(*id),
            EntryTarget::Group(id) => TableActionType::ActionProfileGroupId(*id),
            EntryTarget::Choices(all) => TableActionType::ActionProfileActionSet(self.write_choices(all)),
        };
        let r#type = Some(r#type);
        Some(TableAction { r#type })
    }

    fn action(&self, own: &EntryAction) -> Option<TableAction> {
        let action = entry::write_action(&self.program, own)?;
        Some(TableAction {
            r#type: Some(TableActionType::Action(action)),
        })
    }

    /// What a table's entries have counted, the default last; none if the table does not count.
    fn counts(&self, number: usize, reader: &mut dyn Reader) -> Done<Option<Vec<CounterData>>> {
        let table: &Table = &self.program.tables[number];
        if table.counter.is_none() {
            return Ok(None);
        }
        let cells = u32::try_from(table.entries.len() + 1).map_err(Failure::exhausted)?;
        let words = reader.cells(P4Array::Entries(position(number)?), 0..cells)?;
        Ok(Some(words.iter().map(|words| write_count(words)).collect()))
    }

    fn read_direct_counters(
        &self,
        given: &DirectCounterEntry,
        scope: &Scope,
        reader: &mut dyn Reader,
    ) -> Done<()> {
        let given = given.table_entry.as_ref();
        let given = given.ok_or_else(|| Failure::invalid("table_entry is missing"))?;
        for number in self.tables(given.table_id, scope)? {
            let Some(counts) = self.counts(number, reader)? else {
                continue;
            };
            let rows = match given.is_default_action {
                true => vec![counts.len().saturating_sub(1)],
                false => self.rows(number, given)?,
            };
            for at in rows {
                let data = counts.get(at).copied();
                let table_entry = Some(self.name_of(number, at));
                let found = DirectCounterEntry { table_entry, data };
                reader.found(Kind::DirectCounterEntry(Box::new(found)))?;
            }
        }
        Ok(())
    }

    /// The key of an entry, or of the default, which is behind the last one.
    pub(crate) fn name_of(&self, number: usize, at: usize) -> TableEntry {
        let table = &self.program.tables[number];
        let own = table.entries.get(at);
        TableEntry {
            table_id: table.identity.id.unwrap_or(0),
            is_default_action: own.is_none(),
            r#match: own.map_or_else(Vec::new, |own| entry::write_key(table, &own.keys)),
            priority: own.map_or(0, |own| i32::try_from(own.priority).unwrap_or(i32::MAX)),
            ..TableEntry::default()
        }
    }

    fn read_counters(&self, given: &CounterEntry, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        let counters = &self.program.counters;
        let all = counters.iter().map(|counter| &counter.identity);
        for number in self.meant("counter", all, given.counter_id, scope)? {
            let counter = &counters[number];
            if counter.table.is_some() {
                continue;
            }
            let cells = cells(given.index, counter.size)?;
            let values = reader.cells(P4Array::Counter(position(number)?), cells.clone())?;
            for (cell, words) in cells.zip(values) {
                reader.found(Kind::CounterEntry(Box::new(CounterEntry {
                    counter_id: counter.identity.id.unwrap_or(0),
                    index: Some(Index { index: cell.into() }),
                    data: Some(write_count(&words)),
                })))?;
            }
        }
        Ok(())
    }

    fn read_registers(&self, given: &RegisterEntry, scope: &Scope, reader: &mut dyn Reader) -> Done<()> {
        let registers = &self.program.registers;
        let all = registers.iter().map(|register| &register.identity);
        for number in self.meant("register", all, given.register_id, scope)? {
            let register = &registers[number];
            let cells = cells(given.index, register.size)?;
            let values = reader.cells(P4Array::Register(position(number)?), cells.clone())?;
            for (cell, words) in cells.zip(values) {
                let bytes: Vec<u8> = words.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
                let value = bytestring::write(&Bits::from_bytes(register.width, &bytes));
                let bitstring = Some(value);
                reader.found(Kind::RegisterEntry(Box::new(RegisterEntry {
                    register_id: register.identity.id.unwrap_or(0),
                    index: Some(Index { index: cell.into() }),
                    data: Some(P4Data {
                        bitstring,
                        r#struct: None,
                    }),
                })))?;
            }
        }
        Ok(())
    }

    fn read_replication(&self, given: &PacketReplicationEngineEntry, reader: &mut dyn Reader) -> Done<()> {
        let mut found = |one: Replication| {
            let r#type = Some(one);
            reader.found(Kind::Replication(Box::new(PacketReplicationEngineEntry {
                r#type,
            })))
        };
        match &given.r#type {
            Some(Replication::Group(given)) => {
                let wanted = u64::from(given.multicast_group_id);
                let groups = self.setup.groups.iter();
                for group in groups.filter(|group| wanted == 0 || group.number == wanted) {
                    let metadata = self.notes.groups.get(&group.number).cloned().unwrap_or_default();
                    found(Replication::Group(replication::write_group(group, metadata)))?;
                }
            }
            Some(Replication::Session(given)) => {
                let wanted = u64::from(given.session_id);
                let sessions = self.setup.sessions.iter();
                for session in sessions.filter(|session| wanted == 0 || session.number == wanted) {
                    found(Replication::Session(replication::write_session(session)))?;
                }
            }
            None => return Err(Failure::invalid("neither a group nor a session is given")),
        }
        Ok(())
    }
}

fn write_count(words: &[u64]) -> CounterData {
    let count = |at: usize| i64::try_from(words.get(at).copied().unwrap_or(0)).unwrap_or(i64::MAX);
    CounterData {
        packet_count: count(0),
        byte_count: count(1),
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
