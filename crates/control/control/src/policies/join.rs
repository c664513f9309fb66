//! Policies joined with the data plane, ports and users.

use super::held::Wanted;
use super::{Next, PolicyRun};
use crate::control::Control;
use crate::pending::{Pending, Question};
use crate::users::Token;
use control_protocol::data_plane::{Answer, Request};
use controller::Answered;
use flow::{Filter, Filters, Mirror, PortId};
use management::{Reply, Response};
use policy::{ACLS, GUARDS, MARKS, PortMirror};
use rule_list::ListId;
use std::collections::HashMap;

impl Control {
    /// What is wanted may have changed: policies, or numbers of ports.
    pub fn policies_changed(&mut self) {
        let numbered = self
            .ports
            .iter()
            .filter_map(|(name, run)| Some((name.as_str(), run.id?)));
        let numbers: HashMap<&str, PortId> = numbered.collect();
        let wanted = Wanted::of(&self.state.policies, &numbers);
        self.policies.want(wanted);
        self.advance_policies();
        self.send_mirrors();
    }

    /// Sends what is to be sent, and answers users who wait for it.
    pub fn advance_policies(&mut self) {
        if !self.data_plane.is_numbered() {
            return;
        }
        loop {
            match self.policies.next() {
                Next::Wait => return,
                Next::Ask(requests) => {
                    for request in requests {
                        self.data_plane
                            .ask(Request::Rules(request), Vec::new(), Pending::Policy);
                    }
                }
                Next::Filters => {
                    let sent = self.send_filters();
                    self.policies.sent(sent);
                }
                Next::Settled => break,
            }
        }
        for (token, reply) in std::mem::take(&mut self.unsettled) {
            let barrier = Question::Barrier(reply);
            let served = self.ask_user(token, Request::Barrier, vec![], barrier);
            self.answer_user(token, served);
        }
    }

    /// Keeps the answer to a user until the data plane obeys what is wanted. False if it does already.
    pub fn unsettle(&mut self, token: Token, reply: &Reply) -> bool {
        let waits = self.policies.is_under_way();
        if waits {
            self.unsettled.push((token, reply.clone()));
        }
        waits
    }

    /// The data plane has answered a request about policies.
    pub fn policy_answered(&mut self, result: Answered) {
        let answer = match result {
            Ok(Answer::Rules(answer)) => Ok(Some(answer)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.text),
        };
        if let Some(refused) = self.policies.answered(answer) {
            log::error!("policies: {refused}");
        }
        self.advance_policies();
    }

    /// The data plane, and users who wait for it, are gone.
    pub fn lose_policies(&mut self) {
        self.policies.lose();
        for (token, reply) in std::mem::take(&mut self.unsettled) {
            // The next data plane gets the change as well.
            self.users.answer(token, &Response::Ok(reply));
        }
    }

    /// The filters that a port should have.
    pub fn filters(&self, name: &str) -> Filters {
        let switch = self
            .ports
            .get(name)
            .and_then(|run| self.switches.runs.get(&run.wanted.switch));
        let mut filters = switch.map(|run| run.chain.filters()).unwrap_or_default();
        let lists = self.state.policies.ports.get(name).copied().unwrap_or_default();
        let put = |filter: &mut Filter, list: Option<ListId>| {
            if let Some(list) = list {
                *filter = Filter::Rules(list);
            }
        };
        put(&mut filters.ingress[GUARDS], lists.guards);
        put(&mut filters.ingress[ACLS], lists.from);
        put(&mut filters.egress[ACLS], lists.to);
        put(&mut filters.ingress[MARKS], lists.marks);
        filters
    }

    /// The mirrors that a port should have. Those to ports without a number are left out.
    pub fn mirrors(&self, name: &str) -> Vec<Mirror> {
        let wanted = self.state.policies.mirrors.get(name);
        let mirror = |mirror: &PortMirror| {
            Some(Mirror {
                to: self.ports.get(&mirror.destination)?.id?,
                packets: mirror.packets,
                list: mirror.list,
                length: mirror.length,
                vlan: mirror.vlan,
            })
        };
        wanted.into_iter().flatten().filter_map(mirror).collect()
    }

    /// Gives ports of the data plane the mirrors that they should have.
    fn send_mirrors(&mut self) {
        if !self.data_plane.is_numbered() {
            return;
        }
        let names = self.ports.keys().cloned().collect::<Vec<_>>();
        for name in names {
            let mirrors = self.mirrors(&name);
            let Some(run) = self.ports.get_mut(&name).filter(|run| run.added) else {
                continue;
            };
            if let Some(port) = run.id.filter(|_| run.mirrors != mirrors) {
                run.mirrors = mirrors.clone();
                self.data_plane
                    .client
                    .tell(Request::PortMirrors { port, mirrors });
            }
        }
    }

    /// Gives ports of the data plane the filters that they should have. Returns how many requests that took.
    fn send_filters(&mut self) -> usize {
        let wanted: Vec<(String, PortId, Filters)> = self
            .ports
            .iter()
            .filter_map(|(name, run)| {
                let filters = self.filters(name);
                let differs = run.added && run.filters != filters;
                differs.then_some((name.clone(), run.id?, filters))
            })
            .collect();
        for (name, port, filters) in &wanted {
            let (port, filters) = (*port, *filters);
            self.data_plane.ask(
                Request::PortFilters { port, filters },
                Vec::new(),
                Pending::Policy,
            );
            if let Some(run) = self.ports.get_mut(name) {
                run.filters = filters;
            }
        }
        wanted.len()
    }
}

impl PolicyRun {
    /// Whether the data plane is on its way to what is wanted.
    fn is_under_way(&self) -> bool {
        self.current.is_some() || !self.steps.is_empty()
    }
}
