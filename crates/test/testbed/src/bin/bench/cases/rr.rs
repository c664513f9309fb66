//! Round trips of one UDP datagram between two guests by its size (Figure 6 of the paper): all about how fast
//! who sleeps is woken. Datagrams that do not fit into a frame travel as fragments.

use super::guests::{address, boot_echo, cpu_during, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HALTING, HYPERSWITCH, OVS_DPDK, PEERS_AND_MODES, TOGETHER};
use crate::machine::{HaltPolling, polled_seconds};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Result, ensure};
use std::time::Instant;
use testbed::{Guest, udp_rr};

pub const CASE: Case = Case {
    name: "rr",
    about: "UDP request and response between two User Mode Linux guests, by bytes each way",
    axis: "bytes",
    measures: &[
        ("transactions", "1/s", Higher),
        ("processor time", "us/transaction, all of the machine", Lower),
        ("p50", "us", Lower),
        ("p99", "us", Lower),
    ],
    contenders: PEERS_AND_MODES,
    run,
};

/// Round trips on a machine whose processors are woken as fast as those of one that is not virtual.
pub const AWAKE: Case = Case {
    name: "rr-awake",
    about: "the same while idle processors of this virtual machine look for work for 200 us before they halt",
    contenders: &[HYPERSWITCH, TOGETHER, BRIDGE, OVS_DPDK],
    run: |effort, contenders, record| {
        if !HaltPolling::is_possible() {
            println!("  left out: idle processors do not poll (governor haltpoll)");
            return Ok(());
        }
        let _polling = HaltPolling::start()?;
        run(effort, contenders, record)
    },
    ..CASE
};

/// Round trips with and without idle loops that poll, and how much they do.
pub const IDLE_POLL: Case = Case {
    name: "rr-idle-poll",
    about: "the same with idle cores that poll while an answer is expected, and without",
    measures: &[
        ("transactions", "1/s", Higher),
        ("processor time", "us/transaction, all of the machine", Lower),
        ("polling", "% of a core, idle processors of the machine", Lower),
    ],
    contenders: &[HYPERSWITCH, HALTING, BRIDGE, OVS_DPDK],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(2), boot_echo)?;
        Rig::sweep(rigs, record, &labelled(&[64]), |network, guests, size| {
            let (before, begin) = (polled_seconds(), Instant::now());
            let [transactions, processor, ..] = measure(effort, network, guests, *size)?;
            let polled = (polled_seconds() - before) / begin.elapsed().as_secs_f64();
            Ok([transactions, processor, 100.0 * polled])
        })
    },
    ..CASE
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let sizes = effort.choose(&[64, 1024, 16_384], &[64]);
    let rigs = Rig::start_all(contenders, record, names(2), boot_echo)?;
    Rig::sweep(rigs, record, &labelled(sizes), |network, guests, size| {
        measure(effort, network, guests, *size)
    })
}

/// Transactions per second, processor time of each in microseconds, and the median and the 99th percentile of
/// a round trip in microseconds.
pub fn measure(effort: &Effort, network: &Network, guests: &[Guest], size: usize) -> Result<[f64; 4]> {
    let running = udp_rr::start(&guests[0], &address(1), size, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let result = udp_rr::wait(running, effort.long)?;
    ensure!(result.transactions > 0, "nothing came back");
    if result.lost > 0 {
        println!("    {} requests were not answered", result.lost);
    }
    Ok([
        result.rate(),
        1e6 * cpu.machine / result.rate(),
        1e6 * result.p50,
        1e6 * result.p99,
    ])
}
