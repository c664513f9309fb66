//! P4 switches that clients of P4Runtime drive: those that the configuration calls devices.
//!
//! The process that speaks to the clients is trusted with these alone. Which ports they have is no matter of
//! its own: the configuration says so.

use crate::control::Control;
use crate::pending::Question;
use crate::refusal::Refusal;
use crate::serve::Served;
use crate::users::Token;
use control_protocol::data_plane;
use control_protocol::p4::P4Request;
use flow::P4Id;
use management::{P4Device, P4DeviceConfig, P4End, P4Operations, P4Place, PlacedPort, Reply, Request};
use rustix::net::{SocketType, sockopt};
use std::os::fd::OwnedFd;

impl Control {
    /// A request of the process for P4Runtime, if it may make it, with the ports of the configuration.
    pub fn of_p4runtime(&self, request: Request) -> Result<Request, Refusal> {
        let device = |name: &str| self.device(name).ok_or(Refusal::NoDevice);
        match &request {
            Request::P4Devices => {}
            Request::P4Program { name, .. }
            | Request::P4Connect { name }
            | Request::P4Read { name, .. }
            | Request::P4Write { name, .. }
            | Request::P4WriteAll { name, .. } => drop(device(name)?),
            Request::P4Load {
                name,
                replaces,
                changes,
                writes,
                ..
            } => {
                let device = device(name.as_str())?;
                let present = self.intent.p4.get(name.as_str());
                let allowed = device.operations.map(P4Operations::get);
                return Ok(Request::P4Load {
                    ports: self.device_ports(device),
                    operations: allowed.or(present.and_then(|own| own.operations)),
                    name: name.clone(),
                    replaces: *replaces,
                    changes: *changes,
                    writes: writes.clone(),
                });
            }
            _ => return Err(Refusal::NoDevice),
        }
        Ok(request)
    }

    fn device(&self, name: &str) -> Option<&P4DeviceConfig> {
        let mut devices = self.intent.config.p4runtime.devices.iter();
        devices.find(|device| device.name.as_str() == name)
    }

    /// Hands a connection for a device's packets on to the data plane, with the number of its clients' port.
    ///
    /// # Errors
    /// There is no such device or P4 switch, no data plane, or the descriptor is not such a socket.
    pub fn p4_connect(&mut self, token: Token, name: &str, mut fds: Vec<OwnedFd>) -> Served {
        let device = self.device(name).ok_or(Refusal::NoDevice)?;
        let own = self.intent.p4.get(name);
        let own = own.ok_or_else(|| Refusal::NoP4(name.into()))?;
        let request = P4Request::Connect {
            switch: P4Id(own.number),
            cpu_port: device.cpu_port,
        };
        let is_right = |fd: &OwnedFd| matches!(sockopt::socket_type(fd), Ok(SocketType::SEQPACKET));
        let fd = fds.pop().filter(|fd| fds.is_empty() && is_right(fd));
        let fd = fd.ok_or(Refusal::NoPacketSocket)?;
        let done = Question::Barrier(Reply::Done);
        self.ask_user(token, data_plane::Request::P4(request), vec![fd], done)
    }

    /// Ports that a device is to have, with links that commands have added; `None`: those that its P4
    /// switch has stay.
    fn device_ports(&self, device: &P4DeviceConfig) -> Option<Vec<P4Place>> {
        let place = |place: &PlacedPort| P4Place {
            number: place.number,
            port: place.port.clone(),
        };
        let present = self.intent.p4.get(device.name.as_str());
        if device.ports.is_empty() && present.is_some() {
            return None;
        }
        let is_taken = |number: u16| device.ports.iter().any(|place| place.number == number);
        let present = present.iter().flat_map(|own| &own.ports);
        let is_link =
            |port: &str| P4End::of(port).is_some_and(|end| self.intent.p4.contains_key(end.program.as_str()));
        let links = present.filter(|(number, port)| is_link(port) && !is_taken(**number));
        let links = links.map(|(number, port)| P4Place {
            number: *number,
            port: port.clone(),
        });
        Some(device.ports.iter().map(place).chain(links).collect())
    }

    /// All devices, with the tags of their programs.
    pub fn p4_devices(&self) -> Reply {
        let tag = |name: &str| {
            let own = self.intent.p4.get(name)?;
            self.p4.tag(P4Id(own.number))
        };
        let device = |device: &P4DeviceConfig| P4Device {
            id: device.id,
            name: device.name.to_string(),
            tag: tag(device.name.as_str()),
        };
        let devices = self.intent.config.p4runtime.devices.iter();
        Reply::P4Devices(devices.map(device).collect())
    }
}
