//! Questions to the data plane, and the meaning of its answers.

use super::flows::{Stored, is_refused};
use super::meters::{self, Meter};
use super::ports::End;
use super::{Plane, SWITCH, now_ms};
use crate::datapath::{Answer, Detail, Errno, FlowSpec, PortNo, PutMode, Question, Ticket, TraceStep};
use crate::translate::{actions, flow_match, port_id, port_number, without_labels};
use control_protocol::data_plane::{
    Answer as Told, Detail as Extent, FromDataPlane, Request, TraceStep as Step,
};
use controller::{Answered, Event};
use flow::{Flow as Entry, FlowId, FlowStats, PutMode as Mode, Stage, Statistics};
use ovs_netlink::key::Match;

/// Flows beyond which none is made without a data plane: as many as its table holds.
const MAX_FLOWS: usize = 200_000;
/// The answer to a flow of a port that has its share. ovs-vswitchd takes it for a flow that overlaps another
/// one: it writes no warning, and goes on deciding about the flow's packets.
const BEYOND_SHARE: Errno = Errno::EEXIST;

/// The purpose of an answer of the data plane.
#[derive(Debug)]
pub(super) enum Pending {
    /// The first list of ports.
    Ports,
    /// A port that is made.
    Port(PortNo),
    /// A limit of a port.
    Limit(PortNo),
    /// A connection for a port, or a device. Whether it is one is told by the port's state.
    Attach,
    /// A flow that the data plane before had.
    Restored(u64),
    /// A question that waits for the answer.
    Asked(Ticket, Asked),
}

/// What was asked, and what is to be done if it is refused.
#[derive(Debug)]
pub(super) enum Asked {
    /// A flow that was written down here; if it is refused, it goes.
    Added(u64),
    /// A flow that was changed here; if that is refused, it becomes again what it was.
    Changed(u64, Stored),
    Flushed,
    Flow(u64, Detail),
    /// A flow that is no more here.
    Removed(u64, Stored, Detail),
    Page(Places, Detail),
    PortStats(PortNo),
    /// A meter that was written down, in the place of another one; if it is refused, that one comes back.
    MeterSet(u32, Option<Meter>),
    /// A meter. One that is not there is none.
    Meter(u32),
    /// A meter that is no more here.
    MeterRemoved(Option<Meter>),
    /// A meter of a queue.
    Queue,
    Trace,
}

/// What a page of flows is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub after: u64,
    /// The data plane may have flows after this one that are not to be told yet.
    last: u64,
}

impl Plane {
    fn flow_id(&self, place: u64) -> FlowId {
        FlowId(u128::from(self.generation) << 64 | u128::from(place))
    }

    /// The place of a flow of this process.
    fn place(&self, id: FlowId) -> Option<u64> {
        let place = (id.0 & u128::from(u64::MAX)) as u64;
        (self.flow_id(place) == id).then_some(place)
    }

    pub(super) fn entry(
        &self,
        place: u64,
        matches: &Match,
        wanted: &[ovs_netlink::action::Action],
    ) -> Result<Entry, Errno> {
        let matches = without_labels(matches);
        let (key, mask, context) = flow_match(&matches)?;
        Ok(Entry {
            id: self.flow_id(place),
            switch: SWITCH,
            stage: Stage::Forward,
            key,
            mask,
            context,
            actions: actions(wanted)?,
        })
    }

    pub(super) fn send_question(&mut self, ticket: Ticket, question: Question) -> Result<(), Errno> {
        let switch = SWITCH;
        let (request, asked) = match question {
            Question::PutFlow(flow, mode) => self.put(&flow, mode)?,
            Question::SetFlow { id, actions, clear } => {
                let place = self.flows.place(&id).ok_or(Errno::ENOENT)?;
                self.change(place, actions, clear)?
            }
            Question::Flow(id, detail) => {
                let place = self.flows.place(&id).ok_or(Errno::ENOENT)?;
                let id = self.flow_id(place);
                (Request::FlowGet { switch, id }, Asked::Flow(place, detail))
            }
            Question::RemoveFlow(id, detail) => {
                let place = self.flows.place(&id).ok_or(Errno::ENOENT)?;
                let stored = self.flows.remove(place).ok_or(Errno::ENOENT)?;
                let id = self.flow_id(place);
                (
                    Request::FlowDel { switch, id },
                    Asked::Removed(place, stored, detail),
                )
            }
            Question::FlushFlows => {
                self.flows.clear();
                (Request::FlowFlush { switch }, Asked::Flushed)
            }
            Question::FlowsAfter(after, detail) => {
                let request = Request::FlowList {
                    switch,
                    after: Some(self.flow_id(after)),
                    detail: Extent::Terse,
                };
                let last = self.flows.last_told(after);
                (request, Asked::Page(Places { after, last }, detail))
            }
            Question::PortStats(number) => {
                let port = port_id(number).ok_or(Errno::ENODEV)?;
                (Request::PortGet { port }, Asked::PortStats(number))
            }
            Question::Connected(number) => {
                self.await_device(ticket, number);
                return Ok(());
            }
            Question::SetMeter(id, spec) => self.set_meter(id, &spec)?,
            Question::Meter(id) => (Request::MeterGet { meter: id }, Asked::Meter(id)),
            Question::RemoveMeter(id) => self.remove_meter(id),
            Question::Queue(number, queue) => {
                let Some(meter) = self.limits.meter_of_queue(number, queue) else {
                    self.answers.push_back((ticket, Ok(Answer::Meter(None))));
                    return Ok(());
                };
                (Request::MeterGet { meter }, Asked::Queue)
            }
            Question::Trace { port, frame } => {
                let in_port = port_id(port).ok_or(Errno::ENODEV)?;
                (Request::Trace { in_port, frame }, Asked::Trace)
            }
        };
        if self.client.is_connected() && !self.is_about_kept_back(&asked) {
            let is_flush = matches!(asked, Asked::Flushed);
            self.request(request, Vec::new(), Pending::Asked(ticket, asked));
            if is_flush {
                self.put_limits();
            }
        } else {
            let answer = self.without_data_plane(asked);
            self.answers.push_back((ticket, answer));
        }
        Ok(())
    }

    /// What is known here without the data plane. Flows and meters are as they were told last, and wait for
    /// the next one.
    pub(super) fn without_data_plane(&mut self, asked: Asked) -> Result<Answer, Errno> {
        match asked {
            Asked::Added(place) => {
                self.flows.wait(place);
                Ok(Answer::Done)
            }
            Asked::Changed(..) | Asked::Flushed | Asked::PortStats(_) => Ok(Answer::Done),
            Asked::Flow(place, detail) => {
                let stored = self.flows.at(place).ok_or(Errno::ENOENT)?;
                Ok(Answer::Flow(stored.tell(detail)?))
            }
            Asked::Removed(_, stored, detail) => Ok(Answer::Flow(stored.tell(detail)?)),
            Asked::Page(places, detail) => self.flows.page(places.after, detail),
            Asked::MeterSet(_, mut meter) | Asked::MeterRemoved(mut meter) => {
                Ok(meters::answer(meter.as_mut(), None))
            }
            Asked::Meter(id) => Ok(meters::answer(self.meters.get(id), None)),
            Asked::Queue | Asked::Trace => Err(Errno::EIO),
        }
    }

    fn put(&mut self, flow: &FlowSpec, mode: PutMode) -> Result<(Request, Asked), Errno> {
        if let Some(place) = self.flows.place(&flow.id) {
            if is_refused(place) {
                // For who puts it, it is not there.
                self.flows.remove(place);
                return self.put(flow, mode);
            }
            let there = self.flows.at(place).ok_or(Errno::EIO)?.rule()?;
            return match mode {
                PutMode::Create => Err(Errno::EEXIST),
                // As the kernel: its match may not be another.
                PutMode::CreateOrModify if there.matches != flow.matches => Err(Errno::ENOENT),
                PutMode::CreateOrModify => self.change(place, Some(flow.actions.clone()), false),
            };
        }
        // First whether it can be said at all.
        let mut entry = self.entry(0, &flow.matches, &flow.actions)?;
        if !self.client.is_connected() && self.flows.len() >= MAX_FLOWS {
            return Err(Errno::ENOSPC);
        }
        let sharer = self.sharer(flow);
        if let Some(port) = sharer.filter(|port| !self.flows.has_room(*port)) {
            telemetry::limited!(
                log::Level::Warn,
                "port {}: it has its share of flows; packets of others wait for ovs-vswitchd",
                port.0
            );
            self.counters.flows_beyond_share += 1;
            return Err(BEYOND_SHARE);
        }
        let place = self.flows.add(flow, sharer)?;
        entry.id = self.flow_id(place);
        let request = Request::FlowPut {
            flow: entry,
            mode: match mode {
                PutMode::Create => Mode::Create,
                PutMode::CreateOrModify => Mode::CreateOrModify(Statistics::Kept),
            },
        };
        Ok((request, Asked::Added(place)))
    }

    /// The port of whose share a flow is: that of its packets, unless it is a device.
    fn sharer(&self, flow: &FlowSpec) -> Option<PortNo> {
        let port = PortNo(flow.matches.key.metadata.in_port?);
        let is_device = self
            .ports
            .all
            .get(&port)
            .is_some_and(|port| port.end == End::Device);
        (!is_device).then_some(port)
    }

    fn change(
        &mut self,
        place: u64,
        actions: Option<Vec<ovs_netlink::action::Action>>,
        clear: bool,
    ) -> Result<(Request, Asked), Errno> {
        let stored = self.flows.at(place).ok_or(Errno::ENOENT)?;
        let there = stored.rule()?;
        let wanted = actions.unwrap_or(there.actions);
        let flow = self.entry(place, &there.matches, &wanted)?;
        let changed = stored.changed(&there.matches, &wanted, clear)?;
        let before = self.flows.replace(place, changed).ok_or(Errno::ENOENT)?;
        let statistics = if clear { Statistics::New } else { Statistics::Kept };
        let mode = Mode::Modify(statistics);
        let request = Request::FlowPut { flow, mode };
        Ok((request, Asked::Changed(place, before)))
    }

    /// Takes in what the data plane has said.
    pub(super) fn take(&mut self, event: Event<Pending>) {
        match event {
            Event::Upcall(upcall) => self.upcall(upcall),
            Event::Port(FromDataPlane::PortState { port, state, .. }) => self.port_state(port, state),
            // Only the built-in controller has a use for others' ports.
            Event::Port(_) | Event::RuleRecords(_) => {}
            Event::Answered(pending, result) => self.answered(pending, result),
        }
    }

    fn answered(&mut self, pending: Pending, result: Answered) {
        let told = result.map_err(|error| {
            log::debug!("the data plane refused: {error}");
            Errno(error.errno)
        });
        match (pending, told) {
            (Pending::Asked(ticket, asked), told) => {
                let answer = self.meaning(asked, told);
                self.answers.push_back((ticket, answer));
            }
            (Pending::Ports, Ok(Told::Ports { ports, .. })) => self.take_ports(ports),
            (Pending::Ports, told) => log::error!("the data plane does not list its ports: {told:?}"),
            (Pending::Port(number), told) => self.port_added(number, told.is_ok()),
            (Pending::Limit(number), Err(errno)) => self.limit_refused(number, errno),
            (Pending::Restored(place), told) => self.restored(place, told),
            (Pending::Limit(_), Ok(_)) | (Pending::Attach, _) => {}
        }
    }

    /// What the answer to a question means.
    fn meaning(&mut self, asked: Asked, told: Result<Told, Errno>) -> Result<Answer, Errno> {
        match (asked, told) {
            (Asked::Added(place), Ok(Told::Ended { flows, .. })) => {
                // What it took the place of.
                for ended in flows {
                    if let Some(other) = self.place(ended.id).filter(|other| *other != place) {
                        self.flows.remove(other);
                    }
                }
                Ok(Answer::Done)
            }
            (Asked::Added(place), refused) => {
                self.flows.remove(place);
                self.refused(refused)
            }
            (Asked::Changed(..), Ok(Told::Ended { .. })) | (Asked::Flushed, Ok(Told::Done)) => {
                Ok(Answer::Done)
            }
            (Asked::Changed(place, before), refused) => {
                self.flows.replace(place, before);
                self.refused(refused)
            }
            (Asked::Flow(place, detail), Ok(Told::FlowStats { flows, .. })) => {
                let wanted = self.flow_id(place);
                let (_, stats) = flows
                    .first()
                    .filter(|(id, _)| *id == wanted)
                    .ok_or(Errno::ENOENT)?;
                let stored = self.flows.at_mut(place).ok_or(Errno::ENOENT)?;
                stored.count(stats, now_ms());
                Ok(Answer::Flow(stored.tell(detail)?))
            }
            (Asked::Removed(_, mut stored, detail), Ok(Told::Ended { flows, .. })) => {
                if let Some(ended) = flows.first() {
                    stored.count(&ended.stats, now_ms());
                }
                Ok(Answer::Flow(stored.tell(detail)?))
            }
            (Asked::Page(places, detail), Ok(Told::FlowStats { flows, more })) => {
                self.page(places, detail, &flows, more)
            }
            (Asked::PortStats(number), Ok(Told::Ports { ports, .. })) => {
                let info = ports.into_iter().next();
                let info = info.filter(|info| Some(info.spec.port) == port_id(number));
                let Some(info) = info else {
                    return self.refused(Ok(Told::Done));
                };
                if let Some(port) = self.ports.all.get_mut(&number) {
                    port.counters = info.counters;
                }
                Ok(Answer::Done)
            }
            (Asked::MeterSet(_, mut meter) | Asked::MeterRemoved(mut meter), Ok(Told::Meter(told))) => {
                Ok(meters::answer(meter.as_mut(), told))
            }
            (Asked::Meter(id), Ok(Told::Meter(told))) => Ok(meters::answer(self.meters.get(id), told)),
            (Asked::Queue, Ok(Told::Meter(told))) => Ok(Answer::Meter(told.map(meters::seen))),
            (Asked::MeterSet(id, before), refused) => {
                self.meters.put_back(id, before);
                self.refused(refused)
            }
            (Asked::Trace, Ok(Told::Trace(steps))) => Ok(Answer::Trace(
                steps.into_iter().filter_map(|step| self.step(step)).collect(),
            )),
            // It was not made, or it has gone: what was known is what there is to know.
            (Asked::PortStats(_), Err(_)) => Ok(Answer::Done),
            (_, refused) => self.refused(refused),
        }
    }

    /// A step of a trace, if it is one that is told.
    fn step(&self, step: Step) -> Option<TraceStep> {
        Some(match step {
            Step::Parsed(_) | Step::Subtable { .. } | Step::Rule { .. } | Step::Action(_) | Step::Way(_) => {
                return None;
            }
            // Of a filter, which is none of ovs-vswitchd's flows.
            Step::Matched(flow) if flow.stage != Stage::Forward => return None,
            Step::Matched(flow) => {
                let stored = self.place(flow.id).and_then(|place| self.flows.at(place));
                TraceStep::Matched(stored.map(|stored| stored.id.clone()))
            }
            Step::Miss { .. } => TraceStep::Missed,
            Step::Delivered(port) => TraceStep::Delivered(port_number(port)?),
            Step::Dropped { port, reason } => TraceStep::Dropped(port.and_then(port_number), reason),
        })
    }

    /// An error, or an answer to another question.
    pub(super) fn refused(&mut self, told: Result<Told, Errno>) -> Result<Answer, Errno> {
        match told {
            Err(errno) => Err(errno),
            Ok(_) => {
                self.counters.violations += 1;
                Err(Errno::EIO)
            }
        }
    }

    fn page(
        &mut self,
        places: Places,
        detail: Detail,
        told: &[(FlowId, FlowStats)],
        more: bool,
    ) -> Result<Answer, Errno> {
        let (mut flows, now) = (Vec::with_capacity(told.len()), now_ms());
        let mut last = self.flow_id(places.after);
        for (id, stats) in told {
            last = *id;
            // Others are of an earlier process, or have ended since.
            let Some(place) = self.place(*id) else { continue };
            if place > places.last {
                break;
            }
            if let Some(stored) = self.flows.at_mut(place) {
                stored.count(stats, now);
                flows.push((place, stored.tell(detail)?));
            }
        }
        let last = self.place(last).filter(|last| more && *last <= places.last);
        let more_after = last.filter(|last| *last > places.after);
        let more_after = more_after.or_else(|| self.flows.more_after(places.last));
        Ok(Answer::Flows { flows, more_after })
    }
}
