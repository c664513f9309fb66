//! Rules that mark packets: priorities in tags and codepoints of IP, compared with the naive way, with
//! checksums that are right, open, or of segments to come.

use crate::support::control::Controller;
use crate::support::frames::{Tcp, mac, plain, segments, sum, tagged};
use crate::support::guest::{ALL, LEAST};
use crate::support::{Guest, Layout, Setup, Switch};
use control_protocol::data_plane::Request;
use control_protocol::rules::{Base, RuleRequest};
use flow::{Action, DropReason, Filter, Filters, ListId, PortId};
use rule_list::{Marks, Match, Rule, Verdict, Vlan};
use wire::VnetHeader;

const LIST: ListId = ListId(9);
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const BOTH: Marks = Marks {
    vlan_priority: Some(3),
    dscp: Some(10),
};
/// Codepoint 46, and a congestion mark.
const TOS: u8 = 46 << 2 | 1;

impl Controller {
    fn mark(&mut self, rules: Vec<Rule>) {
        let (list, base, default) = (LIST, Base::Empty, Verdict::Allow);
        for request in [
            RuleRequest::Begin { list, base, default },
            RuleRequest::Add { list, rules },
            RuleRequest::Commit { list, tag: 1 },
        ] {
            self.done(Request::Rules(request));
        }
    }
}

/// The rules of a port whose packets get both marks.
fn rules() -> Vec<Rule> {
    let dscp = Marks {
        vlan_priority: None,
        ..BOTH
    };
    let priority = Marks { dscp: None, ..BOTH };
    let stated = [
        (Some(0x8100), None, Verdict::Drop),
        (Some(IPV4), Some(Vlan::Tagged), Verdict::Mark(BOTH)),
        (Some(IPV6), Some(Vlan::Tagged), Verdict::Mark(BOTH)),
        (Some(IPV4), None, Verdict::Mark(dscp)),
        (Some(IPV6), None, Verdict::Mark(dscp)),
        (None, Some(Vlan::Tagged), Verdict::Mark(priority)),
    ];
    let rule = |(number, (eth_type, vlan, verdict))| Rule {
        number,
        priority: 100 - number,
        matches: Match {
            eth_type,
            vlan,
            ..Match::default()
        },
        verdict,
        trial: false,
        log: false,
    };
    (0..).zip(stated).map(rule).collect()
}

/// Port 1's packets are marked and go to port 2, whose guest has these features.
fn pair(features: u64) -> (Switch, Guest, Guest) {
    let mut filters = Filters::default();
    filters.ingress[flow::MARKS] = Filter::Rules(LIST);
    let mut switch = Switch::start();
    switch.add_with(1, filters);
    switch.add_with(2, Filters::default());
    switch.flow(1, &[Action::Output(PortId(2))]);
    let a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        features,
        ..Setup::default()
    };
    let b = Guest::start(&mut switch, 2, setup);
    switch.mark(rules());
    (switch, a, b)
}

/// Gives the IP header at `l3` this traffic class, and IPv4 a checksum made of nothing.
fn set_class(frame: &mut [u8], l3: usize, class: u8) {
    if frame[l3] >> 4 == 6 {
        frame[l3] = 0x60 | class >> 4;
        frame[l3 + 1] = frame[l3 + 1] & 0xf | class << 4;
        return;
    }
    frame[l3 + 1] = class;
    frame[l3 + 10..l3 + 12].fill(0);
    let checksum = !(sum(&frame[l3..l3 + 20], 0) as u16);
    frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// The frame with both marks, as far as it has a tag.
fn marked(frame: &[u8], l3: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    set_class(&mut frame, l3, 10 << 2 | TOS & 3);
    if l3 > 14 {
        frame[14] = frame[14] & 0x1f | 3 << 5;
    }
    frame
}

/// Of both versions of IP, with and without a tag.
fn packets(payload: usize) -> impl Iterator<Item = Tcp> {
    let vlans = [None, Some(0x0005), Some(0xe005)];
    let all = [false, true]
        .into_iter()
        .flat_map(move |v6| vlans.map(|vlan| (v6, vlan)));
    all.map(move |(v6, vlan)| Tcp {
        vlan,
        ..Tcp::new(v6, payload)
    })
}

fn classed(tcp: &Tcp, complete: bool) -> Vec<u8> {
    let mut frame = tcp.frame(1, 2, complete);
    set_class(&mut frame, tcp.l3(), TOS);
    frame
}

#[test]
fn marks_are_set_and_checksums_stay_as_they_were() {
    let (switch, mut a, mut b) = pair(ALL);
    // The second time from the cache.
    for _ in 0..2 {
        for tcp in packets(100) {
            let frame = classed(&tcp, true);
            a.send(&frame);
            b.expect_plain(&marked(&frame, tcp.l3()));
            // A checksum that the receiver is to complete, and a frame that somebody is to segment.
            for (size, payload) in [(0, 100), (1400, 5000)] {
                let tcp = Tcp {
                    payload,
                    ..tcp.clone()
                };
                let frame = classed(&tcp, false);
                a.send_as(&tcp.header(size), &frame, &Layout::Apart);
                let header = b.expect(&marked(&frame, tcp.l3()));
                let expected = VnetHeader {
                    num_buffers: header.num_buffers,
                    ..tcp.header(size)
                };
                assert_eq!(header, expected);
            }
        }
    }
    switch.finish();
}

#[test]
fn segments_have_the_marks_of_their_packet() {
    let (switch, mut a, mut b) = pair(LEAST);
    for tcp in packets(5000) {
        a.send_as(&tcp.header(1400), &classed(&tcp, false), &Layout::Apart);
        for mut segment in segments(&tcp, 1, 2, 1400) {
            set_class(&mut segment, tcp.l3(), TOS);
            b.expect_plain(&marked(&segment, tcp.l3()));
        }
    }
    switch.finish();
}

#[test]
fn what_has_no_marks_passes_and_what_hides_them_does_not() {
    let (mut switch, mut a, mut b) = pair(ALL);
    let other = plain(1, 2, 60, 7);
    a.send(&other);
    b.expect_plain(&other);
    // Behind a tag there is a priority, whatever the packet is.
    let frame = tagged(&other, 0xa005);
    a.send(&frame);
    let mut expected = frame.clone();
    expected[14] = 0x60;
    b.expect_plain(&expected);
    // Behind two tags, of which the outer one counts; and in SNAP.
    let tcp = Tcp::new(false, 100);
    let ip = classed(&tcp, true).split_off(14);
    let head = [mac(2), mac(1)].concat();
    let double = [&head[..], &[0x88, 0xa8, 0xe0, 7, 0x81, 0, 0xe0, 8, 8, 0], &ip].concat();
    a.send(&double);
    b.expect_plain(&marked(&double, 22));
    let snap = [&head[..], &[0, 160, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &ip].concat();
    a.send(&snap);
    let mut expected = snap.clone();
    set_class(&mut expected, 22, 10 << 2 | TOS & 3);
    b.expect_plain(&expected);
    // A third tag hides what is behind it.
    let triple = [
        &head[..],
        &[0x81, 0, 0, 7, 0x81, 0, 0, 8, 0x81, 0, 0, 9, 8, 0],
        &ip,
    ]
    .concat();
    a.send(&triple);
    switch.until(1, "it is dropped", |counters| {
        counters.dropped.get(DropReason::Policy) == 1
    });
    b.expect_nothing();
    switch.finish();
}

#[test]
fn marks_that_no_field_holds_are_refused() {
    let (mut switch, _a, _b) = pair(ALL);
    for marks in [
        Marks {
            vlan_priority: Some(8),
            ..Marks::default()
        },
        Marks {
            dscp: Some(64),
            ..Marks::default()
        },
    ] {
        let (list, base, default) = (LIST, Base::Empty, Verdict::Allow);
        switch.done(Request::Rules(RuleRequest::Begin { list, base, default }));
        let rules = vec![Rule {
            verdict: Verdict::Mark(marks),
            ..rules().remove(0)
        }];
        let refused = switch.refused(Request::Rules(RuleRequest::Add { list, rules }));
        assert_eq!(refused, rustix::io::Errno::INVAL);
    }
    switch.finish();
}
