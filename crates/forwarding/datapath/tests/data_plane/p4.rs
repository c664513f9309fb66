//! P4 programs as forwarders of ports: the same bytes as the interpreter gives offline, frames as guests
//! send them, versions that replace each other, and programs that mean harm.

use crate::support::control::Controller;
use crate::support::frames::{Tcp, complete_checksum, mac, plain, segments};
pub use crate::support::p4::{P4, folder, program};
use crate::support::{Guest, Layout, Switch};
use control_protocol::data_plane::{Answer, PortSpec, Request};
use control_protocol::p4::{MAX_P4_DRAFTS, MAX_PIECE, P4Attachment, P4Binding, P4Request};
use flow::{DropReason, Filter, Filters, ListId, P4Id, PortId};
use p4_ir::Checked;
use p4_ir::setup::Setup;
use p4_stf::script::{self, Command};
use p4_stf::{Session, bake};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::{GSO_NONE, NEEDS_CSUM};

pub fn commands(script: &str) -> Vec<Command> {
    let lines = script::parse(script).unwrap().into_iter();
    lines.map(|line| line.command).collect()
}

/// The script that tests a program of the project.
pub fn script_of(name: &str) -> Vec<Command> {
    commands(&std::fs::read_to_string(folder().join(name).join("test.stf")).unwrap())
}

/// The packets of the script that tests a program, and the commands before them; nothing of what it expects.
pub fn parts_of_script(name: &str) -> (Vec<Command>, Vec<Command>) {
    script_of(name)
        .into_iter()
        .filter(|command| !matches!(command, Command::Expect(..) | Command::CheckCounter(..)))
        .partition(|command| matches!(command, Command::Packet(..)))
}

/// A program offline, to which these commands were given.
pub fn offline(name: &str, given: &[Command]) -> Session {
    let mut session = Session::new(program(name)).unwrap();
    given
        .iter()
        .for_each(|command| drop(session.run(command).unwrap()));
    session
}

/// A program with entries, as it travels.
pub fn version(name: &str, given: &[Command]) -> Vec<u8> {
    let (baked, setup) = bake(program(name), given, &[]).unwrap();
    p4_ir::setup::encode(&baked, &setup)
}

pub const ROUTES: &str = "
add router_mac std.ingress_port:1 hdr.ethernet.dst:0x020000000002 take()
add routes hdr.ipv4.dst:0x0a0000** via(next_hop_id:1)
add next_hops meta.next_hop_id:1 send(port:2, mac:0x020000000102)
add port_mac std.egress_port:2 leave_as(mac:0x0200000000f2)
";

impl Controller {
    #[track_caller]
    fn refuses_commit(&mut self, bytes: &[u8]) -> (Errno, String) {
        self.draft(P4, bytes);
        let error = self.ask(Request::P4(P4Request::Commit { switch: P4, tag: 1 }));
        let error = error.expect_err("an error");
        (Errno::from_raw_os_error(error.errno), error.text)
    }
}

/// A data plane whose ports from 1 on are those of a program.
pub fn bound(ports: u32, bytes: &[u8]) -> (Switch, BTreeMap<u32, Guest>) {
    let mut switch = Switch::with_ports(ports);
    switch.put_p4(P4, bytes, 1);
    (1..=ports).for_each(|port| switch.bind(port, port as u16));
    let guests = (1..=ports).map(|port| (port, Guest::usual(&mut switch, port)));
    let guests = guests.collect();
    (switch, guests)
}

/// Sends the packets of a program's script from guests, and compares what arrives with what leaves offline.
fn agrees(name: &str) {
    let (packets, given) = parts_of_script(name);
    let mut session = offline(name, &given);
    let (mut switch, mut guests) = bound(3, &version(name, &given));
    let (mut sent, mut left) = (0, 0);
    let mut of_port = BTreeMap::new();
    for packet in &packets {
        let Command::Packet(from, bytes) = packet else {
            unreachable!()
        };
        let Some(guest) = guests.get_mut(from).filter(|_| bytes.len() >= 14) else {
            continue;
        };
        guest.send(bytes);
        sent += 1;
        for (to, frame) in session.send(*from, bytes) {
            if let Some(guest) = guests.get_mut(&to) {
                guest.expect_plain(&frame);
                left += 1;
            }
        }
        let own = of_port.entry(*from).or_insert(0);
        *own += 1;
        switch.until_ended(*from, *own);
    }
    assert!(sent > 3 && left > 1, "{name}: {sent} sent, {left} left");
    for guest in guests.values_mut() {
        guest.expect_nothing();
    }
    let [info] = &switch.p4_switches()[..] else {
        panic!("one P4 switch")
    };
    assert_eq!(info.counts.packets, sent);
    switch.finish();
}

#[test]
fn a_router_forwards_as_it_does_offline() {
    agrees("router");
}

#[test]
fn a_switch_that_floods_forwards_as_it_does_offline() {
    agrees("l2_switch");
}

#[test]
fn a_firewall_forwards_as_it_does_offline() {
    agrees("firewall");
}

#[test]
fn a_program_with_registers_forwards_as_it_does_offline() {
    agrees("stateful_firewall");
}

#[test]
fn a_gateway_that_adds_and_removes_headers_forwards_as_it_does_offline() {
    agrees("vxlan_gateway");
}

/// What a router makes of a frame: other addresses, a hop less, and the header's checksum with it.
pub fn routed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 1, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xf2]);
    frame[22] -= 1;
    let sum = u16::from_be_bytes([frame[24], frame[25]]);
    // RFC 1624, of the time to live alone, which is the high byte of its word.
    let sum = u32::from(!sum) + 0xfeff;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn large_frames_and_open_checksums_pass_a_router_whole() {
    let (mut switch, mut guests) = bound(2, &version("router", &commands(ROUTES)));
    for payload in [10, 1400, 9000, 65_535 - 72] {
        let tcp = Tcp::new(false, payload);
        let frame = tcp.frame(1, 2, false);
        let header = tcp.header(1400);
        guests.get_mut(&1).unwrap().send_as(&header, &frame, &Layout::One);
        let received = guests.get_mut(&2).unwrap().expect(&routed(&frame));
        let wanted = if payload > 1400 { header.gso_size } else { 0 };
        assert_eq!(
            (received.flags, received.gso_size),
            (header.flags, wanted),
            "{payload}"
        );
        assert_eq!(
            (received.csum_start, received.csum_offset),
            (header.csum_start, header.csum_offset)
        );
    }
    assert_eq!(switch.counters(2).segments, 0);
    switch.finish();
}

/// A program pushes a header that the switch does not know: the receiver gets segments, of which each has it.
#[test]
fn large_frames_are_cut_behind_a_header_that_nobody_knows() {
    const TENANT: &str = "
add port_in port:1 described:0 push(tenant:100)
add port_in port:3 described:1 trust()
add members tenant:100 dst:0x020000000002 forward(port:2)
add port_out 10 port:2 tenant:0x000064 keep()
";
    let (mut switch, mut guests) = bound(2, &version("description_header", &commands(TENANT)));
    let mut expected = 0;
    for (v6, payload, mss) in [
        (false, 10, 1400),
        (false, 5000, 1400),
        (true, 9000, 1400),
        (false, 65_535 - 72, 536),
    ] {
        let tcp = Tcp::new(v6, payload);
        let frame = tcp.frame(1, 2, false);
        guests
            .get_mut(&1)
            .unwrap()
            .send_as(&tcp.header(mss), &frame, &Layout::One);
        let segments = segments(&tcp, 1, 2, mss.into());
        expected += if payload > usize::from(mss) {
            segments.len() as u64
        } else {
            0
        };
        for segment in segments {
            let (received, mut bytes) = guests.get_mut(&2).unwrap().receive();
            assert_eq!((received.flags, received.gso_type), (NEEDS_CSUM, GSO_NONE));
            assert_eq!(usize::from(received.csum_start), tcp.l4() + 6);
            complete_checksum(&mut bytes, tcp.l4() + 6, 16);
            assert_eq!(
                bytes[12..20],
                [0x88, 0xb6, 0, 0, 100, 0x10, segment[12], segment[13]]
            );
            bytes.drain(12..18);
            assert_eq!(bytes, segment);
        }
    }
    assert_eq!(switch.counters(2).segments, expected);
    switch.finish();
}

#[test]
fn a_port_whose_program_is_missing_reaches_nobody() {
    let mut switch = Switch::with_ports(1);
    switch.done(Request::PortAdd(PortSpec {
        p4: P4Attachment::bound(Some(P4Binding { switch: P4, port: 1 })),
        ..Switch::spec(2)
    }));
    let [mut plain, mut bound] = [1, 2].map(|port| Guest::usual(&mut switch, port));
    switch.join(1, 2);
    let frame = [&mac(1)[..], &mac(2), &[8, 0], &[7; 46]].concat();
    bound.send(&frame);
    switch.until(2, "drops", |counters| {
        counters.dropped.get(DropReason::NoRules) == 1
    });
    plain.expect_nothing();
    switch.put_p4(P4, &version("router", &commands(ROUTES)), 1);
    bound.send(&frame);
    switch.until(2, "the program's drop", |counters| {
        counters.dropped.get(DropReason::Policy) == 1
    });
    switch.p4(P4Request::Delete { switch: P4 });
    bound.send(&frame);
    switch.until(2, "drops", |counters| {
        counters.dropped.get(DropReason::NoRules) == 2
    });
    // Freed, it is a port like others.
    switch.done(Request::PortP4 {
        port: PortId(2),
        attachment: P4Attachment::default(),
    });
    bound.send(&frame);
    plain.expect_plain(&frame);
    assert!(switch.p4_switches().is_empty());
    switch.finish();
}

#[test]
fn a_version_replaces_another_while_packets_flow_and_none_is_lost() {
    let forward = |port: u32| {
        let entry = format!("add dmac hdr.ethernet.dst:0x020000000002 forward(port:{port})");
        version("l2_switch", &commands(&entry))
    };
    let (mut switch, mut guests) = bound(3, &forward(2));
    let frame = plain(1, 2, 200, 7);
    let mut received = 0;
    for round in 0..20 {
        let to = 2 + round % 2;
        switch.draft(P4, &forward(to));
        let commit = P4Request::Commit { switch: P4, tag: 1 };
        let serial = switch.tell(Request::P4(commit), &[]);
        for _ in 0..20 {
            guests.get_mut(&1).unwrap().send(&frame);
        }
        assert_eq!(switch.answer(serial), Ok(Answer::Done));
        // From the answer on, every packet meets the new one.
        let last = plain(1, 2, 200, 100 + round as u8);
        guests.get_mut(&1).unwrap().send(&last);
        let receiver = guests.get_mut(&to).unwrap();
        while receiver.receive().1 != last {
            received += 1;
        }
        while guests
            .get_mut(&(5 - to))
            .unwrap()
            .receive_within(Duration::ZERO)
            .is_some()
        {
            received += 1;
        }
    }
    // Packets of the version before may still be on their way to the other port.
    while received < 20 * 20 {
        let late = [2, 3].map(|port| {
            let guest = guests.get_mut(&port).unwrap();
            guest.receive_within(Duration::from_secs(1)).is_some()
        });
        assert_ne!(late, [false; 2], "{received} of 400: none is lost");
        received += late.iter().filter(|late| **late).count();
    }
    let none = |guest: &mut Guest| guest.receive_within(Duration::ZERO).is_none();
    assert!(guests.values_mut().all(none), "none arrives twice");
    let [info] = &switch.p4_switches()[..] else {
        panic!("one P4 switch")
    };
    assert_eq!(info.counts.packets, 20 * 21, "counts go on over versions");
    switch.finish();
}

#[test]
fn what_a_program_may_not_is_refused_and_the_former_version_goes_on() {
    let good = version("router", &commands(ROUTES));
    let (mut switch, mut guests) = bound(2, &good);
    for cut in [0, 3, 4, 7, 20, good.len() / 2, good.len() - 1] {
        assert_eq!(switch.refuses_commit(&good[..cut]).0, Errno::INVAL, "{cut}");
    }
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 0x55;
    changed.extend([0; 9]);
    assert_eq!(switch.refuses_commit(&changed).0, Errno::INVAL);
    let mut large = program("router").into_program();
    large.tables[0].size = 1 << 21;
    let large = Checked::new(large).unwrap();
    let (errno, text) = switch.refuses_commit(&p4_ir::setup::encode(&large, &Setup::default()));
    assert_eq!(errno, Errno::NOSPC);
    assert!(text.contains("entries of all tables"), "{text}");
    let commit = |switch| Request::P4(P4Request::Commit { switch, tag: 1 });
    assert_eq!(switch.refused(commit(P4)), Errno::NOENT);
    let too_long = P4Request::Add {
        switch: P4,
        bytes: vec![0; MAX_PIECE + 1],
    };
    switch.p4(P4Request::Begin { switch: P4 });
    assert_eq!(switch.refused(Request::P4(too_long)), Errno::TOOBIG);
    for number in 0..MAX_P4_DRAFTS as u32 {
        switch.p4(P4Request::Begin {
            switch: P4Id(100 + number),
        });
    }
    let begin = P4Request::Begin { switch: P4Id(99) };
    assert_eq!(switch.refused(Request::P4(begin)), Errno::NOSPC);
    // Places, and filters, which a program would pass by.
    let trace = Request::Trace {
        in_port: PortId(1),
        frame: vec![0; 60],
    };
    assert_eq!(switch.refused(trace), Errno::INVAL);
    let bind = |port, place| {
        let binding = Some(P4Binding {
            switch: P4,
            port: place,
        });
        Request::PortP4 {
            port: PortId(port),
            attachment: P4Attachment::bound(binding),
        }
    };
    assert_eq!(switch.refused(bind(1, 2)), Errno::EXIST);
    assert_eq!(switch.refused(bind(1, 511)), Errno::INVAL);
    let mut filters = Filters::default();
    filters.ingress[0] = Filter::Rules(ListId(1));
    assert_eq!(
        switch.refused(Request::PortFilters {
            port: PortId(1),
            filters
        }),
        Errno::INVAL
    );
    switch.add_with(3, filters);
    assert_eq!(switch.refused(bind(3, 3)), Errno::INVAL);
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    guests.get_mut(&1).unwrap().send(&frame);
    guests.get_mut(&2).unwrap().expect_plain(&routed(&frame));
    switch.finish();
}

#[test]
fn a_program_outlives_its_controller() {
    let (mut switch, mut guests) = bound(2, &version("router", &commands(ROUTES)));
    switch.control = None;
    let frame = Tcp::new(false, 100).frame(1, 2, true);
    for _ in 0..3 {
        guests.get_mut(&1).unwrap().send(&frame);
        guests.get_mut(&2).unwrap().expect_plain(&routed(&frame));
    }
    switch.connect();
    let [info] = &switch.p4_switches()[..] else {
        panic!("one P4 switch")
    };
    assert_eq!((info.switch, info.tag, info.counts.outputs), (P4, 1, 3));
    let bound = Some(P4Binding { switch: P4, port: 2 });
    assert_eq!(switch.port(2).spec.p4, P4Attachment::bound(bound));
    switch.finish();
}

#[test]
fn programs_that_mean_harm_end_their_own_packets_and_hold_up_nobody() {
    for entry in std::fs::read_dir(folder().join("malicious")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = format!("malicious/{name}");
        let Some((mut switch, mut guests)) = hostile(&name) else {
            continue;
        };
        let bystander = [&mac(4)[..], &mac(3), &[8, 0], &[7; 46]].concat();
        let harm = [&mac(2)[..], &mac(1), &[8, 0], &[0x45; 300]].concat();
        for _ in 0..20 {
            for _ in 0..16 {
                guests.get_mut(&1).unwrap().send(&harm);
            }
            guests.get_mut(&3).unwrap().send(&bystander);
            guests.get_mut(&4).unwrap().expect_plain(&bystander);
        }
        switch.until(1, "ends", |counters| counters.received == 320);
        switch.finish();
    }
}

/// Ports 1 and 2 of a hostile program, and ports 3 and 4 beside it; `None` if it is refused.
fn hostile(name: &str) -> Option<(Switch, BTreeMap<u32, Guest>)> {
    let last = name.rsplit('/').next().unwrap();
    let json = std::fs::read(folder().join(name).join(format!("{last}.json"))).unwrap();
    let checked = p4_bmv2::load(&json, None).ok()?;
    let (baked, setup) = bake(checked, &[], &[]).ok()?;
    let mut switch = Switch::with_ports(4);
    switch.draft(P4, &p4_ir::setup::encode(&baked, &setup));
    if let Err(error) = switch.ask(Request::P4(P4Request::Commit { switch: P4, tag: 1 })) {
        assert!(!error.text.is_empty());
        switch.finish();
        return None;
    }
    switch.bind(1, 1);
    switch.bind(2, 2);
    let guests = (1..=4)
        .map(|port| (port, Guest::usual(&mut switch, port)))
        .collect();
    switch.join(3, 4);
    Some((switch, guests))
}
