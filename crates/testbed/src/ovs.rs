//! Open vSwitch with DPDK, the switch that poll-mode users run: a private instance with its own database and sockets.
//!
//! The system's services are neither needed nor touched: `ovsdb-server` and `ovs-vswitchd` run from a temporary directory
//! and end with their handle. One poll thread is pinned to the last processor and takes all of it, busy or not; everything
//! else of the process stays on the first. Ports listen on vhost-user sockets. Packets follow what the `OpenFlow` table
//! says; [`Forwarding`] has the tables that are of use here.

use crate::endpoint::{Endpoint, Host};
use crate::huge_pages::HugePages;
use crate::namespace::Namespace;
use crate::process::{self, Group};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Pages of 2 MiB: 1 GiB, half of it for packet buffers from the start.
const HUGE_PAGES: u64 = 512;

const PATIENCE: Duration = Duration::from_secs(20);

/// The contents of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// Ports are joined in pairs, the first with the second and so on: the least that a switch can do, without
    /// addresses. What it does best.
    Pairs,
    /// A learning switch, the action NORMAL: its default, and the function of Hyper-Switch.
    Learning,
    /// A learning switch behind a filter that looks at addresses and ports in separate rules, as tenants' security groups
    /// do. Each rule that does not match leaves its bits in the megaflow's mask (the tuple-space explosion of
    /// CVE-2019-25076).
    Filtered,
    /// As [`Pairs`](Self::Pairs), but UDP packets have their ports copied to registers first. Nobody reads those, but whoever
    /// copies a field looks at all of it: there is a megaflow for each pair of UDP ports. (A rule on ports that no packet
    /// matches would not do: of the fields of such a rule a megaflow has only the bits that rule it out, which is one
    /// or two of them.)
    PairsByPorts,
}

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

/// What is in all of them: flows are kept for as long as a measurement may take, and there may be as many as there are. By
/// default flows end that were not used for 10 s, and there are at most 200,000.
const KEPT: &str = "other_config:max-idle=3600000 other_config:flow-limit=1000000";

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

impl Forwarding {
    fn flows(self, ports: usize) -> Vec<String> {
        match self {
            Forwarding::Pairs => (1..=ports)
                .map(|port| format!("in_port={port},actions=output:{}", ((port - 1) ^ 1) + 1))
                .collect(),
            Forwarding::PairsByPorts => {
                let mut flows = Forwarding::Pairs.flows(ports);
                flows.extend((1..=ports).map(|port| {
                    format!(
                        "priority=40000,udp,in_port={port},actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],\
                         move:NXM_OF_UDP_DST[]->NXM_NX_REG1[0..15],output:{}",
                        ((port - 1) ^ 1) + 1
                    )
                }));
                flows
            }
            Forwarding::Learning => vec!["actions=normal".into()],
            Forwarding::Filtered => [
                "priority=0,actions=normal",
                "priority=40,udp,nw_src=10.0.0.10,actions=normal",
                "priority=30,udp,nw_dst=10.0.0.11,actions=normal",
                "priority=20,udp,tp_src=12345,actions=normal",
                "priority=10,udp,tp_dst=80,actions=normal",
            ]
            .map(str::to_owned)
            .into(),
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
    daemon: Group,
    _database: Group,
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
        let database = start_database(directory.path())?;
        let options = format!(
            "other_config:dpdk-init=true other_config:dpdk-socket-mem=512 other_config:dpdk-lcore-mask=0x1 \
             other_config:pmd-cpu-mask={:#x} other_config:dpdk-extra='--no-pci --in-memory --no-telemetry' {KEPT} {}",
            1_u64 << (last_processor().min(63)),
            caches.settings()
        );
        vsctl(
            directory.path(),
            &format!("--no-wait init -- set Open_vSwitch . {options}"),
        )?;
        let daemon = start_daemon(directory.path(), &namespace)?;
        let ovs = OvsDpdk {
            daemon,
            _database: database,
            directory,
            _namespace: namespace,
            _pages: pages,
        };
        let mut commands = "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure".to_owned();
        for (index, port) in ports.iter().enumerate() {
            commands += &format!(
                " -- add-port br0 {port} -- set interface {port} type=dpdkvhostuser ofport_request={}",
                index + 1
            );
        }
        vsctl(ovs.directory.path(), &commands)
            .with_context(|| format!("Open vSwitch does not come up:\n{}", ovs.log()))?;
        ovs.set_forwarding(ports.len(), forwarding)?;
        for port in ports {
            ensure!(
                ovs.socket(port).exists(),
                "Open vSwitch has no port {port}:\n{}",
                ovs.log()
            );
        }
        Ok(ovs)
    }

    fn set_forwarding(&self, ports: usize, forwarding: Forwarding) -> Result<()> {
        let bridge = self.directory.path().join("br0.mgmt");
        wait_for(&bridge)?;
        // The bridge's own interface leads nowhere.
        Host.must(&format!("ovs-ofctl mod-port {} br0 no-flood", bridge.display()))?;
        for flow in forwarding.flows(ports) {
            Host.must(&format!("ovs-ofctl add-flow {} '{flow}'", bridge.display()))?;
        }
        Ok(())
    }

    /// Sets the largest IP packet of ports.
    pub fn set_mtu(&self, ports: &[&str], mtu: u16) -> Result<()> {
        for port in ports.iter().filter(|_| mtu != 1500) {
            vsctl(
                self.directory.path(),
                &format!("set interface {port} mtu_request={mtu}"),
            )?;
        }
        Ok(())
    }

    /// The socket on which a port listens.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.directory.path().join(port)
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("vswitchd.log")).unwrap_or_default()
    }

    /// `ovs-appctl`.
    pub fn appctl(&self, command: &str) -> Result<String> {
        let control = self.directory.path().join("vswitchd.ctl");
        Host.must(&format!("ovs-appctl -t {} {command}", control.display()))
    }

    /// Counts of the poll threads.
    pub fn pmd_stats(&self) -> Result<PmdStats> {
        parse_pmd_stats(&self.appctl("dpif-netdev/pmd-stats-show")?)
            .context("cannot read dpif-netdev/pmd-stats-show")
    }

    /// Flows in the data plane's tables, and how many there may be: Open vSwitch lowers the limit when looking through them
    /// took long, which it believes after a pause.
    pub fn flows(&self) -> Result<(usize, usize)> {
        parse_flows(&self.appctl("upcall/show")?).context("cannot read upcall/show")
    }

    /// Sets the limit anew.
    pub fn reset_flow_limit(&self) -> Result<()> {
        self.appctl("upcall/set-flow-limit 1000000").map(drop)
    }

    /// Masks of the flows in the data plane's tables.
    pub fn masks(&self) -> Result<usize> {
        let text = self.appctl("dpif-netdev/subtable-lookup-prio-get")?;
        Ok(text
            .lines()
            .filter(|line| line.trim_start().starts_with("0x"))
            .count())
    }

    /// The process that starts the daemon.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Processor seconds used so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.daemon.cpu_seconds()
    }

    /// Proportional share of its memory in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        process::memory(self.daemon.pid())
    }

    /// Stops it where it is, so that its poll thread leaves the processor to others.
    pub fn pause(&mut self) {
        self.daemon.signal_all(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.daemon.signal_all(Signal::CONT);
    }
}

fn last_processor() -> usize {
    thread::available_parallelism().map_or(0, |count| count.get() - 1)
}

fn start_database(directory: &Path) -> Result<Group> {
    let (file, socket) = (directory.join("conf.db"), directory.join("db.sock"));
    Host.must(&format!("ovsdb-tool create {} {SCHEMA}", file.display()))?;
    let mut command = process::command("ovsdb-server");
    command
        .arg(&file)
        .arg(format!("--remote=punix:{}", socket.display()))
        .arg(format!("--unixctl={}", directory.join("ovsdb.ctl").display()))
        .arg(format!("--log-file={}", directory.join("ovsdb.log").display()))
        .arg("-vconsole:off");
    let group = start(command, directory)?;
    wait_for(&socket)?;
    Ok(group)
}

fn wait_for(socket: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        ensure!(
            Instant::now() < deadline,
            "nobody listens on {}",
            socket.display()
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn start_daemon(directory: &Path, namespace: &Namespace) -> Result<Group> {
    let mut command = process::command("ip");
    command.args(["netns", "exec", namespace.netns(), DAEMON]);
    command
        .arg(format!("unix:{}", directory.join("db.sock").display()))
        .arg(format!("--unixctl={}", directory.join("vswitchd.ctl").display()))
        .arg(format!("--log-file={}", directory.join("vswitchd.log").display()))
        .arg("-vconsole:off");
    start(command, directory)
}

fn start(mut command: std::process::Command, directory: &Path) -> Result<Group> {
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, directory);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Group::spawn(command)
}

fn vsctl(directory: &Path, command: &str) -> Result<()> {
    let socket = directory.join("db.sock");
    Host.must(&format!(
        "ovs-vsctl --db=unix:{} --timeout={} {command}",
        socket.display(),
        PATIENCE.as_secs()
    ))
    .map(drop)
}

/// Reads `flows         : (current 7) (avg 8) (max 9) (limit 200000)`.
fn parse_flows(text: &str) -> Option<(usize, usize)> {
    let line = text.lines().find(|line| line.trim_start().starts_with("flows"))?;
    let number = |key: &str| {
        let (_, rest) = line.split_once(key)?;
        rest.split_once(')')?.0.trim().parse().ok()
    };
    Some((number("(current")?, number("(limit")?))
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
        let flows = "netdev@ovs-netdev:\n  flows         : (current 7) (avg 8) (max 9) (limit 200000)\n";
        assert_eq!(parse_flows(flows), Some((7, 200_000)));
        assert_eq!(parse_pmd_stats("main thread:\n  packets received: 77\n"), None);
    }

    #[test]
    fn ports_are_joined_in_pairs() {
        let flows = Forwarding::Pairs.flows(4);
        assert_eq!(flows[0], "in_port=1,actions=output:2");
        assert_eq!(flows[3], "in_port=4,actions=output:3");
        let by_ports = Forwarding::PairsByPorts.flows(4);
        assert_eq!(by_ports[..4], flows);
        assert!(
            by_ports[4].contains("in_port=1") && by_ports[4].ends_with("output:2"),
            "{by_ports:?}"
        );
    }
}
