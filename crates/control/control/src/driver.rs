//! The driver domain as a peer.

use crate::clean;
use crate::peer::{Lost, Peer};
use control_protocol::driver::{FromDriver, InterfaceAddresses, InterfaceSpec, InterfaceState, ToDriver};
use control_protocol::{Channel, Debt};
use flow::{ControllerId, PortId};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The interfaces that a driver domain has open.
pub(crate) type Interfaces = Vec<(PortId, InterfaceSpec, InterfaceState)>;

/// The driver domain.
pub(crate) struct DriverDomain {
    peer: Peer<ToDriver>,
    /// The interfaces that it has open, until they were compared with the desired state.
    listed: Option<Interfaces>,
    /// Whether that comparison was made, so that attaching makes sense.
    ready: bool,
    /// Addresses of the interfaces, as reported last.
    addresses: BTreeMap<PortId, InterfaceAddresses>,
    /// Whether it was told something since it said something.
    was_told: bool,
    debt: Debt,
}

impl DriverDomain {
    /// Begins with a new channel, and asks for the interfaces.
    pub fn new(channel: Channel) -> DriverDomain {
        let mut peer = Peer::new(channel);
        peer.send(ToDriver::List, Vec::new());
        DriverDomain {
            peer,
            listed: None,
            ready: false,
            addresses: BTreeMap::new(),
            was_told: true,
            debt: Debt::default(),
        }
    }

    /// The descriptor and the events to poll for.
    pub fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.peer.fd(), self.peer.interest())
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// The channel is to be given up.
    pub fn receive(&mut self) -> Result<Option<FromDriver>, Lost> {
        self.peer.flush();
        let message = self.peer.receive()?;
        if message.is_some() {
            self.was_told = false;
            self.debt.heard();
        }
        Ok(message.map(|(message, _)| clean::driver(message)))
    }

    /// It has listed its interfaces, which are to be compared.
    pub fn listed(&mut self, interfaces: Interfaces) {
        self.listed = Some(interfaces);
    }

    /// Takes the list, to compare it now; `None` if there is none.
    pub fn compare(&mut self) -> Option<Interfaces> {
        let listed = self.listed.take()?;
        self.ready = true;
        Some(listed)
    }

    /// Whether its interfaces have been compared.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// It has reported the addresses of an interface. Returns whether they are other ones than before.
    pub fn note_addresses(&mut self, port: PortId, addresses: InterfaceAddresses) -> bool {
        // So a driver domain that was taken over fills no memory.
        if !ControllerId::BUILT_IN.owns(port) {
            return false;
        }
        self.addresses.insert(port, addresses.clone()) != Some(addresses)
    }

    /// The addresses of a port's interface, if they are known.
    pub fn addresses(&self, port: PortId) -> Option<&InterfaceAddresses> {
        self.addresses.get(&port)
    }

    /// Has it join an interface to the other end of a vhost-user stream.
    pub fn attach(&mut self, port: PortId, spec: InterfaceSpec, stream: OwnedFd) {
        self.was_told = true;
        self.peer.send(ToDriver::Attach { port, spec }, vec![stream]);
    }

    /// Has it change an interface, if it has it open.
    pub fn change(&mut self, port: PortId, spec: InterfaceSpec) {
        self.was_told = true;
        self.peer.send(ToDriver::Change { port, spec }, Vec::new());
    }

    /// When it will have owed a sign of life for too long.
    pub fn debt_deadline_ms(&self) -> Option<u64> {
        self.debt.due_ms()
    }

    /// Whether it was told something a while ago and has said nothing, so that the supervisor is to look at it: once, since there is
    /// not always something to say.
    pub fn take_overdue(&mut self, now_ms: u64) -> bool {
        self.debt.set(self.was_told, now_ms);
        let is_overdue = self.debt.take_overdue(now_ms);
        if is_overdue {
            self.was_told = false;
            self.debt.heard();
        }
        is_overdue
    }

    /// Has it close an interface.
    pub fn detach(&mut self, port: PortId) {
        self.was_told = true;
        self.addresses.remove(&port);
        self.peer.send(ToDriver::Detach { port }, Vec::new());
    }
}
