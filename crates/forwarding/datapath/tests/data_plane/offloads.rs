//! Segmentation, checksums, merged buffers and the MTU, compared with the naive way.

use crate::support::control::SWITCH;
use crate::support::frames::{Tcp, complete_checksum, mac, plain, segments, sum, tagged};
use crate::support::guest::{ALL, LEAST};
use crate::support::{Guest, Layout, Setup, Switch};
use control_protocol::data_plane::Request;
use flow::{
    Action, DropReason, Edit, Encapsulation, FieldId, Flow, FlowId, FlowKey, FlowMask, NshHeader, PortId,
    SetField, Userspace,
};
use proptest::prelude::*;
use vnic::features as f;
use wire::{GSO_ECN, GSO_TCPV4, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

const TSO: u64 = f::NET_GUEST_TSO4 | f::NET_GUEST_TSO6 | f::NET_GUEST_ECN;

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

/// A pair of which the receiver has these features and this receive layout.
fn pair(features: u64, buffers: Vec<u32>) -> (Switch, Guest, Guest) {
    let mut switch = Switch::with_ports(2);
    let a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        features,
        buffers,
        ..Setup::default()
    };
    let b = Guest::start(&mut switch, 2, setup);
    switch.join(1, 2);
    (switch, a, b)
}

fn plain_header(header: VnetHeader) {
    assert_eq!(
        VnetHeader {
            num_buffers: 0,
            ..header
        },
        VnetHeader::default()
    );
}

#[test]
fn a_large_frame_passes_whole() {
    let (mut switch, mut a, mut b) = pair(ALL, vec![4096]);
    for v6 in [false, true] {
        for payload in [1449, 9000, 65_535 - 72] {
            let tcp = Tcp::new(v6, payload);
            let frame = tcp.frame(1, 2, false);
            a.send_as(&tcp.header(1400), &frame, &Layout::One);
            let header = b.expect(&frame);
            let buffers = (12 + frame.len()).div_ceil(4096);
            assert_eq!(
                header,
                VnetHeader {
                    num_buffers: buffers as u16,
                    ..tcp.header(1400)
                }
            );
        }
    }
    assert_eq!(switch.counters(2).segments, 0);
    switch.finish();
}

fn segmented(features: u64, vlan: Option<u16>) {
    let (mut switch, mut a, mut b) = pair(features, vec![2048]);
    let mut expected = 0;
    for v6 in [false, true] {
        for (payload, mss) in [
            (1401, 1400),
            (2800, 1400),
            (5000, 1400),
            (65_535 - 72, 1388),
            (3000, 536),
            (200, 60),
        ] {
            let tcp = Tcp {
                vlan,
                flags: 0x19,
                ..Tcp::new(v6, payload)
            };
            let frame = tcp.frame(1, 2, false);
            a.send_as(&tcp.header(mss), &frame, &Layout::Apart);
            let naive = segments(&tcp, 1, 2, mss.into());
            expected += naive.len() as u64;
            for mut segment in naive {
                if features & f::NET_GUEST_CSUM != 0 {
                    // The receiver is told where to complete it.
                    let (header, mut received) = b.receive();
                    assert_eq!((header.flags, header.gso_type), (NEEDS_CSUM, 0));
                    assert_eq!(
                        (usize::from(header.csum_start), header.csum_offset),
                        (tcp.l4(), 16)
                    );
                    complete_checksum(&mut received, tcp.l4(), 16);
                    assert_eq!(received, segment);
                } else {
                    let header = b.expect(&segment);
                    plain_header(header);
                }
                assert!(segment.len() - tcp.l3() <= 1500, "the MTU is kept");
                segment.clear();
            }
        }
    }
    assert_eq!(switch.counters(2).segments, expected);
    assert_eq!(switch.counters(2).transmitted, 12);
    switch.finish();
}

#[test]
fn segments_for_a_receiver_without_any_offload() {
    segmented(LEAST, None);
}

#[test]
fn segments_for_a_receiver_with_checksums() {
    segmented(ALL & !TSO, None);
}

#[test]
fn segments_for_a_receiver_with_event_index_and_merging() {
    segmented(ALL & !TSO & !f::NET_GUEST_CSUM, None);
}

#[test]
fn segments_behind_a_vlan_tag() {
    segmented(LEAST, Some(0x2005));
}

#[test]
fn cwr_stays_with_the_first_segment() {
    let (switch, mut a, mut b) = pair(ALL & !f::NET_GUEST_ECN, vec![2048]);
    let tcp = Tcp {
        flags: 0x98,
        ..Tcp::new(false, 4000)
    };
    let header = VnetHeader {
        gso_type: wire::GSO_TCPV4 | wire::GSO_ECN,
        ..tcp.header(1000)
    };
    a.send_as(&header, &tcp.frame(1, 2, false), &Layout::One);
    let flags: Vec<_> = (0..4).map(|_| b.receive().1[tcp.l4() + 13]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x10, 0x18]);
    switch.finish();
}

/// A receiver's driver knows no segmentation behind labels, whatever it negotiated; behind a label that is
/// gone again it does.
#[test]
fn large_frames_are_cut_behind_labels_only() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let buffers = Setup {
        buffers: vec![66_000],
        receive_size: 16,
        ..Setup::default()
    };
    let mut labelled = Guest::start(&mut switch, 2, buffers.clone());
    let mut whole = Guest::start(&mut switch, 3, buffers);
    let push = |label: u32| {
        Action::Edit(Edit::PushMpls {
            lse: label << 12 | 0x140,
            eth_type: 0x8847,
        })
    };
    // Of the outer label, whose bits are the packet's first behind the type, not of the address that lay
    // there.
    let set = Action::Edit(Edit::Set(SetField {
        field: FieldId::MplsLse,
        value: 0x07,
        mask: 0xff,
    }));
    for (v6, eth_type) in [(false, [8, 0]), (true, [0x86, 0xdd])] {
        let pop = |eth_type| Action::Edit(Edit::PopMpls(u16::from_be_bytes(eth_type)));
        switch.flow(
            1,
            &[
                push(5),
                push(9),
                set.clone(),
                output(2),
                pop([0x88, 0x47]),
                pop(eth_type),
                output(3),
            ],
        );
        let tcp = Tcp::new(v6, 40_000);
        let frame = tcp.frame(1, 2, false);
        a.send_as(&tcp.header(1400), &frame, &Layout::Pieces(vec![12, 50, 1, 3000]));
        for mut segment in segments(&tcp, 1, 2, 1400) {
            segment.splice(12..14, [0x88, 0x47, 0, 0, 0x91, 7, 0, 0, 0x51, 0x40]);
            let (header, mut received) = labelled.receive();
            assert_eq!((header.flags, header.gso_type), (NEEDS_CSUM, 0));
            assert_eq!(usize::from(header.csum_start), tcp.l4() + 8);
            complete_checksum(&mut received, tcp.l4() + 8, 16);
            assert_eq!(received, segment);
        }
        assert_eq!(whole.expect(&frame).gso_size, 1400);
    }
    switch.finish();
}

/// There and back again through a network service header, in which a large frame is cut; without the Ethernet
/// header before it, a packet goes to no port, but to the controller.
#[test]
fn service_headers_are_pushed_and_popped() {
    let (mut switch, mut a, mut b) = pair(ALL, vec![66_000]);
    let nsh = [
        0x0f, 0xc6, 1, 0, 0, 0, 7, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    ];
    let encapsulate = |change| Action::Edit(Edit::Encapsulate(change));
    let push = encapsulate(Encapsulation::PushNsh(NshHeader::new(&nsh).unwrap()));
    let outer = encapsulate(Encapsulation::PushEth { dst: 0x0b, src: 0x0a });
    let to_controller = Action::Userspace(Userspace::default());
    switch.flow(1, &[push, output(2), to_controller, outer, output(2)]);
    let pop = [Encapsulation::PopEth, Encapsulation::PopNsh].map(encapsulate);
    switch.flow(2, &[&pop[..], &[Action::Recirc(3)]].concat());
    let mut key = FlowKey::default();
    key.set_in_port(2);
    key.set_recirc_id(3);
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_recirc_id(u32::MAX);
    mask.0.set_no_ethernet(1);
    switch.put(Flow::new(FlowId(9), SWITCH, key, mask, vec![output(1)]));

    let header = [&[0, 0, 0, 0, 0, 0x0b, 0, 0, 0, 0, 0, 0x0a, 0x89, 0x4f][..], &nsh].concat();
    let wrapped = |frame: &[u8]| {
        let mut wrapped = [&header[..], frame].concat();
        wrapped[17] = 3;
        wrapped
    };
    for v6 in [false, true] {
        let tcp = Tcp::new(v6, 5000);
        a.send_as(&tcp.header(1400), &tcp.frame(1, 2, false), &Layout::One);
        let upcall = switch.upcall();
        assert_eq!((upcall.key.no_ethernet(), upcall.key.nsh_np()), (1, 3));
        assert_eq!(
            upcall.packet.frame[..14],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 0x4f]
        );
        switch.discard(upcall.id, DropReason::Policy);
        for segment in segments(&tcp, 1, 2, 1400) {
            let (header, mut received) = b.receive();
            assert_eq!((header.flags, header.gso_type), (NEEDS_CSUM, 0));
            complete_checksum(&mut received, tcp.l4() + 38, 16);
            assert_eq!(received, wrapped(&segment));
            b.send(&received);
            a.expect_plain(&segment);
        }
    }
    // A packet that is none inside, and one that has another protocol inside, which has no Ethernet header.
    b.send(&plain(2, 1, 60, 1));
    let mut other = wrapped(&plain(1, 2, 60, 1));
    other[17] = 1;
    b.send(&other);
    let upcall = switch.upcall();
    assert_eq!(
        (
            upcall.key.recirc_id(),
            upcall.key.no_ethernet(),
            upcall.key.eth_type()
        ),
        (3, 1, 0x0800)
    );
    switch.execute(upcall, &[output(1)]);
    switch.until(1, "dropped", |counters| {
        counters.dropped.get(DropReason::NoHeader) == 2
    });
    switch.until(2, "dropped", |counters| {
        counters.dropped.get(DropReason::NoHeader) == 2
    });
    switch.finish();
}

#[test]
fn one_frame_for_receivers_with_and_without_offloads() {
    let mut switch = Switch::with_ports(4);
    let mut a = Guest::usual(&mut switch, 1);
    let mut whole = Guest::start(
        &mut switch,
        2,
        Setup {
            buffers: vec![66_000],
            receive_size: 16,
            ..Setup::default()
        },
    );
    let mut cut = Guest::start(&mut switch, 3, Setup::features(LEAST));
    let mut trunk = Guest::start(&mut switch, 4, Setup::features(LEAST));
    let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 9 });
    switch.flow(1, &[output(2), output(3), push.clone(), output(4)]);
    for v6 in [false, true] {
        let tcp = Tcp::new(v6, 40_000);
        let frame = tcp.frame(1, 2, false);
        a.send_as(&tcp.header(1400), &frame, &Layout::Pieces(vec![12, 50, 1, 3000]));
        let header = whole.expect(&frame);
        assert_eq!((header.gso_size, header.num_buffers), (1400, 1));
        for segment in segments(&tcp, 1, 2, 1400) {
            plain_header(cut.expect(&segment));
            plain_header(trunk.expect(&tagged(&segment, 9)));
        }
    }
    // A TSO frame whose header moves by the tag, for a receiver that takes it whole.
    switch.flow(1, &[push, output(2)]);
    let tcp = Tcp::new(false, 20_000);
    let with_tag = Tcp {
        vlan: Some(9),
        ..tcp.clone()
    };
    a.send_as(&tcp.header(1400), &tcp.frame(1, 2, false), &Layout::One);
    let header = whole.expect(&with_tag.frame(1, 2, false));
    assert_eq!(
        header,
        VnetHeader {
            num_buffers: 1,
            ..with_tag.header(1400)
        }
    );
    switch.finish();
}

#[test]
fn checksums_are_completed_for_who_cannot() {
    let (switch, mut a, mut b) = pair(LEAST, vec![2048]);
    for v6 in [false, true] {
        for payload in [0, 1, 2, 40, 41, 42, 43, 100, 999, 1400] {
            let tcp = Tcp::new(v6, payload);
            a.send_as(
                &tcp.header(0),
                &tcp.frame(1, 2, false),
                &Layout::Pieces(vec![13, 20]),
            );
            plain_header(b.expect(&tcp.frame(1, 2, true)));
        }
    }
    switch.finish();
    let (switch, mut a, mut b) = pair(ALL, vec![2048]);
    let tcp = Tcp::new(false, 500);
    a.send_as(&tcp.header(0), &tcp.frame(1, 2, false), &Layout::One);
    let header = b.expect(&tcp.frame(1, 2, false));
    assert_eq!(
        header,
        VnetHeader {
            num_buffers: 1,
            ..tcp.header(0)
        }
    );
    switch.finish();
}

#[test]
fn misses_keep_their_offloads() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut whole = Guest::start(
        &mut switch,
        2,
        Setup {
            buffers: vec![66_000],
            receive_size: 8,
            ..Setup::default()
        },
    );
    let mut cut = Guest::start(&mut switch, 3, Setup::features(LEAST));
    let tcp = Tcp::new(false, 30_000);
    a.send_as(&tcp.header(1400), &tcp.frame(1, 2, false), &Layout::One);
    let upcall = switch.upcall();
    switch.execute(upcall, &[output(2), output(3)]);
    let header = whole.expect(&tcp.frame(1, 2, false));
    assert_eq!(
        header,
        VnetHeader {
            num_buffers: 1,
            ..tcp.header(1400)
        }
    );
    for segment in segments(&tcp, 1, 2, 1400) {
        plain_header(cut.expect(&segment));
    }
    switch.finish();
}

#[test]
fn buffers_are_merged_and_counted() {
    for size in [64, 100, 257, 1526] {
        let (switch, mut a, mut b) = pair(ALL, vec![size]);
        for len in [14, 51, 52, 53, 60, 128, 129, 500, 1514] {
            let frame = plain(1, 2, len, 3);
            a.send(&frame);
            let header = b.expect(&frame);
            assert_eq!(
                usize::from(header.num_buffers),
                (12 + len).div_ceil(size as usize)
            );
        }
        switch.finish();
    }
    // Chains of several descriptors.
    let (switch, mut a, mut b) = pair(ALL, vec![7, 20, 100]);
    for len in [14, 115, 116, 128, 700] {
        let frame = plain(1, 2, len, 3);
        a.send(&frame);
        let header = b.expect(&frame);
        assert_eq!(usize::from(header.num_buffers), (12 + len).div_ceil(127));
    }
    switch.finish();
}

#[test]
fn buffers_that_cannot_hold_the_frame() {
    for features in [LEAST, ALL & !f::NET_MRG_RXBUF] {
        let (mut switch, mut a, mut b) = pair(features, vec![12, 500]);
        a.send(&plain(1, 2, 501, 0));
        switch.until_dropped(1, DropReason::BufferTooSmall, 1);
        a.send(&plain(1, 2, 500, 1));
        b.expect_plain(&plain(1, 2, 500, 1));
        a.all_sent();
        switch.finish();
    }
    // Not even all buffers together.
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        receive_size: 4,
        buffers: vec![100],
        ..Setup::default()
    };
    let mut b = Guest::start(&mut switch, 2, setup);
    switch.join(1, 2);
    a.send(&plain(1, 2, 389, 0));
    switch.until_dropped(1, DropReason::BufferTooSmall, 1);
    a.send(&plain(1, 2, 388, 1));
    assert_eq!(b.expect(&plain(1, 2, 388, 1)).num_buffers, 4);
    switch.finish();
}

#[test]
fn the_mtu_is_enforced() {
    let (mut switch, mut a, mut b) = pair(ALL, vec![66_000]);
    a.send(&plain(1, 2, 1514, 0));
    b.expect_plain(&plain(1, 2, 1514, 0));
    a.send(&plain(1, 2, 1515, 0));
    switch.until_dropped(1, DropReason::ExceedsMtu, 1);
    // A tag is no part of the packet.
    let with_tag = tagged(&plain(1, 2, 1514, 1), 4);
    a.send(&with_tag);
    b.expect_plain(&with_tag);
    // Segments count, not the frame.
    let tcp = Tcp::new(false, 5000);
    a.send_as(&tcp.header(1448), &tcp.frame(1, 2, false), &Layout::One);
    b.expect(&tcp.frame(1, 2, false));
    a.send_as(&tcp.header(1449), &tcp.frame(1, 2, false), &Layout::One);
    switch.until_dropped(1, DropReason::ExceedsMtu, 2);
    switch.done(Request::PortSet {
        port: PortId(2),
        mtu: 9000,
        miss_rate: 100_000,
    });
    a.send(&plain(1, 2, 9014, 2));
    b.expect_plain(&plain(1, 2, 9014, 2));
    switch.done(Request::PortSet {
        port: PortId(2),
        mtu: 100,
        miss_rate: 100_000,
    });
    a.send(&plain(1, 2, 115, 2));
    switch.until_dropped(1, DropReason::ExceedsMtu, 3);
    assert_eq!(switch.counters(2).egress_dropped.get(DropReason::ExceedsMtu), 3);
    a.all_sent();
    switch.finish();
}

#[test]
fn jumbo_frames_and_the_largest() {
    let (mut switch, mut a, mut b) = pair(ALL, vec![4096]);
    switch.done(Request::PortSet {
        port: PortId(2),
        mtu: 65_535,
        miss_rate: 100_000,
    });
    for len in [9014, 20_000, 65_549] {
        let frame = plain(1, 2, len, 3);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    switch.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Any TCP frame, cut or not, in any chain layout, with or without offloads: the receiver can put
    /// together what the sender had.
    #[test]
    fn any_frame_to_any_receiver(
        frames in prop::collection::vec(
            (any::<bool>(), 1usize..20_000, 100u16..1400, any::<bool>(), prop::collection::vec(1usize..200, 0..6), any::<bool>()),
            1..20,
        ),
        merge: bool, csum: bool, tso: bool, events: bool, size in 100u32..3000,
    ) {
        let bit = |wanted, bits| if wanted { bits } else { 0 };
        let features = LEAST
            | bit(merge, f::NET_MRG_RXBUF)
            | bit(csum, f::NET_GUEST_CSUM)
            | bit(tso && csum, TSO)
            | bit(events, f::RING_EVENT_IDX);
        let whole = tso && csum;
        let buffer = if merge { size } else { 22_000 };
        let (switch, mut a, mut b) = pair(features, vec![buffer]);
        for (v6, payload, mss, gso, pieces, indirect) in frames {
            let payload = if gso { payload } else { payload.min(1400) };
            let tcp = Tcp::new(v6, payload);
            let header = tcp.header(if gso { mss } else { 0 });
            let layout = if indirect { Layout::Indirect(pieces) } else { Layout::Pieces(pieces) };
            let frame = tcp.frame(1, 2, false);
            let needed = match &layout { Layout::Indirect(p) | Layout::Pieces(p) => p.iter().sum::<usize>(), _ => 0 };
            let layout = if needed < frame.len() + 12 { layout } else { Layout::One };
            a.send_as(&header, &frame, &layout);
            let cut = gso && payload > usize::from(mss) && !whole;
            let naive = if cut { segments(&tcp, 1, 2, mss.into()) } else { vec![tcp.frame(1, 2, true)] };
            for expected in naive {
                let (header, mut received) = b.receive();
                if header.flags & NEEDS_CSUM != 0 {
                    prop_assert!(csum);
                    complete_checksum(&mut received, header.csum_start.into(), header.csum_offset.into());
                }
                prop_assert!(received == expected, "{} bytes", expected.len());
            }
        }
        a.all_sent();
        switch.finish();
    }
}

/// The checksum of what a tunnel carries may lie far behind the headers that are copied, even across their
/// end.
#[test]
fn checksums_deep_in_a_frame_are_completed() {
    for (features, buffers) in [(LEAST, vec![2048]), (ALL & !f::NET_GUEST_CSUM & !TSO, vec![101])] {
        let (switch, mut a, mut b) = pair(features, buffers);
        // IP in UDP, of which the switch looks at the outer headers.
        let tcp = Tcp::new(false, 600);
        let mut frame = tcp.frame(1, 2, false);
        frame[23] = 17;
        frame[38..40].copy_from_slice(&632u16.to_be_bytes());
        for (start, offset) in [
            (42, 6),
            (60, 66),
            (60, 67),
            (61, 66),
            (127, 0),
            (127, 1),
            (128, 6),
            (129, 6),
            (300, 6),
            (301, 16),
            (664, 0),
        ] {
            let header = VnetHeader {
                flags: NEEDS_CSUM,
                csum_start: start,
                csum_offset: offset,
                ..VnetHeader::default()
            };
            let mut expected = frame.clone();
            complete_checksum(&mut expected, start.into(), offset.into());
            for layout in [Layout::One, Layout::Pieces(vec![12, 100, 33, 131])] {
                a.send_as(&header, &frame, &layout);
                plain_header(b.expect(&expected));
            }
        }
        switch.finish();
    }
}

/// A frame behind a VXLAN header, in UDP over IPv6: headers of 136 bytes and more.
fn in_tunnel(frame: &[u8]) -> Vec<u8> {
    let mut outer = [&mac(2)[..], &mac(1), &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    let len = u16::try_from(16 + frame.len()).unwrap().to_be_bytes();
    outer.extend(len);
    outer.extend([17, 64]);
    outer.extend([[0xfd; 16], [0xfe; 16]].concat());
    outer.extend([0xc0, 1, 0x12, 0xb5]);
    outer.extend(len);
    outer.extend([0, 0, 8, 0, 0, 0, 0, 0, 7, 0]);
    outer.extend(frame);
    outer
}

/// Kernels send such frames through packet sockets. No driver is asked to take them.
#[test]
fn large_frames_in_a_tunnel_are_cut_for_every_receiver() {
    for (features, buffers) in [(LEAST, vec![2048]), (ALL & !f::NET_GUEST_CSUM & !TSO, vec![101])] {
        let (switch, mut a, mut b) = pair(features, buffers);
        for v6 in [false, true] {
            let tcp = Tcp::new(v6, 7300);
            let frame = in_tunnel(&tcp.frame(1, 2, false));
            let before = (frame.len() - tcp.headers() - 7300) as u16;
            let inner = tcp.header(1000);
            let header = VnetHeader {
                csum_start: inner.csum_start + before,
                ..inner
            };
            for layout in [Layout::One, Layout::Pieces(vec![12, 100, 33, 131])] {
                a.send_as(&header, &frame, &layout);
                for segment in segments(&tcp, 1, 2, 1000) {
                    plain_header(b.expect(&in_tunnel(&segment)));
                }
            }
        }
        switch.finish();
    }
}

/// A datagram over IPv4 or IPv6, with an open checksum, and its header for segments of 1,400 bytes.
fn datagram(is_v6: bool, payload: &[u8]) -> (VnetHeader, Vec<u8>) {
    let mut outer = [mac(2), mac(1)].concat();
    let len = u16::try_from(8 + payload.len()).unwrap();
    let addresses = if is_v6 {
        outer.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        outer.extend(len.to_be_bytes());
        outer.extend([17, 64]);
        [[0xfd; 16], [0xfe; 16]].concat()
    } else {
        outer.extend([0x08, 0x00, 0x45, 0]);
        outer.extend((20 + len).to_be_bytes());
        outer.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        [[10; 4], [11; 4]].concat()
    };
    outer.extend(&addresses);
    if !is_v6 {
        let sum = sum(&outer[14..34], 0);
        let folded = (sum & 0xffff) as u16 + (sum >> 16) as u16;
        outer[24..26].copy_from_slice(&(!folded).to_be_bytes());
    }
    let csum_start = u16::try_from(outer.len()).unwrap();
    outer.extend([0, 9, 0, 53]);
    outer.extend(len.to_be_bytes());
    let pseudo = sum(&addresses, 17 + u32::from(len));
    outer.extend(((pseudo & 0xffff) as u16 + (pseudo >> 16) as u16).to_be_bytes());
    outer.extend(payload);
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_UDP_L4,
        gso_size: 1400,
        csum_start,
        csum_offset: 6,
        hdr_len: csum_start + 8,
        ..VnetHeader::default()
    };
    (header, outer)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect()
}

/// Receivers without USO, those with that of the other version of IP, and those that complete no checksums.
#[test]
fn large_datagrams_are_cut_for_who_takes_none() {
    for (features, buffers) in [
        (LEAST, vec![2048]),
        (ALL & !f::NET_GUEST_CSUM & !TSO, vec![101]),
        (ALL & !f::NET_GUEST_USO6, vec![2048]),
    ] {
        let (mut switch, mut a, mut b) = pair(features, buffers);
        let payload = text(5500);
        let (header, frame) = datagram(true, &payload);
        a.send_as(&header, &frame, &Layout::Apart);
        let completes = features & f::NET_GUEST_CSUM != 0;
        for part in payload.chunks(1400) {
            let (_, mut expected) = datagram(true, part);
            if !completes {
                complete_checksum(&mut expected, 54, 6);
            }
            let said = b.expect(&expected);
            assert_eq!(
                (said.gso_type, said.flags),
                (0, if completes { NEEDS_CSUM } else { 0 })
            );
        }
        assert_eq!(switch.counters(2).segments, 4);
        switch.finish();
    }
}

#[test]
fn large_datagrams_pass_whole_to_who_takes_them() {
    for is_v6 in [false, true] {
        let other = if is_v6 {
            f::NET_GUEST_USO4
        } else {
            f::NET_GUEST_USO6
        };
        let (mut switch, mut a, mut b) = pair(ALL & !TSO & !other, vec![4096]);
        for len in [1401, 9000, 65_535 - 48] {
            let (header, frame) = datagram(is_v6, &text(len));
            a.send_as(&header, &frame, &Layout::One);
            let num_buffers = ((12 + frame.len()).div_ceil(4096)) as u16;
            assert_eq!(
                b.expect(&frame),
                VnetHeader {
                    num_buffers,
                    ..header
                }
            );
        }
        assert_eq!(switch.counters(2).segments, 0);
        switch.finish();
    }
}

/// Whatever a sender says of a large datagram, a receiver with USO gets none that its driver would stumble
/// over.
#[test]
fn large_datagrams_that_lie_are_dropped() {
    let (mut switch, mut a, mut b) = pair(ALL, vec![4096]);
    let (good, frame) = datagram(false, &text(5000));
    let with = |change: fn(&mut VnetHeader)| {
        let mut header = good;
        change(&mut header);
        header
    };
    let lies = [
        with(|header| header.flags = 0),
        with(|header| header.gso_size = 0),
        with(|header| header.gso_size = 1),
        with(|header| header.csum_start = 14),
        with(|header| header.csum_start += 1),
        with(|header| header.csum_offset = 4),
        with(|header| header.csum_offset = 16),
        with(|header| header.gso_type = GSO_UDP_L4 | GSO_ECN),
        with(|header| header.gso_type = GSO_TCPV4),
        with(|header| header.gso_type = 6),
    ];
    for (lie, count) in lies.iter().zip(1..) {
        a.send_as(lie, &frame, &Layout::Apart);
        switch.until_dropped(1, DropReason::BadOffload, count);
    }
    // Fragments, lengths that lie, no payload, and what is no UDP.
    let mut count = lies.len() as u64;
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut changed = frame.clone();
        change(&mut changed);
        changed
    };
    for other in [
        changed(|frame| frame[20] = 0x20),
        changed(|frame| frame[16] = 0),
        changed(|frame| frame.truncate(42)),
        changed(|frame| frame.push(0)),
        changed(|frame| frame[23] = 6),
        changed(|frame| frame[23] = 132),
        changed(|frame| frame[12] = 0x86),
    ] {
        count += 1;
        a.send_as(&good, &other, &Layout::Apart);
        switch.until_dropped(1, DropReason::BadOffload, count);
    }
    // A header length that lies is corrected.
    a.send_as(&with(|header| header.hdr_len = 0xffff), &frame, &Layout::Apart);
    assert_eq!(b.expect(&frame).hdr_len, good.hdr_len);
    switch.finish();
}
