//! Verbs for P4 programs. Those that check, draw and run one read files and need no running instance: a
//! program is understood before it is loaded.

mod check;
mod commands;
mod configured;
mod entries;
mod exported;
mod final_state;
mod graph;
mod groups;
mod layered;
mod load;
mod ports;
mod reuse;
mod run;
mod running;
mod stages;
mod test;
mod trace;
mod traced;

pub use configured::FILES;
pub use traced::report as trace;

use crate::cli::P4Verb;
use crate::verbs::{Instance, Session};
use anyhow::{Context, Result, bail};
use management::{P4Switch, Reply, Request};
use p4_ir::Checked;
use p4_ir::setup::{self, Setup};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Runs a verb.
///
/// # Errors
/// When a file cannot be read or written, or the program or the request is refused.
pub fn run(verb: &P4Verb, instance: Instance<'_>, json: bool) -> Result<()> {
    let mut session = Session::new(instance, json);
    match verb {
        P4Verb::Load(args) => load::run(&mut session, args),
        P4Verb::Entry(verb) => running::entry(&mut session, verb),
        P4Verb::Counter(verb) => running::counter(&mut session, verb),
        P4Verb::Register(verb) => running::register(&mut session, verb),
        P4Verb::Meter(verb) => running::meter(&mut session, verb),
        P4Verb::Group(verb) => groups::run(&mut session, verb),
        P4Verb::Port(verb) => ports::port(&mut session, verb),
        P4Verb::Link(verb) => ports::link(&mut session, verb),
        P4Verb::Stage(verb) => stages::run(&mut session, verb),
        P4Verb::Export { name, file } => exported::export(&mut session, name, file),
        P4Verb::Import(args) => exported::import(&mut session, args),
        P4Verb::Rollback { name } => session.show(Request::P4Rollback { name: name.clone() }),
        P4Verb::Show => session.show(Request::P4List),
        P4Verb::Unload { name } => session.show(Request::P4Unload { name: name.clone() }),
        P4Verb::Check { file, p4info, pcaps } => {
            let program = load(file, p4info.as_deref())?;
            let facts = check::Facts::of(&program, pcaps)?;
            if json {
                crate::output::json(&check::Summary::of(&program, &facts))
            } else {
                crate::output::print(&check::text(&program, &facts))
            }
        }
        P4Verb::Run(args) => run::run(args, json),
        P4Verb::Test(args) => test::run(&mut session, args),
        P4Verb::Graph { file, out } => {
            let svg = graph::svg(&load(file, None)?);
            match out {
                Some(out) => {
                    std::fs::write(out, svg).with_context(|| format!("cannot write {}", out.display()))
                }
                None => crate::output::print(&svg),
            }
        }
    }
}

/// All P4 switches of an instance.
fn switches(session: &mut Session<'_>) -> Result<Vec<P4Switch>> {
    match session.call(&Request::P4List)? {
        Reply::P4(switches) => Ok(switches),
        _ => bail!("another answer than asked for"),
    }
}

/// Loads a program: BMv2's JSON with P4Info, or a serialised form.
fn load(file: &Path, p4info: Option<&Path>) -> Result<Checked> {
    load_given(file, p4info).map(|(program, _)| program)
}

/// Likewise, with what it is given beside its entries.
fn load_given(file: &Path, p4info: Option<&Path>) -> Result<(Checked, Setup)> {
    let alone = |program| (program, Setup::default());
    let bytes = read(file)?;
    let named = || file.display().to_string();
    let with_entries = exported::program(&bytes);
    if p4info.is_some() && (with_entries.is_some() || bytes.starts_with(b"P4IR")) {
        bail!("{}: a serialised program has its P4Info in it", named());
    }
    if let Some(bytes) = with_entries {
        return setup::decode(bytes).with_context(named);
    }
    if bytes.starts_with(b"P4IR") {
        return p4_ir::serial::decode(&bytes).map(alone).with_context(named);
    }
    let p4info = p4info.map(read).transpose()?;
    p4_bmv2::load(&bytes, p4info.as_deref())
        .map(alone)
        .with_context(named)
}

/// Reads a file, but not more than a program may have.
fn read(file: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", file.display());
    let mut bytes = Vec::new();
    let most = p4_bmv2::limits::TEXT as u64 + 1;
    File::open(file)
        .with_context(cannot)?
        .take(most)
        .read_to_end(&mut bytes)
        .with_context(cannot)?;
    Ok(bytes)
}

/// What is printed as JSON besides replies.
#[cfg(test)]
pub mod outputs {
    pub use super::check::Summary;
    pub use super::groups::ProfileRow;
    pub use super::ports::{LinkRow, PortRow};
    pub use super::run::Summary as Run;
    pub use super::running::{CounterRow, EntryRow, MeterRow, RegisterRow};
    pub use super::stages::StageRow;
    pub use super::test::TestRow;
}
