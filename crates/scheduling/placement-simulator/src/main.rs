//! Runs the placement policy on modelled machines and writes JSON, Markdown and pictures to a directory.

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use placement_simulator::{plot, report};
use std::fs;
use std::path::PathBuf;

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.context("usage: placement-simulator DIRECTORY")?;
    fs::create_dir_all(&directory)?;
    let report = report::run(|next| eprintln!("{next}"));
    let picture = |machine: &str| format!("placement-{machine}.svg");
    for machine in &report.machines {
        let workload = &machine.workloads[0];
        let path = directory.join(picture(machine.name));
        plot::draw(&path, machine.title, workload.unit, &workload.curves)?;
    }
    fs::write(directory.join("placement.md"), report.markdown(picture)?)?;
    let json = serde_json::to_string(&report)?;
    fs::write(directory.join("placement.json"), json + "\n")?;
    Ok(())
}
