//! What happens, as events for users.

use crate::control::Control;
use crate::l2::Note;
use crate::plan::Change;
use control_protocol::data_plane::PortState;
use control_protocol::supervisor::ProcessStatus;
use management::Happening;
use telemetry::Told;

/// A state in a word, for users.
pub fn state_name(state: &PortState) -> &'static str {
    match state {
        PortState::Disconnected => "disconnected",
        PortState::Connected => "connected",
        PortState::Running => "running",
        PortState::Broken(_) => "broken",
    }
}

impl Control {
    /// Keeps an event for users.
    pub fn tell(&mut self, what: Happening) {
        self.events.add(what, self.started.elapsed());
    }

    /// Tells the log, and users, of problems of ports that are new, or have lasted.
    pub fn tell_problems(&mut self, now_ms: u64) {
        let ports = self.ports.iter();
        let present: Vec<_> = ports
            .filter_map(|(name, run)| Some((name.as_str(), run.trouble()?)))
            .collect();
        let present = present.iter().map(|(name, trouble)| (*name, trouble));
        for Told { name, text } in self.told.update(present, now_ms) {
            let Some(port) = name else {
                log::warn!("{text}");
                continue;
            };
            let run = self.ports.get(&port);
            let switch = run.map(|run| run.wanted.switch.clone()).unwrap_or_default();
            log::warn!(PORT = port.as_str(), SWITCH = switch.as_str(); "port {port}: {text}");
            self.tell(Happening::PortProblem {
                port,
                switch,
                problem: text,
            });
        }
    }

    /// Tells users of stations that have come and gone.
    pub fn tell_stations(&mut self) {
        let runs = self.switches.runs.iter_mut();
        let noted: Vec<_> = runs
            .filter_map(|(name, run)| Some((name.clone(), run.l2_mut().take_notes()?)))
            .collect();
        for (switch, notes) in noted {
            for note in notes.kept {
                if let Some(what) = self.station_event(&switch, note) {
                    self.tell(what);
                }
            }
            if notes.left_out > 0 {
                let (port, count) = (None, notes.left_out);
                self.tell(Happening::LeftOut { port, count });
            }
        }
    }

    /// `None` about a port that is gone, of which users are told.
    fn station_event(&self, switch: &str, note: Note) -> Option<Happening> {
        let (switch, port) = (switch.to_owned(), self.names.get(&note.port)?.clone());
        let (mac, vlan) = (crate::serve::mac_text(note.station.mac), note.station.vlan);
        Some(match note.has_left {
            false => Happening::MacLearned {
                switch,
                port,
                mac,
                vlan,
                contested: note.is_contested,
            },
            true => Happening::MacForgotten {
                switch,
                port,
                mac,
                vlan,
            },
        })
    }

    /// Tells users of changes that were made.
    pub fn tell_changes(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::DelPort(port) => {
                    self.tell(Happening::PortRemoved { port: port.clone() });
                    self.events.forget_port(port);
                }
                Change::ReplacePort(replaced) => {
                    let port = replaced.port.clone();
                    self.tell(Happening::PortRemoved { port });
                }
                Change::AddPort(port, desired) => self.tell(Happening::PortAdded {
                    port: port.clone(),
                    switch: desired.switch.clone(),
                }),
                Change::DelSwitch(_)
                | Change::AddSwitch(..)
                | Change::SetSwitch(..)
                | Change::SetPort(..)
                | Change::Policy(_)
                | Change::P4(_) => {}
            }
        }
        if !changes.is_empty() {
            let changes = changes.len();
            self.tell(Happening::Configured { changes });
        }
    }

    /// Tells users of processes that have ended or were started.
    pub fn tell_processes(&mut self, processes: &[ProcessStatus]) {
        let mut told = Vec::new();
        for now in processes {
            let before = self
                .reported
                .processes
                .iter()
                .find(|before| before.role == now.role);
            let before_pid = before.and_then(|before| before.pid);
            let role = now.role.to_string();
            // What happened before this process began, it learns from the number of restarts.
            let ended = match before {
                Some(before) => {
                    before_pid.is_some() && before_pid != now.pid || before.restarts < now.restarts
                }
                None => now.restarts > 0,
            };
            let was_told = before.is_some_and(|before| before.pid.is_none());
            if let (true, false, Some(end)) = (ended, was_told, now.last_exit.clone()) {
                let role = role.clone();
                told.push(Happening::ProcessEnded { role, end });
            }
            if let Some(pid) = now.pid.filter(|pid| before_pid != Some(*pid)) {
                let restarts = now.restarts;
                told.push(Happening::ProcessStarted { role, pid, restarts });
            }
        }
        told.into_iter().for_each(|what| self.tell(what));
    }
}
