//! The switch alone: frames circulate through it as fast as it can forward them, driven by one polling guest
//! with two ports. The guest's thread has the first processor, the peer's poll thread the last; our workers
//! may go where they want. Cycles are those of the time stamp counter, by the switch's own account, per
//! packet: busy ones, in which it did something for packets, looks that found them included, and all in which
//! it was awake. A poll thread is always awake.

use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{
    BY_PORTS, Contender, HYPERSWITCH, OVS_DPDK, OVS_LEARNING, OVS_PORTS, OVS_PORTS_BATCHING, OVS_PORTS_EMC,
    OVS_PORTS_SMC, TAGGING, TESTPMD as TESTPMD_VHOST,
};
use crate::machine::on_processor;
use crate::network::{MOST_FLOWS, Network, float};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Result, ensure};
use std::thread;
use std::time::{Duration, Instant};
use testbed::huge_pages::HugePages;
use testbed::polling::{Build, Pages, Traffic};
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
    contenders: &[HYPERSWITCH, OVS_DPDK, OVS_LEARNING, TESTPMD_VHOST],
    run,
};

/// Contenders have a megaflow for each pair of UDP ports. Ours has them from a controller that is played
/// here, since the product's own one looks at Ethernet addresses only; Open vSwitch makes them from rules
/// that look at all of both fields.
pub const APART: Case = Case {
    name: "flows-apart",
    about: "the same loop with a flow in the table for each pair of UDP ports, and guests as they suit poll-mode switches",
    axis: "frame bytes, flows, guest",
    measures: CASE.measures,
    contenders: &[
        BY_PORTS,
        OVS_PORTS,
        OVS_PORTS_EMC,
        OVS_PORTS_SMC,
        OVS_PORTS_BATCHING,
    ],
    run: run_apart,
};

pub const TAG: Case = Case {
    name: "tag",
    about: "the switch alone: frames go one way, from an access port to a trunk, where they get a tag, or between ports without VLANs",
    axis: "frame bytes",
    contenders: &[TAGGING, HYPERSWITCH],
    run: |effort, contenders, record| {
        let traffic = Traffic {
            one_way: true,
            ..Traffic::new(64)
        };
        sweep(effort, contenders, record, &[("64".to_owned(), traffic)])
    },
    ..CASE
};

/// Guests from plain to what suits a poll-mode switch best, and whether all frame sizes are measured with
/// them.
const BUILDS: &[(&str, Build, bool)] = &[
    (
        "",
        Build {
            ring: 256,
            pages: Pages::Small,
            merges: true,
        },
        true,
    ),
    (
        ", huge pages, 1024 entries",
        Build {
            ring: 1024,
            pages: Pages::Huge,
            merges: true,
        },
        false,
    ),
    (
        ", huge pages, 1024 entries, no mrg_rxbuf",
        Build {
            ring: 1024,
            pages: Pages::Huge,
            merges: false,
        },
        false,
    ),
];

/// Pages for a guest: less than 8 MiB in 4096 buffers.
const GUEST_PAGES: u64 = 8;
/// How long a switch may take to learn all flows.
const LEARNING: Duration = Duration::from_secs(60);
/// Entries of Open vSwitch's exact match cache, which is hit for most packets of fewer flows.
const EMC_ENTRIES: u32 = 8192;

pub const TESTPMD: Case = Case {
    name: "testpmd",
    about: "the same loop with DPDK's own driver (testpmd, two virtio-user ports, io)",
    axis: "frame bytes",
    measures: CASE.measures,
    contenders: &[HYPERSWITCH, OVS_DPDK, OVS_LEARNING, TESTPMD_VHOST],
    run: run_testpmd,
};

pub(super) const PORTS: [&str; 2] = ["p1", "p2"];
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

pub(super) fn many_flows(size: u16, flows: u32) -> (String, Traffic) {
    let traffic = Traffic {
        flows,
        ..Traffic::new(size.into())
    };
    (format!("{size} io, {flows} flows"), traffic)
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    sweep(effort, contenders, record, &points(effort))
}

pub(super) fn sweep(
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
pub(super) fn measure(
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

fn run_apart(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let builds = effort.choose(BUILDS, &BUILDS[BUILDS.len() - 1..]);
    for &(name, build, all_sizes) in builds {
        let sizes = effort.choose(if all_sizes { &SIZES } else { &[64, 1500] }, &[64]);
        let mut points = Vec::new();
        for &flows in &[1_000, MOST_FLOWS] {
            for &size in sizes {
                let (label, traffic) = many_flows(size, flows);
                let under_way = build.ring / 2;
                points.push((format!("{label}{name}"), Traffic { under_way, ..traffic }));
            }
        }
        let rigs = Rig::start_all(contenders, record, &PORTS, |network, ports| {
            let pages = HugePages::reserve(GUEST_PAGES)?;
            let guest = PollingGuest::connect_as(build, &network.sockets(ports)?, 1514)?;
            Ok((guest, pages))
        })?;
        Rig::sweep(rigs, record, &points, |network, (guest, _), traffic| {
            measure_learnt(effort, network, guest, traffic)
        })?;
    }
    Ok(())
}

/// Measures once the switch has each flow in its table. Open vSwitch must find packets where they belong.
pub(super) fn measure_learnt(
    effort: &Effort,
    network: &Network,
    guest: &mut PollingGuest,
    traffic: &Traffic,
) -> Result<[f64; 3]> {
    learn(network, guest, traffic)?;
    let before = network.hits()?;
    let values =
        measure(effort, network, guest, traffic).or_else(|_| measure(effort, network, guest, traffic))?;
    if let (Some(before), Some(after)) = (before, network.hits()?) {
        let emc = check_hits(before, after)?;
        ensure!(
            !network.has_exact_match_cache() || traffic.flows > EMC_ENTRIES || emc > 50.0,
            "only {emc:.1} % of packets of {} flows were found in the exact match cache",
            traffic.flows
        );
    }
    Ok(values)
}

/// Lets frames circulate until the switch has each flow in its table.
fn learn(network: &Network, guest: &mut PollingGuest, traffic: &Traffic) -> Result<()> {
    let (begin, wanted) = (Instant::now(), usize::try_from(traffic.flows)?);
    while network.flows()? < wanted {
        ensure!(
            begin.elapsed() < LEARNING,
            "only {} of {wanted} flows are in its table",
            network.flows()?
        );
        on_processor(0, || {
            guest.circulate(traffic, Duration::from_millis(200), || Ok(()))
        })?;
    }
    Ok(())
}

/// Whether packets found their flows, and none was sent to the slow path time and again. Returns the
/// percentage of those that were found in the exact match cache.
fn check_hits(before: [u64; 4], after: [u64; 4]) -> Result<f64> {
    let mut hits = [0.0; 4];
    for (at, hits) in hits.iter_mut().enumerate() {
        *hits = float(after[at].saturating_sub(before[at]));
    }
    let all: f64 = hits.iter().sum();
    let [emc, smc, megaflow, missed] = hits.map(|hits| 100.0 * hits / all);
    println!(
        "    found: exact match cache {emc:.1} %, signatures {smc:.1} %, megaflows {megaflow:.1} %, nowhere {missed:.2} %"
    );
    ensure!(missed < 1.0, "{missed:.1} % of packets were found nowhere");
    Ok(emc)
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
