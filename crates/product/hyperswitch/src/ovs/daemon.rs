//! ovsdb-server and ovs-vswitchd, each with a PID file in the directory of their sockets.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub const DATABASE: &str = "ovsdb-server";
pub const SWITCH: &str = "ovs-vswitchd";

/// How long a daemon may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a daemon may take to end when it is asked to, before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The running process, by its PID file.
pub fn running(place: &Path, name: &str) -> Option<Pid> {
    let text = std::fs::read_to_string(place.join(format!("{name}.pid"))).ok()?;
    let pid = Pid::from_raw(text.trim().parse().ok()?)?;
    // The file of a process that was killed stays, and its number may be another process's by now.
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (command.trim_end() == name).then_some(pid)
}

/// Starts a daemon with these arguments, under a monitor that starts it again when it crashes, and waits
/// until it is ready.
///
/// # Errors
/// The daemon cannot be started, or is not ready in time; then it is ended.
pub fn start(place: &Path, name: &str, command: &mut Command) -> Result<Pid> {
    let log = place.join(format!("{name}.log"));
    command
        .args([
            "--detach",
            "--monitor",
            "--no-chdir",
            "--pidfile",
            "-vconsole:off",
            "-vsyslog:off",
        ])
        .arg(format!("--log-file={}", log.display()));
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    // With --detach it ends once the daemon is ready.
    let end = Instant::now() + READY_WITHIN;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(PAUSE),
            None => {
                child.kill()?;
                break child.wait()?;
            }
        }
    };
    match running(place, name) {
        Some(pid) if status.success() => Ok(pid),
        _ => {
            stop(place, name)?;
            bail!("{name} does not become ready ({status}): see {}", log.display())
        }
    }
}

/// Ends a daemon, and returns which process it was. Its monitor ends with it.
///
/// # Errors
/// The daemon does not end.
pub fn stop(place: &Path, name: &str) -> Result<Option<Pid>> {
    let Some(pid) = running(place, name) else {
        return Ok(None);
    };
    for signal in [Signal::TERM, Signal::KILL] {
        kill_process(pid, signal).with_context(|| format!("cannot end {name}, process {pid}"))?;
        let end = Instant::now() + END_WITHIN;
        while Instant::now() < end {
            if running(place, name) != Some(pid) {
                return Ok(Some(pid));
            }
            std::thread::sleep(PAUSE);
        }
    }
    bail!("{name}, process {pid}, does not end")
}
