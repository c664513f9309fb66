//! Rule lists as filters of ports: what they let pass, changes of lists and sets, and requests that are
//! refused.

use crate::support::control::Controller;
use crate::support::{Guest, Switch};
use control_protocol::data_plane::{Answer, FoundRule, Request, TraceStep};
use control_protocol::rules::{
    Base, ListInfo, MAX_DRAFTS, MAX_MEMBERS_PER_REQUEST, MAX_RULES_PER_REQUEST, RuleAnswer, RuleRequest,
    SetInfo,
};
use flow::{Action, ControllerId, DropReason, Filter, Filters, FlowStats, ListId, PortId, Stage};
use rule_list::{Addresses, IpPrefix, Match, Member, Range, Rule, SetId, SetKind, Transport, Verdict};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub const LIST: ListId = ListId(7);
const SET: SetId = SetId(3);
const IPV4: u16 = 0x0800;
const UDP: u8 = 17;

/// A filter at the third place: this list.
fn rules(list: ListId) -> [Filter; 4] {
    let mut filters = [Filter::Absent; 4];
    filters[2] = Filter::Rules(list);
    filters
}

pub fn ingress(list: ListId) -> Filters {
    Filters {
        ingress: rules(list),
        ..Filters::default()
    }
}

pub fn egress(list: ListId) -> Filters {
    Filters {
        egress: rules(list),
        ..Filters::default()
    }
}

/// UDP over IPv4 from port 1's guest to port 2's.
pub fn udp(source: u8, to: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, UDP, 0, 0]);
    frame.extend([10, 0, 0, source, 10, 0, 0, 2]);
    frame.extend([0x10, 0]);
    frame.extend(to.to_be_bytes());
    frame.extend([0, 26, 0, 0]);
    frame.resize(60, source);
    frame
}

fn address(last: u8) -> Member {
    Member::Address(IpPrefix {
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
        len: 32,
    })
}

pub fn rule(number: u32, matches: Match, verdict: Verdict) -> Rule {
    Rule {
        number,
        priority: 1000 - number,
        matches,
        verdict,
        trial: false,
        log: false,
    }
}

pub fn to_port(first: u16, last: u16) -> Match {
    Match {
        eth_type: Some(IPV4),
        ip_proto: Some(UDP),
        transport: Some(Transport::Ports {
            source: Range::ALL,
            destination: Range { first, last },
        }),
        ..Match::default()
    }
}

fn from_set(set: SetId) -> Match {
    Match {
        eth_type: Some(IPV4),
        ip_src: Some(Addresses::Set(set)),
        ..Match::default()
    }
}

pub fn commit(list: ListId) -> RuleRequest {
    RuleRequest::Commit { list, tag: 1 }
}

pub fn begin(list: ListId, base: Base, default: Verdict) -> RuleRequest {
    RuleRequest::Begin { list, base, default }
}

fn change(set: SetId, remove: &[Member], add: &[Member]) -> RuleRequest {
    RuleRequest::SetChange {
        set,
        remove: remove.to_vec(),
        add: add.to_vec(),
    }
}

impl Controller {
    #[track_caller]
    pub fn rules(&mut self, request: RuleRequest) {
        self.done(Request::Rules(request));
    }

    /// Makes a version of a list.
    #[track_caller]
    pub fn put_list(&mut self, list: ListId, rules: &[Rule], default: Verdict) {
        self.rules(begin(list, Base::Empty, default));
        for rules in rules.chunks(MAX_RULES_PER_REQUEST) {
            let rules = rules.to_vec();
            self.rules(RuleRequest::Add { list, rules });
        }
        self.rules(commit(list));
    }

    #[track_caller]
    fn page(&mut self, request: RuleRequest) -> RuleAnswer {
        match self.ask(Request::Rules(request)) {
            Ok(Answer::Rules(page)) => page,
            other => panic!("{other:?}"),
        }
    }

    /// Packets of the list's default and of its rules, by number.
    #[track_caller]
    pub fn counted(&mut self, list: ListId) -> (u64, Vec<(u32, u64)>) {
        let RuleAnswer::Rules { default, rules, more } = self.page(RuleRequest::Rules { list, from: 0 })
        else {
            panic!("no rules")
        };
        assert!(!more);
        let counted = |(rule, stats): &(Rule, FlowStats)| (rule.number, stats.packets);
        (default.packets, rules.iter().map(counted).collect())
    }

    #[track_caller]
    fn refuses(&mut self, request: RuleRequest) -> Errno {
        self.refused(Request::Rules(request))
    }
}

/// Two guests; packets of the first go to the second, and the ports have these filters.
pub fn pair(first: Filters, second: Filters) -> (Switch, Guest, Guest) {
    let mut switch = Switch::start();
    switch.add_with(1, first);
    switch.add_with(2, second);
    switch.flow(1, &[Action::Output(PortId(2))]);
    let a = Guest::usual(&mut switch, 1);
    let b = Guest::usual(&mut switch, 2);
    (switch, a, b)
}

#[test]
fn a_port_is_guarded_from_its_first_packet_on() {
    for (first, second) in [
        (ingress(LIST), Filters::default()),
        (Filters::default(), egress(LIST)),
    ] {
        let (mut switch, mut a, mut b) = pair(first, second);
        // No list yet: closed.
        (0..3).for_each(|_| a.send(&udp(1, 53)));
        switch.until_dropped(1, DropReason::NoRules, 3);
        switch.put_list(LIST, &[rule(1, to_port(50, 60), Verdict::Allow)], Verdict::Drop);
        for round in 1..=3 {
            a.send(&udp(1, 53));
            b.expect_plain(&udp(1, 53));
            a.send(&udp(1, 61));
            switch.until_dropped(1, DropReason::Policy, round);
        }
        // Removed: closed again.
        switch.rules(RuleRequest::Delete { list: LIST });
        a.send(&udp(1, 53));
        switch.until_dropped(1, DropReason::NoRules, 4);
        b.expect_nothing();
        switch.finish();
    }
}

#[test]
fn rules_count_what_they_decide_about_and_go_on_in_the_next_version() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), egress(LIST));
    let trial = Rule {
        trial: true,
        ..rule(1, to_port(53, 53), Verdict::Drop)
    };
    let rules = [
        trial,
        rule(2, to_port(50, 60), Verdict::Allow),
        rule(3, Match::default(), Verdict::Reject),
    ];
    switch.put_list(LIST, &rules, Verdict::Allow);
    for to in [53, 54, 61, 53] {
        a.send(&udp(1, to));
    }
    (0..3).for_each(|_| drop(b.receive()));
    switch.until_dropped(1, DropReason::Rejected, 1);
    // The list is asked twice about packets that pass.
    let expected = (0, vec![(1, 4), (2, 6), (3, 1)]);
    crate::support::eventually("all is counted", || switch.counted(LIST) == expected);
    let request = begin(LIST, Base::Present, Verdict::Drop);
    switch.rules(request);
    switch.rules(RuleRequest::Remove {
        list: LIST,
        rules: vec![3],
    });
    let new = rule(9, to_port(70, 70), Verdict::Allow);
    switch.rules(RuleRequest::Add {
        list: LIST,
        rules: vec![new],
    });
    switch.rules(commit(LIST));
    assert_eq!(switch.counted(LIST), (0, vec![(1, 4), (2, 6), (9, 0)]));
    a.send(&udp(1, 61));
    switch.until_dropped(1, DropReason::Policy, 1);
    a.send(&udp(1, 70));
    b.expect_plain(&udp(1, 70));
    let expected = (1, vec![(1, 4), (2, 6), (9, 2)]);
    crate::support::eventually("all is counted", || switch.counted(LIST) == expected);
    switch.finish();
}

/// From caches of all threads: each guest's packets may be served by any of them.
#[test]
fn the_first_packet_after_an_answer_obeys_the_change() {
    let (mut switch, mut a, mut b) = pair(Filters::default(), egress(LIST));
    switch.rules(RuleRequest::SetAdd {
        set: SET,
        kind: SetKind::Addresses,
    });
    switch.put_list(LIST, &[rule(1, from_set(SET), Verdict::Allow)], Verdict::Drop);
    let mut dropped = 0;
    for round in 0..40 {
        let mine = udp(5, 1000 + round);
        a.send(&mine);
        dropped += 1;
        switch.until_dropped(1, DropReason::Policy, dropped);
        switch.rules(change(SET, &[], &[address(5), address(6)]));
        a.send(&mine);
        b.expect_plain(&mine);
        switch.rules(change(SET, &[address(5)], &[]));
        a.send(&mine);
        dropped += 1;
        switch.until_dropped(1, DropReason::Policy, dropped);
        // Another decision is about this packet.
        a.send(&udp(6, 53));
        b.expect_plain(&udp(6, 53));
        if round % 4 == 0 {
            switch.put_list(LIST, &[rule(1, Match::default(), Verdict::Allow)], Verdict::Drop);
            a.send(&mine);
            b.expect_plain(&mine);
            switch.put_list(LIST, &[rule(1, from_set(SET), Verdict::Allow)], Verdict::Drop);
        }
    }
    switch.finish();
}

/// Whatever thread is in the middle of a packet: after the answer nothing passes.
#[test]
fn no_packet_that_comes_after_the_answer_passes() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let allow = [rule(1, Match::default(), Verdict::Allow)];
    for round in 0..30u8 {
        switch.put_list(LIST, &allow, Verdict::Drop);
        let old = udp(round, 1);
        (0..8).for_each(|_| a.send(&old));
        switch.put_list(LIST, &[], Verdict::Drop);
        let new = udp(100 + round, 1);
        (0..4).for_each(|_| a.send(&new));
        a.all_sent();
        // What was sent before a change may still be on its way in the next round.
        while let Some((_, frame)) = b.try_receive() {
            assert!((0..=round).any(|round| frame == udp(round, 1)), "round {round}");
        }
    }
    switch.finish();
}

#[test]
fn lists_outlive_their_controllers_process_and_drafts_do_not() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), egress(ListId(8)));
    switch.rules(RuleRequest::SetAdd {
        set: SET,
        kind: SetKind::Addresses,
    });
    switch.rules(change(SET, &[], &[address(1), address(4)]));
    switch.put_list(LIST, &[rule(1, from_set(SET), Verdict::Allow)], Verdict::Drop);
    switch.put_list(ListId(8), &[], Verdict::Allow);
    switch.rules(begin(LIST, Base::Present, Verdict::Allow));
    switch.disconnect();
    // Kinds of packets that nobody has seen.
    for to in 1..20 {
        a.send(&udp(4, to));
        b.expect_plain(&udp(4, to));
        a.send(&udp(9, to));
    }
    switch.connect();
    switch.until_dropped(1, DropReason::Policy, 19);
    assert_eq!(switch.refuses(commit(LIST)), Errno::NOENT, "the draft is gone");
    let info = |list, default, rules| ListInfo {
        list,
        tag: 1,
        default,
        rules,
    };
    let lists = vec![info(LIST, Verdict::Drop, 1), info(ListId(8), Verdict::Allow, 0)];
    let more = false;
    assert_eq!(
        switch.page(RuleRequest::Lists { after: None }),
        RuleAnswer::Lists { lists, more }
    );
    let sets = vec![SetInfo {
        set: SET,
        kind: SetKind::Addresses,
        members: 2,
        lists: 1,
    }];
    assert_eq!(
        switch.page(RuleRequest::Sets { after: None }),
        RuleAnswer::Sets { sets, more }
    );
    let members = vec![address(1), address(4)];
    let after = None;
    assert_eq!(
        switch.page(RuleRequest::Members { set: SET, after }),
        RuleAnswer::Members { members, more }
    );
    switch.finish();
}

#[test]
fn a_trace_names_list_and_rule() {
    let (mut switch, a, b) = pair(ingress(LIST), egress(ListId(8)));
    let trial = Rule {
        trial: true,
        ..rule(1, Match::default(), Verdict::Drop)
    };
    switch.put_list(
        LIST,
        &[trial, rule(2, to_port(53, 53), Verdict::Allow)],
        Verdict::Drop,
    );
    let in_port = PortId(1);
    let frame = udp(1, 53);
    let Ok(Answer::Trace(steps)) = switch.ask(Request::Trace { in_port, frame }) else {
        panic!("no trace")
    };
    let found: Vec<_> = steps
        .iter()
        .filter_map(|step| match step {
            TraceStep::Rule { stage, list, found } => Some((*stage, *list, *found)),
            _ => None,
        })
        .collect();
    let verdict = Verdict::Drop;
    let allowed = Verdict::Allow;
    assert_eq!(
        found,
        [
            (Stage::Ingress(2), LIST, FoundRule::Trial { number: 1, verdict }),
            (
                Stage::Ingress(2),
                LIST,
                FoundRule::Rule {
                    number: 2,
                    verdict: allowed
                }
            ),
            (Stage::Egress(PortId(2), 2), ListId(8), FoundRule::NoList),
        ]
    );
    let dropped = TraceStep::Dropped {
        port: None,
        reason: DropReason::NoRules,
    };
    assert_eq!(steps.last(), Some(&dropped));
    drop((a, b));
    switch.finish();
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    switch.put_list(LIST, &[], Verdict::Allow);
    let foreign = ControllerId::OVS.list(7).unwrap();
    for request in [
        begin(foreign, Base::Empty, Verdict::Allow),
        RuleRequest::Delete { list: foreign },
        commit(foreign),
        RuleRequest::Discard { list: foreign },
        RuleRequest::Add {
            list: foreign,
            rules: Vec::new(),
        },
    ] {
        assert_eq!(switch.refuses(request), Errno::PERM);
    }
    let list = LIST;
    assert_eq!(switch.refuses(commit(LIST)), Errno::NOENT);
    assert_eq!(
        switch.refuses(begin(ListId(9), Base::Present, Verdict::Drop)),
        Errno::NOENT
    );
    // A refused piece ends the draft.
    let bad = Match {
        ip_proto: None,
        ..to_port(1, 2)
    };
    let none = Match::default();
    for (rules, errno) in [
        (vec![rule(1, bad, Verdict::Allow)], Errno::INVAL),
        (vec![rule(1, to_port(2, 1), Verdict::Allow)], Errno::INVAL),
        (vec![rule(1, none.clone(), Verdict::Allow); 2], Errno::EXIST),
        (
            vec![rule(1, none, Verdict::Allow); MAX_RULES_PER_REQUEST + 1],
            Errno::TOOBIG,
        ),
    ] {
        switch.rules(begin(LIST, Base::Empty, Verdict::Drop));
        assert_eq!(switch.refuses(RuleRequest::Add { list, rules }), errno);
        assert_eq!(switch.refuses(commit(LIST)), Errno::NOENT);
    }
    switch.rules(begin(LIST, Base::Present, Verdict::Drop));
    assert_eq!(
        switch.refuses(RuleRequest::Remove { list, rules: vec![4] }),
        Errno::NOENT
    );
    for number in 1..=MAX_DRAFTS as u32 {
        switch.rules(begin(ListId(100 + number), Base::Empty, Verdict::Drop));
    }
    assert_eq!(
        switch.refuses(begin(ListId(200), Base::Empty, Verdict::Drop)),
        Errno::NOSPC
    );
    switch.rules(RuleRequest::Discard { list: ListId(101) });
    // A set that is not there.
    switch.rules(begin(LIST, Base::Empty, Verdict::Drop));
    let rules = vec![rule(1, from_set(SET), Verdict::Allow)];
    switch.rules(RuleRequest::Add {
        list,
        rules: rules.clone(),
    });
    assert_eq!(switch.refuses(commit(LIST)), Errno::NOENT);
    let kind = SetKind::Addresses;
    switch.rules(RuleRequest::SetAdd { set: SET, kind });
    assert_eq!(
        switch.refuses(RuleRequest::SetAdd { set: SET, kind }),
        Errno::EXIST
    );
    let port = Member::Port(PortId(1));
    assert_eq!(
        switch.refuses(change(SET, &[], &[address(1), port])),
        Errno::INVAL
    );
    let too_many = vec![address(1); MAX_MEMBERS_PER_REQUEST + 1];
    assert_eq!(switch.refuses(change(SET, &too_many, &[])), Errno::TOOBIG);
    assert_eq!(
        switch.refuses(change(SetId(99), &[], &[address(1)])),
        Errno::NOENT
    );
    let RuleAnswer::Members { members, .. } = switch.page(RuleRequest::Members {
        set: SET,
        after: None,
    }) else {
        panic!("no members")
    };
    assert_eq!(members, [], "nothing has changed");
    // All that time the list is what it was.
    a.send(&udp(1, 53));
    b.expect_plain(&udp(1, 53));
    switch.put_list(LIST, &rules, Verdict::Allow);
    assert_eq!(switch.refuses(RuleRequest::SetDel { set: SET }), Errno::BUSY);
    switch.rules(RuleRequest::Delete { list: LIST });
    switch.rules(RuleRequest::SetDel { set: SET });
    switch.rules(RuleRequest::SetDel { set: SET });
    assert_eq!(switch.refuses(RuleRequest::Rules { list, from: 0 }), Errno::NOENT);
    switch.finish();
}

/// Sets and lists of a controller are its own; filters of its ports may name another one's lists.
#[test]
fn another_controllers_port_is_judged_by_a_list_of_the_built_in_one() {
    let mut switch = Switch::start();
    switch.put_list(LIST, &[rule(1, to_port(53, 53), Verdict::Allow)], Verdict::Drop);
    let mut other = switch.controller(1);
    let (first, second) = (other.own(1), other.own(2));
    other.add_with(first, ingress(LIST));
    other.add(second);
    let flow = Switch::port_flow(first, &[Action::Output(PortId(second))]);
    other.put(flow);
    let mut a = Guest::usual(&mut other, first);
    let mut b = Guest::usual(&mut other, second);
    a.send(&udp(1, 53));
    b.expect_plain(&udp(1, 53));
    a.send(&udp(1, 54));
    other.until_dropped(first, DropReason::Policy, 1);
    assert_eq!(other.refuses(RuleRequest::Delete { list: LIST }), Errno::PERM);
    assert_eq!(
        other.page(RuleRequest::Lists { after: None }),
        RuleAnswer::Lists {
            lists: Vec::new(),
            more: false
        }
    );
    other.settle();
    switch.finish();
}

/// A list of ten thousand rules is made in pieces, between which others are served.
#[test]
fn a_large_list_holds_up_nobody() {
    const RULES: u32 = 10_000;
    let (mut switch, mut a, mut b) = pair(ingress(LIST), Filters::default());
    let one = |number: u32| {
        let source = IpPrefix {
            address: IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 | number << 3)),
            len: 29,
        };
        let matches = Match {
            ip_src: Some(Addresses::Prefix(source)),
            ..to_port(number as u16, number as u16 + 3)
        };
        Rule {
            priority: RULES - number,
            ..rule(number.min(999), matches, Verdict::Drop)
        }
    };
    let all: Vec<_> = (0..RULES)
        .map(|number| Rule {
            number,
            ..one(number)
        })
        .collect();
    switch.rules(begin(LIST, Base::Empty, Verdict::Allow));
    for rules in all.chunks(MAX_RULES_PER_REQUEST) {
        let rules = rules.to_vec();
        switch.rules(RuleRequest::Add { list: LIST, rules });
    }
    let committed = switch.tell(Request::Rules(commit(LIST)), &[]);
    let barrier = switch.tell(Request::Barrier, &[]);
    let answers = [switch.any_answer(), switch.any_answer()];
    assert!(answers.iter().all(|(_, answer)| *answer == Ok(Answer::Done)));
    assert_eq!([answers[0].0, answers[1].0], [barrier, committed]);
    a.send(&udp(1, 53));
    b.expect_plain(&udp(1, 53));
    // Page by page.
    let (mut from, mut found) = (0, Vec::new());
    while let RuleAnswer::Rules { rules, more, .. } = switch.page(RuleRequest::Rules { list: LIST, from }) {
        from += rules.len() as u32;
        found.extend(rules.into_iter().map(|(rule, _)| rule));
        if !more {
            break;
        }
    }
    assert_eq!(found, all);
    switch.finish();
}

/// What lies behind the first 128 bytes is looked at where a list asks for it, and is never taken for zero.
#[test]
fn headers_behind_the_head_do_not_hide_ports() {
    let (mut switch, mut a, mut b) = pair(Filters::default(), egress(LIST));
    let mut matches = to_port(53, 53);
    matches.eth_type = Some(0x86dd);
    switch.put_list(LIST, &[rule(1, matches, Verdict::Drop)], Verdict::Allow);
    let deep = |to: u8| {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
        // Destination options of 160 bytes, and UDP behind them.
        frame.extend([0x60, 0, 0, 0, 0, 176, 60, 64]);
        frame.extend([[0xfd; 16], [0xfe; 16]].concat());
        frame.extend([UDP, 19, 1, 156]);
        frame.resize(14 + 40 + 160, 0);
        frame.extend([0, 9, 0, to, 0, 16, 0, 0]);
        frame.resize(frame.len() + 8, to);
        frame
    };
    for round in 1..=3 {
        a.send(&deep(53));
        switch.until_dropped(1, DropReason::Policy, round);
        a.send(&deep(54));
        b.expect_plain(&deep(54));
    }
    b.receive_within(Duration::from_millis(1));
    switch.finish();
}
