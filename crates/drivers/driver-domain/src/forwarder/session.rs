//! A connection to the data plane: vhost-user negotiation, memory and rings (vhost-user protocol of QEMU,
//! `docs/interop/vhost-user.rst`; VIRTIO 1.2, 5.1).
//!
//! Each session has memory of its own, freshly made, which is given to the data plane as the only region:
//! `[receive ring | transmit ring | receive buffers | transmit area]`. It is sparse: an interface without
//! traffic costs the pages of its rings. We accept those of the features below that the data plane offers,
//! and can do without all of them except VERSION_1: without mergeable buffers the receive ring has fewer and
//! larger buffers, without segmentation offload the TAP has the kernel segment.

use super::area::{TransmitArea, chunk};
use super::back_end::{MAX_FRAME, RECEIVE_ROOM, Takes};
use super::outbound::Outbound;
use nic_packet::{Offloads, VNET_HEADER_LEN};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vhost_driver::{Bells, ConnectError, Connection, GUEST_BASE, feature};
use virtqueue::driver::{Access, DriverQueue, Layout, RingError, SharedMemory, Span};

const WANTED: u64 = feature::NET_CSUM
    | feature::NET_HOST_TSO4
    | feature::NET_HOST_TSO6
    | feature::NET_HOST_ECN
    | feature::NET_HOST_USO
    | feature::NET_MRG_RXBUF
    | feature::RING_EVENT_IDX
    | feature::VERSION_1;

/// Descriptors and buffer size of the receive ring: 2 MiB, 30 frames of the largest size.
const MERGED_BUFFERS: (u16, usize) = (512, 4096);
/// Number and size of receive buffers without mergeable buffers, where each must hold the largest frame.
const WHOLE_BUFFERS: (u16, usize) = (64, (VNET_HEADER_LEN + MAX_FRAME).next_multiple_of(4096));

const TRANSMIT_DESCRIPTORS: u16 = 256;
/// Room for a frame of the largest size per descriptor: 16 MiB, of which only as many chunks are touched as
/// frames were under way at once.
const TRANSMIT_AREA: usize = TRANSMIT_DESCRIPTORS as usize * chunk(RECEIVE_ROOM);

/// Features by which the data plane leaves work to an interface that `takes` it.
fn offloads_of(takes: Takes) -> u64 {
    const TCP: u64 =
        feature::NET_GUEST_CSUM | feature::NET_GUEST_TSO4 | feature::NET_GUEST_TSO6 | feature::NET_GUEST_ECN;
    match takes {
        Takes::Complete => 0,
        Takes::TcpSegments => TCP,
        Takes::UdpSegments => TCP | feature::NET_GUEST_USO4 | feature::NET_GUEST_USO6,
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{0}")]
    Connect(#[from] ConnectError),
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
    /// Frames that were taken from the receive ring; empty between batches.
    pub outbound: Outbound,
    /// Whether frames may be spread over several receive buffers.
    pub merged: bool,
    pub features: u64,
    pub stream: UnixStream,
    /// Keeps the device connected.
    _connection: Connection,
}

impl Session {
    /// Negotiates and starts both rings. Takes as long as the data plane takes to answer; shutting the stream
    /// down from elsewhere ends the wait. Frames for the interface will be what that `takes`.
    pub fn connect(stream: UnixStream, takes: Takes) -> Result<Session, SessionError> {
        let wanted = WANTED | offloads_of(takes);
        let mut connection = Connection::negotiate(stream.try_clone()?, wanted)?;
        let features = connection.features();
        let merged = features & feature::NET_MRG_RXBUF != 0;
        let event_idx = features & feature::RING_EVENT_IDX != 0;

        let (buffers, buffer_len) = if merged { MERGED_BUFFERS } else { WHOLE_BUFFERS };
        let receive_layout = Layout::new(0, buffers);
        let transmit_layout = Layout::new(receive_layout.end, TRANSMIT_DESCRIPTORS);
        let buffers_at = transmit_layout.end.next_multiple_of(4096);
        let area_at = buffers_at + usize::from(buffers) * buffer_len;
        let memory = Arc::new(SharedMemory::new("hyperswitch-nic", area_at + TRANSMIT_AREA)?);

        let mut receive = DriverQueue::new(memory.clone(), receive_layout, GUEST_BASE, event_idx);
        for offset in (buffers_at..area_at).step_by(buffer_len) {
            let len = buffer_len;
            (receive.add(Span { offset, len }, Access::Writable)).expect("as many buffers as descriptors");
        }
        // The device is not running yet, and gets its first kick when it is.
        let _ = receive.publish();
        let transmit = DriverQueue::new(memory.clone(), transmit_layout, GUEST_BASE, event_idx);
        let area = TransmitArea::new(area_at, RECEIVE_ROOM, TRANSMIT_DESCRIPTORS);

        connection.share(&memory)?;
        let (receive_bell, transmit_bell) = (Bells::new()?, Bells::new()?);
        let receives = (&receive_layout, &receive_bell);
        connection.start([receives, (&transmit_layout, &transmit_bell)])?;
        receive_bell.kick.ring();
        Ok(Session {
            receive_bell,
            transmit_bell,
            memory,
            receive,
            transmit,
            area,
            outbound: Outbound::default(),
            merged,
            features,
            stream,
            _connection: connection,
        })
    }

    /// Whether all frames for the interface are what that `takes`.
    pub fn gives_no_more_than(&self, takes: Takes) -> bool {
        self.features & offloads_of(Takes::UdpSegments) & !offloads_of(takes) == 0
    }

    /// The offloads that the interface may leave to the data plane.
    pub fn offloads(&self) -> Offloads {
        let has = |bit: u64| self.features & bit != 0;
        Offloads {
            checksum: has(feature::NET_CSUM),
            tso4: has(feature::NET_HOST_TSO4),
            tso6: has(feature::NET_HOST_TSO6),
            ecn: has(feature::NET_HOST_ECN),
            uso: has(feature::NET_HOST_USO),
        }
    }
}
