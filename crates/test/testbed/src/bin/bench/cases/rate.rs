//! What packets cost that come at an even pace: processor time, and how often anybody is switched to. The
//! sender sleeps between packets, so that what is counted is the network's work and waking.
//!
//! Counted is the time, to the nanosecond, that the scheduler gave to the processes of the switch, to those
//! of both guests (of containers: to the programs that send and receive), and to the kernel's softirq threads
//! ([`testbed::run_time`]). A bridge works in its guests' time. Interrupts and softirqs that came while one
//! of these ran are in it, those that met an idle processor are not, nor is what halting and waking a
//! processor takes. How long idle processors polled is a measure of its own.

use super::guests::{Processes, Stations, address, boot, boot_qemu, contain, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{BRIDGE, HYPERSWITCH, NORMAL, OVS_LEARNING};
use crate::machine::{context_switches, polled_seconds};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Endpoint, udp_rr};

pub const CASE: Case = Case {
    name: "rate",
    about: "processor time and wake-ups at so many datagrams of 64 bytes per second between two User Mode Linux guests",
    axis: "packets/s",
    measures: &[
        ("processor", "% of a core, guests and switch", Lower),
        ("switches", "context switches/s", Lower),
        ("sent", "% of what was wanted", Higher),
        ("polling", "% of a core, idle processors of the machine", Lower),
    ],
    contenders: &[HYPERSWITCH, BRIDGE, OVS_LEARNING],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(2), |network, ports| {
            Stations::new(boot(network, ports)?)
        })?;
        Rig::sweep(rigs, record, &rates(effort), |network, guests, rate| {
            measure(effort, network, guests, *rate)
        })
    },
};

pub const CONTAINERS: Case = Case {
    name: "rate-containers",
    about: "the same between two containers, over TAPs, or over veth pairs with the bridge",
    contenders: &[HYPERSWITCH, NORMAL, BRIDGE],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, &[], |network, _| {
            Stations::new(contain(network, names(2))?)
        })?;
        Rig::sweep(rigs, record, &rates(effort), |network, containers, rate| {
            measure(effort, network, containers, *rate)
        })
    },
    ..CASE
};

pub const QEMU: Case = Case {
    name: "rate-qemu",
    about: "the same between two QEMU guests, emulated where there is no KVM",
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(2), |network, ports| {
            Stations::new(boot_qemu(network, ports)?)
        })?;
        Rig::sweep(rigs, record, &labelled(&QUICK), |network, guests, rate| {
            measure(effort, network, guests, *rate)
        })
    },
    ..CASE
};

/// Left out at both ends of a measurement.
const MARGIN: Duration = Duration::from_millis(300);

/// The most telling rates.
const QUICK: [u32; 2] = [1_000, 10_000];

fn rates(effort: &Effort) -> Vec<(String, u32)> {
    labelled(effort.choose(&[100, 1_000, 10_000, 100_000], &QUICK))
}

fn measure<E: Endpoint + Processes>(
    effort: &Effort,
    network: &Network,
    stations: &Stations<E>,
    rate: u32,
) -> Result<[f64; 4]> {
    let stations = &stations.all;
    let time = 2 * effort.long;
    let running = udp_rr::pace(&stations[0], &address(1), 64, rate, time)?;
    thread::sleep(MARGIN);
    let guests: Vec<u32> = stations.iter().flat_map(E::pids).collect();
    let (before, begin, switches) = (network.run_time(&guests), Instant::now(), context_switches());
    let polled = polled_seconds();
    thread::sleep(time.saturating_sub(2 * MARGIN));
    let (elapsed, switches) = (begin.elapsed().as_secs_f64(), context_switches() - switches);
    let used = network.run_time(&guests).since(&before).as_secs_f64();
    let polled = polled_seconds() - polled;
    let sent = udp_rr::wait(running, time)?;
    Ok([
        100.0 * used / elapsed,
        switches / elapsed,
        100.0 * sent.rate() / f64::from(rate),
        100.0 * polled / elapsed,
    ])
}
