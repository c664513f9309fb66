//! Forwarding outlives control; misses are bounded, per port, and wait for the next control process.

use crate::support::frames::plain;
use crate::support::memory::Memory;
use crate::support::ring::Ring;
use crate::support::{Guest, Switch, TIMEOUT, eventually};
use control_protocol::data_plane::{Packet, Request, VERSION};
use control_protocol::supervisor::{FromChild, Role};
use flow::{Action, DropReason, PortId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// As in `datapath::miss`.
const MOST_MISSES: u64 = 64;

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

#[test]
fn flows_outlive_control_and_misses_wait() {
    let mut switch = Switch::with_ports(4);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let mut c = Guest::usual(&mut switch, 3);
    let mut d = Guest::usual(&mut switch, 4);
    switch.join(1, 2);
    // Three misses are with the control process when it dies; one of another port as well.
    let held: Vec<_> = (0..3)
        .map(|seed| {
            c.send(&plain(3, 4, 200, seed));
            switch.upcall()
        })
        .collect();
    assert_eq!(held.len(), 3);
    switch.disconnect();
    for seed in 0..50 {
        let frame = plain(1, 2, 100 + usize::from(seed) * 20, seed);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    for seed in 0..100 {
        c.send(&plain(3, 4, 200, seed));
    }
    c.all_sent();
    d.send(&plain(4, 3, 90, 1));
    d.all_sent();

    switch.connect();
    let counters = switch.counters(3);
    assert_eq!(counters.discarded.get(DropReason::ControlLost), 3, "{counters:?}");
    let waiting = counters.upcalls - 3;
    // Those that were with the control process count against the bound until they are known to be lost.
    assert!((MOST_MISSES - 3..=MOST_MISSES).contains(&waiting), "{counters:?}");
    assert_eq!(counters.dropped.get(DropReason::MissQueueFull), 100 - waiting);
    let mut seeds = Vec::new();
    let mut others = 0;
    for _ in 0..=waiting {
        let upcall = switch.upcall();
        if upcall.id.port == PortId(4) {
            assert_eq!(upcall.packet.frame, plain(4, 3, 90, 1));
            others += 1;
        } else {
            seeds.push(upcall.packet.frame[20]);
        }
        switch.execute(upcall, &[output(1)]);
    }
    assert_eq!(others, 1);
    let expected: Vec<_> = (0..waiting)
        .map(|seed| plain(3, 4, 200, seed as u8)[20])
        .collect();
    assert_eq!(seeds, expected, "in order");
    for _ in 0..=waiting {
        a.receive();
    }
    assert_eq!(switch.upcall_within(Duration::from_millis(20)), None);
    switch.finish();
}

#[test]
fn what_was_never_answered_is_lost_with_control() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    for round in 1..=5u64 {
        for seed in 0..10 {
            a.send(&plain(1, 2, 300, seed));
        }
        for _ in 0..10 {
            switch.upcall();
        }
        // Either way: seen to close, or replaced.
        if round % 2 == 0 {
            switch.disconnect();
        }
        switch.connect();
        assert_eq!(
            switch.counters(1).discarded.get(DropReason::ControlLost),
            10 * round
        );
    }
    switch.finish();
}

#[test]
fn a_second_hello_writes_off_as_well() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    a.send(&plain(1, 2, 300, 0));
    let upcall = switch.upcall();
    let hello = Request::Hello { version: VERSION };
    assert!(switch.ask(hello).is_ok());
    // Too late: it is lost already and counted once.
    switch.discard(upcall.id, DropReason::Policy);
    let counters = switch.counters(1);
    assert_eq!(counters.discarded.get(DropReason::ControlLost), 1);
    assert_eq!(counters.discarded.total(), 1);
    let wrong = Request::Hello { version: 99 };
    assert!(switch.ask(wrong).is_err());
    switch.finish();
}

#[test]
fn a_flood_of_misses_starves_nobody() {
    let mut switch = Switch::with_ports(3);
    let mut flood = Guest::usual(&mut switch, 1);
    let mut quiet = Guest::usual(&mut switch, 2);
    let mut c = Guest::usual(&mut switch, 3);
    // The control process is slow: it answers nothing for now.
    for _ in 0..500 {
        flood.send(&plain(1, 3, 400, 1));
    }
    quiet.send(&plain(2, 3, 70, 2));
    quiet.all_sent();
    flood.all_sent();
    let mut before = 0;
    loop {
        let upcall = switch.upcall();
        if upcall.id.port == PortId(2) {
            switch.execute(upcall, &[output(3)]);
            break;
        }
        before += 1;
        switch.discard(upcall.id, DropReason::Policy);
    }
    assert!(before <= MOST_MISSES, "{before} others first");
    c.expect_plain(&plain(2, 3, 70, 2));
    assert_eq!(switch.counters(2).dropped.total(), 0);
    assert!(switch.counters(1).dropped.get(DropReason::MissQueueFull) >= 500 - 2 * MOST_MISSES);
    switch.finish();
}

#[test]
fn misses_have_a_rate() {
    let mut switch = Switch::with_ports(3);
    let mut flood = Guest::usual(&mut switch, 1);
    let mut quiet = Guest::usual(&mut switch, 2);
    switch.done(Request::PortSet {
        port: PortId(1),
        mtu: 1500,
        miss_rate: 100,
    });
    // The control process answers everything at once: the queue is never full.
    let start = Instant::now();
    for _ in 0..400 {
        flood.send(&plain(1, 3, 80, 1));
        flood.all_sent();
        while let Some(upcall) = switch.upcall_within(Duration::ZERO) {
            switch.discard(upcall.id, DropReason::Policy);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    for _ in 0..400 {
        quiet.send(&plain(2, 3, 80, 1));
        quiet.all_sent();
        let upcall = switch.upcall();
        switch.discard(upcall.id, DropReason::Policy);
    }
    let counters = switch.counters(1);
    assert_eq!(
        counters.dropped.total(),
        counters.dropped.get(DropReason::MissRate)
    );
    assert_eq!(counters.upcalls + counters.dropped.total(), 400, "{counters:?}");
    let most = 100.0 + 100.0 * seconds + 1.0;
    assert!(
        counters.upcalls >= 100 && counters.upcalls as f64 <= most,
        "{counters:?}"
    );
    assert_eq!(switch.counters(2).dropped.total(), 0);
    // The rate is for misses only.
    let mut receiver = Guest::usual(&mut switch, 3);
    switch.flow(1, &[output(3)]);
    for seed in 0..200 {
        let frame = plain(1, 3, 80, seed);
        flood.send(&frame);
        receiver.expect_plain(&frame);
    }
    switch.finish();
}

#[test]
fn large_misses_are_bounded_in_bytes() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    switch.disconnect();
    for seed in 0..30 {
        a.send(&plain(1, 2, 60_000, seed));
    }
    a.all_sent();
    switch.connect();
    let counters = switch.counters(1);
    // 512 KiB of them.
    assert_eq!(
        (counters.upcalls, counters.dropped.get(DropReason::MissQueueFull)),
        (8, 22)
    );
    for seed in 0..8 {
        let upcall = switch.upcall();
        assert_eq!(upcall.packet.frame, plain(1, 2, 60_000, seed));
        switch.discard(upcall.id, DropReason::Policy);
    }
    switch.finish();
}

/// Keeps a ring full until told to stop: whatever came back is offered again. Descriptors are there already.
fn saturate(ring: &mut Ring, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let back = ring.used_index().wrapping_sub(ring.seen);
        for _ in 0..back {
            ring.offer(ring.next % ring.size);
        }
        ring.seen = ring.seen.wrapping_add(back);
        ring.publish_and_kick();
    }
}

#[test]
fn busy_guests_do_not_hold_up_requests() {
    let mut switch = Switch::with_ports(3);
    let mut b = Guest::usual(&mut switch, 2);
    let mut a = Guest::usual(&mut switch, 1);
    switch.join(1, 2);
    let frame = plain(1, 2, 1000, 0);
    a.memory
        .write(a.data - 80 * 1024, &[&[0; 12], &frame[..]].concat());
    let address = Memory::guest(a.data - 80 * 1024);
    for index in 0..a.transmit.size {
        a.transmit.descriptor(index, address, 1012, 0, 0);
        a.transmit.offer(index);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| saturate(&mut a.transmit, &stop));
        scope.spawn(|| saturate(&mut b.receive, &stop));
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        let mut sent = 0;
        // On a busy machine it takes a while until the guest is.
        while start.elapsed() < Duration::from_millis(700) || sent <= 1000 && start.elapsed() < TIMEOUT {
            let packet = Packet {
                vnet_header: [0; 12],
                frame: plain(3, 2, 700, 1),
            };
            let asked = Instant::now();
            switch.inject(3, packet, &[output(2)]);
            switch.counters(3);
            slowest = slowest.max(asked.elapsed());
            sent = switch.counters(1).received;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(slowest < Duration::from_secs(2), "a request took {slowest:?}");
    });
    assert!(switch.counters(1).received > 1000, "the guest was not busy");
    // The receiver has stopped taking packets; what waits for it is dropped in time.
    eventually("all chains come back", || {
        a.transmit.used_index() == a.transmit.next
    });
    switch.finish();
}

#[test]
fn a_packet_that_was_taken_is_not_waited_for() {
    let mut switch = Switch::with_ports(2);
    let mut guest = Guest::usual(&mut switch, 1);
    // Far more than may be under way.
    for seed in 0..3 * MOST_MISSES {
        guest.send(&plain(1, 2, 100, seed as u8));
        let upcall = switch.upcall().id;
        switch.tell(Request::Taken { upcall }, &[]);
        // Once more, and one that never was.
        switch.tell(Request::Taken { upcall }, &[]);
        let upcall = control_protocol::data_plane::UpcallId {
            port: PortId(9),
            ..upcall
        };
        switch.tell(Request::Taken { upcall }, &[]);
    }
    // A worker counts an upcall after it has sent it.
    switch.until(1, "the last one is counted", |counters| {
        (counters.upcalls, counters.in_flight()) == (3 * MOST_MISSES, 0)
    });
    let counters = switch.counters(1);
    assert_eq!((counters.dropped.total(), counters.discarded.total()), (0, 0));
    switch.stop();
}

/// A controller may hang with its channel open: the supervisor finds out, once it is told.
#[test]
fn a_controller_that_does_not_decide_is_looked_at() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let _b = Guest::usual(&mut switch, 2);
    while switch.said().is_some() {}
    let sent = Instant::now();
    a.send(&plain(1, 2, 100, 1));
    let upcall = switch.upcall();
    eventually("the supervisor is told", || {
        owes(&mut switch) == Some(Role::Control)
    });
    assert!(sent.elapsed() >= Duration::from_millis(250), "too early");
    switch.discard(upcall.id, DropReason::NoAction);
    switch.settle();
    while switch.said().is_some() {}
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(owes(&mut switch), None, "nothing is owed any more");
}

/// Who owes an answer, by what the supervisor was told. A worker without a processor may have been reported
/// as well.
fn owes(switch: &mut Switch) -> Option<Role> {
    std::iter::from_fn(|| switch.said()).find_map(|said| match said {
        FromChild::Owes(role) => Some(role),
        _ => None,
    })
}
