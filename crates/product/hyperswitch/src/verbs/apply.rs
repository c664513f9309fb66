//! `hyperswitch apply` and `confirm`: another configuration, at once or on probation.

use super::config_file::Successor;
use super::{Reply, Request, Session, reload};
use crate::cli::ApplyArgs;
use crate::output;
use anyhow::{Context, Result, bail};
use management::sealed;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const OTHER_VERSION: &str =
    "the running instance gave another answer than asked for: is it of another version?";

/// Applies a file.
///
/// # Errors
/// When the file is refused, the one given at the start cannot be replaced, or the instance goes away.
pub fn run(session: &mut Session, args: &ApplyArgs) -> Result<()> {
    let name = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let memory = sealed(text.as_bytes())?;
    let plan = Request::ApplyPlan { file: name.clone() };
    if args.dry_run {
        return session.show_sent(&plan, memory.as_fd());
    }
    if !session.json {
        let Reply::Reloaded(plan) = session.call_sent(&plan, memory.as_fd())? else {
            bail!(OTHER_VERSION);
        };
        reload::announce(&plan)?;
    }
    let start = file_of_start(session)?;
    let successor = match (&args.confirm, &start) {
        (Some(_), Some(start)) if is_same(start, &args.file) => bail!(
            "{name} is the file that `reload` reads, so nothing could be taken back to: put the new configuration into \
             another file, and apply that"
        ),
        (None, Some(start)) => Successor::write(start, &text)?,
        _ => None,
    };
    // The offset of the memory is shared, and the plan has read to the end.
    let memory = sealed(text.as_bytes())?;
    let confirm = args.confirm;
    session.show_sent(&Request::Apply { file: name, confirm }, memory.as_fd())?;
    replace(session, successor)?;
    match args.confirm {
        Some(seconds) => tell(
            session,
            &format!("waits for {seconds} s for `hyperswitch confirm`, and is taken back otherwise"),
        ),
        None => Ok(()),
    }
}

/// Keeps the configuration that waits for that.
///
/// # Errors
/// When there is none, the file given at the start cannot be replaced, or the instance goes away.
pub fn confirm(session: &mut Session) -> Result<()> {
    let Reply::Unconfirmed(waiting) = session.call(&Request::Unconfirmed)? else {
        bail!(OTHER_VERSION);
    };
    let waiting = waiting.context("no configuration waits to be confirmed")?;
    let successor = match file_of_start(session)? {
        Some(start) => Successor::write(&start, &waiting.text)?,
        None => None,
    };
    session.show(Request::Confirm {
        number: waiting.number,
    })?;
    replace(session, successor)
}

fn replace(session: &Session, successor: Option<Successor>) -> Result<()> {
    match successor {
        Some(successor) => tell(session, &successor.take_place()?),
        None => Ok(()),
    }
}

/// The file that was given at the start of the instance.
fn file_of_start(session: &mut Session) -> Result<Option<PathBuf>> {
    match session.call(&Request::Status)? {
        Reply::Status(status) => Ok(status.config),
        _ => bail!(OTHER_VERSION),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// Says more than the answer, to humans.
fn tell(session: &Session, text: &str) -> Result<()> {
    match session.json {
        true => Ok(()),
        false => output::print(&format!("{text}\n")),
    }
}
