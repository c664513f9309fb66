//! The rings that a thread serves next.

use crate::ring_id::RingId;
use std::collections::VecDeque;

/// Number of rings in sequence that may overtake an older one, which must not wait for ever.
const OVERTAKEN: u32 = 8;

/// Rings in the order in which they came, each at most once.
#[derive(Debug, Default)]
pub(crate) struct RunQueue {
    rings: VecDeque<RingId>,
    /// Number of rings in sequence that were put before an older one.
    overtaken: u32,
}

impl RunQueue {
    /// Appends a ring, unless it is in the queue.
    #[inline]
    pub fn push(&mut self, ring: RingId) {
        if !self.contains(ring) {
            self.rings.push_back(ring);
        }
    }

    #[inline]
    pub fn contains(&self, ring: RingId) -> bool {
        self.rings.contains(&ring)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rings.len()
    }

    /// Takes the oldest ring.
    #[inline]
    pub fn pop(&mut self) -> Option<RingId> {
        self.overtaken = 0;
        self.rings.pop_front()
    }

    /// Takes the ring of least rank, the oldest among equals; and the oldest of all when that one has been overtaken for long.
    pub fn pop_by<K: Ord>(&mut self, rank: impl Fn(RingId) -> K) -> Option<RingId> {
        if self.rings.len() < 2 || self.overtaken >= OVERTAKEN {
            return self.pop();
        }
        let ranked = self.rings.iter().enumerate();
        let (place, _) = ranked.min_by_key(|(_, ring)| rank(**ring))?;
        self.overtaken = if place == 0 { 0 } else { self.overtaken + 1 };
        self.rings.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(rings: &[u32]) -> RunQueue {
        let mut queue = RunQueue::default();
        rings.iter().for_each(|ring| queue.push(RingId(*ring)));
        queue
    }

    #[test]
    fn the_oldest_comes_first_and_each_once() {
        let mut queue = queue(&[5, 3, 5, 4, 3]);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|ring| ring.0).collect();
        assert_eq!(order, [5, 3, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_least_rank_comes_first_and_the_oldest_among_equals() {
        let mut queue = queue(&[15, 23, 13, 25]);
        let by_ten = |ring: RingId| ring.0 % 10;
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop_by(by_ten))
            .map(|ring| ring.0)
            .collect();
        assert_eq!(order, [23, 13, 15, 25]);
    }

    /// A ring of low rank waits for a bounded number of turns, however many of higher rank come.
    #[test]
    fn nobody_waits_for_ever() {
        let mut queue = queue(&[1000]);
        let mut waited = 0;
        for next in 0.. {
            queue.push(RingId(next % 100));
            if queue.pop_by(|ring| ring.0) == Some(RingId(1000)) {
                break;
            }
            waited += 1;
            assert!(waited < 100, "starved");
        }
        assert_eq!(waited, OVERTAKEN);
        // The count begins anew.
        queue.push(RingId(1000));
        queue.push(RingId(0));
        assert_eq!(queue.pop_by(|ring| ring.0), Some(RingId(0)));
    }
}
