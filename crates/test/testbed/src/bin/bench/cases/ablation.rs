//! What each mechanism of placement is worth: the product with all of them, and without one at a time.

use super::guests::{boot_echo, names};
use super::{Case, Rig, labelled, rr, stream};
use crate::Effort;
use crate::contender::{ABLATIONS, Contender};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;

pub const CASE: Case = Case {
    name: "ablation",
    about: "between two User Mode Linux guests, without one mechanism of placement at a time",
    axis: "guests",
    measures: &[
        ("TCP, 65536 bytes per write", "Gb/s", Higher),
        ("TCP, processor time", "s/GB, all of the machine", Lower),
        ("UDP request and response, 64 bytes", "transactions/s", Higher),
    ],
    contenders: ABLATIONS,
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, names(2), boot_echo)?;
    Rig::sweep(rigs, record, &labelled(&[2]), |network, guests, _| {
        let [rate, cpu, _] = stream::measure(effort, network, guests, 65_536)?;
        let [transactions, ..] = rr::measure(effort, network, guests, 64)?;
        Ok([rate, cpu, transactions])
    })
}
