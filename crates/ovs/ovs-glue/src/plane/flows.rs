//! Flows as they were installed, and their counters.
//!
//! ovs-vswitchd is told exactly what it gave, so keys, masks and actions are kept as they came, in the bytes
//! of their messages, which are fewer than those of what is read from them. The data plane names a flow by
//! its *place*, a number that counts up; so its pages come in the order in which flows were made.
//!
//! Flows outlive data planes. The next data plane counts from zero, and what those before had told last is
//! added to what it tells: no counter goes back, and packets counted after the last look are lost. Flows that
//! the next one does not have yet *wait*, in a range of places, and are known here only. So are those that it
//! has *refused*: they keep their statistics, so that ovs-vswitchd finds them idle and removes them, and
//! installs them anew when a packet needs them. They have places behind all others, and so a dump has three
//! parts that follow each other: what the data plane tells up to the range, the range, and what comes after
//! it.

use super::flow_shares::FlowShares;
use crate::datapath::{Answer, Detail, Errno, Flow, FlowId, FlowSpec, PortNo, Rule, Seen};
use flow::FlowStats;
use ovs_netlink::action::{self, Action};
use ovs_netlink::attribute::{Writer, attributes};
use ovs_netlink::flow::Stats;
use ovs_netlink::key::Match;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::ops::Range;

const KEY: u16 = 1;
const MASK: u16 = 2;
const ACTIONS: u16 = 3;

/// Places above this one are of flows that the data plane has refused.
const REFUSED: u64 = 1 << 63;
/// Flows in a page that the data plane is not asked for.
const PAGE: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flows {
    places: HashMap<FlowId, u64>,
    flows: BTreeMap<u64, Stored>,
    last_place: u64,
    /// Refused so far.
    refused: u64,
    /// Places of flows that the data plane does not have yet. Without a data plane, all places.
    waiting: Range<u64>,
    shares: FlowShares,
}

/// A flow in the bytes of its attributes, and what it has counted.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub id: FlowId,
    /// The port of whose share it is.
    sharer: Option<PortNo>,
    rule: Box<[u8]>,
    /// What it had counted in data planes that have gone.
    before: Stats,
    /// Statistics of all data planes: `before`, and what the present one told last.
    stats: Stats,
    /// When the last packet came, by the monotonic clock in milliseconds.
    used: Option<NonZeroU64>,
    tcp_flags: u8,
}

impl Stored {
    pub fn new(id: FlowId, matches: &Match, actions: &[Action]) -> Result<Stored, Errno> {
        Ok(Stored {
            id,
            sharer: None,
            rule: written(matches, actions)?,
            before: Stats::default(),
            stats: Stats::default(),
            used: None,
            tcp_flags: 0,
        })
    }

    /// The flow as it is after a change.
    pub fn changed(&self, matches: &Match, actions: &[Action], clear: bool) -> Result<Stored, Errno> {
        if clear {
            let sharer = self.sharer;
            let stored = Stored::new(self.id.clone(), matches, actions)?;
            return Ok(Stored { sharer, ..stored });
        }
        Ok(Stored {
            rule: written(matches, actions)?,
            ..self.clone()
        })
    }

    /// What it was made of. An error is one of ours: it was written here.
    pub fn rule(&self) -> Result<Rule, Errno> {
        let mut parts: [&[u8]; 4] = [&[]; 4];
        for attribute in attributes(&self.rule) {
            let attribute = attribute.map_err(|_| Errno::EIO)?;
            let part = parts.get_mut(usize::from(attribute.kind));
            *part.ok_or(Errno::EIO)? = attribute.value;
        }
        let [_, key, mask, actions] = parts;
        Ok(Rule {
            matches: Box::new(Match::read(key, Some(mask)).map_err(|_| Errno::EIO)?),
            actions: action::read(actions).map_err(|_| Errno::EIO)?,
        })
    }

    /// Takes in what the data plane tells, which may be any numbers.
    pub fn count(&mut self, told: &FlowStats, now_ms: u64) {
        self.stats = Stats {
            packets: self.before.packets.saturating_add(told.packets),
            bytes: self.before.bytes.saturating_add(told.bytes),
        };
        let used = told.idle_ms.map(|idle| now_ms.saturating_sub(idle));
        self.used = self.used.max(used.and_then(NonZeroU64::new));
        // The others are no flags of TCP's (RFC 9293).
        self.tcp_flags |= told.tcp_flags as u8;
    }

    pub fn tell(&self, detail: Detail) -> Result<Flow, Errno> {
        let rule = match detail {
            Detail::Seen => None,
            Detail::Whole => Some(self.rule()?),
        };
        let seen = Seen {
            stats: self.stats,
            used: self.used.map(NonZeroU64::get),
            tcp_flags: self.tcp_flags,
        };
        Ok(Flow {
            id: self.id.clone(),
            rule,
            seen,
        })
    }
}

fn written(matches: &Match, actions: &[Action]) -> Result<Box<[u8]>, Errno> {
    let mut writer = Writer::new();
    matches.write(&mut writer, KEY, MASK);
    writer.nested(ACTIONS, |writer| action::write(actions, writer));
    let rule = writer.finish().map_err(|error| error.errno())?;
    Ok(rule.into())
}

impl Flows {
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn place(&self, id: &FlowId) -> Option<u64> {
        self.places.get(id).copied()
    }

    pub fn at(&self, place: u64) -> Option<&Stored> {
        self.flows.get(&place)
    }

    pub fn at_mut(&mut self, place: u64) -> Option<&mut Stored> {
        self.flows.get_mut(&place)
    }

    /// Whether a port may have one more flow.
    pub fn has_room(&self, sharer: PortNo) -> bool {
        self.shares.has_room(sharer)
    }

    /// Adds a flow, which counts for the share of a port, and returns its place.
    pub fn add(&mut self, flow: &FlowSpec, sharer: Option<PortNo>) -> Result<u64, Errno> {
        let stored = Stored::new(flow.id.clone(), &flow.matches, &flow.actions)?;
        self.last_place += 1;
        self.insert(self.last_place, Stored { sharer, ..stored });
        if let Some(port) = sharer {
            self.shares.add(port);
        }
        Ok(self.last_place)
    }

    fn insert(&mut self, place: u64, stored: Stored) {
        self.places.insert(stored.id.clone(), place);
        self.flows.insert(place, stored);
    }

    /// Puts a flow in the place of another and returns that; nothing if there is none.
    pub fn replace(&mut self, place: u64, flow: Stored) -> Option<Stored> {
        let there = self.flows.get_mut(&place)?;
        Some(std::mem::replace(there, flow))
    }

    pub fn remove(&mut self, place: u64) -> Option<Stored> {
        let stored = self.take(place)?;
        if let Some(port) = stored.sharer {
            self.shares.remove(port);
        }
        Some(stored)
    }

    /// Takes a flow out of its place.
    fn take(&mut self, place: u64) -> Option<Stored> {
        let stored = self.flows.remove(&place)?;
        // Its name may be another's by now.
        if self.places.get(&stored.id) == Some(&place) {
            self.places.remove(&stored.id);
        }
        Some(stored)
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.flows.clear();
        self.shares = FlowShares::default();
    }

    /// The data plane has gone: all flows wait for the next one.
    pub fn lose(&mut self) {
        for (_, stored) in self.flows.split_off(&REFUSED) {
            self.last_place += 1;
            self.insert(self.last_place, stored);
        }
        for stored in self.flows.values_mut() {
            stored.before = stored.stats;
        }
        self.waiting = 1..self.last_place + 1;
    }

    /// A flow that was made without a data plane waits for the next one.
    pub fn wait(&mut self, place: u64) {
        self.waiting.end = self.waiting.end.max(place + 1);
    }

    /// The next flow that waits. The data plane has it from now on.
    pub fn next_waiting(&mut self) -> Option<(u64, &Stored)> {
        let found = self.flows.range(self.waiting.clone()).next();
        self.waiting.start = found.map_or(self.waiting.end, |(place, _)| place + 1);
        found.map(|(place, stored)| (*place, stored))
    }

    /// Whether the data plane does not have what is at this place, since it waits or was refused.
    pub fn is_kept_back(&self, place: u64) -> bool {
        self.waiting.contains(&place) || is_refused(place)
    }

    /// The data plane has refused a flow that had waited.
    pub fn refuse(&mut self, place: u64) {
        if let Some(stored) = self.take(place) {
            self.refused += 1;
            self.insert(REFUSED + self.refused, stored);
        }
    }

    /// The last place up to which the data plane is to be asked for flows after that place.
    pub fn last_told(&self, after: u64) -> u64 {
        if after < self.waiting.start && !self.waiting.is_empty() {
            self.waiting.start - 1
        } else {
            REFUSED
        }
    }

    /// A page of flows that are kept back: those after that place and before the data plane is to be asked
    /// again.
    pub fn page(&self, after: u64, detail: Detail) -> Result<Answer, Errno> {
        let first = after.saturating_add(1);
        let end = Some(self.waiting.end).filter(|end| first < *end);
        let end = end.unwrap_or(u64::MAX);
        let found = self.flows.range(first..end).take(PAGE);
        let flows = found.map(|(place, stored)| Ok((*place, stored.tell(detail)?)));
        let flows = flows.collect::<Result<Vec<_>, Errno>>()?;
        let is_full = flows.len() == PAGE;
        let last = flows.last().map(|(place, _)| *place).filter(|_| is_full);
        Ok(Answer::Flows {
            more_after: last.or_else(|| self.more_after(end - 1)),
            flows,
        })
    }

    /// Place where a dump goes on, if there are flows after it.
    pub fn more_after(&self, place: u64) -> Option<u64> {
        let mut rest = self.flows.range(place.saturating_add(1)..);
        rest.next().map(|_| place)
    }
}

/// Whether this is the place of a flow that the data plane has refused.
pub(super) fn is_refused(place: u64) -> bool {
    place > REFUSED
}
