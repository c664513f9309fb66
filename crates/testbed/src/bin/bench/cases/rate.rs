//! What packets cost that come at an even pace: processor time, and how often anybody is switched to. The sender sleeps
//! between packets, so that what is counted is the network's work and waking.
//!
//! Counted is the time, to the nanosecond, that the scheduler gave to the processes of the switch, to those of both guests,
//! and to the kernel's softirq threads ([`testbed::run_time`]). A bridge works in its guests' time. Interrupts and softirqs
//! that came while one of these ran are in it, those that met an idle processor are not, nor is what halting and waking
//! a processor takes.

use super::guests::{address, boot, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH};
use crate::machine::context_switches;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Guest, udp_rr};

pub const CASE: Case = Case {
    name: "rate",
    about: "processor time and wake-ups at so many datagrams of 64 bytes per second between two User Mode Linux guests",
    axis: "packets/s",
    measures: &[
        ("processor", "% of a core, guests and switch", Lower),
        ("switches", "context switches/s", Lower),
        ("sent", "% of what was wanted", Higher),
    ],
    contenders: &[HYPERSWITCH, BRIDGE],
    run,
};

/// Left out at both ends of a measurement.
const MARGIN: Duration = Duration::from_millis(300);

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rates = effort.choose(&[100, 1_000, 10_000, 100_000], &[1_000, 10_000]);
    let rigs = Rig::start_all(contenders, record, names(2), |network, ports| {
        let guests = boot(network, ports)?;
        drop(udp_rr::sink(&guests[1])?);
        Ok(guests)
    })?;
    Rig::sweep(rigs, record, &labelled(rates), |network, guests, rate| {
        measure(effort, network, guests, *rate)
    })
}

fn measure(effort: &Effort, network: &Network, guests: &[Guest], rate: u32) -> Result<[f64; 3]> {
    let running = udp_rr::pace(&guests[0], &address(1), 64, rate, effort.long)?;
    thread::sleep(MARGIN);
    let (before, begin, switches) = (network.run_time(guests), Instant::now(), context_switches());
    thread::sleep(effort.long.saturating_sub(2 * MARGIN));
    let (elapsed, switches) = (begin.elapsed().as_secs_f64(), context_switches() - switches);
    let used = network.run_time(guests).since(&before).as_secs_f64();
    let sent = udp_rr::wait(running, effort.long)?;
    Ok([
        100.0 * used / elapsed,
        switches / elapsed,
        100.0 * sent.rate() / f64::from(rate),
    ])
}
