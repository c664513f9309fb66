//! The providers of a switch, in the order of their stages.

use super::{Asked, FlowChange, Provider, Verdict, pass, port_of};
use flow::{
    Action, DropReason, Edit, Filters, Flow, FlowId, FlowKey, FlowStats, Layer, MAX_FILTERS, PortId,
    ProviderId, Stage,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Which packets a filter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Packets that come from ports.
    Ingress,
    /// Packets that go to ports.
    Egress,
}

/// Why a filter cannot be in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There are [`MAX_FILTERS`] on that side.
    Full,
    /// Another provider of the chain has this name.
    Taken(ProviderId),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Full => write!(f, "there are {MAX_FILTERS} filters on that side already"),
            Unfit::Taken(id) => write!(f, "there is a provider {id} already"),
        }
    }
}

impl std::error::Error for Unfit {}

/// The chain's answer to a miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The last stage that decided, where the packet goes on.
    pub stage: Stage,
    /// The packet's key in that stage.
    pub key: FlowKey,
    /// The actions of all stages that were asked, or why the packet is dropped.
    pub verdict: Verdict,
    /// What changes afterwards.
    pub changes: Vec<FlowChange>,
}

/// The chain of a switch whose forward stage has the provider `F`.
pub struct Chain<F> {
    ingress: Vec<Box<dyn Provider>>,
    forward: F,
    egress: Vec<Box<dyn Provider>>,
    /// The switch's ports. Flows are made for no others.
    ports: BTreeSet<PortId>,
}

impl<F: Provider + 'static> Chain<F> {
    /// A chain without filters and ports.
    pub fn new(forward: F) -> Self {
        Chain {
            ingress: Vec::new(),
            forward,
            egress: Vec::new(),
            ports: BTreeSet::new(),
        }
    }

    /// Adds a filter behind those of its side. Ports have to be given [`filters`](Self::filters) afterwards.
    ///
    /// # Errors
    ///
    /// See [`Unfit`].
    pub fn add(&mut self, side: Side, filter: impl Provider + 'static) -> Result<(), Unfit> {
        let id = filter.id();
        if self.slot_of(id).is_some() {
            return Err(Unfit::Taken(id));
        }
        let filters = match side {
            Side::Ingress => &mut self.ingress,
            Side::Egress => &mut self.egress,
        };
        if filters.len() >= usize::from(MAX_FILTERS) {
            return Err(Unfit::Full);
        }
        filters.push(Box::new(filter));
        Ok(())
    }

    /// The provider of the forward stage.
    pub fn forward(&self) -> &F {
        &self.forward
    }

    /// The provider of the forward stage, to change its rules.
    pub fn forward_mut(&mut self) -> &mut F {
        &mut self.forward
    }

    /// The filters that each port of the switch has.
    pub fn filters(&self) -> Filters {
        let count = |filters: &[Box<dyn Provider>]| u8::try_from(filters.len()).unwrap_or(MAX_FILTERS);
        Filters::of_flows(count(&self.ingress), count(&self.egress))
    }

    /// A port belongs to the switch from now on.
    pub fn add_port(&mut self, port: PortId) {
        self.ports.insert(port);
    }

    /// A port is no more; to be followed by [`refresh`](Self::refresh).
    pub fn remove_port(&mut self, port: PortId) {
        self.ports.remove(&port);
        self.each_mut()
            .for_each(|(_, provider)| provider.remove_port(port));
    }

    /// Decides about a packet that no flow of a stage matches.
    pub fn missed(&mut self, stage: Stage, key: &FlowKey, now_ms: u64) -> Outcome {
        let (filters, known) = (self.filters(), self.ports.contains(&port_of(stage, key)));
        let mut changes = Vec::new();
        let (last, verdict) = decide(known, filters, stage, key, |asked| {
            let (slot, provider) = (slot(asked.stage), self.at_mut(asked.stage)?);
            let (verdict, new) = provider.missed(asked, now_ms);
            let id = provider.id();
            changes.extend(new.into_iter().filter(|change| is_own(change, id, slot)));
            Some(verdict)
        });
        Outcome {
            stage: last.stage,
            key: last.key,
            verdict,
            changes,
        }
    }

    /// The answer to a miss, for a trace: nothing changes.
    pub fn preview(&self, stage: Stage, key: &FlowKey) -> Outcome {
        let (filters, known) = (self.filters(), self.ports.contains(&port_of(stage, key)));
        let ask = |asked: &Asked| self.at(asked.stage).map(|provider| provider.preview(asked));
        let (last, verdict) = decide(known, filters, stage, key, ask);
        Outcome {
            stage: last.stage,
            key: last.key,
            verdict,
            changes: Vec::new(),
        }
    }

    /// Tells all providers the statistics of the switch's flows.
    pub fn used(&mut self, flows: &[(FlowId, FlowStats)], now_ms: u64) -> Vec<FlowChange> {
        self.gather(|provider| provider.used(flows, now_ms))
    }

    /// Takes over the flows that a data plane has: each provider compares its own with what it would decide
    /// now, stage by stage.
    pub fn restored(&mut self, flows: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange> {
        let mut owned: BTreeMap<ProviderId, Vec<_>> = BTreeMap::new();
        let mut changes = Vec::new();
        for (flow, stats) in flows {
            let provider = flow.id.provider();
            let in_place = self.slot_of(provider) == Some(slot(flow.stage));
            if in_place && self.ports.contains(&port_of(flow.stage, &flow.key)) {
                owned.entry(provider).or_default().push((flow, stats));
            } else {
                changes.push(FlowChange::Del(flow.id));
            }
        }
        changes.extend(self.gather(|provider| {
            let flows = owned.remove(&provider.id()).unwrap_or_default();
            provider.restored(flows, now_ms)
        }));
        changes
    }

    /// The data plane has not installed this flow.
    pub fn refused(&mut self, id: FlowId) {
        let mut owners = self
            .each_mut()
            .filter(|(_, provider)| provider.id() == id.provider());
        if let Some((_, owner)) = owners.next() {
            owner.refused(id);
        }
    }

    /// Does what is due while nobody tells how flows are used.
    pub fn due(&mut self, now_ms: u64) -> Vec<FlowChange> {
        self.gather(|provider| match provider.due_ms() {
            Some(due_ms) if due_ms <= now_ms => provider.due(now_ms),
            _ => Vec::new(),
        })
    }

    /// When [`due`](Self::due) has something to do at the earliest.
    pub fn due_ms(&self) -> Option<u64> {
        self.each().filter_map(|provider| provider.due_ms()).min()
    }

    /// Re-examines all flows.
    pub fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange> {
        self.gather(|provider| provider.refresh(now_ms))
    }

    /// Most flows of any one port from now on, divided among the providers.
    pub fn limit_flows(&mut self, per_port: usize) {
        let each = (per_port / self.each().count()).max(1);
        self.each_mut()
            .for_each(|(_, provider)| provider.limit_flows(each));
    }

    /// Flows installed.
    pub fn flow_count(&self) -> usize {
        self.each().map(|provider| provider.flow_count()).sum()
    }

    /// The shortest time without use that means something to a provider with flows, in milliseconds.
    pub fn idle_ms(&self) -> Option<u64> {
        let busy = self.each().filter(|provider| provider.flow_count() > 0);
        busy.map(|provider| provider.idle_ms()).min()
    }

    fn at(&self, stage: Stage) -> Option<&dyn Provider> {
        let boxed = match stage {
            Stage::Forward => return Some(&self.forward),
            Stage::Ingress(number) => self.ingress.get(usize::from(number)),
            Stage::Egress(_, number) => self.egress.get(usize::from(number)),
        };
        boxed.map(|provider| &**provider)
    }

    fn at_mut(&mut self, stage: Stage) -> Option<&mut dyn Provider> {
        let boxed = match stage {
            Stage::Forward => return Some(&mut self.forward),
            Stage::Ingress(number) => self.ingress.get_mut(usize::from(number)),
            Stage::Egress(_, number) => self.egress.get_mut(usize::from(number)),
        };
        Some(&mut **boxed?)
    }

    fn each(&self) -> impl Iterator<Item = &dyn Provider> {
        let forward: &dyn Provider = &self.forward;
        let ingress = self.ingress.iter().map(|provider| &**provider);
        let egress = self.egress.iter().map(|provider| &**provider);
        ingress.chain([forward]).chain(egress)
    }

    /// All providers with their slots, in the order of stages.
    fn each_mut(&mut self) -> impl Iterator<Item = (Stage, &mut (dyn Provider + 'static))> {
        let forward: &mut (dyn Provider + 'static) = &mut self.forward;
        let ingress = (0..).zip(&mut self.ingress);
        let ingress = ingress.map(|(number, provider)| (Stage::Ingress(number), &mut **provider));
        let egress = (0..).zip(&mut self.egress);
        let egress =
            egress.map(|(number, provider)| (slot(Stage::Egress(PortId(0), number)), &mut **provider));
        ingress.chain([(Stage::Forward, forward)]).chain(egress)
    }

    fn slot_of(&self, id: ProviderId) -> Option<Stage> {
        let filters = |filters: &[Box<dyn Provider>], stage: fn(u8) -> Stage| {
            let place = filters.iter().position(|filter| filter.id() == id)?;
            Some(stage(u8::try_from(place).ok()?))
        };
        let forward = (self.forward.id() == id).then_some(Stage::Forward);
        forward
            .or_else(|| filters(&self.ingress, Stage::Ingress))
            .or_else(|| filters(&self.egress, |number| Stage::Egress(PortId(0), number)))
    }

    fn gather(&mut self, mut ask: impl FnMut(&mut dyn Provider) -> Vec<FlowChange>) -> Vec<FlowChange> {
        let mut all = Vec::new();
        for (slot, provider) in self.each_mut() {
            let (changes, id) = (ask(provider), provider.id());
            all.extend(changes.into_iter().filter(|change| is_own(change, id, slot)));
        }
        all
    }
}

/// The place of a stage's provider: egress filters of a number are one, whatever the port.
fn slot(stage: Stage) -> Stage {
    match stage {
        Stage::Egress(_, number) => Stage::Egress(PortId(0), number),
        Stage::Ingress(_) | Stage::Forward => stage,
    }
}

/// Whether the change is about a flow of this provider, and in its place.
fn is_own(change: &FlowChange, provider: ProviderId, own: Stage) -> bool {
    match change {
        FlowChange::Put { id, stage, .. } => id.provider() == provider && slot(*stage) == own,
        FlowChange::Del(id) => id.provider() == provider,
    }
}

/// Asks the provider of a stage, and those of later stages as long as the packet passes. Returns the last
/// question, and the actions of all.
fn decide(
    known: bool,
    filters: Filters,
    stage: Stage,
    key: &FlowKey,
    mut ask: impl FnMut(&Asked) -> Option<Verdict>,
) -> (Asked, Verdict) {
    let mut asked = Asked {
        stage,
        key: *key,
        lacks_flow: true,
    };
    if !known || !stage.is_valid() {
        return (asked, Err(DropReason::PortRemoved));
    }
    let mut before = Vec::new();
    loop {
        let mut actions = match ask(&asked).unwrap_or_else(pass) {
            Ok(actions) => actions,
            Err(reason) if before.is_empty() => return (asked, Err(reason)),
            Err(reason) => vec![Action::Drop(reason)],
        };
        let (Some(key), Some(next)) = (behind(&asked.key, &actions), asked.stage.next(&filters)) else {
            before.append(&mut actions);
            return (asked, Ok(before));
        };
        actions.pop();
        before.append(&mut actions);
        asked = Asked {
            stage: next,
            key,
            lacks_flow: false,
        };
    }
}

/// The key of a packet that passes a filter with these actions. `None` if it does not pass, or if its key is
/// not known for sure.
fn behind(key: &FlowKey, actions: &[Action]) -> Option<FlowKey> {
    let [before @ .., Action::Continue] = actions else {
        return None;
    };
    let mut key = *key;
    for action in before {
        match action {
            Action::Edit(Edit::Set(set)) => {
                let field = set.field.field();
                if field.is_in_context() || !matches!(field.layer, Layer::Metadata | Layer::Link) {
                    return None;
                }
                field.set(&mut key.words, set.value, set.mask);
            }
            Action::Edit(Edit::Class(_)) | Action::Meter(_) | Action::Output(_) | Action::Userspace(_) => {}
            Action::Edit(
                Edit::PushVlan { .. }
                | Edit::PopVlan
                | Edit::PushMpls { .. }
                | Edit::PopMpls(_)
                | Edit::Encapsulate(_),
            )
            | Action::Drop(_)
            | Action::Sample { .. }
            | Action::Clone(_)
            | Action::Truncate(_)
            | Action::CheckPktLen { .. }
            | Action::Recirc(_)
            | Action::Hash { .. }
            | Action::Continue => return None,
        }
    }
    Some(key)
}
