//! One rule of 10,000, and one member of a set of 100,000, with 100,000 connections cached. The
//! controller is played here, so that what is measured is the data plane's work from the first request
//! to the last answer.
//!
//! The data plane does not tell how many decisions a change has ended. But the next packet of each
//! connection shows it: a connection whose decision is gone is walked again, which costs as much more
//! than another as the first packets of all connections cost.

use super::lists::{LIST, SET, allowing, member, network, rule, station};
use super::{ANSWERED, FIRST, LOST, NAME, is_wanted};
use crate::Effort;
use crate::machine::on_processor;
use crate::network::float;
use crate::record::Record;
use anyhow::{Result, ensure};
use control_protocol::data_plane::Request;
use control_protocol::rules::{Base, MAX_MEMBERS_PER_REQUEST, MAX_RULES_PER_REQUEST, RuleRequest};
use flow::{Filter, Filters, PortId};
use rule_list::{Member, Rule, SetKind, Verdict};
use std::time::{Duration, Instant};
use testbed::polling::Frame;
use testbed::{Controlled, PollingGuest};

const RULES: u32 = 10_000;
const CONNECTIONS: u32 = 100_000;
/// Frames under way.
const WINDOW: u32 = 128;
const LATE: Duration = Duration::from_secs(2);
/// Passes until caches have all that they can hold.
const WARMING: usize = 2;
/// The receiver.
const TO: u32 = 1 << 20;

/// What is changed, one of it in each round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Rule,
    Member,
    Network,
}

const CHANGES: [(&str, Change); 3] = [
    ("one rule of 10,000", Change::Rule),
    ("one member of 100,000", Change::Member),
    (
        "one network of 256 addresses in a set of 100,000",
        Change::Network,
    ),
];
const NEW: &str = "new connections, 10,000 rules";

struct Plane {
    plane: Controlled,
    guest: PollingGuest,
    cycles_per_us: f64,
}

pub fn run(_: &Effort, record: &mut Record) -> Result<()> {
    let labels = CHANGES.map(|(label, _)| label);
    if !labels.iter().chain([&NEW]).any(|label| is_wanted(record, label)) {
        return Ok(());
    }
    on_processor(0, || {
        for round in 0..record.rounds {
            println!("  round {} of {}", round + 1, record.rounds);
            // What one decision is about is up to the data plane: connections are new to a new one only.
            let mut plane = Plane::start()?;
            plane.round(u32::try_from(round)?, record)?;
            plane.plane.stop()?;
        }
        Ok(())
    })
}

impl Plane {
    fn start() -> Result<Plane> {
        let ports = ["p1", "p2"];
        let mut plane = Controlled::start(&ports)?;
        plane.join_ports()?;
        let mut requests = vec![RuleRequest::SetAdd {
            set: SET,
            kind: SetKind::Addresses,
        }];
        let members: Vec<Member> = (0..CONNECTIONS).map(|number| member(station(number))).collect();
        requests.extend(members.chunks(MAX_MEMBERS_PER_REQUEST).map(add_members));
        let rules: Vec<Rule> = (0..RULES - 1).map(rule).chain([allowing()]).collect();
        requests.extend(exchange_rules(Base::Empty, &[], &rules));
        plane.ask_all(requests.into_iter().map(Request::Rules))?;
        let mut filters = Filters::default();
        filters.egress[2] = Filter::Rules(LIST);
        let port = PortId(2);
        plane.ask_all([Request::PortFilters { port, filters }])?;
        plane.register_guest(&ports)?;
        let guest = PollingGuest::connect(&ports.map(|port| plane.socket(port)), 1514)?;
        let cycles_per_us = float(plane.work()?.cycles_per_second) / 1e6;
        Ok(Plane {
            plane,
            guest,
            cycles_per_us,
        })
    }

    /// Makes connections, and changes one thing after the other.
    fn round(&mut self, round: u32, record: &mut Record) -> Result<()> {
        let first = self.pass()?;
        let mut usual = self.settle()?;
        let walk = first - usual;
        record.add(NEW, NAME, FIRST, walk / self.cycles_per_us)?;
        for (label, change) in CHANGES {
            let begin = Instant::now();
            self.change(change, round)?;
            let answered = begin.elapsed();
            let lost = (self.pass()? - usual) / walk;
            record.add(label, NAME, ANSWERED, answered.as_secs_f64() * 1e3)?;
            record.add(label, NAME, LOST, (100.0 * lost).max(0.0))?;
            usual = self.settle()?;
        }
        Ok(())
    }

    /// Cycles per packet once all is cached.
    fn settle(&mut self) -> Result<f64> {
        for _ in 0..WARMING {
            self.pass()?;
        }
        self.pass()
    }

    /// Sends a packet of each connection; returns the busy cycles of each.
    fn pass(&mut self) -> Result<f64> {
        let before = self.busy()?;
        let mut sent = 0;
        while sent < CONNECTIONS {
            let end = CONNECTIONS.min(sent + WINDOW);
            for number in sent..end {
                let frame = Frame::udp(64, station(number), TO);
                self.guest.send(0, &frame)?;
            }
            self.guest.flush(0);
            let (begin, mut left) = (Instant::now(), (end - sent) as usize);
            while left > 0 {
                ensure!(begin.elapsed() < LATE, "{left} packets do not arrive");
                left -= self.guest.receive(1, left, |_| ())?;
            }
            sent = end;
        }
        Ok((self.busy()? - before) / f64::from(CONNECTIONS))
    }

    fn busy(&mut self) -> Result<f64> {
        let workers = self.plane.work()?.workers;
        Ok(float(workers.iter().map(|worker| worker.busy_cycles).sum()))
    }

    fn change(&mut self, change: Change, round: u32) -> Result<()> {
        let requests = match change {
            Change::Rule => exchange_rules(Base::Present, &[round], &[rule(RULES + round)]),
            Change::Member => vec![add_members(&[member(station(CONNECTIONS + round))])],
            Change::Network => vec![add_members(&[network(station(round), 24)])],
        };
        self.plane.ask_all(requests.into_iter().map(Request::Rules))
    }
}

fn add_members(members: &[Member]) -> RuleRequest {
    RuleRequest::SetChange {
        set: SET,
        remove: Vec::new(),
        add: members.to_vec(),
    }
}

/// The requests of a new version of the list.
fn exchange_rules(base: Base, remove: &[u32], add: &[Rule]) -> Vec<RuleRequest> {
    let default = Verdict::Drop;
    let list = LIST;
    let mut requests = vec![RuleRequest::Begin { list, base, default }];
    if !remove.is_empty() {
        let rules = remove.to_vec();
        requests.push(RuleRequest::Remove { list, rules });
    }
    let added = add.chunks(MAX_RULES_PER_REQUEST);
    requests.extend(added.map(|rules| RuleRequest::Add {
        list,
        rules: rules.to_vec(),
    }));
    requests.push(RuleRequest::Commit { list, tag: 1 });
    requests
}
