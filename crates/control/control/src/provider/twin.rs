//! A chain with a table of flows, against filters that see each packet.

use super::*;
use flow::{FieldId, SwitchId};
use proptest::prelude::*;
use std::collections::HashMap;

const FIELDS: [FieldId; 4] = [FieldId::EthType, FieldId::IpProto, FieldId::TpSrc, FieldId::TpDst];

/// A rule: packets with this value in that field are dropped or pass; others meet the next rule.
type Rules = Vec<(usize, u128, bool)>;

struct List(Rules);

impl Decide for List {
    fn decide(&self, _: Stage, packet: &Look<'_>) -> Verdict {
        let mut rules = self.0.iter();
        let first = rules.find(|(field, value, _)| packet.get(FIELDS[*field]) == *value);
        match first {
            Some((_, _, false)) => Err(DropReason::Policy),
            _ => pass(),
        }
    }
}

/// Sends packets to the port of that number.
struct ByType;

impl Decide for ByType {
    fn decide(&self, _: Stage, packet: &Look<'_>) -> Verdict {
        let port = packet.bits(FieldId::EthType, 1) as u32;
        Ok(vec![Action::Output(PortId(1 + port))])
    }
}

fn chain(rules: &[Rules]) -> Chain<Filter<ByType>> {
    let mut chain = Chain::new(Filter::new(ProviderId(1), ByType));
    let sides = [Side::Ingress, Side::Ingress, Side::Egress];
    for ((number, rules), side) in (2..).zip(rules).zip(sides) {
        let filter = Filter::new(ProviderId(number), List(rules.clone()));
        chain.add(side, filter).unwrap();
    }
    [1, 2]
        .map(PortId)
        .into_iter()
        .for_each(|port| chain.add_port(port));
    chain
}

/// The data plane's flows.
#[derive(Default)]
struct Table(HashMap<FlowId, Flow>);

impl Table {
    fn apply(&mut self, changes: Vec<FlowChange>) {
        for change in changes {
            match change.into_flow(SwitchId(1)) {
                Err(id) => assert!(self.0.remove(&id).is_some()),
                Ok(flow) => {
                    self.0.insert(flow.id, flow);
                }
            }
        }
    }

    /// All flows that match agree.
    fn look_up(&self, stage: Stage, key: &FlowKey) -> Option<Vec<Action>> {
        let matching = self
            .0
            .values()
            .filter(|flow| flow.stage == stage && flow.key == key.masked(&flow.mask));
        let mut actions = matching.map(|flow| &flow.actions);
        let first = actions.next()?;
        assert!(actions.all(|actions| actions == first), "{stage} {key:?}");
        Some(first.clone())
    }

    /// The port that a packet comes to from a stage on.
    fn send(&mut self, chain: &mut Chain<Filter<ByType>>, key: &FlowKey, now_ms: u64) -> Option<PortId> {
        let filters = chain.filters();
        let mut stage = Stage::first(&filters);
        let mut misses = 0;
        loop {
            let actions = self.look_up(stage, key).or_else(|| {
                misses += 1;
                let outcome = chain.missed(stage, key, now_ms);
                self.apply(outcome.changes);
                stage = outcome.stage;
                outcome.verdict.ok()
            })?;
            assert!(
                misses <= 2,
                "one answer for the port's stages, and one for the receiver's"
            );
            stage = match (&actions[..], stage) {
                ([Action::Output(port)], _) => Stage::Egress(*port, 0),
                ([Action::Continue], Stage::Egress(port, _)) => return Some(port),
                ([Action::Continue], stage) => stage.next(&filters)?,
                _ => return None,
            };
        }
    }
}

fn expected(rules: &[Rules], key: &FlowKey) -> Option<PortId> {
    let passes = |rules: &Rules| {
        List(rules.clone())
            .decide(Stage::Forward, &Look::new(key))
            .is_ok()
    };
    let port = PortId(1 + u32::from(key.eth_type() & 1));
    rules.iter().all(passes).then_some(port)
}

#[derive(Clone, Debug)]
enum Step {
    Packet(u32, [u16; 4]),
    Wait(u64),
    /// Another process with these rules takes over.
    Restart(Vec<Rules>),
    Poll,
}

fn rules() -> impl Strategy<Value = Vec<Rules>> {
    let rule = (0..4usize, 0..3u128, any::<bool>());
    let list = proptest::collection::vec(rule, 0..4);
    proptest::collection::vec(list, 3)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..3u32, [0..3u16, 0..3u16, 0..3u16, 0..3u16]).prop_map(|(port, values)| Step::Packet(port, values)),
        2 => (0..30_000u64).prop_map(Step::Wait),
        1 => rules().prop_map(Step::Restart),
        1 => Just(Step::Poll),
    ]
}

fn key(port: u32, values: [u16; 4]) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    for (field, value) in FIELDS.iter().zip(values) {
        field.field().set(&mut key.words, value.into(), u128::MAX);
    }
    key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn cached_verdicts_equal_verdicts_per_packet(
        first in rules(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let (mut rules, mut chain, mut table) = (first.clone(), chain(&first), Table::default());
        let mut now_ms = 0;
        for step in steps {
            match step {
                Step::Packet(port, values) => {
                    let key = key(port, values);
                    prop_assert_eq!(table.send(&mut chain, &key, now_ms), expected(&rules, &key));
                }
                Step::Wait(ms) => now_ms += ms,
                Step::Restart(others) => {
                    rules = others;
                    chain = super::twin::chain(&rules);
                    let listed = table.0.values().map(|flow| (flow.clone(), FlowStats::default()));
                    let changes = chain.restored(listed.collect(), now_ms);
                    table.apply(changes);
                }
                Step::Poll => {
                    let uses: Vec<_> = table.0.keys().map(|id| (*id, FlowStats::default())).collect();
                    table.apply(chain.used(&uses, now_ms));
                }
            }
            prop_assert_eq!(table.0.len(), chain.flow_count());
        }
    }
}
