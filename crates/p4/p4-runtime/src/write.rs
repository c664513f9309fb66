//! Updates of a pipeline.
//!
//! Entries, defaults, groups, sessions and rates are changed in the pipeline, which becomes a version. Cells
//! of counters and registers are no part of a version: their updates are checked, and handed to the caller.

use crate::arbitration::Scope;
use crate::bytestring;
use crate::entry::{self, EntryKey};
use crate::failure::{Done, Failure};
use crate::pipeline::{Changed, EntryNote, Pipeline, find};
use crate::proto::{
    CloneSessionEntry, CounterData, CounterEntry, DigestEntry, DirectCounterEntry, Index, Kind,
    MulticastGroupEntry, P4Data, PacketReplicationEngineEntry, RegisterEntry, Replication, TableActionType,
    TableEntry, Update, update_type,
};
use crate::rates::{entry_rates, read_timeout};
use crate::replication;
use crate::uses::profile_of;
use control_protocol::p4::P4Array;
use p4_ir::changes::EntryChange;
use p4_ir::{DefaultEntry, Entry, EntryAction, EntryTarget, TableId};
use std::ops::Range;
use tonic::Code;

/// Most bytes of an entry's metadata.
const MAX_METADATA: usize = 4096;

/// Cells that are to get a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellWrite {
    /// The array.
    pub array: P4Array,
    /// The cells; of an entry, where it was when the update was read.
    pub cells: Range<u32>,
    /// The entry whose counts are set: other updates of the batch may have moved it.
    pub row: Option<Row>,
    /// The value, as [`control_protocol::p4::P4Answer::Cells`] has it.
    pub words: Vec<u64>,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Position of the table.
    pub table: usize,
    /// `None`: the default.
    pub key: Option<EntryKey>,
}

/// What is done with an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Insert,
    Modify,
    Delete,
}

impl Verb {
    /// Refuses to insert what is there, and to modify or delete what is not.
    pub(crate) fn check(self, is_there: bool) -> Done<()> {
        match (self, is_there) {
            (Verb::Insert, true) => Err(Failure::new(Code::AlreadyExists, "it exists already")),
            (Verb::Modify | Verb::Delete, false) => Err(Failure::missing("it does not exist")),
            (Verb::Insert, false) | (Verb::Modify | Verb::Delete, true) => Ok(()),
        }
    }
}

impl Pipeline {
    /// Makes an update, or says which cells it is about. A failure changes nothing.
    ///
    /// # Errors
    /// The update makes no sense, is not allowed, or is about something that is not there, or is.
    pub fn apply(&mut self, update: &Update, scope: &Scope) -> Done<Option<CellWrite>> {
        let verb = match update.r#type {
            update_type::INSERT => Verb::Insert,
            update_type::MODIFY => Verb::Modify,
            update_type::DELETE => Verb::Delete,
            other => {
                return Err(Failure::invalid(format_args!(
                    "there is no type of update {other}"
                )));
            }
        };
        let entity = update.entity.as_ref().and_then(|entity| entity.kind.as_ref());
        let entity = entity.ok_or_else(|| Failure::invalid("the update has no entity"))?;
        if let Some(id) = number_of(entity)
            && !scope.may_write(id)
        {
            return Err(Failure::denied(format_args!("the role may not write {id}")));
        }
        match (entity, verb) {
            (Kind::TableEntry(given), _) => self.write_entry(verb, given).map(|()| None),
            (Kind::Replication(given), _) if scope.may_replicate() => {
                self.write_replication(verb, given).map(|()| None)
            }
            (Kind::Replication(_), _) => Err(Failure::denied("the role may not write groups and sessions")),
            (Kind::Digest(given), _) => self.write_digest(verb, given).map(|()| None),
            (Kind::ActionProfileMember(given), _) => self.write_member(verb, given).map(|()| None),
            (Kind::ActionProfileGroup(given), _) => self.write_action_group(verb, given).map(|()| None),
            (Kind::CounterEntry(given), Verb::Modify) => self.write_counter(given),
            (Kind::DirectCounterEntry(given), Verb::Modify) => self.write_direct_counter(given),
            (Kind::RegisterEntry(given), Verb::Modify) => self.write_register(given),
            (Kind::MeterEntry(given), Verb::Modify) => self.write_meter(given).map(|()| None),
            (Kind::DirectMeterEntry(given), Verb::Modify) => self.write_direct_meter(given).map(|()| None),
            (
                Kind::CounterEntry(_)
                | Kind::DirectCounterEntry(_)
                | Kind::RegisterEntry(_)
                | Kind::MeterEntry(_)
                | Kind::DirectMeterEntry(_),
                _,
            ) => Err(Failure::invalid("cells of arrays are modified only")),
            (Kind::ValueSet(given), _) => self.write_value_set(verb, given).map(|()| None),
            (Kind::Extern(_), _) => Err(Failure::unimplemented("there are no externs of other kinds")),
        }
    }

    fn write_digest(&mut self, verb: Verb, given: &DigestEntry) -> Done<()> {
        let id = given.digest_id;
        find(
            "digest",
            self.program.digests.iter().map(|digest| &digest.identity),
            id,
        )?;
        let configs = &mut self.notes.digests;
        verb.check(configs.contains_key(&id))?;
        if verb == Verb::Delete {
            configs.remove(&id);
        } else {
            let config = given.config.unwrap_or_default();
            if config.max_timeout_ns < 0 || config.max_list_size < 0 || config.ack_timeout_ns < 0 {
                return Err(Failure::invalid("times and sizes are not below 0"));
            }
            configs.insert(id, config);
        }
        self.changed = Changed::All;
        Ok(())
    }

    fn write_entry(&mut self, verb: Verb, given: &TableEntry) -> Done<()> {
        let number = self.table(given.table_id)?;
        let name = self.program.tables[number].identity.name.clone();
        let done = match given.is_default_action {
            true => self.write_default(verb, number, given),
            false => self.write_row(verb, number, given),
        };
        done.map_err(|failure| failure.within(format_args!("table {name}")))
    }

    fn write_row(&mut self, verb: Verb, number: usize, given: &TableEntry) -> Done<()> {
        let table = &self.program.tables[number];
        if table.constant {
            return Err(Failure::denied("its entries are constant"));
        }
        if table.keys.is_empty() {
            return Err(Failure::invalid("a table without keys has no entries"));
        }
        let key = entry::read_key(table, &given.r#match, given.priority)?;
        let position = self.positions[number].get(&key).copied();
        verb.check(position.is_some())?;
        if let (Verb::Delete, Some(at)) = (verb, position) {
            self.remove_row(number, &key, at);
            return Ok(());
        }
        check_extras(given)?;
        let rates = entry_rates(&self.program.tables[number], given)?;
        let idle_ns = read_timeout(&self.program.tables[number], given)?;
        let target = self.read_target(number, given)?;
        match (position, target) {
            (Some(at), Some(target)) => self.set_target(number, at, target)?,
            (Some(_), None) => {}
            (None, Some(target)) => self.add_row(number, &key, target)?,
            (None, None) => return Err(Failure::invalid("the action is missing")),
        }
        if let Some(&at) = self.positions[number].get(&key) {
            self.program.tables[number].entries[at].rates = rates;
            self.set_idle_time(number, at, idle_ns);
            self.note_change(verb, number, at);
        }
        self.note(number, key, given);
        Ok(())
    }

    /// Notes that an entry is new, or another one by now.
    fn note_change(&mut self, verb: Verb, number: usize, at: usize) {
        let entry = &self.program.tables[number].entries[at];
        // Times of last packets are kept of tables that have had such an entry before.
        if entry.idle_timeout_ns > 0 || has_own_actions(&entry.target) {
            self.changed = Changed::All;
            return;
        }
        let (table, entry) = (TableId(number as u16), entry.clone());
        self.changed.note(match verb {
            Verb::Insert => EntryChange::Insert(table, entry),
            Verb::Modify | Verb::Delete => EntryChange::Modify(table, entry),
        });
    }

    fn set_target(&mut self, number: usize, at: usize, target: EntryTarget) -> Done<()> {
        let former = self.program.tables[number].entries[at].target.clone();
        self.hold(number, Some(&former), &target)?;
        if has_own_actions(&former) {
            self.changed = Changed::All;
        }
        self.program.tables[number].entries[at].target = target;
        Ok(())
    }

    fn add_row(&mut self, number: usize, key: &EntryKey, target: EntryTarget) -> Done<()> {
        let table = &self.program.tables[number];
        if table.entries.len() >= table.size as usize {
            return Err(Failure::exhausted(format_args!(
                "it has {} entries at most",
                table.size
            )));
        }
        self.hold(number, None, &target)?;
        let table = &mut self.program.tables[number];
        self.positions[number].insert(key.clone(), table.entries.len());
        table.entries.push(Entry {
            keys: key.keys.clone(),
            target,
            rates: None,
            idle_timeout_ns: 0,
            priority: key.priority,
        });
        Ok(())
    }

    /// Takes an entry away; the last one takes its position.
    fn remove_row(&mut self, number: usize, key: &EntryKey, at: usize) {
        let removed = self.program.tables[number].entries.swap_remove(at);
        self.release(number, &removed.target);
        self.timed -= usize::from(removed.idle_timeout_ns > 0);
        self.positions[number].remove(key);
        if let Some(moved) = self.program.tables[number].entries.get(at) {
            self.positions[number].insert(EntryKey::of(moved), at);
        }
        if self.notes.entries[number].remove(key).is_some() || has_own_actions(&removed.target) {
            self.changed = Changed::All;
        }
        self.changed
            .note(EntryChange::Remove(TableId(number as u16), key.clone()));
    }

    fn note(&mut self, number: usize, key: EntryKey, given: &TableEntry) {
        let note = EntryNote {
            metadata: given.metadata.clone(),
            controller_metadata: given.controller_metadata,
        };
        let own = &mut self.notes.entries[number];
        let is_noted = note != EntryNote::default();
        let former = if is_noted {
            own.insert(key, note)
        } else {
            own.remove(&key)
        };
        if is_noted || former.is_some() {
            self.changed = Changed::All;
        }
    }

    /// What an entry leads to, if that is given.
    fn read_target(&self, number: usize, given: &TableEntry) -> Done<Option<EntryTarget>> {
        let table = &self.program.tables[number];
        let Some(action) = given.action.as_ref().and_then(|action| action.r#type.as_ref()) else {
            return Ok(None);
        };
        let profile = match (action, profile_of(table)) {
            (TableActionType::Action(action), None) => {
                let read = entry::read_action(&self.program, table, action, false)?;
                return Ok(Some(EntryTarget::Action(read)));
            }
            (TableActionType::Action(_), Some(_)) => {
                return Err(Failure::invalid(
                    "its entries have members or groups, not actions",
                ));
            }
            (_, None) => {
                return Err(Failure::invalid(
                    "its entries have actions, not members or groups",
                ));
            }
            (_, Some(profile)) => &self.program.profiles[profile],
        };
        let missing = |what: &str, id: u32| Failure::missing(format_args!("there is no {what} {id}"));
        Ok(Some(match action {
            TableActionType::ActionProfileMemberId(id) if profile.members.contains_key(id) => {
                EntryTarget::Member(*id)
            }
            TableActionType::ActionProfileMemberId(id) => return Err(missing("member", *id)),
            TableActionType::ActionProfileGroupId(id) if profile.groups.contains_key(id) => {
                EntryTarget::Group(*id)
            }
            TableActionType::ActionProfileGroupId(id) => return Err(missing("group", *id)),
            TableActionType::ActionProfileActionSet(set) => self.read_choices(table, set)?,
            TableActionType::Action(_) => return Ok(None),
        }))
    }

    /// The action of a table's default, if one is given. With an action profile, too, it is an action.
    fn read_default(&self, number: usize, given: &TableEntry) -> Done<Option<EntryAction>> {
        let table = &self.program.tables[number];
        match given.action.as_ref().and_then(|action| action.r#type.as_ref()) {
            None => Ok(None),
            Some(TableActionType::Action(action)) => {
                entry::read_action(&self.program, table, action, true).map(Some)
            }
            Some(_) => Err(Failure::invalid("a default is an action, and no member or group")),
        }
    }

    fn write_default(&mut self, verb: Verb, number: usize, given: &TableEntry) -> Done<()> {
        if verb != Verb::Modify {
            return Err(Failure::invalid("the default entry is modified only"));
        }
        if !given.r#match.is_empty() || given.priority != 0 {
            return Err(Failure::invalid("the default entry has no keys and no priority"));
        }
        if given.idle_timeout_ns != 0 || given.time_since_last_hit.is_some() {
            return Err(Failure::invalid("the default entry has no idle time"));
        }
        check_extras(given)?;
        let rates = entry_rates(&self.program.tables[number], given)?;
        let action = self.read_default(number, given)?;
        let own = self.notes.defaults[number].as_ref();
        if own.is_some_and(|own| own.constant_arguments) {
            return Err(Failure::denied("its default is constant"));
        }
        let fixed = |action: &EntryAction| {
            own.is_some_and(|own| own.constant_action && own.entry.action != action.action)
        };
        let default = match action {
            Some(action) if fixed(&action) => return Err(Failure::denied("its default action is constant")),
            Some(entry) => Some(DefaultEntry {
                entry,
                constant_action: own.is_some_and(|own| own.constant_action),
                constant_arguments: false,
                rates,
            }),
            None => own.map(|own| DefaultEntry { rates, ..own.clone() }),
        };
        self.program.tables[number].default = default;
        self.changed = Changed::All;
        Ok(())
    }

    fn write_replication(&mut self, verb: Verb, given: &PacketReplicationEngineEntry) -> Done<()> {
        match &given.r#type {
            Some(Replication::Group(group)) => self.write_group(verb, group),
            Some(Replication::Session(session)) => self.write_session(verb, session),
            None => Err(Failure::invalid("neither a group nor a session is given")),
        }
    }

    fn write_group(&mut self, verb: Verb, given: &MulticastGroupEntry) -> Done<()> {
        let number = u64::from(given.multicast_group_id);
        let at = self.setup.groups.iter().position(|group| group.number == number);
        let mut new = None;
        if verb != Verb::Delete {
            check_metadata(&given.metadata)?;
            new = Some(replication::read_group(given)?);
        }
        put(&mut self.setup.groups, verb, at, new)?;
        match given.metadata.is_empty() || verb == Verb::Delete {
            true => self.notes.groups.remove(&number),
            false => self.notes.groups.insert(number, given.metadata.clone()),
        };
        self.changed = Changed::All;
        Ok(())
    }

    fn write_session(&mut self, verb: Verb, given: &CloneSessionEntry) -> Done<()> {
        let number = u64::from(given.session_id);
        let at = self
            .setup
            .sessions
            .iter()
            .position(|session| session.number == number);
        let new = match verb {
            Verb::Delete => None,
            _ => Some(replication::read_session(given)?),
        };
        put(&mut self.setup.sessions, verb, at, new)?;
        self.changed = Changed::All;
        Ok(())
    }

    fn write_counter(&self, given: &CounterEntry) -> Done<Option<CellWrite>> {
        let counters = self.program.counters.iter();
        let number = find(
            "counter",
            counters.map(|counter| &counter.identity),
            given.counter_id,
        )?;
        let counter = &self.program.counters[number];
        let cells = cells(given.index, counter.size)?;
        let Some(data) = given.data else {
            return Ok(None);
        };
        Ok(Some(CellWrite {
            array: P4Array::Counter(position(number)?),
            cells,
            row: None,
            words: counts(data)?,
        }))
    }

    fn write_direct_counter(&self, given: &DirectCounterEntry) -> Done<Option<CellWrite>> {
        let row = self.row_of(given.table_entry.as_ref())?;
        let number = row.table;
        if self.program.tables[number].counter.is_none() {
            return Err(Failure::invalid("the table does not count"));
        }
        let cell = self.cell_of(&row)?;
        let Some(data) = given.data else {
            return Ok(None);
        };
        Ok(Some(CellWrite {
            array: P4Array::Entries(position(number)?),
            cells: cell..cell + 1,
            row: Some(row),
            words: counts(data)?,
        }))
    }

    /// The entry that a request about its direct counter or meter names.
    ///
    /// # Errors
    /// There is no such table, or an entry cannot have such a key.
    pub(crate) fn row_of(&self, entry: Option<&TableEntry>) -> Done<Row> {
        let entry = entry.ok_or_else(|| Failure::invalid("table_entry is missing"))?;
        let number = self.table(entry.table_id)?;
        let table = &self.program.tables[number];
        let key = match entry.is_default_action {
            true => None,
            false => Some(entry::read_key(table, &entry.r#match, entry.priority)?),
        };
        Ok(Row { table: number, key })
    }

    /// The cells that an update means, of an entry where it is by now.
    ///
    /// # Errors
    /// The entry is gone.
    pub fn cells_of(&self, write: &CellWrite) -> Done<Range<u32>> {
        let Some(row) = &write.row else {
            return Ok(write.cells.clone());
        };
        let cell = self.cell_of(row)?;
        Ok(cell..cell + 1)
    }

    /// The cell of an entry among those of its table.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn cell_of(&self, row: &Row) -> Done<u32> {
        let missing = || Failure::missing("there is no such entry");
        let at = match &row.key {
            Some(key) => self.positions[row.table].get(key).copied().ok_or_else(missing)?,
            None => self.program.tables[row.table].entries.len(),
        };
        u32::try_from(at).map_err(Failure::exhausted)
    }

    fn write_register(&self, given: &RegisterEntry) -> Done<Option<CellWrite>> {
        let registers = self.program.registers.iter();
        let number = find(
            "register",
            registers.map(|register| &register.identity),
            given.register_id,
        )?;
        let register = &self.program.registers[number];
        let cells = cells(given.index, register.size)?;
        let Some(P4Data {
            bitstring: Some(value),
            ..
        }) = &given.data
        else {
            return Err(Failure::invalid("the register's value is no bit string"));
        };
        let out_of_range = |failure: Failure| Failure::new(Code::OutOfRange, failure.text);
        let value = bytestring::read(value, register.width).map_err(out_of_range)?;
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok(Some(CellWrite {
            array: P4Array::Register(position(number)?),
            cells,
            row: None,
            words: value.bytes().rchunks(8).map(word).collect(),
        }))
    }
}

/// The number of P4Info that an entity is about.
fn number_of(entity: &Kind) -> Option<u32> {
    let table = |entry: &Option<TableEntry>| entry.as_ref().map_or(0, |entry| entry.table_id);
    match entity {
        Kind::TableEntry(given) => Some(given.table_id),
        Kind::ActionProfileMember(given) => Some(given.action_profile_id),
        Kind::ActionProfileGroup(given) => Some(given.action_profile_id),
        Kind::MeterEntry(given) => Some(given.meter_id),
        Kind::DirectMeterEntry(given) => Some(table(&given.table_entry)),
        Kind::CounterEntry(given) => Some(given.counter_id),
        Kind::DirectCounterEntry(given) => Some(table(&given.table_entry)),
        Kind::RegisterEntry(given) => Some(given.register_id),
        Kind::Digest(given) => Some(given.digest_id),
        Kind::ValueSet(given) => Some(given.value_set_id),
        Kind::Extern(_) | Kind::Replication(_) => None,
    }
}

/// Whether an entry has actions of its own of which one is chosen, which are in its profile besides.
fn has_own_actions(target: &EntryTarget) -> bool {
    matches!(target, EntryTarget::Choices(_))
}

/// What an entry may have besides key and action.
fn check_extras(given: &TableEntry) -> Done<()> {
    check_metadata(&given.metadata)?;
    if given.is_const {
        return Err(Failure::invalid("is_const is for the server to set"));
    }
    if given.meter_counter_data.is_some() {
        return Err(Failure::unimplemented("meters do not count"));
    }
    match given.counter_data {
        None
        | Some(CounterData {
            byte_count: 0,
            packet_count: 0,
        }) => Ok(()),
        Some(_) => Err(Failure::unimplemented(
            "counts of entries are set by DirectCounterEntry",
        )),
    }
}

/// Counts as a cell has them.
fn counts(data: CounterData) -> Done<Vec<u64>> {
    let count = |count: i64| u64::try_from(count).map_err(|_| Failure::invalid("a count is negative"));
    Ok(vec![count(data.packet_count)?, count(data.byte_count)?])
}

fn check_metadata(metadata: &[u8]) -> Done<()> {
    match metadata.len() <= MAX_METADATA {
        true => Ok(()),
        false => Err(Failure::exhausted(format_args!(
            "metadata has {MAX_METADATA} bytes at most"
        ))),
    }
}

/// Inserts, replaces or removes, as the verb and what is there allow.
fn put<T>(all: &mut Vec<T>, verb: Verb, at: Option<usize>, new: Option<T>) -> Done<()> {
    verb.check(at.is_some())?;
    match at {
        Some(at) => drop(all.splice(at..=at, new)),
        None => all.extend(new),
    }
    Ok(())
}

/// The cells that an index means; all of them without one.
pub(crate) fn cells(index: Option<Index>, size: u32) -> Done<Range<u32>> {
    let Some(Index { index }) = index else {
        return Ok(0..size);
    };
    if index < 0 {
        return Err(Failure::invalid("the index is negative"));
    }
    match u32::try_from(index) {
        Ok(index) if index < size => Ok(index..index + 1),
        _ => Err(Failure::new(
            Code::OutOfRange,
            format_args!("the array has {size} cells"),
        )),
    }
}

/// A position as arrays are named by.
pub(crate) fn position(number: usize) -> Done<u16> {
    u16::try_from(number).map_err(|_| Failure::missing("there is no such array"))
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
