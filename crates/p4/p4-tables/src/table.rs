//! A table: its key's layout, the structure that finds entries, and their rows.
//!
//! Which structure finds entries follows from the fields' kinds. A range in the key: [`crate::ranges`]. A
//! ternary or optional field: tuple space, in which a longest prefix is a mask like others and priorities
//! decide. One longest prefix and otherwise exact fields: tries. Exact fields only: a hash table. No fields:
//! every look-up misses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::key::{FieldPlace, KeyLayout, MatchKind, Pattern, Words};
use crate::lpm::Lpm;
use crate::map::Map;
use crate::meter::Meter;
use crate::ranges::{MAX_RANGE_ENTRIES, Ranges};
use crate::rows::{Found, RowShape, Rows, Target};
use crate::tuples::{Tuples, rank};

/// Number of an entry within its table. It stays the same until the entry is removed, and may then be
/// another's.
pub type Handle = u32;

/// The handle of a table's default entry.
pub const DEFAULT: Handle = 0;

/// Masks that a table may have unless its specification says otherwise.
pub const DEFAULT_MASK_LIMIT: usize = 256;

/// The specification of a table.
#[derive(Clone, Debug)]
pub struct TableSpec {
    /// Fields and places of its key.
    pub layout: KeyLayout,
    /// Most entries. Tables with ranges have [`MAX_RANGE_ENTRIES`] at most.
    pub limit: usize,
    /// Most different masks of a table with priorities.
    pub mask_limit: usize,
    /// Most words of an action's arguments.
    pub argument_words: usize,
    /// The action profile that holds its actions.
    pub profile: Option<u32>,
    /// Whether entries count packets and bytes.
    pub counters: bool,
    /// Whether entries have meters.
    pub meters: bool,
    /// Whether entries may have idle times.
    pub idle: bool,
    /// Whether all entries are the program's, so that controllers cannot change them.
    pub constant: bool,
    /// The target if no entry matches. In tables with a profile, too, this is an action.
    pub default: Option<Target>,
    /// Whether controllers may not change the default.
    pub constant_default: bool,
}

impl TableSpec {
    /// A table without profile, counters, meters, idle times and default.
    pub fn new(layout: KeyLayout, limit: usize, argument_words: usize) -> TableSpec {
        TableSpec {
            layout,
            limit,
            mask_limit: DEFAULT_MASK_LIMIT,
            argument_words,
            profile: None,
            counters: false,
            meters: false,
            idle: false,
            constant: false,
            default: None,
            constant_default: false,
        }
    }
}

/// An entry as a controller or the program sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the entry matches.
    pub pattern: Pattern,
    /// Of two entries that match, the one with the larger priority wins, and with equal priorities the older
    /// one. It must be 0 in tables without ternary, optional or range fields.
    pub priority: u32,
    /// What happens to packets that match.
    pub target: Target,
    /// Nanoseconds without a packet after which the entry counts as idle; 0 is never.
    pub idle_timeout_ns: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
enum Finder {
    Keyless,
    Exact(Map),
    Lpm(Box<Lpm>),
    Tuples(Tuples),
    Ranges(Ranges),
}

/// A table. Any number of threads may look up at once; changes go through
/// [`Tables`](crate::Tables).
#[derive(Clone, Debug)]
pub struct Table {
    spec: TableSpec,
    finder: Finder,
    rows: Rows,
    /// The mask of all entries of an exact table.
    exact_mask: Words,
    len: usize,
    limit: usize,
    /// Number of the next insertion.
    sequence: u32,
}

impl Table {
    pub(crate) fn new(spec: TableSpec) -> Result<Table, Error> {
        let finder = finder(&spec)?;
        let layout = &spec.layout;
        let shape = RowShape {
            words: layout.words(),
            exact: layout.is_exact(),
            ranges: layout.has_ranges(),
            priorities: layout.has_priorities(),
            arguments: spec.argument_words,
            counters: spec.counters,
            meters: spec.meters,
            idle: spec.idle,
        };
        // Handles are 32 bits, and the default entry has one.
        let most = if layout.has_ranges() {
            MAX_RANGE_ENTRIES
        } else {
            u32::MAX as usize - 1
        };
        let limit = spec.limit.min(most);
        let exact_mask = layout.full_mask();
        let rows = Rows::new(&shape);
        let default = spec.default.clone();
        let mut table = Table {
            finder,
            rows,
            exact_mask,
            len: 0,
            limit,
            sequence: 0,
            spec,
        };
        table.write_default(default.as_ref())?;
        Ok(table)
    }

    /// The table's specification.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The key's layout.
    pub fn layout(&self) -> &KeyLayout {
        &self.spec.layout
    }

    /// Number of entries, the default not counted.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry that a key of [`KeyLayout::words`] words matches; a key of another length matches none. Does
    /// not allocate.
    #[inline]
    pub fn lookup(&self, key: &[u64]) -> Option<Handle> {
        if key.len() != self.spec.layout.words() {
            return None;
        }
        match &self.finder {
            Finder::Keyless => None,
            Finder::Exact(map) => map.get(key, |handle| self.rows.value(handle) == key),
            Finder::Lpm(lpm) => lpm.get(key),
            Finder::Tuples(tuples) => tuples.get(key, &self.rows),
            Finder::Ranges(ranges) => ranges.get(key),
        }
    }

    /// Prefetches the memory that a look-up will read, for callers that know their keys some time before they
    /// look up. The result means nothing, but must be used, or the compiler leaves the reads out.
    #[inline]
    pub fn touch(&self, key: &[u64]) -> u64 {
        match &self.finder {
            Finder::Exact(map) if key.len() == self.spec.layout.words() => map.touch(key),
            _ => 0,
        }
    }

    /// The target of an entry; [`DEFAULT`] for a look-up that missed.
    #[inline]
    pub fn found(&self, handle: Handle) -> Found<'_> {
        self.rows.found(handle)
    }

    /// Counts a packet on an entry, if the table has counters.
    #[inline]
    pub fn count(&self, handle: Handle, bytes: u64) {
        if let Some(counter) = self.rows.counter(handle) {
            counter.packets.fetch_add(1, Ordering::Relaxed);
            counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// An entry's counts.
    pub fn counted(&self, handle: Handle) -> Option<Count> {
        let counter = self.rows.counter(handle)?;
        let read = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        Some(Count {
            packets: read(&counter.packets),
            bytes: read(&counter.bytes),
        })
    }

    /// Adds to an entry's counts, if the table has counters.
    pub fn add_counted(&self, handle: Handle, count: Count) {
        if let Some(counter) = self.rows.counter(handle) {
            counter.packets.fetch_add(count.packets, Ordering::Relaxed);
            counter.bytes.fetch_add(count.bytes, Ordering::Relaxed);
        }
    }

    /// Sets an entry's counts.
    ///
    /// # Errors
    ///
    /// [`Error::NotKept`].
    pub fn set_counted(&self, handle: Handle, count: Count) -> Result<(), Error> {
        let counter = self
            .rows
            .counter(handle)
            .ok_or(Error::NotKept { what: "counters" })?;
        counter.packets.store(count.packets, Ordering::Relaxed);
        counter.bytes.store(count.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// An entry's meter, if the table has meters.
    #[inline]
    pub fn meter(&self, handle: Handle) -> Option<&Meter> {
        self.rows.meter(handle)
    }

    /// An entry's meter, for an entry of another table to share.
    pub fn shared_meter(&self, handle: Handle) -> Option<Arc<Meter>> {
        self.rows.shared_meter(handle).cloned()
    }

    pub(crate) fn share_meter(&mut self, handle: Handle, meter: Arc<Meter>) -> Result<(), Error> {
        match self.rows.set_meter(handle, meter) {
            true => Ok(()),
            false => Err(Error::NotKept { what: "meters" }),
        }
    }

    /// Notes that an entry was used at a time in nanoseconds, if the table has idle times.
    #[inline]
    pub fn note_use(&self, handle: Handle, now: u64) {
        if let Some(last) = self.rows.last_use(handle) {
            last.store(now, Ordering::Relaxed);
        }
    }

    /// When an entry was last used, in nanoseconds, if the table has idle times.
    pub fn last_use(&self, handle: Handle) -> Option<u64> {
        Some(self.rows.last_use(handle)?.load(Ordering::Relaxed))
    }

    /// Notes a use of an entry, unless a later one is known.
    pub fn note_earlier_use(&self, handle: Handle, at: u64) {
        if let Some(last) = self.rows.last_use(handle) {
            last.fetch_max(at, Ordering::Relaxed);
        }
    }

    /// Appends to `idle` the entries that have not been used for their idle time, among `count` rows from
    /// `from` on. Returns the row to go on with, or `None` after the last one. `count` bounds the work of a
    /// call.
    pub fn idle(&self, now: u64, from: Handle, count: u32, idle: &mut Vec<Handle>) -> Option<Handle> {
        let end = from.saturating_add(count).min(self.rows.end());
        let is_idle = |&handle: &Handle| {
            let Some(last) = self.rows.last_use(handle) else {
                return false;
            };
            let (unused, timeout) = (
                now.saturating_sub(last.load(Ordering::Relaxed)),
                self.rows.timeout(handle),
            );
            self.rows.is_live(handle) && timeout > 0 && unused >= timeout
        };
        idle.extend((from..end).filter(is_idle));
        (end < self.rows.end()).then_some(end)
    }

    /// The entry with exactly this pattern and priority.
    pub fn find(&self, pattern: &Pattern, priority: u32) -> Option<Handle> {
        if !pattern.belongs_to(&self.spec.layout) {
            return None;
        }
        match &self.finder {
            Finder::Keyless => None,
            Finder::Exact(map) => map.get(&pattern.value, |handle| {
                self.rows.value(handle) == &pattern.value[..]
            }),
            Finder::Lpm(lpm) => lpm.find(pattern),
            Finder::Tuples(tuples) => tuples.find(pattern, priority, &self.rows),
            Finder::Ranges(ranges) => ranges.find(pattern, priority, &self.rows),
        }
    }

    /// Handles of all entries, in no order.
    pub fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        (1..self.rows.end()).filter(|&handle| self.rows.is_live(handle))
    }

    /// The entry at a position. A new entry is the last one, and the last one takes the position of one that
    /// is removed.
    pub fn at(&self, position: usize) -> Option<Handle> {
        (position < self.len).then(|| self.rows.at(position as u32))
    }

    /// Pattern and priority of an entry.
    pub fn pattern(&self, handle: Handle) -> Option<(Pattern, u32)> {
        let live = self.rows.is_live(handle);
        live.then(|| {
            (
                self.rows.pattern(handle, &self.exact_mask),
                (self.rows.rank(handle) >> 32) as u32,
            )
        })
    }

    /// Whether an entry is one of the program's.
    pub fn is_constant(&self, handle: Handle) -> bool {
        self.rows.is_live(handle) && self.rows.is_constant(handle)
    }

    /// Number of masks of a table with priorities, 0 of others.
    pub fn masks(&self) -> usize {
        if let Finder::Tuples(tuples) = &self.finder {
            tuples.masks()
        } else {
            0
        }
    }

    /// Bytes that the table's entries take, with the room that is kept free for more.
    pub fn memory(&self) -> usize {
        let finder = match &self.finder {
            Finder::Keyless => 0,
            Finder::Exact(map) => map.memory(),
            Finder::Lpm(lpm) => lpm.memory(),
            Finder::Tuples(tuples) => tuples.memory(),
            Finder::Ranges(ranges) => ranges.memory(),
        };
        finder + self.rows.memory()
    }

    /// Refuses an entry whose form is wrong for this table.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), Error> {
        if !entry.pattern.belongs_to(&self.spec.layout) || matches!(self.finder, Finder::Keyless) {
            return Err(Error::ForeignPattern);
        }
        if entry.priority > 0 && !self.spec.layout.has_priorities() {
            return Err(Error::PriorityWithoutMeaning);
        }
        if entry.idle_timeout_ns > 0 && !self.spec.idle {
            return Err(Error::NotKept { what: "idle times" });
        }
        Ok(())
    }

    pub(crate) fn check_arguments(&self, arguments: &[u64]) -> Result<(), Error> {
        let (words, limit) = (arguments.len(), self.spec.argument_words);
        if words > limit {
            Err(Error::TooManyArguments { words, limit })
        } else {
            Ok(())
        }
    }

    /// Adds an entry whose target has been resolved.
    pub(crate) fn insert(&mut self, entry: &Entry, found: Found<'_>, now: u64) -> Result<Handle, Error> {
        if self.find(&entry.pattern, entry.priority).is_some() {
            return Err(Error::Duplicate);
        }
        if self.len >= self.limit {
            return Err(Error::Full { limit: self.limit });
        }
        let handle = self.rows.take();
        self.rows.set_pattern(handle, &entry.pattern);
        self.rows.set_rank(handle, rank(entry.priority, self.sequence));
        self.rows.set_found(handle, found);
        self.rows.set_idle(handle, entry.idle_timeout_ns, now);
        if let Err(error) = self.link(handle, &entry.pattern) {
            self.rows.give(handle);
            return Err(error);
        }
        self.sequence = self.sequence.wrapping_add(1);
        Ok(handle)
    }

    /// Makes a row one that look-ups find.
    fn link(&mut self, handle: Handle, pattern: &Pattern) -> Result<(), Error> {
        match &mut self.finder {
            Finder::Keyless => return Err(Error::ForeignPattern),
            Finder::Exact(map) => map.insert(&pattern.value, handle)?,
            Finder::Lpm(lpm) => lpm.insert(pattern, handle)?,
            Finder::Tuples(tuples) => tuples.insert(pattern, handle, &self.rows)?,
            Finder::Ranges(ranges) => ranges.insert(pattern, handle, &self.rows),
        }
        self.rows.set_live(handle, true);
        self.rows.append(handle, self.len as u32);
        self.len += 1;
        Ok(())
    }

    /// Makes a row one that look-ups do not find; it is not free yet.
    pub(crate) fn unlink(&mut self, handle: Handle) {
        let pattern = self.rows.pattern(handle, &self.exact_mask);
        match &mut self.finder {
            Finder::Keyless => return,
            Finder::Exact(map) => map.remove(&pattern.value),
            Finder::Lpm(lpm) => lpm.remove(&pattern),
            Finder::Tuples(tuples) => tuples.remove(&pattern, handle, &self.rows),
            Finder::Ranges(ranges) => ranges.remove(handle),
        }
        self.rows.set_live(handle, false);
        self.rows.take_out(handle, self.len as u32);
        self.len -= 1;
    }

    /// Frees an unlinked row.
    pub(crate) fn free(&mut self, handle: Handle) {
        self.rows.give(handle);
    }

    pub(crate) fn set_found(&mut self, handle: Handle, found: Found<'_>) {
        self.rows.set_found(handle, found);
    }

    pub(crate) fn set_idle(&mut self, handle: Handle, timeout_ns: u64, now: u64) {
        self.rows.set_idle(handle, timeout_ns, now);
    }

    pub(crate) fn set_constant(&mut self, handle: Handle) {
        self.rows.set_constant(handle);
    }

    /// Sets the target if no entry matches.
    pub(crate) fn write_default(&mut self, target: Option<&Target>) -> Result<(), Error> {
        let found = match target {
            None => Found::Nothing,
            Some(Target::Action { action, arguments }) => {
                self.check_arguments(arguments)?;
                Found::Action {
                    action: *action,
                    arguments,
                }
            }
            Some(_) => {
                return Err(Error::WrongTarget {
                    expected: "an action as its default",
                });
            }
        };
        self.rows.set_found(DEFAULT, found);
        Ok(())
    }
}

/// The way to find entries that fits the kinds of keys.
fn finder(spec: &TableSpec) -> Result<Finder, Error> {
    let layout = &spec.layout;
    let prefix = |places: &[FieldPlace]| places.iter().position(|place| place.kind == MatchKind::Lpm);
    Ok(match (layout.places(), prefix(layout.places())) {
        ([], _) => Finder::Keyless,
        _ if layout.has_ranges() => Finder::Ranges(Ranges::new(layout)),
        _ if layout.has_priorities() => Finder::Tuples(Tuples::new(spec.mask_limit)),
        (places, Some(field)) => {
            if let Some(later) = prefix(&places[field + 1..]) {
                return Err(Error::SecondPrefix {
                    field: field + 1 + later,
                });
            }
            Finder::Lpm(Box::new(Lpm::new(layout, places[field])))
        }
        _ => Finder::Exact(Map::new(layout.words())),
    })
}
