//! Connecting ports, and the driver domain.
//!
//! | link | action | when |
//! |---|---|---|
//! | `Listen` | we bind the socket, the data plane accepts | once per data plane; the socket file is ours |
//! | `Connect` | we connect, the data plane gets the stream | whenever the port is disconnected |
//! | `Interface` | a socket pair, one end each for driver domain and data plane | whenever either lost it |
//!
//! Every attempt that fails is repeated with back-off ([`controller::Retry`]).

use crate::control::Control;
use crate::l2::storm::StormLimits;
use crate::pending::Pending;
use crate::port::PortRun;
use crate::refusal::Problem;
use crate::state::Link;
use control_protocol::Channel;
use control_protocol::data_plane::{Connection, PortSpec, PortState, Request};
use control_protocol::driver::{InterfaceKind, InterfaceSpec, InterfaceState};
use controller::DriverEvent;
use flow::{PortId, PortRates};
use std::os::fd::OwnedFd;

impl Control {
    /// The data plane's view of a port; `None` until it has a number.
    pub fn port_spec(&self, name: &str) -> Option<PortSpec> {
        let run = self.ports.get(name)?;
        let port = &run.wanted;
        let connection = match &port.link {
            Link::Listen(_) => Connection::Listener,
            Link::Connect(_) => Connection::Attached,
            Link::Interface(spec) if matches!(spec.kind, InterfaceKind::Veth(_)) => Connection::Veth,
            Link::Interface(_) => Connection::Driver,
        };
        Some(PortSpec {
            port: run.id?,
            switch: self.switches.runs.get(&port.switch)?.id?,
            name: name.into(),
            connection,
            mtu: port.mtu,
            miss_rate: port.miss_rate,
            mac: port.mac,
            masked_features: 0,
            filters: self.filters(name),
            mirrors: self.mirrors(name),
            p4: self.p4_attachment(name, &run.wanted.switch),
        })
    }

    /// Adds a port to the data plane, if there is one and the port has a number. When the listening socket
    /// cannot be opened, the error is in the log and in the port's entry, and the attempt is repeated.
    pub fn add_port(&mut self, name: &str) {
        let now_ms = self.now_ms();
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        if let Some(id) = run.id {
            self.vcpus.added(id);
        }
        let link = run.wanted.link.clone();
        run.forget_data_plane();
        let mut fds = Vec::new();
        match &link {
            Link::Listen(path) => match run.listening(path, &self.options.groups) {
                Ok(fd) => fds.push(fd),
                Err(problem) => {
                    run.problem = Some(problem);
                    run.retry.attempted(now_ms);
                    return;
                }
            },
            Link::Connect(_) | Link::Interface(_) => run.retry.try_now(now_ms),
        }
        run.problem = None;
        let (Some(spec), true) = (self.port_spec(name), self.data_plane.numbered) else {
            return;
        };
        let (id, filters, p4, mirrors) = (spec.port, spec.filters, spec.p4.clone(), spec.mirrors.clone());
        let asked = self.data_plane.ask_port(Request::PortAdd(spec), fds, name);
        if let Some(run) = self.ports.get_mut(name) {
            run.added = asked;
            run.filters = filters;
            run.mirrors = mirrors;
            run.p4 = p4;
            let storm = &run.wanted.rules.storm;
            self.data_plane
                .change_storm_limits(id, &StormLimits::default(), storm);
            if run.wanted.rates != PortRates::default() {
                self.data_plane.change_rates(id, run.wanted.rates);
            }
        }
    }

    /// Closes the socket or interface that a port has open outside the data plane.
    pub fn close_link(&mut self, run: &PortRun) {
        run.remove_socket();
        if let (Link::Interface(_), Some(port)) = (&run.wanted.link, run.id) {
            self.driver.detach(port);
        }
    }

    /// Tries to connect the ports that are due.
    pub fn connect_links(&mut self, now_ms: u64) {
        let ports = self.ports.iter_mut();
        let due = ports.filter_map(|(name, run)| run.retry.take_due(now_ms).then(|| name.clone()));
        for name in due.collect::<Vec<_>>() {
            let Some(run) = self.ports.get_mut(&name) else {
                continue;
            };
            let link = run.wanted.link.clone();
            if !run.added {
                if self.data_plane.is_numbered() {
                    self.add_port(&name);
                }
                continue;
            }
            match &link {
                Link::Listen(_) => {}
                Link::Connect(path) if run.state == PortState::Disconnected => {
                    match socket_path::connect_to(path) {
                        Ok(stream) => {
                            run.problem = None;
                            run.retry.attempted(now_ms);
                            self.attach(&name, stream);
                        }
                        Err(error) => {
                            run.problem = Some(Problem::Connect {
                                path: path.path.clone(),
                                error: error.to_string(),
                            });
                            run.retry.failed(now_ms);
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
            self.data_plane
                .ask_port(Request::PortAttach { port }, vec![stream], name);
        }
    }

    fn attach_interface(&mut self, name: &str, spec: &InterfaceSpec, now_ms: u64) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        if run.interface_up && run.state != PortState::Disconnected {
            return;
        }
        let Some(id) = run.id.filter(|_| self.driver.is_compared()) else {
            return;
        };
        run.retry.attempted(now_ms);
        match self.driver.attach(id, spec.clone(), None) {
            Ok(stream) => self.attach(name, stream),
            Err(error) => run.problem = Some(Problem::SocketPair(error.to_string())),
        }
    }

    pub fn attach_driver(&mut self, channel: Channel) {
        log::info!("connected to the driver domain");
        self.driver.attach_channel(channel);
        for run in self.ports.values_mut() {
            run.interface_up = false;
        }
    }

    pub fn on_driver(&mut self, burst: usize) {
        for _ in 0..burst {
            match self.driver.receive() {
                Ok(Some(DriverEvent::Listed)) => self.compare_interfaces(),
                Ok(Some(DriverEvent::State(port, state))) => self.interface_state(port, state),
                Ok(Some(DriverEvent::Addresses(port))) => {
                    for warning in self.uplink_warnings(port) {
                        log::warn!("{warning}");
                    }
                }
                Ok(Some(DriverEvent::Devices)) => self.answer_device_queries(),
                Ok(Some(DriverEvent::Queue(port))) => self.use_queue(port),
                Ok(Some(DriverEvent::Steered(port, mac, is_on, result))) => {
                    self.on_steered(port, mac, is_on, result);
                }
                Ok(None) => return,
                Err(lost) => {
                    let now_ms = self.now_ms();
                    self.driver.detach_channel(lost, now_ms);
                    return self.answer_device_queries();
                }
            }
        }
    }

    /// Closes interfaces that are not wanted any more, and attaches those that are not connected. Waits until
    /// port numbers are known.
    pub fn compare_interfaces(&mut self) {
        let now_ms = self.now_ms();
        if !self.data_plane.numbered {
            return;
        }
        let Some(listed) = self.driver.compare() else {
            return;
        };
        let mut fast = Vec::new();
        for (id, (spec, state)) in listed {
            let name = self.names.get(&id);
            let run = name.and_then(|name| self.ports.get_mut(name));
            fast.extend(
                name.filter(|_| run.as_ref().is_some_and(|run| run.wanted.fast_path))
                    .cloned(),
            );
            match run.map(|run| (&run.wanted.link, &mut run.interface_up)) {
                Some((Link::Interface(wanted), is_up)) if wanted.is_same_device(&spec) => {
                    *is_up = state == InterfaceState::Up;
                    if *wanted != spec {
                        self.driver.change(id, wanted.clone());
                    }
                }
                _ => self.driver.detach(id),
            }
        }
        for run in self.ports.values_mut() {
            run.retry.ensure_due(now_ms);
        }
        fast.iter().for_each(|name| self.adjust_queue(name));
    }

    fn interface_state(&mut self, id: PortId, state: InterfaceState) {
        let now_ms = self.now_ms();
        let Some(name) = self.names.get(&id) else { return };
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let is_up = state == InterfaceState::Up;
        run.on_interface_state(state, now_ms);
        if run.wanted.fast_path && is_up {
            run.no_queue = Some("its queue is being opened".into());
            self.driver.ask_for_queue(id);
        }
    }

    /// A queue of a port's device has come, or will not.
    fn use_queue(&mut self, id: PortId) {
        let Some(queue) = self.driver.take_queue(id) else {
            return;
        };
        let name = self.names.get(&id);
        let Some((name, run)) = name.and_then(|name| Some((name.clone(), self.ports.get_mut(name)?))) else {
            return;
        };
        match queue {
            Ok(ends) if run.wanted.fast_path && run.added => {
                let (sender, header_len) = ends.sends;
                let (receiver, receives) = match ends.receives {
                    Ok((socket, header_len)) => (Some(socket), Ok(header_len)),
                    Err(reason) => (None, Err(reason)),
                };
                (run.no_queue, run.no_arrivals) = (None, receives.clone().err());
                let request = Request::PortQueue {
                    port: id,
                    header_len: Some(header_len),
                    receives: receives.ok(),
                };
                let sockets = [sender].into_iter().chain(receiver).collect();
                self.data_plane.ask(request, sockets, Pending::Queue(name));
            }
            Ok(_) => {}
            Err(reason) => run.no_queue = Some(reason),
        }
    }

    /// Has a port have a queue of its device, or no longer, as it should.
    pub fn adjust_queue(&mut self, name: &str) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let Some(id) = run.id.filter(|_| run.added) else {
            return;
        };
        if run.wanted.fast_path && run.interface_up {
            self.driver.ask_for_queue(id);
        } else if !run.wanted.fast_path && run.is_interface() {
            run.no_queue = None;
            self.data_plane.client.tell(Request::PortQueue {
                port: id,
                header_len: None,
                receives: None,
            });
            self.end_steering(name);
        }
    }
}
