//! Guests and containers on a contender, and the processor time of everything that moves their packets.

use crate::machine::busy_seconds;
use crate::network::Network;
use anyhow::Result;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::{Endpoint, Guest, GuestOptions, Namespace, QemuGuest, QemuOptions, Running, UmlGuest, udp_rr};

/// Names of ports and guests, the first `count` of at most 64.
pub fn names(count: usize) -> &'static [&'static str] {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let name = |number| &*format!("p{number}").leak();
        (1..=64).map(name).collect()
    });
    &NAMES[..count]
}

/// Address of guest number `index`.
pub fn address(index: usize) -> String {
    format!("10.98.0.{}", index + 1)
}

/// Boots a User Mode Linux guest at each port.
pub fn boot(network: &mut Network, ports: &[&str]) -> Result<Vec<Guest>> {
    let guests = UmlGuest::boot_all(options(network, ports)?)?;
    pairs_are_reachable(&guests)?;
    Ok(guests)
}

/// Boots a QEMU guest at each port, of one virtual processor.
pub fn boot_qemu(network: &mut Network, ports: &[&str]) -> Result<Vec<Guest>> {
    let start = |options| QemuGuest::start(options, &QemuOptions::default());
    let started: Result<Vec<_>> = options(network, ports)?.into_iter().map(start).collect();
    let mut guests: Vec<Guest> = started?.into_iter().map(QemuGuest::into_guest).collect();
    guests.iter_mut().try_for_each(Guest::wait_ready)?;
    pairs_are_reachable(&guests)?;
    Ok(guests)
}

/// Connects a container at each port, which the switch does not have yet.
pub fn contain(network: &Network, ports: &[&str]) -> Result<Vec<Namespace>> {
    let mut containers = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let container = Namespace::new(port)?;
        network.attach_container(port, &container)?;
        container.must(&format!(
            "ip addr add {}/24 dev eth0 && ip link set eth0 up",
            address(index)
        ))?;
        containers.push(container);
    }
    pairs_are_reachable(&containers)?;
    Ok(containers)
}

fn options(network: &mut Network, ports: &[&str]) -> Result<Vec<GuestOptions>> {
    let mut options = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let guest = GuestOptions::new(port)
            .address(&format!("{}/24", address(index)))
            .processor(network.processor(index));
        options.push(network.attach(port, guest)?);
    }
    Ok(options)
}

/// The second of each pair answers the first.
fn pairs_are_reachable<E: Endpoint>(stations: &[E]) -> Result<()> {
    for pair in 0..stations.len() / 2 {
        reachable(
            &stations[2 * pair],
            &address(2 * pair + 1),
            Duration::from_secs(20),
        )?;
    }
    Ok(())
}

/// A station that runs in processes of the host.
pub trait Processes {
    /// Identifiers of the processes; descendants may be left out.
    fn pids(&self) -> Vec<u32>;
}

impl Processes for Guest {
    fn pids(&self) -> Vec<u32> {
        vec![self.pid()]
    }
}

impl Processes for Namespace {
    fn pids(&self) -> Vec<u32> {
        Namespace::pids(self).unwrap_or_default()
    }
}

/// Guests or containers, of which the last receives datagrams.
pub struct Stations<E> {
    pub all: Vec<E>,
    _sink: Running,
}

impl<E: Endpoint> Stations<E> {
    /// Starts what receives.
    pub fn new(all: Vec<E>) -> Result<Stations<E>> {
        let sink = udp_rr::sink(&all[all.len() - 1])?;
        Ok(Stations { all, _sink: sink })
    }
}

/// A task in a guest that never sleeps.
pub struct Busy {
    pid: String,
}

impl Busy {
    pub fn start(guest: &dyn Endpoint, nice: u8) -> Result<Busy> {
        let pid = guest.must(&format!(
            "(while :; do :; done) < /dev/null > /dev/null 2>&1 & echo $!; renice -n {nice} -p $! > /dev/null"
        ))?;
        Ok(Busy {
            pid: pid.trim().to_owned(),
        })
    }

    pub fn stop(self, guest: &dyn Endpoint) -> Result<()> {
        guest.must(&format!("kill {}", self.pid)).map(drop)
    }
}

/// Boots a guest at each port, the second of which answers datagrams.
pub fn boot_echo(network: &mut Network, ports: &[&str]) -> Result<Vec<Guest>> {
    let guests = boot(network, ports)?;
    drop(udp_rr::serve(&guests[1])?);
    Ok(guests)
}

/// Processor seconds per second while guests work.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// Of the whole machine, kernel and interrupts included.
    pub machine: f64,
    /// Of the guests' processes, the switch's, and the kernel's softirq threads.
    pub processes: f64,
}

/// How long guests take to get going.
const START: Duration = Duration::from_millis(400);
/// How long before their end measuring stops.
const END: Duration = Duration::from_millis(50);

/// Measures in the middle of something that was started to take `time`. To look at the processes of many
/// guests takes time of the processors itself, and is done before and after the machine is measured.
pub fn cpu_during(time: Duration, network: &Network, guests: &[Guest]) -> Cpu {
    let pids: Vec<u32> = guests.iter().map(Guest::pid).collect();
    let started = Instant::now();
    thread::sleep(START);
    let (tasks_begin, tasks) = (Instant::now(), network.run_time(&pids));
    let (begin, busy) = (Instant::now(), busy_seconds());
    thread::sleep(time.saturating_sub(started.elapsed() + END));
    let (machine, elapsed) = (busy_seconds() - busy, begin.elapsed());
    let tasks_elapsed = tasks_begin.elapsed();
    let used = network.run_time(&pids).since(&tasks);
    Cpu {
        machine: machine / elapsed.as_secs_f64(),
        processes: used.as_secs_f64() / tasks_elapsed.as_secs_f64(),
    }
}
