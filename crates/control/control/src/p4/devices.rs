//! P4 switches that clients of P4Runtime drive: those that the configuration calls devices.
//!
//! The process that speaks to the clients is trusted with these alone. Which ports they have is no matter of
//! its own: the configuration says so.

use crate::control::Control;
use crate::refusal::Refusal;
use flow::P4Id;
use management::{P4Device, P4DeviceConfig, P4Place, PlacedPort, Reply, Request};

impl Control {
    /// A request of the process for P4Runtime, if it may make it, with the ports of the configuration.
    pub fn of_p4runtime(&self, request: Request) -> Result<Request, Refusal> {
        let device = |name: &str| self.device(name).ok_or(Refusal::NoDevice);
        match &request {
            Request::P4Devices => {}
            Request::P4Program { name, .. }
            | Request::P4Read { name, .. }
            | Request::P4Write { name, .. } => drop(device(name)?),
            Request::P4Load { name, replaces, .. } => {
                return Ok(Request::P4Load {
                    ports: self.device_ports(device(name.as_str())?),
                    operations: self.intent.p4.get(name.as_str()).and_then(|own| own.operations),
                    name: name.clone(),
                    replaces: *replaces,
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

    /// Ports that a device is to have; `None`: those that its P4 switch has stay.
    fn device_ports(&self, device: &P4DeviceConfig) -> Option<Vec<P4Place>> {
        let place = |place: &PlacedPort| P4Place {
            number: place.number,
            port: place.port.clone(),
        };
        let is_there = self.intent.p4.contains_key(device.name.as_str());
        let stay = device.ports.is_empty() && is_there;
        (!stay).then(|| device.ports.iter().map(place).collect())
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
