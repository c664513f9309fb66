//! What all threads share: ports, switches, and the lists by which they wake each other.
//!
//! No lock is held while packets are delivered, which a guest may hold up: the port table is copied on change, and
//! used as it was at a burst's beginning.

use crate::placement::Placement;
use crate::port::Port;
use crate::watchdog::Watchdog;
use crate::work::Ledger;
use classifier::MegaflowTable;
use flow::{PortId, SwitchId};
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Which side of a port a worker is to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Its transmit ring: fetch packets, give chains back.
    Transmit,
    /// Its internal receive queue: deliver packets.
    Receive,
}

/// Ports by number.
pub(crate) type PortTable = Vec<Option<Arc<Port>>>;

/// A port, if it exists.
pub(crate) fn port_of(ports: &PortTable, port: PortId) -> Option<&Arc<Port>> {
    ports.get(port.0 as usize)?.as_ref()
}

/// A switch's flow table.
pub(crate) struct Switch {
    pub id: SwitchId,
    /// For changes. Look-ups go through [`Port::flows`].
    pub flows: Mutex<MegaflowTable>,
}

/// What every forwarding thread needs that is started.
#[derive(Default)]
pub(crate) struct Crew {
    pub watchdog: Arc<Watchdog>,
    /// They are to end.
    pub ending: Arc<AtomicBool>,
}

/// The data plane.
pub(crate) struct Datapath {
    ports: RwLock<Arc<PortTable>>,
    /// Counts changes of `ports`.
    ports_version: AtomicU64,
    pub switches: RwLock<HashMap<SwitchId, Arc<Switch>>>,
    pub placement: Placement,
    pub crew: Crew,
    pub notices: Notices,
    /// What the forwarding threads did.
    pub work: Ledger,
    start_ms: u64,
}

impl Datapath {
    pub fn new(placement: Placement) -> std::io::Result<Arc<Datapath>> {
        Ok(Arc::new(Datapath {
            ports: RwLock::default(),
            ports_version: AtomicU64::new(0),
            switches: RwLock::default(),
            placement,
            crew: Crew::default(),
            notices: Notices::new()?,
            work: Ledger::new(),
            start_ms: clock::tick_ms(),
        }))
    }

    /// Milliseconds since start, as of the last timer tick: the clock of flows and waits.
    pub fn now_ms(&self) -> u64 {
        clock::tick_ms().saturating_sub(self.start_ms)
    }

    pub fn port(&self, port: PortId) -> Option<Arc<Port>> {
        port_of(&self.ports.read(), port).cloned()
    }

    /// The ports as they are now. Who uses the table after a port has gone finds the port closed.
    pub fn ports(&self) -> Arc<PortTable> {
        self.ports.read().clone()
    }

    /// Changes after [`ports`](Self::ports) has.
    #[inline]
    pub fn ports_version(&self) -> u64 {
        self.ports_version.load(Ordering::Acquire)
    }

    /// Adds, replaces or removes a port; its number is below [`PortId::LIMIT`].
    pub fn set_port(&self, id: PortId, port: Option<Arc<Port>>) {
        let mut ports = self.ports.write();
        let table = Arc::make_mut(&mut ports);
        let index = id.0 as usize;
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index] = port;
        drop(ports);
        self.ports_version.fetch_add(1, Ordering::Release);
    }

    /// The switch, made if it is new.
    pub fn switch(&self, id: SwitchId) -> Arc<Switch> {
        let mut switches = self.switches.write();
        let make = || {
            Arc::new(Switch {
                id,
                flows: Mutex::default(),
            })
        };
        switches.entry(id).or_insert_with(make).clone()
    }
}

/// How other threads tell the channel thread that there is something for the control process.
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
    /// Ports whose change was noticed and not [`heard`](Notices::heard).
    marked: HashSet<PortId>,
}

impl Notices {
    fn new() -> std::io::Result<Notices> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Notices {
            bell,
            rung: AtomicBool::new(false),
            lists: Mutex::default(),
        })
    }

    /// The port has changed. Says so once until that was [`heard`](Self::heard).
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
    pub fn heard(&self, port: PortId) {
        self.lists.lock().marked.remove(&port);
    }

    pub fn missing(&self, port: PortId) {
        self.lists.lock().missing.push(port);
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
            marked: HashSet::new(),
        }
    }
}

/// Signals an eventfd.
pub(crate) fn ring_bell(bell: &OwnedFd) {
    // Fails only when the counter is full, and then it is signalled.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
