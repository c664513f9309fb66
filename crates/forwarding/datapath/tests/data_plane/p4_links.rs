//! P4 programs that links join: in sequence, in parallel and by condition, one around another one, with loops
//! that end and programs that are missing or change.

use crate::p4::{P4, ROUTES, commands, routed, version};
use crate::support::control::Controller;
use crate::support::frames::{Tcp, mac, plain};
use crate::support::{Guest, Layout, Switch};
use control_protocol::data_plane::Request;
use control_protocol::p4::{P4Attachment, P4Binding, P4Counts, P4Request};
use flow::{DropReason, P4Id, PortId};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// The P4 switch that is joined with the usual one.
const TENANT: P4Id = P4Id(6);
const OTHER: P4Id = P4Id(7);

const fn end(switch: P4Id, port: u16) -> P4Binding {
    P4Binding { switch, port }
}

impl Controller {
    #[track_caller]
    fn link(&mut self, links: &[[P4Binding; 2]]) {
        let links = links.to_vec();
        self.p4(P4Request::Link { links });
    }

    #[track_caller]
    fn bind_at(&mut self, port: u32, switch: P4Id, place: u16) {
        let binding = Some(end(switch, place));
        let port = PortId(port);
        self.done(Request::PortP4 {
            port,
            attachment: P4Attachment::bound(binding),
        });
    }

    #[track_caller]
    fn counts_of(&mut self, switch: P4Id) -> P4Counts {
        let all = self.p4_switches();
        let own = all.into_iter().find(|info| info.switch == switch);
        own.unwrap().counts
    }
}

/// An L2 switch whose ports 1 and 2 are of the data plane; frames for the router go to its port 3, and come
/// back, with other addresses, by its port 4.
fn around(operator: &str) -> (Switch, BTreeMap<u32, Guest>) {
    let mut switch = Switch::with_ports(2);
    let operator = format!("setdefault smac NoAction()\n{operator}");
    switch.put_p4(P4, &version("l2_switch", &commands(&operator)), 1);
    switch.put_p4(TENANT, &version("router", &commands(ROUTES)), 1);
    [1, 2].into_iter().for_each(|port| switch.bind(port, port as u16));
    let guests = [1, 2].map(|port| (port, Guest::usual(&mut switch, port)));
    (switch, guests.into())
}

const AROUND: [[P4Binding; 2]; 2] = [[end(P4, 3), end(TENANT, 1)], [end(P4, 4), end(TENANT, 2)]];

const OPERATOR: &str = "
add dmac hdr.ethernet.dst:0x020000000002 forward(port:3)
add dmac hdr.ethernet.dst:0x020000000102 forward(port:2)
add dmac hdr.ethernet.dst:0x020000000001 forward(port:1)
";

#[test]
fn a_program_stands_around_another_one() {
    let (mut switch, mut guests) = around(OPERATOR);
    switch.link(&AROUND);
    // Of each kind some frames run, and others find their verdicts at both programs.
    for _ in 0..10 {
        for payload in [10, 1400, 9000, 65_535 - 72] {
            let tcp = Tcp::new(false, payload);
            let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
            guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
            let received = guests.get_mut(&2).unwrap().expect(&routed(&frame));
            let wanted = if payload > 1400 { header.gso_size } else { 0 };
            assert_eq!(
                (received.flags, received.gso_size),
                (header.flags, wanted),
                "{payload}"
            );
        }
        // The other way, past the tenant's program.
        let back = plain(2, 1, 100, 7);
        guests.get_mut(&2).unwrap().send(&back);
        guests.get_mut(&1).unwrap().expect_plain(&back);
    }
    switch.until_ended(1, 40);
    switch.until_ended(2, 10);
    let (own, tenant) = (switch.counts_of(P4), switch.counts_of(TENANT));
    assert_eq!((own.packets, own.outputs), (90, 90));
    assert_eq!((tenant.packets, tenant.outputs), (40, 40));
    assert!(own.repeated > 60 && tenant.repeated > 25, "{own:?} {tenant:?}");
    assert!(own.drops.is_empty() && tenant.drops.is_empty());
    assert_eq!(switch.counters(1).copies, 0);
    switch.finish();
}

#[test]
fn programs_in_sequence_have_ports_of_their_own_and_both_ways() {
    let mut switch = Switch::with_ports(2);
    let to = |forward: &str| {
        version(
            "l2_switch",
            &commands(&format!("setdefault smac NoAction()\n{forward}")),
        )
    };
    let first = "add dmac hdr.ethernet.dst:0x020000000002 forward(port:9)\n\
                 add dmac hdr.ethernet.dst:0x020000000001 forward(port:1)";
    let last = "add dmac hdr.ethernet.dst:0x020000000002 forward(port:1)\n\
                add dmac hdr.ethernet.dst:0x020000000001 forward(port:9)";
    switch.put_p4(P4, &to(first), 1);
    switch.put_p4(TENANT, &to(last), 1);
    switch.bind_at(1, P4, 1);
    switch.bind_at(2, TENANT, 1);
    switch.link(&[[end(P4, 9), end(TENANT, 9)]]);
    let [mut one, mut two] = [1, 2].map(|port| Guest::usual(&mut switch, port));
    for length in 60..80 {
        let (there, back) = (plain(1, 2, length, 7), plain(2, 1, length, 8));
        one.send(&there);
        two.expect_plain(&there);
        two.send(&back);
        one.expect_plain(&back);
    }
    // Time is charged to whoever ran.
    for id in [P4, TENANT] {
        let counts = switch.counts_of(id);
        assert_eq!((counts.packets, counts.outputs), (40, 40));
    }
    // Parted, the packets of one do not reach the other.
    switch.link(&[]);
    one.send(&plain(1, 2, 60, 7));
    switch.until_dropped(1, DropReason::NoSuchPort, 1);
    switch.finish();
}

#[test]
fn a_program_copies_to_several_links_in_parallel() {
    let flood = "
setdefault smac NoAction()
mc_mgrp_create 2
mc_node_create 0 2 3
mc_node_associate 2 0
";
    let mut switch = Switch::with_ports(3);
    let discard = "setdefault smac NoAction()\nadd dmac hdr.ethernet.dst:0x020000000002 discard()";
    let forward = "setdefault smac NoAction()\nadd dmac hdr.ethernet.dst:0x020000000002 forward(port:2)";
    for (id, entries) in [(P4, flood), (TENANT, discard), (OTHER, forward)] {
        switch.put_p4(id, &version("l2_switch", &commands(entries)), 1);
    }
    switch.bind_at(1, P4, 1);
    switch.bind_at(2, TENANT, 2);
    switch.bind_at(3, OTHER, 2);
    switch.link(&[[end(P4, 2), end(TENANT, 1)], [end(P4, 3), end(OTHER, 1)]]);
    let [mut one, mut two, mut three] = [1, 2, 3].map(|port| Guest::usual(&mut switch, port));
    for number in 1..=20 {
        let frame = plain(1, 2, 500, 7);
        one.send(&frame);
        three.expect_plain(&frame);
        switch.until_dropped(1, DropReason::Policy, number);
    }
    one.expect_nothing();
    two.expect_nothing();
    assert_eq!(switch.counters(1).copies, 20, "one more of each");
    switch.finish();
}

#[test]
fn packets_that_circle_over_links_end_and_are_counted() {
    let circle = "setdefault smac NoAction()\n\
                  add dmac hdr.ethernet.dst:0x020000000002 forward(port:3)\n\
                  add dmac hdr.ethernet.dst:0x020000000009 forward(port:2)";
    let (mut switch, mut guests) = around(circle);
    switch.link(&[[end(P4, 3), end(P4, 4)]]);
    let (circling, other) = (plain(1, 2, 100, 7), plain(1, 9, 100, 7));
    for number in 1..=50 {
        guests.get_mut(&1).unwrap().send(&circling);
        guests.get_mut(&1).unwrap().send(&other);
        guests.get_mut(&2).unwrap().expect_plain(&other);
        switch.until_dropped(1, DropReason::TooDeep, number);
    }
    let counts = switch.counts_of(P4);
    assert_eq!(counts.packets, 50 * 9 + 50, "eight links, and the port");
    assert_eq!(counts.drops, [("links".to_owned(), 50)]);
    switch.finish();
}

/// Each packet becomes two at each link, without end but for the bounds.
#[test]
fn copies_over_links_are_bounded() {
    // The group of packets that came by port 1 has number 2.
    let flood = |(node, group): (usize, u32)| {
        format!("mc_mgrp_create {group}\nmc_node_create 0 3 5\nmc_node_associate {group} {node}\n")
    };
    let flood: String = [2, 5, 7].into_iter().enumerate().map(flood).collect();
    let flood = flood + "add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)";
    let (mut switch, mut guests) = around(&flood);
    switch.link(&[[end(P4, 3), end(P4, 4)], [end(P4, 5), end(P4, 6)]]);
    let (copied, other) = (
        [&mac(7)[..], &mac(1), &[8, 0], &[7; 86]].concat(),
        plain(1, 2, 100, 7),
    );
    for number in 1..=100 {
        guests.get_mut(&1).unwrap().send(&copied);
        guests.get_mut(&1).unwrap().send(&other);
        guests.get_mut(&2).unwrap().expect_plain(&other);
        switch.until_ended(1, 2 * number);
    }
    let dropped = switch.counters(1).dropped;
    let [deep, full] = [DropReason::TooDeep, DropReason::QueueFull].map(|reason| dropped.get(reason));
    assert!(
        deep + full >= 100 && deep + full == dropped.total(),
        "{dropped:?}"
    );
    assert!(
        switch.counts_of(P4).packets < 100 * 513,
        "fewer than without bounds"
    );
    switch.finish();
}

#[test]
fn programs_behind_links_come_change_and_go_while_packets_flow() {
    let (mut switch, mut guests) = around(OPERATOR);
    switch.link(&AROUND);
    let tcp = Tcp::new(false, 100);
    let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
    switch.p4(P4Request::Delete { switch: TENANT });
    guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
    switch.until_dropped(1, DropReason::NoRules, 1);
    for tag in 1..=10 {
        switch.put_p4(TENANT, &version("router", &commands(ROUTES)), tag);
        for _ in 0..5 {
            guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
            guests.get_mut(&2).unwrap().expect(&routed(&frame));
        }
    }
    assert_eq!(switch.counts_of(TENANT).packets, 50, "none is lost");
    // The program around it drops now.
    let closed = OPERATOR.replace("forward(port:3)", "discard()");
    let closed = format!("setdefault smac NoAction()\n{closed}");
    switch.put_p4(P4, &version("l2_switch", &commands(&closed)), 2);
    guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
    switch.until_dropped(1, DropReason::Policy, 1);
    assert_eq!(switch.counts_of(TENANT).packets, 50);
    switch.finish();
}

/// Programs that run alone, in two threads at most: a thread that does not get all of them leaves the packets
/// in their ring.
#[test]
fn programs_with_registers_are_joined_and_lose_nothing() {
    let mut switch = Switch::with_ports(4);
    let stateful = |name| version(name, &commands("")); // Nothing is allowed to pass.
    let forward = "setdefault smac NoAction()\n\
                   add dmac hdr.ethernet.dst:0x020000000002 forward(port:3)\n\
                   add dmac hdr.ethernet.dst:0x020000000004 forward(port:4)";
    switch.put_p4(P4, &version("l2_switch", &commands(forward)), 1);
    switch.put_p4(TENANT, &stateful("stateful_firewall"), 1);
    switch.put_p4(OTHER, &stateful("rate_limiter"), 1);
    [1, 2].into_iter().for_each(|port| switch.bind(port, port as u16));
    switch.link(&[[end(P4, 3), end(TENANT, 1)], [end(P4, 4), end(OTHER, 1)]]);
    let mut guests = [1, 2].map(|port| Guest::usual(&mut switch, port));
    for number in 0..200 {
        let to = if number % 2 == 0 { 2 } else { 4 };
        for guest in &mut guests {
            guest.send(&plain(1, to, 100, 7));
        }
    }
    [1, 2].into_iter().for_each(|port| switch.until_ended(port, 200));
    for port in [1, 2] {
        let dropped = switch.counters(port).dropped;
        assert_eq!(
            dropped.get(DropReason::QueueFull),
            0,
            "no lane is waited for with a packet at hand"
        );
    }
    assert_eq!(
        switch.counts_of(TENANT).packets + switch.counts_of(OTHER).packets,
        400
    );
    switch.finish();
}

#[test]
fn links_that_cannot_be_are_refused_and_change_nothing() {
    let (mut switch, mut guests) = around(OPERATOR);
    switch.link(&AROUND);
    for (links, errno) in [
        (vec![[end(P4, 3), end(P4, 3)]], Errno::INVAL),
        (
            vec![[end(P4, 3), end(TENANT, 1)], [end(P4, 3), end(TENANT, 2)]],
            Errno::INVAL,
        ),
        (vec![[end(P4, 511), end(TENANT, 1)]], Errno::INVAL),
        (vec![[end(P4, 3), end(TENANT, 1)]; 257], Errno::NOSPC),
        (
            (0..17)
                .map(|one| [end(P4Id(one), 1), end(P4Id(one + 1), 2)])
                .collect(),
            Errno::NOSPC,
        ),
    ] {
        assert_eq!(switch.refused(Request::P4(P4Request::Link { links })), errno);
    }
    let tcp = Tcp::new(false, 100);
    let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
    guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
    guests.get_mut(&2).unwrap().expect(&routed(&frame));
    switch.finish();
}
