//! All tables of a program, and their changes in batches.
//!
//! A batch is done as a whole or not at all. It is made in a copy of the tables, which shares with them
//! whatever the batch does not change, so that it costs what it changes and not what there is. [`Shared`]
//! holds the tables for many readers and one writer at a time: a reader takes its lock once per burst of
//! packets, and the writer holds it for the moment in which the copy takes the tables' place, or in which it
//! makes a single change. So all of a batch appears between two bursts, and no reader waits for the work
//! on it.
//!
//! Copies share what entries count and when they were last used. A row that a batch has freed may be taken by
//! the next one, so whoever keeps a copy for readers makes the next one only when none reads the tables from
//! before the last batch any more.

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;

use crate::change::Change;
use crate::error::{BatchError, Error};
use crate::key::{KeyLayout, Pattern};
use crate::meter::Meter;
use crate::ports::PortStates;
use crate::profile::{Profile, ProfileSpec};
use crate::rows::{Found, Target};
use crate::table::{DEFAULT, Entry, Handle, Table, TableSpec};
use crate::value_set::ValueSet;

/// Most changes of a batch.
pub const MAX_BATCH: usize = 65_536;

/// The author of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// A controller, which cannot change entries of the program.
    Controller,
    /// The program, another version of which has other entries.
    Program,
}

/// Tables, action profiles and value sets of a program.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    tables: Vec<Table>,
    profiles: Vec<Arc<Profile>>,
    sets: Vec<Arc<ValueSet>>,
    ports: Arc<PortStates>,
}

impl Tables {
    /// No tables.
    pub fn new() -> Tables {
        Tables::default()
    }

    /// Adds a table, and returns its number. Its profile must exist.
    ///
    /// # Errors
    ///
    /// The error in the specification.
    pub fn add_table(&mut self, spec: TableSpec) -> Result<u32, Error> {
        if let Some(profile) = spec.profile {
            self.profile(profile)?;
        }
        self.tables.push(Table::new(spec)?);
        Ok(self.tables.len() as u32 - 1)
    }

    /// Adds an action profile, and returns its number.
    pub fn add_profile(&mut self, spec: ProfileSpec) -> u32 {
        self.profiles
            .push(Arc::new(Profile::new(spec, self.ports.clone())));
        self.profiles.len() as u32 - 1
    }

    /// Adds a value set with at most `limit` patterns (and [`crate::MAX_VALUE_SET`]), and returns its number.
    pub fn add_value_set(&mut self, layout: KeyLayout, limit: usize) -> u32 {
        self.sets.push(Arc::new(ValueSet::new(layout, limit)));
        self.sets.len() as u32 - 1
    }

    /// Adds an entry of the program, which controllers cannot change.
    ///
    /// # Errors
    ///
    /// As for [`Change::Insert`].
    pub fn add_constant(&mut self, table: u32, entry: &Entry) -> Result<Handle, Error> {
        let handle = self.insert(table, entry, 0)?;
        self.table_mut(table)?.set_constant(handle);
        Ok(handle)
    }

    /// A table.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    #[inline]
    pub fn table(&self, number: u32) -> Result<&Table, Error> {
        self.tables.get(number as usize).ok_or(Error::Unknown {
            what: "table",
            number,
        })
    }

    /// An action profile.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    #[inline]
    pub fn profile(&self, number: u32) -> Result<&Profile, Error> {
        let profile = self.profiles.get(number as usize).map(|profile| &**profile);
        profile.ok_or(Error::Unknown {
            what: "action profile",
            number,
        })
    }

    /// A value set.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn value_set(&self, number: u32) -> Result<&ValueSet, Error> {
        let set = self.sets.get(number as usize).map(|set| &**set);
        set.ok_or(Error::Unknown {
            what: "value set",
            number,
        })
    }

    /// Action and arguments for a handle ([`DEFAULT`] for a miss). A group chooses a member by `hash`, which
    /// is called only for groups; an empty group leads to the default.
    #[inline]
    pub fn action<'a>(
        &'a self,
        table: &'a Table,
        handle: Handle,
        hash: impl FnOnce() -> u64,
    ) -> Option<(u32, &'a [u64])> {
        let profile = || self.profiles.get(table.spec().profile? as usize);
        match table.found(handle) {
            Found::Nothing => None,
            Found::Action { action, arguments } => Some((action, arguments)),
            Found::Member(place) => profile()?.member(place),
            Found::Group(place) => profile()?
                .choose(place, hash())
                .or_else(|| self.direct(table, DEFAULT)),
        }
    }

    /// Gives an entry the meter of another table's entry: both take from the same buckets then.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::NotKept`].
    pub fn share_meter(&mut self, table: u32, handle: Handle, meter: Arc<Meter>) -> Result<(), Error> {
        self.table_mut(table)?.share_meter(handle, meter)
    }

    /// States of the ports that members of groups watch.
    pub fn ports(&self) -> &PortStates {
        &self.ports
    }

    /// Bytes of all tables and profiles.
    pub fn memory(&self) -> usize {
        self.tables.iter().map(Table::memory).sum::<usize>()
            + self
                .profiles
                .iter()
                .map(|profile| profile.memory())
                .sum::<usize>()
            + self.sets.iter().map(|set| set.memory()).sum::<usize>()
    }

    /// Makes all changes or none. `now` is in nanoseconds, for idle times. A single change, which is whole or
    /// refused by itself, is made in place, so that tables can be filled one by one.
    ///
    /// # Errors
    ///
    /// The first change that was refused.
    pub fn apply(&mut self, changes: &[Change], now: u64) -> Result<(), BatchError> {
        let [change] = changes else {
            *self = self.changed(changes, Author::Controller, now)?;
            return Ok(());
        };
        let freed = self.change(change, Author::Controller, now);
        let freed = freed.map_err(|error| BatchError { index: 0, error })?;
        self.free(freed);
        Ok(())
    }

    /// The tables with all changes made. See the module's description for what the two share. `now` is in
    /// nanoseconds, for idle times.
    ///
    /// # Errors
    ///
    /// The first change that was refused.
    pub fn changed(&self, changes: &[Change], author: Author, now: u64) -> Result<Tables, BatchError> {
        if changes.len() > MAX_BATCH {
            return Err(BatchError {
                index: MAX_BATCH,
                error: Error::BatchTooLarge { limit: MAX_BATCH },
            });
        }
        let mut next = self.clone();
        let mut freed = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let made = next.change(change, author, now);
            freed.extend(made.map_err(|error| BatchError { index, error })?);
        }
        // Packets may still meet the entries in these rows by the tables from before: they are no new entry's
        // of this batch.
        next.free(freed);
        Ok(next)
    }

    /// Frees rows of entries that were removed.
    fn free(&mut self, rows: impl IntoIterator<Item = (u32, Handle)>) {
        for (table, handle) in rows {
            if let Ok(table) = self.table_mut(table) {
                table.free(handle);
            }
        }
    }

    fn table_mut(&mut self, number: u32) -> Result<&mut Table, Error> {
        self.tables.get_mut(number as usize).ok_or(Error::Unknown {
            what: "table",
            number,
        })
    }

    fn profile_mut(&mut self, number: u32) -> Result<&mut Profile, Error> {
        let profile = self.profiles.get_mut(number as usize).map(Arc::make_mut);
        profile.ok_or(Error::Unknown {
            what: "action profile",
            number,
        })
    }

    fn direct<'a>(&'a self, table: &'a Table, handle: Handle) -> Option<(u32, &'a [u64])> {
        if let Found::Action { action, arguments } = table.found(handle) {
            Some((action, arguments))
        } else {
            None
        }
    }

    /// Makes a change. Returns the row of an entry that was removed.
    fn change(&mut self, change: &Change, author: Author, now: u64) -> Result<Option<(u32, Handle)>, Error> {
        match change {
            Change::Insert { table, entry } => {
                self.open(*table, author)?;
                let handle = self.insert(*table, entry, now)?;
                if author == Author::Program {
                    self.table_mut(*table)?.set_constant(handle);
                }
            }
            Change::Modify { table, entry } => self.modify((*table, author), entry, now)?,
            Change::Remove {
                table,
                pattern,
                priority,
            } => {
                let handle = self.changeable((*table, author), pattern, *priority)?;
                self.use_target(*table, handle, false);
                self.table_mut(*table)?.unlink(handle);
                return Ok(Some((*table, handle)));
            }
            Change::SetDefault { table, target } => self.set_default(*table, target.as_ref())?,
            Change::AddValue { set, pattern } => self.value_set_mut(*set)?.add(pattern)?,
            Change::RemoveValue { set, pattern } => self.value_set_mut(*set)?.remove(pattern)?,
            Change::Profile { profile, change } => self.profile_mut(*profile)?.change(change)?,
        }
        Ok(None)
    }

    fn set_default(&mut self, number: u32, target: Option<&Target>) -> Result<(), Error> {
        let table = self.table_mut(number)?;
        if table.spec().constant_default {
            return Err(Error::Constant);
        }
        let program = table.spec().default.clone();
        table.write_default(target.or(program.as_ref()))
    }

    /// Refuses changes of entries of a table that only the program fills.
    fn open(&self, table: u32, author: Author) -> Result<(), Error> {
        if self.table(table)?.spec().constant && author == Author::Controller {
            Err(Error::Constant)
        } else {
            Ok(())
        }
    }

    fn changeable(
        &self,
        (number, author): (u32, Author),
        pattern: &Pattern,
        priority: u32,
    ) -> Result<Handle, Error> {
        self.open(number, author)?;
        let table = self.table(number)?;
        if !pattern.belongs_to(table.layout()) {
            return Err(Error::ForeignPattern);
        }
        let handle = table.find(pattern, priority).ok_or(Error::NotFound)?;
        if table.is_constant(handle) && author == Author::Controller {
            Err(Error::Constant)
        } else {
            Ok(handle)
        }
    }

    fn insert(&mut self, number: u32, entry: &Entry, now: u64) -> Result<Handle, Error> {
        self.table(number)?.check(entry)?;
        let place = self.resolve(number, &entry.target)?;
        let handle = self
            .table_mut(number)?
            .insert(entry, found(&entry.target, place), now)?;
        self.use_target(number, handle, true);
        Ok(handle)
    }

    fn modify(&mut self, (number, author): (u32, Author), entry: &Entry, now: u64) -> Result<(), Error> {
        self.table(number)?.check(entry)?;
        let handle = self.changeable((number, author), &entry.pattern, entry.priority)?;
        let place = self.resolve(number, &entry.target)?;
        self.use_target(number, handle, false);
        let table = self.table_mut(number)?;
        table.set_found(handle, found(&entry.target, place));
        table.set_idle(handle, entry.idle_timeout_ns, now);
        self.use_target(number, handle, true);
        Ok(())
    }

    /// Checks a target, and finds the place of a member or group.
    fn resolve(&self, number: u32, target: &Target) -> Result<u32, Error> {
        let table = self.table(number)?;
        let expected = |expected| Error::WrongTarget { expected };
        match (target, table.spec().profile) {
            (Target::Action { arguments, .. }, None) => table.check_arguments(arguments).map(|()| 0),
            (Target::Action { .. }, Some(_)) => Err(expected("a member or a group of its action profile")),
            (_, None) => Err(expected("an action")),
            (Target::Member(id), Some(profile)) => {
                let place = self.profile(profile)?.members.place(*id);
                place.ok_or(Error::Unknown {
                    what: "member",
                    number: *id,
                })
            }
            (Target::Group(id), Some(profile)) => {
                let place = self.profile(profile)?.groups.place(*id);
                place.ok_or(Error::Unknown {
                    what: "group",
                    number: *id,
                })
            }
        }
    }

    /// Counts an entry's reference to a member or group.
    fn use_target(&mut self, number: u32, handle: Handle, more: bool) {
        let Ok(table) = self.table(number) else { return };
        let found = table.found(handle);
        let count = |uses: &mut usize| *uses = if more { *uses + 1 } else { *uses - 1 };
        let (member, place) = match found {
            Found::Member(place) => (true, place),
            Found::Group(place) => (false, place),
            _ => return,
        };
        let Some(profile) = table
            .spec()
            .profile
            .and_then(|profile| self.profiles.get_mut(profile as usize))
            .map(Arc::make_mut)
        else {
            return;
        };
        if member {
            if let Some(member) = profile.members.get_mut(place) {
                count(&mut member.uses);
            }
        } else if let Some(group) = profile.groups.get_mut(place) {
            count(&mut group.uses);
        }
    }

    fn value_set_mut(&mut self, number: u32) -> Result<&mut ValueSet, Error> {
        let unknown = Error::Unknown {
            what: "value set",
            number,
        };
        let set = self.sets.get_mut(number as usize).map(Arc::make_mut);
        set.ok_or(unknown)
    }
}

fn found(target: &Target, place: u32) -> Found<'_> {
    match target {
        Target::Action { action, arguments } => Found::Action {
            action: *action,
            arguments,
        },
        Target::Member(_) => Found::Member(place),
        Target::Group(_) => Found::Group(place),
    }
}

/// Tables for many readers and one writer at a time.
#[derive(Debug, Default)]
pub struct Shared {
    tables: RwLock<Tables>,
    writer: Mutex<()>,
}

impl Shared {
    /// Shares tables.
    pub fn new(tables: Tables) -> Shared {
        Shared {
            tables: RwLock::new(tables),
            writer: Mutex::new(()),
        }
    }

    /// The tables, which nobody else has.
    pub fn get_mut(&mut self) -> &mut Tables {
        self.tables.get_mut()
    }

    /// The tables as they are between two batches. Held for a burst of packets, not longer: a writer waits
    /// for it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    /// Makes all changes, so that they appear at once, or none. `now` is in nanoseconds, for idle times.
    ///
    /// # Errors
    ///
    /// The first change that was refused.
    pub fn apply(&self, changes: &[Change], now: u64) -> Result<(), BatchError> {
        let _writer = self.writer.lock();
        if changes.len() == 1 {
            return self.tables.write().apply(changes, now);
        }
        let next = self.tables.read().changed(changes, Author::Controller, now)?;
        let former = std::mem::replace(&mut *self.tables.write(), next);
        // Freed when readers have the tables again.
        drop(former);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::ProfileChange;
    use crate::profile::ProfileSpec;

    /// A program with many members has them added one by one.
    #[test]
    fn a_single_change_copies_no_profile() {
        let mut tables = Tables::new();
        let profile = tables.add_profile(ProfileSpec {
            limit: 4,
            group_limit: 4,
            argument_words: 1,
        });
        let add = |member| Change::Profile {
            profile,
            change: ProfileChange::AddMember {
                member,
                action: 1,
                arguments: [7].into_iter().collect(),
            },
        };
        let place = |tables: &Tables| Arc::as_ptr(&tables.profiles[0]);
        let before = place(&tables);
        tables.apply(&[add(1)], 0).unwrap();
        assert_eq!(tables.apply(&[add(1)], 0).unwrap_err().error, Error::Duplicate);
        assert_eq!(place(&tables), before);
        tables.apply(&[add(2), add(3)], 0).unwrap();
        assert_ne!(place(&tables), before, "a batch may be refused in the middle");
        assert_eq!(tables.profile(profile).unwrap().members(), 3);
    }
}
