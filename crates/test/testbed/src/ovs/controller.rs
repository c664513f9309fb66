//! Open vSwitch's own OpenFlow controller, a learning switch: it floods what is for an address that it does
//! not know, and installs a flow for what is for one that it knows.

use super::daemon::{start, wait_for};
use crate::process::{self, Group};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};

/// Debian's, of the package `openvswitch-testcontroller`.
pub const CONTROLLER: &str = "/usr/bin/ovs-testcontroller";

/// A running controller; killed on drop. Its flows have no timeouts, and outlive it.
#[derive(Debug)]
pub struct Controller {
    _process: Group,
}

impl Controller {
    /// Starts one that listens for the bridge of the Open vSwitch in this directory. `version` is as in
    /// `OpenFlow13`.
    pub(super) fn start(directory: &Path, version: &str) -> Result<Controller> {
        ensure!(
            Path::new(CONTROLLER).exists(),
            "{CONTROLLER} is missing: run scripts/setup --ovs"
        );
        let socket = socket(directory);
        // One that was killed has left it.
        if socket.exists() {
            std::fs::remove_file(&socket)?;
        }
        let mut command = process::command(CONTROLLER);
        command
            .arg(format!("punix:{}", socket.display()))
            .arg(format!("--protocols={version}"))
            .arg("--max-idle=permanent")
            .arg(format!(
                "--unixctl={}",
                directory.join("controller.ctl").display()
            ))
            .arg(format!(
                "--log-file={}",
                directory.join("controller.log").display()
            ))
            .arg("-vconsole:off");
        let process = start(command, directory)?;
        wait_for(&socket)?;
        Ok(Controller { _process: process })
    }
}

/// The one Unix socket of a bridge's controller to which ovs-vswitchd connects.
pub(super) fn socket(directory: &Path) -> PathBuf {
    directory.join("br0.controller")
}
