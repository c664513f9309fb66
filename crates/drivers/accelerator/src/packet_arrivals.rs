//! The queue of any device for frames that come: a packet socket with a receive ring.
//!
//! Small frames are copied from the ring, which costs no system call; long ones, such as those that the
//! kernel has merged, are read from the socket. Large frames stay whole, and checksums open, as the
//! virtio-net header in front of each says. No frame with a VLAN tag is steered here.

use crate::interface::{Arrivals, Arrived};
use nic_packet::{Front, PacketSocket, VNET_HEADER_LEN};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};
use std::io;

/// Most bytes of header and frame: 64 KiB of IP behind an Ethernet header with a tag.
const LONGEST: usize = VNET_HEADER_LEN + 65_553;

/// Bit of the virtio-net header's flags that a sender may set: the checksum is open.
const NEEDS_CSUM: u8 = 1;

/// A packet socket that receives.
#[derive(Debug)]
pub struct PacketArrivals(PacketSocket);

impl PacketArrivals {
    /// Takes a packet socket with a receive ring, and the length of the virtio-net header in front of each of
    /// its messages, 10 or 12 bytes.
    ///
    /// # Errors
    ///
    /// The socket is no such one, or there is no room in the address space.
    pub fn new(socket: OwnedFd, header_len: u8) -> io::Result<PacketArrivals> {
        let header_len = usize::from(header_len);
        if !matches!(header_len, 10 | 12) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        PacketSocket::new(socket, header_len, true).map(PacketArrivals)
    }

    /// Receives the next message.
    fn receive_message(&self, [front, behind]: [&mut [u8]; 2]) -> Arrived {
        let header_len = self.0.header_len().min(VNET_HEADER_LEN);
        let Some((header, front)) = front.split_at_mut_checked(VNET_HEADER_LEN) else {
            return Arrived::Unusable;
        };
        let mut pieces = [
            IoSliceMut::new(&mut header[..header_len]),
            IoSliceMut::new(front),
            IoSliceMut::new(behind),
        ];
        let mut nothing = RecvAncillaryBuffer::default();
        match recvmsg(self.0.as_fd(), &mut pieces, &mut nothing, RecvFlags::DONTWAIT) {
            Ok(message) if message.flags.contains(ReturnFlags::TRUNC) => Arrived::Unusable,
            Ok(message) => Arrived::Frame(VNET_HEADER_LEN - header_len + message.bytes),
            // The ring has announced a message.
            Err(_) => Arrived::Unusable,
        }
    }
}

impl Arrivals for PacketArrivals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn oldest(&mut self) -> Option<usize> {
        match self.0.ring()?.front()? {
            Front::Frame(_, frame, _) => Some(VNET_HEADER_LEN + frame.len()),
            Front::InSocket => Some(LONGEST),
            Front::Cut => Some(0),
        }
    }

    fn receive(&mut self, [front, behind]: [&mut [u8]; 2]) -> Arrived {
        let Some(ring) = self.0.ring() else {
            return Arrived::Nothing;
        };
        let arrived = match ring.front() {
            None => return Arrived::Nothing,
            Some(Front::Frame(header, frame, None)) => put(
                [header, &[0; VNET_HEADER_LEN - 10], frame],
                [&mut *front, &mut *behind],
            ),
            Some(Front::Frame(..) | Front::Cut) => Arrived::Unusable,
            Some(Front::InSocket) => {
                let arrived = self.receive_message([&mut *front, &mut *behind]);
                if let Some(ring) = self.0.ring() {
                    ring.release();
                }
                return tidy(front, arrived);
            }
        };
        ring.release();
        tidy(front, arrived)
    }
}

/// Puts pieces behind one another into room.
fn put(pieces: [&[u8]; 3], room: [&mut [u8]; 2]) -> Arrived {
    let mut len = 0;
    let [mut first, mut next] = room;
    for mut piece in pieces {
        len += piece.len();
        while !piece.is_empty() {
            if first.is_empty() {
                first = std::mem::take(&mut next);
            }
            let part = piece.len().min(first.len());
            if part == 0 {
                return Arrived::Unusable;
            }
            let (taken, left) = std::mem::take(&mut first).split_at_mut(part);
            let (of_piece, rest) = piece.split_at(part);
            taken.copy_from_slice(of_piece);
            (first, piece) = (left, rest);
        }
    }
    Arrived::Frame(len)
}

/// Makes the header one that a driver would write (VIRTIO 1.2, 5.1.6.2): no flag but that of an open
/// checksum, and no number of buffers.
fn tidy(front: &mut [u8], arrived: Arrived) -> Arrived {
    if let Some(header) = front.first_chunk_mut::<VNET_HEADER_LEN>() {
        header[0] &= NEEDS_CSUM;
        header[VNET_HEADER_LEN - 2..].fill(0);
    }
    arrived
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_behind_one_another_and_fit_or_not() {
        let (mut front, mut behind) = ([0; 4], [0; 4]);
        let mut put = |piece| {
            let room: [&mut [u8]; 2] = [&mut front, &mut behind];
            (put([&[1, 2], &[], piece], room), [front, behind].concat())
        };
        assert_eq!(put(&[3, 4, 5]), (Arrived::Frame(5), vec![1, 2, 3, 4, 5, 0, 0, 0]));
        assert_eq!(put(&[3, 4, 5, 6, 7, 8]).0, Arrived::Frame(8));
        assert_eq!(put(&[3, 4, 5, 6, 7, 8, 9]).0, Arrived::Unusable);
    }
}
