//! Processes of Open vSwitch's control plane are killed while guests talk: ovs-vswitchd, of which there is
//! another one two seconds later, and the process `ovs`, which the supervisor starts again, and with which
//! ovs-vswitchd ends. Open vSwitch with DPDK takes no part: its data plane is in the process that is killed.

use super::guests::{address, boot, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, DRIVEN};
use crate::network::{Network, float};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result};
use std::thread;
use std::time::Duration;
use testbed::{Guest, IperfOptions, IperfResult, iperf};

pub const CASE: Case = Case {
    name: "ovs-deaths",
    about: "TCP between two User Mode Linux guests while processes of Open vSwitch's control plane are killed, and 1,000 UDP datagrams per second",
    axis: "killed",
    measures: &[
        ("worst second", "% of the mean before", Higher),
        ("datagrams lost", "%", Lower),
    ],
    contenders: &[DRIVEN],
    run,
};

/// How long datagrams and TCP are sent, in seconds, and what of that is before the process is killed.
const SECONDS: u32 = 10;
const BEFORE: usize = 3;
/// How long there is no ovs-vswitchd.
const AWAY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum Killed {
    Vswitchd,
    Glue,
}

fn run(_: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, names(2), boot)?;
    let points = [
        ("ovs-vswitchd".to_owned(), Killed::Vswitchd),
        ("the process `ovs`".to_owned(), Killed::Glue),
    ];
    Rig::sweep(rigs, record, &points, |network, guests, killed| {
        let tcp = during(network, guests, *killed, "")?;
        let (before, after) = tcp.intervals.split_at_checked(BEFORE).context("it ended early")?;
        // The last one may be cut short.
        let after = &after[..after.len().saturating_sub(1)];
        let worst = after.iter().copied().fold(f64::INFINITY, f64::min);
        let datagrams = during(network, guests, *killed, "-u -b 8M -l 1000")?;
        let usual = before.iter().sum::<f64>() / float(BEFORE as u64);
        Ok([100.0 * worst / usual, datagrams.lost_percent])
    })
}

/// What iperf3 measures while the process is killed.
fn during(network: &Network, guests: &[Guest], killed: Killed, arguments: &str) -> Result<IperfResult> {
    let options = IperfOptions {
        arguments: arguments.into(),
        ..IperfOptions::seconds(SECONDS)
    };
    let running = iperf::start(&guests[0], &guests[1], &address(1), &options)?;
    thread::sleep(Duration::from_millis(1000 * BEFORE as u64 + 200));
    let ovs = network.driven()?;
    match killed {
        Killed::Vswitchd => ovs.replace_vswitchd(AWAY)?,
        Killed::Glue => ovs.replace_glue()?,
    }
    running.wait()
}
