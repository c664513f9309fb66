//! The queue of any device: a packet socket, by which frames leave straight from their senders' memory.
//!
//! The socket is bound to the device and receives nothing. Large frames stay whole, and checksums stay open,
//! as the virtio-net header in front of each frame says; the kernel completes what the device cannot do. The
//! kernel copies the frame, while nobody else does.

use crate::interface::{Declined, Full, Queue, Sent};
use guest_memory::Messages;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;

/// A packet socket that sends.
#[derive(Debug)]
pub struct PacketQueue {
    socket: OwnedFd,
    header_len: usize,
}

impl PacketQueue {
    /// Takes a packet socket, with the length of the virtio-net header that it wants; `None` if that can be
    /// none.
    pub fn new(socket: OwnedFd, header_len: u8) -> Option<PacketQueue> {
        let header_len = usize::from(header_len);
        matches!(header_len, 10 | 12).then_some(PacketQueue { socket, header_len })
    }
}

impl Queue for PacketQueue {
    fn header_len(&self) -> usize {
        self.header_len
    }

    fn send(&mut self, messages: &mut Messages<'_>) -> Sent {
        let mut sent = Sent::default();
        while sent.taken < messages.len() {
            match messages.send(self.socket.as_fd(), sent.taken) {
                Ok(0) => break,
                Ok(taken) => sent.taken += taken,
                Err(error) => {
                    sent.refused = Some(declined(&error));
                    break;
                }
            }
        }
        sent
    }
}

fn declined(error: &io::Error) -> Declined {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN | Errno::INTR) => Declined::Full(Full::Socket),
        Some(Errno::NOBUFS | Errno::NOMEM) => Declined::Full(Full::Device),
        Some(Errno::MSGSIZE) => Declined::TooLong,
        Some(Errno::FAULT) => Declined::SenderGone,
        Some(Errno::INVAL) => Declined::Frame,
        _ => Declined::Device,
    }
}
