//! Cached decisions under rule lists, while lists, sets and members change: each verdict that a cache still
//! holds is that of a new walk, and that of trying rule after rule.
//!
//! `walk_twin` has whole switches, and few of its packets come to rules that have just changed. Here lists
//! are all that changes, and each packet comes again after each change.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "walk_twin/rules.rs"]
#[allow(dead_code, reason = "`walk_twin` compares counts as well")]
mod rules;

use classifier::{Decision, Hint, MegaflowTable, PortFlows, Rules, Walker};
use flow::{
    Action, Context, Filter, Filters, Flow, FlowId, FlowKey, FlowMask, PortId, SwitchId, VLAN_PRESENT,
};
use proptest::prelude::*;
use rules::{LISTS, TwinRules, changes, make_sets};
use std::collections::HashMap;
use std::sync::Arc;

/// Ports that send, and the one that receives.
const SENDERS: u32 = 4;
const RECEIVER: PortId = PortId(SENDERS);

/// The place of the list that judges a packet, and its key.
type Sent = (usize, FlowKey);

/// A switch for each of the lists, which is the receiver's egress filter.
struct Switches {
    rules: Arc<Rules>,
    _tables: Vec<MegaflowTable>,
    /// Of the ports that send, by switch and number.
    flows: Vec<Vec<PortFlows>>,
    walker: Walker,
    twin: TwinRules,
    /// What a cache would hold.
    cached: HashMap<Sent, Arc<Decision>>,
}

impl Switches {
    fn new() -> Switches {
        let rules = Arc::<Rules>::default();
        make_sets(&rules);
        let tables = LISTS.map(|list| {
            let mut table = MegaflowTable::with_rules(1000, 10, rules.clone());
            let (key, actions) = (FlowKey::default(), vec![Action::Output(RECEIVER)]);
            let flow = Flow::new(FlowId(1), SwitchId(1), key, FlowMask::ANY, actions);
            table.insert(flow).unwrap();
            let mut filters = Filters::default();
            filters.egress[2] = Filter::Rules(list);
            table.set_filters(RECEIVER, filters);
            table
        });
        let mut tables = Vec::from(tables);
        let flows_of =
            |table: &mut MegaflowTable| (0..SENDERS).map(|port| table.port(PortId(port))).collect();
        Switches {
            flows: tables.iter_mut().map(flows_of).collect(),
            _tables: tables,
            rules,
            walker: Walker::default(),
            twin: TwinRules::default(),
            cached: HashMap::new(),
        }
    }

    fn walk(&mut self, (list, key): Sent) -> Arc<Decision> {
        let reading = self.flows[list][key.in_port() as usize].read();
        let walked = reading.walk(Hint::default(), &key, &Context::NONE, &mut self.walker);
        walked.decision().expect("a composed walk").clone()
    }

    /// Sends the packet, as through a cache that holds what was decided before. Returns whether it held.
    fn send(&mut self, sent: Sent) -> Result<bool, TestCaseError> {
        let judgement = self.twin.judge(LISTS[sent.0], &sent.1);
        let expected = judgement.is_some_and(|judgement| judgement.verdict.passes());
        let before = self.cached.get(&sent).filter(|one| one.is_live()).cloned();
        let walked = self.walk(sent);
        for decision in before.iter().chain([&walked]) {
            let passes = decision.program().outputs().next().is_some();
            prop_assert_eq!(passes, expected, "{:?}, cached: {}", sent, before.is_some());
        }
        let held = before.is_some();
        self.cached.insert(sent, before.unwrap_or(walked));
        Ok(held)
    }
}

fn packets() -> impl Strategy<Value = Vec<Sent>> {
    let link = (0..SENDERS, 0u64..4, 0u64..4, 0u16..5);
    let network = (
        prop_oneof![4 => Just(0x0800u16), 1 => Just(0x0806), 1 => Just(0x88b5)],
        0u128..4,
        0u128..4,
    );
    let transport = (prop_oneof![Just(6u8), Just(17)], 0u16..4);
    let key = (link, network, transport).prop_map(|(link, network, transport)| {
        let mut key = FlowKey::default();
        key.set_in_port(link.0);
        key.set_eth_src(0x0200_0000_0000 | link.1);
        key.set_eth_dst(0x0200_0000_0000 | link.2);
        if link.3 > 0 {
            key.set_vlan_tpid(0x8100);
            key.set_vlan_tci(VLAN_PRESENT | (link.3 - 1));
        }
        key.set_eth_type(network.0);
        if network.0 == 0x0800 {
            key.set_ip_src(0x0a00_0000 | network.1);
            key.set_ip_dst(0x0a00_0000 | network.2);
            key.set_ip_proto(transport.0);
            key.set_tp_dst(transport.1);
        }
        key
    });
    prop::collection::vec((0..LISTS.len(), key), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cached_verdicts_are_those_of_walks_and_of_the_first_match(
        packets in packets(),
        changes in prop::collection::vec(changes(), 1..24),
    ) {
        let mut switch = Switches::new();
        for change in changes {
            let rules = switch.rules.clone();
            change.make(&rules, &mut switch.twin);
            for sent in &packets {
                switch.send(*sent)?;
                prop_assert!(switch.send(*sent)?, "what was decided is cached until the next change");
            }
        }
    }
}
