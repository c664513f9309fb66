//! A port says what its VMM wants and it does not have, at once, as VMMs seldom do; and what front ends do is
//! understood.

use crate::support::frames::plain;
use crate::support::guest::{RECEIVE, TRANSMIT};
use crate::support::session::{
    CONFIG, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, NET_SET_MTU, PROTOCOL, SET_OWNER, SET_PROTOCOL_FEATURES,
    SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM, Said, Session, state,
    words,
};
use crate::support::{Guest, Setup, Switch, eventually};
use control_protocol::data_plane::PortState;
use rustix::fd::AsFd;

/// A guest whose VMM has negotiated.
fn fresh(switch: &mut Switch) -> Guest {
    let guest = Guest::new(1, switch.attach(1), Setup::default());
    guest.negotiate();
    guest
}

fn until_says(switch: &mut Switch, what: &str) {
    eventually(what, || {
        let text = switch.shortfall(1).unwrap_or_default();
        text.contains(what)
    });
}

fn until_says_nothing(switch: &mut Switch) {
    eventually("nothing is lacking", || switch.shortfall(1).is_none());
}

/// As QEMU does with `queues=2`, again and again.
#[test]
fn a_vmm_that_hangs_up_for_want_of_queues() {
    let mut switch = Switch::with_ports(2);
    for _ in 0..3 {
        let session = Session::new(switch.attach(1));
        assert!(session.tell(SET_PROTOCOL_FEATURES, &words(&[PROTOCOL]), &[]));
        assert_eq!(session.get(GET_QUEUE_NUM), Some(1));
        drop(session);
        until_says(&mut switch, "queues=1");
        eventually("the port is disconnected", || {
            switch.port(1).state == PortState::Disconnected
        });
    }
    // The next one wants what there is.
    let guest = fresh(&mut switch);
    assert_eq!(guest.session.get(GET_QUEUE_NUM), Some(1));
    assert!(switch.shortfall(1).is_some());
    assert_eq!(guest.set_memory(), Said::Yes);
    until_says_nothing(&mut switch);
    // It ends before its guest runs, and there was nothing that it lacked.
    drop(guest);
    switch.until_state(1, |state| *state == PortState::Disconnected);
    assert_eq!(switch.shortfall(1), None);
    switch.finish();
}

/// As DPDK's virtio-user does as a server.
#[test]
fn a_vmm_that_sets_up_more_queues() {
    let mut switch = Switch::with_ports(2);
    let mut guest = fresh(&mut switch);
    assert_eq!(guest.session.say(SET_VRING_NUM, &state(2, 256), &[]), Said::No);
    until_says(&mut switch, "queue 2");
    assert_eq!(guest.set_memory(), Said::Yes);
    guest.post_all();
    guest.start_rings();
    switch.until_state(1, |state| *state == PortState::Running);
    until_says(&mut switch, "queues=1");
    drop(guest);
    guest = Guest::usual(&mut switch, 1);
    until_says_nothing(&mut switch);
    drop(guest);
    switch.finish();
}

#[test]
fn rings_that_are_too_large() {
    let mut switch = Switch::with_ports(2);
    for (index, size, what) in [
        (RECEIVE, 4096, "receive ring of 4096"),
        (TRANSMIT, 100, "transmit ring of 100"),
    ] {
        let guest = fresh(&mut switch);
        assert_eq!(guest.set_memory(), Said::Yes);
        assert_eq!(
            guest.session.say(SET_VRING_NUM, &state(index, size), &[]),
            Said::No
        );
        until_says(&mut switch, what);
        assert!(switch.shortfall(1).unwrap().contains("queue_size"));
        assert_eq!(
            guest.session.say(SET_VRING_NUM, &state(index, 1024), &[]),
            Said::Yes
        );
        until_says_nothing(&mut switch);
    }
    switch.finish();
}

#[test]
fn an_mtu_that_is_larger_than_the_port_s() {
    let mut switch = Switch::with_ports(2);
    let guest = fresh(&mut switch);
    assert_eq!(guest.session.say(NET_SET_MTU, &words(&[9000]), &[]), Said::No);
    until_says(&mut switch, "an MTU of 9000, and the port has 1500");
    assert_eq!(guest.session.say(NET_SET_MTU, &words(&[u64::MAX]), &[]), Said::No);
    assert_eq!(guest.session.say(NET_SET_MTU, &words(&[1500]), &[]), Said::Yes);
    until_says_nothing(&mut switch);
    assert_eq!(guest.session.say(NET_SET_MTU, &words(&[1501]), &[]), Said::No);
    until_says(&mut switch, "1501");
    drop(guest);
    drop(Guest::usual(&mut switch, 1));
    until_says_nothing(&mut switch);
    switch.finish();
}

/// QEMU asks before it is the owner, and warns its user if this is offered.
#[test]
fn the_configuration_space_is_offered_to_owners() {
    let mut switch = Switch::with_ports(1);
    let session = Session::new(switch.attach(1));
    assert_eq!(session.get(GET_PROTOCOL_FEATURES).unwrap() & CONFIG, 0);
    assert!(session.tell(SET_OWNER, &[], &[]));
    assert_eq!(session.get(GET_PROTOCOL_FEATURES).unwrap() & CONFIG, CONFIG);
    switch.finish();
}

/// The specification's ring states: a ring that was stopped starts by its kick, with the addresses that it
/// had.
#[test]
fn a_ring_that_was_stopped_keeps_its_addresses() {
    let mut switch = Switch::with_ports(2);
    let (mut a, mut b) = (Guest::usual(&mut switch, 1), Guest::usual(&mut switch, 2));
    switch.join(1, 2);
    for round in 0..3 {
        for index in [RECEIVE, TRANSMIT] {
            let base = a.session.stop(index).expect("a base");
            assert_eq!(a.session.stop(index), Some(base), "again");
            let (session, ring) = (&a.session, a.ring(index));
            session.must(SET_VRING_BASE, &state(index, base), &[]);
            session.must(SET_VRING_KICK, &words(&[index.into()]), &[ring.kick.as_fd()]);
            session.must(SET_VRING_ENABLE, &state(index, 1), &[]);
        }
        switch.until_state(1, |state| *state == PortState::Running);
        a.send(&plain(1, 2, 600, round));
        b.expect_plain(&plain(1, 2, 600, round));
        b.send(&plain(2, 1, 600, round));
        a.expect_plain(&plain(2, 1, 600, round));
    }
    // New addresses take their place.
    a.session.stop(TRANSMIT);
    a.session.must(SET_VRING_ADDR, &a.address_payload(TRANSMIT), &[]);
    switch.finish();
}
