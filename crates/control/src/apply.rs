//! Applies changes, without any decisions of its own.

use crate::l2::LearningSwitch;
use crate::links::PortRun;
use crate::plan::Change;
use crate::process::{Control, SwitchRun};
use crate::refusal::Problem;
use crate::state::DesiredPort;
use crate::ups::Ups;
use control_protocol::data_plane::{PortState, Request};
use flow::{ControllerId, PortId, SwitchId};
use std::collections::BTreeSet;

/// Flows, divided among the ports.
const FLOWS: usize = 32_768;

/// Flows re-examined per second because stations move, divided among the ports.
const MOVED_FLOWS: u64 = 16_384;

impl Control {
    /// Applies changes to what runs. `self.state` is already the goal.
    pub fn apply(&mut self, changes: &[Change]) {
        let mut touched = BTreeSet::new();
        for change in changes {
            log::info!("{change}");
            match change {
                Change::DelPort(name) => self.remove_port(name),
                Change::DelSwitch(name) => {
                    if let Some(switch) = self.switches.remove(name).and_then(|run| run.id) {
                        self.ask_quietly(Request::FlowFlush { switch });
                    }
                }
                Change::AddSwitch(name, switch) => {
                    let l2 = LearningSwitch::new(switch.rules());
                    self.switches.insert(
                        name.clone(),
                        SwitchRun {
                            id: None,
                            l2,
                            ups: Ups::default(),
                        },
                    );
                    self.number();
                }
                Change::SetSwitch(name, switch) => {
                    if let Some(run) = self.switches.get_mut(name) {
                        run.l2.set_rules(switch.rules());
                    }
                    touched.insert(name.clone());
                }
                Change::AddPort(name, port) => {
                    self.ports.insert(name.clone(), PortRun::new(port.clone()));
                    self.number();
                    // A failure is noted in the port's entry, and the attempt is repeated.
                    self.add_port(name);
                    touched.insert(port.switch.clone());
                }
                Change::SetPort(name, port) => {
                    self.change_port(name, port);
                    touched.insert(port.switch.clone());
                }
            }
        }
        let ports = self.ports.len().max(1);
        for run in self.switches.values_mut() {
            run.l2.set_flow_limit((FLOWS / ports).clamp(64, 4096));
            run.l2
                .set_move_limit((MOVED_FLOWS / ports as u64).clamp(64, 2048));
        }
        for name in touched {
            self.refresh_switch(&name);
        }
    }

    /// Removes a port's flows first, so that no flow leads to a port that does not exist.
    fn remove_port(&mut self, name: &str) {
        let Some(mut run) = self.ports.remove(name) else {
            return;
        };
        self.forget_threads(run.guest.forget());
        if let Some(id) = run.id {
            self.names.remove(&id);
            for switch in self.switches.values_mut() {
                switch.l2.remove_port(id);
            }
            self.refresh_switch(&run.wanted.switch);
            if run.added {
                self.ask_quietly(Request::PortDel { port: id });
            }
        }
        self.close_link(&run);
    }

    fn change_port(&mut self, name: &str, port: &DesiredPort) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let before = std::mem::replace(&mut run.wanted, port.clone());
        let changed = (before.mtu, before.miss_rate) != (port.mtu, port.miss_rate);
        if let (Some(id), true, true) = (run.id, run.added, changed) {
            self.ask_quietly(Request::PortSet {
                port: id,
                mtu: port.mtu,
                miss_rate: port.miss_rate,
            });
        }
        self.update_rules(name);
    }

    /// Gives numbers to switches and ports that have none, once the numbers in use are known.
    pub fn number(&mut self) {
        if !self.numbered {
            return;
        }
        let taken: BTreeSet<u32> = self
            .switches
            .values()
            .filter_map(|run| run.id)
            .map(|id| id.0)
            .collect();
        let mut free = (1..).filter(|number| !taken.contains(number));
        for run in self.switches.values_mut().filter(|run| run.id.is_none()) {
            run.id = free.next().map(SwitchId);
        }
        let mut taken = self.names.clone();
        let mut next = 1;
        let mut named = Vec::new();
        for (name, run) in self.ports.iter_mut().filter(|(_, run)| run.id.is_none()) {
            while taken.contains_key(&PortId(next)) {
                next += 1;
            }
            if !ControllerId::BUILT_IN.owns(PortId(next)) {
                run.problem = Some(Problem::NoNumber(ControllerId::PORTS - 1));
                continue;
            }
            run.id = Some(PortId(next));
            taken.insert(PortId(next), name.clone());
            named.push(name.clone());
        }
        self.names = taken;
        for name in named {
            self.update_rules(&name);
        }
    }

    /// Updates a port's rules in the learning switch, and whether the port is connected.
    pub fn update_rules(&mut self, name: &str) {
        let Some(run) = self.ports.get(name) else { return };
        let port = &run.wanted;
        let (Some(id), Some(switch)) = (run.id, self.switches.get_mut(&port.switch)) else {
            return;
        };
        let up = run.state != PortState::Disconnected;
        switch.l2.set_port(
            id,
            crate::l2::PortRules {
                up,
                ..port.rules.clone()
            },
        );
    }

    /// Re-examines a switch's flows.
    pub fn refresh_switch(&mut self, name: &str) {
        let now_ms = self.now_ms();
        let Some(run) = self.switches.get_mut(name) else {
            return;
        };
        let changes = run.l2.refresh(now_ms);
        self.put_flows(name, changes);
    }
}
