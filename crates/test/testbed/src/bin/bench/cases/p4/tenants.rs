//! A tenant whose program is hostile, at full rate, beside two bystanders of the built-in switch: their rate
//! and the tail of their delays, compared with the same beside a tenant with a sound program.

use super::{KEPT, NAME, TAIL, entries, is_wanted, load, program};
use crate::Effort;
use crate::cases::delay::one_way;
use crate::cases::policies::scan::beside;
use crate::machine::on_processor;
use crate::record::{Record, Spread};
use anyhow::Result;
use std::time::Instant;
use testbed::percentile::percentile;
use testbed::polling::{Frame, Traffic};
use testbed::{PollingGuest, Switch};

const BYSTANDERS: [&str; 2] = ["p1", "p2"];
const TENANT: [&str; 2] = ["t1", "t2"];
/// Stations of the tenant's frames, as `scan` has them.
const STATIONS: [u32; 2] = [77, 78];
/// Programs that are loaded within the usual bounds; those that are refused cost nobody anything.
const HOSTILE: [&str; 7] = [
    "clone_doubling",
    "clone_to_itself",
    "digest_per_packet",
    "growing_packet",
    "multicast_storm",
    "recirculate_always",
    "resubmit_always",
];
/// Runs of each kind in a round.
const RUNS: usize = 4;

pub fn run(effort: &Effort, record: &mut Record) -> Result<()> {
    let labels = HOSTILE.map(|name| format!("beside {name}"));
    if !labels.iter().any(|label| is_wanted(record, label)) {
        return Ok(());
    }
    let mut text = "[[switch]]\nname = \"sw0\"\n".to_owned();
    for name in BYSTANDERS.iter().chain(&TENANT) {
        text += &format!("[[switch.port]]\nname = \"{name}\"\n");
    }
    let switch = Switch::start(&text)?;
    let connect = |ports: [&str; 2]| PollingGuest::connect(&ports.map(|port| switch.socket(port)), 1514);
    let (mut bystanders, mut tenant) = (connect(BYSTANDERS)?, connect(TENANT)?);
    for name in BYSTANDERS.iter().chain(&TENANT) {
        switch.wait_port(name, "running")?;
    }
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        for (label, hostile) in labels.iter().zip(HOSTILE) {
            if !is_wanted(record, label) {
                continue;
            }
            let (mut rates, mut tails) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                load_sound(&switch)?;
                let [rate, tail] = left(effort, &mut bystanders, &mut tenant)?;
                let folder = format!("malicious/{hostile}");
                load(&switch, "tenant", &program(&folder)?, "", TENANT)?;
                let [beside_rate, beside_tail] = left(effort, &mut bystanders, &mut tenant)?;
                rates.push(100.0 * beside_rate / rate);
                tails.push(beside_tail / tail);
            }
            let median = |values: &[f64]| Spread::of(values).map_or(f64::NAN, |spread| spread.median);
            record.add(label, NAME, KEPT, median(&rates))?;
            record.add(label, NAME, TAIL, median(&tails))?;
        }
    }
    drop((bystanders, tenant));
    switch.stop()
}

fn load_sound(switch: &Switch) -> Result<()> {
    load(
        switch,
        "tenant",
        &program("l2_switch")?,
        &entries::switch(STATIONS),
        TENANT,
    )
}

/// The bystanders' packets per second, and the 99th percentile of single packets in seconds, while the
/// tenant sends what it can.
fn left(effort: &Effort, bystanders: &mut PollingGuest, tenant: &mut PollingGuest) -> Result<[f64; 2]> {
    beside(tenant, true, || {
        on_processor(0, || {
            let (circulation, _) = bystanders.circulate(&Traffic::new(64), effort.short, || Ok(()))?;
            let frame = Frame::udp(64, 0, 1);
            let (begin, mut delays) = (Instant::now(), Vec::new());
            while begin.elapsed() < effort.short {
                delays.push(one_way(bystanders, [0, 1], &frame)?.as_secs_f64());
            }
            delays.sort_by(f64::total_cmp);
            Ok([circulation.rate(), percentile(&delays, 0.99)])
        })
    })
}
