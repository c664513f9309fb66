//! Ports' events on their way to their controller: a port is connected, runs, is broken, is disconnected. The
//! built-in controller, which registers the threads of guests, gets those of all ports.
//!
//! A VMM can cause thousands a second, and each costs the control process work for which others wait. So only
//! the latest state counts: a port that has changed is marked (`Notices`), once until its state is read, and
//! the state is read when there is room for the message. And each port has a rate: a second's worth at once
//! after a pause, further ones when their time has come. A state that was sent already is sent again only
//! when the guest's threads should be looked up anew. So one entry is kept per port, and the last state is
//! always sent.

use crate::port::Port;
use crate::state::Datapath;
use control_protocol::data_plane::{Connection, FromDataPlane, PortState};
use flow::{ControllerId, PortId};
use pacing::{TokenBucket, Turns};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Events of a port per second; so many at once after a pause.
pub(crate) const EVENTS_PER_SECOND: u32 = 20;

/// Time between two events of a port that has more of them than it may, in milliseconds.
const INTERVAL_MS: u64 = 1000 / EVENTS_PER_SECOND as u64;

/// The ports' events for one controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    ports: HashMap<PortId, Told>,
    /// Ports whose state may be sent now.
    ready: Turns<PortId>,
    /// Ports whose state may be sent later, and when.
    later: BTreeSet<(u64, PortId)>,
}

#[derive(Debug)]
struct Told {
    bucket: TokenBucket,
    /// The port has changed since its state was read.
    changed: bool,
    last: Option<Sent>,
}

/// What was sent of a port last.
#[derive(Debug)]
struct Sent {
    /// Another port may have its number by now.
    port: Weak<Port>,
    state: PortState,
    /// The process at the other end.
    peer: Option<u32>,
    shortfall: Option<String>,
}

impl Sent {
    fn is_of(&self, port: &Arc<Port>, now: &Now) -> bool {
        self.port.as_ptr() == Arc::as_ptr(port)
            && (&self.state, self.peer, &self.shortfall) == (&now.state, now.peer, &now.shortfall)
    }
}

/// What a port is.
struct Now {
    connection: Connection,
    state: PortState,
    peer: Option<u32>,
    shortfall: Option<String>,
}

impl Events {
    /// A port has changed.
    pub fn note(&mut self, port: PortId, now_ms: u64) {
        let told = self.ports.entry(port).or_insert_with(|| Told {
            bucket: TokenBucket::new(EVENTS_PER_SECOND, EVENTS_PER_SECOND),
            changed: false,
            last: None,
        });
        if std::mem::replace(&mut told.changed, true) {
            return;
        }
        if told.bucket.take(Duration::from_millis(now_ms)) {
            self.ready.add(port);
        } else {
            self.later.insert((now_ms + INTERVAL_MS, port));
        }
    }

    /// Makes ports ready that were put off until now.
    pub fn wake(&mut self, now_ms: u64) {
        while let Some((due, port)) = self.later.first().copied().filter(|(due, _)| *due <= now_ms) {
            self.later.remove(&(due, port));
            if let Some(told) = self.ports.get_mut(&port) {
                // It has waited for this event; further ones are not saved up meanwhile.
                told.bucket.take(Duration::from_millis(now_ms));
                self.ready.add(port);
            }
        }
    }

    /// When a port that was put off is due, in milliseconds of the data plane's clock.
    pub fn next_due(&self) -> Option<u64> {
        self.later.first().map(|(due, _)| *due)
    }

    /// Whether a state may be sent now.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next message for the controller, one port after the other.
    pub fn next(&mut self, controller: ControllerId, datapath: &Datapath) -> Option<FromDataPlane> {
        while let Some(port) = self.ready.take() {
            if let Some(now) = self.read(port, controller, datapath) {
                return Some(if controller.owns(port) {
                    FromDataPlane::PortState {
                        port,
                        state: now.state,
                        peer: now.peer,
                        shortfall: now.shortfall,
                    }
                } else {
                    FromDataPlane::ForeignPort {
                        port,
                        connection: now.connection,
                        state: now.state,
                        peer: now.peer,
                    }
                });
            }
        }
        None
    }

    /// What a port is, if the controller is to hear of it.
    fn read(&mut self, id: PortId, controller: ControllerId, datapath: &Datapath) -> Option<Now> {
        // First of all: changes from here on are noticed again.
        datapath.notices.on_read(id);
        let Some(port) = datapath.port(id) else {
            // Its own controller has removed it and knows.
            let known = self.ports.remove(&id)?.last.is_some() && !controller.owns(id);
            return known.then_some(Now {
                connection: Connection::Attached,
                state: PortState::Disconnected,
                peer: None,
                shortfall: None,
            });
        };
        let told = self.ports.get_mut(&id)?;
        told.changed = false;
        let now = Now {
            connection: port.connection(),
            state: port.state(),
            peer: port.peer.pid(),
            shortfall: port.vnic.shortfall(),
        };
        let anew = controller == ControllerId::BUILT_IN && port.home.take_missed_threads();
        if !anew && told.last.as_ref().is_some_and(|last| last.is_of(&port, &now)) {
            return None;
        }
        told.last = Some(Sent {
            port: Arc::downgrade(&port),
            state: now.state.clone(),
            peer: now.peer,
            shortfall: now.shortfall.clone(),
        });
        Some(now)
    }

    /// The port was removed.
    pub fn forget(&mut self, port: PortId) {
        self.ports.remove(&port);
        self.later.retain(|(_, other)| *other != port);
    }

    /// There is another control process, or none: no state has been sent to it.
    pub fn forget_told(&mut self) {
        self.ports.values_mut().for_each(|told| told.last = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(1);

    /// How often a port that changes all the time is looked at from `start_ms` to `end_ms`.
    fn looks(events: &mut Events, start_ms: u64, end_ms: u64) -> usize {
        let mut looks = 0;
        for now_ms in start_ms..end_ms {
            events.wake(now_ms);
            while let Some(port) = events.ready.take() {
                looks += 1;
                events.ports.get_mut(&port).unwrap().changed = false;
                events.note(PORT, now_ms);
            }
        }
        looks
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut events = Events::default();
        events.note(PORT, 5000);
        assert_eq!(looks(&mut events, 5000, 5001), 20);
        assert_eq!(events.next_due(), Some(5050));
        assert_eq!(looks(&mut events, 5001, 15_001), 200);
        // A port that is no more is not waited for.
        assert!(events.next_due().is_some());
        events.forget(PORT);
        assert_eq!((events.next_due(), events.is_ready()), (None, false));
    }

    /// Also while nobody reads, as a controller that was stopped.
    #[test]
    fn what_changes_again_takes_no_more_room() {
        let mut events = Events::default();
        (0..10_000).for_each(|now_ms| events.note(PORT, now_ms));
        assert_eq!((events.later.len(), events.ready.take()), (0, Some(PORT)));
        events.note(PORT, 10_000);
        assert_eq!((events.later.len(), events.ready.take()), (0, None));
    }

    #[test]
    fn each_port_has_its_own() {
        let mut events = Events::default();
        events.note(PORT, 0);
        assert_eq!(looks(&mut events, 0, 10), 20);
        events.note(PortId(2), 10);
        assert_eq!(events.ready.take(), Some(PortId(2)));
    }
}
