//! Packets that rules note for users.

use crate::rule::Verdict;
use flow::{FlowKey, ListId, Stage};
use serde::{Deserialize, Serialize};

/// A packet as a rule saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedPacket {
    /// Time of the packet in nanoseconds since 1970.
    pub time_ns: u64,
    /// Where the rule was found: a filter of the port that sent the packet, or of its receiver.
    pub stage: Stage,
    /// Fields of the packet when it came to the rule.
    pub key: FlowKey,
    /// Length of the frame.
    pub bytes: u32,
}

/// A packet with the rule that noted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// The rule's list.
    pub list: ListId,
    /// Number of the rule.
    pub rule: u32,
    /// What the rule says.
    pub verdict: Verdict,
    /// Whether the rule is on trial, so that it decided nothing.
    pub trial: bool,
    /// The packet.
    pub packet: LoggedPacket,
    /// Packets of the rule that came since its record before and have none.
    pub skipped: u64,
}
