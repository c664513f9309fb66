//! What ports cost when nothing happens: processor time and memory, with no ports, with 100 that nobody uses, and with
//! 100 whose drivers run and have nothing to do.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH};
use crate::network::{Network, float};
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::PollingGuest;

const CPU: &str = "processor";
const MEMORY: &str = "memory";
const PORTS: usize = 100;

pub const CASE: Case = Case {
    name: "idle",
    about: "processor time and memory when nothing happens",
    axis: "ports",
    measures: &[(CPU, "% of a core", Lower), (MEMORY, "KiB", Lower)],
    contenders: &[HYPERSWITCH],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let names: Vec<String> = (0..PORTS).map(|port| format!("p{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for contender in contenders {
        for (label, ports, connected) in [
            ("none", &[][..], false),
            ("100 unused", &names[..], false),
            ("100 connected", &names[..], true),
        ] {
            let rig = Rig::start(contender, ports, |network, ports| {
                let sockets = network.sockets(if connected { ports } else { &[] })?;
                let connect = |socket| PollingGuest::connect(&[socket], 1514);
                sockets.into_iter().map(connect).collect::<Result<Vec<_>>>()
            })?;
            thread::sleep(effort.long);
            record.add(label, contender.name, MEMORY, float(rig.network.memory() / 1024))?;
            for _ in 0..effort.rounds {
                record.add(label, contender.name, CPU, percent(&rig.network, effort.long))?;
            }
            rig.stop()?;
        }
    }
    Ok(())
}

/// Percent of one core used in the next `time`, to a clock tick of 10 ms.
fn percent(network: &Network, time: Duration) -> f64 {
    let (before, begin) = (network.cpu_seconds(), Instant::now());
    thread::sleep(time);
    100.0 * (network.cpu_seconds() - before) / begin.elapsed().as_secs_f64()
}
