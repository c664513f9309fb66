//! Who did the work: threads' accounts of themselves.

use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::{Guest, Switch, eventually};
use control_protocol::data_plane::{Answer, Request};
use control_protocol::port_counts::PortCount;
use control_protocol::work::{WorkReport, WorkerReport};
use flow::{Action, PortId};
use placement::Mode;
use std::time::Duration;

type Field = fn(&WorkerReport) -> u64;

/// What must not change while nothing is moved.
const MOVED: [Field; 4] = [
    |worker| worker.busy_cycles,
    |worker| worker.bursts,
    |worker| worker.packets,
    |worker| worker.delivered,
];

fn report(switch: &mut Switch) -> WorkReport {
    match switch.ask(Request::Work) {
        Ok(Answer::Work(report)) => report,
        other => panic!("{other:?}"),
    }
}

fn sum(report: &WorkReport, field: Field) -> u64 {
    report.workers.iter().map(field).sum()
}

/// Sum of a field over all threads but the channel thread, which is awake to answer.
fn of_workers(report: &WorkReport, field: Field) -> u64 {
    let workers = report.workers.iter();
    workers.filter(|worker| worker.name != "channel").map(field).sum()
}

/// The accounts once all workers sleep: a thread does its own after the guest has its packet.
fn settled(switch: &mut Switch) -> WorkReport {
    let mut last = report(switch);
    eventually("workers sleep", || {
        std::thread::sleep(Duration::from_millis(5));
        let before = std::mem::replace(&mut last, report(switch));
        of_workers(&before, |worker| worker.awake_cycles) == of_workers(&last, |worker| worker.awake_cycles)
    });
    last
}

#[test]
fn what_was_moved_is_accounted_for_once() {
    // Threads of mode `poll` never settle.
    if mode() == Mode::Poll {
        return;
    }
    const FRAMES: u64 = 300;
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let before = settled(&mut switch);
    assert!(MOVED.iter().all(|field| sum(&before, *field) == 0), "{before:?}");

    // The first one is decided by the control process, and comes back over the channel thread.
    let frame = plain(1, 2, 300, 0);
    a.send(&frame);
    let upcall = switch.upcall();
    switch.join(1, 2);
    switch.execute(upcall, &[Action::Output(PortId(2))]);
    b.expect_plain(&frame);
    for seed in 1..FRAMES {
        let frame = plain(1, 2, 300, seed as u8);
        a.send(&frame);
        b.expect_plain(&frame);
    }
    a.all_sent();

    let now = settled(&mut switch);
    assert_eq!(sum(&now, |worker| worker.packets), FRAMES, "{now:?}");
    assert_eq!(sum(&now, |worker| worker.delivered), FRAMES, "{now:?}");
    let bursts = sum(&now, |worker| worker.bursts);
    assert!((FRAMES / 32..=FRAMES).contains(&bursts), "{now:?}");
    for worker in &now.workers {
        let moved = worker.packets + worker.delivered > 0;
        assert_eq!(worker.busy_cycles > 0, moved, "{now:?}");
        assert!(worker.busy_cycles <= worker.awake_cycles, "{now:?}");
        assert!(worker.wakeups <= worker.sleeps, "{now:?}");
    }
    let (first, second) = (switch.counters(1), switch.counters(2));
    assert_eq!(
        sum(&now, |worker| worker.kicks),
        first.kicks + second.kicks,
        "{now:?}"
    );
    assert_eq!(now.calls, first.calls + second.calls);
    assert_eq!(
        now.calls_suppressed,
        first.calls_suppressed + second.calls_suppressed
    );
    assert!(now.cycles_per_second > 1_000_000, "{now:?}");
    switch.finish();
}

#[test]
fn looks_that_find_nothing_are_not_busy() {
    // That is for workers that end their looks by sleeping.
    if mode() == Mode::Poll {
        return;
    }
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let frame = plain(1, 2, 300, 0);
    a.send(&frame);
    b.expect_plain(&frame);
    let before = settled(&mut switch);
    for _ in 0..20 {
        rustix::io::write(&a.transmit.kick, &1u64.to_ne_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let now = settled(&mut switch);
    for field in MOVED {
        assert_eq!(sum(&now, field), sum(&before, field), "{now:?}");
    }
    let grown: [Field; 4] = [
        |worker| worker.awake_cycles,
        |worker| worker.wakeups,
        |worker| worker.sleeps,
        |worker| worker.kicks,
    ];
    for field in grown {
        assert!(
            of_workers(&now, field) > of_workers(&before, field),
            "{before:?} {now:?}"
        );
    }
    switch.finish();
}

/// What is asked for counters alone is what the list of ports has.
#[test]
fn counters_alone_are_those_of_the_list() {
    let mut switch = Switch::with_ports(150);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let frame = plain(1, 2, 300, 0);
    a.send(&frame);
    b.expect_plain(&frame);
    // To a port without a guest.
    switch.join(1, 3);
    a.send(&plain(1, 3, 300, 0));
    eventually("a drop", || switch.port(3).counters.egress_dropped.total() == 1);
    a.all_sent();
    let serial = switch.tell(Request::Counters, &[]);
    let mut counted: Vec<PortCount> = Vec::new();
    loop {
        let Ok(Answer::Counters { ports, more }) = switch.answer(serial) else {
            panic!("no counters")
        };
        counted.extend(ports.ports().unwrap());
        if !more {
            break;
        }
    }
    let listed = switch.ports();
    assert_eq!(counted.len(), listed.len());
    for (count, info) in counted.iter().zip(&listed) {
        assert_eq!((count.port, &count.counters), (info.spec.port, &info.counters));
    }
    // Without a driver there is nobody to serve.
    assert!(counted[9..].iter().all(|count| count.core.is_none()));
}
