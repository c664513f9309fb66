//! The data plane comes and goes, and sends messages; what the supervisor is told about it, and about the
//! driver domain.

use crate::control::Control;
use crate::l2::Readiness;
use crate::pending::{Pending, Question};
use crate::port::PortRun;
use crate::refusal::Refusal;
use crate::sources::told_by_rule;
use crate::tell::state_name;
use control_protocol::Channel;
use control_protocol::data_plane::{Connection, FromDataPlane, PortState, Request};
use controller::{Event, Lost};
use flow::{ControllerId, PortId};
use management::Happening;
use std::collections::BTreeMap;

impl Control {
    pub fn attach_data_plane(&mut self, channel: Channel) {
        log::info!("connected to the data plane");
        self.lose_data_plane(None);
        let now_ms = self.now_ms();
        self.data_plane.client.attach(channel, now_ms);
        self.data_plane
            .ask(Request::PortList, Vec::new(), Pending::SyncPorts);
        self.switches.begin_polling(now_ms);
    }

    /// Forgets the data plane, whose channel is to be given up for this reason, and answers the users who
    /// wait for it.
    fn lose_data_plane(&mut self, lost: Option<Lost>) {
        let now_ms = self.now_ms();
        let Some(unanswered) = self.data_plane.client.detach(lost, now_ms) else {
            return;
        };
        let mut answers = BTreeMap::new();
        for pending in unanswered {
            let Pending::User(token, question) = pending else {
                continue;
            };
            let answer = match *question {
                // The next data plane gets the change as well.
                Question::Barrier(done) => Ok(Some(done)),
                _ => Err(Refusal::DataPlaneEnded),
            };
            answers.insert(token, answer);
        }
        for (token, answer) in answers {
            self.gathered.remove(&token);
            self.answer_user(token, answer);
        }
        self.lose_policies();
        self.lose_p4();
        self.ports.values_mut().for_each(|run| run.forget_data_plane());
        self.vcpus.forget();
    }

    /// Reads messages; answers to them are sent together.
    pub fn on_data_plane(&mut self, burst: usize) {
        self.data_plane.client.gather(true);
        self.read_data_plane(burst);
        self.data_plane.client.gather(false);
    }

    fn read_data_plane(&mut self, burst: usize) {
        for _ in 0..burst {
            match self.data_plane.client.receive(self.ports.len()) {
                Ok(Some(Event::Answered(pending, result))) => self.answered(pending, result),
                Ok(Some(Event::Upcall(upcall))) => {
                    let now_ms = self.now_ms();
                    match told_by_rule(&upcall) {
                        Some(rule) => self.on_packet_of_source(upcall, rule, now_ms),
                        None => self.switches.decide(upcall, &mut self.data_plane, now_ms),
                    }
                }
                Ok(Some(Event::Port(changed))) => self.on_port(changed),
                Ok(Some(Event::RuleRecords(records))) => self.on_rule_records(records),
                Ok(None) => return,
                Err(lost) => return self.lose_data_plane(Some(lost)),
            }
        }
    }

    fn on_port(&mut self, changed: FromDataPlane) {
        match changed {
            FromDataPlane::PortState {
                port,
                state,
                peer,
                shortfall,
            } => {
                self.shortfall_changed(port, shortfall);
                self.port_changed(port, state, peer);
            }
            FromDataPlane::ForeignPort {
                port,
                connection,
                state,
                peer,
            } => self.foreign_port_changed(port, connection, &state, peer),
            FromDataPlane::Answer { .. } | FromDataPlane::Upcall(_) | FromDataPlane::RuleRecords(_) => {}
        }
    }

    /// Gives up a data plane that does not say what it has, and tells the supervisor of peers that do not do
    /// what they owe.
    pub fn watch_peers(&mut self, now_ms: u64) {
        if let Err(lost) = self.data_plane.client.check(now_ms) {
            self.lose_data_plane(Some(lost));
        }
        let data_plane = std::iter::from_fn(|| self.data_plane.client.complaint(now_ms));
        let driver = std::iter::from_fn(|| self.driver.complaint(now_ms));
        data_plane
            .chain(driver)
            .for_each(|complaint| self.supervisor.complain(complaint));
    }

    fn shortfall_changed(&mut self, id: PortId, shortfall: Option<String>) {
        if let Some(run) = self.names.get(&id).and_then(|name| self.ports.get_mut(name)) {
            run.shortfall = shortfall;
        }
    }

    fn port_changed(&mut self, id: PortId, state: PortState, peer: Option<u32>) {
        let now_ms = self.now_ms();
        let Some(name) = self.names.get(&id) else {
            return;
        };
        let Some(run) = self.ports.get_mut(name) else {
            return;
        };
        if state == PortState::Running && run.state == state && run.peer == peer {
            return self.vcpus.look(id);
        }
        log::debug!("port {name}: {state:?}");
        let told = Happening::PortState {
            port: name.clone(),
            switch: run.wanted.switch.clone(),
            state: state_name(&state).into(),
            pid: peer,
        };
        let is_news = run.state != state || run.peer != peer;
        run.peer = peer;
        run.on_state(state, now_ms);
        if run.added {
            self.vcpus.on_port(id, run.is_interface(), &run.state, peer);
        }
        self.switches.port_changed(&run.wanted.switch, id);
        if is_news {
            self.tell(told);
        }
        self.refresh_stale(now_ms);
    }

    /// Does what is due of the work that ports cause which come and go, and stations which move.
    pub fn refresh_stale(&mut self, now_ms: u64) {
        let readiness = |id| {
            let run = self.names.get(&id).and_then(|name| self.ports.get(name));
            run.map_or(Readiness::Disconnected, PortRun::readiness)
        };
        self.switches
            .refresh_stale(readiness, &mut self.data_plane, now_ms);
    }

    /// A port of another controller has changed, or its guest's threads are to be looked up anew.
    fn foreign_port_changed(
        &mut self,
        id: PortId,
        connection: Connection,
        state: &PortState,
        peer: Option<u32>,
    ) {
        // Numbers that no such port has come from a data plane that lies.
        if id.0 >= PortId::LIMIT || ControllerId::BUILT_IN.owns(id) {
            return;
        }
        if *state == PortState::Disconnected {
            self.vcpus.removed(id);
        } else {
            self.vcpus
                .look_anew(id, connection == Connection::Driver, state, peer);
        }
    }
}
