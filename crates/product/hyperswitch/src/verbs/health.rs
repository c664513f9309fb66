//! `hyperswitch status --check` and `--wait`: the state of the switch in a word, for scripts and monitoring.

use super::{Instance, Session, status};
use crate::cli::{Health, StatusArgs};
use crate::output;
use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a state is waited for, unless the user says otherwise.
const WAIT: Duration = Duration::from_secs(30);

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

impl Health {
    fn name(self) -> &'static str {
        match self {
            Health::Well => "well",
            Health::Degraded => "degraded",
            Health::Down => "down",
        }
    }

    fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Health::Well => 0,
            Health::Degraded => 3,
            Health::Down => 4,
        })
    }

    /// Whether one who waits for `wanted` has waited long enough.
    fn satisfies(self, wanted: Health) -> bool {
        match wanted {
            Health::Down => self == Health::Down,
            wanted => self <= wanted,
        }
    }
}

/// The state of the switch, as JSON.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Health")]
pub struct Looked {
    /// `well`, `degraded` or `down`.
    health: &'static str,
    /// Why it is not better.
    reasons: Vec<String>,
}

/// Says how the switch is, once it is as wanted or time is up.
///
/// # Errors
/// When output fails.
pub fn run(args: &StatusArgs, instance: Instance<'_>, json: bool) -> Result<ExitCode> {
    let limit = match instance.is_timeout_given {
        true => instance.timeout,
        false => WAIT,
    };
    let deadline = Instant::now() + limit;
    let wanted = args.wait.unwrap_or(Health::Down);
    let (mut health, mut reasons) = look(instance);
    while args.wait.is_some() && !health.satisfies(wanted) && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
        (health, reasons) = look(instance);
    }
    if json {
        let health = health.name();
        output::json(&Looked { health, reasons })?;
    } else {
        let lines: String = reasons.iter().map(|reason| format!("{reason}\n")).collect();
        output::print(&format!("{}\n{lines}", health.name()))?;
    }
    Ok(match args.wait {
        Some(wanted) if health.satisfies(wanted) => ExitCode::SUCCESS,
        _ => health.exit_code(),
    })
}

/// The state now, and why it is not better.
fn look(instance: Instance<'_>) -> (Health, Vec<String>) {
    match status::attention(&mut Session::new(instance, false)) {
        Ok(Some(warnings)) if warnings.is_empty() => (Health::Well, warnings),
        Ok(Some(warnings)) => (Health::Degraded, warnings),
        Ok(None) => (Health::Down, vec!["there is no data plane at the moment".into()]),
        Err(error) => (Health::Down, vec![error.to_string()]),
    }
}
