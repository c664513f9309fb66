//! The contract between users (through the CLI or a file) and the control process.
//!
//! * Crate `configuration` has the schema: requests add the same objects that a file has.
//! * [`Request`] and [`Response`] travel as one JSON object per line over the Unix stream socket
//!   [`control_socket`]; [`Client`] is the user's end.

#![forbid(unsafe_code)]

mod client;
mod error_report;
mod event;
mod reply;
mod request;
mod sealed;
mod snapshot;

pub use client::{Client, ClientError, supervision};
pub use configuration::*;
pub use control_protocol::p4::{MAX_CELL_WORDS, P4Array, P4CellWrite};
pub use error_report::{ErrorCode, ErrorPlace, ErrorReport};
pub use event::{Event, EventMark, Events, Happening};
pub use reply::{
    ArrivalsInfo, Counters, DataPlaneStatus, DeviceCounters, DeviceInfo, DeviceQueueInfo, FlowInfo,
    IdlePollStatus, JudgedKind, KernelPathInfo, MacInfo, Origin, P4Cells, P4Clients, P4Device, P4Piece,
    P4Switch, PolicyInfo, PolicyJudged, PolicyLog, PolicyRecord, PolicyRule, PolicyRules, PortInUse,
    PortInfo, PortStats, PriorityStatus, Process, ReloadSummary, Replacement, Reply, Response, Stats, Status,
    Supervision, SwitchInfo, TraceReport, TraceStep, Unconfirmed, VersionInfo, VmStateStatus, Way,
};
pub use request::{AclChange, Hex, MAX_CONFIGURATION, MAX_REQUEST, P4Place, PortChanges, Request};
pub use sealed::sealed;
pub use snapshot::{PortFigures, Snapshot};

use std::path::{Path, PathBuf};

/// Where the supervisor listens: a connection makes it look at all processes, and yields a [`Supervision`] as
/// one line of JSON.
pub fn supervisor_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("supervisor.sock")
}

/// Where the control process listens for users who may ask and change nothing ([`Request::is_query`]).
pub fn view_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("view.sock")
}

/// Where the control process listens for users.
pub fn control_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}
