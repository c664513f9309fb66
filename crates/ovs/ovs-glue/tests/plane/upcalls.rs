//! Packets that stand for many segments, and ports that send many, on their way to ovs-vswitchd.

use crate::{DATAPATH, FIRST, World};
use control_protocol::data_plane::{FromDataPlane, Packet, Request, Upcall, UpcallCause, UpcallId};
use flow::{FlowKey, PortId, Stage, SwitchId, Userspace};
use ovs_glue::datapath::{Datapath, PortNo, Upcall as Message};
use ovs_netlink::action::Action;
use ovs_netlink::key::Metadata;
use ovs_netlink::packet::Execute;
use wire::{GSO_TCPV4, NEEDS_CSUM, VnetHeader};

/// A TCP packet of so much payload that stands for segments of `gso_size` bytes each.
fn large(payload: usize, gso_size: u16) -> Packet {
    let length = u16::try_from(40 + payload).unwrap().to_be_bytes();
    let mut frame = [
        &[2; 6][..],
        &[4; 6],
        &[8, 0, 0x45, 0],
        &length,
        &[0, 1, 0, 0, 64, 6, 0, 0],
    ]
    .concat();
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|byte| byte as u8));
    let vnet_header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    Packet {
        vnet_header: vnet_header.to_bytes(),
        frame,
    }
}

/// Of packets without a flow.
const MISS: UpcallCause = UpcallCause::Miss {
    stage: Stage::Forward,
};

fn upcall(port: u32, serial: u64, cause: UpcallCause, packet: Packet) -> FromDataPlane {
    let mut key = FlowKey::default();
    key.set_in_port(FIRST + port);
    FromDataPlane::Upcall(Upcall {
        id: id(port, serial),
        switch: SwitchId(1),
        cause,
        key,
        context: None,
        packet,
    })
}

fn id(port: u32, serial: u64) -> UpcallId {
    UpcallId {
        port: PortId(FIRST + port),
        serial,
    }
}

/// A `userspace` action whose data begin with this type.
fn action(kind: u16) -> UpcallCause {
    UpcallCause::Action(Userspace {
        pid: 0,
        egress: None,
        with_actions: false,
        data: [&kind.to_ne_bytes()[..], &[0; 38]].concat().into(),
    })
}

fn world(ports: u32) -> World {
    let mut world = World::new();
    for port in 1..=ports {
        world.add_port(port, &format!("vm{port}"));
        world.hear();
    }
    world
}

fn messages(world: &mut World) -> Vec<Message> {
    std::iter::from_fn(|| world.plane.next_upcall(&|_| true)).collect()
}

/// What the data plane is told to do with a packet that ovs-vswitchd sends.
fn executed(world: &mut World, port: u32, serial: u64, packet: &[u8]) -> Packet {
    let execute = Execute {
        datapath: DATAPATH.0,
        packet,
        metadata: Metadata {
            in_port: Some(port),
            ..Metadata::default()
        },
        eth_type: None,
        actions: vec![Action::Output(1)],
        probe: false,
        mru: None,
        hash: Some(serial),
        upcall_pid: None,
    };
    world.plane.execute(&execute).unwrap();
    loop {
        match world.hear().request {
            Request::Execute(execute) => return execute.packet,
            other => assert!(matches!(other, Request::Taken { .. }), "{other:?}"),
        }
    }
}

#[test]
fn a_packet_of_many_segments_is_decided_by_one_and_executed_whole() {
    let mut world = world(2);
    for (serial, gso_size) in [(1, 8), (2, 1448)] {
        let packet = large(60_000, gso_size);
        world.say(upcall(1, serial, MISS, packet.clone()));
        let [message] = &messages(&mut world)[..] else {
            panic!("one message")
        };
        assert_eq!(message.packet.len(), 54 + usize::from(gso_size));
        assert_ne!(message.serial, 0);
        assert_eq!(executed(&mut world, 1, message.serial, &message.packet), packet);
        // Once more: ovs-vswitchd may send it to several ports one by one.
        assert_eq!(executed(&mut world, 1, message.serial, &message.packet), packet);
        // What ovs-vswitchd has changed goes as it says, and so does what it says of another port.
        let mut changed = message.packet.clone();
        changed[0] ^= 2;
        let as_it_is = |frame: &[u8]| Packet {
            vnet_header: [0; 12],
            frame: frame.to_vec(),
        };
        assert_eq!(
            executed(&mut world, 1, message.serial, &changed),
            as_it_is(&changed)
        );
        assert_eq!(
            executed(&mut world, 2, message.serial, &message.packet),
            as_it_is(&message.packet)
        );
    }
    assert_eq!(world.plane.counters().upcalls_dropped, 0);
}

#[test]
fn a_controller_sees_usual_segments_all_and_a_collector_one() {
    let mut world = world(1);
    let counts = |world: &mut World, kind, gso_size| {
        world.say(upcall(1, 1, action(kind), large(60_000, gso_size)));
        messages(world).len()
    };
    let [sflow, slow_path, controller] = [1, 2, 5];
    assert_eq!(counts(&mut world, sflow, 8), 1);
    assert_eq!(counts(&mut world, slow_path, 8), 1);
    assert_eq!(counts(&mut world, controller, 1448), 42);
    assert_eq!(world.plane.counters().upcalls_dropped, 0);
    assert_eq!(counts(&mut world, controller, 8), 64);
    assert_eq!(world.plane.counters().upcalls_dropped, 7500 - 64);
}

#[test]
fn who_sends_little_does_not_wait_for_who_sends_much() {
    let mut world = world(3);
    for serial in 0..10 {
        world.say(upcall(1, serial, action(5), large(60_000, 8)));
        world.say(upcall(2, serial, MISS, large(60_000, 8)));
    }
    world.say(upcall(3, 7, MISS, large(20, 8)));
    let first: Vec<_> = (0..3)
        .map(|_| world.plane.next_upcall(&|_| true).unwrap().port)
        .collect();
    assert!(first.contains(&PortNo(3)), "{first:?}");
    // Nor for its sockets.
    world.say(upcall(3, 8, MISS, large(20, 8)));
    let of_others = |upcall: &Message| upcall.port == PortNo(3);
    assert_eq!(world.plane.next_upcall(&of_others).unwrap().port, PortNo(3));
    // A port that goes takes its messages with it.
    world.plane.remove_port(DATAPATH, PortNo(1));
    let left = messages(&mut world);
    assert!(!left.is_empty() && left.iter().all(|message| message.port != PortNo(1)));
}
