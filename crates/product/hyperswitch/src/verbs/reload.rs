//! `hyperswitch reload`: applies the changed configuration file, and says before which ports it cannot change
//! in place.

use super::{Reply, Request, Session};
use crate::output;
use anyhow::{Result, bail};
use management::{ReloadSummary, Replacement};

/// Reloads, or with `dry_run` shows what that would change.
///
/// # Errors
/// When the file is refused, or the instance goes away.
pub fn run(session: &mut Session, dry_run: bool) -> Result<()> {
    if dry_run {
        return session.show(Request::ReloadPlan);
    }
    if !session.json {
        let Reply::Reloaded(plan) = session.call(&Request::ReloadPlan)? else {
            bail!("the running instance gave another answer than asked for: is it of another version?");
        };
        announce(&plan)?;
    }
    session.show(Request::Reload)
}

/// Says which ports will be replaced.
///
/// # Errors
/// When output fails.
pub fn announce(plan: &ReloadSummary) -> Result<()> {
    for Replacement { port, keys, loss } in &plan.replaced {
        let keys = keys.join(" and ");
        output::print(&format!("replacing port {port}, since {keys} changed: {loss}\n"))?;
    }
    Ok(())
}
