//! The client of a driver domain, which the tests play.

#![allow(clippy::unwrap_used)]

use control_protocol::Channel;
use control_protocol::driver::*;
use control_protocol::supervisor::{FromChild, Role};
use controller::{ABSENCE_MS, DriverClient, DriverEvent, Lost};
use flow::{ControllerId, PortId};

/// The client of a controller, and the other end of its channel.
fn met() -> (DriverClient, Channel) {
    let (ours, peer) = Channel::pair().unwrap();
    let mut client = DriverClient::new(ControllerId::OVS);
    client.attach_channel(ours);
    assert_eq!(peer.try_recv::<ToDriver>().unwrap().0, ToDriver::List);
    (client, peer)
}

fn own(number: u32) -> PortId {
    ControllerId::OVS.port(number).unwrap()
}

fn spec(name: &str) -> InterfaceSpec {
    InterfaceSpec {
        kind: InterfaceKind::Uplink {
            back_end: BackEnd::Packet,
        },
        name: name.into(),
        mtu: None,
    }
}

fn heard(peer: &Channel) -> Vec<(ToDriver, usize)> {
    let heard = std::iter::from_fn(|| peer.try_recv::<ToDriver>().ok());
    heard.map(|(message, fds)| (message, fds.len())).collect()
}

#[test]
fn interfaces_are_compared_once_and_those_of_others_do_not_exist() {
    let (mut client, peer) = met();
    assert!(client.interfaces().is_none() && client.compare().is_none());
    let state = InterfaceState::Up;
    let list = [own(1), PortId(1), own(2)].map(|port| (port, spec("a"), state.clone()));
    peer.try_send(&FromDriver::Interfaces(list.to_vec()), &[])
        .unwrap();
    assert_eq!(client.receive(), Ok(Some(DriverEvent::Listed)));
    let ports = client.compare().unwrap().into_keys().collect::<Vec<_>>();
    assert_eq!(ports, [own(1), own(2)]);
    assert_eq!((client.compare(), client.is_compared()), (None, true));
    client.detach(own(1));
    assert_eq!(client.interfaces().unwrap().len(), 1);
    peer.try_send(
        &FromDriver::State {
            port: PortId(1),
            state,
        },
        &[],
    )
    .unwrap();
    assert_eq!((client.receive(), client.violations()), (Ok(None), 1));
}

#[test]
fn the_addresses_of_own_ports_are_known_until_they_are_detached() {
    let (mut client, peer) = met();
    let addresses = InterfaceAddresses {
        mac: Some([2; 6]),
        addresses: Vec::new(),
        users: vec!["bridge br0".into()],
    };
    let say = |port| {
        let addresses = addresses.clone();
        peer.try_send(&FromDriver::Addresses { port, addresses }, &[])
            .unwrap();
    };
    say(own(1));
    say(own(1));
    say(PortId(1));
    assert_eq!(client.receive(), Ok(Some(DriverEvent::Addresses(own(1)))));
    assert_eq!(client.receive(), Ok(None), "nothing new");
    assert_eq!(client.addresses(own(1)), Some(&addresses));
    client.detach(own(1));
    assert_eq!(
        (client.addresses(own(1)), client.addresses(PortId(1))),
        (None, None)
    );
}

#[test]
fn an_interface_is_joined_to_a_port_by_a_stream() {
    let (mut client, peer) = met();
    let file = std::fs::File::open("/dev/null").unwrap();
    client.attach(own(1), spec("a"), None).unwrap();
    client.attach(own(2), spec("b"), Some(file.into())).unwrap();
    let attach = |port, name| ToDriver::Attach {
        port,
        spec: spec(name),
    };
    assert_eq!(heard(&peer), [(attach(own(1), "a"), 1), (attach(own(2), "b"), 2)]);
}

/// A driver domain that does not read leaves as much as there are ports, whatever happens to these.
#[test]
fn what_waits_for_a_port_is_the_last_of_each_kind() {
    let (mut client, peer) = met();
    for round in 0..20_000 {
        for port in [own(1), own(2)] {
            drop(client.attach(port, spec("a"), None).unwrap());
            client.change(port, spec(&format!("i{round}")));
            client.detach(port);
        }
    }
    let mut all = Vec::new();
    loop {
        let some = heard(&peer);
        if some.is_empty() {
            break;
        }
        all.extend(some);
        client.flush();
    }
    assert!(all.len() < 10_000, "{} messages", all.len());
    let last = |port| {
        all.iter()
            .rposition(|(message, _)| *message == ToDriver::Detach { port })
    };
    let name = |port| ToDriver::Change {
        port,
        spec: spec("i19999"),
    };
    for port in [own(1), own(2)] {
        let change = all.iter().position(|(message, _)| *message == name(port));
        assert!(change.unwrap() < last(port).unwrap());
    }
}

#[test]
fn a_driver_domain_that_was_told_something_is_looked_at_once() {
    let (mut client, peer) = met();
    assert_eq!(client.complaint(0), None);
    let owes = FromChild::Owes(Role::Driver);
    assert_eq!(client.complaint(client.due_ms().unwrap()), Some(owes.clone()));
    assert_eq!((client.complaint(1_000_000), client.due_ms()), (None, None));
    client.detach(own(1));
    assert_eq!(client.complaint(2_000_000), None);
    assert_eq!(client.complaint(3_000_000), Some(owes));
    drop(peer);
    assert_eq!(client.receive(), Err(Lost::Gone));
    client.detach_channel(Lost::Gone, 0);
    assert!(!client.is_connected());
    assert_eq!(client.complaint(ABSENCE_MS - 1), None);
    let replace = FromChild::Replace(Role::Driver);
    assert_eq!(client.complaint(ABSENCE_MS), Some(replace));
}
