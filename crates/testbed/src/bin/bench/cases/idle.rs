//! What ports cost when nothing happens: processor time and memory, with no ports, with 100 that nobody uses, and with
//! 100 or 500 whose drivers run and have nothing to do. The time is the scheduler's, to the nanosecond, over a minute: what
//! happens now and then is in it.

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
const PORTS: usize = 500;
const MINUTE: Duration = Duration::from_secs(60);

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
    // Every contender is alone: there is nothing to interleave with, and values differ little.
    let time = if effort.quick { effort.long } else { MINUTE };
    record.rounds = effort.rounds.div_ceil(2);
    for contender in contenders {
        for (label, ports, connected) in [
            ("none", &[][..], false),
            ("100 unused", &names[..100], false),
            ("100 connected", &names[..100], true),
            ("500 connected", &names[..], true),
        ] {
            let rig = Rig::start(contender, ports, |network, ports| {
                let sockets = network.sockets(if connected { ports } else { &[] })?;
                let connect = |socket| PollingGuest::connect(&[socket], 1514);
                sockets.into_iter().map(connect).collect::<Result<Vec<_>>>()
            })?;
            thread::sleep(effort.long);
            record.add(label, contender.name, MEMORY, float(rig.network.memory() / 1024))?;
            for _ in 0..record.rounds {
                record.add(label, contender.name, CPU, percent(&rig.network, time))?;
            }
            rig.stop()?;
        }
    }
    Ok(())
}

/// Percent of one core used in the next `time`.
fn percent(network: &Network, time: Duration) -> f64 {
    let (before, begin) = (network.run_time(&[]), Instant::now());
    thread::sleep(time);
    let used = network.run_time(&[]).since(&before);
    100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64()
}
