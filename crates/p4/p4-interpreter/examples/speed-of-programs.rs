//! Packets per second that one thread runs through programs of the project.
//!
//! `cargo run --release -p p4-interpreter --example speed-of-programs`. Packets of 64 bytes from 64 flows in
//! turn, bursts of 32, tables with some entries. Each program runs for about half a second of processor time;
//! the best of five parts is printed. Time is the thread's own, so that other work on the machine disturbs
//! little.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Bench, Key, udp};
use p4_interpreter::{Context, NoObserver, Output, Packet, Sink};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Counts packets that leave.
#[derive(Default)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl Sink for Count {
    fn output(&mut self, output: &Output<'_>) {
        self.packets += 1;
        self.bytes += output.len() as u64;
    }
}

/// A program with entries, and packets for it.
type Prepared = (Bench, Vec<Vec<u8>>);

const FLOWS: u64 = 64;
const BURST: usize = 32;

fn l2_switch() -> Prepared {
    let bench = Bench::new("l2_switch");
    for flow in 0..FLOWS {
        bench.add(
            "smac",
            &[Key::Is(0x0200_0000_0100 + flow), Key::Is(1)],
            "NoAction",
            &[],
        );
        bench.add(
            "dmac",
            &[Key::Is(0x0200_0000_0200 + flow)],
            "forward",
            &[2 + flow % 4],
        );
    }
    (bench, packets())
}

fn firewall() -> Prepared {
    let bench = Bench::new("firewall");
    for flow in 0..FLOWS {
        bench.add(
            "l2_forward",
            &[Key::Is(0x0200_0000_0200 + flow)],
            "forward",
            &[2 + flow % 4],
        );
    }
    for rule in 0..16_u64 {
        let network = Key::Masked(0xC0A8_0000 + (rule << 8), 0xFFFF_FF00);
        let port = Key::Masked(rule * 8, 0xFFF8);
        let keys = [network, Key::Any, Key::Is(6), Key::Any, port];
        bench.add_with_priority("rules", 1 + rule as u32, &keys, "rule_deny", &[]);
    }
    for port in 0..100 {
        bench.add(
            "services",
            &[Key::Is(17), Key::Is(10_000 + port)],
            "service_deny",
            &[],
        );
    }
    (bench, packets())
}

fn router() -> Prepared {
    let bench = Bench::new("router");
    for flow in 0..FLOWS {
        bench.add(
            "router_mac",
            &[Key::Is(1), Key::Is(0x0200_0000_0200 + flow)],
            "take",
            &[],
        );
        bench.add(
            "routes",
            &[Key::Prefix(0x0A00_0000 + (flow << 8), 24)],
            "via",
            &[flow],
        );
        bench.add(
            "next_hops",
            &[Key::Is(flow)],
            "send",
            &[2 + flow % 4, 0x0200_0000_0300 + flow],
        );
    }
    for port in 2..6 {
        bench.add(
            "port_mac",
            &[Key::Is(port)],
            "leave_as",
            &[0x0200_0000_0400 + port],
        );
    }
    (bench, packets())
}

fn kitchen_sink() -> Prepared {
    let bench = Bench::new("kitchen_sink");
    for flow in 0..FLOWS {
        bench.add(
            "forward",
            &[Key::Is(0x0200_0000_0200 + flow)],
            "to_port",
            &[2 + flow % 4],
        );
        bench.add(
            "prefixes",
            &[Key::Prefix(0x0A00_0000 + (flow << 8), 24)],
            "set_class",
            &[flow],
        );
    }
    for flow in 0..FLOWS / 4 {
        bench.add(
            "senders",
            &[Key::Is(0x0200_0000_0100 + flow)],
            "stamp",
            &[0x0200_0000_0500 + flow],
        );
    }
    bench.add("patterns", &[Key::Any, Key::Is(0x0800)], "measure", &[]);
    (bench, packets())
}

fn packets() -> Vec<Vec<u8>> {
    let packet = |flow: u64| {
        let (to, from) = (0x0200_0000_0200 + flow, 0x0200_0000_0100 + flow);
        let destination = 0x0A00_0001 + ((flow as u32) << 8);
        udp(
            to,
            from,
            0x0A01_0000 + flow as u32,
            destination,
            (1000 + flow as u16, 2000),
            64,
        )
    };
    (0..FLOWS).map(packet).collect()
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn measure(name: &str, (bench, packets): Prepared) {
    let mut context = Context::new(&bench.engine, 1);
    let mut sink = Count::default();
    let mut now = 0;
    let mut sent = 0_u64;
    let mut part = |length: Duration| {
        let begin = processor_time();
        let before = sent;
        while processor_time() - begin < length {
            for burst in packets
                .iter()
                .cycle()
                .take(16 * packets.len())
                .collect::<Vec<_>>()
                .chunks(BURST)
            {
                let guard = bench.state.read();
                now += 10_000;
                for packet in burst {
                    let packet = Packet::whole(1, packet);
                    bench
                        .engine
                        .run(&guard, &mut context, &packet, now, &mut sink, &mut NoObserver);
                }
                sent += burst.len() as u64;
            }
        }
        (sent - before) as f64 / (processor_time() - begin).as_secs_f64()
    };
    part(Duration::from_millis(100));
    let best = (0..5)
        .map(|_| part(Duration::from_millis(100)))
        .fold(0.0, f64::max);
    let left = sink.packets as f64 / sent as f64 * 100.0;
    println!(
        "{name:14} {:6.2} million packets/s  {:6.0} ns  {left:3.0} % left",
        best / 1e6,
        1e9 / best
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    type Make = fn() -> Prepared;
    let all: [(&str, Make); 4] = [
        ("l2_switch", l2_switch),
        ("firewall", firewall),
        ("router", router),
        ("kitchen_sink", kitchen_sink),
    ];
    for (name, make) in all {
        if wanted.is_empty() || wanted.iter().any(|other| other == name) {
            measure(name, make());
        }
    }
}
