//! The example of a provider in the chain of a built-in switch, without a process.

#![allow(clippy::unwrap_used)]

mod dhcp_guard;
mod three_ports;

use control::l2::LearningSwitch;
use control::provider::{Chain, Filter, FlowChange, Outcome, Side};
use dhcp_guard::DhcpGuard;
use flow::{Action, DropReason, Flow, FlowKey, FlowStats, PortId, ProviderId, Stage, SwitchId};
use std::collections::BTreeSet;
use three_ports::learning_switch;

const GUARD: ProviderId = ProviderId(200);
const EVERYBODY: u64 = 0xffff_ffff_ffff;
const FIRST: Stage = Stage::Ingress(0);

/// A switch of three ports, of which these may have a server behind them.
fn guarded(trusted: &[u32]) -> Chain<LearningSwitch> {
    let mut chain = Chain::new(learning_switch());
    (1..=3).for_each(|port| chain.add_port(PortId(port)));
    let trusted = trusted.iter().copied().map(PortId).collect();
    let guard = Filter::new(GUARD, DhcpGuard { trusted });
    chain.add(Side::Ingress, guard).unwrap();
    chain
}

/// A datagram that a station sends to everybody.
fn udp(port: u32, eth_type: u16, source: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    key.set_eth_src(0x0200_0000_0000 | u64::from(port));
    key.set_eth_dst(EVERYBODY);
    key.set_eth_type(eth_type);
    key.set_ip_proto(17);
    key.set_tp_src(source);
    key.set_tp_dst(68);
    key
}

fn listed(outcome: &Outcome) -> Vec<(Flow, FlowStats)> {
    let flow =
        |change: &FlowChange| Some((change.clone().into_flow(SwitchId(1)).ok()?, FlowStats::default()));
    outcome.changes.iter().filter_map(flow).collect()
}

#[test]
fn replies_are_dropped_and_nothing_else() {
    let mut chain = guarded(&[3]);
    for (eth_type, source) in [(0x0800, 67), (0x86dd, 547)] {
        let outcome = chain.missed(FIRST, &udp(2, eth_type, source), 0);
        assert_eq!(outcome.verdict, Err(DropReason::Policy));
        let flows = listed(&outcome);
        assert_eq!(flows.len(), 1, "the learning switch was not asked");
        assert_eq!((flows[0].0.stage, flows[0].0.id.provider()), (FIRST, GUARD));
        assert_eq!(flows[0].0.actions, [Action::Drop(DropReason::Policy)]);
    }
    let others = [
        udp(2, 0x0800, 68),
        udp(2, 0x86dd, 67),
        udp(3, 0x0800, 67),
        udp(2, 0x0806, 67),
    ];
    for key in others {
        let outcome = chain.missed(FIRST, &key, 0);
        let receivers: BTreeSet<u32> = (1..=3).filter(|port| *port != key.in_port()).collect();
        let outputs = outcome.verdict.unwrap().into_iter().map(|action| match action {
            Action::Output(port) => port.0,
            other => panic!("{other:?}"),
        });
        assert_eq!((outcome.stage, outputs.collect()), (Stage::Forward, receivers));
    }
}

/// A guest whose server is not heard learns no less.
#[test]
fn the_learning_switch_sees_what_passes() {
    let mut chain = guarded(&[]);
    chain.missed(FIRST, &udp(2, 0x0800, 67), 0);
    assert_eq!(
        chain.forward().mac_count(),
        0,
        "what was dropped shows no station"
    );
    chain.missed(FIRST, &udp(2, 0x0800, 68), 0);
    assert_eq!(chain.forward().mac_count(), 1);
}

/// The successor of a process that died finds flows of both, and leaves those that are right; a port that is
/// trusted by then gets other flows, and the learning switch keeps its own.
#[test]
fn flows_of_both_outlive_the_process() {
    let mut chain = guarded(&[]);
    let mut there = listed(&chain.missed(FIRST, &udp(2, 0x0800, 67), 0));
    there.extend(listed(&chain.missed(FIRST, &udp(2, 0x0800, 68), 0)));
    assert_eq!(there.len(), 3);
    let mut same = guarded(&[]);
    assert_eq!(same.restored(there.clone(), 0), []);
    assert_eq!((same.flow_count(), same.forward().mac_count()), (3, 1));
    let mut trusting = guarded(&[2]);
    let changes = trusting.restored(there.clone(), 0);
    let dropped = there
        .iter()
        .find(|(flow, _)| flow.actions == [Action::Drop(DropReason::Policy)]);
    let id = dropped.unwrap().0.id;
    let passes = |change: &FlowChange| matches!(change, FlowChange::Put { id: put, actions, .. } if *put == id && *actions == [Action::Continue]);
    assert!(matches!(&changes[..], [change] if passes(change)), "{changes:?}");
    let mut alone = Chain::new(learning_switch());
    (1..=3).for_each(|port| alone.add_port(PortId(port)));
    let gone = alone.restored(there, 0);
    assert_eq!(gone.len(), 2, "those of the guard");
    assert!(
        gone.iter()
            .all(|change| matches!(change, FlowChange::Del(id) if id.provider() == GUARD))
    );
    assert_eq!(alone.forward().mac_count(), 1);
}
