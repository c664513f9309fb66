//! Round trips of one UDP datagram between two guests by its size (Figure 6 of the paper): all about how fast who sleeps is
//! woken. Datagrams that do not fit into a frame travel as fragments.

use super::guests::{address, boot_echo, cpu_during, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{Contender, PEERS_AND_MODES};
use crate::machine::HaltPolling;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Result, ensure};
use testbed::{Guest, udp_rr};

pub const CASE: Case = Case {
    name: "rr",
    about: "UDP request and response between two User Mode Linux guests, by bytes each way",
    axis: "bytes",
    measures: &[
        ("transactions", "1/s", Higher),
        ("processor time", "us/transaction, all of the machine", Lower),
    ],
    contenders: PEERS_AND_MODES,
    run,
};

/// The same on a machine whose processors are woken as fast as those of one that is not virtual.
pub const AWAKE: Case = Case {
    name: "rr-awake",
    about: "the same while idle processors of this virtual machine look for work for 200 us before they halt",
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

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let sizes = effort.choose(&[64, 1024, 4096, 16_384], &[64]);
    let rigs = Rig::start_all(contenders, record, names(2), boot_echo)?;
    Rig::sweep(rigs, record, &labelled(sizes), |network, guests, size| {
        measure(effort, network, guests, *size)
    })
}

/// Transactions per second, and processor time of each in microseconds.
pub fn measure(effort: &Effort, network: &Network, guests: &[Guest], size: usize) -> Result<[f64; 2]> {
    let running = udp_rr::start(&guests[0], &address(1), size, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let result = udp_rr::wait(running, effort.long)?;
    ensure!(result.transactions > 0, "nothing came back");
    Ok([result.rate(), 1e6 * cpu.machine / result.rate()])
}
