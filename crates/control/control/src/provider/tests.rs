//! Chains of providers that do what a test says.

use super::*;
use flow::{Edit, FieldId, Filters, MAX_FILTERS, SetField, SwitchId};
use std::collections::BTreeSet;

const FIRST: ProviderId = ProviderId(10);
const SECOND: ProviderId = ProviderId(11);
const LAST: ProviderId = ProviderId(12);
const PORT: PortId = PortId(1);

/// Decides by a function.
struct By<F>(F);

impl<F: Fn(&Look<'_>) -> Verdict> Decide for By<F> {
    fn decide(&self, _: Stage, packet: &Look<'_>) -> Verdict {
        (self.0)(packet)
    }
}

fn filter<F: Fn(&Look<'_>) -> Verdict>(id: ProviderId, function: F) -> Filter<By<F>> {
    Filter::new(id, By(function))
}

/// Sends all packets to port 2.
fn forward() -> Filter<impl Decide> {
    filter(LAST, |packet: &Look<'_>| {
        packet.get(FieldId::EthDst);
        Ok(vec![Action::Output(PortId(2))])
    })
}

fn key(eth_type: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(PORT.0);
    key.set_eth_type(eth_type);
    key
}

fn of_type(eth_type: u16) -> impl Fn(&Look<'_>) -> bool {
    move |packet| packet.get(FieldId::EthType) == eth_type.into()
}

/// Drops packets of one Ethernet type.
fn dropping(eth_type: u16) -> Filter<impl Decide> {
    let is_unwanted = of_type(eth_type);
    filter(FIRST, move |packet: &Look<'_>| match is_unwanted(packet) {
        true => Err(DropReason::Policy),
        false => pass(),
    })
}

fn chain<F: Provider + 'static>(forward: F) -> Chain<F> {
    let mut chain = Chain::new(forward);
    chain.add_port(PORT);
    chain.add_port(PortId(2));
    chain
}

/// The flows that the changes put, as a data plane lists them.
fn listed(changes: &[FlowChange]) -> Vec<(Flow, FlowStats)> {
    let flow =
        |change: &FlowChange| Some((change.clone().into_flow(SwitchId(1)).ok()?, FlowStats::default()));
    changes.iter().filter_map(flow).collect()
}

fn stages(changes: &[FlowChange]) -> Vec<Stage> {
    listed(changes).iter().map(|(flow, _)| flow.stage).collect()
}

/// One answer for all stages, and a flow for each.
#[test]
fn a_packet_that_passes_is_answered_once() {
    let mut chain = chain(forward());
    chain.add(Side::Ingress, dropping(7)).unwrap();
    let address = SetField::whole(FieldId::EthDst, 9);
    let change = move |_: &Look<'_>| Ok(vec![Action::Edit(Edit::Set(address)), Action::Continue]);
    chain.add(Side::Ingress, filter(SECOND, change)).unwrap();
    let outcome = chain.missed(Stage::Ingress(0), &key(8), 0);
    let actions = vec![Action::Edit(Edit::Set(address)), Action::Output(PortId(2))];
    assert_eq!((outcome.stage, &outcome.verdict), (Stage::Forward, &Ok(actions)));
    let order = [Stage::Ingress(0), Stage::Ingress(1), Stage::Forward];
    assert_eq!(stages(&outcome.changes), order);
    let (last, _) = &listed(&outcome.changes)[2];
    assert_eq!(last.key.eth_dst(), 9, "the key as changed so far");
    // A packet of another kind for the first filter only: the later flows are there.
    let outcome = chain.missed(Stage::Ingress(0), &key(9), 10_000);
    assert_eq!(stages(&outcome.changes), [Stage::Ingress(0)]);
    let dropped = chain.missed(Stage::Ingress(0), &key(7), 0);
    assert_eq!(dropped.verdict, Err(DropReason::Policy));
    assert_eq!(chain.preview(Stage::Ingress(0), &key(7)).verdict, dropped.verdict);
}

/// What a filter's change makes of a packet may be known to the data plane alone: the packet goes on there.
#[test]
fn behind_a_change_of_headers_the_data_plane_looks() {
    let mut chain = chain(forward());
    let pop = |_: &Look<'_>| Ok(vec![Action::Edit(Edit::PopVlan), Action::Continue]);
    chain.add(Side::Ingress, filter(FIRST, pop)).unwrap();
    let outcome = chain.missed(Stage::Ingress(0), &key(8), 0);
    assert_eq!(outcome.stage, Stage::Ingress(0));
    assert_eq!(
        outcome.verdict,
        Ok(vec![Action::Edit(Edit::PopVlan), Action::Continue])
    );
    assert_eq!(stages(&outcome.changes), [Stage::Ingress(0)]);
}

#[test]
fn egress_filters_see_packets_for_their_port() {
    let mut chain = chain(forward());
    chain.add(Side::Egress, dropping(7)).unwrap();
    let stage = Stage::Egress(PortId(2), 0);
    assert_eq!(chain.missed(stage, &key(7), 0).verdict, Err(DropReason::Policy));
    let passed = chain.missed(stage, &key(8), 0);
    assert_eq!((passed.stage, &passed.verdict), (stage, &pass()));
    let (flow, _) = &listed(&passed.changes)[0];
    assert_eq!(flow.mask.0.in_port(), 0, "one flow for all senders");
}

/// A data plane that lies makes nobody grow, and nothing else.
#[test]
fn ports_and_stages_that_do_not_exist_are_refused() {
    let mut chain = chain(forward());
    chain.add(Side::Ingress, dropping(7)).unwrap();
    let mut foreign = key(8);
    foreign.set_in_port(u32::MAX);
    for (stage, key) in [
        (Stage::Ingress(0), foreign),
        (Stage::Forward, foreign),
        (Stage::Ingress(u8::MAX), key(8)),
        (Stage::Egress(PortId(9), 0), key(8)),
        (Stage::Egress(PortId(2), MAX_FILTERS), key(8)),
    ] {
        let outcome = chain.missed(stage, &key, 0);
        assert_eq!(
            (outcome.verdict, outcome.changes),
            (Err(DropReason::PortRemoved), vec![])
        );
    }
    // A filter that was there a moment ago.
    let outcome = chain.missed(Stage::Ingress(1), &key(8), 0);
    assert_eq!(outcome.verdict, Ok(vec![Action::Output(PortId(2))]));
    assert_eq!(chain.flow_count(), 1);
}

/// A provider that reaches for others' flows.
struct Rogue(Vec<FlowChange>);

impl Provider for Rogue {
    fn id(&self) -> ProviderId {
        FIRST
    }
    fn missed(&mut self, _: &Asked, _: u64) -> (Verdict, Vec<FlowChange>) {
        (pass(), self.0.clone())
    }
    fn preview(&self, _: &Asked) -> Verdict {
        pass()
    }
    fn used(&mut self, _: &[(FlowId, FlowStats)], _: u64) -> Vec<FlowChange> {
        self.0.clone()
    }
    fn restored(&mut self, flows: Vec<(Flow, FlowStats)>, _: u64) -> Vec<FlowChange> {
        assert!(flows.is_empty(), "flows of others");
        self.0.clone()
    }
    fn refused(&mut self, _: FlowId) {}
    fn refresh(&mut self, _: u64) -> Vec<FlowChange> {
        self.0.clone()
    }
    fn remove_port(&mut self, _: PortId) {}
    fn limit_flows(&mut self, _: usize) {}
    fn flow_count(&self) -> usize {
        0
    }
}

#[test]
fn nobody_changes_flows_of_another() {
    let mut chain = chain(forward());
    let put = |provider, stage| FlowChange::Put {
        id: flow_id(provider, stage, &key(8), &FlowMask::EXACT),
        stage,
        key: key(8),
        mask: FlowMask::EXACT,
        actions: vec![],
    };
    let own = put(FIRST, Stage::Ingress(0));
    let foreign = [
        FlowChange::Del(FlowId::of(LAST, 1)),
        put(LAST, Stage::Forward),
        put(FIRST, Stage::Forward),
        put(FIRST, Stage::Ingress(1)),
    ];
    let all = foreign.into_iter().chain([own.clone()]).collect();
    chain.add(Side::Ingress, Rogue(all)).unwrap();
    let forwards = chain.missed(Stage::Forward, &key(8), 0).changes;
    let flows = listed(&forwards);
    assert_eq!(
        chain.missed(Stage::Ingress(0), &key(8), 0).changes,
        vec![own.clone()]
    );
    assert_eq!(chain.used(&[], 0), vec![own.clone()]);
    assert_eq!(chain.refresh(0), vec![own.clone()]);
    assert_eq!(chain.restored(flows, 0), [own]);
    assert_eq!(chain.add(Side::Egress, dropping(7)), Err(Unfit::Taken(FIRST)));
    for number in 0..MAX_FILTERS {
        let filter = filter(ProviderId(100 + number), |_: &Look<'_>| pass());
        assert_eq!(chain.add(Side::Egress, filter), Ok(()));
    }
    let one_more = filter(ProviderId(99), |_: &Look<'_>| pass());
    assert_eq!(chain.add(Side::Egress, one_more), Err(Unfit::Full));
    assert_eq!(chain.filters(), Filters::of_flows(1, MAX_FILTERS));
}

/// The successor of a process that died compares each provider's flows with what it decides, and keeps what
/// is right.
#[test]
fn flows_of_all_providers_are_compared_after_a_death() {
    let mut before = chain(forward());
    before.add(Side::Ingress, dropping(7)).unwrap();
    let mut there = Vec::new();
    for eth_type in 6..9 {
        there.extend(listed(
            &before.missed(Stage::Ingress(0), &key(eth_type), 0).changes,
        ));
    }
    let id = |stage, eth_type: u16| {
        let of = |flow: &Flow| flow.stage == stage && flow.key.eth_type() == eth_type;
        there.iter().find(|(flow, _)| of(flow)).unwrap().0.id
    };
    let mut same = chain(forward());
    same.add(Side::Ingress, dropping(7)).unwrap();
    assert_eq!(same.restored(there.clone(), 0), []);
    assert_eq!(same.flow_count(), there.len());
    // Another rule: the flows of its stage that are wrong change, and no others.
    let mut other = chain(forward());
    other.add(Side::Ingress, dropping(8)).unwrap();
    let changed: BTreeSet<FlowId> = listed(&other.restored(there.clone(), 0))
        .iter()
        .map(|(flow, _)| flow.id)
        .collect();
    assert_eq!(
        changed,
        BTreeSet::from([id(Stage::Ingress(0), 7), id(Stage::Ingress(0), 8)])
    );
    // Without the filter, or with a filter that reads more, its flows go.
    let filters = || there.iter().filter(|(flow, _)| flow.stage == Stage::Ingress(0));
    let gone: BTreeSet<FlowId> = filters().map(|(flow, _)| flow.id).collect();
    let removed = |changes: Vec<FlowChange>| -> BTreeSet<FlowId> {
        let removed = changes.into_iter().map(|change| match change {
            FlowChange::Del(id) => id,
            put => panic!("{put:?}"),
        });
        removed.collect()
    };
    assert_eq!(removed(chain(forward()).restored(there.clone(), 0)), gone);
    let mut curious = chain(forward());
    let reads_more = |packet: &Look<'_>| {
        packet.get(FieldId::IpSrc);
        pass()
    };
    curious.add(Side::Ingress, filter(FIRST, reads_more)).unwrap();
    assert_eq!(removed(curious.restored(there.clone(), 0)), gone);
}

/// Each packet reads another field: few masks, and few flows.
#[test]
fn masks_and_flows_of_a_port_are_bounded() {
    let reads = |packet: &Look<'_>| {
        let fields = [
            FieldId::IpSrc,
            FieldId::IpDst,
            FieldId::TpSrc,
            FieldId::TpDst,
            FieldId::IpTos,
        ];
        let choice = packet.get(FieldId::EthType) as usize;
        packet.get(fields[choice % 5]);
        packet.bits(FieldId::EthSrc, 1 << (choice % 48));
        pass()
    };
    let mut chain = chain(forward());
    chain.add(Side::Ingress, filter(FIRST, reads)).unwrap();
    chain.limit_flows(200);
    let mut there = std::collections::BTreeMap::new();
    for number in 0..5000u16 {
        let mut key = key(number);
        key.set_ip_src(number.into());
        for change in chain.missed(Stage::Ingress(0), &key, 0).changes {
            match change {
                FlowChange::Put { id, stage, mask, .. } => {
                    there.insert(id, (stage, mask));
                }
                FlowChange::Del(id) => assert!(there.remove(&id).is_some()),
            }
        }
        let filter = there.values().filter(|(stage, _)| *stage == Stage::Ingress(0));
        let masks: Vec<FlowMask> = filter.map(|(_, mask)| *mask).collect();
        assert!(masks.len() <= 100, "its half of 200");
        assert!(masks.iter().collect::<std::collections::HashSet<_>>().len() <= MAX_MASKS);
        assert_eq!(there.len(), chain.flow_count());
    }
}

#[test]
fn flows_that_nothing_uses_go_and_those_of_removed_ports() {
    let mut chain = chain(forward());
    chain.add(Side::Ingress, dropping(7)).unwrap();
    let first = chain.missed(Stage::Ingress(0), &key(8), 0).changes;
    let mut of_two = key(8);
    of_two.set_in_port(2);
    let second = chain.missed(Stage::Ingress(0), &of_two, 0).changes;
    let used = FlowStats {
        idle_ms: Some(0),
        ..FlowStats::default()
    };
    let uses: Vec<_> = listed(&second).iter().map(|(flow, _)| (flow.id, used)).collect();
    let gone: BTreeSet<FlowId> = listed(&first).iter().map(|(flow, _)| flow.id).collect();
    let ids = |changes: Vec<FlowChange>| -> BTreeSet<FlowId> {
        let ids = changes.into_iter().filter_map(|change| match change {
            FlowChange::Del(id) => Some(id),
            FlowChange::Put { .. } => None,
        });
        ids.collect()
    };
    assert_eq!(ids(chain.used(&uses, FLOW_IDLE_MS)), gone);
    chain.remove_port(PortId(2));
    assert_eq!(
        ids(chain.refresh(FLOW_IDLE_MS)),
        uses.iter().map(|(id, _)| *id).collect()
    );
    assert_eq!(chain.flow_count(), 0);
}

/// A flow that the data plane has lost is put again; one that it refused is forgotten.
#[test]
fn a_flow_that_the_data_plane_lacks_is_put_again() {
    let mut chain = chain(forward());
    let put = |chain: &mut Chain<_>, now_ms| chain.missed(Stage::Forward, &key(8), now_ms).changes.len();
    assert_eq!(
        [0, 1, REINSTALL_MS].map(|now_ms| put(&mut chain, now_ms)),
        [1, 0, 1]
    );
    let (flow, _) = listed(&chain.missed(Stage::Forward, &key(8), 2 * REINSTALL_MS).changes).remove(0);
    chain.refused(flow.id);
    assert_eq!(chain.flow_count(), 0);
    assert_eq!(put(&mut chain, 2 * REINSTALL_MS), 1);
}

#[test]
fn identifiers_differ_in_everything_that_makes_a_flow() {
    let mut ids = BTreeSet::new();
    let mut all = |provider, stage, key: &FlowKey, mask: &FlowMask| {
        assert!(ids.insert(flow_id(provider, stage, key, mask)), "{stage} {key:?}");
    };
    let key = FlowKey::default();
    for stage in [
        Stage::Ingress(0),
        Stage::Ingress(1),
        Stage::Forward,
        Stage::Egress(PORT, 0),
    ] {
        all(FIRST, stage, &key, &FlowMask::ANY);
        all(SECOND, stage, &key, &FlowMask::ANY);
    }
    all(FIRST, Stage::Egress(PortId(2), 0), &key, &FlowMask::ANY);
    for bit in 0..64 * flow::KEY_WORDS {
        let (mut one, mut mask) = (key, FlowMask::ANY);
        one.words[bit / 64] = 1 << (bit % 64);
        mask.0.words[bit / 64] = 1 << (bit % 64);
        all(FIRST, Stage::Forward, &one, &FlowMask::EXACT);
        all(FIRST, Stage::Forward, &key, &mask);
    }
}
