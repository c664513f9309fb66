//! The purposes of requests to the data plane that have not been answered.

use crate::users::Token;
use control_protocol::data_plane::Way;
use flow::{Flow, FlowId, FlowStats, ListId, PortId, SwitchId};
use management::{PolicyRules, Reply, Snapshot, TraceStep};
use std::collections::HashMap;

/// The purpose of an answer.
#[derive(Debug)]
pub(crate) enum Pending {
    /// An error becomes the problem of the port with this name. Whether the port was to be added.
    Port(String, bool),
    /// An error is why the port with this name has no queue of its device.
    Queue(String),
    /// The port with this name gets a filter for a station, after a mark with this number.
    Steering(String, u64, u16),
    Flow(SwitchId, FlowId),
    SyncPorts,
    SyncFlows(SwitchId),
    PollFlows(SwitchId),
    /// Lists, sets, and filters of ports.
    Policy,
    /// P4 switches.
    P4,
    User(Token, Box<Question>),
}

impl Pending {
    /// Whether a user waits for a list of ports.
    pub fn is_list_of_ports(&self) -> bool {
        matches!(self, Pending::User(_, question) if matches!(**question, Question::Ports(_) | Question::Stats(_) | Question::Snapshot(_)))
    }
}

/// An answer that a user waits for.
#[derive(Debug)]
pub(crate) enum Question {
    /// The data plane has executed all earlier requests; then this is the answer.
    Barrier(Reply),
    /// Ports of these names.
    Ports(Vec<String>),
    /// Counters of ports of these names.
    Stats(Vec<String>),
    /// Figures of everything, those of ports first.
    Snapshot(Option<Box<Snapshot>>),
    /// Flows; gathered in [`AllGathered`].
    Flows,
    /// Rules of a list with what they counted; those that arrived so far.
    Policy(Box<(ListId, PolicyRules)>),
    /// Kinds of packets that decisions of a list are about.
    Judged(ListId),
    /// P4 switches, with what they counted.
    P4,
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
    pub flows: Vec<(Flow, FlowStats, Option<Way>)>,
}

/// Flows of users who wait for them.
pub(crate) type AllGathered = HashMap<Token, Gathered>;

/// What a user asks for.
#[derive(Debug)]
pub(crate) enum Listing {
    /// Ports of these names.
    Ports(Vec<String>),
    /// All figures.
    Snapshot,
}

/// Users who wait for the states of devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceQueries {
    pub waiting: Vec<(Token, Listing)>,
    pub due_ms: Option<u64>,
}

impl DeviceQueries {
    /// When the first user has waited long enough.
    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// A user does not wait any longer.
    pub fn forget(&mut self, token: Token) {
        self.waiting.retain(|(other, _)| *other != token);
    }
}
