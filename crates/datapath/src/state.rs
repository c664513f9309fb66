//! What all threads share: ports and switches.
//!
//! No lock is held while packets are delivered, which a guest may hold up: the port table is copied on change, and
//! used as it was at a burst's beginning.

use crate::grace::GracePeriods;
use crate::notices::Notices;
use crate::port::{Port, Switch};
use control_protocol::data_plane::PortSpec;
use flow::{PortId, SwitchId};
use parking_lot::{Mutex, RwLock};
use placement::Vnic;
use scheduler::{Crew, Home, Homes, Placement, RingId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports by number.
#[derive(Clone, Default)]
pub(crate) struct Ports(Vec<Option<Arc<Port>>>);

impl Ports {
    /// No ports.
    pub const fn new() -> Ports {
        Ports(Vec::new())
    }

    /// A port, if it exists.
    #[inline]
    pub fn get(&self, port: PortId) -> Option<&Arc<Port>> {
        self.0.get(port.0 as usize)?.as_ref()
    }

    /// Those that exist.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.0.iter().flatten()
    }
}

impl Homes for Ports {
    #[inline]
    fn home(&self, vnic: Vnic) -> Option<&Home> {
        self.get(PortId(vnic.0)).map(|port| &port.home)
    }

    fn limit(&self) -> u32 {
        // Ports' numbers are 32 bits long.
        self.0.len() as u32
    }
}

/// The number of a port's transmit ring.
#[inline]
pub(crate) fn transmit_ring(port: PortId) -> RingId {
    RingId::transmit(Vnic(port.0))
}

/// The data plane.
pub(crate) struct Datapath {
    ports: RwLock<Arc<Ports>>,
    /// Counts changes of `ports`.
    ports_version: AtomicU64,
    pub switches: RwLock<HashMap<SwitchId, Arc<Switch>>>,
    pub crew: Arc<Crew>,
    pub notices: Arc<Notices>,
    /// When forwarding threads have told flows what they counted.
    pub periods: Arc<GracePeriods>,
    start_ms: u64,
}

impl Datapath {
    pub fn new(placement: Placement) -> std::io::Result<Arc<Datapath>> {
        Ok(Arc::new(Datapath {
            ports: RwLock::default(),
            ports_version: AtomicU64::new(0),
            switches: RwLock::default(),
            crew: Crew::new(placement),
            notices: Arc::new(Notices::new()?),
            periods: Arc::default(),
            start_ms: clock::tick_ms(),
        }))
    }

    /// A port that is in no table yet. Fails if it needs an executor and there are no descriptors left.
    pub fn make_port(&self, spec: PortSpec) -> std::io::Result<Arc<Port>> {
        let switch = self.switch(spec.switch);
        Port::new(spec, switch, self.crew.clone(), self.notices.clone())
    }

    /// Milliseconds since start, as of the last timer tick: the clock of flows and waits.
    pub fn now_ms(&self) -> u64 {
        clock::tick_ms().saturating_sub(self.start_ms)
    }

    pub fn port(&self, port: PortId) -> Option<Arc<Port>> {
        self.ports.read().get(port).cloned()
    }

    /// The ports as they are now. Who uses the table after a port has gone finds the port closed.
    pub fn ports(&self) -> Arc<Ports> {
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
        let table = &mut Arc::make_mut(&mut ports).0;
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
