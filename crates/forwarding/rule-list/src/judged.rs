//! Kinds of packets that a list has judged, as cached decisions remember them.

use crate::rule::Verdict;
use flow::{FlowKey, FlowMask, PortId};
use serde::{Deserialize, Serialize};

/// Packets that a list judged alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedPackets {
    /// The port that the packets come from.
    pub in_port: PortId,
    /// What they have in common, under `noted`.
    pub key: FlowKey,
    /// The bits that decided, in this list and in others on their way.
    pub noted: FlowMask,
    /// A list saw them changed, so that `key` does not say what it saw.
    pub was_changed: bool,
    /// The rule that decided; `None` for the default.
    pub rule: Option<u32>,
    /// What it says.
    pub verdict: Verdict,
    /// Ports that they go to, or the first ones.
    pub outputs: Vec<PortId>,
}
