//! The layout of a split ring's memory (VIRTIO 1.2, 2.7), for device and driver alike.

/// Bytes of a descriptor.
pub const DESC_LEN: usize = 16;
/// Descriptor flag: the chain goes on (2.7.5).
pub const DESC_F_NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const DESC_F_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const DESC_F_INDIRECT: u16 = 4;
/// Flag in the available ring: no notifications, please (2.7.7).
pub const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// Flag in the used ring: no kicks, please (2.7.10).
pub const USED_F_NO_NOTIFY: u16 = 1;
