//! Answers of the data plane, each handled according to the purpose of its request.

use crate::control::Control;
use crate::data_plane::Answered;
use crate::pending::Pending;
use crate::refusal::Refusal;
use control_protocol::RequestError;
use control_protocol::data_plane::{Answer, Detail, PortInfo, Request};
use flow::{Flow, FlowId, FlowStats, SwitchId};
use management::{DataPlaneStatus, Response};

impl Control {
    /// Handles an answer according to the purpose of its request.
    pub fn answered(&mut self, serial: u32, result: Answered) {
        let ports = self.ports.len();
        let Some(pending) = self.data_plane.take_pending(serial, &result, ports) else {
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
                    self.switches.forget_flow(switch, id);
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

    fn welcomed(&mut self, result: Answered) {
        match result {
            Ok(Answer::Welcome { workers, pid, .. }) => {
                self.data_plane.welcomed(DataPlaneStatus { pid, workers });
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
                self.gather_pages(next, all, again, |control, all| control.polled(switch, &all));
            }
            result => {
                let error = text(result, "no list");
                telemetry::limited!(log::Level::Error, "flows of switch {switch}: {error}");
                self.polled(switch, &[]);
            }
        }
    }

    fn polled(&mut self, switch: SwitchId, flows: &[(FlowId, FlowStats)]) {
        let now_ms = self.now_ms();
        self.switches.polled(switch, flows, &mut self.data_plane, now_ms);
    }

    /// The answer to a user's request.
    fn answered_user(&mut self, serial: u32, pending: Pending, result: Answered) {
        match (pending, result) {
            (Pending::UserPorts(token, question, mut all), Ok(Answer::Ports { ports, more })) => {
                all.extend(ports);
                if more {
                    let pending = Pending::UserPorts(token, question, all);
                    self.data_plane.keep_pending(serial, pending);
                } else {
                    self.data_plane.list_ended(all.len());
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
        if more {
            self.data_plane.keep_pending(serial, again(all));
        } else {
            self.data_plane.list_ended(all.len());
            complete(self, all);
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
            self.data_plane.ask(request, Vec::new(), again(all));
        } else {
            self.data_plane.list_ended(all.len());
            complete(self, all);
        }
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
