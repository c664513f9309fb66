//! TCP between two guests by the size of what the sender's program writes at a time (Figures 4 and 5 of the
//! paper). Guests use segmentation offload where the switch offers it. The processor time counts everything:
//! guests, switch and kernel.

use super::guests::{address, boot, cpu_during, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{Contender, PEERS_AND_MODES};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use testbed::{Guest, IperfOptions, iperf};

pub const CASE: Case = Case {
    name: "stream",
    about: "TCP between two User Mode Linux guests, by bytes per write",
    axis: "bytes per write",
    measures: &[
        ("throughput", "Gb/s", Higher),
        ("processor time", "s/GB, all of the machine", Lower),
        ("processor time of guests and switch", "s/GB", Lower),
    ],
    contenders: PEERS_AND_MODES,
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let sizes = effort.choose(&[64, 1024, 16_384, 65_536], &[64, 65_536]);
    let rigs = Rig::start_all(contenders, record, names(2), boot)?;
    Rig::sweep(rigs, record, &labelled(sizes), |network, guests, size| {
        measure(effort, network, guests, *size)
    })
}

/// From the first guest to the second one.
pub fn measure(effort: &Effort, network: &Network, guests: &[Guest], size: u32) -> Result<[f64; 3]> {
    measure_to(effort, network, guests, (&address(1), size))
}

/// Gigabits per second, and processor seconds per gigabyte: of the machine, and of guests and switch.
pub fn measure_to(
    effort: &Effort,
    network: &Network,
    guests: &[Guest],
    (to, size): (&str, u32),
) -> Result<[f64; 3]> {
    let options = IperfOptions {
        arguments: format!("-l {size}"),
        ..IperfOptions::seconds(u32::try_from(effort.long.as_secs())?)
    };
    let running = iperf::start(&guests[0], &guests[1], to, &options)?;
    let cpu = cpu_during(effort.long, network, guests);
    let gigabits = running.wait()?.gigabits();
    let gigabytes = gigabits / 8.0;
    Ok([gigabits, cpu.machine / gigabytes, cpu.processes / gigabytes])
}
