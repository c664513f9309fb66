//! Which file descriptors stand for redirected sockets.
//!
//! Nothing here locks or allocates, so that it is safe in all threads and after `fork`. A descriptor's number is only
//! a hint: it may have been closed in a way that this library does not see. The inode behind it decides, so no other
//! socket is ever taken for a redirected one.

use libc::c_int;
use ovs_frame::is_under_way;
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Descriptors from this number on are not redirected: `socket` fails with `EMFILE`.
const MAX_FDS: usize = 65_536;
/// Redirected sockets at one time.
const MAX_SOCKETS: usize = 4_096;

/// Per descriptor: [`OTHER`], [`ROUTE`], or the index of a socket plus [`FIRST`].
static FDS: [AtomicU32; MAX_FDS] = [const { AtomicU32::new(OTHER) }; MAX_FDS];
const OTHER: u32 = 0;
const ROUTE: u32 = 1;
const FIRST: u32 = 2;

static SOCKETS: [Socket; MAX_SOCKETS] = [const { Socket::new() }; MAX_SOCKETS];

/// A redirected socket; descriptors made by `dup` share it.
pub struct Socket {
    /// Descriptors that refer to it; 0: unused.
    references: AtomicU32,
    inode: AtomicU64,
    port_id: AtomicU32,
    sent: AtomicU32,
    answered: AtomicU32,
}

/// What this library does something about.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A redirected socket.
    Glue(&'static Socket),
    /// A socket of the kernel's rtnetlink.
    Route,
}

impl Kind {
    /// The redirected socket, if it is one.
    pub fn socket(self) -> Option<&'static Socket> {
        match self {
            Kind::Glue(socket) => Some(socket),
            Kind::Route => None,
        }
    }
}

impl Socket {
    const fn new() -> Socket {
        Socket {
            references: AtomicU32::new(0),
            inode: AtomicU64::new(0),
            port_id: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            answered: AtomicU32::new(0),
        }
    }

    /// Its netlink port id.
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
    let value = slot(fd)?.load(Acquire);
    if value == ROUTE {
        return Some(Kind::Route);
    }
    let socket = socket(value)?;
    if inode(fd) == Some(socket.inode.load(Relaxed)) {
        return Some(Kind::Glue(socket));
    }
    forget(fd);
    None
}

/// Notes a new redirected socket. `false`: there is no room.
pub fn add(fd: c_int, port_id: u32) -> bool {
    forget(fd);
    let (Some(slot), Some(inode)) = (slot(fd), inode(fd)) else {
        return false;
    };
    for (index, socket) in (FIRST..).zip(&SOCKETS) {
        if socket.references.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
            socket.inode.store(inode, Relaxed);
            socket.port_id.store(port_id, Relaxed);
            socket.sent.store(0, Relaxed);
            socket.answered.store(0, Relaxed);
            slot.store(index, Release);
            return true;
        }
    }
    false
}

/// Notes a new rtnetlink socket.
pub fn add_route(fd: c_int) {
    forget(fd);
    if let Some(slot) = slot(fd) {
        slot.store(ROUTE, Release);
    }
}

/// Notes that `copy`, if it is one, now refers to what `fd` refers to, and returns it.
pub fn copied(fd: c_int, copy: c_int) -> c_int {
    if fd == copy || copy < 0 {
        return copy;
    }
    forget(copy);
    if let (Some(from), Some(to)) = (slot(fd), slot(copy)) {
        let value = from.load(Acquire);
        if let Some(socket) = socket(value) {
            socket.references.fetch_add(1, AcqRel);
        }
        to.store(value, Release);
    }
    copy
}

/// Notes that a descriptor is being closed: before it is, since its number may be given out again at once.
pub fn forget(fd: c_int) {
    // Most descriptors are others', and cost no write.
    if let Some(slot) = slot(fd).filter(|slot| slot.load(Relaxed) != OTHER)
        && let Some(socket) = socket(slot.swap(OTHER, AcqRel))
    {
        socket.references.fetch_sub(1, AcqRel);
    }
}

fn slot(fd: c_int) -> Option<&'static AtomicU32> {
    FDS.get(usize::try_from(fd).ok()?)
}

fn socket(value: u32) -> Option<&'static Socket> {
    SOCKETS.get(usize::try_from(value.checked_sub(FIRST)?).ok()?)
}

/// The inode of a socket; `None` for other files. Leaves `errno` alone.
fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: the descriptor is used during this call only; the caller's caller has just named it as its own.
    let status = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    (FileType::from_raw_mode(status.st_mode) == FileType::Socket).then_some(status.st_ino)
}
