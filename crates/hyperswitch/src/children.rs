//! The processes that the supervisor starts: each takes its channel, sets itself up, and hands over to its crate.

use anyhow::{Context, Result};
use control_protocol::Channel;
use control_protocol::supervisor::Role;
use sandbox::{Kept, Violation};
use std::path::PathBuf;
use std::process::ExitCode;

/// Environment variable: `report` makes the data plane say which forbidden system call it made.
pub const SECCOMP_VARIABLE: &str = "HYPERSWITCH_SECCOMP";

/// Environment variable, set by the supervisor: forwarding threads need `CAP_SYS_NICE` for the class that was granted.
pub const NICE_VARIABLE: &str = "HYPERSWITCH_NICE";

/// The data plane: isolated before it hears of anything but the supervisor.
pub fn data_plane() -> Result<ExitCode> {
    let supervisor = begin(Role::DataPlane)?;
    sandbox::return_freed_memory();
    let topology = placement::Topology::of_machine();
    let report = std::env::var_os(SECCOMP_VARIABLE).is_some_and(|value| value == "report");
    sandbox::isolate_data_plane(
        if report {
            Violation::Report
        } else {
            Violation::Kill
        },
        kept(),
    )?;
    end(datapath::run(supervisor, topology).map_err(Into::into))
}

/// What the supervisor found to be needed to raise threads.
fn kept() -> Kept {
    if std::env::var_os(NICE_VARIABLE).is_some() {
        Kept::Nice
    } else {
        Kept::Nothing
    }
}

/// The driver domain.
pub fn driver() -> Result<ExitCode> {
    let supervisor = begin(Role::Driver)?;
    end(driver_domain::run(supervisor, kept() == Kept::Nice).map_err(Into::into))
}

/// The control process.
pub fn control(run_dir: PathBuf, config: Option<PathBuf>) -> Result<ExitCode> {
    let supervisor = begin(Role::Control)?;
    end(control::run(supervisor, control::Options { run_dir, config }).map_err(Into::into))
}

fn begin(role: Role) -> Result<Channel> {
    let channel = sandbox::supervisor_channel().with_context(|| format!("cannot run as {role}"))?;
    telemetry::init(role.name());
    sandbox::name_process(&format!("hs-{role}"));
    Ok(Channel::from(channel))
}

/// What ended a child belongs into the log, with its role; `main` would print it without.
fn end(result: Result<()>) -> Result<ExitCode> {
    Ok(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error:#}");
            ExitCode::FAILURE
        }
    })
}
