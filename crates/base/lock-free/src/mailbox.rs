//! Messages for a thread that sleeps when there are none.
//!
//! The reader notes that it sleeps, looks at its messages once more, and then waits for its bell. A sender
//! leaves its message and then looks whether the reader sleeps. A fence between the two steps on each side
//! makes one of them see what the other did: either the reader finds the message, or the sender learns that
//! it has to ring. The caller rings the bell, which is a system call; the bell must stay rung until the
//! reader waits.
//!
//! Direction of error: a bell rung for nothing costs a wake-up; a bell that is not rung leaves a message
//! unread for as long as nothing else wakes the reader.

use crate::queue::{Queue, Receiver};
use crate::sync::{AtomicU8, AtomicU16, Ordering, fence};
use std::sync::Arc;

/// The reader's activity.
///
/// | state | senders |
/// |---|---|
/// | `Asleep` | ring the bell after a message |
/// | `Polling` | need not, and may count on it at once |
/// | `Working` | need not |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// The reader waits for its bell, or is about to.
    Asleep,
    /// The reader looks for work.
    Polling,
    /// The reader works, and looks at its messages afterwards.
    Working,
}

/// The senders' side, and the reader's activity, which any thread may read. See the module's description.
#[derive(Debug)]
pub struct Mailbox<T> {
    messages: Arc<Queue<T>>,
    depth: AtomicU16,
    activity: AtomicU8,
}

impl<T> Mailbox<T> {
    /// An empty mailbox for at most `capacity` messages (see [`Queue::new`]) whose reader is asleep, and the
    /// reader's end.
    pub fn new(capacity: usize) -> (Mailbox<T>, Receiver<T>) {
        let (messages, inbox) = Queue::new(capacity);
        let mailbox = Mailbox {
            messages,
            depth: AtomicU16::new(0),
            activity: AtomicU8::new(Activity::Asleep as u8),
        };
        (mailbox, inbox)
    }

    /// Leaves a message, or gives it back when there are too many. True if the bell must be rung.
    pub fn send(&self, message: T) -> Result<bool, T> {
        self.messages.push(message)?;
        self.depth.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.activity() == Activity::Asleep)
    }

    /// Takes the oldest message. For the reader, with its own end.
    pub fn receive(&self, inbox: &mut Receiver<T>) -> Option<T> {
        let message = inbox.pop()?;
        self.depth.fetch_sub(1, Ordering::Relaxed);
        Some(message)
    }

    /// Number of messages that waited a moment ago. For a moment it is far too large when a message is taken
    /// before it is counted.
    pub fn depth(&self) -> u16 {
        self.depth.load(Ordering::Relaxed)
    }

    /// The reader's activity.
    pub fn activity(&self) -> Activity {
        match self.activity.load(Ordering::Relaxed) {
            0 => Activity::Asleep,
            1 => Activity::Polling,
            _ => Activity::Working,
        }
    }

    /// Sets the reader's activity; only the reader calls this. After `Asleep` it must look at its messages
    /// once more before it waits.
    pub fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
        if activity == Activity::Asleep {
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_bell_is_rung_for_sleepers_only() {
        let (mailbox, mut inbox) = Mailbox::new(2);
        assert_eq!(mailbox.send(1), Ok(true));
        for awake in [Activity::Polling, Activity::Working] {
            mailbox.set_activity(awake);
            assert_eq!(mailbox.activity(), awake);
            assert_eq!(mailbox.send(2), Ok(false));
            assert_eq!(mailbox.depth(), 2);
            assert_eq!(mailbox.send(3), Err(3));
            assert!(mailbox.receive(&mut inbox).is_some());
        }
        assert_eq!(mailbox.receive(&mut inbox), Some(2));
        assert_eq!((mailbox.receive(&mut inbox), mailbox.depth()), (None, 0));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// The reader falls asleep as workers do. True if it waits for its bell.
    fn fall_asleep(mailbox: &Mailbox<u8>, inbox: &mut Receiver<u8>) -> bool {
        while mailbox.receive(inbox).is_some() {}
        mailbox.set_activity(Activity::Asleep);
        mailbox.receive(inbox).is_none()
    }

    #[test]
    fn no_message_is_left_to_a_sleeper() {
        loom::model(|| {
            let (mailbox, mut inbox) = Mailbox::new(2);
            mailbox.set_activity(Activity::Working);
            let mailbox = Arc::new(mailbox);
            let senders = [1, 2].map(|message| {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || mailbox.send(message).expect("there is room"))
            });
            let sleeps = fall_asleep(&mailbox, &mut inbox);
            let rung = senders.map(|sender| sender.join().unwrap()).contains(&true);
            let unread = mailbox.receive(&mut inbox).is_some();
            assert!(!sleeps || !unread || rung);
        });
    }
}
