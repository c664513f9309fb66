//! Files that answer nobody, passed as descriptors. Alone in its process, in which nothing else may close a
//! copy of them.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

mod support;

use control_protocol::data_plane::{PortState, Request};
use flow::{Action, PortId};
use support::frames::plain;
use support::fuse::{self, Fuse};
use support::memory::{GUEST_BASE, USER_BASE};
use support::session::{
    GET_FEATURES, RegionSpec, SET_MEM_TABLE, SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK, Said, Session,
    words,
};
use support::{Bystanders, Guest, Setup, Switch, eventually};

/// Not a test: the program behind the file.
#[test]
fn fuse_program() {
    fuse::serve();
}

fn works_at(switch: &mut Switch, port: u32) {
    let mut guest = Guest::usual(switch, port);
    switch.flow(port, &[Action::Output(PortId(port))]);
    guest.send(&plain(port, port, 300, 9));
    guest.expect_plain(&plain(port, port, 300, 9));
}

/// A connection of port 1 on which a message with the file is refused, and that ends afterwards.
fn is_refused(switch: &mut Switch, fuse: &Fuse, request: u32, payload: &[u8]) {
    let stream = switch.attach(1);
    let guest = Guest::new(1, stream, Setup::default());
    guest.negotiate();
    let said = fuse.with_file(|file| guest.session.say(request, payload, &[file]));
    assert_eq!(said, Said::No, "request {request}");
    let state = switch.port(1).state;
    assert!(matches!(state, PortState::Broken(_)), "{state:?}");
    // What changes a port, and its connection's end, wait for nobody.
    switch.done(Request::PortSet {
        port: PortId(1),
        mtu: 1500,
        miss_rate: 100_000,
    });
    drop(guest);
    switch.until_state(1, |state| *state == PortState::Disconnected);
}

/// A file whose daemon answers neither `poll` nor `close`, as every kind of descriptor: it holds up threads
/// that nobody waits for, and not many.
#[test]
fn a_file_that_answers_nobody() {
    let Some(fuse) = Fuse::start("fuse_program") else {
        return;
    };
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let ring = words(&[1]);
    let table = Session::memory_table(&[RegionSpec(GUEST_BASE, 4096, USER_BASE, 0)]);
    for (request, payload) in [
        (SET_VRING_KICK, &ring),
        (SET_VRING_CALL, &ring),
        (SET_VRING_ERR, &ring),
        (SET_MEM_TABLE, &table),
    ] {
        is_refused(&mut switch, &fuse, request, payload);
        bystanders.alive();
    }
    // Four threads wait for the daemon now, and there will be no more of them.
    let refused = Session::new(switch.attach(1));
    assert_eq!(refused.reply(), None, "refused until the files can be closed");
    works_at(&mut switch, 2);
    // The port can go, and come again.
    switch.done(Request::PortDel { port: PortId(1) });
    switch.add(1);
    works_at(&mut switch, 1);
    for _ in 0..4 {
        is_refused(&mut switch, &fuse, SET_VRING_KICK, &ring);
    }
    // Once the daemon has gone, the port is as good as new.
    drop(fuse);
    eventually("a connection is served", || {
        let session = Session::new(switch.attach(1));
        session.tell(GET_FEATURES, &[], &[]);
        session.reply().is_some()
    });
    works_at(&mut switch, 1);
    bystanders.finish(&mut switch);
    switch.finish();
}
