//! Events, as `hyperswitch events` shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a reader of events has got to. Events of a control process that was started again begin anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EventMark {
    /// Which control process: its [`Events::log`].
    pub log: u64,
    /// The last event that was read: its [`Event::number`].
    pub number: u64,
}

/// The latest events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Events {
    /// Differs from that of every other control process.
    pub log: u64,
    /// The oldest first.
    pub events: Vec<Event>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// Grows from event to event.
    pub number: u64,
    /// When it happened, in milliseconds since 1970-01-01 UTC.
    pub time_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: Happening,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Happening {
    /// A port was added.
    PortAdded {
        /// The port.
        port: String,
        /// Name of its switch.
        switch: String,
    },
    /// A port was removed.
    PortRemoved {
        /// The port.
        port: String,
    },
    /// A port has another state.
    PortState {
        /// The port.
        port: String,
        /// Name of its switch.
        switch: String,
        /// `disconnected`, `connected`, `running` or `broken`.
        state: String,
        /// The process that is connected, if it is known.
        pid: Option<u32>,
    },
    /// A port's problem began, changed, lasts or has gone.
    PortProblem {
        /// The port.
        port: String,
        /// Name of its switch.
        switch: String,
        /// The problem, in words.
        problem: String,
    },
    /// A MAC address was seen at a port where it was not known to be.
    MacLearned {
        /// Name of the switch.
        switch: String,
        /// The port.
        port: String,
        /// The address.
        mac: String,
        /// VLAN; 0 for untagged frames of ports without VLAN.
        vlan: u16,
        /// Other ports use it as well.
        contested: bool,
    },
    /// A MAC address is not known to be at a port any more.
    MacForgotten {
        /// Name of the switch.
        switch: String,
        /// The port.
        port: String,
        /// The address.
        mac: String,
        /// VLAN; 0 for untagged frames of ports without VLAN.
        vlan: u16,
    },
    /// A process was started.
    ProcessStarted {
        /// Which one.
        role: String,
        /// Process identifier.
        pid: u32,
        /// How often it was started again after ending unasked.
        restarts: u32,
    },
    /// A process ended unasked.
    ProcessEnded {
        /// Which one.
        role: String,
        /// How it ended.
        end: String,
    },
    /// A configuration was put in force.
    Configured {
        /// Number of changes.
        changes: usize,
    },
    /// A configuration was refused, or taken back.
    ConfigurationRefused {
        /// Why.
        reason: String,
    },
    /// Further events of one kind were too many to be kept.
    LeftOut {
        /// The port that they were about, if it was one.
        port: Option<String>,
        /// How many.
        count: u64,
    },
}

impl Happening {
    /// The port that it is about.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        match self {
            Happening::PortAdded { port, .. }
            | Happening::PortRemoved { port }
            | Happening::PortState { port, .. }
            | Happening::PortProblem { port, .. }
            | Happening::MacLearned { port, .. }
            | Happening::MacForgotten { port, .. } => Some(port),
            Happening::LeftOut { port, .. } => port.as_deref(),
            Happening::ProcessStarted { .. }
            | Happening::ProcessEnded { .. }
            | Happening::Configured { .. }
            | Happening::ConfigurationRefused { .. } => None,
        }
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Happening::PortAdded { port, switch } => write!(f, "port {port} added to switch {switch}"),
            Happening::PortRemoved { port } => write!(f, "port {port} removed"),
            Happening::PortState { port, state, pid, .. } => {
                write!(f, "port {port} is {state}")?;
                pid.map_or(Ok(()), |pid| write!(f, " (process {pid})"))
            }
            Happening::PortProblem { port, problem, .. } => write!(f, "port {port}: {problem}"),
            Happening::MacLearned {
                port,
                mac,
                vlan,
                contested,
                ..
            } => {
                write!(f, "{mac} is on port {port}{}", in_vlan(*vlan))?;
                f.write_str(if *contested { ", and on others" } else { "" })
            }
            Happening::MacForgotten { port, mac, vlan, .. } => {
                write!(f, "{mac} is not on port {port} any more{}", in_vlan(*vlan))
            }
            Happening::ProcessStarted {
                role,
                pid,
                restarts: 0,
            } => write!(f, "{role} started as process {pid}"),
            Happening::ProcessStarted { role, pid, restarts } => {
                write!(f, "{role} started again as process {pid} ({restarts} restarts)")
            }
            Happening::ProcessEnded { role, end } => write!(f, "{role} {end}"),
            Happening::Configured { changes } => write!(f, "configuration in force, {changes} changes"),
            Happening::ConfigurationRefused { reason } => write!(f, "configuration not in force: {reason}"),
            Happening::LeftOut {
                port: Some(port),
                count,
            } => {
                write!(f, "{count} further events of port {port} are left out")
            }
            Happening::LeftOut { port: None, count } => write!(f, "{count} further events are left out"),
        }
    }
}

fn in_vlan(vlan: u16) -> String {
    match vlan {
        0 => String::new(),
        vlan => format!(" in VLAN {vlan}"),
    }
}
