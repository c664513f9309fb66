//! Filters of uplinks' queues: for which stations frames come by an uplink without its forwarder.
//!
//! The rates of flows are known anyway, since flows are asked for their last use. Those to the same station
//! are added up, and `accelerator`'s `learning` says which stations are worth a filter. So a filter ends
//! with its flows: when the station moves, its port goes, or rules change.
//!
//! | a filter is | first | then |
//! |---|---|---|
//! | programmed | The data plane has packets of the queue wait for a mark in the forwarder's ring. | The driver domain programs it, and has the ring marked. |
//! | removed | The data plane has the queue go before the ring for a while. | The driver domain removes it. |
//!
//! Stations are those to which a flow sends untagged frames of the uplink unchanged or changed, at one or
//! more other ports: never groups, unknown ones, or stations behind the uplink. A filter that is wrong costs
//! time, as frames from the queue are decided about as others are.

use crate::control::Control;
use crate::filters::{Filters, Mac, bytes_of, number_of};
use crate::l2::LearningSwitch;
use crate::pending::Pending;
use accelerator::Change;
use control_protocol::data_plane::{Request, Steering};
use flow::{Action, FlowId, FlowStats, PortId, SwitchId, VLAN_PRESENT};
use std::collections::BTreeMap;

/// Frames that flows from a port have had for stations at other ports, by station, untagged.
fn frames_for(switch: &LearningSwitch, port: PortId, flows: &[(FlowId, FlowStats)]) -> BTreeMap<Mac, u64> {
    let mut frames = BTreeMap::new();
    for (id, stats) in flows {
        let Some((key, actions)) = switch.installed(*id) else {
            continue;
        };
        let is_group = key.eth_dst() >> 40 & 1 == 1;
        let to_others = actions
            .iter()
            .any(|action| matches!(action, Action::Output(to) if *to != port));
        if key.in_port() == port.0 && !is_group && to_others && key.vlan_tci() & VLAN_PRESENT == 0 {
            *frames.entry(key.eth_dst()).or_default() += stats.packets;
        }
    }
    frames
}

impl Control {
    /// The data plane has a queue by which an uplink's packets come, without filters.
    pub fn begin_steering(&mut self, name: &str) {
        if let Some(run) = self.ports.get_mut(name) {
            let counts = run.steering.as_ref().map(|filters| filters.counts);
            let mut filters = Box::new(Filters::default());
            filters.counts = counts.unwrap_or_default();
            run.steering = Some(filters);
        }
        self.hurry();
    }

    /// An uplink has no queue any more by which packets come, or is to have none.
    pub fn end_steering(&mut self, name: &str) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let (filters, id) = (run.steering.take(), run.id);
        if let (Some(filters), Some(port)) = (filters, id) {
            for mac in filters.asked {
                self.driver.steer(port, bytes_of(mac), None);
            }
        }
        self.hurry();
    }

    /// Flows are asked for more often while filters are learned.
    fn hurry(&mut self) {
        self.switches.is_hurried = self.ports.values().any(|run| run.steering.is_some());
    }

    /// Learns from how flows of a switch were used for which stations its uplinks need filters.
    pub fn learn_filters(&mut self, switch: SwitchId, flows: &[(FlowId, FlowStats)]) {
        let now_ms = self.now_ms();
        let Some(name) = self.switches.name(switch).cloned() else {
            return;
        };
        let Some(l2) = self.switches.runs.get(&name).map(|run| run.l2()) else {
            return;
        };
        let mut all = Vec::new();
        let of_switch = self.ports.iter_mut().filter(|(_, run)| run.wanted.switch == name);
        for (port_name, run) in of_switch {
            if let (Some(filters), Some(port)) = (&mut run.steering, run.id) {
                let frames = frames_for(l2, port, flows);
                let changes = filters.learner.look(&frames, now_ms);
                all.extend(
                    changes
                        .into_iter()
                        .map(|change| (port_name.clone(), port, change)),
                );
            }
        }
        for (port_name, port, change) in all {
            self.change_filter(&port_name, port, change);
        }
    }

    fn change_filter(&mut self, name: &str, port: PortId, change: Change<Mac>) {
        let run = self.ports.get_mut(name);
        let Some(filters) = run.and_then(|run| run.steering.as_mut()) else {
            return;
        };
        match change {
            Change::Program(mac) => {
                let mark = filters.next_mark();
                filters.asked.insert(mac);
                let change = Steering::Arm(mark);
                let pending = Pending::Steering(name.into(), mac, mark);
                self.data_plane
                    .ask(Request::PortSteering { port, change }, Vec::new(), pending);
            }
            Change::Evict(mac) | Change::Remove(mac) => {
                let is_evicted = matches!(change, Change::Evict(_));
                filters.counts.evicted += u64::from(is_evicted);
                filters.counts.removed += u64::from(!is_evicted);
                filters.asked.remove(&mac);
                filters.programmed.remove(&mac);
                let change = Steering::Leave;
                self.data_plane
                    .client
                    .tell(Request::PortSteering { port, change });
                self.driver.steer(port, bytes_of(mac), None);
            }
        }
    }

    /// The data plane waits for a mark, so that a filter can be programmed, or has refused to.
    pub fn on_armed(&mut self, name: &str, mac: u64, mark: u16, is_armed: bool) {
        let now_ms = self.now_ms();
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let (Some(filters), Some(port)) = (&mut run.steering, run.id) else {
            return;
        };
        if !filters.asked.contains(&mac) {
            return;
        }
        if is_armed {
            self.driver.steer(port, bytes_of(mac), Some(mark));
        } else {
            let reason = "the data plane does not answer".into();
            filters.on_steered(mac, true, Err(reason), now_ms);
        }
    }

    /// The driver domain has changed a filter, or not.
    pub fn on_steered(&mut self, port: PortId, mac: [u8; 6], is_on: bool, result: Result<(), String>) {
        let now_ms = self.now_ms();
        let name = self.names.get(&port);
        let run = name.and_then(|name| self.ports.get_mut(name));
        if let Some(filters) = run.and_then(|run| run.steering.as_mut()) {
            filters.on_steered(number_of(mac), is_on, result, now_ms);
        }
    }
}
