//! Running a thread of another process instruction by instruction: tests stop a data plane at each of its
//! stores.

use std::io;

/// A thread that stands still unless it is told to [`step`](Stepped::step). Used by the thread that seized
/// it.
#[derive(Debug)]
pub struct Stepped(libc::pid_t);

impl Stepped {
    /// Stops a thread of a process that this one may trace, as it may its children.
    ///
    /// # Errors
    /// There is no such thread, or it may not be traced.
    pub fn seize(thread: i32) -> io::Result<Stepped> {
        trace(libc::PTRACE_SEIZE, thread)?;
        trace(libc::PTRACE_INTERRUPT, thread)?;
        let stepped = Stepped(thread);
        if stepped.wait()? {
            Ok(stepped)
        } else {
            Err(io::Error::other("the thread has ended"))
        }
    }

    /// Lets the thread execute one instruction; false if it has ended.
    ///
    /// # Errors
    /// The thread cannot be traced any more.
    pub fn step(&self) -> io::Result<bool> {
        trace(libc::PTRACE_SINGLESTEP, self.0)?;
        self.wait()
    }

    /// Waits for the end of the thread, whose process was killed. Before that the process cannot be waited
    /// for.
    ///
    /// # Errors
    /// The thread cannot be traced any more.
    pub fn wait_for_end(self) -> io::Result<()> {
        while self.wait()? {}
        Ok(())
    }

    /// Waits until it has stopped; false if it has ended.
    fn wait(&self) -> io::Result<bool> {
        let mut status = 0;
        // SAFETY: waitpid writes the status, a local variable.
        match unsafe { libc::waitpid(self.0, &mut status, libc::__WALL) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(libc::WIFSTOPPED(status)),
        }
    }
}

fn trace(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take numbers and read or write none of our memory.
    match unsafe { libc::ptrace(request, thread, nothing, nothing) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
