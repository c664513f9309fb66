//! Policies that nobody should state and guests that try them: numbers with two owners, rules that contradict
//! each other, sets that change all the time, frames of every length, rates beyond any device, rings full of
//! frames that wait, address after address.

use crate::rules::{LIST, begin, commit, ingress, pair, rule, to_port, udp};
use crate::support::control::Controller;
use crate::support::frames::plain;
use crate::support::session::Session;
use crate::support::{Guest, Layout, Setup, Switch, eventually};
use control_protocol::data_plane::{Answer, PortState, Request};
use control_protocol::rules::{Base, RuleAnswer, RuleRequest};
use flow::{Action, DropReason, Filters, PortId, PortRates, RateLimit};
use rule_list::{Addresses, IpPrefix, Match, Member, SetId, SetKind, Verdict};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use wire::VnetHeader;

const SET: SetId = SetId(3);
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

fn prefix(address: impl Into<IpAddr>, len: u8) -> IpPrefix {
    let address = address.into();
    IpPrefix { address, len }
}

/// The sender's address in frames of [`udp`].
fn member(last: u8) -> Member {
    Member::Address(prefix([10, 0, 0, last], 32))
}

fn from(eth_type: Option<u16>, addresses: Addresses) -> Match {
    Match {
        eth_type,
        ip_src: Some(addresses),
        ..Match::default()
    }
}

fn from_set() -> Match {
    from(Some(IPV4), Addresses::Set(SET))
}

fn exchange(leaves: &[Member], comes: &[Member]) -> Request {
    Request::Rules(RuleRequest::SetChange {
        set: SET,
        remove: leaves.to_vec(),
        add: comes.to_vec(),
    })
}

impl Controller {
    /// Makes the set with these members.
    fn put_set(&mut self, members: &[Member]) {
        let (set, kind) = (SET, SetKind::Addresses);
        self.rules(RuleRequest::SetAdd { set, kind });
        self.done(exchange(&[], members));
    }

    fn members(&mut self) -> Vec<Member> {
        let (set, after) = (SET, None);
        match self.ask(Request::Rules(RuleRequest::Members { set, after })) {
            Ok(Answer::Rules(RuleAnswer::Members { members, more: false })) => members,
            other => panic!("{other:?}"),
        }
    }

    /// Kinds of packets that cached decisions of the list are about.
    fn kinds(&mut self) -> usize {
        let (mut from, mut count) = (0, 0);
        loop {
            match self.ask(Request::Rules(RuleRequest::Judged { list: LIST, from })) {
                Ok(Answer::Rules(RuleAnswer::Judged {
                    packets,
                    further,
                    next,
                })) => {
                    count += packets.len() + further as usize;
                    let Some(next) = next else { return count };
                    from = next;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Guests at a controller's ports 1 and 2. Packets of the first one pass from the set's member.
fn own_pair(controller: &mut Controller, last: u8) -> (Guest, Guest) {
    let list = controller.id.list(LIST.0).unwrap();
    controller.put_set(&[member(last)]);
    controller.put_list(list, &[rule(1, from_set(), Verdict::Allow)], Verdict::Drop);
    let (first, second) = (controller.own(1), controller.own(2));
    controller.add_with(first, ingress(list));
    controller.add(second);
    controller.put(Switch::port_flow(first, &[Action::Output(PortId(second))]));
    (Guest::usual(controller, first), Guest::usual(controller, second))
}

/// Lists and sets of one number are each controller's own: what one does to them no other notices.
#[test]
fn two_controllers_name_a_list_and_a_set_alike() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let (mut a, mut b) = own_pair(&mut switch, 5);
    let (mut c, mut d) = own_pair(&mut other, 6);
    let (first, list) = (other.own(1), other.id.list(LIST.0).unwrap());
    assert_ne!(list, LIST);
    let mut dropped = 0;
    let mut holds = |switch: &mut Switch| {
        a.send(&udp(6, 53));
        dropped += 1;
        switch.until_dropped(1, DropReason::Policy, dropped);
        a.send(&udp(5, 53));
        b.expect_plain(&udp(5, 53));
        assert_eq!(switch.members(), [member(5)]);
    };
    holds(&mut switch);
    c.send(&udp(5, 53));
    other.until_dropped(first, DropReason::Policy, 1);
    c.send(&udp(6, 53));
    d.expect_plain(&udp(6, 53));
    assert_eq!(other.members(), [member(6)]);
    // Drafts at the same time, and the controllers' sets are exchanged.
    switch.rules(begin(LIST, Base::Present, Verdict::Drop));
    other.rules(begin(list, Base::Empty, Verdict::Drop));
    other.done(exchange(&[member(6)], &[member(5), member(7)]));
    other.rules(commit(list));
    c.send(&udp(5, 53));
    other.until_dropped(first, DropReason::Policy, 2);
    switch.rules(commit(LIST));
    holds(&mut switch);
    assert_eq!(other.members(), [member(5), member(7)]);
    // One has neither any more.
    other.rules(RuleRequest::Delete { list });
    other.rules(RuleRequest::SetDel { set: SET });
    c.send(&udp(5, 53));
    other.until_dropped(first, DropReason::NoRules, 1);
    holds(&mut switch);
    d.expect_nothing();
    other.settle();
    switch.finish();
}

/// Rules of one priority that contradict each other: the oldest decides, also in the next version. An empty
/// range among them is refused with all that came with it.
#[test]
fn of_rules_that_contradict_each_other_the_oldest_decides() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let equal = |number, first, last, verdict| rule_list::Rule {
        priority: 5,
        ..rule(number, to_port(first, last), verdict)
    };
    let allow = equal(1, 53, 53, Verdict::Allow);
    let rules = [
        allow.clone(),
        equal(2, 50, 60, Verdict::Drop),
        equal(3, 53, 53, Verdict::Reject),
        equal(4, 0, u16::MAX, Verdict::Allow),
    ];
    switch.put_list(LIST, &rules, Verdict::Drop);
    for (dropped, to) in [(1, 54), (2, 60)] {
        a.send(&udp(1, to));
        switch.until_dropped(1, DropReason::Policy, dropped);
        for passes in [53, 61] {
            a.send(&udp(1, passes));
            b.expect_plain(&udp(1, passes));
        }
    }
    let expected = (0, vec![(1, 2), (2, 2), (3, 0), (4, 2)]);
    eventually("all is counted", || switch.counted(LIST) == expected);
    switch.rules(begin(LIST, Base::Present, Verdict::Drop));
    let wrong = [
        equal(7, 1, 9, Verdict::Drop),
        equal(8, 9, 1, Verdict::Drop),
        equal(9, 1, 9, Verdict::Allow),
    ];
    let (list, rules) = (LIST, wrong.to_vec());
    let add = Request::Rules(RuleRequest::Add { list, rules });
    assert_eq!(switch.refused(add), Errno::INVAL);
    assert_eq!(switch.refused(Request::Rules(commit(LIST))), Errno::NOENT);
    assert_eq!(switch.counted(LIST).1.len(), 4);
    a.send(&udp(1, 53));
    b.expect_plain(&udp(1, 53));
    // The rule comes again, behind its contradiction.
    switch.rules(begin(LIST, Base::Present, Verdict::Drop));
    let rules = vec![allow.number];
    switch.rules(RuleRequest::Remove { list, rules });
    let rules = vec![allow];
    switch.rules(RuleRequest::Add { list, rules });
    switch.rules(commit(LIST));
    a.send(&udp(1, 53));
    switch.until_dropped(1, DropReason::Policy, 3);
    b.expect_nothing();
    switch.finish();
}

/// UDP over IPv6 from port 1's guest, from an address whose low bits are those of IPv4's 10.0.0.`last`.
fn udp6(last: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 16, 17, 64]);
    let source = Ipv6Addr::from_bits(0x0a00_0000 | u128::from(last));
    frame.extend([source.octets(), [0xfe; 16]].concat());
    frame.extend([0x10, 0, 0, 53, 0, 16, 0, 0]);
    frame.resize(70, last);
    frame
}

/// Prefixes and members of IPv4 are not about the same bits of IPv6, from no cache either.
#[test]
fn ipv4_prefixes_say_nothing_about_ipv6() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let of_ipv4 = Addresses::Prefix(prefix([10, 0, 0, 0], 24));
    let rules = vec![rule(1, from(Some(IPV6), of_ipv4), Verdict::Allow)];
    switch.rules(begin(LIST, Base::Empty, Verdict::Drop));
    let add = RuleRequest::Add { list: LIST, rules };
    assert_eq!(switch.refused(Request::Rules(add)), Errno::INVAL);
    switch.put_set(&[member(1)]);
    let lists = [
        from(None, of_ipv4),
        from(None, Addresses::Set(SET)),
        // A set may have members of both, and this rule is about those of IPv6.
        from(Some(IPV6), Addresses::Set(SET)),
    ];
    let mut dropped = 0;
    for (at, matches) in lists.into_iter().enumerate() {
        switch.put_list(LIST, &[rule(1, matches, Verdict::Allow)], Verdict::Drop);
        for _ in 0..3 {
            a.send(&udp(1, 53));
            if at < 2 {
                b.expect_plain(&udp(1, 53));
            } else {
                dropped += 1;
            }
            a.send(&udp6(1));
            dropped += 1;
            switch.until_dropped(1, DropReason::Policy, dropped);
        }
    }
    let both = Member::Address(prefix(Ipv6Addr::from_bits(0x0a00_0001), 128));
    switch.done(exchange(&[], &[both]));
    a.send(&udp6(1));
    b.expect_plain(&udp6(1));
    b.expect_nothing();
    switch.finish();
}

/// A set that is exchanged a thousand times under traffic, as fast as answers come: who stays is never
/// dropped, and the first packets after each answer obey it. Nothing of former members is kept.
#[test]
fn a_set_that_is_exchanged_a_thousand_times_obeys_every_answer() {
    const EXCHANGES: u64 = 1000;
    const STAYS: u8 = 7;
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    switch.put_set(&[member(STAYS), member(1)]);
    switch.put_list(LIST, &[rule(1, from_set(), Verdict::Allow)], Verdict::Drop);
    let stays = udp(STAYS, 53);
    for round in 0..EXCHANGES {
        let (leaves, comes) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        // Forwarded while the set changes.
        (0..2).for_each(|_| a.send(&stays));
        let asked = switch.tell(exchange(&[member(leaves)], &[member(comes)]), &[]);
        (0..2).for_each(|_| a.send(&stays));
        assert_eq!(switch.answer(asked), Ok(Answer::Done));
        a.send(&udp(leaves, 53));
        a.send(&udp(comes, 53));
        (0..4).for_each(|_| b.expect_plain(&stays));
        b.expect_plain(&udp(comes, 53));
    }
    switch.until_dropped(1, DropReason::Policy, EXCHANGES);
    assert_eq!(switch.members(), [member(1), member(STAYS)]);
    assert!(switch.kinds() < 32, "{}", switch.kinds());
    b.expect_nothing();
    switch.finish();
}

/// Frames of every length, odd ones too: nothing is added or cut, and what is longer than its frame has no
/// port number.
#[test]
fn frames_of_every_length_are_judged_by_what_they_have() {
    // What IP and UDP state at least; shorter frames are no such datagrams.
    const HEADERS: usize = 14 + 20 + 8;
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let rules = [
        rule(1, to_port(53, 53), Verdict::Allow),
        // A missing port is not 0.
        rule(2, to_port(0, 0), Verdict::Allow),
    ];
    switch.put_list(LIST, &rules, Verdict::Drop);
    let mut dropped = 0;
    for len in (14..130).chain([1499, 1500, 1513]) {
        let frame = |to: u16| {
            let mut frame = udp(1, to);
            frame.resize(len.max(frame.len()), 3);
            // The sizes that IP and UDP state.
            frame[16..18].copy_from_slice(&((len.max(42) - 14) as u16).to_be_bytes());
            frame[38..40].copy_from_slice(&((len.max(42) - 34) as u16).to_be_bytes());
            frame.truncate(len);
            frame
        };
        for to in [53, 54] {
            a.send(&frame(to));
            if to == 53 && len >= HEADERS {
                b.expect_plain(&frame(to));
            } else {
                dropped += 1;
                switch.until(1, "the frame is dropped", |counters| {
                    counters.dropped.total() == dropped
                });
            }
        }
    }
    b.expect_nothing();
    let counters = switch.counters(1);
    assert_eq!(counters.dropped.get(DropReason::Policy), dropped, "{counters:?}");
    switch.finish();
}

/// The highest rate that can be stated is beyond any device: it delays nothing, and drops nothing.
#[test]
fn a_rate_beyond_any_device_holds_nothing_up() {
    let (mut switch, mut a, mut b) = pair(Filters::default(), Filters::default());
    let most = Some(RateLimit {
        bits_per_second: *RateLimit::RATES.end(),
        burst: 10_000,
    });
    for port in [1, 2] {
        let rates = PortRates {
            from: most,
            to: most,
            ..PortRates::default()
        };
        let port = PortId(port);
        switch.done(Request::PortRates { port, rates });
    }
    for number in 0..200 {
        a.send(&plain(1, 2, 1500, number));
        b.expect_plain(&plain(1, 2, 1500, number));
    }
    for port in [1, 2] {
        let counters = switch.counters(port);
        assert_eq!(counters.bandwidth_waits, 0, "port {port}");
        assert_eq!(counters.dropped.total() + counters.egress_dropped.total(), 0);
    }
    switch.finish();
}

/// A guest that fills its ring to the last descriptor waits for its bandwidth, gets meanwhile what is for it,
/// and may go away with all that waits.
#[test]
fn a_guest_whose_full_ring_waits_is_reached_and_may_go() {
    const SIZE: u8 = 32;
    let mut switch = Switch::with_ports(2);
    let setup = Setup {
        transmit_size: SIZE.into(),
        ..Setup::default()
    };
    let mut a = Guest::start(&mut switch, 1, setup);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    // A frame in 120 ms, after one or two of them.
    let from = Some(RateLimit {
        bits_per_second: 100_000,
        burst: 1600,
    });
    let rates = PortRates {
        from,
        ..PortRates::default()
    };
    let port = PortId(1);
    switch.done(Request::PortRates { port, rates });
    let (begun, mut passed) = (Instant::now(), 0);
    for round in 0..3 {
        let before = switch.counters(1).bandwidth_waits;
        for number in 0..SIZE {
            a.send_as(&VnetHeader::default(), &plain(1, 2, 1500, number), &Layout::One);
        }
        switch.until(1, "the port waits", |counters| counters.bandwidth_waits > before);
        for number in 0..10 {
            b.send(&plain(2, 1, 600, number));
            a.expect_plain(&plain(2, 1, 600, number));
        }
        assert!(a.outstanding() > 0, "the others wait");
        if round == 1 {
            a.restart(&mut switch);
        } else {
            a.session = Session::new(UnixStream::pair().unwrap().0);
            switch.until_state(1, |state| *state == PortState::Disconnected);
            a.reconnect(&mut switch);
        }
        while b.try_receive().is_some() {
            passed += 1;
        }
    }
    let counters = switch.counters(1);
    // Two at once and one in debt with each ring, and one each 120 ms.
    let may = 3 * 3 + begun.elapsed().as_millis() / 120 + 1;
    assert!(passed <= may, "{passed} of {may}");
    assert_eq!(counters.dropped.total(), 0, "{counters:?}");
    switch.finish();
}

/// A guest that uses address after address: its controller is asked about each and says no. The port's
/// decisions stay as few as its own addresses make them.
#[test]
fn address_after_address_leaves_few_decisions() {
    const ADDRESSES: u32 = 20_000;
    const LIMIT: u32 = 4;
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let of_port = |number: u32| Ipv4Addr::from_bits(0x0a00_0001 + (number << 4));
    let members: Vec<Member> = (0..LIMIT)
        .map(|number| Member::Address(prefix(of_port(number), 32)))
        .collect();
    switch.put_set(&members);
    let asks = Match {
        eth_type: Some(IPV4),
        ..Match::default()
    };
    let rules = [rule(1, from_set(), Verdict::Allow), rule(2, asks, Verdict::Ask)];
    switch.put_list(LIST, &rules, Verdict::Drop);
    let frame = |address: Ipv4Addr| {
        let mut frame = udp(1, 53);
        frame[26..30].copy_from_slice(&address.octets());
        frame
    };
    for number in 0..ADDRESSES {
        // All over the range, each one once.
        let address = Ipv4Addr::from_bits(number.wrapping_mul(0x9e37_79b1));
        assert!(!members.contains(&Member::Address(prefix(address, 32))));
        a.send(&frame(address));
        let upcall = switch.upcall();
        assert_eq!(upcall.packet.frame[26..30], address.octets());
        switch.discard(upcall.id, DropReason::AddressLimit);
    }
    switch.until(1, "all were refused", |counters| {
        counters.discarded.get(DropReason::AddressLimit) == u64::from(ADDRESSES)
    });
    // A kind for each bit in which an address differs from a member.
    let kinds = switch.kinds();
    assert!((1..=32 * LIMIT as usize).contains(&kinds), "{kinds}");
    for number in 0..LIMIT {
        a.send(&frame(of_port(number)));
        b.expect_plain(&frame(of_port(number)));
    }
    b.expect_nothing();
    switch.finish();
}
