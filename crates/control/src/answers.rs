//! Answers of the data plane: the purpose of each, and its handling.
//!
//! A request leaves a [`Pending`] under its serial number, which the answer removes again, so that every answer is handled once.
//! Lists of ports come in parts, and lists of flows page by page, each requested when the one before is there; the parts are kept
//! in the `Pending`.

use crate::process::Control;
use crate::refusal::Refusal;
use crate::serve::Question;
use crate::trust::are_plausible;
use crate::users::Token;
use control_protocol::RequestError;
use control_protocol::data_plane::{Answer, Detail, PortInfo, Request};
use flow::{Flow, FlowId, FlowStats, SwitchId};
use management::{DataPlaneStatus, Response};

type Answered = Result<Answer, RequestError>;

/// The purpose of an answer.
pub(crate) enum Pending {
    /// Errors go to the log, with this text.
    Quiet(&'static str),
    /// An error means that the port is gone, of which its own controller knows.
    Threads,
    Hello,
    /// An error becomes the problem of the port with this name. Whether the port was to be added.
    Port(String, bool),
    Flow(SwitchId, FlowId),
    SyncPorts(Vec<PortInfo>),
    SyncFlows(SwitchId, Vec<(Flow, FlowStats)>),
    PollFlows(SwitchId, Vec<(FlowId, FlowStats)>),
    UserPorts(Token, Question, Vec<PortInfo>),
    UserFlows(Token, SwitchId, Vec<(Flow, FlowStats)>),
    User(Token, Question),
}

impl Pending {
    /// Entries of a list that have arrived.
    pub fn gathered(&self) -> usize {
        match self {
            Pending::UserPorts(_, _, all) => all.len(),
            Pending::UserFlows(_, _, all) => all.len(),
            _ => 0,
        }
    }

    pub fn user(&self) -> Option<Token> {
        match self {
            Pending::UserPorts(token, ..) | Pending::UserFlows(token, ..) | Pending::User(token, _) => {
                Some(*token)
            }
            _ => None,
        }
    }
}

impl Control {
    /// Handles an answer according to the purpose of its request.
    pub fn answered(&mut self, serial: u32, result: Answered) {
        let Some(pending) = self.take_pending(serial, &result) else {
            return;
        };
        match pending {
            Pending::Quiet(what) => {
                if let Err(error) = result {
                    telemetry::limited!(log::Level::Error, "{what}: {error}");
                }
            }
            Pending::Threads => {}
            Pending::Hello => self.welcomed(result),
            Pending::Port(name, adding) => {
                if let Err(error) = result {
                    self.port_refused(&name, adding, error);
                }
            }
            Pending::Flow(switch, id) => {
                if let Err(error) = result {
                    log::debug!("flow not installed: {error}");
                    if let Some(run) = self.switch_by_id(switch) {
                        run.l2.forget_flow(id);
                    }
                }
            }
            Pending::SyncPorts(all) => self.ports_listed(serial, all, result),
            Pending::SyncFlows(switch, all) => self.flows_listed(switch, all, result),
            Pending::PollFlows(switch, all) => self.flows_polled(switch, all, result),
            pending @ (Pending::UserPorts(..) | Pending::UserFlows(..) | Pending::User(..)) => {
                self.answered_user(serial, pending, result);
            }
        }
    }

    /// Takes the purpose of an answer; `None` if the user's time to wait is over, or if the answer is not plausible.
    fn take_pending(&mut self, serial: u32, result: &Answered) -> Option<Pending> {
        let ports = self.ports.len();
        let data_plane = self.data_plane.as_mut()?;
        let pending = data_plane.pending.remove(&serial)?;
        let (entries, more) = match result {
            Ok(Answer::Ports { ports, more }) => (ports.len(), *more),
            Ok(Answer::Flows { flows, more }) => (flows.len(), *more),
            Ok(Answer::FlowStats { flows, more }) => (flows.len(), *more),
            _ => (0, false),
        };
        let flows = match result {
            Ok(Answer::Flows { flows, .. }) => flows.as_slice(),
            _ => &[],
        };
        if data_plane.listed.part(entries, more, ports)
            && are_plausible(flows.iter().map(|(flow, _)| flow), ports)
        {
            return Some(pending);
        }
        data_plane.broken = true;
        // The user is answered when the data plane is detached.
        data_plane.pending.insert(serial, pending);
        None
    }

    fn welcomed(&mut self, result: Answered) {
        match result {
            Ok(Answer::Welcome { workers, pid, .. }) => {
                if let Some(data_plane) = &mut self.data_plane {
                    data_plane.welcome = Some(DataPlaneStatus { pid, workers });
                }
            }
            result => {
                let error = text(result, "no welcome");
                log::error!("the data plane does not understand us: {error}");
            }
        }
    }

    fn port_refused(&mut self, name: &str, adding: bool, error: RequestError) {
        log::warn!("port {name}: {error}");
        let now_ms = self.now_ms();
        if let Some(run) = self.ports.get_mut(name) {
            run.refused(adding, error.text, now_ms);
        }
    }

    /// Ports of a data plane whose state is being compared with the desired state.
    fn ports_listed(&mut self, serial: u32, mut all: Vec<PortInfo>, result: Answered) {
        match result {
            Ok(Answer::Ports { ports, more }) => {
                all.extend(ports);
                self.gather(serial, more, all, Pending::SyncPorts, Self::sync_ports);
            }
            result => log::error!("ports of the data plane: {}", text(result, "no list")),
        }
    }

    /// Flows of a switch, from a data plane whose state is being compared with the desired state.
    fn flows_listed(&mut self, switch: SwitchId, mut all: Vec<(Flow, FlowStats)>, result: Answered) {
        match result {
            Ok(Answer::Flows { flows, more }) => {
                let next = next_page(more, switch, &flows, Detail::Full, |(flow, _)| flow.id);
                all.extend(flows);
                let again = |all| Pending::SyncFlows(switch, all);
                self.gather_pages(next, all, again, |control, all| control.sync_flows(switch, all));
            }
            result => {
                let error = text(result, "no list");
                telemetry::limited!(log::Level::Error, "flows of switch {switch}: {error}");
                self.sync_flows(switch, Vec::new());
            }
        }
    }

    /// Statistics of a switch's flows.
    fn flows_polled(&mut self, switch: SwitchId, mut all: Vec<(FlowId, FlowStats)>, result: Answered) {
        match result {
            Ok(Answer::FlowStats { flows, more }) => {
                let next = next_page(more, switch, &flows, Detail::Terse, |(id, _)| *id);
                all.extend(flows);
                let again = |all| Pending::PollFlows(switch, all);
                self.gather_pages(next, all, again, |control, all| control.polled(switch, all));
            }
            result => {
                let error = text(result, "no list");
                telemetry::limited!(log::Level::Error, "flows of switch {switch}: {error}");
                self.polled(switch, Vec::new());
            }
        }
    }

    /// The answer to a user's request.
    fn answered_user(&mut self, serial: u32, pending: Pending, result: Answered) {
        match (pending, result) {
            (Pending::UserPorts(token, question, mut all), Ok(Answer::Ports { ports, more })) => {
                all.extend(ports);
                let Some(data_plane) = &mut self.data_plane else {
                    return;
                };
                if more {
                    let pending = Pending::UserPorts(token, question, all);
                    data_plane.pending.insert(serial, pending);
                } else {
                    data_plane.listed.end(all.len());
                    self.ports_for_user(token, question, all);
                }
            }
            (Pending::UserFlows(token, switch, mut all), Ok(Answer::Flows { flows, more })) => {
                let next = next_page(more, switch, &flows, Detail::Full, |(flow, _)| flow.id);
                all.extend(flows);
                let again = |all| Pending::UserFlows(token, switch, all);
                self.gather_pages(next, all, again, |control, all| {
                    control.flows_for_user(token, all)
                });
            }
            (Pending::User(token, question), Ok(answer)) => self.answer_for_user(token, question, answer),
            (pending, result) => {
                if let Some(token) = pending.user() {
                    self.gathered.remove(&token);
                    let refusal = result
                        .err()
                        .map_or(Refusal::WrongAnswer, |error| Refusal::DataPlane(error.text));
                    self.users.answer(token, &Response::Error(refusal.to_string()));
                }
            }
        }
    }

    /// Goes on when all parts of a list have arrived.
    fn gather<T>(
        &mut self,
        serial: u32,
        more: bool,
        all: Vec<T>,
        again: impl FnOnce(Vec<T>) -> Pending,
        complete: impl FnOnce(&mut Self, Vec<T>),
    ) {
        if !more {
            if let Some(data_plane) = &mut self.data_plane {
                data_plane.listed.end(all.len());
            }
            complete(self, all);
        } else if let Some(data_plane) = &mut self.data_plane {
            data_plane.pending.insert(serial, again(all));
        }
    }

    /// Asks for the next page of a list, if there is one, or goes on when all have arrived.
    fn gather_pages<T>(
        &mut self,
        next: Option<Request>,
        all: Vec<T>,
        again: impl FnOnce(Vec<T>) -> Pending,
        complete: impl FnOnce(&mut Self, Vec<T>),
    ) {
        if let Some(request) = next {
            self.ask(request, Vec::new(), again(all));
            return;
        }
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.listed.end(all.len());
        }
        complete(self, all);
    }
}

/// The request for the flows after this page.
fn next_page<T>(
    more: bool,
    switch: SwitchId,
    page: &[T],
    detail: Detail,
    id: impl Fn(&T) -> FlowId,
) -> Option<Request> {
    let after = page.last().map(id).filter(|_| more);
    after.map(|id| Request::FlowList {
        switch,
        after: Some(id),
        detail,
    })
}

/// Why an answer is not the expected one, for the log.
fn text(result: Answered, otherwise: &str) -> String {
    result.err().map_or_else(|| otherwise.into(), |error| error.text)
}
