//! A guest that talks to somebody outside: through an uplink, or through a bridge with a veth pair, which is
//! what stands for the network device on both sides. The station outside is a namespace with the kernel's own
//! stack.
//!
//! | module | what else goes through an uplink |
//! |---|---|
//! | `frames` | datagrams at a rate, in trains, and as fast as they come, to a container |
//! | `deaths` | the same while the uplink's forwarder is killed or stopped |
//! | `beside` | a flood beside guests that talk to each other |

pub mod beside;
pub mod deaths;
pub mod frames;

use super::guests::{boot, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{AF_XDP, BRIDGE, Contender, FAST_PATH, HYPERSWITCH, Ports};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, IperfOptions, Namespace, Running, iperf, udp_rr};

pub const CASE: Case = Case {
    name: "uplink",
    about: "a User Mode Linux guest and a station outside: TCP each way, and round trips of datagrams of 64 bytes",
    axis: "way",
    measures: &[
        ("TCP to the outside", "Gb/s", Higher),
        ("TCP from the outside", "Gb/s", Higher),
        ("processor time to the outside", "s/GB, all of the machine", Lower),
        (
            "processor time from the outside",
            "s/GB, all of the machine",
            Lower,
        ),
        ("UDP request and response, 64 bytes", "transactions/s", Higher),
        ("processor time", "us/transaction, all of the machine", Lower),
        ("p99", "us", Lower),
    ],
    contenders: &[HYPERSWITCH, FAST_PATH, AF_XDP, BRIDGE],
    run,
};

/// The station's address, beside those of guests.
const OUTSIDE: &str = "10.98.0.200";

/// Contenders with a way to the outside: that of their own, or the usual one.
fn own_uplinks(contenders: &[Contender]) -> Vec<Contender> {
    let with = |contender: &Contender| Contender {
        ports: Ports {
            uplink: contender.ports.uplink.or(Some("")),
            ..contender.ports
        },
        ..*contender
    };
    contenders.iter().map(with).collect()
}

struct Both<E> {
    guests: Vec<E>,
    outside: Namespace,
    _sink: Option<Running>,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let contenders = own_uplinks(contenders);
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

fn measure(effort: &Effort, network: &Network, both: &Both<Guest>) -> Result<[f64; 7]> {
    let Both { guests, outside, .. } = both;
    let inside = super::guests::address(0);
    let to = tcp(effort, network, &guests[0], outside, OUTSIDE)?;
    let from = tcp(effort, network, outside, &guests[0], &inside)?;
    let running = udp_rr::start(outside, &inside, 64, effort.long)?;
    let cpu = cpu_during(effort.long, network, guests);
    let trips = udp_rr::wait(running, effort.long)?;
    Ok([
        to[0],
        from[0],
        to[1],
        from[1],
        trips.rate(),
        1e6 * cpu.machine / trips.rate(),
        1e6 * trips.p99,
    ])
}

/// Throughput in Gb/s, and processor seconds of the machine per GB.
fn tcp(
    effort: &Effort,
    network: &Network,
    sender: &dyn Endpoint,
    receiver: &dyn Endpoint,
    address: &str,
) -> Result<[f64; 2]> {
    let options = IperfOptions::seconds(u32::try_from(effort.long.as_secs())?);
    let running = iperf::start(sender, receiver, address, &options)?;
    let cpu = cpu_during(effort.long, network, &[]);
    let gigabits = running.wait()?.gigabits();
    Ok([gigabits, 8.0 * cpu.machine / gigabits])
}
