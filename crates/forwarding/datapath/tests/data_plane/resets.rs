//! Drivers that reset their rings while chains are out: what the switch still has of the old ones never gets
//! into the new ones.

use crate::support::frames::plain;
use crate::support::guest::{RECEIVE, TRANSMIT};
use crate::support::ring::Ring;
use crate::support::session::{RESET_DEVICE, SET_VRING_ENABLE, state};
use crate::support::{Bystanders, Guest, Setup, Switch, is_long};
use control_protocol::data_plane::{PortState, Request};
use flow::{Action, PortCounters, PortId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DRIVER: u32 = 1;
const SLOW: u32 = 2;
const FAST: u32 = 3;

const ROUNDS: u8 = 10;

/// Frames of a burst, which are 1,000 bytes long.
const BURST: u8 = 12;

/// Lengths of frames that are sent after the reset.
const LATER: std::ops::Range<usize> = 100..108;

/// A switch whose first port sends to a guest that posts no buffers and to one that does.
fn scene() -> (Switch, Guest, Guest) {
    let mut switch = Switch::with_ports(3);
    let deaf = Setup {
        posted: 0,
        ..Setup::default()
    };
    let slow = Guest::start(&mut switch, SLOW, deaf);
    let fast = Guest::usual(&mut switch, FAST);
    switch.flow_by_address(DRIVER, SLOW);
    switch.flow_by_address(DRIVER, FAST);
    switch.flow_by_address(FAST, DRIVER);
    (switch, slow, fast)
}

/// Frames for both receivers, alternating.
fn burst(driver: &mut Guest, round: u8) {
    for number in 0..BURST {
        let to = [SLOW, FAST][usize::from(number % 2)];
        driver.send(&plain(DRIVER, to, 1000, round * BURST + number));
    }
}

/// What one port sends to another in all rounds.
fn all_of(from: u32, to: u32) -> HashSet<Vec<u8>> {
    let bursts = (0..ROUNDS * BURST).map(|seed| plain(from, to, 1000, seed));
    let later = LATER.flat_map(|len| (0..ROUNDS).map(move |round| plain(from, to, len, round)));
    bursts.chain(later).collect()
}

/// Receives until a frame comes that was sent at last, and counts the others.
fn receive_until(guest: &mut Guest, last: &[u8], counts: &mut HashMap<Vec<u8>, u32>) {
    loop {
        let (_, frame) = guest.receive();
        if frame == last {
            return;
        }
        *counts.entry(frame).or_default() += 1;
    }
}

type Reset = fn(&mut Guest, &mut Switch);

/// How VMMs have rings begin anew.
const RESETS: [(&str, Reset); 4] = [
    ("stopped and started", |driver, switch| driver.restart(switch)),
    ("disabled and enabled", |driver, _| {
        let enable = |driver: &Guest, enable| {
            for index in [RECEIVE, TRANSMIT] {
                driver.session.must(SET_VRING_ENABLE, &state(index, enable), &[]);
            }
        };
        enable(driver, 0);
        driver.forget();
        driver.post_all();
        enable(driver, 1);
    }),
    ("the whole device", |driver, _| {
        driver.session.must(RESET_DEVICE, &[], &[]);
        driver.forget();
        driver.bring_up();
    }),
    ("the transmit ring moved while it runs", |driver, _| {
        driver.session.stop(RECEIVE).expect("a base");
        let (first, second) = (driver.data, driver.data + 32 * 1024);
        let at = if driver.transmit.descriptors == first {
            second
        } else {
            first
        };
        driver.transmit = Ring::new(&driver.memory, at, 256, true).0;
        driver.forget();
        driver.post_all();
        driver.start_rings();
    }),
];

/// Guests take only chains back that they sent since the reset, and each once.
#[test]
fn chains_of_a_reset_ring_never_get_into_the_next_one() {
    for (what, reset) in RESETS {
        println!("{what}");
        chains_stay_out(reset);
    }
}

fn chains_stay_out(reset: Reset) {
    let (mut switch, mut slow, mut fast) = scene();
    let bystanders = Bystanders::start(&mut switch);
    let mut driver = Guest::usual(&mut switch, DRIVER);
    let (mut at_fast, mut at_driver) = (HashMap::new(), HashMap::new());
    for round in 0..ROUNDS {
        for number in 0..BURST {
            fast.send(&plain(FAST, DRIVER, 1000, round * BURST + number));
        }
        burst(&mut driver, round);
        reset(&mut driver, &mut switch);
        switch.until_state(DRIVER, |state| *state == PortState::Running);
        for len in LATER {
            driver.send(&plain(DRIVER, FAST, len, round));
        }
        driver.all_sent();
        assert_eq!(driver.transmit.used_index(), 8, "in round {round}");
        receive_until(&mut fast, &plain(DRIVER, FAST, 107, round), &mut at_fast);
        fast.all_sent();
        fast.send(&plain(FAST, DRIVER, 100, round));
        receive_until(&mut driver, &plain(FAST, DRIVER, 100, round), &mut at_driver);
    }
    // What the slow one gets is what was sent, though the memory in which it lay has been written since.
    slow.post(0..256);
    let mut at_slow = HashMap::new();
    while switch.counters(DRIVER).in_flight() > 0 {
        while let Some((_, frame)) = slow.try_receive() {
            *at_slow.entry(frame).or_default() += 1;
        }
    }
    while let Some((_, frame)) = slow.try_receive() {
        *at_slow.entry(frame).or_default() += 1;
    }
    for (from, to, counts) in [
        (DRIVER, FAST, &at_fast),
        (FAST, DRIVER, &at_driver),
        (DRIVER, SLOW, &at_slow),
    ] {
        let sent = all_of(from, to);
        assert!(
            counts.keys().all(|frame| sent.contains(frame)),
            "a frame that was not sent"
        );
        assert!(counts.values().all(|&count| count == 1), "a frame came twice");
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

/// The driver does so behind its VMM's back: the rings are zero from one moment to the next. The port is
/// broken or goes on, as the index happens to be, and nobody else notices.
#[test]
fn rings_that_a_driver_clears_by_itself_harm_nobody_else() {
    let (mut switch, mut slow, mut fast) = scene();
    let bystanders = Bystanders::start(&mut switch);
    for round in 0..ROUNDS {
        let mut driver = Guest::usual(&mut switch, DRIVER);
        burst(&mut driver, round);
        fast.send(&plain(FAST, DRIVER, 1000, round));
        driver.forget();
        driver.post_all();
        driver.transmit.kick();
        driver.receive.kick();
        for number in 0..4 {
            driver.send(&plain(DRIVER, SLOW, 100, number));
        }
        bystanders.alive();
        drop(driver);
        switch.until_state(DRIVER, |state| *state == PortState::Disconnected);
        // The next driver's rings are its own.
        let mut driver = Guest::usual(&mut switch, DRIVER);
        let frame = plain(DRIVER, FAST, 300, round);
        driver.send(&frame);
        driver.all_sent();
        assert_eq!(driver.transmit.used_index(), 1);
        receive_until(&mut fast, &frame, &mut HashMap::new());
        fast.all_sent();
        drop(driver);
        switch.until_state(DRIVER, |state| *state == PortState::Disconnected);
    }
    slow.post(0..64);
    bystanders.finish(&mut switch);
    switch.finish();
}

/// A port is removed while packets for it are on their way in threads that know it still.
#[test]
fn a_sender_gets_its_chains_back_whenever_its_receiver_goes() {
    let mut switch = Switch::with_ports(2);
    switch.flow(DRIVER, &[Action::Output(PortId(SLOW))]);
    let mut driver = Guest::usual(&mut switch, DRIVER);
    let ending = Arc::new(AtomicBool::new(false));
    let end = ending.clone();
    let sending = std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) {
            driver.send(&plain(DRIVER, SLOW, 100, 0));
        }
        driver.all_sent();
    });
    for _ in 0..if is_long() { 2_000 } else { 200 } {
        let receiver = Guest::usual(&mut switch, SLOW);
        let received = |counters: &PortCounters| counters.transmitted > 0;
        switch.until(SLOW, "packets have come", received);
        switch.done(Request::PortDel { port: PortId(SLOW) });
        switch.add(SLOW);
        drop(receiver);
    }
    ending.store(true, Ordering::Relaxed);
    sending.join().unwrap();
    switch.finish();
}
