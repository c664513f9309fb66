//! Random operations on the table and the cache, compared with a list of rules.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{FlowEntry, Hint, MegaflowTable, MicroflowCache, Refused, Train, Walker};
use flow::{Action, Context, ExactKey, Flow, FlowId, FlowKey, FlowMask, PortId, SwitchId};
use proptest::prelude::*;
use std::sync::Arc;

/// Few values, so that flows collide, overlap and replace each other all the time.
fn keys() -> impl Strategy<Value = FlowKey> {
    (0u32..3, 0u64..3, 0u16..3, 0u128..3, 0u16..2, 0u128..2).prop_map(|(port, mac, vlan, ip, tp, nd)| {
        let mut key = FlowKey::default();
        key.set_in_port(if port == 2 { PortId::LIMIT + 7 } else { port });
        key.set_eth_dst(mac);
        key.set_vlan_tci(vlan);
        key.set_ip_src(ip << 64 | ip);
        key.set_tp_dst(tp);
        key.set_nd_target(nd);
        key
    })
}

fn masks() -> impl Strategy<Value = FlowMask> {
    let port = prop_oneof![8 => Just(u32::MAX), 1 => Just(0), 1 => Just(1)];
    let mac = prop_oneof![Just(0), Just(1), Just(0xffff_ffff_ffff)];
    let ip = prop_oneof![Just(0), Just(1), Just(1u128 << 64), Just(u128::MAX)];
    let deep = prop_oneof![Just((0, 0)), Just((0xffff, 0)), Just((0, 1)), Just((0xffff, 1))];
    (port, mac, prop::bool::ANY, ip, deep).prop_map(|(port, mac, vlan, ip, (tp, nd))| {
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(port);
        mask.0.set_eth_dst(mac);
        mask.0.set_vlan_tci(if vlan { 0xffff } else { 0 });
        mask.0.set_ip_src(ip);
        mask.0.set_tp_dst(tp);
        mask.0.set_nd_target(nd);
        mask
    })
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u128, FlowKey, FlowMask),
    Remove(u128),
    Flush,
    Reorder,
    Lookup(FlowKey),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0u128..12, keys(), masks()).prop_map(|(id, key, mask)| Operation::Insert(id, key, mask)),
        2 => (0u128..12).prop_map(Operation::Remove),
        1 => prop::sample::select(vec![Operation::Flush, Operation::Reorder]),
        20 => keys().prop_map(Operation::Lookup),
    ];
    prop::collection::vec(operation, 1..120)
}

const MAX_FLOWS: usize = 12;
const MAX_MASKS: usize = 3;

/// The definition of the table: a list of rules.
#[derive(Default)]
struct Twin {
    rules: Vec<Flow>,
}

impl Twin {
    /// The port whose masks a flow counts among.
    fn group(flow: &Flow) -> Option<u32> {
        let port = flow.key.in_port();
        (flow.mask.0.in_port() == u32::MAX && port < PortId::LIMIT).then_some(port)
    }

    fn insert(&mut self, flow: &Flow) -> Result<usize, Refused> {
        let mut rules = self.rules.clone();
        rules.retain(|old| old.id != flow.id && !(old.mask == flow.mask && old.key == flow.key));
        let replaced = self.rules.len() - rules.len();
        rules.push(flow.clone());
        if rules.len() > MAX_FLOWS {
            return Err(Refused::Flows { limit: MAX_FLOWS });
        }
        let group = Twin::group(flow);
        let of_group = |rules: &[Flow]| rules.iter().filter(|rule| Twin::group(rule) == group).count();
        let (before, after) = (of_group(&self.rules), of_group(&rules));
        if let Some(port) = group
            && after > before
            && before > MAX_FLOWS - rules.len()
        {
            let in_port = PortId(port);
            return Err(Refused::Share {
                in_port,
                flows: before,
            });
        }
        let mut masks: Vec<FlowMask> = Vec::new();
        for rule in rules.iter().filter(|rule| Twin::group(rule) == group) {
            if !masks.contains(&rule.mask) {
                masks.push(rule.mask);
            }
        }
        if masks.len() > MAX_MASKS {
            return Err(Refused::Masks {
                in_port: group.map(PortId),
                limit: MAX_MASKS,
            });
        }
        self.rules = rules;
        Ok(replaced)
    }

    fn matches(&self, key: &FlowKey) -> bool {
        self.rules.iter().any(|rule| key.masked(&rule.mask) == rule.key)
    }
}

fn new_flow(id: u128, key: FlowKey, mask: FlowMask, serial: usize) -> Flow {
    let actions = vec![Action::Output(PortId(serial as u32))];
    Flow::new(FlowId(id), SwitchId(0), key, mask, actions)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Look-ups, through a cache so small that it evicts, give a live flow of the list that matches, and none
    /// exactly if the list has none.
    #[test]
    fn table_and_cache_agree_with_a_list(operations in operations()) {
        let mut table = MegaflowTable::new(MAX_FLOWS, MAX_MASKS);
        let mut cache = MicroflowCache::new(8);
        let mut twin = Twin::default();
        for (serial, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Insert(id, key, mask) => {
                    let flow = new_flow(id, key, mask, serial);
                    let expected = twin.insert(&Flow { key: key.masked(&mask), ..flow.clone() });
                    let before: Vec<_> = table.iter().cloned().collect();
                    let result = table.insert(flow);
                    let ended = before.iter().filter(|entry| !entry.is_live()).count();
                    match (&result, &expected) {
                        (Ok(replaced), Ok(count)) => {
                            prop_assert_eq!(replaced.is_some(), *count > 0);
                            prop_assert!(replaced.as_ref().is_none_or(|entry| !entry.is_live()));
                            prop_assert_eq!(ended, *count);
                        }
                        (Err(full), Err(expected)) => {
                            prop_assert_eq!(full, expected);
                            prop_assert_eq!(ended, 0);
                        }
                        _ => prop_assert!(false, "{result:?} instead of {expected:?}"),
                    }
                }
                Operation::Remove(id) => {
                    let known = twin.rules.iter().any(|rule| rule.id == FlowId(id));
                    twin.rules.retain(|rule| rule.id != FlowId(id));
                    let removed = table.remove(FlowId(id));
                    prop_assert_eq!(removed.is_some(), known);
                    prop_assert!(removed.is_none_or(|entry| !entry.is_live()));
                }
                Operation::Flush => {
                    prop_assert_eq!(table.flush(), twin.rules.len());
                    twin.rules.clear();
                }
                Operation::Reorder => table.reorder(),
                Operation::Lookup(key) => {
                    let flows = table.port(PortId(key.in_port()));
                    let exact = ExactKey::of(&key);
                    let mask = flows.mask_union(&exact);
                    let hash = cache.hash(&exact, mask);
                    let cached = cache.hit(hash, &exact, mask, &Train::default()).cloned();
                    let reading = flows.read();
                    let found = reading.lookup(&key).cloned();
                    let hint = reading.hint(&key, &Context::NONE);
                    hint.prefetch();
                    for hint in [hint, Hint::default()] {
                        let walked = reading.walk(hint, &key, &Context::NONE, &mut Walker::default());
                        let decision = found.as_ref().map(|entry| Arc::as_ptr(&entry.decision));
                        prop_assert_eq!(walked.decision().map(Arc::as_ptr), decision);
                    }
                    drop(reading);
                    if let (Some(entry), None, false) = (&found, &cached, exact.is_none()) {
                        cache.insert(hash, &exact, mask, &entry.decision, 0);
                    }
                    prop_assert_eq!(found.is_some(), twin.matches(&key));
                    let cached = cached.map(|decision| {
                        let of = |entry: &&Arc<FlowEntry>| Arc::ptr_eq(&entry.decision, &decision);
                        Arc::clone(table.iter().find(of).unwrap())
                    });
                    for entry in cached.iter().chain(&found) {
                        prop_assert!(entry.is_live());
                        prop_assert_eq!(key.masked(&entry.flow.mask), entry.flow.key);
                        prop_assert!(twin.rules.contains(&entry.flow));
                    }
                }
            }
            prop_assert_eq!(table.len(), twin.rules.len());
            prop_assert_eq!(table.is_empty(), twin.rules.is_empty());
            prop_assert_eq!(table.iter().count(), twin.rules.len());
        }
    }

    /// `lookup_observed` tries the masks that the flows for the port have, once each, and stops at a match.
    #[test]
    fn observed_masks_are_those_of_the_port(
        flows in prop::collection::vec((keys(), masks()), 0..20), key in keys(),
    ) {
        let mut table = MegaflowTable::new(100, 100);
        for (id, (mut key, mask)) in flows.into_iter().enumerate() {
            // Ports beyond the limit, which do not exist, share a list and would have masks appear twice.
            key.set_in_port(key.in_port() % 3);
            table.insert(new_flow(id as u128, key, mask, id)).unwrap();
        }
        let mut tried: Vec<(FlowMask, bool)> = Vec::new();
        let flows = table.port(PortId(key.in_port()));
        let reading = flows.read();
        let found = reading.lookup_observed(&key, &mut |mask, matched| tried.push((*mask, matched)));
        let found = found.map(|entry| entry.flow.mask);
        prop_assert_eq!(found, reading.lookup(&key).map(|entry| entry.flow.mask));
        prop_assert!(tried.len() <= table.masks(PortId(key.in_port())));
        for (position, (mask, matched)) in tried.iter().enumerate() {
            prop_assert_eq!(*matched, Some(*mask) == found);
            prop_assert!(!tried[..position].iter().any(|(earlier, _)| earlier == mask));
            let relevant = |flow: &Flow| {
                flow.mask == *mask && Twin::group(flow).is_none_or(|port| port == key.in_port())
            };
            prop_assert!(table.iter().any(|entry| relevant(&entry.flow)));
        }
        if found.is_none() {
            prop_assert_eq!(tried.len(), table.masks(PortId(key.in_port())));
        }
    }
}
