//! The purposes of requests to the data plane that have not been answered.
//!
//! Lists of ports come in parts, and lists of flows page by page, each requested when the one before is there; the parts are kept
//! here meanwhile.

use crate::users::Token;
use control_protocol::data_plane::PortInfo;
use flow::{Flow, FlowId, FlowStats, PortId, SwitchId};
use management::{Reply, TraceStep};
use std::collections::HashMap;

/// The purpose of an answer.
pub(crate) enum Pending {
    /// Errors go to the log, with this text.
    Quiet(&'static str),
    /// An error means that the port is gone, of which its own controller knows.
    Threads,
    Hello,
    /// An error becomes the problem of the port with this name. Whether the port was to be added.
    Port(String, bool),
    Flow(SwitchId, FlowId),
    SyncPorts(Vec<PortInfo>),
    SyncFlows(SwitchId, Vec<(Flow, FlowStats)>),
    PollFlows(SwitchId, Vec<(FlowId, FlowStats)>),
    UserPorts(Token, Question, Vec<PortInfo>),
    UserFlows(Token, SwitchId, Vec<(Flow, FlowStats)>),
    User(Token, Question),
}

impl Pending {
    /// Entries of a list that have arrived.
    pub fn gathered(&self) -> usize {
        match self {
            Pending::UserPorts(_, _, all) => all.len(),
            Pending::UserFlows(_, _, all) => all.len(),
            _ => 0,
        }
    }

    pub fn user(&self) -> Option<Token> {
        match self {
            Pending::UserPorts(token, ..) | Pending::UserFlows(token, ..) | Pending::User(token, _) => {
                Some(*token)
            }
            _ => None,
        }
    }
}

/// An answer that a user waits for.
pub(crate) enum Question {
    /// The data plane has executed all earlier requests; then this is the answer.
    Settled(Reply),
    /// Ports of these names.
    Ports(Vec<String>),
    /// Counters of ports of these names.
    Stats(Vec<String>),
    /// Flows; gathered in [`AllGathered`].
    Flows,
    /// The data plane's report about its threads.
    Work,
    /// The start of a capture.
    Capture,
    /// The first half of a trace.
    Trace { in_port: PortId, frame: Vec<u8> },
    /// The second half.
    TraceActions { in_port: PortId, steps: Vec<TraceStep> },
}

/// Flows on their way to a user, from several switches.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Switches whose flows have not arrived.
    pub left: usize,
    pub flows: Vec<(Flow, FlowStats)>,
}

/// Flows of users who wait for them.
pub(crate) type AllGathered = HashMap<Token, Gathered>;
