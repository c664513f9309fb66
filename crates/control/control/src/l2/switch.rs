//! The state of a switch, and everything that changes it.

use super::decide::{Decision, Destination, Source};
use super::flows::{Flows, MASK, Record, flow_id};
use super::mac_table::{MacTable, Station};
use super::moves::{MoveCounts, Moves};
use super::notes::Notes;
use super::private_vlan::PrivateVlans;
use super::storm::StormLimits;
use crate::provider::{FLOW_IDLE_MS, FlowChange, REINSTALL_MS};
use flow::{Action, DropReason, Flow, FlowId, FlowKey, FlowStats, PortId, Stage};
use management::{ContestedMacs, VlanConfig};
use pacing::Turns;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// As [`FLOW_IDLE_MS`], for flows that drop.
pub const DROP_FLOW_IDLE_MS: u64 = 8_000;

/// Rules of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRules {
    /// Stations that were not seen for this long are forgotten.
    pub ageing_ms: u64,
    /// Stations learned in all.
    pub table_size: usize,
    /// Whether unknown unicast is flooded.
    pub flood: bool,
    /// What happens to frames for a contested station.
    pub contested: ContestedMacs,
}

/// Whether packets can reach a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Nothing is connected; floods leave it out.
    Disconnected,
    /// The driver does not run.
    Connected,
    /// The driver runs.
    Running,
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
    /// Rates of frames that go to all ports.
    pub storm: StormLimits,
    /// Priority of the tags that frames get which come without one; 0 if `None`.
    pub vlan_priority: Option<u8>,
    /// Addresses that are here and nowhere else.
    pub static_macs: Vec<u64>,
    /// Address of the device at this port, if one is configured. While the driver runs, the address is here
    /// and nowhere else, unless another port has the same one.
    pub mac: Option<u64>,
    /// Whether packets can reach it.
    pub readiness: Readiness,
}

/// What is known about a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// VLAN; `None` for a configured address, which is valid in all.
    pub vlan: Option<u16>,
    /// Address.
    pub mac: u64,
    /// Where it is.
    pub port: PortId,
    /// Milliseconds since it was seen; `None` for a configured address.
    pub age_ms: Option<u64>,
    /// The station is on other ports as well.
    pub contested: bool,
}

/// A learning switch.
#[derive(Clone, Debug)]
pub struct LearningSwitch {
    rules: SwitchRules,
    ports: BTreeMap<PortId, PortRules>,
    statics: HashMap<u64, PortId>,
    /// From the ports' rules, once a decision asks.
    private_vlans: OnceCell<PrivateVlans>,
    /// Ports whose device has that address.
    devices: HashMap<u64, BTreeSet<PortId>>,
    macs: MacTable,
    moves: Moves,
    flows: Flows,
    /// Flows that may have to change, and were not re-examined yet.
    stale: Turns<FlowId>,
    flow_limit: usize,
}

impl LearningSwitch {
    /// A switch without ports.
    pub fn new(rules: SwitchRules) -> Self {
        LearningSwitch {
            rules,
            ports: BTreeMap::new(),
            statics: HashMap::new(),
            private_vlans: OnceCell::new(),
            devices: HashMap::new(),
            macs: MacTable::default(),
            moves: Moves::default(),
            flows: Flows::default(),
            stale: Turns::default(),
            flow_limit: usize::MAX,
        }
    }

    /// Rules of the switch.
    pub fn rules(&self) -> &SwitchRules {
        &self.rules
    }

    pub(super) fn macs(&self) -> &MacTable {
        &self.macs
    }

    pub(super) fn private_vlans(&self) -> &PrivateVlans {
        self.private_vlans
            .get_or_init(|| PrivateVlans::of(self.ports.values().map(|port| &port.vlan)))
    }

    /// Whether there is no room for another place.
    pub(super) fn is_full(&self) -> bool {
        self.macs.len() >= self.rules.table_size
    }

    /// Places for which each port finds room in a full table.
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

    pub(super) fn is_running(&self, id: PortId) -> bool {
        let port = self.ports.get(&id);
        port.is_some_and(|port| port.readiness == Readiness::Running)
    }

    /// The port whose device the station is: the only one with that address that runs and carries the VLAN.
    pub(super) fn device_port(&self, station: Station) -> Option<PortId> {
        let carries = |port: &PortRules| self.private_vlans().carries(&port.vlan, station.vlan);
        let is_there = |id: &PortId| self.is_running(*id) && self.ports.get(id).is_some_and(carries);
        let mut ports = self.devices.get(&station.mac)?.iter().copied().filter(is_there);
        ports.next().filter(|_| ports.next().is_none())
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

    /// Addresses whose port is configured, at present: static ones, and those of devices.
    fn configured(&self) -> impl Iterator<Item = (u64, PortId)> + '_ {
        let statics = self.statics.iter().map(|(mac, port)| (*mac, *port));
        let running = |port: &&PortId| self.is_running(**port);
        let devices = self.devices.iter().flat_map(move |(mac, ports)| {
            let ports = ports.iter().filter(running);
            ports.map(|port| (*mac, *port))
        });
        statics.chain(devices.filter(|(mac, _)| !self.statics.contains_key(mac)))
    }

    /// The MAC table, configured addresses first, then by VLAN and address.
    pub fn mac_entries(&self, now_ms: u64) -> Vec<MacEntry> {
        let fixed = self.configured().map(|(mac, port)| MacEntry {
            vlan: None,
            mac,
            port,
            age_ms: None,
            contested: false,
        });
        let places = self.macs.iter();
        let places = places.filter(|(station, port, _)| self.device_port(*station) != Some(*port));
        let learned = places.map(|(station, port, place)| MacEntry {
            vlan: Some(station.vlan),
            mac: station.mac,
            port,
            age_ms: Some(now_ms.saturating_sub(place.seen_ms)),
            contested: matches!(self.destination(station), Destination::Contested(_)),
        });
        let mut entries: Vec<_> = fixed.chain(learned).collect();
        entries.sort_by_key(|entry| (entry.vlan, entry.mac, entry.port));
        entries
    }

    /// Most flows from any one port from now on; flows that exist stay.
    pub fn set_flow_limit(&mut self, limit: usize) {
        self.flow_limit = limit;
    }

    /// Flows that may be re-examined at once because stations are learned at any one port, per second; no
    /// limit before this is called.
    pub fn set_move_limit(&mut self, flows_per_second: u64) {
        self.moves.set_limit(flows_per_second);
    }

    /// Counts of moves, and of flows that were re-examined later because of them.
    pub fn move_counts(&self) -> MoveCounts {
        self.moves.counts()
    }

    /// Contested stations that have a place on a port. Those of which the configuration says where they are
    /// do not count.
    pub fn contested_on_port(&self, port: PortId) -> usize {
        let stations = self
            .macs
            .stations_on(port)
            .filter(|station| self.macs.is_contested(*station));
        let contested =
            stations.filter(|station| matches!(self.destination(*station), Destination::Contested(_)));
        contested.count()
    }

    /// Contested stations, and where they are. Those of which the configuration says where they are do not
    /// count.
    pub fn contested(&self) -> impl Iterator<Item = (Station, Vec<PortId>)> + '_ {
        let contested = self.macs.contested();
        contested.filter_map(|station| match self.destination(station) {
            Destination::Contested(ports) => Some((station, ports)),
            _ => None,
        })
    }

    /// Ports from which frames came lately with the address of another port's device: the station, its port,
    /// and the other.
    pub fn impostors(&self) -> BTreeSet<(Station, PortId, PortId)> {
        let flows = self.flows.iter();
        let impostors = flows.filter_map(|(_, record)| {
            let (station, from) = (record.stations?[0], PortId(record.key.in_port()));
            let owner = self.device_port(station).filter(|owner| *owner != from)?;
            Some((station, owner, from))
        });
        impostors.collect()
    }

    /// Changes the rules. Call [`refresh`](Self::refresh) after one or more such changes.
    pub fn set_rules(&mut self, rules: SwitchRules) {
        self.rules = rules;
    }

    /// Adds a port or changes its rules; to be followed by [`refresh`](Self::refresh).
    pub fn set_port(&mut self, id: PortId, rules: PortRules) {
        self.forget_configured(id);
        for mac in &rules.static_macs {
            self.statics.insert(*mac, id);
        }
        if let Some(mac) = rules.mac {
            self.devices.entry(mac).or_default().insert(id);
        }
        self.ports.insert(id, rules);
        self.private_vlans.take();
    }

    /// Forgets the addresses that are configured for a port.
    fn forget_configured(&mut self, id: PortId) {
        self.statics.retain(|_, port| *port != id);
        self.devices.retain(|_, ports| {
            ports.remove(&id);
            !ports.is_empty()
        });
    }

    /// Notes whether packets can reach a port. Flows that flood, and those of its contested stations and its
    /// device, may be [stale](Self::has_stale) after that.
    pub fn set_readiness(&mut self, id: PortId, readiness: Readiness) {
        let changed = |port: &&mut PortRules| port.readiness != readiness;
        let Some(port) = self.ports.get_mut(&id).filter(changed) else {
            return;
        };
        let before = std::mem::replace(&mut port.readiness, readiness);
        let port = &self.ports[&id];
        let mut concerned = Vec::new();
        if Readiness::Disconnected == before.min(readiness) {
            let carries = |vlan| self.private_vlans().carries(&port.vlan, vlan);
            concerned.extend(self.flows.floods(carries));
        }
        if Readiness::Running == before.max(readiness) {
            let contested = self
                .macs
                .stations_on(id)
                .filter(|station| self.macs.is_contested(*station));
            concerned.extend(contested.flat_map(|station| self.flows.of_station(station)));
            concerned.extend(port.mac.into_iter().flat_map(|mac| self.flows.of_mac(mac)));
        }
        concerned.into_iter().for_each(|id| self.stale.add(id));
    }

    /// Whether flows wait for [`refresh_stale`](Self::refresh_stale).
    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Re-examines some of the flows that are stale, those that have waited for longest.
    pub fn refresh_stale(&mut self, most: usize, now_ms: u64) -> Vec<FlowChange> {
        let some: Vec<FlowId> = (0..most).map_while(|_| self.stale.take()).collect();
        self.reconsider(&some, now_ms)
    }

    /// Removes a port; to be followed by [`refresh`](Self::refresh).
    pub fn remove_port(&mut self, id: PortId) {
        self.ports.remove(&id);
        self.private_vlans.take();
        self.moves.forget_port(id);
        self.forget_configured(id);
    }

    /// Forgets stations that contradict the rules, and re-examines all flows. Call after changes of rules.
    pub fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange> {
        let private = self.private_vlans().clone();
        let (ports, statics) = (&self.ports, &self.statics);
        let possible = |station: Station, port: PortId| {
            let carried = ports
                .get(&port)
                .is_some_and(|port| private.carries(&port.vlan, station.vlan));
            carried && !statics.contains_key(&station.mac)
        };
        self.macs.remove_where(|station, port| !possible(station, port));
        self.stale = Turns::default();
        let all: Vec<FlowId> = self.flows.iter().map(|(id, _)| id).collect();
        self.reconsider(&all, now_ms)
    }

    /// Decides about a packet that has no flow: what happens to it now, and how the flow table changes
    /// afterwards.
    pub fn packet(&mut self, key: &FlowKey, now_ms: u64) -> (Decision, Vec<FlowChange>) {
        self.packet_from(key, true, now_ms)
    }

    /// Decides about a packet, which may have a flow unless `lacks_flow`.
    pub(super) fn packet_from(
        &mut self,
        key: &FlowKey,
        lacks_flow: bool,
        now_ms: u64,
    ) -> (Decision, Vec<FlowChange>) {
        let mut decision = self.decide(key);
        let makes_room = decision.source.is_to_be_learned() && self.is_full();
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
            let is_fresh = now_ms.saturating_sub(record.installed_ms) < REINSTALL_MS;
            if record.actions == decision.actions() && (is_fresh || !lacks_flow) {
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
        match decision.source {
            Source::Known | Source::Device(_) => {
                self.macs.refresh(source, port, now_ms);
                return Vec::new();
            }
            Source::New => {}
            Source::Contested => self.moves.count(),
            Source::Refused | Source::Static | Source::PortFull | Source::TableFull => return Vec::new(),
        }
        let concerned = self.add_place(source, port, now_ms);
        let (now, later) = concerned.split_at(self.moves.spend(port, concerned.len(), now_ms));
        later.iter().for_each(|id| self.stale.add(*id));
        self.reconsider(now, now_ms)
    }

    /// Learns that a station is at a port; returns the flows that this may change.
    fn add_place(&mut self, station: Station, port: PortId, now_ms: u64) -> Vec<FlowId> {
        let room = if self.is_full() {
            self.macs.make_room()
        } else {
            None
        };
        self.macs.learn(station, port, now_ms);
        let mut concerned = self.flows.of_station(station);
        // There is less room on the port.
        concerned.extend(self.flows.blocked_from(port));
        if let Some((evicted, loser)) = room {
            concerned.extend(self.flows.of_station(evicted));
            let (left, limit) = (self.macs.on_port(loser), self.ports.get(&loser));
            // Its limit blocked it before, or its share does not block it any more.
            if left < self.fair_share() || limit.is_some_and(|rules| left < rules.mac_limit) {
                concerned.extend(self.flows.blocked_from(loser));
            }
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
        FlowChange::Put {
            id,
            stage: Stage::Forward,
            key,
            mask: MASK,
            actions,
        }
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
            let gone = decision.source.is_to_be_learned()
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

    /// Packets and actions of a flow that is installed.
    pub fn installed(&self, id: FlowId) -> Option<(&FlowKey, &[Action])> {
        let record = self.flows.get(id).filter(|record| !record.floods)?;
        Some((&record.key, &record.actions))
    }

    /// Contested stations leave places that were silent for too long. Call [`observe`](Self::observe) before:
    /// a place whose last use is not known would seem silent. Flows may be [stale](Self::has_stale) after
    /// that.
    pub fn leave_silent_places(&mut self) {
        let gone = self.macs.remove_overtaken();
        let concerned = gone
            .iter()
            .flat_map(|(station, _)| self.flows.of_station(*station));
        concerned.for_each(|id| self.stale.add(id));
        if !gone.is_empty() {
            self.flows.blocked().into_iter().for_each(|id| self.stale.add(id));
        }
    }

    /// Removes idle flows, and forgets stations that were not seen for the ageing time. Call
    /// [`observe`](Self::observe) before.
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
        let since_ms = now_ms.checked_sub(self.rules.ageing_ms);
        let gone = since_ms.map_or_else(Vec::new, |since_ms| self.macs.remove_unseen(since_ms));
        let mut concerned: Vec<FlowId> = gone
            .iter()
            .flat_map(|(station, _)| self.flows.of_station(*station))
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
        let oldest = self.macs.oldest();
        oldest.map(|seen_ms| seen_ms + self.rules.ageing_ms)
    }

    /// The data plane was restarted: it has none of these.
    pub fn forget_flows(&mut self, now_ms: u64) {
        self.flows = Flows::default();
        self.macs.excuse_silence(now_ms);
    }

    /// Forgets learned stations, of a port or all. Flows from and to them must go as well.
    pub fn forget_stations(&mut self, port: Option<PortId>) {
        let is_meant = |_, on: PortId| port.is_none_or(|port| port == on);
        self.macs.remove_where(is_meant);
    }

    /// The data plane does not have this flow.
    pub fn forget_flow(&mut self, id: FlowId) {
        self.flows.remove(id);
    }

    /// Takes over the flows that the learning switch of an earlier control process has had installed: learns
    /// stations from them, and returns the changes to make. Flows that are still right are left alone.
    pub fn restore(&mut self, listed: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange> {
        let (ours, foreign): (Vec<_>, Vec<_>) = listed.into_iter().partition(|(flow, _)| {
            flow.mask == MASK && flow.id == flow_id(&flow.key) && flow.key == flow.key.masked(&MASK)
        });
        let mut changes: Vec<_> = foreign.iter().map(|(flow, _)| FlowChange::Del(flow.id)).collect();
        let mut ours: Vec<_> = ours
            .into_iter()
            .map(|(flow, stats)| (flow, now_ms.saturating_sub(stats.idle_ms.unwrap_or(0))))
            .collect();
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
        // The control process before has told of the stations that these flows show.
        if !ids.is_empty() {
            self.macs.take_notes();
        }
        changes
    }

    /// What became of stations since this was asked last, if anything did.
    pub fn take_notes(&mut self) -> Option<Notes> {
        self.macs.take_notes()
    }

    fn relearn(&mut self, key: &FlowKey, used_ms: u64) {
        let decision = self.decide(key);
        let learnable = decision.source.is_to_be_learned() && !self.is_full();
        if let (Some([source, _]), true) = (decision.stations(key), learnable) {
            self.macs.learn(source, PortId(key.in_port()), used_ms);
        }
    }

    /// A flow to one port, where flooding would do something else, proves that its destination is there.
    /// Where the destination is known, a flow to further ports proves that it is contested.
    fn relearn_destination(&mut self, flow: &Flow, used_ms: u64) {
        let decision = self.decide(&flow.key);
        let Some([_, station]) = decision.stations(&flow.key) else {
            return;
        };
        let outputs: Vec<PortId> = (flow.actions.iter())
            .filter_map(|action| match action {
                Action::Output(port) => Some(*port),
                _ => None,
            })
            .collect();
        let proves = match decision.destination {
            Destination::Unknown => outputs.len() == 1,
            Destination::Known(_) | Destination::Contested(_) => {
                outputs.len() > 1 && outputs.iter().any(|port| self.macs.is_at(station, *port))
            }
            Destination::None | Destination::Reserved | Destination::Group => false,
        };
        if !proves || decision.actions() == flow.actions {
            return;
        }
        for port in outputs {
            if !self.is_full() && self.has_room(port) && !self.macs.is_at(station, port) {
                self.macs.learn(station, port, used_ms);
            }
        }
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
    use DropReason::{Contested, FloodDisabled, Isolated, NoDestination, VlanFiltered};
    match actions {
        [Action::Drop(reason)] => matches!(
            reason,
            Contested | FloodDisabled | Isolated | NoDestination | VlanFiltered
        ),
        _ => true,
    }
}
