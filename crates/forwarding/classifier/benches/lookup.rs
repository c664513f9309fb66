//! What a look-up in the megaflow table costs: a subtable that does not match, by the layer at which the
//! packet differs, and one that does. `cargo bench -p classifier` prints nanoseconds; there is nothing that
//! could fail.

#![allow(clippy::unwrap_used, missing_docs, reason = "a measurement")]

use classifier::{MegaflowTable, PortFlows};
use flow::{Flow, FlowId, FlowKey, FlowMask, PortId, Stage, SwitchId};
use std::hint::black_box;
use std::time::Instant;

const PORT: u32 = 1;
const MASKS: u32 = 64;
const ROUNDS: usize = 41;
const LOOKUPS: usize = 2_000;

/// Masks as a control plane makes them for connections: all layers, and another prefix of the source each
/// time.
fn mask(number: u32) -> FlowMask {
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(u64::MAX);
    mask.0.set_eth_type(u16::MAX);
    mask.0.set_eth_src(u64::MAX << (number / 32));
    mask.0.set_ip_proto(u8::MAX);
    mask.0.set_ip_src(u128::from(u32::MAX << (number % 32)));
    mask.0.set_ip_dst(u32::MAX.into());
    mask.0.set_tp_dst(u16::MAX);
    mask
}

/// A packet of which layers 2, 3 and 4 are as numbered.
fn key(ethernet: u64, ip: u32, transport: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(PORT);
    key.set_eth_dst(0x0200_0000_0000 + ethernet);
    key.set_eth_src(0x0200_0000_1000);
    key.set_eth_type(0x0800);
    key.set_ip_proto(6);
    key.set_ip_src(0x0a00_0000 + u128::from(ip));
    key.set_ip_dst(0x0a01_0000 + u128::from(ip));
    key.set_tp_dst(transport);
    key
}

fn table(flows_per_mask: u32) -> MegaflowTable {
    let mut table = MegaflowTable::default();
    for number in 0..MASKS {
        for flow in 0..flows_per_mask {
            let flow = Flow {
                id: FlowId(u128::from(number * flows_per_mask + flow)),
                switch: SwitchId(1),
                stage: Stage::Forward,
                context: None,
                key: key(0, 0, flow as u16 % 1000),
                mask: mask(number),
                actions: Vec::new(),
            };
            table.insert(flow).unwrap();
        }
    }
    table
}

/// Median nanoseconds of a look-up.
fn measure(flows: &PortFlows, key: FlowKey) -> f64 {
    let flows = flows.read();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..LOOKUPS {
                black_box(flows.lookup(black_box(&key)));
            }
            start.elapsed().as_nanos() as f64 / LOOKUPS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    println!(
        "{MASKS} masks; ns per subtable that does not match, and ns of a look-up that finds its flow in the first"
    );
    for flows_per_mask in [1, 1000] {
        let flows = table(flows_per_mask).port(PortId(PORT));
        let each = |key| measure(&flows, key) / f64::from(MASKS);
        println!(
            "  {flows_per_mask:>4} flows each: layer 2 {:.2}, layer 3 {:.2}, layer 4 {:.2}; found {:.1}",
            each(key(1, 0, 0)),
            each(key(0, 1 << 31, 0)),
            each(key(0, 0, 5000)),
            measure(&flows, key(0, 0, 0)),
        );
    }
}
