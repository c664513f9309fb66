//! Who empties a queue.
//!
//! A thread that finds somebody assigned after it put something into the queue leaves it to that one. Whoever is assigned
//! resigns when the queue is empty, and then looks at it once more. A fence between the two steps of each makes one of
//! them see what the other did: what is queued is seen by the one who resigns, or its producer sees that nobody is
//! assigned and sees to it.
//!
//! An assignment gives no right to the queue: a [`Claim`](crate::Claim) does. Direction of error: two that empty one queue get
//! in each other's way; a queue whose assigned thread never looks stays full.

use crate::sync::{AtomicU16, Ordering, fence};

/// The number of a thread, or nobody. See the module's description.
#[derive(Debug)]
pub struct Assignment {
    /// The number plus one; 0 for nobody.
    assigned: AtomicU16,
}

impl Assignment {
    /// Nobody is assigned.
    pub fn nobody() -> Self {
        Assignment {
            assigned: AtomicU16::new(0),
        }
    }

    /// Who is assigned. Only after [`announce`](Self::announce) something may be left to that one.
    pub fn get(&self) -> Option<u16> {
        self.assigned.load(Ordering::Relaxed).checked_sub(1)
    }

    /// To be called between putting something into the queue and asking who is assigned.
    pub fn announce(&self) {
        fence(Ordering::SeqCst);
    }

    /// Assigns a thread, whose number is below `u16::MAX` and which then must be told to look at the queue. After `None` the
    /// caller must look at it once more.
    pub fn set(&self, number: Option<u16>) {
        let assigned = number.map_or(0, |number| number + 1);
        // Many read it: only what is new is written.
        if self.assigned.load(Ordering::Relaxed) != assigned {
            self.assigned.store(assigned, Ordering::Relaxed);
        }
        if number.is_none() {
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn any_number_but_the_last_can_be_assigned() {
        let assignment = Assignment::nobody();
        assert_eq!(assignment.get(), None);
        for number in [0, 1, u16::MAX - 1] {
            assignment.set(Some(number));
            assert_eq!(assignment.get(), Some(number));
        }
        assignment.set(None);
        assert_eq!(assignment.get(), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::Queue;
    use loom::sync::Arc;

    #[test]
    fn nothing_is_left_to_one_who_resigns() {
        loom::model(|| {
            let (queue, mut receiver) = Queue::new(2);
            let assignment = Arc::new(Assignment::nobody());
            assignment.set(Some(0));
            let assigned = {
                let assignment = assignment.clone();
                loom::thread::spawn(move || {
                    while receiver.pop().is_some() {}
                    assignment.set(None);
                    let goes_on = !receiver.is_empty();
                    (receiver, goes_on)
                })
            };
            queue.push(1).unwrap();
            assignment.announce();
            let left_to_it = assignment.get().is_some();
            let (mut receiver, goes_on) = assigned.join().unwrap();
            let queued = receiver.pop().is_some();
            assert!(!queued || goes_on || !left_to_it);
        });
    }
}
