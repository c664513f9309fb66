//! Connecting ports, and the driver domain.
//!
//! | link | action | when |
//! |---|---|---|
//! | `Listen` | we bind the socket, the data plane accepts | once per data plane; the socket file is ours |
//! | `Connect` | we connect, the data plane gets the stream | whenever the port is disconnected |
//! | `Interface` | a socket pair, one end each for driver domain and data plane | whenever either lost it |
//!
//! Every attempt that fails is repeated with back-off, from a timer and never from the event that reported the loss: at that
//! moment the next event may be on its way already, and the port may be connected again.

use crate::clean;
use crate::peer::Peer;
use crate::process::Control;
use crate::refusal::Problem;
use crate::sockets;
use crate::state::{DesiredPort, Link};
use crate::vcpus::Guest;
use control_protocol::Channel;
use control_protocol::data_plane::{Connection, PortSpec, PortState, Request};
use control_protocol::driver::{FromDriver, InterfaceSpec, InterfaceState, ToDriver};
use flow::{PortId, SwitchId};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::OwnedFd;

/// First delay, in milliseconds.
const DELAY_MIN_MS: u64 = 100;

/// Longest delay between attempts to connect, in milliseconds.
const DELAY_MAX_MS: u64 = 5_000;

/// Time that a port may take to become connected after an attempt, in milliseconds.
const SETTLE_MS: u64 = 1_000;

/// A port as it runs.
pub(crate) struct PortRun {
    /// As it should be.
    pub wanted: DesiredPort,
    /// Number in the data plane; `None` until the data plane has listed the numbers in use.
    pub id: Option<PortId>,
    /// Whether the data plane in use has it.
    pub added: bool,
    /// Its state as the data plane reported it last.
    pub state: PortState,
    /// The process behind it, as the data plane reported it last.
    pub peer: Option<u32>,
    /// Its guest's threads.
    pub guest: Guest,
    /// Whether the driver domain reports that its interface works.
    interface_up: bool,
    /// Our copy of the listening socket: with it, guests that connect while the data plane restarts wait
    /// instead of being refused.
    listener: Option<OwnedFd>,
    /// Why it is not connected, for users.
    pub problem: Option<Problem>,
    /// When to try to connect, or to see whether that worked.
    pub due_ms: Option<u64>,
    delay_ms: u64,
}

impl PortRun {
    pub fn new(wanted: DesiredPort) -> Self {
        PortRun {
            wanted,
            id: None,
            added: false,
            state: PortState::Disconnected,
            peer: None,
            guest: Guest::default(),
            interface_up: false,
            listener: None,
            problem: None,
            due_ms: None,
            delay_ms: DELAY_MIN_MS,
        }
    }

    /// Tries again after the delay, unless something is due anyway.
    fn retry(&mut self, now_ms: u64) {
        if self.due_ms.is_none() {
            self.due_ms = Some(now_ms + self.delay_ms);
        }
    }

    /// Looks again after the delay, and doubles that.
    fn back_off(&mut self, now_ms: u64, least_ms: u64) {
        self.due_ms = Some(now_ms + self.delay_ms.max(least_ms));
        self.delay_ms = (self.delay_ms * 2).min(DELAY_MAX_MS);
    }
}

/// The driver domain.
pub(crate) struct DriverDomain {
    pub peer: Peer<ToDriver>,
    /// The interfaces that it has open, until they were compared with the desired state.
    listed: Option<Vec<(PortId, InterfaceSpec, InterfaceState)>>,
    /// Whether that comparison was made, so that attaching makes sense.
    ready: bool,
}

impl Control {
    /// The data plane's view of a port; `None` until it has a number.
    pub fn port_spec(&self, name: &str) -> Option<PortSpec> {
        let run = self.ports.get(name)?;
        let port = &run.wanted;
        let connection = match port.link {
            Link::Listen(_) => Connection::Listener,
            Link::Connect(_) => Connection::Attached,
            Link::Interface(_) => Connection::Driver,
        };
        Some(PortSpec {
            port: run.id?,
            switch: self.switch_id(&port.switch)?,
            name: name.into(),
            connection,
            mtu: port.mtu,
            miss_rate: port.miss_rate,
            mac: port.mac,
            masked_features: 0,
        })
    }

    pub fn switch_id(&self, name: &str) -> Option<SwitchId> {
        self.switches.get(name)?.id
    }

    /// Adds a port to the data plane, if there is one and the port has a number. When the listening socket cannot be opened, the
    /// error is in the log and in the port's entry, and the attempt is repeated.
    pub fn add_port(&mut self, name: &str) {
        let now_ms = self.now_ms();
        let threads = self.ports.get_mut(name).map(|run| run.guest.forget());
        self.forget_threads(threads.into_iter().flatten());
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let link = run.wanted.link.clone();
        run.added = false;
        run.state = PortState::Disconnected;
        let mut fds = Vec::new();
        match &link {
            Link::Listen(path) => match run.listening(path) {
                Ok(fd) => fds.push(fd),
                Err(error) => {
                    let problem = Problem::Listen {
                        path: path.clone(),
                        error: error.to_string(),
                    };
                    log::warn!("port {name}: {problem}");
                    run.problem = Some(problem);
                    run.back_off(now_ms, SETTLE_MS);
                    return;
                }
            },
            Link::Connect(_) | Link::Interface(_) => run.due_ms = Some(now_ms),
        }
        run.problem = None;
        let (Some(spec), true) = (self.port_spec(name), self.numbered) else {
            return;
        };
        let asked = self.ask_port(Request::PortAdd(spec), fds, name);
        if let Some(run) = self.ports.get_mut(name) {
            run.added = asked;
        }
    }

    /// Closes the socket or interface that a port has open outside the data plane.
    pub fn close_link(&mut self, run: &PortRun) {
        run.remove_socket();
        if let (Link::Interface(_), Some(port), Some(driver)) = (&run.wanted.link, run.id, &mut self.driver) {
            driver.peer.send(ToDriver::Detach { port }, Vec::new());
        }
    }

    /// The data plane has reported a port's state.
    pub fn port_state(&mut self, name: &str, state: PortState) {
        let now_ms = self.now_ms();
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        match &state {
            PortState::Disconnected => run.retry(now_ms),
            PortState::Running => {
                run.delay_ms = DELAY_MIN_MS;
                run.problem = None;
            }
            PortState::Broken(text) => run.problem = Some(Problem::DataPlane(text.clone())),
            PortState::Connected => {}
        }
        log::debug!("port {name}: {state:?}");
        run.state = state;
    }

    /// Tries to connect the ports that are due.
    pub fn connect_links(&mut self, now_ms: u64) {
        let due = |run: &PortRun| run.due_ms.is_some_and(|due| due <= now_ms);
        let names: Vec<String> = self
            .ports
            .iter()
            .filter(|(_, run)| due(run))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(run) = self.ports.get_mut(&name) else {
                continue;
            };
            let link = run.wanted.link.clone();
            run.due_ms = None;
            if !run.added {
                if self.data_plane.is_some() && self.numbered {
                    self.add_port(&name);
                }
                continue;
            }
            match &link {
                Link::Listen(_) => {}
                Link::Connect(path) if run.state == PortState::Disconnected => {
                    match sockets::connect_to(path) {
                        Ok(stream) => {
                            run.problem = None;
                            run.back_off(now_ms, SETTLE_MS);
                            self.attach(&name, stream);
                        }
                        Err(error) => {
                            run.problem = Some(Problem::Connect {
                                path: path.clone(),
                                error: error.to_string(),
                            });
                            run.back_off(now_ms, DELAY_MIN_MS);
                        }
                    }
                }
                Link::Connect(_) => {}
                Link::Interface(spec) => self.attach_interface(&name, spec, now_ms),
            }
        }
    }

    fn attach(&mut self, name: &str, stream: OwnedFd) {
        if let Some(port) = self.ports.get(name).and_then(|run| run.id) {
            self.ask_port(Request::PortAttach { port }, vec![stream], name);
        }
    }

    fn attach_interface(&mut self, name: &str, spec: &InterfaceSpec, now_ms: u64) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        if run.interface_up && run.state != PortState::Disconnected {
            return;
        }
        let Some(id) = run.id else { return };
        let Some(driver) = self.driver.as_mut().filter(|driver| driver.ready) else {
            return;
        };
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        match pair {
            Ok((ours, theirs)) => {
                driver.peer.send(
                    ToDriver::Attach {
                        port: id,
                        spec: spec.clone(),
                    },
                    vec![theirs],
                );
                run.back_off(now_ms, SETTLE_MS);
                self.attach(name, ours);
            }
            Err(error) => {
                run.problem = Some(Problem::SocketPair(error.to_string()));
                run.back_off(now_ms, SETTLE_MS);
            }
        }
    }

    pub fn attach_driver(&mut self, channel: Channel) {
        log::info!("connected to the driver domain");
        let mut peer = Peer::new(channel);
        peer.send(ToDriver::List, Vec::new());
        self.driver = Some(DriverDomain {
            peer,
            listed: None,
            ready: false,
        });
        for run in self.ports.values_mut() {
            run.interface_up = false;
        }
    }

    pub fn on_driver(&mut self, burst: usize) {
        for _ in 0..burst {
            let Some(driver) = &mut self.driver else { return };
            driver.peer.flush();
            match driver.peer.receive() {
                Ok(Some((message, _))) => match clean::driver(message) {
                    FromDriver::Interfaces(list) => {
                        driver.listed = Some(list);
                        self.compare_interfaces();
                    }
                    FromDriver::State { port, state } => self.interface_state(port, state),
                },
                Ok(None) => return,
                Err(lost) => return self.detach_driver(lost),
            }
        }
    }

    /// Closes interfaces that are not wanted any more, and attaches those that are not connected. Waits until port
    /// numbers are known.
    pub fn compare_interfaces(&mut self) {
        let now_ms = self.now_ms();
        let Some(driver) = self.driver.as_mut().filter(|_| self.numbered) else {
            return;
        };
        let Some(listed) = driver.listed.take() else {
            return;
        };
        driver.ready = true;
        for (id, spec, state) in listed {
            let name = self.names.get(&id);
            match name.and_then(|name| self.ports.get_mut(name)) {
                Some(run) if run.wanted.link == Link::Interface(spec) => {
                    run.interface_up = state == InterfaceState::Up;
                }
                _ => driver.peer.send(ToDriver::Detach { port: id }, Vec::new()),
            }
        }
        for run in self.ports.values_mut() {
            run.due_ms.get_or_insert(now_ms);
        }
    }

    fn interface_state(&mut self, id: PortId, state: InterfaceState) {
        let now_ms = self.now_ms();
        let Some(name) = self.names.get(&id) else { return };
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        run.interface_up = state == InterfaceState::Up;
        match state {
            InterfaceState::Up => run.problem = None,
            InterfaceState::Disconnected => run.retry(now_ms),
            InterfaceState::Failed(text) => {
                telemetry::limited_by!(id.0, log::Level::Warn, "port {name}: {text}");
                run.problem = Some(Problem::Driver(text));
                run.retry(now_ms);
            }
        }
    }
}

impl PortRun {
    /// Removes the socket file, if it is ours and not one that another process made before us.
    pub fn remove_socket(&self) {
        if let (Link::Listen(path), true) = (&self.wanted.link, self.added || self.listener.is_some()) {
            sockets::remove(path);
        }
    }

    /// The data plane had another port of this name, and its listening socket, which may be ours too, goes with it.
    pub fn clear_the_way(&mut self) {
        if let Link::Listen(path) = &self.wanted.link {
            self.listener = None;
            sockets::remove(path);
        }
    }

    /// The data plane refused a request about this port; it is repeated later.
    pub fn refused(&mut self, adding: bool, error: String, now_ms: u64) {
        self.problem = Some(Problem::DataPlane(error));
        self.added &= !adding;
        self.back_off(now_ms, SETTLE_MS);
    }

    /// A listening socket for the data plane, bound if there is none yet.
    fn listening(&mut self, path: &std::path::Path) -> io::Result<OwnedFd> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                let listener = sockets::listen_at(path, Mode::from_raw_mode(0o660))?;
                // The data plane has a thread that waits in accept.
                rustix::io::ioctl_fionbio(&listener, false)?;
                listener
            }
        };
        let copy = listener.try_clone()?;
        self.listener = Some(listener);
        Ok(copy)
    }
}
