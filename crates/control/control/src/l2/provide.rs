//! The learning switch as the provider of a switch's forward stage.

use super::switch::LearningSwitch;
use crate::provider::{Asked, FlowChange, Provider, Verdict};
use flow::{Flow, FlowId, FlowStats, PortId, ProviderId};

impl Provider for LearningSwitch {
    fn id(&self) -> ProviderId {
        ProviderId::LEARNING_SWITCH
    }

    fn missed(&mut self, asked: &Asked, now_ms: u64) -> (Verdict, Vec<FlowChange>) {
        let (decision, changes) = self.packet_from(&asked.key, asked.lacks_flow, now_ms);
        (decision.verdict, changes)
    }

    fn preview(&self, asked: &Asked) -> Verdict {
        self.decide(&asked.key).verdict
    }

    fn used(&mut self, flows: &[(FlowId, FlowStats)], now_ms: u64) -> Vec<FlowChange> {
        self.observe(flows.iter().map(|(id, stats)| (*id, stats)), now_ms);
        self.leave_silent_places();
        self.age(now_ms)
    }

    fn restored(&mut self, flows: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange> {
        self.forget_flows(now_ms);
        self.restore(flows, now_ms)
    }

    fn refused(&mut self, id: FlowId) {
        self.forget_flow(id);
    }

    fn due(&mut self, now_ms: u64) -> Vec<FlowChange> {
        self.age(now_ms)
    }

    fn due_ms(&self) -> Option<u64> {
        self.next_ageing_ms()
    }

    fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange> {
        self.refresh(now_ms)
    }

    fn remove_port(&mut self, port: PortId) {
        self.remove_port(port);
    }

    fn limit_flows(&mut self, per_port: usize) {
        self.set_flow_limit(per_port);
    }

    fn flow_count(&self) -> usize {
        self.flow_count()
    }

    fn idle_ms(&self) -> u64 {
        self.rules().ageing_ms
    }
}
