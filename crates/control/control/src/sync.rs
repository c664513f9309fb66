//! Compares the ports and flows of a newly connected data plane with the desired state.
//!
//! There is no difference whether the data plane or the control process was restarted. Ports that are as they
//! should be stay, and so do flows that would be decided the same way again; guests notice nothing.

use crate::control::Control;
use crate::l2::storm::StormLimits;
use crate::pending::Pending;
use control_protocol::data_plane::{Detail, PortInfo, PortSpec, Request};
use flow::{ControllerId, SwitchId};
use std::collections::BTreeSet;

impl Control {
    /// Compares the data plane's ports with ours, then its flows.
    pub fn sync_ports(&mut self, listed: Vec<PortInfo>) {
        self.adopt_numbers(&listed);
        self.data_plane.numbered = true;
        self.number();
        let switches: BTreeSet<SwitchId> = listed.iter().map(|info| info.spec.switch).collect();
        for info in listed {
            self.sync_port(info);
        }
        self.add_missing_ports();
        let names: Vec<String> = self.ports.keys().cloned().collect();
        for name in names {
            self.update_rules(&name);
        }
        self.policies_changed();
        self.bind_ports();
        self.advance_p4();
        self.compare_interfaces();
        self.sync_switches(switches);
    }

    /// Keeps a port of the data plane that is as it should be or can be changed to that, and deletes another.
    fn sync_port(&mut self, info: PortInfo) {
        let name = info.spec.name.clone();
        let spec = self.port_spec(&name);
        let Some(spec) = spec.filter(|spec| can_become(&info.spec, spec)) else {
            self.data_plane
                .client
                .tell(Request::PortDel { port: info.spec.port });
            if let Some(run) = self.ports.get_mut(&name) {
                run.clear_the_way();
            }
            return;
        };
        self.adjust_port(&info.spec, spec);
        let now_ms = self.now_ms();
        if let Some(run) = self.ports.get_mut(&name) {
            let storm = &run.wanted.rules.storm;
            self.data_plane
                .change_storm_limits(info.spec.port, &StormLimits::default(), storm);
            self.data_plane.change_rates(info.spec.port, run.wanted.rates);
            // Filters that differ follow when their lists are there.
            run.filters = info.spec.filters;
            run.mirrors = info.spec.mirrors;
            run.p4 = info.spec.p4;
            run.shortfall = info.shortfall;
            if info.device_queue.is_some() && !run.wanted.fast_path {
                self.data_plane.client.tell(Request::PortQueue {
                    port: info.spec.port,
                    header_len: None,
                    receives: None,
                });
            }
            run.adopt(info.state, info.peer, now_ms);
            self.vcpus
                .on_port(info.spec.port, run.is_interface(), &run.state, run.peer);
        }
    }

    /// Gives a port of the data plane what can be changed while the port stands.
    fn adjust_port(&mut self, is: &PortSpec, wanted: PortSpec) {
        if wanted == *is {
            return;
        }
        let PortSpec {
            port, mtu, miss_rate, ..
        } = wanted;
        self.data_plane
            .client
            .tell(Request::PortSet { port, mtu, miss_rate });
    }

    fn add_missing_ports(&mut self) {
        let missing = self.ports.iter().filter(|(_, run)| !run.added);
        let missing: Vec<String> = missing.map(|(name, _)| name.clone()).collect();
        for name in missing {
            // A failure is noted in the port's entry, and the attempt is repeated.
            self.add_port(&name);
        }
    }

    /// Removes the flows of switches that we do not have, and compares those of our own.
    fn sync_switches(&mut self, listed: BTreeSet<SwitchId>) {
        let ids: Vec<SwitchId> = self.switches.ids().collect();
        for switch in listed.into_iter().filter(|id| !ids.contains(id)) {
            self.data_plane.client.tell(Request::FlowFlush { switch });
        }
        self.data_plane.client.compare(ids.len());
        for switch in ids {
            let purpose = Pending::SyncFlows(switch);
            let _ = self
                .data_plane
                .client
                .ask_for_flows(switch, Detail::Full, purpose);
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
            let free = self.switches.name(spec.switch).is_none();
            if let Some(switch) = self.switches.runs.get_mut(&run.wanted.switch)
                && switch.id.is_none()
                && free
            {
                switch.id = Some(spec.switch);
            }
        }
    }
}

/// Whether a port can be changed to what is wanted while it stands.
fn can_become(is: &PortSpec, wanted: &PortSpec) -> bool {
    let changed = PortSpec {
        mtu: is.mtu,
        miss_rate: is.miss_rate,
        filters: is.filters,
        mirrors: is.mirrors.clone(),
        p4: is.p4.clone(),
        ..wanted.clone()
    };
    changed == *is
}
