//! Answers that a peer owes: when the supervisor is to be asked to look at it.
//!
//! A peer that hangs keeps its channel. Whoever waits for it notices that nothing comes, and says so to the
//! supervisor ([`FromChild::Owes`](crate::supervisor::FromChild::Owes)), which finds out whether it hangs. So
//! a deadline exists only while an answer is owed, and saying so of a healthy peer costs it one message: the
//! pause doubles each time.

use crate::supervisor::ANSWER_MS;

/// Longest pause, in milliseconds.
const LONGEST_MS: u64 = 60_000;

/// What one peer owes.
#[derive(Debug, Default)]
pub struct Debt {
    due_ms: Option<u64>,
    pause_ms: u64,
}

impl Debt {
    /// Whether it owes an answer now. To be called when that may have changed.
    pub fn set(&mut self, owes: bool, now_ms: u64) {
        if !owes {
            self.due_ms = None;
        } else if self.due_ms.is_none() {
            self.pause_ms = ANSWER_MS;
            self.due_ms = Some(now_ms + ANSWER_MS);
        }
    }

    /// Notes that the process has said something: it works.
    pub fn heard(&mut self) {
        self.due_ms = None;
    }

    /// When it will have owed an answer for too long.
    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Whether the supervisor is to be told now.
    pub fn take_overdue(&mut self, now_ms: u64) -> bool {
        let is_overdue = self.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        if is_overdue {
            self.pause_ms = (self.pause_ms * 2).min(LONGEST_MS);
            self.due_ms = Some(now_ms + self.pause_ms);
        }
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_told_less_and_less_often() {
        let mut debt = Debt::default();
        assert_eq!((debt.due_ms(), debt.take_overdue(1_000_000)), (None, false));
        let mut told = 0;
        for now_ms in 0..3_600_000 {
            debt.set(true, now_ms);
            told += u32::from(debt.take_overdue(now_ms));
            assert!(now_ms != ANSWER_MS || told == 1, "the first time");
        }
        assert!(told < 80, "{told} times in an hour");
        debt.set(false, 3_600_000);
        assert_eq!(debt.due_ms(), None);
    }

    #[test]
    fn who_says_something_owes_as_if_for_the_first_time() {
        let mut debt = Debt::default();
        debt.set(true, 0);
        assert!(debt.take_overdue(ANSWER_MS));
        debt.heard();
        debt.set(true, 300);
        assert_eq!(debt.due_ms(), Some(300 + ANSWER_MS));
    }
}
