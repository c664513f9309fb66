//! Packets between P4 programs and clients: both ways, with whatever a process that serves clients may do.

use crate::p4::{P4, bound, commands, version};
use crate::support::control::Controller;
use crate::support::frames::{Tcp, mac};
use crate::support::{Guest, Layout, Switch};
use control_protocol::data_plane::Request;
use control_protocol::p4::{FromP4, P4ClientCounts, P4Request, ToP4};
use control_protocol::{Channel, ChannelError};
use flow::{DropReason, P4Id};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Number of the clients' port.
const CPU: u16 = 255;

/// A switch whose station 9 is behind the clients' port; unknown receivers are behind ports 1 and 2.
const STATIONS: &str = "
setdefault smac NoAction()
mc_mgrp_create 256
mc_node_create 0 1 2
mc_node_associate 256 0
add dmac hdr.ethernet.dst:0x020000000009 forward(port:255)
add dmac hdr.ethernet.dst:0x020000000002 forward(port:2)
add dmac hdr.ethernet.dst:0x020000000008 discard()
";

const TIMEOUT: Duration = Duration::from_secs(20);

fn frame(to: u32, from: u32, length: usize) -> Vec<u8> {
    let mut frame = [&mac(to)[..], &mac(from), &[0x12, 0x34]].concat();
    frame.resize(length, 7);
    frame
}

impl Controller {
    fn connect_clients(&mut self, switch: P4Id, cpu_port: u16) -> Result<Channel, Errno> {
        let (ours, theirs) = Channel::pair().unwrap();
        // What is delivered to clients is received by no port.
        self.removed = true;
        let cpu_port = Some(cpu_port);
        let request = Request::P4(P4Request::Connect { switch, cpu_port });
        let answer = self.ask_with(request, &[theirs.as_fd()]);
        answer
            .map(|_| ours)
            .map_err(|error| Errno::from_raw_os_error(error.errno))
    }

    fn client_counts(&mut self) -> P4ClientCounts {
        self.p4_switches()[0].counts.clients
    }

    #[track_caller]
    fn until_clients(&mut self, done: impl Fn(&P4ClientCounts) -> bool) -> P4ClientCounts {
        let end = Instant::now() + TIMEOUT;
        loop {
            let counts = self.client_counts();
            if done(&counts) {
                return counts;
            }
            assert!(Instant::now() < end, "{counts:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn joined() -> (Switch, BTreeMap<u32, Guest>, Channel) {
    let (mut switch, guests) = bound(2, &version("l2_switch", &commands(STATIONS)));
    let clients = switch.connect_clients(P4, CPU).unwrap();
    (switch, guests, clients)
}

#[track_caller]
fn expect_in(clients: &Channel, frame: &[u8]) {
    let received = clients.recv::<FromP4>().unwrap().0;
    assert_eq!(received, FromP4::PacketIn(frame.to_vec()));
}

fn send_out(clients: &Channel, frame: &[u8]) {
    clients.send(&ToP4::PacketOut(frame.to_vec()), &[]).unwrap();
}

#[test]
fn packets_reach_clients_and_come_from_them() {
    let (mut switch, mut guests, clients) = joined();
    // The first one runs, later ones have its verdict.
    for number in 1..=20 {
        let frame = frame(9, 1, 59 + number);
        guests.get_mut(&1).unwrap().send(&frame);
        expect_in(&clients, &frame);
    }
    let sent = frame(2, 9, 1500);
    send_out(&clients, &sent);
    guests.get_mut(&2).unwrap().expect_plain(&sent);
    let flooded = frame(7, 9, 70);
    send_out(&clients, &flooded);
    guests.values_mut().for_each(|guest| guest.expect_plain(&flooded));
    send_out(&clients, &frame(8, 9, 70));
    // What the program sends back to the clients returns to them.
    send_out(&clients, &frame(9, 3, 65_553));
    expect_in(&clients, &frame(9, 3, 65_553));
    let expected = P4ClientCounts {
        packets_in: 21,
        packets_out: 4,
        packets_out_dropped: 1,
        ..P4ClientCounts::default()
    };
    switch.until_clients(|counts| *counts == expected);
    let counters = switch.counters(1);
    assert_eq!((counters.delivered, counters.dropped.total()), (20, 0));
    switch.finish();
}

#[test]
fn checksums_that_guests_left_open_are_complete_for_clients() {
    let (switch, mut guests, clients) = joined();
    for payload in [10, 1400, 9000] {
        let tcp = Tcp::new(false, payload);
        let guest = guests.get_mut(&1).unwrap();
        guest.send_as(&tcp.header(1400), &tcp.frame(1, 9, false), &Layout::One);
        expect_in(&clients, &tcp.frame(1, 9, true));
    }
    switch.finish();
}

#[test]
fn clients_that_do_not_read_lose_packets_and_nobody_else_does() {
    let (mut switch, mut guests, clients) = joined();
    let (flood, other) = (frame(9, 1, 1500), frame(2, 1, 100));
    let sent = 3000;
    for number in 1..=sent {
        guests.get_mut(&1).unwrap().send(&flood);
        if number % 100 == 0 {
            switch.until_ended(1, number + number / 100 - 1);
            guests.get_mut(&1).unwrap().send(&other);
            guests.get_mut(&2).unwrap().expect_plain(&other);
        }
    }
    let counts = switch.until_clients(|counts| counts.packets_in + counts.packets_in_lost == sent);
    assert!(
        counts.packets_in_lost > sent / 2 && counts.packets_in > 0,
        "{counts:?}"
    );
    let dropped = switch.counters(1).dropped;
    assert_eq!(dropped.get(DropReason::QueueFull), counts.packets_in_lost);
    for _ in 0..counts.packets_in {
        expect_in(&clients, &flood);
    }
    switch.finish();
}

#[test]
fn clients_that_flood_or_send_nonsense_harm_nobody() {
    let (mut switch, mut guests, clients) = joined();
    let (flood, other) = (frame(2, 9, 1500), frame(9, 1, 100));
    let mut sent = 0;
    for number in 0..5000 {
        match clients.try_send(&ToP4::PacketOut(flood.clone()), &[]) {
            Ok(()) => sent += 1,
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        if number % 500 == 0 {
            guests.get_mut(&1).unwrap().send(&other);
            expect_in(&clients, &other);
        }
        // The receiver has few buffers, and gives them back.
        while guests
            .get_mut(&2)
            .unwrap()
            .receive_within(Duration::ZERO)
            .is_some()
        {}
    }
    for nonsense in [vec![], vec![1; 13], vec![1; 65_554]] {
        clients.send(&ToP4::PacketOut(nonsense), &[]).unwrap();
        sent += 1;
    }
    clients.send(&u64::MAX, &[]).unwrap();
    sent += 1;
    let counts = switch.until_clients(|counts| counts.packets_out + counts.packets_out_lost == sent);
    assert!(counts.packets_out_lost >= 4, "{counts:?}");
    guests.get_mut(&1).unwrap().send(&other);
    expect_in(&clients, &other);
    switch.finish();
}

#[test]
fn a_connection_takes_the_place_of_the_one_before_and_ends_with_either_side() {
    let (mut switch, mut guests, clients) = joined();
    let other = frame(9, 1, 100);
    // The next connection takes the place of this one.
    let next = switch.connect_clients(P4, CPU).unwrap();
    assert!(matches!(clients.recv::<FromP4>(), Err(ChannelError::Closed)));
    guests.get_mut(&1).unwrap().send(&other);
    expect_in(&next, &other);
    // Without clients, there is no such port; the program goes on.
    drop(next);
    let before = switch.counters(1).dropped.get(DropReason::NoSuchPort);
    guests.get_mut(&1).unwrap().send(&other);
    switch.until_dropped(1, DropReason::NoSuchPort, before + 1);
    let last = switch.connect_clients(P4, CPU).unwrap();
    switch.p4(P4Request::Delete { switch: P4 });
    assert!(matches!(last.recv::<FromP4>(), Err(ChannelError::Closed)));
    switch.finish();
}

#[test]
fn connections_that_cannot_be_are_refused() {
    let (mut switch, mut guests, clients) = joined();
    assert_eq!(switch.connect_clients(P4Id(77), CPU).unwrap_err(), Errno::NOENT);
    assert_eq!(switch.connect_clients(P4, 511).unwrap_err(), Errno::INVAL);
    let request = Request::P4(P4Request::Connect {
        switch: P4,
        cpu_port: None,
    });
    assert_eq!(switch.refused(request.clone()), Errno::BADF);
    let sent = frame(9, 1, 60);
    guests.get_mut(&1).unwrap().send(&sent);
    expect_in(&clients, &sent);
    // A descriptor that is no socket is found out by the first packet.
    let file = std::fs::File::open("/dev/null").unwrap();
    switch.ask_with(request, &[file.as_fd()]).unwrap();
    guests.get_mut(&1).unwrap().send(&frame(2, 1, 60));
    guests.get_mut(&2).unwrap().expect_plain(&frame(2, 1, 60));
    switch.finish();
}

#[test]
fn digests_reach_clients_and_are_lost_without() {
    let stations = STATIONS.replace("setdefault smac NoAction()", "");
    let (mut switch, mut guests) = bound(2, &version("l2_switch", &commands(&stations)));
    let lost = |counts: &P4ClientCounts| counts.digests_lost;
    let sent = frame(8, 1, 60);
    guests.get_mut(&1).unwrap().send(&sent);
    switch.until_clients(|counts| lost(counts) == 1);
    let clients = switch.connect_clients(P4, CPU).unwrap();
    guests.get_mut(&1).unwrap().send(&sent);
    let expected = FromP4::Digest {
        lineage: 0,
        digest: 0,
        values: [&mac(1)[..], &[0, 0x80]].concat(),
    };
    assert_eq!(clients.recv::<FromP4>().unwrap().0, expected);
    // Nobody reads: the socket is full at some time, and packets go on.
    let (many, other) = (3000, frame(2, 1, 100));
    for number in 1..=many {
        guests.get_mut(&1).unwrap().send(&sent);
        if number % 100 == 0 {
            guests.get_mut(&1).unwrap().send(&other);
            guests.get_mut(&2).unwrap().expect_plain(&other);
        }
    }
    let counts = switch.until_clients(|counts| lost(counts) > 100);
    assert_eq!((counts.packets_in, counts.packets_in_lost), (0, 0));
    let mut received = 0;
    while let Ok((FromP4::Digest { .. }, _)) = clients.try_recv() {
        received += 1;
    }
    let all = switch.p4_switches()[0].counts.digests;
    assert_eq!(all, 2 + many + many / 100);
    let before = switch.client_counts();
    assert_eq!(received + 1 + before.digests_lost, all);
    // The process tells what it has lost itself, whatever it says.
    for (packets, digests) in [(3, 5), (0, u64::MAX)] {
        clients.send(&ToP4::Lost { packets, digests }, &[]).unwrap();
    }
    let counts =
        switch.until_clients(|counts| counts.packets_in_lost == 3 && lost(counts) == lost(&before) + 4);
    assert_eq!((counts.packets_out, counts.packets_out_lost), (0, 0));
    switch.finish();
}
