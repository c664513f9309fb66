//! TCP between two guests by the size of what the sender's program writes at a time (Figures 4 and 5 of the paper). Guests use
//! segmentation offload where the switch offers it. The processor time counts everything: guests, switch and kernel.

use super::guests::{address, boot, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, DRIVER_DOMAIN, HYPERSWITCH, OVS_DPDK, POLL, THREAD_PER_VNIC};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result};
use testbed::{Guest, IperfOptions, iperf};

pub const RATE: &str = "throughput";
pub const CPU: &str = "processor time";
const CPU_PROCESSES: &str = "processor time of guests and switch";

pub const CASE: Case = Case {
    name: "stream",
    about: "TCP between two User Mode Linux guests, by bytes per write",
    axis: "bytes per write",
    measures: &[
        (RATE, "Gb/s", Higher),
        (CPU, "s/GB, all of the machine", Lower),
        (CPU_PROCESSES, "s/GB", Lower),
    ],
    contenders: &[
        HYPERSWITCH,
        BRIDGE,
        OVS_DPDK,
        POLL,
        THREAD_PER_VNIC,
        DRIVER_DOMAIN,
    ],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let ports = names(2);
    let mut rigs = Rig::start_all(contenders, ports, |network| boot(network, ports))?;
    let sizes = effort.choose(&[64, 256, 1024, 4096, 16_384, 65_536], &[64, 65_536]);
    for _ in 0..effort.rounds {
        for size in sizes {
            for rig in &mut rigs {
                let name = rig.name;
                let result = rig.turn(|network, guests| measure(effort, network, guests, *size));
                let [rate, machine, processes] = result.with_context(|| format!("{size} on {name}"))?;
                let point = size.to_string();
                record.add(&point, name, RATE, rate)?;
                record.add(&point, name, CPU, machine)?;
                record.add(&point, name, CPU_PROCESSES, processes)?;
            }
        }
    }
    rigs.into_iter().try_for_each(Rig::stop)
}

/// Measures one point once.
pub fn measure(effort: &Effort, network: &Network, guests: &[Guest], size: u32) -> Result<[f64; 3]> {
    let options = IperfOptions {
        arguments: format!("-l {size}"),
        ..IperfOptions::seconds(u32::try_from(effort.long.as_secs())?)
    };
    let running = iperf::start(&guests[0], &guests[1], &address(1), &options)?;
    let cpu = cpu_during(effort.long, network, guests);
    let gigabits = running.wait()?.gigabits();
    let gigabytes = gigabits / 8.0;
    Ok([gigabits, cpu.machine / gigabytes, cpu.processes / gigabytes])
}
