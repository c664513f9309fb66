//! Network devices: feature bits (VIRTIO 1.2, 5.1.3 and 6) and numbers of queues (5.1.2), for device and
//! driver alike.

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

/// Driver can receive USO over IPv4 (VIRTIO 1.3, 5.1.3).
pub const NET_GUEST_USO4: u64 = 1 << 54;
/// Driver can receive USO over IPv6.
pub const NET_GUEST_USO6: u64 = 1 << 55;
/// Device can receive USO.
pub const NET_HOST_USO: u64 = 1 << 56;

/// Index of the queue that carries frames to the driver.
pub const RECEIVE_QUEUE: usize = 0;
/// Index of the queue that carries frames from the driver.
pub const TRANSMIT_QUEUE: usize = 1;
