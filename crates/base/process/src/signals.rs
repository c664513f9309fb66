//! Signals as a descriptor to poll, so that a supervisor is one loop without handlers.

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// A signal a supervisor acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT: end.
    Terminate,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGCHLD: at least one child ended.
    Child,
}

const SIGNALS: [(libc::c_int, Signal); 4] = [
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGINT, Signal::Terminate),
    (libc::SIGHUP, Signal::Reload),
    (libc::SIGCHLD, Signal::Child),
];

/// Receives the signals of [`Signal`] instead of their default effects. Readable when one is waiting.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Signals {
    /// Blocks the signals in the calling thread and those it starts, for good. Call it before other threads
    /// are started.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn new() -> io::Result<Signals> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises `set`, the others read it and keep no pointer; the signal numbers
        // are valid. signalfd(-1, ...) returns a new descriptor, which nothing else owns.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for (number, _) in SIGNALS {
                libc::sigaddset(set.as_mut_ptr(), number);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        Ok(Signals { descriptor })
    }

    /// The next waiting signal, or `None`.
    ///
    /// # Errors
    /// Only if the descriptor is broken.
    pub fn take(&self) -> io::Result<Option<Signal>> {
        // struct signalfd_siginfo is 128 bytes and begins with the number as a u32 (signalfd(2)).
        let mut info = [0u8; 128];
        loop {
            match rustix::io::read(&self.descriptor, &mut info) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            if let Some((_, signal)) = SIGNALS.iter().find(|(known, _)| known.cast_unsigned() == number) {
                return Ok(Some(*signal));
            }
        }
    }
}
