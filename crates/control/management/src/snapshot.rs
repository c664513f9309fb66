//! All figures of a switch at once, for programs that collect them.

use crate::reply::{Counters, DeviceInfo, Process, SwitchInfo};
use control_protocol::work::WorkReport;
use serde::{Deserialize, Serialize};

/// Figures of processes, switches, ports and threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Snapshot {
    /// Version of the running control process.
    pub version: String,
    /// Number of conditions that need attention.
    pub warnings: usize,
    /// The supervised processes.
    pub processes: Vec<Process>,
    /// The switches.
    pub switches: Vec<SwitchInfo>,
    /// The ports.
    pub ports: Vec<PortFigures>,
    /// Work of the threads; `None` while there is no data plane.
    pub work: Option<WorkReport>,
}

/// Figures of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortFigures {
    /// Name of the port.
    pub name: String,
    /// Name of the port's switch.
    pub switch: String,
    /// As [`PortInfo::state`](crate::PortInfo::state).
    pub state: String,
    /// Whether something is wrong with it.
    pub has_problem: bool,
    /// The core whose worker receives the port's kicks, if one does.
    pub core: Option<u16>,
    /// Counters; `None` while the data plane does not have the port.
    pub counters: Option<Counters>,
    /// As [`PortInfo::device`](crate::PortInfo::device).
    #[serde(default)]
    pub device: Option<DeviceInfo>,
}
