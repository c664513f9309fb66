//! `ovs stop`.

use super::{daemon, private};
use crate::output;
use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// Processes that have ended, as JSON; none for one that was not running.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "OvsStopped")]
pub struct Stopped {
    ovsdb_server: Option<i32>,
    ovs_vswitchd: Option<i32>,
}

pub fn run(run_dir: &Path, json: bool) -> Result<()> {
    let place = private(run_dir);
    // ovs-vswitchd first: it writes to the database until it ends.
    let ended = [daemon::SWITCH, daemon::DATABASE]
        .map(|name| daemon::stop(&place, name).map(|ended| (name, ended)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    if json {
        let pid = |name| {
            let found = ended.iter().find(|(ended, _)| *ended == name);
            found.and_then(|(_, pid)| *pid).map(|pid| pid.as_raw_pid())
        };
        return output::json(&Stopped {
            ovsdb_server: pid(daemon::DATABASE),
            ovs_vswitchd: pid(daemon::SWITCH),
        });
    }
    let lines = ended.into_iter().map(|(name, pid)| match pid {
        Some(pid) => format!("{name}, process {pid}, has ended.\n"),
        None => format!("{name} was not running.\n"),
    });
    output::print(&lines.collect::<String>())
}
