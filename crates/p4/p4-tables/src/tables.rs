//! All tables of a program, and their changes in batches.
//!
//! A batch is done as a whole or not at all: when one change is refused, those before it are undone.
//! [`Shared`] holds the tables for many readers and one writer at a time. A reader takes its lock once per
//! burst of packets; the writer takes it once per batch, so all of a batch appears between two bursts. Before
//! that, while readers go on, the writer reads the memory that the batch will change, so that it is in the
//! cache and readers wait for little more than the stores. No structure copies itself when it grows.

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;

use crate::change::{Change, ProfileChange};
use crate::error::{BatchError, Error};
use crate::key::{KeyLayout, Pattern};
use crate::meter::Meter;
use crate::ports::PortStates;
use crate::profile::{Profile, ProfileSpec};
use crate::rows::{Found, Stored, Target};
use crate::table::{DEFAULT, Entry, Handle, Table, TableSpec};
use crate::value_set::ValueSet;

/// Most changes of a batch. It bounds how long readers may have to wait.
pub const MAX_BATCH: usize = 65_536;

/// How to undo a change.
enum Undo {
    Unlink {
        table: u32,
        handle: Handle,
    },
    Relink {
        table: u32,
        handle: Handle,
    },
    Restore {
        table: u32,
        handle: Handle,
        stored: Stored,
        idle: Option<u64>,
    },
    Profile {
        profile: u32,
        change: ProfileChange,
    },
    RemoveValue {
        set: u32,
        pattern: Pattern,
    },
    InsertValue {
        set: u32,
        at: usize,
        pattern: Pattern,
    },
}

/// Tables, action profiles and value sets of a program.
#[derive(Debug, Default)]
pub struct Tables {
    tables: Vec<Table>,
    profiles: Vec<Profile>,
    sets: Vec<ValueSet>,
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
        self.profiles.push(Profile::new(spec, self.ports.clone()));
        self.profiles.len() as u32 - 1
    }

    /// Adds a value set with at most `limit` patterns (and [`crate::MAX_VALUE_SET`]), and returns its number.
    pub fn add_value_set(&mut self, layout: KeyLayout, limit: usize) -> u32 {
        self.sets.push(ValueSet::new(layout, limit));
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
        self.profiles.get(number as usize).ok_or(Error::Unknown {
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
        self.sets.get(number as usize).ok_or(Error::Unknown {
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
            Found::Action { .. } => self.direct(table, handle),
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
            + self.profiles.iter().map(Profile::memory).sum::<usize>()
            + self.sets.iter().map(ValueSet::memory).sum::<usize>()
    }

    /// Makes all changes or none. `now` is in nanoseconds, for idle times.
    ///
    /// # Errors
    ///
    /// The first change that was refused.
    pub fn apply(&mut self, changes: &[Change], now: u64) -> Result<(), BatchError> {
        if changes.len() > MAX_BATCH {
            return Err(BatchError {
                index: MAX_BATCH,
                error: Error::BatchTooLarge { limit: MAX_BATCH },
            });
        }
        let mut undo = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            match self.change(change, now) {
                Ok(back) => undo.push(back),
                Err(error) => {
                    for back in undo.into_iter().rev() {
                        self.undo(back, now);
                    }
                    return Err(BatchError { index, error });
                }
            }
        }
        // Rows of removed entries become free only now: to undo a removal, their counters were needed until
        // here.
        for back in undo {
            if let Undo::Relink { table, handle } = back
                && let Ok(table) = self.table_mut(table)
            {
                table.free(handle);
            }
        }
        Ok(())
    }

    /// Reads the memory that the changes will touch.
    fn walk(&self, changes: &[Change]) -> u64 {
        let touched = changes.iter().map(|change| match change {
            Change::Insert { table, entry } => self
                .table(*table)
                .map_or(0, |table| table.touch(entry.pattern.value())),
            Change::Modify { table, entry } => self.near(*table, &entry.pattern, entry.priority),
            Change::Remove {
                table,
                pattern,
                priority,
            } => self.near(*table, pattern, *priority),
            Change::SetDefault { .. }
            | Change::Profile { .. }
            | Change::AddValue { .. }
            | Change::RemoveValue { .. } => 0,
        });
        touched.fold(0, |sum, touched| sum ^ touched)
    }

    fn near(&self, table: u32, pattern: &Pattern, priority: u32) -> u64 {
        self.table(table)
            .ok()
            .and_then(|table| table.find(pattern, priority))
            .map_or(0, u64::from)
    }

    fn table_mut(&mut self, number: u32) -> Result<&mut Table, Error> {
        self.tables.get_mut(number as usize).ok_or(Error::Unknown {
            what: "table",
            number,
        })
    }

    fn profile_mut(&mut self, number: u32) -> Result<&mut Profile, Error> {
        self.profiles.get_mut(number as usize).ok_or(Error::Unknown {
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

    fn change(&mut self, change: &Change, now: u64) -> Result<Undo, Error> {
        match change {
            Change::Insert { table, entry } => {
                self.open(*table)?;
                let handle = self.insert(*table, entry, now)?;
                Ok(Undo::Unlink {
                    table: *table,
                    handle,
                })
            }
            Change::Modify { table, entry } => self.modify(*table, entry, now),
            Change::Remove {
                table,
                pattern,
                priority,
            } => self.remove(*table, pattern, *priority),
            Change::SetDefault { table, target } => self.set_default(*table, target.as_ref()),
            Change::AddValue { set, pattern } => {
                self.value_set_mut(*set)?.add(pattern)?;
                Ok(Undo::RemoveValue {
                    set: *set,
                    pattern: pattern.clone(),
                })
            }
            Change::RemoveValue { set, pattern } => {
                let at = self.value_set_mut(*set)?.remove(pattern)?;
                Ok(Undo::InsertValue {
                    set: *set,
                    at,
                    pattern: pattern.clone(),
                })
            }
            Change::Profile { profile, change } => {
                let change = self.profile_mut(*profile)?.change(change)?;
                Ok(Undo::Profile {
                    profile: *profile,
                    change,
                })
            }
        }
    }

    fn remove(&mut self, table: u32, pattern: &Pattern, priority: u32) -> Result<Undo, Error> {
        let handle = self.changeable(table, pattern, priority)?;
        self.use_target(table, handle, false);
        self.table_mut(table)?.unlink(handle);
        Ok(Undo::Relink { table, handle })
    }

    fn set_default(&mut self, number: u32, target: Option<&Target>) -> Result<Undo, Error> {
        let table = self.table_mut(number)?;
        if table.spec().constant_default {
            return Err(Error::Constant);
        }
        let program = table.spec().default.clone();
        let stored = table.write_default(target.or(program.as_ref()))?;
        Ok(Undo::Restore {
            table: number,
            handle: DEFAULT,
            stored,
            idle: None,
        })
    }

    fn undo(&mut self, undo: Undo, now: u64) {
        let done = match undo {
            Undo::Unlink { table, handle } => {
                self.use_target(table, handle, false);
                self.table_mut(table).map(|table| {
                    table.unlink(handle);
                    table.free(handle);
                })
            }
            Undo::Relink { table, handle } => {
                self.use_target(table, handle, true);
                self.table_mut(table).and_then(|table| table.relink(handle))
            }
            Undo::Restore {
                table,
                handle,
                stored,
                idle,
            } => {
                self.use_target(table, handle, false);
                let done = self.table_mut(table).map(|table| {
                    table.restore(handle, &stored);
                    if let Some(idle) = idle {
                        table.set_idle(handle, idle, now);
                    }
                });
                self.use_target(table, handle, true);
                done
            }
            Undo::Profile { profile, change } => self
                .profile_mut(profile)
                .and_then(|profile| profile.change(&change).map(|_| ())),
            Undo::RemoveValue { set, pattern } => self
                .value_set_mut(set)
                .and_then(|set| set.remove(&pattern))
                .map(|_| ()),
            Undo::InsertValue { set, at, pattern } => {
                self.value_set_mut(set).map(|set| set.insert_at(at, pattern))
            }
        };
        debug_assert!(done.is_ok(), "what was there can be there again: {done:?}");
    }

    /// Refuses changes of entries of a table that only the program fills.
    fn open(&self, table: u32) -> Result<(), Error> {
        if self.table(table)?.spec().constant {
            Err(Error::Constant)
        } else {
            Ok(())
        }
    }

    fn changeable(&self, number: u32, pattern: &Pattern, priority: u32) -> Result<Handle, Error> {
        self.open(number)?;
        let table = self.table(number)?;
        if !pattern.belongs_to(table.layout()) {
            return Err(Error::ForeignPattern);
        }
        let handle = table.find(pattern, priority).ok_or(Error::NotFound)?;
        if table.is_constant(handle) {
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

    fn modify(&mut self, number: u32, entry: &Entry, now: u64) -> Result<Undo, Error> {
        self.table(number)?.check(entry)?;
        let handle = self.changeable(number, &entry.pattern, entry.priority)?;
        let place = self.resolve(number, &entry.target)?;
        self.use_target(number, handle, false);
        let table = self.table_mut(number)?;
        let stored = table.set_found(handle, found(&entry.target, place));
        let idle = Some(table.set_idle(handle, entry.idle_timeout_ns, now));
        self.use_target(number, handle, true);
        Ok(Undo::Restore {
            table: number,
            handle,
            stored,
            idle,
        })
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
        self.sets.get_mut(number as usize).ok_or(unknown)
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
        std::hint::black_box(self.tables.read().walk(changes));
        self.tables.write().apply(changes, now)
    }
}
