//! Subtables that are searched together, one after the other: those of one input port.
//!
//! Subtables that are hit often move to the front, after a number of changes and whenever the owner asks for
//! it. Nothing here takes long, as look-ups wait meanwhile: room for a change is prepared beforehand
//! ([`SubtableList::room_for`]), and the caller drops the entries and subtables that a change replaced.

#![expect(
    clippy::vec_box,
    reason = "look-ups wait while subtables are put in order, and pointers move faster"
)]

use crate::entry::FlowEntry;
use crate::subtable::Subtable;
use flow::{Context, Flow, FlowKey, FlowMask};
use std::cmp::Reverse;
use std::sync::Arc;

/// A list is sorted once per this many of its changes. A sort is one of at most `max_masks` numbers.
const CHANGES_BETWEEN_ORDERING: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct SubtableList {
    subtables: Vec<Box<Subtable>>,
    /// Of the masks.
    union: FlowMask,
    changes: u32,
}

impl SubtableList {
    pub fn masks(&self) -> usize {
        self.subtables.len()
    }

    /// The union of the masks.
    #[inline]
    pub fn union(&self) -> &FlowMask {
        &self.union
    }

    /// The subtable for flows with the masks of this one.
    pub fn flows_like(&self, flow: &Flow) -> usize {
        self.position(flow)
            .map_or(0, |position| self.subtables[position].len())
    }

    /// The flow for exactly the packets that `flow` is for.
    pub fn same_match(&self, flow: &Flow) -> Option<&Arc<FlowEntry>> {
        self.subtables[self.position(flow)?].same_match(flow)
    }

    fn position(&self, flow: &Flow) -> Option<usize> {
        self.subtables.iter().position(|subtable| subtable.is_for(flow))
    }

    /// A flow that matches, and the number of its subtable until the next change.
    #[inline]
    pub fn lookup(
        &self,
        key: &FlowKey,
        context: &Context,
        observe: &mut impl FnMut(&FlowMask, bool),
    ) -> Option<(usize, &Arc<FlowEntry>)> {
        for (number, subtable) in self.subtables.iter().enumerate() {
            let found = subtable.get(key, context);
            observe(subtable.mask(), found.is_some());
            if let Some(entry) = found {
                return Some((number, entry));
            }
        }
        None
    }

    /// The subtable that is searched first.
    #[inline]
    pub fn first(&self) -> Option<&Subtable> {
        self.subtables.first().map(|subtable| &**subtable)
    }

    /// Counts look-ups that ended in the subtable with that number.
    pub fn hit(&self, number: usize, count: u64) {
        self.subtables[number].hit(count);
    }

    /// The subtable that [`replace`](Self::replace) needs for such a flow, if there is none yet or it is
    /// full.
    pub fn room_for(&self, flow: &Flow) -> Option<Box<Subtable>> {
        match self.position(flow) {
            None => Some(Box::new(Subtable::for_flow(flow))),
            Some(position) => {
                let subtable = &self.subtables[position];
                subtable.is_full().then(|| Box::new(subtable.grown()))
            }
        }
    }

    /// Removes those of `old` that are in the list, and adds `new`. `room` is the subtable that was prepared
    /// for `new`. Returns the parts that the caller has to drop.
    pub fn replace(
        &mut self,
        old: &[Arc<FlowEntry>],
        new: Option<Arc<FlowEntry>>,
        room: Option<Box<Subtable>>,
    ) -> Vec<Box<Subtable>> {
        let (mut freed, before) = (Vec::new(), self.subtables.len());
        if let Some(room) = room {
            let position = self
                .subtables
                .iter()
                .position(|subtable| subtable.has_masks_of(&room));
            match position {
                Some(position) => freed.push(std::mem::replace(&mut self.subtables[position], room)),
                None => self.subtables.push(room),
            }
        }
        for entry in old {
            let position = self.position(&entry.flow);
            let removed = position.and_then(|position| self.subtables[position].remove(&entry.flow));
            debug_assert!(removed.is_some_and(|removed| Arc::ptr_eq(&removed, entry)));
        }
        if let Some(entry) = new
            && let Some(position) = self.position(&entry.flow)
        {
            self.subtables[position].insert(entry);
        }
        let with_new = self.subtables.len();
        freed.extend(self.subtables.extract_if(.., |subtable| subtable.len() == 0));
        if with_new > before || self.subtables.len() < with_new {
            let masks = self.subtables.iter().map(|subtable| subtable.mask());
            self.union = masks.fold(FlowMask::ANY, FlowMask::union);
        }
        self.changes += 1;
        if self.changes >= CHANGES_BETWEEN_ORDERING {
            self.reorder();
        }
        freed
    }

    pub fn reorder(&mut self) {
        self.changes = 0;
        self.subtables.sort_by_key(|subtable| Reverse(subtable.hits()));
        self.subtables.iter_mut().for_each(|subtable| subtable.age_hits());
    }
}
