//! The private copy of a packet's head.
//!
//! A guest may rewrite its frame at any time, so the switch copies the first [`Snapshot::CAPACITY`] bytes
//! once and from then on reads and changes only the copy. Header changes happen in place: free space before
//! the first byte lets tags be pushed by moving twelve bytes of MAC addresses instead of the packet.
//!
//! Pushing or popping a tag or label makes the snapshot 4 bytes longer or shorter, and does not move the
//! boundary between the copy and the rest of the frame in the sender's memory: the rest still begins after
//! the bytes that were filled in. The caller that changes tags also moves the offsets that depend on them,
//! see [`Layers::moved`](crate::Layers::moved) and [`Offload::moved`](crate::Offload::moved).
//!
//! A snapshot has one owner at a time; nothing here synchronises.

use flow::{Encapsulation, NshHeader, VLAN_PRESENT, is_mpls, is_vlan};

const MAC_BYTES: usize = 12;
const ETHERNET_HEADER: usize = 14;
const NSH: u16 = 0x894f;
/// Next protocols of a network service header (RFC 8300 8.3.1): IPv4, IPv6, NSH, MPLS; and Ethernet.
const NSH_PROTOCOLS: [(u8, u16); 4] = [(1, 0x0800), (2, 0x86dd), (4, NSH), (5, 0x8847)];
const NSH_ETHERNET: u8 = 3;
/// Bytes of a VLAN tag, and of an MPLS label stack entry.
const TAG: usize = 4;
/// Smallest number in the type field that is a type and not a length (IEEE 802.3 3.2.6).
pub(crate) const SMALLEST_TYPE: u16 = 0x600;

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
    /// Bytes free before the frame after [`fill`](Self::fill): room for an Ethernet header and a network
    /// service header. The head begins on a cache line.
    pub const HEADROOM: usize = 60;
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

    /// As [`fill`](Self::fill), with `prefix` bytes before the head, at most [`HEADROOM`](Self::HEADROOM), to
    /// be overwritten as well: what precedes a frame in a guest's memory comes over with it, but is not part
    /// of it.
    #[inline]
    pub fn fill_behind(&mut self, prefix: usize, len: usize) -> &mut [u8] {
        let len = len.min(Self::CAPACITY);
        self.start = Self::HEADROOM as u16;
        self.end = (Self::HEADROOM + len) as u16;
        let start = Self::HEADROOM - prefix.min(Self::HEADROOM);
        &mut self.buffer[start..Self::HEADROOM + len]
    }

    /// Holds these bytes instead; `false` and unchanged when they are more than [`MAX_LEN`](Self::MAX_LEN).
    pub fn replace(&mut self, bytes: &[u8]) -> bool {
        let Some(spare) = Self::MAX_LEN.checked_sub(bytes.len()) else {
            return false;
        };
        let start = spare.min(Self::HEADROOM);
        self.buffer[start..start + bytes.len()].copy_from_slice(bytes);
        // Places in the buffer are far below 65,536.
        (self.start, self.end) = (start as u16, (start + bytes.len()) as u16);
        true
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
        let tag = self.insert(MAC_BYTES, TAG);
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
            || !is_vlan(u16::from_be_bytes([bytes[MAC_BYTES], bytes[MAC_BYTES + 1]]))
        {
            return false;
        }
        self.remove(MAC_BYTES, TAG);
        true
    }

    /// Inserts an MPLS label stack entry behind the Ethernet type, and changes that to `eth_type`. The
    /// snapshot grows by 4 bytes; `false` and unchanged when there is no room, or no Ethernet type.
    pub fn push_mpls(&mut self, lse: u32, eth_type: u16) -> bool {
        let Some(at) = self.ethertype_at().filter(|_| usize::from(self.start) >= TAG) else {
            return false;
        };
        self.insert(at + 2, TAG).copy_from_slice(&lse.to_be_bytes());
        self.bytes_mut()[at..at + 2].copy_from_slice(&eth_type.to_be_bytes());
        true
    }

    /// Removes the outermost MPLS label stack entry, and changes the Ethernet type to `eth_type`. The
    /// snapshot shrinks by 4 bytes; `false` and unchanged when there is none.
    pub fn pop_mpls(&mut self, eth_type: u16) -> bool {
        let has_label = |at: &usize| {
            let label = self.bytes().get(*at..*at + 2 + TAG);
            label.is_some_and(|bytes| is_mpls(u16::from_be_bytes([bytes[0], bytes[1]])))
        };
        let Some(at) = self.ethertype_at().filter(has_label) else {
            return false;
        };
        self.remove(at + 2, TAG);
        self.bytes_mut()[at..at + 2].copy_from_slice(&eth_type.to_be_bytes());
        true
    }

    /// Puts an MPLS label stack entry before the packet, which has no Ethernet header then; `false` and
    /// unchanged if there is no room.
    fn add_mpls(&mut self, lse: u32, eth_type: u16, has_ethernet: bool) -> bool {
        if !has_ethernet {
            return self.push_mpls(lse, eth_type);
        }
        if usize::from(self.start) < ETHERNET_HEADER + TAG {
            return false;
        }
        let bytes = self.insert(0, ETHERNET_HEADER + TAG);
        bytes[..MAC_BYTES].fill(0);
        bytes[MAC_BYTES..ETHERNET_HEADER].copy_from_slice(&eth_type.to_be_bytes());
        bytes[ETHERNET_HEADER..].copy_from_slice(&lse.to_be_bytes());
        true
    }

    /// Removes the label stack entry that a packet without an Ethernet header begins with, so that it has
    /// one; `false` and unchanged if there is none.
    fn pop_mpls_to_eth(&mut self) -> bool {
        let bytes = self.bytes();
        let has_label = self.ethertype_at() == Some(MAC_BYTES)
            && is_mpls(u16::from_be_bytes([bytes[MAC_BYTES], bytes[MAC_BYTES + 1]]));
        if !has_label || bytes.len() < ETHERNET_HEADER + TAG {
            return false;
        }
        self.remove(0, ETHERNET_HEADER + TAG);
        true
    }

    /// Where the Ethernet type lies, behind up to two tags; `None` for 802.3 frames, which have a length
    /// there.
    fn ethertype_at(&self) -> Option<usize> {
        let word = |at: usize| {
            let bytes = self.bytes().get(at..at + 2)?;
            Some(u16::from_be_bytes([bytes[0], bytes[1]]))
        };
        let is_tag = |at: usize| word(at).is_some_and(is_vlan);
        let tags = (0..2).take_while(|tag| is_tag(MAC_BYTES + tag * TAG)).count();
        let at = MAC_BYTES + tags * TAG;
        word(at).filter(|&word| word >= SMALLEST_TYPE).map(|_| at)
    }

    /// Changes what the packet begins with. Says whether it has an Ethernet header then; `None` and unchanged
    /// if it does not begin as the change needs it, or there is no room.
    pub fn encapsulate(&mut self, change: &Encapsulation, has_ethernet: bool) -> Option<bool> {
        match change {
            Encapsulation::PushEth { dst, src } if !has_ethernet => self.push_eth(*dst, *src).then_some(true),
            Encapsulation::PopEth if has_ethernet => self.pop_eth().then_some(false),
            Encapsulation::PushNsh(header) => self.push_nsh(header, has_ethernet).then_some(false),
            Encapsulation::PopNsh if !has_ethernet => self.pop_nsh(),
            Encapsulation::AddMpls { lse, eth_type } => {
                self.add_mpls(*lse, *eth_type, has_ethernet).then_some(false)
            }
            Encapsulation::PopMplsToEth if !has_ethernet => self.pop_mpls_to_eth().then_some(true),
            _ => None,
        }
    }

    /// Gives a packet without an Ethernet header one; `false` and unchanged when it is too short.
    fn push_eth(&mut self, dst: u64, src: u64) -> bool {
        let Some(addresses) = self.bytes_mut().get_mut(..MAC_BYTES) else {
            return false;
        };
        addresses[..6].copy_from_slice(&dst.to_be_bytes()[2..]);
        addresses[6..].copy_from_slice(&src.to_be_bytes()[2..]);
        true
    }

    /// Removes the Ethernet header, of which the type is kept, with zeros for addresses: what knows only of
    /// packets with such a header can handle others as well. `false` and unchanged for tagged packets and
    /// 802.3 frames.
    fn pop_eth(&mut self) -> bool {
        if self.ethertype_at() != Some(MAC_BYTES) {
            return false;
        }
        self.bytes_mut()[..MAC_BYTES].fill(0);
        true
    }

    /// Puts a network service header before the packet, which has no Ethernet header then. `false` and
    /// unchanged if there is no room, or the header cannot name what follows.
    fn push_nsh(&mut self, header: &NshHeader, has_ethernet: bool) -> bool {
        let header = header.bytes();
        let next = if has_ethernet {
            Some(NSH_ETHERNET)
        } else {
            self.nsh_protocol()
        };
        let (at, len) = if has_ethernet {
            (0, ETHERNET_HEADER + header.len())
        } else {
            (ETHERNET_HEADER, header.len())
        };
        let Some(next) = next.filter(|_| usize::from(self.start) >= len && self.len() >= at) else {
            return false;
        };
        self.insert(at, len)[..len - header.len()].fill(0);
        let bytes = self.bytes_mut();
        bytes[MAC_BYTES..ETHERNET_HEADER].copy_from_slice(&NSH.to_be_bytes());
        bytes[ETHERNET_HEADER..ETHERNET_HEADER + header.len()].copy_from_slice(header);
        bytes[ETHERNET_HEADER + 3] = next;
        true
    }

    /// Removes the network service header of a packet without an Ethernet header. Says whether the packet has
    /// one then; `None` and unchanged if there is no such header, it is cut off, or what follows it has an
    /// unknown number.
    fn pop_nsh(&mut self) -> Option<bool> {
        let word = |at: usize| Some(u16::from_be_bytes(*self.bytes().get(at..)?.first_chunk()?));
        let len = usize::from(word(ETHERNET_HEADER)? & 0x3f) * 4;
        let next = *self.bytes().get(ETHERNET_HEADER + 3)?;
        if word(MAC_BYTES)? != NSH || len < 8 || self.len() < ETHERNET_HEADER + len {
            return None;
        }
        if next == NSH_ETHERNET {
            self.remove(0, ETHERNET_HEADER + len);
            return Some(true);
        }
        let (_, eth_type) = *NSH_PROTOCOLS.iter().find(|(number, _)| *number == next)?;
        self.remove(ETHERNET_HEADER, len);
        self.bytes_mut()[MAC_BYTES..ETHERNET_HEADER].copy_from_slice(&eth_type.to_be_bytes());
        Some(false)
    }

    /// The number by which a network service header names a packet without an Ethernet header.
    fn nsh_protocol(&self) -> Option<u8> {
        let eth_type = u16::from_be_bytes(*self.bytes().get(MAC_BYTES..)?.first_chunk()?);
        let known = NSH_PROTOCOLS.iter().find(|(_, known)| *known == eth_type);
        known.map(|&(number, _)| number)
    }

    /// Makes room for `len` bytes at `at`. There are as many before the frame.
    #[inline]
    fn insert(&mut self, at: usize, len: usize) -> &mut [u8] {
        let start = usize::from(self.start);
        self.buffer.copy_within(start..start + at, start - len);
        self.start -= len as u16;
        &mut self.bytes_mut()[at..at + len]
    }

    /// Removes the `len` bytes at `at`.
    #[inline]
    fn remove(&mut self, at: usize, len: usize) {
        let start = usize::from(self.start);
        self.buffer.copy_within(start..start + at, start + len);
        self.start += len as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{Action, Edit};
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
        for _ in 0..15 {
            assert!(snapshot.push_vlan(0x88a8, 5));
        }
        assert!(!snapshot.push_vlan(0x88a8, 5));
        assert_eq!(snapshot.len(), 124);
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

    fn nsh(context: u8) -> NshHeader {
        let kind = if context == 16 { 1 } else { 2 };
        let mut bytes = vec![0x0f, 0xc0 | (2 + context / 4), kind, 0, 1, 2, 3, 255];
        bytes.extend(100..100 + context);
        NshHeader::new(&bytes).unwrap()
    }

    #[test]
    fn service_headers_name_what_follows_and_are_removed_again() {
        let frames = [0x0800u16, 0x86dd, 0x8847, 0x0806].map(|eth_type| {
            let mut frame: Vec<u8> = (0..70).collect();
            frame[12..14].copy_from_slice(&eth_type.to_be_bytes());
            frame
        });
        for (frame, known) in frames.into_iter().zip([Some(1), Some(2), Some(5), None]) {
            let mut snapshot = Snapshot::new();
            snapshot.fill(frame.len()).copy_from_slice(&frame);
            // Before the Ethernet header, which comes back.
            assert!(snapshot.push_nsh(&nsh(16), true));
            assert_eq!(
                snapshot.bytes()[..14],
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 0x4f]
            );
            assert_eq!(snapshot.bytes()[14..22], [0x0f, 0xc6, 1, 3, 1, 2, 3, 255]);
            assert_eq!(snapshot.bytes()[38..], frame);
            assert_eq!(snapshot.pop_nsh(), Some(true));
            assert_eq!(snapshot.bytes(), frame);
            // Instead of it.
            assert!(snapshot.pop_eth());
            assert_eq!(snapshot.push_nsh(&nsh(4), false), known.is_some());
            if let Some(known) = known {
                assert_eq!(snapshot.bytes()[14..18], [0x0f, 0xc3, 2, known]);
                assert!(snapshot.push_nsh(&nsh(0), false), "in another one");
                assert_eq!(snapshot.bytes()[17], 4);
                assert_eq!(snapshot.pop_nsh(), Some(false));
                assert_eq!(snapshot.pop_nsh(), Some(false));
            }
            assert_eq!(snapshot.bytes()[12..], frame[12..]);
            assert_eq!(snapshot.pop_nsh(), None);
            assert!(snapshot.push_eth(0x0102_0304_0506, 0x0708_090a_0b0c));
            assert_eq!(snapshot.bytes()[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
            assert_eq!(snapshot.bytes()[12..], frame[12..]);
        }
    }

    #[test]
    fn labels_before_an_ethernet_header_hide_it() {
        let frame: Vec<u8> = (0..70).collect();
        let mut snapshot = Snapshot::new();
        snapshot.fill(frame.len()).copy_from_slice(&frame);
        assert!(!snapshot.pop_mpls_to_eth());
        assert!(snapshot.add_mpls(0x5140, 0x8848, true));
        assert!(snapshot.add_mpls(0x6040, 0x8847, false), "before the other one");
        assert_eq!(
            snapshot.bytes()[..22],
            [
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x47, 0, 0, 0x60, 0x40, 0, 0, 0x51, 0x40
            ]
        );
        assert!(snapshot.pop_mpls(0x8847));
        assert!(snapshot.pop_mpls_to_eth());
        assert_eq!(snapshot.bytes(), frame);
        let pushed = (0..4).filter(|_| snapshot.add_mpls(0, 0x8847, true)).count();
        assert_eq!(pushed, 3, "as often as there is room");
        // Eighteen bytes of room are enough, fourteen are not.
        for (labels, fits) in [(6, true), (7, false)] {
            snapshot.fill(frame.len()).copy_from_slice(&frame);
            assert!(snapshot.add_mpls(0, 0x8847, true));
            assert!((0..labels).all(|_| snapshot.push_mpls(0, 0x8847)));
            assert_eq!(snapshot.add_mpls(0, 0x8847, true), fits);
        }
        let bytes = snapshot.fill(17);
        bytes[12..14].copy_from_slice(&[0x88, 0x47]);
        assert!(!snapshot.pop_mpls_to_eth(), "cut short");
        let bytes = snapshot.fill(18);
        bytes[12..14].copy_from_slice(&[0x88, 0x47]);
        assert!(
            snapshot.pop_mpls_to_eth() && snapshot.is_empty(),
            "nothing behind"
        );
    }

    #[test]
    fn service_headers_need_room_and_what_they_say() {
        let mut snapshot = Snapshot::new();
        snapshot.fill(60).fill(0);
        assert!(snapshot.push_nsh(&nsh(36), true), "the longest one");
        assert!(!snapshot.push_nsh(&nsh(0), false), "no room");
        assert!(!snapshot.push_nsh(&nsh(0), true), "no room");
        snapshot.fill(0);
        assert!(snapshot.push_nsh(&nsh(0), true), "nothing behind");
        assert_eq!((snapshot.pop_nsh(), snapshot.len()), (Some(true), 0));
        let mut longer = [0; 48];
        (longer[1], longer[2]) = (12, 2);
        assert_eq!(NshHeader::new(&longer), None);
        // One that is longer than the packet, shorter than a header is, or of another kind.
        for (words, next) in [(40, 3), (1, 3), (6, 9)] {
            let bytes = snapshot.fill(60);
            bytes.fill(0);
            bytes[12..18].copy_from_slice(&[0x89, 0x4f, 0, words, 1, next]);
            assert_eq!(snapshot.pop_nsh(), None);
            assert_eq!(snapshot.len(), 60);
        }
        // Tagged, of 802.3, and too short.
        for head in [&[0x81, 0, 0, 5, 8, 0][..], &[0, 40, 1, 1], &[8]] {
            let bytes = snapshot.fill(12 + head.len());
            bytes[..12].fill(9);
            bytes[12..].copy_from_slice(head);
            assert!(!snapshot.pop_eth());
            assert_eq!(snapshot.bytes()[..12], [9; 12]);
        }
    }

    fn encapsulations() -> Vec<Encapsulation> {
        let headers = [0, 16, 36].map(|context| Encapsulation::PushNsh(nsh(context)));
        let labels = [0x8847, 0x8848].map(|eth_type| Encapsulation::AddMpls {
            lse: 0x0102_0304,
            eth_type,
        });
        let ethernet = Encapsulation::PushEth {
            dst: 0x0102_0304_0506,
            src: 0x0708_090a_0b0c,
        };
        let pops = [
            Encapsulation::PopEth,
            Encapsulation::PopNsh,
            Encapsulation::PopMplsToEth,
        ];
        [&headers[..], &labels, &[ethernet], &pops].concat()
    }

    /// Does to a vector what [`Snapshot::encapsulate`] does to a snapshot with so much room.
    fn encapsulate(
        twin: &mut Vec<u8>,
        room: usize,
        change: &Encapsulation,
        has_ethernet: bool,
    ) -> Option<bool> {
        let found = twin
            .get(12..14)
            .map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        match (change, has_ethernet) {
            (Encapsulation::PushEth { dst, src }, false) => {
                twin.splice(..12, [&dst.to_be_bytes()[2..], &src.to_be_bytes()[2..]].concat());
                Some(true)
            }
            (Encapsulation::PopEth, true) if found >= 0x600 && found != 0x8100 => {
                twin[..12].fill(0);
                Some(false)
            }
            (Encapsulation::PushNsh(header), _) => {
                let next = match found {
                    _ if has_ethernet => 3,
                    0x0800 => 1,
                    0x86dd => 2,
                    0x894f => 4,
                    0x8847 => 5,
                    _ => return None,
                };
                let before = if has_ethernet { &[0; 14][..] } else { &[] };
                let mut pushed = [before, header.bytes()].concat();
                pushed[before.len() + 3] = next;
                if room < pushed.len() {
                    return None;
                }
                let at = 14 - before.len();
                twin.splice(at..at, pushed);
                twin[12..14].copy_from_slice(&[0x89, 0x4f]);
                Some(false)
            }
            (Encapsulation::PopNsh, false) if found == 0x894f && twin.len() >= 18 => {
                let end = 14 + usize::from(twin[15] & 0x3f) * 4;
                if end < 22 || end > twin.len() {
                    return None;
                }
                let eth_type = match twin[17] {
                    1 => [8, 0],
                    2 => [0x86, 0xdd],
                    4 => [0x89, 0x4f],
                    5 => [0x88, 0x47],
                    3 => {
                        twin.drain(..end);
                        return Some(true);
                    }
                    _ => return None,
                };
                twin.splice(12..end, eth_type);
                Some(false)
            }
            (Encapsulation::AddMpls { lse, eth_type }, _) => {
                let before = if has_ethernet { &[0; 12][..] } else { &[] };
                let pushed = [before, &eth_type.to_be_bytes(), &lse.to_be_bytes()].concat();
                let replaced = if has_ethernet { 0..0 } else { 12..14 };
                if room + replaced.len() < pushed.len() {
                    return None;
                }
                twin.splice(replaced, pushed);
                Some(false)
            }
            (Encapsulation::PopMplsToEth, false) if matches!(found, 0x8847 | 0x8848) && twin.len() >= 18 => {
                twin.drain(..18);
                Some(true)
            }
            _ => None,
        }
    }

    proptest! {
        /// Twin: a vector with the headers spliced in and out. What lies before the frame is not zero.
        #[test]
        fn encapsulations_behave_as_on_a_vector(
            len in prop_oneof![0usize..24, 0..=100usize],
            bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 100),
            eth_type in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8847, 0x8848, 0x894f, 0x0806, 0x8100, 60]),
            steps in prop::collection::vec(prop::sample::select(encapsulations()), 0..12),
        ) {
            let mut twin = bytes;
            twin[12..14].copy_from_slice(&eth_type.to_be_bytes());
            twin.truncate(len);
            let mut snapshot = Snapshot::new();
            let (before, head) = snapshot.fill_behind(Snapshot::HEADROOM, len).split_at_mut(Snapshot::HEADROOM);
            before.fill(0xee);
            head.copy_from_slice(&twin);
            let mut has_ethernet = true;
            for change in steps {
                let room = Snapshot::HEADROOM + len - twin.len();
                let expected = encapsulate(&mut twin, room, &change, has_ethernet);
                prop_assert_eq!(snapshot.encapsulate(&change, has_ethernet), expected, "{}", Action::Edit(Edit::Encapsulate(change)));
                prop_assert_eq!(snapshot.bytes(), &twin[..]);
                has_ethernet = expected.unwrap_or(has_ethernet);
            }
        }

        /// Twin: a vector with the tags spliced in and out.
        #[test]
        fn tags_behave_as_on_a_vector(
            frame in prop::collection::vec(any::<u8>(), 0..=128),
            steps in prop::collection::vec(prop::option::of((any::<bool>(), 0u16..0x1000)), 0..20),
        ) {
            let mut snapshot = Snapshot::new();
            snapshot.fill(frame.len()).copy_from_slice(&frame);
            let (mut twin, mut room) = (frame, Snapshot::HEADROOM);
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

        /// Twin: a vector with the labels spliced in and out behind the type.
        #[test]
        fn labels_behave_as_on_a_vector(
            frame in prop::collection::vec(any::<u8>(), 0..=100),
            types in prop::collection::vec(prop::sample::select(vec![0x8100u16, 0x88a8, 0x8847, 0x8848, 0x0800, 60]), 1..4),
            steps in prop::collection::vec(prop::option::of(any::<u32>()), 0..12),
            next in prop::sample::select(vec![0x8847u16, 0x8848, 0x0800]),
        ) {
            let mut twin = frame;
            for (number, eth_type) in types.iter().enumerate() {
                let at = 12 + 4 * number;
                if let Some(bytes) = twin.get_mut(at..at + 2) {
                    bytes.copy_from_slice(&eth_type.to_be_bytes());
                }
            }
            let mut snapshot = Snapshot::new();
            snapshot.fill(twin.len()).copy_from_slice(&twin);
            let mut room = Snapshot::HEADROOM;
            let is_tag = |frame: &[u8], at| matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8]));
            for step in steps {
                let at = match (is_tag(&twin, 12), is_tag(&twin, 16)) {
                    (false, _) => 12,
                    (true, false) => 16,
                    (true, true) => 20,
                };
                let found = twin.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
                match step {
                    Some(label) => {
                        let fits = found.is_some_and(|found| found >= 0x600) && room >= 4;
                        prop_assert_eq!(snapshot.push_mpls(label, 0x8847), fits);
                        if fits {
                            room -= 4;
                            twin.splice(at..at + 2, [&[0x88, 0x47], &label.to_be_bytes()[..]].concat());
                        }
                    }
                    None => {
                        let fits = matches!(found, Some(0x8847 | 0x8848)) && twin.len() >= at + 6;
                        prop_assert_eq!(snapshot.pop_mpls(next), fits);
                        if fits {
                            room += 4;
                            twin.splice(at..at + 6, next.to_be_bytes());
                        }
                    }
                }
                prop_assert_eq!(snapshot.bytes(), &twin[..]);
            }
        }
    }
}
