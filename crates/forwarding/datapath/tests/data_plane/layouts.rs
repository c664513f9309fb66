//! Chains of every legal shape, rings of every size, and notifications in both modes.

use crate::support::frames::plain;
use crate::support::guest::{ALL, INDIRECT, LEAST, NEXT};
use crate::support::memory::Memory;
use crate::support::ring::{Ring, WRITE};
use crate::support::{Guest, Layout, Setup, Switch, eventually};
use flow::DropReason;
use vnic::features as f;
use wire::VnetHeader;

#[test]
fn chains_of_every_shape() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let shapes = [
        Layout::One,
        Layout::Apart,
        Layout::Pieces(vec![1; 20]),
        Layout::Pieces(vec![5, 7]),
        Layout::Pieces(vec![12, 14, 1, 1, 1]),
        Layout::Pieces(vec![12, 127]),
        Layout::Pieces(vec![12, 128]),
        Layout::Pieces(vec![12, 129]),
        Layout::Pieces(vec![20; 63]),
        Layout::Indirect(vec![]),
        Layout::Indirect(vec![12]),
        Layout::Indirect(vec![3; 63]),
    ];
    for (seed, shape) in shapes.iter().enumerate() {
        for len in [1300, 1514] {
            let frame = plain(1, 2, len, seed as u8);
            a.send_as(&VnetHeader::default(), &frame, shape);
            b.expect_plain(&frame);
        }
    }
    a.all_sent();
    for shape in [Layout::Pieces(vec![3; 64]), Layout::Indirect(vec![3; 64])] {
        a.send_as(&VnetHeader::default(), &plain(1, 2, 1000, 0), &shape);
    }
    switch.until_dropped(1, DropReason::ChainTooLong, 2);
    a.all_sent();
    switch.finish();
}

/// Buffers of one piece are found ahead, others are not, and some frames need two.
#[test]
fn receive_buffers_of_several_shapes_in_one_ring() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        buffers: vec![400, 400],
        ..Setup::default()
    };
    let mut b = Guest::start(&mut switch, 2, setup);
    b.repost = false;
    let mut posted = 128;
    let make_some_whole = |b: &Guest, chains: std::ops::Range<usize>| {
        for chain in chains.filter(|chain| chain % 7 > 1) {
            let head = 2 * chain as u16;
            b.receive.descriptor(head, b.chain_address(chain), 800, WRITE, 0);
        }
    };
    make_some_whole(&b, 0..posted);
    switch.join(1, 2);
    for round in 0..40_usize {
        let lens = (0..round % 9).map(|number| 60 + (round * 499 + number * 331) % 1450);
        let frames: Vec<_> = lens.map(|len| plain(1, 2, len, (round + len) as u8)).collect();
        frames.iter().for_each(|frame| a.send(frame));
        frames.iter().for_each(|frame| b.expect_plain(frame));
        // What was used goes back in the order in which it was.
        let used = usize::from(b.receive.seen);
        let chains: Vec<_> = (posted..used + 128).map(|number| number % 128).collect();
        for chain in chains {
            make_some_whole(&b, chain..chain + 1);
            b.receive.offer(2 * chain as u16);
        }
        b.receive.publish_and_kick();
        posted = used + 128;
    }
    a.all_sent();
    switch.finish();
}

#[test]
fn a_legacy_driver_has_a_shorter_header() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::start(&mut switch, 1, Setup::features(f::VHOST_USER_PROTOCOL));
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for len in [14, 60, 128, 129, 1514] {
        a.send(&plain(1, 2, len, 1));
        b.expect_plain(&plain(1, 2, len, 1));
        b.send(&plain(2, 1, len, 2));
        a.expect_plain(&plain(2, 1, len, 2));
    }
    switch.finish();
}

#[test]
fn a_front_end_without_protocol_features() {
    // Rings are enabled from the start, and nothing is acknowledged.
    let mut switch = Switch::with_ports(2);
    let mut b = Guest::usual(&mut switch, 2);
    let stream = switch.attach(1);
    let mut a = Guest::new(1, stream, Setup::features(ALL & !f::VHOST_USER_PROTOCOL));
    a.bring_up();
    switch.until_state(1, |state| {
        *state == control_protocol::data_plane::PortState::Running
    });
    switch.join(1, 2);
    for len in [60, 1000] {
        a.send(&plain(1, 2, len, 1));
        b.expect_plain(&plain(1, 2, len, 1));
        b.send(&plain(2, 1, len, 1));
        a.expect_plain(&plain(2, 1, len, 1));
    }
    switch.finish();
}

fn ring_size(size: u16, features: u64) {
    let mut switch = Switch::with_ports(2);
    let setup = Setup {
        receive_size: size,
        transmit_size: size,
        features,
        ..Setup::default()
    };
    let mut a = Guest::start(&mut switch, 1, setup.clone());
    let mut b = Guest::start(&mut switch, 2, setup);
    switch.join(1, 2);
    let rounds = (u32::from(size) * 3).max(40);
    for round in 0..rounds {
        let frame = plain(1, 2, 60 + (round % 1400) as usize, round as u8);
        a.send_as(&VnetHeader::default(), &frame, &Layout::One);
        b.expect_plain(&frame);
        if round % 3 == 0 {
            b.send_as(&VnetHeader::default(), &frame, &Layout::One);
            a.expect_plain(&frame);
        }
    }
    a.all_sent();
    switch.finish();
}

#[test]
fn rings_of_every_size() {
    for size in [1, 2, 4, 8, 32, 64, 256, 1024] {
        ring_size(size, ALL);
        ring_size(size, LEAST);
    }
}

#[test]
fn ring_indices_wrap() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    // A driver that went on from a migrated state: all indices near their end.
    for guest in [&mut a, &mut b] {
        guest.session.stop(0).unwrap();
        guest.session.stop(1).unwrap();
        guest.forget();
        for ring in [&mut guest.receive, &mut guest.transmit] {
            (ring.next, ring.seen) = (0xfff0, 0xfff0);
            guest.memory.store16(ring.available + 2, 0xfff0);
            guest.memory.store16(ring.used + 2, 0xfff0);
        }
        guest.post(0..200);
        guest.start_rings();
    }
    for seed in 0..100u8 {
        let frame = plain(1, 2, 60 + usize::from(seed) * 10, seed);
        a.send(&frame);
        b.expect_plain(&frame);
        b.send(&frame);
        a.expect_plain(&frame);
    }
    switch.finish();
}

#[test]
fn a_burst_needs_few_notifications() {
    for features in [ALL, LEAST] {
        let mut switch = Switch::with_ports(2);
        let mut a = Guest::start(&mut switch, 1, Setup::features(features));
        let mut b = Guest::start(&mut switch, 2, Setup::features(features));
        switch.join(1, 2);
        for round in 0..10 {
            for number in 0..30 {
                a.offer_packet(&VnetHeader::default(), &plain(1, 2, 400, number), &Layout::One);
            }
            a.transmit.publish_and_kick();
            for number in 0..30 {
                b.expect_plain(&plain(1, 2, 400, number));
            }
            a.all_sent();
            assert!(a.transmit.kicks <= round + 1);
        }
        let (sender, receiver) = (switch.counters(1), switch.counters(2));
        assert!(sender.calls <= 20, "the sender wanted none: {sender:?}");
        assert!(receiver.calls + receiver.calls_suppressed <= 300, "{receiver:?}");
        switch.finish();
    }
}

#[test]
fn completions_call_who_asks() {
    for features in [ALL, LEAST] {
        let mut switch = Switch::with_ports(2);
        let mut a = Guest::start(&mut switch, 1, Setup::features(features));
        let mut b = Guest::start(&mut switch, 2, Setup::features(features));
        switch.join(1, 2);
        for seed in 0..30 {
            a.send(&plain(1, 2, 500, seed));
            b.expect_plain(&plain(1, 2, 500, seed));
            assert!(a.transmit.wait_for_call(crate::support::TIMEOUT), "no completion");
            a.all_sent();
        }
        switch.finish();
    }
}

#[test]
fn chains_that_share_memory_with_the_receiver() {
    // A guest may send itself what lies in its own receive buffer.
    let mut switch = Switch::with_ports(1);
    let mut a = Guest::usual(&mut switch, 1);
    switch.flow(1, &[flow::Action::Output(flow::PortId(1))]);
    for seed in 0..20 {
        a.send(&plain(1, 1, 700, seed));
        a.expect_plain(&plain(1, 1, 700, seed));
    }
    a.all_sent();
    // Overlapping on purpose: only that nothing breaks, the bytes are its own affair.
    let first = a.memory.read(a.receive.descriptors, 8);
    let buffer = u64::from_le_bytes(first.try_into().unwrap());
    for _ in 0..20 {
        a.transmit.descriptor(0, buffer + 8, 1200, 0, 0);
        a.send_raw(0);
        a.expect_back(0);
    }
    eventually("all are accounted for", || switch.counters(1).in_flight() == 0);
    assert_eq!(switch.counters(1).received, 40);
    switch.finish();
}

/// Offers chains with these heads, each with an indirect table of a header and a buffer of `len` bytes. They
/// lie at `data`, with the tables behind them.
fn offer_indirect(
    ring: &mut Ring,
    memory: &Memory,
    data: usize,
    heads: &[u16],
    len: impl Fn(usize) -> u32,
    flags: u16,
) {
    for (number, &head) in heads.iter().enumerate() {
        let (buffer, table) = (data + 2048 * number, data + 2048 * heads.len() + 32 * number);
        let (header, rest) = (Memory::guest(buffer), Memory::guest(buffer + 12));
        let entries = [
            Ring::descriptor_bytes(header, 12, flags | NEXT, 1),
            Ring::descriptor_bytes(rest, len(number), flags, 0),
        ];
        memory.write(table, &entries.concat());
        ring.descriptor(head, Memory::guest(table), 32, INDIRECT, 0);
        ring.offer(head);
    }
    ring.publish_and_kick();
}

/// A driver may use its descriptors in any order, and any one again as soon as it is back.
#[test]
fn heads_in_any_order_with_indirect_tables() {
    const CHAINS: u16 = 16;
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let deaf = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut b = Guest::start(&mut switch, 2, deaf);
    switch.join(1, 2);
    for round in 0..40u16 {
        // Odd factors permute the ring's 256 descriptors.
        let heads = |factor: u16| -> Vec<u16> {
            (0..CHAINS)
                .map(|number| (number * factor + 7 * round) % 256)
                .collect()
        };
        let (sent, posted) = (heads(2 * round + 1), heads(255 - 2 * round));
        let data = b.data;
        offer_indirect(&mut b.receive, &b.memory, data, &posted, |_| 1600, WRITE);
        let len = |number| 200 + number;
        let frames: Vec<_> = (0..usize::from(CHAINS))
            .map(|number| plain(1, 2, len(number), round as u8))
            .collect();
        for (number, frame) in frames.iter().enumerate() {
            a.memory
                .write(a.data + 2048 * number, &[&[0; 12][..], frame].concat());
        }
        let data = a.data;
        let len = |number| len(number) as u32;
        offer_indirect(&mut a.transmit, &a.memory, data, &sent, len, 0);
        for &head in &sent {
            a.expect_back(head);
        }
        for (number, frame) in frames.iter().enumerate() {
            eventually("a frame", || b.receive.used_index() != b.receive.seen);
            let (head, len) = b.receive.take_used().unwrap();
            assert_eq!((head, len), (posted[number], frame.len() as u32 + 12));
            assert_eq!(b.memory.read(b.data + 2048 * number + 12, frame.len()), *frame);
        }
    }
    switch.finish();
}
