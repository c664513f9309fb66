//! The back end for devices of the host: a packet socket. Small frames lie in a ring in mapped memory, from
//! which they are copied; long ones, and all on a kernel without such rings, are messages of the socket. A
//! batch is sent by one call.

use super::frame::{place_of, put};
use super::{Arrival, BackEnd, Inbound, Left, Sent, Takes, arrival, fate};
use nic_packet::{CONTROL_LEN, Front, Offloads, PacketSocket, VNET_HEADER_LEN, VlanTag, vlan_tag};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use virtqueue::driver::{Messages, SharedMemory, Span};

/// An open packet socket.
#[derive(Debug)]
pub struct PacketDevice(PacketSocket);

impl PacketDevice {
    pub fn new(descriptor: OwnedFd, header_len: u8, has_ring: bool) -> io::Result<PacketDevice> {
        PacketSocket::new(descriptor, header_len.into(), has_ring).map(PacketDevice)
    }
}

impl BackEnd for PacketDevice {
    /// A packet socket hands out frames as they come, whatever is accepted.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        if offloads.checksum && offloads.tso4 && offloads.tso6 {
            return Ok(());
        }
        Err(io::Error::other(
            "uplinks: the data plane offers no checksum and TCP segmentation offload",
        ))
    }

    /// The kernel has headers of all 12 bytes since 6.4, and for large datagrams since 6.2.
    fn takes(&self) -> Takes {
        if self.0.header_len() == VNET_HEADER_LEN {
            Takes::UdpSegments
        } else {
            Takes::TcpSegments
        }
    }

    fn header_len(&self) -> usize {
        self.0.header_len()
    }

    fn receive(&mut self, batch: &mut Inbound<'_>) -> io::Result<Left> {
        while let Some(at) = batch.place() {
            let room = place_of(at);
            let (len, tag) = match take_from_ring(&mut self.0, batch.memory(), room) {
                FromRing::Taken(len, tag) => (len, tag),
                FromRing::Nothing => return Ok(Left::Nothing),
                FromRing::Cut => {
                    batch.discard();
                    continue;
                }
                FromRing::InSocket => match arrival(receive_at(&self.0, batch.memory(), room))? {
                    Arrival::Frame(received) => received,
                    Arrival::Unusable => {
                        batch.discard();
                        continue;
                    }
                    Arrival::Nothing => return Ok(Left::Nothing),
                },
            };
            put(batch, room, len, tag);
        }
        Ok(Left::Perhaps)
    }

    fn send(&mut self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent> {
        let mut sent = Sent::default();
        let count = frames.iter().len();
        while first + sent.taken + sent.refused < count && sent.full.is_none() {
            let next = first + sent.taken + sent.refused;
            let result = memory.send(self.0.as_fd(), frames, next);
            let taken = *result.as_ref().unwrap_or(&1);
            sent.count(fate(result)?, taken);
        }
        Ok(sent)
    }

    fn trouble(&self) -> String {
        match rustix::net::sockopt::socket_error(&self.0) {
            Ok(Err(error)) => format!("the interface is gone: {}", io::Error::from(error)),
            _ => "the interface is gone".into(),
        }
    }
}

impl AsFd for PacketDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What the ring of a packet socket had.
enum FromRing {
    /// A frame: its length with a whole virtio-net header, and the VLAN tag that the kernel took out.
    Taken(usize, Option<VlanTag>),
    /// Nothing.
    Nothing,
    /// A frame of which only the beginning was kept.
    Cut,
    /// A frame that is the socket's next message.
    InSocket,
}

fn take_from_ring(socket: &mut PacketSocket, memory: &SharedMemory, room: Span) -> FromRing {
    let Some(ring) = socket.ring() else {
        return FromRing::InSocket;
    };
    let taken = match ring.front() {
        None => return FromRing::Nothing,
        Some(Front::Frame(header, frame, tag)) => {
            memory.write(room.offset, header);
            memory.write(room.offset + VNET_HEADER_LEN, frame);
            FromRing::Taken(VNET_HEADER_LEN + frame.len(), tag)
        }
        Some(Front::InSocket) => FromRing::InSocket,
        Some(Front::Cut) => FromRing::Cut,
    };
    ring.release();
    taken
}

/// Receives a frame from a packet socket into `room`; returns its length with a whole virtio-net header, and
/// the VLAN tag that the kernel took out.
fn receive_at(
    socket: &PacketSocket,
    memory: &SharedMemory,
    room: Span,
) -> io::Result<(usize, Option<VlanTag>)> {
    let mut control = [0; CONTROL_LEN];
    let spans = [
        Span {
            offset: room.offset,
            len: socket.header_len(),
        },
        Span {
            offset: room.offset + VNET_HEADER_LEN,
            len: room.len - VNET_HEADER_LEN,
        },
    ];
    let received = memory.recv(socket.as_fd(), &spans, &mut control)?;
    let missing = VNET_HEADER_LEN - socket.header_len();
    Ok((received.bytes + missing, vlan_tag(&control[..received.control])))
}
