//! Software segmentation of TCP, also inside a tunnel, and of UDP, for a receiver that did not negotiate it.
//!
//! Cuts only headers: each [`Segment`] is a private copy of the frame's headers with lengths, IPv4
//! identification and checksum, sequence number and flags set for it, and a range of the payload, which stays
//! where it is until the caller copies it. The L4 checksum is left in the state of a frame with `NEEDS_CSUM`:
//! the pseudo header's sum is in the field. The caller passes that on, or, knowing the sum of the payload
//! from copying it, calls [`Segment::finish`].
//!
//! What changes from segment to segment follows what senders do themselves (RFC 9293 3.8.3 with RFC 3168
//! 6.1.2 for CWR): FIN and PSH only on the last, CWR only on the first, IPv4 identification counted up. Of
//! UDP each segment is a datagram of its own. Outer headers of a tunnel get lengths and identifications as
//! well; an outer UDP checksum, if there was one, follows from the headers, since the inner segment adds up
//! to the complement of its pseudo header (as in Linux: local checksum offload). The pseudo header's sum is
//! computed from the addresses rather than taken from the sender, whose drivers disagree about the length in
//! it. Behind an IPv6 routing header the addresses are the wrong ones, so that such a packet cannot be
//! segmented here.

use crate::checksum::{Sum, finish_checksum, pseudo};
use crate::layers::{L3, L4, Layers};
use crate::offload::Offload;
use crate::snapshot::Snapshot;
use crate::tunnel::inner;
use crate::vnet::{GSO_UDP_L4, NEEDS_CSUM, VnetHeader};
use std::fmt;

pub(crate) const TCP: u8 = 6;
const UDP: u8 = 17;
pub(crate) const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
pub(crate) const TCP_FLAGS: usize = 13;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The headers cannot be repeated in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotSegment;

impl fmt::Display for CannotSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the frame cannot be segmented in software")
    }
}

impl std::error::Error for CannotSegment {}

/// One segment: its headers, and where its payload lies.
#[derive(Clone, Debug)]
pub struct Segment {
    header: [u8; Snapshot::MAX_LEN],
    header_len: usize,
    l4: usize,
    /// Where the checksum is in the L4 header.
    checksum: usize,
    /// Where the payload begins, counted from the start of the frame as `head` and `layers` described it.
    pub payload_offset: usize,
    /// Bytes of payload, 1 to `gso_size`.
    pub payload_len: usize,
    /// No segment follows.
    pub last: bool,
}

impl Segment {
    /// All headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Bytes of headers and payload.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.header_len + self.payload_len
    }

    /// The virtio-net header for a receiver that completes checksums itself, with `num_buffers` 0. Do not use
    /// it after [`finish`](Self::finish).
    #[inline]
    pub fn vnet_header(&self) -> VnetHeader {
        VnetHeader {
            flags: NEEDS_CSUM,
            csum_start: self.l4 as u16,
            csum_offset: self.checksum as u16,
            ..VnetHeader::default()
        }
    }

    /// Completes the L4 checksum, given the sum of the segment's payload.
    #[inline]
    pub fn finish(&mut self, payload: &Sum) {
        let written = finish_checksum(
            &mut self.header[..self.header_len],
            self.l4,
            self.checksum,
            payload,
        );
        debug_assert!(
            written,
            "segments() checked that the L4 header lies in the header"
        );
    }
}

/// Cuts a frame of `frame_len` bytes, of which `head` holds at least the headers. `offload` must have been
/// checked against the same `layers`, both moved alike since.
///
/// # Errors
///
/// The frame is not to be segmented, the offsets do not lie in `head`, or there is a routing header.
pub fn segments<'a>(
    head: &'a [u8],
    layers: &Layers,
    offload: &Offload,
    frame_len: usize,
) -> Result<Segments<'a>, CannotSegment> {
    let outer = Headers {
        l3: layers.l3.into(),
        kind: layers.l3_kind,
        l4: layers.l4.into(),
    };
    let header_len = usize::from(offload.header().hdr_len);
    let gso_size = usize::from(offload.header().gso_size);
    let Some(kind) = offload.segmentation().filter(|_| gso_size > 0 && !layers.routed) else {
        return Err(CannotSegment);
    };
    let is_udp = kind == GSO_UDP_L4;
    let l4_len = if is_udp { 8 } else { 20 };
    if header_len > head.len().min(Snapshot::MAX_LEN) || header_len >= frame_len || !outer.are_ordered() {
        return Err(CannotSegment);
    }
    let is_tunnel = !is_udp && layers.l4_kind != L4::Tcp;
    let (innermost, tunnel) = if is_tunnel {
        let start = offload.header().csum_start.into();
        // Callers that want the first segments only may say that the frame is shorter.
        let inner = inner(head, layers, start, |end| end >= frame_len).ok_or(CannotSegment)?;
        let has_udp = layers.l4_kind == L4::Udp;
        let (l3, kind, l4) = (inner.l3, inner.kind, inner.l4);
        (Headers { l3, kind, l4 }, Some((outer, has_udp)))
    } else {
        (outer, None)
    };
    let is_known = is_tunnel || header_len == usize::from(layers.payload);
    if !innermost.are_ordered() || innermost.l4 + l4_len > header_len || !is_known {
        return Err(CannotSegment);
    }
    Ok(Segments {
        headers: &head[..header_len],
        innermost,
        tunnel,
        is_udp,
        gso_size,
        frame_len,
        next: header_len,
        number: 0,
    })
}

/// Where an IP header and what it carries begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    pub l3: usize,
    pub kind: L3,
    pub l4: usize,
}

impl Headers {
    fn are_ordered(&self) -> bool {
        let smallest = match self.kind {
            L3::Ipv4 => 20,
            L3::Ipv6 => 40,
            _ => return false,
        };
        self.l3 + smallest <= self.l4
    }

    /// Sets the IP header's lengths, identification and checksum, for a packet that ends with byte `end`.
    #[inline]
    pub fn set_ip(&self, header: &mut [u8], end: usize, number: u16) {
        let len = end - self.l3;
        match self.kind {
            L3::Ipv4 => set_ipv4(&mut header[self.l3..self.l4], len, number),
            _ => set_u16(&mut header[self.l3..], 4, len - 40),
        }
    }

    /// The sum of the pseudo header of a packet that ends with byte `end`.
    #[inline]
    pub fn pseudo(&self, header: &[u8], protocol: u8, end: usize) -> u16 {
        let addresses = match self.kind {
            L3::Ipv4 => &header[self.l3 + 12..self.l3 + 20],
            _ => &header[self.l3 + 8..self.l3 + 40],
        };
        pseudo(addresses, protocol, end - self.l4).fold()
    }
}

/// The segments of a frame, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    headers: &'a [u8],
    /// What is cut.
    innermost: Headers,
    /// The headers of the tunnel around it, and whether it has a UDP header.
    tunnel: Option<(Headers, bool)>,
    is_udp: bool,
    gso_size: usize,
    frame_len: usize,
    /// Where the next segment's payload begins.
    next: usize,
    number: u16,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let left = self.frame_len.checked_sub(self.next).filter(|&left| left > 0)?;
        let header_len = self.headers.len();
        let Headers { l4, .. } = self.innermost;
        let mut segment = Segment {
            header: [0; Snapshot::MAX_LEN],
            header_len,
            l4,
            checksum: if self.is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM },
            payload_offset: self.next,
            payload_len: left.min(self.gso_size),
            last: left <= self.gso_size,
        };
        let header = &mut segment.header[..header_len];
        header.copy_from_slice(self.headers);
        let end = header_len + segment.payload_len;
        self.innermost.set_ip(header, end, self.number);
        let protocol = if self.is_udp { UDP } else { TCP };
        let partial = self.innermost.pseudo(header, protocol, end);
        if self.is_udp {
            set_u16(&mut header[l4..], 4, end - l4);
            header[l4 + UDP_CHECKSUM..][..2].copy_from_slice(&partial.to_be_bytes());
        } else {
            let sent = self.next - header_len;
            set_tcp(&mut header[l4..], sent, sent == 0, segment.last, partial);
        }
        if let Some((outer, has_udp)) = self.tunnel {
            outer.set_ip(header, end, self.number);
            if has_udp {
                set_outer_udp(header, &outer, l4, end, partial);
            }
        }
        self.next += segment.payload_len;
        self.number = self.number.wrapping_add(1);
        Some(segment)
    }

    /// Passes over `count` segments without making them, at a cost that does not depend on `count`.
    #[inline]
    fn nth(&mut self, count: usize) -> Option<Segment> {
        let skipped = count.saturating_mul(self.gso_size);
        self.next = self.next.saturating_add(skipped).min(self.frame_len);
        // The identification wraps as well.
        self.number = self.number.wrapping_add(count as u16);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.frame_len - self.next).div_ceil(self.gso_size);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Segments<'_> {}

/// Total length, identification and checksum (RFC 791 3.1).
#[inline]
fn set_ipv4(header: &mut [u8], len: usize, number: u16) {
    set_u16(header, 2, len);
    let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(number);
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[10..12].fill(0);
    let checksum = Sum::of(header).complement();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Length and checksum of a tunnel's UDP header, around a segment at `l4` that will add up to the complement
/// of `partial`. A checksum that was not there is not made (RFC 768).
fn set_outer_udp(header: &mut [u8], outer: &Headers, l4: usize, end: usize, partial: u16) {
    let udp = outer.l4;
    set_u16(&mut header[udp..], 4, end - udp);
    let field = udp + UDP_CHECKSUM..udp + UDP_CHECKSUM + 2;
    if header[field.clone()] == [0, 0] {
        return;
    }
    header[field.clone()].fill(0);
    let mut sum = Sum::of(&header[udp..l4]);
    sum.add_u16(outer.pseudo(header, UDP, end));
    sum.add_u16(!partial);
    header[field].copy_from_slice(&sum.l4_checksum().to_be_bytes());
}

/// Sequence number, flags and the partial checksum, `sent` bytes into the payload.
#[inline]
fn set_tcp(header: &mut [u8], sent: usize, first: bool, last: bool, partial: u16) {
    let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    // A frame is far shorter than 4 GiB, and sequence numbers wrap anyway.
    let sequence = sequence.wrapping_add(sent as u32);
    header[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !first {
        header[TCP_FLAGS] &= !CWR;
    }
    if !last {
        header[TCP_FLAGS] &= !(FIN | PSH);
    }
    header[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&partial.to_be_bytes());
}

/// Writes a length. `Offload::check` bounds segments to 65,535 bytes from the IP header on.
#[inline]
fn set_u16(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
