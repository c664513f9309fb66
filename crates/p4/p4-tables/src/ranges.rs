//! Ranges with priorities: entries in the order of their ranks, compared one after the other.
//!
//! The first that matches is the best one. The highest cost of a look-up is the number of entries, so tables
//! with ranges have a limit of their own, [`MAX_RANGE_ENTRIES`]. The patterns lie one behind the other, so
//! that the comparison runs at the speed of memory.

use crate::key::{FieldPlace, KeyLayout, MatchKind, Pattern};
use crate::rows::Rows;

/// Most entries of a table with a range in its key.
pub const MAX_RANGE_ENTRIES: usize = 2048;

/// All entries of a table.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    words: usize,
    places: Vec<FieldPlace>,
    /// Value (with low bounds), mask and high bounds of each entry, best first.
    patterns: Vec<u64>,
    handles: Vec<u32>,
}

impl Ranges {
    pub(crate) fn new(layout: &KeyLayout) -> Ranges {
        let places = layout
            .places()
            .iter()
            .filter(|place| place.kind == MatchKind::Range)
            .copied()
            .collect();
        Ranges {
            words: layout.words(),
            places,
            patterns: Vec::new(),
            handles: Vec::new(),
        }
    }

    pub(crate) fn get(&self, key: &[u64]) -> Option<u32> {
        let stride = 3 * self.words;
        let matches = |pattern: &[u64]| {
            let (value, rest) = pattern.split_at(self.words);
            let (mask, high) = rest.split_at(self.words);
            let masked = value.iter().zip(mask).zip(key);
            masked.fold(0, |differing, ((value, mask), key)| {
                differing | (value ^ key) & mask
            }) == 0
                && self.places.iter().all(|place| place.within(key, value, high))
        };
        let at = self.patterns.chunks_exact(stride).position(matches)?;
        Some(self.handles[at])
    }

    pub(crate) fn find(&self, pattern: &Pattern, priority: u32, rows: &Rows) -> Option<u32> {
        let same = |words: &[u64]| {
            let parts = [&pattern.value, &pattern.mask, &pattern.high];
            words
                .chunks_exact(self.words)
                .zip(parts)
                .all(|(words, part)| words == &part[..])
        };
        let entries = self.patterns.chunks_exact(3 * self.words).zip(&self.handles);
        let mut found =
            entries.filter(|(words, handle)| rows.rank(**handle) >> 32 == u64::from(priority) && same(words));
        found.next().map(|(_, &handle)| handle)
    }

    pub(crate) fn insert(&mut self, pattern: &Pattern, handle: u32, rows: &Rows) {
        let at = self
            .handles
            .partition_point(|&other| rows.rank(other) > rows.rank(handle));
        self.handles.insert(at, handle);
        let words = [&pattern.value, &pattern.mask, &pattern.high]
            .into_iter()
            .flatten()
            .copied();
        let from = at * 3 * self.words;
        self.patterns.splice(from..from, words);
    }

    pub(crate) fn remove(&mut self, handle: u32) {
        let Some(at) = self.handles.iter().position(|&other| other == handle) else {
            return;
        };
        self.handles.remove(at);
        let from = at * 3 * self.words;
        self.patterns.drain(from..from + 3 * self.words);
    }

    pub(crate) fn memory(&self) -> usize {
        self.patterns.capacity() * size_of::<u64>()
            + self.handles.capacity() * size_of::<u32>()
            + self.places.capacity() * size_of::<FieldPlace>()
    }
}
