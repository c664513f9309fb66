//! Requests that contradict their frame are refused; accepted ones point nowhere outside it.

mod common;

use common::*;
use flow::PortId;
use proptest::prelude::*;
use wire::{
    BadOffload, DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, Layers, NEEDS_CSUM,
    Offload, VnetHeader, parse,
};

fn check(header: &VnetHeader, frame: &[u8]) -> Result<Offload, BadOffload> {
    let layers = parse(head(frame), frame.len(), PortId(1)).layers;
    Offload::check(header, &layers, head(frame), frame.len())
}

fn tcp4(payload: usize) -> Vec<u8> {
    ethernet(
        &[],
        0x0800,
        &ipv4(6, 0x4000, &[], &tcp(0x10, &[1; 12], &vec![7; payload])),
    )
}

fn tcp6(payload: usize) -> Vec<u8> {
    ethernet(&[], 0x86dd, &ipv6(6, &[], &tcp(0x10, &[], &vec![7; payload])))
}

fn checksum(csum_start: u16, csum_offset: u16) -> VnetHeader {
    VnetHeader {
        flags: NEEDS_CSUM,
        csum_start,
        csum_offset,
        ..VnetHeader::default()
    }
}

fn tso4() -> VnetHeader {
    VnetHeader {
        gso_type: GSO_TCPV4,
        gso_size: 1000,
        ..checksum(34, 16)
    }
}

#[test]
fn a_frame_that_asks_for_nothing_gets_nothing() {
    let idle = VnetHeader {
        hdr_len: 9,
        csum_start: 60_000,
        num_buffers: 3,
        ..VnetHeader::default()
    };
    assert_eq!(check(&idle, &tcp4(0)), Ok(Offload::NONE));
    // Nobody believes the sender that the checksum is right, and unknown bits end here.
    let flags = DATA_VALID | 0xfc;
    assert_eq!(check(&VnetHeader { flags, ..idle }, &tcp4(0)), Ok(Offload::NONE));
    assert!(!Offload::NONE.needs_checksum() && Offload::NONE.segmentation().is_none());
}

/// Byte by byte: flags, GSO type, and others that ask for nothing by themselves (VIRTIO 1.2, 5.1.6.2).
#[test]
fn a_header_that_asks_for_anything_is_seen_to() {
    let with = |at: usize, value: u8| {
        let mut header = [0; VnetHeader::LEN];
        header[at] = value;
        header
    };
    for (at, value) in [
        (0, NEEDS_CSUM),
        (0, 0xff),
        (1, GSO_TCPV4),
        (1, GSO_TCPV6),
        (1, GSO_UDP),
        (1, 0xff),
    ] {
        assert!(Offload::is_wanted(&with(at, value)), "byte {at} is {value:#x}");
    }
    // What a receiver may be told of a checksum says nothing about a request; congestion bits alone do not
    // either.
    for (at, value) in [(0, 0), (0, !NEEDS_CSUM), (1, GSO_ECN)] {
        assert!(!Offload::is_wanted(&with(at, value)), "byte {at} is {value:#x}");
    }
    for at in 2..VnetHeader::LEN {
        assert!(!Offload::is_wanted(&with(at, 0xff)), "byte {at}");
    }
    let mut both = with(0, NEEDS_CSUM);
    both[1] = GSO_TCPV4 | GSO_ECN;
    assert!(Offload::is_wanted(&both));
}

#[test]
fn checksum_requests_fit_the_protocol() {
    let tcp = tcp4(5);
    let udp = ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp(&[0; 60])));
    let sctp = ethernet(&[], 0x0800, &ipv4(132, 0, &[], &[0; 20]));
    let icmp6 = ethernet(&[], 0x86dd, &ipv6(58, &[], &[128, 0, 0, 0, 0, 0, 0, 0]));
    let gre = ethernet(&[], 0x0800, &ipv4(47, 0, &[], &[0; 60]));
    let mpls = ethernet(&[], 0x8847, &[0; 60]);
    let cases: [(&[u8], u16, u16, bool); 16] = [
        (&tcp, 34, 16, true),
        (&tcp, 34, 6, false),
        (&tcp, 35, 16, false),
        (&tcp, 0, 16, false),
        (&udp, 34, 6, true),
        (&udp, 34, 16, false),
        // A tunnel's inner checksum.
        (&udp, 42 + 34, 16, true),
        (&udp, 36, 6, false),
        (&udp, 42 + 60, 6, false),
        (&sctp, 34, 8, false),
        (&icmp6, 54, 2, true),
        (&icmp6, 54, 0, false),
        (&gre, 58, 16, true),
        (&gre, 20, 16, false),
        (&mpls, 38, 16, true),
        (&mpls, 13, 16, false),
    ];
    for (frame, start, offset, accepted) in cases {
        let result = check(&checksum(start, offset), frame);
        assert_eq!(
            result.is_ok(),
            accepted,
            "{start}+{offset} {:02x?}",
            &frame[12..24]
        );
        if let Ok(offload) = result {
            assert_eq!(*offload.header(), checksum(start, offset));
            assert!(offload.needs_checksum());
        }
    }
}

#[test]
fn the_checksum_field_ends_with_the_frame_at_the_latest() {
    let gre = ethernet(&[], 0x0800, &ipv4(47, 0, &[], &[0; 60]));
    let last = u16::try_from(gre.len() - 2 - 16).unwrap();
    assert!(check(&checksum(last, 16), &gre).is_ok());
    assert!(check(&checksum(last + 1, 16), &gre).is_err());
    assert!(check(&checksum(u16::MAX, u16::MAX), &gre).is_err());
}

#[test]
fn segmentation_requests_are_rewritten_from_the_parse() {
    let header = VnetHeader {
        flags: 0xff,
        hdr_len: 14,
        num_buffers: 9,
        ..tso4()
    };
    let offload = check(&header, &tcp4(3000)).unwrap();
    assert_eq!(
        *offload.header(),
        VnetHeader {
            hdr_len: 66,
            ..tso4()
        }
    );
    assert_eq!(
        (offload.segmentation(), offload.has_ecn()),
        (Some(GSO_TCPV4), false)
    );
    let layers = Layers {
        l3: 14,
        payload: 66,
        ..Layers::default()
    };
    assert_eq!((offload.l3_len(&layers, 3066), offload.packets(3066)), (1052, 3));
    assert_eq!(
        (Offload::NONE.l3_len(&layers, 3066), Offload::NONE.packets(3066)),
        (3052, 1)
    );

    let ecn = VnetHeader {
        gso_type: GSO_TCPV6 | GSO_ECN,
        gso_size: 1440,
        ..checksum(54, 16)
    };
    let offload = check(&ecn, &tcp6(1441)).unwrap();
    assert_eq!(
        (offload.segmentation(), offload.has_ecn()),
        (Some(GSO_TCPV6), true)
    );
    assert_eq!(offload.header().hdr_len, 74);
}

#[test]
fn a_payload_of_one_segment_needs_no_segmentation() {
    for payload in [1, 999, 1000] {
        let offload = check(&tso4(), &tcp4(payload)).unwrap();
        assert_eq!(*offload.header(), checksum(34, 16));
        assert_eq!(offload.segmentation(), None);
    }
}

#[test]
fn contradicting_segmentation_requests_are_refused() {
    let good = tcp4(3000);
    assert!(check(&tso4(), &good).is_ok());
    let bad = [
        VnetHeader { flags: 0, ..tso4() },
        VnetHeader {
            gso_size: 0,
            ..tso4()
        },
        VnetHeader {
            gso_size: 7,
            ..tso4()
        },
        VnetHeader {
            gso_type: GSO_TCPV6,
            ..tso4()
        },
        VnetHeader {
            gso_type: GSO_UDP,
            ..tso4()
        },
        VnetHeader {
            gso_type: GSO_UDP_L4,
            ..tso4()
        },
        VnetHeader {
            gso_type: 2,
            ..tso4()
        },
        VnetHeader {
            gso_type: GSO_UDP_L4 | GSO_ECN,
            ..tso4()
        },
        VnetHeader {
            csum_offset: 6,
            ..tso4()
        },
        VnetHeader {
            csum_start: 33,
            ..tso4()
        },
    ];
    for header in bad {
        assert_eq!(check(&header, &good), Err(BadOffload), "{header:?}");
    }
    // No payload, a fragment, another protocol, the wrong IP version.
    assert!(check(&tso4(), &tcp4(0)).is_err());
    let fragment = ethernet(&[], 0x0800, &ipv4(6, 0x2000, &[], &tcp(0x10, &[], &[7; 3000])));
    assert!(check(&checksum(34, 16), &fragment).is_ok());
    assert!(check(&tso4(), &fragment).is_err());
    let datagram = ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp(&[7; 3000])));
    assert!(
        check(
            &VnetHeader {
                csum_offset: 6,
                ..tso4()
            },
            &datagram
        )
        .is_err()
    );
    assert!(
        check(
            &VnetHeader {
                csum_start: 54,
                ..tso4()
            },
            &tcp6(3000)
        )
        .is_err()
    );
}

#[test]
fn headers_that_leave_the_head_cannot_be_repeated() {
    let deep = ethernet(
        &[(0x8100, 1), (0x8100, 2)],
        0x0800,
        &ipv4(6, 0, &[1; 40], &tcp(0, &[1; 40], &[7; 3000])),
    );
    let header = VnetHeader {
        csum_start: 82,
        ..tso4()
    };
    assert!(check(&header, &deep).is_err());
    // The checksum alone may still be completed by the receiver.
    assert!(
        check(
            &VnetHeader {
                gso_type: GSO_NONE,
                ..header
            },
            &deep
        )
        .is_ok()
    );
}

/// Segments get lengths of their own, so that a wrong one would show the parser another packet than receivers
/// get.
#[test]
fn the_length_that_ip_tells_of_is_that_of_the_frame() {
    let tso6 = VnetHeader {
        gso_type: GSO_TCPV6,
        ..VnetHeader {
            csum_start: 54,
            ..tso4()
        }
    };
    for (header, good, at) in [(tso4(), tcp4(3000), 16), (tso6, tcp6(3000), 18)] {
        assert!(check(&header, &good).is_ok());
        let len = u16::from_be_bytes([good[at], good[at + 1]]);
        for wrong in [0, 1, 40, 100, len - 1, len + 1] {
            let mut frame = good.clone();
            frame[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
            assert!(check(&header, &frame).is_err(), "{wrong} instead of {len}");
        }
        let mut padded = good;
        padded.push(0);
        assert!(check(&header, &padded).is_err());
    }
    // The largest packet of IP.
    let header = VnetHeader {
        gso_size: 65_482,
        ..tso4()
    };
    assert!(check(&header, &tcp4(65_535 - 52)).is_ok());
}

#[test]
fn a_pushed_tag_moves_the_request() {
    let offload = check(&tso4(), &tcp4(3000)).unwrap();
    assert_eq!(
        *offload.moved(4).header(),
        VnetHeader {
            csum_start: 38,
            hdr_len: 70,
            ..tso4()
        }
    );
    assert_eq!(offload.moved(4).moved(-4), offload);
    assert_eq!(Offload::NONE.moved(4), Offload::NONE);
}

fn headers() -> impl Strategy<Value = VnetHeader> {
    let small = || prop_oneof![4 => 0u16..150, 1 => any::<u16>()];
    (
        any::<u8>(),
        any::<u8>(),
        any::<u16>(),
        small(),
        small(),
        small(),
        any::<u16>(),
    )
        .prop_map(
            |(flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers)| VnetHeader {
                flags,
                gso_type,
                hdr_len,
                gso_size,
                csum_start,
                csum_offset,
                num_buffers,
            },
        )
}

/// A header made to fit its frame, then perhaps broken in one field.
fn nearly_right() -> impl Strategy<Value = (VnetHeader, Vec<u8>)> {
    (any::<bool>(), 0usize..300, 0usize..6, any::<u16>(), 0u16..200).prop_map(
        |(v6, payload, broken, noise, gso_size)| {
            let (frame, gso_type, start) = if v6 {
                (tcp6(payload), GSO_TCPV6, 54)
            } else {
                (tcp4(payload), GSO_TCPV4, 34)
            };
            let mut header = VnetHeader {
                gso_type,
                gso_size,
                ..checksum(start, 16)
            };
            match broken {
                0 => header.csum_start = noise,
                1 => header.csum_offset = noise % 256,
                2 => header.gso_size = noise,
                3 => header.gso_type = noise as u8,
                _ => {}
            }
            (header, frame)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// The offsets that `check` gets are those of a parse, but it must not depend on it.
    #[test]
    fn nothing_accepted_points_outside(
        (header, frame) in prop_oneof![
            (headers(), prop::collection::vec(any::<u8>(), 14..200)),
            (headers(), (0usize..200).prop_map(tcp4)),
            nearly_right(),
        ],
        invented in prop::option::of((any::<u16>(), any::<u16>(), any::<u16>())),
    ) {
        let mut layers = parse(head(&frame), frame.len(), PortId(1)).layers;
        if let Some((l3, l4, payload)) = invented {
            layers = Layers { l3, l4, payload, ..layers };
        }
        let Ok(offload) = Offload::check(&header, &layers, head(&frame), frame.len()) else {
            return Ok(());
        };
        let sane = *offload.header();
        prop_assert_eq!(sane.flags & !NEEDS_CSUM, 0);
        prop_assert_eq!(sane.num_buffers, 0);
        if offload.needs_checksum() {
            prop_assert!(usize::from(sane.csum_start) + usize::from(sane.csum_offset) + 2 <= frame.len());
        } else {
            prop_assert_eq!(offload, Offload::NONE);
        }
        if offload.segmentation().is_some() {
            prop_assert!(offload.needs_checksum());
            prop_assert!(usize::from(sane.hdr_len) <= head(&frame).len());
            let payload = frame.len() - usize::from(sane.hdr_len);
            prop_assert!(sane.gso_size >= wire::MIN_GSO_SIZE && payload > usize::from(sane.gso_size));
            prop_assert!(offload.l3_len(&layers, frame.len()) <= 65_535);
        } else {
            prop_assert_eq!((sane.gso_type, sane.gso_size, sane.hdr_len), (0, 0, 0));
        }
    }
}
