//! Unix sockets by path: listening without taking the path from a process that listens there, connecting without waiting.
//!
//! A socket may lie in a directory that others can write to (a virtualisation manager's, `/tmp`). Between two of our system
//! calls they can put something else where our file was. So nothing here changes or removes a file of which only the path
//! is known: a socket's file has its mode from the beginning (`chmod` would come too late, and would follow a symbolic link to
//! any file), and a file is checked to be a socket, in the same directory, before it is removed. The worst that others can
//! achieve is to lose a socket of their own.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::umask;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

fn stream() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens at `path`; the socket does not block. A socket file on which no process listens any more is replaced.
/// The mode is set before a process can connect.
///
/// # Errors
/// `AddrInUse` when a process listens there, `AlreadyExists` when the file is no socket, or the system's.
pub fn listen_at(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let socket = stream()?;
    let address = SocketAddrUnix::new(path)?;
    match bind_with(&socket, &address, mode) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            bind_with(&socket, &address, mode)?;
        }
        result => result?,
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds; the file that this makes has the mode from the beginning: that of the socket, less the umask (Linux,
/// `unix_bind_bsd`). The umask is that of the whole process, for a moment: two threads that bind take turns, or each would
/// put back the umask of the other.
fn bind_with(socket: &OwnedFd, address: &SocketAddrUnix, mode: Mode) -> Result<(), Errno> {
    static UMASK: Mutex<()> = Mutex::new(());
    fchmod(socket, mode)?;
    let _turn = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = umask(Mode::empty());
    let result = bind(socket, address);
    umask(before);
    result
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    match connect(stream()?, &SocketAddrUnix::new(path)?) {
        // A file that is no socket refuses connections too.
        Err(Errno::CONNREFUSED) if unlink_socket(path)? => Ok(()),
        Err(Errno::CONNREFUSED) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is not a socket",
        )),
        // A symbolic link that leads nowhere: `bind` does not follow it, and we do not remove it.
        Err(Errno::NOENT) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a symbolic link",
        )),
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
    }
}

/// Removes `path` if it is a socket itself, no link to one; returns whether it was. Looks and removes in the same directory,
/// wherever the path leads meanwhile.
fn unlink_socket(path: &Path) -> io::Result<bool> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if socket {
        unlinkat(&directory, name, AtFlags::empty())?;
    }
    Ok(socket)
}

/// Connects to `path` if a process listens there and its backlog has room. The stream blocks, as its user expects.
///
/// # Errors
/// The system's.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Removes a socket file of ours. A file that another process has put in its place stays, unless it is a socket as well.
pub fn remove(path: &Path) {
    match unlink_socket(path) {
        Ok(true) => {}
        Ok(false) => log::warn!("{}: not removed, it is not a socket any more", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => log::warn!("{}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Links are neither followed nor removed.
    #[test]
    fn a_symbolic_link_is_left_alone_with_what_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (target, path) = (dir.path().join("target"), dir.path().join("a.sock"));
        let stale = UnixListener::bind(&target).unwrap();
        symlink(&target, &path).unwrap();
        let refused = |what: &str| {
            listen_at(&path, Mode::RUSR).expect_err(what);
            remove(&path);
            assert!(fs::symlink_metadata(&path).unwrap().is_symlink(), "{what}");
        };
        refused("somebody listens at the target");
        drop(stale);
        refused("nobody does");
        assert!(fs::metadata(&target).unwrap().file_type().is_socket());
        fs::remove_file(&target).unwrap();
        refused("there is no target");
        // Nor is anything removed that is no socket.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        remove(&path);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    /// A process that may write to the directory replaces each socket by a link to another user's file, as fast as it can.
    #[test]
    fn a_file_s_mode_is_not_changed_through_a_link_put_in_the_socket_s_place() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, path) = (dir.path().join("secret"), dir.path().join("a.sock"));
        fs::write(&secret, "").unwrap();
        let mode = || fs::metadata(&secret).unwrap().mode() & 0o777;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let ending = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ending.load(Ordering::Relaxed) {
                    // The socket is gone and the link is there in one step.
                    let _ = symlink(&secret, dir.path().join("link"));
                    let _ = fs::rename(dir.path().join("link"), &path);
                    let _ = fs::remove_file(&path);
                }
            });
            for _ in 0..20_000 {
                let _ = listen_at(&path, Mode::from_raw_mode(0o660));
                if mode() != 0o600 {
                    break;
                }
            }
            ending.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(), 0o600);
    }
}
