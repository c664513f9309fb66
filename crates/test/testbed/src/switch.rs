//! The product under test, run as users run it: the `hyperswitch` executable with a configuration file, asked
//! through its command line.
//!
//! Each instance has a temporary run directory and a namespace of its own that stands for the host: the TAPs
//! of internal switches appear there, so that instances side by side do not collide and the machine's network
//! is not touched. The log goes to a file and is printed when the instance was not stopped in good order.

use crate::build_dir;
use crate::process::{self, Group};
use crate::{Endpoint, Namespace};
use anyhow::{Context, Result, bail, ensure};
use control_protocol::work::WorkReport;
use management::{FlowInfo, MacInfo, PortInfo, Stats, Status};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the switch may take to execute a request.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// A supervised process, by the name `hyperswitch status` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Maps guest memory and forwards.
    DataPlane,
    /// Decides, and talks to users.
    Control,
    /// Opens TAPs and devices.
    Driver,
    /// Forwards for TAPs.
    Taps,
    /// Joins an ovs-vswitchd to the data plane.
    Ovs,
    /// Serves clients of P4Runtime.
    P4Runtime,
}

impl Role {
    /// As `hyperswitch status` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Role::DataPlane => "data-plane",
            Role::Control => "control",
            Role::Driver => "driver",
            Role::Taps => "forwarder-0",
            Role::Ovs => "ovs",
            Role::P4Runtime => "p4runtime",
        }
    }
}

/// A running instance; ended on drop.
#[derive(Debug)]
pub struct Switch {
    group: Group,
    binary: PathBuf,
    directory: TempDir,
    host: Namespace,
    stopped_well: bool,
}

/// The executable: `HYPERSWITCH_BIN`, or beside the program that runs.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HYPERSWITCH_BIN") {
        return std::path::absolute(path).context("HYPERSWITCH_BIN");
    }
    build_dir::sibling("hyperswitch")
        .context("no hyperswitch beside this program: build it with the same profile, or set HYPERSWITCH_BIN")
}

fn run_dir() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("hs-run-").tempdir()
}

impl Switch {
    /// Starts an instance with this configuration (TOML) and waits until it answers.
    pub fn start(config: &str) -> Result<Switch> {
        Switch::start_at(config, run_dir()?)
    }

    /// As [`start`](Self::start), of another executable.
    pub fn start_program(binary: PathBuf, config: &str) -> Result<Switch> {
        Switch::run(binary, config, run_dir()?)
    }

    /// As [`start`](Self::start), with a run directory given.
    pub fn start_at(config: &str, directory: TempDir) -> Result<Switch> {
        Switch::run(binary()?, config, directory)
    }

    fn run(binary: PathBuf, config: &str, directory: TempDir) -> Result<Switch> {
        let host = Namespace::new("host")?;
        std::fs::write(directory.path().join("config.toml"), config)?;
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut command = process::command("ip");
        command
            .args(["netns", "exec", host.netns()])
            .arg(&binary)
            .arg("--run-dir")
            .arg(directory.path());
        command
            .args(["run", "--config"])
            .arg(directory.path().join("config.toml"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let group = Group::spawn(command)?;
        let mut switch = Switch {
            group,
            binary,
            directory,
            host,
            stopped_well: false,
        };
        switch.wait_until_it_answers()?;
        Ok(switch)
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer = self.status();
            match answer {
                Ok(status) if status.data_plane.is_some() && status.driver_connected => return Ok(()),
                _ => {}
            }
            if let Some(status) = self.group.ended() {
                bail!("hyperswitch run ended with {status}:\n{}", self.log());
            }
            if Instant::now() > deadline {
                bail!("hyperswitch does not come up: {answer:?}\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Run directory.
    pub fn run_dir(&self) -> &Path {
        self.directory.path()
    }

    /// The executable.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The socket of a vhost-user port without `socket` in its configuration.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.directory.path().join(format!("{port}.sock"))
    }

    /// The namespace in which host interfaces appear.
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// The log of the processes.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Runs a verb: `hyperswitch --run-dir ... <arguments>`; returns its output. Fails if it does.
    pub fn verb(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.binary)
            .arg("--run-dir")
            .arg(self.run_dir())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        if !output.status.success() {
            let (stdout, stderr) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            bail!(
                "hyperswitch {}: {}\n{stdout}{stderr}",
                arguments.join(" "),
                output.status
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.verb(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("hyperswitch {} printed {text}", arguments.join(" ")))
    }

    /// `hyperswitch status`.
    pub fn status(&self) -> Result<Status> {
        Ok(serde_json::from_value(self.json(&["status"])?)?)
    }

    /// `hyperswitch stats`.
    pub fn stats(&self) -> Result<Stats> {
        Ok(serde_json::from_value(self.json(&["stats"])?)?)
    }

    /// `hyperswitch stats placement`.
    pub fn placement(&self) -> Result<WorkReport> {
        Ok(serde_json::from_value(self.json(&["stats", "placement"])?)?)
    }

    /// `hyperswitch port list`.
    pub fn ports(&self) -> Result<Vec<PortInfo>> {
        Ok(serde_json::from_value(self.json(&["port", "list"])?)?)
    }

    /// `hyperswitch mac list`.
    pub fn macs(&self) -> Result<Vec<MacInfo>> {
        Ok(serde_json::from_value(self.json(&["mac", "list"])?)?)
    }

    /// `hyperswitch flow list`.
    pub fn flows(&self) -> Result<Vec<FlowInfo>> {
        Ok(serde_json::from_value(self.json(&["flow", "list"])?)?)
    }

    /// Counters of one port.
    pub fn counters(&self, port: &str) -> Result<management::Counters> {
        let stats = self.stats()?;
        let found = stats.ports.into_iter().find(|stats| stats.port == port);
        found
            .map(|stats| stats.counters)
            .with_context(|| format!("no counters of port {port}"))
    }

    /// Waits until a port is in a state: `disconnected`, `connected`, `running`, `broken`.
    pub fn wait_port(&self, port: &str, state: &str) -> Result<()> {
        let mut last = String::new();
        self.wait(|| {
            let ports = self.ports()?;
            let info = ports
                .iter()
                .find(|info| info.name == port)
                .with_context(|| format!("no port {port}"))?;
            last = format!("{} {:?}", info.state, info.problem);
            Ok(info.state == state)
        })
        .with_context(|| format!("port {port} does not become {state}, it is {last}"))
    }

    /// Replaces the configuration and has it applied.
    pub fn reload(&self, config: &str) -> Result<String> {
        std::fs::write(self.directory.path().join("config.toml"), config)?;
        self.verb(&["reload"])
    }

    /// Process identifier of a supervised process.
    pub fn pid(&self, role: Role) -> Result<u32> {
        let status = self.status()?;
        let process = status
            .processes
            .iter()
            .find(|process| process.role == role.name());
        process
            .and_then(|process| process.pid)
            .with_context(|| format!("no {} process", role.name()))
    }

    /// kill -9 of a supervised process; returns its process identifier.
    pub fn kill(&self, role: Role) -> Result<u32> {
        self.signal(role, Signal::KILL)
    }

    /// Sends a signal to a supervised process; returns its process identifier.
    pub fn signal(&self, role: Role, signal: Signal) -> Result<u32> {
        let pid = self.pid(role)?;
        let target = Pid::from_raw(pid.cast_signed()).context("process identifiers are positive")?;
        rustix::process::kill_process(target, signal)?;
        Ok(pid)
    }

    /// Waits until a process that had `old` as identifier has been replaced and everything is connected
    /// again.
    pub fn wait_replaced(&self, role: Role, old: u32) -> Result<()> {
        self.wait(|| {
            let Ok(status) = self.status() else {
                return Ok(false);
            };
            let pid = status
                .processes
                .iter()
                .find(|process| process.role == role.name())
                .and_then(|process| process.pid);
            Ok(pid.is_some_and(|pid| pid != old) && status.data_plane.is_some() && status.driver_connected)
        })
        .with_context(|| format!("the {} process does not come back:\n{}", role.name(), self.log()))
    }

    /// Waits until nothing is under way and checks the conservation law on every port. Returns the counters.
    pub fn wait_until_accounted(&self) -> Result<Stats> {
        let mut last = None;
        let accounted = self.wait(|| {
            let stats = self.stats()?;
            let accounted = stats.ports.iter().all(|port| {
                let counters = &port.counters;
                counters.in_flight == 0
                    && counters.upcalls == counters.injected + counters.discarded.values().sum::<u64>()
            });
            last = Some(stats);
            Ok(accounted)
        });
        accounted.with_context(|| format!("packets are not accounted for: {last:#?}"))?;
        let stats = last.context("it is accounted")?;
        for port in &stats.ports {
            let counters = &port.counters;
            let come = counters.received + counters.injected + counters.copies;
            let gone = counters.delivered + counters.upcalls + counters.dropped.values().sum::<u64>();
            ensure!(
                come == gone,
                "port {}: {come} packets came, {gone} are accounted for: {counters:#?}",
                port.port
            );
        }
        Ok(stats)
    }

    /// Waits until `done`, at most [`TIMEOUT`].
    pub fn wait(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !done()? {
            ensure!(Instant::now() < deadline, "not within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Process identifier of the supervisor.
    pub fn supervisor(&self) -> u32 {
        self.group.pid()
    }

    /// Process identifiers of the supervisor and its children.
    pub fn pids(&self) -> Vec<u32> {
        let supervisor = self.group.pid();
        let children = process::all_processes()
            .into_iter()
            .filter(|stat| stat.parent == supervisor);
        [supervisor]
            .into_iter()
            .chain(children.map(|stat| stat.pid))
            .collect()
    }

    /// Proportional share of memory of all its processes, in bytes.
    pub fn memory(&self) -> u64 {
        self.pids().into_iter().map(process::memory).sum()
    }

    /// Stops all its processes where they are, so that they leave the processors to others.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Each process is in a group of its own.
    fn signal_all(&self, signal: Signal) {
        for pid in self
            .pids()
            .into_iter()
            .filter_map(|pid| Pid::from_raw(pid.cast_signed()))
        {
            // One that has just ended is no error.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Ends the instance as users do, with SIGTERM, and checks that it leaves nothing behind.
    pub fn stop(mut self) -> Result<()> {
        let pids = self.pids();
        self.group.signal(Signal::TERM);
        let status = self
            .group
            .wait(TIMEOUT)
            .with_context(|| format!("SIGTERM does not end it:\n{}", self.log()))?;
        ensure!(
            status.success(),
            "hyperswitch run ended with {status}:\n{}",
            self.log()
        );
        let left: Vec<u32> = pids
            .into_iter()
            .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .collect();
        ensure!(left.is_empty(), "processes {left:?} are still there");
        let sockets = std::fs::read_dir(self.run_dir())?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".sock"))
            .collect::<Vec<_>>();
        ensure!(sockets.is_empty(), "sockets are left behind: {sockets:?}");
        let interfaces = self.host.must("ip -o link show type tun")?;
        ensure!(interfaces.is_empty(), "interfaces are left behind: {interfaces}");
        self.stopped_well = true;
        Ok(())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.group.ended().is_none() {
            self.group.signal(Signal::TERM);
            self.group.wait(Duration::from_secs(5));
        }
        self.group.kill();
        if self.stopped_well {
            return;
        }
        println!("--- log of {}\n{}---", self.run_dir().display(), self.log());
    }
}
