//! Round trips of one UDP datagram between two guests by its size (Figure 6 of the paper): all about how fast who sleeps is
//! woken. Datagrams that do not fit into a frame travel as fragments.

use super::guests::{address, boot, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, DRIVER_DOMAIN, HYPERSWITCH, OVS_DPDK, POLL, THREAD_PER_VNIC};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use testbed::{Guest, udp_rr};

const RATE: &str = "transactions";
const CPU: &str = "processor time";

pub const CASE: Case = Case {
    name: "rr",
    about: "UDP request and response between two User Mode Linux guests, by bytes each way",
    axis: "bytes",
    measures: &[
        (RATE, "1/s", Higher),
        (CPU, "us/transaction, all of the machine", Lower),
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
    let mut rigs = Rig::start_all(contenders, ports, |network| {
        let guests = boot(network, ports)?;
        drop(udp_rr::serve(&guests[1])?);
        Ok(guests)
    })?;
    let sizes = effort.choose(&[1, 64, 256, 1024, 4096, 16_384], &[64]);
    for _ in 0..effort.rounds {
        for size in sizes {
            for rig in &mut rigs {
                let name = rig.name;
                let result = rig.turn(|network, guests| measure(effort, network, guests, *size));
                let (rate, cpu) = result.with_context(|| format!("{size} on {name}"))?;
                record.add(&size.to_string(), name, RATE, rate)?;
                record.add(&size.to_string(), name, CPU, cpu)?;
            }
        }
    }
    rigs.into_iter().try_for_each(Rig::stop)
}

/// Measures one point once.
pub fn measure(effort: &Effort, network: &Network, guests: &[Guest], size: usize) -> Result<(f64, f64)> {
    let running = udp_rr::start(&guests[0], &address(1), size, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let result = udp_rr::wait(running, effort.long)?;
    ensure!(result.transactions > 0, "nothing came back");
    Ok((result.rate(), 1e6 * cpu.machine / result.rate()))
}
