//! Ports that are connected or not: floods go to connected ones only.
//!
//! A connect or disconnect changes the flows that flood in the port's VLANs, and no others. VMMs determine how often that
//! happens, and guests how many such flows there are, so the work is done at a [pace](crate::pace), a piece at a time. Until
//! it is done, floods miss a port that was just connected, or are dropped at one that was just disconnected.

use crate::pace::{Pace, Queue};
use crate::process::Control;
use control_protocol::data_plane::PortState;
use flow::PortId;
use std::time::Instant;

/// Flows re-examined in a piece.
const PIECE: usize = 256;

/// Ports of a switch that came or went.
#[derive(Default)]
pub(crate) struct Ups {
    changed: Queue<PortId>,
    pace: Pace,
}

impl Control {
    /// A port may be connected now and may not have been, or the other way round.
    pub fn up_changed(&mut self, switch: &str, port: PortId) {
        if let Some(run) = self.switches.get_mut(switch) {
            run.ups.changed.add(port);
        }
        let now_ms = self.now_ms();
        self.refresh_ups(now_ms);
    }

    /// When flows that flood have to be re-examined next; `None` if none has to.
    pub fn ups_deadline_ms(&self) -> Option<u64> {
        let busy = self
            .switches
            .values()
            .filter(|run| !run.ups.changed.is_empty() || run.l2.has_stale());
        busy.map(|run| run.ups.pace.due_ms()).min()
    }

    /// Does a piece of the work for each switch whose time has come.
    pub fn refresh_ups(&mut self, now_ms: u64) {
        let mut changed = Vec::new();
        for (name, run) in &mut self.switches {
            let idle = run.ups.changed.is_empty() && !run.l2.has_stale();
            if idle || !run.ups.pace.is_due(now_ms) {
                continue;
            }
            let start = Instant::now();
            if !run.l2.has_stale()
                && let Some(port) = run.ups.changed.next()
            {
                let port_run = self.names.get(&port).and_then(|name| self.ports.get(name));
                let up = port_run.is_some_and(|port| port.state != PortState::Disconnected);
                run.l2.set_up(port, up);
            }
            let changes = run.l2.refresh_floods(PIECE, now_ms);
            run.ups.pace.worked(start.elapsed(), now_ms);
            changed.push((name.clone(), changes));
        }
        for (name, changes) in changed {
            self.put_flows(&name, changes);
        }
    }
}
