//! Round trips on a host whose processors are busy: how long a packet waits until who forwards it gets a core. A loop that never ends
//! runs on each processor, or on every other one, with the same weight as everybody or with the least; and no loop, for
//! comparison. Packets come seldom, so that each meets a sleeping switch.

use super::guests::{address, boot, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, NORMAL};
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::Duration;
use testbed::endpoint::{Endpoint, Host, Running};
use testbed::ping::{PingOptions, reachable, round_trips};
use testbed::{Bridge, Namespace, Switch};

const MEASURES: &[(&str, &str, crate::record::Better)] = &[
    ("p50", "ms", Lower),
    ("p90", "ms", Lower),
    ("p99", "ms", Lower),
    ("p99.9", "ms", Lower),
];

pub const GUESTS: Case = Case {
    name: "full-host",
    about: "ping between two User Mode Linux guests, 20 times per second, while loops run on the processors",
    axis: "loops",
    measures: MEASURES,
    contenders: &[HYPERSWITCH, NORMAL, BRIDGE],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(2), boot)?;
        Rig::sweep(rigs, record, &points(effort), |_, guests, loops| {
            under(*loops, || percentiles(effort, &guests[0], &address(1)))
        })
    },
};

pub const CONTAINERS: Case = Case {
    name: "full-host-containers",
    about: "the same between two containers, over TAPs, or over veth pairs with the bridge",
    run: containers,
    ..GUESTS
};

/// Loops that run beside.
#[derive(Clone, Copy, Debug)]
struct Loops {
    /// On every how manieth processor; 0: none.
    every: usize,
    nice: u8,
}

fn points(effort: &Effort) -> Vec<(String, Loops)> {
    let all = [
        ("none", Loops { every: 0, nice: 0 }),
        ("all, nice 0", Loops { every: 1, nice: 0 }),
        ("all, nice 19", Loops { every: 1, nice: 19 }),
        ("half, nice 0", Loops { every: 2, nice: 0 }),
    ];
    let chosen = effort.choose(&all, &all[..2]);
    chosen
        .iter()
        .map(|(label, loops)| ((*label).to_owned(), *loops))
        .collect()
}

/// Does `work` while the loops run.
fn under<T>(loops: Loops, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let processors = thread::available_parallelism()?.get();
    let numbers = (0..processors).filter(|number| loops.every > 0 && number % loops.every == 0);
    let running: Vec<Running> = numbers
        .map(|number| busy_loop(number, loops.nice))
        .collect::<Result<_>>()?;
    // They settle, and use up what they are owed.
    thread::sleep(Duration::from_millis(300));
    let result = work();
    drop(running);
    result
}

/// A task on a processor that never ends, until this is dropped.
pub fn busy_loop(processor: usize, nice: u8) -> Result<Running> {
    Host.start(&format!(
        "exec nice -n {nice} taskset -c {processor} sh -c 'while :; do :; done'"
    ))
}

fn percentiles(effort: &Effort, from: &dyn Endpoint, address: &str) -> Result<[f64; 4]> {
    let interval = 0.05;
    let options = PingOptions {
        count: (3.0 * effort.long.as_secs_f64() / interval) as u32,
        interval,
        ..PingOptions::default()
    };
    let mut times = round_trips(from, address, options)?;
    let lost = f64::from(options.count) - times.len() as f64;
    ensure!(
        lost <= 0.05 * f64::from(options.count),
        "{lost} pings of {} are lost",
        options.count
    );
    times.sort_unstable_by(f64::total_cmp);
    // The least that so many are not above.
    let at = |part: f64| {
        let rank = (part * times.len() as f64).ceil() as usize;
        times[rank.clamp(1, times.len()) - 1]
    };
    Ok([0.5, 0.9, 0.99, 0.999].map(at))
}

/// Two containers, and what joins them.
struct Pair {
    contender: Contender,
    containers: [Namespace; 2],
    switch: Fabric,
}

enum Fabric {
    Ours(Switch),
    Kernel(#[expect(dead_code, reason = "it ends with the pair")] Bridge),
}

fn containers(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let mut pairs: Vec<Pair> = contenders.iter().map(Pair::start).collect::<Result<_>>()?;
    for _ in 0..record.rounds {
        for (label, loops) in points(effort) {
            for pair in &pairs {
                pair.set_running(true);
                let values = under(loops, || percentiles(effort, &pair.containers[0], &address(1)));
                pair.set_running(false);
                let name = pair.contender.name;
                record.add_all(
                    &label,
                    name,
                    &values.with_context(|| format!("{label} on {name}"))?,
                )?;
            }
            pairs.rotate_left(1);
        }
    }
    pairs.into_iter().try_for_each(Pair::stop)
}

impl Pair {
    fn start(contender: &Contender) -> Result<Pair> {
        let containers = [Namespace::new("one")?, Namespace::new("two")?];
        let switch = match contender.kind {
            crate::contender::Kind::Hyperswitch { config, .. } => {
                let mut text = format!("{config}\n[[switch]]\nname = \"sw0\"\n");
                for (index, container) in containers.iter().enumerate() {
                    text += &format!(
                        "[[switch.port]]\nname = \"c{index}\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
                         addresses = [\"{}/24\"]\n",
                        container.netns(),
                        address(index)
                    );
                }
                Fabric::Ours(Switch::start(&text)?)
            }
            _ => Fabric::Kernel(veth_pairs(&containers)?),
        };
        let pair = Pair {
            contender: *contender,
            containers,
            switch,
        };
        reachable(&pair.containers[0], &address(1), Duration::from_secs(10))?;
        pair.set_running(false);
        Ok(pair)
    }

    /// Only one switch runs at a time.
    fn set_running(&self, running: bool) {
        match &self.switch {
            Fabric::Ours(switch) if running => switch.resume(),
            Fabric::Ours(switch) => switch.pause(),
            Fabric::Kernel(_) => {}
        }
    }

    fn stop(self) -> Result<()> {
        match self.switch {
            Fabric::Ours(switch) => {
                switch.resume();
                switch.settle()?;
                switch.stop()
            }
            Fabric::Kernel(_) => Ok(()),
        }
    }
}

/// As container engines do it.
fn veth_pairs(containers: &[Namespace; 2]) -> Result<Bridge> {
    let bridge = Bridge::new("bridge", None)?;
    let inside = bridge.namespace();
    for (index, container) in containers.iter().enumerate() {
        inside.must(&format!(
            "ip link add v{index} type veth peer name eth0 netns {} && ip link set v{index} master br0 up",
            container.netns()
        ))?;
        container.must(&format!(
            "ip addr add {}/24 dev eth0 && ip link set eth0 up",
            address(index)
        ))?;
    }
    Ok(bridge)
}
