//! AF_XDP sockets (`Documentation/networking/af_xdp.rst`): frames between a device's driver and mapped
//! memory, past the host's stack.
//!
//! One process opens a socket ([`XdpDevice`], which takes privileges), another one moves frames
//! ([`XdpSocket`], which takes none, but for the descriptors). An eBPF program in the driver hands what
//! arrives to the socket ([`Steering`], loaded by a third).
//!
//! | module | contents |
//! |---|---|
//! | `device` | sockets on devices: opening, attaching the program, what the kernel lost |
//! | `socket` | frames in and out |
//! | `rings` | the four rings that a socket shares with the kernel |
//! | `area` | the memory of frames, which the kernel has pinned |
//!
//! Memory: half of a socket's frames and more are for what arrives. The socket's first reader gives them to
//! the kernel. From then on each belongs to the kernel until a frame has arrived in it, and a reader gives it
//! back in the order in which frames came. So two numbers that a reader publishes, frames given and frames
//! taken, always differ by the same amount, and the next process finds everything in order wherever the one
//! before it died.
//!
//! A frame is at most [`Layout::longest`] bytes long; the kernel drops and counts longer ones. Nothing of a
//! frame but its bytes arrives: no checksum that was left open, no VLAN tag that the driver has taken out.
//! Only queue 0 of a device is served, so a device with several is refused.
//!
//! Rings and frames may be written by a process that is trusted with nothing but the device. What is read
//! from them is checked, and an error is the end of the socket.

mod area;
mod device;
mod rings;
mod socket;

pub use device::{Refused, Steering, Target, XdpDevice};
pub use socket::XdpSocket;

/// How a socket's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a chunk, which holds a frame: 2,048 or 4,096.
    chunk: u32,
}

/// Bytes of the memory for what arrives, and for what leaves: as much as a packet socket's ring has, and a
/// quarter of that.
const RECEIVE_BYTES: u32 = 4 << 20;
const TRANSMIT_BYTES: u32 = 1 << 20;

/// Bytes in front of a frame that arrived, which the kernel takes (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;

/// Ethernet header and two VLAN tags.
const LINK_HEADERS: u32 = 14 + 2 * 4;

impl Layout {
    /// For a device with such an MTU, in bytes of IP; `None` if its frames are too long for any.
    pub fn of_mtu(mtu: u32) -> Option<Layout> {
        let all = [2048, 4096].map(|chunk| Layout { chunk });
        all.into_iter()
            .find(|layout| mtu.saturating_add(LINK_HEADERS) <= layout.longest())
    }

    /// With chunks of so many bytes, as another process has said; `None` if they cannot be.
    pub fn of_chunk(chunk: u32) -> Option<Layout> {
        [2048, 4096].contains(&chunk).then_some(Layout { chunk })
    }

    /// Bytes of a chunk.
    pub fn chunk(self) -> u32 {
        self.chunk
    }

    /// Longest frame in bytes.
    pub fn longest(self) -> u32 {
        self.chunk - HEADROOM
    }

    /// Chunks for what arrives, which are the first ones.
    fn received(self) -> u32 {
        RECEIVE_BYTES / self.chunk
    }

    /// Chunks for what leaves.
    fn transmitted(self) -> u32 {
        TRANSMIT_BYTES / self.chunk
    }

    /// Whether a chunk for what leaves begins at an address.
    fn is_to_send(self, address: u64) -> bool {
        let all = u64::from(RECEIVE_BYTES)..u64::from(RECEIVE_BYTES + TRANSMIT_BYTES);
        all.contains(&address) && address.is_multiple_of(self.chunk.into())
    }

    /// Where a frame lies that the kernel names by an address in its chunk; `None` if it lies outside its
    /// chunk, or no chunk of those for what arrives.
    fn place(self, address: u64, len: u32) -> Option<usize> {
        let address = u32::try_from(address).ok()?;
        let end = (address % self.chunk).checked_add(len)?;
        (address < RECEIVE_BYTES && end <= self.chunk).then_some(address as usize)
    }
}

/// Bytes of a socket's memory.
const AREA: usize = (RECEIVE_BYTES + TRANSMIT_BYTES) as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_the_mtu() {
        let chunk = |mtu| Layout::of_mtu(mtu).map(Layout::chunk);
        assert_eq!(chunk(1500), Some(2048));
        assert_eq!(chunk(1770), Some(2048));
        assert_eq!(chunk(1771), Some(4096));
        assert_eq!(chunk(3818), Some(4096));
        assert_eq!(chunk(3819), None);
        assert_eq!(chunk(u32::MAX), None);
        assert_eq!(Layout::of_chunk(1024), None);
    }

    #[test]
    fn a_frame_lies_in_one_chunk_of_those_that_receive() {
        let layout = Layout::of_chunk(2048).unwrap();
        assert_eq!(layout.place(256, 1792), Some(256));
        assert_eq!(layout.place(256, 1793), None);
        assert_eq!(layout.place(2048 * 3 + 256, 60), Some(2048 * 3 + 256));
        assert_eq!(layout.place(u64::from(RECEIVE_BYTES), 60), None);
        assert_eq!(layout.place(u64::MAX, 60), None);
        assert_eq!(layout.place(256, u32::MAX), None);
    }
}
