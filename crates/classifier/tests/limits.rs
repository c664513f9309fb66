//! What a hostile guest can and cannot do to look-ups, and what caches keep alive.

use classifier::{MegaflowTable, MicroflowCache, TableFull};
use flow::{Flow, FlowId, FlowKey, FlowMask, PortId, SwitchId};
use std::sync::Arc;

fn flow(id: u128, port: u32, mac: u64, mac_mask: u64) -> Flow {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
    key.set_in_port(port);
    key.set_eth_dst(mac);
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(mac_mask);
    Flow {
        id: FlowId(id),
        switch: SwitchId(0),
        key,
        mask,
        actions: Vec::new(),
    }
}

fn key(port: u32, mac: u64) -> FlowKey {
    flow(0, port, mac, 0).key
}

fn masks_tried(table: &MegaflowTable, key: &FlowKey) -> usize {
    let mut tried = 0;
    table.lookup_observed(key, &mut |_, _| tried += 1);
    tried
}

#[test]
fn a_port_with_many_masks_does_not_slow_another_one() {
    let mut table = MegaflowTable::new(1000, 40);
    table.insert(flow(1, 1, 0xabc, 0xfff)).unwrap();
    let before = (
        masks_tried(&table, &key(1, 0xabc)),
        masks_tried(&table, &key(1, 0)),
    );
    for bit in 0..40u32 {
        table
            .insert(flow(100 + u128::from(bit), 2, 1 << bit, 1 << bit))
            .unwrap();
    }
    let refused = table.insert(flow(200, 2, 1 << 41, 1 << 41));
    assert_eq!(
        refused.unwrap_err(),
        TableFull::Masks {
            in_port: Some(PortId(2)),
            limit: 40
        }
    );
    assert_eq!(masks_tried(&table, &key(2, 0)), 40);
    assert_eq!(
        (
            masks_tried(&table, &key(1, 0xabc)),
            masks_tried(&table, &key(1, 0))
        ),
        before
    );
    assert_eq!(before, (1, 1));
    // Another port still gets its masks, and the full one more flows of masks it has.
    table.insert(flow(201, 1, 1 << 41, 1 << 41)).unwrap();
    table.insert(flow(202, 2, 0, 1)).unwrap();
}

#[test]
fn a_full_table_refuses_new_flows_but_replaces_old_ones() {
    let mut table = MegaflowTable::new(2, 8);
    table.insert(flow(1, 1, 1, 0xff)).unwrap();
    table.insert(flow(2, 1, 2, 0xff)).unwrap();
    let refused = table.insert(flow(3, 1, 3, 0xff));
    assert_eq!(refused.unwrap_err(), TableFull::Flows { limit: 2 });
    assert!(table.lookup(&key(1, 3)).is_none());
    // The same identifier with other packets.
    assert_eq!(
        table
            .insert(flow(1, 1, 3, 0xff))
            .unwrap()
            .unwrap()
            .flow
            .key
            .eth_dst(),
        1
    );
    assert!(table.lookup(&key(1, 1)).is_none());
    // The same packets with another identifier.
    assert_eq!(
        table.insert(flow(4, 1, 3, 0xff)).unwrap().unwrap().flow.id,
        FlowId(1)
    );
    // Both at once: two flows become one.
    assert_eq!(
        table.insert(flow(4, 1, 2, 0xff)).unwrap().unwrap().flow.id,
        FlowId(4)
    );
    assert_eq!((table.len(), table.get(FlowId(2)).is_some()), (1, false));
    assert_eq!(table.lookup(&key(1, 2)).unwrap().flow.id, FlowId(4));
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
    assert_eq!(masks_tried(&table, &last), 20);
    for _ in 0..10 {
        table.lookup(&last).unwrap();
    }
    table.reorder();
    assert_eq!(masks_tried(&table, &last), 1);
}

#[test]
fn caches_let_go_of_ended_flows() {
    let mut table = MegaflowTable::default();
    let mut cache = MicroflowCache::default();
    for mac in 0..3 {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
        let entry = Arc::clone(table.lookup(&key(1, mac)).unwrap());
        cache.insert(&key(1, mac), &entry);
    }
    let ended: Vec<_> = (0..2).map(|id| table.remove(FlowId(id)).unwrap()).collect();
    assert_eq!(ended.iter().map(Arc::strong_count).collect::<Vec<_>>(), [2, 2]);
    assert!(cache.lookup(&key(1, 0)).is_none());
    assert_eq!(ended.iter().map(Arc::strong_count).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cache.purge_dead(), 1);
    assert_eq!(ended.iter().map(Arc::strong_count).collect::<Vec<_>>(), [1, 1]);
    assert!(cache.lookup(&key(1, 2)).is_some());
    // The table's end is its flows' end.
    drop(table);
    assert!(cache.lookup(&key(1, 2)).is_none());
}

#[test]
fn a_full_set_keeps_what_was_used_last_and_takes_the_place_of_the_dead() {
    let mut table = MegaflowTable::default();
    for mac in 0..4 {
        table.insert(flow(u128::from(mac), 1, mac, u64::MAX)).unwrap();
    }
    let entry = |mac| Arc::clone(table.lookup(&key(1, mac)).unwrap());
    // One set of two ways.
    let mut cache = MicroflowCache::new(2);
    cache.insert(&key(1, 0), &entry(0));
    cache.insert(&key(1, 1), &entry(1));
    assert!(cache.lookup(&key(1, 0)).is_some());
    cache.insert(&key(1, 2), &entry(2));
    assert!(cache.lookup(&key(1, 0)).is_some());
    assert!(cache.lookup(&key(1, 1)).is_none());
    assert!(cache.lookup(&key(1, 2)).is_some());
    let last = entry(3);
    // Used last, but ended.
    table.remove(FlowId(2)).unwrap();
    cache.insert(&key(1, 3), &last);
    assert!(cache.lookup(&key(1, 0)).is_some());
    assert!(cache.lookup(&key(1, 3)).is_some());
    assert_eq!(cache.len(), 2);
    cache.clear();
    assert!(cache.is_empty());
}

#[test]
fn the_default_cache_is_small() {
    let cache = MicroflowCache::default();
    let per_entry = size_of::<FlowKey>() + size_of::<usize>() + size_of::<u32>() + 1;
    assert!(cache.capacity() * per_entry < 1 << 20);
    assert_eq!(MicroflowCache::new(3).capacity(), 4);
}
