//! What the data plane gives up.
//!
//! In this order: being debugged or dumped by its equals (its memory maps those of guests), all capabilities (but one, at times),
//! gaining any back by executing something, and at last every system call outside the table in `calls.rs`.

use crate::filter;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use std::io;

/// What becomes of a process that makes a call it may not make. The call is not executed in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The kernel ends it with `SIGSYS`, which the supervisor logs.
    Kill,
    /// It says on standard error which call it was, and then ends itself with `SIGSYS`. For development: a
    /// process that was taken over could stop itself from ending.
    Report,
}

/// Capabilities that the process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// None.
    Nothing,
    /// `CAP_SYS_NICE`, with which it may raise its own threads, and by the filter no others.
    Nice,
}

/// Why the data plane could not be isolated. It must not go on then.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// A step failed.
    #[error("cannot {0}: {1}")]
    Step(&'static str, io::Error),
    /// The filter could not be built or installed.
    #[error("cannot install the system call filter: {0}")]
    Filter(#[from] seccompiler::Error),
}

/// Isolates the calling process for the rest of its life. Call it before other threads are started:
/// capabilities are per thread (the filter itself covers all threads).
///
/// # Errors
/// Any step that fails; the steps before it stay in force.
pub fn isolate_data_plane(violation: Violation, kept: Kept) -> Result<(), IsolationError> {
    let step = |what, result: rustix::io::Result<()>| {
        result.map_err(|error| IsolationError::Step(what, error.into()))
    };
    step(
        "forbid core dumps",
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    let kept = match kept {
        Kept::Nothing => CapabilitySet::empty(),
        // As far as it is there: without it, threads are scheduled as all others.
        Kept::Nice => capabilities(None).map_or(CapabilitySet::empty(), |sets| {
            sets.permitted & CapabilitySet::SYS_NICE
        }),
    };
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    step("drop capabilities", set_capabilities(None, sets))?;
    step("forbid new privileges", set_no_new_privs(true))?;
    if violation == Violation::Report {
        report::install().map_err(|error| IsolationError::Step("handle SIGSYS", error))?;
    }
    let programs = filter::programs(violation, std::process::id()).map_err(seccompiler::Error::Backend)?;
    for program in &programs {
        seccompiler::apply_filter_all_threads(program)?;
    }
    Ok(())
}

/// The handler behind [`Violation::Report`].
mod report {
    use libc::{c_int, c_void, siginfo_t};
    use std::io;

    pub(super) fn install() -> io::Result<()> {
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
        let mut text = *b"data plane: forbidden system call 0000\n";
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
}
