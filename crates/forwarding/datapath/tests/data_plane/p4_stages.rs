//! P4 programs as stages of ports: what they pass and drop before flows or other programs forward, chains of
//! them that change while packets flow, and requests that are refused.

use crate::p4::{P4, ROUTES, commands, folder, offline, parts_of_script, routed, script_of, version};
use crate::rules::ingress;
use crate::support::control::Controller;
use crate::support::frames::{Tcp, mac, plain};
use crate::support::{Guest, Layout, Switch};
use control_protocol::Channel;
use control_protocol::data_plane::{Answer, PortSpec, Request};
use control_protocol::p4::{FromP4, P4Attachment, P4Binding, P4Request};
use flow::{Action, DropReason, Filters, ListId, Mirror, Mirrored, P4Id, PortId};
use p4_stf::bake;
use p4_stf::script::Command;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

const OTHER: P4Id = P4Id(6);
const FORWARDER: P4Id = P4Id(7);

pub const fn at(switch: P4Id, port: u16) -> P4Binding {
    P4Binding { switch, port }
}

fn attachment(stages: &[P4Binding], forwarder: Option<P4Binding>) -> P4Attachment {
    P4Attachment {
        stages: stages.to_vec(),
        forwarder,
    }
}

fn attach(port: u32, stages: &[P4Binding], forwarder: Option<P4Binding>) -> Request {
    Request::PortP4 {
        port: PortId(port),
        attachment: attachment(stages, forwarder),
    }
}

impl Controller {
    #[track_caller]
    pub fn stage(&mut self, port: u32, stages: &[P4Binding]) {
        self.done(attach(port, stages, None));
    }
}

/// Lets frames for station 2 pass, unless they are for TCP port 80 and denied.
fn firewall(denies: bool) -> Vec<u8> {
    let verdict = if denies { "rule_deny" } else { "rule_permit" };
    version(
        "firewall",
        &commands(&format!(
            "add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
             add rules 20 protocol:0x06 dst_port:0x0050 {verdict}()\n"
        )),
    )
}

fn router() -> Vec<u8> {
    version("router", &commands(ROUTES))
}

/// Passes frames for one station alone.
fn only_for(station: u16) -> Vec<u8> {
    let entries = [0x0002, 0x0102].map(|other| {
        let action = if other == station {
            "forward(port:9)"
        } else {
            "discard()"
        };
        format!("add dmac hdr.ethernet.dst:0x02000000{other:04x} {action}\n")
    });
    version(
        "l2_switch",
        &commands(&format!("setdefault smac NoAction()\n{}", entries.concat())),
    )
}

/// Ports whose packets flows send to the last one, which sends to the first.
pub fn joined<const GUESTS: usize>() -> (Switch, [Guest; GUESTS]) {
    let last = GUESTS as u32;
    let mut switch = Switch::with_ports(last);
    (1..last).for_each(|port| switch.flow(port, &[Action::Output(PortId(last))]));
    switch.flow(last, &[Action::Output(PortId(1))]);
    let guests = std::array::from_fn(|number| Guest::usual(&mut switch, number as u32 + 1));
    (switch, guests)
}

#[test]
fn flows_forward_what_a_stage_lets_pass() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &firewall(false), 1);
    switch.stage(1, &[at(P4, 1)]);
    // Of each kind some frames run, and others find their verdict.
    for round in 1..=10 {
        for payload in [10, 1400, 9000, 65_535 - 72] {
            let tcp = Tcp::new(false, payload);
            let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
            one.send_as(&header, &frame, &Layout::One);
            let received = two.expect(&frame);
            let wanted = if payload > 1400 { header.gso_size } else { 0 };
            assert_eq!((received.flags, received.gso_size), (header.flags, wanted));
        }
        one.send(&plain(1, 2, 100, 7));
        two.expect_plain(&plain(1, 2, 100, 7));
        one.send(&plain(1, 9, 100, 7));
        switch.until_dropped(1, DropReason::Policy, round);
        // The other port has no stage.
        two.send(&plain(2, 9, 100, 7));
        one.expect_plain(&plain(2, 9, 100, 7));
    }
    two.expect_nothing();
    switch.until_ended(1, 60);
    let counts = &switch.p4_switches()[0].counts;
    assert_eq!((counts.packets, counts.outputs), (60, 50));
    assert!(counts.repeated > 20, "{counts:?}");
    let flow = &switch.flows()[0];
    assert_eq!(flow.1.packets, 50, "dropped packets met no flow");
    assert_eq!(switch.counters(1).copies, 0);
    switch.finish();
}

#[test]
fn flows_see_what_a_stage_has_changed() {
    let mut switch = Switch::with_ports(2);
    let mut guests = [1, 2].map(|port| Guest::usual(&mut switch, port));
    // The address that the router gives its packets.
    let mut flow = Switch::port_flow(1, &[Action::Output(PortId(2))]);
    flow.key.set_eth_dst(0x0200_0000_0102);
    flow.mask.0.set_eth_dst(0xffff_ffff_ffff);
    switch.put(flow);
    switch.put_p4(P4, &router(), 1);
    switch.stage(1, &[at(P4, 1)]);
    for _ in 0..10 {
        for payload in [10, 700, 9000, 65_535 - 72] {
            let tcp = Tcp::new(false, payload);
            let (frame, header) = (tcp.frame(1, 2, false), tcp.header(1400));
            guests[0].send_as(&header, &frame, &Layout::One);
            let received = guests[1].expect(&routed(&frame));
            assert_eq!(
                (received.flags, received.csum_start),
                (header.flags, header.csum_start)
            );
        }
    }
    switch.until_ended(1, 40);
    assert_eq!(switch.counters(1).dropped.total(), 0);
    switch.finish();
}

/// A request for a checksum moves with what a stage puts in front.
#[test]
fn stages_add_headers_to_frames_with_open_checksums() {
    let given: Vec<_> = script_of("vxlan_gateway");
    let given: Vec<_> = given
        .into_iter()
        .filter(|command| matches!(command, Command::Add(..)))
        .collect();
    let mut session = offline("vxlan_gateway", &given);
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &version("vxlan_gateway", &given), 1);
    switch.stage(1, &[at(P4, 1)]);
    for payload in [10, 700, 1300] {
        let tcp = Tcp::new(false, payload);
        let (frame, header) = (tcp.frame(1, 0x0b, false), tcp.header(0));
        let wanted = session.send(1, &frame);
        let [(_, wanted)] = &wanted[..] else {
            panic!("{wanted:?}")
        };
        one.send_as(&header, &frame, &Layout::One);
        let received = two.expect(wanted);
        assert_eq!(received.csum_start, header.csum_start + 50);
    }
    switch.finish();
}

/// Sends the packets of a program's script through it as a stage, and compares what arrives with what leaves
/// offline: a packet passes if the program sends it once.
fn agrees_as_stage(name: &str) {
    let (packets, given) = parts_of_script(name);
    let mut session = offline(name, &given);
    let (mut switch, [one, two, three, mut last]) = joined();
    let mut guests: BTreeMap<u32, Guest> = [(1, one), (2, two), (3, three)].into();
    switch.put_p4(P4, &version(name, &given), 1);
    (1..=3).for_each(|port| switch.stage(port, &[at(P4, port as u16)]));
    let (mut sent, mut passed) = (BTreeMap::new(), 0);
    for packet in &packets {
        let Command::Packet(from, bytes) = packet else {
            unreachable!()
        };
        let Some(guest) = guests.get_mut(from).filter(|_| bytes.len() >= 14) else {
            continue;
        };
        guest.send(bytes);
        if let [(_, frame)] = &session.send(*from, bytes)[..] {
            last.expect_plain(frame);
            passed += 1;
        }
        let own = sent.entry(*from).or_insert(0);
        *own += 1;
        switch.until_ended(*from, *own);
    }
    assert!(passed > 1, "{name}");
    last.expect_nothing();
    assert_eq!(switch.p4_switches()[0].counts.packets, sent.values().sum::<u64>());
    switch.finish();
}

#[test]
fn a_stage_passes_what_the_program_sends_offline() {
    for name in [
        "router",
        "firewall",
        "stateful_firewall",
        "vxlan_gateway",
        "description_header",
    ] {
        agrees_as_stage(name);
    }
}

#[test]
fn stages_follow_each_other_and_their_order_counts() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &router(), 1);
    switch.put_p4(OTHER, &only_for(0x0102), 1);
    let (first, last) = (at(P4, 1), at(OTHER, 1));
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    for round in 1..=5 {
        switch.stage(1, &[first, last]);
        one.send(&frame);
        two.expect_plain(&routed(&frame));
        switch.stage(1, &[last, first]);
        one.send(&frame);
        switch.until_dropped(1, DropReason::Policy, round);
    }
    let attached = switch.port(1).spec.p4;
    assert_eq!(attached, attachment(&[last, first], None));
    let packets = |id: P4Id, all: &[control_protocol::p4::P4Info]| {
        let own = all.iter().find(|info| info.switch == id);
        own.unwrap().counts.packets
    };
    let all = switch.p4_switches();
    assert_eq!([packets(P4, &all), packets(OTHER, &all)], [5, 10]);
    switch.finish();
}

/// Each packet arrives once, as it came or routed, whatever is done to the stages meanwhile.
#[test]
fn stages_change_under_traffic_and_no_packet_is_lost_or_seen_twice() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &router(), 1);
    switch.put_p4(OTHER, &only_for(0x0002), 1);
    let (router_first, check) = (at(P4, 1), at(OTHER, 1));
    let both = vec![check, router_first];
    let changes = [
        vec![router_first],
        both.clone(),
        vec![check],
        vec![],
        both,
        vec![],
    ];
    let frame = |number: u32| {
        let mut tcp = Tcp::new(false, 100);
        tcp.sequence = number;
        tcp.frame(1, 2, true)
    };
    let (mut number, mut stays) = (0, 0);
    for round in 0..60 {
        let stages = &changes[round % changes.len()];
        let before = number;
        (0..8).for_each(|more| one.send(&frame(number + more)));
        number += 8;
        let serial = switch.tell(attach(1, stages, None), &[]);
        (0..8).for_each(|more| one.send(&frame(number + more)));
        number += 8;
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
        // What is sent behind the answer meets the new stages.
        one.send(&frame(number));
        for sent in before..=number {
            let (_, received) = two.receive();
            let (plain, changed) = (frame(sent), routed(&frame(sent)));
            assert!(received == plain || received == changed, "{sent}");
            stays += u32::from(received == plain);
            let is_routed = stages.contains(&router_first);
            assert!(sent < number || (received == changed) == is_routed, "{sent}");
        }
        number += 1;
    }
    two.expect_nothing();
    assert!((100..number - 100).contains(&stays), "{stays} of {number}");
    switch.until_ended(1, number.into());
    assert_eq!(switch.counters(1).dropped.total(), 0);
    switch.finish();
}

#[test]
fn a_stage_has_other_versions_under_traffic_without_loss() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &firewall(false), 1);
    switch.stage(1, &[at(P4, 1)]);
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    for tag in 2..=20 {
        switch.draft(P4, &firewall(false));
        let serial = switch.tell(Request::P4(P4Request::Commit { switch: P4, tag }), &[]);
        (0..20).for_each(|_| one.send(&frame));
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
        (0..20).for_each(|_| two.expect_plain(&frame));
    }
    switch.put_p4(P4, &firewall(true), 99);
    one.send(&frame);
    switch.until_dropped(1, DropReason::Policy, 1);
    assert_eq!(switch.p4_switches()[0].counts.packets, 19 * 20 + 1);
    switch.finish();
}

#[test]
fn stages_stand_before_programs_that_forward_and_that_links_join() {
    let mut switch = Switch::with_ports(2);
    let forward = "setdefault smac NoAction()\n\
                   add dmac hdr.ethernet.dst:0x020000000002 forward(port:3)\n\
                   add dmac hdr.ethernet.dst:0x020000000102 forward(port:2)";
    switch.put_p4(P4, &firewall(true), 1);
    switch.put_p4(FORWARDER, &version("l2_switch", &commands(forward)), 1);
    switch.put_p4(OTHER, &router(), 1);
    switch.p4(P4Request::Link {
        links: vec![[at(FORWARDER, 3), at(OTHER, 1)], [at(FORWARDER, 4), at(OTHER, 2)]],
    });
    switch.done(attach(1, &[at(P4, 1)], Some(at(FORWARDER, 1))));
    switch.done(attach(2, &[], Some(at(FORWARDER, 2))));
    let mut guests = [1, 2].map(|port| Guest::usual(&mut switch, port));
    let tcp = Tcp::new(false, 9000);
    let (denied, header) = (tcp.frame(1, 2, false), tcp.header(1400));
    let mut allowed = denied.clone();
    allowed[37] = 81;
    for round in 1..=10 {
        guests[0].send_as(&header, &denied, &Layout::One);
        switch.until_dropped(1, DropReason::Policy, round);
        guests[0].send_as(&header, &allowed, &Layout::One);
        guests[1].expect(&routed(&allowed));
    }
    let all = switch.p4_switches();
    let packets: Vec<_> = all.iter().map(|info| info.counts.packets).collect();
    assert_eq!(
        packets,
        [20, 10, 20],
        "the firewall, the router behind it, and twice what is between"
    );
    switch.finish();
}

#[test]
fn a_stage_without_program_lets_nothing_pass() {
    let (mut switch, [mut one, mut two]) = joined();
    let frame = plain(1, 2, 100, 7);
    switch.put_p4(OTHER, &only_for(2), 1);
    switch.stage(1, &[at(OTHER, 1), at(P4, 1)]);
    one.send(&frame);
    switch.until_dropped(1, DropReason::NoRules, 1);
    switch.put_p4(P4, &firewall(false), 1);
    one.send(&frame);
    two.expect_plain(&frame);
    switch.p4(P4Request::Delete { switch: P4 });
    one.send(&frame);
    switch.until_dropped(1, DropReason::NoRules, 2);
    assert_eq!(
        switch.p4_switches()[0].counts.packets,
        1,
        "no stage ran for nothing"
    );
    switch.stage(1, &[]);
    one.send(&plain(1, 9, 100, 7));
    two.expect_plain(&plain(1, 9, 100, 7));
    switch.finish();
}

#[test]
fn a_port_has_stages_from_its_first_packet_on_and_none_of_the_port_before() {
    let mut switch = Switch::with_ports(1);
    switch.put_p4(P4, &firewall(false), 1);
    switch.done(Request::PortAdd(PortSpec {
        p4: attachment(&[at(P4, 1)], None),
        ..Switch::spec(2)
    }));
    switch.join(1, 2);
    let [mut one, mut two] = [1, 2].map(|port| Guest::usual(&mut switch, port));
    two.send(&plain(2, 1, 100, 7));
    switch.until_dropped(2, DropReason::Policy, 1);
    drop(two);
    switch.done(Request::PortDel { port: PortId(2) });
    switch.removed = true;
    switch.add(2);
    let mut two = Guest::usual(&mut switch, 2);
    two.send(&plain(2, 1, 100, 7));
    one.expect_plain(&plain(2, 1, 100, 7));
    switch.finish();
}

#[test]
fn filters_of_the_port_see_what_stages_left() {
    let (mut switch, [mut one, two]) = joined();
    switch.put_p4(P4, &firewall(false), 1);
    switch.stage(1, &[at(P4, 1)]);
    // A list that is missing lets nothing pass.
    let filtered = |filters: Filters| Request::PortFilters {
        port: PortId(1),
        filters,
    };
    switch.done(filtered(ingress(ListId(77))));
    one.send(&plain(1, 2, 100, 7));
    switch.until_dropped(1, DropReason::NoRules, 1);
    one.send(&plain(1, 9, 100, 7));
    switch.until_dropped(1, DropReason::Policy, 1);
    assert_eq!(switch.refused(attach(1, &[], Some(at(P4, 1)))), Errno::INVAL);
    switch.done(filtered(Filters::default()));
    let mut two = two;
    one.send(&plain(1, 2, 100, 7));
    two.expect_plain(&plain(1, 2, 100, 7));
    switch.finish();
}

fn mirror_from(to: u32) -> Mirror {
    Mirror {
        to: PortId(to),
        packets: Mirrored {
            from: true,
            to: false,
            dropped: false,
        },
        list: None,
        length: None,
        vlan: None,
    }
}

#[test]
fn mirrors_have_packets_once_and_as_they_came() {
    let (mut switch, [mut one, mut monitor, mut last]) = joined();
    switch.put_p4(P4, &router(), 1);
    switch.put_p4(OTHER, &only_for(0x0102), 1);
    switch.stage(1, &[at(P4, 1), at(OTHER, 1)]);
    switch.done(Request::PortMirrors {
        port: PortId(1),
        mirrors: vec![mirror_from(2)],
    });
    for length in 100..110 {
        let passes = Tcp::new(false, length).frame(1, 2, true);
        let dropped = plain(1, 2, length, 7);
        one.send(&passes);
        last.expect_plain(&routed(&passes));
        monitor.expect_plain(&passes);
        one.send(&dropped);
        monitor.expect_plain(&dropped);
    }
    monitor.expect_nothing();
    // Without the stages, packets are copied as ever.
    switch.stage(1, &[]);
    one.send(&plain(1, 2, 100, 7));
    last.expect_plain(&plain(1, 2, 100, 7));
    monitor.expect_plain(&plain(1, 2, 100, 7));
    switch.finish();
}

/// A switch with a session for clones to the clients' port, which has group 1.
const MONITOR: &str = "
mc_mgrp_create 1
mc_node_create 0 1 2
mc_node_associate 1 0
mirroring_add 7 255
add domains port:1 flood_in(group:1)
add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)
add monitors 10 kind:0x88b5 copy_to(session:7, rule:3)
";

fn connect(switch: &mut Switch, id: P4Id) -> Channel {
    let (ours, theirs) = Channel::pair().unwrap();
    switch.removed = true;
    let request = Request::P4(P4Request::Connect {
        switch: id,
        cpu_port: Some(255),
    });
    switch.ask_with(request, &[theirs.as_fd()]).unwrap();
    ours
}

#[test]
fn clones_of_a_stage_reach_its_clients_and_replicas_nobody() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &version("multicast_l2", &commands(MONITOR)), 1);
    switch.stage(1, &[at(P4, 1)]);
    let frame = plain(1, 2, 100, 7);
    // Nobody is there: clones are dropped, and never pass in the packet's place.
    for round in 1..=5 {
        one.send(&frame);
        two.expect_plain(&frame);
        switch.until_dropped(1, DropReason::NoSuchPort, round);
    }
    let clients = connect(&mut switch, P4);
    for _ in 0..5 {
        one.send(&frame);
        two.expect_plain(&frame);
        let received = clients.recv::<FromP4>().unwrap().0;
        let clone = [&[0, 1, 0, 3][..], &frame].concat();
        assert_eq!(received, FromP4::PacketIn(clone));
    }
    // One replica is dropped by the program, as it would leave where it came from; the other has no port.
    let flooded = [&mac(9)[..], &mac(1), &[8, 0], &[7; 46]].concat();
    for round in 1..=5 {
        one.send(&flooded);
        switch.until_dropped(1, DropReason::NoSuchPort, 5 + round);
        switch.until_dropped(1, DropReason::Policy, round);
    }
    two.expect_nothing();
    drop(clients);
    switch.finish();
}

#[test]
fn packets_of_a_stage_for_clients_do_not_pass() {
    let (mut switch, [mut one, mut two]) = joined();
    let station = "setdefault smac NoAction()\n\
                   add dmac hdr.ethernet.dst:0x020000000009 forward(port:255)\n\
                   add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)";
    switch.put_p4(P4, &version("l2_switch", &commands(station)), 1);
    switch.stage(1, &[at(P4, 1)]);
    let clients = connect(&mut switch, P4);
    for length in 100..120 {
        let (up, on) = (plain(1, 9, length, 7), plain(1, 2, length, 7));
        one.send(&up);
        assert_eq!(clients.recv::<FromP4>().unwrap().0, FromP4::PacketIn(up));
        one.send(&on);
        two.expect_plain(&on);
    }
    two.expect_nothing();
    switch.until_ended(1, 40);
    drop(clients);
    switch.finish();
}

#[test]
fn stages_that_mean_harm_end_their_own_packets_and_hold_up_nobody() {
    for entry in std::fs::read_dir(folder().join("malicious")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let json = folder().join(format!("malicious/{name}/{name}.json"));
        let Ok(checked) = p4_bmv2::load(&std::fs::read(json).unwrap(), None) else {
            continue;
        };
        let (baked, setup) = bake(checked, &[], &[]).unwrap();
        let mut switch = Switch::with_ports(4);
        switch.join(1, 2);
        switch.join(3, 4);
        switch.draft(P4, &p4_ir::setup::encode(&baked, &setup));
        if switch
            .ask(Request::P4(P4Request::Commit { switch: P4, tag: 1 }))
            .is_ok()
        {
            switch.put_p4(OTHER, &router(), 1);
            switch.stage(1, &[at(P4, 1), at(OTHER, 1)]);
            let mut guests: BTreeMap<u32, Guest> = (1..=4)
                .map(|port| (port, Guest::usual(&mut switch, port)))
                .collect();
            let bystander = plain(3, 4, 100, 7);
            let harm = [&mac(2)[..], &mac(1), &[8, 0], &[0x45; 300]].concat();
            for _ in 0..10 {
                (0..16).for_each(|_| guests.get_mut(&1).unwrap().send(&harm));
                guests.get_mut(&3).unwrap().send(&bystander);
                guests.get_mut(&4).unwrap().expect_plain(&bystander);
            }
            switch.until_ended(1, 160);
        }
        switch.finish();
    }
}

#[test]
fn stages_that_cannot_be_are_refused_and_change_nothing() {
    let (mut switch, [mut one, mut two]) = joined();
    switch.put_p4(P4, &firewall(false), 1);
    switch.stage(1, &[at(P4, 1)]);
    let many: Vec<_> = (10..15).map(|id| at(P4Id(id), 1)).collect();
    for (stages, forwarder, errno) in [
        (many, None, Errno::NOSPC),
        (vec![at(P4, 1), at(P4, 2)], None, Errno::INVAL),
        (vec![at(P4, 1)], Some(at(P4, 2)), Errno::INVAL),
        (vec![at(OTHER, 511)], None, Errno::INVAL),
        (vec![at(OTHER, 1)], Some(at(FORWARDER, 511)), Errno::INVAL),
    ] {
        assert_eq!(switch.refused(attach(1, &stages, forwarder)), errno);
        let p4 = attachment(&stages, forwarder);
        let spec = PortSpec {
            p4,
            ..Switch::spec(9)
        };
        assert_eq!(switch.refused(Request::PortAdd(spec)), errno);
    }
    switch.done(attach(2, &[], Some(at(FORWARDER, 3))));
    let taken = attach(1, &[at(OTHER, 1)], Some(at(FORWARDER, 3)));
    assert_eq!(switch.refused(taken), Errno::EXIST);
    assert_eq!(switch.refused(attach(99, &[at(OTHER, 1)], None)), Errno::NODEV);
    assert_eq!(switch.port(1).spec.p4, attachment(&[at(P4, 1)], None));
    one.send(&plain(1, 2, 100, 7));
    two.expect_plain(&plain(1, 2, 100, 7));
    // Numbers at a stage may be those of several ports.
    switch.done(attach(2, &[at(P4, 1)], None));
    two.send(&plain(2, 1, 100, 7));
    switch.until_dropped(2, DropReason::Policy, 1);
    switch.finish();
}
