//! `hyperswitch status`: what the supervisor knows of the processes, and what the control process knows of
//! the switch.
//!
//! The supervisor is asked first, and so looks at all processes. Without the control process the verb still
//! shows what the supervisor knows, and fails.

use super::{Reply, Request, Session, show};
use crate::output::{self, duration};
use anyhow::{Result, bail};
use management::{ClientError, ErrorReport, Process, Status, Supervision, supervision};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// What is known without the control process, as JSON.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WithoutControl {
    /// Of the running supervisor.
    version: String,
    /// Run directory.
    run_dir: PathBuf,
    /// The supervised processes.
    processes: Vec<Process>,
    /// Conditions that need attention.
    warnings: Vec<String>,
    #[serde(flatten)]
    error: ErrorReport,
}

/// Shows the state of an instance.
///
/// # Errors
/// When neither the control process nor the supervisor answers, or only the latter.
pub fn run(session: &mut Session<'_>) -> Result<()> {
    let supervision = supervision(session.instance.run_dir);
    let reply = session.call(&Request::Status);
    match (reply, supervision) {
        (Ok(Reply::Status(status)), supervision) => {
            let status = merged(status, supervision);
            if session.json {
                output::json(&status)
            } else {
                output::print(&show::status(&status))
            }
        }
        (Ok(_), _) => {
            bail!("the running instance gave another answer than asked for: is it of another version?")
        }
        (Err(error), Some(supervision)) => {
            let own = complaints(&supervision.processes);
            if session.json {
                output::json(&WithoutControl {
                    version: supervision.version,
                    run_dir: session.instance.run_dir.to_owned(),
                    processes: supervision.processes,
                    warnings: own,
                    error: error.report(),
                })?;
            } else {
                output::print(&without_control(session, &supervision, &own))?;
            }
            Err(output::Told(error.to_string()).into())
        }
        (Err(error), None) => Err(error.into()),
    }
}

/// What needs attention; `None` if the switch forwards nothing new, since a process is not there.
pub fn attention(session: &mut Session<'_>) -> Result<Option<Vec<String>>, ClientError> {
    let supervision = supervision(session.instance.run_dir);
    match session.call(&Request::Status)? {
        Reply::Status(status) if status.data_plane.is_some() => {
            Ok(Some(merged(status, supervision).warnings))
        }
        _ => Ok(None),
    }
}

/// The control process knows of the others what the supervisor told it last.
fn merged(mut status: Status, supervision: Option<Supervision>) -> Status {
    let Some(supervision) = supervision else {
        status.warnings.insert(0, "the supervisor does not answer".into());
        return status;
    };
    status.warnings.splice(0..0, complaints(&supervision.processes));
    status.processes = supervision.processes;
    status
}

fn complaints(processes: &[Process]) -> Vec<String> {
    processes.iter().filter_map(Process::complaint).collect()
}

fn without_control(session: &Session<'_>, supervision: &Supervision, warnings: &[String]) -> String {
    format!(
        "hyperswitch {}, supervisor up {}\nrun directory: {}\n\n{}{}",
        supervision.version,
        duration(supervision.uptime_seconds),
        session.instance.run_dir.display(),
        show::processes(&supervision.processes),
        show::warnings(warnings),
    )
}
