//! Doing something in another network namespace.
//!
//! A namespace belongs to a thread, and a thread that changed it must not go on with anything else. So the
//! work is done by a thread that lives no longer than the work. Descriptors opened there (a TAP, a netlink
//! socket) keep to that namespace wherever they are used afterwards.

use crate::NicError;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Runs `work` in a network namespace: a name under `/run/netns`, a path, or the caller's own.
pub fn within<T: Send>(
    namespace: Option<&str>,
    work: impl FnOnce() -> Result<T, NicError> + Send,
) -> Result<T, NicError> {
    let Some(name) = namespace else { return work() };
    let path = if name.contains('/') {
        PathBuf::from(name)
    } else {
        PathBuf::from("/run/netns").join(name)
    };
    let failed = |source: std::io::Error| NicError::Namespace {
        path: path.display().to_string(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|errno| failed(errno.into()))?;
                work()
            });
        let thread = thread.map_err(|source| NicError::refused("thread", source))?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
