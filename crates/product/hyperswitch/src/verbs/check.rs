//! `hyperswitch check`: what `run` would say of a configuration file.

use crate::output;
use anyhow::Result;
use management::{Config, InterfaceName};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Status of a file that cannot be used, as that of `run`.
const UNUSABLE: u8 = 2;

/// A file that can be used, as JSON.
#[derive(Serialize, JsonSchema)]
pub struct Checked {
    /// Number of switches.
    switches: usize,
    /// Number of ports, besides those of hosts and uplinks.
    ports: usize,
    /// What the file asks for and cannot be.
    warnings: Vec<String>,
}

/// Checks a file for an instance with this run directory.
///
/// # Errors
/// When output fails.
pub fn run(file: &Path, run_dir: &Path, json: bool) -> Result<ExitCode> {
    let cores = placement::Topology::of_machine();
    let options = control::Options {
        run_dir: std::path::absolute(run_dir)?,
        config: Some(std::path::absolute(file)?),
        machine: None,
        groups: control::Groups::of_machine(),
        cores: cores.usable().map(|core| core.0).collect(),
        p4: crate::p4::FILES,
    };
    let (config, mut warnings) = match control::check(file, &options) {
        Ok(checked) => checked,
        Err(refusal) => {
            let report = refusal.report();
            if json {
                output::json_error(&report);
            }
            eprintln!("hyperswitch: {}", output::plain(&report.error));
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    warnings.extend(uplink_warnings(&config));
    let switches = config.switches.len();
    let ports: usize = config.switches.iter().map(|switch| switch.ports.len()).sum();
    if json {
        output::json(&Checked {
            switches,
            ports,
            warnings,
        })?;
    } else {
        let warnings: String = warnings.iter().map(|text| format!("warning: {text}\n")).collect();
        let name = file.display();
        let [switches, ports] =
            [(switches, "switch"), (ports, "port")].map(|(number, word)| output::counted(number, word));
        output::print(&format!("{warnings}{name}: {switches}, {ports}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Uplinks of this host that other devices have. A file may be meant for another host, so one that is not
/// here is no reason to warn.
fn uplink_warnings(config: &Config) -> Vec<String> {
    let uplinks = config.switches.iter().filter_map(|switch| switch.uplink.as_ref());
    let warning = |uplink: &InterfaceName| {
        let users = nic_packet::users_of(uplink.as_str()).unwrap_or_default();
        control::users_warning(uplink.as_str(), &users)
    };
    uplinks.filter_map(warning).collect()
}
