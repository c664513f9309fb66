//! What a P4 program costs per packet in the data plane: the pipeline of [`crate::cycles`], with both ports
//! bound. For development.
//!
//! `cargo test --release -p datapath --lib p4::cycles -- --ignored --nocapture`
//!
//! Frames of 64 bytes of 64 flows in turn, or `FLOWS`, in bursts of 32 or `BURST`, with verdicts kept and
//! without. One program alone, for a profiler:
//! `PROGRAM=router KEPT=0 BURSTS=200 valgrind --tool=callgrind --toggle-collect='*Scheduler*::step' ...`.

use super::version::Version;
use super::{Counts, P4Switch};
use crate::cycles::support::heavy_program;
use crate::cycles::{Guests, frame, pair, pair_from};
use crate::pipeline::Pipeline;
use crate::port::Port;
use crate::state::{Datapath, transmit_ring};
use ::placement::{Config, Costs, Policy, Topology};
use control_protocol::p4::{MAX_OPERATIONS, P4Attachment, P4Binding, USUAL_OPERATIONS};
use flow::{P4Id, PortId};
use p4_ir::setup::Setup;
use p4_stf::{bake, script};
use scheduler::{Placement, Scheduler};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const FRAME: usize = 64;
const FLOWS: u64 = 64;
const BURSTS: usize = 20_000;
const PREFIXES: u64 = 1_000;
pub(super) const P4: P4Id = P4Id(1);
const STAGE: P4Id = P4Id(9);

/// The program that does what [`LINKED`] do.
const ALL_IN_ONE: &str = "l2_firewall_router";

/// Programs in the order of their links, each by its port 2 with the next one's port 1.
const LINKED: [&str; 3] = ["l2_switch", "firewall", "router"];

/// A program as a stage before one that forwards.
const STAGED: [&str; 2] = ["firewall", "router"];

/// Entries of a program for all flows, as a script.
pub(super) fn entries(program: &str) -> String {
    let line = match program {
        "l2_switch" => of_switch,
        "firewall" => of_firewall,
        "router" => of_router,
        ALL_IN_ONE => of_all,
        other => panic!("no entries for {other}"),
    };
    let mut text: String = (0..FLOWS).map(line).collect();
    if ["firewall", ALL_IN_ONE].contains(&program) {
        for rule in 0..16 {
            let (network, port, priority) = (0xc0_a800 + rule, 8 * rule, rule + 1);
            let keys = format!("src:0x{network:x}** protocol:6 dst_port:{port}");
            writeln!(text, "add rules {priority} {keys} rule_deny()").unwrap();
        }
        for port in 10_000..10_100 {
            writeln!(text, "add services protocol:17 dst_port:{port} service_deny()").unwrap();
        }
    }
    if ["router", ALL_IN_ONE].contains(&program) {
        for prefix in 0..PREFIXES {
            let (network, hop) = (0x0a_0000 + prefix, prefix % FLOWS);
            writeln!(
                text,
                "add routes hdr.ipv4.dst:0x{network:06x}** via(next_hop_id:{hop})"
            )
            .unwrap();
        }
        text += "add port_mac std.egress_port:2 leave_as(mac:0x020000000402)\n";
    }
    text
}

fn of_switch(flow: u64) -> String {
    let (to, from) = (0x0200_0000_0200 + flow, 0x0200_0000_0100 + flow);
    format!(
        "add smac hdr.ethernet.src:{from} std.ingress_port:1 NoAction()\n\
         add dmac hdr.ethernet.dst:{to} forward(port:2)\n"
    )
}

fn of_firewall(flow: u64) -> String {
    let to = 0x0200_0000_0200 + flow;
    format!("add l2_forward hdr.ethernet.dst:{to} forward(port:2)\n")
}

fn of_router(flow: u64) -> String {
    let (to, next) = (0x0200_0000_0200 + flow, 0x0200_0000_0300 + flow);
    format!(
        "add router_mac std.ingress_port:1 hdr.ethernet.dst:{to} take()\n\
         add next_hops meta.next_hop_id:{flow} send(port:2, mac:{next})\n"
    )
}

fn of_all(flow: u64) -> String {
    let (to, from) = (0x0200_0000_0200 + flow, 0x0200_0000_0100 + flow);
    let next = 0x0200_0000_0300 + flow;
    format!(
        "add smac hdr.ethernet.src:{from} std.ingress_port:1 NoAction()\n\
         add dmac hdr.ethernet.dst:{to} to_router()\n\
         add next_hops meta.next_hop_id:{flow} send(port:2, mac:{next})\n"
    )
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs")
}

/// What the compiler wrote of a program.
pub(super) fn program_text(program: &str) -> String {
    let last = program.rsplit('/').next().unwrap();
    std::fs::read_to_string(folder().join(program).join(format!("{last}.json"))).unwrap()
}

/// A program with entries; `None` if it is refused.
fn version(program: &str, entries: &str) -> Option<Version> {
    let json = program_text(program);
    let commands = script::parse(entries).unwrap();
    let commands = commands.iter().map(|line| &line.command).collect::<Vec<_>>();
    let (baked, setup) = bake(p4_bmv2::load(json.as_bytes(), None).ok()?, commands, &[]).unwrap();
    Version::new(&p4_ir::setup::encode(&baked, &setup), USUAL_OPERATIONS, 1, None).ok()
}

/// The heavy program, which is refused unless its operations are allowed.
fn heavy() -> Version {
    let chain = folder().join("malicious/table_chain/table_chain.json");
    let chain = p4_bmv2::load(&std::fs::read(chain).unwrap(), None).unwrap();
    let bytes = p4_ir::setup::encode(&heavy_program::of_chain(chain), &Setup::default());
    let refused = Version::new(&bytes, USUAL_OPERATIONS, 1, None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains("operations of one pass: 6") && refused.ends_with("more than 32768"),
        "{refused}"
    );
    Version::new(&bytes, MAX_OPERATIONS, 1, None).unwrap()
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

pub(super) fn bind(datapath: &Datapath, ports: &[Arc<Port>; 2], version: Version) {
    bind_linked(datapath, ports, vec![version], None);
}

/// Binds the first port to the first program's port 1, the last one to the last program's port 2. `stage`
/// sees the first port's packets before.
fn bind_linked(datapath: &Datapath, ports: &[Arc<Port>; 2], versions: Vec<Version>, stage: Option<Version>) {
    let controller = PortId(1).controller();
    let last = P4Id(versions.len() as u32);
    let end = |switch, port| P4Binding { switch, port };
    datapath.change_p4(|table| {
        let stages: Vec<_> = stage.iter().map(|_| end(STAGE, 1)).collect();
        let numbers = (1..=last.0).chain([STAGE.0]);
        for (version, number) in versions.into_iter().chain(stage).zip(numbers) {
            let switch = P4Switch {
                version,
                tag: 0,
                counts: Arc::<Counts>::default(),
            };
            table
                .switches
                .insert((controller, P4Id(number)), Arc::new(switch));
        }
        let links = (1..last.0).map(|number| [end(P4Id(number), 2), end(P4Id(number + 1), 1)]);
        table.link(controller, &links.collect::<Vec<_>>()).unwrap();
        let at = |end| P4Attachment::bound(Some(end));
        let first = P4Attachment {
            stages,
            ..at(end(P4, 1))
        };
        table.attach(ports[0].id(), &first).unwrap();
        table.attach(ports[1].id(), &at(end(last, 2))).unwrap();
    });
    ports.iter().for_each(|port| port.vnic.set_programmed(true));
}

/// Nanoseconds per packet of a burst that little disturbed, which is the tenth percentile, and the median.
/// Unless verdicts are `kept`, the interpreter runs each packet.
fn measure(program: &str, kept: bool, burst: usize, bursts: usize) -> [f64; 2] {
    let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
    let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
    let (ports, mut guests) = pair(&datapath);
    let (stage, programs) = match program {
        "linked" => (None, &LINKED[..]),
        "staged" => (Some(STAGED[0]), &STAGED[1..]),
        _ => (None, &[program][..]),
    };
    let loaded = |program: &str| version(program, &entries(program)).unwrap();
    let versions = programs.iter().map(|program| loaded(program));
    bind_linked(&datapath, &ports, versions.collect(), stage.map(loaded));
    let mut scheduler = Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath));
    if !kept {
        let verdicts = &mut scheduler.rings.walk.verdicts;
        let numbers = (1..=programs.len() as u32).chain([STAGE.0]);
        let keys = numbers.map(|number| (PortId(1).controller(), P4Id(number)));
        keys.for_each(|key| verdicts.keep_none(key));
    }
    let flows = number("FLOWS", FLOWS as usize) as u64;
    guests.prepare_each((0..flows.clamp(1, FLOWS)).map(frame_of));
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

/// What a variable says.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
#[ignore = "a measurement"]
fn cycles() {
    let (burst, bursts) = (number("BURST", 32), number("BURSTS", BURSTS));
    let wanted = std::env::var("PROGRAM").ok();
    let wanted_kept = std::env::var("KEPT").ok().map(|kept| kept != "0");
    println!("program            verdicts burst  ns/packet  median, ns  million packets/s");
    for program in LINKED.into_iter().chain([ALL_IN_ONE, "linked", "staged"]) {
        for (kept, label) in [(true, "kept"), (false, "none")] {
            if wanted.as_ref().is_some_and(|wanted| wanted != program)
                || wanted_kept.is_some_and(|wanted| wanted != kept)
            {
                continue;
            }
            let [ns, median] = measure(program, kept, burst, bursts);
            let rate = 1000.0 / median;
            println!("{program:18} {label:8} {burst:5} {ns:10.1} {median:11.1} {rate:18.2}");
        }
    }
}

/// When guests beside a program send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    /// As fast as rings take it, which are never empty.
    Always,
    /// A burst, a moment after the last one has arrived.
    WhenArrived,
}

/// Time from a burst's arrival to the next one, in nanoseconds.
const THINKS_NS: u64 = 5_000;

/// Ports of a program whose rings are never empty, beside a port of a guest that sends: packets per second
/// that the second one has through the switch's flow.
fn rate_beside(version: Option<Version>, sends: Sends, packets: u64) -> f64 {
    let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
    let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
    let (ports, mut tenants) = pair(&datapath);
    let (_, mut others) = pair_from(&datapath, &ports[0].switch, 3);
    let is_attacked = version.is_some();
    version
        .into_iter()
        .for_each(|version| bind(&datapath, &ports, version));
    let mut scheduler = Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath));
    tenants.prepare_each(std::iter::once([&[0x45; FRAME][..]].concat()));
    others.prepare(FRAME);
    let (mut arrived, mut taken, mut sent, mut next_ns) = (0, 0, 0, 0);
    while arrived < packets {
        if sends == Sends::Always {
            arrived += others.fill_up();
            scheduler.schedule.later(transmit_ring(PortId(3)));
        } else if sent == arrived && taken >= next_ns {
            others.send(32, || None);
            sent += 32;
            scheduler.schedule.later(transmit_ring(PortId(3)));
        }
        if is_attacked {
            if tenants.sender.transmit.used_index() == tenants.sender.transmit.next {
                tenants.fill_up();
            }
            scheduler.schedule.later(transmit_ring(PortId(1)));
        }
        let start = cpu::now_ns();
        scheduler.step();
        // Without a packet, time passes as well.
        taken += (cpu::now_ns() - start).max(200);
        if sends == Sends::WhenArrived {
            let before = arrived;
            arrived += others.take_arrived();
            if arrived > before {
                next_ns = taken + THINKS_NS;
            }
        }
    }
    arrived as f64 / taken as f64 * 1e9
}

/// The part of its packets per second that a port keeps beside a program; `None` if that is refused.
fn kept_beside(program: &str, sends: Sends, packets: u64) -> Option<f64> {
    let alone = rate_beside(None, sends, packets);
    let version = match program {
        "heavy" => heavy(),
        program => version(program, "")?,
    };
    Some(rate_beside(Some(version), sends, packets) / alone)
}

fn malicious() -> Vec<String> {
    let names = std::fs::read_dir(folder().join("malicious")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.map(|name| format!("malicious/{name}")).collect();
    names.sort();
    names
}

#[test]
#[ignore = "a measurement"]
fn kept() {
    println!("program, and what another port keeps of its packets per second");
    for program in malicious().into_iter().chain(["heavy".into()]) {
        for sends in [Sends::Always, Sends::WhenArrived] {
            match kept_beside(&program, sends, 3_000_000) {
                Some(kept) => println!("{program:32} {sends:?} {kept:5.2}"),
                None => println!("{program:32} refused"),
            }
        }
    }
}

/// Without their share these programs leave it 0.05 to 0.15, and the heavy one hardly any.
#[test]
fn others_keep_their_packets_beside_the_worst_programs() {
    for program in [
        "digest_per_packet",
        "metadata_4k",
        "parser_stack_loop",
        "recirculate_always",
        "heavy",
    ] {
        let program = match program {
            "heavy" => program.to_owned(),
            program => format!("malicious/{program}"),
        };
        for sends in [Sends::Always, Sends::WhenArrived] {
            let kept = || kept_beside(&program, sends, 30_000).unwrap();
            // Other programs on the machine take time from either measurement.
            let kept = (0..5).map(|_| kept()).fold(0.0, f64::max);
            assert!(kept > 0.3, "{program} leaves {kept:.2} of what is sent {sends:?}");
        }
    }
}
