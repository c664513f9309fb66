//! Two guests that talk while a station outside floods a container.

use super::{OUTSIDE, own_uplinks, station};
use crate::Effort;
use crate::cases::guests::{address, boot_echo, names};
use crate::cases::{Case, Rig};
use crate::contender::{BRIDGE, Contender, HYPERSWITCH};
use crate::record::Better::Higher;
use crate::record::Record;
use anyhow::Result;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, IperfOptions, Namespace, Running, iperf, udp_rr};

pub const CASE: Case = Case {
    name: "uplink-beside",
    about: "TCP and round trips between two User Mode Linux guests while a station outside floods a container with datagrams of 18 bytes",
    axis: "way",
    measures: &[
        ("TCP kept", "% of the throughput without", Higher),
        ("round trips kept", "% of the rate without", Higher),
        ("TCP beside the flood", "Gb/s", Higher),
        ("round trips beside the flood", "transactions/s", Higher),
    ],
    contenders: &[HYPERSWITCH, BRIDGE],
    run,
};

/// A rate that no sender reaches.
const FLOOD: u32 = 100_000_000;
/// How long a flood goes on around what is measured.
const AROUND: Duration = Duration::from_millis(600);
/// Of the container, beside the guests.
const CONTAINER: &str = "10.98.0.100";

struct Stations {
    guests: Vec<Guest>,
    outside: Namespace,
    _container: Namespace,
    _sink: Running,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let contenders = own_uplinks(contenders);
    let rigs = Rig::start_all(&contenders, record, names(2), |network, ports| {
        let outside = station(network)?;
        let container = Namespace::new("flooded")?;
        network.attach_container("flooded", &container)?;
        container.must(&format!(
            "ip addr add {CONTAINER}/24 dev eth0 && ip link set eth0 up"
        ))?;
        reachable(&container, OUTSIDE, Duration::from_secs(10))?;
        let sink = udp_rr::sink(&container)?;
        Ok(Stations {
            guests: boot_echo(network, ports)?,
            outside,
            _container: container,
            _sink: sink,
        })
    })?;
    Rig::sweep(rigs, record, &[("flood".to_owned(), ())], |_, stations, ()| {
        measure(effort, stations)
    })
}

fn measure(effort: &Effort, stations: &Stations) -> Result<[f64; 4]> {
    let without = [tcp(effort, stations)?, trips(effort, stations)?];
    let beside = |what: fn(&Effort, &Stations) -> Result<f64>| {
        let time = effort.long + 2 * AROUND;
        let flood = udp_rr::pace(&stations.outside, CONTAINER, 18, FLOOD, time)?;
        std::thread::sleep(AROUND);
        let value = what(effort, stations)?;
        udp_rr::wait(flood, time)?;
        Ok::<f64, anyhow::Error>(value)
    };
    let with = [beside(tcp)?, beside(trips)?];
    Ok([
        100.0 * with[0] / without[0],
        100.0 * with[1] / without[1],
        with[0],
        with[1],
    ])
}

fn tcp(effort: &Effort, stations: &Stations) -> Result<f64> {
    let options = IperfOptions::seconds(u32::try_from(effort.long.as_secs())?);
    let guests = &stations.guests;
    Ok(iperf::run(&guests[0], &guests[1], &address(1), &options)?.gigabits())
}

fn trips(effort: &Effort, stations: &Stations) -> Result<f64> {
    let running = udp_rr::start(&stations.guests[0], &address(1), 64, effort.long)?;
    Ok(udp_rr::wait(running, effort.long)?.rate())
}
