//! Connections to VMMs that listen.
//!
//! As the control process makes them for ports of its own: a stream is connected here, and the data plane
//! gets it, again and again ([`controller::Retry`]). Nothing waits for a VMM: one whose backlog is full is
//! tried again.

use super::ports::Plug;
use super::{Pending, Plane, now_ms};
use crate::datapath::PortNo;
use control_protocol::data_plane::{PortState, Request};

impl Plane {
    /// Connects to those VMMs that are due.
    pub(super) fn connect_clients(&mut self) {
        if !self.is_ready() {
            return;
        }
        let now_ms = now_ms();
        let ports = self.ports.ports.iter_mut();
        let due = ports.filter_map(|(number, port)| port.attempts.take_due(now_ms).then_some(*number));
        let due: Vec<PortNo> = due.collect();
        due.into_iter()
            .for_each(|number| self.connect_client(number, now_ms));
    }

    /// When [`Datapath::flush`](crate::datapath::Datapath::flush) has a VMM to connect to, by the monotonic
    /// clock in milliseconds.
    pub fn next_attempt(&self) -> Option<u64> {
        let ports = self.ports.ports.values().filter(|_| self.is_ready());
        ports.filter_map(|port| port.attempts.due_ms()).min()
    }

    fn connect_client(&mut self, number: PortNo, now_ms: u64) {
        let (Some(port), Some(id)) = (self.ports.ports.get_mut(&number), self.options.ports.id(number))
        else {
            return;
        };
        let Some(Plug::Client(socket)) = port
            .plug
            .as_ref()
            .filter(|_| port.state == PortState::Disconnected)
        else {
            return;
        };
        match socket_path::connect_to(socket) {
            Ok(stream) => {
                port.attempts.attempted(now_ms);
                let attach = Request::PortAttach { port: id };
                self.request(attach, vec![stream], Pending::Attach);
            }
            Err(refusal) => {
                if port.attempts.is_first() {
                    let level = match refusal.is_system() {
                        true => log::Level::Info,
                        false => log::Level::Warn,
                    };
                    let path = socket.path.display();
                    log::log!(
                        level,
                        "cannot connect to {path}: {refusal}; it is tried again and again"
                    );
                }
                port.attempts.failed(now_ms);
            }
        }
    }
}
