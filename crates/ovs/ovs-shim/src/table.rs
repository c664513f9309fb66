//! Which file descriptors stand for redirected sockets.
//!
//! Nothing here allocates or waits for another thread's work, so that it is safe in all threads and after
//! `fork`. A descriptor's number is only a hint: it may have been closed in a way that this library does
//! not see. The inode behind it decides, so no other socket is ever taken for a redirected one.

use crate::database::Stream;
use crate::upcalls::Upcalls;
use libc::c_int;
use ovs_frame::is_under_way;
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// Descriptors from this number on are not redirected: `socket` fails with `EMFILE`.
const MAX_FDS: usize = 65_536;

/// By descriptor. Pages that no descriptor reaches take no memory.
static FDS: [Socket; MAX_FDS] = [const { Socket::new() }; MAX_FDS];

/// [`Socket::inode`] of a descriptor that concerns nobody here.
const OTHER: u64 = 0;
/// [`Socket::inode`] of a socket of the kernel's rtnetlink. Inodes of sockets have 32 bits.
const ROUTE: u64 = u64::MAX;
/// [`Socket::inode`] of a Unix stream socket that may lead to the database.
const STREAM: u64 = u64::MAX - 1;

/// A redirected socket, or one whose contents are looked at.
pub struct Socket {
    inode: AtomicU64,
    port_id: AtomicU32,
    sent: AtomicU32,
    answered: AtomicU32,
    /// Received, and not handed out yet.
    pub upcalls: Upcalls,
    /// What the database has said and was not handed out.
    pub stream: Mutex<Stream>,
}

/// What this library does something about.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A redirected socket.
    Glue(&'static Socket),
    /// A socket of the kernel's rtnetlink.
    Route,
    /// A Unix stream socket, perhaps to the database.
    Stream(&'static Socket),
}

impl Kind {
    /// The redirected socket, if it is one.
    pub fn socket(self) -> Option<&'static Socket> {
        match self {
            Kind::Glue(socket) => Some(socket),
            Kind::Route | Kind::Stream(_) => None,
        }
    }
}

impl Socket {
    const fn new() -> Socket {
        Socket {
            inode: AtomicU64::new(OTHER),
            port_id: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            upcalls: Upcalls::new(),
            stream: Mutex::new(Stream::new()),
        }
    }

    /// The socket's netlink port id.
    pub fn port_id(&self) -> u32 {
        self.port_id.load(Relaxed)
    }

    /// A request was sent.
    pub fn sent(&self) {
        self.sent.fetch_add(1, AcqRel);
    }

    /// So many requests have been answered.
    pub fn answered(&self, count: u32) {
        let later = |known| is_under_way(count, known).then_some(count);
        // It fails if as many were known to be.
        let _ = self.answered.fetch_update(AcqRel, Acquire, later);
    }

    /// Whether an answer is still under way.
    pub fn waits(&self) -> bool {
        is_under_way(self.sent.load(Acquire), self.answered.load(Acquire))
    }
}

/// What a descriptor stands for, if it concerns this library.
pub fn find(fd: c_int) -> Option<Kind> {
    let socket = slot(fd)?;
    match socket.inode.load(Acquire) {
        OTHER => None,
        ROUTE => Some(Kind::Route),
        STREAM => Some(Kind::Stream(socket)),
        known if inode(fd) == Some(known) => Some(Kind::Glue(socket)),
        _ => {
            forget(fd);
            None
        }
    }
}

/// Notes a new redirected socket. `false`: there is no room.
pub fn add(fd: c_int, port_id: u32) -> bool {
    let (Some(socket), Some(inode)) = (slot(fd), inode(fd)) else {
        return false;
    };
    socket.port_id.store(port_id, Relaxed);
    socket.sent.store(0, Relaxed);
    socket.answered.store(0, Relaxed);
    socket.upcalls.clear();
    socket.inode.store(inode, Release);
    true
}

/// Notes a new rtnetlink socket.
pub fn add_route(fd: c_int) {
    if let Some(socket) = slot(fd) {
        socket.inode.store(ROUTE, Release);
    }
}

/// Notes a new Unix stream socket.
pub fn add_stream(fd: c_int) {
    if let Some(socket) = slot(fd) {
        *socket.stream.lock().unwrap_or_else(PoisonError::into_inner) = Stream::new();
        socket.inode.store(STREAM, Release);
    }
}

/// Notes that a descriptor is being closed: before it is, since its number may be given out again at once.
pub fn forget(fd: c_int) {
    // Most descriptors are others', and cost no write.
    if let Some(socket) = slot(fd).filter(|socket| socket.inode.load(Relaxed) != OTHER) {
        socket.inode.store(OTHER, Release);
    }
}

fn slot(fd: c_int) -> Option<&'static Socket> {
    FDS.get(usize::try_from(fd).ok()?)
}

/// The inode of a socket; `None` for other files. Leaves `errno` alone.
fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: the descriptor is used during this call only; the caller's caller has just named it as its own.
    let status = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    (FileType::from_raw_mode(status.st_mode) == FileType::Socket).then_some(status.st_ino)
}
