//! A program's tables: made from the IR, filled with its constant entries, read once per burst.
//!
//! Numbers of tables, action profiles and value sets are those of the program ([`p4_ir::TableId`] and so on);
//! an action's number is its [`p4_ir::ActionId`]; its arguments are whole words each, least significant
//! first, one behind the other.

use crate::engine::{Engine, match_kind};
use crate::error::Error;
use crate::state::CounterValue;
use p4_ir::changes::EntryChange;
use p4_ir::limits::CONSTANT_ENTRIES;
use p4_ir::{
    ActionProfile, Bits, Choice, EntryAction, EntryTarget, Implementation, KeyMatch, MatchKind, ProfileId,
    Program, Rates, TableId, ValueSetId,
};
use p4_tables::{
    Author, BatchError, Change, Colour, Count, DEFAULT, Entry, GroupMember, Handle, KeyField, KeyLayout,
    Match, MeterRates, Pattern, ProfileChange, ProfileSpec, Shared, TableSpec, Target, Words,
};
use parking_lot::RwLockReadGuard;
use std::sync::Arc;

/// A program's tables. See the module's description.
#[derive(Debug)]
pub struct Tables {
    shared: Shared,
    /// Per table: whether a direct meter counts bytes.
    metered: Vec<Metered>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metered {
    No,
    Packets,
    Bytes,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupResult<'a> {
    pub hit: bool,
    /// The entry, or the default one.
    pub entry: Handle,
    /// Number of the action.
    pub action: Option<u32>,
    pub arguments: &'a [u64],
    /// The colour that the entry's meter gives, in a table with direct meters.
    pub colour: Option<u64>,
}

impl Tables {
    pub(crate) fn new(engine: &Engine) -> Result<Self, Error> {
        let program = engine.program();
        let mut tables = p4_tables::Tables::new();
        for profile in &program.profiles {
            let number = tables.add_profile(ProfileSpec {
                limit: profile.size as usize,
                group_limit: profile.group_limit() as usize,
                argument_words: engine.sizes().arguments,
            });
            fill(&mut tables, number, profile)?;
        }
        let mut free = program.profiles.iter().map(FreeNumbers::new).collect::<Vec<_>>();
        for set in &program.value_sets {
            let field = |part: &(String, u16, MatchKind)| KeyField {
                // A part that is matched exactly in a look-up is a value under a full mask here.
                kind: match_kind(part.2),
                width: u32::from(part.1),
            };
            let fields: Vec<_> = set.parts.iter().map(field).collect();
            let layout = KeyLayout::new(&fields)?;
            let number = tables.add_value_set(layout.clone(), set.size as usize);
            for member in &set.members {
                let pattern = key_pattern(&layout, member)?;
                let change = Change::AddValue { set: number, pattern };
                tables.apply(&[change], 0).map_err(|refused| refused.error)?;
            }
        }
        for (number, table) in program.tables.iter().enumerate() {
            let layout = engine.layout(TableId(number as u16)).clone();
            let number = tables.add_table(spec(program, table, layout))?;
            fill_table(&mut tables, number, table, &mut free)?;
        }
        let metered = program.tables.iter().map(|table| match table.meter {
            Some((meter, _)) if program.meters[meter.index()].bytes => Metered::Bytes,
            Some(_) => Metered::Packets,
            None => Metered::No,
        });
        Ok(Tables {
            metered: metered.collect(),
            shared: Shared::new(tables),
        })
    }

    /// The tables with changes of the program's entries, which shares with them what does not change. `now`
    /// is in nanoseconds.
    pub(crate) fn changed(
        &self,
        engine: &Engine,
        changes: &[EntryChange],
        now: u64,
    ) -> Result<Tables, Error> {
        let all = changes.iter().map(|change| table_change(engine, change));
        let all = all.collect::<Result<Vec<_>, Error>>()?;
        let changed = self.look().changed(&all, Author::Program, now);
        let mut tables = changed.map_err(|refused| refused.error)?;
        for change in changes {
            if let EntryChange::Insert(table, entry) | EntryChange::Modify(table, entry) = change {
                rate(&mut tables, engine, *table, entry)?;
            }
            if tables.table(u32::from(change.table().0))?.len() > CONSTANT_ENTRIES {
                let limit = CONSTANT_ENTRIES;
                return Err(p4_tables::Error::Full { limit }.into());
            }
        }
        Ok(Tables {
            shared: Shared::new(tables),
            metered: self.metered.clone(),
        })
    }

    pub(crate) fn read(&self) -> TablesReadGuard<'_> {
        TablesReadGuard {
            tables: self.shared.read(),
            metered: &self.metered,
        }
    }

    /// The tables themselves, of a state that no packet runs through yet.
    pub(crate) fn get_mut(&mut self) -> &mut p4_tables::Tables {
        self.shared.get_mut()
    }

    /// The tables themselves, for reading. Changes wait until the guard is dropped.
    pub fn look(&self) -> RwLockReadGuard<'_, p4_tables::Tables> {
        self.shared.read()
    }

    /// Makes all changes or none. `now` is in nanoseconds.
    ///
    /// # Errors
    ///
    /// The first change that was refused.
    pub fn apply(&self, changes: &[Change], now: u64) -> Result<(), BatchError> {
        self.shared.apply(changes, now)
    }
}

/// Read access to the tables while a burst runs.
#[derive(Debug)]
pub(crate) struct TablesReadGuard<'a> {
    tables: RwLockReadGuard<'a, p4_tables::Tables>,
    metered: &'a [Metered],
}

impl TablesReadGuard<'_> {
    #[inline]
    pub fn look_up(&self, table: TableId, key: &[u64], hash: u64, length: u64, now: u64) -> LookupResult<'_> {
        let Ok(table_data) = self.tables.table(u32::from(table.0)) else {
            return LookupResult {
                hit: false,
                entry: DEFAULT,
                action: None,
                arguments: &[],
                colour: None,
            };
        };
        let found = table_data.lookup(key);
        let entry = found.unwrap_or(DEFAULT);
        table_data.count(entry, length);
        let colour = match self.metered[table.index()] {
            Metered::No => None,
            metered => {
                let tokens = if metered == Metered::Bytes { length } else { 1 };
                let meter = table_data.meter(entry);
                meter.map(|meter| meter.execute(tokens, now, Colour::Green) as u64)
            }
        };
        table_data.note_use(entry, now);
        let target = self.tables.action(table_data, entry, || hash);
        LookupResult {
            hit: found.is_some(),
            entry,
            action: target.map(|(action, _)| action),
            arguments: target.map_or(&[], |(_, arguments)| arguments),
            colour,
        }
    }

    /// Does to an entry what look-ups do that find it: counts, and the time of its last use.
    pub fn use_entry(&self, table: TableId, entry: Handle, train: CounterValue, now: u64) {
        if let Ok(table) = self.tables.table(u32::from(table.0)) {
            let CounterValue { packets, bytes } = train;
            table.add_counted(entry, Count { packets, bytes });
            table.note_use(entry, now);
        }
    }

    pub fn value_set_contains(&self, set: ValueSetId, key: &[u64]) -> bool {
        let Ok(set) = self.tables.value_set(u32::from(set.0)) else {
            return false;
        };
        key.get(..set.layout().words())
            .is_some_and(|key| set.contains(key))
    }
}

/// Gives an entry's meter its rates, with full buckets.
fn set_rates(table: &p4_tables::Table, handle: Handle, rates: Option<Rates>) -> Result<(), Error> {
    if let (Some(meter), Some(_)) = (table.meter(handle), rates) {
        meter.set(rates.map(meter_rates), 0)?;
    }
    Ok(())
}

/// Rates as meters have them.
#[must_use]
pub fn meter_rates(rates: Rates) -> MeterRates {
    MeterRates {
        cir: rates.committed.per_second,
        cbs: rates.committed.burst,
        pir: rates.peak.per_second,
        pbs: rates.peak.burst,
    }
}

/// A change of the program's entries in the terms of `p4-tables`.
fn table_change(engine: &Engine, change: &EntryChange) -> Result<Change, Error> {
    let of_entry = |id: TableId, entry: &p4_ir::Entry| {
        let checked = engine.checked().check_entry(id, entry);
        checked.map_err(|error| Error::WrongEntry(error.to_string()))?;
        if matches!(entry.target, EntryTarget::Choices(_)) {
            let text = "an entry with actions of its own is no change of entries alone";
            return Err(Error::WrongEntry(text.into()));
        }
        constant(engine.layout(id), entry, entry_target(&entry.target))
    };
    Ok(match change {
        EntryChange::Insert(id, entry) => Change::Insert {
            table: u32::from(id.0),
            entry: of_entry(*id, entry)?,
        },
        EntryChange::Modify(id, entry) => Change::Modify {
            table: u32::from(id.0),
            entry: of_entry(*id, entry)?,
        },
        EntryChange::Remove(id, key) => {
            let layout = engine.layouts.get(id.index());
            let layout = layout.ok_or_else(|| Error::WrongEntry(format!("there is no table {}", id.0)))?;
            Change::Remove {
                table: u32::from(id.0),
                pattern: key_pattern(layout, &key.keys)?,
                priority: if layout.has_priorities() { key.priority } else { 0 },
            }
        }
    })
}

/// Gives an entry that has changed a meter of its rates, unless it has one already.
fn rate(
    tables: &mut p4_tables::Tables,
    engine: &Engine,
    table: TableId,
    entry: &p4_ir::Entry,
) -> Result<(), Error> {
    let number = u32::from(table.0);
    let (pattern, priority) = pattern(engine.layout(table), entry)?;
    let own = tables.table(number)?;
    // A later change may have removed it.
    let Some(handle) = own.find(&pattern, priority) else {
        return Ok(());
    };
    let Some(meter) = own.meter(handle) else {
        return Ok(());
    };
    if meter.rates() != entry.rates.map(meter_rates) {
        tables.share_meter(number, handle, Arc::default())?;
        set_rates(tables.table(number)?, handle, entry.rates)?;
    }
    Ok(())
}

/// Gives a table its entries, and rates to their meters.
fn fill_table(
    tables: &mut p4_tables::Tables,
    number: u32,
    table: &p4_ir::Table,
    free: &mut [FreeNumbers<'_>],
) -> Result<(), Error> {
    let layout = tables.table(number)?.layout().clone();
    for entry in &table.entries {
        let target = match (&entry.target, table.implementation) {
            (EntryTarget::Choices(all), Implementation::Profile(profile)) => {
                add_choices(tables, profile, &mut free[profile.index()], all)?
            }
            (other, _) => entry_target(other),
        };
        let handle = tables.add_constant(number, &constant(&layout, entry, target)?)?;
        set_rates(tables.table(number)?, handle, entry.rates)?;
    }
    let default = table.default.as_ref().and_then(|default| default.rates);
    set_rates(tables.table(number)?, DEFAULT, default)
}

/// Gives an action profile its members and groups.
fn fill(tables: &mut p4_tables::Tables, number: u32, profile: &ActionProfile) -> Result<(), Error> {
    let members = profile
        .members
        .iter()
        .map(|(&member, action)| add_member(member, action));
    let groups = profile
        .groups
        .iter()
        .map(|(&group, own)| ProfileChange::AddGroup {
            group,
            members: own
                .members
                .iter()
                .map(|(&member, share)| shared(member, *share))
                .collect(),
        });
    members
        .chain(groups)
        .try_for_each(|change| change_profile(tables, number, change))
}

fn change_profile(tables: &mut p4_tables::Tables, profile: u32, change: ProfileChange) -> Result<(), Error> {
    let changed = tables.apply(&[Change::Profile { profile, change }], 0);
    changed.map_err(|refused| refused.error.into())
}

fn add_member(member: u32, own: &EntryAction) -> ProfileChange {
    ProfileChange::AddMember {
        member,
        action: u32::from(own.action.0),
        arguments: arguments(own),
    }
}

fn shared(member: u32, share: p4_ir::Share) -> GroupMember {
    GroupMember {
        member,
        weight: share.weight,
        watch: share.watch,
    }
}

/// Numbers of an action profile that neither members nor groups have, from the highest one on.
struct FreeNumbers<'a> {
    profile: &'a ActionProfile,
    next: u32,
}

impl FreeNumbers<'_> {
    fn new(profile: &ActionProfile) -> FreeNumbers<'_> {
        FreeNumbers {
            profile,
            next: u32::MAX,
        }
    }

    fn take(&mut self) -> u32 {
        while self.profile.members.contains_key(&self.next) || self.profile.groups.contains_key(&self.next) {
            self.next -= 1;
        }
        self.next -= 1;
        self.next + 1
    }
}

/// Makes a group of an entry's own choices.
fn add_choices(
    tables: &mut p4_tables::Tables,
    profile: ProfileId,
    free: &mut FreeNumbers<'_>,
    all: &[Choice],
) -> Result<Target, Error> {
    let profile = u32::from(profile.0);
    let mut members = Vec::new();
    for choice in all {
        let member = free.take();
        change_profile(tables, profile, add_member(member, &choice.action))?;
        members.push(shared(member, choice.share));
    }
    let group = free.take();
    change_profile(tables, profile, ProfileChange::AddGroup { group, members })?;
    Ok(Target::Group(group))
}

fn spec(program: &Program, table: &p4_ir::Table, layout: KeyLayout) -> TableSpec {
    let words = table.actions.iter().map(|one| {
        let action = &program.actions[one.action.index()];
        usize::from(crate::compile::parameter_words(action).1)
    });
    TableSpec {
        profile: match table.implementation {
            Implementation::Direct => None,
            Implementation::Profile(profile) => Some(u32::from(profile.0)),
        },
        counters: table.counter.is_some(),
        meters: table.meter.is_some(),
        idle: table.has_idle_times(),
        constant: table.constant,
        default: table.default.as_ref().map(|default| target(&default.entry)),
        constant_default: table
            .default
            .as_ref()
            .is_some_and(|default| default.constant_arguments),
        ..TableSpec::new(layout, table.size as usize, words.max().unwrap_or(0))
    }
}

/// A number as words, least significant first.
pub(crate) fn words(bits: &Bits) -> Words {
    let word = |chunk: &[u8]| chunk.iter().fold(0, |word, &byte| (word << 8) | u64::from(byte));
    bits.bytes().rchunks(8).map(word).collect()
}

/// An action with its arguments as a table's target.
fn target(entry: &EntryAction) -> Target {
    Target::Action {
        action: u32::from(entry.action.0),
        arguments: arguments(entry),
    }
}

fn arguments(entry: &EntryAction) -> Words {
    let words = |argument: &Bits| words(argument).into_iter();
    entry.arguments.iter().flat_map(words).collect()
}

fn entry_target(own: &EntryTarget) -> Target {
    match own {
        EntryTarget::Action(action) => target(action),
        EntryTarget::Member(number) => Target::Member(*number),
        // Choices without a profile, which the checker refuses, lead to no group that there is.
        EntryTarget::Choices(_) => Target::Group(0),
        EntryTarget::Group(number) => Target::Group(*number),
    }
}

fn constant(layout: &KeyLayout, entry: &p4_ir::Entry, target: Target) -> Result<Entry, Error> {
    let (pattern, priority) = pattern(layout, entry)?;
    Ok(Entry {
        pattern,
        priority,
        target,
        idle_timeout_ns: entry.idle_timeout_ns,
    })
}

/// The pattern and the priority of an entry of the program.
fn pattern(layout: &KeyLayout, entry: &p4_ir::Entry) -> Result<(Pattern, u32), Error> {
    let pattern = key_pattern(layout, &entry.keys)?;
    let priority = if layout.has_priorities() {
        entry.priority
    } else {
        0
    };
    Ok((pattern, priority))
}

/// The pattern of an entry's keys, or of a value set's member.
fn key_pattern(layout: &KeyLayout, keys: &[KeyMatch]) -> Result<Pattern, Error> {
    let values: Vec<(Words, Words)> = keys.iter().map(key_words).collect();
    let matches: Vec<Match<'_>> = keys
        .iter()
        .zip(&values)
        .map(|(key, (a, b))| match key {
            KeyMatch::Exact(_) => Match::Exact(a),
            KeyMatch::Lpm(_, length) => Match::Lpm {
                value: a,
                length: u32::from(*length),
            },
            KeyMatch::Ternary(..) => Match::Ternary { value: a, mask: b },
            KeyMatch::Range(..) => Match::Range { low: a, high: b },
            KeyMatch::Optional(Some(_)) => Match::Optional(Some(a)),
            KeyMatch::Optional(None) => Match::Optional(None),
        })
        .collect();
    Ok(layout.pattern(&matches)?)
}

fn key_words(key: &KeyMatch) -> (Words, Words) {
    match key {
        KeyMatch::Exact(a) | KeyMatch::Lpm(a, _) | KeyMatch::Optional(Some(a)) => (words(a), Words::new()),
        KeyMatch::Ternary(a, b) | KeyMatch::Range(a, b) => (words(a), words(b)),
        KeyMatch::Optional(None) => (Words::new(), Words::new()),
    }
}
