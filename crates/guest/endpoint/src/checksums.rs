//! Checksums of TCP and UDP. Between virtual machines they are left open: the header says where the sum goes,
//! and the field has the sum of the pseudo header (VIRTIO 1.2, 5.1.6.2). What comes from outside is verified.

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

/// A transport segment within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    protocol: IpProtocol,
    source: IpAddress,
    destination: IpAddress,
    /// Bytes before its header.
    pub at: usize,
    len: usize,
}

impl Segment {
    /// The TCP or UDP segment of an Ethernet frame, if it is whole and directly behind an IP header.
    pub fn of(frame: &[u8]) -> Option<Segment> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let ip_at = EthernetFrame::<&[u8]>::header_len();
        let ip = ethernet.payload();
        let segment = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(ip).ok()?;
                let header = usize::from(packet.header_len());
                if packet.more_frags() || packet.frag_offset() != 0 {
                    return None;
                }
                Segment {
                    protocol: packet.next_header(),
                    source: packet.src_addr().into(),
                    destination: packet.dst_addr().into(),
                    at: ip_at + header,
                    len: usize::from(packet.total_len()).checked_sub(header)?,
                }
            }
            EthernetProtocol::Ipv6 => {
                let packet = Ipv6Packet::new_checked(ip).ok()?;
                Segment {
                    protocol: packet.next_header(),
                    source: packet.src_addr().into(),
                    destination: packet.dst_addr().into(),
                    at: ip_at + packet.header_len(),
                    len: usize::from(packet.payload_len()),
                }
            }
            _ => return None,
        };
        let is_known = matches!(segment.protocol, IpProtocol::Tcp | IpProtocol::Udp);
        (is_known && segment.at + segment.len <= frame.len()).then_some(segment)
    }

    /// Whether it is TCP's.
    pub fn is_tcp(&self) -> bool {
        self.protocol == IpProtocol::Tcp
    }

    fn bytes<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.at..self.at + self.len]
    }

    /// Whether the checksum is right. A UDP datagram over IPv4 may have none (RFC 768).
    pub fn is_right(&self, frame: &[u8]) -> bool {
        let (bytes, from, to) = (self.bytes(frame), &self.source, &self.destination);
        match self.protocol {
            IpProtocol::Tcp => TcpPacket::new_checked(bytes).is_ok_and(|tcp| tcp.verify_checksum(from, to)),
            _ => UdpPacket::new_checked(bytes).is_ok_and(|udp| udp.verify_checksum(from, to)),
        }
    }

    /// Length of the segment's header in bytes.
    pub fn header_len(&self, frame: &[u8]) -> usize {
        match self.protocol {
            IpProtocol::Tcp => TcpPacket::new_unchecked(self.bytes(frame)).header_len().into(),
            _ => 8,
        }
    }

    /// Leaves a TCP segment's checksum open: writes the sum of the pseudo header.
    pub fn open(&self, frame: &mut [u8]) {
        let protocol = u8::from(self.protocol);
        let sum = match (self.source, self.destination) {
            (IpAddress::Ipv4(from), IpAddress::Ipv4(to)) => {
                wire::pseudo(&[from.octets(), to.octets()].concat(), protocol, self.len)
            }
            (IpAddress::Ipv6(from), IpAddress::Ipv6(to)) => {
                wire::pseudo(&[from.octets(), to.octets()].concat(), protocol, self.len)
            }
            // Both are of one packet.
            _ => return,
        };
        TcpPacket::new_unchecked(&mut frame[self.at..self.at + self.len]).set_checksum(sum.fold());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{EthernetAddress, IpRepr, TcpControl, TcpRepr, TcpSeqNumber};
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// A frame whose checksum is right, if wanted, or zero.
    fn tcp(is_ipv6: bool, payload: &[u8], with_checksum: bool) -> Vec<u8> {
        let mut checksums = ChecksumCapabilities::default();
        if !with_checksum {
            checksums.tcp = smoltcp::phy::Checksum::None;
        }
        let (from, to): (IpAddress, IpAddress) = if is_ipv6 {
            (
                Ipv6Addr::LOCALHOST.into(),
                Ipv6Addr::new(0xfd00, 9, 8, 7, 6, 5, 4, 3).into(),
            )
        } else {
            (
                Ipv4Addr::new(10, 1, 2, 3).into(),
                Ipv4Addr::new(192, 168, 255, 254).into(),
            )
        };
        let tcp = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control: TcpControl::Psh,
            seq_number: TcpSeqNumber(7),
            ack_number: Some(TcpSeqNumber(9)),
            window_len: 5,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut frame = vec![0; 14 + ip.buffer_len()];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_dst_addr(EthernetAddress([2; 6]));
        ethernet.set_ethertype(if is_ipv6 {
            EthernetProtocol::Ipv6
        } else {
            EthernetProtocol::Ipv4
        });
        ip.emit(ethernet.payload_mut(), &checksums);
        let at = 14 + ip.header_len();
        tcp.emit(
            &mut TcpPacket::new_unchecked(&mut frame[at..]),
            &from,
            &to,
            &checksums,
        );
        frame
    }

    proptest! {
        #[test]
        fn an_open_checksum_is_what_is_missing(is_ipv6: bool, payload in prop::collection::vec(any::<u8>(), 0..3000)) {
            let whole = tcp(is_ipv6, &payload, true);
            let segment = Segment::of(&whole).unwrap();
            prop_assert!(segment.is_right(&whole));
            let mut open = tcp(is_ipv6, &payload, false);
            segment.open(&mut open);
            // As a device completes it: the sum over the segment, complemented.
            let sum = wire::Sum::of(&open[segment.at..]).complement();
            open[segment.at + 16..segment.at + 18].copy_from_slice(&sum.to_be_bytes());
            prop_assert_eq!(open, whole);
        }

        #[test]
        fn any_bytes_are_looked_at(mut frame in prop::collection::vec(any::<u8>(), 0..200), is_ipv6: bool) {
            if frame.len() > 15 {
                let kind: [u8; 3] = if is_ipv6 { [0x86, 0xdd, 0x60] } else { [8, 0, 0x45] };
                frame[12..15].copy_from_slice(&kind);
            }
            if let Some(segment) = Segment::of(&frame) {
                segment.is_right(&frame);
            }
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 54usize..200, change in 1u8..) {
            let mut frame = tcp(false, &[7; 160], true);
            frame[at] ^= change;
            prop_assert!(!Segment::of(&frame).unwrap().is_right(&frame));
        }
    }
}
