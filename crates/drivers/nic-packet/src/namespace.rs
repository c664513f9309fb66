//! Running a function in another network namespace.
//!
//! A namespace belongs to a thread, and a thread that changed it must not go on with anything else. So the
//! work is done by a thread that lives no longer than the work. Descriptors opened there (a TAP, a netlink
//! socket) keep to that namespace wherever they are used afterwards.

use crate::NicError;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Identifies a namespace for as long as it lives: device and inode.
pub type NamespaceId = (u64, u64);

/// Runs `work` in a network namespace: a name under `/run/netns`, a path, or the caller's own.
pub fn within<T: Send>(
    namespace: Option<&str>,
    work: impl FnOnce() -> Result<T, NicError> + Send,
) -> Result<T, NicError> {
    match namespace {
        None => work(),
        Some(name) => inside(&open(name)?, name, work),
    }
}

/// Runs `work` in the network namespace of a descriptor; `name` is for users.
pub fn inside<T: Send>(
    file: &OwnedFd,
    name: &str,
    work: impl FnOnce() -> Result<T, NicError> + Send,
) -> Result<T, NicError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|errno| failed(name, errno.into()))?;
                work()
            });
        let thread = thread.map_err(|source| NicError::refused("thread", source))?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The namespace that goes by this name or path now.
pub fn id(name: &str) -> Result<NamespaceId, NicError> {
    let stat = rustix::fs::fstat(open(name)?).map_err(|errno| failed(name, errno.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether a namespace still goes by the name by which it was found; so it does without a name.
pub fn is_current(found: Option<&(String, NamespaceId)>) -> bool {
    found.is_none_or(|(name, was)| id(name).is_ok_and(|now| now == *was))
}

/// Makes a network namespace that has no name, and lives as long as its descriptor.
pub fn make() -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        let work = || {
            // SAFETY: unshare(2) with this flag concerns the calling thread alone, which lives no longer.
            match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
                0 => own(),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let thread = std::thread::Builder::new().name("netns".into());
        let thread = thread.spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The calling thread's network namespace.
pub fn own() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(
        "/proc/thread-self/ns/net",
        flags,
        Mode::empty(),
    )?)
}

/// Another descriptor of a namespace.
pub fn duplicate(namespace: &OwnedFd) -> Result<OwnedFd, NicError> {
    namespace
        .try_clone()
        .map_err(|error| NicError::refused("a descriptor of a network namespace", error))
}

/// The namespace of a name or path.
pub fn open(name: &str) -> Result<OwnedFd, NicError> {
    rustix::fs::open(path(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| failed(name, errno.into()))
}

fn path(name: &str) -> PathBuf {
    if name.contains('/') {
        PathBuf::from(name)
    } else {
        PathBuf::from("/run/netns").join(name)
    }
}

fn failed(name: &str, source: io::Error) -> NicError {
    NicError::Namespace {
        path: path(name).display().to_string(),
        source,
    }
}
