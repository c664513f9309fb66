//! What guests do, as far as the data plane is told.

use crate::support::frames::plain;
use crate::support::{Guest, Switch, TIMEOUT, eventually};
use control_protocol::data_plane::{Answer, GuestState, PortState, Request};
use flow::{Action, PortId};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
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

/// Two guests of which the first sends to the second, and the means to say what they do: with the privilege,
/// and in the mode in which no other test keeps a core.
fn pair_alone() -> Option<(Publisher, Registry, Switch, [Guest; 2])> {
    let alone = std::env::var("HYPERSWITCH_TEST_MODE").is_ok_and(|mode| mode == "vm-state");
    let publisher = Publisher::attach().ok().filter(|_| alone)?;
    let registry = Registry::map(publisher.area()).unwrap();
    let mut switch = Switch::seeing(Some(publisher.area())).and_ports(2);
    let guests = [1, 2].map(|port| Guest::usual(&mut switch, port));
    switch.flow(1, &[Action::Output(PortId(2))]);
    Some((publisher, registry, switch, guests))
}

/// Also if another core is idle: waking it would take longer than what is to be done.
#[test]
fn a_sender_that_blocks_is_served_on_its_core() {
    const FRAMES: u64 = 100;
    let Some((_publisher, registry, mut switch, [mut a, mut b])) = pair_alone() else {
        return;
    };
    let tid = gettid().as_raw_nonzero().get().cast_unsigned();
    let slot = registry.add(tid).unwrap();
    switch.done(threads(1, &[slot.0]));
    for cpu in [0, 1] {
        let mut only = CpuSet::new();
        only.set(cpu);
        if sched_setaffinity(None, &only).is_err() {
            return;
        }
        let mut of_frames = || {
            let before = switched_on(&mut switch, cpu);
            for seed in 0..FRAMES {
                let frame = plain(1, 2, 500, seed as u8);
                a.send(&frame);
                std::thread::sleep(Duration::from_millis(1));
                b.expect_plain(&frame);
            }
            switched_on(&mut switch, cpu) - before
        };
        // The first kicks are heard elsewhere; and others may use the core at times.
        let most = (0..10).map(|_| of_frames()).find(|here| here * 4 > FRAMES * 3);
        assert!(most.is_some(), "most are switched elsewhere than on CPU {cpu}");
    }
    switch.finish();
}

/// A guest whose vCPU runs, which frees sent frames when it receives, and one that answers it.
#[test]
fn a_guest_that_frees_sent_frames_when_it_receives_is_not_called_for_them() {
    const ROUNDS: u64 = 400;
    let Some((_publisher, registry, mut switch, [mut a, mut b])) = pair_alone() else {
        return;
    };
    switch.flow(2, &[Action::Output(PortId(1))]);
    let (sender, receiver) = channel();
    let ending = Arc::new(AtomicBool::new(false));
    let ends = ending.clone();
    let vcpu = std::thread::spawn(move || {
        sender
            .send(gettid().as_raw_nonzero().get().cast_unsigned())
            .unwrap();
        while !ends.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let slot = registry.add(receiver.recv().unwrap()).unwrap();
    switch.done(threads(1, &[slot.0]));
    b.transmit.refuse_calls();
    a.receive.refuse_calls();
    let frame = plain(1, 2, 100, 0);
    let mut round = |looks: bool| {
        a.send(&frame);
        b.expect_plain(&frame);
        b.send(&frame);
        b.reap();
        // Waiting for a call would be one.
        let sent = Instant::now();
        while a.try_receive().is_none() {
            assert!(sent.elapsed() < TIMEOUT, "no answer");
            std::thread::yield_now();
        }
        if looks {
            a.reap();
            a.transmit.ask_for_call();
        }
    };
    let mut calls_for = |rounds: u64| {
        let before = switch.counters(1).calls;
        (0..rounds).for_each(|_| round(true));
        switch.counters(1).calls - before
    };
    // Others may use the cores at times.
    let calls = (0..20)
        .map(|_| calls_for(ROUNDS))
        .find(|&calls| calls < ROUNDS / 2);
    assert!(calls.is_some(), "it is called for most frames");
    round(false);
    ending.store(true, Ordering::Relaxed);
    vcpu.join().unwrap();
    assert!(
        a.transmit.wait_for_call(Duration::from_secs(5)),
        "nobody calls it"
    );
    switch.finish();
}
