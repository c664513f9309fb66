//! Frames as a polling guest sends them: virtio-net header, Ethernet, IPv4, and UDP or TCP.
//!
//! Flows differ in their UDP ports alone, with the checksum that UDP over IPv4 may leave out, so that a frame
//! goes from flow to flow by four bytes and stays valid.

/// Length of the virtio-net header of VIRTIO 1 (5.1.6).
pub const HEADER_LEN: usize = 12;

/// Where the destination address is, virtio-net header included.
pub(super) const ETHERNET: usize = HEADER_LEN;
const IP: usize = ETHERNET + 14;
const UDP: usize = IP + 20;
/// Where the two UDP ports are, virtio-net header included.
pub(super) const FLOW: usize = UDP;

const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_TCP: u8 = 6;

/// A frame with its virtio-net header.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Vec<u8>,
}

/// The locally administered address of a station.
pub(super) fn mac(station: u32) -> [u8; 6] {
    let [a, b, c, d] = station.to_be_bytes();
    [0x02, 0x50, a, b, c, d]
}

fn ip_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded twice")
}

impl Frame {
    /// A UDP frame of `size` bytes, Ethernet header included, checksum at the end not (60 to 1514), from one
    /// station to another.
    pub fn udp(size: usize, from: u32, to: u32) -> Frame {
        let mut frame = Frame::ip(size, from, to, PROTOCOL_UDP);
        let length = u16::try_from(size - 34).expect("frames are shorter than 64 KiB");
        frame.bytes[UDP + 4..UDP + 6].copy_from_slice(&length.to_be_bytes());
        frame.set_flow(0);
        frame
    }

    /// A frame of the caller's own making, which begins with its Ethernet header and asks for nothing.
    pub fn raw(frame: &[u8]) -> Frame {
        Frame {
            bytes: [&[0; HEADER_LEN], frame].concat(),
        }
    }

    /// A TCP frame of `size` bytes (up to 65,549), to be cut into segments of `segment` bytes by whoever
    /// must. Its checksum is left to the receiver.
    pub fn large_tcp(size: usize, segment: u16, from: u32, to: u32) -> Frame {
        let mut frame = Frame::ip(size, from, to, PROTOCOL_TCP);
        // Ports, sequence numbers, header length, flags (ACK), window.
        let tcp = [
            0x13, 0x88, 0x13, 0x89, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff,
        ];
        frame.bytes[UDP..UDP + 16].copy_from_slice(&tcp);
        let header = &mut frame.bytes[..HEADER_LEN];
        // NEEDS_CSUM, GSO_TCPV4, header length, segment size, where the checksum begins and goes.
        header[0] = 1;
        header[1] = 1;
        header[2..4].copy_from_slice(&54_u16.to_le_bytes());
        header[4..6].copy_from_slice(&segment.to_le_bytes());
        header[6..8].copy_from_slice(&34_u16.to_le_bytes());
        header[8..10].copy_from_slice(&16_u16.to_le_bytes());
        frame
    }

    fn ip(size: usize, from: u32, to: u32, protocol: u8) -> Frame {
        let mut bytes = vec![0x5a; HEADER_LEN + size];
        bytes[..HEADER_LEN].fill(0);
        bytes[ETHERNET..ETHERNET + 6].copy_from_slice(&mac(to));
        bytes[ETHERNET + 6..ETHERNET + 12].copy_from_slice(&mac(from));
        bytes[ETHERNET + 12..IP].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut bytes[IP..UDP];
        ip.fill(0);
        ip[0] = 0x45;
        let length = u16::try_from(size - 14).expect("frames are shorter than 64 KiB");
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[8] = 64;
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&(0x0a00_0000 | from & 0x00ff_ffff).to_be_bytes());
        ip[16..20].copy_from_slice(&(0x0a00_0000 | to & 0x00ff_ffff).to_be_bytes());
        let checksum = ip_checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes[UDP..UDP + 8].fill(0);
        Frame { bytes }
    }

    /// Makes it a frame of flow `number`.
    pub fn set_flow(&mut self, number: u32) {
        self.bytes[FLOW..FLOW + 4].copy_from_slice(&flow_bytes(number));
    }

    /// A copy of the frame with the tag of a VLAN (IEEE 802.1Q) of priority 0.
    pub fn tagged(&self, vlan: u16) -> Frame {
        let mut bytes = self.bytes.clone();
        let at = ETHERNET + 12;
        let [high, low] = vlan.to_be_bytes();
        bytes.splice(at..at, [0x81, 0x00, high, low]);
        Frame { bytes }
    }

    /// Makes everything that a flow table can look at a function of `seed`, except where the frame goes:
    /// source address, IP addresses, protocol fields, ports.
    pub fn scramble(&mut self, seed: u64) {
        let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
        };
        let (source, addresses, ports) = (next(), next(), next());
        // Unicast, locally administered.
        self.bytes[ETHERNET + 7..ETHERNET + 12].copy_from_slice(&source[..5]);
        let ip = &mut self.bytes[IP..UDP];
        ip[1] = ports[4] & 0xfc;
        ip[8] = ports[5] | 1;
        ip[10..12].fill(0);
        ip[12..20].copy_from_slice(&addresses);
        // No multicast address.
        ip[12] = 10;
        let checksum = ip_checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        self.bytes[FLOW..FLOW + 4].copy_from_slice(&ports[..4]);
    }

    /// All of it, virtio-net header first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Source and destination UDP port of a flow (see [`Frame::set_flow`]).
pub fn udp_ports(number: u32) -> (u16, u16) {
    let [a, b, c, d] = flow_bytes(number);
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// UDP ports of flow `number` (less than 2^24): the source port counts, the destination port carries on.
pub(super) fn flow_bytes(number: u32) -> [u8; 4] {
    let [_, high, middle, low] = number.to_be_bytes();
    // Source ports begin at 32,768 and destination ports at 20,480, away from ports that mean something (DHCP
    // and VXLAN, for instance).
    [middle ^ 0x80, low, 0x50, high]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn flows_are_different_and_everything_else_is_equal() {
        let mut frame = Frame::udp(64, 1, 2);
        assert_eq!(frame.bytes().len(), HEADER_LEN + 64);
        let whole = frame.bytes().to_vec();
        let mut seen = HashSet::new();
        for flow in 0..100_000 {
            frame.set_flow(flow);
            assert!(seen.insert(flow_bytes(flow)));
            assert_eq!(frame.bytes()[..FLOW], whole[..FLOW]);
            assert_eq!(frame.bytes()[FLOW + 4..], whole[FLOW + 4..]);
        }
    }

    #[test]
    fn headers_are_valid() {
        let mut frame = Frame::udp(128, 1, 2);
        for seed in 0..100 {
            // The sum over a header with its checksum is zero, inverted.
            assert_eq!(ip_checksum(&frame.bytes()[IP..UDP]), 0);
            assert_eq!(frame.bytes()[ETHERNET + 6] & 1, 0, "unicast");
            frame.scramble(seed);
            assert_eq!(frame.bytes()[ETHERNET..ETHERNET + 6], mac(2));
        }
        let frame = Frame::udp(64, 1, 2);
        let tagged = frame.tagged(10);
        let tag = ETHERNET + 12;
        assert_eq!(tagged.bytes()[tag..tag + 6], [0x81, 0, 0, 10, 0x08, 0]);
        assert_eq!(tagged.bytes()[tag + 4..], frame.bytes()[tag..]);
        let large = Frame::large_tcp(32_768, 1448, 1, 2);
        assert_eq!(ip_checksum(&large.bytes()[IP..UDP]), 0);
        assert_eq!(&large.bytes()[IP + 2..IP + 4], &(32_768_u16 - 14).to_be_bytes());
    }
}
