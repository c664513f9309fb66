//! Look-ups allocate nothing, in either table, whether they find something or not.

#![allow(clippy::unwrap_used, reason = "tests")]

use allocation_counter::measure;
use classifier::{MegaflowTable, MicroflowCache, Train};
use flow::{ExactKey, Flow, FlowId, FlowKey, FlowMask, PortId, Stage, SwitchId};
use std::sync::Arc;

fn key(port: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_tp_dst(port);
    key
}

fn mask(bit: u32) -> FlowMask {
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_ip_src(1 << bit);
    mask.0.set_tp_dst(u16::MAX);
    mask
}

#[test]
fn look_ups_allocate_nothing() {
    let mut table = MegaflowTable::default();
    for number in 0..20 {
        let flow = Flow {
            id: FlowId(number.into()),
            switch: SwitchId(1),
            stage: Stage::Forward,
            context: None,
            key: key(number),
            mask: mask(number.into()),
            actions: Vec::new(),
        };
        table.insert(flow).unwrap();
    }
    let flows = table.port(PortId(1));
    let mut cache = MicroflowCache::default();
    let entry = Arc::clone(table.get(FlowId(3)).unwrap());
    let exact = ExactKey::of(&key(3));
    let mask = flows.mask_union(&exact);
    let hash = cache.hash(&exact, mask);
    cache.insert(hash, &exact, mask, &entry.decision, 0);
    let mut found = 0;
    let info = measure(|| {
        for _ in 0..100 {
            let reading = flows.read();
            found += (0..40)
                .filter(|&port| reading.lookup(&key(port)).is_some())
                .count();
            found += usize::from(
                cache
                    .hit(cache.hash(&exact, mask), &exact, mask, &Train::default())
                    .is_some(),
            );
            cache.insert(hash, &exact, mask, &entry.decision, 1);
            cache.flush_stats(1);
        }
    });
    assert_eq!(found, 100 * 21);
    assert_eq!(info.count_total, 0, "{info:?}");
}
