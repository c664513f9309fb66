//! What all threads share: ports, switches, and the lists by which they wake each other.
//!
//! No lock is held while packets are delivered, which a guest may hold up: the port table is copied on change, and
//! used as it was at a burst's beginning.

use crate::port::Port;
use crate::work::Ledger;
use classifier::MegaflowTable;
use flow::{PortId, SwitchId};
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vm_state::VmState;

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

/// The data plane.
pub(crate) struct Datapath {
    ports: RwLock<Arc<PortTable>>,
    /// Counts changes of `ports`.
    ports_version: AtomicU64,
    pub switches: RwLock<HashMap<SwitchId, Arc<Switch>>>,
    pub wakeups: Wakeups,
    pub notices: Notices,
    /// What cores and guests do, once the supervisor has said where that is published. Nothing: nobody knows.
    pub vm_state: OnceLock<VmState>,
    /// What the forwarding threads did.
    pub work: Ledger,
    start_ms: u64,
}

impl Datapath {
    pub fn new() -> std::io::Result<Arc<Datapath>> {
        Ok(Arc::new(Datapath {
            ports: RwLock::default(),
            ports_version: AtomicU64::new(0),
            switches: RwLock::default(),
            wakeups: Wakeups::new()?,
            notices: Notices::new()?,
            vm_state: OnceLock::new(),
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

/// How workers learn of work: descriptors signalled by guests, and ports named by other threads.
pub(crate) struct Wakeups {
    epoll: OwnedFd,
    doorbell: OwnedFd,
    named: Mutex<Vec<PortId>>,
}

/// A reason to wake up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// A guest kicked that side.
    Kick(PortId, Side),
    /// Other threads named ports.
    Doorbell,
}

const DOORBELL: u64 = u64::MAX;

impl Wakeups {
    fn new() -> std::io::Result<Wakeups> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: each signal wakes one worker, and nobody has to read the counters.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &doorbell, epoll::EventData::new_u64(DOORBELL), flags)?;
        Ok(Wakeups {
            epoll,
            doorbell,
            named: Mutex::default(),
        })
    }

    pub fn watch(&self, port: PortId, side: Side, kick: BorrowedFd<'_>) -> std::io::Result<()> {
        let data = u64::from(port.0) << 1 | u64::from(side == Side::Receive);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            kick,
            epoll::EventData::new_u64(data),
            flags,
        )?)
    }

    pub fn unwatch(&self, kick: BorrowedFd<'_>) {
        // Fails only if it was not watched.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Has a worker look at both sides of a port.
    pub fn name(&self, port: &Port) {
        if !port.named.swap(true, Ordering::AcqRel) {
            self.named.lock().push(port.id());
            ring_bell(&self.doorbell);
        }
    }

    /// The ports named since the last call.
    pub fn take_named(&self) -> Vec<PortId> {
        std::mem::take(&mut self.named.lock())
    }

    /// Waits for wake-ups, at most `timeout_ms` (for ever if `None`), and passes them to `f`.
    /// True if there were any.
    pub fn wait(&self, timeout_ms: Option<u64>, mut f: impl FnMut(Wakeup)) -> std::io::Result<bool> {
        // Few at a time, so that the kernel wakes other idle workers for the rest.
        let mut events: [std::mem::MaybeUninit<epoll::Event>; 4] =
            [const { std::mem::MaybeUninit::uninit() }; 4];
        let timeout = timeout_ms.map(|ms| rustix::event::Timespec {
            tv_sec: (ms / 1000).cast_signed(),
            tv_nsec: (ms % 1000 * 1_000_000).cast_signed(),
        });
        let (ready, _) = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let any = !ready.is_empty();
        for event in ready {
            let data = event.data.u64();
            if data == DOORBELL {
                f(Wakeup::Doorbell);
            } else {
                let side = if data & 1 == 1 {
                    Side::Receive
                } else {
                    Side::Transmit
                };
                f(Wakeup::Kick(PortId((data >> 1) as u32), side));
            }
        }
        Ok(any)
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

    pub fn changed(&self, port: PortId) {
        self.lists.lock().changed.push(port);
        self.ring();
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
        std::mem::take(&mut self.lists.lock())
    }
}

fn ring_bell(bell: &OwnedFd) {
    // Fails only when the counter is full, and then it is signalled.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
