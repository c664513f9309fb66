//! `hyperswitch p4 load`: a program with its entries, for a running instance.
//!
//! The program is read and checked here, by whom it belongs to; the control process gets it as bytes in a
//! memfd that nobody can change any more, and the data plane checks it again.

use super::running::Running;
use super::{commands, exported};
use crate::cli::{P4LoadArgs, P4PlaceArgs};
use crate::verbs::Session;
use anyhow::{Context, Result, ensure};
use management::sealed;
use management::{Name, P4Operations, P4Place, PlacedPort, Request};
use p4_ir::Checked;
use p4_ir::setup::{self, Setup};
use p4_stf::script;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Loads a program.
///
/// # Errors
/// When a file cannot be read, the program or an entry makes no sense, or the instance refuses.
pub fn run(session: &mut Session<'_>, args: &P4LoadArgs) -> Result<()> {
    let (program, given) = version(args)?;
    let name = name(args.place.name.as_ref(), &args.program)?;
    let present = Running::find(session, name.as_str())?;
    if let Some(present) = present.as_ref().filter(|_| !args.discard) {
        let losses = p4_interpreter::losses(present.program(), &program);
        ensure!(
            losses.is_empty(),
            "loading this program would lose state of {name}; give --discard if it may:\n{}",
            losses.join("\n")
        );
    }
    let request = Request::P4Load {
        name,
        operations: args.place.operations.map(P4Operations::get),
        replaces: present.map(|present| present.tag()),
        changes: false,
        writes: Vec::new(),
        ports: Some(places(&args.place)),
    };
    session.show_sent(&request, sealed(&setup::encode(&program, &given))?.as_fd())
}

/// Ports as a request has them.
pub(super) fn places(args: &P4PlaceArgs) -> Vec<P4Place> {
    let place = |place: &PlacedPort| P4Place {
        number: place.number,
        port: place.port.clone(),
    };
    args.ports.iter().map(place).collect()
}

/// The program with its entries, and what is given beside them.
fn version(args: &P4LoadArgs) -> Result<(Checked, Setup)> {
    bake(&args.program, args.p4info.as_deref(), &args.entries)
}

/// A program of files, with its entries and what is given beside them.
pub(super) fn bake(program: &Path, p4info: Option<&Path>, entries: &[PathBuf]) -> Result<(Checked, Setup)> {
    let bytes = super::read(program)?;
    if let Some(bytes) = exported::program(&bytes) {
        let named = || program.display().to_string();
        ensure!(
            p4info.is_none() && entries.is_empty(),
            "{}: a program with its entries takes no further files",
            named()
        );
        return setup::decode(bytes).with_context(named);
    }
    let program = super::load(program, p4info)?;
    let (mut wanted, mut sessions) = (Vec::new(), Vec::new());
    for file in entries {
        let named = || file.display().to_string();
        let text = String::from_utf8(super::run::limited(file, super::entries::MAX_FILE)?)
            .context("not text")
            .with_context(named)?;
        if text.trim_start().starts_with('{') {
            let read = super::entries::read(&text, &program).with_context(named)?;
            wanted.extend(read.commands);
            sessions.extend(read.sessions);
        } else if commands::are_in(&text) {
            wanted.extend(commands::read(&text, &program).with_context(named)?);
        } else {
            let lines = script::parse(&text).with_context(named)?;
            wanted.extend(lines.into_iter().map(|line| line.command));
        }
    }
    let baked = p4_stf::bake(program, &wanted, &sessions);
    baked.map_err(|(number, error)| anyhow::Error::new(error).context(format!("entry {number}")))
}

/// The name that the user gave, or that of the file.
pub(super) fn name(given: Option<&Name>, file: &Path) -> Result<Name> {
    if let Some(name) = given {
        return Ok(name.clone());
    }
    let stem = file
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    let name = stem.parse::<Name>().map_err(|error| anyhow::anyhow!("{error}"));
    name.with_context(|| format!("the file's name {stem:?} is no name for a P4 switch; give one with --name"))
}
