//! The learning switch against its simple twin: a bridge that looks at every packet and knows no flows.

use super::storm::StormLimits;
use super::*;
use crate::provider::FlowChange;
use flow::{Action, DropReason, Edit, Flow, FlowId, FlowKey, FlowStats, PortId, SwitchId, VLAN_PRESENT};
use management::{ContestedMacs, PrivateRole, Trunk, VlanConfig, VlanId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The receivers of a packet, with the VLAN tag of each copy (0: none), or why there is none.
pub(super) type Outcome = Result<BTreeSet<(u32, u16)>, DropReason>;

/// The bridge of the textbook, with all places at which a station is.
#[derive(Clone)]
struct Bridge {
    rules: SwitchRules,
    ports: BTreeMap<u32, PortRules>,
    table: BTreeMap<(u16, u64), BTreeMap<u32, Sightings>>,
}

/// When a station was seen at a port: the last time, and each time that was 10 s or more after the one noted
/// before.
#[derive(Clone, Debug)]
struct Sightings {
    last: u64,
    noted: Vec<u64>,
}

impl Sightings {
    fn see(&mut self, now_ms: u64) {
        self.last = now_ms;
        if self.noted.last().is_none_or(|noted| now_ms - noted >= 10_000) {
            self.noted.push(now_ms);
        }
    }

    fn twice_since(&self, time: u64) -> bool {
        self.noted.iter().filter(|noted| **noted > time).count() >= 2
    }
}

/// The tag a frame of `vlan` has on a port's wire, if the port carries it.
fn wire_tag(port: &PortRules, vlan: u16) -> Option<u16> {
    match &port.vlan {
        VlanConfig::Untagged if vlan == 0 => Some(0),
        VlanConfig::Access(own) if own.get() == vlan => Some(0),
        VlanConfig::Trunk {
            native: Some(native), ..
        } if native.get() == vlan => Some(0),
        VlanConfig::Trunk {
            vlans: Trunk::All,
            native,
        } if vlan != 0 || native.is_none() => Some(vlan),
        VlanConfig::Trunk {
            vlans: Trunk::Listed(vlans),
            ..
        } if vlans.iter().any(|v| v.get() == vlan) => Some(vlan),
        VlanConfig::Private { primary, .. } if primary.get() == vlan => Some(0),
        VlanConfig::Private {
            role: PrivateRole::Community(own),
            ..
        } if own.get() == vlan => Some(0),
        VlanConfig::Private {
            role: PrivateRole::Promiscuous(others),
            ..
        } if others.iter().any(|other| other.get() == vlan) => Some(0),
        _ => None,
    }
}

impl Bridge {
    /// The VLAN whose frames could look like this on the port, listed ones and the native one.
    fn classify(port: &PortRules, tag: u16) -> Option<u16> {
        if let VlanConfig::Private { primary, role } = &port.vlan {
            let own = match role {
                PrivateRole::Promiscuous(_) => primary,
                PrivateRole::Isolated(own) | PrivateRole::Community(own) => own,
            };
            return (tag == 0).then_some(own.get());
        }
        let carried = (0..=4094).filter(|&vlan| wire_tag(port, vlan).is_some());
        match tag {
            0 => carried.into_iter().find(|&vlan| wire_tag(port, vlan) == Some(0)),
            _ if matches!(port.vlan, VlanConfig::Trunk { .. }) => {
                carried.into_iter().find(|&vlan| vlan == tag)
            }
            _ => None,
        }
    }

    /// The VLAN whose stations those of this VLAN are.
    fn home(&self, vlan: u16) -> u16 {
        let private = self.ports.values().find_map(|port| match &port.vlan {
            VlanConfig::Private { primary, role } => {
                let is_part = role.secondaries().iter().any(|part| part.get() == vlan);
                is_part.then_some(primary.get())
            }
            _ => None,
        });
        private.unwrap_or(vlan)
    }

    /// Whether the port gets frames of that VLAN, or of one with the same stations. Tests use low numbers.
    fn hears(&self, port: &PortRules, home: u16) -> bool {
        (0..8).any(|vlan| self.home(vlan) == home && wire_tag(port, vlan).is_some())
    }

    fn fixed(&self, mac: u64) -> Option<u32> {
        let mut ports = self.ports.iter();
        let fixed = ports.find(|(_, port)| port.static_macs.contains(&mac));
        fixed.map(|(id, _)| *id)
    }

    fn runs(&self, port: u32) -> bool {
        self.ports[&port].readiness == Readiness::Running
    }

    /// The port whose device this is.
    fn device(&self, (vlan, mac): (u16, u64)) -> Option<u32> {
        let all = self.ports.iter().filter(|(_, port)| port.mac == Some(mac));
        let there: Vec<u32> = all
            .filter(|(id, port)| self.runs(**id) && self.hears(port, vlan))
            .map(|(id, _)| *id)
            .collect();
        (there.len() == 1).then(|| there[0])
    }

    /// The ports that a station may be at.
    fn whereabouts(&self, vlan: u16, mac: u64) -> Vec<u32> {
        if let Some(port) = self.fixed(mac).or_else(|| self.device((vlan, mac))) {
            return vec![port];
        }
        let seen = self.table.get(&(vlan, mac)).into_iter().flatten();
        let (running, others): (Vec<u32>, Vec<u32>) =
            seen.map(|(port, _)| *port).partition(|port| self.runs(*port));
        match running.is_empty() {
            true => others,
            false => running,
        }
    }

    fn packet(&mut self, key: &FlowKey, now_ms: u64) -> Outcome {
        let from = key.in_port();
        let port = self.ports.get(&from).ok_or(DropReason::PortRemoved)?.clone();
        let tag = if key.vlan_tci() & VLAN_PRESENT != 0 {
            key.vlan_tci() & 0xfff
        } else {
            0
        };
        let vlan = Self::classify(&port, tag).ok_or(DropReason::VlanFiltered)?;
        let nested = key.inner_tci() != 0;
        if nested && tag == 0 {
            return Err(DropReason::NestedVlan);
        }
        let (src, dst) = (key.eth_src(), key.eth_dst());
        if src == 0 || src >> 40 & 1 == 1 {
            return Err(DropReason::InvalidSource);
        }
        if (0x0180_c200_0000..=0x0180_c200_000f).contains(&dst) {
            return Err(DropReason::Policy);
        }
        let fixed = self.fixed(src);
        if fixed.is_some_and(|home| home != from) {
            return Err(DropReason::Policy);
        }
        if fixed.is_none() {
            self.learn((self.home(vlan), src), from, port.mac_limit, now_ms)?;
        }
        // A station that sends to itself is at the ingress port, even when there was no room to learn it.
        if src == dst {
            return Err(DropReason::NoDestination);
        }
        let receivers = self.deliver(from, &port, vlan, dst)?;
        // A receiver of the frame without its outer tag would find the inner one in its place.
        let kept: BTreeSet<_> = receivers
            .into_iter()
            .filter(|(_, tag)| !nested || *tag != 0)
            .collect();
        match kept.is_empty() {
            true => Err(DropReason::NestedVlan),
            false => Ok(kept),
        }
    }

    fn on_port(&self, port: u32) -> usize {
        self.table
            .values()
            .filter(|places| places.contains_key(&port))
            .count()
    }

    fn places(&self) -> usize {
        self.table.values().map(BTreeMap::len).sum()
    }

    /// Learns a source.
    fn learn(&mut self, station: (u16, u64), from: u32, limit: usize, now_ms: u64) -> Result<(), DropReason> {
        let known = self
            .table
            .get_mut(&station)
            .and_then(|places| places.get_mut(&from));
        if let Some(place) = known {
            place.see(now_ms);
            return Ok(());
        }
        if self.device(station).is_some_and(|port| port != from) {
            return Ok(());
        }
        if self.on_port(from) >= limit {
            return Err(DropReason::MacLimit);
        }
        if self.places() >= self.rules.table_size {
            let share = (self.rules.table_size / self.ports.len()).max(1);
            if self.on_port(from) >= share {
                return Ok(());
            }
            self.make_room();
        }
        let places = self.table.entry(station).or_default();
        places.insert(
            from,
            Sightings {
                last: now_ms,
                noted: vec![now_ms],
            },
        );
        Ok(())
    }

    /// Forgets the place on the port with most that was seen longest ago.
    fn make_room(&mut self) {
        let ports = self.ports.keys().copied();
        let most = ports.max_by_key(|port| (self.on_port(*port), *port)).unwrap();
        let of_most = self
            .table
            .iter()
            .filter_map(|(station, places)| Some((places.get(&most)?.last, *station)));
        let (_, oldest) = of_most.min().unwrap();
        self.table.get_mut(&oldest).unwrap().remove(&most);
        self.tidy();
    }

    fn tidy(&mut self) {
        self.table.retain(|_, places| !places.is_empty());
    }

    fn excuse_silence(&mut self, now_ms: u64) {
        for places in self.table.values_mut().filter(|places| places.len() > 1) {
            places.values_mut().for_each(|place| place.last = now_ms);
        }
    }

    fn leave_silent_places(&mut self) {
        for places in self.table.values_mut() {
            let all = places.clone();
            places.retain(|_, place| !all.values().any(|rival| rival.twice_since(place.last)));
        }
    }

    fn age(&mut self, now_ms: u64) {
        let ageing = self.rules.ageing_ms;
        self.table
            .retain(|_, places| places.values().any(|place| now_ms < place.last + ageing));
    }

    fn deliver(&self, from: u32, port: &PortRules, vlan: u16, dst: u64) -> Outcome {
        let group = dst >> 40 & 1 == 1;
        let mut places = self.whereabouts(self.home(vlan), dst);
        if !group && !places.is_empty() {
            if places == [from] {
                return Err(DropReason::NoDestination);
            }
            if places.len() > 1 && self.rules.contested == ContestedMacs::Drop {
                return Err(DropReason::Contested);
            }
            let was_contested = places.len() > 1;
            places.retain(|place| *place != from);
            let tag = |place: &u32| Some((*place, wire_tag(&self.ports[place], vlan)?));
            let mut receivers: BTreeSet<_> = places.iter().filter_map(tag).collect();
            let is_apart = |place: &u32| match self.ports[place].vlan {
                VlanConfig::Private { primary, .. } => primary.get() == self.home(vlan),
                _ => false,
            };
            if let ([place], true) = (&places[..], receivers.is_empty())
                && !is_apart(place)
                && !was_contested
            {
                return Err(DropReason::VlanFiltered);
            }
            receivers.retain(|(place, _)| !(self.ports[place].isolated && port.isolated));
            return match receivers.is_empty() {
                true => Err(DropReason::Isolated),
                false => Ok(receivers),
            };
        }
        if !group && !self.rules.flood {
            return Err(DropReason::FloodDisabled);
        }
        let mut receivers = BTreeSet::new();
        let mut refused = false;
        for (&id, receiver) in &self.ports {
            let Some(tag) = wire_tag(receiver, vlan) else {
                continue;
            };
            if id == from
                || receiver.readiness == Readiness::Disconnected
                || (receiver.isolated && port.isolated)
            {
                continue;
            }
            if group || receiver.flood {
                receivers.insert((id, tag));
            } else {
                refused = true;
            }
        }
        match (receivers.is_empty(), refused) {
            (false, _) => Ok(receivers),
            (true, true) => Err(DropReason::FloodDisabled),
            (true, false) => Err(DropReason::NoDestination),
        }
    }

    fn configured(&mut self) {
        let now = self.clone();
        let ports = &now.ports;
        let possible = |(vlan, mac): &(u16, u64), port: &u32| {
            now.home(*vlan) == *vlan
                && ports.get(port).is_some_and(|port| now.hears(port, *vlan))
                && !ports.values().any(|port| port.static_macs.contains(mac))
        };
        for (station, places) in &mut self.table {
            places.retain(|port, _| possible(station, port));
        }
        self.tidy();
    }
}

/// What the data plane would do with the actions.
fn run(actions: &[Action], key: &FlowKey) -> Outcome {
    let own = [key.inner_tci(), key.vlan_tci()]
        .into_iter()
        .filter(|tci| tci & VLAN_PRESENT != 0);
    let mut tags: Vec<u16> = own.map(|tci| tci & 0xfff).collect();
    let inner = usize::from(key.inner_tci() & VLAN_PRESENT != 0);
    let mut receivers = BTreeSet::new();
    for action in actions {
        match *action {
            Action::Output(port) => {
                assert!(
                    inner == 0 || tags.len() > inner,
                    "the inner tag is exposed: {actions:?}"
                );
                let tag = tags.last().copied().unwrap_or(0);
                assert!(receivers.insert((port.0, tag)), "{actions:?}");
            }
            Action::Edit(Edit::PushVlan { tpid, tci }) => {
                assert_eq!(tpid, 0x8100);
                tags.push(tci & 0xfff);
            }
            Action::Edit(Edit::PopVlan) => {
                tags.pop();
            }
            Action::Drop(reason) => return Err(reason),
            Action::Meter(_) => assert_eq!(Some(action), actions.first()),
            _ => panic!("{actions:?}"),
        }
        assert!(tags.len() <= inner + 1, "{actions:?}");
    }
    Ok(receivers)
}

/// The data plane's table: flows with when they were last used.
#[derive(Clone, Default)]
struct Table(HashMap<FlowId, (FlowKey, Vec<Action>, Option<u64>)>);

impl Table {
    fn apply(&mut self, changes: Vec<FlowChange>) {
        for change in changes {
            match change {
                FlowChange::Put { id, key, actions, .. } => {
                    let used = self.0.get(&id).and_then(|(_, _, used)| *used);
                    self.0.insert(id, (key, actions, used));
                }
                FlowChange::Del(id) => assert!(self.0.remove(&id).is_some()),
            }
        }
    }

    fn lookup(&mut self, key: &FlowKey, now_ms: u64) -> Option<Vec<Action>> {
        let mut matching = self
            .0
            .values_mut()
            .filter(|(flow, ..)| *flow == key.masked(&MASK));
        let (_, actions, used) = matching.next()?;
        *used = Some(now_ms);
        Some(actions.clone())
    }

    fn stats(&self, now_ms: u64) -> Vec<(FlowId, FlowStats)> {
        let idle = |used: Option<u64>| FlowStats {
            idle_ms: used.map(|used| now_ms - used),
            ..FlowStats::default()
        };
        self.0
            .iter()
            .map(|(id, (_, _, used))| (*id, idle(*used)))
            .collect()
    }

    fn listed(&self, now_ms: u64) -> Vec<(Flow, FlowStats)> {
        let flow = |id, key, actions: &Vec<Action>| Flow::new(id, SwitchId(1), key, MASK, actions.clone());
        let stats: HashMap<_, _> = self.stats(now_ms).into_iter().collect();
        self.0
            .iter()
            .map(|(id, (key, actions, _))| (flow(*id, *key, actions), stats[id]))
            .collect()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Packet {
        port: u32,
        src: u64,
        dst: u64,
        tci: u16,
        inner: u16,
    },
    Wait(u64),
    Age,
    Ready(u32, Readiness),
    Port(u32, PortRules),
    Remove(u32),
}

fn vlan_config() -> impl Strategy<Value = VlanConfig> {
    let vid = || (1u16..4).prop_map(|number| VlanId::new(number).unwrap());
    let listed = proptest::collection::btree_set(vid(), 1..3).prop_map(Trunk::Listed);
    prop_oneof![
        3 => Just(VlanConfig::Untagged),
        2 => vid().prop_map(VlanConfig::Access),
        2 => (prop_oneof![listed, Just(Trunk::All)], proptest::option::of(vid()))
            .prop_map(|(vlans, native)| VlanConfig::Trunk { vlans, native }),
        2 => private_role().prop_map(|role| VlanConfig::Private { primary: VlanId::new(1).unwrap(), role }),
    ]
}

/// A part in private VLAN 1, whose isolated VLAN is 2 and whose community is 3.
fn private_role() -> impl Strategy<Value = PrivateRole> {
    let vid = |number| VlanId::new(number).unwrap();
    prop_oneof![
        Just(PrivateRole::Isolated(vid(2))),
        Just(PrivateRole::Community(vid(3))),
        proptest::collection::btree_set((2u16..4).prop_map(vid), 1..3).prop_map(PrivateRole::Promiscuous),
    ]
}

fn port_rules() -> impl Strategy<Value = PortRules> {
    let statics = prop_oneof![6 => Just(vec![]), 1 => Just(vec![0x0200_0000_0002])];
    let mac =
        prop_oneof![3 => Just(None), 1 => Just(Some(0x0200_0000_0003)), 1 => Just(Some(0x0200_0000_0004))];
    (
        vlan_config(),
        any::<bool>(),
        0..5u8,
        1..4usize,
        statics,
        (mac, readiness(), 0..2u32),
    )
        .prop_map(
            |(vlan, isolated, flood, mac_limit, static_macs, (mac, readiness, storm))| PortRules {
                vlan,
                isolated,
                flood: flood > 0,
                mac_limit,
                storm: StormLimits {
                    packets: [storm; 3],
                    ..StormLimits::default()
                },
                vlan_priority: None,
                static_macs,
                mac,
                readiness,
            },
        )
}

fn readiness() -> impl Strategy<Value = Readiness> {
    use Readiness::{Connected, Disconnected, Running};
    prop_oneof![4 => Just(Running), 1 => Just(Connected), 1 => Just(Disconnected)]
}

fn step() -> impl Strategy<Value = Step> {
    let src =
        prop_oneof![12 => 0x0200_0000_0000..0x0200_0000_0006u64, 1 => Just(0), 1 => Just(0x0300_0000_0000)];
    let dst = prop_oneof![
        12 => 0x0200_0000_0000..0x0200_0000_0006u64,
        3 => Just(0xffff_ffff_ffff),
        1 => Just(0x0180_c200_000e),
    ];
    let tci = prop_oneof![4 => Just(0), 3 => (0..4u16).prop_map(|vid| VLAN_PRESENT | vid), 1 => Just(0xf001)];
    let inner = prop_oneof![5 => Just(0), 1 => (0..4u16).prop_map(|vid| VLAN_PRESENT | vid)];
    prop_oneof![
        30 => (0..5u32, src, dst, tci, inner).prop_map(|(port, src, dst, tci, inner)| Step::Packet { port, src, dst, tci, inner }),
        3 => (1..9000u64).prop_map(Step::Wait),
        3 => Just(Step::Age),
        1 => (0..5u32, readiness()).prop_map(|(port, readiness)| Step::Ready(port, readiness)),
        1 => (0..5u32, port_rules()).prop_map(|(port, rules)| Step::Port(port, rules)),
        1 => (0..5u32).prop_map(Step::Remove),
    ]
}

fn world() -> impl Strategy<Value = (SwitchRules, Vec<PortRules>, Vec<Step>)> {
    let rules = (10_000..60_000u64, 3..12usize, 0..4u8, 0..4u8).prop_map(
        |(ageing_ms, table_size, flood, contested)| SwitchRules {
            ageing_ms,
            table_size,
            flood: flood > 0,
            contested: match contested {
                0 => ContestedMacs::Drop,
                _ => ContestedMacs::Deliver,
            },
        },
    );
    (
        rules,
        proptest::collection::vec(port_rules(), 2..5),
        proptest::collection::vec(step(), 1..120),
    )
}

pub(super) fn key(port: u32, src: u64, dst: u64, tci: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    key.set_eth_src(src);
    key.set_eth_dst(dst);
    key.set_vlan_tci(tci);
    key.set_vlan_tpid(if tci == 0 { 0 } else { 0x8100 });
    key.set_eth_type(0x0800);
    key
}

/// A frame with an inner tag, if it has an outer one to be inside of.
fn nested_key(port: u32, src: u64, dst: u64, tci: u16, inner: u16) -> FlowKey {
    let mut key = key(port, src, dst, tci);
    if tci & VLAN_PRESENT != 0 && inner != 0 {
        key.set_inner_tci(inner);
        key.set_inner_tpid(0x8100);
    }
    key
}

/// Two ports may not claim the same static address; the configuration checks that.
fn claim(ports: &BTreeMap<u32, PortRules>, id: u32, rules: &PortRules) -> PortRules {
    let mut rules = rules.clone();
    rules.static_macs.retain(|mac| {
        !ports
            .iter()
            .any(|(other, port)| *other != id && port.static_macs.contains(mac))
    });
    rules
}

pub(super) struct World {
    pub switch: LearningSwitch,
    bridge: Bridge,
    table: Table,
    pub now_ms: u64,
}

impl World {
    pub fn new(rules: SwitchRules, ports: &[PortRules]) -> World {
        let bridge = Bridge {
            rules,
            ports: BTreeMap::new(),
            table: BTreeMap::new(),
        };
        let mut world = World {
            switch: LearningSwitch::new(rules),
            bridge,
            table: Table::default(),
            now_ms: 100_000,
        };
        for (id, rules) in (0..).zip(ports) {
            world.step(&Step::Port(id, rules.clone()));
        }
        world
    }

    fn configured(&mut self) {
        self.bridge.configured();
        self.table.apply(self.switch.refresh(self.now_ms));
    }

    /// The data plane is a new one, without flows.
    pub fn restart_data_plane(&mut self) {
        self.observe();
        self.table = Table::default();
        self.switch.forget_flows(self.now_ms);
        self.bridge.excuse_silence(self.now_ms);
        assert_eq!(self.switch.restore(vec![], self.now_ms), vec![]);
    }

    /// Another control process with the same configuration takes over. The twin goes on as if nothing had
    /// happened.
    pub fn restart_control(&mut self) {
        let mut successor = LearningSwitch::new(*self.switch.rules());
        for (id, rules) in &self.bridge.ports {
            successor.set_port(PortId(*id), rules.clone());
        }
        self.table
            .apply(successor.restore(self.table.listed(self.now_ms), self.now_ms));
        self.switch = successor;
    }

    /// The switch has decided so; the twin is not asked.
    pub fn apply(&mut self, changes: Vec<FlowChange>) {
        self.table.apply(changes);
    }

    /// Flows that the data plane has.
    pub fn flow_count(&self) -> usize {
        self.table.0.len()
    }

    pub fn refresh_stale(&mut self) {
        while self.switch.has_stale() {
            self.table.apply(self.switch.refresh_stale(2, self.now_ms));
        }
    }

    fn observe(&mut self) {
        let stats = self.table.stats(self.now_ms);
        self.switch
            .observe(stats.iter().map(|(id, stats)| (*id, stats)), self.now_ms);
    }

    pub fn step(&mut self, step: &Step) {
        self.observe();
        match step {
            Step::Packet {
                port,
                src,
                dst,
                tci,
                inner,
            } => self.packet(&nested_key(*port, *src, *dst, *tci, *inner)),
            Step::Wait(time) => self.now_ms += time,
            Step::Age => {
                self.switch.leave_silent_places();
                self.bridge.leave_silent_places();
                self.refresh_stale();
                self.table.apply(self.switch.age(self.now_ms));
                self.bridge.age(self.now_ms);
            }
            Step::Ready(port, readiness) => {
                self.switch.set_readiness(PortId(*port), *readiness);
                self.refresh_stale();
                if let Some(port) = self.bridge.ports.get_mut(port) {
                    port.readiness = *readiness;
                }
            }
            Step::Port(port, rules) => {
                let rules = claim(&self.bridge.ports, *port, rules);
                self.switch.set_port(PortId(*port), rules.clone());
                self.bridge.ports.insert(*port, rules);
                self.configured();
            }
            Step::Remove(port) => {
                self.switch.remove_port(PortId(*port));
                self.bridge.ports.remove(port);
                self.configured();
            }
        }
    }

    fn packet(&mut self, key: &FlowKey) {
        let _ = self.receivers(key);
    }

    /// A packet enters, and goes to these ports.
    pub fn receivers(&mut self, key: &FlowKey) -> Outcome {
        let got = match self.table.lookup(key, self.now_ms) {
            Some(actions) => run(&actions, key),
            None => {
                let (decision, changes) = self.switch.packet(key, self.now_ms);
                self.table.apply(changes);
                run(&decision.actions(), key)
            }
        };
        assert_eq!(got, self.bridge.packet(key, self.now_ms), "{key}");
        got
    }

    pub fn check(&mut self) {
        self.observe();
        let known: Vec<_> = (self.switch.macs().iter())
            .map(|(station, port, place)| ((station.vlan, station.mac), port.0, place.seen_ms))
            .collect();
        let places = self.bridge.table.iter();
        let expected: Vec<_> = places
            .flat_map(|(station, places)| places.iter().map(|(port, place)| (*station, *port, place.last)))
            .collect();
        assert_eq!(known, expected);
        assert_eq!(self.switch.flow_count(), self.table.0.len());
        for (id, (key, actions, _)) in &self.table.0 {
            assert_eq!(*id, flow_id(key));
            assert_eq!(self.switch.decide(key).actions(), *actions, "stale flow {key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Packet by packet, flows and decisions on misses do what a bridge without flows does.
    #[test]
    fn cached_decisions_equal_decisions_per_packet((rules, ports, steps) in world()) {
        let mut world = World::new(rules, &ports);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }

    /// A new control process with the same configuration takes over the stations that flows prove, keeps
    /// every flow that it would install itself, and puts no station where it was not.
    #[test]
    fn a_successor_agrees((rules, ports, steps) in world()) {
        let mut world = World::new(rules, &ports);
        for step in &steps {
            world.step(step);
        }
        let mut successor = LearningSwitch::new(rules);
        for (id, rules) in &world.bridge.ports {
            successor.set_port(PortId(*id), rules.clone());
        }
        let changes = successor.restore(world.table.listed(world.now_ms), world.now_ms);
        for (station, port, _) in successor.macs().iter() {
            let known = world.bridge.table.get(&(station.vlan, station.mac));
            let known = known.is_some_and(|places| places.contains_key(&port.0));
            // A table that was full may have kept a station out that its flows now prove.
            let excused = world.bridge.places() >= rules.table_size;
            prop_assert!(known || excused, "{station:?}");
        }
        for (key, actions, _) in world.table.0.values() {
            // Limits that were lowered do not affect stations that are known; a successor does not know them.
            let port = PortId(key.in_port());
            let roomy = world.bridge.places() < rules.table_size
                && world.switch.macs().on_port(port) <= world.bridge.ports[&port.0].mac_limit;
            let forwards = !matches!(actions[..], [Action::Drop(_)]);
            if roomy && forwards && world.switch.decide(key).source == Source::Known {
                prop_assert_eq!(successor.decide(key).source, Source::Known);
            }
        }
        let mut table = world.table.clone();
        table.apply(changes);
        prop_assert_eq!(successor.flow_count(), table.0.len());
        for (key, actions, _) in table.0.values() {
            prop_assert_eq!(&successor.decide(key).actions(), actions);
        }
        // Asked a second time, there is nothing to change.
        let mut third = successor.clone();
        third.forget_flows(world.now_ms);
        prop_assert_eq!(third.restore(table.listed(world.now_ms), world.now_ms), vec![]);
    }
}

/// Few stations on few ports that all receive each other's frames, so that stations are contested again and
/// again.
fn storm() -> impl Strategy<Value = Vec<Step>> {
    let (src, dst) = (0..2u64, 0..3u64);
    let packet = (0..3u32, src, dst).prop_map(|(port, src, dst)| Step::Packet {
        port,
        src: 0x0200_0000_0000 | src,
        dst: 0x0200_0000_0000 | dst,
        tci: 0,
        inner: 0,
    });
    let step = prop_oneof![
        20 => packet,
        3 => (1..15_000u64).prop_map(Step::Wait),
        3 => Just(Step::Age),
        2 => (0..3u32, readiness()).prop_map(|(port, readiness)| Step::Ready(port, readiness)),
        1 => (0..3u32, 1..3usize).prop_map(|(port, limit)| Step::Port(port, plain(limit))),
    ];
    proptest::collection::vec(step, 20..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// As above, where stations are contested all the time.
    #[test]
    fn contested_stations_are_decided_about_as_by_the_bridge(steps in storm()) {
        let mut world = three_ports(2);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }
}

pub(super) fn plain(limit: usize) -> PortRules {
    PortRules {
        vlan: VlanConfig::Untagged,
        isolated: false,
        flood: true,
        mac_limit: limit,
        storm: StormLimits::default(),
        vlan_priority: None,
        static_macs: vec![],
        mac: None,
        readiness: Readiness::Running,
    }
}

pub(super) fn roomy() -> SwitchRules {
    SwitchRules {
        ageing_ms: 300_000,
        table_size: 1000,
        flood: true,
        contested: ContestedMacs::Deliver,
    }
}

fn three_ports(limit: usize) -> World {
    World::new(roomy(), &[plain(limit), plain(limit), plain(limit)])
}

#[test]
fn a_sprayer_fills_its_own_share_only() {
    let mut world = three_ports(10);
    world.switch.set_flow_limit(20);
    for mac in 0..1000 {
        world.packet(&key(0, 0x0200_0000_1000 + mac, 0xffff_ffff_ffff, 0));
    }
    assert_eq!(
        (world.switch.macs_on_port(PortId(0)), world.switch.flow_count()),
        (10, 20)
    );
    world.packet(&key(1, 0x0200_0000_0001, 0xffff_ffff_ffff, 0));
    assert_eq!(
        (world.switch.macs_on_port(PortId(1)), world.switch.flow_count()),
        (1, 21)
    );
}

#[test]
fn flows_go_when_idle_and_stations_later() {
    let mut world = three_ports(10);
    let (a, b) = (0x0200_0000_000a, 0x0200_0000_000b);
    world.packet(&key(0, a, b, 0));
    world.packet(&key(1, b, a, 0));
    assert_eq!(world.switch.next_ageing_ms(), Some(400_000));
    world.now_ms += 250_000;
    // In use at the last moment, b's flow keeps b alive; a's was idle.
    world.packet(&key(1, b, a, 0));
    world.step(&Step::Age);
    world.check();
    assert_eq!((world.switch.flow_count(), world.switch.mac_count()), (1, 2));
    world.now_ms += 50_000;
    world.step(&Step::Age);
    world.check();
    assert_eq!(
        world.switch.destination(Station { vlan: 0, mac: a }),
        Destination::Unknown
    );
    assert_eq!(
        world.switch.destination(Station { vlan: 0, mac: b }),
        Destination::Known(PortId(1))
    );
    assert_eq!(world.switch.next_ageing_ms(), Some(650_000));
}

#[test]
fn a_lost_flow_is_installed_again_but_not_for_packets_under_way() {
    let mut world = three_ports(10);
    let packet = key(0, 0x0200_0000_000a, 0xffff_ffff_ffff, 0);
    let (_, changes) = world.switch.packet(&packet, 1000);
    assert!(matches!(changes[..], [FlowChange::Put { .. }]));
    assert_eq!(world.switch.packet(&packet, 1100).1, vec![]);
    assert!(matches!(
        world.switch.packet(&packet, 2000).1[..],
        [FlowChange::Put { .. }]
    ));
}

#[test]
fn foreign_flows_are_removed() {
    let mut world = three_ports(10);
    let flow = Flow::new(
        FlowId(7),
        SwitchId(1),
        FlowKey::default(),
        flow::FlowMask::ANY,
        vec![],
    );
    assert_eq!(
        world.switch.restore(vec![(flow, FlowStats::default())], 0),
        vec![FlowChange::Del(FlowId(7))]
    );
}

/// The three ways by which a guest could choose a VLAN by an inner tag.
#[test]
fn nobody_hops_to_another_vlan_by_an_inner_tag() {
    let port = |vlan| PortRules { vlan, ..plain(10) };
    let vid = |number| VlanId::new(number).unwrap();
    let native = |number| VlanConfig::Trunk {
        vlans: Trunk::All,
        native: Some(vid(number)),
    };
    let all = VlanConfig::Trunk {
        vlans: Trunk::All,
        native: None,
    };
    let group = 0xffff_ffff_ffff;
    let sent = |vlans: &[VlanConfig], tci: u16| {
        let ports: Vec<_> = vlans.iter().cloned().map(port).collect();
        let mut world = World::new(roomy(), &ports);
        let key = nested_key(0, 0x0200_0000_000a, group, VLAN_PRESENT | tci, VLAN_PRESENT | 30);
        world.packet(&key);
        world.switch.decide(&key).verdict
    };
    // Behind a priority tag, from an untagged port to a trunk, and from an access port to a trunk whose
    // native VLAN is its own.
    assert_eq!(
        sent(&[VlanConfig::Untagged, all.clone()], 0),
        Err(DropReason::NestedVlan)
    );
    assert_eq!(
        sent(&[VlanConfig::Access(vid(10)), native(10)], 0),
        Err(DropReason::NestedVlan)
    );
    // Not even where a tag is put in front: the next switch may remove it.
    assert_eq!(
        sent(&[VlanConfig::Access(vid(10)), all.clone()], 0),
        Err(DropReason::NestedVlan)
    );
    // Two tags from a trunk to an access port and to a trunk whose native VLAN is the outer one.
    assert_eq!(
        sent(&[all.clone(), VlanConfig::Access(vid(10))], 10),
        Err(DropReason::NestedVlan)
    );
    assert_eq!(sent(&[all.clone(), native(10)], 10), Err(DropReason::NestedVlan));
    // Where the outer tag stays, the inner one is payload.
    let ports = [all.clone(), VlanConfig::Access(vid(10)), all, native(10)];
    assert_eq!(sent(&ports, 10), Ok(vec![Action::Output(PortId(2))]));
}

/// Sprayers whose limits together exceed the table cannot keep a later port's stations out.
#[test]
fn a_full_table_has_room_for_every_port_s_share() {
    let rules = SwitchRules {
        ageing_ms: 300_000,
        table_size: 64,
        ..roomy()
    };
    let mut world = World::new(rules, &vec![plain(1024); 8]);
    let group = 0xffff_ffff_ffff;
    for mac in 0..200 {
        for port in 0..4 {
            world.packet(&key(
                port,
                0x0200_0000_0000 + (u64::from(port) << 16) + mac,
                group,
                0,
            ));
        }
    }
    assert_eq!(world.switch.mac_count(), 64);
    for port in 4..8 {
        for mac in 0..20 {
            world.packet(&key(
                port,
                0x0200_0000_0000 + (u64::from(port) << 16) + mac,
                group,
                0,
            ));
        }
    }
    world.check();
    let counts: Vec<_> = (0..8)
        .map(|port| world.switch.macs_on_port(PortId(port)))
        .collect();
    assert_eq!(counts, [8; 8], "nobody has more than the share, and nobody less");
}
