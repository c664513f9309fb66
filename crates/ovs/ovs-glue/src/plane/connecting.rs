//! Requests for new ports that are answered once the port's device is attached.
//!
//! ovs-vswitchd says that a port is there when its request was answered, and packets may come at once. What a
//! device receives before the driver domain has it is nobody's, and what is to leave there is dropped. Where
//! many ports are added at once only the first ones are waited for: the others are attached together.

use super::{Plane, now_ms};
use crate::datapath::{Answer, PortNo, Ticket};
use control_protocol::data_plane::PortState;

/// Longest time in milliseconds that a request waits for a device. ovs-vswitchd does nothing else meanwhile.
const PATIENCE_MS: u64 = 500;

/// Ports that are waited for within [`WINDOW_MS`].
const AWAITED: usize = 16;
const WINDOW_MS: u64 = 1000;

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    waiting: Vec<Connecting>,
    /// When the window began, and the requests since that waited.
    window: (u64, usize),
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct Connecting {
    ticket: Ticket,
    port: PortNo,
    due_ms: u64,
}

impl Plane {
    /// Answers once the port's device is attached, has failed, or time is up.
    pub(super) fn await_device(&mut self, ticket: Ticket, port: PortNo) {
        let now_ms = now_ms();
        let (begin, count) = &mut self.awaited.window;
        if now_ms > *begin + WINDOW_MS {
            (*begin, *count) = (now_ms, 0);
        }
        *count += 1;
        let due_ms = now_ms + if *count > AWAITED { 0 } else { PATIENCE_MS };
        self.awaited.waiting.push(Connecting { ticket, port, due_ms });
    }

    /// When the next request is answered in any case, by the monotonic clock in milliseconds.
    pub(super) fn next_unconnected(&self) -> Option<u64> {
        self.awaited.waiting.iter().map(|one| one.due_ms).min()
    }

    /// Answers the requests that have nothing to wait for.
    pub(super) fn answer_connected(&mut self) {
        let now_ms = now_ms();
        let mut waiting = std::mem::take(&mut self.awaited.waiting);
        waiting.retain(|one| {
            let waits = one.due_ms > now_ms && self.is_connecting(one.port);
            if !waits {
                self.answers.push_back((one.ticket, Ok(Answer::Done)));
            }
            waits
        });
        self.awaited.waiting = waiting;
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
