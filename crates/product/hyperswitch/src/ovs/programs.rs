//! Programs of Open vSwitch.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// How long programs, and the running instance, may take.
static TIMEOUT: OnceLock<Duration> = OnceLock::new();

/// Sets how long programs may take. The first call counts: a command carries out one verb.
pub fn set_timeout(timeout: Duration) {
    let _ = TIMEOUT.set(timeout);
}

/// How long programs may take.
pub fn timeout() -> Duration {
    *TIMEOUT.get_or_init(|| crate::TIMEOUT)
}

/// A program of Open vSwitch, which works in the directory `place`.
///
/// # Errors
/// The program is not installed.
pub fn command(place: &Path, name: &str) -> Result<Command> {
    // Users' paths may lack the directories of administrators.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(usual);
    let Some(program) = places.find_map(|place| Some(place.join(name)).filter(|path| path.is_file())) else {
        bail!("{name} is not there: install Open vSwitch (Debian: apt-get install openvswitch-switch)");
    };
    let mut command = Command::new(program);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, place);
    }
    Ok(command)
}

/// The output of ovs-vsctl or ovs-appctl.
///
/// # Errors
/// The program fails; with its error output.
pub fn ask(place: &Path, name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = command(place, name)?;
    let timeout = format!("--timeout={}", timeout().as_secs().max(1));
    run(command.arg(timeout).args(arguments))
}

/// The version in what a program says of itself: the last word of the first line.
pub fn version(said: &str) -> &str {
    let first = said.lines().next().unwrap_or_default();
    first.rsplit(' ').next().unwrap_or_default()
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// As [`ask`].
pub fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}: {}", output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
