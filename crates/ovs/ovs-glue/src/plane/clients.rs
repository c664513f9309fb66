//! Connections to VMMs that listen.
//!
//! As the control process makes them for ports of its own: a stream is connected here, and the data plane
//! gets it, again and again ([`controller::Retry`]). Nothing waits for a VMM: one whose backlog is full is
//! tried again.

use super::ports::Plug;
use super::{Pending, Plane, now_ms};
use control_protocol::data_plane::{PortState, Request};

impl Plane {
    /// Connects to those VMMs that are due.
    pub(super) fn connect_clients(&mut self) {
        if !self.is_ready() {
            return;
        }
        let now_ms = now_ms();
        for port in self.ports.all.values_mut() {
            let Some(Plug::Client(socket)) = &port.plug else {
                continue;
            };
            if !port.retry.take_due(now_ms) || port.state != PortState::Disconnected {
                continue;
            }
            match socket_path::connect_to(socket) {
                Ok(stream) => {
                    port.retry.attempted(now_ms);
                    let attach = Request::PortAttach { port: port.id };
                    let _ = self.client.ask(attach, vec![stream], Pending::Attach);
                }
                Err(refusal) => {
                    if port.retry.is_first() {
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
                    port.retry.failed(now_ms);
                }
            }
        }
    }
}
