//! A data plane that forwards nothing, for tests: it keeps what it is given and shows it.

use crate::datapath::{
    Datapath, DatapathId, DatapathStats, Errno, Execute, Flow, FlowId, FlowSpec, FlowStats, MeterSpec,
    MeterStats, PortNo, PortSpec, PortStats, PutMode, Upcall,
};
use std::collections::{BTreeMap, VecDeque};

/// Flows of a datapath.
const MAX_FLOWS: usize = 200_000;
/// Meters of a datapath.
const MAX_METERS: usize = 4_096;
/// Packets that are remembered.
const MAX_EXECUTED: usize = 1_024;

#[derive(Debug, Default)]
struct Plane {
    ports: BTreeMap<PortNo, (PortSpec, PortStats)>,
    flows: BTreeMap<FlowId, Flow>,
    /// Flows by what they match.
    matches: BTreeMap<(Vec<u8>, Option<Vec<u8>>), FlowId>,
    meters: BTreeMap<u32, (MeterSpec, MeterStats)>,
    missed: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    planes: BTreeMap<DatapathId, Plane>,
    limits: BTreeMap<Option<u16>, u32>,
    upcalls: VecDeque<Upcall>,
    /// Packets that ovs-vswitchd has sent, without probes; the oldest are forgotten.
    pub executed: VecDeque<(DatapathId, Execute)>,
    executed_count: usize,
    /// The flow installed last.
    pub last_flow: Option<(DatapathId, FlowId)>,
}

impl Memory {
    /// Ports of a datapath.
    pub fn ports(&self, datapath: DatapathId) -> impl Iterator<Item = &PortSpec> {
        let plane = self.planes.get(&datapath);
        plane
            .into_iter()
            .flat_map(|plane| plane.ports.values())
            .map(|(spec, _)| spec)
    }

    /// Datapaths.
    pub fn datapaths(&self) -> impl Iterator<Item = DatapathId> {
        self.planes.keys().copied()
    }

    /// How many packets ovs-vswitchd has sent, without probes.
    pub fn executed_count(&self) -> usize {
        self.executed_count
    }

    /// Puts a packet where ovs-vswitchd will get it from.
    pub fn inject(&mut self, upcall: Upcall) {
        if let Some(plane) = self.planes.get_mut(&upcall.datapath) {
            plane.missed += 1;
        }
        self.upcalls.push_back(upcall);
    }

    /// Lets a flow see packets.
    pub fn hit(&mut self, datapath: DatapathId, id: &FlowId, seen: FlowStats) {
        let flow = self
            .planes
            .get_mut(&datapath)
            .and_then(|plane| plane.flows.get_mut(id));
        if let Some(flow) = flow {
            flow.stats.packets += seen.packets;
            flow.stats.bytes += seen.bytes;
            flow.stats.used = seen.used;
            flow.stats.tcp_flags |= seen.tcp_flags;
        }
    }

    fn plane(&mut self, datapath: DatapathId) -> Result<&mut Plane, Errno> {
        self.planes.get_mut(&datapath).ok_or(Errno::ENODEV)
    }
}

fn matched(spec: &FlowSpec) -> (Vec<u8>, Option<Vec<u8>>) {
    (spec.key.clone(), spec.mask.clone())
}

impl Datapath for Memory {
    fn create(&mut self, datapath: DatapathId) -> Result<(), Errno> {
        self.planes.insert(datapath, Plane::default());
        Ok(())
    }

    fn remove(&mut self, datapath: DatapathId) {
        self.planes.remove(&datapath);
    }

    fn stats(&self, datapath: DatapathId) -> DatapathStats {
        let Some(plane) = self.planes.get(&datapath) else {
            return DatapathStats::default();
        };
        DatapathStats {
            hit: plane.flows.values().map(|flow| flow.stats.packets).sum(),
            missed: plane.missed,
            flows: plane.flows.len() as u64,
            ..DatapathStats::default()
        }
    }

    fn add_port(&mut self, datapath: DatapathId, port: &PortSpec) -> Result<(), Errno> {
        let plane = self.plane(datapath)?;
        plane
            .ports
            .insert(port.number, (port.clone(), PortStats::default()));
        Ok(())
    }

    fn remove_port(&mut self, datapath: DatapathId, port: PortNo) {
        if let Ok(plane) = self.plane(datapath) {
            plane.ports.remove(&port);
        }
    }

    fn port_stats(&self, datapath: DatapathId, port: PortNo) -> PortStats {
        let port = self
            .planes
            .get(&datapath)
            .and_then(|plane| plane.ports.get(&port));
        port.map(|(_, stats)| *stats).unwrap_or_default()
    }

    fn put_flow(&mut self, datapath: DatapathId, flow: FlowSpec, mode: PutMode) -> Result<(), Errno> {
        let id = flow.id.clone();
        let plane = self.plane(datapath)?;
        let same = plane.flows.contains_key(&flow.id).then(|| flow.id.clone());
        let found = same.or_else(|| plane.matches.get(&matched(&flow)).cloned());
        let full = plane.flows.len() >= MAX_FLOWS;
        match found.and_then(|id| plane.flows.get_mut(&id)) {
            Some(_) if mode == PutMode::Create => Err(Errno::EEXIST),
            // As the kernel: the number may be another, the match may not.
            Some(there) if matched(&there.spec) != matched(&flow) => Err(Errno::ENOENT),
            Some(there) => {
                there.spec.actions = flow.actions;
                Ok(())
            }
            None if full => Err(Errno::ENOSPC),
            None => {
                plane.matches.insert(matched(&flow), flow.id.clone());
                let stats = FlowStats::default();
                plane.flows.insert(flow.id.clone(), Flow { spec: flow, stats });
                self.last_flow = Some((datapath, id));
                Ok(())
            }
        }
    }

    fn set_flow(
        &mut self,
        datapath: DatapathId,
        id: &FlowId,
        actions: Option<Vec<u8>>,
        clear: bool,
    ) -> Result<(), Errno> {
        let flow = self.plane(datapath)?.flows.get_mut(id).ok_or(Errno::ENOENT)?;
        if let Some(actions) = actions {
            flow.spec.actions = actions;
        }
        if clear {
            flow.stats = FlowStats::default();
        }
        Ok(())
    }

    fn flow(&self, datapath: DatapathId, id: &FlowId) -> Result<Flow, Errno> {
        let plane = self.planes.get(&datapath).ok_or(Errno::ENODEV)?;
        plane.flows.get(id).cloned().ok_or(Errno::ENOENT)
    }

    fn remove_flow(&mut self, datapath: DatapathId, id: &FlowId) -> Result<Flow, Errno> {
        let plane = self.plane(datapath)?;
        let flow = plane.flows.remove(id).ok_or(Errno::ENOENT)?;
        plane.matches.remove(&matched(&flow.spec));
        Ok(flow)
    }

    fn flush_flows(&mut self, datapath: DatapathId) {
        if let Ok(plane) = self.plane(datapath) {
            plane.flows.clear();
            plane.matches.clear();
        }
    }

    fn flow_after(&self, datapath: DatapathId, after: Option<&FlowId>) -> Option<Flow> {
        use std::ops::Bound::{Excluded, Unbounded};
        let flows = &self.planes.get(&datapath)?.flows;
        let next = flows
            .range::<FlowId, _>((after.map_or(Unbounded, Excluded), Unbounded))
            .next();
        next.map(|(_, flow)| flow.clone())
    }

    fn execute(&mut self, datapath: DatapathId, execute: Execute) -> Result<(), Errno> {
        if !execute.probe {
            if self.executed.len() >= MAX_EXECUTED {
                self.executed.pop_front();
            }
            self.executed.push_back((datapath, execute));
            self.executed_count += 1;
        }
        Ok(())
    }

    fn set_meter(
        &mut self,
        datapath: DatapathId,
        id: u32,
        meter: MeterSpec,
    ) -> Result<Option<MeterStats>, Errno> {
        let meters = &mut self.plane(datapath)?.meters;
        if !meters.contains_key(&id) && meters.len() >= MAX_METERS {
            return Err(Errno::EFBIG);
        }
        let before = meters.insert(id, (meter, MeterStats::default()));
        Ok(before.map(|(_, stats)| stats))
    }

    fn meter(&self, datapath: DatapathId, id: u32) -> Option<(MeterSpec, MeterStats)> {
        self.planes.get(&datapath)?.meters.get(&id).copied()
    }

    fn remove_meter(&mut self, datapath: DatapathId, id: u32) -> Option<(MeterSpec, MeterStats)> {
        self.plane(datapath).ok()?.meters.remove(&id)
    }

    fn set_zone_limit(&mut self, zone: Option<u16>, limit: u32) -> Result<(), Errno> {
        self.limits.insert(zone, limit);
        Ok(())
    }

    fn remove_zone_limit(&mut self, zone: u16) {
        self.limits.remove(&Some(zone));
    }

    fn zone_limit(&self, zone: Option<u16>) -> (u32, u32) {
        let general = self.limits.get(&None);
        (self.limits.get(&zone).or(general).copied().unwrap_or(0), 0)
    }

    fn limited_zones(&self) -> Vec<u16> {
        self.limits.keys().filter_map(|zone| *zone).collect()
    }

    fn next_upcall(&mut self) -> Option<Upcall> {
        self.upcalls.pop_front()
    }
}
