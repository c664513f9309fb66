//! Queues of devices for the data plane, when a controller asks for one: sockets that send by a device.
//!
//! A queue is opened anew for each request and not kept here: it ends with the process that has it, and with
//! the device.

use super::controller::Controller;
use super::port::{Open, Port};
use control_protocol::driver::FromDriver;
use control_protocol::forwarder::Opened;
use flow::PortId;
use nic_packet::Uplink;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// Answers requests for queues, as far as the controller reads.
pub fn tell(controller: &mut Controller, ports: &BTreeMap<PortId, Port>) {
    while let Some(port) = controller.wants_queues.first().copied() {
        let opened = open(ports.get(&port));
        let fds: Vec<_> = opened.iter().map(|(socket, _)| socket.as_fd()).collect();
        let result = opened.as_ref().map(|(_, header_len)| *header_len);
        let result = result.map_err(Clone::clone);
        if !controller.send_with(&FromDriver::Queue { port, result }, &fds) {
            return;
        }
        controller.wants_queues.pop_first();
    }
}

/// A queue of a port's device, or why there is none.
fn open(port: Option<&Port>) -> Result<(OwnedFd, u8), String> {
    let port = port.ok_or("the port has no interface")?;
    match port.open.as_ref().map(|Open { opened, .. }| opened) {
        None => Err("its device is not open".into()),
        Some(Opened::Xdp { .. }) => Err("its frames leave by AF_XDP".into()),
        Some(Opened::Tap { .. } | Opened::Veth { .. }) => Err("it is no device of the host".into()),
        Some(Opened::Packet { .. }) => {
            Uplink::open_sender(&port.spec.name).map_err(|error| error.to_string())
        }
    }
}
