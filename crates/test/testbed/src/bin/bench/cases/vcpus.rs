//! Round trips with a guest of four virtual processors of which one computes: whoever takes it from that one
//! that the guest runs, and needs no notification, lets the packet's own processor sleep. The guest is
//! QEMU's, a User Mode Linux guest asks.

use super::guests::{Busy, address, cpu_during, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, WITHOUT_VM_STATE};
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Guest, GuestOptions, QemuGuest, QemuOptions, UmlGuest, udp_rr};

pub const CASE: Case = Case {
    name: "busy-vcpu",
    about: "UDP request and response, 64 bytes, with a QEMU guest of four virtual processors, of which none or one computes",
    axis: "computing",
    measures: &[
        ("transactions", "1/s", Higher),
        ("processor time", "us/transaction, asking guest and switch", Lower),
    ],
    contenders: &[HYPERSWITCH, WITHOUT_VM_STATE, BRIDGE],
    run,
};

struct Pair {
    asks: Vec<Guest>,
    answers: QemuGuest,
}

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, names(2), boot)?;
    let points = [("none".to_owned(), false), ("one of four".to_owned(), true)];
    Rig::sweep(rigs, record, &points, |network, pair, computes| {
        let busy = computes.then(|| Busy::start(&*pair.answers, 0)).transpose()?;
        let running = udp_rr::start(&pair.asks[0], &address(1), 64, effort.long)?;
        let cpu = cpu_during(effort.long, network, &pair.asks);
        let trips = udp_rr::wait(running, effort.long)?;
        busy.map_or(Ok(()), |busy| busy.stop(&*pair.answers))?;
        Ok([trips.rate(), 1e6 * cpu.processes / trips.rate()])
    })
}

fn boot(network: &mut Network, ports: &[&str]) -> Result<Pair> {
    let mut options = |index: usize| {
        let guest = GuestOptions::new(ports[index]).address(&format!("{}/24", address(index)));
        network.attach(ports[index], guest)
    };
    let (first, second) = (options(0)?, options(1)?);
    let qemu = QemuOptions {
        processors: Some(4),
        ..QemuOptions::default()
    };
    let mut answers = QemuGuest::start(second, &qemu)?;
    let asks = vec![UmlGuest::boot(first)?];
    answers.wait_ready()?;
    reachable(&asks[0], &address(1), Duration::from_secs(20))?;
    drop(udp_rr::serve(&*answers)?);
    Ok(Pair { asks, answers })
}
