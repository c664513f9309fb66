//! Large frames between guests that write and read all of them: what a copy costs. Open vSwitch does not take part: it
//! has no frames of this size.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVER_DOMAIN, HYPERSWITCH};
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use testbed::PollingGuest;
use testbed::polling::Traffic;

const RATE: &str = "throughput";
const CYCLES: &str = "busy cycles";
const SIZE: usize = 32 << 10;

pub const CASE: Case = Case {
    name: "copies",
    about: "frames of 32 KB between two ports of a polling guest that touches every byte",
    axis: "frame bytes, guest",
    measures: &[(RATE, "Gb/s", Higher), (CYCLES, "cycles/frame", Lower)],
    contenders: &[HYPERSWITCH, DRIVER_DOMAIN],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let mut rigs = Rig::start_all(contenders, &["p1", "p2"], |network| {
        PollingGuest::connect(&[network.socket("p1")?, network.socket("p2")?], SIZE)
    })?;
    for _ in 0..effort.rounds {
        for touch in [false, true] {
            let traffic = Traffic {
                touch,
                large: true,
                // 2 MB under way stay in the cache, as a guest's socket buffers do.
                under_way: 32,
                ..Traffic::new(SIZE)
            };
            let label = format!("{SIZE} {}", if touch { "touch" } else { "io" });
            for rig in &mut rigs {
                let name = rig.name;
                let (rate, cycles) = rig.turn(|network, guest| {
                    let counters = || network.work();
                    let (circulation, [before, after]) =
                        on_processor(0, || guest.circulate(&traffic, effort.short, counters))?;
                    Ok((circulation.rate(), after.busy_cycles_per_packet(&before)?))
                })?;
                let bits = f64::from(u32::try_from(SIZE * 8)?);
                record.add(&label, name, RATE, rate * bits / 1e9)?;
                record.add(&label, name, CYCLES, cycles)?;
            }
        }
    }
    rigs.into_iter().try_for_each(Rig::stop)
}
