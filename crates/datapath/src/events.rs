//! Ports' events on their way to the control process: a port is connected, runs, is broken, is disconnected.
//!
//! A VMM can cause thousands a second, and each costs the control process work for which others wait. So only the latest
//! state counts: a port that has changed is marked (`Notices`), once until its state is read, and the state is read when
//! there is room for the message. And each port has a rate: a second's worth at once after a pause, further ones when
//! their time has come. A state that was sent already is sent again only when the guest's threads should be looked up anew.
//! So one entry is kept per port, and the last state is always sent.

use crate::miss::Turns;
use crate::state::Datapath;
use crate::token_bucket::TokenBucket;
use control_protocol::data_plane::{FromDataPlane, PortState};
use flow::PortId;
use std::collections::{BTreeSet, HashMap};

/// Events of a port per second; so many at once after a pause.
pub(crate) const EVENTS_PER_SECOND: u32 = 20;

/// Time between two events of a port that has more of them than it may, in milliseconds.
const INTERVAL_MS: u64 = 1000 / EVENTS_PER_SECOND as u64;

/// All ports' events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    ports: HashMap<PortId, Told>,
    /// Ports whose state may be sent now.
    ready: Turns,
    /// Ports whose state may be sent later, and when.
    later: BTreeSet<(u64, PortId)>,
}

#[derive(Debug)]
struct Told {
    bucket: TokenBucket,
    /// State and process at the other end, as they were sent last.
    last: Option<(PortState, Option<u32>)>,
}

impl Events {
    /// A port has changed. To be called once until [`next`](Self::next) has read its state.
    pub fn note(&mut self, port: PortId, now_ms: u64) {
        let new = || Told {
            bucket: TokenBucket::new(EVENTS_PER_SECOND),
            last: None,
        };
        if self.ports.entry(port).or_insert_with(new).bucket.take(now_ms) {
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
                told.bucket.take(now_ms);
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

    /// The next message for the control process, one port after the other.
    pub fn next(&mut self, datapath: &Datapath) -> Option<FromDataPlane> {
        while let Some(id) = self.ready.next() {
            // First of all: changes from here on are noticed again.
            datapath.notices.on_read(id);
            let (Some(port), Some(told)) = (datapath.port(id), self.ports.get_mut(&id)) else {
                continue;
            };
            let (state, peer) = (port.state(), port.peer.pid());
            let now = Some((state.clone(), peer));
            if port.home.take_missed_threads() || told.last != now {
                told.last = now;
                let port = id;
                return Some(FromDataPlane::PortState { port, state, peer });
            }
        }
        None
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
            while events.ready.next().is_some() {
                looks += 1;
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

    #[test]
    fn each_port_has_its_own() {
        let mut events = Events::default();
        events.note(PORT, 0);
        assert_eq!(looks(&mut events, 0, 10), 20);
        events.note(PortId(2), 10);
        assert_eq!(events.ready.next(), Some(PortId(2)));
    }
}
