//! The rings as smoltcp's network device. TCP segments of up to 64 KiB come in whole, and go out so over
//! IPv4.

use crate::Counters;
use crate::attached::{AttachError, Attached, MAX_FRAME};
use crate::checksums::Segment;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use std::num::NonZeroUsize;
use vhost_driver::feature;
use wire::{DATA_VALID, GSO_NONE, GSO_TCPV4, NEEDS_CSUM, VnetHeader};

/// Features that the stack is told of once.
const STACK_KNOWS: u64 = feature::NET_CSUM | feature::NET_GUEST_CSUM | feature::NET_HOST_TSO4;
const ETHERNET_HEADER: usize = 14;
/// Where a TCP header has its checksum.
const TCP_CHECKSUM: u16 = 16;

/// The network device, with the data plane or while there is none.
pub(crate) struct Card {
    pub attached: Option<Attached>,
    pub counters: Counters,
    /// Why the data plane was given up, as it was noticed last.
    pub problem: Option<AttachError>,
    capabilities: DeviceCapabilities,
    /// Features of the first data plane.
    features: u64,
    received: Vec<u8>,
    to_send: Vec<u8>,
}

impl Card {
    pub fn new(attached: Attached, mtu: usize) -> Card {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = ETHERNET_HEADER + mtu;
        // Checksums of TCP and UDP are looked at here, where the frame's header is known.
        if attached.has(feature::NET_GUEST_CSUM) {
            capabilities.checksum.udp = Checksum::Tx;
            capabilities.checksum.tcp = Checksum::Tx;
        }
        if attached.has(feature::NET_CSUM) {
            capabilities.checksum.tcp = match capabilities.checksum.tcp {
                Checksum::Tx => Checksum::None,
                _ => Checksum::Rx,
            };
            // smoltcp drops IPv6 packets that are longer than the MTU also where the device would cut them.
            capabilities.segmentation.tcpv4 =
                NonZeroUsize::new(MAX_FRAME).filter(|_| attached.has(feature::NET_HOST_TSO4));
        }
        Card {
            features: attached.features,
            attached: Some(attached),
            counters: Counters::default(),
            problem: None,
            capabilities,
            received: Vec::with_capacity(MAX_FRAME),
            to_send: vec![0; MAX_FRAME],
        }
    }

    /// Whether another data plane has the offloads that the stack was told of.
    pub fn offers(&self, other: &Attached) -> bool {
        let (needed, offered) = (self.features & STACK_KNOWS, other.features & STACK_KNOWS);
        needed & !offered == 0 && (offered & feature::NET_GUEST_CSUM == needed & feature::NET_GUEST_CSUM)
    }

    /// Whether there is a data plane, and no room for a frame.
    pub fn is_full(&mut self) -> bool {
        !self.has_room() && self.attached.is_some()
    }

    /// What was sent and taken becomes visible to the data plane.
    pub fn flush(&mut self) {
        if let Some(attached) = &mut self.attached {
            attached.flush();
        }
    }

    /// Gives the data plane up.
    pub fn detach(&mut self, why: Option<AttachError>) {
        self.problem = why;
        self.counters.lost += u64::from(self.attached.take().is_some());
    }

    /// Takes in the next frame that is sound. Returns whether there is one.
    fn take(&mut self) -> bool {
        while let Some(attached) = &mut self.attached {
            match attached.receiver.take(&mut self.received) {
                Ok(Some(header)) => {
                    self.counters.received += 1;
                    if is_sound(&header, &self.received) {
                        return true;
                    }
                    self.counters.malformed += 1;
                }
                Ok(None) => return false,
                Err(error) => self.detach(Some(error)),
            }
        }
        false
    }

    /// Whether there is room for a frame.
    fn has_room(&mut self) -> bool {
        let Some(attached) = &mut self.attached else {
            return false;
        };
        match attached.transmitter.room() {
            Ok(room) => room > 0,
            Err(error) => {
                self.detach(Some(error));
                false
            }
        }
    }
}

/// Whether a frame's checksum is right, was verified, or need not be: it has never left the host.
fn is_sound(header: &VnetHeader, frame: &[u8]) -> bool {
    if header.flags & (NEEDS_CSUM | DATA_VALID) != 0 {
        return true;
    }
    Segment::of(frame).is_none_or(|segment| segment.is_right(frame))
}

/// Leaves the checksum of a TCP segment open, and says how the device is to complete and cut it.
fn offload(frame: &mut [u8], segment_size: Option<u16>) -> VnetHeader {
    let Some(segment) = Segment::of(frame).filter(Segment::is_tcp) else {
        return VnetHeader::default();
    };
    segment.open(frame);
    let header_len = segment.at + segment.header_len(frame);
    VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: match segment_size {
            None => GSO_NONE,
            Some(_) => GSO_TCPV4,
        },
        // At most 14 + 60 + 60.
        hdr_len: segment_size.map_or(0, |_| header_len as u16),
        gso_size: segment_size.unwrap_or(0),
        csum_start: segment.at as u16,
        csum_offset: TCP_CHECKSUM,
        num_buffers: 0,
    }
}

/// A frame that was received.
pub(crate) struct Received<'a>(&'a [u8]);

/// Room for a frame.
pub(crate) struct Room<'a> {
    attached: &'a mut Option<Attached>,
    counters: &'a mut Counters,
    buffer: &'a mut [u8],
    opens_checksums: bool,
    segment_size: Option<u16>,
}

impl smoltcp::phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl smoltcp::phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let frame = &mut self.buffer[..len];
        frame.fill(0);
        let result = fill(frame);
        let header = if self.opens_checksums {
            offload(frame, self.segment_size)
        } else {
            VnetHeader::default()
        };
        let is_sent = self
            .attached
            .as_mut()
            .is_some_and(|attached| attached.transmitter.put(&header, frame));
        let count = if is_sent {
            &mut self.counters.sent
        } else {
            &mut self.counters.unsent
        };
        *count += 1;
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment_size = meta.segmentation_offload_size.map(|size| size.get());
    }
}

impl Device for Card {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Room<'_>)> {
        // What is received is taken in also where an answer finds no room: room comes with the data plane's
        // progress, which does not depend on ours.
        let _ = self.has_room();
        self.take().then(|| {
            let opens_checksums = !self.capabilities.checksum.tcp.tx();
            let room = Room {
                attached: &mut self.attached,
                counters: &mut self.counters,
                buffer: &mut self.to_send,
                opens_checksums,
                segment_size: None,
            };
            (Received(&self.received), room)
        })
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        self.has_room().then(|| Room {
            opens_checksums: !self.capabilities.checksum.tcp.tx(),
            attached: &mut self.attached,
            counters: &mut self.counters,
            buffer: &mut self.to_send,
            segment_size: None,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}
