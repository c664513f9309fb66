//! Buffers that the driver posted, found before the packets that are written there.
//!
//! A driver writes new entries right behind those that are read here, in the same cache lines. So entries are
//! read many at a time and kept: a correct driver does not change them before the buffers are given back, and
//! if one does, the values are not read a second time. Only buffers that are one piece of memory are kept; a
//! chain of several ends the search.

use crate::turn::BURST;
use guest_memory::GuestRange;
use virtqueue::{DeviceQueue, QueueError};

/// Bytes of each buffer that are prefetched: two cache lines.
const PREFETCH: u32 = 128;

/// Most buffers that are known: a burst is found when there are too few for another one.
const MOST: usize = 2 * BURST;

/// Buffers in the order in which they were posted.
#[derive(Debug)]
pub(super) struct Posted {
    heads: [u16; MOST],
    ranges: [GuestRange; MOST],
    first: usize,
    end: usize,
}

impl Posted {
    pub fn new() -> Posted {
        Posted {
            heads: [0; MOST],
            ranges: [GuestRange::default(); MOST],
            first: 0,
            end: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.end - self.first
    }

    /// Heads of the chains, and where the buffers lie.
    #[inline]
    pub fn known(&self) -> (&[u16], &[GuestRange]) {
        (
            &self.heads[self.first..self.end],
            &self.ranges[self.first..self.end],
        )
    }

    /// Forgets the first ones, which are used now.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.first = (self.first + count).min(self.end);
    }

    /// Takes the first one.
    pub fn take(&mut self) -> Option<(u16, GuestRange)> {
        let (heads, ranges) = self.known();
        let found = (*heads.first()?, *ranges.first()?);
        self.advance(1);
        Some(found)
    }

    /// Finds more, so that at least a burst is known if so many are posted.
    #[inline(never)]
    pub fn find(&mut self, queue: &mut DeviceQueue) -> Result<(), QueueError> {
        self.heads.copy_within(self.first..self.end, 0);
        self.ranges.copy_within(self.first..self.end, 0);
        (self.first, self.end) = (0, self.len());
        let room = BURST.min(MOST - self.end);
        let taken = self.end + queue.take_heads(&mut self.heads[self.end..][..room])?;
        while self.end < taken
            && let Some(range) = queue.buffer(self.heads[self.end], PREFETCH)
        {
            self.ranges[self.end] = range;
            self.end += 1;
        }
        queue.rewind((taken - self.end) as u16);
        Ok(())
    }

    /// Puts all back.
    pub fn give_up(&mut self, queue: &mut DeviceQueue) {
        queue.rewind(self.len() as u16);
        (self.first, self.end) = (0, 0);
    }
}
