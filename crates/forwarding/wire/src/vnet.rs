//! The virtio-net header that precedes every frame on a ring (VIRTIO 1.2, 5.1.6).
//!
//! Only the layout lives here: any 12 bytes are a header, and any header can be written back. Whether its
//! fields may be believed is decided by [`Offload::check`](crate::Offload::check), and nothing read from a
//! guest should be passed on without that.

/// `flags`: the checksum at `csum_start + csum_offset` holds only the pseudo header's sum and must be
/// completed.
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified (device to driver only).
pub const DATA_VALID: u8 = 2;

/// `gso_type`: not a segmentation offload.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: UDP by IP fragmentation (UFO).
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Bit in `gso_type`: the TCP segment has CWR set, which belongs to the first segment only.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr_v1`, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// [`GSO_NONE`] and its siblings, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers together, Ethernet to L4; a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment behind those headers.
    pub gso_size: u16,
    /// Where in the frame checksumming begins.
    pub csum_start: u16,
    /// Where the checksum goes, counted from `csum_start`.
    pub csum_offset: u16,
    /// Chains the packet was spread over (device to driver, `VIRTIO_NET_F_MRG_RXBUF`).
    pub num_buffers: u16,
}

/// `gso_type` of a header without a frame, with which a forwarder marks its ring. Not of VIRTIO, and no
/// frame's.
const MARK: u8 = 0x7f;

impl VnetHeader {
    /// A mark with this number: what was put into the ring before has come before.
    pub fn mark(number: u16) -> VnetHeader {
        VnetHeader {
            gso_type: MARK,
            hdr_len: number,
            ..VnetHeader::default()
        }
    }

    /// The number of a mark, if it is one.
    pub fn marked(&self) -> Option<u16> {
        (self.gso_type == MARK).then_some(self.hdr_len)
    }

    /// Bytes on the ring with `VIRTIO_F_VERSION_1` or `VIRTIO_NET_F_MRG_RXBUF`.
    pub const LEN: usize = 12;
    /// Bytes on the ring of a device with neither, a legacy device.
    pub const SHORT_LEN: usize = 10;

    /// Reads a header from its little-endian form.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> VnetHeader {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        }
    }

    /// The little-endian form.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let front = u64::from(self.flags)
            | u64::from(self.gso_type) << 8
            | u64::from(self.hdr_len) << 16
            | u64::from(self.gso_size) << 32
            | u64::from(self.csum_start) << 48;
        let rest = u32::from(self.csum_offset) | u32::from(self.num_buffers) << 16;
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&front.to_le_bytes());
        bytes[8..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_is_the_specification_s() {
        let bytes = [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 2, 0];
        let header = VnetHeader::from_bytes(&bytes);
        let expected = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 2,
        };
        assert_eq!(header, expected);
    }

    proptest! {
        #[test]
        fn bytes_survive_the_round_trip(bytes: [u8; 12]) {
            prop_assert_eq!(VnetHeader::from_bytes(&bytes).to_bytes(), bytes);
        }
    }
}
