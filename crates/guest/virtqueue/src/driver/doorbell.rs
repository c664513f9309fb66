//! Event descriptors for kicks and calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// An event descriptor: one side signals it, the other waits for it to become readable. To be watched
/// edge-triggered: the counter is not read, and would take 2^64 signals to fill.
#[derive(Debug)]
pub struct Doorbell(EventFd);

impl Doorbell {
    /// One that is not signalled.
    pub fn new() -> io::Result<Doorbell> {
        EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map(Doorbell)
    }

    /// Wakes the thread that waits.
    pub fn ring(&self) {
        // Fails only when the counter is full, and then the other side has been woken.
        let _ = self.0.write(1);
    }

    /// The descriptor in the type of the vhost-user front end.
    pub fn event_fd(&self) -> &EventFd {
        &self.0
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as `self.0` lives, which the borrow of `self` ensures.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}
