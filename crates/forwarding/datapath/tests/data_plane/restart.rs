//! Rings go on where their drivers' last chain came back, whatever became of the data plane, and whatever the
//! front end says.

use crate::support::frames::plain;
use crate::support::guest::{LEAST, RECEIVE, TRANSMIT};
use crate::support::ring::Ring;
use crate::support::{Guest, Setup, Switch, TIMEOUT, eventually};
use std::time::Duration;

type Base = fn(&Ring) -> u16;

/// The bases that front ends ask for after they have lost their device.
const BASES: [(&str, Base); 4] = [
    ("the used index, as QEMU does", Ring::used_index),
    ("the available index, as Cloud Hypervisor does", |ring| ring.next),
    ("0, as DPDK virtio-user does", |_| 0),
    ("no index that the ring ever had", |_| 30_000),
];

/// Sends frames of all sizes both ways.
fn talk(a: &mut Guest, b: &mut Guest, rounds: u8) {
    for seed in 0..rounds {
        let len = if seed % 2 == 0 { 60 } else { 1000 };
        for (from, to) in [(1, 2), (2, 1)] {
            let frame = plain(from, to, len, seed);
            let (sender, receiver) = if from == 1 {
                (&mut *a, &mut *b)
            } else {
                (&mut *b, &mut *a)
            };
            sender.send(&frame);
            receiver.expect_plain(&frame);
        }
    }
    a.all_sent();
    b.all_sent();
}

#[test]
fn rings_go_on_at_their_used_index_whatever_the_front_end_says() {
    for features in [crate::support::guest::ALL, LEAST] {
        let mut switch = Switch::with_ports(2);
        let start = |switch: &mut Switch, port| Guest::start(switch, port, Setup::features(features));
        let (mut a, mut b) = (start(&mut switch, 1), start(&mut switch, 2));
        switch.join(1, 2);
        // More than the ring has entries, so that all indices differ.
        talk(&mut a, &mut b, 200);
        talk(&mut a, &mut b, 120);
        for (what, base) in BASES {
            println!("{what}");
            a.go_on(&mut switch, base);
            b.go_on(&mut switch, base);
            talk(&mut a, &mut b, 20);
        }
        switch.finish();
    }
}

/// A frame that waits for a receiver, and one behind it that does not: the driver gets them back in its
/// order.
#[test]
fn chains_come_back_in_the_driver_s_order() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let no_buffers = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(&mut switch, 2, no_buffers);
    let mut b = Guest::usual(&mut switch, 3);
    switch.flow_by_address(1, 2);
    switch.flow_by_address(1, 3);
    for seed in 0..8 {
        a.send(&plain(1, 2, 1000, seed));
        for len in [60, 500] {
            a.send(&plain(1, 3, len, seed));
            b.expect_plain(&plain(1, 3, len, seed));
        }
    }
    eventually("all come back", || a.transmit.used_index() == 24);
    let back: Vec<_> = (0..24).map(|at| a.transmit.used_head(at)).collect();
    let sent: Vec<_> = (0..24).map(|at| a.transmit.available_head(at)).collect();
    assert_eq!(back, sent);
    slow.post(0..64);
    switch.until(1, "all are delivered or dropped", |c| c.in_flight() == 0);
    switch.finish();
}

/// The data plane before may have ended between the used index and the call.
#[test]
fn a_driver_is_called_when_its_rings_go_on() {
    let mut switch = Switch::with_ports(2);
    let (mut a, mut b) = (Guest::usual(&mut switch, 1), Guest::usual(&mut switch, 2));
    switch.join(1, 2);
    talk(&mut a, &mut b, 2);
    for index in [RECEIVE, TRANSMIT] {
        // It sleeps until it is called for what it has not looked at.
        let ring = a.ring(index);
        while rustix::io::read(&ring.call, &mut [0; 8]).is_ok() {}
        assert!(!ring.ask_for_call());
    }
    a.go_on(&mut switch, Ring::used_index);
    for index in [RECEIVE, TRANSMIT] {
        eventually("it is called", || {
            rustix::io::read(&a.ring(index).call, &mut [0; 8]).is_ok()
        });
    }
    talk(&mut a, &mut b, 2);
    switch.finish();
}

/// A sender that serves several gets its chains back while one receiver is not served with buffers, however
/// long it takes.
#[test]
fn a_frame_that_waits_holds_up_no_later_chain_for_long() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let no_buffers = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(&mut switch, 2, no_buffers);
    let mut b = Guest::usual(&mut switch, 3);
    switch.flow_by_address(1, 2);
    switch.flow_by_address(1, 3);
    // It talks to two.
    a.send(&plain(1, 3, 60, 0));
    b.expect_plain(&plain(1, 3, 60, 0));
    let frame = plain(1, 2, 1400, 7);
    a.send(&frame);
    a.send(&plain(1, 3, 1000, 1));
    b.expect_plain(&plain(1, 3, 1000, 1));
    let end = std::time::Instant::now() + TIMEOUT;
    let waits = loop {
        let waits = switch.counters(1).in_flight();
        if a.outstanding() == 0 || waits == 0 {
            break waits;
        }
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_micros(100));
    };
    if waits > 0 {
        // What the sender writes now is not what it sent then.
        a.memory
            .write(a.data - 32 * 80 * 1024, &vec![0xee; 32 * 80 * 1024]);
        slow.post(0..64);
        if let Some((_, received)) = slow.receive_within(Duration::from_millis(500)) {
            assert_eq!(received, frame);
        }
    }
    switch.until(1, "all are accounted for", |c| c.in_flight() == 0);
    switch.finish();
}
