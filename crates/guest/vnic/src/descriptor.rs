//! The kind of descriptors from outside, found out without asking the files themselves.
//!
//! A descriptor can be of any file: one on a FUSE mount whose daemon is the VMM itself and may not answer; a
//! nested epoll instance; a socket that lingers. `fstat`, `poll` and `epoll_ctl` would call the file's own
//! operations. This module uses calls for which the kernel only compares its own tables of operations.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::fmt;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An eventfd: never makes an epoll instance wait, and can be signalled without waiting.
    Eventfd,
    /// A connected UNIX socket: sending with `MSG_DONTWAIT` takes spinning locks only, where sockets of other
    /// families have locks to sleep on.
    UnixSocket,
    /// A file that lives in memory, for which the kernel itself answers.
    Memory,
    /// Something else.
    Other,
}

/// A descriptor is not of the kind that its message is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongKind {
    what: &'static str,
    wanted: &'static str,
}

impl fmt::Display for WrongKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} descriptor is no {}", self.what, self.wanted)
    }
}

impl Kind {
    pub fn of(fd: BorrowedFd<'_>) -> Kind {
        match eventfd::is_eventfd(fd) {
            Ok(true) => return Kind::Eventfd,
            Ok(false) => {}
            Err(error) => return Kind::by_asking(fd, error),
        }
        Kind::of_others(fd).unwrap_or(Kind::Other)
    }

    fn of_others(fd: BorrowedFd<'_>) -> Option<Kind> {
        if is_unix_socket(fd) {
            Some(Kind::UnixSocket)
        } else if rustix::fs::fcntl_get_seals(fd).is_ok() {
            // Only memory files have seals.
            Some(Kind::Memory)
        } else {
            None
        }
    }

    /// Where the kernel has no such call: by the type that `fstat` returns, which asks the file itself.
    #[cold]
    fn by_asking(fd: BorrowedFd<'_>, error: Errno) -> Kind {
        telemetry::limited!(
            log::Level::Warn,
            "no asynchronous I/O ({error}): files that a VMM passes may hold their port's session up"
        );
        if let Some(kind) = Kind::of_others(fd) {
            return kind;
        }
        match rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            // Anonymous inodes have no type.
            Ok(FileType::Unknown) => Kind::Eventfd,
            _ => Kind::Other,
        }
    }
}

/// Of a type that keeps messages apart or a stream; UML's interrupts are a stream.
fn is_unix_socket(fd: BorrowedFd<'_>) -> bool {
    let kinds = [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET];
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd).is_ok_and(|kind| kinds.contains(&kind))
}

/// Passes an eventfd on; `what` names it in the error.
pub(crate) fn eventfd(fd: OwnedFd, what: &'static str) -> Result<OwnedFd, WrongKind> {
    match Kind::of(fd.as_fd()) {
        Kind::Eventfd => Ok(fd),
        _ => Err(WrongKind {
            what,
            wanted: "eventfd",
        }),
    }
}

/// The kind of a descriptor that may be an eventfd or a UNIX socket.
pub(crate) fn bell(fd: BorrowedFd<'_>, what: &'static str) -> Result<Kind, WrongKind> {
    match Kind::of(fd) {
        Kind::Memory | Kind::Other => Err(WrongKind {
            what,
            wanted: "eventfd or UNIX socket",
        }),
        kind => Ok(kind),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use rustix::event::{EventfdFlags, epoll};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn kinds_are_told_apart() {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(Kind::of(bell.as_fd()), Kind::Eventfd);
        let (stream, _other) = UnixStream::pair().unwrap();
        assert_eq!(Kind::of(stream.as_fd()), Kind::UnixSocket);
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        assert_eq!(Kind::of(datagram.as_fd()), Kind::UnixSocket);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let netlink = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(Kind::of(memory.as_fd()), Kind::Memory);
        assert!(eventfd(memory, "kick").is_err());
        let others: [OwnedFd; 5] = [tcp.into(), netlink, poll, pipe, file.into()];
        for other in others {
            assert_eq!(Kind::of(other.as_fd()), Kind::Other, "{other:?}");
            assert!(eventfd(other, "kick").is_err());
        }
    }
}
