//! A controller's side of its channel to the driver domain.
//!
//! The driver domain keeps interfaces when a controller dies, and loses them when it dies itself. In both
//! cases a new channel begins with a list of what it has open, which the controller compares with what it
//! wants.

use crate::clean;
use crate::distrust::Distrust;
use crate::link::{Link, Lost};
use control_protocol::Channel;
use control_protocol::driver::{
    DeviceState, FromDriver, InterfaceAddresses, InterfaceSpec, InterfaceState, QueueSockets, ToDriver,
};
use control_protocol::supervisor::{FromChild, Role};
use flow::{ControllerId, PortId};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The interfaces that a driver domain had open when its channel began.
pub type Interfaces = BTreeMap<PortId, (InterfaceSpec, InterfaceState)>;

/// A queue of a device, or why there is none, for users.
pub type DeviceQueue = Result<QueueEnds, String>;

/// A packet socket, and the bytes of the virtio-net header of its frames, for each direction.
#[derive(Debug)]
pub struct QueueEnds {
    /// For frames that leave.
    pub sends: (OwnedFd, u8),
    /// For frames that come, if they can; otherwise why not, for users.
    pub receives: Result<(OwnedFd, u8), String>,
}

/// What a driver domain has said about the controller's own ports.
#[derive(Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// The driver domain has listed its [interfaces](DriverClient::interfaces).
    Listed,
    /// An interface changed state.
    State(PortId, InterfaceState),
    /// The [addresses](DriverClient::addresses) of an interface have changed.
    Addresses(PortId),
    /// The states of [devices](DriverClient::device) that were asked for have come.
    Devices,
    /// A [queue](DriverClient::take_queue) that was asked for has come, or will not.
    Queue(PortId),
    /// A filter for an address was programmed, if that is true, or removed; or why not, for users.
    Steered(PortId, [u8; 6], bool, Result<(), String>),
}

/// The driver domain, or that there is none at the moment.
#[derive(Debug)]
pub struct DriverClient {
    /// Whose ports it serves here.
    controller: ControllerId,
    session: Option<Session>,
    distrust: Distrust,
    /// Violations on channels that are given up.
    violations: u64,
}

#[derive(Debug)]
struct Session {
    link: Link<ToDriver>,
    listed: Option<Interfaces>,
    is_compared: bool,
    /// Addresses of the interfaces, as reported last.
    addresses: BTreeMap<PortId, InterfaceAddresses>,
    /// States of devices, as asked for last.
    devices: BTreeMap<PortId, DeviceState>,
    /// Queues that have come and were not taken.
    queues: BTreeMap<PortId, DeviceQueue>,
    /// Whether it was told something since it said something.
    was_told: bool,
}

impl DriverClient {
    /// Without a driver domain for now.
    pub fn new(controller: ControllerId) -> DriverClient {
        DriverClient {
            controller,
            session: None,
            distrust: Distrust::new(Role::Driver),
            violations: 0,
        }
    }

    /// Whether there is a driver domain.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// The descriptor and the events to poll for.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let session = self.session.as_ref()?;
        Some((session.link.fd(), session.link.interest()))
    }

    /// Begins with a new channel, in the place of the one before, and asks for the interfaces.
    pub fn attach_channel(&mut self, channel: Channel) {
        self.give_up();
        self.distrust.on_attach();
        let mut session = Session {
            link: Link::new(channel),
            listed: None,
            is_compared: false,
            addresses: BTreeMap::new(),
            devices: BTreeMap::new(),
            queues: BTreeMap::new(),
            was_told: false,
        };
        session.tell(ToDriver::List, Vec::new());
        self.session = Some(session);
    }

    /// Gives up the channel for this reason.
    pub fn detach_channel(&mut self, lost: Lost, now_ms: u64) {
        if self.give_up() {
            self.distrust.on_loss(lost, now_ms);
        }
    }

    fn give_up(&mut self) -> bool {
        let before = self.session.take();
        if let Some(before) = &before {
            self.violations += u64::from(before.link.violations());
        }
        before.is_some()
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// The channel is to be [given up](Self::detach_channel).
    pub fn receive(&mut self) -> Result<Option<DriverEvent>, Lost> {
        let Some(session) = &mut self.session else {
            return Ok(None);
        };
        session.link.flush();
        loop {
            let Some((message, fds)) = session.link.receive()? else {
                return Ok(None);
            };
            session.was_told = false;
            self.distrust.on_message();
            if let Some(event) = session.take(clean::driver(message), fds, self.controller) {
                return Ok(Some(event));
            }
        }
    }

    /// The interfaces that it had open when its channel began, and that were not detached since; `None` until
    /// it has said so.
    pub fn interfaces(&self) -> Option<&Interfaces> {
        self.session.as_ref()?.listed.as_ref()
    }

    /// The interfaces, to be compared with what the controller wants; `None` if they are not known or were
    /// compared already.
    pub fn compare(&mut self) -> Option<Interfaces> {
        let session = self.session.as_mut().filter(|session| !session.is_compared)?;
        let listed = session.listed.clone()?;
        session.is_compared = true;
        Some(listed)
    }

    /// Whether they were compared, so that attaching makes sense.
    pub fn is_compared(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_compared)
    }

    /// The addresses of a port's interface, if they are known.
    pub fn addresses(&self, port: PortId) -> Option<&InterfaceAddresses> {
        self.session.as_ref()?.addresses.get(&port)
    }

    /// Asks for the states of devices. False if there is nobody to ask.
    pub fn ask_for_devices(&mut self) -> bool {
        self.tell(ToDriver::Devices, Vec::new());
        self.is_connected()
    }

    /// Asks for a queue of a port's device.
    pub fn ask_for_queue(&mut self, port: PortId) {
        self.tell(ToDriver::Queue { port }, Vec::new());
    }

    /// Has frames for an address come by a port's queue, and the forwarder's ring marked with this number; or
    /// no longer.
    pub fn steer(&mut self, port: PortId, mac: [u8; 6], mark: Option<u16>) {
        self.tell(ToDriver::Steer { port, mac, mark }, Vec::new());
    }

    /// The queue that was asked for, once.
    pub fn take_queue(&mut self, port: PortId) -> Option<DeviceQueue> {
        self.session.as_mut()?.queues.remove(&port)
    }

    /// The state of a port's device when it was asked for last.
    pub fn device(&self, port: PortId) -> Option<&DeviceState> {
        self.session.as_ref()?.devices.get(&port)
    }

    /// Has it join an interface to a port. Of a device that is lent, the descriptor goes along. Returns the
    /// data plane's end.
    ///
    /// # Errors
    /// No connection between both can be made.
    pub fn attach(
        &mut self,
        port: PortId,
        spec: InterfaceSpec,
        device: Option<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let fds = [Some(theirs), device].into_iter().flatten().collect();
        self.tell(ToDriver::Attach { port, spec }, fds);
        Ok(ours)
    }

    /// Has it change an interface, if it has it open.
    pub fn change(&mut self, port: PortId, spec: InterfaceSpec) {
        self.tell(ToDriver::Change { port, spec }, Vec::new());
    }

    /// Has it close an interface.
    pub fn detach(&mut self, port: PortId) {
        if let Some(session) = &mut self.session {
            session.addresses.remove(&port);
            session.devices.remove(&port);
            if let Some(listed) = &mut session.listed {
                listed.remove(&port);
            }
        }
        self.tell(ToDriver::Detach { port }, Vec::new());
    }

    fn tell(&mut self, message: ToDriver, fds: Vec<OwnedFd>) {
        if let Some(session) = &mut self.session {
            session.tell(message, fds);
        }
    }

    /// Sends messages that wait, as far as there is room.
    pub fn flush(&mut self) {
        if let Some(session) = &mut self.session {
            session.link.flush();
        }
    }

    /// Messages that were malformed, or about ports of others.
    pub fn violations(&self) -> u64 {
        let now = self
            .session
            .as_ref()
            .map_or(0, |session| session.link.violations());
        self.violations + u64::from(now)
    }

    /// What the supervisor is to be told now. A driver domain that was told something a while ago and has
    /// said nothing is to be looked at once, since it has not always something to say.
    pub fn complaint(&mut self, now_ms: u64) -> Option<FromChild> {
        let owes = self.session.as_ref().is_some_and(|session| session.was_told);
        let complaint = self.distrust.complaint(owes, now_ms)?;
        if let (FromChild::Owes(_), Some(session)) = (&complaint, &mut self.session) {
            session.was_told = false;
            self.distrust.on_message();
        }
        Some(complaint)
    }

    /// When to look for [complaints](Self::complaint) next.
    pub fn due_ms(&self) -> Option<u64> {
        self.distrust.due_ms()
    }
}

impl Session {
    fn tell(&mut self, message: ToDriver, fds: Vec<OwnedFd>) {
        self.was_told = true;
        let subject = match message {
            ToDriver::Attach { port, .. } => Some((0, port.0)),
            ToDriver::Change { port, .. } => Some((1, port.0)),
            ToDriver::Detach { port } => Some((2, port.0)),
            ToDriver::Queue { port } => Some((3, port.0)),
            ToDriver::List | ToDriver::Devices | ToDriver::Steer { .. } => None,
        };
        self.link.send_about(message, fds, 0, subject);
    }

    fn take(
        &mut self,
        message: FromDriver,
        fds: Vec<OwnedFd>,
        controller: ControllerId,
    ) -> Option<DriverEvent> {
        match message {
            FromDriver::Interfaces(list) => {
                let own = list.into_iter().filter(|(port, ..)| controller.owns(*port));
                self.listed = Some(own.map(|(port, spec, state)| (port, (spec, state))).collect());
                Some(DriverEvent::Listed)
            }
            FromDriver::Devices(list) => {
                let own = list.into_iter().filter(|(port, _)| controller.owns(*port));
                self.devices = own.collect();
                Some(DriverEvent::Devices)
            }
            FromDriver::State { port, .. }
            | FromDriver::Addresses { port, .. }
            | FromDriver::Queue { port, .. }
            | FromDriver::Steered { port, .. }
                if !controller.owns(port) =>
            {
                self.link.count_violation("an interface of another controller");
                None
            }
            FromDriver::Queue { port, result } => {
                let queue = result.and_then(|sockets| queue_ends(sockets, fds));
                self.queues.insert(port, queue);
                Some(DriverEvent::Queue(port))
            }
            FromDriver::Steered {
                port,
                mac,
                is_on,
                result,
            } => Some(DriverEvent::Steered(port, mac, is_on, result)),
            FromDriver::State { port, state } => Some(DriverEvent::State(port, state)),
            FromDriver::Addresses { port, addresses } => {
                let before = self.addresses.insert(port, addresses.clone());
                (before != Some(addresses)).then_some(DriverEvent::Addresses(port))
            }
        }
    }
}

/// The ends of a queue, with as many sockets as it was said.
fn queue_ends(about: QueueSockets, fds: Vec<OwnedFd>) -> DeviceQueue {
    let mut fds = fds.into_iter();
    let mut socket = |header_len| match fds.next() {
        Some(socket) => Ok((socket, header_len)),
        None => Err(String::from("no socket came")),
    };
    Ok(QueueEnds {
        sends: socket(about.header_len)?,
        receives: about.receives.and_then(socket),
    })
}
