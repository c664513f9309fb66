//! A connection to the data plane: vhost-user negotiation, memory and rings (vhost-user protocol of QEMU,
//! `docs/interop/vhost-user.rst`; VIRTIO 1.2, 5.1).
//!
//! Each session has memory of its own, freshly made, which is given to the data plane as the only region:
//! `[receive ring | transmit ring | receive buffers | transmit area]`. It is sparse: an interface without traffic costs the
//! pages of its rings. We ask for what the data plane offers of the features below and can do without
//! all of them except VERSION_1: without mergeable buffers the receive ring has fewer and larger buffers, without
//! segmentation offload the TAP is told to segment.

use crate::area::TransmitArea;
use crate::nic::{MAX_FRAME, RECEIVE_ROOM};
use nic_packet::{Offloads, VNET_HEADER_LEN};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::driver::{Access, Doorbell, DriverQueue, Layout, RingError, SharedMemory, Span};

/// Feature bits (VIRTIO 1.2, 5.1.3 and 6).
pub mod feature {
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const HOST_ECN: u64 = 1 << 13;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

const WANTED: u64 = feature::CSUM
    | feature::GUEST_CSUM
    | feature::GUEST_TSO4
    | feature::GUEST_TSO6
    | feature::GUEST_ECN
    | feature::HOST_TSO4
    | feature::HOST_TSO6
    | feature::HOST_ECN
    | feature::MRG_RXBUF
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// Where the data plane believes our memory to be. Any address will do; not zero, which some back ends take for
/// "not set".
const GUEST_BASE: u64 = 1 << 32;

const RECEIVE_QUEUE: usize = 0;
const TRANSMIT_QUEUE: usize = 1;

/// Descriptors and buffer size of the receive ring: 2 MiB, 30 frames of the largest size.
const MERGED_BUFFERS: (u16, usize) = (512, 4096);
/// The same without mergeable buffers, where each must hold the largest frame.
const WHOLE_BUFFERS: (u16, usize) = (64, (VNET_HEADER_LEN + MAX_FRAME).next_multiple_of(4096));

const TRANSMIT_DESCRIPTORS: u16 = 256;
/// Bytes under way to the data plane at most: 31 frames of the largest size.
const TRANSMIT_AREA: usize = 2 << 20;
const _: () = assert!(TRANSMIT_AREA > 2 * RECEIVE_ROOM);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("vhost-user: {0}")]
    Protocol(#[from] vhost::Error),
    #[error("the data plane offers no VIRTIO 1 (features {0:#x})")]
    NoVersion1(u64),
    #[error("the data plane broke a ring: {0}")]
    Ring(#[from] RingError),
    #[error("the data plane announced a frame of {0} buffers and returned {1}")]
    Merged(u16, usize),
    #[error("memory: {0}")]
    Memory(#[from] std::io::Error),
}

/// A running virtio network device, seen from its driver.
pub struct Session {
    pub memory: Arc<SharedMemory>,
    /// Data plane to interface.
    pub receive: DriverQueue,
    pub receive_bell: Bells,
    /// Interface to data plane.
    pub transmit: DriverQueue,
    pub transmit_bell: Bells,
    pub area: TransmitArea,
    /// Whether frames may be spread over several receive buffers.
    pub merged: bool,
    pub features: u64,
    pub stream: UnixStream,
    /// Holds the connection.
    _frontend: Frontend,
}

/// The two directions of waking each other.
pub struct Bells {
    pub kick: Doorbell,
    pub call: Doorbell,
}

impl Bells {
    fn new() -> std::io::Result<Bells> {
        Ok(Bells {
            kick: Doorbell::new()?,
            call: Doorbell::new()?,
        })
    }
}

impl Session {
    /// Negotiates and starts both rings. Takes as long as the data plane takes to answer; shutting the stream
    /// down from elsewhere ends the wait.
    pub fn connect(stream: UnixStream) -> Result<Session, SessionError> {
        let mut frontend = Frontend::from_stream(stream.try_clone()?, 2);
        let features = negotiate(&mut frontend)?;
        let merged = features & feature::MRG_RXBUF != 0;
        let event_idx = features & feature::EVENT_IDX != 0;

        let (buffers, buffer_len) = if merged { MERGED_BUFFERS } else { WHOLE_BUFFERS };
        let receive_layout = Layout::new(0, buffers);
        let transmit_layout = Layout::new(receive_layout.end, TRANSMIT_DESCRIPTORS);
        let buffers_at = transmit_layout.end.next_multiple_of(4096);
        let area_at = buffers_at + usize::from(buffers) * buffer_len;
        let memory = Arc::new(SharedMemory::new("hyperswitch-nic", area_at + TRANSMIT_AREA)?);

        let mut receive = DriverQueue::new(memory.clone(), receive_layout, GUEST_BASE, event_idx);
        for number in 0..usize::from(buffers) {
            let buffer = Span {
                offset: buffers_at + number * buffer_len,
                len: buffer_len,
            };
            receive
                .add(buffer, Access::Writable)
                .expect("as many buffers as descriptors");
        }
        // The device is not running yet, and gets its first kick when it is.
        let _ = receive.publish();
        let transmit = DriverQueue::new(memory.clone(), transmit_layout, GUEST_BASE, event_idx);
        let area = TransmitArea::new(area_at, TRANSMIT_AREA, TRANSMIT_DESCRIPTORS);

        frontend.set_mem_table(&[region(&memory)])?;
        let session = Session {
            receive_bell: Bells::new()?,
            transmit_bell: Bells::new()?,
            memory,
            receive,
            transmit,
            area,
            merged,
            features,
            stream,
            _frontend: frontend.clone(),
        };
        start_queue(&frontend, RECEIVE_QUEUE, &receive_layout, &session.receive_bell)?;
        start_queue(
            &frontend,
            TRANSMIT_QUEUE,
            &transmit_layout,
            &session.transmit_bell,
        )?;
        if features & feature::PROTOCOL_FEATURES != 0 {
            frontend.set_vring_enable(RECEIVE_QUEUE, true)?;
            frontend.set_vring_enable(TRANSMIT_QUEUE, true)?;
        }
        session.receive_bell.kick.ring();
        Ok(session)
    }

    /// What the interface may leave to the data plane.
    pub fn offloads(&self) -> Offloads {
        let has = |bit: u64| self.features & bit != 0;
        Offloads {
            checksum: has(feature::CSUM),
            tso4: has(feature::HOST_TSO4),
            tso6: has(feature::HOST_TSO6),
            ecn: has(feature::HOST_ECN),
        }
    }
}

/// Returns the features both sides agreed on.
fn negotiate(frontend: &mut Frontend) -> Result<u64, SessionError> {
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    if offered & feature::VERSION_1 == 0 {
        return Err(SessionError::NoVersion1(offered));
    }
    if offered & feature::PROTOCOL_FEATURES != 0 {
        let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(protocol)?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
    }
    let features = consistent(offered & WANTED);
    frontend.set_features(features)?;
    Ok(features)
}

/// Leaves out what lacks its precondition (VIRTIO 1.2, 5.1.3.1).
fn consistent(mut features: u64) -> u64 {
    if features & feature::CSUM == 0 {
        features &= !(feature::HOST_TSO4 | feature::HOST_TSO6);
    }
    if features & feature::GUEST_CSUM == 0 {
        features &= !(feature::GUEST_TSO4 | feature::GUEST_TSO6);
    }
    if features & (feature::HOST_TSO4 | feature::HOST_TSO6) == 0 {
        features &= !feature::HOST_ECN;
    }
    if features & (feature::GUEST_TSO4 | feature::GUEST_TSO6) == 0 {
        features &= !feature::GUEST_ECN;
    }
    features
}

fn region(memory: &SharedMemory) -> VhostUserMemoryRegionInfo {
    use std::os::fd::{AsFd, AsRawFd};
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST_BASE,
        memory_size: u64::try_from(memory.len()).expect("sizes fit 64 bits"),
        // Only the data plane computes with it; so our real addresses are none of its business.
        userspace_addr: GUEST_BASE,
        mmap_offset: 0,
        mmap_handle: memory.as_fd().as_raw_fd(),
    }
}

fn start_queue(frontend: &Frontend, index: usize, layout: &Layout, bells: &Bells) -> vhost::Result<()> {
    let address = |offset: usize| GUEST_BASE + u64::try_from(offset).expect("offsets fit 64 bits");
    frontend.set_vring_num(index, layout.size)?;
    frontend.set_vring_base(index, 0)?;
    frontend.set_vring_addr(
        index,
        &VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: 0,
            desc_table_addr: address(layout.descriptors),
            used_ring_addr: address(layout.used),
            avail_ring_addr: address(layout.available),
            log_addr: None,
        },
    )?;
    frontend.set_vring_call(index, bells.call.event_fd())?;
    frontend.set_vring_kick(index, bells.kick.event_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_come_with_what_they_stand_on() {
        assert_eq!(consistent(WANTED), WANTED);
        assert_eq!(consistent(feature::HOST_TSO4 | feature::HOST_ECN), 0);
        assert_eq!(consistent(feature::GUEST_TSO6 | feature::GUEST_ECN), 0);
        let kept = feature::CSUM | feature::HOST_TSO6 | feature::HOST_ECN;
        assert_eq!(consistent(kept | feature::GUEST_ECN), kept);
    }
}
