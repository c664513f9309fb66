//! The sender's request for checksum and segmentation, checked against its frame.
//!
//! A virtio-net header is a request by an untrusted guest, and it travels on to the receiver, whose driver
//! may believe it. So it is checked once, against the private copy of the headers, and replaced by one that
//! says the same in the only way it can be said: lengths recomputed, unknown bits cleared, no claim
//! that a checksum was verified. The safe direction is to reject; the packet is then dropped as
//! [`flow::DropReason::BadOffload`].
//!
//! The switch offers, and therefore accepts, TCP segmentation over IPv4 and IPv6, with or without ECN, and
//! checksum completion anywhere behind the IP header, so that a tunnel's inner checksum can be left to the
//! switch. Kernels send more than that through a packet socket, whose peer they do not ask: UDP segmentation,
//! and TCP inside a tunnel. The checksum field may lie deeper than the head: then the caller that completes
//! it has to write it where the rest of the frame is ([`crate::finish_checksum`] refuses).

use crate::checksum::pseudo;
use crate::layers::{L3, L4, Layers};
use crate::parse::parse;
use crate::snapshot::Snapshot;
use crate::tunnel::inner;
use crate::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};
use flow::PortId;
use std::fmt;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// Smallest accepted `gso_size`. It bounds what one frame can cost in segments. Linux never goes below:
/// `tcp_min_snd_mss` (48) less 40 bytes of TCP options leaves 8.
pub const MIN_GSO_SIZE: u16 = 8;

/// Where in the TCP, UDP and ICMP headers the checksum is.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
const ICMP_CHECKSUM: u16 = 2;

/// The header's checksum or segmentation request contradicts the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOffload;

impl fmt::Display for BadOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the virtio-net header contradicts the frame")
    }
}

impl std::error::Error for BadOffload {}

/// A request that fits its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    header: VnetHeader,
}

impl Offload {
    /// The request of a complete frame, which asks for nothing.
    pub const NONE: Offload = Offload {
        header: VnetHeader {
            flags: 0,
            gso_type: GSO_NONE,
            hdr_len: 0,
            gso_size: 0,
            csum_start: 0,
            csum_offset: 0,
            num_buffers: 0,
        },
    };

    /// Whether a header asks for anything, sensible or not.
    #[inline]
    pub fn is_wanted(header: &[u8; VnetHeader::LEN]) -> bool {
        header[0] & NEEDS_CSUM | header[1] & !GSO_ECN != 0
    }

    /// Checks what `header` asks for a frame of `frame_len` bytes that begins with `head` and was parsed into
    /// `layers`. A segmentation request for a payload that fits one segment becomes a plain checksum request.
    #[inline]
    pub fn check(
        header: &VnetHeader,
        layers: &Layers,
        head: &[u8],
        frame_len: usize,
    ) -> Result<Offload, BadOffload> {
        let needs_checksum = header.flags & NEEDS_CSUM != 0;
        let gso = header.gso_type & !GSO_ECN;
        if !needs_checksum {
            // ECN alone says nothing, but nobody sends it; segmentation without checksum cannot be done.
            return if gso == GSO_NONE {
                Ok(Offload::NONE)
            } else {
                Err(BadOffload)
            };
        }
        check_checksum(header, layers, frame_len)?;
        let mut sane = VnetHeader {
            flags: NEEDS_CSUM,
            csum_start: header.csum_start,
            csum_offset: header.csum_offset,
            ..VnetHeader::default()
        };
        if gso != GSO_NONE {
            let payload = check_segmentation(header, layers, head, frame_len)?;
            if frame_len - usize::from(payload) > usize::from(header.gso_size) {
                sane.gso_type = header.gso_type;
                sane.gso_size = header.gso_size;
                sane.hdr_len = payload;
            }
        }
        Ok(Offload { header: sane })
    }

    /// As [`check`](Self::check), of a frame to be segmented in which headers that the parser does not know
    /// lie between the Ethernet header and an IP header at byte `l3`. Without them the frame must be one that
    /// can be segmented; each segment repeats them. The layers say that they were pushed, so that no receiver
    /// gets the frame whole.
    ///
    /// # Errors
    ///
    /// The frame asks for no segmentation, or there is no such IP header.
    #[cold]
    pub fn check_behind(
        header: &VnetHeader,
        l3: usize,
        head: &[u8],
        frame_len: usize,
    ) -> Result<(Layers, Offload), BadOffload> {
        let by = l3.checked_sub(ETHERNET).ok_or(BadOffload)?;
        let by = i16::try_from(by).map_err(|_| BadOffload)?;
        let packet = head.get(l3..).ok_or(BadOffload)?;
        let kind: u16 = match header.gso_type & !GSO_ECN {
            GSO_TCPV4 => 0x0800,
            GSO_TCPV6 => 0x86dd,
            GSO_UDP_L4 if packet.first().is_some_and(|first| first >> 4 == 6) => 0x86dd,
            GSO_UDP_L4 => 0x0800,
            _ => return Err(BadOffload),
        };
        let mut known = [0; Snapshot::MAX_LEN];
        let end = ETHERNET + packet.len();
        known[ETHERNET - 2..ETHERNET].copy_from_slice(&kind.to_be_bytes());
        known
            .get_mut(ETHERNET..end)
            .ok_or(BadOffload)?
            .copy_from_slice(packet);
        let (known, known_len) = (&known[..end], frame_len - (l3 - ETHERNET));
        let layers = parse(known, known_len, PortId(0)).layers;
        let moved = Offload { header: *header }.moved(-by);
        let offload = Offload::check(&moved.header, &layers, known, known_len)?.moved(by);
        // Also where the Ethernet type alone is not known.
        let pushed = layers.behind(by as u16).pushed.max(1);
        Ok((
            Layers {
                pushed,
                ..layers.behind(by as u16)
            },
            offload,
        ))
    }

    /// The header to pass on to a receiver that has the offloads in question, `num_buffers` 0.
    #[inline]
    pub fn header(&self) -> &VnetHeader {
        &self.header
    }

    /// Whether a checksum must be completed. Always the case for a frame to be segmented.
    #[inline]
    pub fn needs_checksum(&self) -> bool {
        self.header.flags & NEEDS_CSUM != 0
    }

    /// Whether the checksum to be completed covers the bytes from `start` on, and is `offset` bytes behind
    /// `start`.
    #[inline]
    pub fn is_checksum_at(&self, start: usize, offset: usize) -> bool {
        let VnetHeader {
            csum_start,
            csum_offset,
            ..
        } = self.header;
        self.needs_checksum() && usize::from(csum_start) == start && usize::from(csum_offset) == offset
    }

    /// The kind of segmentation needed, [`GSO_TCPV4`], [`GSO_TCPV6`] or [`GSO_UDP_L4`], without ECN bit;
    /// `None` for a frame that goes as it is.
    #[inline]
    pub fn segmentation(&self) -> Option<u8> {
        let kind = self.header.gso_type & !GSO_ECN;
        (self.needs_checksum() && kind != GSO_NONE).then_some(kind)
    }

    /// Whether the frame, if it is to be segmented, carries CWR.
    #[inline]
    pub fn has_ecn(&self) -> bool {
        self.header.gso_type & GSO_ECN != 0
    }

    /// Longest packet from the IP header on that a receiver sees: the frame, or its longest segment. To be
    /// compared with an MTU.
    #[inline]
    pub fn l3_len(&self, layers: &Layers, frame_len: usize) -> usize {
        let l3 = usize::from(layers.l3);
        match self.segmentation() {
            None => frame_len.saturating_sub(l3),
            Some(_) => {
                usize::from(self.header.hdr_len).saturating_sub(l3) + usize::from(self.header.gso_size)
            }
        }
    }

    /// How many packets the frame is on the wire: 1, or its segments.
    #[inline]
    pub fn packets(&self, frame_len: usize) -> usize {
        match self.segmentation() {
            None => 1,
            Some(_) => {
                let payload = frame_len.saturating_sub(usize::from(self.header.hdr_len));
                payload.div_ceil(usize::from(self.header.gso_size)).max(1)
            }
        }
    }

    /// Writes the sum of the pseudo header into the checksum field that is left open, as whoever completes it
    /// expects. Without effect where the checksum is not that of the outer TCP, UDP or ICMPv6 header, or its
    /// field lies behind `head`.
    pub fn reopen_checksum(&self, head: &mut [u8], layers: &Layers) {
        let protocol = match layers.l4_kind {
            L4::Tcp => 6,
            L4::Udp => 17,
            L4::Icmpv6 => 58,
            _ => return,
        };
        let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
        let addresses = match layers.l3_kind {
            L3::Ipv4 => l3 + 12..l3 + 20,
            L3::Ipv6 => l3 + 8..l3 + 40,
            _ => return,
        };
        if !self.needs_checksum() || self.header.csum_start != layers.l4 {
            return;
        }
        let sum = ip_end(layers, head).and_then(|end| {
            let addresses = head.get(addresses)?;
            Some(pseudo(addresses, protocol, end.checked_sub(l4)?).fold())
        });
        let field = head.get_mut(l4 + usize::from(self.header.csum_offset)..);
        if let (Some(sum), Some(field)) = (sum, field.and_then(|field| field.first_chunk_mut())) {
            *field = sum.to_be_bytes();
        }
    }

    /// The request after `by` bytes were inserted before the IP header (removed, when negative).
    #[must_use]
    #[inline]
    pub fn moved(&self, by: i16) -> Offload {
        let mut header = self.header;
        if self.needs_checksum() {
            header.csum_start = header.csum_start.saturating_add_signed(by);
        }
        if header.hdr_len != 0 {
            header.hdr_len = header.hdr_len.saturating_add_signed(by);
        }
        Offload { header }
    }
}

/// The field lies in the frame, and where a receiver would look for it.
fn check_checksum(header: &VnetHeader, layers: &Layers, frame_len: usize) -> Result<(), BadOffload> {
    let (start, field) = (header.csum_start, header.csum_offset);
    let inside = usize::from(start) + usize::from(field) + 2 <= frame_len;
    let at_l4 = start == layers.l4;
    let fits = if layers.l4 == 0 {
        // Not IP, or too deep: at least the addresses and the type stay out of it.
        layers.l3 != 0 && start >= layers.l3
    } else {
        match layers.l4_kind {
            L4::Tcp => at_l4 && field == TCP_CHECKSUM,
            // What UDP carries may be a tunnel whose inner checksum is the one to be completed.
            L4::Udp => (at_l4 && field == UDP_CHECKSUM) || start >= layers.payload,
            L4::Icmp | L4::Icmpv6 => at_l4 && field == ICMP_CHECKSUM,
            // CRC32c is not offered.
            L4::Sctp => false,
            L4::Other => start >= layers.l4,
        }
    };
    if inside && fits { Ok(()) } else { Err(BadOffload) }
}

/// The frame is what `gso_type` says, with all headers in the head and payload behind them. Returns where
/// that begins.
fn check_segmentation(
    header: &VnetHeader,
    layers: &Layers,
    head: &[u8],
    frame_len: usize,
) -> Result<u16, BadOffload> {
    let payload = match (header.gso_type, layers.l4_kind) {
        (GSO_UDP_L4, L4::Udp) if header.csum_start == layers.l4 => layers.payload,
        (GSO_UDP_L4, _) => return Err(BadOffload),
        (kind, transport) => {
            let version = match kind & !GSO_ECN {
                GSO_TCPV4 => L3::Ipv4,
                GSO_TCPV6 => L3::Ipv6,
                _ => return Err(BadOffload),
            };
            let (l3_kind, payload) = if transport == L4::Tcp {
                (layers.l3_kind, layers.payload)
            } else {
                let start = usize::from(header.csum_start);
                let inner = inner(head, layers, start, |end| end == frame_len).ok_or(BadOffload)?;
                (inner.kind, u16::try_from(inner.payload).map_err(|_| BadOffload)?)
            };
            if l3_kind != version || transport != L4::Tcp && header.csum_offset != TCP_CHECKSUM {
                return Err(BadOffload);
            }
            payload
        }
    };
    let end = usize::from(payload);
    // Segments get lengths of their own. So one that is wrong must not tell of another packet than they are.
    let fits = ip_end(layers, head) == Some(frame_len)
        && !layers.fragment
        && end != 0
        && end <= head.len()
        && end < frame_len
        && header.gso_size >= MIN_GSO_SIZE;
    if fits { Ok(payload) } else { Err(BadOffload) }
}

/// Where the packet ends by what its IP header says.
fn ip_end(layers: &Layers, head: &[u8]) -> Option<usize> {
    let l3 = usize::from(layers.l3);
    let (at, before) = match layers.l3_kind {
        L3::Ipv4 => (l3 + 2, 0),
        L3::Ipv6 => (l3 + 4, 40),
        _ => return None,
    };
    let len = head.get(at..)?.first_chunk()?;
    Some(l3 + before + usize::from(u16::from_be_bytes(*len)))
}
