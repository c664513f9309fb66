//! Answers of the data plane, each handled according to the purpose of its request.

use crate::control::Control;
use crate::pending::Pending;
use crate::refusal::Refusal;
use control_protocol::RequestError;
use control_protocol::data_plane::Answer;
use controller::Answered;

impl Control {
    /// Handles an answer according to the purpose of its request.
    pub fn answered(&mut self, pending: Pending, result: Answered) {
        let now_ms = self.now_ms();
        match (pending, result) {
            (Pending::Port(name, adding), Err(error)) => self.port_refused(&name, adding, error),
            (Pending::Queue(name), result) => self.queue_opened(&name, result.err().map(|error| error.text)),
            (Pending::Steering(name, mac, mark), result) => self.on_armed(&name, mac, mark, result.is_ok()),
            (Pending::Flow(switch, id), Err(error)) => {
                log::debug!("flow not installed: {error}");
                self.switches.forget_flow(switch, id);
            }
            (Pending::SyncPorts, Ok(Answer::Ports { ports, .. })) => self.sync_ports(ports),
            (Pending::SyncPorts, Err(error)) => log::error!("ports of the data plane: {error}"),
            (Pending::SyncFlows(switch), result) => {
                let flows = listed(result, |answer| match answer {
                    Answer::Flows { flows, .. } => Some(flows),
                    _ => None,
                });
                self.switches.restore(switch, flows, &mut self.data_plane, now_ms);
                self.data_plane.client.compared();
            }
            (Pending::PollFlows(switch), result) => {
                let flows = listed(result, |answer| match answer {
                    Answer::FlowStats { flows, .. } => Some(flows),
                    _ => None,
                });
                self.learn_filters(switch, &flows);
                self.switches.polled(switch, &flows, &mut self.data_plane, now_ms);
            }
            (Pending::Policy, result) => self.policy_answered(result),
            (Pending::P4, result) => self.p4_answered(result),
            (Pending::User(token, question), Ok(answer)) => self.answer_for_user(token, *question, answer),
            (Pending::User(token, _), Err(error)) => {
                self.gathered.remove(&token);
                self.answer_user(token, Err(Refusal::DataPlane(error.text)));
            }
            (Pending::Port(..) | Pending::Flow(..) | Pending::SyncPorts, Ok(_)) => {}
        }
    }

    /// The data plane has taken a queue, or has not for this reason.
    fn queue_opened(&mut self, name: &str, refusal: Option<String>) {
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        let receives = refusal.is_none() && run.no_arrivals.is_none();
        run.no_queue = refusal;
        if receives {
            self.begin_steering(name);
        }
    }

    fn port_refused(&mut self, name: &str, adding: bool, error: RequestError) {
        log::warn!("port {name}: {error}");
        let now_ms = self.now_ms();
        if let Some(run) = self.ports.get_mut(name) {
            run.refused(adding, error.text, now_ms);
        }
    }
}

/// A list of flows; an empty one if there is none.
fn listed<T>(result: Answered, list: impl FnOnce(Answer) -> Option<Vec<T>>) -> Vec<T> {
    match result {
        Ok(answer) => list(answer).unwrap_or_default(),
        Err(error) => {
            telemetry::limited!(log::Level::Error, "flows of the data plane: {error}");
            Vec::new()
        }
    }
}
