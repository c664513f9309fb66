//! Packets that rules reject: what their senders are told, and when not.

use crate::support::frames::{Tcp, tagged};
use crate::support::{Guest, Switch};
use control_protocol::data_plane::Request;
use control_protocol::rules::{Base, RuleRequest};
use flow::{Action, DropReason, Edit, Filter, Filters, ListId, PortId};
use rule_list::Verdict;

const LIST: ListId = ListId(3);

/// Two guests. The list, which rejects everything, is a filter of one of the ports.
fn start(first: bool) -> (Switch, Guest, Guest) {
    let mut switch = Switch::start();
    let mut filters = [Filter::Absent; 4];
    filters[2] = Filter::Rules(LIST);
    let (ingress, egress) = (
        Filters {
            ingress: filters,
            ..Filters::default()
        },
        Filters {
            egress: filters,
            ..Filters::default()
        },
    );
    switch.add_with(1, if first { ingress } else { Filters::default() });
    switch.add_with(2, if first { Filters::default() } else { egress });
    switch.flow(1, &[Action::Output(PortId(2))]);
    for request in [
        RuleRequest::Begin {
            list: LIST,
            base: Base::Empty,
            default: Verdict::Reject,
        },
        RuleRequest::Commit { list: LIST, tag: 1 },
    ] {
        switch.done(Request::Rules(request));
    }
    let a = Guest::usual(&mut switch, 1);
    let b = Guest::usual(&mut switch, 2);
    (switch, a, b)
}

fn syn(v6: bool) -> Vec<u8> {
    let tcp = Tcp {
        flags: 2,
        ..Tcp::new(v6, 0)
    };
    tcp.frame(1, 2, true)
}

/// The frame that the sender is told, which `wire` has tests of.
fn answer(frame: &[u8]) -> Vec<u8> {
    let key = wire::parse(frame, frame.len(), PortId(1)).key;
    wire::rejection(&frame[..frame.len().min(128)], frame.len(), &key).unwrap()
}

#[test]
fn senders_are_told_whoever_rejects_and_whether_control_lives() {
    for first in [true, false] {
        let (mut switch, mut a, mut b) = start(first);
        let mut count = 0;
        for alive in [true, false] {
            if !alive {
                switch.disconnect();
            }
            for frame in [syn(false), syn(true), Tcp::new(false, 700).frame(1, 2, true)] {
                a.send(&frame);
                a.expect_plain(&answer(&frame));
                count += 1;
            }
            // Of a large frame as well.
            let tcp = Tcp::new(false, 20_000);
            let frame = tcp.frame(1, 2, false);
            a.send_as(&tcp.header(1448), &frame, &crate::support::Layout::One);
            a.expect_plain(&answer(&frame));
            count += 1;
        }
        b.expect_nothing();
        switch.connect();
        switch.until_dropped(1, DropReason::Rejected, count);
        let counters = switch.counters(1);
        assert_eq!((counters.injected, counters.transmitted), (count, count));
        assert_eq!(counters.dropped.total(), count);
        switch.finish();
    }
}

/// The answer bears the tag of the packet as it came, and no address that was translated.
#[test]
fn answers_fit_the_packet_as_its_sender_knows_it() {
    let (mut switch, mut a, mut b) = start(false);
    let frame = syn(false);
    let pop = Action::Edit(Edit::PopVlan);
    switch.flow(1, &[pop, Action::Output(PortId(2))]);
    let trunk = tagged(&frame, 0x2064);
    for _ in 0..3 {
        a.send(&trunk);
        a.expect_plain(&answer(&trunk));
    }
    let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 5 });
    switch.flow(1, &[push, Action::Output(PortId(2))]);
    for _ in 0..3 {
        a.send(&frame);
        a.expect_plain(&answer(&frame));
    }
    let translated = flow::SetField::whole(flow::FieldId::IpDst, 0x0a00_0063);
    switch.flow(
        1,
        &[Action::Edit(Edit::Set(translated)), Action::Output(PortId(2))],
    );
    a.send(&frame);
    switch.until_dropped(1, DropReason::Policy, 1);
    switch.until_dropped(1, DropReason::Rejected, 6);
    b.expect_nothing();
    a.expect_nothing();
    switch.finish();
}

/// If one of several receivers rejects a packet, another one may answer.
#[test]
fn packets_for_several_receivers_are_not_answered() {
    let (mut switch, mut a, mut b) = start(false);
    switch.add(3);
    let mut c = Guest::usual(&mut switch, 3);
    let frame = syn(false);
    let (to, other) = (Action::Output(PortId(2)), Action::Output(PortId(3)));
    for (actions, dropped) in [
        (vec![to.clone(), other.clone()], 1),
        (vec![other.clone(), to.clone()], 2),
    ] {
        switch.flow(1, &actions);
        a.send(&frame);
        c.expect_plain(&frame);
        switch.until_dropped(1, DropReason::Policy, dropped);
    }
    a.expect_nothing();
    b.expect_nothing();
    // Nobody else takes it.
    switch.flow(1, &[to]);
    a.send(&frame);
    a.expect_plain(&answer(&frame));
    switch.finish();
}

/// A guest that provokes rejections gets a bounded number of answers, and no packet is lost count of.
#[test]
fn answers_of_a_port_are_bounded() {
    const PACKETS: u64 = 3000;
    let (mut switch, mut a, mut b) = start(true);
    let frame = syn(false);
    let begin = std::time::Instant::now();
    for _ in 0..PACKETS {
        a.send(&frame);
        while a.try_receive().is_some() {}
    }
    switch.until(1, "all are judged", |counters| {
        counters.dropped.total() == PACKETS
    });
    let seconds = begin.elapsed().as_secs() + 1;
    let counters = switch.counters(1);
    let answered = counters.dropped.get(DropReason::Rejected);
    assert_eq!(answered + counters.dropped.get(DropReason::Policy), PACKETS);
    assert_eq!(counters.injected, answered);
    assert!((1000..=1000 * (seconds + 1)).contains(&answered), "{answered}");
    while a.receive_within(std::time::Duration::from_millis(20)).is_some() {}
    b.expect_nothing();
    switch.finish();
}

/// What must not be answered is dropped, as `policy`.
#[test]
fn errors_groups_and_fragments_are_not_answered() {
    let (mut switch, mut a, _b) = start(true);
    let good = syn(false);
    let change = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let wrong = [
        change(0, &[0xff; 6]),
        change(20, &[0, 5]),
        change(30, &[224, 0, 0, 1]),
        change(26, &[0; 4]),
        change(47, &[4]),
    ];
    for frame in &wrong {
        a.send(frame);
    }
    switch.until_dropped(1, DropReason::Policy, wrong.len() as u64);
    a.expect_nothing();
    a.send(&good);
    a.expect_plain(&answer(&good));
    switch.finish();
}
