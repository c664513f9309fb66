//! How long a forwarding thread stands still while another one changes the entries of a program. For
//! development.
//!
//! `cargo test --release -p datapath --lib p4::stands_still -- --ignored --nocapture`
//!
//! The thread forwards bursts of others, one by one. The time of a burst without the thread's core is told
//! apart: on a machine with few cores the kernel gives some of it to the thread that makes tables.

use super::P4Switch;
use super::cycles::{P4, bind, entries, program_text};
use super::version::Version;
use crate::cycles::{Guests, pair, pair_from};
use crate::pipeline::Pipeline;
use crate::state::{Datapath, transmit_ring};
use ::placement::{Config, Costs, Policy, Topology};
use control_protocol::p4::USUAL_OPERATIONS;
use flow::PortId;
use p4_stf::{bake, script};
use scheduler::{Placement, Scheduler};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FRAME: usize = 64;
const BURST: usize = 32;
/// Of a program there are 65,536 at most.
const ENTRIES: u32 = 64_000;

/// The router with routes to so many addresses besides, as a version's bytes.
fn router(hosts: u32) -> Vec<u8> {
    let json = program_text("router").replace("\"max_size\" : 16384", "\"max_size\" : 131072");
    let mut text = entries("router");
    for host in 0..hosts {
        let address = 0x0b00_0000 + host;
        writeln!(text, "add routes hdr.ipv4.dst:0x{address:08x} via(next_hop_id:0)").unwrap();
    }
    let commands = script::parse(&text).unwrap();
    let commands = commands.iter().map(|line| &line.command).collect::<Vec<_>>();
    let checked = p4_bmv2::load(json.as_bytes(), None).unwrap();
    let (baked, setup) = bake(checked, commands, &[]).unwrap();
    p4_ir::setup::encode(&baked, &setup)
}

/// Changes the entries of the program, as the channel thread and its maker do: a version is made, takes the
/// former one's place, and that one is freed here.
fn change(datapath: &Datapath, bytes: &[u8]) {
    let key = (PortId(1).controller(), P4);
    let former = datapath.ports().p4().unwrap().switches[&key].clone();
    let version = Version::new(bytes, USUAL_OPERATIONS, 2, Some(&former.version)).unwrap();
    let counts = former.counts.clone();
    let made = Arc::new(P4Switch {
        version,
        tag: 1,
        counts,
    });
    datapath.change_p4(|table| table.switches.insert(key, made));
    let mut former = Some(former);
    while former.take_if(|former| Arc::strong_count(former) == 1).is_none() {
        std::thread::yield_now();
    }
}

/// The longest bursts of others until something is done: nanoseconds, and nanoseconds with the core.
fn longest(scheduler: &mut Scheduler<Pipeline>, guests: &mut Guests, work: impl FnOnce() + Send) -> [u64; 2] {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            work();
            is_done.store(true, Ordering::Relaxed);
        });
        let mut longest = [0; 2];
        while !is_done.load(Ordering::Relaxed) {
            guests.send(BURST, || None);
            let (begin, had) = (cpu::now_ns(), cpu::processor_ns());
            scheduler.schedule.later(transmit_ring(PortId(3)));
            while scheduler.step() {}
            let took = [cpu::now_ns() - begin, cpu::processor_ns() - had];
            guests.collect(FRAME, BURST);
            longest = [0, 1].map(|which| longest[which].max(took[which]));
        }
        longest
    })
}

/// As [`longest`], while so many entries come, and while as much is computed beside, which shares nothing.
fn beside_a_batch(hosts: u32) -> [[u64; 2]; 2] {
    let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
    let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
    let (ports, _tenant) = pair(&datapath);
    let (_, mut others) = pair_from(&datapath, &ports[0].switch, 3);
    let small = router(0);
    bind(
        &datapath,
        &ports,
        Version::new(&small, USUAL_OPERATIONS, 2, None).unwrap(),
    );
    let mut scheduler = Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath.clone()));
    others.prepare(FRAME);
    let large = router(hosts);
    longest(&mut scheduler, &mut others, || ());
    let with = longest(&mut scheduler, &mut others, || change(&datapath, &large));
    let without = longest(&mut scheduler, &mut others, || drop(router(hosts)));
    [with, without]
}

#[test]
#[ignore = "a measurement"]
fn cycles() {
    println!(
        "longest burst of others, us: with a batch of {ENTRIES} entries, with its core; beside other work"
    );
    for _ in 0..10 {
        let us = beside_a_batch(ENTRIES).map(|times| times.map(|ns| ns as f64 / 1e3));
        println!("{us:?}");
    }
}
