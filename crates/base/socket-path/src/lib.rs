//! Unix sockets by path, in directories that other users may write to.
//!
//! The switch runs as root, and the paths of ports' sockets lead through directories of the users who run
//! VMMs. A user who can change what is in a directory could lead the switch to the socket of another user's
//! VMM, and have that guest attached to a port of its own. So a path is resolved one name at a time
//! ([`resolution`]), and whose each file on the way is decides:
//!
//! * Symbolic links are followed only where no other user can have made or replaced them.
//! * From the first directory on that belongs to another user, all directories, the socket, and the process
//!   that listens there must belong to that user or to root. [`SocketPath::owner`] names a user whose they
//!   may be as well.
//!
//! *Root* includes the user as whom the switch runs. Looking and acting concern one file: every step is
//! relative to a descriptor of the directory before, and the switch connects to the socket that it looked at,
//! by that socket's descriptor.
//!
//! The safe direction of error is not to connect; the error says which file is in the way and what would
//! help.
//!
//! `openat2` with `RESOLVE_NO_SYMLINKS` would resolve it in one step, but refuses `/var/run` as well, and
//! does not say whose directories it passed.

#![forbid(unsafe_code)]

mod refusal;
mod resolution;
mod socket;
#[cfg(test)]
mod tests;

pub use refusal::Refusal;
use rustix::fs::Mode;
pub use socket::{connect_to, listen_at, remove};
use std::path::PathBuf;

/// Where a socket is, and whose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketPath {
    /// Absolute.
    pub path: PathBuf,
    /// Number of the user to whom it belongs. `None`: to the user to whom its directory belongs.
    pub owner: Option<u32>,
}

/// Who may connect to a socket that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permissions of its file.
    pub mode: Mode,
    /// Group of its file. `None`: that of the process, or of a directory that passes on its group.
    pub group: Option<u32>,
}

impl Access {
    /// The owner alone.
    pub const OWNER: Access = Access {
        mode: Mode::RUSR.union(Mode::WUSR),
        group: None,
    };
}

impl From<PathBuf> for SocketPath {
    fn from(path: PathBuf) -> Self {
        SocketPath { path, owner: None }
    }
}
