//! A forwarder: a process that moves frames between devices that the broker has opened and the data plane.
//!
//! | module | contents |
//! |---|---|
//! | `worker` | a thread per port: its device, its connection, waiting |
//! | `coalescing` | whether a worker sleeps until the next frame, or for a fixed time |
//! | `waking_core` | the core from which a worker is woken, where it stays |
//! | `watchdog` | whether workers go on |
//! | `back_end` | devices: batches of frames in and out |
//! | `session` | vhost-user negotiation, memory, rings |
//! | `forward` | frames between the two, in batches |
//! | `area`, `outbound` | memory of frames on their way to the data plane; frames on their way to an interface |
//!
//! Frames of a TAP are read straight into the shared memory of the transmit ring, and all are sent from that
//! of the receive ring. Those of an uplink lie in its ring already, from which they are copied; only long
//! ones take a system call each. One thread serves both directions of an interface and sleeps whenever there
//! is nothing to do.
//!
//! The process has no capability, and can open nothing. It goes on without a broker; to the next one it says
//! which ports it serves.

mod area;
mod back_end;
mod coalescing;
mod forward;
mod outbound;
mod session;
mod waking_core;
mod watchdog;
mod worker;

use crate::DriverError;
use control_protocol::driver::{InterfaceState, thread_name};
use control_protocol::forwarder::{Device, FromForwarder, ToForwarder};
use control_protocol::supervisor::{FromChild, Role, ToChild, VmStates};
use control_protocol::{Channel, ChannelError};
use flow::PortId;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, VecDeque};
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
use watchdog::Watchdog;
use worker::{Command, News, Report, Start, Worker};

/// Runs a forwarder until the supervisor asks it to end, or is gone.
pub fn forward(supervisor: Channel) -> Result<(), DriverError> {
    let mut forwarder = Forwarder::new(Watchdog::start(&supervisor)?)?;
    let result = forwarder.serve(&supervisor);
    forwarder.end();
    result
}

struct Forwarder {
    broker: Option<Channel>,
    /// Reports that the broker has not got yet.
    unsent: VecDeque<FromForwarder>,
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
    watchdog: Arc<Watchdog>,
}

struct Port {
    /// The number of the stream that it got last, and the state that the worker has told last.
    state: (u32, InterfaceState),
    /// Why it has no device any more, if the worker has said so.
    broken: Option<String>,
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

impl Forwarder {
    fn new(watchdog: Arc<Watchdog>) -> io::Result<Forwarder> {
        let (reporter, reports) = mpsc::channel();
        Ok(Forwarder {
            broker: None,
            unsent: VecDeque::new(),
            ports: BTreeMap::new(),
            generation: 0,
            reports,
            reporter,
            reported: Arc::new(Doorbell::new()?),
            priority: Priority::Normal,
            states: None,
            watchdog,
        })
    }

    fn serve(&mut self, supervisor: &Channel) -> Result<(), DriverError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        // Edge-triggered through an epoll instance of its own, since the event descriptor is not read.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let tag = epoll::EventData::new_u64(0);
        epoll::add(&poller, &*self.reported, tag, edge).map_err(io::Error::from)?;
        loop {
            self.report();
            self.wait(supervisor, &poller)?;
            if let Next::End = self.on_supervisor(supervisor)? {
                return Ok(());
            }
            self.on_broker();
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
        if let Some(broker) = &self.broker {
            let more = if self.unsent.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            fds.push(PollFd::new(broker, PollFlags::IN | more));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            let mut events = Vec::with_capacity(1);
            let now = Timespec::default();
            // Takes the edge; the event itself says nothing new.
            let _ = epoll::wait(reported, rustix::buffer::spare_capacity(&mut events), Some(&now));
        }
        Ok(())
    }

    fn on_supervisor(&mut self, supervisor: &Channel) -> Result<Next, DriverError> {
        loop {
            match supervisor.try_recv::<ToChild>() {
                Ok((ToChild::Peer(Role::Driver), fds)) => self.connect(fds),
                Ok((ToChild::Priority(granted), _)) => self.priority = granted.class,
                Ok((ToChild::VmState(VmStates::Published), fds)) => self.read_states(&fds),
                Ok((ToChild::VmState(VmStates::Unavailable(_)), _)) => {}
                // The supervisor reads, or it is gone.
                Ok((ToChild::Ping(ping), _)) => drop(supervisor.try_send(&FromChild::Pong(ping), &[])),
                Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(Next::End),
                Ok((other, _)) => log::debug!("not for a forwarder: {other:?}"),
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

    /// There is a new broker, to which all ports are new.
    fn connect(&mut self, mut fds: Vec<OwnedFd>) {
        self.broker = fds.pop().map(Channel::from);
        self.unsent.clear();
        let ports = self.ports.iter();
        let list = ports.map(|(id, port)| (*id, port.state.0, port.state.1.clone()));
        self.unsent.push_back(FromForwarder::Ports(list.collect()));
        let broken = self
            .ports
            .iter()
            .filter_map(|(id, port)| Some((*id, port.broken.clone()?)));
        let broken = broken.map(|(port, reason)| FromForwarder::Broken { port, reason });
        self.unsent.extend(broken);
    }

    fn on_broker(&mut self) {
        while let Some(broker) = &self.broker {
            match broker.try_recv() {
                Ok((message, fds)) => self.handle(message, fds),
                Err(ChannelError::WouldBlock) => return,
                Err(error) => {
                    log::info!("broker: {error}; forwarding goes on");
                    self.broker = None;
                    self.unsent.clear();
                }
            }
        }
    }

    fn handle(&mut self, message: ToForwarder, fds: Vec<OwnedFd>) {
        let takes = match &message {
            ToForwarder::Attach { device, .. } => 1 + device.descriptors(),
            ToForwarder::Device { device, .. } => device.as_ref().map_or(0, Device::descriptors),
            ToForwarder::Detach { .. } | ToForwarder::Mark { .. } => 0,
        };
        if fds.len() != takes {
            return log::error!("other descriptors than it takes: {message:?}");
        }
        let mut fds = fds;
        match message {
            ToForwarder::Attach { port, stream, device } => {
                let end = UnixStream::from(fds.remove(0));
                let spare = end.try_clone().ok();
                let command = Command::Attach(stream, end, device, fds);
                self.attach(port, stream, command, spare);
            }
            ToForwarder::Device { port, device } => {
                self.tell(port, Command::Device(device.map(|device| (device, fds))));
            }
            ToForwarder::Mark { port, mark } => {
                if let Some(port) = self.ports.get(&port) {
                    port.send(Command::Mark(mark));
                }
            }
            ToForwarder::Detach { port } => self.detach(port),
        }
    }

    fn attach(&mut self, id: PortId, number: u32, command: Command, spare: Option<UnixStream>) {
        let finished = self.ports.get(&id).is_none_or(|port| port.thread.is_finished());
        if finished && let Err(error) = self.start(id) {
            let failed = InterfaceState::Failed(format!("no thread: {error}"));
            return self.unsent.push_back(FromForwarder::State {
                port: id,
                stream: number,
                state: failed,
            });
        }
        if let Some(port) = self.ports.get_mut(&id) {
            // The worker gets the new stream before it can see the end of the old one.
            port.send(command);
            port.shut_down_stream();
            port.stream = spare;
            port.state.0 = number;
            port.broken = None;
        }
    }

    fn tell(&mut self, id: PortId, command: Command) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.broken = None;
            port.send(command);
        }
    }

    fn start(&mut self, id: PortId) -> io::Result<()> {
        self.generation += 1;
        let (commands, receiver) = mpsc::channel();
        let wake = Arc::new(Doorbell::new()?);
        let worker = Worker::new(Start {
            port: id,
            generation: self.generation,
            commands: receiver,
            wake: wake.clone(),
            reports: self.reporter.clone(),
            reported: self.reported.clone(),
            priority: self.priority,
            states: self.states.clone(),
            watchdog: self.watchdog.clone(),
        });
        let thread = std::thread::Builder::new()
            .name(thread_name(id))
            .spawn(move || worker.run())?;
        let port = Port {
            state: (0, InterfaceState::Disconnected),
            broken: None,
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
        if port.thread.join().is_err() {
            log::error!("port {id}: its thread had crashed");
        }
    }

    fn note(&mut self, (id, generation, news): Report) {
        let current = |port: &&mut Port| port.generation == generation;
        let Some(port) = self.ports.get_mut(&id).filter(current) else {
            return;
        };
        let message = match news {
            News::State(stream, state) => {
                port.state = (stream, state.clone());
                FromForwarder::State {
                    port: id,
                    stream,
                    state,
                }
            }
            News::Broken(reason) => {
                port.broken = Some(reason.clone());
                FromForwarder::Broken { port: id, reason }
            }
        };
        if self.broker.is_some() {
            self.unsent.push_back(message);
        }
    }

    /// Sends the broker what it has not got yet, as far as there is room.
    fn report(&mut self) {
        let Some(broker) = &self.broker else { return };
        while let Some(message) = self.unsent.front() {
            match broker.try_send(message, &[]) {
                Err(ChannelError::WouldBlock) => return,
                // The end of the channel is noticed when it is read.
                Ok(()) | Err(_) => drop(self.unsent.pop_front()),
            }
        }
    }

    fn end(&mut self) {
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
