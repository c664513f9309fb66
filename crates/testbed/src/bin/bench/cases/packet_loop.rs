//! The switch alone: frames circulate through it as fast as it can forward them, driven by one polling guest with two
//! ports. The guest's thread has the first processor, the peer's poll thread the last; our workers may go where they
//! want. Cycles are those of the time stamp counter, by the switch's own account, per packet: busy ones, in which it did
//! something for packets, looks that found them included, and all in which it was awake. A poll thread is always awake.

use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{
    Contender, HYPERSWITCH, OVS_DPDK, OVS_LEARNING, OVS_PORTS, OVS_PORTS_EMC, OVS_PORTS_SMC,
};
use crate::machine::on_processor;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::thread;
use testbed::polling::Traffic;
use testbed::{PollingGuest, Testpmd, TestpmdOptions};

pub const CASE: Case = Case {
    name: "loop",
    about: "the switch alone: two ports of a polling guest, frames circulate",
    axis: "frame bytes, flows, guest",
    measures: &[
        ("rate", "million packets/s", Higher),
        ("busy cycles", "cycles/packet", Lower),
        ("awake cycles", "cycles/packet", Lower),
    ],
    contenders: &[HYPERSWITCH, OVS_DPDK, OVS_LEARNING],
    run,
};

/// Hyper-Switch's own switch has no rules on transport ports and sees one flow here, so it does not compete.
pub const APART: Case = Case {
    name: "flows-apart",
    about: "the same loop through Open vSwitch with a rule on UDP ports: flows that differ in those are told apart",
    axis: "frame bytes, flows, guest",
    measures: CASE.measures,
    contenders: &[OVS_PORTS, OVS_PORTS_EMC, OVS_PORTS_SMC],
    run: |effort, contenders, record| {
        let mut points = Vec::new();
        for &flows in effort.choose(&[1, 1_000, 10_000, 100_000], &[1_000]) {
            for &size in effort.choose(&SIZES, &[64]) {
                points.push(many_flows(size, flows));
            }
        }
        sweep(effort, contenders, record, &points)
    },
};

pub const TESTPMD: Case = Case {
    name: "testpmd",
    about: "the same loop with DPDK's own driver (testpmd, two virtio-user ports, io)",
    axis: "frame bytes",
    measures: CASE.measures,
    contenders: &[HYPERSWITCH, OVS_DPDK],
    run: run_testpmd,
};

const PORTS: [&str; 2] = ["p1", "p2"];
const SIZES: [u16; 6] = [64, 128, 256, 512, 1024, 1500];

/// Points with their names.
fn points(effort: &Effort) -> Vec<(String, Traffic)> {
    let mut points = Vec::new();
    let sizes = effort.choose(&SIZES, &[64, 1500]);
    for &size in sizes {
        let traffic = Traffic::new(size.into());
        points.push((format!("{size} io"), traffic));
        points.push((
            format!("{size} touch"),
            Traffic {
                touch: true,
                ..traffic
            },
        ));
    }
    for &under_way in effort.choose(&[1, 2, 4], &[1]) {
        let traffic = Traffic {
            under_way,
            ..Traffic::new(64)
        };
        points.push((format!("64 io, bursts of {under_way}"), traffic));
    }
    for &flows in effort.choose(&[1_000, 100_000], &[100_000]) {
        points.extend(sizes.iter().map(|&size| many_flows(size, flows)));
    }
    points
}

fn many_flows(size: u16, flows: u32) -> (String, Traffic) {
    let traffic = Traffic {
        flows,
        ..Traffic::new(size.into())
    };
    (format!("{size} io, {flows} flows"), traffic)
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    sweep(effort, contenders, record, &points(effort))
}

fn sweep(
    effort: &Effort,
    contenders: &[Contender],
    record: &mut Record,
    points: &[(String, Traffic)],
) -> Result<()> {
    let effort = &effort.finely(record);
    let rigs = Rig::start_all(contenders, record, &PORTS, |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, 1514)
    })?;
    Rig::sweep(rigs, record, points, |network, guest, traffic| {
        // Counters of a thread that runs are not read in one piece: once in a while they make no sense.
        measure(effort, network, guest, traffic).or_else(|_| measure(effort, network, guest, traffic))
    })
}

/// Million packets per second, and busy and awake cycles per packet.
fn measure(
    effort: &Effort,
    network: &Network,
    guest: &mut PollingGuest,
    traffic: &Traffic,
) -> Result<[f64; 3]> {
    let counters = || network.work();
    let (circulation, [before, after]) =
        on_processor(0, || guest.circulate(traffic, effort.short, counters))?;
    if circulation.lost > 0 {
        println!(
            "    {} of {} packets were lost",
            circulation.lost, circulation.packets
        );
    }
    let [busy, awake] = after.cycles_per_packet(&before)?;
    Ok([circulation.rate() / 1e6, busy, awake])
}

fn run_testpmd(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let effort = &effort.finely(record);
    for &size in effort.choose(&SIZES, &[64]) {
        let rigs = Rig::start_all(contenders, record, &PORTS, |network, ports| {
            let mut options = TestpmdOptions::guest(&network.sockets(ports)?, "");
            options.packet_size = size;
            options.processor = Some(0);
            let mut testpmd = Testpmd::start(&options)?;
            testpmd.start_loop(4)?;
            // Packets stay under way from here on; while its switch is paused, the driver is too.
            testpmd.pause();
            Ok(testpmd)
        })?;
        Rig::sweep(rigs, record, &labelled(&[size]), |network, testpmd, _| {
            testpmd.resume();
            thread::sleep(effort.short / 10);
            let before = network.work()?;
            let rate = testpmd.packets_per_second(effort.short)?;
            let after = network.work()?;
            testpmd.pause();
            let [busy, awake] = after.cycles_per_packet(&before)?;
            Ok([rate / 1e6, busy, awake])
        })?;
    }
    Ok(())
}
