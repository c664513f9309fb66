//! The constraint of one core, in the hands of the thread that sets it.

use crate::{ANY_STATE, POLL_ONLY};
use rustix::fd::OwnedFd;

/// Sets and lifts the constraint of one core; lifts it when dropped.
#[derive(Debug)]
pub struct Constraint {
    file: OwnedFd,
    is_set: bool,
}

impl Constraint {
    /// Takes a core's file, lent by the process that opened it. There is no constraint yet.
    pub fn new(file: OwnedFd) -> Constraint {
        Constraint { file, is_set: false }
    }

    /// Whether the core is kept from halting.
    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// Keeps the core from halting, or lets it halt again. Makes a system call only for a change.
    ///
    /// # Errors
    /// The file cannot be written, as when the core was taken offline: there is no constraint then.
    pub fn set(&mut self, is_set: bool) -> std::io::Result<()> {
        if is_set != self.is_set {
            let value = if is_set { POLL_ONLY } else { ANY_STATE };
            self.is_set = false;
            rustix::io::write(&self.file, value.as_bytes())?;
            self.is_set = is_set;
        }
        Ok(())
    }
}

impl Drop for Constraint {
    fn drop(&mut self) {
        // What cannot be lifted is lifted by the process that opened the file.
        let _ = self.set(false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn each_change_is_one_write_and_nothing_stays_behind() {
        let (mut read, write) = std::io::pipe().unwrap();
        let mut constraint = Constraint::new(write.into());
        for is_set in [false, true, true, false, false, true] {
            constraint.set(is_set).unwrap();
            assert_eq!(constraint.is_set(), is_set);
        }
        drop(constraint);
        let mut written = String::new();
        read.read_to_string(&mut written).unwrap();
        assert_eq!(written, "n/a0n/a0");
    }

    #[test]
    fn a_file_that_cannot_be_written_sets_nothing() {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let mut constraint = Constraint::new(write.into());
        constraint.set(true).unwrap_err();
        assert!(!constraint.is_set());
    }
}
