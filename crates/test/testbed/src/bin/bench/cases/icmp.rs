//! Figure 6 of "Virtual Switching in Windows" (TUM, 2016): one guest sends empty ICMP packets of 42 bytes to
//! another one as fast as `trafgen` can, and the receiver's kernel counts them. Answers to pings that nobody
//! sent provoke nothing. The figure has 10 million packets per switch; here rounds are as long as all others.

use super::guests::{address, names};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{BRIDGE, Contender, HYPERSWITCH, OVS_DPDK, OVS_LEARNING, with_lines};
use crate::machine::busy_seconds;
use crate::network::Network;
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::Result;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, GuestOptions, UmlGuest};

const MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// All guards at both ports.
const GUARDED: Contender = with_lines(
    HYPERSWITCH,
    "hyperswitch-guarded",
    [
        "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.98.0.1/24\"]\n\
         guards = [\"spoof\", \"dhcp\", \"router\", \"bpdu\"]\n",
        "mac = \"02:00:00:00:00:02\"\naddresses = [\"10.98.0.2/24\"]\n\
         guards = [\"spoof\", \"dhcp\", \"router\", \"bpdu\"]\n",
    ],
);

pub const CASE: Case = Case {
    name: "icmp",
    about: "empty ICMP packets of 42 bytes, sent by trafgen in one User Mode Linux guest to another one",
    axis: "frames",
    measures: &[
        ("received", "packets/s", Higher),
        (
            "processor",
            "us of the machine's processors per packet received",
            Lower,
        ),
    ],
    contenders: &[HYPERSWITCH, GUARDED, BRIDGE, OVS_DPDK, OVS_LEARNING],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let rigs = Rig::start_all(contenders, record, names(2), boot)?;
    let packet = format!(
        "{{ eth(da={}, sa={}), ipv4(da={}, sa={}), icmp4(type=0, code=0) }}",
        MACS[1],
        MACS[0],
        address(1),
        address(0)
    );
    let send = format!(
        "timeout -s KILL 28 trafgen -o eth0 --cpus 1 --no-sock-mem --num {} '{packet}' 2>&1",
        effort.choose(&[300_000], &[20_000])[0]
    );
    Rig::sweep(rigs, record, &[("42 B".to_owned(), ())], |_, guests, ()| {
        let received = || -> Result<f64> {
            let count = guests[1].must("cat /sys/class/net/eth0/statistics/rx_packets")?;
            Ok(count.trim().parse()?)
        };
        let (before, begin, busy) = (received()?, Instant::now(), busy_seconds());
        guests[0].must(&send)?;
        let (elapsed, busy) = (begin.elapsed().as_secs_f64(), busy_seconds() - busy);
        let count = received()? - before;
        Ok([count / elapsed, 1e6 * busy / count])
    })
}

fn boot(network: &mut Network, ports: &[&str]) -> Result<Vec<Guest>> {
    let mut options = Vec::new();
    for (index, (port, mac)) in ports.iter().zip(MACS).enumerate() {
        let guest = GuestOptions::new(port)
            .mac(mac)
            .address(&format!("{}/24", address(index)))
            .processor(network.processor(index));
        options.push(network.attach(port, guest)?);
    }
    let guests = UmlGuest::boot_all(options)?;
    reachable(&guests[0], &address(1), Duration::from_secs(20))?;
    Ok(guests)
}
