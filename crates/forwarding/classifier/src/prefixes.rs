//! A counting filter of the beginnings of keys that the flows of a subtable have.
//!
//! The filter answers "perhaps" or "no". A wrong "perhaps" costs the remaining steps of a look-up; a wrong
//! "no" would lose packets, so counts that have reached their greatest value stay there.

/// Counters per flow; rounding makes them up to twice as many. If all flows begin differently, at most a
/// quarter of the beginnings of other keys pass.
const COUNTERS_PER_FLOW: usize = 4;

/// A cache line of counters.
const FEWEST: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Prefixes {
    /// Counters by hash. Their number is a power of two.
    counts: Box<[u16]>,
}

impl Prefixes {
    /// An empty filter for up to `flows` flows.
    pub fn new(flows: usize) -> Prefixes {
        let counters = (flows * COUNTERS_PER_FLOW).max(FEWEST).next_power_of_two();
        Prefixes {
            counts: vec![0; counters].into(),
        }
    }

    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        self.counts[self.place(hash)] != 0
    }

    pub fn add(&mut self, hash: u64) {
        let count = &mut self.counts[self.place(hash)];
        *count = count.saturating_add(1);
    }

    pub fn remove(&mut self, hash: u64) {
        let count = &mut self.counts[self.place(hash)];
        if *count != u16::MAX {
            *count -= 1;
        }
    }

    #[inline]
    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.counts.len() - 1)
    }
}

#[cfg(test)]
impl Prefixes {
    pub fn counters(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_there_until_it_was_removed_as_often() {
        let mut prefixes = Prefixes::new(8);
        (0..3).for_each(|_| prefixes.add(5));
        (0..2).for_each(|_| prefixes.remove(5));
        assert!(prefixes.may_have(5) && !prefixes.may_have(6));
        prefixes.remove(5);
        assert!(!prefixes.may_have(5));
    }

    #[test]
    fn a_count_that_is_too_high_is_never_too_low() {
        let mut prefixes = Prefixes::new(8);
        let times = usize::from(u16::MAX) + 10;
        (0..times).for_each(|_| prefixes.add(5));
        (0..times - 1).for_each(|_| prefixes.remove(5));
        assert!(prefixes.may_have(5));
    }

    #[test]
    fn of_beginnings_that_no_flow_has_at_most_a_quarter_passes() {
        let passing = |flows: u64| {
            let mut prefixes = Prefixes::new(flows as usize);
            (0..flows).for_each(|hash| prefixes.add(hash));
            (0..1 << 16).filter(|&hash| prefixes.may_have(hash)).count()
        };
        assert_eq!(passing(64), (1 << 16) / 4);
        assert_eq!(passing(65), (1 << 16) / 512 * 65);
        assert_eq!(passing(1), (1 << 16) / FEWEST);
    }
}
