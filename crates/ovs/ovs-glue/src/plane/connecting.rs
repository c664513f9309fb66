//! Requests for new ports that are answered once the port's device is attached.
//!
//! ovs-vswitchd says that a port is there when its request was answered, and packets may come at once. What a
//! device receives before the driver domain has it is nobody's, and what is to leave there is dropped.

use super::{Plane, now_ms};
use crate::datapath::{Answer, PortNo, Ticket};
use control_protocol::data_plane::PortState;

/// Longest time in milliseconds that a request waits for a device. ovs-vswitchd does nothing else meanwhile.
const PATIENCE_MS: u64 = 500;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connecting {
    ticket: Ticket,
    port: PortNo,
    due_ms: u64,
}

impl Plane {
    /// Answers once the port's device is attached, has failed, or time is up.
    pub(super) fn await_device(&mut self, ticket: Ticket, port: PortNo) {
        let due_ms = now_ms() + PATIENCE_MS;
        self.connecting.push(Connecting { ticket, port, due_ms });
    }

    /// When the next request is answered in any case, by the monotonic clock in milliseconds.
    pub(super) fn next_unconnected(&self) -> Option<u64> {
        self.connecting.iter().map(|one| one.due_ms).min()
    }

    /// Answers the requests that have nothing to wait for.
    pub(super) fn answer_connected(&mut self) {
        let now_ms = now_ms();
        let mut connecting = std::mem::take(&mut self.connecting);
        connecting.retain(|one| {
            let waits = one.due_ms > now_ms && self.is_connecting(one.port);
            if !waits {
                self.answers.push_back((one.ticket, Ok(Answer::Done)));
            }
            waits
        });
        self.connecting = connecting;
    }

    /// Whether a port's device is being attached. Without data plane or driver domain it is not.
    fn is_connecting(&self, port: PortNo) -> bool {
        let Some(port) = self
            .ports
            .all
            .get(&port)
            .filter(|_| self.is_ready() && self.knows_devices())
        else {
            return false;
        };
        let attachment = port.attachment.as_ref().filter(|one| one.problem.is_none());
        attachment.is_some_and(|one| !one.is_up || port.state != PortState::Running)
    }
}
