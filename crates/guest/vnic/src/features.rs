//! Feature bits that are offered, and those that were accepted.

pub use virtqueue::net::{
    NET_CSUM, NET_GUEST_CSUM, NET_GUEST_ECN, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_GUEST_USO4, NET_GUEST_USO6,
    NET_HOST_ECN, NET_HOST_TSO4, NET_HOST_TSO6, NET_HOST_USO, NET_MAC, NET_MRG_RXBUF, NET_MTU, NET_STATUS,
    RING_EVENT_IDX, RING_INDIRECT_DESC, VERSION_1, VHOST_USER_PROTOCOL,
};

/// All bits that can be offered. Not offered so far: CTRL_VQ and features that depend on it (UML passes every
/// offered bit to its driver, and the queue would not be served), MQ, RING_PACKED, LOG_ALL.
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
    | NET_GUEST_USO4
    | NET_GUEST_USO6
    | NET_HOST_USO
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
