//! TCP inside a tunnel of the sender's, in a frame that is still to be segmented.
//!
//! A kernel that sends TCP through a tunnel (VXLAN, Geneve, GRE, IP in IP) leaves segmentation to the device,
//! and tells a packet socket no more of it than where the *inner* TCP header begins. So the inner IP header
//! is looked for before that place, and must agree with it and with the length of the frame. What lies
//! between is repeated in each segment as it is, except for the outer lengths and checksum.

use crate::layers::{L3, L4, Layers};

const TCP: u8 = 6;
const GRE: u8 = 47;
/// IPv4 and IPv6 in IP.
const IN_IP: [u8; 2] = [4, 41];
/// GRE's flags for a checksum, routing and sequence numbers, which differ from segment to segment (RFC 2784,
/// RFC 2890).
const GRE_CHANGING: u8 = 0xd0;
/// Most bytes between the outer transport header and the inner IP header: a tunnel's header with options and
/// two tags, and no further tunnel.
const MOST_BETWEEN: usize = 64;

/// Inner headers, by their offsets in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub l3: usize,
    pub kind: L3,
    pub l4: usize,
    pub payload: usize,
}

/// The headers of a TCP packet whose TCP header is at `l4`, behind the outer headers of `layers`; `None` if
/// there is no such packet which `ends` where it should in the frame, or segments cannot be made of it.
pub(crate) fn inner(head: &[u8], layers: &Layers, l4: usize, ends: impl Fn(usize) -> bool) -> Option<Inner> {
    let outer = usize::from(layers.l4);
    let begin = match layers.l4_kind {
        L4::Udp => outer + 8,
        L4::Other if is_plain_tunnel(head, layers) => outer,
        _ => return None,
    };
    if outer == 0 || l4 < begin {
        return None;
    }
    let header = head.get(l4..)?.first_chunk::<20>()?;
    let len = usize::from(header[12] >> 4) * 4;
    let (l3, kind) = inner_ip(head, l4, ends)?;
    let between = l3.checked_sub(begin)?;
    let fits = len >= 20 && between <= MOST_BETWEEN && (l4 - outer).is_multiple_of(2);
    fits.then_some(Inner {
        l3,
        kind,
        l4,
        payload: l4 + len,
    })
}

fn is_plain_tunnel(head: &[u8], layers: &Layers) -> bool {
    let l3 = usize::from(layers.l3);
    let protocol = match layers.l3_kind {
        L3::Ipv4 => head.get(l3 + 9),
        // Extension headers stand in the way of a tunnel's.
        L3::Ipv6 if layers.l4 == layers.l3 + 40 => head.get(l3 + 6),
        _ => None,
    };
    let first = head.get(usize::from(layers.l4)).copied().unwrap_or(u8::MAX);
    protocol.is_some_and(|kind| IN_IP.contains(kind) || *kind == GRE && first & GRE_CHANGING == 0)
}

/// The IP header that ends at `l4`, names TCP, and ends its packet where it should.
fn inner_ip(head: &[u8], l4: usize, ends: impl Fn(usize) -> bool) -> Option<(usize, L3)> {
    let word = |at: usize| {
        let bytes = head.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_be_bytes(*bytes)))
    };
    let ipv4 = (5..16).find_map(|words: usize| {
        let l3 = l4.checked_sub(4 * words)?;
        let is_header = usize::from(*head.get(l3)?) == 0x40 + words && *head.get(l3 + 9)? == TCP;
        let is_whole = word(l3 + 6)? & 0x3fff == 0 && ends(l3 + word(l3 + 2)?);
        (is_header && is_whole).then_some((l3, L3::Ipv4))
    });
    ipv4.or_else(|| {
        let l3 = l4.checked_sub(40)?;
        let is_header = *head.get(l3)? >> 4 == 6 && *head.get(l3 + 6)? == TCP;
        (is_header && ends(l4 + word(l3 + 4)?)).then_some((l3, L3::Ipv6))
    })
}
