//! The data plane as a peer: what this controller asks of it.
//!
//! A new channel is treated the same way whether the data plane or the control process was restarted
//! (`sync`). Upcalls that arrive before its flows are taken over wait ([`Client`]), so that no decision is
//! made without knowing the stations. The end of an upcall is sent before the flow that makes further upcalls
//! unnecessary.

use crate::l2::storm::{self, StormLimits};
use crate::pending::{Pending, Question};
use crate::provider::FlowChange;
use crate::users::Token;
use control_protocol::data_plane::Request;
use controller::{Client, MAX_LISTS};
use flow::{PortId, PortRates, PutMode, Statistics, SwitchId};
use std::os::fd::OwnedFd;

/// The data plane, or that there is none at the moment.
#[derive(Default)]
pub(crate) struct DataPlane {
    pub client: Client<Pending>,
    /// Whether one has listed its ports, so that numbers are known or can be given.
    pub numbered: bool,
}

impl DataPlane {
    /// Whether requests about numbered ports and switches can be sent.
    pub fn is_numbered(&self) -> bool {
        self.client.is_connected() && self.numbered
    }

    /// Sends a request; false when there is no data plane.
    pub fn ask(&mut self, request: Request, fds: Vec<OwnedFd>, pending: Pending) -> bool {
        self.client.ask(request, fds, pending).is_ok()
    }

    /// Changes the rates of frames that a port may send to all others.
    pub fn change_storm_limits(&mut self, port: PortId, before: &StormLimits, after: &StormLimits) {
        for (meter, spec) in storm::changed_meters(port, before, after) {
            self.client.tell(match spec {
                Some(spec) => Request::MeterSet { meter, spec },
                None => Request::MeterDel { meter },
            });
        }
    }

    /// Changes the bandwidths of a port.
    pub fn change_rates(&mut self, port: PortId, rates: PortRates) {
        self.client.tell(Request::PortRates { port, rates });
    }

    /// Sends a request whose failure is shown as a port's problem.
    pub fn ask_port(&mut self, request: Request, fds: Vec<OwnedFd>, name: &str) -> bool {
        let adding = matches!(request, Request::PortAdd(_));
        self.ask(request, fds, Pending::Port(name.into(), adding))
    }

    /// Sends a request on behalf of a user, who is answered when the data plane has answered.
    pub fn ask_for_user(
        &mut self,
        request: Request,
        fds: Vec<OwnedFd>,
        token: Token,
        question: Question,
    ) -> bool {
        let pending = Pending::User(token, Box::new(question));
        match request {
            Request::FlowList { switch, detail, .. } => {
                self.client.ask_for_flows(switch, detail, pending).is_ok()
            }
            request => self.ask(request, fds, pending),
        }
    }

    /// Makes changes to the flows of a switch.
    pub fn put_flows(&mut self, switch: SwitchId, changes: Vec<FlowChange>) {
        for change in changes {
            match change.into_flow(switch) {
                Ok(flow) => {
                    let pending = Pending::Flow(switch, flow.id);
                    let mode = PutMode::CreateOrModify(Statistics::New);
                    self.ask(Request::FlowPut { flow, mode }, Vec::new(), pending);
                }
                Err(id) => self.client.tell(Request::FlowDel { switch, id }),
            }
        }
    }

    /// Whether the number of users who wait for lists has reached its bound, if so many wait for flows.
    pub fn is_listing(&self, for_flows: usize) -> bool {
        let for_ports = self.client.count(Pending::is_list_of_ports);
        for_ports.max(for_flows) >= MAX_LISTS
    }
}
