//! A guest that talks to somebody outside: through an uplink, or through a bridge with a veth pair, which is
//! what stands for the network device on both sides. The station outside is a namespace with the kernel's own
//! stack. A container takes what it sends at a rate, and as fast as it can.

use super::guests::{boot, contain, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, Ports, with_ports};
use crate::machine::busy_seconds;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, IperfOptions, Namespace, Running, iperf, udp_rr};

pub const CASE: Case = Case {
    name: "uplink",
    about: "a User Mode Linux guest and a station outside: TCP each way, and round trips of datagrams of 64 bytes",
    axis: "way",
    measures: &[
        ("TCP to the outside", "Gb/s", Higher),
        ("TCP from the outside", "Gb/s", Higher),
        ("UDP request and response, 64 bytes", "transactions/s", Higher),
        ("processor time", "us/transaction, all of the machine", Lower),
    ],
    contenders: &[HYPERSWITCH, BRIDGE],
    run,
};

pub const FRAMES: Case = Case {
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
    ],
    contenders: &[HYPERSWITCH, BRIDGE],
    run: run_frames,
};

/// The station's address, beside those of guests.
const OUTSIDE: &str = "10.98.0.200";

const UPLINK: Ports = Ports {
    mtu: 1500,
    uplink: true,
};

struct Both<E> {
    guests: Vec<E>,
    outside: Namespace,
    _sink: Option<Running>,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let contenders = with_ports(contenders, UPLINK);
    let rigs = Rig::start_all(&contenders, record, names(1), |network, ports| {
        let outside = station(network)?;
        let guests = boot(network, ports)?;
        reachable(&guests[0], OUTSIDE, Duration::from_secs(10))?;
        drop(udp_rr::serve(&guests[0])?);
        Ok(Both {
            guests,
            outside,
            _sink: None,
        })
    })?;
    Rig::sweep(rigs, record, &[("veth".to_owned(), ())], |network, both, ()| {
        measure(effort, network, both)
    })
}

/// Joins a station outside.
fn station(network: &Network) -> Result<Namespace> {
    let outside = Namespace::new("outside")?;
    network.join_outside(&outside)?;
    outside.must(&format!(
        "ip addr add {OUTSIDE}/24 dev eth0 && ip link set eth0 up"
    ))?;
    Ok(outside)
}

/// A rate that no sender reaches.
const FLOOD: u32 = 100_000_000;

fn run_frames(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let contenders = with_ports(contenders, UPLINK);
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
    let points = [18, 1458].into_iter().flat_map(|bytes| {
        let label = move |rate: &str| format!("{} B, {rate}", bytes + 42);
        [
            (label("100000/s"), (bytes, 100_000)),
            (label("flood"), (bytes, FLOOD)),
        ]
    });
    let points: Vec<_> = points.collect();
    Rig::sweep(rigs, record, &points, |_, both, &(bytes, rate)| {
        let time = effort.long;
        let inside = super::guests::address(0);
        let received = || -> Result<f64> {
            let count = both.guests[0].must("awk '/eth0:/ { print $3 }' /proc/net/dev")?;
            Ok(count.trim().parse()?)
        };
        let (before, begin, busy) = (received()?, Instant::now(), busy_seconds());
        let running = udp_rr::pace(&both.outside, &inside, bytes, rate, time)?;
        udp_rr::wait(running, time)?;
        let (elapsed, busy) = (begin.elapsed().as_secs_f64(), busy_seconds() - busy);
        let count = received()? - before;
        // What is under way must not fall into the next contender's time.
        thread::sleep(Duration::from_millis(50));
        Ok([count / elapsed, 1e6 * busy / count])
    })
}

fn measure(effort: &Effort, network: &Network, both: &Both<Guest>) -> Result<[f64; 4]> {
    let Both { guests, outside, .. } = both;
    let options = IperfOptions::seconds(u32::try_from(effort.long.as_secs())?);
    let inside = super::guests::address(0);
    let to = iperf::run(&guests[0], outside, OUTSIDE, &options)?.gigabits();
    let from = iperf::run(outside, &guests[0], &inside, &options)?.gigabits();
    let running = udp_rr::start(outside, &inside, 64, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let trips = udp_rr::wait(running, effort.long)?;
    Ok([to, from, trips.rate(), 1e6 * cpu.machine / trips.rate()])
}
