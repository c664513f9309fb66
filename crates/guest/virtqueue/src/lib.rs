//! Unsafe code lives here: split virtqueues (VIRTIO 1.2, 2.7), the device side and the driver side.
//!
//! * [`DeviceQueue`] is ours towards a guest: it trusts nothing the ring says, reads every descriptor once,
//!   and names guest buffers by `guest_memory::GuestRange`.
//! * [`driver`] is ours towards a device: a driver domain uses it to be a "guest" of the data plane.
//! * [`net`] has the numbers of network devices that both sides need.
//!
//! Neither locks; the caller makes sure that each queue has one user at a time (`lock_free::Claim`).

mod chain;
mod device;
pub mod driver;
pub mod net;
mod split;

pub use chain::{Chain, ChainError, Direction, ENOUGH, MAX_DESCRIPTORS, MAX_SEGMENTS};
pub use device::{DeviceQueue, MAX_QUEUE_SIZE, QueueAddresses, QueueError};
