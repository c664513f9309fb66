//! `hyperswitch ovs ...`: Open vSwitch's own programs on a switch of the running instance.
//!
//! A private Open vSwitch has all its files in a directory below the run directory, which its programs find
//! by `OVS_RUNDIR`. Where that directory exists, these verbs and the process `ovs` use the private Open
//! vSwitch; otherwise the system's. Bridges and ports are read through ovs-vsctl, which knows the database
//! best.

mod daemon;
mod plug;
mod programs;
mod start;
mod status;
mod stop;
mod trace;

use crate::cli::OvsVerb;
use anyhow::{Result, bail};
use management::{Client, Reply, Request};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the system's Open vSwitch has its sockets.
const SYSTEM: &str = "/run/openvswitch";

/// Carries out a verb.
///
/// # Errors
/// When programs, processes or the instance are not there, or refuse.
pub fn run(verb: &OvsVerb, run_dir: &Path, timeout: Option<Duration>, json: bool) -> Result<()> {
    let usual = match verb {
        OvsVerb::Start { .. } | OvsVerb::Stop | OvsVerb::Plug { .. } => Duration::from_secs(30),
        OvsVerb::Status | OvsVerb::Trace(_) => crate::TIMEOUT,
    };
    let timeout = timeout.unwrap_or(usual);
    programs::set_timeout(timeout);
    // Programs that are started have other working directories, and printed paths are used in other
    // directories.
    let run_dir = &std::path::absolute(run_dir)?;
    match verb {
        OvsVerb::Start { shim } => start::run(run_dir, shim.as_deref(), json),
        OvsVerb::Stop => stop::run(run_dir, json),
        OvsVerb::Status => status::run(run_dir, json),
        OvsVerb::Trace(args) => trace::run(run_dir, args, json),
        OvsVerb::Plug {
            bridge,
            name,
            client,
            owner,
        } => {
            let [bridge, name] = [bridge, name].map(ToString::to_string);
            let owner = *owner;
            let client = client.as_deref().map(|path| plug::Listener { path, owner });
            plug::run(run_dir, &bridge, &name, client, json)
        }
    }
}

/// The directories in which Open vSwitch may have its sockets, the private one first.
pub fn places(run_dir: &Path) -> [PathBuf; 2] {
    [private(run_dir), SYSTEM.into()]
}

/// The directory of the private Open vSwitch.
fn private(run_dir: &Path) -> PathBuf {
    run_dir.join("openvswitch")
}

/// The directory of the Open vSwitch that is in use.
fn place(run_dir: &Path) -> Result<PathBuf> {
    let places = places(run_dir);
    match places.iter().find(|place| place.is_dir()) {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "no Open vSwitch runs here: neither {} nor {} is there; `hyperswitch ovs start` starts a private one",
            places[0].display(),
            places[1].display()
        ),
    }
}

/// The socket to which the VMM of a port connects.
fn socket(run_dir: &Path, port: &str) -> PathBuf {
    run_dir.join("ovs").join(format!("{port}.sock"))
}

/// Makes sure that the instance runs and serves an ovs-vswitchd.
fn check_instance(run_dir: &Path) -> Result<()> {
    let limit = programs::timeout();
    let Reply::Status(status) = Client::connect(run_dir, limit)?.call(&Request::Status)? else {
        bail!("the running instance is of another version");
    };
    match status.processes.iter().any(|process| process.role == "ovs") {
        true => Ok(()),
        false => bail!(
            "the running instance serves no Open vSwitch: write `enabled = true` into the table [ovs] of its configuration{} \
             and start it again",
            status
                .config
                .map_or_else(String::new, |path| format!(", {},", path.display()))
        ),
    }
}

/// What is printed as JSON.
#[cfg(test)]
pub mod outputs {
    pub use super::plug::Plugged;
    pub use super::start::Started;
    pub use super::status::Status;
    pub use super::stop::Stopped;
    pub use super::trace::Trace;
}
