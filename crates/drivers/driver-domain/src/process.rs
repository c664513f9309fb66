//! The main thread: serves supervisor and controllers, and keeps one worker per port.
//!
//! The thread never waits for anything but its channels and its workers' ends. A worker that is to end, or
//! whose stream is replaced, may be waiting for the data plane; shutting the stream down ends that wait. The
//! thread does not wait for a controller that does not read either: it keeps the state to be reported, one
//! per port. Controllers take turns, and each reaches its own ports only: a port belongs to the controller in
//! whose range its number is.

use crate::controller::{Controller, Received};
use crate::interface::{Command, News, Report, Start, Worker};
use control_protocol::driver::{
    FromDriver, InterfaceAddresses, InterfaceKind, InterfaceSpec, InterfaceState, ToDriver, thread_name,
};
use control_protocol::supervisor::{FromChild, ToChild, VmStates};
use control_protocol::{Channel, ChannelError};
use flow::{ControllerId, PortId};
use nic_packet::{Addresses, LinkEvent, LinkWatch, Owner};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use thread_priority::Priority;
use virtqueue::driver::Doorbell;
use vm_state::VmState;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The supervisor's channel broke.
    #[error("supervisor channel: {0}")]
    Supervisor(ChannelError),
    /// A descriptor could not be made, or not be waited for.
    #[error("waiting: {0}")]
    Io(#[from] io::Error),
}

/// Messages of a controller that are read before others get their turn.
const BATCH: usize = 16;

/// Runs the driver domain until the supervisor asks it to end, or is gone. Then TAPs made by this process, or
/// taken over by it, disappear; `owner` is the instance whose they are. Takes CAP_NET_ADMIN, CAP_NET_RAW and,
/// to enter network namespaces, CAP_SYS_ADMIN.
pub fn run(supervisor: Channel, owner: Owner) -> Result<(), DriverError> {
    let mut domain = Domain::new(owner)?;
    let result = domain.serve(&supervisor);
    domain.end();
    result
}

struct Domain {
    controllers: BTreeMap<ControllerId, Controller>,
    ports: BTreeMap<PortId, Port>,
    /// Number of the last worker started.
    generation: u64,
    reports: Receiver<Report>,
    reporter: Sender<Report>,
    reported: Arc<Doorbell>,
    /// How workers are scheduled that start from now on.
    priority: Priority,
    /// The states of cores, for workers that start from now on.
    states: Option<Arc<VmState>>,
    owner: Arc<Owner>,
    /// Interfaces of the host's namespace and their addresses; `None` if the kernel does not let us watch.
    watch: Option<LinkWatch>,
}

struct Port {
    spec: InterfaceSpec,
    state: InterfaceState,
    /// The controller has not yet been told this state.
    unreported: bool,
    addresses: Option<Addresses>,
    /// The controller has not yet been told these addresses.
    unreported_addresses: bool,
    generation: u64,
    commands: Sender<Command>,
    wake: Arc<Doorbell>,
    /// The stream that the worker has, to be shut down.
    stream: Option<UnixStream>,
    thread: JoinHandle<()>,
}

/// What the supervisor wants.
enum Next {
    GoOn,
    End,
}

impl Domain {
    fn new(owner: Owner) -> io::Result<Domain> {
        let (reporter, reports) = mpsc::channel();
        Ok(Domain {
            controllers: BTreeMap::new(),
            ports: BTreeMap::new(),
            generation: 0,
            reports,
            reporter,
            reported: Arc::new(Doorbell::new()?),
            priority: Priority::Normal,
            states: None,
            owner: Arc::new(owner),
            watch: LinkWatch::with_addresses()
                .inspect_err(|error| log::warn!("{error}"))
                .ok(),
        })
    }

    fn serve(&mut self, supervisor: &Channel) -> Result<(), DriverError> {
        let poller = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(io::Error::from)?;
        // Edge-triggered through an epoll instance of its own, since the event descriptor is not read.
        let edge = rustix::event::epoll::EventFlags::IN | rustix::event::epoll::EventFlags::ET;
        let tag = rustix::event::epoll::EventData::new_u64(0);
        rustix::event::epoll::add(&poller, &*self.reported, tag, edge).map_err(io::Error::from)?;
        loop {
            self.report();
            self.wait(supervisor, &poller)?;
            if let Next::End = self.on_supervisor(supervisor)? {
                return Ok(());
            }
            self.on_controllers();
            self.on_links();
            while let Ok(report) = self.reports.try_recv() {
                self.note(report);
            }
        }
    }

    fn wait(&self, supervisor: &Channel, reported: &OwnedFd) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(supervisor, PollFlags::IN),
            PollFd::new(reported, PollFlags::IN),
        ];
        for controller in self.controllers.values() {
            let Some(channel) = &controller.channel else {
                continue;
            };
            let unreported = |(id, port): (&PortId, &Port)| {
                (port.unreported || port.unreported_addresses) && controller.id.owns(*id)
            };
            // One that has sent several messages together is heard as soon as there is room for answers.
            let has_received = channel.has_received();
            let flags = if has_received || controller.is_owed() || self.ports.iter().any(unreported) {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            fds.push(PollFd::new(channel, flags));
        }
        if let Some(watch) = &self.watch {
            fds.push(PollFd::new(watch, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            let mut events = Vec::with_capacity(1);
            let now = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // Takes the edge; the event itself says nothing new.
            let _ =
                rustix::event::epoll::wait(reported, rustix::buffer::spare_capacity(&mut events), Some(&now));
        }
        Ok(())
    }

    fn on_supervisor(&mut self, supervisor: &Channel) -> Result<Next, DriverError> {
        loop {
            match supervisor.try_recv::<ToChild>() {
                Ok((ToChild::Controller(id), fds)) => self.connect(id, fds),
                Ok((ToChild::Priority(granted), _)) => self.priority = granted.class,
                Ok((ToChild::VmState(VmStates::Published), fds)) => self.read_states(&fds),
                Ok((ToChild::VmState(VmStates::Unavailable(_)), _)) => {}
                // The supervisor reads, or it is gone.
                Ok((ToChild::Ping(ping), _)) => drop(supervisor.try_send(&FromChild::Pong(ping), &[])),
                Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(Next::End),
                Ok((other, _)) => log::debug!("not for a driver domain: {other:?}"),
                Err(ChannelError::WouldBlock) => return Ok(Next::GoOn),
                Err(ChannelError::Malformed(error)) => log::error!("from the supervisor: {error}"),
                Err(error) => return Err(DriverError::Supervisor(error)),
            }
        }
    }

    /// Takes the memory in which the states of cores are published.
    fn read_states(&mut self, fds: &[OwnedFd]) {
        let area = fds.first().ok_or_else(|| io::ErrorKind::NotFound.into());
        let states = area.and_then(|area| VmState::map(area.as_fd()));
        self.states = states
            .inspect_err(|error| log::warn!("states of cores: {error}"))
            .ok()
            .map(Arc::new);
    }

    /// A controller has a new channel. It asks for the list of its interfaces itself.
    fn connect(&mut self, id: ControllerId, mut fds: Vec<OwnedFd>) {
        let Some(fd) = fds.pop().filter(|_| id.0 < ControllerId::LIMIT) else {
            return log::error!("controller {id} cannot be: no channel, or no such number");
        };
        let controller = Controller::new(id, Channel::from(fd));
        self.controllers.insert(id, controller);
        let own = self.ports.iter_mut().filter(|(port, _)| id.owns(**port));
        own.for_each(|(_, port)| (port.unreported, port.unreported_addresses) = (false, false));
    }

    fn on_controllers(&mut self) {
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
        let spare = stream.try_clone().ok();
        let finished = self.ports.get(&id).is_none_or(|port| port.thread.is_finished());
        if finished && let Err(error) = self.start(id, spec.clone()) {
            log::error!("port {id}: no thread: {error}");
            return;
        }
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        port.spec = spec.clone();
        // The worker gets the new stream before it can see the end of the old one.
        port.send(Command::Attach(spec, stream, tap));
        port.shut_down_stream();
        port.stream = spare;
    }

    /// Changes the interface of a port, if it has one. Otherwise the controller attaches one with this
    /// specification.
    fn change(&mut self, id: PortId, spec: InterfaceSpec) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.spec = spec.clone();
            port.send(Command::Change(spec));
        }
    }

    fn start(&mut self, id: PortId, spec: InterfaceSpec) -> io::Result<()> {
        self.generation += 1;
        let (commands, receiver) = mpsc::channel();
        let wake = Arc::new(Doorbell::new()?);
        let worker = Worker::new(Start {
            port: id,
            generation: self.generation,
            // Nothing is open yet, so there is no earlier specification from which this one could differ.
            spec: spec.clone(),
            commands: receiver,
            wake: wake.clone(),
            reports: self.reporter.clone(),
            reported: self.reported.clone(),
            priority: self.priority,
            states: self.states.clone(),
            owner: self.owner.clone(),
        });
        let thread = std::thread::Builder::new()
            .name(thread_name(id))
            .spawn(move || worker.run())?;
        let port = Port {
            spec,
            state: InterfaceState::Disconnected,
            unreported: false,
            addresses: None,
            unreported_addresses: false,
            generation: self.generation,
            commands,
            wake,
            stream: None,
            thread,
        };
        self.ports.insert(id, port);
        Ok(())
    }

    fn detach(&mut self, id: PortId) {
        let Some(port) = self.ports.remove(&id) else {
            return;
        };
        port.shut_down_stream();
        port.send(Command::Detach);
        // Waited for, so that the interface is free for the next worker.
        if port.thread.join().is_err() {
            log::error!("port {id}: its thread had crashed");
        }
    }

    fn note(&mut self, (id, generation, news): Report) {
        if let Some(port) = self
            .ports
            .get_mut(&id)
            .filter(|port| port.generation == generation)
        {
            match news {
                News::State(state) => (port.state, port.unreported) = (state, true),
                News::Addresses(addresses) => {
                    (port.addresses, port.unreported_addresses) = (Some(addresses), true);
                }
            }
        }
    }

    /// Has interfaces of the host's namespace looked at whose addresses may have changed.
    fn on_links(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        while let Some(event) = watch.next_event() {
            let changed = match event {
                LinkEvent::Is(link) => Some(link.index),
                LinkEvent::Addresses { index } | LinkEvent::Moved { index, .. } => Some(index),
                LinkEvent::Lost => None,
            };
            let concerned = self.ports.values().filter(|port| {
                let index = port.addresses.as_ref().map(|addresses| addresses.index);
                index.is_some() && port.spec.netns().is_none() && (changed.is_none() || index == changed)
            });
            concerned.for_each(|port| port.send(Command::Look));
        }
    }

    /// Sends controllers the states that they have not got yet, as far as their channels have room.
    fn report(&mut self) {
        for controller in self.controllers.values_mut() {
            controller.send_refusals();
            let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
            for (id, port) in own.filter(|(_, port)| port.unreported) {
                let message = FromDriver::State {
                    port: *id,
                    state: port.state.clone(),
                };
                if !controller.send(&message) {
                    break;
                }
                port.unreported = false;
            }
            while controller.lists > 0 {
                let own = self.ports.iter().filter(|(id, _)| controller.id.owns(**id));
                let all = own.map(|(id, port)| (*id, port.spec.clone(), port.state.clone()));
                if !controller.send(&FromDriver::Interfaces(all.collect())) {
                    break;
                }
                controller.lists -= 1;
                let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
                own.for_each(|(_, port)| port.unreported_addresses = port.addresses.is_some());
            }
            let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
            for (id, port) in own.filter(|(_, port)| port.unreported_addresses) {
                let addresses = port.addresses.clone().unwrap_or_default();
                let message = FromDriver::Addresses {
                    port: *id,
                    addresses: InterfaceAddresses {
                        mac: addresses.mac,
                        addresses: addresses.addresses,
                    },
                };
                if !controller.send(&message) {
                    break;
                }
                port.unreported_addresses = false;
            }
        }
    }

    fn end(mut self) {
        for port in self.ports.values() {
            port.shut_down_stream();
            port.send(Command::Detach);
        }
        while let Some((id, port)) = self.ports.pop_first() {
            if port.thread.join().is_err() {
                log::error!("port {id}: its thread had crashed");
            }
        }
    }
}

impl Port {
    fn send(&self, command: Command) {
        // A worker that crashed is replaced by the next `Attach`.
        let _ = self.commands.send(command);
        self.wake.ring();
    }

    fn shut_down_stream(&self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
