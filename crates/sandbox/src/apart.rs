//! Threads that share this process's memory, but not its descriptors.
//!
//! Closing a descriptor of somebody else's can take for ever: the file is asked first. A thread that may have to do so
//! gets a table of its own. So the process's other descriptors never depend on it: they are closed when the process ends,
//! even while this thread cannot.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::channel;

/// Memory for the thread's calls.
const STACK: usize = 128 * 1024;

/// Starts a thread with a table of its own that has the standard descriptors and `keep`, which are closed here. Nobody
/// waits for the thread.
///
/// In it, descriptors that `body` has captured, or finds in statics, mean nothing: it must use those that it is given.
///
/// # Errors
/// No thread, or the kernel refuses the table.
pub fn spawn_apart<const N: usize>(
    name: String,
    keep: [OwnedFd; N],
    body: impl FnOnce([OwnedFd; N]) + Send + 'static,
) -> io::Result<()> {
    let numbers = keep.each_ref().map(AsRawFd::as_raw_fd);
    let (ready, result) = channel();
    std::thread::Builder::new()
        .name(name)
        .stack_size(STACK)
        .spawn(move || {
            let left = leave_table(numbers);
            let alone = left.is_ok();
            // The caller may close its own from now on.
            let _ = ready.send(left);
            drop(ready);
            if alone {
                // SAFETY: this thread's table has these numbers, copied when it was made, and nothing in this thread
                // owns them: `keep` owns those of the caller's table.
                body(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        })?;
    let left = result.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    drop(keep);
    left
}

/// Gives the calling thread its own table, without descriptors but the standard ones and `keep`.
fn leave_table<const N: usize>(mut keep: [RawFd; N]) -> io::Result<()> {
    // SAFETY: no descriptor of this table is owned by anything in this thread, which has just begun: what it closes below
    // stays open in the table that all other threads go on to use.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    keep.sort_unstable();
    let mut first = libc::STDERR_FILENO + 1;
    for kept in keep {
        close_from(first, kept - 1)?;
        first = first.max(kept + 1);
    }
    close_from(first, RawFd::MAX)
}

fn close_from(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: as above, nobody uses these numbers in this table.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
