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
//! speak into the switch through a virtual machine's port.

use super::ports::End;
use super::watch::Peer;
use super::{Pending, Plane, now_ms};
use crate::datapath::PortNo;
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
    wanting: VecDeque<PortNo>,
    /// Ports whose TAP has gone.
    gone: VecDeque<PortNo>,
    /// Ports held so far.
    holds: u64,
}

/// How far a port's device is.
#[derive(Debug)]
pub(super) struct Attachment {
    /// The driver domain says that it works.
    is_up: bool,
    retry: Retry,
    /// Why it does not work, as was said last.
    problem: Option<String>,
    /// The device waits until the database has told all; its number among those that do.
    held: Option<u64>,
}

impl Attachment {
    /// To be attached at once, unless it is up.
    pub fn new(is_up: bool) -> Attachment {
        Attachment {
            is_up,
            retry: Retry::at_once(now_ms()),
            problem: None,
            held: None,
        }
    }

    /// Tries at once.
    pub fn try_now(&mut self) {
        self.retry = Retry::at_once(now_ms());
    }

    /// The data plane has said how the port is.
    pub fn port_state(&mut self, state: &PortState) {
        self.retry.on_port_state(state, now_ms());
    }
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

    /// When a device is to be tried next, by the monotonic clock in milliseconds.
    pub fn due(&self) -> Option<u64> {
        let attachments = self.ports.attachments().filter(|one| one.held.is_none());
        attachments
            .filter_map(|attachment| attachment.retry.due_ms())
            .min()
    }

    /// Not attached before the database has told all: the number of the port among those that were held.
    pub(super) fn hold(&mut self, mut attachment: Attachment) -> Attachment {
        self.devices.holds += 1;
        attachment.held = Some(self.devices.holds);
        attachment
    }

    /// The number of the port that was held last, if it is held still.
    pub fn held(&self) -> Option<u64> {
        self.ports.attachments().filter_map(|one| one.held).max()
    }

    /// The database has told all that it had to tell when the port with this number was held: this one and
    /// those before are what it says.
    pub fn release(&mut self, last: u64) {
        for attachment in self.ports.attachments_mut() {
            if attachment.held.is_some_and(|held| held <= last) {
                attachment.held = None;
                attachment.try_now();
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
        let has_port = |port: &PortId| {
            let number = self.options.ports.number(*port);
            number.is_some_and(|number| self.ports.has(number))
        };
        let abandoned: Vec<_> = listed.filter(|port| !has_port(port)).copied().collect();
        for port in abandoned {
            self.driver.detach(port);
        }
    }

    /// There is another driver domain, or none.
    fn devices_are_down(&mut self) {
        self.watch.forget(Peer::Driver);
        for attachment in self.ports.attachments_mut() {
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
                Ok(Some(DriverEvent::Addresses(_))) => {}
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
            let name = self.ports.name(number).unwrap_or_default().to_owned();
            let id = self.options.ports.id(number);
            let is_up = id.is_some_and(|id| self.is_attached(id, &name));
            if let Some(attachment) = self.ports.attachment(number) {
                *attachment = Attachment {
                    held: attachment.held,
                    ..Attachment::new(is_up)
                };
            }
        }
    }

    fn interface_state(&mut self, port: PortId, state: InterfaceState) {
        let Some(number) = self.options.ports.number(port) else {
            return;
        };
        let name = self.ports.name(number).unwrap_or_default().to_owned();
        let Some(attachment) = self.ports.attachment(number) else {
            return;
        };
        let was_up = std::mem::replace(&mut attachment.is_up, state == InterfaceState::Up);
        match state {
            InterfaceState::Up => attachment.problem = None,
            InterfaceState::Disconnected => attachment.retry.try_later(now_ms()),
            InterfaceState::Failed(text) => {
                // A device that has gone is made again at once.
                if was_up {
                    attachment.try_now();
                } else {
                    attachment.retry.try_later(now_ms());
                }
                if attachment.problem.as_ref() != Some(&text) {
                    log::warn!("port '{name}': {text}");
                    attachment.problem = Some(text);
                }
            }
        }
    }

    /// Attaches what is due and not connected.
    pub(super) fn attach_devices(&mut self) {
        let now_ms = now_ms();
        let is_ready = self.is_ready() && self.knows_devices();
        for number in self.ports.numbers() {
            let is_running = self.ports.is_running(number);
            let end = self.ports.end(number);
            let Some(attachment) = self.ports.attachment(number) else {
                continue;
            };
            if attachment.held.is_some() || !attachment.retry.take_due(now_ms) {
                continue;
            }
            // Without either of them there is nothing to do until they are back.
            if !is_ready || attachment.is_up && is_running {
                continue;
            }
            attachment.retry.attempted(now_ms);
            match end {
                Some(End::Tap) => self.devices.wanting.push_back(number),
                Some(End::Device) => self.attach(number, InterfaceKind::Device, None),
                _ => {}
            }
        }
    }

    pub(super) fn next_wanting(&mut self) -> Option<PortNo> {
        self.devices.wanting.pop_front()
    }

    /// Whether a TAP that is to be attached without a descriptor is still there: the driver domain has it,
    /// unless it says that it fails. One that is not there is told by [`Plane::next_device_gone`].
    pub(super) fn has_device(&mut self, number: PortNo) -> bool {
        let has = self
            .ports
            .attachment(number)
            .is_none_or(|one| one.problem.is_none());
        if !has && !self.devices.gone.contains(&number) {
            self.devices.gone.push_back(number);
        }
        has
    }

    pub(super) fn next_device_gone(&mut self) -> Option<PortNo> {
        self.devices.gone.pop_front()
    }

    /// A port's device was made again.
    pub(super) fn device_renewed(&mut self, number: PortNo) {
        if let Some(attachment) = self.ports.attachment(number) {
            (attachment.is_up, attachment.problem) = (false, None);
            attachment.try_now();
        } else if self.ports.end(number) == Some(End::Guest) {
            self.carriers.push_back((number, self.ports.is_running(number)));
        }
    }

    /// Joins a port to its device. The descriptor is the TAP's; without one the driver domain has it already.
    pub(super) fn attach(&mut self, number: PortNo, kind: InterfaceKind, tap: Option<OwnedFd>) {
        let (Some(port), Some(name)) = (self.options.ports.id(number), self.ports.name(number)) else {
            return;
        };
        let spec = InterfaceSpec {
            kind,
            name: name.to_owned(),
            mtu: None,
        };
        match self.driver.attach(port, spec, tap) {
            Ok(stream) => {
                let attach = Request::PortAttach { port };
                self.request(attach, vec![stream], Pending::Attach);
            }
            Err(error) => log::error!("port '{name}': {error}"),
        }
    }
}
