//! P4 programs as forwarders of ports.
//!
//! A *P4 switch* is a program in use ([`Version`]) with the ports that are bound to it; packets change its
//! registers, counters and meters, and nothing else of it. All P4 switches are in one table ([`P4Table`])
//! beside the ports, which is replaced as a whole and which a thread has for a turn: so each packet meets one
//! version. A bound port's packets meet no flow, and those of a port whose P4 switch is missing are dropped:
//! a program is never passed by.
//!
//! Nobody waits in a forwarding thread. A version's tables never change: other entries are another version,
//! which a thread of its own makes ready. Versions share registers, counters and meters where names and types
//! agree, and one lock, which a thread tries and never waits for. Scratch memory is made with the version, a
//! *lane* for each thread that may run it at a time; a program that reads what other packets write has one
//! lane. A thread that gets no lane leaves the packets in their ring and tries again later. What a packet may
//! cost is proven before, and how many packets are taken from a ring at a time follows from that.
//!
//! | module | contents |
//! |---|---|
//! | `version` | a program that is ready to run, what it costs, and its limits |
//! | `forward` | a port's ring through its program |
//! | `stages` | programs before a port's forwarder, and all that its packets meet |
//! | `run` | a burst through its program, packet by packet |
//! | `exit` | where packets go that a program has run |
//! | `outputs` | packets as a program sends them: in place, or as copies |
//! | `requests` | a controller's requests, and the thread that makes versions ready |
//! | `clients` | packets to clients of P4Runtime and from them |
//! | `cells` | what a controller reads and sets of arrays while packets flow |
//! | `verdicts` | verdicts that a thread keeps, and when it makes one |
//! | `links` | ports of P4 switches that are joined, and packets on their way from one program to the next |
//! | `share` | time of forwarding threads, charged to P4 switches |
//! | `usual` | what packets cost a thread that no program forwards |
//! | `lost_time` | time of a turn in which the thread did not have its core |

mod cells;
mod clients;
#[cfg(test)]
mod cycles;
mod exit;
mod forward;
mod links;
mod lost_time;
mod outputs;
mod requests;
mod run;
mod share;
mod stages;
#[cfg(test)]
mod stands_still;
mod usual;
mod verdicts;
mod version;

pub(crate) use clients::Clients;
pub(crate) use links::Crossings;
pub(crate) use requests::P4Work;
pub(crate) use share::{Diverted, Shares};
pub(crate) use verdicts::KeptVerdicts;
pub(crate) use version::P4Refused;

use crate::state::Ports;
use control_protocol::p4::{P4Attachment, P4Binding};
use flow::{ControllerId, P4Id, PortId};
use std::collections::BTreeMap;
use std::sync::Arc;
use version::{Counts, Version};

/// A P4 switch of a controller.
pub(crate) type P4Key = (ControllerId, P4Id);

/// P4 switches, and the ports that are bound to them.
#[derive(Clone, Default)]
pub(crate) struct P4Table {
    bindings: BTreeMap<PortId, P4Binding>,
    /// Ports by their place at a P4 switch.
    ports: BTreeMap<(P4Key, u16), PortId>,
    switches: BTreeMap<P4Key, Arc<P4Switch>>,
    clients: BTreeMap<P4Key, Arc<Clients>>,
    links: links::Links,
    stages: stages::Stages,
}

/// A P4 switch as packets meet it.
pub(crate) struct P4Switch {
    version: Version,
    tag: u64,
    /// Over all versions.
    counts: Arc<Counts>,
}

/// A port's place, with what forwards its packets.
struct Bound<'a> {
    table: &'a P4Table,
    key: P4Key,
    port: u16,
    /// Packets that it sends go on to the next stage, or to the port's forwarder.
    is_stage: bool,
    /// `None`: it is missing.
    switch: Option<&'a P4Switch>,
    clients: Option<&'a Clients>,
}

/// Whether a data plane with so many forwarding threads would take a version that may have so many operations
/// in a pass.
///
/// # Errors
/// Why not.
pub fn check_p4(bytes: &[u8], operations: u32, threads: usize) -> Result<(), String> {
    let made = Version::new(bytes, operations, threads, None);
    made.map(drop).map_err(|refused| refused.to_string())
}

impl P4Table {
    fn bound(&self, port: PortId) -> Option<Bound<'_>> {
        let binding = self.bindings.get(&port)?;
        Some(self.at(((port.controller(), binding.switch), binding.port)))
    }

    /// A controller's P4 switches.
    fn of(&self, controller: ControllerId) -> impl Iterator<Item = (P4Id, &P4Switch)> {
        let all = (controller, P4Id(0))..=(controller, P4Id(u32::MAX));
        let own = self.switches.range(all);
        own.map(|((_, id), switch)| (*id, &**switch))
    }

    /// What packets of a port meet.
    pub fn attachment(&self, port: PortId) -> P4Attachment {
        P4Attachment {
            stages: self.stages_of(port).iter().map(links::binding).collect(),
            forwarder: self.bindings.get(&port).copied(),
        }
    }

    /// Says what packets of a port meet.
    ///
    /// # Errors
    ///
    /// A place is another port's, there is no such place, or stages are too many or contradict each other;
    /// nothing has changed.
    pub fn attach(&mut self, port: PortId, attachment: &P4Attachment) -> Result<(), P4Refused> {
        stages::check(attachment)?;
        self.bind(port, attachment.forwarder)?;
        self.set_stages(port, &attachment.stages);
        Ok(())
    }

    /// Binds a port to a place, or frees it.
    ///
    /// # Errors
    ///
    /// The place is another port's, or there is no such place.
    fn bind(&mut self, port: PortId, binding: Option<P4Binding>) -> Result<(), P4Refused> {
        let key = |binding: P4Binding| ((port.controller(), binding.switch), binding.port);
        if let Some(binding) = binding {
            version::check_place(binding)?;
            let holder = self.ports.get(&key(binding)).filter(|holder| **holder != port);
            if let Some(holder) = holder {
                return Err(P4Refused::PlaceTaken(binding.port, *holder));
            }
        }
        if let Some(former) = self.bindings.remove(&port) {
            self.ports.remove(&key(former));
        }
        if let Some(binding) = binding {
            self.bindings.insert(port, binding);
            self.ports.insert(key(binding), port);
        }
        Ok(())
    }
}

impl Bound<'_> {
    /// Whether the guest behind a number that the program knows can receive. The clients' port is up while
    /// they are there, and a link always.
    fn is_up(&self, port: u16, ports: &Ports) -> bool {
        if let Some(clients) = self.clients_at(port.into()) {
            return !clients.is_closed();
        }
        let guest = self.port_of(port.into()).and_then(|port| ports.get(port));
        self.link_at(port.into()).is_some() || guest.is_some_and(|guest| guest.vnic.is_open())
    }

    /// The clients, if that is the number of their port.
    fn clients_at(&self, port: u32) -> Option<&Clients> {
        let clients = self.clients?;
        (clients.cpu_port.map(u32::from) == Some(port)).then_some(clients)
    }

    /// The port behind a number that the program knows. A link goes before a port.
    fn port_of(&self, port: u32) -> Option<PortId> {
        if self.clients_at(port).is_some() || self.link_at(port).is_some() {
            return None;
        }
        let port = u16::try_from(port).ok()?;
        self.table.ports.get(&(self.key, port)).copied()
    }

    /// Where the link leads to that is behind a number that the program knows.
    fn link_at(&self, port: u32) -> Option<links::Place> {
        self.table.link_of((self.key, u16::try_from(port).ok()?))
    }
}
