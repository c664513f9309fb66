//! The forwarder of an uplink is killed or stopped while a station outside sends to a container, and two
//! containers to each other.

use super::{OUTSIDE, own_uplinks, station};
use crate::Effort;
use crate::cases::guests::{address, contain, names};
use crate::cases::{Case, Rig};
use crate::contender::{AF_XDP, Contender, HYPERSWITCH};
use crate::network::{Network, float};
use crate::record::Better::Lower;
use crate::record::Record;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::{Endpoint, Namespace, Running, udp_rr};

pub const KILLS: Case = Case {
    name: "uplink-kills",
    about: "the forwarder of an uplink is killed every 6 s while a station outside and a container send 5,000 datagrams a second each to another container",
    axis: "uplink",
    measures: &[
        ("until the outside is reached again", "ms", Lower),
        ("lost from outside", "datagrams", Lower),
        ("lost between containers", "datagrams", Lower),
    ],
    contenders: &[HYPERSWITCH, AF_XDP],
    run: |effort, contenders, record| run(effort, contenders, record, Signal::KILL),
};

pub const STOPS: Case = Case {
    name: "uplink-stops",
    about: "the forwarder of an uplink is stopped, until it is replaced, under the same traffic",
    run: |effort, contenders, record| run(effort, contenders, record, Signal::STOP),
    ..KILLS
};

/// Datagrams per second of each sender.
const RATE: u32 = 5000;
/// How long they send, and what of that is before the signal.
const TIME: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(500);
/// What is left of it when silence is no longer looked for.
const AFTER: Duration = Duration::from_millis(300);
/// Time from one signal to the next one.
const BETWEEN: Duration = Duration::from_secs(6);
/// Deaths in a row; a supervisor waits longer from the fifth in a minute on.
const ROUNDS: usize = 4;

struct Stations {
    containers: Vec<Namespace>,
    outside: Namespace,
    _sinks: Vec<Running>,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record, signal: Signal) -> Result<()> {
    record.rounds = effort.rounds.min(ROUNDS);
    let contenders = own_uplinks(contenders);
    let rigs = Rig::start_all(&contenders, record, &[], |network, _| {
        let outside = station(network)?;
        let containers = contain(network, names(3))?;
        for container in &containers {
            reachable(container, OUTSIDE, Duration::from_secs(10))?;
        }
        let sinks: Result<Vec<Running>> = containers.iter().map(|at| udp_rr::sink(at)).collect();
        Ok(Stations {
            containers,
            outside,
            _sinks: sinks?,
        })
    })?;
    Rig::sweep(
        rigs,
        record,
        &[("veth".to_owned(), ())],
        |network, stations, ()| measure(network, stations, signal),
    )
}

/// How long no datagram came from outside, how many of those were lost, and how many between containers.
fn measure(network: &Network, stations: &Stations, signal: Signal) -> Result<[f64; 3]> {
    let begin = Instant::now();
    let [first, second, third] = &stations.containers[..] else {
        unreachable!("three were made")
    };
    let received = |at: &Namespace| -> Result<u64> {
        let count = at.must("awk '/^Udp:/ && $2 ~ /[0-9]/ { print $2 }' /proc/net/snmp")?;
        Ok(count.trim().parse()?)
    };
    let (from_outside, between) = (received(first)?, received(third)?);
    let send = |from: &dyn Endpoint, to| udp_rr::pace(from, &address(to), 18, RATE, TIME);
    let running = [send(&stations.outside, 0)?, send(second, 2)?];
    thread::sleep(BEFORE);
    let pid = network.forwarder_of_uplink()?;
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        kill_process(pid, signal)?;
    }
    let away = longest_silence(first, TIME - BEFORE - AFTER)?;
    let [outside, inside] = running.map(|running| udp_rr::wait(running, TIME));
    let (outside, inside) = (outside?.transactions, inside?.transactions);
    thread::sleep(Duration::from_millis(50));
    let lost = |sent: u64, before: u64, after: u64| float((before + sent).saturating_sub(after));
    let values = [
        1000.0 * away.as_secs_f64(),
        lost(outside, from_outside, received(first)?),
        lost(inside, between, received(third)?),
    ];
    thread::sleep(BETWEEN.saturating_sub(begin.elapsed()));
    Ok(values)
}

/// The longest time in which a container received nothing.
fn longest_silence(container: &Namespace, time: Duration) -> Result<Duration> {
    let pid = *container.pids()?.first().context("its sink has ended")?;
    let received = || -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let (begin, mut count, mut longest) = (Instant::now(), received(), Duration::ZERO);
    let mut since = begin;
    while begin.elapsed() < time {
        thread::sleep(Duration::from_micros(500));
        let (now, new) = (Instant::now(), received());
        if new != count {
            longest = longest.max(now - since);
            (since, count) = (now, new);
        }
    }
    Ok(longest.max(since.elapsed()))
}
