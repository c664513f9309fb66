//! TCP between two virtual machines through P4 programs and through the built-in switch. Checksums are open,
//! and frames are to be segmented, as guests send them.

use super::entries::{self, PREFIXES};
use super::packets::P4;
use super::{is_wanted, load, program};
use crate::Effort;
use crate::cases::guests::{boot, names};
use crate::cases::stream::measure_to;
use crate::cases::{Case, Rig};
use crate::contender::{Contender, HYPERSWITCH};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::fmt::Write as _;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, Switch};

pub const CASE: Case = Case {
    name: "p4-stream",
    about: "TCP between two User Mode Linux guests through a P4 program, and through the built-in switch",
    axis: "program",
    measures: &[
        ("throughput", "Gb/s", Higher),
        ("processor time", "s/GB, all of the machine", Lower),
        ("processor time of guests and switch", "s/GB", Lower),
    ],
    contenders: &[P4, HYPERSWITCH],
    run,
};

const POINTS: [&str; 2] = ["switch", ROUTER];
const ROUTER: &str = "router";

/// Addresses of the guests, in two networks of the router, or in one without.
const OWN: [&str; 2] = ["10.1.0.1", "10.2.0.1"];
/// The number of the router in front of each guest, beside those of the guests, which are 1 and 2.
const ROUTERS: [u32; 2] = [3, 4];
/// Bytes that the sender's program writes at a time.
const SIZE: u32 = 65_536;

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    for label in POINTS {
        if !is_wanted(record, label) {
            continue;
        }
        let start = |contender: &Contender| {
            Rig::start(contender, names(2), |network, ports| {
                let guests = boot(network, ports)?;
                let program = Some(label).filter(|_| contender.name == P4.name);
                prepare(network, &guests, program)?;
                Ok(guests)
            })
        };
        let rigs: Result<Vec<Rig<Vec<Guest>>>> = contenders.iter().map(start).collect();
        let point = [(label.to_owned(), ())];
        Rig::sweep(rigs?, record, &point, |network, guests, ()| {
            measure_to(effort, network, guests, (OWN[1], SIZE))
        })?;
    }
    Ok(())
}

/// Gives guests their addresses, loads the program, and waits until one reaches the other.
fn prepare(network: &Network, guests: &[Guest], program: Option<&str>) -> Result<()> {
    let stations = [1, 2].map(entries::mac);
    for ((guest, address), (station, other)) in guests.iter().zip(OWN).zip([(0, 1), (1, 0)]) {
        let mac = &stations[station];
        let length = if program == Some(ROUTER) { 16 } else { 8 };
        guest.must(&format!(
            "ip link set eth0 address {mac} && ip addr add {address}/{length} dev eth0"
        ))?;
        // Programs answer no questions for addresses.
        let neighbour =
            |address: &str, mac: &str| guest.must(&format!("busybox arp -i eth0 -s {address} {mac}"));
        match program {
            Some(ROUTER) => {
                let gateway = address.replace(".0.1", ".0.254");
                neighbour(&gateway, &entries::mac(ROUTERS[station]))?;
                guest.must(&format!("ip route add 10.0.0.0/8 via {gateway}"))?;
            }
            Some(_) => drop(neighbour(OWN[other], &stations[other])?),
            None => {}
        }
    }
    if let Some(name) = program {
        load_between(network.ours()?, name)?;
    }
    reachable(&guests[0], OWN[1], Duration::from_secs(20))
}

fn load_between(switch: &Switch, name: &str) -> Result<()> {
    let ports = [names(2)[0], names(2)[1]];
    match name {
        ROUTER => load(switch, name, &program("router")?, &router(), ports),
        _ => load(
            switch,
            name,
            &program("l2_switch")?,
            &entries::switch([1, 2]),
            ports,
        ),
    }
}

/// Entries of a router between the guests' networks, with as many prefixes as in other cases.
fn router() -> String {
    let mut text = String::new();
    for (at, router) in (0_u32..).zip(ROUTERS) {
        let (port, guest, own) = (at + 1, entries::mac(at + 1), entries::mac(router));
        write!(
            text,
            "table_add router_mac take {port} {own} =>\ntable_add next_hops send {port} => {port} {guest}\n\
             table_add port_mac leave_as {port} => {own}\ntable_add routes via 10.{port}.0.0/16 => {port}\n"
        )
        .expect("strings grow");
    }
    for prefix in 2..PREFIXES {
        let [_, a, b, c] = (prefix << 8 | 0x80_0000).to_be_bytes();
        writeln!(text, "table_add routes via 10.{a}.{b}.{c}/24 => 1").expect("strings grow");
    }
    text
}
