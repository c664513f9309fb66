//! A data plane that forwards nothing: it keeps what it is given and shows it.

#![allow(dead_code, reason = "each of the tests uses a part of it")]

use flow::PortCounters;
use ovs_glue::datapath::{
    Answer, Datapath, DatapathId, Detail, DeviceSettings, Errno, Flow, FlowId, FlowSpec, MeterSeen,
    MeterSpec, PortNo, PortSpec, PutMode, Question, Rule, Seen, Ticket, Upcall,
};
use ovs_netlink::action::Action;
use ovs_netlink::ct_limit::{Zone, ZoneLimit};
use ovs_netlink::datapath::{MegaflowStats, Stats};
use ovs_netlink::key::Match;
use ovs_netlink::packet::Execute;
use ovs_netlink::vport;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Flows of a datapath.
const MAX_FLOWS: usize = 200_000;
/// Meters of a datapath.
const MAX_METERS: usize = 4_096;
/// Answers that wait before no more should be asked.
const MAX_ANSWERS: usize = 256;
/// Flows per answer.
const PAGE: usize = 64;

#[derive(Debug, Default)]
struct Plane {
    ports: BTreeMap<PortNo, PortSpec>,
    /// Flows by their places.
    flows: BTreeMap<u64, (FlowSpec, Seen)>,
    ids: HashMap<FlowId, u64>,
    matches: HashMap<Match, u64>,
    meters: BTreeMap<u32, (MeterSpec, MeterSeen)>,
    missed: u64,
}

/// What ovs-vswitchd has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The datapath.
    pub datapath: DatapathId,
    /// The frame.
    pub packet: Vec<u8>,
    /// What is to be done with it.
    pub actions: Vec<Action>,
    /// [`Upcall::serial`] of the one it answers.
    pub serial: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    planes: BTreeMap<DatapathId, Plane>,
    limits: BTreeMap<Zone, u32>,
    upcalls: VecDeque<Upcall>,
    answers: VecDeque<(Ticket, Result<Answer, Errno>)>,
    last_place: u64,
    /// Answers are held back, as by a data plane that is busy.
    pub holds_answers: bool,
    /// What the ports' devices are.
    pub states: BTreeMap<(DatapathId, PortNo), DeviceSettings>,
    /// Guests that came and went, to be told.
    pub carriers: VecDeque<(DatapathId, PortNo, bool)>,
    /// The packet that ovs-vswitchd has sent last, probes left out.
    pub last_sent: Option<Sent>,
    /// How many such packets there were.
    pub sent: usize,
    /// The flow installed last.
    pub last_flow: Option<(DatapathId, FlowId)>,
}

impl Memory {
    /// Ports of a datapath.
    pub fn ports(&self, datapath: DatapathId) -> impl Iterator<Item = &PortSpec> {
        let plane = self.planes.get(&datapath);
        plane.into_iter().flat_map(|plane| plane.ports.values())
    }

    /// Datapaths.
    pub fn datapaths(&self) -> impl Iterator<Item = DatapathId> {
        self.planes.keys().copied()
    }

    /// Puts a packet where ovs-vswitchd will get it from.
    pub fn inject(&mut self, upcall: Upcall) {
        if let Some(plane) = self.planes.get_mut(&upcall.datapath) {
            plane.missed += 1;
        }
        self.upcalls.push_back(upcall);
    }

    /// Lets a flow see packets.
    pub fn hit(&mut self, datapath: DatapathId, id: &FlowId, seen: Seen) {
        if let Ok((_, counted)) = self.plane(datapath).and_then(|plane| plane.flow_mut(id)) {
            counted.stats.packets += seen.stats.packets;
            counted.stats.bytes += seen.stats.bytes;
            counted.used = seen.used.or(counted.used);
            counted.tcp_flags |= seen.tcp_flags;
        }
    }

    fn answer(&mut self, datapath: DatapathId, question: Question) -> Result<Answer, Errno> {
        match question {
            Question::PutFlow(flow, mode) => self.put_flow(datapath, flow, mode),
            Question::SetFlow { id, actions, clear } => {
                let (flow, seen) = self.plane(datapath)?.flow_mut(&id)?;
                if let Some(actions) = actions {
                    flow.actions = actions;
                }
                if clear {
                    *seen = Seen::default();
                }
                Ok(Answer::Done)
            }
            Question::Flow(id, detail) => {
                let (flow, seen) = self.plane(datapath)?.flow_mut(&id)?;
                Ok(Answer::Flow(told(flow, *seen, detail)))
            }
            Question::RemoveFlow(id, detail) => {
                let plane = self.plane(datapath)?;
                let place = plane.ids.remove(&id).ok_or(Errno::ENOENT)?;
                let (flow, seen) = plane.flows.remove(&place).ok_or(Errno::ENOENT)?;
                plane.matches.remove(&*flow.matches);
                Ok(Answer::Flow(told(&flow, seen, detail)))
            }
            Question::FlushFlows => {
                let plane = self.plane(datapath)?;
                plane.flows.clear();
                plane.ids.clear();
                plane.matches.clear();
                Ok(Answer::Done)
            }
            Question::FlowsAfter(place, detail) => {
                let page = self.plane(datapath)?.flows.range(place + 1..).take(PAGE);
                let told = page.map(|(place, (flow, seen))| (*place, told(flow, *seen, detail)));
                let flows: Vec<_> = told.collect();
                let more_after = flows.last().map(|(place, _)| *place);
                Ok(Answer::Flows { flows, more_after })
            }
            Question::PortStats(_) | Question::Connected(_) => Ok(Answer::Done),
            Question::SetMeter(id, meter) => self.plane(datapath)?.set_meter(id, meter).map(Answer::Meter),
            Question::Meter(id) => {
                let meter = self.plane(datapath)?.meters.get(&id);
                Ok(Answer::Meter(meter.map(|(_, seen)| seen.clone())))
            }
            Question::Queue(..) | Question::Trace { .. } => Err(Errno::EOPNOTSUPP),
            Question::RemoveMeter(id) => {
                let removed = self.plane(datapath)?.meters.remove(&id);
                Ok(Answer::Meter(removed.map(|(_, seen)| seen)))
            }
        }
    }

    fn put_flow(&mut self, datapath: DatapathId, flow: FlowSpec, mode: PutMode) -> Result<Answer, Errno> {
        let place = self.last_place + 1;
        let plane = self.plane(datapath)?;
        let found = plane
            .ids
            .get(&flow.id)
            .or_else(|| plane.matches.get(&*flow.matches));
        if let Some((there, _)) = found.and_then(|place| plane.flows.get_mut(place)) {
            return match mode {
                PutMode::Create => Err(Errno::EEXIST),
                // As the kernel: the name may be another, the match may not.
                PutMode::CreateOrModify if there.matches != flow.matches => Err(Errno::ENOENT),
                PutMode::CreateOrModify => {
                    there.actions = flow.actions;
                    Ok(Answer::Done)
                }
            };
        }
        if plane.flows.len() >= MAX_FLOWS {
            return Err(Errno::ENOSPC);
        }
        plane.ids.insert(flow.id.clone(), place);
        plane.matches.insert((*flow.matches).clone(), place);
        let id = flow.id.clone();
        plane.flows.insert(place, (flow, Seen::default()));
        self.last_place = place;
        self.last_flow = Some((datapath, id));
        Ok(Answer::Done)
    }

    fn plane(&mut self, datapath: DatapathId) -> Result<&mut Plane, Errno> {
        self.planes.get_mut(&datapath).ok_or(Errno::ENODEV)
    }
}

impl Plane {
    fn flow_mut(&mut self, id: &FlowId) -> Result<&mut (FlowSpec, Seen), Errno> {
        let place = self.ids.get(id).ok_or(Errno::ENOENT)?;
        self.flows.get_mut(place).ok_or(Errno::ENOENT)
    }

    fn set_meter(&mut self, id: u32, meter: MeterSpec) -> Result<Option<MeterSeen>, Errno> {
        if !self.meters.contains_key(&id) && self.meters.len() >= MAX_METERS {
            return Err(Errno::EFBIG);
        }
        let bands = vec![ovs_netlink::flow::Stats::default(); meter.bands.len()];
        let seen = MeterSeen {
            bands,
            ..MeterSeen::default()
        };
        Ok(self.meters.insert(id, (meter, seen)).map(|(_, seen)| seen))
    }
}

fn told(flow: &FlowSpec, seen: Seen, detail: Detail) -> Flow {
    let rule = || Rule {
        matches: flow.matches.clone(),
        actions: flow.actions.clone(),
    };
    Flow {
        id: flow.id.clone(),
        rule: (detail == Detail::Whole).then(rule),
        seen,
    }
}

impl Datapath for Memory {
    fn create(&mut self, datapath: DatapathId) -> Result<(), Errno> {
        self.planes.insert(datapath, Plane::default());
        Ok(())
    }

    fn remove(&mut self, datapath: DatapathId) {
        self.planes.remove(&datapath);
        self.states.retain(|(there, _), _| *there != datapath);
    }

    fn stats(&self, datapath: DatapathId) -> (Stats, Option<MegaflowStats>) {
        let stats = self.planes.get(&datapath).map(|plane| Stats {
            hit: plane.flows.values().map(|(_, seen)| seen.stats.packets).sum(),
            missed: plane.missed,
            lost: 0,
            flows: plane.flows.len() as u64,
        });
        (stats.unwrap_or_default(), Some(MegaflowStats::default()))
    }

    fn number_of(&self, _: &str) -> Option<PortNo> {
        None
    }

    fn add_port(&mut self, datapath: DatapathId, port: &PortSpec) -> Result<(), Errno> {
        self.plane(datapath)?.ports.insert(port.number, port.clone());
        if port.kind == vport::Kind::Internal {
            self.carriers.push_back((datapath, port.number, true));
        }
        Ok(())
    }

    fn remove_port(&mut self, datapath: DatapathId, port: PortNo) {
        if let Ok(plane) = self.plane(datapath) {
            plane.ports.remove(&port);
        }
        self.states.remove(&(datapath, port));
    }

    fn set_device(&mut self, datapath: DatapathId, port: PortNo, settings: DeviceSettings) {
        self.states.insert((datapath, port), settings);
    }

    fn next_carrier(&mut self) -> Option<(DatapathId, PortNo, bool)> {
        self.carriers.pop_front()
    }

    fn next_device(&mut self) -> Option<(DatapathId, PortNo)> {
        None
    }

    fn attach_device(&mut self, _: DatapathId, _: PortNo, _: u32, _: Option<OwnedFd>) {}

    fn next_gone(&mut self) -> Option<(DatapathId, PortNo)> {
        None
    }

    fn has_guest(&self, _: DatapathId, _: PortNo) -> bool {
        false
    }

    fn renew_device(&mut self, datapath: DatapathId, port: PortNo) {
        self.carriers.push_back((datapath, port, true));
    }

    fn port_stats(&self, _: DatapathId, _: PortNo) -> vport::Stats {
        vport::Stats::default()
    }

    fn port_counters(&self, _: DatapathId, _: PortNo) -> PortCounters {
        PortCounters::default()
    }

    fn ask(&mut self, ticket: Ticket, datapath: DatapathId, question: Question) {
        let answer = self.answer(datapath, question);
        self.answers.push_back((ticket, answer));
    }

    fn next_answer(&mut self) -> Option<(Ticket, Result<Answer, Errno>)> {
        if self.holds_answers {
            return None;
        }
        self.answers.pop_front()
    }

    fn has_room(&self) -> bool {
        self.answers.len() < MAX_ANSWERS
    }

    fn exchange(&mut self) {}

    fn flush(&mut self) {}

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn execute(&mut self, execute: &Execute<'_>) -> Result<(), Errno> {
        if !execute.probe {
            self.sent += 1;
            self.last_sent = Some(Sent {
                datapath: DatapathId(execute.datapath),
                packet: execute.packet.to_vec(),
                actions: execute.actions.clone(),
                serial: execute.hash,
            });
        }
        Ok(())
    }

    fn set_zone_limit(&mut self, zone: Zone, limit: u32) -> Result<(), Errno> {
        self.limits.insert(zone, limit);
        Ok(())
    }

    fn remove_zone_limit(&mut self, zone: Zone) {
        self.limits.remove(&zone);
    }

    fn zone_limit(&self, zone: Zone) -> ZoneLimit {
        let limit = self.limits.get(&zone).or(self.limits.get(&Zone::Default));
        ZoneLimit {
            zone,
            limit: limit.copied().unwrap_or(0),
            count: 0,
        }
    }

    fn limited_zones(&self) -> Vec<Zone> {
        let own = self.limits.keys().filter(|zone| **zone != Zone::Default);
        std::iter::once(&Zone::Default).chain(own).copied().collect()
    }

    fn next_upcall(&mut self, has_room: &dyn Fn(&Upcall) -> bool) -> Option<Upcall> {
        let at = self.upcalls.iter().position(has_room)?;
        self.upcalls.remove(at)
    }
}
