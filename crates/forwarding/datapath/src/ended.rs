//! Flows that have ended, for whose last statistics an answer waits.
//!
//! An answer waits until all forwarding threads have flushed their counts ([`crate::grace`]): not at all if
//! all sleep, else some milliseconds, in which other requests are served. It waits for a bounded time, and a
//! bounded number of answers wait.

use crate::grace::GracePeriods;
use classifier::FlowEntry;
use control_protocol::data_plane::{Answer, EndedFlow, FromDataPlane};
use std::collections::VecDeque;
use std::sync::Arc;

/// Longest time for which an answer waits, in milliseconds. A thread flushes every few milliseconds, unless
/// it does not get a core.
const LONGEST_MS: u64 = 5_000;

/// Most answers that wait.
const MAX_WAITING: usize = 4096;

/// Answers that wait, the oldest first.
#[derive(Default)]
pub(crate) struct Ended(VecDeque<Waiting>);

struct Waiting {
    serial: u32,
    period: u64,
    until_ms: u64,
    flows: Vec<Arc<FlowEntry>>,
}

impl Ended {
    /// Has the request `serial` be answered with the last statistics of these flows, which have ended just
    /// now.
    pub fn push(&mut self, serial: u32, flows: Vec<Arc<FlowEntry>>, periods: &GracePeriods, now_ms: u64) {
        self.0.push_back(Waiting {
            serial,
            period: periods.begin(),
            until_ms: now_ms + LONGEST_MS,
            flows,
        });
    }

    /// The next answer that waits no longer.
    pub fn next(&mut self, periods: &GracePeriods, now_ms: u64) -> Option<FromDataPlane> {
        let oldest = self.0.front()?;
        let complete = periods.is_over(oldest.period);
        if !complete && now_ms < oldest.until_ms && self.0.len() <= MAX_WAITING {
            return None;
        }
        let Waiting { serial, flows, .. } = self.0.pop_front()?;
        Some(FromDataPlane::Answer {
            serial,
            result: Ok(answer(&flows, complete, now_ms)),
        })
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// No answer is wanted any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn answer(flows: &[Arc<FlowEntry>], complete: bool, now_ms: u64) -> Answer {
    let flows = flows.iter().map(|entry| EndedFlow {
        id: entry.flow.id,
        stats: entry.stats(now_ms),
    });
    Answer::Ended {
        flows: flows.collect(),
        complete,
    }
}
