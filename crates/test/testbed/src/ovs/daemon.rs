//! A private Open vSwitch: ovsdb-server and ovs-vswitchd, with all their files in one directory and one
//! bridge, `br0`.

use super::Forwarding;
use crate::endpoint::{Endpoint, Host};
use crate::namespace::Namespace;
use crate::process::{self, Group};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// How long its programs may take to do what is asked of them.
const TIMEOUT: Duration = Duration::from_secs(60);

/// ovsdb-server and ovs-vswitchd; killed on drop.
#[derive(Debug)]
pub(super) struct Daemon {
    switch: Mutex<Group>,
    _database: Group,
    directory: PathBuf,
    netns: String,
    program: String,
}

impl Daemon {
    /// Starts both in a directory that is there. `program` is the ovs-vswitchd, with its environment before
    /// it, and `settings` are of the table `Open_vSwitch`.
    pub(super) fn start(
        directory: &Path,
        namespace: &Namespace,
        program: &str,
        settings: &str,
    ) -> Result<Daemon> {
        let database = start_database(directory)?;
        let set = if settings.trim().is_empty() {
            String::new()
        } else {
            format!("-- set Open_vSwitch . {settings}")
        };
        vsctl(directory, &format!("--no-wait init {set}"))?;
        Ok(Daemon {
            switch: start_switch(directory, namespace.netns(), program)?.into(),
            _database: database,
            directory: directory.to_owned(),
            netns: namespace.netns().to_owned(),
            program: program.to_owned(),
        })
    }

    fn switch(&self) -> MutexGuard<'_, Group> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills ovs-vswitchd, and starts another one after `pause`. OpenFlow tables end with a process; like
    /// Open vSwitch's start script this has the new one keep the flows of the data plane until `fill` has
    /// filled the tables again.
    pub(super) fn replace_switch(&self, pause: Duration, fill: impl FnOnce() -> Result<()>) -> Result<()> {
        {
            let mut switch = self.switch();
            switch.kill();
            thread::sleep(pause);
            std::fs::remove_file(self.bridge())?;
            self.vsctl("--no-wait set Open_vSwitch . other_config:flow-restore-wait=true")?;
            *switch = start_switch(&self.directory, &self.netns, &self.program)?;
        }
        wait_for(&self.bridge())?;
        fill()?;
        self.vsctl("remove Open_vSwitch . other_config flow-restore-wait=true")
    }

    /// Adds the bridge with ports, which are numbered from 1 on. `interface` says what is set of each.
    pub(super) fn add_bridge(&self, datapath_type: &str, ports: &[&str], interface: &str) -> Result<()> {
        let mut commands =
            format!("add-br br0 -- set bridge br0 datapath_type={datapath_type} fail_mode=secure");
        for (number, port) in (1..).zip(ports) {
            write!(
                commands,
                " -- add-port br0 {port} -- set interface {port} {interface} ofport_request={number}"
            )?;
        }
        self.vsctl(&commands)
            .with_context(|| format!("Open vSwitch does not come up:\n{}", self.log()))?;
        wait_for(&self.bridge())?;
        // The bridge's own interface has nobody behind it.
        self.ofctl("mod-port", "br0 no-flood")
    }

    fn bridge(&self) -> PathBuf {
        self.directory.join("br0.mgmt")
    }

    /// Puts flows, groups and meters into the bridge's tables.
    pub(super) fn set_forwarding(&self, ports: usize, forwarding: Forwarding) -> Result<()> {
        for meter in forwarding.meters() {
            self.ofctl("add-meter", &format!("'{meter}'"))?;
        }
        for group in forwarding.groups(ports) {
            self.ofctl("add-group", &format!("'{group}'"))?;
        }
        let file = self.directory.join("flows");
        std::fs::write(&file, forwarding.flows(ports).join("\n"))?;
        self.ofctl("add-flows", &file.display().to_string())
    }

    /// `ovs-ofctl` on the bridge.
    pub(super) fn ofctl(&self, verb: &str, arguments: &str) -> Result<()> {
        let bridge = self.bridge();
        let command = format!("ovs-ofctl -O OpenFlow15 {verb} {} {arguments}", bridge.display());
        Host.must(&command).map(drop)
    }

    /// `ovs-vsctl`.
    pub(super) fn vsctl(&self, command: &str) -> Result<()> {
        vsctl(&self.directory, command)
    }

    /// `ovs-appctl`.
    pub(super) fn appctl(&self, command: &str) -> Result<String> {
        let control = self.directory.join("vswitchd.ctl");
        Host.must(&format!("ovs-appctl -t {} {command}", control.display()))
            .with_context(|| format!("Open vSwitch says:\n{}", self.log()))
    }

    /// Flows in the data plane's tables.
    pub(super) fn flows(&self) -> Result<usize> {
        // Open vSwitch lowers the limit when looking through them took long, which it believes after a pause.
        self.appctl("upcall/set-flow-limit 1000000")?;
        parse_flows(&self.appctl("upcall/show")?).context("cannot read upcall/show")
    }

    /// What ovs-vswitchd logged.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("vswitchd.log")).unwrap_or_default()
    }

    /// The process that starts ovs-vswitchd, or is it.
    pub(super) fn pid(&self) -> u32 {
        self.switch().pid()
    }

    /// Proportional share of its memory in bytes, without huge pages.
    pub(super) fn memory(&self) -> u64 {
        process::memory(self.switch().pid())
    }

    /// Stops ovs-vswitchd where it is.
    pub(super) fn pause(&mut self) {
        self.switch().signal_all(Signal::STOP);
    }

    /// Lets it go on.
    pub(super) fn resume(&mut self) {
        self.switch().signal_all(Signal::CONT);
    }
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

/// Waits until a file is there, of a socket for instance.
pub(super) fn wait_for(file: &Path) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !file.exists() {
        ensure!(Instant::now() < deadline, "nobody listens on {}", file.display());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn start_switch(directory: &Path, netns: &str, program: &str) -> Result<Group> {
    let mut command = process::command("ip");
    command.args(["netns", "exec", netns, "env"]);
    command
        .args(program.split(' '))
        .arg(format!("unix:{}", directory.join("db.sock").display()))
        .arg(format!("--unixctl={}", directory.join("vswitchd.ctl").display()))
        .arg(format!("--log-file={}", directory.join("vswitchd.log").display()))
        .arg("-vconsole:off");
    start(command, directory)
}

/// Starts a program of Open vSwitch's with its files in a directory.
pub(super) fn start(mut command: Command, directory: &Path) -> Result<Group> {
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
        TIMEOUT.as_secs()
    ))
    .map(drop)
}

/// Reads `flows         : (current 7) (avg 8) (max 9) (limit 200000)`.
fn parse_flows(text: &str) -> Option<usize> {
    let line = text.lines().find(|line| line.trim_start().starts_with("flows"))?;
    let (_, rest) = line.split_once("(current")?;
    rest.split_once(')')?.0.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read() {
        let flows = "netdev@ovs-netdev:\n  flows         : (current 7) (avg 8) (max 9) (limit 200000)\n";
        assert_eq!(parse_flows(flows), Some(7));
        assert_eq!(parse_flows("netdev@ovs-netdev:\n"), None);
    }
}
