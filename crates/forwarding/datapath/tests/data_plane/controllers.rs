//! Several controllers on one data plane: each has what is its own, and notices nothing of the others.

use crate::support::control::{Controller, SWITCH};
use crate::support::frames::plain;
use crate::support::{Guest, Switch, TIMEOUT, eventually};
use control_protocol::Channel;
use control_protocol::data_plane::{Answer, Connection, Packet, PortState, Request, ToDataPlane};
use control_protocol::supervisor::ToChild;
use flow::{Action, ControllerId, DropReason, FlowId, Nested, PortId, PutMode, Stage, Statistics};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A controller's ports 1 and 2, joined, with a guest at each.
struct Pair {
    ports: [u32; 2],
    guests: [Guest; 2],
}

impl Pair {
    fn start(controller: &mut Controller) -> Pair {
        let ports = [1, 2].map(|number| controller.own(number));
        ports.into_iter().for_each(|port| controller.add(port));
        let guests = ports.map(|port| Guest::usual(controller, port));
        controller.join(ports[0], ports[1]);
        Pair { ports, guests }
    }

    /// Each hears the other.
    #[track_caller]
    fn talk(&mut self, seed: u8) {
        let [(a, first), (b, second)] = [0, 1].map(|at| (self.ports[at], at));
        for (from, to, at) in [(a, b, first), (b, a, second)] {
            let frame = plain(from, to, 100 + usize::from(seed), seed);
            self.guests[at].send(&frame);
            self.guests[1 - at].expect_plain(&frame);
        }
    }
}

fn put(flow: flow::Flow) -> Request {
    Request::FlowPut {
        flow,
        mode: PutMode::CreateOrModify(Statistics::New),
    }
}

fn numbers(controller: &mut Controller) -> Vec<u32> {
    controller.ports().iter().map(|info| info.spec.port.0).collect()
}

fn ids(controller: &mut Controller) -> Vec<FlowId> {
    controller.flows().iter().map(|(flow, _)| flow.id).collect()
}

#[test]
fn each_has_ports_and_flows_of_its_own() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let mut last = switch.controller(ControllerId::LIMIT - 1);
    // Switches and flows have the same numbers.
    let mut pairs = [
        Pair::start(&mut switch),
        Pair::start(&mut other),
        Pair::start(&mut last),
    ];
    let mut common = Switch::port_flow(other.own(1), &[Action::Output(PortId(other.own(2)))]);
    common.id = FlowId(1);
    other.put(common.clone());
    for seed in 0..20 {
        pairs.iter_mut().for_each(|pair| pair.talk(seed));
    }
    assert_eq!(numbers(&mut switch), pairs[0].ports);
    assert_eq!(numbers(&mut other), pairs[1].ports);
    assert_eq!(numbers(&mut last), pairs[2].ports);
    assert_eq!(ids(&mut switch), [1, 2].map(FlowId));
    assert_eq!(ids(&mut other), [1, u128::from(other.own(2))].map(FlowId));
    // What one does to its own is done to no other's.
    other.done(Request::FlowDel {
        switch: SWITCH,
        id: FlowId(1),
    });
    last.done(Request::FlowFlush { switch: SWITCH });
    last.done(Request::PortDel {
        port: PortId(last.own(1)),
    });
    assert_eq!(ids(&mut switch).len(), 2);
    assert_eq!(ids(&mut other).len(), 1);
    assert!(ids(&mut last).is_empty());
    pairs[0].talk(99);
    // A miss goes to the port's controller.
    let port = pairs[1].ports[0];
    pairs[1].guests[0].send(&plain(port, 7, 80, 7));
    let upcall = other.upcall();
    assert_eq!((upcall.id.port, upcall.switch), (PortId(port), SWITCH));
    other.execute(upcall, &[Action::Output(PortId(other.own(2)))]);
    pairs[1].guests[1].expect_plain(&plain(port, 7, 80, 7));
    assert!(switch.upcall_within(Duration::from_millis(20)).is_none());
    assert!(last.upcall_within(Duration::ZERO).is_none());
    other.settle();
    last.settle();
    switch.finish();
}

#[test]
fn what_is_another_s_does_not_exist() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let mut pair = Pair::start(&mut switch);
    let (own, foreign) = (PortId(other.own(1)), PortId(1));
    other.add(own.0);
    let mut guest = Guest::usual(&mut other, own.0);
    let (stream, file) = (Channel::pair().unwrap(), crate::support::memory::memfd(10));
    for (request, errno) in [
        (Request::PortAdd(Switch::spec(1)), Errno::PERM),
        (Request::PortAdd(Switch::spec(3)), Errno::PERM),
        (
            Request::PortAdd(Switch::spec(2 * ControllerId::PORTS)),
            Errno::PERM,
        ),
        (Request::PortAdd(Switch::spec(PortId::LIMIT)), Errno::INVAL),
        (Request::PortDel { port: foreign }, Errno::NODEV),
        (
            Request::PortSet {
                port: foreign,
                mtu: 68,
                miss_rate: 0,
            },
            Errno::NODEV,
        ),
        (
            Request::PortThreads {
                port: foreign,
                slots: vec![1],
            },
            Errno::NODEV,
        ),
        (
            Request::Trace {
                in_port: foreign,
                frame: plain(1, 2, 60, 0),
            },
            Errno::NODEV,
        ),
        (
            put(Switch::port_flow(foreign.0, &[Action::Output(own)])),
            Errno::PERM,
        ),
        (
            put(Switch::port_flow(own.0, &[Action::Output(foreign)])),
            Errno::PERM,
        ),
        (
            put(Switch::port_flow(
                own.0,
                &[Action::Clone(Nested(vec![Action::Output(foreign)]))],
            )),
            Errno::PERM,
        ),
        (
            put(flow::Flow {
                stage: Stage::Egress(foreign, 0),
                ..Switch::port_flow(own.0, &[])
            }),
            Errno::PERM,
        ),
    ] {
        assert_eq!(other.refused(request.clone()), errno, "{request:?}");
    }
    for (request, fd) in [
        (Request::PortAttach { port: foreign }, stream.0.as_fd()),
        (
            Request::Capture {
                port: foreign,
                snap_length: 100,
            },
            file.as_fd(),
        ),
    ] {
        let refused = other.ask_with(request, &[fd]).expect_err("an error");
        assert_eq!(refused.errno, Errno::NODEV.raw_os_error());
    }
    assert!(ids(&mut other).is_empty());
    // Packets as from another's port, to another's port, and answers to another's misses.
    let packet = Packet {
        vnet_header: [0; 12],
        frame: plain(1, 2, 60, 1),
    };
    other.inject(foreign.0, packet.clone(), &[Action::Output(foreign)]);
    other.inject(own.0, packet.clone(), &[Action::Output(foreign)]);
    other.until_dropped(own.0, DropReason::NoSuchPort, 1);
    switch.done(Request::FlowFlush { switch: SWITCH });
    pair.guests[0].send(&plain(1, 2, 90, 2));
    let upcall = switch.upcall();
    other.discard(upcall.id, DropReason::Policy);
    other.done(Request::PortSet {
        port: own,
        mtu: 1500,
        miss_rate: 100_000,
    });
    assert_eq!(switch.counters(1).discarded.total(), 0);
    switch.execute(upcall, &[Action::Output(PortId(2))]);
    pair.guests[1].expect_plain(&plain(1, 2, 90, 2));
    assert_eq!(switch.counters(1).injected, 1);
    guest.send(&plain(9, 9, 60, 3));
    let miss = other.upcall();
    other.execute(miss, &[Action::Output(foreign)]);
    other.until_dropped(own.0, DropReason::NoSuchPort, 2);
    other.settle();
    switch.finish();
}

#[test]
fn one_dies_and_its_successor_finds_what_was_its_own() {
    let mut switch = Switch::start();
    let mut other = switch.controller(2);
    let mut mine = Pair::start(&mut switch);
    let mut others = Pair::start(&mut other);
    // Either holds a miss.
    let held = [&mut *switch, &mut other].map(|controller| {
        let port = controller.own(3);
        controller.add(port);
        let mut guest = Guest::usual(controller, port);
        guest.send(&plain(3, 4, 200, 1));
        (controller.upcall(), guest)
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talking = scope.spawn(|| {
            let mut talks = 0u32;
            while !stop.load(Ordering::Relaxed) || talks < 100 {
                mine.talk(talks as u8);
                talks += 1;
            }
        });
        for round in 0..10 {
            let before = (other.ports(), ids(&mut other));
            other.disconnect();
            // Without it, what it has installed forwards; and its misses wait.
            others.talk(round);
            others.talk(round);
            other.connect();
            let after = (other.ports(), ids(&mut other));
            assert_eq!(after.1, before.1);
            for (before, after) in before.0.iter().zip(&after.0) {
                assert_eq!((&after.spec, &after.state), (&before.spec, &before.state));
            }
            assert_eq!(before.0.len(), after.0.len());
        }
        stop.store(true, Ordering::Relaxed);
        talking.join().unwrap();
    });
    // The one who lived has kept its miss.
    let [(mine, _guest), (lost, _other_guest)] = held;
    assert_eq!(switch.counters(3).discarded.total(), 0);
    switch.discard(mine.id, DropReason::Policy);
    assert_eq!(switch.counters(3).discarded.get(DropReason::Policy), 1);
    let counters = other.counters(lost.id.port.0);
    assert_eq!(counters.discarded.get(DropReason::ControlLost), 1, "{counters:?}");
    other.settle();
    switch.finish();
}

/// Fills a channel with requests until nothing fits, reading nothing.
fn stuff(controller: &Controller, request: &Request) -> u32 {
    let message = ToDataPlane {
        serial: 1_000_000,
        request: request.clone(),
    };
    let (mut sent, mut full_since) = (0, None::<Instant>);
    loop {
        match controller.control.as_ref().unwrap().try_send(&message, &[]) {
            Ok(()) => (sent, full_since) = (sent + 1, None),
            Err(_) => {
                let since = *full_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(200) {
                    return sent;
                }
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn one_that_reads_nothing_holds_up_nobody() {
    let mut switch = Switch::start();
    let mut deaf = switch.controller(1);
    let mut mine = Pair::start(&mut switch);
    let mut others = Pair::start(&mut deaf);
    let port = deaf.own(3);
    deaf.add(port);
    let mut flood = Guest::usual(&mut deaf, port);
    assert!(stuff(&deaf, &Request::PortList) > 1);
    // Its misses and its ports' events find no room either.
    for seed in 0..200 {
        flood.send(&plain(3, 4, 200, seed));
    }
    flood.all_sent();
    switch.add(3);
    for round in 0..20 {
        let mut guest = Guest::usual(&mut switch, 3);
        guest.send(&plain(3, 4, 200, round));
        let upcall = switch.upcall();
        switch.execute(upcall, &[Action::Output(PortId(1))]);
        mine.guests[0].expect_plain(&plain(3, 4, 200, round));
        mine.talk(round);
        others.talk(round);
        drop(guest);
        let told = |switch: &Switch| {
            let last = switch.states.iter().rfind(|(id, _)| id.0 == 3);
            last.map(|(_, state)| state.clone())
        };
        let end = Instant::now() + TIMEOUT;
        while told(&switch) != Some(PortState::Disconnected) {
            assert!(Instant::now() < end, "events do not come");
            assert!(switch.upcall_within(Duration::from_millis(1)).is_none());
        }
    }
    deaf.connect();
    assert_eq!(deaf.ports().len(), 3);
    let counters = deaf.counters(port);
    assert!(
        counters.dropped.get(DropReason::MissQueueFull) >= 100,
        "{counters:?}"
    );
    deaf.settle();
    switch.finish();
}

#[test]
fn one_that_floods_holds_up_nobody() {
    let mut switch = Switch::start();
    let mut noisy = switch.controller(3);
    let mut mine = Pair::start(&mut switch);
    let port = noisy.own(1);
    noisy.add(port);
    let channel = noisy.control.take().unwrap();
    let (stop, flooded) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut serial = 0;
            while !stop.load(Ordering::Relaxed) {
                serial += 1;
                let request = match serial % 5 {
                    0 => put(Switch::port_flow(port, &vec![Action::Output(PortId(port)); 500])),
                    1 => Request::FlowFlush { switch: SWITCH },
                    2 => put(Switch::port_flow(1, &[])),
                    3 => Request::PortAdd(Switch::spec(port)),
                    _ => {
                        let _ = send(&channel, &[0xee; 3000], SendFlags::DONTWAIT);
                        Request::PortList
                    }
                };
                let _ = channel.try_send(&ToDataPlane { serial, request }, &[]);
                while channel
                    .try_recv::<control_protocol::data_plane::FromDataPlane>()
                    .is_ok()
                {}
                flooded.store(serial > 1000, Ordering::Relaxed);
            }
        });
        eventually("a flood", || flooded.load(Ordering::Relaxed));
        for round in 0..200u32 {
            assert_eq!(ids(&mut switch), [1, 2].map(FlowId));
            mine.talk(round as u8);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(channel);
    noisy.connect();
    assert_eq!(numbers(&mut noisy), [port]);
    noisy.settle();
    switch.finish();
}

#[test]
fn last_statistics_go_to_who_asked_or_to_nobody() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let mut mine = Pair::start(&mut switch);
    let mut others = Pair::start(&mut other);
    for round in 0..30u8 {
        mine.talk(round);
        others.talk(round);
        let ask = |controller: &mut Controller, port: u32| {
            let request = Request::FlowDel {
                switch: SWITCH,
                id: FlowId(port.into()),
            };
            controller.tell(request, &[])
        };
        let asked = [ask(&mut switch, mine.ports[0]), ask(&mut other, others.ports[0])];
        if round % 3 == 2 {
            // Its successor is not told.
            other.disconnect();
            other.connect();
            assert!(other.upcall_within(Duration::from_millis(10)).is_none());
        } else {
            expect_ended(&mut other, asked[1], others.ports[0]);
        }
        expect_ended(&mut switch, asked[0], mine.ports[0]);
        switch.join(mine.ports[0], mine.ports[1]);
        other.join(others.ports[0], others.ports[1]);
    }
    other.settle();
    switch.finish();
}

#[track_caller]
fn expect_ended(controller: &mut Controller, asked: u32, port: u32) {
    let (serial, result) = controller.any_answer();
    let Ok(Answer::Ended {
        flows,
        complete: true,
    }) = result
    else {
        panic!("{result:?}")
    };
    let told: Vec<_> = flows.iter().map(|flow| (flow.id, flow.stats.packets)).collect();
    assert_eq!((serial, told), (asked, vec![(FlowId(port.into()), 1)]));
}

/// A file in place of a socket, a channel without a number that may be, a number without a channel.
#[test]
fn orders_that_make_no_sense_change_nothing() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let mut pair = Pair::start(&mut other);
    let (ours, theirs) = Channel::pair().unwrap();
    for id in [ControllerId::LIMIT, u8::MAX] {
        switch.order(&ToChild::Controller(ControllerId(id)), &[theirs.as_fd()]);
    }
    drop(theirs);
    switch.order(&ToChild::Controller(ControllerId(1)), &[]);
    // Those were closed, and this one is not.
    let gone = ours.recv::<control_protocol::data_plane::FromDataPlane>();
    assert!(matches!(gone, Err(control_protocol::ChannelError::Closed)));
    assert_eq!(numbers(&mut other), pair.ports);
    let file = crate::support::memory::memfd(10);
    switch.order(&ToChild::Controller(ControllerId(1)), &[file.as_fd()]);
    pair.talk(1);
    other.connect();
    assert_eq!(numbers(&mut other), pair.ports);
    let mut listening = Switch::spec(other.own(9));
    listening.connection = Connection::Listener;
    assert_eq!(other.refused(Request::PortAdd(listening)), Errno::BADF);
    other.settle();
    assert!(numbers(&mut switch).is_empty());
    switch.finish();
}

/// Waits until the last that a controller heard of another one's port is this.
#[track_caller]
fn until_heard(controller: &mut Controller, port: PortId, state: &PortState, peer: Option<u32>) {
    eventually("a foreign port", || {
        let _ = controller.ports();
        let last = controller.foreign.iter().rfind(|(other, ..)| *other == port);
        last.is_some_and(|(_, is, pid)| is == state && *pid == peer)
    });
}

/// The threads of all ports' guests are registered by one process, that of the built-in controller.
#[test]
fn the_built_in_one_hears_of_others_ports_and_sets_their_threads() {
    let mut switch = Switch::start();
    let mut other = switch.controller(1);
    let own = other.own(1);
    let port = PortId(own);
    let me = Some(std::process::id());
    let threads = Request::PortThreads { port, slots: vec![1] };
    other.add(own);
    let session = other.attach(own);
    until_heard(&mut switch, port, &PortState::Connected, me);
    switch.done(threads.clone());
    // Neither do others hear of it, nor may they set threads.
    let mut third = switch.controller(2);
    assert_eq!(third.refused(threads), Errno::NODEV);
    // A successor is told of what there is.
    switch.foreign.clear();
    switch.control = None;
    switch.connect();
    until_heard(&mut switch, port, &PortState::Connected, me);
    drop(session);
    until_heard(&mut switch, port, &PortState::Disconnected, None);
    let session = other.attach(own);
    until_heard(&mut switch, port, &PortState::Connected, me);
    // One that takes its number is another one.
    let heard = switch.foreign.len();
    other.done(Request::PortDel { port });
    other.add(own);
    drop(session);
    let session = other.attach(own);
    eventually("the new port", || {
        let _ = switch.ports();
        let new = switch.foreign[heard..].iter();
        new.clone()
            .next_back()
            .is_some_and(|(_, state, _)| *state == PortState::Connected)
    });
    other.done(Request::PortDel { port });
    until_heard(&mut switch, port, &PortState::Disconnected, None);
    drop(session);
    assert!(other.foreign.is_empty() && third.foreign.is_empty());
    for controller in [&mut other, &mut third] {
        controller.settle();
    }
    switch.finish();
}
