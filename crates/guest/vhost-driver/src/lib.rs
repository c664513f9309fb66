//! The driver's half of a vhost-user connection, for processes other than VMMs that use a virtio network
//! device of a switch.
//!
//! The driver domain joins its interfaces to the data plane in this way, and so do the polling guests of the
//! test bed. The order is always the same: [`Connection::negotiate`] features, lay out rings and buffers in
//! memory of one's own ([`virtqueue::driver`]), [`Connection::share`] it, [`Connection::start`] the queues.
//! The device belongs to this end as long as the connection is kept (vhost-user protocol of QEMU,
//! `docs/interop/vhost-user.rst`; VIRTIO 1.2, 5.1).
//!
//! Calls take as long as the other side takes to answer; shutting the stream down from elsewhere ends the
//! wait. Nothing here is on the path of packets.

#![forbid(unsafe_code)]

pub mod feature;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::driver::{Doorbell, Layout, SharedMemory};
pub use virtqueue::net::{RECEIVE_QUEUE, TRANSMIT_QUEUE};

/// Where the other side believes our memory to be. Any address will do; not zero, which some back ends take
/// for "not set".
pub const GUEST_BASE: u64 = 1 << 32;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The peer broke the protocol, refused a request, or is gone.
    #[error("vhost-user: {0}")]
    Protocol(#[from] vhost::Error),
    /// The peer speaks only the protocol of before VIRTIO 1.
    #[error("no VIRTIO 1 is offered (features {0:#x})")]
    NoVersion1(u64),
    /// A descriptor could not be made.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The two directions of waking each other, of one queue.
#[derive(Debug)]
pub struct Bells {
    /// Rung by the driver.
    pub kick: Doorbell,
    /// Rung by the device.
    pub call: Doorbell,
}

impl Bells {
    /// Two silent ones.
    pub fn new() -> io::Result<Bells> {
        Ok(Bells {
            kick: Doorbell::new()?,
            call: Doorbell::new()?,
        })
    }
}

/// A device, as long as it is kept.
pub struct Connection {
    frontend: Frontend,
    features: u64,
}

impl Connection {
    /// Agrees on features: those of `wanted` that the device offers and whose preconditions hold.
    pub fn negotiate(stream: UnixStream, wanted: u64) -> Result<Connection, ConnectError> {
        let mut frontend = Frontend::from_stream(stream, 2);
        frontend.set_owner()?;
        let offered = frontend.get_features()?;
        if offered & feature::VERSION_1 == 0 {
            return Err(ConnectError::NoVersion1(offered));
        }
        if offered & feature::VHOST_USER_PROTOCOL != 0 {
            let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
            frontend.set_protocol_features(protocol)?;
            if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        let features = feature::consistent(offered & (wanted | feature::VHOST_USER_PROTOCOL));
        frontend.set_features(features)?;
        Ok(Connection { frontend, features })
    }

    /// What both sides agreed on.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Makes `memory` the only memory of this guest, from [`GUEST_BASE`] on. The queues must be stopped.
    pub fn share(&self, memory: &SharedMemory) -> Result<(), ConnectError> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: u64::try_from(memory.len()).expect("sizes fit 64 bits"),
            // Only the other side computes with it; so our real addresses are none of its business.
            userspace_addr: GUEST_BASE,
            mmap_offset: 0,
            mmap_handle: memory.as_fd().as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region])?;
        Ok(())
    }

    /// Starts the queues, which lie in the memory that was shared: receive queue first.
    pub fn start(&mut self, queues: [(&Layout, &Bells); 2]) -> Result<(), ConnectError> {
        self.start_at(queues, [0; 2])
    }

    /// Starts queues that another device had before: asks this one to go on at these indices.
    pub fn start_at(&mut self, queues: [(&Layout, &Bells); 2], bases: [u16; 2]) -> Result<(), ConnectError> {
        for (index, ((layout, bells), base)) in queues.into_iter().zip(bases).enumerate() {
            self.set_up(index, layout, bells, base)?;
        }
        if self.features & feature::VHOST_USER_PROTOCOL != 0 {
            self.frontend.set_vring_enable(RECEIVE_QUEUE, true)?;
            self.frontend.set_vring_enable(TRANSMIT_QUEUE, true)?;
        }
        Ok(())
    }

    fn set_up(&self, index: usize, layout: &Layout, bells: &Bells, base: u16) -> vhost::Result<()> {
        let address = |offset: usize| GUEST_BASE + u64::try_from(offset).expect("offsets fit 64 bits");
        let config = VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: 0,
            desc_table_addr: address(layout.descriptors),
            used_ring_addr: address(layout.used),
            avail_ring_addr: address(layout.available),
            log_addr: None,
        };
        self.frontend.set_vring_num(index, layout.size)?;
        self.frontend.set_vring_base(index, base)?;
        self.frontend.set_vring_addr(index, &config)?;
        self.frontend.set_vring_call(index, bells.call.event_fd())?;
        self.frontend.set_vring_kick(index, bells.kick.event_fd())
    }
}
