//! Virtio and vhost-user feature bits, and which of them are offered.

/// Device handles packets with partial checksum (VIRTIO 1.2, 5.1.3).
pub const NET_CSUM: u64 = 1 << 0;
/// Driver handles packets with partial checksum.
pub const NET_GUEST_CSUM: u64 = 1 << 1;
/// The configuration space has an MTU.
pub const NET_MTU: u64 = 1 << 3;
/// The configuration space has a MAC address.
pub const NET_MAC: u64 = 1 << 5;
/// Driver can receive TSOv4.
pub const NET_GUEST_TSO4: u64 = 1 << 7;
/// Driver can receive TSOv6.
pub const NET_GUEST_TSO6: u64 = 1 << 8;
/// Driver can receive TSO with ECN.
pub const NET_GUEST_ECN: u64 = 1 << 9;
/// Device can receive TSOv4.
pub const NET_HOST_TSO4: u64 = 1 << 11;
/// Device can receive TSOv6.
pub const NET_HOST_TSO6: u64 = 1 << 12;
/// Device can receive TSO with ECN.
pub const NET_HOST_ECN: u64 = 1 << 13;
/// Driver can merge receive buffers.
pub const NET_MRG_RXBUF: u64 = 1 << 15;
/// The configuration space has a link status.
pub const NET_STATUS: u64 = 1 << 16;
/// Indirect descriptor tables.
pub const RING_INDIRECT_DESC: u64 = 1 << 28;
/// `used_event` and `avail_event`.
pub const RING_EVENT_IDX: u64 = 1 << 29;
/// vhost-user protocol features can be negotiated.
pub const VHOST_USER_PROTOCOL: u64 = 1 << 30;
/// VIRTIO 1.0 or later.
pub const VERSION_1: u64 = 1 << 32;

/// All that can be offered. Not offered, with their place kept: CTRL_VQ and what hangs on it (UML passes every
/// offered bit to its driver, and nobody would serve the queue), MQ, RING_PACKED, LOG_ALL.
pub const OFFERED: u64 = NET_CSUM
    | NET_GUEST_CSUM
    | NET_MTU
    | NET_MAC
    | NET_GUEST_TSO4
    | NET_GUEST_TSO6
    | NET_GUEST_ECN
    | NET_HOST_TSO4
    | NET_HOST_TSO6
    | NET_HOST_ECN
    | NET_MRG_RXBUF
    | NET_STATUS
    | RING_INDIRECT_DESC
    | RING_EVENT_IDX
    | VHOST_USER_PROTOCOL
    | VERSION_1;

/// Accepted features, asked by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Whether all bits of `features` were accepted.
    #[inline]
    pub fn has(self, features: u64) -> bool {
        self.0 & features == features
    }

    /// Bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable buffers (5.1.6.1).
    #[inline]
    pub fn header_len(self) -> u32 {
        if self.0 & (VERSION_1 | NET_MRG_RXBUF) != 0 {
            12
        } else {
            10
        }
    }
}
