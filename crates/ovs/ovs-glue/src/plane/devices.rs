//! Ports whose other end is a network device of the host: the TAP of an internal port, or a device that was
//! there before.
//!
//! The driver domain serves them, as it does for other controllers. Of a TAP it gets the descriptor, so that
//! it does not matter in which network namespace the TAP is. What was tried is tried again with back-off,
//! from a timer, as long as either end is not connected: so any of the processes may die and come back.
//! Interfaces that an earlier process of ours attached go on, and are left as they are.
//!
//! An internal port may become a virtual machine's, which the database says. ovs-vswitchd may have read there
//! what has not come to us yet, so a new one is *held*: its TAP is not attached before the database has told
//! all that it had to tell when the port was made ([`Plane::held`], [`Plane::release`]). Else the host would
//! speak into the switch through a virtual machine's port. A device that was there before is held as well, so
//! that no packet comes before the port's policy is known.

use super::ports::End;
use super::watch::Peer;
use super::{Pending, Plane, now_ms};
use crate::datapath::PortNo;
use crate::translate::port_number;
use control_protocol::Channel;
use control_protocol::data_plane::{PortState, Request};
use control_protocol::driver::{InterfaceKind, InterfaceSpec, InterfaceState};
use controller::{DriverEvent, Retry};
use flow::PortId;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};

/// Devices of ports.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// Ports that want their TAP's descriptor.
    pub wanting: VecDeque<PortNo>,
    /// Ports whose TAP has gone.
    pub gone: VecDeque<PortNo>,
    /// Ports held so far.
    holds: u64,
}

impl Devices {
    /// The number of a port that is held from now on.
    pub fn next_hold(&mut self) -> u64 {
        self.holds += 1;
        self.holds
    }
}

/// How far a port's device is.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// The driver domain says that it works.
    pub is_up: bool,
    /// Why it does not work, as was said last.
    pub problem: Option<String>,
    /// The device waits until the database has told all; its number among those that do.
    pub held: Option<u64>,
}

impl Plane {
    /// Takes a new driver domain in the place of the one before.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn connect_driver(&mut self, channel: Channel) -> std::io::Result<()> {
        self.driver.attach_channel(channel);
        self.devices_are_down();
        self.watch.follow(Peer::Driver, self.driver.interest())
    }

    /// Whether the driver domain has told its interfaces.
    pub fn knows_devices(&self) -> bool {
        self.driver.interfaces().is_some()
    }

    /// TAPs that an earlier process gave to the driver domain, with their indices.
    pub fn lent(&self) -> BTreeMap<String, u32> {
        let listed = self.driver.interfaces().into_iter().flat_map(BTreeMap::values);
        let tap = |(spec, _): &(InterfaceSpec, InterfaceState)| match spec.kind {
            InterfaceKind::Given { index } => Some((spec.name.clone(), index)),
            _ => None,
        };
        listed.filter_map(tap).collect()
    }

    /// The number of the port that was held last, if it is held still.
    pub fn held(&self) -> Option<u64> {
        let ports = self.ports.all.values();
        ports.filter_map(|port| port.attachment.as_ref()?.held).max()
    }

    /// The database has told all that it had to tell when the port with this number was held: this one and
    /// those before are what it says.
    pub fn release(&mut self, last: u64) {
        for port in self.ports.all.values_mut() {
            if let Some(attachment) = &mut port.attachment
                && attachment.held.is_some_and(|held| held <= last)
            {
                attachment.held = None;
                port.retry = Retry::at_once(now_ms());
            }
        }
    }

    /// Whether the device of a new port is attached already.
    pub(super) fn is_attached(&self, port: PortId, name: &str) -> bool {
        let listed = self.driver.interfaces();
        let found = listed.and_then(|listed| listed.get(&port));
        found.is_some_and(|(spec, state)| spec.name == name && *state == InterfaceState::Up)
    }

    /// Removes interfaces of an earlier process for which there is no port.
    pub(super) fn detach_abandoned(&mut self) {
        let listed = self.driver.interfaces().into_iter().flat_map(BTreeMap::keys);
        let has_port = |port: &PortId| port_number(*port).is_some_and(|number| self.ports.has(number));
        let abandoned: Vec<_> = listed.filter(|port| !has_port(port)).copied().collect();
        for port in abandoned {
            self.driver.detach(port);
        }
    }

    /// There is another driver domain, or none.
    fn devices_are_down(&mut self) {
        self.watch.forget(Peer::Driver);
        let ports = self.ports.all.values_mut();
        for attachment in ports.filter_map(|port| port.attachment.as_mut()) {
            attachment.is_up = false;
        }
    }

    /// Takes in what the driver domain has said.
    pub(super) fn exchange_with_driver(&mut self) {
        for _ in 0..super::BURST {
            match self.driver.receive() {
                Ok(Some(DriverEvent::Listed)) => self.take_interfaces(),
                Ok(Some(DriverEvent::State(port, state))) => self.interface_state(port, state),
                // For the built-in switches' ports.
                Ok(Some(
                    DriverEvent::Addresses(_)
                    | DriverEvent::Devices
                    | DriverEvent::Queue(_)
                    | DriverEvent::Steered(..),
                )) => {}
                Ok(None) => return,
                Err(lost) => {
                    self.driver.detach_channel(lost, now_ms());
                    return self.devices_are_down();
                }
            }
        }
    }

    fn take_interfaces(&mut self) {
        for number in self.ports.numbers() {
            let Some(port) = self.ports.all.get(&number) else {
                continue;
            };
            let is_up = self.is_attached(port.id, &port.spec.name);
            if let Some(port) = self.ports.all.get_mut(&number)
                && let Some(attachment) = &mut port.attachment
            {
                (attachment.is_up, attachment.problem) = (is_up, None);
                port.retry = Retry::at_once(now_ms());
            }
        }
    }

    fn interface_state(&mut self, port: PortId, state: InterfaceState) {
        let number = port_number(port);
        let Some(port) = number.and_then(|number| self.ports.all.get_mut(&number)) else {
            return;
        };
        let Some(attachment) = &mut port.attachment else {
            return;
        };
        let was_up = std::mem::replace(&mut attachment.is_up, state == InterfaceState::Up);
        match state {
            InterfaceState::Up => attachment.problem = None,
            InterfaceState::Disconnected => port.retry.try_later(now_ms()),
            InterfaceState::Failed(text) => {
                // A device that has gone is made again at once.
                if was_up {
                    port.retry = Retry::at_once(now_ms());
                } else {
                    port.retry.try_later(now_ms());
                }
                if attachment.problem.as_ref() != Some(&text) {
                    log::warn!("port '{}': {text}", port.spec.name);
                    attachment.problem = Some(text);
                }
            }
        }
    }

    /// Attaches what is due and not connected.
    pub(super) fn attach_devices(&mut self) {
        let now_ms = now_ms();
        let is_ready = self.is_ready() && self.knows_devices();
        let mut devices = Vec::new();
        for (number, port) in &mut self.ports.all {
            let attachment = port.attachment.as_ref().filter(|one| one.held.is_none());
            let Some(attachment) = attachment.filter(|_| port.retry.take_due(now_ms)) else {
                continue;
            };
            // Without either of them there is nothing to do until they are back.
            if !is_ready || attachment.is_up && port.state == PortState::Running {
                continue;
            }
            port.retry.attempted(now_ms);
            match port.end {
                End::Device => devices.push(*number),
                _ => self.devices.wanting.push_back(*number),
            }
        }
        for number in devices {
            self.attach(number, InterfaceKind::Device, None);
        }
    }

    /// Joins a port to its TAP. Without a descriptor the driver domain has the TAP already; if it says that
    /// the TAP fails, that has gone.
    pub(super) fn attach_tap(&mut self, number: PortNo, index: u32, tap: Option<OwnedFd>) {
        let attachment = self
            .ports
            .all
            .get(&number)
            .and_then(|port| port.attachment.as_ref());
        let fails = attachment.is_some_and(|attachment| attachment.problem.is_some());
        if tap.is_some() || !fails {
            self.attach(number, InterfaceKind::Given { index }, tap);
        } else if !self.devices.gone.contains(&number) {
            self.devices.gone.push_back(number);
        }
    }

    /// A port's device was made again.
    pub(super) fn device_renewed(&mut self, number: PortNo) {
        let Some(port) = self.ports.all.get_mut(&number) else {
            return;
        };
        if let Some(attachment) = &mut port.attachment {
            (attachment.is_up, attachment.problem) = (false, None);
            port.retry = Retry::at_once(now_ms());
        } else if port.end == End::Guest {
            self.carriers
                .push_back((number, port.state == PortState::Running));
        }
    }

    fn attach(&mut self, number: PortNo, kind: InterfaceKind, tap: Option<OwnedFd>) {
        let Some(port) = self.ports.all.get(&number) else {
            return;
        };
        let spec = InterfaceSpec {
            kind,
            name: port.spec.name.clone(),
            mtu: None,
        };
        match self.driver.attach(port.id, spec, tap) {
            Ok(stream) => {
                let attach = Request::PortAttach { port: port.id };
                self.request(attach, vec![stream], Pending::Attach);
            }
            Err(error) => log::error!("port '{}': {error}", port.spec.name),
        }
    }
}
