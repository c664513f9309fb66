//! The handler behind [`Violation::Report`](crate::Violation::Report): writes which call was forbidden.

use libc::{c_int, c_void, siginfo_t};
use std::io;

pub(crate) fn install() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is a valid value (no flags, empty mask, SIG_DFL).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
    // SAFETY: `action` is a valid `sigaction` whose handler has the signature SA_SIGINFO asks for, lives as
    // long as the process and makes only async-signal-safe calls. The old action is not asked for.
    let result = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn handle(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // `siginfo_t` of SIGSYS (sigaction(2)): three ints and padding to a pointer, then the call's address
    // (a pointer), then its number (an int).
    const NUMBER_OFFSET: usize = 16 + size_of::<usize>();
    // SAFETY: the kernel passes a valid `siginfo_t` to a SA_SIGINFO handler; it is 128 bytes long, so the
    // read at byte 24 is inside, and aligned since the structure is aligned for a pointer.
    let number = unsafe { info.cast::<u8>().add(NUMBER_OFFSET).cast::<c_int>().read() };
    let mut text = *b"forbidden system call 0000\n";
    let mut rest = number.unsigned_abs();
    for digit in text.iter_mut().rev().skip(1).take(4) {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    // SAFETY: `text` is readable for its whole length; write() is async-signal-safe. raise() is too, and with
    // SA_RESETHAND in force it ends the process once this handler returns and unblocks the signal.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        libc::raise(libc::SIGSYS);
    }
}
