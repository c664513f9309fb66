//! Which name means which index.

use crate::error::{Read, wrong};
use std::collections::HashMap;

/// Names (or numbers) of one kind of thing.
#[derive(Debug)]
pub(crate) struct Names<K, T> {
    kind: &'static str,
    of: HashMap<K, T>,
}

impl<K: std::hash::Hash + Eq + std::fmt::Debug, T: Copy> Names<K, T> {
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            of: HashMap::new(),
        }
    }

    /// Two things of one name are an error.
    pub fn add(&mut self, name: K, index: T) -> Read<()> {
        if self.of.contains_key(&name) {
            return wrong(format!("there are two of kind {} with name {name:?}", self.kind));
        }
        self.of.insert(name, index);
        Ok(())
    }

    /// A name that means nothing is an error.
    pub fn get<Q>(&self, name: &Q) -> Read<T>
    where
        K: std::borrow::Borrow<Q>,
        Q: std::hash::Hash + Eq + std::fmt::Debug + ?Sized,
    {
        self.of
            .get(name)
            .copied()
            .map_or_else(|| wrong(format!("there is no {} {name:?}", self.kind)), Ok)
    }

    /// The value with that name, for callers that report its absence themselves.
    pub fn find<Q>(&self, name: &Q) -> Option<T>
    where
        K: std::borrow::Borrow<Q>,
        Q: std::hash::Hash + Eq + ?Sized,
    {
        self.of.get(name).copied()
    }
}

/// The index of the next element of a vector.
pub(crate) fn next<T>(at: Option<T>, kind: &str) -> Read<T> {
    at.map_or_else(|| wrong(format!("too many of kind {kind}")), Ok)
}
