//! One pair that talks among many ports that are connected and idle: what work grows with ports that have
//! none.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH};
use crate::machine::on_processor;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use testbed::PollingGuest;
use testbed::polling::Traffic;

pub const CASE: Case = Case {
    name: "ports",
    about: "64-byte frames circulate between two ports, while as many as there are besides are connected and idle",
    axis: "ports",
    measures: &[
        ("rate", "million packets/s", Higher),
        ("busy cycles", "cycles/packet", Lower),
        ("awake cycles", "cycles/packet", Lower),
    ],
    contenders: &[HYPERSWITCH],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let effort = &effort.finely(record);
    let names: Vec<String> = (0..500).map(|port| format!("p{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut rigs = Vec::new();
    for count in [2, 100, 500] {
        for contender in contenders {
            let rig = Rig::start(contender, &names[..count], |network, ports| {
                let sockets = network.sockets(ports)?;
                let pair = PollingGuest::connect(&sockets[..2], 1514)?;
                let others = sockets[2..]
                    .iter()
                    .map(|socket| PollingGuest::connect(&[socket], 1514))
                    .collect::<Result<Vec<_>>>()?;
                Ok((pair, others))
            })?;
            rigs.push((count.to_string(), rig));
        }
    }
    for _ in 0..record.rounds {
        for (label, rig) in &mut rigs {
            let name = rig.contender.name;
            let values = rig.turn(|network, (pair, _)| {
                let (circulation, [before, after]) = on_processor(0, || {
                    pair.circulate(&Traffic::new(64), effort.short, || network.work())
                })?;
                let [busy, awake] = after.cycles_per_packet(&before)?;
                Ok([circulation.rate() / 1e6, busy, awake])
            })?;
            record.add_all(label, name, &values)?;
        }
        rigs.rotate_left(1);
    }
    rigs.into_iter().try_for_each(|(_, rig)| rig.stop())
}
