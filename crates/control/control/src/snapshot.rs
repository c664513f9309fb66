//! All figures at once, for programs that collect them: the data plane is asked twice, however many ports
//! there are.

use crate::control::Control;
use crate::pending::Question;
use crate::refusal::Refusal;
use crate::serve::{PRODUCT, Served};
use crate::users::Token;
use control_protocol::data_plane::{PortInfo, Request};
use management::{Counters, PortFigures, Process, Reply, Snapshot};
use std::collections::HashMap;

impl Control {
    /// Without a data plane, figures of ports are missing.
    pub fn snapshot(&mut self, token: Token) -> Served {
        let question = Question::Snapshot(None);
        match self.ask_user(token, Request::PortList, vec![], question) {
            Err(Refusal::NoDataPlane) => Ok(Some(Reply::Snapshot(Box::new(self.figures(&[]))))),
            served => served,
        }
    }

    /// Asks for the work of the threads, once those of the ports are there.
    pub fn snapshot_of_ports(&mut self, token: Token, listed: &[PortInfo]) -> Served {
        let snapshot = Box::new(self.figures(listed));
        let question = Question::Snapshot(Some(snapshot));
        self.ask_user(token, Request::Work, vec![], question)
    }

    fn figures(&self, listed: &[PortInfo]) -> Snapshot {
        let listed: HashMap<&str, &PortInfo> = listed
            .iter()
            .map(|info| (info.spec.name.as_str(), info))
            .collect();
        let ports = self.ports.iter().map(|(name, run)| PortFigures {
            name: name.clone(),
            switch: run.wanted.switch.clone(),
            state: self.shown_state(run).into(),
            has_problem: run.trouble().is_some(),
            counters: listed
                .get(name.as_str())
                .map(|info| Counters::from(&info.counters)),
        });
        Snapshot {
            version: PRODUCT.into(),
            warnings: self.warnings().len(),
            processes: self.reported.processes.iter().map(Process::from).collect(),
            switches: self.switch_list(),
            ports: ports.collect(),
            work: None,
        }
    }
}
