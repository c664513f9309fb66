//! The data plane as a peer: requests under way, and packets that wait for a decision.
//!
//! A request leaves its purpose under its serial number, which the answer removes again, so that every answer is handled once.
//!
//! A new channel is treated the same way whether the data plane or the control process was restarted (`sync`). Upcalls that
//! arrive before its flows are taken over wait here (the data plane bounds them), so that no decision is made without knowing the
//! stations. Exactly one `Execute` or `Discard` ends each upcall. It is sent before the flow that makes further upcalls unnecessary.

use crate::clean;
use crate::l2::{FlowChange, MASK, storm};
use crate::peer::{Lost, Peer};
use crate::pending::{Pending, Question};
use crate::trust::{
    ABSENCE_MS, Listed, MAX_HELD, MAX_HELD_BYTES, MAX_PENDING, MAX_RETURNING, MAX_USER_LISTS, SYNC_MS,
    are_plausible,
};
use crate::users::Token;
use control_protocol::data_plane::{Answer, Execute, FromDataPlane, Request, ToDataPlane, Upcall, VERSION};
use control_protocol::{Channel, Debt, RequestError};
use flow::{DropReason, Flow, PortId, PutMode, Statistics, SwitchId};
use management::DataPlaneStatus;
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};

pub(crate) type Answered = Result<Answer, RequestError>;

/// The data plane, or that there is none at the moment.
#[derive(Default)]
pub(crate) struct DataPlane {
    link: Option<Link>,
    /// Since when there has been none after there was one, or when we last asked for another.
    absent_since_ms: Option<u64>,
    /// Whether one has listed its ports, so that numbers are known or can be given.
    pub numbered: bool,
    /// Answers that it owes.
    debt: Debt,
}

/// The channel, and the requests under way on it.
struct Link {
    peer: Peer<ToDataPlane>,
    serial: u32,
    pending: HashMap<u32, Pending>,
    welcome: Option<DataPlaneStatus>,
    /// Switches whose flows have not been taken over yet; `None` until ports are known.
    restoring: Option<usize>,
    held: Vec<Upcall>,
    held_bytes: usize,
    /// Entries of lists that are not complete.
    listed: Listed,
    /// It has violated the protocol in a way that is not tolerated even once.
    broken: bool,
    /// When its channel arrived.
    since_ms: u64,
}

impl DataPlane {
    pub fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether requests about numbered ports and switches can be sent.
    pub fn is_numbered(&self) -> bool {
        self.link.is_some() && self.numbered
    }

    /// The descriptor and the events to poll for.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let link = self.link.as_ref()?;
        Some((link.peer.fd(), link.peer.interest()))
    }

    /// Begins with a new channel. The one before has been [taken](Self::take).
    pub fn attach(&mut self, channel: Channel, now_ms: u64) {
        self.absent_since_ms = None;
        self.link = Some(Link {
            peer: Peer::new(channel),
            serial: 0,
            pending: HashMap::new(),
            welcome: None,
            restoring: None,
            held: Vec::new(),
            held_bytes: 0,
            listed: Listed::default(),
            broken: false,
            since_ms: now_ms,
        });
        self.ask(Request::Hello { version: VERSION }, Vec::new(), Pending::Hello);
        self.ask(Request::PortList, Vec::new(), Pending::SyncPorts(Vec::new()));
    }

    /// Ends the channel, and returns the purposes of requests that will not be answered; `None` if there was none.
    pub fn take(&mut self) -> Option<impl Iterator<Item = Pending> + use<>> {
        self.link.take().map(|lost| lost.pending.into_values())
    }

    /// There is none from now on, or another was asked for now.
    pub fn absent_since(&mut self, now_ms: u64) {
        self.absent_since_ms = Some(now_ms);
    }

    /// When one that does not list its state, or does not come back, is to be replaced.
    pub fn overdue_deadline_ms(&self) -> Option<u64> {
        let synchronising = self.link.as_ref().filter(|link| !link.is_synchronised());
        let synchronising = synchronising.map(|link| link.since_ms + SYNC_MS);
        synchronising.or(self.absent_since_ms.map(|since| since + ABSENCE_MS))
    }

    /// When it will have owed an answer for too long.
    pub fn debt_deadline_ms(&self) -> Option<u64> {
        self.debt.due_ms()
    }

    /// Whether it has owed an answer for too long, and the supervisor is to look at it.
    pub fn take_overdue(&mut self, now_ms: u64) -> bool {
        let owes = self.link.as_ref().is_some_and(|link| !link.pending.is_empty());
        self.debt.set(owes, now_ms);
        self.debt.take_overdue(now_ms)
    }

    /// Its process and threads, once it has said so.
    pub fn welcome(&self) -> Option<&DataPlaneStatus> {
        self.link.as_ref()?.welcome.as_ref()
    }

    pub fn welcomed(&mut self, status: DataPlaneStatus) {
        if let Some(link) = &mut self.link {
            link.welcome = Some(status);
        }
    }

    /// Gathers requests from now on, to send many at a time, or gathers no longer.
    pub fn gather(&mut self, gathers: bool) {
        if let Some(link) = &mut self.link {
            link.peer.flush();
            link.peer.gather(gathers);
        }
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// The channel is to be given up.
    pub fn receive(&mut self) -> Result<Option<FromDataPlane>, Lost> {
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        if link.broken {
            return Err(Lost::Malformed);
        }
        let message = link.peer.receive()?;
        if message.is_some() {
            self.debt.heard();
        }
        Ok(message.map(|(message, _)| clean::data_plane(message)))
    }

    /// Sends a request; false when there is no data plane.
    pub fn ask(&mut self, request: Request, fds: Vec<OwnedFd>, pending: Pending) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let serial = link.next_serial();
        link.broken |= link.pending.len() >= MAX_PENDING;
        link.pending.insert(serial, pending);
        link.peer.send(ToDataPlane { serial, request }, fds);
        true
    }

    /// Sends a request that fails only if this process has an error.
    pub fn ask_quietly(&mut self, request: Request) {
        let what = match request {
            Request::PortDel { .. } => "removing a port",
            Request::PortSet { .. } => "changing a port",
            Request::FlowDel { .. } => "removing a flow",
            Request::FlowFlush { .. } => "removing the flows of a switch",
            Request::MeterSet { .. } => "limiting a port",
            _ => "a request",
        };
        self.ask(request, Vec::new(), Pending::Quiet(what));
    }

    /// Changes the packets per second of each class that a port may send to all others; 0 for no limit.
    pub fn change_storm_rate(&mut self, port: PortId, before: u32, rate: u32) {
        if before == rate {
            return;
        }
        for (meter, spec) in storm::meters(port, rate) {
            self.ask_quietly(match spec {
                Some(spec) => Request::MeterSet { meter, spec },
                None => Request::MeterDel { meter },
            });
        }
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
        let pending = match (&request, question) {
            (Request::PortList, question) => Pending::UserPorts(token, question, Vec::new()),
            (Request::FlowList { switch, .. }, _) => Pending::UserFlows(token, *switch, Vec::new()),
            (_, question) => Pending::User(token, question),
        };
        self.ask(request, fds, pending)
    }

    /// Makes changes to the flows of a switch.
    pub fn put_flows(&mut self, switch: SwitchId, changes: Vec<FlowChange>) {
        for change in changes {
            match change {
                FlowChange::Put { id, key, actions } => {
                    let flow = Flow::new(id, switch, key, MASK, actions);
                    let mode = PutMode::CreateOrModify(Statistics::New);
                    let request = Request::FlowPut { flow, mode };
                    self.ask(request, Vec::new(), Pending::Flow(switch, id));
                }
                FlowChange::Del(id) => self.ask_quietly(Request::FlowDel { switch, id }),
            }
        }
    }

    /// Ends an upcall by a request without answer. The packet is left out if too many packets wait to be sent back already.
    pub fn end_upcall(&mut self, request: Request) {
        let Some(link) = &mut self.link else {
            return;
        };
        let (request, weight) = match request {
            Request::Execute(Execute {
                upcall: Some(upcall),
                packet,
                ..
            }) if link.peer.weight() + packet.frame.len() > MAX_RETURNING => {
                let reason = DropReason::ControlLost;
                (Request::Discard { upcall, reason }, 0)
            }
            Request::Execute(execute) => {
                let weight = execute.packet.frame.len();
                (Request::Execute(execute), weight)
            }
            request => (request, 0),
        };
        let serial = link.next_serial();
        let message = ToDataPlane { serial, request };
        link.peer.send_heavy(message, Vec::new(), weight);
    }

    /// Returns an upcall that is to be decided now. Others wait until flows are [taken over](Self::taken_over), or are ended if
    /// too many wait.
    pub fn hold(&mut self, upcall: Upcall) -> Option<Upcall> {
        let Some(link) = self.link.as_mut().filter(|link| link.restoring != Some(0)) else {
            return Some(upcall);
        };
        let bytes = link.held_bytes + upcall.packet.frame.len();
        if link.held.len() < MAX_HELD && bytes <= MAX_HELD_BYTES {
            link.held_bytes = bytes;
            link.held.push(upcall);
        } else {
            let (upcall, reason) = (upcall.id, DropReason::MissQueueFull);
            self.end_upcall(Request::Discard { upcall, reason });
        }
        None
    }

    /// The flows of so many switches are to be taken over.
    pub fn take_over(&mut self, switches: usize) {
        if let Some(link) = &mut self.link {
            link.restoring = Some(switches);
        }
    }

    /// The flows of a switch have been taken over. Returns the upcalls that need not wait any longer.
    pub fn taken_over(&mut self) -> Vec<Upcall> {
        let Some(link) = &mut self.link else {
            return Vec::new();
        };
        let left = link.restoring.unwrap_or(0).saturating_sub(1);
        link.restoring = Some(left);
        if left > 0 {
            return Vec::new();
        }
        std::mem::take(&mut link.held)
    }

    /// Takes the purpose of an answer; `None` if the user's time to wait is over, or if the answer is not plausible while there are so
    /// many ports.
    pub fn take_pending(&mut self, serial: u32, result: &Answered, ports: usize) -> Option<Pending> {
        let link = self.link.as_mut()?;
        let pending = link.pending.remove(&serial)?;
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
        if link.listed.part(entries, more, ports) && are_plausible(flows.iter().map(|(flow, _)| flow), ports)
        {
            return Some(pending);
        }
        link.broken = true;
        // The user is answered when the data plane is detached.
        link.pending.insert(serial, pending);
        None
    }

    /// More answers come for the same request.
    pub fn keep_pending(&mut self, serial: u32, pending: Pending) {
        if let Some(link) = &mut self.link {
            link.pending.insert(serial, pending);
        }
    }

    /// A list of so many entries is complete.
    pub fn list_ended(&mut self, entries: usize) {
        if let Some(link) = &mut self.link {
            link.listed.end(entries);
        }
    }

    /// Whether the number of users who wait for lists has reached its bound, if so many wait for flows.
    pub fn is_listing(&self, for_flows: usize) -> bool {
        let for_ports = self.link.as_ref().map_or(0, Link::user_lists);
        for_ports.max(for_flows) >= MAX_USER_LISTS
    }

    /// A user does not wait for answers any longer.
    pub fn forget_user(&mut self, token: Token) {
        let Some(link) = &mut self.link else {
            return;
        };
        let forgotten = link
            .pending
            .extract_if(|_, pending| pending.user() == Some(token));
        for (_, forgotten) in forgotten {
            link.listed.end(forgotten.gathered());
        }
    }
}

impl Link {
    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// Whether it has listed its ports and flows.
    fn is_synchronised(&self) -> bool {
        self.welcome.is_some() && self.restoring == Some(0)
    }

    /// Lists of ports that users wait for.
    fn user_lists(&self) -> usize {
        let ports = |pending: &&Pending| matches!(pending, Pending::UserPorts(..));
        self.pending.values().filter(ports).count()
    }
}
