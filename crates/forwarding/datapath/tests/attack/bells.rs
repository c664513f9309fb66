//! Call, kick and error descriptors whose cost changes, or that several ports have.

use crate::measure::{Attackers, FIRST, P99, hold_to};
use crate::support::frames::plain;
use crate::support::guest::TRANSMIT;
use crate::support::session::{SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK, words};
use crate::support::waiters::Waiters;
use crate::support::{Guest, Switch, is_long};
use flow::{Action, DropReason};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::mem::MaybeUninit;
use std::thread::JoinHandle;
use std::time::Duration;

const REST: Duration = Duration::from_millis(1);

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Guests that are called by one descriptor for each frame that they send, and send all the time.
fn called_by(switch: &mut Switch, attackers: &Attackers, bell: &OwnedFd, ports: u32) -> JoinHandle<()> {
    let start = |port| {
        switch.add(port);
        let guest = Guest::usual(switch, port);
        let ring = words(&[TRANSMIT.into()]);
        guest.session.tell(SET_VRING_CALL, &ring, &[bell.as_fd()]);
        switch.flow(port, &[Action::Drop(DropReason::Policy)]);
        guest
    };
    let guests: Vec<Guest> = (FIRST..FIRST + ports).map(start).collect();
    attackers.repeat(guests, REST, |guests| {
        for guest in guests {
            if guest.outstanding() < 16 {
                guest.transmit.ask_for_call();
                guest.send(&plain(FIRST, FIRST + 1, 60, 0));
            }
        }
    })
}

/// Each port has calls of its own that are charged to nobody else.
#[test]
fn one_descriptor_of_many_ports() {
    let bell = bell();
    let waiters = Waiters::many(bell.as_fd());
    hold_to(
        "dear calls of 16 ports by one eventfd",
        P99,
        |switch, attackers| vec![called_by(switch, attackers, &bell, 16)],
        |_| (),
    );
    drop(waiters);
}

/// Calls are cheap when they are looked at, and dear when they are not.
#[test]
fn waiters_that_come_and_go() {
    hold_to(
        "dear calls, waiters that come and go",
        P99,
        |switch, attackers| {
            let bell = bell();
            let sender = called_by(switch, attackers, &bell, 2);
            let mut turn = 0;
            let toggle = attackers.repeat(bell, REST, move |bell| {
                turn += 1;
                let waiters = Waiters::of(bell.as_fd(), 25, if is_long() { 400 } else { 20 });
                std::thread::sleep(Duration::from_millis(turn % 7));
                drop(waiters);
            });
            vec![sender, toggle]
        },
        |_| (),
    );
}

/// Instances within instances, and threads that each call wakes.
#[test]
fn nested_waiters_and_threads_that_wake() {
    hold_to(
        "calls that wake 200 threads, and nested instances",
        P99,
        |switch, attackers| {
            let (bell, outer) = (bell(), epoll::create(CreateFlags::CLOEXEC).unwrap());
            let mut threads = vec![called_by(switch, attackers, &bell, 1)];
            for number in 0..if is_long() { 200 } else { 20 } {
                let inner = epoll::create(CreateFlags::CLOEXEC).unwrap();
                let flags = EventFlags::IN | EventFlags::ET;
                epoll::add(&inner, &bell, EventData::new_u64(0), flags).unwrap();
                epoll::add(&outer, &inner, EventData::new_u64(number), flags).unwrap();
                threads.push(attackers.repeat(inner, Duration::ZERO, |inner| {
                    let mut events = [MaybeUninit::<Event>::uninit(); 1];
                    let most = Timespec {
                        tv_sec: 0,
                        tv_nsec: 50_000_000,
                    };
                    let _ = epoll::wait(inner, &mut events, Some(&most));
                }));
            }
            // Both live as long as the attack.
            threads.push(attackers.repeat((bell, outer), REST, |_| ()));
            threads
        },
        |_| (),
    );
}

/// A VMM names descriptors with many waiters again and again, for everything that takes one.
#[test]
fn descriptors_that_are_named_all_the_time() {
    hold_to(
        "dear descriptors, named all the time",
        P99,
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                let bell = bell();
                let waiters = Waiters::many(bell.as_fd());
                let ring = words(&[TRANSMIT.into()]);
                attackers.repeat((guest, bell, waiters), REST, move |(guest, bell, _)| {
                    for request in [SET_VRING_ERR, SET_VRING_KICK, SET_VRING_CALL] {
                        guest.session.tell(request, &ring, &[bell.as_fd()]);
                    }
                    guest.transmit.ask_for_call();
                    guest.transmit.kick();
                })
            };
            (FIRST..FIRST + 3).map(start).collect()
        },
        |_| (),
    );
}
