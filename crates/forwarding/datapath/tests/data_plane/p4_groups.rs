//! Members of action profiles' groups: chosen by hash as offline, and only while the ports are up that they
//! watch.

use crate::p4::{P4, commands, program};
use crate::support::{Guest, Switch};
use control_protocol::data_plane::Request;
use control_protocol::p4::P4Request;
use flow::PortId;
use p4_ir::{ActionGroup, ActionId, Bits, Checked, Choice, EntryAction, EntryTarget, KeyMatch, Share};
use p4_stf::Session;
use std::collections::BTreeMap;

/// A service of UDP with a pool of servers.
const SERVICE: &str = "add services address:0x0a000064 protocol:17 port:53 select_pool(service:2)\n";

/// From that port of UDP, to the service.
fn frame(port: u16) -> Vec<u8> {
    let ip = [
        0x45, 0, 0, 0x22, 0, 1, 0x40, 0, 0x40, 0x11, 6, 0x2c, 0xc6, 0x33, 0x64, 7, 0x0a, 0, 0, 0x64,
    ];
    let mut frame = [&[2, 0, 0, 0, 0, 0xf1, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip].concat();
    frame.extend(port.to_be_bytes());
    frame.extend([0, 53, 0, 14, 0, 0]);
    frame.extend(*b"query1");
    frame
}

fn server(action: ActionId, port: u32) -> EntryAction {
    let values = [(48, 0x0200_0000_0000), (32, 0x0a00_0000), (16, 5353), (9, 0)];
    let argument = |(width, value): (u16, u128)| {
        let own = if width == 16 {
            value
        } else {
            value + u128::from(port)
        };
        Bits::from_u128(width, own)
    };
    EntryAction {
        action,
        arguments: values.into_iter().map(argument).collect(),
    }
}

/// The load balancer with servers behind ports 2 and 3, in a group or in the entry itself.
fn balancer(is_one_shot: bool) -> Checked {
    let (baked, _) = p4_stf::bake(program("load_balancer"), &commands(SERVICE), &[]).unwrap();
    let mut program = baked.into_program();
    let mut actions = program.actions.iter();
    let action = actions
        .position(|action| action.identity.name.ends_with("to_server"))
        .and_then(ActionId::at)
        .unwrap();
    let share = |port: u32| Share {
        weight: 1,
        watch: Some(port as u16),
    };
    let target = match is_one_shot {
        true => EntryTarget::Choices(
            [2, 3]
                .map(|port| Choice {
                    action: server(action, port),
                    share: share(port),
                })
                .to_vec(),
        ),
        false => EntryTarget::Group(9),
    };
    if !is_one_shot {
        let profile = &mut program.profiles[0];
        profile.members = [2, 3].map(|port| (port, server(action, port))).into();
        let group = ActionGroup {
            members: [2, 3].map(|port| (port, share(port))).into(),
            max_size: 0,
        };
        profile.groups = [(9, group)].into();
    }
    let mut tables = program.tables.iter_mut();
    let pools = tables
        .find(|table| table.identity.name.ends_with("pools"))
        .unwrap();
    pools.entries.push(p4_ir::Entry {
        keys: vec![KeyMatch::Exact(Bits::from_u128(16, 2))],
        target,
        rates: None,
        idle_timeout_ns: 0,
        priority: 0,
    });
    Checked::new(program).unwrap()
}

fn put(switch: &mut Switch, program: &Checked) {
    switch.draft(
        P4,
        &p4_ir::setup::encode(program, &p4_ir::setup::Setup::default()),
    );
    let operations = 200_000;
    switch.p4(P4Request::Allow {
        switch: P4,
        operations,
    });
    switch.p4(P4Request::Commit { switch: P4, tag: 1 });
}

fn set_up(switch: &mut Switch, port: u32, up: bool) {
    let port = PortId(port);
    switch.done(Request::PortEnable { port, up });
}

#[test]
fn a_group_chooses_among_members_whose_ports_are_up() {
    for is_one_shot in [false, true] {
        let program = balancer(is_one_shot);
        let mut session = Session::new(program.clone()).unwrap();
        let mut switch = Switch::with_ports(3);
        put(&mut switch, &program);
        (1..=3).for_each(|port| switch.bind(port, port as u16));
        let guests = (1..=3).map(|port| (port, Guest::usual(&mut switch, port)));
        let mut guests: BTreeMap<_, _> = guests.collect();
        let mut received = BTreeMap::from([(2, 0), (3, 0)]);
        for port in 1000..1032 {
            let [(to, expected)] = &session.send(1, &frame(port))[..] else {
                panic!("one packet leaves");
            };
            guests.get_mut(&1).unwrap().send(&frame(port));
            guests.get_mut(to).unwrap().expect_plain(expected);
            *received.get_mut(to).unwrap() += 1;
        }
        assert!(received.values().all(|count| *count > 5), "{received:?}");
        for down in [2, 3] {
            set_up(&mut switch, down, false);
            for port in 1000..1016 {
                guests.get_mut(&1).unwrap().send(&frame(port));
                let (_, frame) = guests.get_mut(&(5 - down)).unwrap().receive();
                assert_eq!(frame[5], 5 - down as u8);
            }
            set_up(&mut switch, down, true);
        }
        guests.values_mut().for_each(Guest::expect_nothing);
        switch.finish();
    }
}
