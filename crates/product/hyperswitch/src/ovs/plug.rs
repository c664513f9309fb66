//! `ovs plug`.

use super::{check_instance, daemon, place, programs, socket};
use crate::output;
use anyhow::{Result, bail};
use management::UserId;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path that a Unix socket's address holds (unix(7)).
const MAX_PATH: usize = 107;
/// How long a port's socket may take to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// A port that is there, as JSON.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OvsPlugged")]
pub struct Plugged {
    bridge: String,
    port: String,
    socket: PathBuf,
    /// `server`: the switch listens; `client`: the VMM listens.
    mode: &'static str,
}

/// A VMM that listens.
pub struct Listener<'a> {
    pub path: &'a Path,
    pub owner: Option<UserId>,
}

pub fn run(run_dir: &Path, bridge: &str, name: &str, client: Option<Listener<'_>>, json: bool) -> Result<()> {
    check_instance(run_dir)?;
    let place = place(run_dir)?;
    if daemon::running(&place, daemon::SWITCH).is_none() {
        bail!("no ovs-vswitchd runs in {}", place.display());
    }
    let path = match &client {
        // A relative path is relative to the user's working directory.
        Some(client) => std::path::absolute(client.path)?,
        None => socket(run_dir, name),
    };
    if path.as_os_str().len() > MAX_PATH {
        bail!("{} is longer than {MAX_PATH} bytes", path.display());
    }
    let mut arguments = vec!["--may-exist", "add-port", bridge, name];
    arguments.extend(["--", "set", "Interface", name, "type=internal"]);
    // Strings of a database are written as in JSON.
    let named = format!("external_ids:vhost-user-path={}", serde_json::to_string(&path)?);
    let owner = client.as_ref().and_then(|client| client.owner);
    let owned = owner.map(|owner| format!("external_ids:vhost-user-owner={owner}"));
    // libvirt looks here for the interface whose statistics `virsh domifstat` shows.
    let asked_for = format!("options:vhost-server-path={}", serde_json::to_string(&path)?);
    match client {
        Some(_) => arguments.extend(["external_ids:vhost-user=client", &named, &asked_for]),
        None => arguments.push("external_ids:vhost-user=server"),
    }
    arguments.extend(owned.as_deref());
    let mut remove = |column, key| arguments.extend(["--", "remove", "Interface", name, column, key]);
    if client.is_none() {
        remove("external_ids", "vhost-user-path");
        remove("options", "vhost-server-path");
    }
    if owner.is_none() {
        remove("external_ids", "vhost-user-owner");
    }
    programs::ask(&place, "ovs-vsctl", &arguments)?;
    if client.is_none() {
        wait_for(&path, &place)?;
    }
    if json {
        let mode = if client.is_some() { "client" } else { "server" };
        return output::json(&Plugged {
            bridge: bridge.to_owned(),
            port: name.to_owned(),
            socket: path,
            mode,
        });
    }
    output::print(&format!("{}\n", path.display()))
}

/// The switch listens there a moment after the database was changed.
fn wait_for(path: &Path, place: &Path) -> Result<()> {
    let end = Instant::now() + APPEARS_WITHIN;
    while !path.exists() {
        if Instant::now() >= end {
            bail!(
                "the port is there, but nobody listens at {}: ovs-vswitchd in {} must run with libovs_shim.so, and `database` in the \
                 table [ovs] of the configuration must name its database or be left out",
                path.display(),
                place.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
