//! The results as files: JSON for machines, tables and plots for people.
//!
//! `latest.json` has the results of every case that was ever measured, each with the commit it was measured
//! on; a case that is measured again replaces its own only. Table and plots are always made from all of it.

mod plot;
mod table;
mod target;

use crate::machine::Machine;
use crate::record::Record;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use testbed::build_dir;

/// Time as people say it, to the minute, or to the second if it is less than two minutes.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds.div_ceil(60) {
        0..=2 if seconds < 120 => format!("{seconds} s"),
        minutes if minutes < 60 => format!("{minutes} min"),
        minutes => format!("{} h {:02} min", minutes / 60, minutes % 60),
    }
}

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    /// Machine of the last case measured.
    pub machine: Machine,
    /// By case.
    pub cases: BTreeMap<String, Record>,
}

/// Reads what was measured before; nothing if there is no file.
pub fn read(directory: &Path) -> Result<Results> {
    let path = directory.join("latest.json");
    if !path.exists() {
        return Ok(Results {
            machine: Machine::this(),
            cases: BTreeMap::new(),
        });
    }
    let text = std::fs::read_to_string(&path)?;
    serde_json::from_str(&text).with_context(|| format!("{} is not what bench writes", path.display()))
}

/// Adds a case to what was measured before.
pub fn merge(directory: &Path, record: Record) -> Result<()> {
    let mut results = read(directory)?;
    for older in results.cases.values_mut() {
        older.machine.get_or_insert_with(|| results.machine.clone());
    }
    results.machine = Machine::this();
    results.cases.insert(record.case.clone(), record);
    write(directory, &results)
}

/// Writes all files.
pub fn write(directory: &Path, results: &Results) -> Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    build_dir::write(&directory.join("latest.json"), format!("{json}\n").as_bytes())?;
    let mut plots = Vec::new();
    for case in crate::cases::ALL {
        let Some(record) = results.cases.get(case.name) else {
            continue;
        };
        for measure in &record.measures {
            let name = format!("{}-{}.svg", record.case, measure.name.replace(' ', "-"));
            let Some(svg) = plot::draw(record, measure)? else {
                remove(&directory.join(&name))?;
                continue;
            };
            build_dir::write(&directory.join(&name), svg.as_bytes())?;
            plots.push((record.case.clone(), name));
        }
    }
    let text = table::all(results, &plots);
    build_dir::write(&directory.join("latest.md"), text.as_bytes())
}

/// Removes what an earlier report wrote, if it did.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let texts =
            [0, 119, 120, 121, 3540, 3541, 7260].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(
            texts,
            [
                "0 s",
                "119 s",
                "2 min",
                "3 min",
                "59 min",
                "1 h 00 min",
                "2 h 01 min"
            ]
        );
    }
}
