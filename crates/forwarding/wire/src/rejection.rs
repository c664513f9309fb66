//! What the sender of a rejected packet is told: a TCP reset, or ICMP "administratively prohibited".
//!
//! The answer says nothing that the packet did not say: its addresses are the packet's, exchanged, and it
//! quotes the head alone. Who is told nothing:
//!
//! | packet | because |
//! |---|---|
//! | neither IPv4 nor IPv6, or damaged | there is nobody to tell |
//! | to a group, or from an address that is no single host's | RFC 1122 3.2.2; RFC 4443 2.4 (e) |
//! | fragments behind the first | RFC 1122 3.2.2 |
//! | ICMP and ICMPv6 but for questions and their answers | errors about errors; RFC 1122 3.2.2, RFC 4443 2.4 (e) |
//! | TCP resets | RFC 9293 3.10.7.1 |
//!
//! TCP gets a reset if its header is in the head and the packet is no fragment, else ICMP.

use crate::checksum::{Sum, pseudo};
use crate::layers::{L3, L4};
use crate::parse::{parse, proto};
use flow::{FlowKey, PortId, VLAN_PRESENT};
use std::net::{Ipv4Addr, Ipv6Addr};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;
/// Hop limit of answers (RFC 1700, "IP time to live").
const TTL: u8 = 64;

const FIN: u8 = 1;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;

/// Destination unreachable, communication administratively prohibited (RFC 1812 5.2.7.1).
const ICMP_PROHIBITED: [u8; 2] = [3, 13];
/// Destination unreachable, communication administratively prohibited (RFC 4443 3.1).
const ICMPV6_PROHIBITED: [u8; 2] = [1, 1];

/// Echo, timestamp, information and address mask: questions and answers (RFC 792, RFC 950).
const ICMP_QUERIES: [u8; 8] = [0, 8, 13, 14, 15, 16, 17, 18];
/// Echo (RFC 4443 4).
const ICMPV6_QUERIES: [u8; 2] = [128, 129];

/// The frame that tells the sender of a packet that the packet was rejected; `None` if nobody is told. `head`
/// is the beginning of the packet's frame of `frame_len` bytes as it is now. `came` is the packet's key as it
/// came, whose addresses and tags are the answer's.
pub fn rejection(head: &[u8], frame_len: usize, came: &FlowKey) -> Option<Vec<u8>> {
    let parsed = parse(head, frame_len, PortId(came.in_port()));
    let (now, layers) = (&parsed.key, &parsed.layers);
    let is_as_it_came = now.ip_src() == came.ip_src() && now.ip_dst() == came.ip_dst();
    let is_group = |mac: u64| mac >> 40 & 1 == 1 || mac == 0;
    if !is_as_it_came || is_group(came.eth_dst()) || is_group(came.eth_src()) || now.ip_frag() == 2 {
        return None;
    }
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let packet = Rejected {
        ip: head.get(l3..)?,
        transport: head.get(l4..).filter(|_| l4 > l3)?,
        len: frame_len.checked_sub(l4)?,
        is_tcp: layers.l4_kind == L4::Tcp && !layers.fragment,
        is_icmp: matches!(layers.l4_kind, L4::Icmp | L4::Icmpv6),
    };
    let answer = match layers.l3_kind {
        L3::Ipv4 => packet.answer_ipv4(l4 - l3)?,
        L3::Ipv6 => packet.answer_ipv6(l4 - l3)?,
        L3::Other | L3::Arp | L3::Mpls | L3::Nsh => return None,
    };
    Some([ethernet(came), answer].concat())
}

/// The answer's Ethernet header, with the tags of the packet.
fn ethernet(came: &FlowKey) -> Vec<u8> {
    let mut header = Vec::with_capacity(22);
    header.extend_from_slice(&came.eth_src().to_be_bytes()[2..]);
    header.extend_from_slice(&came.eth_dst().to_be_bytes()[2..]);
    let outer = (came.vlan_tpid(), came.vlan_tci());
    let inner = (came.inner_tpid(), came.inner_tci());
    for (tpid, tci) in [outer, inner] {
        if tci & VLAN_PRESENT != 0 {
            header.extend_from_slice(&tpid.to_be_bytes());
            header.extend_from_slice(&(tci & !VLAN_PRESENT).to_be_bytes());
        }
    }
    header.extend_from_slice(&came.eth_type().to_be_bytes());
    header
}

/// A packet that is rejected, as far as it is known.
struct Rejected<'a> {
    /// From the IP header on.
    ip: &'a [u8],
    /// From the transport header on.
    transport: &'a [u8],
    /// Bytes of the frame from the transport header on.
    len: usize,
    /// A TCP segment in one piece.
    is_tcp: bool,
    is_icmp: bool,
}

impl Rejected<'_> {
    /// `header` is the length of the packet's IP header.
    fn answer_ipv4(&self, header: usize) -> Option<Vec<u8>> {
        let [from, to] = [12, 16].map(|at| self.ip.get(at..)?.first_chunk::<4>().copied());
        let (from, to) = (from?, to?);
        let told = Ipv4Addr::from(from);
        let asked = Ipv4Addr::from(to);
        let is_host = |address: Ipv4Addr| {
            let first = address.octets()[0];
            first != 0 && first < 224 && !address.is_loopback()
        };
        let is_query = || ICMP_QUERIES.contains(self.transport.first().unwrap_or(&u8::MAX));
        if !is_host(told) || !is_host(asked) || self.is_icmp && !is_query() {
            return None;
        }
        let total = self
            .ip
            .get(2..)?
            .first_chunk()
            .map(|len| u16::from_be_bytes(*len))?;
        let (protocol, mut payload) = match self.is_tcp {
            true => (proto::TCP, self.reset(usize::from(total).checked_sub(header)?)?),
            false => (proto::ICMP, self.prohibited(ICMP_PROHIBITED, total.into())),
        };
        let sum = match self.is_tcp {
            true => pseudo(&[to, from].concat(), protocol, payload.len()),
            false => Sum::new(),
        };
        write_checksum(&mut payload, protocol, sum);
        let length = u16::try_from(IPV4_HEADER + payload.len()).ok()?;
        let mut answer = vec![0x45, 0];
        answer.extend_from_slice(&length.to_be_bytes());
        // No identification, as the packet is not to be cut.
        answer.extend_from_slice(&[0, 0, 0x40, 0, TTL, protocol, 0, 0]);
        answer.extend_from_slice(&to);
        answer.extend_from_slice(&from);
        let checksum = Sum::of(&answer).complement();
        answer[10..12].copy_from_slice(&checksum.to_be_bytes());
        answer.append(&mut payload);
        Some(answer)
    }

    /// `header` is the length of the packet's IP header with its extension headers.
    fn answer_ipv6(&self, header: usize) -> Option<Vec<u8>> {
        let [from, to] = [8, 24].map(|at| self.ip.get(at..)?.first_chunk::<16>().copied());
        let (from, to) = (from?, to?);
        let is_host = |address: Ipv6Addr| {
            !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
        };
        let is_query = || ICMPV6_QUERIES.contains(self.transport.first().unwrap_or(&u8::MAX));
        if !is_host(from.into()) || !is_host(to.into()) || self.is_icmp && !is_query() {
            return None;
        }
        let behind = self
            .ip
            .get(4..)?
            .first_chunk()
            .map(|len| u16::from_be_bytes(*len))?;
        let total = IPV6_HEADER + usize::from(behind);
        let (protocol, mut payload) = match self.is_tcp {
            true => (proto::TCP, self.reset(total.checked_sub(header)?)?),
            false => (proto::ICMPV6, self.prohibited(ICMPV6_PROHIBITED, total)),
        };
        let sum = pseudo(&[to, from].concat(), protocol, payload.len());
        write_checksum(&mut payload, protocol, sum);
        let length = u16::try_from(payload.len()).ok()?;
        let mut answer = vec![0x60, 0, 0, 0];
        answer.extend_from_slice(&length.to_be_bytes());
        answer.extend_from_slice(&[protocol, TTL]);
        answer.extend_from_slice(&to);
        answer.extend_from_slice(&from);
        answer.append(&mut payload);
        Some(answer)
    }

    /// A TCP reset (RFC 9293 3.10.7.1). `len`: bytes of the segment, its header included, as IP says.
    fn reset(&self, len: usize) -> Option<Vec<u8>> {
        let header: &[u8; TCP_HEADER] = self.transport.first_chunk()?;
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (flags, own) = (header[13], usize::from(header[12] >> 4) * 4);
        if flags & RST != 0 {
            return None;
        }
        let (sequence, acknowledged, kind) = if flags & ACK != 0 {
            (word(8), 0, RST)
        } else {
            // Frames that are to be segmented may be longer than IP can say.
            let bytes = len.min(self.len).checked_sub(own)?;
            let marks = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            let next = word(4)
                .wrapping_add(u32::try_from(bytes).ok()?)
                .wrapping_add(marks);
            (0, next, RST | ACK)
        };
        let mut reset = Vec::with_capacity(TCP_HEADER);
        reset.extend_from_slice(&header[2..4]);
        reset.extend_from_slice(&header[..2]);
        reset.extend_from_slice(&sequence.to_be_bytes());
        reset.extend_from_slice(&acknowledged.to_be_bytes());
        reset.extend_from_slice(&[5 << 4, kind, 0, 0, 0, 0, 0, 0]);
        Some(reset)
    }

    /// An ICMP error that quotes the packet, which has `total` bytes from the IP header on.
    fn prohibited(&self, [kind, code]: [u8; 2], total: usize) -> Vec<u8> {
        let quoted = &self.ip[..self.ip.len().min(total)];
        let mut error = Vec::with_capacity(ICMP_HEADER + quoted.len());
        error.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
        error.extend_from_slice(quoted);
        error
    }
}

/// Writes the checksum of a TCP, ICMP or ICMPv6 message, behind the sum of its pseudo header.
fn write_checksum(message: &mut [u8], protocol: u8, mut sum: Sum) {
    sum.add(message);
    let at = if protocol == proto::TCP { 16 } else { 2 };
    message[at..at + 2].copy_from_slice(&sum.complement().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

    fn ipv4(protocol: u8, source: [u8; 4], fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&MACS[..], &[8, 0, 0x45, 0]].concat();
        frame.extend((20 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0]);
        frame.extend(source);
        frame.extend([10, 0, 0, 2]);
        frame.extend(payload);
        frame
    }

    fn ipv6(protocol: u8, last: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&MACS[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        let address = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        frame.extend(address(last));
        frame.extend(address(2));
        frame.extend(payload);
        frame
    }

    fn tcp(flags: u8, sequence: u32, acknowledged: u32, data: usize) -> Vec<u8> {
        let mut segment = vec![0x10, 0, 0, 80];
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledged.to_be_bytes());
        segment.extend([5 << 4, flags, 1, 0, 0, 0, 0, 0]);
        segment.resize(20 + data, 7);
        segment
    }

    fn key(frame: &[u8]) -> FlowKey {
        parse(frame, frame.len(), PortId(1)).key
    }

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        rejection(&frame[..frame.len().min(128)], frame.len(), &key(frame))
    }

    /// The payload of an answer, whose headers are right.
    fn checked(frame: &[u8], answer: &[u8]) -> Vec<u8> {
        let (asked, told) = (key(frame), key(answer));
        assert_eq!(told.eth_dst(), asked.eth_src());
        assert_eq!(told.eth_src(), asked.eth_dst());
        assert_eq!(
            (told.vlan_tci(), told.vlan_tpid()),
            (asked.vlan_tci(), asked.vlan_tpid())
        );
        assert_eq!((told.ip_src(), told.ip_dst()), (asked.ip_dst(), asked.ip_src()));
        let layers = parse(answer, answer.len(), PortId(1)).layers;
        let (ip, payload) = answer[usize::from(layers.l3)..].split_at(usize::from(layers.l4 - layers.l3));
        let mut sum = if layers.l3_kind == L3::Ipv4 {
            assert_eq!(Sum::of(ip).complement(), 0, "of the IP header");
            assert_eq!(
                usize::from(u16::from_be_bytes([ip[2], ip[3]])),
                ip.len() + payload.len()
            );
            let is_tcp = told.ip_proto() == proto::TCP;
            if is_tcp {
                pseudo(&ip[12..20], proto::TCP, payload.len())
            } else {
                Sum::new()
            }
        } else {
            assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), payload.len());
            pseudo(&ip[8..40], told.ip_proto(), payload.len())
        };
        sum.add(payload);
        assert_eq!(sum.complement(), 0, "of the payload");
        payload.to_vec()
    }

    #[test]
    fn tcp_gets_the_reset_that_its_sender_believes() {
        for v6 in [false, true] {
            let of = |segment: &[u8]| match v6 {
                false => ipv4(proto::TCP, [10, 0, 0, 1], 0, segment),
                true => ipv6(proto::TCP, 1, segment),
            };
            for (segment, sequence, acknowledged, flags) in [
                (tcp(SYN, 0xffff_ffff, 0, 0), 0, 0, RST | ACK),
                (tcp(FIN, 100, 0, 300), 0, 401, RST | ACK),
                (tcp(ACK, 100, 77, 300), 77, 0, RST),
                (tcp(SYN | ACK, 100, 78, 0), 78, 0, RST),
            ] {
                let mut frame = of(&segment);
                // Ethernet's padding is not the segment's.
                frame.resize(frame.len().max(90), 0);
                let reset = checked(&frame, &answer(&frame).unwrap());
                assert_eq!(reset[..4], [0, 80, 0x10, 0]);
                let mut expected = tcp(flags, sequence, acknowledged, 0);
                expected[14..].fill(0);
                assert_eq!(reset[4..14], expected[4..14], "v6 {v6}");
                assert_eq!(reset.len(), 20);
            }
            assert_eq!(answer(&of(&tcp(RST, 1, 1, 0))), None);
            assert_eq!(answer(&of(&tcp(RST | ACK, 1, 1, 0))), None);
        }
    }

    #[test]
    fn others_get_an_error_that_quotes_the_head() {
        let udp = [&[0x10, 0, 0, 53, 1, 44, 0, 0][..], &[9; 292]].concat();
        let (v4, v6) = (
            ipv4(proto::UDP, [10, 0, 0, 1], 0, &udp),
            ipv6(proto::UDP, 1, &udp),
        );
        for (frame, begins) in [(v4, [3, 13]), (v6, [1, 1])] {
            let tagged = [&frame[..12], &[0x81, 0, 0x20, 5], &frame[12..]].concat();
            for frame in [frame, tagged] {
                let l3 = usize::from(parse(&frame, frame.len(), PortId(1)).layers.l3);
                let error = checked(&frame, &answer(&frame).unwrap());
                assert_eq!(error[..8], [begins[0], begins[1], error[2], error[3], 0, 0, 0, 0]);
                assert_eq!(error[8..], frame[l3..128]);
            }
        }
        // First fragments, of TCP as well: what follows is not known.
        let first = ipv4(proto::TCP, [10, 0, 0, 1], 0x2000, &tcp(SYN, 1, 0, 40));
        assert_eq!(checked(&first, &answer(&first).unwrap())[..2], [3, 13]);
        let echo = ipv4(proto::ICMP, [10, 0, 0, 1], 0, &[8, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(checked(&echo, &answer(&echo).unwrap())[..2], [3, 13]);
    }

    #[test]
    fn whom_rfcs_forbid_to_tell_is_told_nothing() {
        let udp = [0x10, 0, 0, 53, 0, 8, 0, 0];
        let good = ipv4(proto::UDP, [10, 0, 0, 1], 0, &udp);
        assert!(answer(&good).is_some());
        for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
            assert_eq!(answer(&ipv4(proto::UDP, source, 0, &udp)), None, "{source:?}");
        }
        for (to, last) in [
            ([224, 0, 0, 251], 0),
            ([255, 255, 255, 255], 0),
            ([0, 0, 0, 0], 0),
        ] {
            let mut frame = good.clone();
            frame[30..34].copy_from_slice(&to);
            assert_eq!(answer(&frame), None, "{to:?} {last}");
        }
        for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0; 6]] {
            let mut frame = good.clone();
            frame[..6].copy_from_slice(&mac);
            assert_eq!(answer(&frame), None, "to {mac:?}");
        }
        assert_eq!(
            answer(&ipv4(proto::UDP, [10, 0, 0, 1], 5, &udp)),
            None,
            "later fragment"
        );
        for kind in [3, 4, 5, 9, 11, 12, 200] {
            let frame = ipv4(proto::ICMP, [10, 0, 0, 1], 0, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(answer(&frame), None, "ICMP {kind}");
        }
        for kind in [1, 2, 3, 4, 100, 127, 133, 135, 136, 137] {
            let frame = ipv6(proto::ICMPV6, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(answer(&frame), None, "ICMPv6 {kind}");
        }
        let mut unspecified = ipv6(proto::UDP, 1, &udp);
        unspecified[22..38].fill(0);
        assert_eq!(answer(&unspecified), None);
        let mut group = ipv6(proto::UDP, 1, &udp);
        group[38] = 0xff;
        assert_eq!(answer(&group), None);
        let arp = [&MACS[..], &[8, 6], &[0; 46]].concat();
        assert_eq!(answer(&arp), None);
        // An address that was translated on the way is not told.
        let mut came = key(&good);
        came.set_ip_dst(0x0a00_0009);
        assert_eq!(rejection(&good, good.len(), &came), None);
    }

    proptest! {
        /// Whatever the bytes are, and wherever they end.
        #[test]
        fn random_heads_are_answered_soundly_or_not_at_all(
            v6: bool,
            protocol in prop::sample::select(&[proto::TCP, proto::UDP, proto::ICMP, proto::ICMPV6][..]),
            payload in prop_oneof![Just(tcp(SYN, 1, 0, 60)), Just(vec![8; 90])],
            changes in prop::collection::vec((12..90usize, any::<u8>()), 0..4),
            len in 14..=150usize,
        ) {
            let mut frame = match v6 {
                true => ipv6(protocol, 1, &payload),
                false => ipv4(protocol, [10, 0, 0, 1], 0, &payload),
            };
            for (at, byte) in changes {
                frame[at] = byte;
            }
            let head = &frame[..len.min(frame.len()).min(128)];
            if let Some(answer) = rejection(head, frame.len(), &key(head)) {
                checked(head, &answer);
                prop_assert!(answer.len() <= 128 + 62);
            }
        }
    }
}
