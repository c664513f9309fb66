//! Packets that rules noted, on their way to the controller of their lists.
//!
//! Records are sent a few at a time. What waits meanwhile is bounded by each rule's log, which counts packets
//! beyond.

use classifier::{RuleLogs, Rules};
use control_protocol::data_plane::FromDataPlane;
use control_protocol::rules::MAX_RECORDS;
use flow::ControllerId;
use std::sync::Arc;

/// Time between two messages with records, in milliseconds.
const INTERVAL_MS: u64 = 100;

/// Records for one controller.
pub(crate) struct RuleRecords {
    controller: ControllerId,
    logs: Arc<RuleLogs>,
    /// When the next message may be sent.
    next_ms: u64,
}

impl RuleRecords {
    pub fn new(controller: ControllerId, rules: &Rules) -> RuleRecords {
        RuleRecords {
            controller,
            logs: Arc::clone(&rules.logs),
            next_ms: 0,
        }
    }

    /// When the next message is due, if there are records.
    pub fn due_ms(&self) -> Option<u64> {
        self.logs.has_records(self.controller).then_some(self.next_ms)
    }

    /// The message that is due.
    pub fn next(&mut self, now_ms: u64) -> Option<FromDataPlane> {
        if self.due_ms()? > now_ms {
            return None;
        }
        self.next_ms = now_ms + INTERVAL_MS;
        let records = self.logs.take(self.controller, MAX_RECORDS);
        Some(FromDataPlane::RuleRecords(records))
    }
}
