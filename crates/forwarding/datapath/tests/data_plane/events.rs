//! Ports that start and stop all the time: the control process is told the latest state, not each, and
//! others' misses have their turn.

use crate::support::frames::plain;
use crate::support::guest::RECEIVE;
use crate::support::session::{SET_VRING_ENABLE, state};
use crate::support::{Guest, Setup, Switch, TIMEOUT};
use control_protocol::data_plane::{FromDataPlane, PortState};
use flow::PortId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As in `datapath::events`.
const EVENTS_PER_SECOND: u64 = 20;

/// Messages that fit in the channel's socket (about 280) and then some.
const UNDER_WAY: usize = 600;

/// Ends the togglers, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Switches the guests' receive rings off and on, as fast as the data plane takes it, until told to stop.
/// They are on in the end.
fn toggle(guests: &[Guest], stop: &AtomicBool, toggles: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for guest in guests {
            for enabled in [0, 1] {
                guest
                    .session
                    .must(SET_VRING_ENABLE, &state(RECEIVE, enabled), &[]);
                toggles.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The next message to a slow control process.
fn receive(switch: &Switch) -> Option<FromDataPlane> {
    std::thread::sleep(Duration::from_micros(500));
    let message = switch.control.as_ref()?.try_recv::<FromDataPlane>();
    message.ok().map(|(message, _)| message)
}

#[test]
fn a_miss_has_its_turn_while_ports_start_and_stop() {
    const ATTACKERS: u32 = 120;
    let mut switch = Switch::with_ports(ATTACKERS + 1);
    let mut victim = Guest::usual(&mut switch, ATTACKERS + 1);
    let setup = || Setup {
        posted: 0,
        ..Setup::default()
    };
    let guests: Vec<_> = (1..=ATTACKERS)
        .map(|port| Guest::start(&mut switch, port, setup()))
        .collect();
    let (stop, toggles) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for guests in guests.chunks(30) {
            scope.spawn(|| toggle(guests, &stop, &toggles));
        }
        let end = Instant::now() + TIMEOUT;
        while toggles.load(Ordering::Relaxed) < 20_000 && Instant::now() < end {
            receive(&switch);
        }
        victim.send(&plain(ATTACKERS + 1, 1, 100, 1));
        // What counts is how much was put before the miss; how long that takes is up to the control process.
        let (mut before, end) = (0, Instant::now() + TIMEOUT);
        let upcall = loop {
            match receive(&switch) {
                Some(FromDataPlane::Upcall(upcall)) => break upcall,
                Some(_) => before += 1,
                None => {}
            }
            assert!(Instant::now() < end, "no miss among {before} messages");
        };
        assert_eq!(upcall.id.port, PortId(ATTACKERS + 1));
        assert!(before <= UNDER_WAY, "{before} messages first");
        switch.discard(upcall.id, flow::DropReason::Policy);
    });
    assert!(
        toggles.load(Ordering::Relaxed) > 1000,
        "the attackers did nothing"
    );
    switch.finish();
}

#[test]
fn a_port_s_events_have_a_rate_and_the_last_state_is_told() {
    let mut switch = Switch::with_ports(2);
    let guest = Guest::usual(&mut switch, 1);
    let quiet = Guest::usual(&mut switch, 2);
    let (stop, toggles) = (AtomicBool::new(false), AtomicU64::new(0));
    let guests = [guest];
    let start = Instant::now();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| toggle(&guests, &stop, &toggles));
        while toggles.load(Ordering::Relaxed) < 2000 && start.elapsed() < TIMEOUT {
            assert_eq!(switch.upcall_within(Duration::from_millis(50)), None);
        }
    });
    let told = |switch: &Switch, port: u32| {
        let states = switch.states.iter().filter(|(id, _)| id.0 == port);
        states.map(|(_, state)| state.clone()).collect::<Vec<_>>()
    };
    while told(&switch, 1).last() != Some(&PortState::Running) {
        assert!(start.elapsed() < 3 * TIMEOUT, "{:?}", told(&switch, 1).last());
        assert_eq!(switch.upcall_within(Duration::from_millis(50)), None);
    }
    let most = EVENTS_PER_SECOND * (start.elapsed().as_secs() + 2);
    let count = told(&switch, 1).len() as u64;
    assert!(
        count <= most,
        "{count} events of {}, at most {most}",
        toggles.load(Ordering::Relaxed)
    );
    // Another port has its own, and is told at once.
    drop(quiet);
    let end = Instant::now() + TIMEOUT;
    while told(&switch, 2).last() != Some(&PortState::Disconnected) {
        assert!(Instant::now() < end, "{:?}", told(&switch, 2));
        assert_eq!(switch.upcall_within(Duration::from_millis(50)), None);
    }
    switch.finish();
}
