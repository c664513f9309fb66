//! Starts a supervisor's children, and gives each a channel to the supervisor.
//!
//! A child is started from the same executable with exactly four descriptors: the standard ones and its
//! channel to the supervisor. It is in a process group of its own, so that Ctrl-C reaches only the
//! supervisor, which then ends the children in order; and it dies with the supervisor, however the supervisor
//! ends.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, setrlimit};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

/// The descriptor under which a child finds its channel to the supervisor.
pub const CHANNEL_FD: RawFd = 3;

/// Starts `command` with `channel` as its descriptor [`CHANNEL_FD`], no other descriptors but the standard
/// ones, no blocked signals, in a process group of its own. It is killed when the calling thread ends: call
/// this from a thread that lives as long as the child is wanted.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(command: &mut Command, channel: BorrowedFd<'_>) -> io::Result<Child> {
    // `Command` reports a failed start through a pipe of its own, which must not be number 3: make sure that
    // number is taken while it opens that pipe. (The lowest free number from 3 on; if it is not 3, 3 is
    // taken.)
    let placeholder = rustix::io::fcntl_dupfd_cloexec(channel, CHANNEL_FD)?;
    let supervisor = getpid();
    let raw = channel.as_raw_fd();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may be called: `prepare_child` makes
    // system calls and uses neither locks nor the heap. `raw` is open in the child because `channel` is
    // borrowed until spawn() returns, and the closure is not called after that: `command` is spawned only
    // here or, if the caller spawns it again, fails on or duplicates another descriptor, which is harmless to
    // memory.
    unsafe { command.pre_exec(move || prepare_child(supervisor, raw)) };
    let child = command.spawn();
    drop(placeholder);
    child
}

/// Runs in the child between fork and exec.
fn prepare_child(supervisor: Pid, channel: RawFd) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The supervisor may have died before the line above; then no process would ever end this child.
    if getppid() != Some(supervisor) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: plain system calls on integers; `empty` is initialised by sigemptyset before it is read, and
    // pthread_sigmask does not keep the pointers.
    unsafe {
        let mut empty = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(empty.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, empty.as_ptr(), std::ptr::null_mut());
        // Marks all but the standard descriptors to be closed by exec.
        let first = libc::STDERR_FILENO.unsigned_abs() + 1;
        if libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        ) != 0
        {
            return Err(io::Error::last_os_error());
        }
        // dup2() clears the mark, unless both are the same number.
        let result = if channel == CHANNEL_FD {
            libc::fcntl(CHANNEL_FD, libc::F_SETFD, 0)
        } else {
            libc::dup2(channel, CHANNEL_FD)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The channel to the supervisor that this process was started with.
///
/// # Errors
/// When there is no such descriptor, it is not a socket, or it was taken before.
pub fn supervisor_channel() -> io::Result<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::Error::other("the supervisor channel was taken already"));
    }
    const NOT_OURS: &str = "this command is started by `hyperswitch run`, not by users";
    // SAFETY: fcntl(F_GETFD) is harmless on any number.
    let flags = unsafe { libc::fcntl(CHANNEL_FD, libc::F_GETFD) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::other(NOT_OURS));
    }
    // SAFETY: the descriptor is open, and survives exec, as only inherited ones do: all code here opens its
    // own with close-on-exec. So nothing in this process owns it, and `TAKEN` makes this the only claim.
    let channel = unsafe { OwnedFd::from_raw_fd(CHANNEL_FD) };
    rustix::net::sockopt::socket_type(&channel).map_err(|_| io::Error::other(NOT_OURS))?;
    rustix::io::fcntl_setfd(&channel, FdFlags::CLOEXEC)?;
    Ok(channel)
}

/// Process at the other end of a Unix stream socket: the one that connected it or, seen from there, called
/// listen(2), or made the pair. `None` for one in a PID name space that cannot be seen from here.
#[must_use]
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of_val(&peer)).ok()?;
    // SAFETY: `peer` is writable and as long as `length` says; `length` is writable; any bytes are a `ucred`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    u32::try_from(peer.pid)
        .ok()
        .filter(|pid| result == 0 && *pid != 0)
}

/// Names this process in `ps` and `top`. At most 15 bytes are kept.
pub fn name_process(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        // The name is for display only.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Raises the limit of descriptors of this process and its children as far as the system allows: a port needs
/// about ten.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is not granted, adding ports fails at the old limit with an error of its own.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// From now on, freed blocks of 128 KiB and more go back to the system at once. By default the allocator
/// keeps blocks that are as large as one it has seen freed, for each of many threads: memory that guests
/// needed would stay when they have gone.
pub fn return_freed_memory() {
    // SAFETY: mallopt() takes two integers and may be called at any time. It refuses no value of this
    // parameter's range.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024) };
}
