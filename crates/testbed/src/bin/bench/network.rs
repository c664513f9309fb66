//! A contender that runs, with ports for guests, in one shape for all of them.

use crate::contender::{Contender, Kind};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use testbed::masking::MaskingProxy;
use testbed::run_time::{RunTime, softirq_threads};
use testbed::{Bridge, Guest, GuestOptions, OvsDpdk, Switch};

/// A running contender.
pub struct Network {
    switch: Running,
    /// Processors on which its guests run, from the first one on.
    for_guests: usize,
}

enum Running {
    Hyperswitch(Switch),
    OvsDpdk(OvsDpdk, Vec<MaskingProxy>),
    Bridge(Bridge),
}

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
            Kind::Hyperswitch { config, port } => {
                Switch::start(&configuration(config, port, ports)?).map(Running::Hyperswitch)
            }
            Kind::OvsDpdk(forwarding, caches) => {
                OvsDpdk::start(ports, forwarding, caches).map(|ovs| Running::OvsDpdk(ovs, Vec::new()))
            }
            Kind::Bridge => bridge(ports).map(Running::Bridge),
        };
        let processors = thread::available_parallelism()?.get();
        let dedicated = usize::from(contender.dedicated && processors > 1);
        Ok(Network {
            switch: switch.with_context(|| format!("cannot start {}", contender.name))?,
            for_guests: processors - dedicated,
        })
    }

    /// The sockets of ports, for a polling guest.
    pub fn sockets(&self, ports: &[&str]) -> Result<Vec<PathBuf>> {
        match &self.switch {
            Running::Hyperswitch(switch) => Ok(ports.iter().map(|port| switch.socket(port)).collect()),
            Running::OvsDpdk(ovs, _) => Ok(ports.iter().map(|port| ovs.socket(port)).collect()),
            Running::Bridge(_) => bail!("a bridge has no sockets"),
        }
    }

    /// The processor of guest number `index`, as operators pin vCPUs: guests take turns, a core that switches has none.
    pub fn processor(&self, index: usize) -> usize {
        index % self.for_guests
    }

    /// Connects a guest with a kernel to a port.
    pub fn attach(&mut self, port: &str, guest: GuestOptions) -> Result<GuestOptions> {
        Ok(match &mut self.switch {
            Running::Hyperswitch(switch) => guest.vhost_user(switch.socket(port)),
            Running::OvsDpdk(ovs, proxies) => {
                let proxy = MaskingProxy::start(&ovs.socket(port))?;
                let guest = guest.vhost_user(proxy.socket());
                proxies.push(proxy);
                guest
            }
            Running::Bridge(bridge) => guest.tap(port, Some(bridge.namespace().netns())),
        })
    }

    /// What it has done so far.
    pub fn work(&self) -> Result<Work> {
        match &self.switch {
            Running::Hyperswitch(switch) => our_work(switch),
            Running::OvsDpdk(ovs, _) => {
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

    /// Processor seconds of its processes. A bridge works in its guests' time and has none.
    pub fn cpu_seconds(&self) -> f64 {
        match &self.switch {
            Running::Hyperswitch(switch) => switch.cpu_seconds(),
            Running::OvsDpdk(ovs, _) => ovs.cpu_seconds(),
            Running::Bridge(_) => 0.0,
        }
    }

    /// Time that its processes ran so far, and that of these guests and the kernel's softirq threads, if there are any.
    pub fn run_time(&self, guests: &[Guest]) -> RunTime {
        let mut roots: Vec<u32> = guests.iter().map(Guest::pid).collect();
        if !guests.is_empty() {
            roots.extend(softirq_threads());
        }
        match &self.switch {
            Running::Hyperswitch(switch) => roots.push(switch.supervisor()),
            Running::OvsDpdk(ovs, _) => roots.push(ovs.pid()),
            Running::Bridge(_) => {}
        }
        RunTime::of_families(&roots)
    }

    /// Proportional share of memory of its processes in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        match &self.switch {
            Running::Hyperswitch(switch) => switch.memory(),
            Running::OvsDpdk(ovs, _) => ovs.memory(),
            Running::Bridge(_) => 0,
        }
    }

    /// Keeps it off the processors while others are measured: some poll for ever, and an idle processor is what others
    /// make use of. A bridge does nothing of its own.
    pub fn pause(&mut self) {
        match &mut self.switch {
            Running::Hyperswitch(switch) => switch.pause(),
            Running::OvsDpdk(ovs, _) => ovs.pause(),
            Running::Bridge(_) => {}
        }
    }

    /// The end of a pause.
    pub fn resume(&mut self) {
        match &mut self.switch {
            Running::Hyperswitch(switch) => switch.resume(),
            Running::OvsDpdk(ovs, _) => ovs.resume(),
            Running::Bridge(_) => {}
        }
    }

    /// Ends it; ours must have lost no packet from its accounts.
    pub fn stop(self) -> Result<()> {
        match self.switch {
            Running::Hyperswitch(switch) => {
                switch.settle()?;
                switch.stop()
            }
            Running::OvsDpdk(..) | Running::Bridge(_) => Ok(()),
        }
    }
}

fn configuration(tables: &str, of_port: &str, ports: &[&str]) -> Result<String> {
    let mut text = format!("{tables}\n[[switch]]\nname = \"sw0\"\n");
    for port in ports {
        write!(
            text,
            "[[switch.port]]\nname = \"{port}\"\nmac-limit = 4096\n{of_port}"
        )?;
    }
    Ok(text)
}

/// All forwarding threads together.
fn our_work(switch: &Switch) -> Result<Work> {
    let workers = switch.placement()?.workers;
    Ok(Work {
        packets: float(workers.iter().map(|worker| worker.packets).sum()),
        busy_cycles: float(workers.iter().map(|worker| worker.busy_cycles).sum()),
        awake_cycles: float(workers.iter().map(|worker| worker.awake_cycles).sum()),
    })
}

fn bridge(ports: &[&str]) -> Result<Bridge> {
    let bridge = Bridge::new("bridge", None)?;
    for port in ports {
        bridge.add_tap(port, "")?;
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
