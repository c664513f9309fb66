//! What each mechanism of placement is worth: the product with all of them, and without one at a time.

use super::guests::{boot, names};
use super::{Case, Rig, rr, stream};
use crate::Effort;
use crate::contender::{ABLATIONS, Contender};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result};
use testbed::udp_rr;

const STREAM: &str = "TCP, 65536 bytes per write";
const STREAM_CPU: &str = "TCP, processor time";
const RR: &str = "UDP request and response, 64 bytes";

pub const CASE: Case = Case {
    name: "ablation",
    about: "between two User Mode Linux guests, without one mechanism of placement at a time",
    axis: "guests",
    measures: &[
        (STREAM, "Gb/s", Higher),
        (STREAM_CPU, "s/GB, all of the machine", Lower),
        (RR, "transactions/s", Higher),
    ],
    contenders: ABLATIONS,
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let ports = names(2);
    let mut rigs = Rig::start_all(contenders, ports, |network| {
        let guests = boot(network, ports)?;
        drop(udp_rr::serve(&guests[1])?);
        Ok(guests)
    })?;
    for _ in 0..effort.rounds {
        for rig in &mut rigs {
            let name = rig.name;
            let measured = rig.turn(|network, guests| {
                let [rate, cpu, _] = stream::measure(effort, network, guests, 65_536)?;
                let (transactions, _) = rr::measure(effort, network, guests, 64)?;
                Ok([(STREAM, rate), (STREAM_CPU, cpu), (RR, transactions)])
            });
            for (measure, value) in measured.with_context(|| name)? {
                record.add("2", name, measure, value)?;
            }
        }
    }
    rigs.into_iter().try_for_each(Rig::stop)
}
