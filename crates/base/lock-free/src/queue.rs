//! A bounded queue with many producers and one consumer.
//!
//! Producers reserve a cell by moving `tail` and then fill it; each cell carries a sequence number that says
//! whose turn it is, so that a producer which was preempted between the two steps delays only what lies
//! behind it (D. Vyukov's bounded queue). A full queue refuses: the caller decides what to drop.

use crate::sync::{AtomicUsize, Ordering, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::Arc;

#[derive(Debug)]
struct Cell<T> {
    /// `position` when free for the producer of that position, `position + 1` when filled by it.
    turn: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The producers' side; shared.
#[derive(Debug)]
pub struct Queue<T> {
    cells: Box<[Cell<T>]>,
    tail: AtomicUsize,
}

// SAFETY: a cell's value is touched only by the thread whose turn it is (`turn`), which passes it on with
// release/acquire; values move between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Queue<T> {}

/// The consumer's side; there is exactly one per queue.
#[derive(Debug)]
pub struct Receiver<T> {
    queue: Arc<Queue<T>>,
    head: usize,
}

impl<T> Queue<T> {
    /// An empty queue and its consumer. `capacity` is a power of two of at least 2.
    pub fn new(capacity: usize) -> (Arc<Queue<T>>, Receiver<T>) {
        assert!(
            capacity.is_power_of_two() && capacity >= 2,
            "capacity {capacity} is not a power of two"
        );
        let cells = (0..capacity)
            .map(|position| Cell {
                turn: AtomicUsize::new(position),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect();
        let queue = Arc::new(Queue {
            cells,
            tail: AtomicUsize::new(0),
        });
        (queue.clone(), Receiver { queue, head: 0 })
    }

    /// Appends, or gives the value back when the queue is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            let cell = &self.cells[position & (self.cells.len() - 1)];
            let turn = cell.turn.load(Ordering::Acquire);
            if turn == position {
                match self.tail.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: `turn == position` and the successful exchange give this thread alone the
                        // right to fill the cell, until the store below.
                        cell.value.with_mut(|slot| unsafe { (*slot).write(value) });
                        cell.turn.store(position.wrapping_add(1), Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => position = now,
                }
            } else if turn == position.wrapping_sub(self.cells.len()).wrapping_add(1) {
                return Err(value);
            } else {
                position = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    /// Appends unless `most` values are queued, `most` being at most the capacity; gives the value back
    /// otherwise. Values that other producers append meanwhile may not be counted.
    #[inline]
    pub fn push_below(&self, most: usize, value: T) -> Result<(), T> {
        let position = self.tail.load(Ordering::Relaxed).wrapping_sub(most);
        let cell = &self.cells[position & (self.cells.len() - 1)];
        let emptied = position.wrapping_add(self.cells.len());
        // The turn is behind that until the value of this position has been taken.
        if (cell.turn.load(Ordering::Acquire).wrapping_sub(emptied) as isize) < 0 {
            return Err(value);
        }
        self.push(value)
    }
}

impl<T> Receiver<T> {
    /// Whether there is nothing to take now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let cell = &self.queue.cells[self.head & (self.queue.cells.len() - 1)];
        cell.turn.load(Ordering::Acquire) != self.head.wrapping_add(1)
    }

    /// Whether more than `count` values can be taken, at least if no producer was preempted.
    #[inline]
    pub fn has_more_than(&self, count: usize) -> bool {
        let position = self.head.wrapping_add(count);
        let cell = &self.queue.cells[position & (self.queue.cells.len() - 1)];
        count < self.capacity() && cell.turn.load(Ordering::Acquire) == position.wrapping_add(1)
    }

    /// Most values that are queued.
    pub fn capacity(&self) -> usize {
        self.queue.cells.len()
    }

    /// Takes the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let cell = &self.queue.cells[self.head & (self.queue.cells.len() - 1)];
        // SAFETY: the turn says that the producer of this position has filled the cell, and only this, the
        // single consumer, may empty it; the store below hands it to the producer one round later.
        let value = cell.value.with(|slot| unsafe { (*slot).assume_init_read() });
        cell.turn
            .store(self.head.wrapping_add(self.queue.cells.len()), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        Some(value)
    }
}

impl<T> Drop for Receiver<T> {
    /// Drops the values that are queued. A value that is pushed later is never dropped, so callers push only
    /// while the consumer lives.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_like_a_bounded_deque(operations in prop::collection::vec(0..12usize, 0..200)) {
            let (queue, mut receiver) = Queue::new(8);
            let mut twin = VecDeque::new();
            for (value, most) in operations.into_iter().enumerate() {
                let accepted = match most {
                    0..=2 => {
                        prop_assert_eq!(receiver.pop(), twin.pop_front());
                        continue;
                    }
                    3..=8 => queue.push_below(most, value).is_ok(),
                    _ => queue.push(value).is_ok(),
                };
                prop_assert_eq!(accepted, twin.len() < most.min(8));
                if accepted {
                    twin.push_back(value);
                }
                prop_assert!((0..10).all(|count| receiver.has_more_than(count) == (twin.len() > count)));
            }
        }
    }

    #[test]
    fn what_is_queued_is_dropped_with_the_consumer() {
        let (queue, receiver) = Queue::new(4);
        let value = Arc::new(());
        for _ in 0..3 {
            queue.push(value.clone()).unwrap();
        }
        drop(receiver);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn every_value_arrives_once_and_in_the_order_of_its_producer() {
        let (queue, mut receiver) = Queue::new(16);
        let producers: Vec<_> = (0..4u64)
            .map(|producer| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    for serial in 0..5_000u64 {
                        let mut value = (producer, serial);
                        while let Err(back) = queue.push(value) {
                            value = back;
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0u64; 4];
        while next.iter().sum::<u64>() < 20_000 {
            if let Some((producer, serial)) = receiver.pop() {
                assert_eq!(next[producer as usize], serial);
                next[producer as usize] += 1;
            } else {
                std::thread::yield_now();
            }
        }
        producers.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn two_producers_one_consumer() {
        loom::model(|| {
            let (queue, mut receiver) = Queue::new(2);
            let threads: Vec<_> = (1..=2usize)
                .map(|value| {
                    let queue = queue.clone();
                    loom::thread::spawn(move || queue.push(value).is_ok())
                })
                .collect();
            let mut sum = receiver.pop().unwrap_or(0);
            for thread in threads {
                assert!(thread.join().unwrap());
            }
            while let Some(value) = receiver.pop() {
                sum += value;
            }
            assert_eq!(sum, 3);
        });
    }
}
