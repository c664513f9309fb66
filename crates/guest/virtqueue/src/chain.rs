//! A descriptor chain, translated.

use guest_memory::{GuestMemory, GuestRange};

/// Most segments in a chain after joining what is contiguous. Linux needs up to 19 for a 64 KiB frame with
/// 4 KiB pages, other drivers somewhat more.
pub const MAX_SEGMENTS: usize = 64;

/// Most descriptors that are examined for one chain, in a table or not. Contiguous buffers are joined, so
/// that [`MAX_SEGMENTS`] does not bound them: a driver could have a chain of 32,768 descriptors of one byte
/// each, and all its chains could share them.
pub const MAX_DESCRIPTORS: usize = 256;

/// Bytes after which a chain is long enough for any frame with its headers, and is not walked on.
pub const ENOUGH: u32 = 68 * 1024;

/// Which way a chain's buffers must go. Network queues never mix (VIRTIO 1.2, 5.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Device-readable: transmit.
    FromDriver,
    /// Device-writable: receive.
    ToDriver,
}

/// Why a chain cannot be used. Its head is known, so it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A descriptor lies outside guest memory or the table, is empty, loops or has the wrong direction.
    #[error("malformed descriptor chain")]
    Malformed,
    /// More than [`MAX_SEGMENTS`] or [`MAX_DESCRIPTORS`], or 4 GiB or more.
    #[error("descriptor chain too long")]
    TooLong,
}

/// A chain's buffers in order. Reused from packet to packet; nothing is cleared but the counts.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Chain {
    /// Index of the first descriptor, by which the chain is given back.
    pub head: u16,
    count: u8,
    /// Descriptors examined after the first one.
    further: u8,
    len: u32,
    segments: [GuestRange; MAX_SEGMENTS],
}

impl Default for Chain {
    fn default() -> Self {
        Chain {
            head: 0,
            count: 0,
            further: 0,
            len: 0,
            segments: [GuestRange::default(); MAX_SEGMENTS],
        }
    }
}

impl Chain {
    /// The buffers.
    #[inline]
    pub fn segments(&self) -> &[GuestRange] {
        &self.segments[..usize::from(self.count)]
    }

    /// How many descriptors were examined, 1 to [`MAX_DESCRIPTORS`]; one that spans several memory regions
    /// counts for each. Also meaningful after an error: it is what the chain has cost.
    #[inline]
    pub fn walked(&self) -> u32 {
        u32::from(self.further) + 1
    }

    /// Total length in bytes, of what was walked: a chain that is longer than [`ENOUGH`] ends there.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Empties it, for a chain with this head.
    #[inline]
    pub fn reset(&mut self, head: u16) {
        self.head = head;
        (self.count, self.further, self.len) = (0, 0, 0);
    }

    /// Makes it a chain with this head, and a range, which is not empty, all there is.
    #[inline]
    pub(crate) fn set(&mut self, head: u16, range: GuestRange) {
        self.segments[0] = range;
        self.head = head;
        (self.count, self.further) = (1, 0);
        self.len = range.len();
    }

    /// Appends `len` bytes at a guest physical address.
    #[inline]
    pub(crate) fn append(&mut self, memory: &GuestMemory, address: u64, len: u32) -> Result<(), ChainError> {
        let mut done = 0;
        while done < len {
            if self.count > 0 {
                self.further = self.further.checked_add(1).ok_or(ChainError::TooLong)?;
            }
            let address = address
                .checked_add(u64::from(done))
                .ok_or(ChainError::Malformed)?;
            let range = memory.range(address, len - done).ok_or(ChainError::Malformed)?;
            self.push(range)?;
            done += range.len();
        }
        if len == 0 {
            Err(ChainError::Malformed)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn push(&mut self, range: GuestRange) -> Result<(), ChainError> {
        self.len = self.len.checked_add(range.len()).ok_or(ChainError::TooLong)?;
        let count = usize::from(self.count);
        if let Some(joined) = count
            .checked_sub(1)
            .and_then(|last| self.segments[last].join(range))
        {
            self.segments[count - 1] = joined;
            return Ok(());
        }
        *self.segments.get_mut(count).ok_or(ChainError::TooLong)? = range;
        self.count += 1;
        Ok(())
    }

    /// Copies bytes from `offset` on out, as many as there are and fit; returns how many.
    // For each packet; a call costs 29 instructions more.
    #[inline(always)]
    pub fn read_at(&self, memory: &GuestMemory, offset: u32, to: &mut [u8]) -> usize {
        if self.count == 1 {
            return memory.read(self.segments[0].split_at(offset).1, to);
        }
        let mut done = 0;
        for segment in self.from(offset) {
            if done == to.len() {
                break;
            }
            done += memory.read(segment, &mut to[done..]);
        }
        done
    }

    /// The buffers from byte `offset` on.
    #[inline]
    pub fn from(&self, offset: u32) -> impl Iterator<Item = GuestRange> + '_ {
        let mut skip = offset;
        self.segments().iter().filter_map(move |segment| {
            let (skipped, rest) = segment.split_at(skip);
            skip -= skipped.len();
            (rest.len() > 0).then_some(rest)
        })
    }
}
