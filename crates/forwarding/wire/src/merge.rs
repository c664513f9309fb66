//! Software merging of TCP segments that come one behind the other, as generic receive offload of the Linux
//! kernel does (GRO): the inverse of `segment`.
//!
//! A [`Run`] begins with one segment and grows by each that continues it. The merged frame is the first
//! segment's headers, with lengths and flags changed, and all payloads behind them. [`segments`] cuts it into
//! what was merged, byte for byte; what could not be had back is not merged. So of the first segment's
//! headers a further one has everything but
//!
//! | field | in a further segment |
//! |---|---|
//! | IPv4 identification | one more than in the segment before |
//! | TCP sequence number | continues the payload |
//! | lengths, checksums | as they must be |
//! | FIN, PSH | set in the last segment only, which ends the run |
//!
//! All segments but the last have the length of the first. None has SYN, RST, URG or CWR, an IPv4 option, an
//! IPv6 extension header, or bytes behind the IP packet; none is a fragment. Options of TCP with their time
//! stamps, the acknowledgement, the window and ECN are alike.
//!
//! Checksums are looked at, since cutting makes new ones: a wrong one stays wrong, in a frame of its own. An
//! open one, which holds the pseudo header's sum, is not wrong.
//!
//! The safe direction of error is not to merge. Nothing is kept from frame to frame but a run, so the caller
//! decides how long a segment waits for the next one.
//!
//! [`segments`]: crate::segments()

use crate::checksum::Sum;
use crate::layers::L3;
use crate::offload::MIN_GSO_SIZE;
use crate::segment::{FIN, Headers, PSH, TCP, TCP_CHECKSUM, TCP_FLAGS};
use crate::snapshot::Snapshot;
use crate::vnet::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VnetHeader};
use std::ops::Range;

const ACK: u8 = 0x10;
const ECE: u8 = 0x40;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Tags in front of an IP packet.
const MOST_TAGS: usize = 2;
/// The fragment field without "don't fragment".
const FRAGMENT: u16 = !0x4000;

/// Longest merged frame in bytes, which bounds the IP packet in it as well.
const LONGEST: usize = 65_535;

/// A TCP segment that may be merged with others.
#[derive(Clone, Copy, Debug)]
pub struct Mergeable<'a> {
    frame: &'a [u8],
    shape: Shape,
}

/// Where the headers of a segment lie, counted from the start of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    headers: Headers,
    payload: usize,
    /// The checksum holds the pseudo header's sum only.
    is_open: bool,
}

impl<'a> Mergeable<'a> {
    /// Reads a whole frame; `None` for one that goes by itself. Costs a look at every byte of a segment with
    /// payload.
    pub fn read(frame: &'a [u8]) -> Option<Mergeable<'a>> {
        let (kind, l3) = network(frame)?;
        let l4 = l3 + ip_header_len(frame.get(l3..)?, kind)?;
        let headers = Headers { l3, kind, l4 };
        let tcp = frame.get(l4..).filter(|tcp| tcp.len() > 20)?;
        let header_len = usize::from(tcp[12] >> 4) * 4;
        let payload = l4 + header_len;
        let fits = header_len >= 20 && payload < frame.len() && payload <= Snapshot::MAX_LEN;
        if !fits || tcp[TCP_FLAGS] & !(FIN | PSH | ECE) != ACK {
            return None;
        }
        let pseudo = headers.pseudo(frame, TCP, frame.len());
        let is_open = word(tcp, TCP_CHECKSUM) == pseudo;
        let shape = Shape {
            headers,
            payload,
            is_open,
        };
        (is_open || is_sound(pseudo, tcp)).then_some(Mergeable { frame, shape })
    }

    fn payload(&self) -> &'a [u8] {
        &self.frame[self.shape.payload..]
    }

    fn ends_run(&self) -> bool {
        self.frame[self.shape.headers.l4 + TCP_FLAGS] & (FIN | PSH) != 0
    }
}

/// What lies behind the Ethernet header and its tags, and where.
fn network(frame: &[u8]) -> Option<(L3, usize)> {
    let mut at = 12;
    for _ in 0..=MOST_TAGS {
        let ethertype = word(frame.get(at..at + 2)?, 0);
        match ethertype {
            IPV4 => return Some((L3::Ipv4, at + 2)),
            IPV6 => return Some((L3::Ipv6, at + 2)),
            tag if VLAN.contains(&tag) => at += 4,
            _ => return None,
        }
    }
    None
}

/// Length of the header of a packet that carries TCP and nothing else, and ends with the frame.
fn ip_header_len(packet: &[u8], kind: L3) -> Option<usize> {
    let is_plain = match kind {
        L3::Ipv4 => {
            let header = packet.first_chunk::<20>()?;
            header[0] == 0x45
                && header[9] == TCP
                && usize::from(word(header, 2)) == packet.len()
                && word(header, 6) & FRAGMENT == 0
                && Sum::of(header).fold() == 0xffff
        }
        _ => {
            let header = packet.first_chunk::<40>()?;
            header[0] >> 4 == 6 && header[6] == TCP && usize::from(word(header, 4)) + 40 == packet.len()
        }
    };
    is_plain.then_some(if kind == L3::Ipv4 { 20 } else { 40 })
}

/// Whether the checksum of a TCP segment is right.
fn is_sound(pseudo: u16, tcp: &[u8]) -> bool {
    let mut sum = Sum::new();
    sum.add_u16(pseudo);
    sum.add(tcp);
    sum.fold() == 0xffff
}

/// Segments that make one frame: its headers, while the caller has its payload. See the module's description.
#[derive(Clone, Debug)]
pub struct Run {
    shape: Shape,
    /// Headers of the first segment, with the flags of the last one.
    head: [u8; Snapshot::MAX_LEN],
    /// Bytes of payload of each segment but the last, and of all.
    each: u16,
    all: usize,
    segments: u16,
    /// No segment may follow.
    is_complete: bool,
}

impl Run {
    /// Begins with a segment. `None` if no other one may follow it.
    pub fn begin(segment: &Mergeable<'_>) -> Option<Run> {
        let all = segment.payload().len();
        let each = u16::try_from(all).ok().filter(|each| *each >= MIN_GSO_SIZE)?;
        let mut run = Run {
            shape: segment.shape,
            head: [0; Snapshot::MAX_LEN],
            each,
            all,
            segments: 1,
            is_complete: false,
        };
        run.head[..segment.shape.payload].copy_from_slice(&segment.frame[..segment.shape.payload]);
        (!segment.ends_run()).then_some(run)
    }

    /// Appends a segment that continues the run. Returns its payload, which belongs behind that of the
    /// others; `None` and unchanged if it does not continue.
    pub fn append<'a>(&mut self, segment: &Mergeable<'a>) -> Option<&'a [u8]> {
        let payload = segment.payload();
        let fits = payload.len() <= usize::from(self.each) && self.frame_len() + payload.len() <= LONGEST;
        if self.is_complete || !fits || !self.continues(segment) {
            return None;
        }
        let flags = self.shape.headers.l4 + TCP_FLAGS;
        self.head[flags] |= segment.frame[flags];
        self.all += payload.len();
        self.segments += 1;
        self.is_complete = segment.ends_run() || payload.len() < usize::from(self.each);
        Some(payload)
    }

    fn continues(&self, segment: &Mergeable<'_>) -> bool {
        if segment.shape != self.shape {
            return false;
        }
        let (first, next) = (&self.head[..self.shape.payload], segment.frame);
        let same = |range: Range<usize>| first[range.clone()] == next[range];
        let Headers { l3, kind, l4 } = self.shape.headers;
        let of_ip = match kind {
            L3::Ipv4 => {
                let id = word(first, l3 + 4).wrapping_add(self.segments);
                same(l3..l3 + 2) && same(l3 + 6..l3 + 10) && same(l3 + 12..l4) && word(next, l3 + 4) == id
            }
            _ => same(l3..l3 + 4) && same(l3 + 6..l4),
        };
        // A frame is far shorter than 4 GiB, and sequence numbers wrap anyway.
        let sequence = number(first, l4 + 4).wrapping_add(self.all as u32);
        let flags = l4 + TCP_FLAGS;
        of_ip
            && same(0..l3)
            && same(l4..l4 + 4)
            && number(next, l4 + 4) == sequence
            && same(l4 + 8..flags)
            && (first[flags] ^ next[flags]) & !(FIN | PSH) == 0
            && same(l4 + 14..l4 + TCP_CHECKSUM)
            && same(l4 + TCP_CHECKSUM + 2..self.shape.payload)
    }

    /// Segments so far, at least one.
    pub fn segments(&self) -> usize {
        self.segments.into()
    }

    /// Bytes of the merged frame: headers, and all payload.
    pub fn frame_len(&self) -> usize {
        self.shape.payload + self.all
    }

    /// The request for segmentation and the headers of the merged frame. `None` for a single segment, which
    /// goes as it came.
    pub fn headers(&mut self) -> Option<(VnetHeader, &[u8])> {
        let (end, Shape { headers, payload, .. }) = (self.frame_len(), self.shape);
        if self.segments < 2 {
            return None;
        }
        let head = &mut self.head[..payload];
        headers.set_ip(head, end, 0);
        let partial = headers.pseudo(head, TCP, end);
        let field = headers.l4 + TCP_CHECKSUM;
        head[field..field + 2].copy_from_slice(&partial.to_be_bytes());
        let request = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: if headers.kind == L3::Ipv4 {
                GSO_TCPV4
            } else {
                GSO_TCPV6
            },
            // Headers are shorter than `Snapshot::MAX_LEN`.
            hdr_len: payload as u16,
            gso_size: self.each,
            csum_start: headers.l4 as u16,
            csum_offset: TCP_CHECKSUM as u16,
            num_buffers: 0,
        };
        Some((request, &*head))
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
