//! The kernel path in a controller's requests: counters are complete before they are told, copies of
//! decisions are as ports are before a change is answered, and users learn why packets are not on it.

use crate::kernel_path::{KernelPath, Number, key_of, obstacle, of_shape};
use crate::port::Port;
use crate::requests::Serving;
use crate::state::Ports;
use classifier::FlowEntry;
use control_protocol::data_plane::{KernelPathState, Request, TraceStep, Way};
use flow::{Filters, FlowId, PortCounters, PortId, Stage, SwitchId};
use std::sync::Arc;

/// The port of which a request may change how its packets go.
pub(crate) fn changed_port(request: &Request) -> Option<PortId> {
    match request {
        Request::PortDel { port }
        | Request::PortSet { port, .. }
        | Request::PortRates { port, .. }
        | Request::PortClasses { port, .. }
        | Request::PortEnable { port, .. }
        | Request::PortMirrors { port, .. }
        | Request::PortFilters { port, .. }
        | Request::Capture { port, .. } => Some(*port),
        _ => None,
    }
}

impl Serving<'_> {
    fn kernel_path(&self) -> Option<&Arc<KernelPath>> {
        self.engine.datapath.kernel_path.get()
    }

    /// Has counters be complete that a request asks for. Pages after the first one need no further look.
    pub fn flush_kernel_path(&self, request: &Request) {
        let Some(path) = self.kernel_path() else { return };
        match request {
            Request::PortList | Request::Counters | Request::FlowList { after: None, .. } => path.flush(),
            Request::PortGet { port } => path.flush_port(*port),
            Request::FlowGet { switch, id } => {
                if let Some(entry) = self.flow_entry(*switch, *id) {
                    path.flush_decision(&entry.decision);
                }
            }
            _ => {}
        }
    }

    /// A flow of the controller's.
    pub fn flow_entry(&self, switch: SwitchId, id: FlowId) -> Option<Arc<FlowEntry>> {
        let switch = self.controller.switches.get(switch)?;
        switch.flows.lock().get(id).cloned()
    }

    /// Adds what the kernel has forwarded to what a port has counted.
    pub fn tell_kernel_path(&self, port: &Port, counters: &mut PortCounters) {
        if let Some(path) = self.kernel_path().filter(|_| port.is_veth()) {
            path.counts_of(port.id()).tell(counters);
        }
    }

    /// What the kernel forwards of a port's packets.
    pub fn kernel_path_of(&self, port: &Port) -> KernelPathState {
        let Some(path) = self.kernel_path() else {
            return KernelPathState {
                obstacle: Some(NO_KERNEL.into()),
                ..KernelPathState::default()
            };
        };
        let Number { in_force, waiting } = path.copies_from(port.id());
        let longest = path.counts_of(port.id()).longest_wait;
        KernelPathState {
            flows: in_force,
            waiting,
            obstacle: policies(port).or_else(|| port.obstacle()).map(String::from),
            longest_wait_ns: u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// By which way packets of a flow go, for flows of veth pairs.
    pub fn way(&self, entry: &FlowEntry, ports: &Ports) -> Option<Way> {
        let flow = &entry.flow;
        let names_port = flow.stage == Stage::Forward && flow.mask.0.in_port() == u32::MAX;
        let from = ports.get(PortId(flow.key.in_port()))?;
        if !names_port || !from.is_veth() {
            return None;
        }
        let reason = self.reason(entry, from, ports);
        Some(reason.map_or(Way::Kernel, |reason| Way::DataPlane(reason.into())))
    }

    /// Why packets of a flow go through the data plane.
    fn reason(&self, entry: &FlowEntry, from: &Port, ports: &Ports) -> Option<&'static str> {
        let Some(path) = self.kernel_path() else {
            return Some(NO_KERNEL);
        };
        if let Some(reason) = of_shape(entry) {
            return Some(reason);
        }
        let to = entry.program().plain().and_then(|to| ports.get(to));
        let Some(to) = to.filter(|to| to.is_veth() && to.is_beside(from)) else {
            return Some("it does not lead to a port of type veth");
        };
        let policies = policies(from).or_else(|| policies(to));
        if let Some(reason) = policies.or_else(|| obstacle(from, to)) {
            return Some(reason);
        }
        match path.copies_of(&entry.decision) {
            Number { in_force: 1.., .. } => None,
            Number { waiting: 1.., .. } => Some("it waits for a gap between packets"),
            Number { .. } => {
                Some("no packet has been looked up since, or the kernel's table has no room for it")
            }
        }
    }

    /// By which way a traced packet goes, if it came from a veth pair.
    pub fn way_of_packet(&self, port: &Port, frame_len: usize, steps: &[TraceStep]) -> Option<TraceStep> {
        let key = steps.iter().find_map(|step| match step {
            TraceStep::Parsed(key) => Some(key),
            _ => None,
        })?;
        let flow = steps.iter().find_map(|step| match step {
            TraceStep::Matched(flow) => Some(flow),
            _ => None,
        });
        if !port.is_veth() {
            return None;
        }
        let copy = self.kernel_path().and_then(|path| path.copy_for(&key_of(key)));
        let way = match copy.filter(|_| key.vlan_tci() == 0) {
            Some((true, longest)) if frame_len <= longest as usize => Way::Kernel,
            Some((true, _)) => Way::DataPlane("it is longer than the receiver's MTU".into()),
            _ => {
                let entry = flow.and_then(|flow| self.flow_entry(flow.switch, flow.id));
                let ports = self.engine.datapath.ports();
                let of_flow = entry.and_then(|entry| self.way(&entry, &ports));
                let other = policies(port).unwrap_or("no flow matches it");
                match of_flow {
                    Some(Way::Kernel) => Way::DataPlane("nothing was decided about its addresses yet".into()),
                    Some(way) => way,
                    None => Way::DataPlane(other.into()),
                }
            }
        };
        Some(TraceStep::Way(way))
    }
}

const NO_KERNEL: &str = "the kernel cannot (Linux 6.6)";

fn policies(port: &Port) -> Option<&'static str> {
    let filters = port.switch.flows.lock().filters(port.id());
    (filters != Filters::default()).then_some("it has policies")
}
