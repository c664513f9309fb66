//! Round trips on a host that has other things to do: how long a packet waits until who forwards it gets a
//! core. Packets come seldom, so that each meets a sleeping switch. Beside them there are:
//!
//! * loops that never end, on each processor or on every other one, with the same weight as everybody or with
//!   the least; a switch that polls shares its processor with one of them;
//! * or such a task in the guest that answers, with the least weight there, so that its virtual processor
//!   never halts. In a container it would be one more loop on the host;
//! * or datagrams of 64 bytes at an even pace between two other guests on the same switch: part of the rate
//!   at which they arrive when the sender never sleeps, which is measured on the same contender right before.
//!   How many arrive beside the round trips is measured as well.

use super::guests::{Busy, Stations, address, boot, boot_qemu, contain, names};
use super::{Case, Rig, labelled};
use crate::Effort;
use crate::contender::{BRIDGE, HYPERSWITCH, NICE, NORMAL, OVS_LEARNING, SLICE};
use crate::record::Better::{Higher, Lower};
use crate::record::NOT_HERE;
use anyhow::{Result, ensure};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use testbed::endpoint::{Endpoint, Host, Running};
use testbed::ping::{PingOptions, round_trips};
use testbed::{percentile, udp_rr};

pub const GUESTS: Case = Case {
    name: "full-host",
    about: "ping between two User Mode Linux guests, 100 times per second, beside loops on the processors, a task that computes \
            in the guest that answers, or a load between two other guests",
    axis: "beside",
    measures: &[
        ("p50", "ms", Lower),
        ("p90", "ms", Lower),
        ("p99", "ms", Lower),
        ("p99.9", "ms", Lower),
        ("load", "packets/s", Higher),
    ],
    contenders: &[HYPERSWITCH, NORMAL, BRIDGE, OVS_LEARNING],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(4), |network, ports| {
            Stations::new(boot(network, ports)?)
        })?;
        let chosen = effort.choose(&BESIDE, &QUICK);
        Rig::sweep(rigs, record, &labelled(chosen), |_, guests, beside| {
            measure(effort, guests, *beside)
        })
    },
};

pub const CLASSES: Case = Case {
    name: "full-host-classes",
    about: "the same, with each scheduling class of forwarding threads that a kernel may grant: real-time (as it comes), nice, \
            slice, normal",
    contenders: &[HYPERSWITCH, NICE, SLICE, NORMAL],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(4), |network, ports| {
            Stations::new(boot(network, ports)?)
        })?;
        Rig::sweep(rigs, record, &labelled(&QUICK), |_, guests, beside| {
            measure(effort, guests, *beside)
        })
    },
    ..GUESTS
};

pub const CONTAINERS: Case = Case {
    name: "full-host-containers",
    about: "the same between two containers, over TAPs, or over veth pairs with the bridge",
    contenders: &[HYPERSWITCH, NORMAL, BRIDGE],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, &[], |network, _| {
            Stations::new(contain(network, names(4))?)
        })?;
        let points = [
            Beside::Nothing,
            Beside::Loops(1, 0),
            Beside::Loops(1, 19),
            Beside::Load(90),
        ];
        Rig::sweep(rigs, record, &labelled(&points), |_, containers, beside| {
            measure(effort, containers, *beside)
        })
    },
    ..GUESTS
};

pub const QEMU: Case = Case {
    name: "full-host-qemu",
    about: "the same between two QEMU guests, emulated where there is no KVM",
    contenders: &[HYPERSWITCH, BRIDGE, OVS_LEARNING],
    run: |effort, contenders, record| {
        let rigs = Rig::start_all(contenders, record, names(4), |network, ports| {
            Stations::new(boot_qemu(network, ports)?)
        })?;
        Rig::sweep(rigs, record, &labelled(&QUICK), |_, guests, beside| {
            measure(effort, guests, *beside)
        })
    },
    ..GUESTS
};

/// What the host does besides.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nothing,
    /// Loops on every how manieth processor, and how nice they are.
    Loops(usize, u8),
    /// A task in the guest that answers.
    Computing,
    /// So many percent of the full load between two others.
    Load(u32),
}

const BESIDE: [Beside; 7] = [
    Beside::Nothing,
    Beside::Loops(1, 0),
    Beside::Loops(1, 19),
    Beside::Loops(2, 0),
    Beside::Computing,
    Beside::Load(10),
    Beside::Load(90),
];

/// The most telling ones.
const QUICK: [Beside; 4] = [
    Beside::Nothing,
    Beside::Loops(1, 0),
    Beside::Computing,
    Beside::Load(90),
];

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Beside::Nothing => f.write_str("none"),
            Beside::Loops(1, nice) => write!(f, "all, nice {nice}"),
            Beside::Loops(_, nice) => write!(f, "half, nice {nice}"),
            Beside::Computing => f.write_str("busy guest"),
            Beside::Load(percent) => write!(f, "{percent} % load"),
        }
    }
}

/// Percentiles of round trips in milliseconds, and packets per second of the load beside.
fn measure<E: Endpoint>(effort: &Effort, stations: &Stations<E>, beside: Beside) -> Result<[f64; 5]> {
    let stations = &stations.all;
    let mut carried = NOT_HERE;
    let ping = || percentiles(&stations[0], &address(1));
    let [p50, p90, p99, p999] = match beside {
        Beside::Nothing => ping()?,
        Beside::Loops(every, nice) => among_loops(every, nice, ping)?,
        Beside::Computing => {
            let busy = Busy::start(&stations[1], 19)?;
            let times = ping();
            busy.stop(&stations[1])?;
            times?
        }
        Beside::Load(percent) => {
            let load = Load::start(effort, [&stations[2], &stations[3]], percent)?;
            let times = ping()?;
            carried = load.stop()?;
            times
        }
    };
    Ok([p50, p90, p99, p999, carried])
}

/// Does `work` while there is a loop on every so manieth processor.
fn among_loops<T>(every: usize, nice: u8, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let processors = thread::available_parallelism()?.get();
    let running: Vec<Running> = (0..processors)
        .step_by(every)
        .map(|number| busy_loop(number, nice))
        .collect::<Result<_>>()?;
    // They settle, and use up what they are owed.
    thread::sleep(SETTLING);
    let result = work();
    drop(running);
    result
}

const SETTLING: Duration = Duration::from_millis(300);

/// A task on a processor that never ends, until this is dropped.
pub fn busy_loop(processor: usize, nice: u8) -> Result<Running> {
    Host.start(&format!(
        "exec nice -n {nice} taskset -c {processor} sh -c 'while :; do :; done'"
    ))
}

/// Datagrams between two stations.
struct Load<'a> {
    to: &'a dyn Endpoint,
    sender: Running,
    time: Duration,
    begin: Instant,
    before: f64,
}

impl<'a> Load<'a> {
    /// At so many percent of the rate at which they arrive when the sender does not sleep, for a little
    /// longer than round trips are measured.
    fn start(effort: &Effort, [from, to]: [&'a dyn Endpoint; 2], percent: u32) -> Result<Load<'a>> {
        let pace = |rate, time| udp_rr::pace(from, &address(3), BYTES, rate, time);
        let before = received(to)?;
        let full = udp_rr::wait(pace(u32::MAX, effort.long / 2)?, effort.long)?;
        let rate = (received(to)? - before) / full.seconds * f64::from(percent) / 100.0;
        ensure!(rate >= 1.0, "the load does not arrive");
        let time = PINGS * Duration::from_secs_f64(INTERVAL) + 5 * SETTLING;
        let sender = pace(rate as u32, time)?;
        thread::sleep(SETTLING);
        Ok(Load {
            to,
            sender,
            time,
            begin: Instant::now(),
            before: received(to)?,
        })
    }

    /// Packets per second that have arrived.
    fn stop(self) -> Result<f64> {
        let rate = (received(self.to)? - self.before) / self.begin.elapsed().as_secs_f64();
        udp_rr::wait(self.sender, self.time)?;
        Ok(rate)
    }
}

const BYTES: usize = 64;

/// Packets that a station has received.
fn received(station: &dyn Endpoint) -> Result<f64> {
    let text = station.must("cat /sys/class/net/eth0/statistics/rx_packets")?;
    Ok(text.trim().parse()?)
}

/// Round trips in a measurement, and seconds between them.
const PINGS: u32 = 150;
const INTERVAL: f64 = 0.01;

fn percentiles(from: &dyn Endpoint, address: &str) -> Result<[f64; 4]> {
    let options = PingOptions {
        count: PINGS,
        interval: INTERVAL,
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
    Ok([0.5, 0.9, 0.99, 0.999].map(|part| percentile(&times, part)))
}
