//! Counts of decisions that have their flows and rules in common, on the way to the statistics of these.
//!
//! Statistics are shared between threads, and slow to write. Most packets of a port come to the same few
//! rules, whichever connections they belong to, so their counts are added up first.

use crate::train::Train;
use std::sync::Arc;

/// Lists of counters whose counts are added up at a time.
const LISTS: usize = 8;

/// A counter of packets that several threads share.
pub(crate) trait Count {
    /// Counts packets.
    fn count(&self, packets: &Train, now_ms: u64);
}

#[derive(Debug)]
struct Sum<C> {
    counters: Arc<[C]>,
    train: Train,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Tally<C> {
    sums: [Option<Sum<C>>; LISTS],
    /// Places of sums that are in use, the first ones.
    used: usize,
    /// Sums that gave way to others.
    replaced: usize,
}

impl<C> Default for Tally<C> {
    fn default() -> Self {
        Tally {
            sums: [const { None }; LISTS],
            used: 0,
            replaced: 0,
        }
    }
}

impl<C: Count> Tally<C> {
    /// Counts packets at each of the counters.
    pub fn add(&mut self, counters: &Arc<[C]>, train: &Train, now_ms: u64) {
        let is_here =
            |sum: &Option<Sum<C>>| (sum.as_ref()).is_some_and(|sum| Arc::ptr_eq(&sum.counters, counters));
        let place = match self.sums[..self.used].iter().position(is_here) {
            Some(place) => place,
            None => self.free_place(now_ms),
        };
        let sum = self.sums[place].get_or_insert_with(|| Sum {
            counters: Arc::clone(counters),
            train: Train::default(),
        });
        sum.train.append(train);
    }

    fn free_place(&mut self, now_ms: u64) -> usize {
        if self.used < LISTS {
            self.used += 1;
            return self.used - 1;
        }
        self.replaced += 1;
        let place = self.replaced % LISTS;
        self.flush_at(place, now_ms);
        place
    }

    /// Adds all to the statistics.
    pub fn flush(&mut self, now_ms: u64) {
        (0..self.used).for_each(|place| self.flush_at(place, now_ms));
        self.used = 0;
    }

    fn flush_at(&mut self, place: usize, now_ms: u64) {
        if let Some(sum) = self.sums[place].take() {
            sum.counters
                .iter()
                .for_each(|counter| counter.count(&sum.train, now_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct Counter {
        packets: Cell<u32>,
        bytes: Cell<u64>,
        written: Cell<u32>,
    }

    impl Count for Counter {
        fn count(&self, train: &Train, _: u64) {
            self.packets.set(self.packets.get() + train.packets);
            self.bytes.set(self.bytes.get() + train.bytes);
            self.written.set(self.written.get() + 1);
        }
    }

    /// As many lists as are added up at a time, or more of them, in turn.
    #[test]
    fn every_packet_is_counted_once_at_each_counter() {
        for (lists, written) in [(LISTS, 1), (3 * LISTS, 5)] {
            let new = |_| Arc::<[Counter]>::from([Counter::default(), Counter::default()]);
            let counters: Vec<_> = (0..lists).map(new).collect();
            let mut train = Train::default();
            train.add(100, 2);
            let mut tally = Tally::default();
            for _ in 0..5 {
                counters
                    .iter()
                    .for_each(|counters| tally.add(counters, &train, 0));
            }
            tally.flush(0);
            tally.flush(0);
            for counter in counters.iter().flat_map(|counters| counters.iter()) {
                let counted = (counter.packets.get(), counter.bytes.get(), counter.written.get());
                assert_eq!(counted, (5, 500, written), "{lists} lists");
            }
        }
    }
}
