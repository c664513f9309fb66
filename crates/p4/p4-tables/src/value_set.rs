//! Value sets: patterns that a parser compares with, set at run time.

use crate::error::Error;
use crate::key::{KeyLayout, Pattern};

/// A set of patterns that a parser looks values up in (P4-16, 12.14: parser value sets).
#[derive(Clone, Debug)]
pub struct ValueSet {
    layout: KeyLayout,
    limit: usize,
    patterns: Vec<Pattern>,
}

/// Most patterns of a value set; a look-up compares them all.
pub const MAX_VALUE_SET: usize = 1024;

impl ValueSet {
    /// Whether a key matches one of the patterns. Does not allocate.
    pub fn contains(&self, key: &[u64]) -> bool {
        key.len() == self.layout.words()
            && self
                .patterns
                .iter()
                .any(|pattern| pattern.matches(&self.layout, key))
    }

    /// The layout of its keys.
    pub fn layout(&self) -> &KeyLayout {
        &self.layout
    }

    /// An empty set of at most `limit` patterns, and of at most [`MAX_VALUE_SET`].
    pub(crate) fn new(layout: KeyLayout, limit: usize) -> ValueSet {
        ValueSet {
            layout,
            limit: limit.min(MAX_VALUE_SET),
            patterns: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, pattern: &Pattern) -> Result<(), Error> {
        if !pattern.belongs_to(&self.layout) {
            return Err(Error::ForeignPattern);
        }
        if self.patterns.contains(pattern) {
            return Err(Error::Duplicate);
        }
        if self.patterns.len() >= self.limit {
            return Err(Error::Full { limit: self.limit });
        }
        self.patterns.push(pattern.clone());
        Ok(())
    }

    pub(crate) fn remove(&mut self, pattern: &Pattern) -> Result<(), Error> {
        let at = self
            .patterns
            .iter()
            .position(|other| other == pattern)
            .ok_or(Error::NotFound)?;
        self.patterns.remove(at);
        Ok(())
    }

    /// Bytes in use.
    pub(crate) fn memory(&self) -> usize {
        self.patterns.capacity() * size_of::<Pattern>()
    }

    /// The patterns, in the order in which they were added.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }
}
