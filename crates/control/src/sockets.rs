//! Unix sockets by path: listening without stealing from whoever listens, connecting without waiting.

use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

fn stream() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens at `path`; the socket does not block. A socket file that nobody listens on any more is replaced.
/// The mode is set before anybody can connect.
///
/// # Errors
/// `AddrInUse` when somebody listens there, `AlreadyExists` when the file is no socket, or the system's.
pub fn listen_at(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let socket = stream()?;
    let address = SocketAddrUnix::new(path)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            bind(&socket, &address)?;
        }
        result => result?,
    }
    chmod(path, mode)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is not a socket",
        ));
    }
    match connect(stream()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
    }
}

/// Connects to `path` if somebody listens there with room for us. The stream blocks, as its user expects.
///
/// # Errors
/// The system's.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Removes a socket file of ours.
pub fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => log::warn!("{}: {error}", path.display()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn listens_only_where_nobody_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = listen_at(&path, Mode::from_raw_mode(0o660)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let taken = listen_at(&path, Mode::RUSR).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        connect_to(&path).unwrap();
        drop(first);
        connect_to(&path).unwrap_err();
        listen_at(&path, Mode::RUSR).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert_eq!(
            listen_at(&file, Mode::RUSR).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
