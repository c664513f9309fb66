//! What a hostile guest can and cannot do to look-ups, and what caches keep alive.

use classifier::{
    DEFAULT_CACHE_ENTRIES, FIRST_CACHE_ENTRIES, FlowEntry, MegaflowTable, MicroflowCache, Refused, Train,
    second,
};
use flow::{Action, ExactKey, Flow, FlowId, FlowKey, FlowMask, PortId, PutMode, Stage, Statistics, SwitchId};
use std::sync::Arc;

fn flow(id: u128, port: u32, mac: u64, mac_mask: u64) -> Flow {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
    key.set_in_port(port);
    key.set_eth_dst(mac);
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(mac_mask);
    Flow::new(FlowId(id), SwitchId(0), key, mask, Vec::new())
}

fn key(port: u32, mac: u64) -> FlowKey {
    flow(0, port, mac, 0).key
}

fn find(table: &mut MegaflowTable, key: &FlowKey) -> Option<Arc<FlowEntry>> {
    table.port(PortId(key.in_port())).read().lookup(key).cloned()
}

fn masks_tried(table: &mut MegaflowTable, key: &FlowKey) -> usize {
    let mut tried = 0;
    let flows = table.port(PortId(key.in_port()));
    flows.read().lookup_observed(key, &mut |_, _| tried += 1);
    tried
}

#[test]
fn a_port_with_many_masks_does_not_slow_another_one() {
    let mut table = MegaflowTable::new(1000, 40);
    table.insert(flow(1, 1, 0xabc, 0xfff)).unwrap();
    let before = (
        masks_tried(&mut table, &key(1, 0xabc)),
        masks_tried(&mut table, &key(1, 0)),
    );
    for bit in 0..40u32 {
        table
            .insert(flow(100 + u128::from(bit), 2, 1 << bit, 1 << bit))
            .unwrap();
    }
    let refused = table.insert(flow(200, 2, 1 << 41, 1 << 41));
    assert_eq!(
        refused.unwrap_err(),
        Refused::Masks {
            in_port: Some(PortId(2)),
            limit: 40
        }
    );
    assert_eq!(masks_tried(&mut table, &key(2, 0)), 40);
    assert_eq!(
        (
            masks_tried(&mut table, &key(1, 0xabc)),
            masks_tried(&mut table, &key(1, 0))
        ),
        before
    );
    assert_eq!(before, (1, 1));
    // Another port still gets its masks, and the full one more flows of masks it has.
    table.insert(flow(201, 1, 1 << 41, 1 << 41)).unwrap();
    table.insert(flow(202, 2, 0, 1)).unwrap();
}

#[test]
fn masks_of_all_passes_of_a_port_are_bounded_together() {
    const MASKS: u64 = 3;
    let mut table = MegaflowTable::new(1000, MASKS as usize);
    let in_pass = |pass: u32, port, bit: u64| {
        let mut flow = flow(
            (u128::from(pass) << 64) + (u128::from(port) << 32) + u128::from(bit),
            port,
            1 << bit,
            1 << bit,
        );
        flow.key.set_recirc_id(pass);
        flow.mask.0.set_recirc_id(u32::MAX);
        flow
    };
    for pass in 1..=8 {
        for bit in 0..MASKS {
            table.insert(in_pass(pass, 1, bit)).unwrap();
        }
    }
    let refused = Refused::Masks {
        in_port: Some(PortId(1)),
        limit: 8 * MASKS as usize,
    };
    assert_eq!(table.insert(in_pass(9, 1, 0)).unwrap_err(), refused);
    table.insert(in_pass(9, 2, 0)).unwrap();
    table.remove(in_pass(8, 1, 0).id).unwrap();
    table.insert(in_pass(9, 1, 0)).unwrap();
    assert_eq!(table.insert(in_pass(9, 1, 1)).unwrap_err(), refused);
}

#[test]
fn flows_are_listed_from_an_identifier_on() {
    let mut table = MegaflowTable::default();
    for id in [4, 1, 2] {
        table.insert(flow(id, 1, id as u64, 0xff)).unwrap();
    }
    let after = |id: Option<u128>| -> Vec<u128> {
        let flows = table.iter_after(id.map(FlowId));
        flows.map(|entry| entry.flow.id.0).collect()
    };
    assert_eq!(after(None), [1, 2, 4]);
    assert_eq!(after(Some(1)), [2, 4]);
    assert_eq!(after(Some(3)), [4]);
    assert!(after(Some(4)).is_empty());
}

#[test]
fn a_full_table_refuses_new_flows_but_replaces_old_ones() {
    let mut table = MegaflowTable::new(2, 8);
    table.insert(flow(1, 1, 1, 0xff)).unwrap();
    table.insert(flow(2, 2, 2, 0xff)).unwrap();
    let refused = table.insert(flow(3, 3, 3, 0xff));
    assert_eq!(refused.unwrap_err(), Refused::Flows { limit: 2 });
    assert!(find(&mut table, &key(3, 3)).is_none());
    // The same identifier with other packets.
    let replaced = table.insert(flow(1, 1, 3, 0xff)).unwrap().unwrap();
    assert_eq!(replaced.flow.key.eth_dst(), 1);
    assert!(find(&mut table, &key(1, 1)).is_none());
    // The same packets with another identifier.
    let replaced = table.insert(flow(4, 1, 3, 0xff)).unwrap().unwrap();
    assert_eq!(replaced.flow.id, FlowId(1));
    // Both at once: two flows become one.
    let replaced = table.insert(flow(4, 2, 2, 0xff)).unwrap().unwrap();
    assert_eq!(replaced.flow.id, FlowId(4));
    assert_eq!((table.len(), table.get(FlowId(2)).is_some()), (1, false));
    assert!(find(&mut table, &key(1, 3)).is_none());
    assert_eq!(find(&mut table, &key(2, 2)).unwrap().flow.id, FlowId(4));
}

#[test]
fn what_flows_do_is_bounded_in_bytes() {
    let mut table = MegaflowTable::new(100, 8);
    let doing = |id, outputs| {
        let mut flow = flow(id, 1, id as u64, 0xff);
        flow.actions = vec![Action::Output(PortId(1)); outputs];
        flow
    };
    table.insert(doing(1, 100)).unwrap();
    let limit = table.bytes();
    assert!(limit >= 100);
    table.set_limits(100, limit);
    let refused = Refused::Bytes { limit };
    assert_eq!(table.insert(doing(2, 1)).unwrap_err(), refused);
    assert_eq!(table.insert(doing(1, 101)).unwrap_err(), refused);
    assert_eq!(table.get(FlowId(1)).unwrap().flow.actions.len(), 100);
    // As much, or less, in its place; and then there is room for another.
    table.insert(doing(1, 100)).unwrap();
    table.insert(doing(1, 40)).unwrap();
    table.insert(doing(1, 100)).unwrap();
    table.insert(doing(1, 40)).unwrap();
    table.insert(doing(2, 40)).unwrap();
    assert_eq!(table.insert(doing(3, 40)).unwrap_err(), refused);
    table.remove(FlowId(1)).unwrap();
    table.insert(doing(3, 40)).unwrap();
    assert!(table.bytes() <= limit);
    table.flush();
    assert_eq!(table.bytes(), 0);
    // What is over a limit that came later stays, and can shrink.
    table.insert(doing(1, 90)).unwrap();
    table.set_limits(100, 0);
    table.insert(doing(1, 90)).unwrap();
    table.insert(doing(1, 80)).unwrap();
    assert_eq!(
        table.insert(doing(1, 90)).unwrap_err(),
        Refused::Bytes { limit: 0 }
    );
}

/// Installs flows of a port until one is refused; returns how many there are then.
fn fill(table: &mut MegaflowTable, port: u32) -> usize {
    for number in 0.. {
        let id = u128::from(port) << 64 | u128::from(number);
        if let Err(full) = table.insert(flow(id, port, number, u64::MAX)) {
            let flows = number as usize;
            let in_port = PortId(port);
            assert_eq!(full, Refused::Share { in_port, flows });
            return flows;
        }
    }
    unreachable!()
}

#[test]
fn no_port_can_use_up_the_table() {
    let mut table = MegaflowTable::new(1024, 8);
    assert_eq!(fill(&mut table, 1), 512);
    assert_eq!(fill(&mut table, 2), 256);
    assert_eq!(fill(&mut table, 3), 128);
    // Greed gains nothing: the first has more than its share now, and keeps it, but gets no more.
    assert!(table.insert(flow(1, 1, 1 << 40, u64::MAX)).is_err());
    // Replacing is no growth.
    table.insert(flow(1 << 64 | 5, 1, 5, u64::MAX)).unwrap();
    // A newcomer finds room.
    table.insert(flow(1, 4, 1, u64::MAX)).unwrap();
}

#[test]
fn subtables_that_grow_and_shrink_lose_no_flow() {
    let mut table = MegaflowTable::default();
    for round in 0..3u64 {
        let macs = |from: u64| (from..2000).map(move |mac| mac << round);
        for mac in macs(0) {
            table.insert(flow(mac.into(), 1, mac, u64::MAX)).unwrap();
        }
        assert!(macs(0).all(|mac| find(&mut table, &key(1, mac)).is_some()));
        for mac in macs(0).take(1900) {
            table.remove(FlowId(mac.into())).unwrap();
        }
        assert!(
            macs(0)
                .take(1900)
                .all(|mac| find(&mut table, &key(1, mac)).is_none())
        );
        assert!(macs(1900).all(|mac| find(&mut table, &key(1, mac)).is_some()));
        assert_eq!(table.flush(), 100);
    }
}

#[test]
fn filters_of_many_ports_take_no_masks_from_each_other() {
    let mut table = MegaflowTable::new(10_000, 4);
    let mut put = |port: u32, number: u8, bit: u32| {
        let id = u128::from(port) << 8 | u128::from(number) << 4 | u128::from(bit);
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
        key.set_eth_dst(1 << bit);
        mask.0.set_eth_dst(1 << bit);
        table.insert(Flow {
            stage: Stage::Egress(PortId(port), number),
            ..Flow::new(FlowId(id), SwitchId(0), key, mask, Vec::new())
        })
    };
    for port in 0..1000 {
        for bit in 0..4 {
            put(port, 0, bit).unwrap();
        }
    }
    let limit = 4;
    let in_port = Some(PortId(7));
    assert_eq!(put(7, 0, 4).unwrap_err(), Refused::Masks { in_port, limit });
    put(7, 1, 4).unwrap();
}

#[test]
fn a_mask_is_free_again_when_its_last_flow_goes() {
    let mut table = MegaflowTable::new(10, 1);
    table.insert(flow(1, 1, 1, 0xff)).unwrap();
    assert!(table.insert(flow(2, 1, 1, 0xf)).is_err());
    // Replaced, the flow takes its mask along.
    table.insert(flow(1, 1, 1, 0xf)).unwrap();
    assert_eq!(table.masks(PortId(1)), 1);
    table.remove(FlowId(1)).unwrap();
    assert_eq!(table.masks(PortId(1)), 0);
    table.insert(flow(2, 1, 1, 0xffff)).unwrap();
}

#[test]
fn masks_that_are_hit_come_first() {
    let mut table = MegaflowTable::new(100, 100);
    for bit in 0..20u32 {
        table
            .insert(flow(u128::from(bit), 1, 1 << bit, 1 << bit))
            .unwrap();
    }
    let last = key(1, 1 << 19);
    assert_eq!(masks_tried(&mut table, &last), 20);
    for _ in 0..10 {
        find(&mut table, &last).unwrap();
    }
    table.reorder();
    assert_eq!(masks_tried(&mut table, &last), 1);
    // What was hit long ago gives way.
    (0..4).for_each(|_| table.reorder());
    let other = key(1, 1 << 3);
    (0..2).for_each(|_| drop(find(&mut table, &other).unwrap()));
    table.reorder();
    assert_eq!(masks_tried(&mut table, &other), 1);
}

#[test]
fn masks_are_sorted_while_flows_come_and_go() {
    let mut table = MegaflowTable::new(100, 100);
    let insert = |table: &mut MegaflowTable, bit: u32| {
        table.insert(flow(bit.into(), 1, 1 << bit, 1 << bit)).unwrap();
    };
    (0..20).for_each(|bit| insert(&mut table, bit));
    let last = key(1, 1 << 19);
    assert_eq!(masks_tried(&mut table, &last), 20);
    // With the first 20 they are one less than it takes.
    (0..43).for_each(|_| insert(&mut table, 0));
    assert_eq!(masks_tried(&mut table, &last), 20);
    insert(&mut table, 0);
    assert_eq!(masks_tried(&mut table, &last), 1);
}

/// A mask with all words.
const ALL: fn(usize) -> u64 = |_| u64::MAX;

fn insert(cache: &mut MicroflowCache, key: &FlowKey, entry: &Arc<FlowEntry>) {
    let key = ExactKey::of(key);
    let hash = cache.hash(&key, ALL);
    cache.insert(hash, &key, ALL, &entry.decision, 0);
}

/// A look-up as the data plane does it, which counts a packet of 100 bytes.
fn hit(cache: &mut MicroflowCache, key: &FlowKey) -> bool {
    let key = ExactKey::of(key);
    let mut train = Train::default();
    train.add(100, 0);
    let hash = cache.hash(&key, ALL);
    [hash, second(hash)]
        .into_iter()
        .any(|hash| cache.hit(hash, &key, ALL, &train).is_some())
}

/// As often as a taken place may be refused.
fn insist(cache: &mut MicroflowCache, key: &FlowKey, entry: &Arc<FlowEntry>) {
    (0..32).for_each(|_| insert(cache, key, entry));
}

#[test]
fn ended_flows_are_misses() {
    let mut table = MegaflowTable::default();
    let mut cache = MicroflowCache::default();
    for mac in 0..3 {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
        let entry = find(&mut table, &key(1, mac)).unwrap();
        insert(&mut cache, &key(1, mac), &entry);
    }
    table.remove(FlowId(0)).unwrap();
    assert!(!hit(&mut cache, &key(1, 0)));
    assert!(hit(&mut cache, &key(1, 2)));
    // The table's end is its flows' end.
    drop(table);
    assert!(!hit(&mut cache, &key(1, 2)));
}

#[test]
fn a_full_set_keeps_what_was_used_last_and_takes_the_place_of_the_dead() {
    let mut table = MegaflowTable::default();
    for mac in 0..4 {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
    }
    let entry = |mac: u64| Arc::clone(table.get(FlowId(mac.into())).unwrap());
    // One set of two ways.
    let mut cache = MicroflowCache::new(2);
    insert(&mut cache, &key(1, 0), &entry(0));
    insert(&mut cache, &key(1, 1), &entry(1));
    assert!(hit(&mut cache, &key(1, 0)));
    // A newcomer has to wait, and then takes the place of the one used less recently.
    insert(&mut cache, &key(1, 2), &entry(2));
    assert!(!hit(&mut cache, &key(1, 2)));
    insist(&mut cache, &key(1, 2), &entry(2));
    assert!(hit(&mut cache, &key(1, 0)));
    assert!(!hit(&mut cache, &key(1, 1)));
    assert!(hit(&mut cache, &key(1, 2)));
    let last = entry(3);
    // Used last, but ended.
    table.remove(FlowId(2)).unwrap();
    insist(&mut cache, &key(1, 3), &last);
    assert!(hit(&mut cache, &key(1, 0)));
    assert!(hit(&mut cache, &key(1, 3)));
    assert_eq!(cache.len(), 2);
}

#[test]
fn nothing_that_was_counted_is_lost() {
    let mut table = MegaflowTable::default();
    for mac in 0..3 {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
    }
    let entry = |mac: u64| Arc::clone(table.get(FlowId(mac.into())).unwrap());
    let packets = |mac| entry(mac).stats(0).packets;
    let mut cache = MicroflowCache::new(2);
    insert(&mut cache, &key(1, 0), &entry(0));
    insert(&mut cache, &key(1, 1), &entry(1));
    assert!((0..5).all(|_| hit(&mut cache, &key(1, 0))));
    assert!(hit(&mut cache, &key(1, 1)));
    assert_eq!((packets(0), packets(1)), (0, 0));
    cache.flush_stats(7);
    assert_eq!((packets(0), packets(1)), (5, 1));
    assert_eq!(entry(0).stats(7).bytes, 500);
    // A slot that is replaced flushes its counts before, and the new entry begins at zero.
    assert!(hit(&mut cache, &key(1, 0)) && hit(&mut cache, &key(1, 1)));
    insist(&mut cache, &key(1, 2), &entry(2));
    assert!(hit(&mut cache, &key(1, 2)));
    cache.flush_stats(8);
    assert_eq!((packets(0), packets(1), packets(2)), (6, 2, 1));
    cache.flush_stats(9);
    assert_eq!((packets(0), packets(1), packets(2)), (6, 2, 1));
}

#[test]
fn the_cache_grows_with_its_keys_up_to_a_limit() {
    const KEYS: u64 = 150_000;
    const FLOWS: u64 = 1000;
    let mut table = MegaflowTable::default();
    let mut entries = Vec::new();
    for mac in 0..FLOWS {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
        entries.push(Arc::clone(table.get(FlowId(mac.into())).unwrap()));
    }
    let mut cache = MicroflowCache::default();
    let mut expected = [0; FLOWS as usize];
    // Counted before later insertions move the key.
    let mut look = |cache: &mut MicroflowCache, mac: u64| {
        let found = hit(cache, &key(1, mac));
        expected[(mac % FLOWS) as usize] += u64::from(found);
        found
    };
    assert_eq!(cache.capacity(), 0);
    for mac in 0..KEYS {
        insert(&mut cache, &key(1, mac), &entries[(mac % FLOWS) as usize]);
        look(&mut cache, mac);
        let room = FIRST_CACHE_ENTRIES.max(3 * cache.len() + 2);
        assert!(cache.capacity() <= room.min(DEFAULT_CACHE_ENTRIES));
        if mac == 50_000 {
            // Keys that found no place come again, as packets do.
            let mut missing = mac;
            for _ in 0..3 {
                missing = 0;
                for mac in 0..mac {
                    if !look(&mut cache, mac) {
                        missing += 1;
                        insert(&mut cache, &key(1, mac), &entries[(mac % FLOWS) as usize]);
                    }
                }
            }
            assert!(missing < mac / 1000, "{missing}");
        }
    }
    assert_eq!(cache.capacity(), DEFAULT_CACHE_ENTRIES);
    assert!(cache.len() > DEFAULT_CACHE_ENTRIES * 3 / 4);
    cache.flush_stats(1);
    let counted: Vec<u64> = entries.iter().map(|entry| entry.stats(1).packets).collect();
    assert_eq!(counted, expected);
}

#[test]
fn a_cache_is_small_at_first() {
    // Two cache lines per entry.
    const { assert!(FIRST_CACHE_ENTRIES * 128 < 1 << 20) }
    let mut table = MegaflowTable::default();
    table.insert(flow(0, 1, 0, u64::MAX)).unwrap();
    let entry = Arc::clone(table.get(FlowId(0)).unwrap());
    for (entries, capacity) in [(3, 4), (DEFAULT_CACHE_ENTRIES, FIRST_CACHE_ENTRIES)] {
        let mut cache = MicroflowCache::new(entries);
        insert(&mut cache, &key(1, 0), &entry);
        assert_eq!(cache.capacity(), capacity);
    }
}

/// What each mode does where there is no flow, one with the identifier, one for the same packets, and one of
/// each.
#[test]
fn modes_say_what_may_be_replaced_and_which_statistics_end() {
    use PutMode::{Create, CreateOrModify, Modify};
    use Statistics::{Kept, New};
    let modes = [
        Create,
        Modify(New),
        Modify(Kept),
        CreateOrModify(New),
        CreateOrModify(Kept),
    ];
    let (same_id, same_match) = (flow(1, 1, 0xa, 0xff), flow(2, 1, 0xb, 0xff));
    for mode in modes {
        for (there, first) in [
            (vec![], None),
            (vec![&same_id], Some(1)),
            (vec![&same_match], Some(2)),
            (vec![&same_id, &same_match], Some(1)),
        ] {
            let mut table = MegaflowTable::default();
            for flow in &there {
                table.insert((*flow).clone()).unwrap();
                table.get(flow.id).unwrap().record(flow.id.0 as u64, 100, 0, 0);
            }
            let result = table.put(flow(1, 1, 0xb, 0xff), mode);
            let refused = match (mode, first) {
                (Create, Some(id)) => Some(Refused::Exists(FlowId(id))),
                (Modify(_), None) => Some(Refused::Missing(FlowId(1))),
                _ => None,
            };
            if let Some(refused) = refused {
                assert_eq!(result.unwrap_err(), refused);
                assert_eq!(table.len(), there.len());
                assert!(table.iter().all(|entry| entry.is_live()));
                continue;
            }
            let kept = first.filter(|_| matches!(mode, Modify(Kept) | CreateOrModify(Kept)));
            let entry = table.get(FlowId(1)).unwrap();
            assert_eq!(
                (table.len(), entry.stats(0).packets),
                (1, kept.unwrap_or(0) as u64)
            );
            let ended: Vec<_> = result.unwrap().iter().map(|entry| entry.flow.id.0).collect();
            let expected: Vec<_> = there
                .iter()
                .map(|flow| flow.id.0)
                .filter(|id| kept != Some(*id))
                .collect();
            assert_eq!(ended, expected, "{mode:?}");
        }
    }
}
