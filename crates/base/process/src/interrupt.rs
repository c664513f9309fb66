//! Interrupting a thread in a system call that should not have waited.

use std::io;

/// Ignored by default, used by nothing else here, and harmless if it comes late.
const SIGNAL: libc::c_int = libc::SIGURG;

/// A thread of this process that can be interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Thread(libc::pid_t);

impl Thread {
    /// The calling thread.
    pub fn current() -> Thread {
        Thread(rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// The thread's number, as in `/proc`.
    pub fn number(&self) -> u32 {
        self.0.unsigned_abs()
    }

    /// Makes a system call in which the thread waits, if it does, return with `EINTR`. Does nothing to a
    /// thread that has ended, unless its number was given out again in this process.
    pub fn interrupt(&self) {
        // SAFETY: tgkill takes three numbers; the signal has a handler that does nothing (`allow_interrupts`)
        // or is ignored.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, SIGNAL) };
    }
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Prepares this process for [`Thread::interrupt`]: without a handler the kernel would discard the signal.
pub fn allow_interrupts() -> io::Result<()> {
    // SAFETY: zero is a valid `sigaction`; without SA_RESTART, so that calls do return; the handler does
    // nothing.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(SIGNAL, &action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
