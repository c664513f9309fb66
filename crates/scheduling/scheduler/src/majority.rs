//! The one of a guest's threads that kicks, or that takes the interrupts, most of the time.
//!
//! Each kick or interrupt is a vote, and the thread that has most of the recent votes counts (the majority
//! vote of Boyer and Moore, with a bound so that a new one is not outvoted for long). The result is read with
//! each decision. Votes that two workers give at once may be lost, which does no harm.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vm_state::Slot;

/// Votes that count at most.
const MOST: u32 = 8;

/// Votes in the upper half, and the thread that has them in the lower; without votes none is known.
#[derive(Default)]
pub(crate) struct Majority(AtomicU32);

impl Majority {
    /// Adds a vote for this thread.
    pub fn vote(&self, thread: Slot) {
        let word = self.0.load(Relaxed);
        let (votes, known, thread) = (word >> 16, word & 0xffff, u32::from(thread.0));
        let (votes, known) = match votes {
            0 => (1, thread),
            _ if known == thread => ((votes + 1).min(MOST), known),
            _ => (votes - 1, known),
        };
        let next = votes << 16 | known;
        if next != word {
            self.0.store(next, Relaxed);
        }
    }

    /// Forgets all votes.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }

    /// The thread that has most votes, if there are any.
    #[inline]
    pub fn get(&self) -> Option<Slot> {
        let word = self.0.load(Relaxed);
        (word >> 16 > 0).then_some(Slot((word & 0xffff) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_of_recent_votes_decides() {
        let majority = Majority::default();
        assert_eq!(majority.get(), None);
        // Another one gets votes now and then.
        for _ in 0..100 {
            [0, 0, 9]
                .into_iter()
                .for_each(|thread| majority.vote(Slot(thread)));
        }
        assert_eq!(majority.get(), Some(Slot(0)));
        let needed = (1..100).find(|_| {
            majority.vote(Slot(u16::MAX));
            majority.get() == Some(Slot(u16::MAX))
        });
        assert!(needed.is_some_and(|votes| votes <= MOST + 1), "{needed:?}");
        majority.forget();
        assert_eq!(majority.get(), None);
    }
}
