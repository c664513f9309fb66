//! Descriptors that their VMM makes costly to use.

use crate::support::frames::plain;
use crate::support::guest::{RECEIVE, TRANSMIT};
use crate::support::mapper::Mapper;
use crate::support::memory::USER_BASE;
use crate::support::session::{RegionSpec, SET_VRING_CALL, SET_VRING_KICK, Said, Session, words};
use crate::support::waiters::Waiters;
use crate::support::{Guest, Switch, TIMEOUT};
use control_protocol::data_plane::Request;
use flow::{Action, PortId};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, recv};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A packet there and back; the guest is called for it.
fn one_packet(guest: &mut Guest, called: &mut dyn FnMut(&Guest) -> bool) {
    let frame = plain(1, 1, 300, 9);
    guest.receive.ask_for_call();
    guest.transmit.ask_for_call();
    guest.send(&frame);
    let end = Instant::now() + TIMEOUT;
    // The call for the frame that was sent may come first.
    let (mut is_called, mut has_come) = (false, false);
    while !(is_called && has_come) {
        assert!(Instant::now() < end, "called: {is_called}, received: {has_come}");
        is_called |= called(guest);
        has_come |= guest.try_receive().is_some_and(|(_, got)| got == frame);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until forwarding threads make all calls. A disturbed machine, or another test, has some made apart.
fn until_usual(switch: &mut Switch, guest: &mut Guest, called: &mut dyn FnMut(&Guest) -> bool) {
    let until = Instant::now() + 6 * TIMEOUT;
    loop {
        let apart = switch.counters(1).calls_apart;
        (0..20).for_each(|_| one_packet(guest, called));
        if switch.port(1).costly.call_us.is_none() && switch.counters(1).calls_apart == apart {
            return;
        }
        assert!(Instant::now() < until, "cheap calls are made apart");
    }
}

/// Calls of a port are made apart while they are costly, and by forwarding threads before and afterwards.
/// None is missing.
fn calls_are_apart_while_costly(bell: OwnedFd, end: &OwnedFd, called: &mut dyn FnMut(&Guest) -> bool) {
    let mut switch = Switch::with_ports(1);
    let mut guest = Guest::usual(&mut switch, 1);
    switch.flow(1, &[Action::Output(PortId(1))]);
    for ring in [RECEIVE, TRANSMIT] {
        guest
            .session
            .must(SET_VRING_CALL, &words(&[ring.into()]), &[bell.as_fd()]);
    }
    until_usual(&mut switch, &mut guest, called);
    let waiters = Waiters::of(end.as_fd(), 10, 250);
    let until = Instant::now() + TIMEOUT;
    while switch.port(1).costly.call_us.is_none() {
        assert!(Instant::now() < until, "forwarding threads make costly calls");
        one_packet(&mut guest, called);
    }
    (0..20).for_each(|_| one_packet(&mut guest, called));
    assert!(switch.counters(1).calls_apart > 0);
    drop(waiters);
    until_usual(&mut switch, &mut guest, called);
    switch.finish();
}

#[test]
fn costly_calls_by_an_eventfd_are_made_apart() {
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let end = bell.try_clone().unwrap();
    let own = bell.try_clone().unwrap();
    let mut called = move |_: &Guest| rustix::io::read(&own, &mut [0; 8]).is_ok();
    calls_are_apart_while_costly(bell, &end, &mut called);
}

#[test]
fn costly_calls_by_a_socket_are_made_apart() {
    let (theirs, end) = UnixStream::pair().unwrap();
    let end = OwnedFd::from(end);
    let own = end.try_clone().unwrap();
    let mut called = move |_: &Guest| recv(&own, &mut [0u8; 4096], RecvFlags::DONTWAIT).is_ok();
    calls_are_apart_while_costly(theirs.into(), &end, &mut called);
}

/// The lock of a kick descriptor is held by its VMM most of the time. Changes of what is received are made at
/// a rate, and others are served meanwhile.
#[test]
fn kick_descriptors_whose_lock_is_held_are_changed_seldom() {
    // Who has the only core holds no lock that others could meet.
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let mut switch = Switch::with_ports(3);
    let attacker = Guest::usual(&mut switch, 1);
    let [mut a, mut b] = [2, 3].map(|port| Guest::usual(&mut switch, port));
    switch.join(2, 3);
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let (waiters, end) = (
        Waiters::of(kick.as_fd(), 40, 500),
        Arc::new(AtomicBool::new(false)),
    );
    let (own, ending) = (kick.try_clone().unwrap(), end.clone());
    let holder = std::thread::spawn(move || {
        while !ending.load(Ordering::Relaxed) {
            rustix::io::write(&own, &1u64.to_ne_bytes()).unwrap();
        }
    });
    let set = || {
        let ring = words(&[TRANSMIT.into()]);
        attacker.session.say(SET_VRING_KICK, &ring, &[kick.as_fd()])
    };
    // Both must have a core at the same time, twice.
    let until = Instant::now() + 6 * TIMEOUT;
    while set() != Said::No || switch.port(1).costly.kick_us.is_none() {
        assert!(Instant::now() < until, "costly changes are not noticed");
    }
    let frame = plain(2, 3, 100, 7);
    a.send(&frame);
    b.expect_plain(&frame);
    end.store(true, Ordering::Relaxed);
    holder.join().unwrap();
    drop(waiters);
    // The longest rest is a minute.
    let until = Instant::now() + 8 * TIMEOUT;
    while switch.port(1).costly.kick_us.is_some() {
        assert!(Instant::now() < until, "changes remain refused");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(set(), Said::Yes);
    switch.finish();
}

/// Not a test: the program of the next one.
#[test]
fn mapping_program() {
    crate::support::mapper::serve();
}

/// A VMM holds the lock that mapping its file takes, while nothing else can be mapped in the process. It is
/// mapped seldom, and others are served meanwhile.
#[test]
fn files_whose_lock_is_held_are_mapped_seldom() {
    let mut switch = Switch::with_ports(3);
    let attacker = Guest::usual(&mut switch, 1);
    let [mut a, mut b] = [2, 3].map(|port| Guest::usual(&mut switch, port));
    switch.join(2, 3);
    let mapper = Mapper::start("costly::mapping_program");
    let spec = RegionSpec(1 << 40, 1 << 20, USER_BASE ^ 1 << 40, 0);
    let counter = Arc::new(AtomicU64::new(0));
    let (stream, count) = (attacker.session.stream.try_clone().unwrap(), counter.clone());
    let file = mapper.file.try_clone().unwrap();
    let maps = std::thread::spawn(move || {
        let session = Session::new(stream);
        while session.add_region(spec, &file) == Said::Yes {
            count.fetch_add(1, Ordering::Relaxed);
            session.remove_region(spec);
        }
    });
    // The VMM may have to wait for a core before it holds the lock.
    let is_seldom = (0..5).any(|_| {
        let before = counter.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(2));
        counter.load(Ordering::Relaxed) - before < 20
    });
    assert!(is_seldom, "{} times", counter.load(Ordering::Relaxed));
    let frame = plain(2, 3, 100, 7);
    a.send(&frame);
    b.expect_plain(&frame);
    // Whoever waits for a pause is not waited for.
    let start = Instant::now();
    switch.done(Request::PortDel { port: PortId(1) });
    assert!(start.elapsed() < TIMEOUT / 2, "{:?}", start.elapsed());
    maps.join().unwrap();
    drop(mapper);
    switch.add(1);
    switch.finish();
}
