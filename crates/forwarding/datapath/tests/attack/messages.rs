//! What a VMM says, in which order, and how often.

use crate::measure::{FIRST, hold};
use crate::support::guest::{RECEIVE, TRANSMIT};
use crate::support::session::{GET_FEATURES, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK, state, words};
use crate::support::{Guest, Setup, is_long};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Rings switched on and off by many ports as fast as their VMMs can say it.
#[test]
fn rings_toggled_by_many_ports() {
    let ports = if is_long() { 200 } else { 16 };
    hold(
        &format!("rings toggled by {ports} ports"),
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                attackers.repeat((guest, 0u32), Duration::ZERO, |(guest, turn)| {
                    *turn += 1;
                    let index = [RECEIVE, TRANSMIT][*turn as usize % 2];
                    guest
                        .session
                        .say(SET_VRING_ENABLE, &state(index, (*turn / 2) & 1), &[]);
                })
            };
            (FIRST..FIRST + ports).map(start).collect()
        },
        |_| (),
    );
}

#[test]
fn messages_without_end() {
    hold(
        "messages without end",
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                attackers.repeat(guest, Duration::ZERO, |guest| {
                    for _ in 0..100 {
                        guest.session.get(GET_FEATURES);
                    }
                })
            };
            (FIRST..FIRST + 4).map(start).collect()
        },
        |_| (),
    );
}

/// VMMs that come and go.
#[test]
fn connections_that_come_and_go() {
    let mut connections = std::collections::VecDeque::new();
    let mut turn = 0;
    hold(
        "connections that come and go",
        |switch, _| {
            (FIRST..FIRST + 4).for_each(|port| switch.add(port));
            Vec::new()
        },
        move |switch| {
            turn += 1;
            let port = FIRST + turn % 4;
            let guest = Guest::new(port, switch.attach(port), Setup::default());
            guest.session.tell(GET_FEATURES, &[], &[]);
            connections.push_back(guest);
            if connections.len() > 8 {
                connections.pop_front();
            }
        },
    );
}

/// Descriptors that are no eventfds, and eventfds that are full.
fn odd_descriptors() -> Vec<OwnedFd> {
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let nested = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let regular = tempfile_in_memory();
    vec![full, nested, pipe, socket.into(), regular]
}

fn tempfile_in_memory() -> OwnedFd {
    crate::support::memory::memfd(4096).into()
}

#[test]
fn descriptors_of_other_kinds() {
    hold(
        "descriptors that are no eventfds, or are full",
        |switch, attackers| {
            let ports = FIRST..FIRST + 10;
            let start = |port: u32| {
                switch.add(port);
                let mut guest = Guest::usual(switch, port);
                guest.repost = true;
                switch.flow(port, &[flow::Action::Output(flow::PortId(port))]);
                let odd = odd_descriptors().swap_remove((port % 5) as usize);
                let request = [SET_VRING_KICK, SET_VRING_CALL][(port / 5 % 2) as usize];
                for index in [RECEIVE, TRANSMIT] {
                    guest
                        .session
                        .tell(request, &words(&[index.into()]), &[odd.as_fd()]);
                }
                // Whatever became of its connection, its rings ask for calls all the time.
                attackers.repeat((guest, odd), Duration::from_millis(1), |(guest, _)| {
                    guest.receive.ask_for_call();
                    guest.transmit.ask_for_call();
                    guest.transmit.kick();
                })
            };
            ports.map(start).collect()
        },
        |_| (),
    );
}
