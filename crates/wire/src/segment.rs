//! Software segmentation of TCP, for a receiver that did not negotiate it.
//!
//! Cuts only headers: each [`Segment`] is a private copy of the frame's headers with lengths, IPv4
//! identification and checksum, sequence number and flags set for it, and a range of the payload, which
//! stays where it is until the caller copies it. The L4 checksum is left in the state of a frame with
//! `NEEDS_CSUM`: the pseudo header's sum is in the field. The caller passes that on, or, knowing the sum of the
//! payload from copying it, calls [`Segment::finish`].
//!
//! What changes from segment to segment follows what senders do themselves (RFC 9293 3.8.3 with RFC 3168 6.1.2
//! for CWR): FIN and PSH only on the last, CWR only on the first, IPv4 identification counted up. The pseudo
//! header's sum is computed from the addresses rather than taken from the sender, whose drivers disagree
//! about the length in it. Behind an IPv6 routing header the addresses are the wrong ones, so that such
//! a packet cannot be segmented here.

use crate::checksum::{Sum, finish_checksum, pseudo};
use crate::layers::{L3, Layers};
use crate::offload::Offload;
use crate::snapshot::Snapshot;
use crate::vnet::{NEEDS_CSUM, VnetHeader};
use std::fmt;

const TCP: u8 = 6;
const TCP_CHECKSUM: usize = 16;
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
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
    /// Where the payload begins, counted from the start of the frame as `head` and `layers` described it.
    pub payload_offset: usize,
    /// Bytes of payload, 1 to `gso_size`.
    pub payload_len: usize,
    /// No segment follows.
    pub last: bool,
}

impl Segment {
    /// Ethernet, IP and TCP header.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Bytes of headers and payload.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.header_len + self.payload_len
    }

    /// The virtio-net header for a receiver that completes checksums itself, with `num_buffers` 0. Do not use it after
    /// [`finish`](Self::finish).
    #[inline]
    pub fn vnet_header(&self) -> VnetHeader {
        VnetHeader {
            flags: NEEDS_CSUM,
            csum_start: self.l4 as u16,
            csum_offset: TCP_CHECKSUM as u16,
            ..VnetHeader::default()
        }
    }

    /// Completes the TCP checksum, given the sum of the segment's payload.
    #[inline]
    pub fn finish(&mut self, payload: &Sum) {
        let written = finish_checksum(
            &mut self.header[..self.header_len],
            self.l4,
            TCP_CHECKSUM,
            payload,
        );
        debug_assert!(
            written,
            "segments() checked that the TCP header lies in the header"
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
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let header_len = usize::from(layers.payload);
    let gso_size = usize::from(offload.header().gso_size);
    let smallest_l3 = match layers.l3_kind {
        L3::Ipv4 => 20,
        L3::Ipv6 => 40,
        _ => return Err(CannotSegment),
    };
    let ordered = l3 + smallest_l3 <= l4 && l4 + 20 <= header_len;
    let inside = header_len <= head.len().min(Snapshot::MAX_LEN) && header_len < frame_len;
    let possible = offload.segmentation().is_some() && gso_size > 0 && !layers.routed;
    if !(ordered && inside && possible) {
        return Err(CannotSegment);
    }
    let headers = &head[..header_len];
    Ok(Segments {
        headers,
        l3,
        l4,
        kind: layers.l3_kind,
        gso_size,
        frame_len,
        next: header_len,
        number: 0,
    })
}

/// The segments of a frame, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    headers: &'a [u8],
    l3: usize,
    l4: usize,
    kind: L3,
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
        let mut segment = Segment {
            header: [0; Snapshot::MAX_LEN],
            header_len,
            l4: self.l4,
            payload_offset: self.next,
            payload_len: left.min(self.gso_size),
            last: left <= self.gso_size,
        };
        let header = &mut segment.header[..header_len];
        header.copy_from_slice(self.headers);
        let l3_len = header_len - self.l3 + segment.payload_len;
        let addresses = match self.kind {
            L3::Ipv4 => {
                set_ipv4(&mut header[self.l3..self.l4], l3_len, self.number);
                &self.headers[self.l3 + 12..self.l3 + 20]
            }
            _ => {
                set_u16(&mut header[self.l3..], 4, l3_len - 40);
                &self.headers[self.l3 + 8..self.l3 + 40]
            }
        };
        let l4_len = header_len - self.l4 + segment.payload_len;
        let partial = pseudo(addresses, TCP, l4_len).fold();
        let sent = self.next - header_len;
        set_tcp(&mut header[self.l4..], sent, sent == 0, segment.last, partial);

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
