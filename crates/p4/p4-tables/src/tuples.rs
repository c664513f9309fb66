//! Masks with priorities: tuple space search.
//!
//! Entries with the same mask are in one subtable, which is an exact map of masked keys (Srinivasan et al.,
//! *Packet Classification using Tuple Space Search*, SIGCOMM 1999). Subtables are visited in the order of
//! their best entry, and a look-up ends where no better one can follow. The cost of a look-up grows with the
//! number of masks, so that number is limited: a controller chooses masks, and could otherwise slow every
//! packet down.
//!
//! A copy of the table shares the maps of masked keys; what else a subtable has is copied when it changes.
//!
//! The rank of an entry is its priority and then its age: of two that match with one priority, the older
//! wins.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::Error;
use crate::key::{MAX_KEY_WORDS, Pattern, Words};
use crate::map::Map;
use crate::rows::Rows;

/// The rank of an entry: the larger wins. All entries of a table have different ranks until 2^32 insertions.
pub(crate) fn rank(priority: u32, sequence: u32) -> u64 {
    u64::from(priority) << 32 | u64::from(!sequence)
}

#[derive(Clone, Debug)]
struct Subtable {
    mask: Words,
    /// For each masked key, its best entry.
    best: Map,
    /// For each masked key with more than one entry, all of them, best first.
    several: Arc<HashMap<Words, Vec<u32>>>,
    ranks: Arc<BTreeSet<u64>>,
}

/// Most words of a mask that is kept in the list of visits.
const SHORT: usize = 2;

/// The properties of a subtable that a look-up reads before the subtable itself.
#[derive(Clone, Debug)]
struct Visit {
    /// Rank of its best entry.
    top: u64,
    /// The mask, if it is short.
    mask: [u64; SHORT],
    number: u32,
}

/// All masks of a table.
#[derive(Clone, Debug)]
pub(crate) struct Tuples {
    subtables: Vec<Option<Subtable>>,
    numbers: HashMap<Words, u32>,
    /// The subtables, the one with the best entry first.
    order: Vec<Visit>,
    limit: usize,
}

impl Tuples {
    /// No entries, and room for `limit` masks.
    pub(crate) fn new(limit: usize) -> Tuples {
        Tuples {
            subtables: Vec::new(),
            numbers: HashMap::new(),
            order: Vec::new(),
            limit,
        }
    }

    /// The best entry that matches.
    #[inline]
    pub(crate) fn get(&self, key: &[u64], rows: &Rows) -> Option<u32> {
        match key.len() {
            0..=SHORT => self.search::<SHORT>(key, rows),
            3..=8 => self.search::<8>(key, rows),
            _ => self.search::<MAX_KEY_WORDS>(key, rows),
        }
    }

    fn search<const WORDS: usize>(&self, key: &[u64], rows: &Rows) -> Option<u32> {
        let mut scratch = [0; WORDS];
        let masked = &mut scratch[..key.len()];
        let mut best: Option<(u64, u32)> = None;
        for visit in &self.order {
            if best.is_some_and(|(rank, _)| rank > visit.top) {
                break;
            }
            let Some(subtable) = &self.subtables[visit.number as usize] else {
                continue;
            };
            let mask = if WORDS == SHORT {
                &visit.mask[..]
            } else {
                &subtable.mask[..]
            };
            for (masked, (key, mask)) in masked.iter_mut().zip(key.iter().zip(mask)) {
                *masked = key & mask;
            }
            let found = subtable.best.get(masked, |handle| rows.value(handle) == masked);
            best = best.max(found.map(|handle| (rows.rank(handle), handle)));
        }
        best.map(|(_, handle)| handle)
    }

    /// The entry with exactly this pattern and priority.
    pub(crate) fn find(&self, pattern: &Pattern, priority: u32, rows: &Rows) -> Option<u32> {
        let subtable = self.subtables[*self.numbers.get(&pattern.mask)? as usize].as_ref()?;
        let matches = |handle: &u32| rows.rank(*handle) >> 32 == u64::from(priority);
        match subtable.several.get(&pattern.value) {
            Some(handles) => handles.iter().copied().find(matches),
            None => subtable
                .best
                .get(&pattern.value, |handle| rows.value(handle) == &pattern.value[..])
                .filter(matches),
        }
    }

    /// Adds a new entry, whose row is written.
    pub(crate) fn insert(&mut self, pattern: &Pattern, handle: u32, rows: &Rows) -> Result<(), Error> {
        let number = match self.numbers.get(&pattern.mask) {
            Some(&number) => number,
            None => self.add_subtable(pattern)?,
        };
        let subtable = self.subtables[number as usize]
            .as_mut()
            .expect("numbered subtables exist");
        let result = subtable.insert(pattern, handle, rows);
        self.arrange(number, pattern);
        result
    }

    /// Removes an entry, whose row is still written.
    pub(crate) fn remove(&mut self, pattern: &Pattern, handle: u32, rows: &Rows) {
        let Some(&number) = self.numbers.get(&pattern.mask) else {
            return;
        };
        if let Some(subtable) = self.subtables[number as usize].as_mut() {
            subtable.remove(pattern, handle, rows);
        }
        self.arrange(number, pattern);
    }

    /// Number of masks.
    pub(crate) fn masks(&self) -> usize {
        self.numbers.len()
    }

    /// Bytes in use; maps of the standard library are estimated by their elements.
    pub(crate) fn memory(&self) -> usize {
        let words = |words: &Words| size_of::<Words>() + if words.spilled() { words.len() * 8 } else { 0 };
        let subtable = |subtable: &Subtable| {
            let several = subtable
                .several
                .iter()
                .map(|(key, handles)| words(key) + 24 + handles.capacity() * 4);
            words(&subtable.mask)
                + subtable.best.memory()
                + several.sum::<usize>()
                + subtable.ranks.len() * 12
        };
        self.subtables.iter().flatten().map(subtable).sum::<usize>()
            + self.subtables.capacity() * size_of::<Option<Subtable>>()
            + self.numbers.keys().map(|mask| words(mask) + 5).sum::<usize>()
            + self.order.capacity() * size_of::<Visit>()
    }

    fn add_subtable(&mut self, pattern: &Pattern) -> Result<u32, Error> {
        if self.numbers.len() >= self.limit {
            return Err(Error::TooManyMasks { limit: self.limit });
        }
        let subtable = Subtable {
            mask: pattern.mask.clone(),
            best: Map::new(pattern.mask.len()),
            several: Arc::default(),
            ranks: Arc::default(),
        };
        let free = self.subtables.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.subtables.push(None);
            self.subtables.len() - 1
        });
        self.subtables[number] = Some(subtable);
        self.numbers.insert(pattern.mask.clone(), number as u32);
        let mut mask = [0; SHORT];
        mask.iter_mut()
            .zip(&pattern.mask)
            .for_each(|(to, from)| *to = *from);
        self.order.push(Visit {
            top: 0,
            mask,
            number: number as u32,
        });
        Ok(number as u32)
    }

    /// Moves a changed subtable to its place in the order, or removes it if it is empty.
    fn arrange(&mut self, number: u32, pattern: &Pattern) {
        let slot = &mut self.subtables[number as usize];
        let top = slot.as_ref().and_then(|subtable| subtable.ranks.last().copied());
        let Some(at) = self.order.iter().position(|visit| visit.number == number) else {
            return;
        };
        let Some(top) = top else {
            *slot = None;
            self.numbers.remove(&pattern.mask);
            self.order.remove(at);
            return;
        };
        if self.order[at].top != top {
            let visit = Visit {
                top,
                ..self.order.remove(at)
            };
            let new = self.order.partition_point(|other| other.top > top);
            self.order.insert(new, visit);
        }
    }
}

impl Subtable {
    fn insert(&mut self, pattern: &Pattern, handle: u32, rows: &Rows) -> Result<(), Error> {
        match self
            .best
            .get(&pattern.value, |other| rows.value(other) == &pattern.value[..])
        {
            None => self.best.insert(&pattern.value, handle)?,
            Some(other) => {
                let handles = Arc::make_mut(&mut self.several)
                    .entry(pattern.value.clone())
                    .or_insert_with(|| vec![other]);
                let at = handles.partition_point(|&other| rows.rank(other) > rows.rank(handle));
                handles.insert(at, handle);
                if at == 0 {
                    self.best.replace(&pattern.value, handle);
                }
            }
        }
        Arc::make_mut(&mut self.ranks).insert(rows.rank(handle));
        Ok(())
    }

    fn remove(&mut self, pattern: &Pattern, handle: u32, rows: &Rows) {
        Arc::make_mut(&mut self.ranks).remove(&rows.rank(handle));
        if !self.several.contains_key(&pattern.value) {
            self.best.remove(&pattern.value);
            return;
        }
        let several = Arc::make_mut(&mut self.several);
        let Some(handles) = several.get_mut(&pattern.value) else {
            return;
        };
        handles.retain(|&other| other != handle);
        self.best.replace(&pattern.value, handles[0]);
        if handles.len() == 1 {
            several.remove(&pattern.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_entries_rank_higher_within_a_priority() {
        assert!(rank(1, 0) > rank(1, 1));
        assert!(rank(2, 7) > rank(1, 0));
    }
}
