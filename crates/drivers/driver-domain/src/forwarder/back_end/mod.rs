//! Back ends: devices as the forwarder sees them, a batch of frames at a time.
//!
//! | module | back end | in | out |
//! |---|---|---|---|
//! | `tap` | a TAP | a system call a frame, into the data plane's buffers | a system call a frame |
//! | `packet` | a packet socket on a device of the host | copied from a ring; long frames by a system call | a system call a batch |
//! | `xdp` | AF_XDP sockets on a device of the host, one for each queue | copied from memory that the kernel has filled | copied, and a system call a batch |
//! | `open_checksum` | checksums of frames that nothing announces as open | | |
//! | `receive_offload` | segments of TCP that came one by one, merged | | |
//! | `misbehaving` | any of these, which does wrong when a frame says so; for tests | | |
//! | `frame` | header and VLAN tag of a frame that was received | | |
//!
//! To the data plane a frame lies behind a virtio-net header as a driver must write it (VIRTIO 1.2, 5.1.6.2):
//! no flag but NEEDS_CSUM, no buffer count. On the way out the header goes to the kernel as the data plane
//! wrote it; the kernel checks it.
//!
//! A new back end is an implementation of [`BackEnd`], a variant of `Device` in
//! `control_protocol::forwarder`, its line in [`open`], and its way of being opened in the broker
//! (`crates/drivers/driver-domain/src/broker/open_interface.rs`).

mod frame;
#[cfg(debug_assertions)]
mod misbehaving;
mod open_checksum;
#[cfg(test)]
mod out_cost;
mod packet;
mod receive_offload;
mod tap;
mod xdp;

pub use frame::{MAX_FRAME, RECEIVE_ROOM};

use super::outbound::{BATCH, BATCH_BYTES};
use super::session::Session;
use control_protocol::forwarder::Device;
use nic_packet::Offloads;
use rustix::io::Errno;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use virtqueue::driver::{Access, Messages, SharedMemory, Span};

/// A device that is open. Its descriptor is readable when frames are there, and writable when those that
/// found its socket's queue full may be tried again. Used by one thread, which never waits in it.
pub trait BackEnd: AsFd + Debug + Send {
    /// Sets the offloads that the data plane accepts.
    ///
    /// # Errors
    ///
    /// The device cannot do with these.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()>;

    /// What the frames that are sent may be.
    fn takes(&self) -> Takes;

    /// Length of the virtio-net header in front of each frame that is sent, in bytes:
    /// [`VNET_HEADER_LEN`](nic_packet::VNET_HEADER_LEN), or less, without its end.
    fn header_len(&self) -> usize;

    /// Receives frames as long as the batch has places.
    ///
    /// # Errors
    ///
    /// The device does not work any more.
    fn receive(&mut self, batch: &mut Inbound<'_>) -> io::Result<Left>;

    /// Sends frames from number `first` on, each a header of [`Self::header_len`] and the frame itself, until
    /// a queue is full. Full with all frames taken: some are not sent yet, and the call is to be repeated.
    ///
    /// # Errors
    ///
    /// The device does not work any more.
    fn send(&mut self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent>;

    /// Why the descriptor signals an error, for users.
    fn trouble(&self) -> String;
}

/// Takes a device that the broker has opened.
///
/// # Errors
///
/// The process has no room for what the device needs.
pub fn open(device: &Device, descriptors: Vec<OwnedFd>) -> io::Result<Box<dyn BackEnd>> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(io::ErrorKind::NotFound);
    let back_end: Box<dyn BackEnd> = match device {
        Device::Tap => Box::new(tap::TapDevice::new(next()?)),
        Device::Packet { header_len, has_ring } => {
            Box::new(packet::PacketDevice::new(next()?, *header_len, *has_ring)?)
        }
        Device::Xdp(frames) => Box::new(xdp::XdpBackEnd::new(descriptors.collect(), *frames)?),
    };
    #[cfg(debug_assertions)]
    let back_end = misbehaving::wrap(back_end);
    Ok(back_end)
}

/// What frames may be that a device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Whole, with all checksums.
    Complete,
    /// Large ones of TCP, and with open checksums, as their header says.
    TcpSegments,
    /// Large ones of UDP besides.
    UdpSegments,
}

/// Whether a device has more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// No further frame was there.
    Nothing,
    /// There may be more; the batch has no place.
    Perhaps,
}

/// A batch of frames on their way to the data plane.
pub struct Inbound<'a> {
    session: &'a mut Session,
    /// Frames that came for the data plane, of which some may have become one.
    pub frames: usize,
    /// Frames that came and cannot be forwarded.
    pub unusable: usize,
    bytes: usize,
    /// The frame that was put last.
    #[cfg(debug_assertions)]
    last: Option<Span>,
}

impl Inbound<'_> {
    /// An empty batch.
    pub fn new(session: &mut Session) -> Inbound<'_> {
        Inbound {
            session,
            frames: 0,
            unusable: 0,
            bytes: 0,
            #[cfg(debug_assertions)]
            last: None,
        }
    }

    /// Whether the data plane holds all buffers.
    pub fn is_out_of_buffers(&self) -> bool {
        self.session.transmit.room() == 0 || self.session.area.reserve().is_none()
    }

    /// Where the next frame may be put: [`RECEIVE_ROOM`] bytes. `None` if the batch is full.
    pub fn place(&self) -> Option<usize> {
        let is_full = self.frames + self.unusable >= BATCH || self.bytes >= BATCH_BYTES;
        if is_full || self.session.transmit.room() == 0 {
            return None;
        }
        self.session.area.reserve()
    }

    /// Bytes of the frames with their headers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory of places.
    pub fn memory(&self) -> &SharedMemory {
        &self.session.memory
    }

    /// Adds header and frame, which lie in the last place.
    pub fn put(&mut self, frame: Span) {
        self.put_merged(frame, 1);
    }

    /// As [`Self::put`], of a frame that was made of so many that came.
    pub fn put_merged(&mut self, frame: Span, frames: usize) {
        // Places are only given out while there is room.
        if let Some(id) = self.session.transmit.add(frame, Access::Readable) {
            self.session.area.commit(id);
            self.frames += frames;
            self.bytes += frame.len;
            #[cfg(debug_assertions)]
            self.last.replace(frame);
        }
    }

    /// Counts a frame that cannot be forwarded: too short, too long, cut, or with offloads that no virtio-net
    /// header expresses.
    pub fn discard(&mut self) {
        self.unusable += 1;
    }
}

/// A queue of the kernel that has no room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The queue of the socket, which becomes writable when there is room.
    Socket,
    /// The queue of the device. Nothing says when it has room.
    Device,
}

/// Frames that were sent.
#[derive(Debug, Default)]
pub struct Sent {
    pub taken: usize,
    /// The kernel will not take them.
    pub refused: usize,
    /// The next frame is to be sent again.
    pub full: Option<Full>,
}

/// What became of a frame.
enum Fate {
    Taken,
    Refused,
    Full(Full),
}

impl Sent {
    fn count(&mut self, fate: Fate, frames: usize) {
        match fate {
            Fate::Taken => self.taken += frames,
            Fate::Refused => self.refused += frames,
            Fate::Full(full) => self.full = Some(full),
        }
    }
}

/// What the kernel did with a frame; an error is the end of the device.
fn fate(result: io::Result<usize>) -> io::Result<Fate> {
    match result {
        Ok(_) => Ok(Fate::Taken),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::BADFD | Errno::NODEV | Errno::NXIO | Errno::NETDOWN) => Err(error),
            Some(Errno::AGAIN) => Ok(Fate::Full(Full::Socket)),
            Some(Errno::NOBUFS) => Ok(Fate::Full(Full::Device)),
            // A header that the kernel refuses, no memory, a TAP that is down.
            _ => Ok(Fate::Refused),
        },
    }
}

/// What a call for one frame has found.
enum Arrival<T> {
    Frame(T),
    /// The kernel consumed a frame that it could not describe.
    Unusable,
    Nothing,
}

/// What a call for one frame has found; an error is the end of the device.
fn arrival<T>(result: io::Result<T>) -> io::Result<Arrival<T>> {
    match result {
        Ok(frame) => Ok(Arrival::Frame(frame)),
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::AGAIN | Errno::INTR) => Ok(Arrival::Nothing),
            Some(Errno::INVAL) => Ok(Arrival::Unusable),
            _ => Err(error),
        },
    }
}
