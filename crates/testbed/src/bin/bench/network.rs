//! A contender that runs, with ports for guests, in one shape for all of them.

use crate::contender::{Contender, Kind};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::path::PathBuf;
use testbed::masking::MaskingProxy;
use testbed::{Bridge, GuestOptions, OvsDpdk, Switch};

/// A running contender.
pub enum Network {
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
}

impl Work {
    /// Busy cycles per packet since `before`.
    pub fn busy_cycles_per_packet(&self, before: &Work) -> Result<f64> {
        let (packets, cycles) = (
            self.packets - before.packets,
            self.busy_cycles - before.busy_cycles,
        );
        ensure!(
            packets > 0.0 && cycles > 0.0,
            "the switch has counted {packets} packets and {cycles} cycles"
        );
        Ok(cycles / packets)
    }
}

impl Network {
    /// Starts a switch with vhost-user ports (TAPs for the bridge) of these names.
    pub fn start(contender: &Contender, ports: &[&str]) -> Result<Network> {
        let network = match contender.kind {
            Kind::Hyperswitch { config, port } => {
                Switch::start(&configuration(config, port, ports)?).map(Network::Hyperswitch)
            }
            Kind::OvsDpdk(forwarding) => {
                OvsDpdk::start(ports, forwarding).map(|ovs| Network::OvsDpdk(ovs, Vec::new()))
            }
            Kind::Bridge => bridge(ports).map(Network::Bridge),
        };
        network.with_context(|| format!("cannot start {}", contender.name))
    }

    /// The sockets of ports, for a polling guest.
    pub fn sockets(&self, ports: &[&str]) -> Result<Vec<PathBuf>> {
        match self {
            Network::Hyperswitch(switch) => Ok(ports.iter().map(|port| switch.socket(port)).collect()),
            Network::OvsDpdk(ovs, _) => Ok(ports.iter().map(|port| ovs.socket(port)).collect()),
            Network::Bridge(_) => bail!("a bridge has no sockets"),
        }
    }

    /// Connects a guest with a kernel to a port.
    pub fn attach(&mut self, port: &str, guest: GuestOptions) -> Result<GuestOptions> {
        Ok(match self {
            Network::Hyperswitch(switch) => guest.vhost_user(switch.socket(port)),
            Network::OvsDpdk(ovs, proxies) => {
                let proxy = MaskingProxy::start(&ovs.socket(port))?;
                let guest = guest.vhost_user(proxy.socket());
                proxies.push(proxy);
                guest
            }
            Network::Bridge(bridge) => guest.tap(port, Some(bridge.namespace().netns())),
        })
    }

    /// What it has done so far.
    pub fn work(&self) -> Result<Work> {
        match self {
            Network::Hyperswitch(switch) => our_work(switch),
            Network::OvsDpdk(ovs, _) => {
                let stats = ovs.pmd_stats()?;
                Ok(Work {
                    packets: float(stats.packets),
                    busy_cycles: float(stats.busy_cycles),
                })
            }
            Network::Bridge(_) => bail!("a bridge does not count its work"),
        }
    }

    /// Processor seconds of its processes. A bridge works in its guests' time and has none.
    pub fn cpu_seconds(&self) -> f64 {
        match self {
            Network::Hyperswitch(switch) => switch.cpu_seconds(),
            Network::OvsDpdk(ovs, _) => ovs.cpu_seconds(),
            Network::Bridge(_) => 0.0,
        }
    }

    /// Proportional share of memory of its processes in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        match self {
            Network::Hyperswitch(switch) => switch.memory(),
            Network::OvsDpdk(ovs, _) => ovs.memory(),
            Network::Bridge(_) => 0,
        }
    }

    /// Keeps it off the processors while others are measured: some poll for ever, and an idle processor is what others
    /// make use of. A bridge does nothing of its own.
    pub fn pause(&mut self) {
        match self {
            Network::Hyperswitch(switch) => switch.pause(),
            Network::OvsDpdk(ovs, _) => ovs.pause(),
            Network::Bridge(_) => {}
        }
    }

    /// The end of a pause.
    pub fn resume(&mut self) {
        match self {
            Network::Hyperswitch(switch) => switch.resume(),
            Network::OvsDpdk(ovs, _) => ovs.resume(),
            Network::Bridge(_) => {}
        }
    }

    /// Ends it; ours must have lost no packet from its accounts.
    pub fn stop(self) -> Result<()> {
        match self {
            Network::Hyperswitch(switch) => {
                switch.settle()?;
                switch.stop()
            }
            Network::OvsDpdk(..) | Network::Bridge(_) => Ok(()),
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
