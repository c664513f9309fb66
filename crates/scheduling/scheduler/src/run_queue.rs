//! The rings that a thread serves next.
//!
//! A ring is *new* when something comes for it, and goes before *old* rings, which were not empty when their
//! last turn ended, or have used much of the thread's time lately ([`FairShare`]). So a ring with little to
//! do waits for the turn that is under way, and for others that are new, however many rings are never empty.

use crate::fair_share::FairShare;
use crate::ring_id::RingId;
use std::collections::VecDeque;

/// Number of rings in sequence that may overtake an older one, which must not wait for ever.
const OVERTAKEN: u32 = 8;

/// Number of the oldest rings among which the rank decides.
const RANKED: usize = 16;

/// Rings in the order in which they came.
#[derive(Debug, Default)]
struct List {
    rings: VecDeque<RingId>,
    /// Number of rings in sequence that were taken before the oldest one.
    overtaken: u32,
}

impl List {
    fn pop(&mut self) -> Option<RingId> {
        self.overtaken = 0;
        self.rings.pop_front()
    }

    /// Takes the ring of least rank, the oldest among equals; and the oldest of all when that one has been
    /// overtaken for long.
    fn pop_by<K: Ord>(&mut self, rank: impl Fn(RingId) -> K) -> Option<RingId> {
        if self.rings.len() < 2 || self.overtaken >= OVERTAKEN {
            return self.pop();
        }
        let ranked = self.rings.iter().take(RANKED).enumerate();
        let (place, _) = ranked.min_by_key(|(_, ring)| rank(**ring))?;
        self.overtaken = if place == 0 { 0 } else { self.overtaken + 1 };
        self.rings.remove(place)
    }
}

/// The turn of a ring while others wait.
#[derive(Debug)]
struct Turn {
    ring: RingId,
    began_ns: u64,
    /// Something is left, or has come meanwhile.
    again: bool,
}

/// Rings, each at most once.
#[derive(Debug, Default)]
pub(crate) struct RunQueue {
    new: List,
    old: List,
    /// Number of new rings in sequence that were taken before an old one.
    overtaken: u32,
    share: FairShare,
    turn: Option<Turn>,
}

impl RunQueue {
    /// Appends a ring, unless it is in the queue.
    #[inline]
    pub fn push(&mut self, ring: RingId) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.ring == ring) {
            turn.again = true;
        } else if !self.contains(ring) {
            let is_new = self.share.is_within(ring);
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.rings.push_back(ring);
        }
    }

    #[inline]
    pub fn contains(&self, ring: RingId) -> bool {
        self.new.rings.contains(&ring) || self.old.rings.contains(&ring)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.new.rings.len() + self.old.rings.len()
    }

    /// Takes the ring that is served next, the oldest of those that go first.
    #[inline]
    pub fn pop(&mut self) -> Option<RingId> {
        self.list().pop()
    }

    /// As [`pop`](Self::pop), but a ring of less rank goes first for a while.
    pub fn pop_by<K: Ord>(&mut self, rank: impl Fn(RingId) -> K) -> Option<RingId> {
        self.list().pop_by(rank)
    }

    /// The list whose turn it is.
    fn list(&mut self) -> &mut List {
        if self.old.rings.is_empty() || !self.new.rings.is_empty() && self.overtaken < OVERTAKEN {
            self.overtaken += u32::from(!self.old.rings.is_empty());
            &mut self.new
        } else {
            self.overtaken = 0;
            &mut self.old
        }
    }

    /// A turn begins at a ring that was not queued, and no other ring waits.
    #[inline]
    pub fn begin_turn_alone(&mut self) {
        debug_assert!(self.is_empty());
        self.share.forget();
    }

    /// The turn of a ring that was taken begins. `now_ns` is asked for only if others wait.
    #[inline]
    pub fn begin_turn(&mut self, ring: RingId, now_ns: impl FnOnce() -> u64) {
        if self.is_empty() {
            self.share.forget();
        } else {
            self.turn = Some(Turn {
                ring,
                began_ns: now_ns(),
                again: false,
            });
        }
    }

    /// The turn ends. If something is left, the ring is in the queue again.
    #[inline]
    pub fn end_turn(&mut self, now_ns: impl FnOnce() -> u64) {
        if let Some(turn) = self.turn.take() {
            let took_ns = now_ns().saturating_sub(turn.began_ns);
            self.share.charge(turn.ring, took_ns, self.len());
            if turn.again && !self.contains(turn.ring) {
                self.old.rings.push_back(turn.ring);
            }
        }
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

    /// A turn of the ring that is next, in nanoseconds.
    fn turn(
        queue: &mut RunQueue,
        clock: &mut u64,
        took_ns: impl Fn(RingId) -> Option<u64>,
    ) -> Option<RingId> {
        let ring = queue.pop()?;
        queue.begin_turn(ring, || *clock);
        if let Some(took_ns) = took_ns(ring) {
            queue.push(ring);
            *clock += took_ns;
        } else {
            *clock += 1_000;
        }
        queue.end_turn(|| *clock);
        Some(ring)
    }

    #[test]
    fn a_ring_that_has_little_goes_before_those_with_backlog() {
        const LITTLE: RingId = RingId(1000);
        let (mut queue, mut clock) = (queue(&(0..64).collect::<Vec<_>>()), 0);
        let backlog = |ring: RingId| (ring != LITTLE).then_some(20_000);
        for _ in 0..64 * 3 {
            turn(&mut queue, &mut clock, backlog);
        }
        for _ in 0..100 {
            queue.push(LITTLE);
            assert_eq!(turn(&mut queue, &mut clock, backlog), Some(LITTLE));
            for _ in 0..16 {
                assert_ne!(turn(&mut queue, &mut clock, backlog), Some(LITTLE));
            }
        }
    }

    /// Rings that are empty after each turn, and have something again at once, leave one that is never empty
    /// a part of the turns; many of them leave it its share.
    #[test]
    fn rings_that_come_again_and_again_leave_others_a_part() {
        for count in [3, 20, 100] {
            let (mut queue, mut clock) = (queue(&[0]), 0);
            let backlog = |ring: RingId| (ring.0 == 0).then_some(1_000);
            let mut turns = 0;
            for _ in 0..20_000 {
                (1..=count).for_each(|ring| queue.push(RingId(ring)));
                turns += u32::from(turn(&mut queue, &mut clock, backlog) == Some(RingId(0)));
            }
            assert!(
                turns >= 20_000 / (OVERTAKEN + 1).max(count + 1),
                "{turns} beside {count}"
            );
        }
    }

    #[test]
    fn without_others_no_clock_is_read() {
        let mut queue = queue(&[7]);
        let ring = queue.pop().unwrap();
        queue.begin_turn(ring, || unreachable!());
        queue.push(ring);
        queue.end_turn(|| unreachable!());
        assert_eq!(queue.pop(), Some(RingId(7)));
        assert!(queue.is_empty());
    }
}
