//! What guests do, as far as the data plane is told.

use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::{Guest, Switch, eventually};
use control_protocol::data_plane::{Answer, GuestState, PortState, Request};
use flow::{Action, PortId};
use placement::Mode;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::sync::mpsc::channel;
use std::time::Duration;
use vm_state::{Publisher, Registry};

fn threads(port: u32, slots: &[u16]) -> Request {
    Request::PortThreads {
        port: PortId(port),
        slots: slots.into(),
    }
}

#[test]
fn the_process_behind_a_port_is_known() {
    let mut switch = Switch::with_ports(1);
    assert_eq!(switch.port(1).peer, None);
    let session = switch.attach(1);
    switch.until_state(1, |state| *state == PortState::Connected);
    assert_eq!(switch.port(1).peer, Some(std::process::id()), "who made the pair");
    switch.done(threads(1, &[]));
    assert_eq!(switch.port(1).guest, GuestState::Unknown);
    drop(session);
    switch.until_state(1, |state| *state == PortState::Disconnected);
    assert_eq!(switch.port(1).peer, None);
    assert!(switch.ask(threads(2, &[])).is_err(), "there is no such port");
    switch.finish();
}

#[test]
fn what_a_guest_does_is_known() {
    // Without the privilege there is nothing to try.
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let registry = Registry::map(publisher.area()).unwrap();
    let mut switch = Switch::seeing(Some(publisher.area())).and_ports(1);
    let session = switch.attach(1);
    switch.until_state(1, |state| *state == PortState::Connected);
    // A guest that waits.
    let ((done, wait), (sender, receiver)) = (channel::<()>(), channel());
    let guest = std::thread::spawn(move || {
        sender
            .send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
            .unwrap();
        let _ = wait.recv();
    });
    let slot = registry.add(receiver.recv().unwrap()).unwrap();
    switch.done(threads(1, &[slot.0]));
    eventually("it is blocked", || {
        matches!(switch.port(1).guest, GuestState::Blocked(_))
    });
    // Places that cannot be are nobody's.
    switch.done(threads(1, &[u16::MAX]));
    assert_eq!(switch.port(1).guest, GuestState::Unknown);
    switch.done(threads(1, &[]));
    assert_eq!(switch.port(1).guest, GuestState::Unknown);
    drop(session);
    drop(done);
    guest.join().unwrap();
    switch.finish();
}

/// Packets that the worker of a core switched so far.
fn switched_on(switch: &mut Switch, cpu: usize) -> u64 {
    let Ok(Answer::Work(report)) = switch.ask(Request::Work) else {
        panic!("no account");
    };
    let name = format!("worker-{cpu}");
    let mut workers = report.workers.iter();
    workers
        .find(|worker| worker.name == name)
        .expect("a worker per core")
        .packets
}

/// Also if another core is idle: waking it would take longer than what is to be done.
#[test]
fn a_sender_that_blocks_is_served_on_its_core() {
    const FRAMES: u64 = 200;
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    if mode() != Mode::Hyperswitch || sched_getaffinity(None).is_ok_and(|cpus| cpus.count() < 2) {
        return;
    }
    let registry = Registry::map(publisher.area()).unwrap();
    let mut switch = Switch::seeing(Some(publisher.area())).and_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.flow(1, &[Action::Output(PortId(2))]);
    for cpu in [0, 1] {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        let tid = gettid().as_raw_nonzero().get().cast_unsigned();
        let slot = registry.add(tid).unwrap();
        switch.done(threads(1, &[slot.0]));
        let mut before = 0;
        for round in 0..2 * FRAMES {
            // By then its kicks are heard where they should be.
            if round == FRAMES {
                before = switched_on(&mut switch, cpu);
            }
            let frame = plain(1, 2, 500, round as u8);
            a.send(&frame);
            std::thread::sleep(Duration::from_millis(1));
            b.expect_plain(&frame);
        }
        let here = switched_on(&mut switch, cpu) - before;
        assert!(here > FRAMES * 3 / 4, "{here} of {FRAMES} on CPU {cpu}");
    }
    switch.finish();
}
