//! A contender that runs, with ports for guests, in one shape for all of them.

use crate::contender::{Contender, Kind, Ports, WATCHED, before};
use anyhow::{Context, Result, bail, ensure};
use control_protocol::work::WorkReport;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use testbed::masking::MaskingProxy;
use testbed::ovs::Driven;
use testbed::polling::udp_ports;
use testbed::run_time::{RunTime, softirq_threads};
use testbed::testpmd::VhostSwitch;
use testbed::{Bridge, Controlled, Endpoint, GuestOptions, Namespace, OvsDpdk, Switch};

/// A running contender.
pub struct Network {
    switch: Running,
    ports: Ports,
    proxies: Vec<MaskingProxy>,
    /// Whether it serves metrics.
    is_watched: bool,
    /// Processors on which its guests run, from the first one on.
    for_guests: usize,
}

enum Running {
    Hyperswitch(Switch),
    /// With the number of its flows, which nobody changes.
    ByPorts(Box<Mutex<Controlled>>, usize),
    Driven(Driven),
    OvsDpdk(OvsDpdk),
    Testpmd(Mutex<VhostSwitch>),
    Bridge(Bridge),
}

/// Flows that [`Kind::ByPorts`] has in both directions together.
pub const MOST_FLOWS: u32 = 100_000;

/// What a switch has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Packets taken from transmit rings.
    pub packets: f64,
    /// Cycles of the time stamp counter, without those spent on looking for work in vain.
    pub busy_cycles: f64,
    /// Cycles not asleep, whatever they were spent on.
    pub awake_cycles: f64,
}

impl Work {
    /// Busy and awake cycles per packet since `before`.
    pub fn cycles_per_packet(&self, before: &Work) -> Result<[f64; 2]> {
        let packets = self.packets - before.packets;
        let busy = self.busy_cycles - before.busy_cycles;
        let awake = self.awake_cycles - before.awake_cycles;
        ensure!(
            packets > 0.0 && busy > 0.0 && awake > 0.0,
            "the switch has counted {packets} packets, {busy} busy and {awake} awake cycles"
        );
        Ok([busy / packets, awake / packets])
    }
}

impl Network {
    /// Starts a switch with vhost-user ports (TAPs for the bridge) of these names.
    pub fn start(contender: &Contender, ports: &[&str]) -> Result<Network> {
        let switch = match contender.kind {
            Kind::Hyperswitch { config, ports: lines } => {
                let text = configuration(config, lines, contender.ports, ports)?;
                Switch::start(&text).map(Running::Hyperswitch)
            }
            Kind::ByPorts => {
                by_ports(ports).map(|(plane, flows)| Running::ByPorts(Box::new(plane.into()), flows))
            }
            Kind::Before => {
                let binary = before().context("no earlier executable is named")?;
                let text = configuration("", [""; 2], contender.ports, ports)?;
                Switch::start_program(binary, &text).map(Running::Hyperswitch)
            }
            Kind::Driven(forwarding) => Driven::start(ports, forwarding).map(Running::Driven),
            Kind::OvsDpdk(forwarding, caches) => OvsDpdk::start(ports, forwarding, caches)
                .and_then(|ovs| ovs.set_mtu(ports, contender.ports.mtu).map(|()| ovs))
                .map(Running::OvsDpdk),
            Kind::Testpmd => VhostSwitch::start(ports).map(|switch| Running::Testpmd(switch.into())),
            Kind::None => bail!("there is no switch"),
            Kind::Bridge => bridge(ports, contender.ports.mtu).map(Running::Bridge),
        };
        let processors = thread::available_parallelism()?.get();
        let dedicated = usize::from(contender.dedicated && processors > 1);
        Ok(Network {
            switch: switch.with_context(|| format!("cannot start {}", contender.name))?,
            ports: contender.ports,
            proxies: Vec::new(),
            is_watched: *contender == WATCHED,
            for_guests: processors - dedicated,
        })
    }

    /// The switch, if it serves metrics.
    pub fn watched(&self) -> Option<&Switch> {
        match &self.switch {
            Running::Hyperswitch(switch) if self.is_watched => Some(switch),
            _ => None,
        }
    }

    /// The sockets of ports, for a polling guest.
    pub fn sockets(&self, ports: &[&str]) -> Result<Vec<PathBuf>> {
        ports.iter().map(|port| self.socket(port)).collect()
    }

    fn socket(&self, port: &str) -> Result<PathBuf> {
        match &self.switch {
            Running::Hyperswitch(switch) => Ok(switch.socket(port)),
            Running::ByPorts(plane, _) => Ok(lock(plane).socket(port)),
            Running::Driven(ovs) => Ok(ovs.socket(port)),
            Running::OvsDpdk(ovs) => Ok(ovs.socket(port)),
            Running::Testpmd(switch) => Ok(lock(switch).socket(port)),
            Running::Bridge(_) => bail!("a bridge has no sockets"),
        }
    }

    /// The processor of guest number `index`, as operators pin vCPUs: guests take turns, a core that switches
    /// has none.
    pub fn processor(&self, index: usize) -> usize {
        index % self.for_guests
    }

    /// Connects a guest with a kernel to a port.
    pub fn attach(&mut self, port: &str, guest: GuestOptions) -> Result<GuestOptions> {
        let guest = match self.ports.mtu {
            1500 => guest,
            mtu => guest.mtu(mtu),
        };
        if let Running::Bridge(bridge) = &self.switch {
            return Ok(guest.tap(port, Some(bridge.namespace().netns())));
        }
        let socket = self.socket(port)?;
        if !matches!(self.switch, Running::OvsDpdk(_) | Running::Testpmd(_)) {
            return Ok(guest.vhost_user(socket));
        }
        let proxy = MaskingProxy::start(&socket)?;
        let guest = guest.vhost_user(proxy.socket());
        self.proxies.push(proxy);
        Ok(guest)
    }

    /// Connects a container by an interface `eth0`: one of our TAPs, or a veth pair to the bridge, as
    /// container engines do it.
    pub fn attach_container(&self, port: &str, container: &Namespace) -> Result<()> {
        let netns = container.netns();
        match &self.switch {
            Running::Hyperswitch(switch) => {
                let tap = ["--type", "tap", "--interface", "eth0", "--netns", netns];
                switch.verb(&[&["port", "add", "sw0", port], &tap[..]].concat())?;
                switch.wait_port(port, "running")
            }
            Running::Bridge(bridge) => {
                let veth = format!(
                    "ip link add {port} type veth peer name eth0 netns {netns} && ip link set {port} master br0 up"
                );
                bridge.namespace().must(&veth).map(drop)
            }
            _ => bail!("it has no ports for containers"),
        }
    }

    /// Joins it to a namespace outside, by a pair of interfaces of which one, `eth0`, appears there.
    pub fn join_outside(&self, outside: &Namespace) -> Result<()> {
        let link = format!(
            "ip link add up0 type veth peer name eth0 netns {} && ip link set up0 up",
            outside.netns()
        );
        match &self.switch {
            Running::Hyperswitch(switch) => {
                // AF_XDP knows no tags beside frames.
                let tags = "ethtool -K up0 rxvlan off";
                let down = link.replace(" && ip link set up0 up", "");
                switch
                    .host()
                    .must(&format!("{down} && {tags} && ip link set up0 up"))?;
                switch.wait_port("sw0:uplink", "running")?;
                let shown = switch.host().must("ip link show up0")?;
                let wants_xdp = self.ports.uplink.is_some_and(|lines| lines.contains("af-xdp"));
                ensure!(
                    shown.contains("xdp") == wants_xdp,
                    "another back end serves: {shown}"
                );
                Ok(())
            }
            Running::Bridge(bridge) => {
                let inside = bridge.namespace();
                inside
                    .must(&format!("{link} && ip link set up0 master br0"))
                    .map(drop)
            }
            _ => bail!("it has no way to the outside"),
        }
    }

    /// Flows that its data plane can look up, where whoever asks can know.
    pub fn flows(&self) -> Result<usize> {
        match &self.switch {
            Running::ByPorts(_, flows) => Ok(*flows),
            Running::Driven(ovs) => ovs.flows(),
            Running::OvsDpdk(ovs) => ovs.flows(),
            _ => bail!("nobody counts its flows"),
        }
    }

    /// Packets of Open vSwitch by where their flow was found: in the exact match cache, among signatures,
    /// among megaflows, nowhere. `None` of others. Of ours with Open vSwitch, which has other caches, those
    /// are megaflows.
    pub fn hits(&self) -> Result<Option<[u64; 4]>> {
        match &self.switch {
            Running::Driven(ovs) => {
                let packets: u64 = ovs
                    .switch()
                    .placement()?
                    .workers
                    .iter()
                    .map(|worker| worker.packets)
                    .sum();
                let misses = ovs.misses()?;
                Ok(Some([0, 0, packets.saturating_sub(misses), misses]))
            }
            Running::OvsDpdk(ovs) => Ok(Some(ovs.pmd_stats()?.hits)),
            _ => Ok(None),
        }
    }

    /// Whether Open vSwitch's exact match cache is before its table.
    pub fn has_exact_match_cache(&self) -> bool {
        matches!(self.switch, Running::OvsDpdk(_))
    }

    /// What it has done so far.
    pub fn work(&self) -> Result<Work> {
        match &self.switch {
            Running::Hyperswitch(switch) => Ok(our_work(&switch.placement()?)),
            Running::ByPorts(plane, _) => Ok(our_work(&lock(plane).work()?)),
            Running::Driven(ovs) => Ok(our_work(&ovs.switch().placement()?)),
            Running::Testpmd(switch) => {
                let [packets, busy_cycles, awake_cycles] = lock(switch).work()?;
                Ok(Work {
                    packets,
                    busy_cycles,
                    awake_cycles,
                })
            }
            Running::OvsDpdk(ovs) => {
                let stats = ovs.pmd_stats()?;
                Ok(Work {
                    packets: float(stats.packets),
                    busy_cycles: float(stats.busy_cycles),
                    awake_cycles: float(stats.awake_cycles),
                })
            }
            Running::Bridge(_) => bail!("a bridge does not count its work"),
        }
    }

    /// Time that its processes ran so far, and that of these processes of guests and the kernel's softirq
    /// threads, if there are any.
    pub fn run_time(&self, guests: &[u32]) -> RunTime {
        let mut roots = guests.to_vec();
        if !guests.is_empty() {
            roots.extend(softirq_threads());
        }
        match &self.switch {
            Running::Hyperswitch(switch) => roots.push(switch.supervisor()),
            Running::ByPorts(plane, _) => roots.push(lock(plane).pid()),
            Running::Driven(ovs) => roots.extend(ovs.pids()),
            Running::OvsDpdk(ovs) => roots.push(ovs.pid()),
            Running::Testpmd(switch) => roots.push(lock(switch).pid()),
            Running::Bridge(_) => {}
        }
        RunTime::of_families(&roots)
    }

    /// Processor time of what there is for this network's packets alone: with Open vSwitch, our data plane
    /// and what joins it to ovs-vswitchd; of others, all.
    pub fn own_run_time(&self) -> Result<RunTime> {
        match &self.switch {
            Running::Driven(ovs) => ovs.own_run_time(),
            _ => Ok(self.run_time(&[])),
        }
    }

    /// Our instance.
    pub fn ours(&self) -> Result<&Switch> {
        match &self.switch {
            Running::Hyperswitch(switch) => Ok(switch),
            _ => bail!("it is not ours"),
        }
    }

    /// The process that forwards for the way to the outside; only ours has one.
    pub fn forwarder_of_uplink(&self) -> Result<u32> {
        let status = self.ours()?.status()?;
        let process = status
            .processes
            .iter()
            .find(|process| process.role == "forwarder-1");
        process
            .and_then(|process| process.pid)
            .context("no uplink has a forwarder")
    }

    /// The ovs-vswitchd that drives our data plane.
    pub fn driven(&self) -> Result<&Driven> {
        match &self.switch {
            Running::Driven(ovs) => Ok(ovs),
            _ => bail!("no ovs-vswitchd drives it"),
        }
    }

    /// Proportional share of memory of its processes in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        match &self.switch {
            Running::Hyperswitch(switch) => switch.memory(),
            Running::ByPorts(plane, _) => lock(plane).memory(),
            Running::Driven(ovs) => ovs.memory(),
            Running::OvsDpdk(ovs) => ovs.memory(),
            Running::Testpmd(_) | Running::Bridge(_) => 0,
        }
    }

    /// Keeps it off the processors while others are measured: some poll for ever, and an idle processor is
    /// what others make use of. A bridge does nothing of its own.
    pub fn pause(&mut self) {
        match &mut self.switch {
            Running::Hyperswitch(switch) => switch.pause(),
            Running::ByPorts(plane, _) => lock(plane).pause(),
            Running::Driven(ovs) => ovs.pause(),
            Running::OvsDpdk(ovs) => ovs.pause(),
            Running::Testpmd(switch) => lock(switch).pause(),
            Running::Bridge(_) => {}
        }
    }

    /// The end of a pause.
    pub fn resume(&mut self) {
        match &mut self.switch {
            Running::Hyperswitch(switch) => switch.resume(),
            Running::ByPorts(plane, _) => lock(plane).resume(),
            Running::Driven(ovs) => ovs.resume(),
            Running::OvsDpdk(ovs) => ovs.resume(),
            Running::Testpmd(switch) => lock(switch).resume(),
            Running::Bridge(_) => {}
        }
    }

    /// Ends it; ours must have lost no packet from its accounts.
    pub fn stop(self) -> Result<()> {
        match self.switch {
            Running::Hyperswitch(switch) => {
                switch.wait_until_accounted()?;
                switch.stop()
            }
            Running::ByPorts(plane, _) => plane.into_inner().unwrap_or_else(PoisonError::into_inner).stop(),
            Running::Driven(ovs) => ovs.stop(),
            Running::OvsDpdk(_) | Running::Testpmd(_) | Running::Bridge(_) => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn configuration(tables: &str, [of_each, of_last]: [&str; 2], like: Ports, ports: &[&str]) -> Result<String> {
    let mut text = format!("{tables}\n[[switch]]\nname = \"sw0\"\nmtu = {}\n", like.mtu);
    if let Some(lines) = like.uplink {
        writeln!(text, "type = \"external\"\nuplink = \"up0\"\n{lines}")?;
    }
    for (number, port) in (1..).zip(ports) {
        let lines = if number == ports.len() { of_last } else { of_each };
        write!(
            text,
            "[[switch.port]]\nname = \"{port}\"\nmac-limit = 4096\nstorm-control = 0\n{lines}"
        )?;
    }
    Ok(text)
}

/// All forwarding threads together.
fn our_work(report: &WorkReport) -> Work {
    let workers = &report.workers;
    Work {
        packets: float(workers.iter().map(|worker| worker.packets).sum()),
        busy_cycles: float(workers.iter().map(|worker| worker.busy_cycles).sum()),
        awake_cycles: float(workers.iter().map(|worker| worker.awake_cycles).sum()),
    }
}

/// With all flows in place before the first packet.
fn by_ports(ports: &[&str]) -> Result<(Controlled, usize)> {
    let mut plane = Controlled::start(ports)?;
    plane.join_by_udp_ports((0..MOST_FLOWS / 2).map(udp_ports))?;
    plane.register_guest(ports)?;
    let flows = plane.flows()?;
    Ok((plane, flows))
}

fn bridge(ports: &[&str], mtu: u16) -> Result<Bridge> {
    let bridge = Bridge::new("bridge", None)?;
    for port in ports {
        bridge.add_tap(port, "")?;
        bridge
            .namespace()
            .must(&format!("ip link set {port} mtu {mtu}"))?;
    }
    Ok(bridge)
}

/// Counters as floating point numbers: those of any benchmark are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_divided_by_packets() {
        let work = |packets, busy_cycles, awake_cycles| Work {
            packets,
            busy_cycles,
            awake_cycles,
        };
        let before = work(10.0, 1000.0, 5000.0);
        let cycles = work(30.0, 3000.0, 11_000.0).cycles_per_packet(&before);
        assert_eq!(cycles.expect("all have grown"), [100.0, 300.0]);
        for still in [
            work(10.0, 3000.0, 11_000.0),
            work(30.0, 1000.0, 11_000.0),
            work(30.0, 3000.0, 5000.0),
        ] {
            assert!(still.cycles_per_packet(&before).is_err(), "{still:?}");
        }
    }
}
