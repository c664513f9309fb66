//! Compares the ports and flows of a newly connected data plane with the desired state.
//!
//! It makes no difference whether the data plane or the control process was restarted. Ports that are as they should be stay,
//! and so do flows that would be decided the same way again; guests notice nothing.

use crate::answers::Pending;
use crate::links::PortRun;
use crate::process::Control;
use control_protocol::data_plane::{Detail, PortInfo, PortSpec, PortState, Request};
use flow::{ControllerId, Flow, FlowStats, SwitchId};
use std::collections::BTreeSet;

impl Control {
    /// Compares the data plane's ports with ours.
    pub fn sync_ports(&mut self, listed: Vec<PortInfo>) {
        self.adopt_numbers(&listed);
        self.numbered = true;
        self.number();
        let mut foreign: BTreeSet<SwitchId> = listed.iter().map(|info| info.spec.switch).collect();
        for info in listed {
            let name = info.spec.name.clone();
            let spec = self.port_spec(&name);
            let same = spec.as_ref().is_some_and(|spec| {
                let (mtu, miss_rate) = (info.spec.mtu, info.spec.miss_rate);
                let changed = PortSpec {
                    mtu,
                    miss_rate,
                    ..spec.clone()
                };
                changed == info.spec
            });
            if !same {
                self.ask_quietly(Request::PortDel { port: info.spec.port });
                if let Some(run) = self.ports.get_mut(&name) {
                    run.clear_the_way();
                }
                continue;
            }
            if let Some(spec) = spec.filter(|spec| *spec != info.spec) {
                self.ask_quietly(Request::PortSet {
                    port: spec.port,
                    mtu: spec.mtu,
                    miss_rate: spec.miss_rate,
                });
            }
            let now_ms = self.now_ms();
            if let Some(run) = self.ports.get_mut(&name) {
                run.guest.look_again();
                run.adopt(info.state, info.peer, now_ms);
            }
            self.guest_changed(info.spec.port);
        }
        let missing: Vec<String> = self
            .ports
            .iter()
            .filter(|(_, run)| !run.added)
            .map(|(name, _)| name.clone())
            .collect();
        for name in missing {
            // A failure is noted in the port's entry, and the attempt is repeated.
            self.add_port(&name);
        }
        let names: Vec<String> = self.ports.keys().cloned().collect();
        for name in names {
            self.update_rules(&name);
        }
        self.compare_interfaces();
        let ids: Vec<SwitchId> = self.switches.values().filter_map(|run| run.id).collect();
        foreign.retain(|id| !ids.contains(id));
        for switch in foreign {
            self.ask_quietly(Request::FlowFlush { switch });
        }
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.restoring = Some(ids.len());
        }
        for switch in ids {
            self.ask(
                Request::FlowList {
                    switch,
                    after: None,
                    detail: Detail::Full,
                },
                Vec::new(),
                Pending::SyncFlows(switch, Vec::new()),
            );
        }
    }

    /// Numbers that ports and switches of these names have already.
    fn adopt_numbers(&mut self, listed: &[PortInfo]) {
        for info in listed {
            let spec = &info.spec;
            let Some(run) = self.ports.get_mut(&spec.name) else {
                continue;
            };
            if run.id.is_none()
                && ControllerId::BUILT_IN.owns(spec.port)
                && !self.names.contains_key(&spec.port)
            {
                run.id = Some(spec.port);
                self.names.insert(spec.port, spec.name.clone());
            }
            let free = !self
                .switches
                .values()
                .any(|switch| switch.id == Some(spec.switch));
            if let Some(switch) = self.switches.get_mut(&run.wanted.switch)
                && switch.id.is_none()
                && free
            {
                switch.id = Some(spec.switch);
            }
        }
    }

    pub fn sync_flows(&mut self, switch: SwitchId, flows: Vec<(Flow, FlowStats)>) {
        let now_ms = self.now_ms();
        if let Some(run) = self.switch_by_id(switch) {
            run.l2.forget_flows();
            let count = flows.len();
            let changes = run.l2.restore(flows, now_ms);
            log::info!(
                "switch {switch}: {count} flows taken over, {} changed",
                changes.len()
            );
            self.put_flows_of(switch, changes);
        }
        let Some(data_plane) = &mut self.data_plane else {
            return;
        };
        let left = data_plane.restoring.unwrap_or(0).saturating_sub(1);
        data_plane.restoring = Some(left);
        if left == 0 {
            for upcall in std::mem::take(&mut data_plane.held) {
                self.upcall(upcall);
            }
        }
    }
}

impl PortRun {
    /// The data plane has this port already.
    fn adopt(&mut self, state: PortState, peer: Option<u32>, now_ms: u64) {
        self.added = true;
        self.state = state;
        self.peer = peer;
        // An earlier attempt failed because the data plane had the port already.
        self.problem = None;
        // Whether it has to be connected is checked when the attempt is due.
        self.due_ms.get_or_insert(now_ms);
    }
}
