//! A port that makes up flows has a share of them, and others have theirs.

use crate::{DATAPATH, World, matches};
use ovs_glue::datapath::{
    Answer, Datapath, Detail, Errno, FlowId, FlowSpec, PortNo, PortSpec, PutMode, Question,
};
use ovs_netlink::action::Action;
use ovs_netlink::flow::Ufid;
use ovs_netlink::vport::Kind;

/// Flows that one port may have.
const SHARE: u32 = 7_710;

fn name(port: u32, number: u32) -> FlowId {
    let bytes = [port.to_be_bytes(), number.to_be_bytes()].concat();
    FlowId::Ufid(Ufid::new(&bytes.repeat(2)).unwrap())
}

/// Puts a flow for packets of a port, without a data plane.
fn put(world: &mut World, port: u32, number: u32, mode: PutMode) -> Result<Answer, Errno> {
    let mut matches = matches(1);
    matches.key.metadata.in_port = Some(port);
    matches.mask = matches.key.exact_mask();
    let spec = FlowSpec {
        id: name(port, number),
        matches,
        actions: vec![Action::Output(1)],
    };
    world.ask(Question::PutFlow(spec, mode));
    world.plane.next_answer().unwrap().1
}

fn fill(world: &mut World, port: u32) {
    for number in 0..SHARE {
        assert_eq!(put(world, port, number, PutMode::Create), Ok(Answer::Done));
    }
}

#[test]
fn a_port_that_makes_up_flows_leaves_others_theirs() {
    let mut world = World::new();
    for port in 1..=2 {
        world.add_port(port, &format!("vm{port}"));
    }
    world.lose();
    fill(&mut world, 1);
    // ovs-vswitchd takes it for a flow that overlaps another one, which is no warning.
    for number in SHARE..SHARE + 3 {
        assert_eq!(put(&mut world, 1, number, PutMode::Create), Err(Errno::EEXIST));
    }
    assert_eq!(world.plane.counters().flows_beyond_share, 3);
    assert_eq!(put(&mut world, 2, 0, PutMode::Create), Ok(Answer::Done));
    // Flows that are there change, and one that ends makes room.
    assert_eq!(put(&mut world, 1, 7, PutMode::CreateOrModify), Ok(Answer::Done));
    world.ask(Question::RemoveFlow(name(1, 7), Detail::Seen));
    assert!(world.plane.next_answer().unwrap().1.is_ok());
    world.ask(Question::RemoveFlow(name(1, 8), Detail::Seen));
    assert!(world.plane.next_answer().unwrap().1.is_ok());
    assert_eq!(put(&mut world, 1, SHARE, PutMode::Create), Ok(Answer::Done));
    // The flow of the other port takes its part of what is left.
    world.ask(Question::FlushFlows);
    assert_eq!(world.plane.next_answer().unwrap().1, Ok(Answer::Done));
    fill(&mut world, 1);
    assert!(put(&mut world, 1, SHARE, PutMode::Create).is_err());
}

#[test]
fn devices_have_as_many_flows_as_they_need() {
    let mut world = World::new();
    let spec = PortSpec {
        number: PortNo(1),
        name: "eth0".into(),
        kind: Kind::Netdev,
        options: None,
    };
    world.plane.add_port(DATAPATH, &spec).unwrap();
    world.lose();
    fill(&mut world, 1);
    assert_eq!(put(&mut world, 1, SHARE, PutMode::Create), Ok(Answer::Done));
}
