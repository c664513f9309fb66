//! The product with an unmodified ovs-vswitchd that drives its data plane.
//!
//! What `hyperswitch ovs start` does, with processes that end with their handle: an instance with `[ovs]
//! enabled = true`, the distribution's ovsdb-server and ovs-vswitchd with their files in its run directory,
//! the latter with our library before it. Ports are vhost-user servers.

use super::Forwarding;
use super::client::Client;
use super::controller::{self, Controller};
use super::daemon::{Daemon, wait_for};
use crate::build_dir;
use crate::run_time::RunTime;
use crate::switch::{Role, Switch};
use anyhow::{Context, Result, ensure};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Debian's, also where its DPDK build is the default.
pub const PROGRAM: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";
const LIBRARY: &str = "libovs_shim.so";

/// A running instance with its ovs-vswitchd.
#[derive(Debug)]
pub struct Driven {
    daemon: Daemon,
    switch: Switch,
    /// Number of its ports, and what its tables are.
    tables: (usize, Forwarding),
}

impl Driven {
    /// Starts an instance with these ports and waits until they listen.
    pub fn start(ports: &[&str], forwarding: Forwarding) -> Result<Driven> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "Open vSwitch is missing: run scripts/setup --bench"
        );
        let library = build_dir::sibling(LIBRARY).with_context(|| {
            format!("no {LIBRARY} beside this program: build ovs-shim with the same profile")
        })?;
        let switch = Switch::start("[ovs]\nenabled = true\n")?;
        let directory = directory_of(&switch);
        std::fs::create_dir(&directory)?;
        let program = format!(
            "LD_PRELOAD={} HYPERSWITCH_OVS_SOCKET={} {PROGRAM}",
            library.display(),
            switch.run_dir().join("ovs.sock").display()
        );
        let daemon = Daemon::start(&directory, switch.host(), &program, forwarding.settings())?;
        let driven = Driven {
            daemon,
            switch,
            tables: (ports.len(), forwarding),
        };
        let server = "type=internal external_ids:vhost-user=server";
        driven.daemon.add_bridge("system", ports, server)?;
        driven.daemon.set_forwarding(ports.len(), forwarding)?;
        for port in ports {
            driven.wait_socket(port)?;
        }
        Ok(driven)
    }

    /// The instance.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// What the bridge's controller is called in `ovs-vsctl set-controller`, whether there is one or not.
    pub fn controller(&self) -> String {
        format!(
            "unix:{}",
            controller::socket(&directory_of(&self.switch)).display()
        )
    }

    /// Starts a controller, and waits until ovs-vswitchd has connected. `version` is as in `OpenFlow13`.
    pub fn start_controller(&self, version: &str) -> Result<Controller> {
        let controller = Controller::start(&directory_of(&self.switch), version)?;
        self.vsctl("wait-until Controller br0 is_connected=true")?;
        Ok(controller)
    }

    /// Kills the controller, and waits until ovs-vswitchd knows that it is gone.
    pub fn kill_controller(&self, controller: Controller) -> Result<()> {
        drop(controller);
        self.vsctl("wait-until Controller br0 is_connected=false")
    }

    /// The socket on which a port listens.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.switch.run_dir().join("ovs").join(format!("{port}.sock"))
    }

    /// Waits until a port that was added listens.
    pub fn wait_socket(&self, port: &str) -> Result<()> {
        wait_for(&self.socket(port)).with_context(|| self.switch.log())
    }

    /// `ovs-vsctl`.
    pub fn vsctl(&self, command: &str) -> Result<()> {
        self.daemon.vsctl(command)
    }

    /// `ovs-ofctl` with a flow, group or meter for the bridge.
    pub fn ofctl(&self, verb: &str, what: &str) -> Result<()> {
        self.daemon.ofctl(verb, &format!("'{what}'"))
    }

    /// `ovs-appctl`.
    pub fn appctl(&self, command: &str) -> Result<String> {
        self.daemon.appctl(command)
    }

    /// Flows that ovs-vswitchd has in the data plane.
    pub fn flows(&self) -> Result<usize> {
        self.daemon.flows()
    }

    /// Asks for all flows without keys, masks and actions, as ovs-vswitchd does, and returns how many there
    /// are once the last has come.
    pub fn dump_flows(&self) -> Result<usize> {
        Client::connect(&self.switch.run_dir().join("ovs.sock"))?.count_flows()
    }

    /// Packets for which ovs-vswitchd was asked.
    pub fn misses(&self) -> Result<u64> {
        parse_misses(&self.daemon.appctl("dpctl/show")?).context("cannot read dpctl/show")
    }

    /// Kills ovs-vswitchd, and starts another one after `pause`, with the same tables.
    pub fn replace_vswitchd(&self, pause: Duration) -> Result<()> {
        let (ports, forwarding) = self.tables;
        let fill = || self.daemon.set_forwarding(ports, forwarding);
        self.daemon.replace_switch(pause, fill)
    }

    /// Kills the process `ovs`, and waits until the supervisor has started another one. ovs-vswitchd ends
    /// with it; there is another one then, which elsewhere its monitor starts.
    pub fn replace_glue(&self) -> Result<()> {
        let old = self.switch.kill(Role::Ovs)?;
        self.switch.wait_replaced(Role::Ovs, old)?;
        self.replace_vswitchd(Duration::ZERO)
    }

    /// Time that the data plane and the process `ovs` ran so far.
    pub fn own_run_time(&self) -> Result<RunTime> {
        let processes = self.switch.status()?.processes.into_iter();
        let own: HashSet<u32> = processes
            .filter(|process| ["data-plane", "ovs"].contains(&process.role.as_str()))
            .filter_map(|process| process.pid)
            .collect();
        ensure!(own.len() == 2, "data plane and `ovs` do not both run");
        Ok(RunTime::of(&own))
    }

    /// The instance and the ovs-vswitchd, from which all their processes descend.
    pub fn pids(&self) -> [u32; 2] {
        [self.switch.supervisor(), self.daemon.pid()]
    }

    /// Proportional share of memory of all of it, in bytes.
    pub fn memory(&self) -> u64 {
        self.switch.memory() + self.daemon.memory()
    }

    /// Stops all of it where it is.
    pub fn pause(&mut self) {
        self.daemon.pause();
        self.switch.pause();
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.switch.resume();
        self.daemon.resume();
    }

    /// Ends it as users do, and checks that it leaves nothing behind.
    pub fn stop(self) -> Result<()> {
        // What stands for ports at the host stays until the bridge is gone.
        self.daemon.vsctl("del-br br0")?;
        drop(self.daemon);
        self.switch.stop()
    }
}

/// Where the process `ovs` looks for the database.
fn directory_of(switch: &Switch) -> PathBuf {
    switch.run_dir().join("openvswitch")
}

/// Reads `lookups: hit:21 missed:4 lost:0`.
fn parse_misses(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("missed:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_read() {
        let text = "system@ovs-system:\n  lookups: hit:21 missed:4 lost:0\n  flows: 0\n";
        assert_eq!(parse_misses(text), Some(4));
        assert_eq!(parse_misses("system@ovs-system:\n"), None);
    }
}
