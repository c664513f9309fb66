//! The thread that empties a queue.
//!
//! A producer puts something into the queue and then looks whether a thread is assigned to it; if so, the
//! producer leaves the queue to that thread. An assigned thread that finds the queue empty resigns, and then
//! looks at the queue once more. A fence between the two steps on each side makes one of them see what the
//! other did: either the thread that resigns sees what was queued, or the producer sees that no thread is
//! assigned, and arranges for the queue to be emptied.
//!
//! An assignment gives no right to the queue: a [`Claim`](crate::Claim) does. Direction of error: two threads
//! that empty one queue get in each other's way; a queue whose assigned thread never looks stays full.

use crate::sync::{AtomicU16, Ordering, fence};

/// The number of the assigned thread, if there is one. See the module's description.
#[derive(Debug)]
pub struct Assignment {
    /// The thread's number plus one; 0 for none.
    assigned: AtomicU16,
}

impl Assignment {
    /// No thread is assigned.
    pub fn nobody() -> Self {
        Assignment {
            assigned: AtomicU16::new(0),
        }
    }

    /// The assigned thread. A producer may leave something to it only after [`announce`](Self::announce).
    pub fn get(&self) -> Option<u16> {
        self.assigned.load(Ordering::Relaxed).checked_sub(1)
    }

    /// A producer calls this after it has put something into the queue, and before it asks for the assigned
    /// thread.
    pub fn announce(&self) {
        fence(Ordering::SeqCst);
    }

    /// Assigns the thread with this number, which is below `u16::MAX`; the caller then notifies that thread.
    /// After `None` the caller must check the queue once more.
    pub fn set(&self, number: Option<u16>) {
        let assigned = number.map_or(0, |number| number + 1);
        // Many threads read the line: it is written only when the number changes.
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
