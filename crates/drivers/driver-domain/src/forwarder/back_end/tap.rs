//! The back end for TAPs: frames are read straight into the memory that the data plane reads, and written
//! from that into which it writes. A TAP has calls for one frame at a time only; batching them by io_uring is
//! dearer than the calls.

use super::frame::{place_of, put};
use super::{Arrival, BackEnd, Fate, Inbound, Left, Sent, Takes, arrival, fate};
use nic_packet::{Offloads, VNET_HEADER_LEN, set_tap_offloads};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use virtqueue::driver::{Messages, SharedMemory};

/// An open TAP with virtio-net headers.
#[derive(Debug)]
pub struct TapDevice {
    file: OwnedFd,
    /// The kernel knows large datagrams (6.2).
    knows_uso: bool,
}

impl TapDevice {
    pub fn new(file: OwnedFd) -> TapDevice {
        let everything = Offloads {
            checksum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        };
        let knows_uso = set_tap_offloads(file.as_fd(), everything).is_ok();
        TapDevice { file, knows_uso }
    }
}

impl BackEnd for TapDevice {
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        let uso = offloads.uso && self.knows_uso;
        set_tap_offloads(self.file.as_fd(), Offloads { uso, ..offloads })
    }

    fn takes(&self) -> Takes {
        if self.knows_uso {
            Takes::UdpSegments
        } else {
            Takes::TcpSegments
        }
    }

    fn header_len(&self) -> usize {
        VNET_HEADER_LEN
    }

    fn receive(&mut self, batch: &mut Inbound<'_>) -> io::Result<Left> {
        while let Some(at) = batch.place() {
            let room = place_of(at);
            match arrival(batch.memory().read_from(self.file.as_fd(), &[room]))? {
                Arrival::Frame(len) => put(batch, room, len, None),
                Arrival::Unusable => batch.discard(),
                Arrival::Nothing => return Ok(Left::Nothing),
            }
        }
        Ok(Left::Perhaps)
    }

    fn send(&mut self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent> {
        let mut sent = Sent::default();
        for frame in frames.iter().skip(first) {
            let fate = match fate(memory.write_to(self.file.as_fd(), frame))? {
                // The host's stack has no room, and does not say when it has.
                Fate::Full(_) => Fate::Refused,
                fate => fate,
            };
            sent.count(fate, 1);
        }
        Ok(sent)
    }

    /// A TAP signals an error only when it was removed.
    fn trouble(&self) -> String {
        "the interface was removed".into()
    }
}

impl AsFd for TapDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
