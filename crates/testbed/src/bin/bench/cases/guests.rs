//! User Mode Linux guests on a contender, and the processor time of everything that moves their packets.

use crate::machine::busy_seconds;
use crate::network::Network;
use anyhow::Result;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};
use testbed::ping::reachable;
use testbed::{Guest, GuestOptions, UmlGuest, udp_rr};

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

/// Boots a guest at each port.
pub fn boot(network: &mut Network, ports: &[&str]) -> Result<Vec<Guest>> {
    let mut options = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let guest = GuestOptions::new(port)
            .address(&format!("{}/24", address(index)))
            .processor(network.processor(index));
        options.push(network.attach(port, guest)?);
    }
    let guests = UmlGuest::boot_all(options)?;
    for pair in 0..guests.len() / 2 {
        reachable(&guests[2 * pair], &address(2 * pair + 1), Duration::from_secs(10))?;
    }
    Ok(guests)
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
    /// Of the guests' processes and the switch's.
    pub processes: f64,
}

/// How long guests take to get going, and how long before their end measuring stops.
const MARGIN: Duration = Duration::from_millis(400);

/// Measures in the middle of something that was started to take `time`.
pub fn cpu_during(time: Duration, network: &Network, guests: &[Guest]) -> Cpu {
    let processes = || guests.iter().map(Guest::cpu_seconds).sum::<f64>() + network.cpu_seconds();
    thread::sleep(MARGIN);
    let (begin, machine, used) = (Instant::now(), busy_seconds(), processes());
    thread::sleep(time.saturating_sub(2 * MARGIN));
    let (machine, used) = (busy_seconds() - machine, processes() - used);
    let elapsed = begin.elapsed().as_secs_f64();
    Cpu {
        machine: machine / elapsed,
        processes: used / elapsed,
    }
}
