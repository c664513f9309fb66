//! `ovs stop`.

use super::{daemon, private};
use crate::output;
use anyhow::Result;
use std::path::Path;

pub fn run(run_dir: &Path, json: bool) -> Result<()> {
    let place = private(run_dir);
    // ovs-vswitchd first: it writes to the database until it ends.
    let ended = [daemon::SWITCH, daemon::DATABASE]
        .map(|name| daemon::stop(&place, name).map(|ended| (name, ended)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    if json {
        let ended = ended
            .iter()
            .map(|(name, pid)| (*name, pid.map(|pid| pid.as_raw_pid())));
        return output::json(&ended.collect::<std::collections::BTreeMap<_, _>>());
    }
    let lines = ended.into_iter().map(|(name, pid)| match pid {
        Some(pid) => format!("{name}, process {pid}, has ended.\n"),
        None => format!("{name} was not running.\n"),
    });
    output::print(&lines.collect::<String>())
}
