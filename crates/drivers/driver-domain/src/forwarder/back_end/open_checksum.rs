//! Open checksums that nothing announces.
//!
//! The kernel leaves the checksum of a packet to the device that sends it, if that can. A virtual device,
//! such as veth, passes the packet on with a note that the checksum is open; an AF_XDP socket gets the bytes
//! without the note. An open checksum of TCP or UDP holds the sum of the pseudo header. So a field with that
//! sum is taken for an open one, at any depth of tunnels. That does no harm to a packet whose checksum is
//! right and happens to be the same number: what completes it arrives at that number.
//!
//! An open checksum of SCTP is zero, and cannot be announced. Such a packet is not forwarded.
//!
//! Frames come from strangers: every offset is checked, and the depth is bounded.

use wire::pseudo;

/// Where the checksum of a frame is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenChecksum {
    /// The checksum is complete, or there is none.
    Nowhere,
    /// The checksum covers the bytes from `start` on, and is `offset` bytes behind `start`.
    At { start: u16, offset: u16 },
    /// The checksum is open, and of a kind that cannot be announced.
    Unfinishable,
}

/// Headers that are looked at, VLAN tags and extension headers included.
const MOST_HEADERS: usize = 24;

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Ethernet in GRE and Geneve.
const BRIDGED: u16 = 0x6558;
/// Ports of VXLAN, of its first kernel version, and of Geneve.
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
const GENEVE_PORT: u16 = 6081;

/// What comes next in a frame, and where it begins.
#[derive(Clone, Copy)]
enum Next {
    Ethernet(usize),
    /// What an EtherType says.
    Typed(u16, usize),
    /// A header of this protocol.
    Transport(Packet, u8, usize),
}

/// An IP packet around a header.
#[derive(Clone, Copy)]
struct Packet {
    /// Where its addresses begin and end.
    addresses: (usize, usize),
    /// Where it ends.
    end: usize,
}

/// What was found at a header.
enum Step {
    Go(Next),
    Found(OpenChecksum),
}

/// Finds the open checksum of a frame.
pub fn find(frame: &[u8]) -> OpenChecksum {
    let mut next = Next::Ethernet(0);
    for _ in 0..MOST_HEADERS {
        let step = match next {
            Next::Ethernet(at) => word(frame, at + 12).map(|kind| Step::Go(Next::Typed(kind, at + 14))),
            Next::Typed(kind, at) => typed(frame, kind, at),
            Next::Transport(packet, protocol, at) => transport(frame, packet, protocol, at),
        };
        match step {
            Some(Step::Go(further)) => next = further,
            Some(Step::Found(checksum)) => return checksum,
            None => return OpenChecksum::Nowhere,
        }
    }
    OpenChecksum::Nowhere
}

fn typed(frame: &[u8], kind: u16, at: usize) -> Option<Step> {
    match kind {
        kind if VLAN.contains(&kind) => Some(Step::Go(Next::Typed(word(frame, at + 2)?, at + 4))),
        BRIDGED => Some(Step::Go(Next::Ethernet(at))),
        IPV4 => {
            let is_fragment = word(frame, at + 6)? & 0x3fff != 0;
            let header_len = usize::from(byte(frame, at)? & 0xf) * 4;
            let end = at + usize::from(word(frame, at + 2)?);
            let addresses = (at + 12, at + 20);
            let packet = Packet { addresses, end };
            let is_whole = !is_fragment && header_len >= 20 && end <= frame.len();
            let protocol = byte(frame, at + 9)?;
            is_whole.then_some(Step::Go(Next::Transport(packet, protocol, at + header_len)))
        }
        IPV6 => {
            let end = at + 40 + usize::from(word(frame, at + 4)?);
            let addresses = (at + 8, at + 40);
            let packet = Packet { addresses, end };
            let protocol = byte(frame, at + 6)?;
            (end <= frame.len()).then_some(Step::Go(Next::Transport(packet, protocol, at + 40)))
        }
        _ => None,
    }
}

fn transport(frame: &[u8], packet: Packet, protocol: u8, at: usize) -> Option<Step> {
    let go = |next| Some(Step::Go(next));
    match protocol {
        // Hop-by-hop and destination options, routing.
        0 | 43 | 60 => {
            let (following, len) = (byte(frame, at)?, usize::from(byte(frame, at + 1)?) * 8 + 8);
            go(Next::Transport(packet, following, at + len))
        }
        4 => go(Next::Typed(IPV4, at)),
        6 => checksum(frame, packet, protocol, at, 16).map(Step::Found),
        17 => match checksum(frame, packet, protocol, at, 6)? {
            OpenChecksum::Nowhere => inside_udp(frame, at),
            found => Some(Step::Found(found)),
        },
        41 => go(Next::Typed(IPV6, at)),
        47 => {
            let flags = word(frame, at)?;
            // Checksum, key and sequence number are four bytes each.
            let options = [0x8000, 0x2000, 0x1000].map(|flag| usize::from(flags & flag != 0) * 4);
            let len = 4 + options.iter().sum::<usize>();
            go(Next::Typed(word(frame, at + 2)?, at + len))
        }
        132 => {
            let is_open = frame.get(at + 8..at + 12)? == [0; 4];
            is_open.then_some(Step::Found(OpenChecksum::Unfinishable))
        }
        _ => None,
    }
}

/// What a tunnel over UDP carries.
fn inside_udp(frame: &[u8], at: usize) -> Option<Step> {
    let next = match word(frame, at + 2)? {
        port if VXLAN_PORTS.contains(&port) => Next::Ethernet(at + 16),
        GENEVE_PORT => {
            let len = 8 + usize::from(byte(frame, at + 8)? & 0x3f) * 4;
            Next::Typed(word(frame, at + 10)?, at + 8 + len)
        }
        _ => return None,
    };
    Some(Step::Go(next))
}

/// Whether the checksum of a header is the sum of its pseudo header.
fn checksum(frame: &[u8], packet: Packet, protocol: u8, at: usize, offset: usize) -> Option<OpenChecksum> {
    let field = word(frame, at + offset)?;
    let addresses = frame.get(packet.addresses.0..packet.addresses.1)?;
    let sum = pseudo(addresses, protocol, packet.end.checked_sub(at)?).fold();
    if field != sum {
        return Some(OpenChecksum::Nowhere);
    }
    Some(OpenChecksum::At {
        start: u16::try_from(at).ok()?,
        offset: u16::try_from(offset).ok()?,
    })
}

fn byte(frame: &[u8], at: usize) -> Option<u8> {
    frame.get(at).copied()
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Sum, finish_checksum};

    const TCP: (u8, usize) = (6, 16);
    const UDP: (u8, usize) = (17, 6);

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(20 + payload.len()).unwrap();
        let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(payload);
        packet
    }

    fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(payload.len()).unwrap();
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
        packet[4..6].copy_from_slice(&len.to_be_bytes());
        packet.extend((0..32).map(|number| number * 7));
        packet.extend(payload);
        packet
    }

    fn ethernet(tags: &[u16], kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend([tag.to_be_bytes(), [0x20, 0x64]].concat());
        }
        frame.extend(kind.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// A header with payload, whose checksum is open in a packet with these addresses.
    fn open((protocol, offset): (u8, usize), addresses: &[u8], port: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x11; offset + 4];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        if protocol == UDP.0 {
            bytes.truncate(8);
        }
        bytes.extend(payload);
        let sum = pseudo(addresses, protocol, bytes.len()).fold();
        bytes[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    const FOUR: [u8; 8] = [10, 0, 0, 1, 10, 0, 0, 2];

    fn six() -> Vec<u8> {
        (0..32).map(|number| number * 7).collect()
    }

    fn at(start: u16, offset: u16) -> OpenChecksum {
        OpenChecksum::At { start, offset }
    }

    #[test]
    fn an_open_checksum_is_found_and_a_complete_one_is_not() {
        for (kind, offset) in [(TCP, 16), (UDP, 6)] {
            for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
                let shift = u16::try_from(4 * tags.len()).unwrap();
                let four = ethernet(tags, IPV4, &ipv4(kind.0, &open(kind, &FOUR, 9, b"data")));
                assert_eq!(find(&four), at(34 + shift, offset));
                let six = ethernet(tags, IPV6, &ipv6(kind.0, &open(kind, &six(), 9, b"data")));
                assert_eq!(find(&six), at(54 + shift, offset));
                let mut complete = four;
                let (start, field) = (usize::from(34 + shift), usize::from(offset));
                assert!(finish_checksum(&mut complete, start, field, &Sum::of(&[])));
                assert_eq!(find(&complete), OpenChecksum::Nowhere);
            }
        }
    }

    #[test]
    fn an_open_checksum_in_a_tunnel_is_found() {
        let inner = ipv4(6, &open(TCP, &FOUR, 9, b"data"));
        let bridged = ethernet(&[], IPV4, &inner);
        let udp = |port: u16, header: &[u8], payload: &[u8]| {
            let mut bytes = [0, 9, 0, 0, 0, 0, 0, 0];
            bytes[2..4].copy_from_slice(&port.to_be_bytes());
            [&bytes[..], header, payload].concat()
        };
        let over = |protocol: u8, bytes: &[u8]| ethernet(&[], IPV4, &ipv4(protocol, bytes));
        let found = |frame: Vec<u8>, start: u16| assert_eq!(find(&frame), at(start, 16));
        found(over(4, &inner), 34 + 20);
        found(
            over(17, &udp(4789, &[8, 0, 0, 0, 0, 0, 1, 0], &bridged)),
            34 + 16 + 34,
        );
        let geneve = [1, 0, 0x65, 0x58, 0, 0, 1, 0, 9, 9, 9, 9];
        found(over(17, &udp(6081, &geneve, &bridged)), 34 + 20 + 34);
        found(
            over(47, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], &bridged[..]].concat()),
            34 + 8 + 34,
        );
        let options = [&[6, 0, 0, 0, 0, 0, 0, 0], &open(TCP, &six(), 9, b"x")[..]].concat();
        found(ethernet(&[], IPV6, &ipv6(0, &options)), 54 + 8);
    }

    #[test]
    fn what_cannot_be_announced_is_known() {
        let sctp = |sum: u8| ethernet(&[], IPV4, &ipv4(132, &[0, 1, 0, 2, 0, 0, 0, 3, sum, 0, 0, 0, 7]));
        assert_eq!(find(&sctp(0)), OpenChecksum::Unfinishable);
        assert_eq!(find(&sctp(1)), OpenChecksum::Nowhere);
        let mut fragment = ethernet(&[], IPV4, &ipv4(6, &open(TCP, &FOUR, 9, b"data")));
        fragment[20] = 0x20;
        assert_eq!(find(&fragment), OpenChecksum::Nowhere);
    }

    #[test]
    fn tunnels_without_end_have_an_end() {
        let mut packet = ipv4(4, &[]);
        for _ in 0..60 {
            packet = ipv4(4, &packet);
        }
        assert_eq!(find(&ethernet(&[], IPV4, &packet)), OpenChecksum::Nowhere);
    }

    proptest! {
        /// Whatever comes, what is found lies in the frame.
        #[test]
        fn no_frame_does_harm(mut frame in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..4_usize) {
            if let Some(place) = frame.get_mut(12..14) {
                let kinds = [IPV4, IPV6, 0x8100, BRIDGED];
                place.copy_from_slice(&kinds[kind].to_be_bytes());
            }
            if let OpenChecksum::At { start, offset } = find(&frame) {
                prop_assert!(usize::from(start + offset) + 2 <= frame.len());
            }
        }
    }
}
