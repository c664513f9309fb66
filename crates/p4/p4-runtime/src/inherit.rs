//! What a pipeline takes over from a former one: entries, defaults, members, groups, sessions, rates.
//!
//! Tables, actions and action profiles are found by their names. Something that has no place in the new
//! program is a reason against it; all reasons are told together.

use crate::digests;
use crate::failure::{Done, Failure};
use crate::pipeline::{Changed, Pipeline};
use crate::rates;
use crate::uses::{Uses, profile_of};
use p4_ir::setup::MeterRates;
use p4_ir::{
    Action, Choice, DefaultEntry, Entry, EntryAction, EntryTarget, MeterId, Program, Table, TableAction,
    ValueSet,
};

/// Why something has no place.
type Reason = &'static str;

const OTHER_ACTION: Reason = "an action is another one";

impl Pipeline {
    /// Takes over what a former pipeline has: entries, defaults, groups, sessions, rates.
    ///
    /// # Errors
    /// Something of it has no place here; all of it is named.
    pub fn inherit(&mut self, former: &Pipeline) -> Done<()> {
        let mut lost = p4_interpreter::losses(&former.program, &self.program);
        for (at, profile) in former.program.profiles.iter().enumerate() {
            if let Err(reason) = self.inherit_profile(former, at) {
                lost.push(format!(
                    "members of action profile {}: {reason}",
                    profile.identity.name
                ));
            }
        }
        for (at, table) in former.program.tables.iter().enumerate() {
            if let Err(reason) = self.inherit_table(former, at) {
                lost.push(format!("entries of table {}: {reason}", table.identity.name));
            }
        }
        for set in &former.program.value_sets {
            if let Err(reason) = self.inherit_value_set(set) {
                lost.push(format!("members of value set {}: {reason}", set.identity.name));
            }
        }
        self.uses = Uses::of(&self.program);
        self.timed = rates::timed(&self.program);
        let all = self.uses.iter().zip(&self.program.profiles);
        lost.extend(all.filter_map(|(uses, profile)| {
            let failure = uses.fit(profile).err()?;
            Some(format!(
                "action profile {}: {}",
                profile.identity.name, failure.text
            ))
        }));
        if !lost.is_empty() {
            let text = format_args!("state cannot be kept: {}", lost.join("; "));
            return Err(Failure::invalid(text));
        }
        self.inherit_rates(former);
        self.setup.groups.clone_from(&former.setup.groups);
        self.setup.sessions.clone_from(&former.setup.sessions);
        self.setup.lineage = former.setup.lineage;
        self.notes.groups.clone_from(&former.notes.groups);
        let digests = former.notes.digests.iter();
        let own = digests.filter(|(id, _)| digests::widths(&self.program, **id).is_some());
        self.notes.digests = own.map(|(id, config)| (*id, *config)).collect();
        self.changed = Changed::All;
        Ok(())
    }

    fn inherit_rates(&mut self, former: &Pipeline) {
        for rates in &former.setup.meters {
            let name = &former.program.meters[rates.meter.index()].identity.name;
            let mut meters = self.program.meters.iter();
            let own = meters.position(|meter| meter.identity.name == *name);
            if let Some(meter) = own.and_then(MeterId::at) {
                self.setup.meters.push(MeterRates { meter, ..*rates });
            }
        }
    }

    fn inherit_profile(&mut self, former: &Pipeline, at: usize) -> Result<(), Reason> {
        let old = &former.program.profiles[at];
        if old.members.is_empty() && old.groups.is_empty() {
            return Ok(());
        }
        let mut profiles = self.program.profiles.iter();
        let same = profiles.position(|profile| profile.identity.name == old.identity.name);
        let number = same.ok_or("there is no such profile")?;
        if self.program.profiles[number].selector.is_some() != old.selector.is_some() {
            return Err("one of them has no selector");
        }
        let mut tables = self.program.tables.iter();
        let table = tables.find(|table| profile_of(table) == Some(number));
        let table = table.ok_or("no table has it")?;
        let heirs = Heirs {
            from: &former.program,
            to: &self.program,
            table,
        };
        let member = |(id, own): (&u32, &EntryAction)| Ok((*id, heirs.action(own)?));
        let members = old.members.iter().map(member).collect::<Result<_, Reason>>()?;
        let own = &mut self.program.profiles[number];
        own.members = members;
        own.groups.clone_from(&old.groups);
        Ok(())
    }

    fn inherit_value_set(&mut self, old: &ValueSet) -> Result<(), Reason> {
        if old.members.is_empty() {
            return Ok(());
        }
        let mut sets = self.program.value_sets.iter_mut();
        let own = sets.find(|set| set.identity.name == old.identity.name);
        let own = own.ok_or("there is no such value set")?;
        if own.parts != old.parts {
            return Err("its parts are others");
        }
        if old.members.len() > own.size as usize {
            return Err("it is smaller");
        }
        own.members.clone_from(&old.members);
        Ok(())
    }

    fn inherit_table(&mut self, former: &Pipeline, at: usize) -> Result<(), Reason> {
        let old = &former.program.tables[at];
        let has_other_default = old.default != former.notes.defaults[at];
        if (old.constant || old.entries.is_empty()) && !has_other_default {
            return Ok(());
        }
        let number = self.heir_of(former, old)?;
        let own = &self.program.tables[number];
        let heirs = Heirs {
            from: &former.program,
            to: &self.program,
            table: own,
        };
        let default = match (&old.default, has_other_default) {
            (Some(default), true) => Some(DefaultEntry {
                entry: heirs.action(&default.entry)?,
                ..default.clone()
            }),
            _ => own.default.clone(),
        };
        let entries = match old.constant {
            true => own.entries.clone(),
            false => heirs.entries(&old.entries)?,
        };
        if entries.len() > own.size as usize {
            return Err("it is smaller");
        }
        let own = &mut self.program.tables[number];
        own.default = default;
        own.entries = entries;
        if !old.constant {
            self.positions[number].clone_from(&former.positions[at]);
        }
        self.notes.entries[number].clone_from(&former.notes.entries[at]);
        Ok(())
    }

    /// The table that takes over the entries of a former one.
    fn heir_of(&self, former: &Pipeline, old: &Table) -> Result<usize, Reason> {
        let mut tables = self.program.tables.iter();
        let number = tables.position(|table| table.identity.name == old.identity.name);
        let number = number.ok_or("there is no such table")?;
        let own = &self.program.tables[number];
        let forms = |table: &Table| -> Vec<_> {
            let keys = table.keys.iter();
            keys.map(|key| (key.name.clone(), key.kind, key.width)).collect()
        };
        if forms(own) != forms(old) {
            return Err("its keys are others");
        }
        let has_rates = old.entries.iter().any(|entry| entry.rates.is_some())
            || old
                .default
                .as_ref()
                .is_some_and(|default| default.rates.is_some());
        if own.meter.is_none() && has_rates {
            return Err("it has no meter");
        }
        if !own.idle_timeout && old.has_idle_times() {
            return Err("it has no idle times");
        }
        let profile = |program: &Program, table: &Table| {
            let number = profile_of(table)?;
            Some(program.profiles[number].identity.name.clone())
        };
        if own.constant != old.constant || profile(&self.program, own) != profile(&former.program, old) {
            return Err("its entries are others");
        }
        Ok(number)
    }
}

/// Actions of a former program as a table has them.
struct Heirs<'a> {
    from: &'a Program,
    to: &'a Program,
    table: &'a Table,
}

impl Heirs<'_> {
    fn action(&self, entry: &EntryAction) -> Result<EntryAction, Reason> {
        let old = &self.from.actions[entry.action.index()];
        let forms = |action: &Action| -> Vec<_> {
            let parameters = action.parameters.iter();
            parameters.map(|one| (one.name.clone(), one.width)).collect()
        };
        let is_same = |own: &&TableAction| {
            let action = &self.to.actions[own.action.index()];
            action.identity.name == old.identity.name && forms(action) == forms(old)
        };
        let own = self.table.actions.iter().find(is_same).ok_or(OTHER_ACTION)?;
        Ok(EntryAction {
            action: own.action,
            arguments: entry.arguments.clone(),
        })
    }

    fn target(&self, target: &EntryTarget) -> Result<EntryTarget, Reason> {
        Ok(match target {
            EntryTarget::Action(action) => EntryTarget::Action(self.action(action)?),
            EntryTarget::Member(number) => EntryTarget::Member(*number),
            EntryTarget::Group(number) => EntryTarget::Group(*number),
            EntryTarget::Choices(all) => {
                let choice = |one: &Choice| {
                    Ok(Choice {
                        action: self.action(&one.action)?,
                        share: one.share,
                    })
                };
                EntryTarget::Choices(all.iter().map(choice).collect::<Result<_, Reason>>()?)
            }
        })
    }

    fn entries(&self, old: &[Entry]) -> Result<Vec<Entry>, Reason> {
        let entry = |entry: &Entry| {
            Ok(Entry {
                target: self.target(&entry.target)?,
                ..entry.clone()
            })
        };
        old.iter().map(entry).collect()
    }
}
