//! The private copy of a packet's head.
//!
//! A guest may rewrite its frame at any time, so the switch copies the first [`Snapshot::CAPACITY`] bytes
//! once and from then on reads and changes only the copy. Header changes happen in place: free space before
//! the first byte lets tags be pushed by moving twelve bytes of MAC addresses instead of the packet.
//!
//! Pushing or popping a tag makes the snapshot 4 bytes longer or shorter, and does not move the boundary between the copy
//! and the rest of the frame in the sender's memory: the rest still begins after the bytes that were filled in. The
//! caller that changes tags also moves the offsets that depend on them, see [`Layers::moved`](crate::Layers::moved) and
//! [`Offload::moved`](crate::Offload::moved).
//!
//! A snapshot has one owner at a time; nothing here synchronises.

use flow::VLAN_PRESENT;

const MAC_BYTES: usize = 12;
const TAG: usize = 4;

/// Whether an Ethernet type announces a VLAN tag.
#[inline]
pub(crate) fn is_vlan_tpid(tpid: u16) -> bool {
    tpid == 0x8100 || tpid == 0x88a8
}

/// The first bytes of a frame, with room to grow at the front.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Snapshot {
    start: u16,
    end: u16,
    buffer: [u8; Snapshot::HEADROOM + Snapshot::CAPACITY],
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot::new()
    }
}

impl Snapshot {
    /// Bytes of a frame that are copied; a shorter frame is complete in its snapshot.
    pub const CAPACITY: usize = 128;
    /// Bytes free before the frame after [`fill`](Self::fill): room for eight tags.
    pub const HEADROOM: usize = 32;
    /// Most bytes a snapshot can ever hold.
    pub const MAX_LEN: usize = Self::HEADROOM + Self::CAPACITY;

    /// An empty snapshot.
    pub const fn new() -> Snapshot {
        Snapshot {
            start: Self::HEADROOM as u16,
            end: Self::HEADROOM as u16,
            buffer: [0; Self::MAX_LEN],
        }
    }

    /// Empties the snapshot and returns `len` bytes, at most [`CAPACITY`](Self::CAPACITY), to be
    /// overwritten by the head of a frame. They hold old data until then.
    #[inline]
    pub fn fill(&mut self, len: usize) -> &mut [u8] {
        self.fill_behind(0, len)
    }

    /// As [`fill`](Self::fill), with `prefix` bytes before the head, at most [`HEADROOM`](Self::HEADROOM), to be
    /// overwritten as well: what precedes a frame in a guest's memory comes over with it, but is not part of it.
    #[inline]
    pub fn fill_behind(&mut self, prefix: usize, len: usize) -> &mut [u8] {
        let len = len.min(Self::CAPACITY);
        self.start = Self::HEADROOM as u16;
        self.end = (Self::HEADROOM + len) as u16;
        let start = Self::HEADROOM - prefix.min(Self::HEADROOM);
        &mut self.buffer[start..Self::HEADROOM + len]
    }

    /// The head of the frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[usize::from(self.start)..usize::from(self.end)]
    }

    /// The head of the frame, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[usize::from(self.start)..usize::from(self.end)]
    }

    /// Bytes held.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Cuts the snapshot to its first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len());
        // No more than the end that there is.
        self.end = self.start + len as u16;
    }

    /// Whether the snapshot is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// Inserts an 802.1Q tag behind the MAC addresses. The position of `VLAN_PRESENT` in `tci` is sent as 0
    /// (DEI clear), so that the value of a flow key can be used as it is. The snapshot grows by 4 bytes;
    /// `false` when there is no room, or no Ethernet header to insert it in.
    #[inline]
    pub fn push_vlan(&mut self, tpid: u16, tci: u16) -> bool {
        let start = usize::from(self.start);
        if start < TAG || self.len() < MAC_BYTES + 2 {
            return false;
        }
        self.buffer.copy_within(start..start + MAC_BYTES, start - TAG);
        self.start -= TAG as u16;
        let tag = &mut self.bytes_mut()[MAC_BYTES..MAC_BYTES + TAG];
        tag[..2].copy_from_slice(&tpid.to_be_bytes());
        tag[2..].copy_from_slice(&(tci & !VLAN_PRESENT).to_be_bytes());
        true
    }

    /// Removes the outermost 802.1Q or 802.1ad tag. The snapshot shrinks by 4 bytes; `false` and unchanged
    /// when there is none, or nothing behind it.
    #[inline]
    pub fn pop_vlan(&mut self) -> bool {
        let bytes = self.bytes();
        if bytes.len() < MAC_BYTES + TAG + 2
            || !is_vlan_tpid(u16::from_be_bytes([bytes[MAC_BYTES], bytes[MAC_BYTES + 1]]))
        {
            return false;
        }
        let start = usize::from(self.start);
        self.buffer.copy_within(start..start + MAC_BYTES, start + TAG);
        self.start += TAG as u16;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pushed_tag_lies_behind_the_addresses_and_has_no_dei() {
        let mut snapshot = Snapshot::new();
        let frame: Vec<u8> = (0..60).collect();
        snapshot.fill(60).copy_from_slice(&frame);
        assert!(snapshot.push_vlan(0x8100, 0x7000 | 10));
        assert_eq!(snapshot.len(), 64);
        assert_eq!(snapshot.bytes()[..12], frame[..12]);
        assert_eq!(snapshot.bytes()[12..16], [0x81, 0, 0x60, 10]);
        assert_eq!(snapshot.bytes()[16..], frame[12..]);
    }

    #[test]
    fn a_prefix_lies_before_the_head() {
        let mut snapshot = Snapshot::new();
        let frame: Vec<u8> = (100..160).collect();
        snapshot
            .fill_behind(3, 60)
            .copy_from_slice(&[&[1, 2, 3], &frame[..]].concat());
        assert_eq!(snapshot.bytes(), frame);
    }

    #[test]
    fn headroom_ends_and_fill_restores_it() {
        let mut snapshot = Snapshot::new();
        snapshot.fill(64).fill(7);
        for _ in 0..8 {
            assert!(snapshot.push_vlan(0x88a8, 5));
        }
        assert!(!snapshot.push_vlan(0x88a8, 5));
        assert_eq!(snapshot.len(), 96);
        assert_eq!(snapshot.fill(1000).len(), Snapshot::CAPACITY);
        assert!(snapshot.push_vlan(0x8100, 5));
    }

    #[test]
    fn untagged_and_truncated_frames_are_left_alone() {
        let mut snapshot = Snapshot::new();
        snapshot.fill(60).fill(0);
        assert!(!snapshot.pop_vlan());
        let bytes = snapshot.fill(17);
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        assert!(!snapshot.pop_vlan());
        snapshot.fill(13);
        assert!(!snapshot.push_vlan(0x8100, 1));
        assert_eq!(snapshot.len(), 13);
    }

    proptest! {
        /// Twin: a vector with the tags spliced in and out.
        #[test]
        fn tags_behave_as_on_a_vector(
            frame in prop::collection::vec(any::<u8>(), 0..=128),
            steps in prop::collection::vec(prop::option::of((any::<bool>(), 0u16..0x1000)), 0..20),
        ) {
            let mut snapshot = Snapshot::new();
            snapshot.fill(frame.len()).copy_from_slice(&frame);
            let (mut twin, mut room) = (frame, 32usize);
            for step in steps {
                match step {
                    Some((ad, tci)) => {
                        let tpid: u16 = if ad { 0x88a8 } else { 0x8100 };
                        let fits = twin.len() >= 14 && room >= 4;
                        prop_assert_eq!(snapshot.push_vlan(tpid, tci), fits);
                        if fits {
                            room -= 4;
                            twin.splice(12..12, [tpid.to_be_bytes(), tci.to_be_bytes()].concat());
                        }
                    }
                    None => {
                        let tagged = twin.len() >= 18 && (twin[12..14] == [0x81, 0] || twin[12..14] == [0x88, 0xa8]);
                        prop_assert_eq!(snapshot.pop_vlan(), tagged);
                        if tagged {
                            room += 4;
                            twin.drain(12..16);
                        }
                    }
                }
                prop_assert_eq!(snapshot.bytes(), &twin[..]);
            }
        }
    }
}
