//! Packets, flows, misses, captures and traces.

use crate::support::control::SWITCH;
use crate::support::control::{miss, mode};
use crate::support::frames::{Tcp, plain, sum, tagged};
use crate::support::{Guest, Layout, Setup, Switch};
use control_protocol::Channel;
use control_protocol::data_plane::{
    Answer, CaptureDirection, CapturedPacket, Packet, PortState, Request, TraceStep, UpcallCause,
};
use flow::{Action, DropReason, Edit, FieldId, FlowId, PortCounters, PortId, SetField, Stage, Userspace};
use placement::Mode;
use rustix::fd::AsFd;
use std::time::Duration;

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

#[test]
fn a_miss_is_decided_once() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let frame = plain(1, 2, 300, 1);
    a.send(&frame);
    let upcall = switch.upcall();
    assert_eq!((upcall.id.port, upcall.switch), (PortId(1), SWITCH));
    assert_eq!(upcall.cause, miss(Stage::Forward));
    assert_eq!(upcall.packet.frame, frame);
    assert_eq!((upcall.key.in_port(), upcall.key.eth_type()), (1, 0x88b5));
    let flow = Switch::exact_flow(7, upcall.key, &[output(2)]);
    switch.put(flow.clone());
    switch.execute(upcall, &[output(2)]);
    b.expect_plain(&frame);

    for seed in 0..100 {
        let frame = plain(1, 2, 60 + usize::from(seed) * 7, seed);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    assert_eq!(switch.upcall_within(Duration::from_millis(20)), None);
    let flows = switch.flows();
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].0, flow);
    assert_eq!(flows[0].1.packets, 100);
    assert_eq!(
        flows[0].1.bytes,
        (0..100u64).map(|seed| 60 + seed * 7).sum::<u64>()
    );
    a.all_sent();
    let counters = switch.counters(1);
    assert_eq!(
        (counters.received, counters.upcalls, counters.injected),
        (101, 1, 1)
    );
    assert_eq!((counters.delivered, counters.dropped.total()), (101, 0));
    let counters = switch.counters(2);
    assert_eq!(counters.transmitted, 101);
    switch.finish();
}

#[test]
fn every_size_arrives_byte_by_byte() {
    // It counts copies.
    if matches!(mode(), Mode::DriverDomain) {
        return;
    }
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let sizes = [
        14, 15, 59, 60, 64, 115, 116, 117, 127, 128, 129, 130, 131, 132, 133, 136, 140, 256, 1000, 1513, 1514,
    ];
    for (seed, len) in sizes.into_iter().enumerate() {
        let frame = plain(1, 2, len, seed as u8);
        a.send(&frame);
        b.expect_plain(&frame);
        let back = plain(2, 1, len, !(seed as u8));
        b.send(&back);
        a.expect_plain(&back);
    }
    let bytes = sizes.iter().map(|&len| len as u64).sum::<u64>();
    let counters = switch.counters(1);
    assert_eq!(
        (counters.received_bytes, counters.transmitted_bytes),
        (bytes, bytes)
    );
    // Payload once; what is decided on, the first 128 bytes, is read before it is written. (The first packet
    // of each direction had a flow, so none went to the control process.)
    let heads = sizes.iter().map(|&len| len.min(128) as u64).sum::<u64>();
    assert_eq!(counters.copied_bytes, heads + bytes);
    switch.finish();
}

#[test]
fn order_is_kept_within_a_flow() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for round in 0u8..40 {
        let lens = (0..30u8).map(|number| 60 + usize::from(number) * 40);
        let frames: Vec<_> = lens.map(|len| plain(1, 2, len, round)).collect();
        for frame in &frames {
            a.send(frame);
        }
        for frame in &frames {
            b.expect_plain(frame);
        }
    }
    switch.finish();
}

#[test]
fn broadcast_reaches_everybody() {
    let mut switch = Switch::with_ports(6);
    let mut a = Guest::usual(&mut switch, 1);
    let mut others: Vec<_> = (2..=6).map(|port| Guest::usual(&mut switch, port)).collect();
    switch.flow(1, &[output(2), output(3), output(4), output(5), output(6)]);
    for round in 0..50u8 {
        let frame = plain(1, 255, 64 + usize::from(round) * 29, round);
        a.send(&frame);
        for other in &mut others {
            other.expect_plain(&frame);
        }
    }
    a.all_sent();
    let counters = switch.counters(1);
    assert_eq!(
        (counters.received, counters.copies, counters.delivered),
        (50, 200, 250)
    );
    switch.finish();
}

#[test]
fn receivers_get_different_heads() {
    let mut switch = Switch::with_ports(5);
    let mut a = Guest::usual(&mut switch, 1);
    let mut others: Vec<_> = (2..=5).map(|port| Guest::usual(&mut switch, port)).collect();
    let push = |vid: u16| {
        Action::Edit(Edit::PushVlan {
            tpid: 0x8100,
            tci: vid,
        })
    };
    // 2 access, 3 trunk, 4 another access, 5 double-tagged.
    switch.flow(
        1,
        &[
            output(2),
            push(10),
            output(3),
            Action::Edit(Edit::PopVlan),
            output(4),
            push(7),
            push(8),
            output(5),
        ],
    );
    for len in [14, 60, 124, 127, 128, 129, 500, 1490] {
        let frame = plain(1, 2, len, len as u8);
        a.send(&frame);
        others[0].expect_plain(&frame);
        others[1].expect_plain(&tagged(&frame, 10));
        others[2].expect_plain(&frame);
        others[3].expect_plain(&tagged(&tagged(&frame, 7), 8));
    }
    // From a trunk.
    switch.flow(
        2,
        &[
            output(3),
            Action::Edit(Edit::PopVlan),
            output(1),
            push(20),
            output(4),
        ],
    );
    for len in [60, 128, 129, 1400] {
        let frame = plain(2, 1, len, len as u8);
        others[0].send(&tagged(&frame, 0xa00a));
        others[1].expect_plain(&tagged(&frame, 0xa00a));
        a.expect_plain(&frame);
        others[2].expect_plain(&tagged(&frame, 20));
    }
    switch.finish();
}

#[test]
fn a_full_burst_with_many_heads_loses_nothing() {
    // Heads of the burst before may still be under way on other threads.
    if matches!(mode(), Mode::ThreadPerVnic) {
        return;
    }
    let mut switch = Switch::with_ports(4);
    let mut a = Guest::usual(&mut switch, 1);
    let mut others: Vec<_> = (2..=4).map(|port| Guest::usual(&mut switch, port)).collect();
    let push = |vid: u16| {
        Action::Edit(Edit::PushVlan {
            tpid: 0x8100,
            tci: vid,
        })
    };
    switch.flow(
        1,
        &[
            output(2),
            push(10),
            output(3),
            Action::Edit(Edit::PopVlan),
            push(11),
            output(4),
        ],
    );
    for round in 0..8 {
        let frames: Vec<_> = (0..32).map(|n| plain(1, 2, 200 + n * 30, round)).collect();
        for frame in &frames {
            a.offer_packet(&wire::VnetHeader::default(), frame, &Layout::One);
        }
        a.transmit.publish_and_kick();
        for frame in &frames {
            others[0].expect_plain(frame);
            others[1].expect_plain(&tagged(frame, 10));
            others[2].expect_plain(&tagged(frame, 11));
        }
    }
    switch.finish();
}

#[test]
fn actions_that_end_a_packet_are_counted() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    switch.flow(1, &[]);
    a.send(&plain(1, 2, 100, 0));
    switch.until_dropped(1, DropReason::NoAction, 1);
    switch.flow(1, &[Action::Drop(DropReason::VlanFiltered)]);
    a.send(&plain(1, 2, 1000, 0));
    switch.until_dropped(1, DropReason::VlanFiltered, 1);
    switch.flow(1, &[output(99)]);
    a.send(&plain(1, 2, 100, 0));
    switch.until_dropped(1, DropReason::NoSuchPort, 1);
    switch.flow(1, &[output(2)]);
    a.send(&plain(1, 2, 100, 0));
    switch.until_dropped(1, DropReason::PortDown, 1);
    assert_eq!(switch.counters(2).egress_dropped.get(DropReason::PortDown), 1);
    // A port of another switch.
    let mut spec = Switch::spec(4);
    spec.switch = flow::SwitchId(2);
    switch.done(Request::PortAdd(spec));
    let mut other = Guest::usual(&mut switch, 4);
    switch.flow(1, &[output(4)]);
    a.send(&plain(1, 4, 100, 0));
    switch.until_dropped(1, DropReason::NoSuchPort, 2);
    other.expect_nothing();
    let to = Userspace {
        pid: 42,
        data: Box::new([1, 2, 3]),
        ..Userspace::default()
    };
    switch.flow(1, &[Action::Userspace(to.clone()), output(3)]);
    a.send(&plain(1, 2, 900, 3));
    let upcall = switch.upcall();
    assert_eq!(upcall.cause, UpcallCause::Action(to));
    assert_eq!(upcall.packet.frame, plain(1, 2, 900, 3));
    switch.discard(upcall.id, DropReason::MacLimit);
    switch.until(1, "discarded", |c| c.discarded.get(DropReason::MacLimit) == 1);
    a.all_sent();
    switch.finish();
}

#[test]
fn flows_can_be_replaced_and_deleted_under_traffic() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let mut c = Guest::usual(&mut switch, 3);
    let frame = plain(1, 2, 80, 0);
    for round in 0..20 {
        switch.flow(1, &[output(2)]);
        // Twice, so that the second comes from the microflow cache of whichever worker it was.
        for _ in 0..4 {
            a.send(&frame);
            b.expect_plain(&frame);
        }
        switch.flow(1, &[output(3)]);
        for _ in 0..4 {
            a.send(&frame);
            c.expect_plain(&frame);
        }
        if round % 2 == 0 {
            switch.done(Request::FlowDel {
                switch: SWITCH,
                id: FlowId(1),
            });
        } else {
            switch.done(Request::FlowFlush { switch: SWITCH });
        }
        for _ in 0..2 {
            a.send(&frame);
            let upcall = switch.upcall();
            switch.discard(upcall.id, DropReason::Policy);
        }
    }
    switch.finish();
}

#[test]
fn a_port_is_removed_with_packets_queued_for_it() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 3);
    let deaf = Setup {
        posted: 0,
        ..Setup::default()
    };
    switch.flow(1, &[output(2), output(3)]);
    let (removed, stalled) = (DropReason::PortRemoved, DropReason::ReceiverStalled);
    // A machine that is slow enough drops them for being too late; not every time.
    let mut victim = Guest::start(&mut switch, 2, deaf.clone());
    for round in 1..=10 {
        for number in 0..20 {
            a.send(&plain(1, 2, 1000, number));
        }
        for number in 0..20 {
            b.expect_plain(&plain(1, 2, 1000, number));
        }
        switch.done(Request::PortDel { port: PortId(2) });
        a.all_sent();
        let counters = switch.counters(1);
        assert_eq!((counters.copies, counters.delivered), (20 * round, 20 * round));
        // Or not even queued, if the port went first.
        let late = counters.dropped.get(DropReason::NoSuchPort) + counters.dropped.get(DropReason::PortDown);
        let lost = counters.dropped.get(removed) + counters.dropped.get(stalled);
        assert_eq!(
            (lost + late, counters.dropped.total()),
            (20 * round, 20 * round),
            "{counters:?}"
        );
        if counters.dropped.get(removed) > 0 {
            break;
        }
        assert!(round < 10, "{counters:?}");
        switch.add(2);
        victim = Guest::start(&mut switch, 2, deaf.clone());
    }
    // Until the last thread has forgotten it, the port is there and down.
    let gone = |counters: &PortCounters| {
        counters.dropped.get(DropReason::NoSuchPort) + counters.dropped.get(DropReason::PortDown)
    };
    let before = gone(&switch.counters(1));
    a.send(&plain(1, 2, 1000, 0));
    switch.until(1, "no port is there", |counters| gone(counters) == before + 1);
    b.expect_plain(&plain(1, 2, 1000, 0));
    // Its connection is closed, and the number can be used again.
    assert_eq!(victim.session.reply(), None);
    switch.add(2);
    let mut again = Guest::usual(&mut switch, 2);
    a.send(&plain(1, 2, 1000, 9));
    again.expect_plain(&plain(1, 2, 1000, 9));
    assert!(switch.ask(Request::PortDel { port: PortId(77) }).is_err());
    switch.finish();
}

#[test]
fn captures_see_what_happens() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let (ours, theirs) = Channel::pair().unwrap();
    let capture = Request::Capture {
        port: PortId(1),
        snap_length: 100,
    };
    assert_eq!(switch.ask_with(capture, &[theirs.as_fd()]), Ok(Answer::Done));
    drop(theirs);
    let next = || -> CapturedPacket {
        let mut fds = [rustix::event::PollFd::new(&ours, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&timeout)),
            Ok(1),
            "a captured packet"
        );
        ours.try_recv().unwrap().0
    };
    switch.join(1, 2);
    a.send(&plain(1, 2, 400, 1));
    b.expect_plain(&plain(1, 2, 400, 1));
    let seen = next();
    assert_eq!(
        (seen.direction, seen.dropped),
        (CaptureDirection::FromGuest, None)
    );
    assert_eq!((seen.length, &seen.frame[..]), (400, &plain(1, 2, 400, 1)[..100]));
    b.send(&plain(2, 1, 60, 2));
    a.expect_plain(&plain(2, 1, 60, 2));
    let seen = next();
    assert_eq!((seen.direction, seen.dropped), (CaptureDirection::ToGuest, None));
    assert_eq!(seen.frame, plain(2, 1, 60, 2));
    switch.flow(1, &[Action::Drop(DropReason::Policy)]);
    a.send(&plain(1, 2, 99, 3));
    let seen = next();
    assert_eq!(
        (seen.dropped, seen.frame),
        (Some(DropReason::Policy), plain(1, 2, 99, 3))
    );
    // Dropped on its side: too long for it.
    switch.done(Request::PortSet {
        port: PortId(1),
        mtu: 600,
        miss_rate: 100_000,
    });
    b.send(&plain(2, 1, 800, 4));
    let seen = next();
    assert_eq!(
        (seen.direction, seen.dropped),
        (CaptureDirection::ToGuest, Some(DropReason::ExceedsMtu))
    );
    assert_eq!((seen.lost, seen.length), (0, 800));
    // The reader goes; packets go on.
    drop(ours);
    switch.join(1, 2);
    for seed in 0..5 {
        a.send(&plain(1, 2, 200, seed));
        b.expect_plain(&plain(1, 2, 200, seed));
    }
    switch.finish();
}

#[test]
fn a_trace_says_what_packets_do() {
    let mut switch = Switch::with_ports(4);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let mut c = Guest::usual(&mut switch, 3);
    let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 5 });
    let actions = [output(2), push, output(3), output(4), output(9)];
    let frame = plain(1, 2, 700, 0);
    let trace = |switch: &mut Switch, frame: &[u8]| {
        let request = Request::Trace {
            in_port: PortId(1),
            frame: frame.to_vec(),
        };
        let Ok(Answer::Trace(steps)) = switch.ask(request) else {
            panic!("a trace")
        };
        steps
    };
    let steps = trace(&mut switch, &frame);
    assert!(matches!(steps.first(), Some(TraceStep::Parsed(key)) if key.in_port() == 1));
    let stage = Stage::Forward;
    assert!(matches!(steps.last(), Some(TraceStep::Miss { stage: at, .. }) if *at == stage));
    switch.flow(1, &actions);
    let steps = trace(&mut switch, &frame);
    let flow = Switch::port_flow(1, &actions);
    assert!(steps.contains(&TraceStep::Matched(flow)));
    let outcomes: Vec<_> = steps
        .iter()
        .filter(|step| matches!(step, TraceStep::Delivered(_) | TraceStep::Dropped { .. }))
        .cloned()
        .collect();
    let dropped = |port, reason| TraceStep::Dropped {
        port: Some(PortId(port)),
        reason,
    };
    let expected = [
        TraceStep::Delivered(PortId(2)),
        TraceStep::Delivered(PortId(3)),
        dropped(4, DropReason::PortDown),
        dropped(9, DropReason::NoSuchPort),
    ];
    assert_eq!(outcomes, expected);
    let done: Vec<_> = steps
        .iter()
        .filter_map(|step| match step {
            TraceStep::Action(action) => Some(action.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(done, actions);
    assert_eq!(switch.counters(1).received, 0, "a trace is no packet");
    // And now for real.
    a.send(&frame);
    b.expect_plain(&frame);
    c.expect_plain(&tagged(&frame, 5));
    switch.until(1, "all four", |c| c.delivered + c.dropped.total() == 4);
    let counters = switch.counters(1);
    assert_eq!((counters.delivered, counters.copies), (2, 3));
    assert_eq!(counters.dropped.get(DropReason::PortDown), 1);
    assert_eq!(counters.dropped.get(DropReason::NoSuchPort), 1);
    for len in [0, 13, 65_536 + 100] {
        let request = Request::Trace {
            in_port: PortId(1),
            frame: vec![0; len],
        };
        assert!(switch.ask(request).is_err());
    }
    switch.finish();
}

#[test]
fn control_can_send_packets_of_its_own() {
    let mut switch = Switch::with_ports(2);
    let mut b = Guest::usual(&mut switch, 2);
    let packet = |len| Packet {
        vnet_header: [0; 12],
        frame: plain(1, 2, len, 5),
    };
    for len in [14, 60, 128, 129, 1514] {
        switch.inject(1, packet(len), &[output(2)]);
        b.expect_plain(&plain(1, 2, len, 5));
    }
    switch.inject(1, packet(100), &[]);
    switch.until_dropped(1, DropReason::NoAction, 1);
    switch.inject(
        1,
        Packet {
            vnet_header: [0; 12],
            frame: vec![1; 13],
        },
        &[output(2)],
    );
    switch.until_dropped(1, DropReason::ShortFrame, 1);
    assert_eq!(switch.counters(1).injected, 7);
    switch.finish();
}

#[test]
fn a_driver_comes_and_goes() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for round in 0..10 {
        let frame = plain(1, 2, 500, round);
        a.send(&frame);
        b.expect_plain(&frame);
        if round % 3 == 0 {
            b.reconnect(&mut switch);
        } else {
            b.restart(&mut switch);
        }
        if round % 3 == 2 {
            a.restart(&mut switch);
        }
        assert_eq!(switch.port(2).state, PortState::Running);
    }
    switch.finish();
}

#[test]
fn packets_of_a_burst_that_cannot_be_changed_are_dropped() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let ttl = Action::Edit(Edit::Set(SetField::whole(FieldId::IpTtl, 9)));
    switch.flow(1, &[ttl, output(2)]);
    let tcp = |payload| Tcp::new(false, payload).frame(1, 2, true);
    for number in 0..40 {
        a.send(&plain(1, 2, 60, number as u8));
        a.send(&tcp(number));
    }
    for number in 0..40 {
        let mut changed = tcp(number);
        changed[22] = 9;
        changed[24..26].fill(0);
        let checksum = !(sum(&changed[14..34], 0) as u16);
        changed[24..26].copy_from_slice(&checksum.to_be_bytes());
        b.expect_plain(&changed);
    }
    switch.until_dropped(1, DropReason::NoHeader, 40);
    // Bursts of which nothing is left.
    for number in 0..40 {
        a.send(&plain(1, 2, 60, number));
    }
    switch.until_dropped(1, DropReason::NoHeader, 80);
    switch.finish();
}
