//! Descriptors that cost the thread that uses them as much as their VMM likes: the kernel walks all that wait
//! for one.

use crate::measure::{Attackers, FIRST, P99, hold_to};
use crate::support::frames::plain;
use crate::support::guest::{RECEIVE, TRANSMIT};
use crate::support::session::{SET_VRING_CALL, words};
use crate::support::waiters::Waiters;
use crate::support::{Guest, Switch};
use flow::{Action, DropReason, PortId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, recv};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

const REST: Duration = Duration::from_millis(1);

/// A descriptor to be called by, and its other end if it has one.
type Bell = (OwnedFd, Option<OwnedFd>);

fn bell() -> Bell {
    (
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
        None,
    )
}

fn stream() -> Bell {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (theirs.into(), Some(ours.into()))
}

fn datagram() -> Bell {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    (theirs.into(), Some(ours.into()))
}

/// An attacker whose driver is called by `bell` for the ring, and the waiters of that.
fn dear(switch: &mut Switch, port: u32, ring: u32, bell: Bell) -> (Guest, Bell, Waiters) {
    switch.add(port);
    let guest = Guest::usual(switch, port);
    let waiters = Waiters::many(bell.1.as_ref().unwrap_or(&bell.0).as_fd());
    guest
        .session
        .tell(SET_VRING_CALL, &words(&[ring.into()]), &[bell.0.as_fd()]);
    (guest, bell, waiters)
}

/// Reads what the calls have left, so that they never fail.
fn drain(bell: &Bell) {
    if let Some(ours) = &bell.1 {
        while recv(ours, &mut [0u8; 4096], RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0) {}
    }
}

/// A sender beside it has the attacker called.
fn received(switch: &mut Switch, attackers: &Attackers, bell: Bell) -> Vec<JoinHandle<()>> {
    let receiver = dear(switch, FIRST, RECEIVE, bell);
    switch.add(FIRST + 1);
    let sender = Guest::usual(switch, FIRST + 1);
    switch.flow(FIRST + 1, &[Action::Output(PortId(FIRST))]);
    let taker = attackers.repeat(receiver, REST, |(receiver, bell, _)| {
        while receiver.try_receive().is_some() {}
        receiver.receive.ask_for_call();
        drain(bell);
    });
    let sender = attackers.repeat(sender, REST, |sender| {
        if sender.outstanding() < 16 {
            sender.send(&plain(FIRST + 1, FIRST, 60, 0));
        }
    });
    vec![taker, sender]
}

/// The attacker wants to be called for each frame that it sent.
fn sent(switch: &mut Switch, attackers: &Attackers, bell: Bell) -> Vec<JoinHandle<()>> {
    let sender = dear(switch, FIRST, TRANSMIT, bell);
    switch.flow(FIRST, &[Action::Drop(DropReason::Policy)]);
    vec![attackers.repeat(sender, REST, |(sender, bell, _)| {
        if sender.outstanding() < 16 {
            sender.transmit.ask_for_call();
            sender.send(&plain(FIRST, FIRST + 1, 60, 0));
        }
        drain(bell);
    })]
}

#[test]
fn calls_for_received_frames() {
    for (kind, bell) in [
        ("eventfd", bell as fn() -> Bell),
        ("stream", stream),
        ("datagram", datagram),
    ] {
        hold_to(
            &format!("dear calls for received frames, {kind}"),
            P99,
            |switch, attackers| received(switch, attackers, bell()),
            |_| (),
        );
    }
}

#[test]
fn calls_for_sent_frames() {
    for (kind, bell) in [
        ("eventfd", bell as fn() -> Bell),
        ("stream", stream),
        ("datagram", datagram),
    ] {
        hold_to(
            &format!("dear calls for sent frames, {kind}"),
            P99,
            |switch, attackers| sent(switch, attackers, bell()),
            |_| (),
        );
    }
}
