//! Senders that fill a receiver, or several, which others want to reach.

use crate::measure::{Attackers, FIRST, PORTS, hold};
use crate::support::frames::{Tcp, plain};
use crate::support::memory::Memory;
use crate::support::{Guest, Setup, Switch};
use flow::{Action, PortId};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::{GSO_TCPV4, NEEDS_CSUM, VnetHeader};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A guest whose ring is full of these bytes, again and again. Its packets go to these ports, or are misses
/// if there are none.
pub fn flood(
    switch: &mut Switch,
    attackers: &Attackers,
    from: u32,
    to: &[u32],
    (packet, rest): (&[u8], Duration),
) -> JoinHandle<()> {
    switch.add(from);
    let setup = Setup {
        transmit_size: 1024,
        ..Setup::default()
    };
    let mut guest = Guest::start(switch, from, setup);
    let outputs: Vec<_> = to.iter().map(|port| Action::Output(PortId(*port))).collect();
    if !outputs.is_empty() {
        switch.flow(from, &outputs);
    }
    guest.memory.write(guest.data, packet);
    let (ring, at) = (&mut guest.transmit, guest.data);
    for head in 0..ring.size {
        ring.descriptor(head, Memory::guest(at), packet.len() as u32, 0, 0);
        ring.offer(head);
    }
    attackers.repeat(guest, rest, |guest| {
        let ring = &mut guest.transmit;
        ring.next = ring.used_index().wrapping_add(ring.size);
        ring.publish_and_kick();
    })
}

/// With its virtio-net header.
fn small(from: u32) -> Vec<u8> {
    [vec![0; 12], plain(from, PORTS[1], 60, 0)].concat()
}

fn large(from: u32) -> Vec<u8> {
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHeader::default()
    };
    let frame = Tcp::new(false, 60_000).frame(from, PORTS[1], false);
    [&header.to_bytes()[..], &frame].concat()
}

/// Guests at those of these ports that no bystander has, which take what comes.
fn sinks(switch: &mut Switch, attackers: &Attackers, ports: &[u32]) -> JoinHandle<()> {
    let others = ports.iter().filter(|port| !PORTS.contains(port));
    let start = |port: &u32| {
        switch.add(*port);
        Guest::usual(switch, *port)
    };
    let sinks: Vec<_> = others.map(start).collect();
    attackers.repeat(sinks, MILLISECOND, |sinks| {
        for guest in sinks {
            while guest.try_receive().is_some() {}
        }
    })
}

/// Floods from so many ports, each to all of these ports.
fn floods(name: &str, senders: u32, to: &[u32], rest: Duration, packet: fn(u32) -> Vec<u8>) {
    hold(
        name,
        |switch, attackers| {
            let mut threads = vec![sinks(switch, attackers, to)];
            for from in FIRST..FIRST + senders {
                let packet = packet(from);
                threads.push(flood(switch, attackers, from, to, (&packet, rest)));
            }
            threads
        },
        |_| (),
    );
}

#[test]
fn one_that_floods_the_receiver() {
    floods(
        "the receiver flooded by a port",
        1,
        &PORTS[1..],
        MILLISECOND,
        small,
    );
}

#[test]
fn one_that_floods_the_receiver_without_rest() {
    let rest = Duration::from_micros(100);
    floods("the receiver flooded, each 0.1 ms", 1, &PORTS[1..], rest, small);
}

#[test]
fn eight_that_flood_the_receiver() {
    floods(
        "the receiver flooded by 8 ports",
        8,
        &PORTS[1..],
        MILLISECOND,
        small,
    );
}

#[test]
fn large_frames_that_flood_the_receiver() {
    floods(
        "the receiver flooded by 60 KB frames",
        1,
        &PORTS[1..],
        MILLISECOND,
        large,
    );
}

/// Broadcasts, and multicasts, are copies for several ports.
#[test]
fn one_that_broadcasts_to_both() {
    floods("both flooded by copies", 1, &PORTS, MILLISECOND, small);
}

#[test]
fn one_that_broadcasts_to_many() {
    let to = [PORTS[0], PORTS[1], 30, 31, 32, 33, 34, 35];
    floods("eight receivers flooded by copies", 1, &to, MILLISECOND, small);
}

#[test]
fn eight_that_broadcast() {
    let to = [PORTS[0], PORTS[1], 30, 31];
    floods("four flooded by copies of 8 ports", 8, &to, MILLISECOND, small);
}

#[test]
fn eight_that_broadcast_large_frames() {
    floods(
        "both flooded by 60 KB copies of 8 ports",
        8,
        &PORTS,
        MILLISECOND,
        large,
    );
}

#[test]
fn eight_copies_of_each() {
    let to = [PORTS[1]; 8];
    floods(
        "the receiver flooded by eight copies of each",
        1,
        &to,
        MILLISECOND,
        small,
    );
}

/// As most guests do, which broadcast now and then: a slow receiver is lent nothing of what they send.
#[test]
fn bystanders_that_serve_several() {
    const THIRD: u32 = 30;
    hold(
        "the receiver of a gateway flooded by 8 ports",
        |switch, attackers| {
            let mut threads = vec![sinks(switch, attackers, &[THIRD])];
            for (from, to) in [(PORTS[0], PORTS[1]), (PORTS[1], PORTS[0])] {
                let copies = [to, THIRD].map(|port| Action::Output(PortId(port)));
                switch.flow(from, &copies);
            }
            for from in FIRST..FIRST + 8 {
                let to = [PORTS[1]];
                threads.push(flood(switch, attackers, from, &to, (&small(from), MILLISECOND)));
            }
            threads
        },
        |_| (),
    );
}

/// Frames for stations that no flow knows: each is a miss, which the control process sends to all.
#[test]
fn one_that_sends_to_unknown_stations() {
    hold(
        "both flooded by misses",
        |switch, attackers| {
            let thread = flood(switch, attackers, FIRST, &[], (&small(FIRST), MILLISECOND));
            vec![thread]
        },
        |switch| {
            let all = PORTS.map(|port| Action::Output(PortId(port)));
            for _ in 0..256 {
                let Some(upcall) = switch.upcall_within(Duration::ZERO) else {
                    break;
                };
                switch.execute(upcall, &all);
            }
        },
    );
}
