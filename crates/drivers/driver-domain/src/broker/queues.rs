//! Queues of devices for the data plane, when a controller asks for one: sockets that send by a device, and
//! sockets that receive what filters steer to them.
//!
//! A queue is opened anew for each request and not kept here: it ends with the process that has it, and with
//! the device. Filters are in a table in memory, which outlives the broker ([`FanOut`](nic_packet::FanOut)).
//! A filter in the table of a device without a queue changes nothing.

use super::Broker;
use super::controller::Controller;
use super::open_interface::Means;
use super::port::{Open, Port};
use accelerator::{Accelerator, Filter, FilterId, Match, MatchKinds, Room};
use control_protocol::driver::{FromDriver, QueueSockets};
use control_protocol::forwarder::{Opened, ToForwarder};
use flow::PortId;
use nic_packet::{FanOut, Uplink};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Filters of all devices together that the table has room for, most likely.
const FILTERS: usize = 4096;

/// Answers requests for queues, as far as the controller reads.
pub fn tell(controller: &mut Controller, ports: &BTreeMap<PortId, Port>, means: &Means) {
    while let Some(port) = controller.wants_queues.first().copied() {
        let opened = open(ports.get(&port), means);
        let fds: Vec<_> = opened.iter().flat_map(|(_, sockets)| sockets).collect();
        let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
        let result = opened.as_ref().map(|(about, _)| about.clone());
        let result = result.map_err(Clone::clone);
        if !controller.send_with(&FromDriver::Queue { port, result }, &fds) {
            return;
        }
        controller.wants_queues.pop_first();
    }
}

/// A queue of a port's device, or why there is none.
fn open(port: Option<&Port>, means: &Means) -> Result<(QueueSockets, Vec<OwnedFd>), String> {
    let (port, uplink) = packet_socket(port)?;
    let name = &port.spec.name;
    let (sender, header_len) = Uplink::open_sender(name).map_err(|error| error.to_string())?;
    let fan_out = means.fan_out.as_ref().map_err(Clone::clone);
    let queue = fan_out.and_then(|fan_out| {
        PacketAccelerator {
            fan_out,
            name,
            uplink,
        }
        .open_with_header()
    });
    let (receiver, receives) = match queue {
        Ok((receiver, header_len)) => (Some(receiver), Ok(header_len)),
        Err(reason) => (None, Err(reason)),
    };
    let about = QueueSockets { header_len, receives };
    Ok((about, [sender].into_iter().chain(receiver).collect()))
}

/// The port, and the packet socket by which its device is open.
fn packet_socket(port: Option<&Port>) -> Result<(&Port, BorrowedFd<'_>), String> {
    let port = port.ok_or("the port has no interface")?;
    let open = port.open.as_ref();
    let socket = open.and_then(|open| open.descriptors.first());
    match open.map(|Open { opened, .. }| opened).zip(socket) {
        None => Err("its device is not open".into()),
        Some((Opened::Xdp { .. }, _)) => Err("its frames leave by AF_XDP".into()),
        Some((Opened::Tap { .. } | Opened::Veth { .. }, _)) => Err("it is no device of the host".into()),
        Some((Opened::Packet { .. }, socket)) => Ok((port, socket.as_fd())),
    }
}

impl Broker {
    /// Has untagged frames for an address come by a port's queue, and the forwarder mark its ring; or no
    /// longer.
    pub(super) fn steer(&mut self, id: PortId, mac: [u8; 6], mark: Option<u16>) -> Result<(), String> {
        let (port, uplink) = packet_socket(self.ports.get(&id))?;
        let fan_out = self.means.fan_out.as_ref().map_err(Clone::clone)?;
        let (name, forwarder) = (&port.spec.name, port.forwarder);
        let mut accelerator = PacketAccelerator {
            fan_out,
            name,
            uplink,
        };
        let what = Match::Mac(mac);
        let steered = match mark {
            Some(_) => accelerator.program(&Filter { what, queue: 0 }).map(drop),
            None => accelerator.remove(id_of(mac)),
        };
        steered.map_err(|error| error.to_string())?;
        if let Some(mark) = mark {
            self.tell_forwarder(forwarder, ToForwarder::Mark { port: id, mark }, Vec::new());
        }
        Ok(())
    }
}

/// The queue of an uplink that is open by a packet socket, and its filters.
struct PacketAccelerator<'a> {
    fan_out: &'a FanOut,
    name: &'a str,
    uplink: BorrowedFd<'a>,
}

impl PacketAccelerator<'_> {
    fn open_with_header(&self) -> Result<(OwnedFd, u8), String> {
        let opened = self.fan_out.open_queue(self.name, self.uplink);
        opened.map_err(|error| error.to_string())
    }

    fn device(&self) -> io::Result<u32> {
        let device = nic_packet::interface_index(self.name).map_err(io::Error::other)?;
        device.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A filter's number: its address.
fn id_of(mac: [u8; 6]) -> FilterId {
    let [a, b, c, d, e, f] = mac;
    FilterId(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
}

impl Accelerator for PacketAccelerator<'_> {
    fn kinds(&self) -> MatchKinds {
        MatchKinds {
            mac: true,
            ..MatchKinds::default()
        }
    }

    fn room(&self) -> Room {
        Room {
            filters: FILTERS,
            queues: 1,
        }
    }

    fn open(&mut self, _: u32) -> io::Result<Vec<OwnedFd>> {
        let opened = self.open_with_header().map_err(io::Error::other)?;
        Ok(vec![opened.0])
    }

    fn program(&mut self, filter: &Filter) -> io::Result<FilterId> {
        match filter.what {
            Match::Mac(mac) if self.kinds().has(&filter.what) => {
                self.fan_out.add(self.device()?, mac)?;
                Ok(id_of(mac))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn remove(&mut self, filter: FilterId) -> io::Result<()> {
        let [_, _, mac @ ..] = filter.0.to_be_bytes();
        self.fan_out.remove(self.device()?, mac);
        Ok(())
    }

    fn close(&mut self, _: u32) {
        if let Ok(device) = self.device() {
            self.fan_out.clear(device);
        }
    }
}
