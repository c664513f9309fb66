//! The latest events, for users.
//!
//! Guests and VMMs cause most events, so each port has a token bucket, and what exceeds it is counted. Two
//! rings keep what passes: MAC addresses come and go on a busy switch, and must not displace everything else.
//!
//! | who floods | what it displaces |
//! |---|---|
//! | a port | nothing after [`BURST`] events; its own later ones are counted |
//! | all ports, with MAC addresses | older events about MAC addresses |
//! | all ports, otherwise | older events about ports and processes |

use management::{Event, EventMark, Events, Happening};
use pacing::TokenBucket;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Events about MAC addresses that are kept, and others.
const KEPT: usize = 1_024;

/// Events of a port at once, after silence.
const BURST: u32 = 32;

/// Events of a port per second after that.
const RATE: u32 = 1;

/// Time for which events are kept.
const AGE_MS: u64 = 900_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct EventLog {
    log: u64,
    number: u64,
    about_macs: VecDeque<Event>,
    others: VecDeque<Event>,
    /// Ports that events were about lately.
    ports: HashMap<String, Allowance>,
}

#[derive(Debug)]
struct Allowance {
    bucket: TokenBucket,
    left_out: u64,
}

impl EventLog {
    /// An empty log, which differs from that of each control process before.
    pub fn new() -> EventLog {
        EventLog {
            log: now_ms(),
            number: 0,
            about_macs: VecDeque::new(),
            others: VecDeque::new(),
            ports: HashMap::new(),
        }
    }

    /// Keeps an event; `since_start` is any clock that goes on.
    pub fn add(&mut self, what: Happening, since_start: Duration) {
        let Some(port) = what.port() else {
            return self.keep(what);
        };
        let allowance = self.ports.entry(port.to_owned()).or_insert_with(|| Allowance {
            bucket: TokenBucket::new(BURST, RATE),
            left_out: 0,
        });
        if !allowance.bucket.take(since_start) {
            allowance.left_out += 1;
            return;
        }
        let count = std::mem::take(&mut allowance.left_out);
        if count > 0 {
            let port = Some(port.to_owned());
            self.keep(Happening::LeftOut { port, count });
        }
        self.keep(what);
    }

    /// The port is gone, and its name may be another one's.
    pub fn forget_port(&mut self, port: &str) {
        let left_out = self.ports.remove(port).map_or(0, |allowance| allowance.left_out);
        if left_out > 0 {
            let port = Some(port.to_owned());
            self.keep(Happening::LeftOut {
                port,
                count: left_out,
            });
        }
    }

    fn keep(&mut self, what: Happening) {
        self.number += 1;
        let is_about_mac = matches!(
            what,
            Happening::MacLearned { .. } | Happening::MacForgotten { .. }
        );
        let ring = if is_about_mac {
            &mut self.about_macs
        } else {
            &mut self.others
        };
        if ring.len() >= KEPT {
            ring.pop_front();
        }
        ring.push_back(Event {
            number: self.number,
            time_ms: now_ms(),
            what,
        });
    }

    /// Events after a mark, or all.
    pub fn after(&self, mark: Option<EventMark>) -> Events {
        let mark = mark.filter(|mark| mark.log == self.log);
        let after = mark.map_or(0, |mark| mark.number);
        let since_ms = now_ms().saturating_sub(AGE_MS);
        let all = self.about_macs.iter().chain(&self.others);
        let wanted = all.filter(|event| event.number > after && event.time_ms >= since_ms);
        let mut events: Vec<Event> = wanted.cloned().collect();
        events.sort_by_key(|event| event.number);
        Events {
            log: self.log,
            events,
        }
    }
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(port: &str, number: usize) -> Happening {
        Happening::MacLearned {
            switch: "s".into(),
            port: port.into(),
            mac: format!("{number}"),
            vlan: 0,
            contested: false,
        }
    }

    fn state(port: &str) -> Happening {
        Happening::PortState {
            port: port.into(),
            switch: "s".into(),
            state: "running".into(),
            pid: None,
        }
    }

    #[test]
    fn a_port_that_floods_displaces_nothing_and_is_counted() {
        let mut log = EventLog::new();
        let mut now = Duration::from_secs(1);
        log.add(state("quiet"), now);
        for number in 0..10_000 {
            log.add(learned("loud", number), now);
        }
        let first = log.after(None);
        assert_eq!(first.events.len(), 1 + BURST as usize);
        assert_eq!(first.events[0].what, state("quiet"));
        now += Duration::from_secs(1);
        log.add(learned("loud", 0), now);
        let mark = EventMark {
            log: first.log,
            number: first.events.last().expect("there are some").number,
        };
        let later = log.after(Some(mark)).events;
        let left_out = Happening::LeftOut {
            port: Some("loud".into()),
            count: 10_000 - u64::from(BURST),
        };
        assert_eq!(
            later.iter().map(|event| &event.what).collect::<Vec<_>>(),
            [&left_out, &learned("loud", 0)]
        );
        // A mark of another control process is none.
        let other = EventMark { log: 1, ..mark };
        assert_eq!(log.after(Some(other)).events.len(), first.events.len() + 2);
    }

    #[test]
    fn many_ports_with_many_stations_leave_other_events_theirs() {
        let mut log = EventLog::new();
        log.add(state("quiet"), Duration::ZERO);
        for port in 0..1_000 {
            for number in 0..100 {
                log.add(learned(&format!("p{port}"), number), Duration::ZERO);
            }
        }
        let events = log.after(None).events;
        assert_eq!(events[0].what, state("quiet"));
        assert_eq!(events.len(), KEPT + 1);
        for port in 0..1_000 {
            log.forget_port(&format!("p{port}"));
        }
        assert!(log.ports.len() <= 1, "ports that are gone are kept");
    }
}
