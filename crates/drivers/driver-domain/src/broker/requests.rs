//! What controllers ask for: ports are attached, changed and detached.

use super::controller::{Controller, Received};
use super::open_interface::Interface;
use super::opener::{Command, Opener, Start};
use super::port::{Open, Port};
use super::{BATCH, Broker};
use control_protocol::Channel;
use control_protocol::driver::{InterfaceKind, InterfaceSpec, InterfaceState, ToDriver};
use control_protocol::forwarder::{OpenInterface, Opened, ToForwarder};
use control_protocol::supervisor::{ForwarderId, FromChild};
use flow::{ControllerId, PortId};
use nic_packet::Hiding;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// What an earlier broker has left of an interface.
enum Left {
    Nothing,
    /// Open.
    Open(Interface),
    /// Not open, and hidden from the host.
    Hidden(Hiding),
}

impl Broker {
    /// A controller has a new channel. It asks for the list of its interfaces itself.
    pub(super) fn connect(&mut self, id: ControllerId, mut fds: Vec<OwnedFd>) {
        let Some(fd) = fds.pop().filter(|_| id.0 < ControllerId::LIMIT) else {
            return log::error!("controller {id} cannot be: no channel, or no such number");
        };
        let controller = Controller::new(id, Channel::from(fd));
        self.controllers.insert(id, controller);
        let own = self.ports.iter_mut().filter(|(port, _)| id.owns(**port));
        own.for_each(|(_, port)| (port.unreported, port.unreported_addresses) = (false, false));
    }

    pub(super) fn on_controllers(&mut self) {
        for id in (0..ControllerId::LIMIT).map(ControllerId) {
            for _ in 0..BATCH {
                let Some(controller) = self.controllers.get_mut(&id) else {
                    break;
                };
                match controller.receive() {
                    Received::Message(message, fds) => self.handle(id, message, fds),
                    Received::Malformed => {}
                    Received::Nothing => break,
                }
            }
        }
    }

    fn handle(&mut self, controller: ControllerId, message: ToDriver, fds: Vec<OwnedFd>) {
        match message {
            ToDriver::Attach { port, spec } => match self.objection(controller, port, &spec) {
                None => self.attach(port, spec, fds),
                Some(reason) => self.refuse(controller, port, reason),
            },
            ToDriver::Change { port, spec } => match self.objection(controller, port, &spec) {
                None => self.change(port, spec),
                Some(reason) => self.refuse(controller, port, reason),
            },
            ToDriver::Detach { port } if controller.owns(port) => self.detach(port),
            ToDriver::Detach { port } => log::debug!("port {port} is not controller {controller}'s"),
            ToDriver::Devices => {
                if let Some(controller) = self.controllers.get_mut(&controller) {
                    controller.wants_devices = true;
                }
            }
            ToDriver::Queue { port } if controller.owns(port) => {
                if let Some(controller) = self.controllers.get_mut(&controller) {
                    controller.want_queue(port);
                }
            }
            ToDriver::Steer { port, mac, mark } if controller.owns(port) => {
                let result = self.steer(port, mac, mark);
                if let Some(controller) = self.controllers.get_mut(&controller) {
                    controller.note_steered(port, mac, mark.is_some(), result);
                }
            }
            ToDriver::Queue { port } | ToDriver::Steer { port, .. } => {
                log::debug!("port {port} is not controller {controller}'s");
            }
            ToDriver::List => {
                if let Some(controller) = self.controllers.get_mut(&controller) {
                    controller.lists = controller.lists.saturating_add(1);
                }
            }
        }
    }

    fn refuse(&mut self, controller: ControllerId, port: PortId, reason: String) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.refuse(port, reason);
        }
    }

    /// Why a controller must not attach that interface as that port.
    fn objection(&self, controller: ControllerId, port: PortId, spec: &InterfaceSpec) -> Option<String> {
        if !controller.owns(port) {
            return Some(format!("port number {port} is another controller's"));
        }
        let is_taken = |(other, taken): (&PortId, &Port)| {
            !controller.owns(*other) && taken.spec.name == spec.name && taken.spec.netns() == spec.netns()
        };
        let taken = self.ports.iter().any(is_taken);
        taken.then(|| format!("{} is another controller's", spec.name))
    }

    fn attach(&mut self, id: PortId, spec: InterfaceSpec, mut fds: Vec<OwnedFd>) {
        let given = matches!(spec.kind, InterfaceKind::Given { .. });
        let tap = (given && fds.len() == 2).then(|| fds.pop()).flatten();
        let stream = match (fds.pop(), fds.is_empty()) {
            (Some(fd), true) => UnixStream::from(fd),
            _ => {
                log::error!("port {id}: attached without a stream");
                return;
            }
        };
        let finished = self.ports.get(&id).is_none_or(|port| port.thread.is_finished());
        if finished && let Err(error) = self.start_port(id, spec.clone(), Left::Nothing) {
            log::error!("port {id}: no thread: {error}");
            return;
        }
        self.specify(id, &spec);
        if let Some(port) = self.ports.get_mut(&id) {
            port.forget_told();
            port.connection.waiting = None;
            port.connection.is_awaited = true;
            port.send(Command::Attach(spec, stream, tap));
        }
    }

    /// Changes the interface of a port, if it has one. Otherwise the controller attaches one with this
    /// specification.
    fn change(&mut self, id: PortId, spec: InterfaceSpec) {
        self.specify(id, &spec);
        if let Some(port) = self.ports.get_mut(&id) {
            port.refresh_if_told(id);
            port.send(Command::Change(spec));
        }
    }

    /// Notes the specification of a port, which may take another forwarder.
    fn specify(&mut self, id: PortId, spec: &InterfaceSpec) {
        let forwarder = self.forwarder_of(id, spec);
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        port.spec = spec.clone();
        if port.forwarder != forwarder {
            let before = std::mem::replace(&mut port.forwarder, forwarder);
            port.connection.state = Some(InterfaceState::Disconnected);
            if std::mem::take(&mut port.connection.is_attached) {
                self.tell_forwarder(before, ToForwarder::Detach { port: id }, Vec::new());
            }
        }
    }

    /// Makes a port, with what an earlier broker has left of it.
    fn start_port(&mut self, id: PortId, spec: InterfaceSpec, left: Left) -> io::Result<()> {
        let (interface, hiding) = match left {
            Left::Nothing => (None, None),
            Left::Open(interface) => (Some(interface), None),
            Left::Hidden(hiding) => (None, Some(hiding)),
        };
        self.generation += 1;
        let (commands, receiver) = mpsc::channel();
        let opener = Opener::new(Start {
            port: id,
            generation: self.generation,
            // Where nothing is open yet, there is no earlier specification from which this one could differ.
            spec: spec.clone(),
            interface,
            hiding,
            commands: receiver,
            reports: self.reporter.clone(),
            reported: self.reported.clone(),
            means: self.means.clone(),
        });
        let thread = std::thread::Builder::new()
            .name(format!("open-{id}"))
            .spawn(move || opener.run())?;
        let forwarder = self.forwarder_of(id, &spec);
        let port = Port::new(spec, forwarder, self.generation, commands, thread);
        self.ports.insert(id, port);
        Ok(())
    }

    /// Takes up an interface that an earlier broker had kept.
    pub(super) fn take_up(&mut self, about: OpenInterface, fds: Vec<OwnedFd>) {
        let (id, spec, forwarder) = (about.port, about.spec, about.forwarder);
        let mut fds = fds;
        let of_device = about.opened.as_ref().map_or(0, Opened::descriptors);
        if fds.len() < of_device.max(1) {
            return log::error!("port {id}: kept without its device");
        }
        let link = fds.split_off(of_device).into_iter().next();
        let taken = match (about.opened, link) {
            (Some(opened), link) => self.take_up_open(id, spec, opened, fds, link),
            (None, None) => return,
            (None, Some(first)) => {
                let reason = "it could not be opened before".into();
                let left = Left::Hidden(Hiding::Program(first));
                self.start_port(id, spec, left).map(|()| (None, Some(reason)))
            }
        };
        match (taken, self.ports.get_mut(&id)) {
            (Ok((open, trouble)), Some(port)) => {
                port.forwarder = forwarder;
                port.connection.state = None;
                (port.open, port.trouble) = (open, trouble);
            }
            (Ok(_), None) => {}
            (Err(error), _) => log::error!("port {id}: {error}"),
        }
    }

    /// Makes a port whose interface is open; returns what is open, and no trouble.
    fn take_up_open(
        &mut self,
        id: PortId,
        spec: InterfaceSpec,
        opened: Opened,
        descriptors: Vec<OwnedFd>,
        link: Option<OwnedFd>,
    ) -> io::Result<(Option<Open>, Option<String>)> {
        let own_link = link.as_ref().map(OwnedFd::try_clone).transpose()?;
        let own: io::Result<Vec<_>> = descriptors.iter().map(OwnedFd::try_clone).collect();
        let interface = Interface::kept((id, &spec), opened.clone(), own?, own_link, &self.means);
        let interface = interface.ok_or(io::ErrorKind::InvalidData)?;
        self.start_port(id, spec, Left::Open(interface))?;
        let open = Open {
            descriptors,
            link,
            opened,
            is_handed_over: true,
        };
        Ok((Some(open), None))
    }

    fn detach(&mut self, id: PortId) {
        let Some(port) = self.ports.remove(&id) else {
            return;
        };
        if !Port::is_tap(&port.spec) {
            self.means.forget_filters(&port.spec.name);
        }
        if port.connection.is_attached {
            self.tell_forwarder(port.forwarder, ToForwarder::Detach { port: id }, Vec::new());
        }
        self.tell_supervisor(FromChild::Forget(id), Vec::new());
        port.send(Command::Detach);
        // Waited for, so that the interface is free for the next one.
        if port.thread.join().is_err() {
            log::error!("port {id}: its thread had crashed");
        }
    }

    /// The forwarder that serves such an interface: one for all TAPs, and one for each device as far as there
    /// are numbers.
    fn forwarder_of(&self, id: PortId, spec: &InterfaceSpec) -> ForwarderId {
        if Port::is_tap(spec) {
            return ForwarderId::TAPS;
        }
        let others = || self.ports.iter().filter(|(other, _)| **other != id);
        let is_free = |number: &ForwarderId| others().all(|(_, port)| port.forwarder != *number);
        let own = self.ports.get(&id).filter(|port| port.spec.name == spec.name);
        let own = own
            .map(|port| port.forwarder)
            .filter(|number| *number != ForwarderId::TAPS);
        own.or_else(|| ForwarderId::of_devices().find(is_free))
            .unwrap_or(ForwarderId::SHARED)
    }
}
