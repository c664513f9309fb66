//! Connections to VMMs that listen.
//!
//! As the control process makes them for ports of its own: a stream is connected here, and the data plane gets it. An attempt is
//! made when the port is there, and a while after the data plane said that its connection has ended; a look some time after each
//! attempt finds out whether it came to anything. Delays double up to a bound, until a driver runs. Nothing waits for a VMM:
//! one whose backlog is full is tried again.

use super::ports::Plug;
use super::{Pending, Plane};
use crate::datapath::PortNo;
use control_protocol::data_plane::{PortState, Request};
use std::time::{Duration, Instant};

/// First delay.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// Longest delay between attempts.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a port may take to become connected after an attempt.
const SETTLE: Duration = Duration::from_secs(1);

/// When a port is to be connected.
#[derive(Debug)]
pub(super) struct Attempts {
    /// The next attempt, or the look after the last one. `None`: it is connected, or nobody is to be connected to.
    due: Option<Instant>,
    delay: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Attempts {
            due: None,
            delay: DELAY_MIN,
        }
    }
}

impl Attempts {
    /// The first one is made at once.
    pub fn now() -> Self {
        Attempts {
            due: Some(Instant::now()),
            ..Attempts::default()
        }
    }

    /// The port is in that state now.
    pub fn note(&mut self, state: &PortState) {
        match state {
            // Not at once: its end may have been that of a connection made before the last one.
            PortState::Disconnected => self.due = self.due.or_else(|| Some(Instant::now() + self.delay)),
            PortState::Running => self.delay = DELAY_MIN,
            PortState::Connected | PortState::Broken(_) => {}
        }
    }

    fn back_off(&mut self, least: Duration) {
        self.due = Some(Instant::now() + self.delay.max(least));
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }
}

impl Plane {
    /// Connects to those VMMs that are due.
    pub(super) fn connect_clients(&mut self) {
        if !self.is_ready() {
            return;
        }
        let now = Instant::now();
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let ports = self.ports.ports.iter();
        let due = ports.filter(|(_, port)| is_due(port.attempts.due));
        let due: Vec<PortNo> = due.map(|(number, _)| *number).collect();
        due.into_iter().for_each(|number| self.connect_client(number));
    }

    /// When [`Datapath::flush`](crate::datapath::Datapath::flush) has a VMM to connect to.
    pub fn next_attempt(&self) -> Option<Instant> {
        let ports = self.ports.ports.values().filter(|_| self.is_ready());
        ports.filter_map(|port| port.attempts.due).min()
    }

    fn connect_client(&mut self, number: PortNo) {
        let (Some(port), Some(id)) = (self.ports.ports.get_mut(&number), self.options.ports.id(number))
        else {
            return;
        };
        port.attempts.due = None;
        let Some(Plug::Client(socket)) = port
            .plug
            .as_ref()
            .filter(|_| port.state == PortState::Disconnected)
        else {
            return;
        };
        match socket_path::connect_to(socket) {
            Ok(stream) => {
                port.attempts.back_off(SETTLE);
                let serial = self.link.push(Request::PortAttach { port: id }, vec![stream]);
                self.pending.insert(serial, Pending::Attach);
            }
            Err(refusal) => {
                if port.attempts.delay == DELAY_MIN {
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
                port.attempts.back_off(DELAY_MIN);
            }
        }
    }
}
