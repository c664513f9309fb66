//! Formats that device and driver share. Words are in little-endian order. Numbers of descriptors and events
//! count through, modulo 2^32; the place in a ring is the number modulo its size.

/// Bytes of a page, and of what a number of the buffer table names.
pub const PAGE: u32 = 4096;

/// Descriptors of a ring, which fills a page.
pub const RING: u32 = 256;

/// Events of a queue, which fills a page.
pub const EVENTS: u32 = 512;

/// Longest frame in bytes, with a VLAN tag and without a checksum.
pub const LONGEST: usize = 1518;

/// Descriptors of a frame at most.
pub const MOST_PARTS: usize = 4;

/// Bytes of a buffer of the driver: half a page.
pub const BUFFER: u32 = 2048;

/// First pages of a driver's memory; the remaining ones have buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Numbers of the buffer table, one for each page from this one on; written by the control driver.
    Numbers,
    /// Descriptors of frames to be sent.
    Transmit,
    /// Descriptors of buffers for frames that come.
    Receive,
    /// Events.
    Events,
    /// The first page with buffers.
    Buffers,
}

impl Page {
    /// Bytes from the begin of the memory.
    pub fn offset(self) -> u64 {
        self as u64 * u64::from(PAGE)
    }
}

/// Registers of a VI, by which its driver tells how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Descriptors that were put into the transmit ring.
    TransmitWritten,
    /// Descriptors that were put into the receive ring.
    ReceiveWritten,
    /// Events that were read.
    EventsRead,
}

impl Register {
    /// Bytes from the begin of the page of registers.
    pub fn offset(self) -> u64 {
        self as u64 * 4
    }
}

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR: u32 = PAGE / RING;

/// Bytes of an event.
pub(crate) const EVENT: u32 = PAGE / EVENTS;

/// A piece of a frame, or room for one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Number in the buffer table.
    pub buffer: u32,
    /// Bytes from the begin of the buffer's page.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The next descriptor belongs to the same frame.
    pub is_continued: bool,
}

impl Descriptor {
    /// As it lies in a ring.
    pub fn to_bytes(self) -> [u8; DESCRIPTOR as usize] {
        let words = [self.buffer, self.offset, self.len, u32::from(self.is_continued)];
        let mut bytes = [0; DESCRIPTOR as usize];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From a ring.
    pub fn of_bytes(bytes: [u8; DESCRIPTOR as usize]) -> Descriptor {
        let word = |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Descriptor {
            buffer: word(0),
            offset: word(4),
            len: word(8),
            is_continued: word(12) & 1 != 0,
        }
    }
}

/// What an event says of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A frame has come into the buffer.
    Received = 1,
    /// The frame that ends with the descriptor was sent.
    Sent,
    /// The frame did not fit the buffer, or the buffer cannot be used.
    ReceiveRefused,
    /// The frame that ends with the descriptor may not be sent.
    SendRefused,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What has happened.
    pub kind: EventKind,
    /// Bytes that have come.
    pub len: u16,
    /// Number of the descriptor.
    pub descriptor: u32,
}

impl Event {
    /// As it lies in the queue at a number. The passes through the queue differ by a byte, so that the driver
    /// sees which events are new.
    pub fn to_bytes(self, number: u32) -> [u8; EVENT as usize] {
        let [len_low, len_high] = self.len.to_le_bytes();
        let [a, b, c, d] = self.descriptor.to_le_bytes();
        [self.kind as u8, pass(number), len_low, len_high, a, b, c, d]
    }

    /// From the queue at a number; `None` if there is none yet.
    pub fn of_bytes(bytes: [u8; EVENT as usize], number: u32) -> Option<Event> {
        let [kind, pass_of, len_low, len_high, a, b, c, d] = bytes;
        let kind = match kind {
            1 => EventKind::Received,
            2 => EventKind::Sent,
            3 => EventKind::ReceiveRefused,
            4 => EventKind::SendRefused,
            _ => return None,
        };
        (pass_of == pass(number)).then_some(Event {
            kind,
            len: u16::from_le_bytes([len_low, len_high]),
            descriptor: u32::from_le_bytes([a, b, c, d]),
        })
    }
}

/// 1 in passes with an even number, 2 in others: memory of zeros has no events.
fn pass(number: u32) -> u8 {
    if (number / EVENTS).is_multiple_of(2) { 1 } else { 2 }
}
