//! The state of a switch, and everything that changes it.

use super::decide::{Decision, Source};
use super::flows::{FlowChange, Flows, MASK, Record, flow_id};
use super::mac_table::{Entry, MacTable, Station};
use super::moves::{MoveCounts, Moves};
use flow::{Action, DropReason, Flow, FlowId, FlowKey, FlowStats, PortId};
use management::VlanConfig;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A flow without packets for this long is removed.
pub const FLOW_IDLE_MS: u64 = 20_000;

/// As [`FLOW_IDLE_MS`], for flows that drop.
pub const DROP_FLOW_IDLE_MS: u64 = 8_000;

/// A miss of a flow that was installed this long ago means that the data plane has lost it. Before that, the
/// packet was merely under way when the flow was put in.
const REINSTALL_MS: u64 = 500;

/// Rules of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRules {
    /// Stations that were not seen for this long are forgotten.
    pub ageing_ms: u64,
    /// Stations learned in all.
    pub table_size: usize,
    /// Whether unknown unicast is flooded.
    pub flood: bool,
}

/// Rules of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRules {
    /// VLANs.
    pub vlan: VlanConfig,
    /// Isolated ports do not talk to each other.
    pub isolated: bool,
    /// Whether unknown unicast goes out here.
    pub flood: bool,
    /// Stations learned here.
    pub mac_limit: usize,
    /// Addresses that are here and nowhere else.
    pub static_macs: Vec<u64>,
    /// Connected; others are left out of floods.
    pub up: bool,
}

/// What is known about a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// VLAN; `None` for a static address, which is valid in all.
    pub vlan: Option<u16>,
    /// Address.
    pub mac: u64,
    /// Where it is.
    pub port: PortId,
    /// Milliseconds since it was seen; `None` for a static address.
    pub age_ms: Option<u64>,
}

/// A learning switch.
#[derive(Clone, Debug)]
pub struct LearningSwitch {
    rules: SwitchRules,
    ports: BTreeMap<PortId, PortRules>,
    statics: HashMap<u64, PortId>,
    macs: MacTable,
    moves: Moves,
    flows: Flows,
    /// Flows that flood and have not been re-examined since ports came or went.
    stale: BTreeSet<FlowId>,
    flow_limit: usize,
}

impl LearningSwitch {
    /// A switch without ports.
    pub fn new(rules: SwitchRules) -> Self {
        LearningSwitch {
            rules,
            ports: BTreeMap::new(),
            statics: HashMap::new(),
            macs: MacTable::default(),
            moves: Moves::default(),
            flows: Flows::default(),
            stale: BTreeSet::new(),
            flow_limit: usize::MAX,
        }
    }

    /// Its rules.
    pub fn rules(&self) -> &SwitchRules {
        &self.rules
    }

    pub(super) fn macs(&self) -> &MacTable {
        &self.macs
    }

    pub(super) fn moves(&self) -> &Moves {
        &self.moves
    }

    /// Whether there is no room for another station.
    pub(super) fn is_full(&self) -> bool {
        self.macs.len() >= self.rules.table_size
    }

    /// Stations for which each port finds room in a full table.
    pub(super) fn fair_share(&self) -> usize {
        (self.rules.table_size / self.ports.len().max(1)).max(1)
    }

    pub(super) fn port(&self, id: PortId) -> Option<&PortRules> {
        self.ports.get(&id)
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = (PortId, &PortRules)> {
        self.ports.iter().map(|(id, rules)| (*id, rules))
    }

    pub(super) fn static_port(&self, mac: u64) -> Option<PortId> {
        self.statics.get(&mac).copied()
    }

    /// Flows installed.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Stations known, static ones included.
    pub fn mac_count(&self) -> usize {
        self.macs.len() + self.statics.len()
    }

    /// Stations known on a port, static ones included.
    pub fn macs_on_port(&self, port: PortId) -> usize {
        self.macs.on_port(port) + self.ports.get(&port).map_or(0, |rules| rules.static_macs.len())
    }

    /// The MAC table, static addresses first, then by VLAN and address.
    pub fn mac_entries(&self, now_ms: u64) -> Vec<MacEntry> {
        let fixed = self.statics.iter().map(|(&mac, &port)| MacEntry {
            vlan: None,
            mac,
            port,
            age_ms: None,
        });
        let learned = self.macs.iter().map(|(station, entry)| MacEntry {
            vlan: Some(station.vlan),
            mac: station.mac,
            port: entry.port,
            age_ms: Some(now_ms.saturating_sub(entry.seen_ms)),
        });
        let mut entries: Vec<_> = fixed.chain(learned).collect();
        entries.sort_by_key(|entry| (entry.vlan, entry.mac));
        entries
    }

    /// Most flows from any one port from now on; flows that exist stay.
    pub fn set_flow_limit(&mut self, limit: usize) {
        self.flow_limit = limit;
    }

    /// Most flows per second that may be re-examined for stations that move to any one port; no limit before this is called.
    pub fn set_move_limit(&mut self, flows_per_second: u64) {
        self.moves.set_limit(flows_per_second);
    }

    /// Counts of moves that were made, prevented and deferred.
    pub fn move_counts(&self) -> MoveCounts {
        self.moves.counts()
    }

    /// Stations that are held because they moved too often: where, and for how many more milliseconds.
    pub fn held(&self, now_ms: u64) -> impl Iterator<Item = (Station, PortId, u64)> + '_ {
        self.moves.held().filter_map(move |(station, until)| {
            let at = self.macs.get(station)?.port;
            Some((station, at, until.saturating_sub(now_ms)))
        })
    }

    /// Changes the rules. Call [`refresh`](Self::refresh) after one or more such changes.
    pub fn set_rules(&mut self, rules: SwitchRules) {
        self.rules = rules;
    }

    /// Adds a port or changes its rules; to be followed by [`refresh`](Self::refresh).
    pub fn set_port(&mut self, id: PortId, rules: PortRules) {
        self.statics.retain(|_, port| *port != id);
        for mac in &rules.static_macs {
            self.statics.insert(*mac, id);
        }
        self.ports.insert(id, rules);
    }

    /// Notes whether a port is connected. Flows that flood may be [stale](Self::has_stale) after that.
    pub fn set_up(&mut self, id: PortId, up: bool) {
        let Some(port) = self.ports.get_mut(&id).filter(|port| port.up != up) else {
            return;
        };
        port.up = up;
        let vlan = &port.vlan;
        let concerned = self
            .flows
            .floods(|number| super::vlan::egress(vlan, number).is_some());
        self.stale.extend(concerned);
    }

    /// Whether flows wait for [`refresh_floods`](Self::refresh_floods).
    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Re-examines some of the flows that are stale.
    pub fn refresh_floods(&mut self, most: usize, now_ms: u64) -> Vec<FlowChange> {
        let some: Vec<FlowId> = (0..most).map_while(|_| self.stale.pop_first()).collect();
        self.reconsider(&some, now_ms)
    }

    /// Removes a port; to be followed by [`refresh`](Self::refresh).
    pub fn remove_port(&mut self, id: PortId) {
        self.ports.remove(&id);
        self.moves.forget_port(id);
        self.statics.retain(|_, port| *port != id);
    }

    /// Forgets stations that contradict the rules, and re-examines all flows. Call after changes of rules.
    pub fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange> {
        let (ports, statics) = (&self.ports, &self.statics);
        let possible = |station: Station, port: PortId| {
            let carried = ports
                .get(&port)
                .is_some_and(|port| super::vlan::egress(&port.vlan, station.vlan).is_some());
            carried && !statics.contains_key(&station.mac)
        };
        let gone = self
            .macs
            .remove_where(|station, entry| !possible(station, entry.port));
        gone.iter().for_each(|(station, _)| self.moves.forget(*station));
        self.moves.retain(possible);
        self.stale.clear();
        let all: Vec<FlowId> = self.flows.iter().map(|(id, _)| id).collect();
        self.reconsider(&all, now_ms)
    }

    /// Decides about a packet that has no flow: what happens to it now, and how the flow table changes
    /// afterwards.
    pub fn packet(&mut self, key: &FlowKey, now_ms: u64) -> (Decision, Vec<FlowChange>) {
        let mut decision = self.decide(key);
        let makes_room = decision.source == Source::New && self.is_full();
        if let Source::Moved(_) = decision.source
            && !self.moves.is_affordable(PortId(key.in_port()), now_ms)
        {
            return (decision, Vec::new());
        }
        let mut changes = self.learn(key, &decision, now_ms);
        if makes_room {
            // The station that had to go may have been the destination.
            let Decision {
                destination, verdict, ..
            } = self.decide(key);
            (decision.destination, decision.verdict) = (destination, verdict);
        }
        let masked = key.masked(&MASK);
        let id = flow_id(&masked);
        if let Some(record) = self.flows.get_mut(id) {
            record.used_ms = now_ms;
            if record.actions == decision.actions()
                && now_ms.saturating_sub(record.installed_ms) < REINSTALL_MS
            {
                return (decision, changes);
            }
        } else if self.flows.count_from(key.in_port()) >= self.flow_limit
            || !self.ports.contains_key(&PortId(key.in_port()))
        {
            return (decision, changes);
        }
        changes.push(self.install(id, masked, &decision, now_ms, now_ms));
        (decision, changes)
    }

    fn learn(&mut self, key: &FlowKey, decision: &Decision, now_ms: u64) -> Vec<FlowChange> {
        let Some([source, _]) = decision.stations(key) else {
            return Vec::new();
        };
        let port = PortId(key.in_port());
        let concerned = match decision.source {
            Source::Known => {
                self.macs.refresh(source, port, now_ms);
                Vec::new()
            }
            Source::New => self.appear(source, port, now_ms),
            Source::Moved(from) => self.relocate(source, [from, port], now_ms),
            Source::Refused | Source::Static | Source::Held(_) | Source::PortFull | Source::TableFull => {
                Vec::new()
            }
        };
        self.reconsider(&concerned, now_ms)
    }

    /// Learns a station that was unknown; returns the flows that this may change.
    fn appear(&mut self, station: Station, port: PortId, now_ms: u64) -> Vec<FlowId> {
        let room = if self.is_full() {
            self.macs.make_room()
        } else {
            None
        };
        self.macs.learn(station, port, now_ms);
        let mut concerned = self.flows.of_station(station);
        if let Some((evicted, Entry { port: loser, .. })) = room {
            self.moves.forget(evicted);
            concerned.extend(self.flows.of_station(evicted));
            let (left, limit) = (self.macs.on_port(loser), self.ports.get(&loser));
            // Its limit blocked it before, or its share does not block it any more.
            if left < self.fair_share() || limit.is_some_and(|rules| left < rules.mac_limit) {
                concerned.extend(self.flows.blocked_from(loser));
            }
        }
        concerned
    }

    /// Moves a station, or holds it at its home; returns the flows that this may change.
    fn relocate(&mut self, station: Station, [from, to]: [PortId; 2], now_ms: u64) -> Vec<FlowId> {
        let mut concerned = self.flows.of_station(station);
        let place = match self.moves.moved(station, [from, to], concerned.len(), now_ms) {
            None => to,
            Some(home) if home == from || self.has_room(home) => home,
            Some(_) => from,
        };
        self.macs.learn(station, place, now_ms);
        if place != from {
            // There is more room on one port, and less on the other.
            concerned.extend(
                [from, place]
                    .into_iter()
                    .flat_map(|port| self.flows.blocked_from(port)),
            );
        }
        concerned
    }

    /// Whether another station may be on a port.
    fn has_room(&self, port: PortId) -> bool {
        let rules = self.ports.get(&port);
        rules.is_some_and(|rules| self.macs.on_port(port) < rules.mac_limit)
    }

    fn install(
        &mut self,
        id: FlowId,
        key: FlowKey,
        decision: &Decision,
        now_ms: u64,
        used_ms: u64,
    ) -> FlowChange {
        let actions = decision.actions();
        let record = Record {
            key,
            actions: actions.clone(),
            installed_ms: now_ms,
            used_ms,
            stations: decision.stations(&key),
            blocked: decision.source.is_blocked(),
            floods: decision.floods(),
        };
        self.flows.insert(id, record);
        FlowChange::Put { id, key, actions }
    }

    /// Re-examines flows: those whose source would have to be learned go, so that the next packet is seen;
    /// those that would be decided differently change.
    fn reconsider(&mut self, ids: &[FlowId], now_ms: u64) -> Vec<FlowChange> {
        let mut changes = Vec::new();
        for &id in ids {
            let Some(record) = self.flows.get(id) else {
                continue;
            };
            let (key, used_ms) = (record.key, record.used_ms);
            let decision = self.decide(&key);
            // Other stations: the VLAN has changed, and the flow's statistics say nothing about them.
            let gone = decision.source.is_news()
                || decision.verdict == Err(DropReason::PortRemoved)
                || record.stations != decision.stations(&key);
            if gone {
                self.flows.remove(id);
                changes.push(FlowChange::Del(id));
            } else if record.actions != decision.actions() {
                changes.push(self.install(id, key, &decision, now_ms, used_ms));
            } else if (record.blocked, record.floods) != (decision.source.is_blocked(), decision.floods()) {
                let installed_ms = record.installed_ms;
                self.install(id, key, &decision, installed_ms, used_ms);
            }
        }
        changes
    }

    /// Takes note of the data plane's flow statistics.
    pub fn observe<'a>(&mut self, stats: impl IntoIterator<Item = (FlowId, &'a FlowStats)>, now_ms: u64) {
        for (id, stats) in stats {
            let (Some(idle), Some(record)) = (stats.idle_ms, self.flows.get_mut(id)) else {
                continue;
            };
            record.used_ms = record.used_ms.max(now_ms.saturating_sub(idle));
            if let Some([source, _]) = record.stations {
                self.macs
                    .refresh(source, PortId(record.key.in_port()), record.used_ms);
            }
        }
    }

    /// Removes idle flows, forgets stations that were not seen for the ageing time, and releases those that were held
    /// long enough. Call [`observe`](Self::observe) before.
    pub fn age(&mut self, now_ms: u64) -> Vec<FlowChange> {
        let idle: Vec<FlowId> = self
            .flows
            .iter()
            .filter(|(_, record)| now_ms >= record.used_ms + idle_limit(record))
            .map(|(id, _)| id)
            .collect();
        let mut changes = Vec::new();
        for id in idle {
            self.flows.remove(id);
            changes.push(FlowChange::Del(id));
        }
        let ageing = self.rules.ageing_ms;
        let gone = self
            .macs
            .remove_where(|_, entry| now_ms >= entry.seen_ms + ageing);
        gone.iter().for_each(|(station, _)| self.moves.forget(*station));
        let released = self.moves.release(now_ms);
        let mut concerned: Vec<FlowId> = gone
            .iter()
            .map(|(station, _)| *station)
            .chain(released)
            .flat_map(|station| self.flows.of_station(station))
            .collect();
        if !gone.is_empty() {
            concerned.extend(self.flows.blocked());
        }
        changes.extend(self.reconsider(&concerned, now_ms));
        changes
    }

    /// When [`age`](Self::age) has something to do at the earliest, if nothing else happens. While there are
    /// flows it is to be called more often, since only the data plane knows when flows were used.
    pub fn next_ageing_ms(&self) -> Option<u64> {
        let oldest = self.macs.oldest().map(|seen_ms| seen_ms + self.rules.ageing_ms);
        [oldest, self.moves.next_release_ms()].into_iter().flatten().min()
    }

    /// The data plane was restarted, or has refused a flow: it has none of these.
    pub fn forget_flows(&mut self) {
        self.flows = Flows::default();
    }

    /// The data plane does not have this flow.
    pub fn forget_flow(&mut self, id: FlowId) {
        self.flows.remove(id);
    }

    /// Takes over the flows that an earlier control process has had installed: learns stations from them,
    /// and returns the changes to make. Flows that are still right are left alone.
    pub fn restore(&mut self, listed: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange> {
        let (ours, foreign): (Vec<_>, Vec<_>) = listed.into_iter().partition(|(flow, _)| {
            flow.mask == MASK && flow.id == flow_id(&flow.key) && flow.key == flow.key.masked(&MASK)
        });
        let mut changes: Vec<_> = foreign.iter().map(|(flow, _)| FlowChange::Del(flow.id)).collect();
        let mut ours: Vec<_> = ours
            .into_iter()
            .map(|(flow, stats)| (flow, now_ms.saturating_sub(stats.idle_ms.unwrap_or(0))))
            .collect();
        // The latest use wins where two flows say that a station is in two places.
        ours.sort_by_key(|(flow, used_ms)| (*used_ms, flow.id));
        for (flow, used_ms) in &ours {
            if proves_source(&flow.actions) {
                self.relearn(&flow.key, *used_ms);
            }
        }
        for (flow, used_ms) in &ours {
            self.relearn_destination(flow, *used_ms);
        }
        let ids: Vec<FlowId> = ours.iter().map(|(flow, _)| flow.id).collect();
        for (flow, used_ms) in ours {
            let decision = self.decide(&flow.key);
            let record = Record {
                stations: decision.stations(&flow.key),
                blocked: decision.source.is_blocked(),
                floods: decision.floods(),
                key: flow.key,
                actions: flow.actions,
                installed_ms: now_ms,
                used_ms,
            };
            self.flows.insert(flow.id, record);
        }
        changes.extend(self.reconsider(&ids, now_ms));
        changes
    }

    fn relearn(&mut self, key: &FlowKey, used_ms: u64) {
        let decision = self.decide(key);
        let learnable = decision.source.is_news() && !self.is_full();
        if let (Some([source, _]), true) = (decision.stations(key), learnable) {
            self.macs.learn(source, PortId(key.in_port()), used_ms);
        }
    }

    /// A flow to one port, where flooding would do something else, proves that its destination is there.
    fn relearn_destination(&mut self, flow: &Flow, used_ms: u64) {
        let mut outputs = flow.actions.iter().filter_map(|action| match action {
            Action::Output(port) => Some(*port),
            _ => None,
        });
        let (Some(port), None) = (outputs.next(), outputs.next()) else {
            return;
        };
        let decision = self.decide(&flow.key);
        let unknown = decision.destination == super::Destination::Unknown;
        let (Some([_, destination]), true) = (decision.stations(&flow.key), unknown) else {
            return;
        };
        if !self.is_full() && self.has_room(port) && decision.actions() != flow.actions {
            self.macs.learn(destination, port, used_ms);
        }
    }

    /// Where a station is, for tests and displays.
    pub fn lookup(&self, station: Station) -> Option<PortId> {
        self.static_port(station.mac)
            .or_else(|| self.macs.get(station).map(|entry| entry.port))
    }
}

fn idle_limit(record: &Record) -> u64 {
    match record.actions.as_slice() {
        [Action::Drop(_)] => DROP_FLOW_IDLE_MS,
        _ => FLOW_IDLE_MS,
    }
}

/// Whether a flow with these actions was installed after its source was learned.
fn proves_source(actions: &[Action]) -> bool {
    use DropReason::{FloodDisabled, Isolated, NoDestination, VlanFiltered};
    match actions {
        [Action::Drop(reason)] => matches!(reason, FloodDisabled | Isolated | NoDestination | VlanFiltered),
        _ => true,
    }
}
