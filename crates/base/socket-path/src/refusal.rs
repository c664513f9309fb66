//! Why a path is not used, for users.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Why a path is not used. Users are given as numbers.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The system's error.
    #[error("{error}")]
    System {
        /// What the system said.
        error: io::Error,
    },
    /// The system's error about a directory on the way.
    #[error("{}: {error}", .at.display())]
    Directory {
        /// The directory.
        at: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another user can have made or replaced a symbolic link.
    #[error("{} is a symbolic link that users other than root can make; name the path that it leads to", .at.display())]
    Link {
        /// The link.
        at: PathBuf,
    },
    /// The way leads up from a directory that another user can move.
    #[error("{} leads up from a directory that users other than root can move; name the path without it", .at.display())]
    Up {
        /// The way up.
        at: PathBuf,
    },
    /// A file belongs to another user than the directories before it.
    #[error("{} belongs to user {user}, not to user {expected} as {whose}; {}", .at.display(), advice(*.user))]
    Owner {
        /// The file.
        at: PathBuf,
        /// Owner of the file.
        user: u32,
        /// To whom it should belong.
        expected: u32,
        /// Why.
        whose: &'static str,
    },
    /// Anybody can have put it there.
    #[error(
        "{} belongs to user {user} in a directory where several users can make and replace files; {}, or allow only \
         root to write to the directory", .at.display(), advice(*.user)
    )]
    Shared {
        /// The file.
        at: PathBuf,
        /// Owner of the file.
        user: u32,
    },
    /// The process that listens is not that of the socket's owner.
    #[error("the process that listens at {} is of user {user}, and the socket of user {expected}", .at.display())]
    Listener {
        /// The socket.
        at: PathBuf,
        /// The user of the process.
        user: u32,
        /// Whose the socket is.
        expected: u32,
    },
    /// The process may not make files of this group.
    #[error("it cannot be given to group {group}: that takes CAP_SETGID")]
    Group {
        /// The group.
        group: u32,
    },
    /// A process listens there already.
    #[error("another process listens there")]
    Taken,
    /// The file is in the way.
    #[error("there is {0}")]
    InTheWay(&'static str),
}

impl Refusal {
    /// Whether it is the system that refuses, as when no process listens yet.
    pub fn is_system(&self) -> bool {
        matches!(self, Refusal::System { .. } | Refusal::Directory { .. })
    }

    /// Whether there is no such file or directory.
    pub fn is_not_found(&self) -> bool {
        let (Refusal::System { error } | Refusal::Directory { error, .. }) = self else {
            return false;
        };
        error.kind() == io::ErrorKind::NotFound
    }
}

/// How to allow a file of that user.
fn advice(user: u32) -> String {
    format!("if that is the VMM's user, set `owner` of the port to {user}")
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Refusal::System { error: error.into() }
    }
}
