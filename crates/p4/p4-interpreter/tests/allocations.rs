//! Packets cost no allocation.

mod common;

use common::{Bench, Key, udp};
use p4_interpreter::{CloneSession, Context, NoObserver, Output, Packet, Replica, Sink};
use std::sync::Arc;

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn output(&mut self, output: &Output<'_>) {
        self.0 += output.len() as u64;
    }
}

/// Allocations of a hundred packets after the first ones.
fn allocations(bench: &Bench, packets: &[Vec<u8>]) -> u64 {
    let mut context = Context::new(&bench.engine, 1);
    let mut sink = Count::default();
    let mut now = 0;
    let mut run = |count: usize| {
        for packet in packets.iter().cycle().take(count) {
            now += 1000;
            let packet = Packet::whole(1, packet);
            bench.engine.run(
                &bench.state.read(),
                &mut context,
                &packet,
                now,
                &mut sink,
                &mut NoObserver,
            );
        }
    };
    run(packets.len());
    let info = allocation_counter::measure(|| run(100));
    info.count_total
}

/// An operation of the program `kitchen_sink`: see its source.
fn operation(op: u8, number: u16, data: u32) -> Vec<u8> {
    let mut packet = udp(2, 1, 0, 0, (0, 0), 80);
    packet[12..14].copy_from_slice(&[0x88, 0xB5]);
    packet[14..16].copy_from_slice(&[op, 0]);
    packet[16..18].copy_from_slice(&number.to_be_bytes());
    packet[18..22].copy_from_slice(&data.to_be_bytes());
    packet
}

#[test]
fn forwarding_allocates_nothing() {
    let router = Bench::new("router");
    router.add("router_mac", &[Key::Is(1), Key::Is(2)], "take", &[]);
    router.add("routes", &[Key::Prefix(0x0A00_0000, 8)], "via", &[1]);
    router.add("next_hops", &[Key::Is(1)], "send", &[2, 3]);
    let packets = [
        udp(2, 1, 1, 0x0A01_0203, (1, 2), 64),
        udp(2, 1, 1, 0x0B01_0203, (1, 2), 1500),
    ];
    assert_eq!(allocations(&router, &packets), 0);
}

/// Every operation of `kitchen_sink`: hashes, registers, digests, clones, further passes, replicas.
#[test]
fn operations_allocate_nothing() {
    let bench = Bench::new("kitchen_sink");
    bench.add("forward", &[Key::Is(2)], "to_port", &[2]);
    let replicas: Arc<[Replica]> = [Replica { port: 6, rid: 1 }, Replica { port: 7, rid: 2 }].into();
    bench
        .state
        .set_session(
            5,
            CloneSession {
                replicas: replicas.clone(),
                ..CloneSession::default()
            },
        )
        .unwrap();
    bench.state.set_group(3, &replicas).unwrap();
    for op in 1..=22 {
        let packets = [operation(op, 3, 0x1234_5678)];
        assert_eq!(allocations(&bench, &packets), 0, "operation {op}");
    }
}
