//! Listening without taking a path from a process that listens there, connecting without waiting, and
//! removing.
//!
//! Between two of our system calls others can put something else where our file was. So nothing here changes
//! or removes a file of which only the path is known: a socket's file has its mode from the beginning
//! (`chmod` would come too late, and would follow a symbolic link to any file), and a file is checked to be a
//! socket, in the same directory, before it is removed. The worst that others can achieve is to lose a socket
//! of their own.

use super::resolution::{Entry, Resolution, is_us};
use super::{Access, Refusal, SocketPath};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, fchmod, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use rustix::process::{Gid, umask};
use rustix::thread::set_thread_res_gid;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

fn stream() -> Result<OwnedFd, Refusal> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A path that leads to what a descriptor is of, whatever happens to its name.
fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Listens at a path; the socket does not block. A socket file on which no process listens any more is
/// replaced. Mode and group are set before a process can connect.
///
/// # Errors
/// A process listens there, the file is no socket, the group may not be given, or see [`Refusal`].
pub fn listen_at(path: &SocketPath, access: Access) -> Result<OwnedFd, Refusal> {
    let resolution = Resolution::of_directory(path)?;
    let socket = stream()?;
    // Users see the address (`ss -x`), so it is the path, where that is certain to lead to the same place.
    let address = match resolution.is_fixed() {
        true => path.path.clone(),
        false => by_descriptor(resolution.directory()).join(resolution.name()?),
    };
    let address = SocketAddrUnix::new(&address)?;
    let mut bound = bind_with(&socket, &address, access);
    if bound == Err(Errno::ADDRINUSE) {
        remove_stale(&resolution)?;
        bound = bind_with(&socket, &address, access);
    }
    bound.map_err(|error| match (error, access.group) {
        (Errno::PERM, Some(group)) => Refusal::Group { group },
        (error, _) => error.into(),
    })?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Binds; the file that this makes has the mode from the beginning: that of the socket, less the umask
/// (Linux, `unix_bind_bsd`). The umask is that of the whole process, for a moment: two threads that bind take
/// turns, or each would put back the umask of the other.
fn bind_with(socket: &OwnedFd, address: &SocketAddrUnix, access: Access) -> Result<(), Errno> {
    static UMASK: Mutex<()> = Mutex::new(());
    fchmod(socket, access.mode)?;
    let _turn = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = umask(Mode::empty());
    let result = match access.group {
        Some(group) => bind_as_group(socket, address, Gid::from_raw(group)),
        None => bind(socket, address),
    };
    umask(before);
    result
}

/// Binds in a thread of that group, whose files are the group's from the beginning: a change of group
/// afterwards could be led to another file, as a change of mode could. The group ends with the thread.
fn bind_as_group(socket: &OwnedFd, address: &SocketAddrUnix, group: Gid) -> Result<(), Errno> {
    let bind_in_thread = || {
        set_thread_res_gid(None, group, None)?;
        bind(socket, address)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, bind_in_thread);
        let joined = thread.map_err(|_| Errno::AGAIN)?.join();
        joined.unwrap_or(Err(Errno::AGAIN))
    })
}

/// Removes a socket on which no process listens.
fn remove_stale(resolution: &Resolution) -> Result<(), Refusal> {
    let present = resolution.present()?;
    match present.kind() {
        FileType::Socket => {}
        FileType::Symlink => return Err(Refusal::InTheWay("a symbolic link")),
        _ => return Err(Refusal::InTheWay("a file that is not a socket")),
    }
    match connect_by_descriptor(&stream()?, &present) {
        Err(Errno::CONNREFUSED) => Ok(unlinkat(
            resolution.directory(),
            resolution.name()?,
            AtFlags::empty(),
        )?),
        _ => Err(Refusal::Taken),
    }
}

fn connect_by_descriptor(socket: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    connect(socket, &SocketAddrUnix::new(by_descriptor(&entry.fd))?)
}

/// Connects to a path if a process of the right user listens there and its backlog has room. The stream
/// blocks, as its user expects.
///
/// # Errors
/// See [`Refusal`].
pub fn connect_to(path: &SocketPath) -> Result<OwnedFd, Refusal> {
    let entry = Resolution::of_directory(path)?.socket()?;
    let socket = stream()?;
    connect_by_descriptor(&socket, &entry)?;
    // Who was the user when the process began to listen.
    let user = sockopt::socket_peercred(&socket)?.uid.as_raw();
    if user != entry.user() && !is_us(user) {
        return Err(Refusal::Listener {
            at: path.path.clone(),
            user,
            expected: entry.user(),
        });
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Removes a socket file of ours. A file that another process has put in its place stays, unless it is a
/// socket as well.
pub fn remove(path: &SocketPath) {
    let at = path.path.display();
    match try_remove(path) {
        Ok(true) => {}
        Ok(false) => log::warn!("{at}: not removed, it is not a socket any more"),
        Err(refusal) if refusal.is_not_found() => {}
        Err(refusal) => log::warn!("{at}: {refusal}"),
    }
}

/// Looks and removes in the same directory, wherever the path leads meanwhile.
fn try_remove(path: &SocketPath) -> Result<bool, Refusal> {
    let resolution = Resolution::of_directory(path)?;
    let is_socket = resolution.present()?.kind() == FileType::Socket;
    if is_socket {
        unlinkat(resolution.directory(), resolution.name()?, AtFlags::empty())?;
    }
    Ok(is_socket)
}
