//! Frames from a station outside to a container: what they cost the machine, and the uplink's forwarder.

use super::{Both, OUTSIDE, own_uplinks, station};
use crate::Effort;
use crate::cases::guests::{address, contain, names};
use crate::cases::{Case, Rig};
use crate::contender::{AF_XDP, BRIDGE, Contender, HYPERSWITCH};
use crate::machine::busy_seconds;
use crate::network::{Network, float};
use crate::record::Better::{Higher, Lower};
use crate::record::{NOT_HERE, Record};
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::run_time::RunTime;
use testbed::{Endpoint, Namespace, udp_rr};

pub const CASE: Case = Case {
    name: "uplink-frames",
    about: "datagrams from a station outside to a container",
    axis: "bytes, packets/s",
    measures: &[
        ("received", "datagrams/s", Higher),
        (
            "processor time",
            "us/datagram received, all of the machine",
            Lower,
        ),
        ("the forwarder's own time", "us/datagram received", Lower),
        ("the forwarder's wake-ups", "per datagram received", Lower),
    ],
    contenders: &[HYPERSWITCH, AF_XDP, BRIDGE],
    run,
};

/// A rate that no sender reaches.
const FLOOD: u32 = 100_000_000;

/// Datagrams of a station outside.
#[derive(Clone, Copy)]
struct Load {
    bytes: usize,
    rate: u32,
    /// Datagrams that are sent at once.
    train: u32,
}

fn points(effort: &Effort) -> Vec<(String, Load)> {
    let sizes: &[usize] = effort.choose(&[18, 1458], &[18]);
    let of_size = |&bytes: &usize| {
        let loads = [
            ("100000/s", 100_000, 1),
            ("trains of 64, 100000/s", 100_000, 64),
            ("flood", FLOOD, 1),
        ];
        loads.map(|(label, rate, train)| {
            let load = Load { bytes, rate, train };
            (format!("{} B, {label}", bytes + 42), load)
        })
    };
    sizes.iter().flat_map(of_size).collect()
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let contenders = own_uplinks(contenders);
    let rigs = Rig::start_all(&contenders, record, &[], |network, _| {
        let outside = station(network)?;
        let guests = contain(network, names(1))?;
        reachable(&guests[0], OUTSIDE, Duration::from_secs(10))?;
        let sink = udp_rr::sink(&guests[0])?;
        Ok(Both {
            guests,
            outside,
            _sink: Some(sink),
        })
    })?;
    Rig::sweep(rigs, record, &points(effort), |network, both, load| {
        measure(effort, network, both, *load)
    })
}

fn measure(effort: &Effort, network: &Network, both: &Both<Namespace>, load: Load) -> Result<[f64; 4]> {
    let time = effort.long;
    let received = || -> Result<f64> {
        let count = both.guests[0].must("awk '/eth0:/ { print $3 }' /proc/net/dev")?;
        Ok(count.trim().parse()?)
    };
    let forwarder = network.forwarder_of_uplink().ok();
    let own = || forwarder.map(|pid| (RunTime::of(&[pid].into()), switches(pid)));
    let (count, own_before) = (received()?, own());
    let (begin, busy) = (Instant::now(), busy_seconds());
    let running = udp_rr::trains(
        &both.outside,
        &address(0),
        load.bytes,
        [load.rate, load.train],
        time,
    )?;
    udp_rr::wait(running, time)?;
    let (elapsed, busy) = (begin.elapsed().as_secs_f64(), busy_seconds() - busy);
    let (count, own_after) = (received()? - count, own());
    // What is under way must not fall into the next contender's time.
    thread::sleep(Duration::from_millis(50));
    let [own_time, wakeups] = match (own_before, own_after) {
        (Some((time_before, before)), Some((time, after))) => {
            let us = 1e6 * time.since(&time_before).as_secs_f64();
            [us / count, float(after - before) / count]
        }
        _ => [NOT_HERE; 2],
    };
    Ok([count / elapsed, 1e6 * busy / count, own_time, wakeups])
}

/// How often threads of a process have gone to sleep by themselves so far.
fn switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let statuses = tasks.into_iter().flatten().flatten().map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok())
            .unwrap_or(0)
    });
    statuses.sum()
}
