//! Ports that were taken out of the table, until no thread can queue packets for them any more.
//!
//! A thread goes on with the table that it has until its turn ends, also if it loses its core in the middle.
//! So it may queue packets for a port that is not there any more, and nobody would serve that queue: their
//! senders would wait for ever. The queue is emptied again when a grace period is over ([`crate::grace`]).

use crate::grace::GracePeriods;
use crate::port::Port;
use std::sync::Arc;

/// Removed ports, the oldest first.
#[derive(Default)]
pub(crate) struct RemovedPorts(Vec<(u64, Arc<Port>)>);

impl RemovedPorts {
    /// Adds a port that was taken out of the table just now.
    pub fn push(&mut self, port: Arc<Port>, periods: &GracePeriods) {
        self.0.push((periods.begin(), port));
    }

    /// Takes out the ports that no thread knows any more.
    pub fn take_unknown(&mut self, periods: &GracePeriods) -> impl Iterator<Item = Arc<Port>> {
        let unknown = self.0.iter().take_while(|(period, _)| periods.is_over(*period));
        let unknown = unknown.count();
        self.0.drain(..unknown).map(|(_, port)| port)
    }

    /// Whether threads may still know some.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
