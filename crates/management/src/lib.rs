//! The contract between users (through the CLI or a file) and the control process.
//!
//! * [`config`]: what can be configured. The same types describe a TOML file and the objects that requests
//!   add at run time, and they check themselves: a value that exists is in range. What spans several values
//!   (names that clash, an uplink that is missing) is checked by [`Config::check`].
//! * [`parse`] reads a file and puts file, line and column in front of every complaint.
//! * [`Request`] and [`Response`] travel as one JSON object per line over the Unix stream socket
//!   [`control_socket`]; [`Client`] is the user's end.

#![forbid(unsafe_code)]

mod check;
mod client;
pub mod config;
mod file;
mod reply;
mod request;
mod value;

pub use check::{CheckError, PathSegment};
pub use client::{Client, ClientError};
pub use config::{
    Config, HostConfig, PortConfig, PortKind, PortMode, SwitchConfig, SwitchKind, Trunk, VlanConfig,
};
pub use file::{ConfigError, parse};
pub use reply::{
    Counters, DataPlaneStatus, FlowInfo, MacInfo, Origin, PortInfo, PortStats, PriorityStatus, Process,
    ReloadSummary, Reply, Response, Stats, Status, SwitchInfo, TraceReport, TraceStep, VersionInfo,
    VmStateStatus,
};
pub use request::{Hex, MAX_REQUEST, PortChanges, Request};
pub use value::{
    AgeingSeconds, InterfaceName, InvalidValue, IpPrefix, MacAddr, MacLimit, MissRate, Mtu, Name, Netns,
    TableSize, VlanId,
};

use std::path::{Path, PathBuf};

/// Where the control process listens for users.
pub fn control_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}
