//! The rights that each process gives up, for good, before it receives a message from any process but the
//! supervisor.
//!
//! | step | data plane | control process | broker of the driver domain | forwarders | ovs |
//! |---|---|---|---|---|---|
//! | core dumps, being traced by equals | none | none | none | none | none |
//! | user | [`DATA_PLANE_USER`], no groups | as started | as started | [`forwarder_user`], no groups | as started |
//! | mount, network, IPC and UTS namespace | own and empty | as started | as started | own and empty | as started |
//! | files (Landlock) | (no way to open any) | the run directory; to read: the configuration's directory and `/proc`; to make and remove sockets: all | `/dev/net/tun`; to read: `/run` | (no way to open any) | the run directory, to make and remove sockets; `/dev/net/tun`; settings of IPv6 |
//! | capabilities | none | DAC_OVERRIDE, SETGID | NET_ADMIN, NET_RAW, SYS_ADMIN | none | DAC_OVERRIDE, NET_ADMIN |
//! | new privileges by executing | none | none | none | none | none |
//! | system calls | `calls/data_plane.rs` | `calls/control.rs` | `calls/driver.rs` | `calls/forwarder.rs` | `calls/ovs.rs` |
//!
//! The process that serves metrics gives up what the data plane does, as another user ([`VIEW_USER`]) and
//! with a list of its own (`calls/view.rs`). No capability is left to it.
//!
//! The process for P4Runtime gives up what the data plane does, as [`P4RUNTIME_USER`], with the calls of
//! `calls/p4runtime.rs`.
//!
//! Core dumps, capabilities, new privileges and system calls can always be given up; if the system refuses,
//! something is wrong and the process must not go on. User, namespaces and Landlock take privileges or a
//! kernel that has them. Where they are not available, a process goes on and reports it: [`Missing`].
//!
//! Data plane and forwarders keep SYS_NICE as well where that is how their threads are raised ([`Kept`]).
//!
//! Why control and ovs keep DAC_OVERRIDE: the sockets of VMMs belong to the users who run them. Why control
//! keeps SETGID: its sockets belong to groups of users (its filter lets it change nothing but the effective
//! group, which gives no access that DAC_OVERRIDE does not). Why the broker keeps SYS_ADMIN: setns(2) takes
//! it.

use crate::filter::{self, Filtered};
use crate::{landlock, separate};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use std::io;
use std::path::Path;

pub use crate::separate::{DATA_PLANE_USER, P4RUNTIME_USER, VIEW_USER, forwarder_user};

/// The consequence for a process that makes a call it may not make. The call is not executed in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The kernel ends it with `SIGSYS`, which the supervisor logs.
    Kill,
    /// The process writes to standard error which call it was, and then ends itself with `SIGSYS`. For
    /// development: a process that was taken over could stop itself from ending.
    Report,
}

/// Why a process could not be isolated. It must not go on then.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// A step failed.
    #[error("cannot {0}: {1}")]
    Step(&'static str, io::Error),
    /// The filter could not be built or installed.
    #[error("cannot install the system call filter: {0}")]
    Filter(#[from] seccompiler::Error),
}

/// A capability that is kept beyond those that the process needs for its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// None.
    Nothing,
    /// `CAP_SYS_NICE`, with which a process may raise its own threads, and by the filter no others.
    Nice,
}

impl Kept {
    fn capabilities(self) -> CapabilitySet {
        match self {
            Kept::Nothing => CapabilitySet::empty(),
            Kept::Nice => CapabilitySet::SYS_NICE,
        }
    }
}

/// The parts of a process's isolation that are not available, each with the reason, for users. Usually empty
/// when the supervisor is root.
pub type Missing = Vec<String>;

/// Isolates the calling process, a data plane, for the rest of its life. Call it before other threads are
/// started: capabilities and namespaces are per thread (the filter itself covers all threads). `sends`: it
/// sends by queues of devices.
///
/// # Errors
/// Any step that fails and should not; the steps before it stay in force.
pub fn isolate_data_plane(violation: Violation, kept: Kept, sends: bool) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    separate::leave_namespaces(&mut missing);
    let keep = kept.capabilities();
    separate::become_nobody(DATA_PLANE_USER, keep, &mut missing)?;
    let filtered = if sends {
        Filtered::SendingDataPlane
    } else {
        Filtered::DataPlane
    };
    finish(filtered, keep, None, violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, a control process that keeps its state and sockets in `run_dir` and reads
/// its configuration from `config`. Both must be absolute.
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_control(
    violation: Violation,
    run_dir: &Path,
    config: Option<&Path>,
) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    let files = landlock::for_control(run_dir, config);
    let keep = CapabilitySet::DAC_OVERRIDE | CapabilitySet::SETGID;
    finish(Filtered::Control, keep, Some(files), violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, a forwarder of the driver domain with this number. Otherwise as
/// [`isolate_data_plane`].
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_forwarder(violation: Violation, kept: Kept, number: u8) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    separate::leave_namespaces(&mut missing);
    let keep = kept.capabilities();
    separate::become_nobody(forwarder_user(number), keep, &mut missing)?;
    finish(Filtered::Forwarder, keep, None, violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, the broker of a driver domain.
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_driver(violation: Violation) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    let files = landlock::for_driver();
    let keep = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN;
    finish(Filtered::Driver, keep, Some(files), violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, which answers Open vSwitch's control plane and makes its sockets in
/// `run_dir`, which must be absolute.
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_ovs(violation: Violation, run_dir: &Path) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    let files = landlock::for_ovs(run_dir);
    let keep = CapabilitySet::NET_ADMIN | CapabilitySet::DAC_OVERRIDE;
    finish(Filtered::Ovs, keep, Some(files), violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, which serves metrics at a socket that it has already.
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_view(violation: Violation) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    separate::leave_namespaces(&mut missing);
    let keep = CapabilitySet::empty();
    separate::become_nobody(VIEW_USER, keep, &mut missing)?;
    finish(Filtered::View, keep, None, violation, &mut missing)?;
    Ok(missing)
}

/// Isolates the calling process, which serves clients of P4Runtime at a socket that listens already.
///
/// # Errors
/// As [`isolate_data_plane`].
pub fn isolate_p4runtime(violation: Violation) -> Result<Missing, IsolationError> {
    let mut missing = Missing::new();
    separate::leave_namespaces(&mut missing);
    let keep = CapabilitySet::empty();
    separate::become_nobody(P4RUNTIME_USER, keep, &mut missing)?;
    finish(Filtered::P4Runtime, keep, None, violation, &mut missing)?;
    Ok(missing)
}

/// The steps that all processes have in common, in this order: each takes what the next one gives up.
fn finish(
    process: Filtered,
    keep: CapabilitySet,
    files: Option<landlock::Files>,
    violation: Violation,
    missing: &mut Missing,
) -> Result<(), IsolationError> {
    // After a change of user, which sets it anew.
    step(
        "forbid core dumps",
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    step("drop capabilities", keep_capabilities(keep))?;
    step("forbid new privileges", set_no_new_privs(true))?;
    if let Some(files) = files
        && let Err(error) = files.restrict()
    {
        missing.push(format!("files are not restricted by Landlock: {error}"));
    }
    if violation == Violation::Report {
        crate::report::install().map_err(|error| IsolationError::Step("handle SIGSYS", error))?;
    }
    let programs =
        filter::programs(process, violation, std::process::id()).map_err(seccompiler::Error::Backend)?;
    for program in &programs {
        seccompiler::apply_filter_all_threads(program)?;
    }
    Ok(())
}

fn keep_capabilities(keep: CapabilitySet) -> rustix::io::Result<()> {
    let kept = capabilities(None)?.permitted & keep;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

fn step(what: &'static str, result: rustix::io::Result<()>) -> Result<(), IsolationError> {
    result.map_err(|error| IsolationError::Step(what, error.into()))
}
