//! Connections that are costly to read, to answer and to close: the kernel asks all that wait for the VMM's
//! end.

use crate::measure::{Bound, FIRST, P99, hold_to};
use crate::support::session::GET_FEATURES;
use crate::support::waiters::Waiters;
use crate::support::{Guest, is_long};
use control_protocol::data_plane::Request;
use flow::PortId;
use rustix::fd::AsFd;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const REST: Duration = Duration::from_millis(1);

/// Each message, and each reply, asks all that wait for the VMM's end of its connection.
#[test]
fn messages_over_a_connection_with_waiters() {
    hold_to(
        "messages over a connection with many waiters",
        // A long stall is one round trip of those that there would have been meanwhile.
        Bound { part: 995, ..P99 },
        |switch, attackers| {
            switch.add(FIRST);
            let guest = Guest::usual(switch, FIRST);
            let waiters = Waiters::many(guest.session.stream.as_fd());
            vec![attackers.repeat((guest, waiters), REST, |(guest, _)| {
                guest.session.tell(GET_FEATURES, &[], &[]);
                let mut reply = [0; 4096];
                let _ = recv(&guest.session.stream, &mut reply, RecvFlags::DONTWAIT);
            })]
        },
        |_| (),
    );
}

/// Each byte of a message is sent for itself, and has all asked when it is read.
#[test]
fn messages_byte_by_byte() {
    hold_to(
        "messages byte by byte, with many waiters",
        Bound { part: 995, ..P99 },
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                let waiters = Waiters::many(guest.session.stream.as_fd());
                attackers.repeat((guest, waiters), REST, |(guest, _)| {
                    in_bytes(&guest.session.stream)
                })
            };
            (FIRST..FIRST + 3).map(start).collect()
        },
        |_| (),
    );
}

/// Sends the bytes of a message that is long, as many as fit.
fn in_bytes(stream: &UnixStream) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    for byte in [&[5, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0][..], &[0; 4096]].concat() {
        let _ = send(stream, &[byte], flags);
    }
}

/// Connections with many waiters and much that was sent and not received, which the gate closes since their
/// VMM breaks a rule.
#[test]
fn connections_with_waiters_that_break_rules() {
    let (mut turn, mut kept) = (0, std::collections::VecDeque::new());
    hold_to(
        "connections with many waiters, closed for a rule",
        P99,
        |switch, _| {
            (FIRST..FIRST + 3).for_each(|port| switch.add(port));
            Vec::new()
        },
        |switch| {
            turn += 1;
            if turn % 50 == 1 {
                let stream = switch.attach(FIRST + turn / 50 % 3);
                let waiters = Waiters::many(stream.as_fd());
                // The header of a message that is too long.
                let _ = send(&stream, &[0xff; 12], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                in_bytes(&stream);
                kept.push_back((stream, waiters));
                if kept.len() > 8 {
                    kept.pop_front();
                }
            }
        },
    );
}

/// A connection with many waiters is closed, with its port. The controller does not wait for that.
#[test]
fn connections_with_waiters_that_are_closed() {
    let (mut turn, mut shortest) = (0, Duration::MAX);
    hold_to(
        "connections with many waiters, closed",
        P99,
        |switch, attackers| {
            let start = |port| {
                switch.add(port);
                let guest = Guest::usual(switch, port);
                let waiters = Waiters::many(guest.session.stream.as_fd());
                attackers.repeat((guest, waiters), REST, |_| ())
            };
            (FIRST..FIRST + 3).map(start).collect()
        },
        |switch| {
            turn += 1;
            if turn % 400 == 100 && turn < 1200 {
                let (start, port) = (Instant::now(), PortId(FIRST + turn / 400));
                switch.done(Request::PortDel { port });
                shortest = shortest.min(start.elapsed());
            }
        },
    );
    // The thread may have to wait for its core as well.
    assert!(!is_long() || shortest < Duration::from_millis(10), "{shortest:?}");
}
