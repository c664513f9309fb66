//! Segments, put together with their payload, against a segmentation of whole packets in vectors.

mod common;

use common::tcp_recipe::*;
use common::*;
use flow::PortId;
use proptest::prelude::*;
use wire::{
    CannotSegment, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Layers, NEEDS_CSUM, Offload, Segment, Snapshot,
    Sum, VnetHeader, finish_checksum, parse, segments,
};

/// A request for TSO of a frame that deserves it.
fn offload(frame: &[u8], gso_size: u16) -> (Layers, Offload) {
    let layers = parse(head(frame), frame.len(), PortId(1)).layers;
    let v4 = layers.l3_kind == wire::L3::Ipv4;
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: if v4 { GSO_TCPV4 | GSO_ECN } else { GSO_TCPV6 },
        gso_size,
        csum_start: layers.l4,
        csum_offset: 16,
        ..VnetHeader::default()
    };
    (
        layers,
        Offload::check(&header, &layers, head(frame), frame.len()).expect("the request fits"),
    )
}

fn payload<'a>(segment: &Segment, frame: &'a [u8]) -> &'a [u8] {
    &frame[segment.payload_offset..segment.payload_offset + segment.payload_len]
}

/// What a receiver without offloads gets.
fn finished(frame: &[u8], layers: &Layers, offload: &Offload) -> Vec<Vec<u8>> {
    let cut = segments(head(frame), layers, offload, frame.len()).expect("can be cut");
    cut.map(|mut segment| {
        let payload = payload(&segment, frame);
        segment.finish(&Sum::of(payload));
        [segment.header(), payload].concat()
    })
    .collect()
}

/// Passing over segments gives what making them all gives.
#[test]
fn segments_can_be_passed_over() {
    let recipe = plain(false, CWR | ACK | PSH | FIN, 999);
    let frame = recipe.whole();
    let (layers, offload) = offload(&frame, 10);
    let all = || segments(head(&frame), &layers, &offload, frame.len()).unwrap();
    let made: Vec<_> = all().collect();
    assert_eq!(made.len(), 100);
    for done in [0, 1, 2, 50, 99, 100, 101, 1000, usize::MAX] {
        let rest: Vec<_> = all().skip(done).collect();
        assert_eq!(rest.len(), made.len().saturating_sub(done));
        for (one, other) in rest.iter().zip(made.iter().skip(done)) {
            assert_eq!(one.header(), other.header());
            let place = |segment: &Segment| (segment.payload_offset, segment.payload_len, segment.last);
            assert_eq!(place(one), place(other));
        }
    }
}

#[test]
fn golden_segments() {
    let recipe = plain(false, CWR | ACK | PSH | FIN, 25);
    let frame = recipe.whole();
    let (layers, offload) = offload(&frame, 10);
    let cut: Vec<_> = segments(head(&frame), &layers, &offload, frame.len())
        .unwrap()
        .collect();
    let ranges: Vec<_> = cut
        .iter()
        .map(|s| (s.payload_offset, s.payload_len, s.last))
        .collect();
    assert_eq!(ranges, [(54, 10, false), (64, 10, false), (74, 5, true)]);
    let field = |at: usize, len: usize| {
        cut.iter()
            .map(|s| s.header()[at..at + len].to_vec())
            .collect::<Vec<_>>()
    };
    assert_eq!(field(16, 2), [[0, 50], [0, 50], [0, 45]], "total length");
    assert_eq!(
        field(18, 2),
        [[0xff, 0xfe], [0xff, 0xff], [0, 0]],
        "identification"
    );
    assert_eq!(field(41, 1), [[0], [10], [20]], "sequence number");
    assert_eq!(field(47, 1), [[0x90], [0x10], [0x19]], "flags");
    // 10.0.0.1 + 10.0.0.2 + 6 + length, not complemented.
    assert_eq!(
        field(50, 2),
        [[0x14, 0x27], [0x14, 0x27], [0x14, 0x22]],
        "pseudo header"
    );
    let request = cut[0].vnet_header();
    assert_eq!(
        (request.flags, request.csum_start, request.csum_offset),
        (NEEDS_CSUM, 34, 16)
    );
    assert_eq!(
        (request.gso_type, request.gso_size, cut[2].frame_len()),
        (0, 0, 59)
    );
}

#[test]
fn sequence_numbers_wrap() {
    let recipe = plain(true, ACK, 600);
    let frame = recipe.whole();
    let (layers, offload) = offload(&frame, 200);
    assert_eq!(finished(&frame, &layers, &offload), recipe.naive_segments(200));
    let last = &finished(&frame, &layers, &offload)[2];
    assert_eq!(last[58..62], [0, 0, 0, 0x90]);
}

#[test]
fn the_largest_frame_is_cut_whole() {
    let mut recipe = plain(false, ACK | PSH, 65_535 - 40);
    recipe.tags = vec![(0x8100, 1)];
    let frame = recipe.whole();
    let (layers, offload) = offload(&frame, 1448);
    assert_eq!(finished(&frame, &layers, &offload), recipe.naive_segments(1448));
    assert_eq!(offload.packets(frame.len()), 46);
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let frame = plain(false, ACK, 100).whole();
    let (layers, good) = offload(&frame, 50);
    let cut = |layers: Layers, offload: &Offload, head: &[u8]| {
        segments(head, &layers, offload, frame.len()).map(|cut| cut.len())
    };
    assert_eq!(cut(layers, &good, head(&frame)), Ok(2));
    assert_eq!(cut(layers, &Offload::NONE, head(&frame)), Err(CannotSegment));
    assert_eq!(cut(layers, &good, &frame[..53]), Err(CannotSegment));
    assert_eq!(
        cut(
            Layers {
                routed: true,
                ..layers
            },
            &good,
            head(&frame)
        ),
        Err(CannotSegment)
    );
    assert_eq!(
        cut(Layers { l4: 30, ..layers }, &good, head(&frame)),
        Err(CannotSegment)
    );
    assert_eq!(
        cut(
            Layers {
                payload: 50,
                ..layers
            },
            &good,
            head(&frame)
        ),
        Err(CannotSegment)
    );
    assert_eq!(
        cut(Layers { payload: 0, ..layers }, &good, head(&frame)),
        Err(CannotSegment)
    );
}

/// A datagram of that protocol number, around `payload`, with its checksum if it has one.
fn datagram(v6: bool, number: u16, to: u16, has_checksum: bool, payload: &[u8]) -> Vec<u8> {
    let mut datagram = udp(payload);
    datagram[2..4].copy_from_slice(&to.to_be_bytes());
    let addresses = match v6 {
        true => ipv6(17, &[], &[])[8..40].to_vec(),
        false => ipv4(17, 0, &[], &[])[12..20].to_vec(),
    };
    if has_checksum {
        let len = (datagram.len() as u16).to_be_bytes();
        let checksum = !ones_complement_sum(&[&addresses[..], &[0, 17], &len, &datagram].concat());
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    if v6 {
        return ethernet(&[], 0x86dd, &ipv6(17, &[], &datagram));
    }
    let mut packet = ipv4(17, 0, &[], &datagram);
    packet[4..6].copy_from_slice(&0xfffe_u16.wrapping_add(number).to_be_bytes());
    packet[10..12].fill(0);
    let checksum = !ones_complement_sum(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    ethernet(&[], 0x0800, &packet)
}

/// What a virtual network's kernel sends: the frame behind a VXLAN header (RFC 7348), in UDP.
fn vxlan(v6: bool, number: u16, has_checksum: bool, frame: &[u8]) -> Vec<u8> {
    datagram(
        v6,
        number,
        4789,
        has_checksum,
        &[&[8, 0, 0, 0, 0, 0, 7, 0], frame].concat(),
    )
}

/// Checks a request against as much of the frame as segments may have for headers.
fn checked(header: &VnetHeader, frame: &[u8]) -> Result<(Layers, Offload), wire::BadOffload> {
    let head = &frame[..frame.len().min(Snapshot::MAX_LEN)];
    let layers = parse(head, frame.len(), PortId(1)).layers;
    Ok((layers, Offload::check(header, &layers, head, frame.len())?))
}

fn finished_deep(frame: &[u8], layers: &Layers, offload: &Offload) -> Vec<Vec<u8>> {
    let head = &frame[..frame.len().min(Snapshot::MAX_LEN)];
    let cut = segments(head, layers, offload, frame.len()).expect("can be cut");
    cut.map(|mut segment| {
        segment.finish(&Sum::of(payload(&segment, frame)));
        [segment.header(), payload(&segment, frame)].concat()
    })
    .collect()
}

#[test]
fn what_only_resembles_tcp_in_a_tunnel_is_refused() {
    let inner = plain(false, ACK, 3000).whole();
    let frame = vxlan(false, 0, false, &inner);
    let start = (frame.len() - inner.len() + 34) as u16;
    let good = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1000,
        csum_start: start,
        csum_offset: 16,
        ..VnetHeader::default()
    };
    assert!(checked(&good, &frame).is_ok());
    // Elsewhere, another checksum, another version, and UDP where there is TCP.
    for header in [
        VnetHeader {
            csum_start: start + 2,
            ..good
        },
        VnetHeader {
            csum_start: start - 20,
            ..good
        },
        VnetHeader {
            csum_offset: 6,
            ..good
        },
        VnetHeader {
            gso_type: GSO_TCPV6,
            ..good
        },
        VnetHeader {
            gso_type: GSO_UDP_L4,
            ..good
        },
    ] {
        assert!(checked(&header, &frame).is_err(), "{header:?}");
    }
    // The inner packet is a fragment, no TCP, or ends elsewhere; the outer packet ends elsewhere.
    let ip = usize::from(start) - 20;
    for (at, value) in [
        (ip, 0x46),
        (ip + 3, 0),
        (ip + 6, 0x20),
        (ip + 9, 17),
        (17, 0),
        (ip + 32, 0x40),
    ] {
        let mut other = frame.clone();
        other[at] = value;
        assert!(checked(&good, &other).is_err(), "byte {at}");
    }
    // A tunnel in a tunnel: lengths in between would not be those of segments.
    let twice = vxlan(false, 0, false, &frame);
    let header = VnetHeader {
        csum_start: start + 50,
        ..good
    };
    assert!(checked(&header, &twice).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Twin: each segment built from nothing and wrapped by itself.
    #[test]
    fn tcp_in_a_tunnel_is_cut_with_all_its_headers(
        mut recipe in recipes(), v6 in any::<bool>(), has_checksum in any::<bool>(), gso_size in 8u16..2000,
    ) {
        let gso_size = gso_size.min(u16::try_from(recipe.payload.len()).unwrap() - 1);
        prop_assume!(gso_size >= 8);
        if recipe.v6 {
            recipe.ip_options = 0;
        }
        let inner = recipe.whole();
        let frame = vxlan(v6, 0, has_checksum, &inner);
        let l4 = parse(head(&inner), inner.len(), PortId(1)).layers.l4;
        let header = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: if recipe.v6 { GSO_TCPV6 } else { GSO_TCPV4 },
            gso_size,
            csum_start: (frame.len() - inner.len()) as u16 + l4,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        let deepest = usize::from(header.csum_start) + 20 + recipe.tcp_options;
        let Ok((layers, offload)) = checked(&header, &frame) else {
            prop_assert!(deepest > Snapshot::MAX_LEN);
            return Ok(());
        };
        let expected: Vec<_> = recipe
            .naive_segments(gso_size.into())
            .iter()
            .enumerate()
            .map(|(number, segment)| vxlan(v6, number as u16, has_checksum, segment))
            .collect();
        prop_assert_eq!(offload.packets(frame.len()), expected.len());
        let longest = expected.iter().map(Vec::len).max().unwrap();
        prop_assert_eq!(longest - usize::from(layers.l3), offload.l3_len(&layers, frame.len()));
        prop_assert_eq!(finished_deep(&frame, &layers, &offload), expected);
    }

    #[test]
    fn udp_is_cut_into_datagrams(
        v6 in any::<bool>(), payload in prop::collection::vec(any::<u8>(), 20..5000), gso_size in 8u16..2000,
    ) {
        let gso_size = gso_size.min(payload.len() as u16 - 1);
        let frame = datagram(v6, 0, 53, true, &payload);
        let header = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            gso_size,
            csum_start: if v6 { 54 } else { 34 },
            csum_offset: 6,
            ..VnetHeader::default()
        };
        let (layers, offload) = checked(&header, &frame).expect("the request fits");
        let chunks = payload.chunks(gso_size.into()).enumerate();
        let expected: Vec<_> = chunks
            .map(|(number, chunk)| datagram(v6, number as u16, 53, true, chunk))
            .collect();
        prop_assert_eq!(finished_deep(&frame, &layers, &offload), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn segments_are_those_of_the_twin(recipe in recipes(), gso_size in 8u16..2000) {
        let gso_size = gso_size.min(u16::try_from(recipe.payload.len()).unwrap() - 1);
        prop_assume!(gso_size >= 8);
        let mut frame = recipe.whole();
        let (layers, offload) = offload(&frame, gso_size);
        // What the sender leaves in the fields to be computed is of no importance.
        let l4 = usize::from(layers.l4);
        frame[l4 + 16..l4 + 18].fill(0xaa);
        let made = finished(&frame, &layers, &offload);
        prop_assert_eq!(made.len(), offload.packets(frame.len()));
        let longest = made.iter().map(Vec::len).max().unwrap();
        prop_assert_eq!(longest - usize::from(layers.l3), offload.l3_len(&layers, frame.len()));
        prop_assert_eq!(made, recipe.naive_segments(usize::from(gso_size)));
    }

    /// A tag pushed on the snapshot, with layers and request moved, gives the segments of a tagged frame.
    #[test]
    fn a_tag_can_be_pushed_before(recipe in recipes(), gso_size in 8u16..500) {
        let gso_size = gso_size.min(u16::try_from(recipe.payload.len()).unwrap() - 1);
        prop_assume!(gso_size >= 8);
        let frame = recipe.whole();
        let (layers, offload) = offload(&frame, gso_size);
        let mut snapshot = Snapshot::new();
        snapshot.fill(head(&frame).len()).copy_from_slice(head(&frame));
        prop_assert!(snapshot.push_vlan(0x8100, 0x1000 | 77));
        let tagged = [snapshot.bytes(), &frame[head(&frame).len()..]].concat();
        let cut = segments(snapshot.bytes(), &layers.moved(4), &offload.moved(4), tagged.len()).unwrap();
        let made: Vec<Vec<u8>> = cut.map(|mut segment| {
            let payload = payload(&segment, &tagged);
            segment.finish(&Sum::of(payload));
            [segment.header(), payload].concat()
        }).collect();
        let mut twin = recipe.clone();
        twin.tags.insert(0, (0x8100, 77));
        prop_assert_eq!(made, twin.naive_segments(usize::from(gso_size)));
    }

    /// A frame that is not cut gets its checksum too, from a payload that was summed elsewhere.
    #[test]
    fn a_whole_frame_gets_its_checksum(recipe in recipes()) {
        let complete = recipe.whole();
        let layers = parse(head(&complete), complete.len(), PortId(1)).layers;
        let l4 = usize::from(layers.l4);
        let mut frame = complete.clone();
        let addresses = if recipe.v6 { usize::from(layers.l3) + 8..usize::from(layers.l3) + 40 }
            else { usize::from(layers.l3) + 12..usize::from(layers.l3) + 20 };
        let partial = wire::pseudo(&complete[addresses], 6, complete.len() - l4).fold();
        frame[l4 + 16..l4 + 18].copy_from_slice(&partial.to_be_bytes());
        let (start, rest) = frame.split_at_mut(head(&complete).len());
        prop_assert!(finish_checksum(start, l4, 16, &Sum::of(rest)));
        prop_assert_eq!(frame, complete);
    }
}
