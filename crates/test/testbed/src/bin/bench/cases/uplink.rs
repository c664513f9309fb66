//! A guest that talks to somebody outside: through an uplink, or through a bridge with a veth pair, which is
//! what stands for the network device on both sides. The station outside is a namespace with the kernel's own
//! stack.

use super::guests::{boot, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, Ports, with_ports};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, IperfOptions, Namespace, iperf, udp_rr};

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

/// The station's address, beside those of guests.
const OUTSIDE: &str = "10.98.0.200";

struct Both {
    guests: Vec<Guest>,
    outside: Namespace,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let ports = Ports {
        uplink: true,
        ..Ports::default()
    };
    let contenders = with_ports(contenders, ports);
    let rigs = Rig::start_all(&contenders, record, names(1), |network, ports| {
        let outside = Namespace::new("outside")?;
        network.join_outside(&outside)?;
        outside.must(&format!(
            "ip addr add {OUTSIDE}/24 dev eth0 && ip link set eth0 up"
        ))?;
        let guests = boot(network, ports)?;
        reachable(&guests[0], OUTSIDE, Duration::from_secs(10))?;
        drop(udp_rr::serve(&guests[0])?);
        Ok(Both { guests, outside })
    })?;
    Rig::sweep(rigs, record, &[("veth".to_owned(), ())], |network, both, ()| {
        measure(effort, network, both)
    })
}

fn measure(effort: &Effort, network: &Network, both: &Both) -> Result<[f64; 4]> {
    let Both { guests, outside } = both;
    let options = IperfOptions::seconds(u32::try_from(effort.long.as_secs())?);
    let inside = super::guests::address(0);
    let to = iperf::run(&guests[0], outside, OUTSIDE, &options)?.gigabits();
    let from = iperf::run(outside, &guests[0], &inside, &options)?.gigabits();
    let running = udp_rr::start(outside, &inside, 64, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let trips = udp_rr::wait(running, effort.long)?;
    Ok([to, from, trips.rate(), 1e6 * cpu.machine / trips.rate()])
}
