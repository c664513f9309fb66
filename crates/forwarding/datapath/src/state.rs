//! State that all threads share: ports, and the forwarding threads' part.
//!
//! No lock is held while packets are delivered, which a guest may hold up: the port table is copied on
//! change, and used as it was at a burst's beginning. Forwarding threads that look for a new table wait
//! neither for the copy nor for the thread that makes it, which may lose its core: the copy is changed while
//! no other thread sees it, and takes the former table's place by one store.

use crate::grace::GracePeriods;
use crate::kernel_path::KernelPath;
use crate::meter::Meters;
use crate::notices::Notices;
use crate::p4::P4Table;
use crate::port::{Port, Switch};
use crate::spare_accounts::SpareAccounts;
use classifier::Rules;
use control_protocol::data_plane::PortSpec;
use flow::{ControllerId, PortId};
use kernel_path::Table;
use parking_lot::{Mutex, RwLock};
use placement::VnicId;
use scheduler::{ForwardingThreads, Home, Homes, Placement, RingId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Ports by number.
#[derive(Clone, Default)]
pub(crate) struct Ports {
    table: Vec<Option<Arc<Port>>>,
    /// The numbers of those that exist: there are gaps, above all between controllers.
    present: Vec<PortId>,
    /// P4 switches, once there was one.
    p4: Option<Arc<P4Table>>,
}

impl Ports {
    /// No ports.
    pub const fn new() -> Ports {
        Ports {
            table: Vec::new(),
            present: Vec::new(),
            p4: None,
        }
    }

    /// P4 switches and what is bound to them.
    pub fn p4(&self) -> Option<&P4Table> {
        self.p4.as_deref()
    }

    /// A port, if it exists.
    #[inline]
    pub fn get(&self, port: PortId) -> Option<&Arc<Port>> {
        self.table.get(port.0 as usize)?.as_ref()
    }

    /// Ports that exist.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.present.iter().filter_map(|port| self.get(*port))
    }

    /// Ports of a controller.
    pub fn of(&self, controller: ControllerId) -> impl Iterator<Item = &Arc<Port>> {
        let own = self.present.iter().filter(move |port| controller.owns(**port));
        own.filter_map(|port| self.get(*port))
    }

    /// Adds, replaces or removes a port; its number is below [`PortId::LIMIT`].
    fn set(&mut self, id: PortId, port: Option<Arc<Port>>) {
        let index = id.0 as usize;
        if self.table.len() <= index {
            self.table.resize(index + 1, None);
        }
        match (self.present.binary_search(&id), &port) {
            (Ok(place), None) => drop(self.present.remove(place)),
            (Err(place), Some(_)) => self.present.insert(place, id),
            (Ok(_), Some(_)) | (Err(_), None) => {}
        }
        self.table[index] = port;
    }
}

impl Homes for Ports {
    #[inline]
    fn home(&self, vnic: VnicId) -> Option<&Home> {
        self.get(PortId(vnic.0)).map(|port| &port.home)
    }

    fn count(&self) -> u32 {
        // Ports' numbers are 32 bits long.
        self.present.len() as u32
    }

    fn nth(&self, place: u32) -> Option<&Home> {
        let port = self.present.get(place as usize)?;
        self.get(*port).map(|port| &port.home)
    }
}

/// The number of a port's receive ring.
#[inline]
pub(crate) fn receive_ring(port: PortId) -> RingId {
    RingId::receive(VnicId(port.0))
}

/// The number of a port's transmit ring.
#[inline]
pub(crate) fn transmit_ring(port: PortId) -> RingId {
    RingId::transmit(VnicId(port.0))
}

/// The port of a ring.
#[inline]
pub(crate) fn port_of(ring: RingId) -> PortId {
    PortId(ring.vnic().0)
}

/// Whether this process may send by queues of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// The system calls of the process do not have what that takes.
    #[default]
    Refused,
    /// Queues may be used.
    Allowed,
}

/// The data plane.
pub(crate) struct Datapath {
    ports: RwLock<Arc<Ports>>,
    /// Held by the thread that changes `ports`.
    changing: Mutex<()>,
    /// Counts changes of `ports`.
    ports_version: AtomicU64,
    pub shared: Arc<ForwardingThreads>,
    pub meters: Arc<Meters>,
    pub rules: Arc<Rules>,
    pub notices: Arc<Notices>,
    accounts: SpareAccounts,
    /// When forwarding threads have flushed their counts to flows.
    pub periods: Arc<GracePeriods>,
    /// Copies of decisions in the kernel, if that is possible.
    pub kernel_path: OnceLock<Arc<KernelPath>>,
    pub queues: Queues,
    start_ms: u64,
}

impl Datapath {
    /// A data plane without ports that sends by no queues of devices.
    #[cfg(test)]
    pub fn new(placement: Placement) -> std::io::Result<Arc<Datapath>> {
        Datapath::with_queues(placement, Queues::Refused)
    }

    /// A data plane without ports.
    pub fn with_queues(placement: Placement, queues: Queues) -> std::io::Result<Arc<Datapath>> {
        Ok(Arc::new(Datapath {
            ports: RwLock::default(),
            changing: Mutex::default(),
            ports_version: AtomicU64::new(0),
            shared: ForwardingThreads::new(placement),
            meters: Arc::default(),
            rules: Arc::default(),
            notices: Arc::new(Notices::new()?),
            accounts: SpareAccounts::default(),
            periods: Arc::default(),
            kernel_path: OnceLock::new(),
            queues,
            start_ms: cpu::tick_ms(),
        }))
    }

    /// A port that is in no table yet. Fails if it needs an executor and there are no descriptors left.
    pub fn make_port(&self, spec: PortSpec, switch: Arc<Switch>) -> std::io::Result<Arc<Port>> {
        let account = self.accounts.take();
        Port::new(spec, switch, self.shared.clone(), self.notices.clone(), account)
    }

    /// Milliseconds since start, as of the last timer tick: the clock of flows and waits.
    pub fn now_ms(&self) -> u64 {
        cpu::tick_ms().saturating_sub(self.start_ms)
    }

    /// Has the kernel carry out decisions, by copies in this table.
    pub fn use_kernel_path(&self, table: Table) {
        let _ = self
            .kernel_path
            .set(Arc::new(KernelPath::new(table, self.start_ms)));
    }

    /// Goes on with copies of decisions in the kernel. Returns when to do so again at the latest.
    pub fn step_kernel_path(&self) -> Option<Duration> {
        self.kernel_path.get()?.step(&self.ports())
    }

    /// Has copies of decisions in the kernel be as a port is now.
    pub fn look_at_kernel_path(&self, port: PortId) {
        if let Some(path) = self.kernel_path.get() {
            path.look_at(port, &self.ports());
        }
    }

    pub fn port(&self, port: PortId) -> Option<Arc<Port>> {
        self.ports.read().get(port).cloned()
    }

    /// The ports as they are now. A thread that uses the table after a port has gone finds the port closed.
    pub fn ports(&self) -> Arc<Ports> {
        self.ports.read().clone()
    }

    /// Changes P4 switches or what is bound to them.
    pub fn change_p4<T>(&self, change: impl FnOnce(&mut P4Table) -> T) -> T {
        let _changing = self.changing.lock();
        let mut ports = Ports::clone(&self.ports());
        let changed = change(Arc::make_mut(ports.p4.get_or_insert_default()));
        self.replace(ports);
        changed
    }

    /// Puts a table in the place of the former one, which is freed after that.
    fn replace(&self, ports: Ports) {
        let ports = Arc::new(ports);
        let former = std::mem::replace(&mut *self.ports.write(), ports);
        self.ports_version.fetch_add(1, Ordering::Release);
        drop(former);
    }

    /// Changes after [`ports`](Self::ports) has.
    #[inline]
    pub fn ports_version(&self) -> u64 {
        self.ports_version.load(Ordering::Acquire)
    }

    /// Adds, replaces or removes a port; its number is below [`PortId::LIMIT`].
    pub fn set_port(&self, id: PortId, port: Option<Arc<Port>>) {
        let _changing = self.changing.lock();
        let mut ports = Ports::clone(&self.ports());
        ports.set(id, port);
        self.replace(ports);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::placement::{Config, Costs, Policy, Topology};
    use std::time::Duration;

    /// The thread that changes P4 switches has lost its core in the middle of it.
    #[test]
    fn a_change_holds_up_nobody_who_reads() {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let (said, reads) = std::sync::mpsc::channel();
        let reader = datapath.clone();
        let has_read = datapath.change_p4(|_| {
            std::thread::spawn(move || said.send(reader.ports().p4().is_some()));
            reads.recv_timeout(Duration::from_secs(20))
        });
        assert_eq!(has_read, Ok(false), "the table as it was before");
        assert!(datapath.ports().p4().is_some());
    }
}
