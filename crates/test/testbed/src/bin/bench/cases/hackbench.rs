//! What all other programs of the host pay for it that the switch knows what cores and guests do: hundreds of
//! tasks that wake each other (hackbench, as `perf bench sched messaging` has it), with a switch that runs
//! and does nothing, whose eBPF programs are attached to the scheduler, and without one.

use super::{Case, order};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH, Kind, NONE};
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::{Context, Result};
use testbed::Switch;
use testbed::endpoint::{Endpoint, Host};

pub const CASE: Case = Case {
    name: "hackbench",
    about: "time that tasks of the host take to send messages to each other, with a switch whose ports are idle and without one",
    axis: "tasks",
    measures: &[("time", "s", Lower)],
    contenders: &[HYPERSWITCH, NONE],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    if !Host.run("perf bench sched messaging -g 1 -l 1")?.success() {
        println!("  left out: there is no perf (package linux-perf)");
        return Ok(());
    }
    let loops = if effort.quick { 500 } else { 4000 };
    for round in 0..record.rounds {
        for (point, groups) in [1_usize, 10].into_iter().enumerate() {
            for at in order(round + point, contenders.len()) {
                let contender = contenders[at];
                let switch = match contender.kind {
                    // Stopped processes have their programs attached all the same, so each starts anew.
                    Kind::Hyperswitch { config, .. } => {
                        Some(Switch::start(&format!("{config}\n[[switch]]\nname = \"sw0\"\n"))?)
                    }
                    _ => None,
                };
                let seconds = hackbench(groups, loops / groups);
                switch.map_or(Ok(()), Switch::stop)?;
                record.add_all(&(40 * groups).to_string(), contender.name, &[seconds?])?;
            }
        }
    }
    Ok(())
}

/// Seconds that groups of 20 senders and 20 receivers took.
fn hackbench(groups: usize, loops: usize) -> Result<f64> {
    let text = Host.must(&format!(
        "perf bench -f simple sched messaging -g {groups} -l {loops}"
    ))?;
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    last.and_then(|line| line.trim().parse().ok())
        .with_context(|| format!("perf says {text}"))
}
