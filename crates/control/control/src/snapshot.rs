//! All figures at once, for programs that collect them: the data plane is asked twice, however many ports
//! there are.

use crate::control::Control;
use crate::order::natural;
use crate::pending::Question;
use crate::refusal::Refusal;
use crate::serve::{PRODUCT, Served};
use crate::users::Token;
use control_protocol::data_plane::Request;
use control_protocol::port_counts::PortCount;
use flow::PortId;
use management::{Counters, DeviceInfo, PortFigures, Process, Reply, Snapshot};
use std::collections::HashMap;

/// What ports have counted, by their numbers.
pub(crate) fn by_port(listed: &[PortCount]) -> HashMap<PortId, &PortCount> {
    listed.iter().map(|count| (count.port, count)).collect()
}

impl Control {
    /// Without a data plane, figures of ports are missing.
    pub fn snapshot(&mut self, token: Token) -> Served {
        let question = Question::Snapshot(None);
        match self.ask_user(token, Request::Counters, vec![], question) {
            Err(Refusal::NoDataPlane) => Ok(Some(Reply::Snapshot(Box::new(self.figures(&[]))))),
            served => served,
        }
    }

    /// Asks for the work of the threads, once those of the ports are there.
    pub fn snapshot_of_ports(&mut self, token: Token, listed: &[PortCount]) -> Served {
        let snapshot = Box::new(self.figures(listed));
        let question = Question::Snapshot(Some(snapshot));
        self.ask_user(token, Request::Work, vec![], question)
    }

    fn figures(&self, listed: &[PortCount]) -> Snapshot {
        let listed = by_port(listed);
        let ports = self.ports.iter().map(|(name, run)| {
            let count = run.id.and_then(|id| listed.get(&id));
            PortFigures {
                name: name.clone(),
                switch: run.wanted.switch.clone(),
                state: self.shown_state(run).into(),
                has_problem: run.trouble().is_some(),
                core: count.and_then(|count| count.core),
                counters: count.map(|count| Counters::from(&count.counters)),
                device: run.id.and_then(|id| self.driver.device(id)).map(DeviceInfo::from),
            }
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort_by(|a, b| natural(&a.name, &b.name));
        Snapshot {
            version: PRODUCT.into(),
            warnings: self.warnings().len(),
            processes: self.reported.processes.iter().map(Process::from).collect(),
            switches: self.switch_list(),
            ports,
            work: None,
        }
    }
}
