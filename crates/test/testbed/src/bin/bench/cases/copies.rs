//! Large frames between guests that write and read all of them: what a copy costs. Open vSwitch does not take
//! part: it has no frames of this size.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVER_DOMAIN, HYPERSWITCH};
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use testbed::PollingGuest;
use testbed::polling::Traffic;

const SIZE: usize = 32 << 10;

pub const CASE: Case = Case {
    name: "copies",
    about: "frames of 32 KB between two ports of a polling guest that touches every byte",
    axis: "frame bytes, guest",
    measures: &[
        ("throughput", "Gb/s", Higher),
        ("busy cycles", "cycles/frame", Lower),
        ("awake cycles", "cycles/frame", Lower),
    ],
    contenders: &[HYPERSWITCH, DRIVER_DOMAIN],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, &["p1", "p2"], |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, SIZE)
    })?;
    let points = [("io", false), ("touch", true)].map(|(guest, touch)| {
        let traffic = Traffic {
            touch,
            large: true,
            // 2 MB under way stay in the cache, as a guest's socket buffers do.
            under_way: 32,
            ..Traffic::new(SIZE)
        };
        (format!("{SIZE} {guest}"), traffic)
    });
    let bits = f64::from(u32::try_from(SIZE * 8)?);
    Rig::sweep(rigs, record, &points, |network, guest, traffic| {
        let counters = || network.work();
        let (circulation, [before, after]) =
            on_processor(0, || guest.circulate(traffic, effort.short, counters))?;
        let [busy, awake] = after.cycles_per_packet(&before)?;
        Ok([circulation.rate() * bits / 1e9, busy, awake])
    })
}
