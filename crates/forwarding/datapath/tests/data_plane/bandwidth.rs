//! Bandwidths of ports: what is over waits, in the guest's ring or in front of the receiver.
//!
//! Rates are so low that the test sees packets wait however slow the machine is, and a higher rate ends that.

use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::{Guest, Switch, eventually};
use control_protocol::data_plane::{Answer, Request};
use control_protocol::work::WorkReport;
use flow::{Action, DropReason, PortCounters, PortId, PortRates, RateLimit};
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
    let (port, rates) = (PortId(port), PortRates { from, to });
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

/// Of several senders, who together have more under way than there is room for.
#[test]
fn what_a_guest_may_not_receive_waits_and_then_has_no_room() {
    const OTHERS: std::ops::Range<u32> = 3..8;
    const SENT: u64 = 6 * FRAMES as u64;
    let (mut switch, a, mut b) = pair();
    let mut senders = vec![a];
    for port in OTHERS {
        switch.add(port);
        senders.push(Guest::usual(&mut switch, port));
        switch.flow(port, &[Action::Output(PortId(2))]);
    }
    set(&mut switch, 2, None, Some(SLOW));
    for sender in &mut senders {
        (0..FRAMES).for_each(|number| sender.send(&plain(1, 2, LENGTH, number)));
    }
    switch.until(2, "there is no room", |counters| {
        counters.egress_dropped.get(DropReason::MaxRate) > 0 && counters.bandwidth_waits > 0
    });
    let counters = switch.counters(2);
    assert!(counters.transmitted < SENT / 2, "{counters:?}");
    // What waits is delivered, each sender's in order.
    set(&mut switch, 2, None, Some(FAST));
    let refused = |counters: &PortCounters| counters.egress_dropped.get(DropReason::MaxRate);
    switch.until(2, "all others are there", |counters| {
        counters.transmitted + refused(counters) == SENT
    });
    let refused = refused(&switch.counters(2));
    let dropped = OTHERS
        .chain([1])
        .map(|port| switch.counters(port).dropped.get(DropReason::MaxRate));
    assert_eq!(dropped.sum::<u64>(), refused);
    (0..SENT - refused).for_each(|_| drop(b.receive()));
    b.expect_nothing();
    // And without a limit, as ever.
    set(&mut switch, 2, None, None);
    send(&mut senders[0], 0..FRAMES);
    (0..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    senders.iter_mut().for_each(Guest::all_sent);
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
                to: None,
            },
            PortRates {
                from: None,
                to: limit,
            },
        ] {
            let port = PortId(1);
            assert_eq!(switch.refused(Request::PortRates { port, rates }), Errno::INVAL);
        }
    }
    send(&mut a, 0..FRAMES);
    (0..FRAMES).for_each(|number| b.expect_plain(&plain(1, 2, LENGTH, number)));
    eventually("all are sent", || a.outstanding() == 0);
    switch.finish();
}
