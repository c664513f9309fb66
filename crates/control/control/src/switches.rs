//! The switches as they run: the providers that decide about packets, and the upkeep of their flows.
//!
//! Stations without flows age by our clock alone. Only the data plane knows when flows were used last, and is
//! asked for that only while there are flows; so a switch that has learned nothing wakes no process.
//!
//! Floods go to connected ports only. A connect or disconnect changes the flows that flood in the port's
//! VLANs, and no others. A station that is seen at one port more, or leaves one, changes the flows from and
//! to it. VMMs and guests determine how often that happens, and how many such flows there are, so the work is
//! done at a [pace](crate::pace), a piece at a time. Until it is done, floods miss a port that was just
//! connected, or are dropped at one that was just disconnected, and some flows to a station lead to where it
//! was.

use crate::data_plane::DataPlane;
use crate::l2::{LearningSwitch, Readiness, SwitchRules};
use crate::pace::Pace;
use crate::pending::Pending;
use crate::provider::{Chain, FlowChange};
use control_protocol::data_plane::{Detail, Execute, Request, Upcall, UpcallCause};
use flow::{DropReason, Flow, FlowId, FlowStats, PortId, SwitchId};
use pacing::Turns;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Flows, divided among the ports.
const FLOWS: usize = 32_768;

/// Flows re-examined at once per second because stations are learned, divided among the ports.
const MOVED_FLOWS: u64 = 16_384;

/// Flows re-examined in a piece of work.
const PIECE: usize = 256;

/// Longest time between requests for the flows' last use, in milliseconds.
const POLL_MAX_MS: u64 = 10_000;

/// Shortest time between them.
const POLL_MIN_MS: u64 = 1_000;

/// A switch as it runs.
pub(crate) struct SwitchRun {
    /// Number in the data plane; `None` until the data plane has listed the numbers in use.
    pub id: Option<SwitchId>,
    pub chain: Chain<LearningSwitch>,
    /// Ports that were connected or disconnected.
    changed: Turns<PortId>,
    pace: Pace,
}

/// All switches, by name.
#[derive(Default)]
pub(crate) struct Switches {
    pub runs: BTreeMap<String, SwitchRun>,
    /// When flows were asked for last.
    polled_ms: u64,
    /// Switches whose flows were asked for, and are not there yet.
    polls: usize,
    /// Somebody wants to know rates: flows are asked for as often as they may be.
    pub is_hurried: bool,
}

impl Switches {
    /// The numbers in use.
    pub fn ids(&self) -> impl Iterator<Item = SwitchId> {
        self.runs.values().filter_map(|run| run.id)
    }

    pub fn name(&self, id: SwitchId) -> Option<&String> {
        let mut named = self.runs.iter().filter(|(_, run)| run.id == Some(id));
        named.next().map(|(name, _)| name)
    }

    fn by_id(&mut self, id: SwitchId) -> Option<&mut SwitchRun> {
        self.runs.values_mut().find(|run| run.id == Some(id))
    }

    pub fn add(&mut self, name: &str, rules: SwitchRules) {
        let run = SwitchRun {
            id: None,
            chain: Chain::new(LearningSwitch::new(rules)),
            changed: Turns::default(),
            pace: Pace::default(),
        };
        self.runs.insert(name.into(), run);
    }

    pub fn remove(&mut self, name: &str, data_plane: &mut DataPlane) {
        if let Some(switch) = self.runs.remove(name).and_then(|run| run.id) {
            data_plane.client.tell(Request::FlowFlush { switch });
        }
    }

    /// Gives numbers to switches that have none.
    pub fn number(&mut self) {
        let taken: BTreeSet<SwitchId> = self.ids().collect();
        let mut free = (1..).map(SwitchId).filter(|id| !taken.contains(id));
        for run in self.runs.values_mut().filter(|run| run.id.is_none()) {
            run.id = free.next();
        }
    }

    /// Divides what flows cost among so many ports.
    pub fn divide_limits(&mut self, ports: usize) {
        let ports = ports.max(1);
        for run in self.runs.values_mut() {
            run.chain.limit_flows((FLOWS / ports).clamp(64, 4096));
            let moved = (MOVED_FLOWS / ports as u64).clamp(64, 2048);
            run.l2_mut().set_move_limit(moved);
        }
    }

    /// A port is no more.
    pub fn remove_port(&mut self, port: PortId) {
        for run in self.runs.values_mut() {
            run.chain.remove_port(port);
        }
    }

    /// Re-examines the flows of a switch whose rules have changed.
    pub fn refresh(&mut self, name: &str, data_plane: &mut DataPlane, now_ms: u64) {
        if let Some(run) = self.runs.get_mut(name) {
            let changes = run.chain.refresh(now_ms);
            run.put(changes, data_plane);
        }
    }

    /// Takes over the flows that a data plane has.
    pub fn restore(
        &mut self,
        switch: SwitchId,
        flows: Vec<(Flow, FlowStats)>,
        data_plane: &mut DataPlane,
        now_ms: u64,
    ) {
        if let Some(run) = self.by_id(switch) {
            let count = flows.len();
            let changes = run.chain.restored(flows, now_ms);
            log::info!(
                "switch {switch}: {count} flows taken over, {} changed",
                changes.len()
            );
            run.put(changes, data_plane);
        }
    }

    /// Removes all flows of a switch, so that the next packet of each kind is decided again.
    pub fn flush(&mut self, name: &str, data_plane: &mut DataPlane, now_ms: u64) {
        let Some(run) = self.runs.get_mut(name) else {
            return;
        };
        if let Some(switch) = run.id {
            data_plane.client.tell(Request::FlowFlush { switch });
        }
        let changes = run.chain.restored(Vec::new(), now_ms);
        run.put(changes, data_plane);
    }

    /// The data plane has not installed a flow.
    pub fn forget_flow(&mut self, switch: SwitchId, id: FlowId) {
        if let Some(run) = self.by_id(switch) {
            run.chain.refused(id);
        }
    }

    /// Decides about a packet.
    pub fn decide(&mut self, upcall: Upcall, data_plane: &mut DataPlane, now_ms: u64) {
        let Upcall { id, key, packet, .. } = upcall;
        let discard = |reason| Request::Discard { upcall: id, reason };
        let UpcallCause::Miss { stage } = upcall.cause else {
            // A copy, for which no provider of ours asks.
            data_plane.client.end_upcall(discard(DropReason::NoAction));
            return;
        };
        let Some(run) = self.by_id(upcall.switch) else {
            data_plane.client.end_upcall(discard(DropReason::PortRemoved));
            return;
        };
        let outcome = run.chain.missed(stage, &key, now_ms);
        data_plane.client.end_upcall(match outcome.verdict {
            Ok(actions) => Request::Execute(Execute {
                upcall: Some(id),
                in_port: PortId(key.in_port()),
                stage: outcome.stage,
                recirc_id: key.recirc_id(),
                dp_hash: key.dp_hash(),
                no_ethernet: key.no_ethernet() == 1,
                actions,
                packet,
            }),
            Err(reason) => discard(reason),
        });
        run.put(outcome.changes, data_plane);
    }

    /// A data plane is there, which was not asked for flows.
    pub fn begin_polling(&mut self, now_ms: u64) {
        (self.polled_ms, self.polls) = (now_ms, 0);
    }

    /// When stations or flows have to be examined next, with or without a data plane; `None` if there are
    /// none.
    pub fn ageing_deadline_ms(&self, connected: bool) -> Option<u64> {
        let stations = self.runs.values().filter(|run| run.ages_alone(connected));
        let stations = stations.filter_map(|run| run.chain.due_ms()).min();
        let shortest = self.runs.values().filter_map(|run| run.chain.idle_ms()).min();
        let flows = shortest
            .filter(|_| connected && self.polls == 0)
            .map(|shortest| match self.is_hurried {
                true => self.polled_ms + POLL_MIN_MS,
                false => self.polled_ms + (shortest / 4).clamp(POLL_MIN_MS, POLL_MAX_MS),
            });
        [stations, flows].into_iter().flatten().min()
    }

    /// Forgets stations of idle switches, and asks for the use of flows, if either is due.
    pub fn age(&mut self, data_plane: &mut DataPlane, now_ms: u64) {
        let connected = data_plane.client.is_connected();
        let deadline_ms = self.ageing_deadline_ms(connected);
        if deadline_ms.is_none_or(|deadline_ms| deadline_ms > now_ms) {
            return;
        }
        for run in self.runs.values_mut().filter(|run| run.ages_alone(connected)) {
            let changes = run.chain.due(now_ms);
            run.put(changes, data_plane);
        }
        if !connected || self.polls > 0 || now_ms < self.polled_ms + POLL_MIN_MS {
            return;
        }
        self.polled_ms = now_ms;
        let busy = self.runs.values().filter(|run| run.chain.flow_count() > 0);
        for switch in busy.filter_map(|run| run.id) {
            self.polls += 1;
            let purpose = Pending::PollFlows(switch);
            let _ = data_plane.client.ask_for_flows(switch, Detail::Terse, purpose);
        }
    }

    /// The data plane has said how its flows of a switch are used.
    pub fn polled(
        &mut self,
        switch: SwitchId,
        flows: &[(FlowId, FlowStats)],
        data_plane: &mut DataPlane,
        now_ms: u64,
    ) {
        self.polls = self.polls.saturating_sub(1);
        if let Some(run) = self.by_id(switch) {
            let changes = run.chain.used(flows, now_ms);
            run.put(changes, data_plane);
        }
    }

    /// A port may be connected now and may not have been, or the other way round.
    pub fn port_changed(&mut self, switch: &str, port: PortId) {
        if let Some(run) = self.runs.get_mut(switch) {
            run.changed.add(port);
        }
    }

    /// When stale flows have to be re-examined next; `None` if there are none.
    pub fn stale_deadline_ms(&self) -> Option<u64> {
        let busy = self.runs.values().filter(|run| run.has_stale());
        busy.map(|run| run.pace.due_ms()).min()
    }

    /// Re-examines stale flows, a piece for each switch whose time has come.
    pub fn refresh_stale(
        &mut self,
        readiness: impl Fn(PortId) -> Readiness,
        data_plane: &mut DataPlane,
        now_ms: u64,
    ) {
        for run in self.runs.values_mut().filter(|run| run.has_stale()) {
            if !run.pace.is_due(now_ms) {
                continue;
            }
            let start = Instant::now();
            if let Some(port) = run.changed.take() {
                run.l2_mut().set_readiness(port, readiness(port));
            }
            let changes = run.l2_mut().refresh_stale(PIECE, now_ms);
            run.put(changes, data_plane);
            run.pace.worked(start.elapsed(), now_ms);
        }
    }
}

impl SwitchRun {
    /// The learning switch, which fills the forward stage.
    pub fn l2(&self) -> &LearningSwitch {
        self.chain.forward()
    }

    /// The learning switch, to change its rules.
    pub fn l2_mut(&mut self) -> &mut LearningSwitch {
        self.chain.forward_mut()
    }

    /// Makes changes to its flows.
    fn put(&self, changes: Vec<FlowChange>, data_plane: &mut DataPlane) {
        if let Some(id) = self.id {
            data_plane.put_flows(id, changes);
        }
    }

    /// Whether its stations can age without asking: no flow says that they are alive.
    fn ages_alone(&self, connected: bool) -> bool {
        !connected || self.chain.flow_count() == 0
    }

    fn has_stale(&self) -> bool {
        !self.changed.is_empty() || self.l2().has_stale()
    }
}
