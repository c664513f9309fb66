//! Meters, ports that were taken down, and what the controller is told of packets on their way.

use crate::support::control::{Controller, SWITCH, miss};
use crate::support::frames::plain;
use crate::support::{Guest, Switch, eventually};
use control_protocol::data_plane::{Answer, Packet, PortState, Request, TraceStep, UpcallCause};
use flow::{
    Action, DropReason, Edit, FieldId, Filters, Flow, FlowId, FlowKey, FlowMask, MAX_METERS, MeterBand,
    MeterSpec, MeterStats, MeterUnit, Nested, PortId, SetField, Stage, Userspace,
};
use rustix::io::Errno;

const LENGTH: usize = 1000;
const SENT: u64 = 30;
const PASS: u64 = 20;

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

/// So slow that the next packet would pass after eight seconds, with a bucket for as many packets as shall
/// pass.
fn slow() -> MeterSpec {
    let band = MeterBand {
        rate: 1,
        burst: PASS as u32 * LENGTH as u32 * 8 / 1000,
    };
    MeterSpec::new(MeterUnit::Kilobits, Some(band))
}

fn meter(switch: &mut Controller, request: Request) -> Option<MeterStats> {
    match switch.ask(request) {
        Ok(Answer::Meter(stats)) => stats,
        other => panic!("{other:?}"),
    }
}

fn set(switch: &mut Controller, meter: u32, spec: MeterSpec) -> Option<MeterStats> {
    self::meter(switch, Request::MeterSet { meter, spec })
}

/// Packets of port 1, of which those that pass come to port 2; returns how many did.
fn send(switch: &mut Switch, a: &mut Guest, b: &mut Guest) -> u64 {
    let before = switch.counters(1);
    let frame = plain(1, 2, LENGTH, 7);
    (0..SENT).for_each(|_| a.send(&frame));
    let ended = |counters: &flow::PortCounters| {
        counters.delivered + counters.dropped.total() - before.delivered - before.dropped.total()
    };
    switch.until(1, "all have ended", |counters| ended(counters) == SENT);
    a.all_sent();
    let passed = switch.counters(1).delivered - before.delivered;
    (0..passed).for_each(|_| b.expect_plain(&frame));
    passed
}

fn pair() -> (Switch, Guest, Guest) {
    let mut switch = Switch::with_ports(2);
    let a = Guest::usual(&mut switch, 1);
    let b = Guest::usual(&mut switch, 2);
    (switch, a, b)
}

/// A meter says what its drops are counted as, also where the packet goes to several ports.
#[test]
fn a_storm_is_cut_to_its_rate() {
    let (mut switch, mut a, mut b) = pair();
    switch.add(3);
    let mut c = Guest::usual(&mut switch, 3);
    let spec = MeterSpec {
        reason: DropReason::StormBroadcast,
        ..slow()
    };
    assert_eq!(set(&mut switch, 9, spec), None);
    // To one port, which is policed as a burst, and to two.
    for outputs in [&[output(2)][..], &[output(2), output(3)]] {
        set(&mut switch, 9, spec);
        switch.flow(1, &[&[Action::Meter(9)], outputs].concat());
        let before = switch.counters(1);
        let frame = plain(1, 2, LENGTH, 7);
        (0..SENT).for_each(|_| a.send(&frame));
        let dropped = |counters: &flow::PortCounters| {
            let reason = DropReason::StormBroadcast;
            counters.dropped.get(reason) - before.dropped.get(reason)
        };
        let copies = outputs.len() as u64;
        switch.until(1, "all have ended", |counters| {
            counters.delivered - before.delivered == copies * (SENT - dropped(counters))
        });
        let passed = SENT - dropped(&switch.counters(1));
        assert!((PASS..SENT).contains(&passed), "{passed}");
        (0..passed).for_each(|_| b.expect_plain(&frame));
        if copies > 1 {
            (0..passed).for_each(|_| c.expect_plain(&frame));
        }
        a.all_sent();
    }
    assert_eq!(switch.counters(1).dropped.get(DropReason::Metered), 0);
    switch.finish();
}

#[test]
fn what_exceeds_the_rate_is_dropped_and_counted() {
    let (mut switch, mut a, mut b) = pair();
    switch.flow(1, &[Action::Meter(9), output(2)]);
    // None is there yet.
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    assert_eq!(set(&mut switch, 9, slow()), None);
    let passed = send(&mut switch, &mut a, &mut b);
    assert!((PASS..SENT).contains(&passed), "{passed}");
    assert_eq!(switch.counters(1).dropped.get(DropReason::Metered), SENT - passed);
    let stats = meter(&mut switch, Request::MeterGet { meter: 9 }).unwrap();
    let length = LENGTH as u64;
    assert_eq!((stats.packets, stats.bytes), (SENT, SENT * length));
    let dropped = (stats.dropped_packets, stats.dropped_bytes);
    assert_eq!(dropped, (SENT - passed, (SENT - passed) * length));
    // A new one begins with a full bucket, and tells what the old one had seen.
    let before = set(&mut switch, 9, slow()).unwrap();
    assert_eq!((before.packets, before.dropped_packets), (SENT, SENT - passed));
    assert!(send(&mut switch, &mut a, &mut b) >= PASS);
    // One that only counts, and none at all.
    let count = MeterSpec::new(MeterUnit::Packets, None);
    set(&mut switch, 9, count);
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    let removed = meter(&mut switch, Request::MeterDel { meter: 9 }).unwrap();
    assert_eq!((removed.packets, removed.dropped_packets), (SENT, 0));
    assert_eq!(meter(&mut switch, Request::MeterDel { meter: 9 }), None);
    assert_eq!(meter(&mut switch, Request::MeterGet { meter: 9 }), None);
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    switch.finish();
}

#[test]
fn two_ports_share_a_meter_in_a_later_pass() {
    let (mut switch, mut a, mut b) = pair();
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
    for port in [1, 2] {
        key.set_in_port(port);
        mask.0.set_in_port(u32::MAX);
        key.set_recirc_id(5);
        mask.0.set_recirc_id(u32::MAX);
        let id = FlowId(100 + u128::from(port));
        switch.put(Flow::new(
            id,
            SWITCH,
            key,
            mask,
            vec![Action::Meter(1), output(3 - port)],
        ));
        switch.flow(port, &[Action::Meter(2), Action::Recirc(5)]);
    }
    set(&mut switch, 1, slow());
    let there = send(&mut switch, &mut a, &mut b);
    assert!((PASS..SENT).contains(&there), "{there}");
    let frame = plain(2, 1, LENGTH, 3);
    (0..SENT).for_each(|_| b.send(&frame));
    switch.until(2, "all have ended", |counters| {
        counters.delivered + counters.dropped.total() == SENT
    });
    let back = switch.counters(2).delivered;
    assert!(there + back < PASS + 10, "{there} and {back}");
    (0..back).for_each(|_| a.expect_plain(&frame));
    let stats = meter(&mut switch, Request::MeterGet { meter: 1 }).unwrap();
    assert_eq!(stats.packets, 2 * SENT);
    switch.finish();
}

/// Sends packets one copy of which is dropped in any case.
fn send_copies(switch: &mut Switch, a: &mut Guest, b: &mut Guest) -> u64 {
    let before = switch.counters(1);
    let frame = plain(1, 2, LENGTH, 7);
    (0..SENT).for_each(|_| a.send(&frame));
    let dropped = before.dropped.get(DropReason::Policy) + SENT;
    switch.until(1, "all have ended", |counters| {
        counters.dropped.get(DropReason::Policy) == dropped && counters.in_flight() == 0
    });
    a.all_sent();
    let passed = switch.counters(1).delivered - before.delivered;
    (0..passed).for_each(|_| b.expect_plain(&frame));
    passed
}

/// A flow for packets of port 1 in a later pass.
fn later(id: u128, pass: u32, actions: &[Action]) -> Flow {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
    key.set_in_port(1);
    mask.0.set_in_port(u32::MAX);
    key.set_recirc_id(pass);
    mask.0.set_recirc_id(u32::MAX);
    Flow::new(FlowId(id), SWITCH, key, mask, actions.to_vec())
}

/// Packets and bytes that flows have counted, of port 1's flow and those of the later passes.
fn counted(switch: &mut Controller) -> [[u64; 2]; 3] {
    let flows = switch.flows();
    let of_pass = |pass| {
        let mut found = flows.iter().filter(|(flow, _)| flow.key.recirc_id() == pass);
        let (_, stats) = found.next().unwrap();
        [stats.packets, stats.bytes]
    };
    [0, 5, 6].map(of_pass)
}

/// Whether packets just go to a port then, or are changed, or take the long way.
#[test]
fn flows_behind_a_meter_count_what_it_lets_pass() {
    let (mut switch, mut a, mut b) = pair();
    let (limit, hash, on) = (Action::Meter(1), Action::Hash { basis: 0 }, Action::Recirc);
    let mut source = [0; 8];
    source[2..].copy_from_slice(&plain(1, 2, LENGTH, 7)[6..12]);
    let same = Action::Edit(Edit::Set(SetField::whole(
        FieldId::EthSrc,
        u64::from_be_bytes(source).into(),
    )));
    let no_copy = Action::Clone(Nested(vec![limit.clone(), on(6)]));
    let to_second = || vec![limit.clone(), hash.clone(), on(5)];
    // The first flow, that of pass 5, and how many of them count all packets. Pass 6 outputs.
    let ways = [
        (to_second(), vec![on(6)], 1),
        (to_second(), vec![same.clone(), on(6)], 1),
        (vec![on(5)], vec![limit.clone(), on(6)], 2),
        (vec![Action::Meter(2), on(5)], vec![limit.clone(), on(6)], 2),
        (vec![on(5)], vec![same, limit.clone(), on(6)], 2),
        (vec![on(5)], vec![no_copy, Action::Drop(DropReason::Policy)], 2),
    ];
    for (way, (first, second, all)) in ways.into_iter().enumerate() {
        meter(&mut switch, Request::MeterDel { meter: 1 });
        switch.flow(1, &first);
        switch.put(later(101, 5, &second));
        switch.put(later(102, 6, &[output(2)]));
        let before = counted(&mut switch);
        let sent = if way == 5 { send_copies } else { send };
        assert_eq!(sent(&mut switch, &mut a, &mut b), SENT);
        set(&mut switch, 1, slow());
        let passed = sent(&mut switch, &mut a, &mut b);
        assert!((PASS..SENT).contains(&passed), "{passed}");
        let expected: Vec<_> = (0..3)
            .map(|flow| SENT + if flow < all { SENT } else { passed })
            .map(|packets| [packets, packets * LENGTH as u64])
            .collect();
        eventually("flows have counted", || {
            let after = counted(&mut switch);
            let grown: Vec<_> = (0..3)
                .map(|flow| [0, 1].map(|which| after[flow][which] - before[flow][which]))
                .collect();
            let too_many = grown
                .iter()
                .zip(&expected)
                .any(|(grown, most)| grown[0] > most[0]);
            assert!(!too_many, "way {way}: {grown:?} instead of {expected:?}");
            grown == expected
        });
    }
    switch.finish();
}

/// A flow of a filter, for all packets of the filter, that asks a meter.
fn filter(id: u128, stage: Stage, meter: u32) -> Flow {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
    if stage == Stage::Ingress(0) {
        key.set_in_port(1);
        mask.0.set_in_port(u32::MAX);
    }
    let actions = vec![Action::Meter(meter), Action::Continue];
    Flow {
        stage,
        ..Flow::new(FlowId(id), SWITCH, key, mask, actions)
    }
}

fn filters(switch: &mut Controller, port: u32, ingress: u8, egress: u8) {
    let filters = Filters::of_flows(ingress, egress);
    let port = PortId(port);
    switch.done(Request::PortFilters { port, filters });
}

#[test]
fn filters_limit_what_comes_from_a_port_and_what_is_sent_to_it() {
    let (mut switch, mut a, mut b) = pair();
    switch.flow(1, &[output(2)]);
    // Both ways of a decision: with what is remembered, and before.
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    switch.put(filter(101, Stage::Ingress(0), 1));
    switch.put(filter(102, Stage::Egress(PortId(2), 0), 2));
    // None is there yet, and then there is one more.
    for (meter, port, ingress, egress) in [(1, 1, 1, 0), (2, 2, 0, 1)] {
        set(&mut switch, meter, slow());
        assert_eq!(send(&mut switch, &mut a, &mut b), SENT, "without its filter");
        filters(&mut switch, port, ingress, egress);
        let before = switch.counters(1).dropped.get(DropReason::Metered);
        let passed = send(&mut switch, &mut a, &mut b);
        assert!((PASS..SENT).contains(&passed), "{passed}");
        let dropped = switch.counters(1).dropped.get(DropReason::Metered) - before;
        assert_eq!(dropped, SENT - passed);
        filters(&mut switch, port, 0, 0);
        assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    }
    switch.finish();
}

#[test]
fn a_port_is_made_without_the_filters_of_the_one_before() {
    let (mut switch, mut a, b) = pair();
    switch.flow(1, &[output(2)]);
    filters(&mut switch, 2, 0, 1);
    drop(b);
    let port = PortId(2);
    switch.done(Request::PortDel { port });
    switch.add(2);
    let mut b = Guest::usual(&mut switch, 2);
    // With a filter that has no flows, none would arrive.
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    let filters = Filters::default();
    let port = PortId(99);
    assert_eq!(
        switch.refused(Request::PortFilters { port, filters }),
        Errno::NODEV
    );
    switch.finish();
}

#[test]
fn a_trace_takes_nothing() {
    let (mut switch, _a, _b) = pair();
    switch.flow(1, &[Action::Meter(1), output(2)]);
    set(&mut switch, 1, slow());
    let request = Request::Trace {
        in_port: PortId(1),
        frame: plain(1, 2, LENGTH, 1),
    };
    let Ok(Answer::Trace(steps)) = switch.ask(request) else {
        panic!()
    };
    assert!(steps.contains(&TraceStep::Action(Action::Meter(1))), "{steps:?}");
    assert_eq!(steps.last(), Some(&TraceStep::Delivered(PortId(2))));
    let stats = meter(&mut switch, Request::MeterGet { meter: 1 }).unwrap();
    assert_eq!(stats.packets, 0);
    switch.finish();
}

#[test]
fn meters_are_bounded_and_each_controller_has_its_own() {
    let mut switch = Switch::with_ports(0);
    let mut other = switch.controller(1);
    let refused = |switch: &mut Controller, rate| {
        let band = Some(MeterBand {
            rate,
            burst: u32::MAX,
        });
        let unit = MeterUnit::Packets;
        let spec = MeterSpec::new(unit, band);
        switch.refused(Request::MeterSet {
            meter: u32::MAX,
            spec,
        })
    };
    assert_eq!(refused(&mut switch, 0), Errno::INVAL);
    for number in 0..MAX_METERS {
        assert_eq!(set(&mut switch, number, slow()), None);
    }
    assert_eq!(refused(&mut switch, u32::MAX), Errno::FBIG);
    assert!(set(&mut switch, 0, slow()).is_some());
    assert_eq!(set(&mut other, 0, slow()), None);
    other.done(Request::MeterFlush);
    assert_eq!(meter(&mut other, Request::MeterGet { meter: 0 }), None);
    // They outlive their controller's channel.
    switch.disconnect();
    switch.connect();
    assert!(meter(&mut switch, Request::MeterGet { meter: 0 }).is_some());
    switch.done(Request::MeterFlush);
    assert_eq!(meter(&mut switch, Request::MeterGet { meter: 0 }), None);
    switch.finish();
}

#[test]
fn a_port_that_is_down_neither_sends_nor_receives() {
    let (mut switch, mut a, mut b) = pair();
    switch.join(1, 2);
    let enable = |switch: &mut Switch, up| {
        let port = PortId(2);
        switch.done(Request::PortEnable { port, up });
    };
    enable(&mut switch, false);
    assert_eq!(
        switch.port(2).state,
        PortState::Running,
        "its guest does not notice"
    );
    assert_eq!(send(&mut switch, &mut a, &mut b), 0);
    switch.until_dropped(1, DropReason::PortDisabled, SENT);
    assert_eq!(
        switch.counters(2).egress_dropped.get(DropReason::PortDisabled),
        SENT
    );
    let frame = plain(2, 1, LENGTH, 3);
    (0..SENT).for_each(|_| b.send(&frame));
    switch.until_dropped(2, DropReason::PortDisabled, SENT);
    b.all_sent();
    assert_eq!(switch.counters(1).transmitted, 0);
    // Also what the controller sends, and through a queue.
    let packet = Packet {
        vnet_header: [0; 12],
        frame: frame.clone(),
    };
    switch.inject(1, packet, &[output(2)]);
    switch.until_dropped(1, DropReason::PortDisabled, SENT + 1);
    // A driver that starts anew does not bring it up.
    drop(b);
    let mut b = Guest::usual(&mut switch, 2);
    assert_eq!(send(&mut switch, &mut a, &mut b), 0);
    enable(&mut switch, true);
    assert_eq!(send(&mut switch, &mut a, &mut b), SENT);
    b.send(&frame);
    a.expect_plain(&frame);
    assert_eq!(
        switch.refused(Request::PortEnable {
            port: PortId(3),
            up: true
        }),
        Errno::NODEV
    );
    switch.finish();
}

#[test]
fn the_controller_is_told_what_a_packet_bears_on_its_way() {
    let (mut switch, mut a, _b) = pair();
    let mark = |field, value| Action::Edit(Edit::Set(SetField::whole(field, value)));
    switch.flow(
        1,
        &[
            mark(FieldId::SkbPriority, 3),
            mark(FieldId::SkbMark, 4),
            Action::Hash { basis: 1 },
            Action::Userspace(Userspace::default()),
            Action::Recirc(7),
        ],
    );
    a.send(&plain(1, 2, LENGTH, 1));
    let first = switch.upcall();
    assert_eq!(first.cause, UpcallCause::Action(Userspace::default()));
    let second = switch.upcall();
    assert_eq!(second.cause, miss(Stage::Forward));
    for (upcall, pass) in [(&first, 0), (&second, 7)] {
        let key = &upcall.key;
        assert_eq!((key.recirc_id(), key.skb_mark()), (pass, 4));
        assert_ne!(key.dp_hash(), 0);
        let context = upcall.context.as_deref().unwrap();
        assert_eq!(context.skb_priority(), 3);
    }
    assert_eq!(first.key.dp_hash(), second.key.dp_hash());
    // What comes back goes on with it, whatever is changed.
    let to_us = Action::Userspace(Userspace::default());
    let hash = second.key.dp_hash();
    switch.execute(
        second,
        &[
            Action::Edit(Edit::Set(SetField::whole(FieldId::EthDst, 9))),
            to_us,
        ],
    );
    let third = switch.upcall();
    assert_eq!((third.key.recirc_id(), third.key.dp_hash()), (7, hash));
    assert_eq!(third.key.eth_dst(), 9);
    // Others bear nothing.
    switch.flow(1, &[Action::Userspace(Userspace::default())]);
    a.send(&plain(1, 2, LENGTH, 1));
    let last = switch.upcall();
    assert_eq!((last.key.recirc_id(), last.context), (0, None));
    for upcall in [first.id, third.id, last.id] {
        switch.discard(upcall, DropReason::Policy);
    }
    switch.finish();
}
