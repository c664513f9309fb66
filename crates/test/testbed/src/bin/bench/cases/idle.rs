//! What ports cost when nothing happens: processor time and memory, with no ports, with 100 that nobody uses,
//! and with 100 or 500 whose drivers run and have nothing to do. The time is the scheduler's, to the
//! nanosecond, over a minute: what happens now and then is in it.

use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVEN as HYPERSWITCH_OVS, HYPERSWITCH};
use crate::network::float;
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::PollingGuest;
use testbed::run_time::RunTime;

const CPU: &str = "processor";
const WITH_OTHERS: &str = "with ovs-vswitchd and all others";
const MEMORY: &str = "memory";
const PORTS: usize = 500;
const MINUTE: Duration = Duration::from_secs(60);
/// Nobody takes turns, and nothing varies but by what happens seldom.
const MOST_MINUTES: usize = 3;
const SETTLING: Duration = Duration::from_secs(15);

pub const CASE: Case = Case {
    name: "idle",
    about: "processor time and memory when nothing happens",
    axis: "ports",
    measures: &[(CPU, "% of a core", Lower), (MEMORY, "KiB", Lower)],
    contenders: &[HYPERSWITCH],
    run: |effort, contenders, record| {
        let points = [
            ("none", 0, false),
            ("100 unused", 100, false),
            ("100 connected", 100, true),
            ("500 connected", 500, true),
        ];
        run(effort, contenders, record, &points)
    },
};

/// The processor time of ovs-vswitchd, which looks at its ports now and then, is another measure.
pub const DRIVEN: Case = Case {
    name: "ovs-idle",
    about: "processor time of data plane and glue, and memory, when nothing happens under ovs-vswitchd",
    measures: &[
        (CPU, "% of a core", Lower),
        (WITH_OTHERS, "% of a core", Lower),
        (MEMORY, "KiB", Lower),
    ],
    contenders: &[HYPERSWITCH_OVS],
    run: |effort, contenders, record| {
        let points = [("none", 0, false), ("100 connected", 100, true)];
        run(effort, contenders, record, &points)
    },
    ..CASE
};

/// `points` have a name, a number of ports, and whether these are connected.
fn run(
    effort: &Effort,
    contenders: &[Contender],
    record: &mut Record,
    points: &[(&'static str, usize, bool)],
) -> Result<()> {
    let names: Vec<String> = (0..PORTS).map(|port| format!("p{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    record.rounds = record.rounds.min(MOST_MINUTES);
    let time = if effort.quick { effort.long } else { MINUTE };
    let mut rigs = Vec::new();
    for contender in contenders {
        for &(label, count, connected) in points {
            let mut rig = Rig::start(contender, &names[..count], |network, ports| {
                let sockets = network.sockets(if connected { ports } else { &[] })?;
                let connect = |socket| PollingGuest::connect(&[socket], 1514);
                sockets.into_iter().map(connect).collect::<Result<Vec<_>>>()
            })?;
            rig.network.resume();
            rigs.push((label, rig));
        }
    }
    // They come to rest, which takes 10 s.
    thread::sleep(if effort.quick { effort.long } else { SETTLING });
    for _ in 0..record.rounds {
        // Who is idle disturbs nobody: all are measured in the same minute.
        let (before, begin) = (run_times(&rigs)?, Instant::now());
        thread::sleep(time);
        let (after, elapsed) = (run_times(&rigs)?, begin.elapsed());
        for (((label, rig), before), after) in rigs.iter().zip(before).zip(after) {
            let name = rig.contender.name;
            for ((measure, before), after) in [CPU, WITH_OTHERS].into_iter().zip(before).zip(after) {
                let used = after.since(&before).as_secs_f64();
                if record.measures.iter().any(|known| known.name == measure) {
                    record.add(label, name, measure, 100.0 * used / elapsed.as_secs_f64())?;
                }
            }
            record.add(label, name, MEMORY, float(rig.network.memory() / 1024))?;
        }
    }
    rigs.into_iter().try_for_each(|(_, rig)| rig.stop())
}

/// Of what there is for packets alone, and of all.
fn run_times<G>(rigs: &[(&str, Rig<G>)]) -> Result<Vec<[RunTime; 2]>> {
    let of = |(_, rig): &(&str, Rig<G>)| Ok([rig.network.own_run_time()?, rig.network.run_time(&[])]);
    rigs.iter().map(of).collect()
}
