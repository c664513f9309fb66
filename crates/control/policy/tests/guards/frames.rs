//! Frames made by hand.

use proptest::prelude::*;

pub const OWN: u64 = 0x5254_0000_0001;
pub const VRRP: u64 = 0x0000_5e00_0107;
pub const OTHER: u64 = 0x5254_0000_0002;
pub const OWN_IP: u32 = 0x0a00_0001;
pub const VRRP_IP: u32 = 0x0a00_0007;
pub const OTHER_IP: u32 = 0x0a00_0002;
pub const OWN_IP6: u128 = 0xfd00 << 112 | 1;
pub const OTHER_IP6: u128 = 0xfd00 << 112 | 2;
pub const LINK_LOCAL: u128 = 0xfe80 << 112 | 3;

/// What stands in front of a packet.
#[derive(Clone, Debug)]
pub struct Frame {
    pub dst: u64,
    pub src: u64,
    /// Types of tags.
    pub tags: Vec<u16>,
    pub encapsulation: Encapsulation,
    pub packet: Packet,
}

#[derive(Clone, Copy, Debug)]
pub enum Encapsulation {
    Ethernet,
    /// RFC 1042.
    Snap,
    /// IEEE 802.1H.
    BridgeTunnel,
    /// 802.3 without a type.
    Llc,
}

#[derive(Clone, Debug)]
pub enum Packet {
    Arp {
        kind: u16,
        operation: u16,
        sender: u64,
        address: u32,
    },
    Ipv4 {
        src: u32,
        protocol: u8,
        fragment: u16,
        ports: (u16, u16),
    },
    Ipv6 {
        src: u128,
        headers: Vec<Header>,
        upper: Upper,
    },
    Other,
}

/// Extension headers of IPv6.
#[derive(Clone, Copy, Debug)]
pub enum Header {
    /// Hop-by-hop options, destination options, or a routing header.
    Known(u8),
    /// Offset, in units of 8 bytes, and whether more follow.
    Fragment(u16, bool),
    /// One that nobody reads.
    Unknown(u8),
    /// One that is longer than the packet.
    Broken,
}

#[derive(Clone, Copy, Debug)]
pub enum Upper {
    Udp(u16, u16),
    /// Type, target, and a link-layer address in an option of this type.
    Icmp(u8, u128, Option<(u8, u64)>),
}

fn mac(address: u64) -> [u8; 6] {
    *address.to_be_bytes().last_chunk().unwrap()
}

impl Frame {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [mac(self.dst), mac(self.src)].concat();
        for tag in &self.tags {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([0, 5]);
        }
        let (kind, packet) = self.packet.bytes();
        let type_bytes = kind.to_be_bytes();
        match self.encapsulation {
            Encapsulation::Ethernet => bytes.extend(type_bytes),
            Encapsulation::Snap => bytes.extend([&[1, 0, 0xaa, 0xaa, 3, 0, 0, 0], &type_bytes[..]].concat()),
            Encapsulation::BridgeTunnel => {
                bytes.extend([&[1, 0, 0xaa, 0xaa, 3, 0, 0, 0xf8], &type_bytes[..]].concat())
            }
            Encapsulation::Llc => bytes.extend([0, 60, 0x42, 0x42, 3]),
        }
        bytes.extend(packet);
        bytes
    }

    fn of(src: u64, packet: Packet) -> Frame {
        Frame {
            dst: 0xffff_ffff_ffff,
            src,
            tags: Vec::new(),
            encapsulation: Encapsulation::Ethernet,
            packet,
        }
    }

    fn icmpv6(src: u128, kind: u8, target: u128, option: Option<(u8, u64)>) -> Frame {
        Frame::of(
            OWN,
            Packet::Ipv6 {
                src,
                headers: vec![],
                upper: Upper::Icmp(kind, target, option),
            },
        )
    }

    /// What a guest has to send to be on a network.
    pub fn usual() -> Vec<(&'static str, Frame)> {
        let arp = |sender, operation, address| {
            Frame::of(
                sender,
                Packet::Arp {
                    kind: 0x0806,
                    operation,
                    sender,
                    address,
                },
            )
        };
        let ipv4 = |src, protocol, ports| {
            Frame::of(
                OWN,
                Packet::Ipv4 {
                    src,
                    protocol,
                    fragment: 0,
                    ports,
                },
            )
        };
        let tagged = Frame {
            tags: vec![0x8100],
            ..ipv4(OWN_IP, 6, (5, 80))
        };
        vec![
            ("ARP request", arp(OWN, 1, OWN_IP)),
            ("ARP reply", arp(OWN, 2, OWN_IP)),
            ("ARP probe", arp(OWN, 1, 0)),
            ("ARP of a VRRP address", arp(VRRP, 2, VRRP_IP)),
            (
                "RARP",
                Frame::of(
                    OWN,
                    Packet::Arp {
                        kind: 0x8035,
                        operation: 3,
                        sender: OWN,
                        address: 0,
                    },
                ),
            ),
            ("TCP", ipv4(OWN_IP, 6, (5, 80))),
            ("TCP with a tag", tagged),
            ("DHCP request", ipv4(0, 17, (68, 67))),
            ("DHCP renewal", ipv4(OWN_IP, 17, (68, 67))),
            ("ping", ipv4(OWN_IP, 1, (0x0800, 0))),
            (
                "duplicate address detection",
                Frame::icmpv6(0, 135, OWN_IP6, None),
            ),
            (
                "the same of a link-local address",
                Frame::icmpv6(0, 135, LINK_LOCAL, None),
            ),
            ("router solicitation", Frame::icmpv6(0, 133, 0, None)),
            ("multicast listener report", Frame::icmpv6(0, 143, 0, None)),
            (
                "solicitation",
                Frame::icmpv6(LINK_LOCAL, 135, OTHER_IP6, Some((1, OWN))),
            ),
            (
                "solicitation of one who is known",
                Frame::icmpv6(OWN_IP6, 135, OTHER_IP6, None),
            ),
            (
                "advertisement",
                Frame::icmpv6(OWN_IP6, 136, OWN_IP6, Some((2, OWN))),
            ),
            (
                "advertisement of a link-local address",
                Frame::icmpv6(LINK_LOCAL, 136, LINK_LOCAL, Some((2, OWN))),
            ),
            ("ping over IPv6", Frame::icmpv6(OWN_IP6, 128, 0, None)),
            ("LLDP", Frame::of(OWN, Packet::Other)),
        ]
    }

    /// What guards are for, with the guard.
    pub fn attacks() -> Vec<(&'static str, Frame, &'static str)> {
        let arp = |src, operation, sender, address| {
            Frame::of(
                src,
                Packet::Arp {
                    kind: 0x0806,
                    operation,
                    sender,
                    address,
                },
            )
        };
        let ipv4 = |src, protocol, fragment, ports| {
            Frame::of(
                OWN,
                Packet::Ipv4 {
                    src,
                    protocol,
                    fragment,
                    ports,
                },
            )
        };
        let ipv6 = |headers, upper| {
            Frame::of(
                OWN,
                Packet::Ipv6 {
                    src: LINK_LOCAL,
                    headers,
                    upper,
                },
            )
        };
        let advertisement = Upper::Icmp(134, 0, None);
        let other = Frame::icmpv6(OWN_IP6, 136, OTHER_IP6, Some((2, OWN)));
        let with_tags = |tags: &[u16]| Frame {
            tags: tags.to_vec(),
            ..other.clone()
        };
        vec![
            (
                "ARP request from another address",
                arp(OWN, 1, OWN, OTHER_IP),
                "spoof",
            ),
            (
                "ARP reply from another address",
                arp(OWN, 2, OWN, OTHER_IP),
                "spoof",
            ),
            ("ARP reply with another MAC", arp(OWN, 2, OTHER, OWN_IP), "spoof"),
            ("ARP reply from another MAC", arp(OTHER, 2, OWN, OWN_IP), "spoof"),
            ("ARP of the wrong pair", arp(VRRP, 2, VRRP, OWN_IP), "spoof"),
            ("ARP reply from no address", arp(OWN, 2, OWN, 0), "spoof"),
            ("another IPv4 address", ipv4(OTHER_IP, 6, 0, (5, 80)), "spoof"),
            ("no address, and no DHCP", ipv4(0, 17, 0, (68, 68)), "dhcp"),
            ("no address, and TCP", ipv4(0, 6, 0, (68, 67)), "spoof"),
            ("advertisement of another address", other.clone(), "spoof"),
            ("the same with a tag", with_tags(&[0x8100]), "spoof"),
            ("the same with two", with_tags(&[0x88a8, 0x8100]), "spoof"),
            (
                "the same with three",
                with_tags(&[0x88a8, 0x8100, 0x8100]),
                "headers-hidden",
            ),
            ("the same with four", with_tags(&[0x8100; 4]), "headers-hidden"),
            (
                "the same behind SNAP",
                Frame {
                    encapsulation: Encapsulation::Snap,
                    ..other.clone()
                },
                "spoof",
            ),
            (
                "the same behind 802.1H",
                Frame {
                    encapsulation: Encapsulation::BridgeTunnel,
                    ..other.clone()
                },
                "headers-hidden",
            ),
            (
                "advertisement with another MAC",
                Frame::icmpv6(OWN_IP6, 136, OWN_IP6, Some((2, OTHER))),
                "spoof",
            ),
            (
                "solicitation with another MAC",
                Frame::icmpv6(OWN_IP6, 135, OTHER_IP6, Some((1, OTHER))),
                "spoof",
            ),
            (
                "detection that claims another address",
                Frame::icmpv6(0, 135, OTHER_IP6, None),
                "spoof",
            ),
            (
                "another IPv6 address",
                Frame::icmpv6(OTHER_IP6, 128, 0, None),
                "spoof",
            ),
            ("DHCP offer", ipv4(OWN_IP, 17, 0, (67, 68)), "dhcp"),
            (
                "DHCP offer from another port",
                ipv4(OWN_IP, 17, 0, (1067, 68)),
                "dhcp",
            ),
            (
                "first fragment of an offer",
                ipv4(OWN_IP, 17, 0x2000, (67, 68)),
                "dhcp",
            ),
            (
                "later fragment of an offer",
                ipv4(OWN_IP, 17, 1, (67, 68)),
                "headers-hidden",
            ),
            ("DHCPv6 advertisement", ipv6(vec![], Upper::Udp(547, 546)), "dhcp"),
            ("redirect", ipv4(OWN_IP, 1, 0, (0x0500, 0)), "router"),
            ("router advertisement", ipv6(vec![], advertisement), "router"),
            (
                "the same behind headers",
                ipv6(
                    vec![Header::Known(0), Header::Known(60), Header::Known(43)],
                    advertisement,
                ),
                "router",
            ),
            (
                "the same in a whole fragment",
                ipv6(vec![Header::Fragment(0, false)], advertisement),
                "router",
            ),
            (
                "the same in a first fragment",
                ipv6(vec![Header::Fragment(0, true), Header::Known(60)], advertisement),
                "router",
            ),
            (
                "the same in a later fragment",
                ipv6(vec![Header::Fragment(1, false)], advertisement),
                "headers-hidden",
            ),
            (
                "the same behind a header that nobody reads",
                ipv6(vec![Header::Unknown(253)], advertisement),
                "headers-hidden",
            ),
            (
                "the same behind a header that is too long",
                ipv6(vec![Header::Broken], advertisement),
                "headers-hidden",
            ),
            (
                "ICMPv6 redirect",
                ipv6(vec![], Upper::Icmp(137, 0, None)),
                "router",
            ),
            (
                "BPDU",
                Frame {
                    dst: 0x0180_c200_0000,
                    encapsulation: Encapsulation::Llc,
                    ..Frame::of(OWN, Packet::Other)
                },
                "bpdu",
            ),
            (
                "BPDU of a VLAN",
                Frame {
                    dst: 0x0100_0ccc_cccd,
                    ..Frame::of(OWN, Packet::Other)
                },
                "bpdu",
            ),
        ]
    }
}

impl Packet {
    fn bytes(&self) -> (u16, Vec<u8>) {
        match self {
            Packet::Arp {
                kind,
                operation,
                sender,
                address,
            } => {
                let mut bytes = vec![0, 1, 8, 0, 6, 4];
                bytes.extend(operation.to_be_bytes());
                bytes.extend(mac(*sender));
                bytes.extend(address.to_be_bytes());
                bytes.extend([0; 10]);
                (*kind, bytes)
            }
            Packet::Ipv4 {
                src,
                protocol,
                fragment,
                ports,
            } => {
                let mut bytes = vec![0x45, 0, 0, 40, 0, 0];
                bytes.extend(fragment.to_be_bytes());
                bytes.extend([64, *protocol, 0, 0]);
                bytes.extend(src.to_be_bytes());
                bytes.extend([10, 0, 0, 9]);
                bytes.extend(ports.0.to_be_bytes());
                bytes.extend(ports.1.to_be_bytes());
                bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
                (0x0800, bytes)
            }
            Packet::Ipv6 { src, headers, upper } => (0x86dd, ipv6(*src, headers, *upper)),
            Packet::Other => (0x88cc, vec![0; 46]),
        }
    }
}

impl Header {
    fn number(self) -> u8 {
        match self {
            Header::Known(number) | Header::Unknown(number) => number,
            Header::Fragment(..) => 44,
            Header::Broken => 60,
        }
    }
}

fn ipv6(src: u128, headers: &[Header], upper: Upper) -> Vec<u8> {
    let (last, upper) = match upper {
        Upper::Udp(from, to) => (
            17,
            [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 8, 0, 0]].concat(),
        ),
        Upper::Icmp(kind, target, option) => {
            let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(target.to_be_bytes());
            if let Some((kind, link)) = option {
                bytes.extend([kind, 1]);
                bytes.extend(mac(link));
            }
            (58, bytes)
        }
    };
    let numbers = headers.iter().map(|header| header.number()).chain([last]);
    let numbers: Vec<u8> = numbers.collect();
    let mut payload = Vec::new();
    for (header, next) in headers.iter().zip(&numbers[1..]) {
        payload.extend(match *header {
            Header::Known(_) | Header::Unknown(_) => [*next, 0, 0, 0, 0, 0, 0, 0],
            Header::Broken => [*next, 200, 0, 0, 0, 0, 0, 0],
            Header::Fragment(offset, more) => {
                let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
                [*next, 0, high, low, 0, 0, 0, 1]
            }
        });
    }
    payload.extend(upper);
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend([numbers[0], 255]);
    bytes.extend(src.to_be_bytes());
    bytes.extend((0xff02 << 112 | 1u128).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn any_mac() -> impl Strategy<Value = u64> {
    prop_oneof![5 => Just(OWN), 2 => Just(VRRP), 1 => Just(OTHER)]
}

fn address() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(OWN_IP), 2 => Just(VRRP_IP), 1 => Just(OTHER_IP), 1 => Just(0)]
}

fn address6() -> impl Strategy<Value = u128> {
    prop_oneof![3 => Just(OWN_IP6), 1 => Just(OTHER_IP6), 2 => Just(LINK_LOCAL), 1 => Just(0)]
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![53u16, 67, 68, 546, 547, 0x0500, 0x0900, 0x0800])
}

fn header() -> impl Strategy<Value = Header> {
    prop_oneof![
        6 => prop::sample::select(vec![0u8, 43, 60]).prop_map(Header::Known),
        3 => (0..2u16, any::<bool>()).prop_map(|(offset, more)| Header::Fragment(offset, more)),
        1 => prop::sample::select(vec![135u8, 139, 140, 253, 254]).prop_map(Header::Unknown),
        1 => Just(Header::Broken),
    ]
}

fn upper() -> impl Strategy<Value = Upper> {
    let kind = prop::sample::select(vec![128u8, 131, 133, 134, 135, 135, 136, 136, 137, 143]);
    let option = prop::option::of((1..3u8, any_mac()));
    prop_oneof![
        1 => (port(), port()).prop_map(|(from, to)| Upper::Udp(from, to)),
        3 => (kind, address6(), option).prop_map(|(kind, target, option)| Upper::Icmp(kind, target, option)),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let arp = (
        prop_oneof![3 => Just(0x0806u16), 1 => Just(0x8035)],
        0..4u16,
        any_mac(),
        address(),
    )
        .prop_map(|(kind, operation, sender, address)| Packet::Arp {
            kind,
            operation,
            sender,
            address,
        });
    let fragment = prop_oneof![4 => Just(0u16), 1 => Just(0x2000), 1 => Just(7), 1 => Just(0x4000)];
    let ipv4 = (
        address(),
        prop::sample::select(vec![1u8, 6, 17, 47]),
        fragment,
        (port(), port()),
    )
        .prop_map(|(src, protocol, fragment, ports)| Packet::Ipv4 {
            src,
            protocol,
            fragment,
            ports,
        });
    let ipv6 = (address6(), prop::collection::vec(header(), 0..3), upper())
        .prop_map(|(src, headers, upper)| Packet::Ipv6 { src, headers, upper });
    prop_oneof![3 => arp, 3 => ipv4, 5 => ipv6, 1 => Just(Packet::Other)]
}

pub fn frame() -> impl Strategy<Value = Frame> {
    let dst = prop_oneof![6 => Just(OTHER), 1 => Just(0x0180_c200_0000u64), 1 => Just(0x0180_c200_000e)];
    let tags = prop_oneof![
        4 => Just(Vec::new()),
        2 => prop::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88a8)], 1..5),
    ];
    let encapsulation = prop_oneof![
        7 => Just(Encapsulation::Ethernet),
        1 => Just(Encapsulation::Snap),
        1 => Just(Encapsulation::BridgeTunnel),
        1 => Just(Encapsulation::Llc),
    ];
    (dst, any_mac(), tags, encapsulation, packet()).prop_map(|(dst, src, tags, encapsulation, packet)| {
        Frame {
            dst,
            src,
            tags,
            encapsulation,
            packet,
        }
    })
}
