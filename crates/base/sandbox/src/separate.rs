//! A user and namespaces of its own for the data plane, each forwarder, and the process for P4Runtime.
//!
//! The system call filters leave them no use for either. They are the second barrier, should the
//! filter or a call that it allows have a hole: there is no file, no network, and no process of its user to
//! be reached.

use crate::isolation::{IsolationError, Missing};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::CStr;
use std::io;

/// User and group that the data plane runs as when the supervisor may change users: a number that no
/// distribution assigns (`systemd` calls 60578 to 61183 unused). It owns nothing.
pub const DATA_PLANE_USER: u32 = 60_913;

/// As [`DATA_PLANE_USER`], for the process that serves metrics.
pub const VIEW_USER: u32 = 60_912;

/// User and group of the forwarder with this number, in the same range.
pub fn forwarder_user(number: u8) -> u32 {
    DATA_PLANE_USER + 1 + u32::from(number)
}

/// User and group of the process that serves clients of P4Runtime, beyond those of forwarders.
pub const P4RUNTIME_USER: u32 = 61_170;

/// Becomes this user without groups, if that is possible. The permitted capabilities stay if there
/// are some to `keep`; the caller drops the others.
///
/// # Errors
/// The supervisor has ended meanwhile.
pub(crate) fn become_nobody(
    user: u32,
    keep: CapabilitySet,
    missing: &mut Missing,
) -> Result<(), IsolationError> {
    if let Err(reason) = may_change_user() {
        missing.push(format!("no user of its own: {reason}"));
        return Ok(());
    }
    // The kernel forgets at a change of user that this process is to die with its parent.
    let parent = rustix::process::getppid();
    let signal = rustix::process::parent_process_death_signal().ok().flatten();
    let kept = if keep.is_empty() {
        Ok(())
    } else {
        rustix::thread::set_keep_capabilities(true).map_err(io::Error::from)
    };
    if let Err(error) = kept.and_then(|()| change_user(user)) {
        missing.push(format!("no user of its own: {error}"));
    }
    let kept = rustix::process::set_parent_process_death_signal(signal).map_err(io::Error::from);
    kept.map_err(|error| IsolationError::Step("die with the supervisor", error))?;
    if rustix::process::getppid() == parent {
        Ok(())
    } else {
        Err(IsolationError::Step(
            "go on",
            io::Error::other("the supervisor has ended"),
        ))
    }
}

/// Why the user stays as it is.
#[derive(Debug, thiserror::Error)]
enum Unchangeable {
    #[error(transparent)]
    Unknown(#[from] io::Error),
    #[error("the supervisor lacks {}", .0.join(", "))]
    Lacking(Vec<&'static str>),
}

/// Whether this process may change its user, and whether the supervisor, which has the same capabilities, may
/// still end it then.
fn may_change_user() -> Result<(), Unchangeable> {
    let have = capabilities(None).map_err(io::Error::from)?.effective;
    let needed = [
        (CapabilitySet::SETUID, "CAP_SETUID"),
        (CapabilitySet::SETGID, "CAP_SETGID"),
        (CapabilitySet::KILL, "CAP_KILL"),
    ];
    let lacking: Vec<&'static str> = needed
        .into_iter()
        .filter(|(capability, _)| !have.contains(*capability))
        .map(|(_, name)| name)
        .collect();
    if lacking.is_empty() {
        Ok(())
    } else {
        Err(Unchangeable::Lacking(lacking))
    }
}

/// All three of user and group: nothing to go back to.
fn change_user(id: u32) -> io::Result<()> {
    // SAFETY: setgroups() with length 0 reads nothing; the others take numbers.
    let results = [
        unsafe { libc::setgroups(0, std::ptr::null()) },
        unsafe { libc::setresgid(id, id, id) },
        unsafe { libc::setresuid(id, id, id) },
    ];
    if results == [0; 3] {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Moves the calling thread into namespaces with nothing in them, as far as that is possible.
pub(crate) fn leave_namespaces(missing: &mut Missing) {
    let mut unshare = |flag, what| {
        // SAFETY: takes a number.
        let result = unsafe { libc::unshare(flag) };
        let error = io::Error::last_os_error();
        if result != 0 {
            missing.push(format!("no {what} namespace of its own: {error}"));
        }
        result == 0
    };
    unshare(libc::CLONE_NEWNET, "network");
    unshare(libc::CLONE_NEWIPC, "IPC");
    unshare(libc::CLONE_NEWUTS, "UTS");
    if unshare(libc::CLONE_NEWNS, "mount")
        && let Err((what, error)) = empty_root()
    {
        missing.push(format!("the root directory is not empty: {what}: {error}"));
    }
}

/// Makes an empty, read-only file system the root of this mount namespace, and lets go of all others.
fn empty_root() -> Result<(), (&'static str, io::Error)> {
    /// Any directory that is there for certain: the new root is mounted on it.
    const PLACE: &CStr = c"/proc";
    const ROOT: &CStr = c"/";
    const HERE: &CStr = c".";
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // Mounts made here must not reach the namespace we come from.
    mount(None, ROOT, libc::MS_REC | libc::MS_PRIVATE, None).map_err(|error| ("private mounts", error))?;
    mount(
        Some(c"tmpfs"),
        PLACE,
        flags,
        Some(c"mode=0555,size=4k,nr_inodes=2"),
    )
    .map_err(|error| ("tmpfs", error))?;
    rustix::process::chdir(PLACE).map_err(|error| ("chdir", error.into()))?;
    // With both arguments the same, the old root is mounted over the new one, and then taken away
    // (pivot_root(2)). SAFETY: two valid C strings.
    let result = unsafe { libc::syscall(libc::SYS_pivot_root, HERE.as_ptr(), HERE.as_ptr()) };
    check(result).map_err(|error| ("pivot_root", error))?;
    // SAFETY: a valid C string.
    let result = unsafe { libc::umount2(HERE.as_ptr(), libc::MNT_DETACH) };
    check(result.into()).map_err(|error| ("umount", error))?;
    rustix::process::chdir(ROOT).map_err(|error| ("chdir", error.into()))?;
    mount(None, ROOT, flags | libc::MS_REMOUNT | libc::MS_RDONLY, None).map_err(|error| ("read-only", error))
}

fn mount(kind: Option<&CStr>, target: &CStr, flags: libc::c_ulong, data: Option<&CStr>) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: all strings are valid C strings or null, where mount(2) ignores them.
    let result = unsafe {
        libc::mount(
            pointer(kind),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(data).cast(),
        )
    };
    check(result.into())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
