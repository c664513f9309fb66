//! Caches compare what makes a difference to flows, and nothing else.

use classifier::{Decision, FlowEntry, MegaflowTable, MicroflowCache, PortFlows, Train};
use flow::{ExactKey, Flow, FlowId, FlowKey, FlowMask, PortId, Stage, SwitchId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PORT: u32 = 1;

fn key(mac: u64, transport: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(PORT);
    key.set_eth_dst(mac);
    key.set_tp_dst(transport);
    key
}

/// A flow for this key, as far as the masks have its input port, address and transport port.
fn flow(id: u128, key: FlowKey, [port, mac, transport]: [bool; 3]) -> Flow {
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(if port { u32::MAX } else { 0 });
    mask.0.set_eth_dst(if mac { u64::MAX } else { 0 });
    mask.0.set_tp_dst(if transport { u16::MAX } else { 0 });
    Flow::new(FlowId(id), SwitchId(0), key, mask, Vec::new())
}

/// Whether packets of two transport ports are told apart.
fn tells_apart(flows: &PortFlows) -> bool {
    let [one, other] = [1, 2].map(|transport| ExactKey::of(&key(1, transport)));
    !one.is_equal_in(&other, flows.mask_union(&one))
}

#[test]
fn what_no_flow_looks_at_makes_no_difference() {
    let mut table = MegaflowTable::default();
    let flows = table.port(PortId(PORT));
    assert!(!tells_apart(&flows), "there are none");
    table.insert(flow(1, key(1, 0), [true, true, false])).unwrap();
    assert!(!tells_apart(&flows));
    table.insert(flow(2, key(2, 7), [true, true, true])).unwrap();
    assert!(tells_apart(&flows));
    table.insert(flow(3, key(2, 8), [true, true, true])).unwrap();
    table.remove(FlowId(2)).unwrap();
    assert!(tells_apart(&flows), "another flow has that mask");
    table.remove(FlowId(3)).unwrap();
    assert!(!tells_apart(&flows));
    table.insert(flow(4, key(2, 7), [true, true, true])).unwrap();
    table.flush();
    assert!(!tells_apart(&flows));
}

#[test]
fn a_filter_of_the_port_looks_at_its_packets_whatever_else_goes() {
    let mut table = MegaflowTable::default();
    let flows = table.port(PortId(PORT));
    let mut filter = flow(1, key(1, 7), [true, true, true]);
    filter.stage = Stage::Ingress(0);
    table.insert(filter).unwrap();
    table.insert(flow(2, key(1, 0), [true, true, false])).unwrap();
    table.remove(FlowId(2)).unwrap();
    assert!(tells_apart(&flows));
    table.remove(FlowId(1)).unwrap();
    assert!(!tells_apart(&flows));
}

#[test]
fn flows_for_any_port_look_at_all_ports() {
    let mut table = MegaflowTable::default();
    let before = table.port(PortId(PORT));
    table.insert(flow(1, key(0, 7), [false, false, true])).unwrap();
    let after = table.port(PortId(PORT + 1));
    assert!(tells_apart(&before) && tells_apart(&after));
    table.insert(flow(2, key(1, 0), [true, true, false])).unwrap();
    table.remove(FlowId(2)).unwrap();
    assert!(tells_apart(&before), "those of the port itself went");
    table.remove(FlowId(1)).unwrap();
    assert!(!tells_apart(&before) && !tells_apart(&after));
    // A number that no port has.
    let nobody = table.port(PortId(PortId::LIMIT));
    let mask = nobody.mask_union(&ExactKey::default());
    assert!((0..ExactKey::WORDS).all(|word| mask(word) == u64::MAX));
}

/// Packets of all kinds while flows come and go whose masks differ: what the cache finds matches, or has ended meanwhile.
#[test]
fn entries_are_right_while_masks_come_and_go() {
    const KINDS: [[bool; 3]; 4] = [
        [true, true, false],
        [true, false, true],
        [true, true, true],
        [false, false, true],
    ];
    let mut table = MegaflowTable::default();
    let flows = table.port(PortId(PORT));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut cache, mut hits) = (MicroflowCache::new(64), 0u64);
            let mut entries: HashMap<*const Decision, Arc<FlowEntry>> = HashMap::new();
            while !ended.load(Ordering::Relaxed) {
                for number in 0..16 {
                    let key = key(number / 4, number as u16 % 4);
                    let exact = ExactKey::of(&key);
                    let mask = flows.mask_union(&exact);
                    let hash = cache.hash(&exact, mask);
                    if let Some(decision) = cache.hit(hash, &exact, mask, &Train::default()) {
                        let entry = &entries[&Arc::as_ptr(decision)];
                        assert_eq!(key.masked(&entry.flow.mask), entry.flow.key);
                        hits += 1;
                        continue;
                    }
                    let reading = flows.read();
                    let mask = flows.mask_union(&exact);
                    if let Some(entry) = reading.lookup(&key) {
                        cache.insert(cache.hash(&exact, mask), &exact, mask, &entry.decision, 0);
                        entries.insert(Arc::as_ptr(&entry.decision), Arc::clone(entry));
                    }
                }
            }
            hits
        });
        let end = Instant::now() + Duration::from_millis(500);
        let mut changes = 0u64;
        while Instant::now() < end {
            for (id, kind) in KINDS.into_iter().enumerate() {
                let id = id as u128;
                if (changes >> id).is_multiple_of(3) {
                    table.remove(FlowId(id));
                } else {
                    let key = key(changes >> 4 & 3, (changes >> 6 & 3) as u16);
                    table.insert(flow(id, key, kind)).unwrap();
                }
            }
            changes += 1;
        }
        ended.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 100, "the cache was of use");
    });
}
