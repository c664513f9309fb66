//! Requests that are not answered, each with its purpose.
//!
//! A request leaves its purpose under its serial number, and the answer takes it: so each answer is handled
//! once, and no answer that was not asked for. An answer of another kind than the request's is none. Lists
//! come in parts, which are gathered here.

use control_protocol::data_plane::{Answer, Detail, PortInfo, Request, Way};
use control_protocol::p4::P4Request;
use control_protocol::port_counts::PortCounts;
use control_protocol::rules::RuleRequest;
use flow::{Flow, FlowId, FlowStats, SwitchId};

/// Flows in lists under way, and the number that each port adds.
const MAX_FLOWS: usize = 65_536;
const FLOWS_PER_PORT: usize = 128;

/// Lists that users may have asked for at the same time. Whoever asks on their behalf refuses more.
pub const MAX_LISTS: usize = 8;

/// Actions of a flow besides one for each port.
const FURTHER_ACTIONS: usize = 8;

/// The purpose of a request.
#[derive(Debug)]
pub(crate) enum Purpose<P> {
    Hello,
    /// Errors go to the log, with this text.
    Told(&'static str),
    /// The answer is of no use any longer.
    Forgotten,
    Asked(P),
}

impl<P> Purpose<P> {
    /// Whether nobody waits for the answer.
    pub fn is_told(&self) -> bool {
        matches!(self, Purpose::Told(_) | Purpose::Forgotten)
    }

    pub fn asked(self) -> Option<P> {
        match self {
            Purpose::Asked(purpose) => Some(purpose),
            Purpose::Hello | Purpose::Told(_) | Purpose::Forgotten => None,
        }
    }
}

/// A request without answer.
#[derive(Debug)]
pub(crate) struct Asked<P> {
    pub purpose: Purpose<P>,
    pub kind: Kind,
    pub list: List,
}

/// The kind of answer that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Done,
    Welcome,
    Ports,
    Counters,
    Ended,
    Flows,
    FlowStats,
    Meter,
    Rules,
    P4,
    Trace,
    Work,
}

impl Kind {
    /// `None` for requests that are not answered.
    pub fn of(request: &Request) -> Option<Kind> {
        Some(match request {
            Request::Execute(_) | Request::Discard { .. } | Request::Taken { .. } => return None,
            Request::Hello { .. } => Kind::Welcome,
            Request::PortAdd(_)
            | Request::PortAttach { .. }
            | Request::PortDel { .. }
            | Request::PortSet { .. }
            | Request::PortRates { .. }
            | Request::PortClasses { .. }
            | Request::PortEnable { .. }
            | Request::PortFilters { .. }
            | Request::PortMirrors { .. }
            | Request::PortP4 { .. }
            | Request::PortQueue { .. }
            | Request::PortSteering { .. }
            | Request::PortThreads { .. }
            | Request::FlowFlush { .. }
            | Request::MeterFlush
            | Request::Barrier
            | Request::Capture { .. } => Kind::Done,
            Request::PortList | Request::PortGet { .. } => Kind::Ports,
            Request::Counters => Kind::Counters,
            Request::FlowPut { .. } | Request::FlowDel { .. } => Kind::Ended,
            Request::FlowGet { .. } => Kind::FlowStats,
            Request::FlowList { detail, .. } => match detail {
                Detail::Terse => Kind::FlowStats,
                Detail::Full => Kind::Flows,
            },
            Request::MeterSet { .. } | Request::MeterGet { .. } | Request::MeterDel { .. } => Kind::Meter,
            Request::Rules(request) => Kind::of_rules(request),
            Request::P4(P4Request::List | P4Request::Read { .. }) => Kind::P4,
            Request::P4(
                P4Request::Begin { .. }
                | P4Request::Add { .. }
                | P4Request::Allow { .. }
                | P4Request::Commit { .. }
                | P4Request::CommitChanges { .. }
                | P4Request::Connect { .. }
                | P4Request::Delete { .. }
                | P4Request::Link { .. }
                | P4Request::Set { .. }
                | P4Request::Write { .. }
                | P4Request::WriteAll { .. },
            ) => Kind::Done,
            Request::Trace { .. } | Request::TraceActions { .. } => Kind::Trace,
            Request::Work => Kind::Work,
        })
    }

    fn of_rules(request: &RuleRequest) -> Kind {
        match request {
            RuleRequest::Lists { .. }
            | RuleRequest::Rules { .. }
            | RuleRequest::Judged { .. }
            | RuleRequest::Sets { .. }
            | RuleRequest::Members { .. } => Kind::Rules,
            RuleRequest::Begin { .. }
            | RuleRequest::Add { .. }
            | RuleRequest::Remove { .. }
            | RuleRequest::Commit { .. }
            | RuleRequest::Discard { .. }
            | RuleRequest::Delete { .. }
            | RuleRequest::SetAdd { .. }
            | RuleRequest::SetChange { .. }
            | RuleRequest::SetDel { .. } => Kind::Done,
        }
    }

    pub fn is_of(self, answer: &Answer) -> bool {
        self == match answer {
            Answer::Done => Kind::Done,
            Answer::Welcome { .. } => Kind::Welcome,
            Answer::Ports { .. } => Kind::Ports,
            Answer::Counters { .. } => Kind::Counters,
            Answer::Ended { .. } => Kind::Ended,
            Answer::Flows { .. } => Kind::Flows,
            Answer::FlowStats { .. } => Kind::FlowStats,
            Answer::Meter(_) => Kind::Meter,
            Answer::Rules(_) => Kind::Rules,
            Answer::P4(_) => Kind::P4,
            Answer::Trace(_) => Kind::Trace,
            Answer::Work(_) => Kind::Work,
        }
    }
}

/// The parts of a list that have arrived.
#[derive(Debug, Default)]
pub(crate) struct List {
    ports: Vec<PortInfo>,
    counters: PortCounts,
    flows: Vec<(Flow, FlowStats)>,
    ways: Vec<(FlowId, Way)>,
    stats: Vec<(FlowId, FlowStats)>,
    /// The pages that are asked for, one after the other. `None`: the list is not one of pages, or only one
    /// is wanted.
    pages: Option<(SwitchId, Detail)>,
    /// The flow before the page that is asked for.
    after: Option<FlowId>,
}

/// What follows a part of a list.
pub(crate) enum Next {
    /// All is there.
    Whole(Answer),
    /// Another answer to the same request.
    Part,
    /// The [next page](List::next_page), to be requested.
    Page,
    /// Flows are not in order, or not after those before: there would be no end.
    Disorder,
}

impl List {
    pub fn new(pages: Option<(SwitchId, Detail)>, after: Option<FlowId>) -> List {
        List {
            pages,
            after,
            ..List::default()
        }
    }

    pub fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// Entries that have arrived.
    pub fn len(&self) -> usize {
        self.ports.len() + self.counters.most() + self.flows.len() + self.stats.len()
    }

    /// Takes in an answer, which is a part of the list if it is a list at all.
    pub fn take(&mut self, answer: Answer) -> Next {
        let (last, more) = match &answer {
            Answer::Flows { flows, more, .. } => (self.last(flows.iter().map(|(flow, _)| flow.id)), *more),
            Answer::FlowStats { flows, more } => (self.last(flows.iter().map(|(id, _)| *id)), *more),
            _ => (Ok(None), false),
        };
        let Ok(last) = last else {
            return Next::Disorder;
        };
        match answer {
            Answer::Ports { ports, more } => {
                self.ports.extend(ports);
                if more {
                    return Next::Part;
                }
                let ports = std::mem::take(&mut self.ports);
                return Next::Whole(Answer::Ports { ports, more });
            }
            Answer::Counters { ports, more } => {
                self.counters.append(&ports);
                if more {
                    return Next::Part;
                }
                let ports = std::mem::take(&mut self.counters);
                return Next::Whole(Answer::Counters { ports, more });
            }
            Answer::Flows { flows, ways, .. } if self.has_pages() => self.take_flows(flows, ways),
            Answer::FlowStats { flows, .. } if self.has_pages() => self.stats.extend(flows),
            answer => return Next::Whole(answer),
        }
        self.after = last;
        match self.pages {
            Some(_) if more => Next::Page,
            Some((_, Detail::Full)) => Next::Whole(Answer::Flows {
                flows: std::mem::take(&mut self.flows),
                ways: std::mem::take(&mut self.ways),
                more,
            }),
            _ => Next::Whole(Answer::FlowStats {
                flows: std::mem::take(&mut self.stats),
                more,
            }),
        }
    }

    fn take_flows(&mut self, flows: Vec<(Flow, FlowStats)>, ways: Vec<(FlowId, Way)>) {
        self.flows.extend(flows);
        self.ways.extend(ways);
    }

    /// The request for the flows that have not arrived, if the list is one of pages.
    pub fn next_page(&self) -> Option<Request> {
        let (switch, detail) = self.pages?;
        Some(Request::FlowList {
            switch,
            after: self.after,
            detail,
        })
    }

    /// The last of these flows, which are in order and after those before.
    fn last(&self, mut flows: impl Iterator<Item = FlowId>) -> Result<Option<FlowId>, ()> {
        flows.try_fold(self.after, |before, id| {
            (before < Some(id)).then_some(Some(id)).ok_or(())
        })
    }
}

/// Whether this part of a list is plausible, if so many entries have arrived in all lists of which parts are
/// still to come, and there are so many ports.
pub(crate) fn is_plausible(answer: &Answer, arrived: usize, ports: usize) -> bool {
    let (entries, more) = match answer {
        Answer::Ports { ports, more } => (ports.len(), *more),
        Answer::Counters { ports, more } => (ports.most(), *more),
        Answer::Flows { flows, more, .. } => (flows.len(), *more),
        Answer::FlowStats { flows, more } => (flows.len(), *more),
        _ => return true,
    };
    let most = (MAX_FLOWS + FLOWS_PER_PORT * ports) * (1 + MAX_LISTS);
    let has_few_actions = match answer {
        Answer::Flows { flows, ways, .. } => {
            let mut flows_actions = flows.iter().map(|(flow, _)| flow.actions.len());
            ways.len() <= flows.len() && flows_actions.all(|actions| actions <= ports + FURTHER_ACTIONS)
        }
        _ => true,
    };
    arrived + entries <= most && (entries > 0 || !more) && has_few_actions
}
