//! An open interface of either kind: frames in, and batches of frames out, between descriptor and shared
//! memory.
//!
//! On its way to the data plane a frame lies behind a virtio-net header as a driver must write it (VIRTIO
//! 1.2, 5.1.6.2): no flag but NEEDS_CSUM, no buffer count. On the way out the header goes to the kernel as
//! the data plane wrote it; the kernel checks it.

use control_protocol::forwarder::Device;
use nic_packet::{
    CONTROL_LEN, Front, Offloads, PacketSocket, VNET_HEADER_LEN, VlanTag, set_tap_offloads, vlan_tag,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use virtqueue::driver::{Messages, SharedMemory, Span};

/// Largest frame the data plane takes, in bytes: 64 KiB of IP with Ethernet header and two VLAN tags, as in
/// `flow::DropReason::OversizedFrame`.
pub const MAX_FRAME: usize = 65_553;

const ETHERNET_HEADER_LEN: usize = 14;
const MAC_ADDRESSES_LEN: usize = 12;
const VLAN_TAG_LEN: usize = 4;

/// Room that [`Nic::receive`] needs: for a VLAN tag to be put back, the header, the frame, and one byte that
/// shows that a frame is too long.
pub const RECEIVE_ROOM: usize = VLAN_TAG_LEN + VNET_HEADER_LEN + MAX_FRAME + 1;

const NEEDS_CSUM: u8 = 1;

/// An interface.
#[derive(Debug)]
pub enum Nic {
    /// A TAP.
    Tap(OwnedFd),
    /// A packet socket on a device of the host.
    Packet(PacketSocket),
}

/// The result of an attempt to receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Header and frame lie here.
    Frame(Span),
    /// A frame came that cannot be forwarded: too short, too long, or with offloads that no virtio-net header
    /// expresses.
    Unusable,
    /// Nothing is there.
    Nothing,
}

impl Nic {
    /// Takes a device that the broker has opened.
    pub fn new(device: &Device, descriptor: OwnedFd) -> io::Result<Nic> {
        match device {
            Device::Tap => Ok(Nic::Tap(descriptor)),
            Device::Packet { header_len, has_ring } => {
                PacketSocket::new(descriptor, (*header_len).into(), *has_ring).map(Nic::Packet)
            }
        }
    }

    /// Sets the offloads that the data plane accepts. They have no effect on an uplink, which hands out
    /// frames as they come.
    pub fn set_offloads(&self, offloads: Offloads) -> io::Result<()> {
        match self {
            Nic::Tap(tap) => set_tap_offloads(tap.as_fd(), offloads),
            Nic::Packet(_) if offloads.checksum && offloads.tso4 && offloads.tso6 => Ok(()),
            Nic::Packet(_) => Err(io::Error::other(
                "uplinks: the data plane offers no checksum and TCP segmentation offload",
            )),
        }
    }

    /// Receives a frame into the [`RECEIVE_ROOM`] bytes at `at`. An error is the end of the interface.
    pub fn receive(&mut self, memory: &SharedMemory, at: usize) -> io::Result<Arrival> {
        let start = at + VLAN_TAG_LEN;
        let room = Span {
            offset: start,
            len: RECEIVE_ROOM - VLAN_TAG_LEN,
        };
        let received = match self {
            Nic::Tap(tap) => memory.read_from(tap.as_fd(), &[room]).map(|len| (len, None)),
            Nic::Packet(socket) => match take_from_ring(socket, memory, room) {
                FromRing::Taken(len, tag) => Ok((len, tag)),
                FromRing::Nothing => return Ok(Arrival::Nothing),
                FromRing::Cut => return Ok(Arrival::Unusable),
                FromRing::InSocket => receive_at(socket, memory, room),
            },
        };
        let (len, tag) = match received {
            Ok(received) => received,
            Err(error) => return no_frame(error),
        };
        if len < VNET_HEADER_LEN + ETHERNET_HEADER_LEN || len >= room.len {
            return Ok(Arrival::Unusable);
        }
        let frame = Span { offset: start, len };
        tidy_header(memory, start);
        match tag {
            None => Ok(Arrival::Frame(frame)),
            Some(_) if len + VLAN_TAG_LEN >= room.len => Ok(Arrival::Unusable),
            Some(tag) => Ok(Arrival::Frame(insert_tag(memory, frame, tag))),
        }
    }

    /// Length of the virtio-net header in front of each frame that is sent, in bytes: [`VNET_HEADER_LEN`], or
    /// less, without its end.
    pub fn header_len(&self) -> usize {
        match self {
            Nic::Tap(_) => VNET_HEADER_LEN,
            Nic::Packet(socket) => socket.header_len(),
        }
    }

    /// Sends frames from number `first` on, each a header of [`Self::header_len`] and the frame itself, until
    /// a queue is full. An error is the end of the interface.
    pub fn send(&self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent> {
        let mut sent = Sent::default();
        match self {
            Nic::Tap(tap) => {
                for frame in frames.iter().skip(first) {
                    let fate = match fate(memory.write_to(tap.as_fd(), frame))? {
                        // The host's stack has no room, and does not say when it has.
                        Fate::Full(_) => Fate::Refused,
                        fate => fate,
                    };
                    sent.count(fate, 1);
                }
            }
            Nic::Packet(socket) => {
                let count = frames.iter().len();
                while first + sent.taken + sent.refused < count && sent.full.is_none() {
                    let next = first + sent.taken + sent.refused;
                    let result = memory.send(socket.as_fd(), frames, next);
                    let taken = *result.as_ref().unwrap_or(&1);
                    sent.count(fate(result)?, taken);
                }
            }
        }
        Ok(sent)
    }
}

/// A queue of the kernel that has no room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The queue of the socket, which becomes writable when there is room.
    Socket,
    /// The queue of the device. Nothing says when it has room.
    Device,
}

/// Frames that were sent.
#[derive(Debug, Default)]
pub struct Sent {
    pub taken: usize,
    /// The kernel will not take them.
    pub refused: usize,
    /// The next frame is to be sent again.
    pub full: Option<Full>,
}

/// What became of a frame.
enum Fate {
    Taken,
    Refused,
    Full(Full),
}

impl Sent {
    fn count(&mut self, fate: Fate, frames: usize) {
        match fate {
            Fate::Taken => self.taken += frames,
            Fate::Refused => self.refused += frames,
            Fate::Full(full) => self.full = Some(full),
        }
    }
}

/// What the kernel did with a frame; an error is the end of the interface.
fn fate(result: io::Result<usize>) -> io::Result<Fate> {
    match result {
        Ok(_) => Ok(Fate::Taken),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::BADFD | Errno::NODEV | Errno::NXIO | Errno::NETDOWN) => Err(error),
            Some(Errno::AGAIN) => Ok(Fate::Full(Full::Socket)),
            Some(Errno::NOBUFS) => Ok(Fate::Full(Full::Device)),
            // A header that the kernel refuses, no memory, a TAP that is down.
            _ => Ok(Fate::Refused),
        },
    }
}

impl AsFd for Nic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Nic::Tap(tap) => tap.as_fd(),
            Nic::Packet(socket) => socket.as_fd(),
        }
    }
}

fn no_frame(error: io::Error) -> io::Result<Arrival> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN | Errno::INTR) => Ok(Arrival::Nothing),
        // The kernel consumed a frame that it could not describe.
        Some(Errno::INVAL) => Ok(Arrival::Unusable),
        _ => Err(error),
    }
}

fn tidy_header(memory: &SharedMemory, start: usize) {
    let mut flags = [0];
    memory.read(start, &mut flags);
    memory.write(start, &[flags[0] & NEEDS_CSUM]);
    memory.write(start + VNET_HEADER_LEN - 2, &[0, 0]);
}

/// Puts a VLAN tag back in its place, by moving header and addresses towards the front.
fn insert_tag(memory: &SharedMemory, frame: Span, tag: VlanTag) -> Span {
    const MOVED: usize = VNET_HEADER_LEN + MAC_ADDRESSES_LEN;
    let mut head = [0; MOVED + VLAN_TAG_LEN];
    memory.read(frame.offset, &mut head[..MOVED]);
    let shift = |head: &mut [u8], at: usize| {
        let value = u16::from_le_bytes([head[at], head[at + 1]]).saturating_add(4);
        head[at..at + 2].copy_from_slice(&value.to_le_bytes());
    };
    if head[0] & NEEDS_CSUM != 0 {
        shift(&mut head, 6);
    }
    if head[1] != 0 {
        // The header length is a hint for segmentation.
        shift(&mut head, 2);
    }
    head[MOVED..MOVED + 2].copy_from_slice(&tag.tpid.to_be_bytes());
    head[MOVED + 2..].copy_from_slice(&tag.tci.to_be_bytes());
    let offset = frame.offset - VLAN_TAG_LEN;
    memory.write(offset, &head);
    Span {
        offset,
        len: frame.len + VLAN_TAG_LEN,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_and_the_checksum_moves_with_it() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        let mut packet = vec![NEEDS_CSUM, 1, 54, 0, 0x50, 5, 34, 0, 16, 0, 0, 0];
        packet.extend([0xaa; 6]);
        packet.extend([0xbb; 6]);
        packet.extend([0x08, 0x00, 1, 2, 3]);
        memory.write(104, &packet);
        let whole = insert_tag(
            &memory,
            Span {
                offset: 104,
                len: packet.len(),
            },
            VlanTag {
                tpid: 0x8100,
                tci: 0x2064,
            },
        );
        assert_eq!(
            whole,
            Span {
                offset: 100,
                len: packet.len() + 4
            }
        );
        let mut bytes = vec![0; whole.len];
        memory.read(whole.offset, &mut bytes);
        assert_eq!(bytes[..12], [NEEDS_CSUM, 1, 58, 0, 0x50, 5, 38, 0, 16, 0, 0, 0]);
        assert_eq!(bytes[12..24], packet[12..24]);
        assert_eq!(bytes[24..], [0x81, 0x00, 0x20, 0x64, 0x08, 0x00, 1, 2, 3]);
    }
}
