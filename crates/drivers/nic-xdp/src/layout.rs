//! How the memory of a device's sockets is divided: a slice for each queue, of chunks that are alike.
//!
//! | slice of | chunks for what arrives | chunks for what leaves |
//! |---|---|---|
//! | queue 0 | first | behind them |
//! | another queue | all | none: frames leave by queue 0, so that they stay in order |

use std::ops::Range;

/// Queues of a device that are served at most.
pub const MAX_QUEUES: u32 = 16;

/// Bytes in front of a frame that arrived, which the kernel takes (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;

/// Ethernet header and two VLAN tags.
const LINK_HEADERS: u32 = 14 + 2 * 4;

/// Chunks over which a frame lies at most: the first one, and as many as the kernel has fragments of a packet
/// (`MAX_SKB_FRAGS`).
pub(crate) const MAX_PARTS: u32 = 18;

/// Longest frame over several chunks, in bytes: 64 KiB of IP with Ethernet header and two VLAN tags, as the
/// data plane takes.
const LONGEST: u32 = 65_553;

/// Bytes of all slices for what arrives where there are few queues: as much as a packet socket's ring has.
const RECEIVE_BYTES: u32 = 4 << 20;
/// Bytes of a queue's slice for what arrives at least.
const LEAST_RECEIVE_BYTES: u32 = 1 << 20;
const TRANSMIT_BYTES: u32 = 1 << 20;

/// How the memory of a device's sockets is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a chunk, which holds a frame or a part of one: 2,048 or 4,096.
    chunk: u32,
    /// Frames may lie over several chunks, which takes Linux 6.6.
    in_parts: bool,
    /// Queues of the device, 1 to [`MAX_QUEUES`].
    queues: u32,
}

impl Layout {
    /// For a device with such an MTU, in bytes of IP, and this many queues; `None` if its frames are too long
    /// for any, or there are too many queues.
    pub fn of_device(mtu: u32, queues: u32) -> Option<Layout> {
        [(2048, false), (4096, false), (4096, true)]
            .into_iter()
            .filter_map(|(chunk, in_parts)| Layout::new(chunk, in_parts, queues))
            .find(|layout| mtu <= layout.largest_mtu())
    }

    /// As another process has said; `None` if it cannot be.
    pub fn new(chunk: u32, in_parts: bool, queues: u32) -> Option<Layout> {
        let is_possible = [2048, 4096].contains(&chunk) && (1..=MAX_QUEUES).contains(&queues);
        is_possible.then_some(Layout {
            chunk,
            in_parts,
            queues,
        })
    }

    /// The largest MTU of a device with this layout, in bytes of IP.
    pub fn largest_mtu(self) -> u32 {
        self.longest() - LINK_HEADERS
    }

    /// Bytes of a chunk.
    pub fn chunk(self) -> u32 {
        self.chunk
    }

    /// Whether frames may lie over several chunks.
    pub fn in_parts(self) -> bool {
        self.in_parts
    }

    /// Queues of the device.
    pub fn queues(self) -> u32 {
        self.queues
    }

    /// Longest frame in bytes.
    pub fn longest(self) -> u32 {
        if self.in_parts {
            LONGEST.min(MAX_PARTS * self.part())
        } else {
            self.part()
        }
    }

    /// Bytes of a frame that one chunk holds.
    pub(crate) fn part(self) -> u32 {
        self.chunk - HEADROOM
    }

    /// Bytes of all slices.
    pub(crate) fn bytes(self) -> u32 {
        self.slice(self.queues - 1).end
    }

    /// Where in the memory a queue's slice lies.
    pub(crate) fn slice(self, queue: u32) -> Range<u32> {
        let each = self.receive_bytes();
        let begin = if queue == 0 {
            0
        } else {
            TRANSMIT_BYTES + queue * each
        };
        begin..TRANSMIT_BYTES + (queue + 1) * each
    }

    fn receive_bytes(self) -> u32 {
        (RECEIVE_BYTES / self.queues.next_power_of_two()).max(LEAST_RECEIVE_BYTES)
    }

    /// Chunks of a slice for what arrives, which are the first ones: a power of two.
    pub(crate) fn received(self) -> u32 {
        self.receive_bytes() / self.chunk
    }

    /// Chunks for what leaves by queue 0: a power of two.
    pub(crate) fn transmitted(self) -> u32 {
        TRANSMIT_BYTES / self.chunk
    }

    /// Addresses in the slice of queue 0 at which chunks for what leaves begin.
    pub(crate) fn to_send(self) -> impl DoubleEndedIterator<Item = u64> {
        let (first, chunk) = (u64::from(self.receive_bytes()), u64::from(self.chunk));
        (0..self.transmitted()).map(move |number| first + u64::from(number) * chunk)
    }

    /// Whether a chunk for what leaves begins at an address of the slice of queue 0.
    pub(crate) fn is_to_send(self, address: u64) -> bool {
        let first = self.receive_bytes();
        let all = u64::from(first)..u64::from(first + TRANSMIT_BYTES);
        all.contains(&address) && address.is_multiple_of(self.chunk.into())
    }

    /// Where a frame, or a part of one, lies that the kernel names by an address in a slice; `None` if it
    /// lies outside its chunk, or in no chunk of those for what arrives.
    pub(crate) fn place(self, address: u64, len: u32) -> Option<usize> {
        let address = u32::try_from(address).ok()?;
        let end = (address % self.chunk).checked_add(len)?;
        (address < self.receive_bytes() && end <= self.chunk).then_some(address as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_the_mtu() {
        let chunk = |mtu| Layout::of_device(mtu, 1).map(|layout| (layout.chunk(), layout.in_parts()));
        assert_eq!(chunk(1500), Some((2048, false)));
        assert_eq!(chunk(1770), Some((2048, false)));
        assert_eq!(chunk(1771), Some((4096, false)));
        assert_eq!(chunk(3818), Some((4096, false)));
        assert_eq!(chunk(3819), Some((4096, true)));
        assert_eq!(chunk(65_531), Some((4096, true)));
        assert_eq!(chunk(65_532), None);
        assert_eq!(chunk(u32::MAX), None);
        assert_eq!(Layout::new(1024, false, 1), None);
    }

    #[test]
    fn slices_lie_one_behind_the_other_and_rings_are_powers_of_two() {
        for queues in 1..=MAX_QUEUES {
            let layout = Layout::new(2048, false, queues).unwrap();
            let mut end = 0;
            for queue in 0..queues {
                let slice = layout.slice(queue);
                assert_eq!(slice.start, end);
                assert!(slice.start.is_multiple_of(4096));
                assert!(slice.len() as u32 >= layout.received() * layout.chunk());
                end = slice.end;
            }
            assert_eq!(layout.bytes(), end);
            assert!(layout.received().is_power_of_two() && layout.transmitted().is_power_of_two());
            assert!(layout.to_send().all(|address| layout.is_to_send(address)));
            let last = layout.to_send().last().unwrap();
            assert_eq!(last + u64::from(layout.chunk()), u64::from(layout.slice(0).end));
        }
        assert_eq!(Layout::new(2048, false, 1).unwrap().bytes(), 5 << 20);
        assert_eq!(Layout::new(2048, false, 16).unwrap().bytes(), 17 << 20);
        assert_eq!(Layout::new(2048, false, 0), None);
        assert_eq!(Layout::new(2048, false, MAX_QUEUES + 1), None);
    }

    #[test]
    fn a_frame_lies_in_one_chunk_of_those_that_receive() {
        let layout = Layout::new(2048, false, 2).unwrap();
        assert_eq!(layout.place(256, 1792), Some(256));
        assert_eq!(layout.place(256, 1793), None);
        assert_eq!(layout.place(2048 * 3 + 256, 60), Some(2048 * 3 + 256));
        assert_eq!(layout.place(2 << 20, 60), None);
        assert_eq!(layout.place(u64::MAX, 60), None);
        assert_eq!(layout.place(256, u32::MAX), None);
    }
}
