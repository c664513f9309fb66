//! Caches compare what makes a difference to flows, and nothing else.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{Decision, FlowEntry, Hint, MegaflowTable, MicroflowCache, PortFlows, Train, Walker};
use flow::{
    Action, Context, ExactKey, Filters, Flow, FlowId, FlowKey, FlowMask, PortId, Stage, SwitchId, Unseen,
};
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

/// A worker's cache and walks, without packets.
struct Worker {
    flows: PortFlows,
    cache: MicroflowCache,
    walker: Walker,
}

impl Worker {
    fn new(flows: PortFlows) -> Worker {
        Worker {
            flows,
            cache: MicroflowCache::new(4096),
            walker: Walker::default(),
        }
    }

    /// Deals with a packet, and returns whether it had to be walked.
    fn walks(&mut self, key: &FlowKey) -> bool {
        let exact = ExactKey::of(key);
        let mask = self.flows.mask_union(&exact);
        let (hash, train) = (self.cache.hash(&exact, mask), Train::default());
        if self.cache.hit(hash, &exact, mask, &train).is_some() {
            return false;
        }
        let further = self.cache.further(hash, &exact, mask, false);
        if further.is_some_and(|mask| self.cache.hit_behind(&exact, mask, &train).is_some()) {
            return false;
        }
        let reading = self.flows.read();
        let walked = reading.walk(Hint::default(), key, &Context::NONE, &mut self.walker);
        let decision = walked.decision().expect("a composed walk");
        let mask = self.flows.mask_union(&exact);
        self.cache.remember(&exact, mask, decision, 0);
        true
    }
}

/// Flows to two ports by address. One port has an egress filter, which drops what goes to one transport port.
fn filtered() -> MegaflowTable {
    let mut table = MegaflowTable::default();
    for port in [2, 3] {
        let mut flow = flow(port, key(port as u64, 0), [true, true, false]);
        flow.actions = vec![Action::Output(PortId(port as u32))];
        table.insert(flow).unwrap();
    }
    table.set_filters(PortId(3), Filters::of_flows(0, 1));
    for (id, transport, actions) in [(4, 7, Vec::new()), (5, 8, vec![Action::Continue])] {
        let filter = Flow {
            stage: Stage::Egress(PortId(3), 0),
            actions,
            ..flow(id, key(0, transport), [false, false, true])
        };
        table.insert(filter).unwrap();
    }
    table
}

/// One tenant's filters must not make all others' packets cost more.
#[test]
fn what_an_egress_filter_compares_tells_packets_to_its_port_apart_and_no_others() {
    let mut table = filtered();
    let mut worker = Worker::new(table.port(PortId(PORT)));
    assert!(!tells_apart(&worker.flows));
    assert!(
        worker.flows.may_look_at(Unseen::Transport),
        "what is hidden from the filter is looked for"
    );
    let walks = |worker: &mut Worker| {
        [(2, 7), (2, 8), (3, 7), (3, 8), (3, 7), (3, 8)].map(|(mac, to)| worker.walks(&key(mac, to)))
    };
    assert_eq!(walks(&mut worker), [true, false, true, true, false, false]);
    assert_eq!(walks(&mut worker), [false; 6]);
    // What ends with one flow of the filter is found again.
    table.remove(FlowId(4)).unwrap();
    let open = Flow {
        stage: Stage::Egress(PortId(3), 0),
        actions: vec![Action::Continue],
        ..flow(6, key(0, 7), [false, false, true])
    };
    table.insert(open).unwrap();
    assert!(!worker.walks(&key(2, 7)), "that was about another port");
    assert!(worker.walks(&key(3, 7)));
    assert_eq!(walks(&mut worker), [false; 6]);
    // Without the filter they are alike again.
    table.set_filters(PortId(3), Filters::default());
    assert_eq!(walks(&mut worker), [false, false, true, false, false, false]);
}

/// A second look would find no packets alike.
#[test]
fn where_connections_are_told_apart_all_is_compared_at_once() {
    let mut table = filtered();
    let flows = table.port(PortId(PORT));
    let compares_source = |flows: &PortFlows| {
        let mut other = key(1, 1);
        other.set_eth_src(1);
        let [one, other] = [key(1, 1), other].map(|key| ExactKey::of(&key));
        !one.is_equal_in(&other, flows.mask_union(&one))
    };
    let filter = |id, mut bits: Flow| {
        bits.id = FlowId(id);
        bits.stage = Stage::Egress(PortId(3), 0);
        bits.mask.0.set_eth_src(u64::MAX);
        bits
    };
    table.insert(filter(7, flow(7, key(0, 0), [false; 3]))).unwrap();
    assert!(!compares_source(&flows));
    let mut connection = flow(8, key(9, 9), [true, true, true]);
    connection.mask.0.set_tp_src(u16::MAX);
    table.insert(connection).unwrap();
    assert!(compares_source(&flows));
    table
        .insert(filter(9, flow(9, key(0, 0), [true, false, true])))
        .unwrap();
    table.remove(FlowId(8)).unwrap();
    assert!(!compares_source(&flows) && !tells_apart(&flows));
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

/// Packets of all kinds while flows come and go whose masks differ: what the cache finds matches, or has
/// ended meanwhile.
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
