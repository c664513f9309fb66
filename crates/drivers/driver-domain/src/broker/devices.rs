//! The states of devices, when a controller asks for them.

use super::controller::Controller;
use super::opener::Command;
use super::port::{Open, Port};
use control_protocol::driver::{DeviceCounters, DeviceState, FromDriver};
use control_protocol::forwarder::Opened;
use flow::{ControllerId, PortId};
use nic_packet::{Uplink, device_states};
use nic_xdp::XdpDevice;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Tells a controller the states of its devices, if it has asked.
pub fn tell(controller: &mut Controller, ports: &mut BTreeMap<PortId, Port>) {
    if controller.wants_devices {
        let states = states_of(controller.id, ports);
        controller.wants_devices = !controller.send(&FromDriver::Devices(states));
    }
}

/// The states of a controller's open devices, but for TAPs.
fn states_of(controller: ControllerId, ports: &mut BTreeMap<PortId, Port>) -> Vec<(PortId, DeviceState)> {
    let own = ports.iter_mut().filter(|(id, port)| {
        let is_device = port
            .open
            .as_ref()
            .is_some_and(|open| open.opened.hiding().is_some());
        is_device && controller.owns(**id)
    });
    let own: Vec<_> = own.collect();
    let is_wanted = |name: &str| own.iter().any(|(_, port)| port.spec.name == name);
    if own.is_empty() {
        return Vec::new();
    }
    let found = device_states(is_wanted).unwrap_or_else(|error| {
        log::error!("states of devices: {error}");
        Vec::new()
    });
    let found: BTreeMap<String, nic_packet::DeviceState> = found.into_iter().collect();
    let states = own.into_iter().filter_map(|(id, port)| {
        let state = found.get(&port.spec.name)?;
        Some((*id, with_socket(port, state)))
    });
    states.collect()
}

/// Frames that the kernel has dropped for want of room in the AF_XDP sockets of a device, or as too long.
fn lost_by_xdp(open: &Open) -> u64 {
    let Opened::Xdp { frames, .. } = open.opened else {
        return 0;
    };
    let sockets = open.descriptors.iter().skip(1).take(frames.sockets());
    sockets.map(|socket| XdpDevice::lost(socket.as_fd())).sum()
}

/// Why there is not an AF_XDP socket for each queue of a device, if there are such sockets. The kernel tells
/// nobody that the number of queues has changed.
fn too_few_sockets(port: &Port, uplink: &Uplink) -> Option<&'static str> {
    let Opened::Xdp { frames, .. } = port.open.as_ref()?.opened else {
        return None;
    };
    let queues = uplink.receive_queues(&port.spec.name)?;
    (queues.max(1) != frames.queues).then_some("its number of queues has changed")
}

/// What the kernel says of a device, and of the socket on it.
fn with_socket(port: &mut Port, state: &nic_packet::DeviceState) -> DeviceState {
    let descriptors = port.open.as_ref().map(|open| &open.descriptors);
    let first = descriptors.and_then(|all| all.first()?.try_clone().ok());
    let uplink = first.map(|descriptor| Uplink::of_descriptor(descriptor, 0, None));
    let lost_by_xdp = port.open.as_ref().map_or(0, lost_by_xdp);
    if let Some(reason) = uplink.as_ref().and_then(|uplink| too_few_sockets(port, uplink)) {
        port.send(Command::Broken(reason.into()));
    }
    port.ring_full += uplink.as_ref().map_or(0, Uplink::take_drops);
    let [received, transmitted, received_bytes, transmitted_bytes] = state.passed;
    let [receive_errors, transmit_errors] = state.errors;
    let [receive_drops, transmit_drops] = state.drops;
    DeviceState {
        carrier: state.carrier,
        mtu: state.mtu,
        speed: uplink.and_then(|uplink| uplink.speed(&port.spec.name)),
        counters: DeviceCounters {
            received,
            received_bytes,
            transmitted,
            transmitted_bytes,
            receive_drops,
            receive_errors,
            transmit_drops,
            transmit_errors,
            ring_full: port.ring_full.saturating_add(lost_by_xdp),
        },
    }
}
