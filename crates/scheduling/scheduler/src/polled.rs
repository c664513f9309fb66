//! Rings that a thread polls.

use crate::ring_id::RingId;

/// Rings whose guests need not kick, since this thread looks at them, in turn.
#[derive(Debug, Default)]
pub(crate) struct Polled {
    /// The rings, each with whether something came through it since it is polled.
    rings: Vec<(RingId, bool)>,
    /// The ring that was looked at last.
    last: usize,
}

impl Polled {
    /// Polls a ring from now on, or goes on doing so. `fresh`: something came through it just now.
    pub fn add(&mut self, ring: RingId, fresh: bool) {
        match self.rings.iter_mut().find(|(polled, _)| *polled == ring) {
            Some((_, was_fresh)) => *was_fresh |= fresh,
            None => self.rings.push((ring, fresh)),
        }
    }

    pub fn len(&self) -> usize {
        self.rings.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    pub fn contains(&self, ring: RingId) -> bool {
        self.rings.iter().any(|(polled, _)| *polled == ring)
    }

    /// The ring whose turn it is to be looked at.
    pub fn turn(&mut self) -> Option<RingId> {
        self.last = if self.last + 1 < self.rings.len() {
            self.last + 1
        } else {
            0
        };
        self.rings.get(self.last).map(|(ring, _)| *ring)
    }

    /// The rings that are looked at after `looked` others, in their order.
    pub fn after(&self, looked: usize) -> impl Iterator<Item = RingId> {
        let rest = self.rings.len().saturating_sub(looked);
        let places = self.rings.iter().cycle().skip(self.last + 1).take(rest);
        places.map(|(ring, _)| *ring)
    }

    /// Ends polling of the ring that has been polled for longest, if more than `most` are polled.
    pub fn take_surplus(&mut self, most: usize) -> Option<RingId> {
        (self.rings.len() > most).then(|| self.rings.remove(0).0)
    }

    /// The rings through which something came.
    pub fn fresh(&self) -> impl Iterator<Item = RingId> {
        self.rings
            .iter()
            .filter(|(_, fresh)| *fresh)
            .map(|(ring, _)| *ring)
    }

    /// Ends polling; returns the rings that were polled.
    pub fn take(&mut self) -> impl Iterator<Item = RingId> + use<> {
        std::mem::take(&mut self.rings).into_iter().map(|(ring, _)| ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_get_their_turn() {
        let mut polled = Polled::default();
        assert_eq!(polled.turn(), None);
        (0..3).for_each(|ring| polled.add(RingId(ring), false));
        polled.add(RingId(1), true);
        assert_eq!(polled.len(), 3);
        let mut seen: Vec<u32> = (0..6).filter_map(|_| polled.turn()).map(|ring| ring.0).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 0, 1, 1, 2, 2]);
        polled.turn();
        assert_eq!(polled.after(1).count(), 2);
        let next: Vec<RingId> = polled.after(1).collect();
        assert_eq!([polled.turn(), polled.turn()], [Some(next[0]), Some(next[1])]);
        assert_eq!(polled.after(3).count(), 0);
        assert_eq!(polled.fresh().collect::<Vec<_>>(), [RingId(1)]);
        assert_eq!(polled.take_surplus(3), None);
        polled.add(RingId(9), false);
        assert_eq!(polled.take_surplus(3), Some(RingId(0)));
        // Fewer than there were when the last one was looked at.
        assert_eq!(polled.take().count(), 3);
        polled.add(RingId(7), false);
        assert_eq!(polled.turn(), Some(RingId(7)));
    }
}
