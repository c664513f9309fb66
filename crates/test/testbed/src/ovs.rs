//! Open vSwitch: with DPDK, the switch that poll-mode users run, and as what drives the product's data plane
//! ([`Driven`]); both private instances with their own databases and sockets, and with the same tables.
//!
//! The system's services are neither needed nor touched: `ovsdb-server` and `ovs-vswitchd` run from a
//! temporary directory and end with their handle. One poll thread is pinned to the last processor and takes
//! all of it, busy or not; everything else of the process stays on the first. Ports listen on vhost-user
//! sockets. Packets follow what the `OpenFlow` table says; [`Forwarding`] has the tables that are of use
//! here.

mod client;
mod controller;
mod daemon;
mod driven;
mod forwarding;

pub use controller::{CONTROLLER, Controller};
pub use driven::{Driven, PROGRAM};
pub use forwarding::{Forwarding, learning_by_ports};

use crate::huge_pages::HugePages;
use crate::namespace::Namespace;
use anyhow::{Context, Result, ensure};
use daemon::Daemon;
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// Pages of 2 MiB: 1 GiB, half of it for packet buffers from the start.
const HUGE_PAGES: u64 = 512;

/// How the caches before the flow table are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caches {
    /// As it comes: one of 100 packets that miss puts its flow into the exact match cache.
    #[default]
    AsTheyCome,
    /// Every packet that misses does (`emc-insert-inv-prob=1`).
    InsertAlways,
    /// With the signature match cache besides (`smc-enable`), and as in `InsertAlways`.
    Signatures,
    /// As `InsertAlways`, and packets for guests wait up to 50 us for others (`tx-flush-interval`).
    Batching,
}

impl Caches {
    fn settings(self) -> &'static str {
        match self {
            Caches::AsTheyCome => "",
            Caches::InsertAlways => "other_config:emc-insert-inv-prob=1",
            Caches::Signatures => "other_config:emc-insert-inv-prob=1 other_config:smc-enable=true",
            Caches::Batching => "other_config:emc-insert-inv-prob=1 other_config:tx-flush-interval=50",
        }
    }
}

/// Counts of the poll threads since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmdStats {
    /// Packets received from ports.
    pub packets: u64,
    /// Cycles of the time stamp counter in rounds that found packets.
    pub busy_cycles: u64,
    /// Cycles in all rounds: a poll thread never sleeps.
    pub awake_cycles: u64,
    /// Packets found in the exact match cache, in the signature match cache, among megaflows, and nowhere.
    pub hits: [u64; 4],
}

/// A running instance; killed on drop.
#[derive(Debug)]
pub struct OvsDpdk {
    daemon: Daemon,
    directory: TempDir,
    /// Each bridge makes a TAP of its name.
    _namespace: Namespace,
    _pages: HugePages,
}

impl OvsDpdk {
    /// Whether it is installed.
    pub fn is_installed() -> bool {
        Path::new(DAEMON).exists()
    }

    /// Starts an instance with these ports and waits until they listen.
    pub fn start(ports: &[&str], forwarding: Forwarding, caches: Caches) -> Result<OvsDpdk> {
        ensure!(
            OvsDpdk::is_installed(),
            "Open vSwitch with DPDK is missing: run scripts/setup --bench"
        );
        let namespace = Namespace::new("ovs")?;
        let pages = HugePages::reserve(HUGE_PAGES)?;
        let directory = tempfile::Builder::new().prefix("hs-ovs-").tempdir()?;
        let settings = format!(
            "other_config:dpdk-init=true other_config:dpdk-socket-mem=512 other_config:dpdk-lcore-mask=0x1 \
             other_config:pmd-cpu-mask={:#x} other_config:dpdk-extra='--no-pci --in-memory --no-telemetry' {} {}",
            1_u64 << (last_processor().min(63)),
            forwarding.settings(),
            caches.settings()
        );
        let ovs = OvsDpdk {
            daemon: Daemon::start(directory.path(), &namespace, DAEMON, &settings)?,
            directory,
            _namespace: namespace,
            _pages: pages,
        };
        ovs.daemon.add_bridge("netdev", ports, "type=dpdkvhostuser")?;
        ovs.daemon.set_forwarding(ports.len(), forwarding)?;
        for port in ports {
            ensure!(
                ovs.socket(port).exists(),
                "Open vSwitch has no port {port}:\n{}",
                ovs.daemon.log()
            );
        }
        Ok(ovs)
    }

    /// Sets the largest IP packet of ports.
    pub fn set_mtu(&self, ports: &[&str], mtu: u16) -> Result<()> {
        for port in ports.iter().filter(|_| mtu != 1500) {
            self.daemon
                .vsctl(&format!("set interface {port} mtu_request={mtu}"))?;
        }
        Ok(())
    }

    /// The socket on which a port listens.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.directory.path().join(port)
    }

    /// Counts of the poll threads.
    pub fn pmd_stats(&self) -> Result<PmdStats> {
        parse_pmd_stats(&self.daemon.appctl("dpif-netdev/pmd-stats-show")?)
            .context("cannot read dpif-netdev/pmd-stats-show")
    }

    /// Flows in the data plane's tables.
    pub fn flows(&self) -> Result<usize> {
        self.daemon.flows()
    }

    /// The process that starts the daemon.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Proportional share of its memory in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        self.daemon.memory()
    }

    /// Stops it where it is, so that its poll thread leaves the processor to others.
    pub fn pause(&mut self) {
        self.daemon.pause();
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.daemon.resume();
    }
}

fn last_processor() -> usize {
    thread::available_parallelism().map_or(0, |count| count.get() - 1)
}

/// Sums up blocks of `pmd thread ...`; the main thread's is left out.
fn parse_pmd_stats(text: &str) -> Option<PmdStats> {
    let (mut stats, mut found, mut in_pmd) = (PmdStats::default(), false, false);
    for line in text.lines() {
        if !line.starts_with(' ') {
            in_pmd = line.starts_with("pmd thread");
        } else if in_pmd && let Some((key, value)) = line.split_once(':') {
            let value = value
                .split_whitespace()
                .next()
                .and_then(|word| word.parse::<u64>().ok());
            match (key.trim(), value) {
                ("packets received", Some(packets)) => stats.packets += packets,
                ("emc hits", Some(count)) => stats.hits[0] += count,
                ("smc hits", Some(count)) => stats.hits[1] += count,
                ("megaflow hits", Some(count)) => stats.hits[2] += count,
                ("miss with success upcall" | "miss with failed upcall", Some(count)) => {
                    stats.hits[3] += count;
                }
                ("idle cycles", Some(cycles)) => stats.awake_cycles += cycles,
                ("processing cycles", Some(cycles)) => {
                    stats.busy_cycles += cycles;
                    stats.awake_cycles += cycles;
                    found = true;
                }
                _ => {}
            }
        }
    }
    found.then_some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "pmd thread numa_id 0 core_id 1:
  packets received: 1000
  packet recirculations: 0
  emc hits: 999
  smc hits: 0
  megaflow hits: 0
  miss with success upcall: 1
  miss with failed upcall: 0
  idle cycles: 5000000 (98.00%)
  processing cycles: 250000 (2.00%)
  avg cycles per packet: 5250.00 (5250000/1000)
main thread:
  packets received: 77
  idle cycles: 0 (0.00%)
  processing cycles: 88 (100.00%)
";
        let expected = PmdStats {
            packets: 1000,
            busy_cycles: 250_000,
            awake_cycles: 5_250_000,
            hits: [999, 0, 0, 1],
        };
        assert_eq!(parse_pmd_stats(text), Some(expected));
        assert_eq!(parse_pmd_stats("main thread:\n  packets received: 77\n"), None);
    }
}
