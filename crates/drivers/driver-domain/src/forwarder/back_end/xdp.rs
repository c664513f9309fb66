//! The back end for devices of the host by AF_XDP: frames lie in memory that the kernel, or the device, has
//! filled, from which they are copied; those to be sent are copied there, and one call sends a batch.
//!
//! Nothing but bytes arrives and leaves. So the data plane is asked for frames that are complete, and an open
//! checksum of a frame that arrived is recognised and announced. Segments of TCP that arrived together go on
//! as one frame, if the data plane takes large ones (`receive_offload`).

use super::frame::{place_of, put};
use super::open_checksum::{OpenChecksum, find};
use super::receive_offload::Held;
use super::{BATCH, BackEnd, Full, Inbound, Left, Sent, Takes};
use control_protocol::forwarder::XdpFrames;
use nic_packet::{Offloads, VNET_HEADER_LEN};
use nic_xdp::{Layout, XdpQueues};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use virtqueue::driver::{Messages, SharedMemory, Span};
use wire::Mergeable;

const NEEDS_CSUM: u8 = 1;
const ETHERNET_HEADER_LEN: usize = 14;

/// The open AF_XDP sockets of a device.
#[derive(Debug)]
pub struct XdpBackEnd {
    queues: XdpQueues,
    /// The data plane takes large frames of TCP, over both versions of IP.
    merges: bool,
}

/// What became of a frame to be sent.
enum Put {
    Taken,
    Refused,
}

impl XdpBackEnd {
    /// Takes up sockets, one for each queue, and their memory, which is the last descriptor.
    pub fn new(descriptors: Vec<OwnedFd>, frames: XdpFrames) -> io::Result<XdpBackEnd> {
        let layout = Layout::new(frames.chunk, frames.in_parts, frames.queues);
        let layout = layout.ok_or(io::ErrorKind::InvalidInput)?;
        let mut sockets = descriptors;
        let memory = sockets.pop().ok_or(io::ErrorKind::NotFound)?;
        let queues = XdpQueues::new(sockets, memory.as_fd(), layout)?;
        Ok(XdpBackEnd {
            queues,
            merges: false,
        })
    }

    /// Copies a frame, which lies behind a header, to where it is sent from. `None`: there is no room.
    fn put(&mut self, memory: &SharedMemory, frame: &[Span]) -> Option<Put> {
        let all: usize = frame.iter().map(|span| span.len).sum();
        let Some((first, rest)) = frame
            .split_first()
            .filter(|(first, _)| first.len >= VNET_HEADER_LEN)
        else {
            return Some(Put::Refused);
        };
        let mut header = [0; VNET_HEADER_LEN];
        memory.read(first.offset, &mut header);
        let len = all - VNET_HEADER_LEN;
        let is_complete = header[0] & NEEDS_CSUM == 0 && header[1] == 0;
        if !is_complete || len < ETHERNET_HEADER_LEN || len > self.queues.longest() {
            return Some(Put::Refused);
        }
        let first = Span {
            offset: first.offset + VNET_HEADER_LEN,
            len: first.len - VNET_HEADER_LEN,
        };
        let mut spans = [&first].into_iter().chain(rest).copied();
        let mut span = Span { offset: 0, len: 0 };
        let is_put = self.queues.put(len, |mut to| {
            while !to.is_empty() {
                if span.len == 0 {
                    // All spans together are as long as the frame.
                    let Some(next) = spans.next() else { return };
                    span = next;
                }
                let (part, behind) = to.split_at_mut(span.len.min(to.len()));
                memory.read(span.offset, part);
                span.offset += part.len();
                span.len -= part.len();
                to = behind;
            }
        });
        is_put.then_some(Put::Taken)
    }
}

impl XdpBackEnd {
    /// Takes the frames of a batch, of which the last one may be `held` for the next one.
    fn take(&mut self, batch: &mut Inbound<'_>, held: &mut Option<Held>) -> io::Result<Left> {
        for _ in 0..BATCH {
            let Some(frame) = self.queues.front()? else {
                return Ok(Left::Nothing);
            };
            let segment = if self.merges { Mergeable::read(frame) } else { None };
            let is_held = match (&mut *held, &segment) {
                (Some(held), Some(segment)) => held.append(batch.memory(), segment),
                _ => false,
            };
            if !is_held {
                if let Some(held) = held.take() {
                    held.put(batch);
                }
                let Some(at) = batch.place() else {
                    return Ok(Left::Perhaps);
                };
                let room = place_of(at);
                *held = put_first(batch, room, frame, segment.as_ref());
            }
            self.queues.release();
        }
        Ok(Left::Perhaps)
    }
}

/// Copies a frame into the batch. A segment that others may follow is returned, and not put yet.
fn put_first(
    batch: &mut Inbound<'_>,
    room: Span,
    frame: &[u8],
    segment: Option<&Mergeable<'_>>,
) -> Option<Held> {
    let Some(header) = header_of(frame) else {
        batch.discard();
        return None;
    };
    batch.memory().write(room.offset, &header);
    batch.memory().write(room.offset + VNET_HEADER_LEN, frame);
    let held = segment.and_then(|segment| Held::begin(room, segment));
    if held.is_none() {
        put(batch, room, VNET_HEADER_LEN + frame.len(), None);
    }
    held
}

/// The virtio-net header of a frame that arrived; `None` for one that cannot be forwarded.
fn header_of(frame: &[u8]) -> Option<[u8; VNET_HEADER_LEN]> {
    let mut header = [0; VNET_HEADER_LEN];
    match find(frame) {
        OpenChecksum::Nowhere => {}
        OpenChecksum::Unfinishable => return None,
        OpenChecksum::At { start, offset } => {
            header[0] = NEEDS_CSUM;
            header[6..8].copy_from_slice(&start.to_le_bytes());
            header[8..10].copy_from_slice(&offset.to_le_bytes());
        }
    }
    Some(header)
}

impl BackEnd for XdpBackEnd {
    /// What is open when it arrives, the data plane must complete.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.merges = offloads.tso4 && offloads.tso6;
        if offloads.checksum {
            return Ok(());
        }
        Err(io::Error::other(
            "AF_XDP: the data plane offers no checksum offload",
        ))
    }

    fn takes(&self) -> Takes {
        Takes::Complete
    }

    fn header_len(&self) -> usize {
        VNET_HEADER_LEN
    }

    fn receive(&mut self, batch: &mut Inbound<'_>) -> io::Result<Left> {
        let mut held = None;
        let left = self.take(batch, &mut held);
        if let Some(held) = held {
            held.put(batch);
        }
        let left = left?;
        self.queues.end_batch();
        Ok(left)
    }

    fn send(&mut self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent> {
        let mut sent = Sent::default();
        self.queues.collect()?;
        for frame in frames.iter().skip(first) {
            match self.put(memory, frame) {
                Some(Put::Taken) => sent.taken += 1,
                Some(Put::Refused) => sent.refused += 1,
                None => {
                    sent.full = Some(Full::Device);
                    break;
                }
            }
        }
        if !self.queues.flush()? {
            sent.full = Some(Full::Device);
        }
        Ok(sent)
    }

    fn trouble(&self) -> String {
        "the interface is gone".into()
    }
}

impl AsFd for XdpBackEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.as_fd()
    }
}
