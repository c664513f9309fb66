//! Bandwidths of ports: what is over waits, in the guest's ring or in front of the receiver.
//!
//! Rates are so low that the test sees packets wait however slow the machine is, and a higher rate ends that.

use crate::support::control::{SWITCH, mode};
use crate::support::frames::{Tcp, plain};
use crate::support::guest::ALL;
use crate::support::{Guest, Layout, Setup, Switch, eventually};
use control_protocol::data_plane::{Answer, Request};
use control_protocol::work::WorkReport;
use flow::{Action, DropReason, Edit, PortCounters, PortId, PortRates, RateClass, RateLimit, Share};
use placement::Mode;
use rustix::io::Errno;
use std::time::{Duration, Instant};

const LENGTH: usize = 1000;

/// As many as a guest of these tests can have under way.
const FRAMES: u8 = 32;

/// A frame in 80 ms, after ten of them.
const SLOW: RateLimit = RateLimit {
    bits_per_second: 100_000,
    burst: 10_000,
};

const FAST: RateLimit = RateLimit {
    bits_per_second: 10_000_000_000,
    burst: 10_000_000,
};

fn pair() -> (Switch, Guest, Guest) {
    let mut switch = Switch::with_ports(2);
    let a = Guest::usual(&mut switch, 1);
    let b = Guest::usual(&mut switch, 2);
    switch.flow(1, &[Action::Output(PortId(2))]);
    (switch, a, b)
}

fn set(switch: &mut Switch, port: u32, from: Option<RateLimit>, to: Option<RateLimit>) {
    let share = Share::default();
    let (port, rates) = (PortId(port), PortRates { from, to, share });
    switch.done(Request::PortRates { port, rates });
}

/// Changes what a port gets of others' bandwidths.
fn share(switch: &mut Switch, port: u32, share: Share) {
    let rates = PortRates {
        share,
        ..PortRates::default()
    };
    let port = PortId(port);
    switch.done(Request::PortRates { port, rates });
}

/// Frames of port 1, each with a number.
fn send(a: &mut Guest, numbers: std::ops::Range<u8>) {
    numbers.for_each(|number| a.send(&plain(1, 2, LENGTH, number)));
}

fn work(switch: &mut Switch) -> WorkReport {
    match switch.ask(Request::Work) {
        Ok(Answer::Work(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_guest_may_not_send_stays_in_its_ring() {
    let (mut switch, mut a, mut b) = pair();
    set(&mut switch, 1, Some(SLOW), None);
    send(&mut a, 0..FRAMES);
    switch.until(1, "the port waits", |counters| counters.bandwidth_waits > 0);
    let taken = switch.counters(1).received;
    assert!((10..31).contains(&taken), "{taken}");
    assert!(a.outstanding() > 0, "the others are the guest's");
    // Goes on by itself, and not at once.
    switch.until(1, "the debt is paid", |counters| counters.received > taken);
    // A change takes effect while the ring waits.
    set(&mut switch, 1, Some(FAST), None);
    (0..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    a.all_sent();
    set(&mut switch, 1, Some(SLOW), None);
    let waits = switch.counters(1).bandwidth_waits;
    send(&mut a, 0..FRAMES);
    switch.until(1, "it waits again", |counters| counters.bandwidth_waits > waits);
    assert!(switch.counters(1).received < 2 * u64::from(FRAMES));
    set(&mut switch, 1, None, None);
    (0..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    a.all_sent();
    assert_eq!(switch.counters(1).dropped.total(), 0);
    switch.finish();
}

/// Frames of 64 KiB at 1 Mb/s take half a second each: all arrive whole, and no two of them at once.
#[test]
fn frames_of_64_kib_wait_at_a_slow_port_and_arrive() {
    const FRAMES: usize = 4;
    let slow = RateLimit {
        bits_per_second: 1_000_000,
        burst: 1600,
    };
    for to in [false, true] {
        let mut switch = Switch::with_ports(2);
        let a = &mut Guest::usual(&mut switch, 1);
        let setup = Setup {
            features: ALL,
            ..Setup::default()
        };
        let mut b = Guest::start(&mut switch, 2, setup);
        switch.flow(1, &[Action::Output(PortId(2))]);
        let (port, from, to) = if to {
            (2, None, Some(slow))
        } else {
            (1, Some(slow), None)
        };
        set(&mut switch, port, from, to);
        let tcp = Tcp::new(false, 65_535 - 72);
        let frame = tcp.frame(1, 2, false);
        let begun = Instant::now();
        (0..FRAMES).for_each(|_| a.send_as(&tcp.header(1400), &frame, &Layout::Apart));
        for _ in 0..FRAMES {
            b.expect(&frame);
        }
        // The frames behind the first one wait for it to be paid.
        let least = Duration::from_millis(500) * (FRAMES as u32 - 1);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        assert_eq!(switch.counters(1).dropped.total(), 0);
        switch.finish();
    }
}

/// A ring that starts again has what its port has saved, and owes what its port owes.
#[test]
fn a_ring_that_starts_again_gains_nothing() {
    let (mut switch, mut a, mut b) = pair();
    set(&mut switch, 1, Some(SLOW), None);
    let begin = Instant::now();
    let mut got = 0;
    for _ in 0..5 {
        send(&mut a, 0..FRAMES);
        let waits = switch.counters(1).bandwidth_waits;
        switch.until(1, "the port waits", |counters| counters.bandwidth_waits > waits);
        while b.receive_within(Duration::from_millis(1)).is_some() {
            got += 1;
        }
        a.restart(&mut switch);
        b.post_all();
    }
    while b.receive_within(Duration::from_millis(20)).is_some() {
        got += 1;
    }
    // One frame in debt with each look.
    let may = 11 + begin.elapsed().as_millis() / 80 + 1;
    assert!(got <= may, "{got} of {may}");
}

/// A switch whose port 2 gets what others send.
fn many_to_one(senders: u32) -> (Switch, Vec<Guest>, Guest) {
    let mut switch = Switch::with_ports(senders + 2);
    let receiver = Guest::usual(&mut switch, 2);
    let ports = (1..senders + 2).filter(|port| *port != 2);
    let guests = ports.map(|port| {
        switch.flow(port, &[Action::Output(PortId(2))]);
        Guest::usual(&mut switch, port)
    });
    let guests = guests.collect();
    (switch, guests, receiver)
}

/// Senders that serve nobody else are held, one as well as several, and lose nothing.
#[test]
fn what_a_guest_may_not_receive_stays_with_its_senders() {
    for senders in [1, 6] {
        let (mut switch, mut guests, mut receiver) = many_to_one(senders);
        let sent = u64::from(senders) * u64::from(FRAMES);
        set(&mut switch, 2, None, Some(SLOW));
        for guest in &mut guests {
            (0..FRAMES).for_each(|number| guest.send(&plain(1, 2, LENGTH, number)));
        }
        switch.until(2, "packets wait", |counters| counters.bandwidth_waits > 0);
        // Goes on by itself, and not at once.
        let counters = switch.counters(2);
        assert!(counters.transmitted < sent, "{counters:?}");
        switch.until(2, "the debt is paid", |now| {
            now.transmitted > counters.transmitted + 1
        });
        assert!(switch.counters(2).transmitted < sent);
        // With a higher rate, and then without one.
        set(&mut switch, 2, None, Some(FAST));
        (0..sent).for_each(|_| drop(receiver.receive()));
        set(&mut switch, 2, None, None);
        send(&mut guests[0], 0..FRAMES);
        (0..FRAMES).for_each(|number| receiver.expect_plain(&plain(1, 2, LENGTH, number)));
        guests.iter_mut().for_each(Guest::all_sent);
        receiver.expect_nothing();
        assert_eq!(switch.counters(2).egress_dropped.total(), 0);
        switch.finish();
    }
}

/// The first of three guests sends to each of the others, by address.
fn gateway() -> (Switch, [Guest; 3]) {
    let (mut switch, a, b) = pair();
    switch.add(3);
    let c = Guest::usual(&mut switch, 3);
    let all = Switch::port_flow(1, &[]).id;
    switch.done(Request::FlowDel {
        switch: SWITCH,
        id: all,
    });
    switch.flow_by_address(1, 2);
    switch.flow_by_address(1, 3);
    (switch, [a, b, c])
}

/// Who sends to others as well is not held up by the slow one, and loses what has no room there.
#[test]
fn what_a_gateway_sends_to_a_slow_guest_holds_nobody_up() {
    let (mut switch, [mut a, mut b, mut c]) = gateway();
    set(&mut switch, 2, None, Some(SLOW));
    let mut refused = 0;
    for round in 0..10 {
        send(&mut a, 0..FRAMES / 2);
        a.send(&plain(1, 3, LENGTH, round));
        c.expect_plain(&plain(1, 3, LENGTH, round));
        a.all_sent();
        refused = switch.counters(2).egress_dropped.get(DropReason::MaxRate);
    }
    assert!(refused > 0);
    set(&mut switch, 2, None, Some(FAST));
    let sent = 10 * u64::from(FRAMES / 2);
    switch.until(2, "all others are there", |counters| {
        counters.transmitted + counters.egress_dropped.get(DropReason::MaxRate) == sent
    });
    (0..switch.counters(2).transmitted).for_each(|_| drop(b.receive()));
    switch.finish();
}

/// A sender that is held may have packets for others, too: it looks ahead after a while.
#[test]
fn a_sender_that_is_held_looks_for_others() {
    let (mut switch, [mut a, mut b, mut c]) = gateway();
    // A frame in 120 ms, so that all take more than three seconds.
    let rate = RateLimit {
        bits_per_second: 100_000,
        burst: 1600,
    };
    set(&mut switch, 2, None, Some(rate));
    for number in 0..FRAMES - 1 {
        a.send(&plain(1, 2, 1500, number));
    }
    a.send(&plain(1, 3, LENGTH, 0));
    c.expect_plain(&plain(1, 3, LENGTH, 0));
    let counters = switch.counters(2);
    assert!(counters.transmitted < u64::from(FRAMES) * 3 / 4, "{counters:?}");
    assert_eq!(counters.egress_dropped.total(), 0);
    set(&mut switch, 2, None, Some(FAST));
    (0..FRAMES - 1).for_each(|number| b.expect_plain(&plain(1, 2, 1500, number)));
    a.all_sent();
    switch.finish();
}

/// The sender of a frame, by its address.
fn sender(frame: &[u8]) -> u8 {
    frame[11]
}

#[test]
fn a_bandwidth_is_shared_by_weight() {
    let (mut switch, mut guests, mut receiver) = many_to_one(2);
    let rate = RateLimit {
        bits_per_second: 1_000_000,
        burst: 1600,
    };
    set(&mut switch, 2, None, Some(rate));
    let weight = |weight| Share {
        weight,
        ..Share::default()
    };
    share(&mut switch, 3, weight(4));
    assert_eq!(guests.len(), 2);
    let mut counts = [0, 0];
    let (mut seen, mut number) = (0, 0u8);
    while seen < 250 {
        for (guest, port) in guests.iter_mut().zip([1, 3]) {
            while guest.outstanding() < usize::from(FRAMES) {
                guest.send(&plain(port, 2, LENGTH, number));
            }
        }
        number = number.wrapping_add(1);
        if let Some((_, frame)) = receiver.receive_within(Duration::from_millis(5)) {
            // The first ones come while not all have begun.
            seen += 1;
            if seen > 50 {
                counts[usize::from(sender(&frame) == 3)] += 1;
            }
        }
    }
    assert!((150..=170).contains(&counts[1]), "four of five: {counts:?}");
    set(&mut switch, 2, None, None);
    for guest in &mut guests {
        eventually("all are sent", || {
            while receiver.receive_within(Duration::from_millis(1)).is_some() {}
            guest.outstanding() == 0
        });
    }
    // With two copies senders have their buffers back before the receiver has the packets.
    if mode() != Mode::DriverDomain {
        assert_eq!(switch.counters(2).egress_dropped.total(), 0);
    }
    switch.finish();
}

#[test]
fn a_priority_goes_before_all_that_waits() {
    const URGENT: u32 = 4;
    let (mut switch, mut guests, mut receiver) = many_to_one(3);
    set(&mut switch, 2, None, Some(SLOW));
    let priority = Share {
        priority: 7,
        ..Share::default()
    };
    share(&mut switch, URGENT, priority);
    let mut urgent = guests.pop().expect("three guests");
    for guest in &mut guests {
        (0..FRAMES).for_each(|number| guest.send(&plain(1, 2, LENGTH, number)));
    }
    let waits = |counters: &PortCounters| counters.bandwidth_waits > 0;
    switch.until(2, "packets wait", waits);
    while receiver.receive_within(Duration::from_millis(1)).is_some() {}
    for number in 0..10 {
        urgent.send(&plain(URGENT, 2, LENGTH, number));
    }
    let (mut others, mut number) = (0, 0);
    while number < 10 {
        let (_, frame) = receiver.receive();
        if u32::from(sender(&frame)) == URGENT {
            assert_eq!(frame, plain(URGENT, 2, LENGTH, number));
            number += 1;
        } else {
            others += 1;
        }
    }
    assert!(others <= 8, "{others} of the others came before");
    set(&mut switch, 2, None, Some(FAST));
    let sent = u64::from(FRAMES) * 2 + 10;
    switch.until(2, "all are there", |counters| counters.transmitted == sent);
    while receiver.receive_within(Duration::from_millis(10)).is_some() {}
    switch.finish();
}

#[test]
fn classes_out_of_range_are_refused() {
    let (mut switch, ..) = pair();
    let class = |number, priority, least_rate, most| RateClass {
        number,
        priority,
        least_rate,
        most,
    };
    let short = RateLimit { burst: 1, ..SLOW };
    for classes in [
        vec![class(65, 0, 0, None)],
        vec![class(1, 8, 0, None)],
        vec![class(1, 0, u64::MAX, None)],
        vec![class(1, 0, 0, Some(short))],
        vec![class(1, 0, 0, None), class(1, 0, 0, None)],
        vec![class(2, 0, 0, None), class(1, 0, 0, None)],
        vec![class(0, 0, 0, None); 1000],
    ] {
        let port = PortId(1);
        assert_eq!(
            switch.refused(Request::PortClasses { port, classes }),
            Errno::INVAL
        );
    }
    switch.finish();
}

/// Packets of a class, which the sender's flow puts them in, wait; those of no class do not.
#[test]
fn a_class_waits_and_others_pass() {
    let (mut switch, mut a, mut b) = pair();
    set(&mut switch, 2, None, Some(FAST));
    let class = RateClass {
        number: 1,
        most: Some(SLOW),
        ..RateClass::default()
    };
    let (port, classes) = (PortId(2), vec![class]);
    switch.done(Request::PortClasses { port, classes });
    let actions = [Action::Edit(Edit::Class(1)), Action::Output(PortId(2))];
    switch.flow(1, &actions);
    send(&mut a, 0..FRAMES);
    let waits = |counters: &PortCounters| counters.bandwidth_waits > 0;
    switch.until(2, "packets wait", waits);
    eventually("copies wait", || a.outstanding() == 0);
    switch.flow(1, &[Action::Output(PortId(2))]);
    let last = plain(1, 2, LENGTH, FRAMES);
    a.send(&last);
    let mut before = 0;
    while b.receive().1 != last {
        before += 1;
    }
    assert!(before < FRAMES, "it went before those that wait");
    let (port, classes) = (PortId(2), Vec::new());
    switch.done(Request::PortClasses { port, classes });
    (before..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    switch.finish();
}

/// While a port waits no thread does: it is woken when something may pass.
#[test]
fn a_port_that_waits_costs_nothing() {
    if mode() == Mode::Poll {
        return;
    }
    let (mut switch, mut a, _b) = pair();
    set(&mut switch, 1, Some(SLOW), None);
    send(&mut a, 0..FRAMES);
    switch.until(1, "the port waits", |counters| counters.bandwidth_waits > 0);
    std::thread::sleep(Duration::from_millis(100));
    let (before, begin) = (work(&mut switch), Instant::now());
    std::thread::sleep(Duration::from_millis(400));
    let (after, elapsed) = (work(&mut switch), begin.elapsed());
    let sum = |report: &WorkReport| -> (u64, u64) {
        let workers = report.workers.iter().filter(|worker| worker.name != "channel");
        workers.fold((0, 0), |(sleeps, polls), worker| {
            (sleeps + worker.sleeps, polls + worker.polls)
        })
    };
    let (sleeps, polls) = (sum(&after).0 - sum(&before).0, sum(&after).1 - sum(&before).1);
    let frames = elapsed.as_millis() as u64 / 80 + 2;
    assert!(
        sleeps <= 8 * frames && polls <= 100 * frames,
        "{sleeps} {polls} in {elapsed:?}"
    );
}

#[test]
fn bandwidths_out_of_range_are_refused() {
    let (mut switch, mut a, mut b) = pair();
    for (bits_per_second, burst) in [
        (0, 10_000),
        (99_999, 10_000),
        (u64::MAX, 10_000),
        (100_000, 0),
        (100_000, 1),
    ] {
        let limit = Some(RateLimit {
            bits_per_second,
            burst,
        });
        for rates in [
            PortRates {
                from: limit,
                ..PortRates::default()
            },
            PortRates {
                to: limit,
                ..PortRates::default()
            },
        ] {
            let port = PortId(1);
            assert_eq!(switch.refused(Request::PortRates { port, rates }), Errno::INVAL);
        }
    }
    for (priority, weight, least_rate) in [(8, 1, 0), (0, 0, 0), (0, 101, 0), (0, 1, u32::MAX)] {
        let rates = PortRates {
            share: Share {
                priority,
                weight,
                least_rate,
            },
            ..PortRates::default()
        };
        let port = PortId(1);
        assert_eq!(switch.refused(Request::PortRates { port, rates }), Errno::INVAL);
    }
    send(&mut a, 0..FRAMES);
    (0..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    eventually("all are sent", || a.outstanding() == 0);
    switch.finish();
}
