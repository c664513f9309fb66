//! One frame into as many posted buffers as it needs.

use super::cursor::{Cursor, copy_and_sum};
use super::{Outcome, ReceiveRing};
use crate::features::NET_MRG_RXBUF;
use crate::packet::Packet;
use flow::DropReason;
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
    pub(super) fn outcome(self, done: usize) -> Outcome {
        match self {
            Shortage::Now => Outcome::NoBuffers { done },
            Shortage::Never => Outcome::Dropped(DropReason::BufferTooSmall),
            Shortage::Broken(error) => Outcome::Broken(error),
        }
    }
}

impl ReceiveRing {
    /// Writes one frame into posted buffers and gives them back, unpublished.
    pub(super) fn write(&mut self, frame: &Frame<'_>) -> Result<(), Shortage> {
        let header_len = self.header_len as usize;
        let total = header_len + frame.head.len() + frame.len as usize;
        self.gather(total)?;
        let memory = &**self.queue.memory();
        let mut tail_at = Cursor::at(&self.ranges, header_len + frame.head.len());
        let mut front = [0u8; VnetHeader::LEN + 2 * Snapshot::MAX_LEN];
        let head_end = header_len + frame.head.len();
        front[header_len..head_end].copy_from_slice(frame.head);
        let tail = frame.packet.tail(frame.offset, frame.len);
        if let Some((start, offset)) = frame.checksum {
            let mut sum = Sum::new();
            tail.for_each(|piece| copy_and_sum(piece, &mut sum, memory, &mut tail_at));
            // The callers made sure that the field lies in the head.
            if !finish_checksum(&mut front[header_len..head_end], start, offset, &sum) {
                debug_assert!(false, "checksum field outside the head");
            }
        } else {
            tail.for_each(|piece| tail_at.put(piece, memory));
        }
        self.copied += frame.head.len() as u64 + tail_at.moved;
        let count = u16::try_from(self.chains.len()).unwrap_or(u16::MAX);
        let header = VnetHeader {
            num_buffers: count,
            ..frame.header
        };
        front[..header_len].copy_from_slice(&header.to_bytes()[..header_len]);
        Cursor::at(&self.ranges, 0).write(&front[..head_end], memory);
        let mut left = total as u32;
        for &(head, len) in &self.chains {
            self.queue.give_back(head, len.min(left));
            left = left.saturating_sub(len);
        }
        Ok(())
    }

    /// Takes buffers for `total` bytes from the ring, all or none.
    fn gather(&mut self, total: usize) -> Result<(), Shortage> {
        self.chains.clear();
        self.ranges.clear();
        let mut room = 0usize;
        while room < total {
            room += self.gather_one().map_err(|shortage| self.put_back(shortage))?;
            let all = self.chains.len() == usize::from(self.queue.size());
            if room < total && (all || !self.features.has(NET_MRG_RXBUF)) {
                return Err(self.put_back(Shortage::Never));
            }
        }
        Ok(())
    }

    /// Takes the next buffers from the ring; returns how many bytes they have.
    fn gather_one(&mut self) -> Result<usize, Shortage> {
        if let Some((head, range)) = self.posted.take() {
            self.chains.push((head, range.len()));
            self.ranges.push(range);
            return Ok(range.len() as usize);
        }
        match self.queue.take(Direction::ToDriver, &mut self.scratch) {
            Ok(Some(Ok(()))) => {}
            Ok(None) => return Err(Shortage::Now),
            Ok(Some(Err(_))) => {
                self.queue.untake(1);
                return Err(Shortage::Broken(QueueError::ReceiveChain));
            }
            Err(error) => return Err(Shortage::Broken(error)),
        }
        self.chains.push((self.scratch.head, self.scratch.len()));
        self.ranges.extend_from_slice(self.scratch.segments());
        Ok(self.scratch.len() as usize)
    }

    fn put_back(&mut self, shortage: Shortage) -> Shortage {
        self.posted.give_up(&mut self.queue);
        self.queue
            .untake(u16::try_from(self.chains.len()).expect("a queue has at most 32768 chains"));
        shortage
    }
}
