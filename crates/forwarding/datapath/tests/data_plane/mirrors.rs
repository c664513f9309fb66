//! Mirrors: which packets are copied, what copies look like, and that none holds up a packet.

use crate::support::control::Controller;
use crate::support::frames::{Tcp, plain, tagged};
use crate::support::guest::{ALL, Layout, Setup};
use crate::support::{Guest, Switch, eventually};
use control_protocol::data_plane::Request;
use control_protocol::rules::{Base, RuleRequest};
use flow::{Action, DropReason, ListId, Mirror, Mirrored, PortId};
use rule_list::{Match, Rule, Verdict};
use rustix::io::Errno;

const FROM: Mirrored = packets(true, false, false);
const TO: Mirrored = packets(false, true, false);
const DROPPED: Mirrored = packets(false, false, true);
const ALL_PACKETS: Mirrored = packets(true, true, true);

const fn packets(from: bool, to: bool, dropped: bool) -> Mirrored {
    Mirrored { from, to, dropped }
}

fn mirror(to: u32, packets: Mirrored) -> Mirror {
    Mirror {
        to: PortId(to),
        packets,
        list: None,
        length: None,
        vlan: None,
    }
}

impl Controller {
    #[track_caller]
    fn mirror(&mut self, port: u32, mirrors: &[Mirror]) {
        let mirrors = mirrors.to_vec();
        let port = PortId(port);
        self.done(Request::PortMirrors { port, mirrors });
    }
}

/// Ports 1 and 2, whose packets go to each other, and further ones, each with a guest.
fn start<const GUESTS: usize>() -> (Switch, [Guest; GUESTS]) {
    let mut switch = Switch::with_ports(GUESTS as u32);
    switch.join(1, 2);
    let guests = std::array::from_fn(|at| Guest::usual(&mut switch, at as u32 + 1));
    (switch, guests)
}

#[test]
fn what_comes_what_goes_and_what_is_dropped_is_copied() {
    let (mut switch, [mut a, mut b, mut m]) = start();
    let (there, back) = (plain(1, 2, 100, 1), plain(2, 1, 1500, 2));
    for (packets, copies) in [
        (FROM, vec![&there]),
        (TO, vec![&back]),
        (packets(true, true, false), vec![&there, &back]),
        (DROPPED, vec![]),
    ] {
        switch.mirror(1, &[mirror(3, packets)]);
        a.send(&there);
        b.expect_plain(&there);
        b.send(&back);
        a.expect_plain(&back);
        copies.iter().for_each(|copy| m.expect_plain(copy));
        m.expect_nothing();
    }
    // Dropped on the way: by a flow, and for want of a port.
    for actions in [
        &[Action::Drop(DropReason::Policy)][..],
        &[Action::Output(PortId(9))],
        &[],
    ] {
        switch.flow(1, actions);
        for packets in [DROPPED, ALL_PACKETS] {
            switch.mirror(1, &[mirror(3, packets)]);
            a.send(&there);
            m.expect_plain(&there);
            m.expect_nothing();
        }
    }
    // Dropped at the receiver's side.
    switch.mirror(1, &[]);
    switch.mirror(2, &[mirror(3, DROPPED)]);
    switch.flow(1, &[Action::Output(PortId(2))]);
    switch.done(Request::PortEnable {
        port: PortId(2),
        up: false,
    });
    a.send(&there);
    m.expect_plain(&there);
    let counters = switch.counters(3);
    assert_eq!(counters.egress_dropped.total(), 0);
    assert_eq!(counters.transmitted, 4 + 6 + 1);
    switch.finish();
}

#[test]
fn a_port_has_several_mirrors_from_its_first_packet_on_and_says_which() {
    let (mut switch, [mut a, mut b, mut m, mut n]) = start();
    let mirrors = [mirror(3, FROM), mirror(4, ALL_PACKETS), mirror(3, TO)];
    switch.done(Request::PortDel { port: PortId(1) });
    drop(a);
    let spec = control_protocol::data_plane::PortSpec {
        mirrors: mirrors.to_vec(),
        ..Switch::spec(1)
    };
    switch.done(Request::PortAdd(spec));
    assert_eq!(switch.port(1).spec.mirrors, mirrors);
    a = Guest::usual(&mut switch, 1);
    let (there, back) = (plain(1, 2, 60, 1), plain(2, 1, 60, 2));
    a.send(&there);
    b.expect_plain(&there);
    b.send(&back);
    a.expect_plain(&back);
    for guest in [&mut m, &mut n] {
        guest.expect_plain(&there);
        guest.expect_plain(&back);
        guest.expect_nothing();
    }
    // Mirrors outlive the controller's process.
    switch.disconnect();
    a.send(&there);
    b.expect_plain(&there);
    m.expect_plain(&there);
    switch.connect();
    assert_eq!(switch.port(1).spec.mirrors, mirrors);
    n.expect_plain(&there);
    switch.finish();
}

#[test]
fn copies_are_cut_and_tagged() {
    let (mut switch, [mut a, mut b, mut m]) = start();
    let form = |length: Option<u32>, vlan| Mirror {
        length,
        vlan,
        ..mirror(3, FROM)
    };
    for len in [60, 128, 129, 1500] {
        let frame = plain(1, 2, len, 3);
        for length in [14, 64, 128, 200, 1500, 9000] {
            let cut = &frame[..len.min(length as usize)];
            for vlan in [None, Some(7)] {
                switch.mirror(1, &[form(Some(length), vlan)]);
                a.send(&frame);
                b.expect_plain(&frame);
                match vlan {
                    None => m.expect_plain(cut),
                    Some(vlan) => m.expect_plain(&tagged(cut, vlan)),
                }
            }
        }
    }
    // A frame that is to be segmented stays so with its tag, and is a frame of its own when it is cut.
    let tcp = Tcp::new(false, 20_000);
    let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1448));
    for (length, vlan) in [
        (None, None),
        (None, Some(9)),
        (Some(300), Some(9)),
        (Some(300), None),
    ] {
        switch.mirror(1, &[form(length, vlan)]);
        a.send_as(&header, &frame, &Layout::One);
        b.expect(&frame);
        let cut = &frame[..length.map_or(frame.len(), |length| length as usize)];
        let copy = vlan.map_or(cut.to_vec(), |vlan| tagged(cut, vlan));
        let got = m.expect(&copy);
        assert_eq!(got.gso_size, if length.is_none() { 1448 } else { 0 });
        if length.is_none() && vlan.is_some() {
            assert_eq!(got.csum_start, header.csum_start + 4);
        }
    }
    switch.finish();
}

/// Copies are segmented for a port without the offload, and their checksums completed.
#[test]
fn a_mirrors_port_gets_what_it_can_take() {
    let mut switch = Switch::with_ports(3);
    switch.join(1, 2);
    let [mut a, mut b] = [1, 2].map(|port| Guest::usual(&mut switch, port));
    let mut m = Guest::start(&mut switch, 3, Setup::features(crate::support::guest::LEAST));
    let tcp = Tcp::new(true, 6000);
    let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
    switch.mirror(1, &[mirror(3, FROM)]);
    a.send_as(&header, &frame, &Layout::One);
    b.expect(&frame);
    for segment in crate::support::frames::segments(&tcp, 1, 2, 1400) {
        m.expect_plain(&segment);
    }
    // With a tag, the frame would have to be segmented behind it.
    let vlan = Some(5);
    switch.mirror(
        1,
        &[Mirror {
            vlan,
            ..mirror(3, FROM)
        }],
    );
    a.send_as(&header, &frame, &Layout::One);
    b.expect(&frame);
    switch.until_dropped(1, DropReason::MirrorLost, 1);
    switch.finish();
}

/// A mirror's port that takes nothing, is not connected or not there costs no packet, and no order.
#[test]
fn a_mirror_that_takes_nothing_holds_nothing_up() {
    const PACKETS: u64 = 3000;
    let (mut switch, [mut a, mut b]) = start();
    switch.add(3);
    let stopped = Setup {
        posted: 0,
        ..Setup::features(ALL)
    };
    let mut lost = 0;
    for round in 0..3 {
        let to = if round == 0 { 9 } else { 3 };
        let _m = (round == 2).then(|| Guest::start(&mut switch, 3, stopped.clone()));
        switch.mirror(1, &[mirror(to, ALL_PACKETS)]);
        for number in 0..PACKETS {
            // More than the receiver's ring and the sender's slots hold.
            let frame = plain(1, 2, 60 + (number % 1400) as usize, number as u8);
            a.send(&frame);
            b.expect_plain(&frame);
        }
        lost += PACKETS;
        switch.until_dropped(1, DropReason::MirrorLost, lost);
    }
    let counters = switch.counters(1);
    assert_eq!(counters.copies, lost);
    assert_eq!(counters.dropped.total(), lost, "no packet but copies");
    assert_eq!(
        switch.counters(3).egress_dropped.get(DropReason::MirrorLost),
        2 * PACKETS
    );
    a.all_sent();
    switch.finish();
}

/// A mirror that takes some packets loses the others, and the port none.
#[test]
fn a_slow_mirror_loses_copies_only() {
    let (mut switch, [mut a, mut b]) = start();
    switch.add(3);
    let few = Setup {
        receive_size: 16,
        posted: 16,
        ..Setup::features(ALL)
    };
    let mut m = Guest::start(&mut switch, 3, few);
    m.repost = false;
    switch.mirror(1, &[mirror(3, FROM)]);
    for number in 0..100u8 {
        let frame = plain(1, 2, 200, number);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    switch.until_dropped(1, DropReason::MirrorLost, 100 - 16);
    // A thread that loses its core while it delivers may have copies of others lost in between.
    let mut sent = (0..100u8).map(|number| plain(1, 2, 200, number));
    for _ in 0..16 {
        let (_, frame) = m.receive();
        assert!(
            sent.any(|sent| sent == frame),
            "in the order of the port's packets"
        );
    }
    m.expect_nothing();
    switch.finish();
}

#[test]
fn mirrors_of_mirrors_and_circles_end() {
    let (mut switch, [mut a, mut b, mut m, mut n]) = start();
    switch.mirror(1, &[mirror(3, ALL_PACKETS), mirror(2, ALL_PACKETS)]);
    switch.mirror(2, &[mirror(1, ALL_PACKETS)]);
    switch.mirror(3, &[mirror(4, ALL_PACKETS), mirror(1, ALL_PACKETS)]);
    switch.mirror(4, &[mirror(3, ALL_PACKETS)]);
    let frame = plain(1, 2, 90, 1);
    a.send(&frame);
    // As it comes from port 1: to 3, and to 2; as 2 gets it: to 1.
    a.expect_plain(&frame);
    (0..2).for_each(|_| b.expect_plain(&frame));
    m.expect_plain(&frame);
    n.expect_nothing();
    [a, b, m].iter_mut().for_each(Guest::expect_nothing);
    assert_eq!(switch.counters(1).copies, 3);
    switch.finish();
}

#[test]
fn a_list_says_what_is_copied_and_counts() {
    const LIST: ListId = ListId(5);
    let (mut switch, [mut a, mut b, mut m]) = start();
    let filtered = Mirror {
        list: Some(LIST),
        ..mirror(3, packets(true, true, false))
    };
    switch.mirror(1, &[filtered]);
    let known = |seed| {
        let mut frame = plain(1, 2, 80, seed);
        frame[13] = 0xb6;
        frame
    };
    // Nothing as long as there is no list.
    a.send(&known(0));
    b.expect_plain(&known(0));
    m.expect_nothing();
    for request in [
        RuleRequest::Begin {
            list: LIST,
            base: Base::Empty,
            default: Verdict::Drop,
        },
        RuleRequest::Add {
            list: LIST,
            rules: vec![Rule {
                number: 1,
                priority: 1,
                matches: Match {
                    eth_type: Some(0x88b6),
                    ..Match::default()
                },
                verdict: Verdict::Allow,
                trial: false,
                log: false,
            }],
        },
        RuleRequest::Commit { list: LIST, tag: 1 },
    ] {
        switch.done(Request::Rules(request));
    }
    for seed in 1..20 {
        a.send(&plain(1, 2, 80, seed));
        b.expect_plain(&plain(1, 2, 80, seed));
        a.send(&known(seed));
        b.expect_plain(&known(seed));
        m.expect_plain(&known(seed));
    }
    m.expect_nothing();
    let answer = switch.ask(Request::Rules(RuleRequest::Rules { list: LIST, from: 0 }));
    let Ok(control_protocol::data_plane::Answer::Rules(control_protocol::rules::RuleAnswer::Rules {
        default,
        rules,
        ..
    })) = answer
    else {
        panic!("no rules")
    };
    assert_eq!((default.packets, rules[0].1.packets), (19, 19));
    switch.finish();
}

#[test]
fn what_cannot_be_a_mirror_is_refused() {
    let mut switch = Switch::with_ports(2);
    let mut other = switch.controller(2);
    let foreign = other.own(1);
    let port = PortId(1);
    let mut refused = |mirrors: Vec<Mirror>| switch.refused(Request::PortMirrors { port, mirrors });
    assert_eq!(refused(vec![mirror(1, FROM)]), Errno::INVAL, "of itself");
    assert_eq!(refused(vec![mirror(foreign, FROM)]), Errno::PERM);
    assert_eq!(refused(vec![mirror(2, FROM); 5]), Errno::TOOBIG);
    for (length, vlan) in [
        (Some(0), None),
        (Some(13), None),
        (None, Some(0)),
        (None, Some(4095)),
    ] {
        let wrong = Mirror {
            length,
            vlan,
            ..mirror(2, FROM)
        };
        assert_eq!(refused(vec![wrong]), Errno::INVAL, "{length:?} {vlan:?}");
    }
    let mirrors = vec![mirror(2, FROM)];
    let port = PortId(7);
    assert_eq!(
        switch.refused(Request::PortMirrors { port, mirrors }),
        Errno::NODEV
    );
    assert_eq!(switch.port(1).spec.mirrors, []);
    other.settle();
    switch.finish();
}

/// Random mirrors and frames, against what each mirror should copy.
#[test]
fn random_mirrors_copy_what_they_say() {
    let (mut switch, [mut a, mut b, mut m, mut n]) = start();
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..150u8 {
        let mut any = || Mirror {
            packets: packets(random.bool(), random.bool(), random.bool()),
            length: random.bool().then(|| random.u32(14..1600)),
            vlan: random.bool().then(|| random.u16(1..4095)),
            ..mirror(random.u32(3..5), FROM)
        };
        let mirrors: Vec<Mirror> = (0..round % 5).map(|_| any()).collect();
        switch.mirror(1, &mirrors);
        let there = plain(1, 2, random.usize(60..1400), round);
        let back = plain(2, 1, random.usize(60..1400), round);
        a.send(&there);
        b.expect_plain(&there);
        b.send(&back);
        a.expect_plain(&back);
        for (frame, point) in [(&there, flow::MirrorPoint::From), (&back, flow::MirrorPoint::To)] {
            for one in mirrors.iter().filter(|one| one.packets.copies_at(point)) {
                let len = one
                    .length
                    .map_or(frame.len(), |length| frame.len().min(length as usize));
                let guest = if one.to == PortId(3) { &mut m } else { &mut n };
                let cut = &frame[..len];
                guest.expect_plain(&one.vlan.map_or(cut.to_vec(), |vlan| tagged(cut, vlan)));
            }
        }
        if round % 25 == 0 {
            m.expect_nothing();
            n.expect_nothing();
        }
    }
    eventually("nothing is left", || {
        m.try_receive().is_none() && n.try_receive().is_none()
    });
    assert_eq!(
        switch.counters(1).dropped.total() + switch.counters(2).dropped.total(),
        0
    );
    switch.finish();
}
