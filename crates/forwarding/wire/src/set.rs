//! Changes of header fields on the private head.
//!
//! A change moves a checksum by the difference that it makes (RFC 1624). So a right checksum stays right, a
//! wrong one stays wrong, and the payload is not read. Where a checksum is still to be completed, its field
//! holds the pseudo header's sum, which follows the addresses only. SCTP's CRC32c is linear as well: the
//! change of two ports, carried through as many zero bytes as follow them, is the change of the CRC.
//!
//! A field that the packet does not have, or not in its head, is an error, and the head stays as it was.

use crate::checksum::Sum;
use crate::crc32c;
use crate::layers::{L3, L4, Layers};
use crate::offload::Offload;
use crate::parse::{Links, SOURCE_LINK, TARGET_LINK, link_options, parse};
use flow::{FieldId, PortId, SetField, is_vlan};
use std::fmt;

const IPV4_CHECKSUM: usize = 10;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const ICMP_CHECKSUM: usize = 2;
const SCTP_CHECKSUM: usize = 8;
const IPV6_HEADER: usize = 40;

/// The packet has no such field, or not in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoField;

impl fmt::Display for NoField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the packet does not have the field")
    }
}

impl std::error::Error for NoField {}

/// Where a field lies in a frame: `len` bytes in network order from `at`, the field's lowest bit at `shift`.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    len: usize,
    shift: u32,
}

impl Place {
    const fn bytes(at: usize, len: usize) -> Place {
        Place { at, len, shift: 0 }
    }
}

/// Gives bits of a field new values in the head of a frame of `frame_len` bytes. Metadata is not in the head:
/// nothing happens.
///
/// # Errors
///
/// The field is not there; the head is as before.
pub fn set_field(
    head: &mut [u8],
    layers: &Layers,
    offload: &Offload,
    frame_len: usize,
    set: &SetField,
) -> Result<(), NoField> {
    if set.field.field().is_metadata() {
        return Ok(());
    }
    let outer;
    let layers = if layers.pushed == 0 {
        layers
    } else {
        outer = parse(head, frame_len, PortId(0)).layers;
        &outer
    };
    let place = place(head, layers, frame_len, set.field).ok_or(NoField)?;
    let is_address = matches!(set.field, FieldId::IpSrc | FieldId::IpDst);
    if is_address && checksum_is_out_of_reach(head, layers, frame_len) {
        return Err(NoField);
    }
    let mut setter = Setter {
        head,
        layers,
        offload,
    };
    if place.at + place.len > setter.head.len() {
        return Err(NoField);
    }
    let in_l4 = layers.l4 != 0 && place.at >= layers.l4.into();
    if in_l4 && layers.l4_kind == L4::Sctp {
        return setter.sctp_ports(place, set, frame_len);
    }
    let anchor = if in_l4 { layers.l4 } else { layers.l3 };
    let difference = setter.write(place, set, anchor.into());
    if layers.l3_kind == L3::Ipv4 && !in_l4 && place.at >= layers.l3.into() {
        setter.add(usize::from(layers.l3) + IPV4_CHECKSUM, difference, false);
    }
    if in_l4 {
        setter.l4_changed(difference, false);
    } else if is_address && !setter.is_on_the_way(set.field) {
        setter.l4_changed(difference, true);
    }
    Ok(())
}

/// Whether the packet may have a transport checksum with a pseudo header, which does not lie in the head.
fn checksum_is_out_of_reach(head: &[u8], layers: &Layers, frame_len: usize) -> bool {
    let is_ip = matches!(layers.l3_kind, L3::Ipv4 | L3::Ipv6);
    let is_later_fragment = layers.l4 == 0 && layers.fragment;
    let offset = match layers.l4_kind {
        L4::Udp => UDP_CHECKSUM,
        L4::Icmpv6 => ICMP_CHECKSUM,
        L4::Tcp | L4::Other => TCP_CHECKSUM,
        L4::Icmp | L4::Sctp => return false,
    };
    let is_hidden = layers.l4 == 0 || usize::from(layers.l4) + offset + 2 > head.len();
    is_ip && !is_later_fragment && head.len() < frame_len && is_hidden
}

fn place(head: &[u8], layers: &Layers, frame_len: usize, field: FieldId) -> Option<Place> {
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let place = match (field, layers.l3_kind) {
        (FieldId::EthDst, _) => Place::bytes(0, 6),
        (FieldId::EthSrc, _) => Place::bytes(6, 6),
        (FieldId::VlanTci, _) => {
            let tpid = head.get(12..)?.first_chunk()?;
            is_vlan(u16::from_be_bytes(*tpid)).then_some(Place::bytes(14, 2))?
        }
        (FieldId::IpTos, L3::Ipv4) => Place::bytes(l3 + 1, 1),
        (FieldId::IpTtl, L3::Ipv4) => Place::bytes(l3 + 8, 1),
        (FieldId::IpSrc, L3::Ipv4) => Place::bytes(l3 + 12, 4),
        (FieldId::IpDst, L3::Ipv4) => Place::bytes(l3 + 16, 4),
        (FieldId::IpTos, L3::Ipv6) => Place {
            at: l3,
            len: 4,
            shift: 20,
        },
        (FieldId::Ipv6Label, L3::Ipv6) => Place::bytes(l3, 4),
        (FieldId::IpTtl, L3::Ipv6) => Place::bytes(l3 + 7, 1),
        (FieldId::IpSrc, L3::Ipv6) => Place::bytes(l3 + 8, 16),
        (FieldId::IpDst, L3::Ipv6) => Place::bytes(l3 + 24, 16),
        (FieldId::IpProto, L3::Arp) => Place::bytes(l3 + 7, 1),
        (FieldId::NdSll, L3::Arp) => Place::bytes(l3 + 8, 6),
        (FieldId::IpSrc, L3::Arp) => Place::bytes(l3 + 14, 4),
        (FieldId::NdTll, L3::Arp) => Place::bytes(l3 + 18, 6),
        (FieldId::IpDst, L3::Arp) => Place::bytes(l3 + 24, 4),
        (FieldId::MplsLse, L3::Mpls) => Place::bytes(l3, 4),
        (FieldId::NshFlags, L3::Nsh) => Place {
            at: l3,
            len: 2,
            shift: 12,
        },
        (FieldId::NshTtl, L3::Nsh) => Place {
            at: l3,
            len: 2,
            shift: 6,
        },
        (FieldId::NshPathHdr, L3::Nsh) => Place::bytes(l3 + 4, 4),
        (FieldId::NshC1 | FieldId::NshC2 | FieldId::NshC3 | FieldId::NshC4, L3::Nsh)
            if *head.get(l3 + 2)? == 1 =>
        {
            Place::bytes(l3 + 8 + 4 * (field as usize - FieldId::NshC1 as usize), 4)
        }
        (FieldId::TpSrc | FieldId::TpDst, _) => {
            let second = usize::from(field == FieldId::TpDst);
            match layers.l4_kind {
                L4::Other => return None,
                L4::Icmp | L4::Icmpv6 => Place::bytes(l4 + second, 1),
                L4::Tcp | L4::Udp | L4::Sctp => Place::bytes(l4 + 2 * second, 2),
            }
        }
        (FieldId::NdTarget | FieldId::NdSll | FieldId::NdTll, L3::Ipv6) if layers.l4_kind == L4::Icmpv6 => {
            let payload_len = head.get(l3 + 4..)?.first_chunk()?;
            let end = l3 + IPV6_HEADER + usize::from(u16::from_be_bytes(*payload_len));
            let Links::At(options) = link_options(head, l4, end.min(frame_len)) else {
                return None;
            };
            match field {
                FieldId::NdTarget => Place::bytes(l4 + 8, 16),
                FieldId::NdSll => Place::bytes(options[SOURCE_LINK]?, 6),
                _ => Place::bytes(options[TARGET_LINK]?, 6),
            }
        }
        _ => return None,
    };
    Some(place)
}

struct Setter<'a> {
    head: &'a mut [u8],
    layers: &'a Layers,
    offload: &'a Offload,
}

impl Setter<'_> {
    /// Writes the field; returns the change of a sum that begins at `anchor`.
    fn write(&mut self, place: Place, set: &SetField, anchor: usize) -> u16 {
        let Place { at, len, shift } = place;
        let start = at.saturating_sub(at.wrapping_sub(anchor) & 1);
        let end = at + len;
        let before = Sum::of(&self.head[start..end]);
        // In IPv4 an address is the low end of the value; bits that the field does not have here are cut off.
        let value = (set.value << shift).to_be_bytes();
        let mask = (set.mask << shift).to_be_bytes();
        let bytes = self.head[at..end].iter_mut();
        for (byte, (value, mask)) in bytes.zip(value[16 - len..].iter().zip(&mask[16 - len..])) {
            *byte = *byte & !mask | value & mask;
        }
        let after = Sum::of(&self.head[start..end]);
        let mut difference = Sum::new();
        difference.add_u16(after.fold());
        difference.add_u16(!before.fold());
        difference.fold()
    }

    /// Adds a difference to the checksum at `at`, or to the pseudo header's sum if it is `open`.
    fn add(&mut self, at: usize, difference: u16, open: bool) {
        let Some(field) = self
            .head
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut::<2>())
        else {
            return;
        };
        let flip = if open { 0 } else { u16::MAX };
        let mut sum = Sum::new();
        sum.add_u16(u16::from_be_bytes(*field) ^ flip);
        sum.add_u16(difference);
        *field = (sum.fold() ^ flip).to_be_bytes();
    }

    /// Updates the transport checksum after a change of the transport header or of the addresses in its
    /// pseudo header.
    fn l4_changed(&mut self, difference: u16, pseudo_header: bool) {
        let offset = match self.layers.l4_kind {
            L4::Tcp => TCP_CHECKSUM,
            L4::Udp => UDP_CHECKSUM,
            L4::Icmpv6 => ICMP_CHECKSUM,
            L4::Icmp if !pseudo_header => ICMP_CHECKSUM,
            L4::Icmp | L4::Sctp | L4::Other => return,
        };
        let at = usize::from(self.layers.l4) + offset;
        let open = self.offload.is_checksum_at(usize::from(self.layers.l4), offset);
        if open && !pseudo_header {
            return;
        }
        let is_udp = self.layers.l4_kind == L4::Udp && !open;
        // None was computed (RFC 768).
        if is_udp && self.head.get(at..at + 2) == Some(&[0, 0]) {
            return;
        }
        self.add(at, difference, open);
        if is_udp && self.head.get(at..at + 2) == Some(&[0, 0]) {
            self.head[at..at + 2].fill(0xff);
        }
    }

    /// Whether the pseudo header has another destination than the IPv6 header, as a routing header still
    /// names further ones (RFC 8200 8.1).
    fn is_on_the_way(&self, field: FieldId) -> bool {
        if field != FieldId::IpDst || !self.layers.routed {
            return false;
        }
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const AUTHENTICATION: u8 = 51;
        let l3 = usize::from(self.layers.l3);
        let (mut next, mut at) = (self.head.get(l3 + 6).copied(), l3 + IPV6_HEADER);
        while let (Some(kind), Some(&[following, len, _, segments_left])) =
            (next, self.head.get(at..).and_then(|rest| rest.first_chunk()))
            && at < usize::from(self.layers.l4)
        {
            if kind == ROUTING && segments_left > 0 {
                return true;
            }
            at += match kind {
                FRAGMENT => 8,
                AUTHENTICATION => (usize::from(len) + 2) * 4,
                _ => (usize::from(len) + 1) * 8,
            };
            next = Some(following);
        }
        false
    }

    fn sctp_ports(&mut self, place: Place, set: &SetField, frame_len: usize) -> Result<(), NoField> {
        let l4 = usize::from(self.layers.l4);
        let len = self.l4_len(frame_len).ok_or(NoField)?;
        let ports = |head: &[u8]| head.get(l4..).and_then(|rest| rest.first_chunk::<4>()).copied();
        let before = ports(self.head).ok_or(NoField)?;
        if self.layers.fragment || len < SCTP_CHECKSUM + 4 || l4 + SCTP_CHECKSUM + 4 > self.head.len() {
            return Err(NoField);
        }
        self.write(place, set, l4);
        let after = ports(self.head).ok_or(NoField)?;
        let changed = u32::from_le_bytes(before) ^ u32::from_le_bytes(after);
        let difference = crc32c::carried(changed, len - 4);
        let field = &mut self.head[l4 + SCTP_CHECKSUM..][..4];
        for (byte, difference) in field.iter_mut().zip(difference.to_le_bytes()) {
            *byte ^= difference;
        }
        Ok(())
    }

    /// Bytes of the transport header and what it carries, as the IP header says; `None` if the frame ends
    /// before.
    fn l4_len(&self, frame_len: usize) -> Option<usize> {
        let (l3, l4) = (usize::from(self.layers.l3), usize::from(self.layers.l4));
        let length = |at: usize| {
            self.head
                .get(at..)?
                .first_chunk()
                .map(|bytes| usize::from(u16::from_be_bytes(*bytes)))
        };
        let end = match self.layers.l3_kind {
            L3::Ipv4 => l3 + length(l3 + 2)?,
            L3::Ipv6 => l3 + IPV6_HEADER + length(l3 + 4)?,
            _ => return None,
        };
        (end <= frame_len).then(|| end.checked_sub(l4)).flatten()
    }
}
