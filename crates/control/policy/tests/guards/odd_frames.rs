//! Frames of guests that share addresses, claim those of others, or send less than their headers say.

use crate::frames::{Encapsulation, Frame, OTHER, OTHER_IP, OWN, OWN_IP, Packet, VRRP, VRRP_IP};
use crate::{ALL, Guarded, port};
use policy::{compile, parse};

const EVERYBODY: u64 = 0xffff_ffff_ffff;
/// Virtual MAC addresses of IPv4 routers, the last byte being the router's number (RFC 9568, 7.3).
const VIRTUAL: u64 = 0x0000_5e00_0100;
const VRRP_PROTOCOL: u8 = 112;

fn frame(src: u64, packet: Packet) -> Frame {
    Frame {
        dst: EVERYBODY,
        src,
        tags: Vec::new(),
        encapsulation: Encapsulation::Ethernet,
        packet,
    }
}

/// A gratuitous ARP message: sender and target have the same address.
fn gratuitous(src: u64, sender: u64, operation: u16, address: u32) -> Frame {
    let kind = 0x0806;
    frame(
        src,
        Packet::Arp {
            kind,
            operation,
            sender,
            address,
        },
    )
}

/// Bytes of a frame, with these addresses of the target.
fn with_target(frame: &Frame, station: u64, address: u32) -> Vec<u8> {
    let mut bytes = frame.bytes();
    let at = bytes.len() - 10;
    bytes[at..at + 6].copy_from_slice(&station.to_be_bytes()[2..]);
    bytes[at + 6..].copy_from_slice(&address.to_be_bytes());
    bytes
}

fn ipv4(src: u64, protocol: u8, address: u32) -> Vec<u8> {
    let packet = Packet::Ipv4 {
        src: address,
        protocol,
        fragment: 0,
        ports: (5, 80),
    };
    frame(src, packet).bytes()
}

/// All that a router says with a virtual MAC address: advertisement, announcement, and what it forwards.
fn as_router(mac: u64, address: u32) -> [Vec<u8>; 4] {
    [
        ipv4(mac, VRRP_PROTOCOL, address),
        with_target(&gratuitous(mac, mac, 1, address), 0, address),
        with_target(&gratuitous(mac, mac, 2, address), EVERYBODY, address),
        ipv4(mac, 6, address),
    ]
}

#[test]
fn a_virtual_mac_address_needs_an_allowed_pair() {
    let spoof = || Err("guard spoof".to_string());
    let mut without = port(&ALL);
    without.allowed_pairs.clear();
    let (without, with) = (Guarded::of(without), Guarded::new(&ALL));
    for number in 0..=255 {
        let mac = VIRTUAL | number;
        for address in [VRRP_IP, OWN_IP, OTHER_IP] {
            for frame in as_router(mac, address) {
                assert_eq!(without.judge(&frame), spoof(), "router {number}");
                let allowed = mac == VRRP && address == VRRP_IP;
                let expected = if allowed { Ok(()) } else { spoof() };
                assert_eq!(with.judge(&frame), expected, "router {number}");
            }
        }
    }
}

/// Who announces a neighbour's address, in whatever form, is dropped; an own one passes, and so does the
/// question whether somebody has it.
#[test]
fn announcements_of_a_neighbours_address_are_dropped_and_named() {
    let guarded = Guarded::new(&ALL);
    let mut count = 0;
    for operation in [1, 2] {
        for (station, tags) in [
            (0, vec![]),
            (EVERYBODY, vec![0x8100]),
            (OTHER, vec![0x88a8, 0x8100]),
        ] {
            for dst in [EVERYBODY, OTHER] {
                let announce = |src, sender, address| {
                    let frame = Frame {
                        dst,
                        tags: tags.clone(),
                        ..gratuitous(src, sender, operation, address)
                    };
                    guarded.judge(&with_target(&frame, station, address))
                };
                assert_eq!(announce(OWN, OWN, OWN_IP), Ok(()));
                for (src, sender, address) in [
                    (OWN, OWN, OTHER_IP),
                    (OWN, OTHER, OTHER_IP),
                    (OTHER, OTHER, OTHER_IP),
                    (OTHER, OWN, OWN_IP),
                ] {
                    assert_eq!(announce(src, sender, address), Err("guard spoof".into()));
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 48);
    let probe = with_target(&gratuitous(OWN, OWN, 1, 0), 0, OTHER_IP);
    assert_eq!(guarded.judge(&probe), Ok(()));
}

/// A forbidden frame that ends early, at whatever odd length, does not pass.
#[test]
fn frames_that_end_early_are_no_way_around_guards() {
    let guarded = Guarded::new(&ALL);
    let mut passed = Vec::new();
    for (what, frame, _) in Frame::attacks() {
        let bytes = frame.bytes();
        let lengths = 14..bytes.len();
        passed.extend(
            lengths
                .filter(|len| guarded.judge(&bytes[..*len]).is_ok())
                .map(|len| (what, len)),
        );
    }
    assert_eq!(passed, []);
}

/// A first fragment that is too short for its header does not evade a rule about ports or flags; a fragment
/// with the header is judged by the rule.
#[test]
fn a_tiny_first_fragment_is_no_way_around_rules_about_ports() {
    for (protocol, name, condition) in [
        (6, "tcp", "destination-port = 22"),
        (6, "tcp", "tcp-flags = \"syn,!ack\""),
        (132, "sctp", "destination-port = 22"),
    ] {
        let text = format!(
            "[[acl]]\nname = \"a\"\ndefault = \"allow\"\nrule = [\n  {{ action = \"drop\", protocol = \"{name}\", \
             {condition} }},\n]\n[[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"vm1\"\nacl-from = \"a\"\n"
        );
        let guarded = Guarded::by(compile(&parse(&text, "x.toml").unwrap()).unwrap());
        let judged = |fragment: u16, len: u8, port: u16, flags: u8| {
            let packet = Packet::Ipv4 {
                src: OWN_IP,
                protocol,
                fragment,
                ports: (5, port),
            };
            let mut bytes = frame(OWN, packet).bytes();
            bytes[14 + 20 + 13] = flags;
            bytes.truncate(14 + 20 + usize::from(len));
            bytes[17] = 20 + len;
            guarded.judge(&bytes)
        };
        let lengths = if protocol == 6 { &[8, 16][..] } else { &[8] };
        for len in lengths {
            assert_eq!(judged(0x2000, *len, 22, 2), Err("guard headers-hidden".into()));
        }
        for fragment in [0, 0x2000] {
            assert_eq!(judged(fragment, 20, 22, 2), Err("acl a rule 1".into()));
            assert_eq!(judged(fragment, 20, 80, 16), Ok(()));
        }
        // Later fragments are worth nothing without the first one.
        assert_eq!(judged(1, 16, 22, 2), Ok(()));
    }
}
