//! What guests do, as far as the data plane is told.

use crate::support::{Switch, eventually};
use control_protocol::data_plane::{GuestState, PortState, Request};
use flow::PortId;
use std::sync::mpsc::channel;
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
