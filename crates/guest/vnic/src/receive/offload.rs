//! Checksums and segmentation for a receiver that lacks the offload.

use super::write::Frame;
use super::{Outcome, ReceiveRing};
use crate::features::{
    NET_GUEST_CSUM, NET_GUEST_ECN, NET_GUEST_TSO4, NET_GUEST_TSO6, NET_GUEST_USO4, NET_GUEST_USO6,
};
use crate::packet::Packet;
use flow::DropReason;
use std::borrow::Cow;
use wire::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, L3, L4, Snapshot, VnetHeader, segments};

/// Most segments of a packet that are made in one go.
const SEGMENTS_AT_ONCE: usize = 64;

impl ReceiveRing {
    /// Whether nothing is left to do but to copy the packet.
    #[inline]
    pub(super) fn goes_as_it_is(&self, packet: &Packet) -> bool {
        let offload = &packet.offload;
        offload.l3_len(&packet.layers, packet.frame_len()) <= self.mtu as usize
            && (!offload.needs_checksum()
                || self.features.has(NET_GUEST_CSUM) && self.can_take_segmented(packet))
    }

    pub(super) fn can_take_segmented(&self, packet: &Packet) -> bool {
        let Some(kind) = packet.offload.segmentation() else {
            return true;
        };
        // The driver's segmentation knows no labels or service headers, and no tunnels.
        let layers = &packet.layers;
        let segmentation = match (kind, layers.l4_kind, layers.l3_kind) {
            _ if layers.pushed > 0 => return false,
            (GSO_TCPV4, L4::Tcp, _) => NET_GUEST_TSO4,
            (GSO_TCPV6, L4::Tcp, _) => NET_GUEST_TSO6,
            (GSO_UDP_L4, L4::Udp, L3::Ipv4) => NET_GUEST_USO4,
            (GSO_UDP_L4, L4::Udp, L3::Ipv6) => NET_GUEST_USO6,
            _ => return false,
        };
        let ecn = if packet.offload.has_ecn() {
            NET_GUEST_ECN
        } else {
            0
        };
        self.features.has(NET_GUEST_CSUM | segmentation | ecn)
    }

    /// Delivers a packet that goes as it is over several buffers; false, with nothing done, if that is not
    /// possible now.
    pub(super) fn deliver_large(&mut self, packet: &Packet) -> bool {
        if !self.goes_as_it_is(packet) {
            return false;
        }
        let delivered = matches!(self.deliver(packet, 0), Outcome::Delivered { .. });
        if !delivered {
            self.put_back();
        }
        delivered
    }

    pub(super) fn deliver(&mut self, packet: &Packet, done: u32) -> Outcome {
        if packet.offload.l3_len(&packet.layers, packet.frame_len()) > self.mtu as usize {
            return Outcome::Dropped(DropReason::ExceedsMtu);
        }
        if !self.can_take_segmented(packet) {
            return self.deliver_segments(packet, done);
        }
        let (header, checksum) =
            self.split_checksum(*packet.offload.header(), packet.offload.needs_checksum());
        let frame = Frame {
            header,
            head: packet.head.bytes(),
            packet,
            offset: 0,
            len: packet.tail_len,
            checksum,
        };
        match self.write(&frame) {
            Ok(()) => Outcome::Delivered { segments: 0 },
            Err(shortage) => shortage.outcome(0),
        }
    }

    /// Software segmentation, for a receiver that lacks the offload (Linux: `tcp_gso_segment`), of which
    /// `done` segments were delivered before. Goes as far as one turn may.
    fn deliver_segments(&mut self, packet: &Packet, done: u32) -> Outcome {
        let (head, frame_len) = (packet.head.bytes(), packet.frame_len());
        let headers = if usize::from(packet.offload.header().hdr_len) <= head.len() {
            Cow::Borrowed(head)
        } else {
            packet.headers()
        };
        let Ok(all) = segments(&headers, &packet.layers, &packet.offload, frame_len) else {
            return Outcome::Dropped(DropReason::CannotSegment);
        };
        let (mut count, whole) = (done, all.len() as u32);
        for segment in all.skip(done as usize).take(SEGMENTS_AT_ONCE) {
            let (header, checksum) = self.split_checksum(segment.vnet_header(), true);
            // The segment's payload may begin in the head and end in the tail.
            let start = segment.payload_offset.min(head.len());
            let end = (segment.payload_offset + segment.payload_len).min(head.len());
            let mut front = [0u8; 2 * Snapshot::MAX_LEN];
            let header_len = segment.header().len();
            let front_len = header_len + (end - start);
            front[..header_len].copy_from_slice(segment.header());
            front[header_len..front_len].copy_from_slice(&head[start..end]);
            let tail_len = (segment.payload_len - (end - start)) as u32;
            let offset = segment.payload_offset.saturating_sub(head.len()) as u32;
            let frame = Frame {
                header,
                head: &front[..front_len],
                packet,
                offset,
                len: tail_len,
                checksum,
            };
            if let Err(shortage) = self.write(&frame) {
                return shortage.outcome(count);
            }
            count += 1;
        }
        if count < whole {
            return Outcome::Partly { done: count };
        }
        Outcome::Delivered {
            segments: count.into(),
        }
    }

    /// The header for the receiver, and for one that does not complete checksums, the start and offset of the
    /// checksum to be completed here.
    pub(super) fn split_checksum(
        &self,
        header: VnetHeader,
        needed: bool,
    ) -> (VnetHeader, Option<(usize, usize)>) {
        if !needed || self.features.has(NET_GUEST_CSUM) {
            return (header, None);
        }
        let checksum = (usize::from(header.csum_start), usize::from(header.csum_offset));
        (VnetHeader::default(), Some(checksum))
    }
}
