//! Turns: items in the order in which they came, each once.

use std::collections::{BTreeSet, VecDeque};

/// A queue of items that wait for their turn. One that waits already is not queued again, so what is queued
/// is bounded by the number of different items.
#[derive(Clone, Debug)]
pub struct Turns<T> {
    order: VecDeque<T>,
    waiting: BTreeSet<T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns {
            order: VecDeque::new(),
            waiting: BTreeSet::new(),
        }
    }
}

impl<T: Clone + Ord> Turns<T> {
    /// Queues an item behind the others, unless it waits already.
    pub fn add(&mut self, item: T) {
        if self.waiting.insert(item.clone()) {
            self.order.push_back(item);
        }
    }

    /// Takes the item that has waited longest.
    pub fn take(&mut self) -> Option<T> {
        let item = self.order.pop_front()?;
        self.waiting.remove(&item);
        Some(item)
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_not_queued_again() {
        let mut turns = Turns::default();
        [3, 1, 3, 1, 2].into_iter().for_each(|item| turns.add(item));
        assert_eq!(turns.take(), Some(3));
        turns.add(3);
        assert_eq!([(); 4].map(|()| turns.take()), [Some(1), Some(2), Some(3), None]);
        assert!(turns.is_empty());
    }
}
