//! Idle times of entries: which ones no packet has met for their time.
//!
//! The data plane keeps times of last packets for tables of which an entry has an idle time, and no others.
//! While clients are there, these are read now and then: as often as the shortest idle time wants, but at
//! most so often that reading takes a twentieth of the time. An entry is told of again when its time has gone
//! by once more.

use crate::entry::EntryKey;
use crate::failure::{Done, Failure};
use crate::pipeline::Pipeline;
use crate::proto::{IdleTimeout, TableEntry};
use crate::rates::no_idle_times;
use crate::read::Reader;
use crate::write::position;
use control_protocol::p4::P4Array;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Times between two looks.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);

/// A look is followed by a pause of so many times its own length.
const PAUSE: u32 = 20;

/// Entries of one message.
pub const MAX_ENTRIES: usize = 512;

/// The looks at a device's entries.
#[derive(Debug, Default)]
pub struct IdleWatch {
    next: Option<Instant>,
    /// When clients were told of an entry that has been idle since.
    told: HashMap<(usize, EntryKey), Instant>,
}

/// Entries of a table that are idle, with its number in P4Info.
pub type IdleEntries = (u32, Vec<TableEntry>);

impl IdleWatch {
    /// When the next look is due.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        self.next.unwrap_or(now)
    }

    /// Puts the next look off, since none is possible now.
    pub fn put_off(&mut self) {
        self.next = Some(Instant::now() + LONGEST);
    }

    /// Looks at all entries that have idle times.
    ///
    /// # Errors
    /// The times of last packets cannot be read.
    pub fn look(&mut self, pipeline: &Pipeline, reader: &mut dyn Reader) -> Done<Vec<IdleEntries>> {
        let begin = Instant::now();
        let mut found = Vec::new();
        let mut shortest = LONGEST;
        for (number, table) in pipeline.program.tables.iter().enumerate() {
            if !table.has_idle_times() {
                continue;
            }
            let times = pipeline.idle_times(number, reader)?;
            let mut idle = Vec::new();
            for (at, since) in times.into_iter().enumerate().take(table.entries.len()) {
                let timeout = Duration::from_nanos(table.entries[at].idle_timeout_ns);
                if !timeout.is_zero() {
                    shortest = shortest.min(timeout / 4);
                    let key = (number, key_of(&table.entries[at]));
                    if self.is_news(key, timeout, since, begin) {
                        idle.push(pipeline.entry(number, at, None));
                    }
                }
            }
            let id = table.identity.id.unwrap_or(0);
            found.extend(idle.chunks(MAX_ENTRIES).map(|some| (id, some.to_vec())));
        }
        let is_there = |(number, key): &(usize, EntryKey)| {
            let positions = pipeline.positions.get(*number);
            positions.is_some_and(|positions| positions.contains_key(key))
        };
        self.told.retain(|key, _| is_there(key));
        let now = Instant::now();
        self.next = Some(now + shortest.max(SHORTEST).max((now - begin) * PAUSE));
        Ok(found)
    }

    /// Whether clients are to be told of an entry that no packet has met for a time.
    fn is_news(&mut self, key: (usize, EntryKey), timeout: Duration, since: Duration, now: Instant) -> bool {
        if since < timeout {
            self.told.remove(&key);
            return false;
        }
        let told = self.told.get(&key);
        let is_news = told.is_none_or(|told| now.saturating_duration_since(*told) >= timeout);
        if is_news {
            self.told.insert(key, now);
        }
        is_news
    }
}

fn key_of(entry: &p4_ir::Entry) -> EntryKey {
    EntryKey {
        keys: entry.keys.clone(),
        priority: entry.priority,
    }
}

impl Pipeline {
    /// Sets an entry's idle time.
    pub(crate) fn set_idle_time(&mut self, number: usize, at: usize, idle_ns: u64) {
        let own = &mut self.program.tables[number].entries[at].idle_timeout_ns;
        self.timed -= usize::from(*own > 0);
        self.timed += usize::from(idle_ns > 0);
        *own = idle_ns;
    }

    /// Times since the last packets of a table's entries.
    fn idle_times(&self, number: usize, reader: &mut dyn Reader) -> Done<Vec<Duration>> {
        let entries = u32::try_from(self.program.tables[number].entries.len()).map_err(Failure::exhausted)?;
        let cells = reader.cells(P4Array::Idle(position(number)?), 0..entries)?;
        let time = |words: &Vec<u64>| Duration::from_nanos(words.first().copied().unwrap_or(0));
        Ok(cells.iter().map(time).collect())
    }

    /// Times since the last packets of a table's entries, if a request wants them and they are kept.
    pub(crate) fn times_since_last_hit(
        &self,
        number: usize,
        given: &TableEntry,
        reader: &mut dyn Reader,
    ) -> Done<Vec<IdleTimeout>> {
        let table = &self.program.tables[number];
        if given.time_since_last_hit.is_none() {
            return Ok(Vec::new());
        }
        if given.table_id != 0 && !table.idle_timeout {
            return Err(no_idle_times());
        }
        if !table.has_idle_times() {
            return Ok(Vec::new());
        }
        let times = self.idle_times(number, reader)?;
        let time = |time: Duration| IdleTimeout {
            elapsed_ns: i64::try_from(time.as_nanos()).unwrap_or(i64::MAX),
        };
        Ok(times.into_iter().map(time).collect())
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
pub(crate) mod tests;
