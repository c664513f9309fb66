//! Applies changes, without any decisions of its own.

use crate::control::Control;
use crate::l2::PortRules;
use crate::l2::storm::StormLimits;
use crate::plan::Change;
use crate::port::PortRun;
use crate::refusal::Problem;
use crate::state::{DesiredPort, Link};
use control_protocol::data_plane::Request;
use flow::{ControllerId, PortId};
use std::collections::BTreeSet;

/// Changes that are told to the log one by one: more would hide other lines.
const MAX_TOLD: usize = 50;

impl Control {
    /// Applies changes to what runs. `self.state` is already the goal.
    pub fn apply(&mut self, changes: &[Change]) {
        let mut touched = BTreeSet::new();
        tell(changes);
        for change in changes {
            match change {
                Change::DelPort(name) => self.remove_port(name),
                Change::ReplacePort(replaced) => self.remove_port(&replaced.port),
                Change::DelSwitch(name) => self.switches.remove(name, &mut self.data_plane),
                Change::AddSwitch(name, switch) => {
                    self.switches.add(name, switch.rules());
                    self.number();
                }
                Change::SetSwitch(name, switch) => {
                    if let Some(run) = self.switches.runs.get_mut(name) {
                        run.l2_mut().set_rules(switch.rules());
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
                // Policies and P4 switches follow, as a whole.
                Change::Policy(_) | Change::P4(_) => {}
                Change::SetPort(name, port) => {
                    self.change_port(name, port);
                    touched.insert(port.switch.clone());
                }
            }
        }
        self.policies_changed();
        self.switches.divide_limits(self.ports.len());
        for name in touched {
            self.refresh_switch(&name);
        }
    }

    /// Removes a port's flows first, so that no flow leads to a port that does not exist.
    fn remove_port(&mut self, name: &str) {
        let Some(run) = self.ports.remove(name) else {
            return;
        };
        if let Some(id) = run.id {
            self.vcpus.removed(id);
            self.names.remove(&id);
            self.policies.forget_port(id, &mut self.data_plane);
            self.switches.remove_port(id);
            self.refresh_switch(&run.wanted.switch);
        }
        self.close_link(&run);
        let (added, storm) = (run.id.filter(|_| run.added), run.wanted.rules.storm);
        // Closes its listening socket. The last process to do so may have to wait for files that were sent to
        // it.
        drop(run);
        if let Some(id) = added {
            self.data_plane.client.tell(Request::PortDel { port: id });
            self.data_plane
                .change_storm_limits(id, &storm, &StormLimits::default());
        }
    }

    fn change_port(&mut self, name: &str, port: &DesiredPort) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let before = std::mem::replace(&mut run.wanted, port.clone());
        let (rates_before, fast_before) = (before.rates, before.fast_path);
        let changed = (before.mtu, before.miss_rate) != (port.mtu, port.miss_rate);
        if let (Some(id), true, true) = (run.id, run.added, changed) {
            self.data_plane.client.tell(Request::PortSet {
                port: id,
                mtu: port.mtu,
                miss_rate: port.miss_rate,
            });
        }
        if let (Some(id), true) = (run.id, run.added) {
            let (before, after) = (&before.rules.storm, &port.rules.storm);
            self.data_plane.change_storm_limits(id, before, after);
        }
        if let (Some(id), true, true) = (run.id, run.added, rates_before != port.rates) {
            self.data_plane.change_rates(id, port.rates);
        }
        if let (Some(id), Link::Interface(spec)) = (run.id, &port.link)
            && before.link != port.link
        {
            self.driver.change(id, spec.clone());
        }
        if fast_before != port.fast_path {
            self.adjust_queue(name);
        }
        self.update_rules(name);
    }

    /// Gives numbers to switches and ports that have none, once the numbers in use are known.
    pub fn number(&mut self) {
        if !self.data_plane.numbered {
            return;
        }
        self.switches.number();
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
        let (Some(id), Some(switch)) = (run.id, self.switches.runs.get_mut(&port.switch)) else {
            return;
        };
        let rules = PortRules {
            readiness: run.readiness(),
            ..port.rules.clone()
        };
        switch.chain.add_port(id);
        switch.l2_mut().set_port(id, rules);
    }

    /// Re-examines a switch's flows.
    pub fn refresh_switch(&mut self, name: &str) {
        let now_ms = self.now_ms();
        self.switches.refresh(name, &mut self.data_plane, now_ms);
    }
}

/// Logs changes, the first of many for everybody.
fn tell(changes: &[Change]) {
    if changes.len() > MAX_TOLD {
        log::info!("{} changes, of which these are the first:", changes.len());
    }
    let (first, others) = changes.split_at(changes.len().min(MAX_TOLD));
    first.iter().for_each(|change| match change {
        // Each batch of a client of P4Runtime is one.
        Change::P4(text) => telemetry::limited!(log::Level::Info, "{text}"),
        change => log::info!("{change}"),
    });
    others.iter().for_each(|change| log::debug!("{change}"));
}
