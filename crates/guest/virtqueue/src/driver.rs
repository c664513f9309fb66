//! The driver side of a split virtqueue (VIRTIO 1.2, 2.7): the part of a guest's kernel, in memory that we
//! own and share with the device.
//!
//! Little endian, without legacy layouts. A buffer is one descriptor; nothing here needs chains, because a
//! header and its frame lie in one piece, and receive buffers are merged by the device. The driver keeps a
//! private record of each descriptor and never reads the descriptor table back, so the only thing the device
//! can influence is the used ring, and each entry of it is checked: index, identifier and length. An
//! error means that the device is broken or hostile; the queue must not be used any further.
//!
//! Adding is free of side effects until [`DriverQueue::publish`], which makes all added buffers visible at
//! once and returns whether the device asked for a kick. Notifications of the device are off until
//! [`DriverQueue::enable_notifications`], which reports when buffers have been returned already, so that the
//! caller does not sleep over them. Missing a suppression costs a wake-up; missing a notification would cost
//! a stall. So in doubt both sides notify.
//!
//! One thread at a time calls; the other side is another process.

mod doorbell;
mod shared_memory;

pub use doorbell::Doorbell;
pub use shared_memory::{MAX_SPANS, Messages, Pages, Received, SharedMemory, Span};

use crate::split::{AVAIL_F_NO_INTERRUPT, DESC_F_WRITE, DESC_LEN, USED_F_NO_NOTIFY};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const USED_ELEMENT_LEN: usize = 8;

/// How the device broke the used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The used index ran ahead of what was made available.
    #[error("the device returned more buffers than it was given")]
    UsedIndex,
    /// An entry names a descriptor that the device does not hold.
    #[error("the device returned buffer {0}, which it does not hold")]
    UsedId(u32),
    /// An entry claims more bytes than the buffer has.
    #[error("the device claims to have written {0} bytes into a shorter buffer")]
    UsedLength(u32),
}

/// Where the parts of a queue lie in a [`SharedMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of descriptors.
    pub size: u16,
    /// Offset of the descriptor table.
    pub descriptors: usize,
    /// Offset of the available ring.
    pub available: usize,
    /// Offset of the used ring.
    pub used: usize,
    /// Offset behind the queue.
    pub end: usize,
}

impl Layout {
    /// Lays a queue of `size` descriptors (a power of two up to 32,768) out from `offset` on. The rings that
    /// the two sides write begin on different cache lines.
    pub fn new(offset: usize, size: u16) -> Layout {
        assert!(size.is_power_of_two(), "queue size {size} is not a power of two");
        let entries = usize::from(size);
        let descriptors = offset.next_multiple_of(128);
        let available = descriptors + entries * DESC_LEN;
        // Flags, index, entries, used_event.
        let used = (available + 4 + entries * 2 + 2).next_multiple_of(128);
        let end = (used + 4 + entries * USED_ELEMENT_LEN + 2).next_multiple_of(128);
        Layout {
            size,
            descriptors,
            available,
            used,
            end,
        }
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    fn available_index(&self) -> usize {
        self.available + 2
    }

    fn available_entry(&self, index: u16) -> usize {
        self.available + 4 + self.slot(index) * 2
    }

    fn used_event(&self) -> usize {
        self.available + 4 + usize::from(self.size) * 2
    }

    fn used_index(&self) -> usize {
        self.used + 2
    }

    fn used_entry(&self, index: u16) -> usize {
        self.used + 4 + self.slot(index) * USED_ELEMENT_LEN
    }

    fn available_event(&self) -> usize {
        self.used + 4 + usize::from(self.size) * USED_ELEMENT_LEN
    }
}

/// The side that writes a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads it.
    Readable,
    /// The device writes it.
    Writable,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    span: Span,
    access: Access,
}

/// A buffer that the device has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The buffer's descriptor, free again.
    pub id: u16,
    /// The buffer as it was added.
    pub buffer: Span,
    /// Bytes the device wrote, at most `buffer.len`; 0 for a readable buffer.
    pub written: usize,
}

/// One virtqueue, seen from its driver.
#[derive(Debug)]
pub struct DriverQueue {
    memory: Arc<SharedMemory>,
    layout: Layout,
    /// Guest physical address of the memory's first byte.
    guest_base: u64,
    event_idx: bool,
    /// Per descriptor, the buffer that the device holds.
    held: Box<[Option<Held>]>,
    free: Vec<u16>,
    /// Available index including what is not published yet.
    added: u16,
    published: u16,
    /// Used index up to which entries were taken.
    taken: u16,
}

impl DriverQueue {
    /// An empty queue in fresh (zero) memory, with notifications off. `guest_base` is the address under which
    /// the device knows the first byte of `memory`; `event_idx` is whether VIRTIO_F_EVENT_IDX was negotiated.
    pub fn new(memory: Arc<SharedMemory>, layout: Layout, guest_base: u64, event_idx: bool) -> DriverQueue {
        let mut queue = DriverQueue {
            memory,
            layout,
            guest_base,
            event_idx,
            held: vec![None; usize::from(layout.size)].into(),
            free: (0..layout.size).rev().collect(),
            added: 0,
            published: 0,
            taken: 0,
        };
        queue.disable_notifications();
        queue
    }

    /// The memory the queue lies in.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// The available index and the used index, as the device sees them.
    pub fn indices(&self) -> [u16; 2] {
        let used = self.load(self.layout.used_index(), Ordering::Acquire);
        [self.published, used]
    }

    /// How many buffers can be added.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// How many buffers the device holds, published or not.
    pub fn outstanding(&self) -> u16 {
        self.layout.size - u16::try_from(self.free.len()).expect("no more free descriptors than descriptors")
    }

    /// Adds a buffer, to be given to the device by the next [`publish`](Self::publish). Returns its
    /// descriptor, or `None` when the device holds all of them.
    pub fn add(&mut self, buffer: Span, access: Access) -> Option<u16> {
        let len = u32::try_from(buffer.len).expect("buffers are shorter than 4 GiB");
        let id = self.free.pop()?;
        let flags = if access == Access::Writable {
            DESC_F_WRITE
        } else {
            0
        };
        let address = self.guest_base + u64::try_from(buffer.offset).expect("offsets fit 64 bits");
        let mut descriptor = [0; DESC_LEN];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&len.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        self.memory
            .write(self.layout.descriptors + usize::from(id) * DESC_LEN, &descriptor);
        self.memory
            .atomic_u16(self.layout.available_entry(self.added))
            .store(id.to_le(), Ordering::Relaxed);
        self.held[usize::from(id)] = Some(Held { span: buffer, access });
        self.added = self.added.wrapping_add(1);
        Some(id)
    }

    /// Makes everything added visible to the device. Returns whether it wants to be kicked.
    #[must_use = "a device that is not kicked may sleep for ever"]
    pub fn publish(&mut self) -> bool {
        if self.added == self.published {
            return false;
        }
        let before = self.published;
        self.published = self.added;
        // Release: descriptors and entries come before the index.
        self.memory
            .atomic_u16(self.layout.available_index())
            .store(self.added.to_le(), Ordering::Release);
        // The device stores its notification suppression and then loads our index; we do the opposite. One
        // sees the other.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.load(self.layout.available_event(), Ordering::Relaxed);
            passes(event, before, self.added)
        } else {
            self.load(self.layout.used, Ordering::Relaxed) & USED_F_NO_NOTIFY == 0
        }
    }

    /// How many returned buffers wait to be taken.
    pub fn pending(&self) -> Result<u16, RingError> {
        // Acquire: entries, and the device's writes into buffers, come after the index.
        let index = self.load(self.layout.used_index(), Ordering::Acquire);
        let pending = index.wrapping_sub(self.taken);
        let held = self.published.wrapping_sub(self.taken);
        if pending > held {
            Err(RingError::UsedIndex)
        } else {
            Ok(pending)
        }
    }

    /// Takes the next returned buffer.
    pub fn take(&mut self) -> Result<Option<Used>, RingError> {
        if self.pending()? == 0 {
            return Ok(None);
        }
        let entry = self.layout.used_entry(self.taken);
        let id = u32::from_le(self.memory.atomic_u32(entry).load(Ordering::Relaxed));
        let len = u32::from_le(self.memory.atomic_u32(entry + 4).load(Ordering::Relaxed));
        let (index, held) = usize::try_from(id)
            .ok()
            .and_then(|index| Some((index, self.held.get_mut(index)?.take()?)))
            .ok_or(RingError::UsedId(id))?;
        let written = match held.access {
            // Devices may leave anything in the length of a buffer that they only read.
            Access::Readable => 0,
            Access::Writable => usize::try_from(len)
                .ok()
                .filter(|len| *len <= held.span.len)
                .ok_or(RingError::UsedLength(len))?,
        };
        let id = u16::try_from(index).expect("the index was found in a table of at most 32,768 entries");
        self.free.push(id);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Used {
            id,
            buffer: held.span,
            written,
        }))
    }

    /// Asks to be notified when `after` more buffers (at least one) have been returned; without EVENT_IDX, on
    /// the next. Returns whether that many wait already, in which case there may be no notification.
    pub fn enable_notifications(&mut self, after: u16) -> Result<bool, RingError> {
        let after = after.max(1);
        if self.event_idx {
            let event = self.taken.wrapping_add(after - 1);
            self.memory
                .atomic_u16(self.layout.used_event())
                .store(event.to_le(), Ordering::Relaxed);
        } else {
            self.memory
                .atomic_u16(self.layout.available)
                .store(0, Ordering::Relaxed);
        }
        // As in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        Ok(self.pending()? >= after)
    }

    /// Asks not to be notified. Some may come nevertheless.
    pub fn disable_notifications(&mut self) {
        if self.event_idx {
            // An index that is passed last.
            let event = self.taken.wrapping_sub(1);
            self.memory
                .atomic_u16(self.layout.used_event())
                .store(event.to_le(), Ordering::Relaxed);
        } else {
            let flags = AVAIL_F_NO_INTERRUPT.to_le();
            self.memory
                .atomic_u16(self.layout.available)
                .store(flags, Ordering::Relaxed);
        }
    }

    fn load(&self, offset: usize, order: Ordering) -> u16 {
        u16::from_le(self.memory.atomic_u16(offset).load(order))
    }
}

/// Whether an index that moved from `before` to `now` passed `event` (VIRTIO 1.2, 2.7.7.2).
fn passes(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests;
