//! P4 programs that forward the packets of ports: what packets cost, what changes cost their own ports and
//! others, and what a tenant with a hostile program takes from others.
//!
//! ```text
//!   stream   TCP between virtual machines beside the built-in switch
//!   packets  cycles per packet beside the built-in switch, one program and many
//!   changes  programs and entries that are exchanged under traffic
//!   tenants  hostile programs beside two bystanders
//!   clients  entries that come from a client of P4Runtime
//!   entries  what the programs have in their tables, as users write it
//! ```

mod changes;
mod clients;
mod entries;
pub mod packets;
pub mod stream;
mod tenants;

use super::Case;
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH};
use crate::record::Better::{Higher, Lower};
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use testbed::Switch;

pub const CASE: Case = Case {
    name: "p4-changes",
    about: "P4 programs: what loads, replacements and batches of entries cost, and what is left beside a tenant with a hostile program",
    axis: "what happens",
    measures: &[
        (FIRST, "ms", Lower),
        (LOST, "packets", Lower),
        (REPLACED, "ms", Lower),
        (RATE, "entries/s", Higher),
        (LONGEST, "us", Lower),
        (LONGEST_WITHOUT, "us", Lower),
        (KEPT, "% of the rate beside a sound program", Higher),
        (TAIL, "times the p99 beside a sound program", Lower),
    ],
    contenders: &[HYPERSWITCH],
    run,
};

const FIRST: &str = "first packet after";
const LOST: &str = "lost";
const REPLACED: &str = "replaced after";
const RATE: &str = "added";
const LONGEST: &str = "longest delay of others";
const LONGEST_WITHOUT: &str = "longest delay without";
const KEPT: &str = "bystanders keep";
const TAIL: &str = "bystanders' p99";

const NAME: &str = HYPERSWITCH.name;

fn run(effort: &Effort, _: &[Contender], record: &mut Record) -> Result<()> {
    changes::run(effort, record)?;
    clients::run(effort, record)?;
    tenants::run(effort, record)
}

/// Whether a point is to be measured.
fn is_wanted(record: &Record, label: &str) -> bool {
    label.contains(&record.part)
}

/// What p4c wrote of one of the project's programs, by its folder.
fn program(folder: &str) -> Result<PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    let name = folder.rsplit('/').next().context("a folder has a name")?;
    let file = programs.join(folder).join(format!("{name}.json"));
    ensure!(file.exists(), "no {}", file.display());
    Ok(file)
}

/// Loads a program with entries under a name, in the place of one that has it, for two ports.
fn load(switch: &Switch, name: &str, program: &Path, entries: &str, ports: [&str; 2]) -> Result<()> {
    let file = switch.run_dir().join(format!("{name}.commands"));
    std::fs::write(&file, entries)?;
    let ports = [format!("1={}", ports[0]), format!("2={}", ports[1])];
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let (program, file) = (path(program), path(&file));
    let words = [
        "p4",
        "load",
        &program,
        "--name",
        name,
        "--discard",
        "--entries",
        &file,
    ];
    switch
        .verb(&[&words[..], &["--port", &ports[0], "--port", &ports[1]]].concat())
        .map(drop)
}
