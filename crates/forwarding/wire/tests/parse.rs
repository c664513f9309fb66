//! Frames built by hand and the keys they must give.

mod common;

use common::frames::plausible_frames;
use common::*;
use flow::{FlowKey, PortId, Unseen};
use proptest::prelude::*;
use wire::{L3, L4, Layers, Parsed, parse};

fn parsed(frame: &[u8]) -> Parsed {
    parse(head(frame), frame.len(), PortId(7))
}

/// The key of an untagged frame between the two addresses.
fn ethernet_key(ethertype: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(7);
    key.set_eth_dst(0x5254_0000_0002);
    key.set_eth_src(0x5254_0000_0001);
    key.set_eth_type(ethertype);
    key
}

fn ipv4_key(protocol: u8) -> FlowKey {
    let mut key = ethernet_key(0x0800);
    key.set_ip_src(0x0a00_0001);
    key.set_ip_dst(0x0a00_0002);
    key.set_ip_tos(0x2e);
    key.set_ip_ttl(63);
    key.set_ip_proto(protocol);
    key
}

fn ipv6_key(protocol: u8) -> FlowKey {
    let mut key = ethernet_key(0x86dd);
    key.set_ip_src(0xfd00 << 112 | 1);
    key.set_ip_dst(0xfd00 << 112 | 2);
    key.set_ip_tos(0xb8);
    key.set_ipv6_label(0x12345);
    key.set_ip_ttl(64);
    key.set_ip_proto(protocol);
    key
}

fn with_ports(mut key: FlowKey, src: u16, dst: u16) -> FlowKey {
    key.set_tp_src(src);
    key.set_tp_dst(dst);
    key
}

#[test]
fn tcp_over_ipv4() {
    let frame = ethernet(
        &[],
        0x0800,
        &ipv4(6, 0x4000, &[], &tcp(0x912, &[1, 1, 1, 1], b"hello")),
    );
    let mut key = with_ports(ipv4_key(6), 1000, 80);
    key.set_tcp_flags(0x912);
    let layers = Layers {
        l3: 14,
        l4: 34,
        payload: 58,
        l3_kind: L3::Ipv4,
        l4_kind: L4::Tcp,
        ..Layers::default()
    };
    assert_eq!(
        parsed(&frame),
        Parsed {
            key,
            layers,
            ..Parsed::default()
        }
    );
}

#[test]
fn udp_over_ipv4_with_options_and_tag() {
    let frame = ethernet(
        &[(0x8100, 0x600a)],
        0x0800,
        &ipv4(17, 0, &[1; 8], &udp(b"question")),
    );
    let mut key = with_ports(ipv4_key(17), 1000, 53);
    key.set_vlan_tpid(0x8100);
    key.set_vlan_tci(0x700a);
    let layers = Layers {
        l3: 18,
        l4: 46,
        payload: 54,
        l3_kind: L3::Ipv4,
        l4_kind: L4::Udp,
        ..Layers::default()
    };
    assert_eq!(
        parsed(&frame),
        Parsed {
            key,
            layers,
            ..Parsed::default()
        }
    );
}

#[test]
fn two_tags_are_keyed_and_a_third_is_a_type() {
    let mut key = ipv4_key(1);
    key.set_vlan_tpid(0x88a8);
    key.set_vlan_tci(0x1014);
    key.set_inner_tpid(0x8100);
    key.set_inner_tci(0x1000);
    let echo = ipv4(1, 0, &[], &[8, 0, 0, 0, 0, 1, 0, 1]);
    let frame = ethernet(&[(0x88a8, 20), (0x8100, 0)], 0x0800, &echo);
    assert_eq!(parsed(&frame).key, with_ports(key, 8, 0));
    assert_eq!(
        (parsed(&frame).layers.l3, parsed(&frame).layers.l4_kind),
        (22, L4::Icmp)
    );

    let frame = ethernet(&[(0x88a8, 20), (0x8100, 0), (0x8100, 5)], 0x0800, &echo);
    let found = parsed(&frame);
    assert_eq!(
        (found.key.eth_type(), found.key.ip_proto(), found.layers.l3_kind),
        (0x8100, 0, L3::Other)
    );
}

/// A short frame is padded with zeros on the wire, where the next switch takes the tag for what it is.
#[test]
fn tags_that_are_cut_are_tags() {
    let whole = ethernet(&[(0x8100, 0), (0x88a8, 0x130)], 0x0800, &[]);
    let tags = |len: usize| {
        let key = parsed(&whole[..len]).key;
        (
            key.vlan_tpid(),
            key.vlan_tci(),
            key.inner_tpid(),
            key.inner_tci(),
            key.eth_type(),
        )
    };
    assert_eq!(tags(22), (0x8100, 0x1000, 0x88a8, 0x1130, 0x0800));
    // Without a type, without the tag's last byte, and without any of it but the type.
    assert_eq!(tags(21), (0x8100, 0x1000, 0x88a8, 0x1130, 0));
    assert_eq!(tags(20), (0x8100, 0x1000, 0x88a8, 0x1130, 0));
    assert_eq!(tags(19), (0x8100, 0x1000, 0x88a8, 0x1100, 0));
    assert_eq!(tags(18), (0x8100, 0x1000, 0x88a8, 0x1000, 0));
    // The outer one.
    let whole = ethernet(&[(0x8100, 0x130)], 0x0800, &[]);
    let tag = |len: usize| parsed(&whole[..len]).key.vlan_tci();
    assert_eq!(
        [14, 15, 16, 17, 18].map(tag),
        [0x1000, 0x1100, 0x1130, 0x1130, 0x1130]
    );
}

#[test]
fn frames_shorter_than_ethernet_have_only_a_port() {
    let mut key = FlowKey::default();
    key.set_in_port(7);
    for len in 0..14 {
        assert_eq!(
            parsed(&ADDRESSES.repeat(2)[..len]),
            Parsed {
                key,
                ..Parsed::default()
            }
        );
    }
}

#[test]
fn lengths_are_not_types_unless_snap_says_one() {
    let found = parsed(&ethernet(&[], 46, &[0x42, 0x42, 3, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(found.key, ethernet_key(0));
    assert_eq!(found.layers.l3, 14);
    let mut snap = vec![0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x00];
    snap.extend(ipv4(17, 0, &[], &udp(b"")));
    let found = parsed(&ethernet(&[], 36, &snap));
    assert_eq!(found.key, with_ports(ipv4_key(17), 1000, 53));
    assert_eq!((found.layers.l3, found.layers.l4), (22, 42));
    // Another organisation's numbers are not Ethernet types, nor is anything in a frame that is not of
    // unnumbered information.
    for (at, byte) in [(4, 1), (2, 0)] {
        let mut other = snap.clone();
        other[at] = byte;
        assert_eq!(parsed(&ethernet(&[], 36, &other)).key, ethernet_key(0));
    }
}

#[test]
fn arp_request() {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend([0x52, 0x54, 0, 0, 0, 1, 10, 0, 0, 1]);
    packet.extend([0, 0, 0, 0, 0, 9, 10, 0, 0, 2]);
    let mut key = ethernet_key(0x0806);
    key.set_ip_proto(1);
    key.set_nd_sll(0x5254_0000_0001);
    key.set_ip_src(0x0a00_0001);
    key.set_nd_tll(9);
    key.set_ip_dst(0x0a00_0002);
    let found = parsed(&ethernet(&[], 0x0806, &packet));
    assert_eq!(found.key, key);
    assert_eq!(
        found.layers,
        Layers {
            l3: 14,
            l3_kind: L3::Arp,
            ..Layers::default()
        }
    );
    // An operation of more than 8 bits is none.
    packet[6] = 1;
    key.set_ip_proto(0);
    assert_eq!(parsed(&ethernet(&[], 0x0806, &packet)).key, key);
    // Truncated, or for other hardware.
    assert_eq!(
        parsed(&ethernet(&[], 0x0806, &packet[..27])).key,
        ethernet_key(0x0806)
    );
    packet[4] = 8;
    assert_eq!(parsed(&ethernet(&[], 0x0806, &packet)).key, ethernet_key(0x0806));
}

#[test]
fn ipv4_fragments() {
    let mut key = with_ports(ipv4_key(17), 1000, 53);
    key.set_ip_frag(1);
    let first = parsed(&ethernet(&[], 0x0800, &ipv4(17, 0x2000, &[], &udp(b"half"))));
    assert_eq!(first.key, key);
    assert!(first.layers.fragment && first.layers.l4 == 34);

    let mut key = ipv4_key(17);
    key.set_ip_frag(2);
    for offset in [0x2001, 0x0001, 0x1fff] {
        let later = parsed(&ethernet(&[], 0x0800, &ipv4(17, offset, &[], &udp(b"half"))));
        assert_eq!(later.key, key);
        let layers = Layers {
            l3: 14,
            l3_kind: L3::Ipv4,
            fragment: true,
            ..Layers::default()
        };
        assert_eq!(later.layers, layers);
    }
}

#[test]
fn malformed_ipv4_leaves_the_layer_zero() {
    let good = ipv4(17, 0, &[], &udp(b""));
    let mut short_header = good.clone();
    short_header[0] = 0x44;
    let mut long_header = good.clone();
    long_header[0] = 0x4f;
    for packet in [&good[..19], &short_header, &long_header] {
        let found = parsed(&ethernet(&[], 0x0800, packet));
        assert_eq!(found.key, ethernet_key(0x0800));
        assert_eq!(
            found.layers,
            Layers {
                l3: 14,
                ..Layers::default()
            }
        );
    }
}

#[test]
fn truncated_transport_headers_leave_only_their_fields_zero() {
    let mut bad_offset = tcp(0x10, &[], &[]);
    bad_offset[12] = 0x40;
    let mut beyond = tcp(0x10, &[], &[]);
    beyond[12] = 0x60;
    let cases: [(u8, &[u8]); 6] = [
        (6, &tcp(0x10, &[], &[])[..19]),
        (6, &bad_offset),
        (6, &beyond),
        (17, &udp(b"")[..7]),
        (132, &[0; 11]),
        (1, &[8, 0, 0, 0, 0, 0, 0]),
    ];
    for (protocol, transport) in cases {
        let found = parsed(&ethernet(&[], 0x0800, &ipv4(protocol, 0, &[], transport)));
        assert_eq!(found.key, ipv4_key(protocol));
        let layers = Layers {
            l3: 14,
            l4: 34,
            l3_kind: L3::Ipv4,
            ..Layers::default()
        };
        assert_eq!(found.layers, layers);
    }
}

#[test]
fn layers_behind_pushed_headers_come_back() {
    let found = Layers {
        l3: 14,
        l4: 34,
        payload: 42,
        ..Layers::default()
    };
    let behind = Layers {
        l3: 52,
        l4: 72,
        payload: 80,
        pushed: 38,
        ..found
    };
    assert_eq!(found.behind(38), behind);
    let both = behind.behind(4);
    assert_eq!(both.pushed, 42);
    assert_eq!(both.uncovered(4), Some(behind));
    assert_eq!(both.uncovered(42), Some(found));
    // A header that nobody pushed hides something else.
    assert_eq!((both.uncovered(43), found.uncovered(1)), (None, None));
    let unknown = Layers::default();
    assert_eq!(unknown.behind(4), Layers { pushed: 4, ..unknown });
}

#[test]
fn mpls_label_stack() {
    let entries = [
        [0, 0, 0x10, 64],
        [0, 0, 0x20, 64],
        [0, 0, 0x30, 64],
        [0, 0, 0x41, 64],
    ];
    let mut key = ethernet_key(0x8847);
    key.set_mpls_lse(0x1040);
    key.set_mpls_lse1(0x2040);
    key.set_mpls_lse2(0x3040);
    let found = parsed(&ethernet(&[], 0x8847, entries.as_flattened()));
    assert_eq!(
        (found.key, found.layers.l3_kind, found.layers.l3),
        (key, L3::Mpls, 14)
    );
    // What is behind the bottom is no entry, and what is cut off neither.
    let mut key = ethernet_key(0x8848);
    key.set_mpls_lse(0x4140);
    let bottom = [[0, 0, 0x41, 64], [0xff; 4]];
    assert_eq!(parsed(&ethernet(&[], 0x8848, bottom.as_flattened())).key, key);
    assert_eq!(
        parsed(&ethernet(&[], 0x8848, &bottom.as_flattened()[..3])).key,
        ethernet_key(0x8848)
    );
}

#[test]
fn network_service_header() {
    let contexts: Vec<u8> = (0..16).collect();
    let header = |first: [u8; 4]| [&first[..], &[0, 0, 9, 254], &contexts].concat();
    // Flag O, time to live 63.
    let mut key = ethernet_key(0x894f);
    key.set_nsh_flags(2);
    key.set_nsh_ttl(63);
    key.set_nsh_mdtype(1);
    key.set_nsh_np(3);
    key.set_nsh_path_hdr(9 << 8 | 254);
    key.set_nsh_c1(0x0001_0203);
    key.set_nsh_c2(0x0405_0607);
    key.set_nsh_c3(0x0809_0a0b);
    key.set_nsh_c4(0x0c0d_0e0f);
    let found = parsed(&ethernet(&[], 0x894f, &header([0x2f, 0xc6, 1, 3])));
    assert_eq!((found.key, found.layers.l3_kind), (key, L3::Nsh));
    // An unknown type has contexts that are unknown.
    let mut other = key;
    other.set_nsh_mdtype(0x11);
    other.set_nsh_c1(0);
    other.set_nsh_c2(0);
    other.set_nsh_c3(0);
    other.set_nsh_c4(0);
    assert_eq!(
        parsed(&ethernet(&[], 0x894f, &header([0x2f, 0xc6, 0x11, 3]))).key,
        other
    );
    // Another version, a length that does not fit the type, one beyond the frame.
    for first in [[0x6f, 0xc6, 1, 3], [0x2f, 0xc4, 1, 3], [0x2f, 0xff, 2, 3]] {
        let found = parsed(&ethernet(&[], 0x894f, &header(first)));
        assert_eq!(
            (found.key, found.layers.l3_kind),
            (ethernet_key(0x894f), L3::Other)
        );
    }
}

#[test]
fn sctp_ports() {
    let frame = ethernet(
        &[],
        0x0800,
        &ipv4(132, 0, &[], &[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]),
    );
    let found = parsed(&frame);
    assert_eq!(found.key, with_ports(ipv4_key(132), 1, 2));
    assert_eq!((found.layers.l4_kind, found.layers.payload), (L4::Sctp, 46));
}

#[test]
fn tcp_options_beyond_the_head_are_known_about() {
    // Two tags, IPv4 with 40 bytes of options, TCP with 40: headers end at byte 142.
    let packet = ipv4(6, 0, &[1; 40], &tcp(0x10, &[1; 40], &[0; 100]));
    let found = parsed(&ethernet(&[(0x8100, 1), (0x8100, 2)], 0x0800, &packet));
    assert_eq!((found.key.tp_src(), found.key.tcp_flags()), (1000, 0x10));
    assert_eq!((found.layers.l4, found.layers.payload), (82, 142));
}

#[test]
fn tcp_over_ipv6() {
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(6, &[], &tcp(0x02, &[], &[]))));
    let mut key = with_ports(ipv6_key(6), 1000, 80);
    key.set_tcp_flags(2);
    let layers = Layers {
        l3: 14,
        l4: 54,
        payload: 74,
        l3_kind: L3::Ipv6,
        l4_kind: L4::Tcp,
        ..Layers::default()
    };
    assert_eq!(
        found,
        Parsed {
            key,
            layers,
            ..Parsed::default()
        }
    );
}

#[test]
fn ipv6_extension_headers_are_passed() {
    // Hop-by-hop (8), destination (16), routing (8), authentication (12), then UDP.
    let mut extensions = vec![60, 0, 1, 4, 0, 0, 0, 0];
    extensions.extend([43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    extensions.extend([51, 0, 0, 0, 0, 0, 0, 0]);
    extensions.extend([17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(0, &extensions, &udp(b"x"))));
    assert_eq!(found.key, with_ports(ipv6_key(17), 1000, 53));
    assert_eq!((found.layers.l4, found.layers.payload), (54 + 44, 54 + 52));
    assert!(found.layers.routed && !found.layers.fragment);
}

/// The key of a packet whose chain of extension headers is broken: nothing counts but the addresses.
fn broken_chain_key() -> FlowKey {
    let (whole, mut key) = (ipv6_key(0), ethernet_key(0x86dd));
    key.set_ip_src(whole.ip_src());
    key.set_ip_dst(whole.ip_dst());
    key
}

#[test]
fn ipv6_extension_headers_that_do_not_end_leave_only_addresses() {
    // Each says that the next one is the same; the last leaves the packet.
    for len in [7, 8, 24, 72] {
        let extensions: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(13)[..len].to_vec();
        let found = parsed(&ethernet(&[], 0x86dd, &ipv6(60, &extensions, &[])));
        assert_eq!((found.key, found.unseen), (broken_chain_key(), Unseen::Nothing));
        let layers = Layers {
            l3: 14,
            l3_kind: L3::Ipv6,
            ..Layers::default()
        };
        assert_eq!(found.layers, layers);
    }
    // One that says it is longer than the packet, and one of which fewer than 8 bytes are there.
    for extensions in [&[17, 200, 1, 4, 0, 0, 0, 0][..], &[17, 0, 1, 4, 0, 0, 0]] {
        let mut frame = ethernet(&[], 0x86dd, &ipv6(60, extensions, &[]));
        frame.extend(udp(b"padding"));
        assert_eq!(parsed(&frame).key, broken_chain_key());
    }
    // "No next header" is an upper layer of its own.
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(59, &[], &[])));
    assert_eq!((found.key, found.layers.l4), (ipv6_key(59), 54));
}

#[test]
fn headers_that_end_behind_the_head_are_not_located() {
    // The head ends within IPv4 options, the frame does not. No field lies behind them.
    let frame = ethernet(&[], 0x0800, &ipv4(47, 0, &[1; 40], &[0; 20]));
    let known = parse(&frame[..74], frame.len(), PortId(7)).layers;
    assert_eq!((known.l3_kind, known.l4), (L3::Ipv4, 74));
    let unknown = parse(&frame[..73], frame.len(), PortId(7));
    assert_eq!((unknown.layers.l3_kind, unknown.layers.l4), (L3::Ipv4, 0));
    assert_eq!((unknown.key, unknown.unseen), (ipv4_key(47), Unseen::Nothing));
    // The same with an IPv6 extension header; the upper layer is unknown with it.
    let frame = ethernet(
        &[],
        0x86dd,
        &ipv6(60, &[47, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0; 20]),
    );
    let known = parse(&frame[..70], frame.len(), PortId(7));
    assert_eq!((known.key.ip_proto(), known.layers.l4), (47, 70));
    let known = parse(&frame[..69], frame.len(), PortId(7));
    assert_eq!((known.key.ip_proto(), known.layers.l4), (47, 0));
    let unknown = parse(&frame[..61], frame.len(), PortId(7));
    assert_eq!(
        (unknown.key, unknown.unseen),
        (broken_chain_key(), Unseen::Extensions)
    );
}

#[test]
fn padding_belongs_to_no_packet() {
    // What lies behind the end that IP tells of is no header, however much it looks like one.
    let mut frame = ethernet(&[], 0x0800, &ipv4(6, 0, &[], &tcp(2, &[], b"")));
    for total_len in 20..40 {
        frame[17] = total_len;
        assert_eq!(parsed(&frame).key, ipv4_key(6));
    }
    let mut frame = ethernet(&[], 0x86dd, &ipv6(17, &[], &udp(b"")));
    for payload_len in 0..8 {
        frame[19] = payload_len;
        assert_eq!(parsed(&frame).key, ipv6_key(17));
    }
    // Whole, with padding behind it.
    frame[19] = 8;
    frame.extend([0; 100]);
    assert_eq!(parsed(&frame).key, with_ports(ipv6_key(17), 1000, 53));
    // IP that says it is longer than the frame, or shorter than its header, is none.
    for (ethertype, mut packet, at, len) in [
        (0x0800, ipv4(6, 0, &[], &tcp(2, &[], b"")), 3, 41),
        (0x0800, ipv4(6, 0, &[], &tcp(2, &[], b"")), 3, 19),
        (0x86dd, ipv6(6, &[], &tcp(2, &[], b"")), 5, 21),
    ] {
        packet[at] = len;
        let found = parsed(&ethernet(&[], ethertype, &packet));
        assert_eq!(
            (found.key, found.layers.l3_kind),
            (ethernet_key(ethertype), L3::Other)
        );
    }
}

#[test]
fn a_fragment_that_is_the_whole_packet_is_none() {
    let frame = |low| ethernet(&[], 0x86dd, &ipv6(44, &[17, 0, 0, low, 0, 0, 0, 9], &udp(b"all")));
    assert_eq!(parsed(&frame(0)).key, with_ports(ipv6_key(17), 1000, 53));
    assert!(
        parsed(&frame(0)).layers.fragment,
        "segments would all repeat the header"
    );
    // A reserved bit makes it one for ovs-vswitchd.
    let mut key = with_ports(ipv6_key(17), 1000, 53);
    key.set_ip_frag(1);
    assert_eq!(parsed(&frame(2)).key, key);
}

#[test]
fn ipv6_fragments() {
    let first = parsed(&ethernet(
        &[],
        0x86dd,
        &ipv6(44, &[17, 0, 0, 1, 0, 0, 0, 9], &udp(b"half")),
    ));
    let mut key = with_ports(ipv6_key(17), 1000, 53);
    key.set_ip_frag(1);
    assert_eq!(first.key, key);
    assert!(first.layers.fragment);

    let later = parsed(&ethernet(
        &[],
        0x86dd,
        &ipv6(44, &[17, 0, 0x05, 0xa8, 0, 0, 0, 9], &udp(b"half")),
    ));
    let mut key = ipv6_key(44);
    key.set_ip_frag(2);
    assert_eq!(later.key, key);
    let layers = Layers {
        l3: 14,
        l3_kind: L3::Ipv6,
        fragment: true,
        ..Layers::default()
    };
    assert_eq!(later.layers, layers);
}

#[test]
fn truncated_ipv6_leaves_the_layer_zero() {
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(6, &[], &[])[..39]));
    assert_eq!(found.key, ethernet_key(0x86dd));
}

#[test]
fn neighbour_solicitation() {
    let target = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target);
    let mut key = with_ports(ipv6_key(58), 135, 0);
    key.set_nd_target(0xfd00 << 112 | 9);
    assert_eq!(parsed(&ethernet(&[], 0x86dd, &ipv6(58, &[], &message))).key, key);

    // Unknown options (14: nonce) are passed.
    message.extend([14, 1, 0, 0, 0, 0, 0, 0]);
    message.extend([1, 1, 0x52, 0x54, 0, 0, 0, 1]);
    message.extend([2, 1, 0x52, 0x54, 0, 0, 0, 3]);
    key.set_nd_sll(0x5254_0000_0001);
    key.set_nd_tll(0x5254_0000_0003);
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(58, &[], &message)));
    assert_eq!((found.key, found.layers.l4_kind), (key, L4::Icmpv6));

    // Code 1 is not neighbour discovery.
    let mut other = message.clone();
    other[1] = 1;
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(58, &[], &other)));
    assert_eq!(found.key, with_ports(ipv6_key(58), 135, 1));

    // An option that is there twice makes all void; one of length 0 ends the list.
    let mut twice = message.clone();
    twice.extend([1, 1, 0x52, 0x54, 0, 0, 0, 1]);
    let found = parsed(&ethernet(&[], 0x86dd, &ipv6(58, &[], &twice)));
    assert_eq!(found.key, with_ports(ipv6_key(58), 135, 0));
    message[25] = 0;
    let mut key = with_ports(ipv6_key(58), 135, 0);
    key.set_nd_target(0xfd00 << 112 | 9);
    assert_eq!(parsed(&ethernet(&[], 0x86dd, &ipv6(58, &[], &message))).key, key);
}

fn check_offsets(layers: &Layers, head_len: usize, frame_len: usize) -> Result<(), TestCaseError> {
    let (l3, l4, payload) = (
        usize::from(layers.l3),
        usize::from(layers.l4),
        usize::from(layers.payload),
    );
    prop_assert!(l3 <= head_len && l4 <= head_len && payload <= frame_len);
    prop_assert!(l4 == 0 || l4 >= l3 + 20);
    prop_assert!(payload == 0 || payload >= l4 + 8);
    prop_assert_eq!(payload != 0, layers.l4_kind != L4::Other);
    prop_assert!(l4 == 0 || matches!(layers.l3_kind, L3::Ipv4 | L3::Ipv6));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn offsets_lie_inside_whatever_the_bytes(
        bytes in prop_oneof![9 => plausible_frames(), 1 => prop::collection::vec(any::<u8>(), 0..200)],
        head_len in 0usize..200, frame_len in prop_oneof![0usize..300, Just(65_553), Just(usize::MAX)],
    ) {
        let head = &bytes[..head_len.min(bytes.len())];
        let found = parse(head, frame_len, PortId(1));
        check_offsets(&found.layers, head.len().min(frame_len), frame_len)?;
    }

    /// Cutting a frame never adds or changes anything about the layers that are still complete; what is cut
    /// off becomes zero.
    #[test]
    fn a_cut_frame_has_no_made_up_fields(frame in plausible_frames(), len in 14usize..128) {
        let whole = parse(head(&frame), frame.len(), PortId(1));
        let cut = &frame[..len.min(frame.len())];
        let found = parse(cut, cut.len(), PortId(1));
        check_offsets(&found.layers, cut.len(), cut.len())?;
        if found.layers.payload != 0 {
            prop_assert_eq!(found.layers, whole.layers);
            prop_assert_eq!(found.key.tp_src(), whole.key.tp_src());
        } else {
            prop_assert_eq!((found.key.tp_src(), found.key.tp_dst(), found.key.tcp_flags()), (0, 0, 0));
        }
    }
}
