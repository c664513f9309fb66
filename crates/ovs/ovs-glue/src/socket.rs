//! Unix sockets that listen, in a directory that is ours alone.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::Path;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Listens at `path`, with that mode from the first moment on. A socket that an earlier process left behind
/// is replaced.
pub(crate) fn listen(path: &Path, kind: SocketType, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    match rustix::fs::lstat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => rustix::fs::unlink(path)?,
        // Whatever it is, it is not ours: `bind` refuses.
        Ok(_) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // The mode of a socket that is bound follows the descriptor's (unix(7)), so that there is no moment of a
    // wider one.
    rustix::fs::fchmod(&listener, mode)?;
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Removes the file of a socket, if it is there.
pub(crate) fn remove(path: &Path) {
    if let Err(errno) = rustix::fs::unlink(path)
        && errno != Errno::NOENT
    {
        log::warn!("{} stays: {errno}", path.display());
    }
}
