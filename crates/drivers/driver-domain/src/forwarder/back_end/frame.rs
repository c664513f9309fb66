//! Header and VLAN tag of a frame that was received.

use super::Inbound;
use nic_packet::{VNET_HEADER_LEN, VlanTag};
use virtqueue::driver::{SharedMemory, Span};

/// Largest frame the data plane takes, in bytes: 64 KiB of IP with Ethernet header and two VLAN tags, as in
/// `flow::DropReason::OversizedFrame`.
pub const MAX_FRAME: usize = 65_553;

const ETHERNET_HEADER_LEN: usize = 14;
const MAC_ADDRESSES_LEN: usize = 12;
const VLAN_TAG_LEN: usize = 4;

/// Room of the place into which a frame is received: for a VLAN tag to be put back, the header, the frame,
/// and one byte that shows that a frame is too long.
pub const RECEIVE_ROOM: usize = VLAN_TAG_LEN + VNET_HEADER_LEN + MAX_FRAME + 1;

const NEEDS_CSUM: u8 = 1;

/// The part of the place at `at` into which header and frame are received.
pub(super) fn place_of(at: usize) -> Span {
    Span {
        offset: at + VLAN_TAG_LEN,
        len: RECEIVE_ROOM - VLAN_TAG_LEN,
    }
}

/// Puts a frame of `len` bytes with its header into the batch, which lies at the beginning of `room`, with
/// the VLAN tag that the kernel took out.
pub(super) fn put(batch: &mut Inbound<'_>, room: Span, len: usize, tag: Option<VlanTag>) {
    let tag_len = if tag.is_some() { VLAN_TAG_LEN } else { 0 };
    if len < VNET_HEADER_LEN + ETHERNET_HEADER_LEN || len + tag_len >= room.len {
        return batch.discard();
    }
    let offset = room.offset;
    tidy_header(batch.memory(), offset);
    let frame = Span { offset, len };
    batch.put(match tag {
        None => frame,
        Some(tag) => insert_tag(batch.memory(), frame, tag),
    });
}

fn tidy_header(memory: &SharedMemory, start: usize) {
    let mut flags = [0];
    memory.read(start, &mut flags);
    memory.write(start, &[flags[0] & NEEDS_CSUM]);
    memory.write(start + VNET_HEADER_LEN - 2, &[0, 0]);
}

/// Puts a VLAN tag back in its place, by moving header and addresses towards the front.
fn insert_tag(memory: &SharedMemory, frame: Span, tag: VlanTag) -> Span {
    const MOVED: usize = VNET_HEADER_LEN + MAC_ADDRESSES_LEN;
    let mut head = [0; MOVED + VLAN_TAG_LEN];
    memory.read(frame.offset, &mut head[..MOVED]);
    let shift = |head: &mut [u8], at: usize| {
        let value = u16::from_le_bytes([head[at], head[at + 1]]).saturating_add(4);
        head[at..at + 2].copy_from_slice(&value.to_le_bytes());
    };
    if head[0] & NEEDS_CSUM != 0 {
        shift(&mut head, 6);
    }
    if head[1] != 0 {
        // The header length is a hint for segmentation.
        shift(&mut head, 2);
    }
    head[MOVED..MOVED + 2].copy_from_slice(&tag.tpid.to_be_bytes());
    head[MOVED + 2..].copy_from_slice(&tag.tci.to_be_bytes());
    let offset = frame.offset - VLAN_TAG_LEN;
    memory.write(offset, &head);
    Span {
        offset,
        len: frame.len + VLAN_TAG_LEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_and_the_checksum_moves_with_it() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        let mut packet = vec![NEEDS_CSUM, 1, 54, 0, 0x50, 5, 34, 0, 16, 0, 0, 0];
        packet.extend([0xaa; 6]);
        packet.extend([0xbb; 6]);
        packet.extend([0x08, 0x00, 1, 2, 3]);
        memory.write(104, &packet);
        let whole = insert_tag(
            &memory,
            Span {
                offset: 104,
                len: packet.len(),
            },
            VlanTag {
                tpid: 0x8100,
                tci: 0x2064,
            },
        );
        assert_eq!(
            whole,
            Span {
                offset: 100,
                len: packet.len() + 4
            }
        );
        let mut bytes = vec![0; whole.len];
        memory.read(whole.offset, &mut bytes);
        assert_eq!(bytes[..12], [NEEDS_CSUM, 1, 58, 0, 0x50, 5, 38, 0, 16, 0, 0, 0]);
        assert_eq!(bytes[12..24], packet[12..24]);
        assert_eq!(bytes[24..], [0x81, 0x00, 0x20, 0x64, 0x08, 0x00, 1, 2, 3]);
    }
}
