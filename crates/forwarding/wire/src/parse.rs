//! From the head of a frame to a flow key.
//!
//! The meaning of every field is that of the Open vSwitch kernel datapath (`key_extract` in
//! `net/openvswitch/flow.c`, described in `Documentation/networking/openvswitch.rst`), because rules made for
//! it must match the same packets here. Where a frame contradicts itself, ovs-vswitchd's own parser counts
//! (`miniflow_extract` in `lib/flow.c`), which differs from the kernel's: ovs-vswitchd decides about the
//! first frame of a kind by what *it* found there, and all frames that have that frame's key get the
//! decision. So the two parsers must see the same in each frame.
//!
//! Above all: parsing never fails. A layer that is truncated or contradicts itself leaves its own fields zero
//! and ends the parse, and the frame is switched by what is known about it.
//!
//! Only the bytes that the caller gives are looked at. Fields that lie behind them, in a frame that is
//! longer, are [unknown](Unseen): their values in the key mean nothing, and nothing may be decided by them.
//!
//! Worker threads parse every packet: one pass, no allocation, no loop that is not bounded by the
//! length of the head.

mod rare;

pub(crate) use rare::{Links, SOURCE_LINK, TARGET_LINK, link_options};

use crate::layers::{L3, L4, Layers};
use crate::snapshot::SMALLEST_TYPE;
use flow::{ExactKey, FlowKey, PortId, Unseen, VLAN_PRESENT, is_mpls, is_vlan};

/// Bytes from the beginning of a frame in which headers are looked for where the head does not suffice.
/// IPv6's are part of the first fragment, whole (RFC 7112), so no frame of a usual link has more.
pub const MAX_HEADERS: usize = 4096;

const ETHERNET_HEADER: usize = 14;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;
const NSH: u16 = 0x894f;

/// Bytes of an IPv4 header without options, and of an IPv6 header.
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

const FRAG_FIRST: u8 = 1;
const FRAG_LATER: u8 = 2;

/// IP protocol numbers (IANA) that the parser knows.
pub(crate) mod proto {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION: u8 = 60;
    pub const SCTP: u8 = 132;
}

/// What [`parse`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// All fields, with `recirc_id` 0.
    pub key: FlowKey,
    /// Where the layers begin.
    pub layers: Layers,
    /// The fields that lie behind the bytes that were given.
    pub unseen: Unseen,
}

/// Parses a frame of `frame_len` bytes that came in on `in_port`. `head` is its beginning. Bytes behind
/// `frame_len` are ignored.
pub fn parse(head: &[u8], frame_len: usize, in_port: PortId) -> Parsed {
    let mut parser = Parser {
        head: &head[..head.len().min(frame_len)],
        end: frame_len,
        layer: Unseen::Link,
        parsed: Parsed::default(),
    };
    parser.parsed.key.set_in_port(in_port.0);
    if let Some((ethertype, l3)) = parser.ethernet() {
        parser.parsed.layers.l3 = offset(l3);
        parser.layer = Unseen::Network;
        match ethertype {
            IPV4 => parser.ipv4(l3),
            IPV6 => parser.ipv6(l3),
            ARP | RARP => parser.arp(l3),
            kind if is_mpls(kind) => parser.mpls(l3),
            NSH => parser.nsh(l3),
            _ => {}
        }
    }
    parser.parsed
}

/// Writes the exact key of a frame and its layers over earlier ones. It does what [`parse`] does, but does
/// not take the headers of usual packets apart. The frame has `behind` more bytes than the head. Whether all
/// fields are known.
#[inline]
pub fn exact_key(
    head: &[u8],
    behind: usize,
    in_port: PortId,
    key: &mut ExactKey,
    layers: &mut Layers,
) -> bool {
    let frame_len = head.len() + behind;
    usual(head, frame_len, in_port, key, layers).is_some() || unusual(head, frame_len, in_port, key, layers)
}

#[inline(never)]
fn unusual(head: &[u8], frame_len: usize, in_port: PortId, key: &mut ExactKey, layers: &mut Layers) -> bool {
    // Ethernet pads short frames.
    if let Some(&[high, low]) = head
        .get(ETHERNET_HEADER + 2..)
        .and_then(|rest| rest.first_chunk())
    {
        let end = ETHERNET_HEADER + usize::from(u16::from_be_bytes([high, low]));
        let packet = &head[..head.len().min(end)];
        if end < frame_len && usual(packet, end, in_port, key, layers).is_some() {
            return true;
        }
    }
    let parsed = parse(head, frame_len, in_port);
    *key = ExactKey::of(&parsed.key).with_unseen(parsed.unseen);
    *layers = parsed.layers;
    parsed.unseen.is_nothing()
}

/// The key of a usual packet, made in registers; `None` for all others.
#[inline]
fn usual(
    head: &[u8],
    frame_len: usize,
    in_port: PortId,
    key: &mut ExactKey,
    layers: &mut Layers,
) -> Option<()> {
    const L4_AT: usize = ETHERNET_HEADER + IPV4_HEADER;
    let header: &[u8; L4_AT + 8] = head.first_chunk()?;
    // The bytes as they lie in memory, whatever the machine's byte order.
    let word = |at: usize| {
        let bytes = *header[at..].first_chunk().unwrap_or(&[0; 8]);
        u64::from_le_bytes(bytes)
    };
    let (first, second, third) = (word(0), word(8), word(16));
    // IP's length as it has to be in the third word; more than 16 bits do not fit there.
    let total_len = (frame_len - ETHERNET_HEADER) as u64;
    let total_len = total_len.swap_bytes().rotate_left(16);
    // Type, version and header length; the flag "more fragments" and the fragment's offset; the length.
    let link = second & 0x00ff_ffff_0000_0000 ^ 0x0045_0008_0000_0000;
    let ip = third & 0xff3f_0000_ffff ^ total_len;
    if link | ip != 0 {
        return None;
    }
    let (ttl, protocol) = (third >> 48 & 0xff, third >> 56);
    let (l4_kind, l4_len, tcp_flags) = match protocol as u8 {
        proto::UDP => (L4::Udp, 8, 0),
        proto::TCP => {
            let tcp: &[u8; 20] = head.get(L4_AT..)?.first_chunk()?;
            let flags = u16::from_be_bytes([tcp[12], tcp[13]]);
            let len = usize::from(flags >> 12) * 4;
            if len < 20 || L4_AT + len > frame_len {
                return None;
            }
            (L4::Tcp, len, u64::from(flags & 0x0fff))
        }
        _ => return None,
    };
    key.set_short(
        u64::from(in_port.0) | word(34) << 32,
        [first, second],
        protocol | ttl << 16 | tcp_flags << 32,
        word(26),
    );
    *layers = Layers {
        l3: ETHERNET_HEADER as u16,
        l4: L4_AT as u16,
        payload: (L4_AT + l4_len) as u16,
        l3_kind: L3::Ipv4,
        l4_kind,
        fragment: false,
        routed: false,
        pushed: 0,
    };
    Some(())
}

/// An offset that was found inside a head or a frame. Heads are far shorter than 64 KiB; a payload that
/// began further away than that counts as unknown.
fn offset(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(0)
}

struct Parser<'a> {
    head: &'a [u8],
    /// Where the frame ends, or the IP packet in it once that is known.
    end: usize,
    /// The fields that are unknown when the bytes that are wanted next lie behind the head.
    layer: Unseen,
    parsed: Parsed,
}

impl Parser<'_> {
    /// `N` bytes, if the packet has them and the head reaches that far.
    #[inline]
    fn take<const N: usize>(&mut self, at: usize) -> Option<&[u8; N]> {
        if at + N > self.end {
            return None;
        }
        let bytes = self.head.get(at..).and_then(|rest| rest.first_chunk());
        if bytes.is_none() {
            self.parsed.unseen = self.layer;
        }
        bytes
    }

    #[inline]
    fn take_u16(&mut self, at: usize) -> Option<u16> {
        self.take(at).map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Addresses, tags and type. Returns the type and where the next layer begins.
    fn ethernet(&mut self) -> Option<(u16, usize)> {
        let header: &[u8; ETHERNET_HEADER] = self.take(0)?;
        let (dst, src) = (mac(&header[0..6]), mac(&header[6..12]));
        self.parsed.key.set_eth_dst(dst);
        self.parsed.key.set_eth_src(src);
        let mut at = 12;
        if let Some((tpid, tci)) = self.tag(at) {
            self.parsed.key.set_vlan_tpid(tpid);
            self.parsed.key.set_vlan_tci(tci);
            at += 4;
            if let Some((tpid, tci)) = self.tag(at) {
                self.parsed.key.set_inner_tpid(tpid);
                self.parsed.key.set_inner_tci(tci);
                at += 4;
            }
        }
        let (ethertype, next) = self.ethertype(at)?;
        self.parsed.key.set_eth_type(ethertype);
        self.parsed.unseen.is_nothing().then_some((ethertype, next))
    }

    /// A tag where a type could be. What a short frame lacks of it counts as zeros: Ethernet pads short
    /// frames with zeros, so the next switch on the wire sees a whole tag.
    #[inline]
    fn tag(&mut self, at: usize) -> Option<(u16, u16)> {
        let tpid = self.take_u16(at).filter(|&tpid| is_vlan(tpid))?;
        let tci = self.take_u16(at + 2).unwrap_or_else(|| {
            let first = self.head.get(at + 2).copied().unwrap_or(0);
            u16::from_be_bytes([first, 0])
        });
        Some((tpid, tci | VLAN_PRESENT))
    }

    /// The Ethernet type, looked for behind an LLC/SNAP header with organisation 0 when there is a length in
    /// its place (RFC 1042); 0 for any other 802.3 frame.
    #[inline]
    fn ethertype(&mut self, at: usize) -> Option<(u16, usize)> {
        let ethertype = self.take_u16(at)?;
        let next = at + 2;
        if ethertype >= SMALLEST_TYPE {
            return Some((ethertype, next));
        }
        match self.take::<8>(next) {
            Some(&[0xaa, 0xaa, 3, 0, 0, 0, high, low]) => {
                let ethertype = u16::from_be_bytes([high, low]);
                Some((if ethertype >= SMALLEST_TYPE { ethertype } else { 0 }, next + 8))
            }
            _ => Some((0, next)),
        }
    }

    fn arp(&mut self, l3: usize) {
        let Some(packet) = self.take::<28>(l3) else { return };
        let &[0, 1, 0x08, 0x00, 6, 4, operation_high, operation_low, ..] = packet else {
            return;
        };
        let packet = *packet;
        self.parsed.layers.l3_kind = L3::Arp;
        let key = &mut self.parsed.key;
        // The field has 8 bits; an operation that does not fit is no operation.
        key.set_ip_proto(if operation_high == 0 { operation_low } else { 0 });
        key.set_nd_sll(mac(&packet[8..14]));
        key.set_ip_src(ipv4_address(&packet[14..18]));
        key.set_nd_tll(mac(&packet[18..24]));
        key.set_ip_dst(ipv4_address(&packet[24..28]));
    }

    fn ipv4(&mut self, l3: usize) {
        let Some(&header) = self.take::<IPV4_HEADER>(l3) else {
            return;
        };
        let header_len = usize::from(header[0] & 0xf) * 4;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header_len < header.len() || total_len < header_len || l3 + total_len > self.end {
            return;
        }
        self.end = l3 + total_len;
        self.parsed.layers.l3_kind = L3::Ipv4;
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let (later, more) = (fragment & 0x1fff != 0, fragment & 0x2000 != 0);
        self.parsed.layers.fragment = later || more;
        let key = &mut self.parsed.key;
        key.set_ip_src(ipv4_address(&header[12..16]));
        key.set_ip_dst(ipv4_address(&header[16..20]));
        key.set_ip_proto(header[9]);
        key.set_ip_tos(header[1]);
        key.set_ip_ttl(header[8]);
        key.set_ip_frag(if later {
            FRAG_LATER
        } else {
            u8::from(more) * FRAG_FIRST
        });
        if !later {
            self.transport(header[9], proto::ICMP, l3 + header_len);
        }
    }

    fn ipv6(&mut self, l3: usize) {
        let Some(&header) = self.take::<IPV6_HEADER>(l3) else {
            return;
        };
        let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if l3 + header.len() + payload_len > self.end {
            return;
        }
        self.end = l3 + header.len() + payload_len;
        self.parsed.layers.l3_kind = L3::Ipv6;
        self.parsed.key.set_ip_src(ipv6_address(&header[8..24]));
        self.parsed.key.set_ip_dst(ipv6_address(&header[24..40]));
        self.layer = Unseen::Extensions;
        // Behind a chain that is broken or cut, nothing else of the header counts.
        let Some(chain) = self.extension_headers(header[6], l3 + header.len()) else {
            return;
        };
        let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let key = &mut self.parsed.key;
        key.set_ip_tos((first >> 20 & 0xff) as u8);
        key.set_ipv6_label(first & 0xf_ffff);
        key.set_ip_ttl(header[7]);
        key.set_ip_proto(chain.protocol);
        key.set_ip_frag(chain.fragment);
        if chain.fragment != FRAG_LATER {
            self.transport(chain.protocol, proto::ICMPV6, chain.l4);
        }
    }

    /// Follows extension headers from one of type `next` at `at`; `None` when the chain leaves the packet or
    /// the head. Every header is at least 8 bytes long, so the head bounds the loop.
    fn extension_headers(&mut self, mut next: u8, mut at: usize) -> Option<Chain> {
        let ends = |protocol, fragment, l4| {
            Some(Chain {
                protocol,
                fragment,
                l4,
            })
        };
        let mut fragment = 0;
        loop {
            match next {
                proto::HOP_BY_HOP | proto::ROUTING | proto::DESTINATION | proto::AUTHENTICATION => {
                    let &[following, length, ..] = self.take::<8>(at)?;
                    self.parsed.layers.routed |= next == proto::ROUTING;
                    // RFC 8200 4.3 counts 8-byte units after the first, RFC 4302 2.2 4-byte units minus 2.
                    at += match next {
                        proto::AUTHENTICATION => (usize::from(length) + 2) * 4,
                        _ => (usize::from(length) + 1) * 8,
                    };
                    next = following;
                }
                proto::FRAGMENT => {
                    let &[following, _, high, low, ..] = self.take::<8>(at)?;
                    let offset_and_more = u16::from_be_bytes([high, low]);
                    self.parsed.layers.fragment = true;
                    let later = offset_and_more & 0xfff8 != 0;
                    if later {
                        return ends(proto::FRAGMENT, FRAG_LATER, at);
                    }
                    // A fragment that is the whole packet (RFC 6946) is none.
                    if offset_and_more != 0 {
                        fragment = FRAG_FIRST;
                    }
                    next = following;
                    at += 8;
                }
                protocol if at <= self.end => return ends(protocol, fragment, at),
                _ => return None,
            }
            if at > self.end {
                return None;
            }
        }
    }

    /// The header at `l4`, of a protocol that may be the one of ICMP for this version of IP.
    fn transport(&mut self, protocol: u8, icmp: u8, l4: usize) {
        self.layer = Unseen::Transport;
        if l4 <= self.head.len() {
            self.parsed.layers.l4 = offset(l4);
        }
        match protocol {
            proto::TCP => self.tcp(l4),
            proto::UDP => self.udp(l4),
            proto::SCTP => self.sctp(l4),
            proto::ICMP if protocol == icmp => self.icmp(l4),
            proto::ICMPV6 if protocol == icmp => self.icmpv6(l4),
            _ => {}
        }
    }

    fn tcp(&mut self, l4: usize) {
        let Some(&header) = self.take::<20>(l4) else {
            return;
        };
        let header_len = usize::from(header[12] >> 4) * 4;
        if header_len < header.len() || l4 + header_len > self.end {
            return;
        }
        let flags = u16::from_be_bytes([header[12], header[13]]) & 0x0fff;
        self.ports(l4, L4::Tcp, header_len);
        self.parsed.key.set_tcp_flags(flags);
    }

    fn udp(&mut self, l4: usize) {
        if self.take::<8>(l4).is_some() {
            self.ports(l4, L4::Udp, 8);
        }
    }

    fn sctp(&mut self, l4: usize) {
        if self.take::<12>(l4).is_some() {
            self.ports(l4, L4::Sctp, 12);
        }
    }

    #[inline]
    fn ports(&mut self, l4: usize, kind: L4, header_len: usize) {
        let Some(&[a, b, c, d]) = self.take::<4>(l4) else {
            return;
        };
        self.parsed.key.set_tp_src(u16::from_be_bytes([a, b]));
        self.parsed.key.set_tp_dst(u16::from_be_bytes([c, d]));
        self.parsed.layers.l4_kind = kind;
        self.parsed.layers.payload = offset(l4 + header_len);
    }

    fn icmp(&mut self, l4: usize) {
        let Some(&[kind, code, ..]) = self.take::<8>(l4) else {
            return;
        };
        self.icmp_type(l4, L4::Icmp, kind, code);
    }

    fn icmpv6(&mut self, l4: usize) {
        let Some(&[kind, code, ..]) = self.take::<8>(l4) else {
            return;
        };
        self.icmp_type(l4, L4::Icmpv6, kind, code);
        self.layer = Unseen::NeighbourDiscovery;
        self.neighbour_discovery(l4);
    }

    fn icmp_type(&mut self, l4: usize, l4_kind: L4, kind: u8, code: u8) {
        self.parsed.key.set_tp_src(u16::from(kind));
        self.parsed.key.set_tp_dst(u16::from(code));
        self.parsed.layers.l4_kind = l4_kind;
        self.parsed.layers.payload = offset(l4 + 8);
    }
}

/// The end of a chain of extension headers.
struct Chain {
    /// The upper-layer protocol, or that of a fragment header in a later fragment.
    protocol: u8,
    /// Value of the field `ip_frag`.
    fragment: u8,
    /// Where that protocol's header lies.
    l4: usize,
}

/// Addresses as the key has them. All callers pass as many bytes as are read.
#[inline]
fn mac(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f] = *bytes.first_chunk().unwrap_or(&[0; 6]);
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline]
fn ipv4_address(bytes: &[u8]) -> u128 {
    u128::from(u32::from_be_bytes(*bytes.first_chunk().unwrap_or(&[0; 4])))
}

#[inline]
fn ipv6_address(bytes: &[u8]) -> u128 {
    u128::from_be_bytes(*bytes.first_chunk().unwrap_or(&[0; 16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::FlowMask;
    use proptest::prelude::*;

    /// A TCP or UDP frame, sound but for some bytes that are changed.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 128);
        let changes = prop::collection::vec((0usize..64, any::<u8>()), 0..3);
        (any::<bool>(), bytes, changes).prop_map(|(tcp, mut frame, changes)| {
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            (frame[16], frame[17]) = (0, 14 + frame[17] % 112);
            frame[20] &= 0x40;
            frame[21] = 0;
            frame[23] = if tcp { 6 } else { 17 };
            frame[46] = 0x50 | frame[46] & 0xf;
            for (at, value) in changes {
                frame[at] = value;
            }
            frame
        })
    }

    fn exact(head: &[u8], frame_len: usize, port: u32) -> (ExactKey, Layers) {
        let mut key = ExactKey {
            words: [u64::MAX; ExactKey::WORDS],
        };
        let mut layers = Layers::default();
        let head = &head[..head.len().min(frame_len)];
        exact_key(head, frame_len - head.len(), PortId(port), &mut key, &mut layers);
        (key, layers)
    }

    proptest! {
        /// Twin: the parser that knows everything.
        #[test]
        fn exact_keys_are_equal_if_form_and_flow_keys_are(
            frame in frames(), changes in prop::collection::vec((0usize..64, any::<u8>()), 0..3),
            len in 30usize..128, hidden in 0usize..100, port in 0u32..2,
        ) {
            let mut other = frame.clone();
            for (at, value) in changes {
                other[at] = value;
            }
            let (one, two) = (&frame[..len], &other[..len]);
            let full = parse(one, len + hidden, PortId(port));
            let (key, layers) = exact(one, len + hidden, port);
            prop_assert_eq!(layers, full.layers);
            prop_assert_eq!(key.tcp_flags(), full.key.tcp_flags());
            prop_assert_eq!(key.flow_key().unwrap_or(full.key), full.key);
            let (other_key, _) = exact(two, len + hidden, 0);
            let same = parse(two, len + hidden, PortId(0)).key == full.key;
            prop_assert_eq!(other_key == key, same && other_key.is_short() == key.is_short());
        }

        /// Twin: flow keys under flows' masks.
        #[test]
        fn masked_exact_keys_are_equal_if_form_and_masked_flow_keys_are(
            frame in frames(), changes in prop::collection::vec((0usize..64, any::<u8>()), 1..4),
            words in prop::array::uniform16(prop_oneof![4 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]),
        ) {
            let mut other = frame.clone();
            for (at, value) in changes {
                other[at] = value;
            }
            let [(one, _), (two, _)] = [&frame, &other].map(|frame| exact(frame, 128, 1));
            prop_assume!(!one.is_none() && !two.is_none());
            let flow_mask = FlowMask(FlowKey { words });
            let words = if one.is_short() { ExactKey::short_mask } else { ExactKey::long_mask }(&flow_mask);
            let mask = |word: usize| words[word];
            let [full, other_full] = [frame, other].map(|frame| parse(&frame, 128, PortId(1)).key.masked(&flow_mask));
            let same = full == other_full && one.is_short() == two.is_short();
            prop_assert_eq!(one.is_equal_in(&two, mask), same);
            prop_assert_eq!(one.masked(mask).is_short(), one.is_short());
            if one.is_short() == two.is_short() {
                prop_assert_eq!(one.masked(mask) == two.masked(mask), same);
            }
        }
    }

    #[test]
    fn usual_packets_have_short_keys() {
        let mut frame = [0; 64];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        (frame[17], frame[23]) = (28, 17);
        let short = |frame: &[u8]| exact(frame, 64, 1).0.is_short();
        assert!(short(&frame));
        // The shortest packet, and the longest.
        for (len, is_usual) in [(27, false), (28, true), (50, true), (51, false), (0, false)] {
            frame[17] = len;
            assert_eq!(short(&frame), is_usual, "{len}");
        }
        (frame[23], frame[46]) = (6, 0x50);
        for (len, is_usual) in [(39, false), (40, true), (50, true), (51, false)] {
            frame[17] = len;
            assert_eq!(short(&frame), is_usual, "{len}");
        }
        (frame[17], frame[46]) = (43, 0x60);
        assert!(!short(&frame));
        (frame[17], frame[46]) = (44, 0x60);
        assert!(short(&frame));
        frame[46] = 0x40;
        assert!(!short(&frame));
        // Usual but for the version, of which the kernel's flow key does not tell.
        (frame[14], frame[23]) = (0x05, 17);
        assert!(!short(&frame));
    }
}
