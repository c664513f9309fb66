//! What a P4 program costs per packet in the data plane: the pipeline of [`crate::cycles`], with both ports
//! bound. For development.
//!
//! `cargo test --release -p datapath --lib p4::cycles -- --ignored --nocapture`
//!
//! Frames of 64 bytes of 64 flows in turn, in bursts of 32 or `BURST`. One program alone, for a profiler:
//! `PROGRAM=router BURSTS=200 valgrind --tool=callgrind --toggle-collect='*Scheduler*::step' ...`.

use super::version::Version;
use super::{Counts, P4Switch};
use crate::cycles::{Guests, frame, pair};
use crate::pipeline::Pipeline;
use crate::port::Port;
use crate::state::{Datapath, transmit_ring};
use ::placement::{Config, Costs, Policy, Topology};
use control_protocol::p4::P4Binding;
use flow::{P4Id, PortId};
use p4_stf::{bake, script};
use scheduler::{Placement, Scheduler};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const FRAME: usize = 64;
const FLOWS: u64 = 64;
const BURSTS: usize = 20_000;
const PREFIXES: u64 = 1_000;
const P4: P4Id = P4Id(1);

/// Entries of a program for all flows, as a script.
fn entries(program: &str) -> String {
    let mut text = String::new();
    match program {
        "l2_switch" => {
            for flow in 0..FLOWS {
                let (to, from) = (0x0200_0000_0200 + flow, 0x0200_0000_0100 + flow);
                writeln!(
                    text,
                    "add smac hdr.ethernet.src:{from} std.ingress_port:1 NoAction()"
                )
                .unwrap();
                writeln!(text, "add dmac hdr.ethernet.dst:{to} forward(port:2)").unwrap();
            }
        }
        "firewall" => {
            for flow in 0..FLOWS {
                let to = 0x0200_0000_0200 + flow;
                writeln!(text, "add l2_forward hdr.ethernet.dst:{to} forward(port:2)").unwrap();
            }
            for rule in 0..16 {
                let (network, port) = (0xc0_a800 + rule, 8 * rule);
                writeln!(
                    text,
                    "add rules {} src:0x{network:x}** protocol:6 dst_port:{port} rule_deny()",
                    rule + 1
                )
                .unwrap();
            }
            for port in 0..100 {
                writeln!(
                    text,
                    "add services protocol:17 dst_port:{} service_deny()",
                    10_000 + port
                )
                .unwrap();
            }
        }
        "router" => {
            for prefix in 0..PREFIXES {
                let (network, hop) = (0x0a_0000 + prefix, prefix % FLOWS);
                writeln!(
                    text,
                    "add routes hdr.ipv4.dst:0x{network:06x}** via(next_hop_id:{hop})"
                )
                .unwrap();
            }
            for flow in 0..FLOWS {
                let (to, next) = (0x0200_0000_0200 + flow, 0x0200_0000_0300 + flow);
                writeln!(
                    text,
                    "add router_mac std.ingress_port:1 hdr.ethernet.dst:{to} take()"
                )
                .unwrap();
                writeln!(
                    text,
                    "add next_hops meta.next_hop_id:{flow} send(port:2, mac:{next})"
                )
                .unwrap();
            }
            text += "add port_mac std.egress_port:2 leave_as(mac:0x020000000402)\n";
        }
        other => panic!("no entries for {other}"),
    }
    text
}

fn version(program: &str) -> Version {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    let json = std::fs::read(folder.join(program).join(format!("{program}.json"))).unwrap();
    let commands = script::parse(&entries(program)).unwrap();
    let commands = commands.iter().map(|line| &line.command).collect::<Vec<_>>();
    let (baked, setup) = bake(p4_bmv2::load(&json, None).unwrap(), commands, &[]).unwrap();
    Version::new(&p4_ir::setup::encode(&baked, &setup), 1).unwrap()
}

/// A frame of a flow that every program sends to port 2.
fn frame_of(flow: u64) -> Vec<u8> {
    let mut bytes = frame(FRAME, 1000 + flow as u16);
    bytes[..6].copy_from_slice(&(0x0200_0000_0200 + flow).to_be_bytes()[2..]);
    bytes[6..12].copy_from_slice(&(0x0200_0000_0100 + flow).to_be_bytes()[2..]);
    bytes[30..34].copy_from_slice(&(0x0a00_0001 + ((flow as u32) << 8)).to_be_bytes());
    let sum = p4_interpreter::hash::Algorithm::Csum16.hash(&bytes[14..34]) as u16;
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn bind(datapath: &Datapath, ports: &[Arc<Port>; 2], version: Version) {
    datapath.change_p4(|table| {
        let switch = P4Switch {
            version,
            tag: 0,
            counts: Arc::<Counts>::default(),
        };
        let controller = PortId(1).controller();
        table.switches.insert((controller, P4), Arc::new(switch));
        for (port, place) in ports.iter().zip(1..) {
            let binding = Some(P4Binding {
                switch: P4,
                port: place,
            });
            table.bind(port.id(), binding).unwrap();
        }
    });
    ports.iter().for_each(|port| port.vnic.set_programmed(true));
}

/// Nanoseconds per packet of a burst that little disturbed, which is the tenth percentile, and the median.
fn measure(program: &str, burst: usize, bursts: usize) -> [f64; 2] {
    let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
    let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
    let (ports, mut guests) = pair(&datapath);
    bind(&datapath, &ports, version(program));
    let mut scheduler = Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath));
    guests.prepare_each((0..FLOWS).map(frame_of));
    let mut times = Vec::with_capacity(bursts);
    for _ in 0..bursts {
        times.push(forward(&mut scheduler, &mut guests, burst));
    }
    times.sort_unstable();
    [1, 5].map(|tenths| times[bursts * tenths / 10] as f64 / burst as f64)
}

fn forward(scheduler: &mut Scheduler<Pipeline>, guests: &mut Guests, burst: usize) -> u128 {
    guests.send(burst, || None);
    scheduler.schedule.later(transmit_ring(PortId(1)));
    let start = Instant::now();
    while scheduler.step() {}
    let taken = start.elapsed().as_nanos();
    guests.collect(FRAME, burst);
    taken
}

#[test]
#[ignore = "a measurement"]
fn cycles() {
    let number = |name, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (burst, bursts) = (number("BURST", 32), number("BURSTS", BURSTS));
    let wanted = std::env::var("PROGRAM").ok();
    println!("program    burst  ns/packet  median, ns  million packets/s");
    for program in ["l2_switch", "firewall", "router"] {
        if wanted.as_ref().is_none_or(|wanted| wanted == program) {
            let [ns, median] = measure(program, burst, bursts);
            println!(
                "{program:10} {burst:5} {ns:10.1} {median:11.1} {:18.2}",
                1000.0 / median
            );
        }
    }
}
