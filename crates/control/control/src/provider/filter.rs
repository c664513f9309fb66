//! A filter made of a function: its verdicts become flows.
//!
//! [`Filter`] asks a [`Decide`] about each packet that comes up, and makes a flow of the verdict, which
//! compares what was read. So a filter is written as if it saw each packet, and does none of the upkeep:
//! flows that nothing uses go, those of an earlier process are compared with what is decided now, and each
//! port has a bounded number of them and of masks.

use super::mask_set::covers;
use super::{
    Asked, FLOW_IDLE_MS, FlowChange, Look, MaskSet, Provider, REINSTALL_MS, Verdict, actions_of, flow_id,
    port_of,
};
use flow::{Action, Flow, FlowId, FlowKey, FlowMask, FlowStats, PortId, ProviderId, Stage};
use std::collections::{BTreeMap, HashMap};

/// Decides about packets, by what it reads of them and by rules that do not change between two calls of
/// [`Filter::change`].
pub trait Decide {
    /// The verdict about a packet in that stage.
    fn decide(&self, stage: Stage, packet: &Look<'_>) -> Verdict;
}

/// A provider that decides by a function.
#[derive(Debug)]
pub struct Filter<D> {
    id: ProviderId,
    rules: D,
    flows: HashMap<FlowId, Installed>,
    ports: BTreeMap<PortId, OfPort>,
    /// Flows of ports that are no more.
    orphans: Vec<FlowId>,
    limit: usize,
}

/// A flow that was installed.
#[derive(Clone, Debug)]
struct Installed {
    stage: Stage,
    key: FlowKey,
    mask: FlowMask,
    actions: Vec<Action>,
    installed_ms: u64,
    used_ms: u64,
}

/// The flows of one port.
#[derive(Clone, Debug, Default)]
struct OfPort {
    masks: MaskSet,
    flows: usize,
}

impl<D: Decide> Filter<D> {
    /// A filter without flows.
    pub fn new(id: ProviderId, rules: D) -> Self {
        Filter {
            id,
            rules,
            flows: HashMap::new(),
            ports: BTreeMap::new(),
            orphans: Vec::new(),
            limit: usize::MAX,
        }
    }

    /// Rules of the filter, to change them; to be followed by [`refresh`](Provider::refresh).
    pub fn change(&mut self) -> &mut D {
        &mut self.rules
    }

    /// The verdict about a packet, and what was read for it. Flows of a sender are its own, whatever was
    /// read.
    fn decide(&self, stage: Stage, key: &FlowKey) -> (Verdict, FlowMask) {
        let look = Look::new(key);
        let verdict = self.rules.decide(stage, &look);
        let mut seen = look.seen();
        if !matches!(stage, Stage::Egress(..)) {
            seen.0.set_in_port(u32::MAX);
        }
        (verdict, seen)
    }

    fn put(&mut self, id: FlowId, flow: Installed) -> FlowChange {
        let change = FlowChange::Put {
            id,
            stage: flow.stage,
            key: flow.key,
            mask: flow.mask,
            actions: flow.actions.clone(),
        };
        let port = port_of(flow.stage, &flow.key);
        if self.flows.insert(id, flow).is_none() {
            self.ports.entry(port).or_default().flows += 1;
        }
        change
    }

    fn forget(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.remove(&id)
            && let Some(port) = self.ports.get_mut(&port_of(flow.stage, &flow.key))
        {
            port.flows -= 1;
        }
    }

    /// Removes the flows of which that is true.
    fn remove(&mut self, gone: impl Fn(&Installed) -> bool) -> Vec<FlowChange> {
        let gone = self.flows.iter().filter(|(_, flow)| gone(flow));
        let ids: Vec<FlowId> = gone.map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| self.forget(*id));
        ids.into_iter().map(FlowChange::Del).collect()
    }

    /// Makes a flow of a verdict, unless there is one.
    fn keep(&mut self, asked: &Asked, seen: &FlowMask, actions: Vec<Action>, now_ms: u64) -> Vec<FlowChange> {
        let port = asked.port();
        let cover = self.ports.entry(port).or_default().masks.cover(seen);
        let mut changes = cover.replaced.map_or_else(Vec::new, |mask| {
            self.remove(|flow| flow.mask == mask && port_of(flow.stage, &flow.key) == port)
        });
        let (stage, mask) = (asked.stage, cover.mask);
        let key = asked.key.masked(&mask);
        let id = flow_id(self.id, stage, &key, &mask);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.used_ms = now_ms;
            let is_fresh = now_ms.saturating_sub(flow.installed_ms) < REINSTALL_MS;
            if flow.actions == actions && (is_fresh || !asked.lacks_flow) {
                return changes;
            }
        } else if self
            .ports
            .get(&port)
            .is_some_and(|of_port| of_port.flows >= self.limit)
        {
            return changes;
        }
        let flow = Installed {
            stage,
            key,
            mask,
            actions,
            installed_ms: now_ms,
            used_ms: now_ms,
        };
        changes.push(self.put(id, flow));
        changes
    }

    /// Compares a flow with what is decided now: changes it, or removes it if its mask lacks bits that are
    /// read now.
    fn reconsider(&mut self, id: FlowId, now_ms: u64) -> Option<FlowChange> {
        let flow = self.flows.get(&id)?.clone();
        let (verdict, seen) = self.decide(flow.stage, &flow.key);
        if !covers(&flow.mask, &seen) {
            self.forget(id);
            return Some(FlowChange::Del(id));
        }
        let actions = actions_of(&verdict);
        let installed_ms = now_ms;
        (actions != flow.actions).then(|| {
            self.put(
                id,
                Installed {
                    actions,
                    installed_ms,
                    ..flow
                },
            )
        })
    }

    /// Takes over a flow, unless no flow of ours looks so or its port has enough.
    fn adopt(&mut self, flow: Flow, idle_ms: u64, now_ms: u64) -> Result<FlowId, FlowId> {
        let (id, stage, mask) = (flow.id, flow.stage, flow.mask);
        let is_ours = flow.context.is_none()
            && flow.key == flow.key.masked(&mask)
            && id == flow_id(self.id, stage, &flow.key, &mask);
        let of_port = self.ports.entry(port_of(stage, &flow.key)).or_default();
        if !is_ours || of_port.flows >= self.limit || !of_port.masks.adopt(&mask) {
            return Err(id);
        }
        let installed = Installed {
            stage,
            key: flow.key,
            mask,
            actions: flow.actions,
            installed_ms: now_ms,
            used_ms: now_ms.saturating_sub(idle_ms),
        };
        self.put(id, installed);
        Ok(id)
    }
}

impl<D: Decide> Provider for Filter<D> {
    fn id(&self) -> ProviderId {
        self.id
    }

    fn missed(&mut self, asked: &Asked, now_ms: u64) -> (Verdict, Vec<FlowChange>) {
        let (verdict, seen) = self.decide(asked.stage, &asked.key);
        let changes = self.keep(asked, &seen, actions_of(&verdict), now_ms);
        (verdict, changes)
    }

    fn preview(&self, asked: &Asked) -> Verdict {
        self.decide(asked.stage, &asked.key).0
    }

    fn used(&mut self, flows: &[(FlowId, FlowStats)], now_ms: u64) -> Vec<FlowChange> {
        for (id, stats) in flows {
            if let (Some(idle_ms), Some(flow)) = (stats.idle_ms, self.flows.get_mut(id)) {
                flow.used_ms = flow.used_ms.max(now_ms.saturating_sub(idle_ms));
            }
        }
        self.remove(|flow| now_ms >= flow.used_ms + FLOW_IDLE_MS)
    }

    fn restored(&mut self, flows: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange> {
        self.flows.clear();
        self.ports.clear();
        self.orphans.clear();
        let adopt = |(flow, stats): (Flow, FlowStats)| self.adopt(flow, stats.idle_ms.unwrap_or(0), now_ms);
        let adopted: Vec<Result<FlowId, FlowId>> = flows.into_iter().map(adopt).collect();
        let examine = |flow| match flow {
            Ok(id) => self.reconsider(id, now_ms),
            Err(id) => Some(FlowChange::Del(id)),
        };
        adopted.into_iter().filter_map(examine).collect()
    }

    fn refused(&mut self, id: FlowId) {
        self.forget(id);
    }

    fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange> {
        let orphans = std::mem::take(&mut self.orphans).into_iter().map(FlowChange::Del);
        let mut changes: Vec<_> = orphans.collect();
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        changes.extend(ids.into_iter().filter_map(|id| self.reconsider(id, now_ms)));
        changes
    }

    fn remove_port(&mut self, port: PortId) {
        let of_port = self
            .flows
            .extract_if(|_, flow| port_of(flow.stage, &flow.key) == port);
        self.orphans.extend(of_port.map(|(id, _)| id));
        self.ports.remove(&port);
    }

    fn limit_flows(&mut self, per_port: usize) {
        self.limit = per_port;
    }

    fn flow_count(&self) -> usize {
        self.flows.len()
    }
}
