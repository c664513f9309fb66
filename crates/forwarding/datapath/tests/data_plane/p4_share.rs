//! Time of the forwarding threads that the ports of a P4 program have: what is over their share waits in
//! their rings, and nothing is lost.

use crate::p4::{P4, program};
use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::memory::Memory;
use crate::support::{Guest, Setup, Switch, eventually};
use flow::{Action, PortId};
use p4_ir::setup::{Setup as Given, encode};
use placement::Mode;

/// A guest whose ring is full, and has not been kicked.
fn full(switch: &mut Switch, port: u32, frame: &[u8]) -> Guest {
    let setup = Setup {
        transmit_size: 256,
        ..Setup::default()
    };
    let mut guest = Guest::start(switch, port, setup);
    let (ring, at) = (&mut guest.transmit, guest.data);
    let bytes = [&[0; 12][..], frame].concat();
    guest.memory.write(at, &bytes);
    for head in 0..ring.size {
        ring.descriptor(head, Memory::guest(at), bytes.len() as u32, 0, 0);
        ring.offer(head);
    }
    guest
}

/// Sends what the ring is full of again, as soon as it is done.
fn again(guest: &mut Guest) {
    let ring = &mut guest.transmit;
    if ring.used_index() == ring.next {
        ring.next = ring.next.wrapping_add(ring.size);
    }
    ring.publish_and_kick();
}

#[test]
fn a_program_over_its_share_waits_in_its_rings_and_loses_nothing() {
    // A thread that serves one port has no other to give its time to.
    if mode() == Mode::ThreadPerVnic {
        return;
    }
    let mut switch = Switch::with_ports(5);
    let checked = program("malicious/resubmit_always");
    switch.put_p4(P4, &encode(&checked, &Given::default()), 1);
    [1, 2].into_iter().for_each(|port| switch.bind(port, port as u16));
    let frame = plain(1, 2, 200, 7);
    let mut tenants = [1, 2].map(|port| full(&mut switch, port, &frame));
    let mut floods = [3, 4].map(|port| full(&mut switch, port, &frame));
    let mut sink = Guest::usual(&mut switch, 5);
    [3, 4]
        .into_iter()
        .for_each(|port| switch.flow(port, &[Action::Output(PortId(5))]));
    eventually("turns were passed on", || {
        tenants.iter_mut().chain(&mut floods).for_each(again);
        while sink.try_receive().is_some() {}
        switch.p4_switches()[0].counts.passed_on > 100
    });
    // Nobody else has packets any more: all that is in the rings comes to its end.
    let sent = tenants.each_ref().map(|guest| u64::from(guest.transmit.next));
    eventually("their rings are empty", || {
        tenants
            .iter()
            .all(|guest| guest.transmit.used_index() == guest.transmit.next)
    });
    for (port, sent) in [1, 2].into_iter().zip(sent) {
        switch.until(port, "the ends of its packets", |counters| {
            counters.received % (1 << 16) == sent
        });
    }
    assert!(switch.p4_switches()[0].counts.busy_us > 0);
    switch.finish();
}
