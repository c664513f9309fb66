//! A virtio network device of the data plane, seen from its driver (VIRTIO 1.2, 5.1), and the memory shared
//! with it: `[receive ring | transmit ring | receive buffers | transmit buffers]`, made anew for each data
//! plane.
//!
//! A frame is copied once in each direction, between the shared memory and memory that only we can change:
//! what the data plane does to a buffer later harms nobody.

use rustix::io::Errno;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vhost_driver::{Bells, ConnectError, Connection, GUEST_BASE, feature};
use virtqueue::driver::{Access, DriverQueue, Layout, RingError, SharedMemory, Span};
use wire::VnetHeader;

const WANTED: u64 = feature::NET_CSUM
    | feature::NET_GUEST_CSUM
    | feature::NET_GUEST_TSO4
    | feature::NET_GUEST_TSO6
    | feature::NET_HOST_TSO4
    | feature::NET_MRG_RXBUF
    | feature::RING_EVENT_IDX
    | feature::VERSION_1;

/// Largest frame in bytes: an IP packet of 64 KiB behind an Ethernet header.
pub(crate) const MAX_FRAME: usize = 65_535 + 14;
/// Descriptors and buffer size of the receive ring: 2 MiB, 31 frames of the largest size.
const RECEIVE: (u16, usize) = (512, 4096);
/// Descriptors and buffer size of the transmit ring. Of the memory only as much is touched as frames were
/// under way at once.
const TRANSMIT: (u16, usize) = (256, (VnetHeader::LEN + MAX_FRAME).next_multiple_of(4096));
/// How long the data plane may take for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why there are no rings.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nobody listens, or memory is short.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The switch broke the vhost-user protocol, or refused.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The switch broke a ring.
    #[error("{0}")]
    Ring(#[from] RingError),
    /// The switch does not offer what is needed: mergeable buffers.
    #[error("it offers no mergeable receive buffers")]
    NotMergeable,
    /// The switch announced another number of buffers than it returned.
    #[error("it announced a frame of {0} buffers")]
    Merged(u16),
    /// Another switch than before, without what that had.
    #[error("it offers less than the one before")]
    OffersLess,
}

impl From<Errno> for AttachError {
    fn from(errno: Errno) -> Self {
        AttachError::Io(errno.into())
    }
}

/// Frames from the data plane.
pub(crate) struct Receiver {
    queue: DriverQueue,
    pub bell: Bells,
}

/// Frames to the data plane.
pub(crate) struct Transmitter {
    queue: DriverQueue,
    pub bell: Bells,
    /// Offsets of buffers that the device does not hold.
    free: Vec<usize>,
}

/// See the module.
pub(crate) struct Attached {
    pub receiver: Receiver,
    pub transmitter: Transmitter,
    /// Hangs up when the data plane goes away.
    pub stream: UnixStream,
    pub features: u64,
    _connection: Connection,
}

impl Attached {
    pub fn connect(path: &Path) -> Result<Attached, AttachError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut connection = Connection::negotiate(stream.try_clone()?, WANTED)?;
        let features = connection.features();
        if features & feature::NET_MRG_RXBUF == 0 {
            return Err(AttachError::NotMergeable);
        }
        let event_idx = features & feature::RING_EVENT_IDX != 0;
        let receive_layout = Layout::new(0, RECEIVE.0);
        let transmit_layout = Layout::new(receive_layout.end, TRANSMIT.0);
        let receive_at = transmit_layout.end.next_multiple_of(4096);
        let transmit_at = receive_at + usize::from(RECEIVE.0) * RECEIVE.1;
        let end = transmit_at + usize::from(TRANSMIT.0) * TRANSMIT.1;
        let memory = Arc::new(SharedMemory::new("hyperswitch-endpoint", end)?);

        let mut queue = DriverQueue::new(memory.clone(), receive_layout, GUEST_BASE, event_idx);
        fill(&mut queue, receive_at..transmit_at);
        connection.share(&memory)?;
        let receiver = Receiver {
            queue,
            bell: Bells::new()?,
        };
        let transmitter = Transmitter {
            queue: DriverQueue::new(memory, transmit_layout, GUEST_BASE, event_idx),
            bell: Bells::new()?,
            // The lowest first, again and again: those are in the caches.
            free: (transmit_at..end).step_by(TRANSMIT.1).rev().collect(),
        };
        let receives = (&receive_layout, &receiver.bell);
        connection.start([receives, (&transmit_layout, &transmitter.bell)])?;
        receiver.bell.kick.ring();
        Ok(Attached {
            receiver,
            transmitter,
            stream,
            features,
            _connection: connection,
        })
    }

    pub fn has(&self, bit: u64) -> bool {
        self.features & bit != 0
    }

    /// Makes what was sent and what was taken visible to the data plane.
    pub fn flush(&mut self) {
        if self.receiver.queue.publish() {
            self.receiver.bell.kick.ring();
        }
        if self.transmitter.queue.publish() {
            self.transmitter.bell.kick.ring();
        }
    }

    /// Asks to be called when frames come, and when there is room again if there is none. Returns whether
    /// that is so already.
    pub fn arm(&mut self) -> Result<bool, AttachError> {
        let came = self.receiver.queue.enable_notifications(1)?;
        let is_full = self.transmitter.room()? == 0;
        let has_room = is_full && self.transmitter.queue.enable_notifications(TRANSMIT.0 / 4)?;
        Ok(came || has_room)
    }

    /// Asks not to be called.
    pub fn disarm(&mut self) {
        self.receiver.queue.disable_notifications();
        self.transmitter.queue.disable_notifications();
    }
}

/// Gives the device its receive buffers, in that part of the memory. It is not running yet, and gets its
/// first kick when it is.
fn fill(queue: &mut DriverQueue, place: Range<usize>) {
    for offset in place.step_by(RECEIVE.1) {
        let len = RECEIVE.1;
        queue.add(Span { offset, len }, Access::Writable);
    }
    let _ = queue.publish();
}

impl Receiver {
    /// Copies the next frame, and returns its header.
    pub fn take(&mut self, frame: &mut Vec<u8>) -> Result<Option<VnetHeader>, AttachError> {
        frame.clear();
        let Some(used) = self.queue.take()? else {
            return Ok(None);
        };
        let mut header = [0; VnetHeader::LEN];
        if used.written < header.len() {
            return Err(AttachError::Merged(0));
        }
        self.queue.memory().read(used.buffer.offset, &mut header);
        let header = VnetHeader::from_bytes(&header);
        self.append(frame, used.buffer, VnetHeader::LEN, used.written);
        for _ in 1..header.num_buffers {
            let rest = self
                .queue
                .take()?
                .ok_or(AttachError::Merged(header.num_buffers))?;
            self.append(frame, rest.buffer, 0, rest.written);
            if frame.len() > MAX_FRAME {
                return Err(AttachError::Merged(header.num_buffers));
            }
        }
        Ok(Some(header))
    }

    /// Copies `from..to` of a buffer behind the frame, and gives the buffer back.
    fn append(&mut self, frame: &mut Vec<u8>, buffer: Span, from: usize, to: usize) {
        let at = frame.len();
        frame.resize(at + to - from, 0);
        self.queue.memory().read(buffer.offset + from, &mut frame[at..]);
        self.queue.add(buffer, Access::Writable);
    }
}

impl Transmitter {
    /// How many frames can be sent.
    pub fn room(&mut self) -> Result<usize, AttachError> {
        while let Some(used) = self.queue.take()? {
            self.free.push(used.buffer.offset);
        }
        Ok(self.free.len())
    }

    /// Sends a frame of at most [`MAX_FRAME`] bytes, once it is flushed. Returns whether there was room.
    pub fn put(&mut self, header: &VnetHeader, frame: &[u8]) -> bool {
        let Some(offset) = self.free.pop() else {
            return false;
        };
        let memory = self.queue.memory();
        memory.write(offset, &header.to_bytes());
        memory.write(offset + VnetHeader::LEN, frame);
        let len = VnetHeader::LEN + frame.len();
        self.queue.add(Span { offset, len }, Access::Readable);
        true
    }
}
