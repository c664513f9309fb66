//! What a flood of packets takes from a task that computes on the processor where the switch works: a guest
//! that polls sends 64-byte frames as fast as it can from another processor. Forwarding threads and the task
//! have the same weight, so its fair share is half of the processor; more must not be taken, however much the
//! threads would like to have.

use super::full::busy_loop;
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH, NORMAL};
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result};
use std::time::Instant;
use testbed::PollingGuest;
use testbed::polling::Traffic;

pub const CASE: Case = Case {
    name: "flood",
    about: "what a flood of 64-byte frames takes from a task that computes on a processor where the switch works",
    axis: "the task's processor",
    measures: &[
        ("taken", "% of the task's fair share", Lower),
        ("had", "% of the processor", Higher),
        ("forwarded", "million packets/s", Higher),
    ],
    contenders: &[HYPERSWITCH, NORMAL],
    run,
};

/// Percent of a processor that one of two equals gets.
const FAIR: f64 = 50.0;

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, &["p1", "p2"], |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, 1514)
    })?;
    // The flood comes from the other one of two.
    let points = [("0".to_owned(), 0_usize), ("1".to_owned(), 1)];
    Rig::sweep(rigs, record, &points, |_, guest, processor| {
        let task = busy_loop(*processor, 0)?;
        let before = (Instant::now(), Tasks::now(*processor)?);
        let (circulation, _) = on_processor(1 - *processor, || {
            guest.circulate(&Traffic::new(64), effort.long, || Ok(()))
        })?;
        let elapsed = before.0.elapsed().as_secs_f64();
        let had = 100.0 * (Tasks::now(*processor)?.seconds - before.1.seconds) / elapsed;
        drop(task);
        let taken = 100.0 * (FAIR - had).max(0.0) / FAIR;
        Ok([taken, had, circulation.rate() / 1e6])
    })
}

/// Processor time of loops on a processor, which are shells with a name of their own.
struct Tasks {
    seconds: f64,
}

impl Tasks {
    fn now(processor: usize) -> Result<Tasks> {
        let mut seconds = None;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let path = entry.path();
            let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
            let here = status.lines().any(|line| {
                line.strip_prefix("Cpus_allowed_list:").map(str::trim) == Some(&processor.to_string())
            });
            if here && command.starts_with(b"sh\0-c\0while") {
                let times = std::fs::read_to_string(path.join("schedstat"))?;
                let ran: f64 = times
                    .split(' ')
                    .next()
                    .context("time on the processor")?
                    .parse()?;
                seconds = Some(seconds.unwrap_or(0.0) + ran / 1e9);
            }
        }
        Ok(Tasks {
            seconds: seconds.unwrap_or(0.0),
        })
    }
}
