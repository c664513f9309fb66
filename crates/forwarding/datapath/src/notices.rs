//! Notices of other threads to the channel thread that a controller is to get a message about a port.

use flow::PortId;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use scheduler::ring_bell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's description.
pub(crate) struct Notices {
    bell: OwnedFd,
    rung: AtomicBool,
    lists: Mutex<NoticeLists>,
}

#[derive(Default)]
pub(crate) struct NoticeLists {
    /// Ports whose state changed.
    pub changed: Vec<PortId>,
    /// Ports whose miss queue became non-empty.
    pub missing: Vec<PortId>,
    /// Ports whose packets nobody captures or mirrors any more.
    pub uncopied: Vec<PortId>,
    /// Ports whose change was noticed and whose state was not [read](Notices::on_read) since.
    marked: HashSet<PortId>,
}

impl Notices {
    pub fn new() -> std::io::Result<Notices> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Notices {
            bell,
            rung: AtomicBool::new(false),
            lists: Mutex::default(),
        })
    }

    /// The port has changed. That is noticed once until the state was [read](Self::on_read).
    pub fn changed(&self, port: PortId) {
        {
            let mut lists = self.lists.lock();
            if !lists.marked.insert(port) {
                return;
            }
            lists.changed.push(port);
        }
        self.ring();
    }

    /// The port's state is about to be read: further changes are to be noticed again.
    pub fn on_read(&self, port: PortId) {
        self.lists.lock().marked.remove(&port);
    }

    pub fn missing(&self, port: PortId) {
        self.lists.lock().missing.push(port);
        self.ring();
    }

    /// Nobody captures or mirrors the port's packets any more.
    pub fn uncopied(&self, port: PortId) {
        self.lists.lock().uncopied.push(port);
        self.ring();
    }

    /// Has the channel thread take another turn.
    pub fn again(&self) {
        self.ring();
    }

    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            ring_bell(&self.bell);
        }
    }

    /// Readable when there are notices.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn take(&self) -> NoticeLists {
        // Silence first: what is added after this rings again.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        self.rung.store(false, Ordering::Release);
        let mut lists = self.lists.lock();
        NoticeLists {
            changed: std::mem::take(&mut lists.changed),
            missing: std::mem::take(&mut lists.missing),
            uncopied: std::mem::take(&mut lists.uncopied),
            marked: HashSet::new(),
        }
    }
}
