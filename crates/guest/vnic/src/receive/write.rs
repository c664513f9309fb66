//! One frame into as many posted buffers as it needs.

use super::cursor::{Cursor, copy_and_sum};
use super::{Outcome, ReceiveRing};
use crate::features::NET_MRG_RXBUF;
use crate::packet::Packet;
use crate::turn::DESCRIPTOR_WORK;
use flow::DropReason;
use guest_memory::{GuestMemory, GuestRange};
use virtqueue::{Direction, QueueError};
use wire::{Snapshot, Sum, VnetHeader, finish_checksum};

/// A frame to be written: `head`, then `len` bytes of the packet's tail from `offset` on.
pub(super) struct Frame<'a> {
    pub(super) header: VnetHeader,
    pub(super) head: &'a [u8],
    pub(super) packet: &'a Packet,
    pub(super) offset: u32,
    pub(super) len: u32,
    /// Start and offset of a checksum to be completed.
    pub(super) checksum: Option<(usize, usize)>,
}

/// Why buffers could not be gathered.
pub(super) enum Shortage {
    /// Not now.
    Now,
    /// Never: the packet does not fit the buffers this driver posts.
    Never,
    Broken(QueueError),
}

impl Shortage {
    pub(super) fn outcome(self, done: u32) -> Outcome {
        match self {
            Shortage::Now => Outcome::NoBuffers { done },
            Shortage::Never => Outcome::Dropped(DropReason::BufferTooSmall),
            Shortage::Broken(error) => Outcome::Broken(error),
        }
    }
}

/// Most buffers that a frame is spread over. A driver could post 1,024 of a byte each.
const MAX_BUFFERS: usize = 256;

/// Descriptors after which the search for a frame's buffers ends, whether they suffice or not.
const MAX_WALKED: u32 = 512;

/// Buffers taken from the ring for one frame.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Head and length of each chain, and their ranges in order.
    chains: Vec<(u16, u32)>,
    ranges: Vec<GuestRange>,
    room: usize,
    /// Descriptors examined.
    walked: u32,
}

impl Gathered {
    fn add(&mut self, head: u16, len: u32, ranges: &[GuestRange], walked: u32) {
        self.chains.push((head, len));
        self.ranges.extend_from_slice(ranges);
        self.room += len as usize;
        self.walked += walked;
    }

    fn is_most(&self, queue_size: u16) -> bool {
        self.chains.len() >= MAX_BUFFERS.min(queue_size.into()) || self.walked >= MAX_WALKED
    }

    fn clear(&mut self) {
        self.chains.clear();
        self.ranges.clear();
        (self.room, self.walked) = (0, 0);
    }
}

impl ReceiveRing {
    /// Writes one frame into posted buffers and gives them back, unpublished. If there are not enough now,
    /// those that are there are kept for the next attempt at the same frame.
    pub(super) fn write(&mut self, frame: &Frame<'_>) -> Result<(), Shortage> {
        let header_len = self.header_len as usize;
        let head_end = header_len + frame.head.len();
        let total = head_end + frame.len as usize;
        self.gather(total)?;
        let ranges = &self.gathered.ranges[..];
        let memory = &**self.queue.memory();
        let mut front = [0u8; VnetHeader::LEN + 2 * Snapshot::MAX_LEN];
        front[header_len..head_end].copy_from_slice(frame.head);
        let mut tail_at = Cursor::at(ranges, head_end);
        let late = write_tail(frame, &mut front[header_len..head_end], memory, &mut tail_at);
        self.copied += frame.head.len() as u64 + tail_at.moved;
        let header = VnetHeader {
            num_buffers: u16::try_from(self.gathered.chains.len()).unwrap_or(u16::MAX),
            ..frame.header
        };
        front[..header_len].copy_from_slice(&header.to_bytes()[..header_len]);
        Cursor::at(ranges, 0).write(&front[..head_end], memory);
        if let Some((field, checksum)) = late {
            Cursor::at(ranges, header_len + field).write(&checksum, memory);
        }
        let mut left = total as u32;
        for &(head, len) in &self.gathered.chains {
            self.queue.push_used(head, len.min(left));
            left = left.saturating_sub(len);
        }
        self.work += total as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Takes buffers for `total` bytes from the ring, besides those that it has already.
    fn gather(&mut self, total: usize) -> Result<(), Shortage> {
        while self.gathered.room < total {
            match self.gather_one() {
                Ok(walked) => self.looked_at(walked),
                Err(Shortage::Now) => return Err(Shortage::Now),
                Err(other) => {
                    self.put_back();
                    return Err(other);
                }
            }
            let most = self.gathered.is_most(self.queue.size()) || !self.features.has(NET_MRG_RXBUF);
            if self.gathered.room < total && most {
                self.put_back();
                return Err(Shortage::Never);
            }
        }
        Ok(())
    }

    fn looked_at(&mut self, descriptors: u32) {
        self.work += DESCRIPTOR_WORK * u64::from(descriptors);
        #[cfg(test)]
        {
            self.looked_at += u64::from(descriptors);
        }
    }

    /// Takes the next buffers from the ring; returns how many descriptors were examined.
    fn gather_one(&mut self) -> Result<u32, Shortage> {
        if let Some((head, range)) = self.posted.take() {
            self.gathered.add(head, range.len(), &[range], 1);
            return Ok(1);
        }
        match self.queue.take(Direction::ToDriver, &mut self.scratch) {
            Ok(Some(Ok(()))) => {}
            Ok(None) => return Err(Shortage::Now),
            Ok(Some(Err(_))) => {
                self.queue.rewind(1);
                return Err(Shortage::Broken(QueueError::ReceiveChain));
            }
            Err(error) => return Err(Shortage::Broken(error)),
        }
        let chain = &self.scratch;
        self.gathered
            .add(chain.head, chain.len(), chain.segments(), chain.walked());
        Ok(chain.walked())
    }

    /// Puts all buffers back that were found and not used.
    pub(super) fn put_back(&mut self) {
        self.posted.give_up(&mut self.queue);
        let chains = self.gathered.chains.len();
        self.queue
            .rewind(u16::try_from(chains).expect("a frame has at most 256 buffers"));
        self.gathered.clear();
    }
}

/// Copies the tail, and completes the checksum if that is to be done: in `head`, or, if its field lies
/// deeper, by returning where in the frame which bytes are to be written after everything else.
/// `Offload::check` saw that the field lies in the frame; it holds the sum of a pseudo header, and is part of
/// what is summed.
fn write_tail(
    frame: &Frame<'_>,
    head: &mut [u8],
    memory: &GuestMemory,
    tail_at: &mut Cursor<'_>,
) -> Option<(usize, [u8; 2])> {
    let Some((start, offset)) = frame.checksum else {
        let tail = frame.packet.tail(frame.offset, frame.len);
        tail.for_each(|piece| tail_at.put(piece, memory));
        return None;
    };
    let before = u32::try_from(start.saturating_sub(head.len())).map_or(frame.len, |len| len.min(frame.len));
    let uncovered = frame.packet.tail(frame.offset, before);
    uncovered.for_each(|piece| tail_at.put(piece, memory));
    let mut sum = Sum::new();
    let covered = frame.packet.tail(frame.offset + before, frame.len - before);
    covered.for_each(|piece| copy_and_sum(piece, &mut sum, memory, tail_at));
    if finish_checksum(head, start, offset, &sum) {
        return None;
    }
    let mut whole = Sum::of(head.get(start..).unwrap_or(&[]));
    whole.add_sum(&sum);
    Some((start + offset, whole.l4_checksum().to_be_bytes()))
}
