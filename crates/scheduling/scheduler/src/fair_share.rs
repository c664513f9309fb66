//! Which rings have had no more than their share of a thread's time.
//!
//! Time is virtual, as in weighted fair queueing: if it ran at an n-th of the speed of the clock while n
//! rings wait, all of them would be served at once. It runs [`SHARES`] times as fast. A turn takes a ring as
//! far ahead of virtual time as the turn was long. A ring that is not ahead has used little lately, no more
//! than so many equal shares. Nothing is measured while no other ring waits.

use crate::ring_id::RingId;

/// Equal shares of the thread's time that a ring may use before it waits in turn with others.
const SHARES: u64 = 4;

/// How far a ring may be ahead and still be within its share, in nanoseconds: it may kick several times in
/// sequence.
const CREDIT_NS: u64 = 10_000;

/// Longest time that a turn counts for, in nanoseconds: the thread may have lost its core meanwhile.
const MOST_NS: u64 = 50_000;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FairShare {
    now_ns: u64,
    /// Rings that are ahead, each with the virtual time up to which it is.
    ahead: Vec<(RingId, u64)>,
}

impl FairShare {
    /// Whether a ring has used no more than its share.
    #[inline]
    pub fn is_within(&self, ring: RingId) -> bool {
        let until_ns = self.ahead.iter().find(|(other, _)| *other == ring);
        until_ns.is_none_or(|(_, until_ns)| *until_ns <= self.now_ns + CREDIT_NS)
    }

    /// Charges a ring for a turn, while so many others waited.
    pub fn charge(&mut self, ring: RingId, took_ns: u64, others: usize) {
        let took_ns = took_ns.min(MOST_NS);
        self.now_ns += took_ns * SHARES / (others as u64 + 1);
        let now_ns = self.now_ns;
        match self.ahead.iter_mut().find(|(other, _)| *other == ring) {
            Some((_, until_ns)) => *until_ns = now_ns.max(*until_ns) + took_ns,
            None => self.ahead.push((ring, now_ns + took_ns)),
        }
        self.ahead.retain(|(_, until_ns)| *until_ns > now_ns);
    }

    /// Forgets who is ahead: no ring had to wait.
    #[inline]
    pub fn forget(&mut self) {
        if !self.ahead.is_empty() {
            self.ahead.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_uses_little_is_within_its_share() {
        let mut share = FairShare::default();
        let little = RingId(1000);
        for round in 0..1000 {
            assert!(share.is_within(little), "round {round}");
            share.charge(little, 20_000, 64);
            for ring in 0..64 {
                share.charge(RingId(ring), 10_000, 64);
            }
        }
    }

    #[test]
    fn one_that_uses_more_is_not_and_may_be_again_later() {
        let mut share = FairShare::default();
        let ring = RingId(7);
        share.charge(ring, CREDIT_NS, 15);
        assert!(share.is_within(ring), "a first turn is free");
        share.charge(ring, 2 * CREDIT_NS, 15);
        assert!(!share.is_within(ring));
        // Others are served meanwhile.
        (0..8).for_each(|other| share.charge(RingId(other + 8), CREDIT_NS, 15));
        assert!(share.is_within(ring));
        share.charge(ring, 10 * MOST_NS, 15);
        assert!(!share.is_within(ring));
        share.forget();
        assert!(share.is_within(ring));
    }

    #[test]
    fn only_rings_that_are_ahead_are_known() {
        let mut share = FairShare::default();
        for ring in 0..10_000 {
            share.charge(RingId(ring), 1_000, 1);
        }
        assert!(share.ahead.len() < 10, "{}", share.ahead.len());
    }
}
