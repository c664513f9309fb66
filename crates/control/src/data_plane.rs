//! The data plane as a peer.
//!
//! A new channel is treated the same way whether the data plane or the control process was restarted: we list the data plane's
//! ports, keep those that are as they should be, remove the others and add missing ones; then we list its flows and let the
//! learning switch take them over. Upcalls that arrive before that is done wait (the data plane bounds them), so that no
//! decision is made without knowing the stations.
//!
//! Exactly one `Execute` or `Discard` ends each upcall. It is sent before the flow that makes further upcalls unnecessary.

use crate::answers::Pending;
use crate::clean;
use crate::l2::{FlowChange, MASK};
use crate::peer::{Lost, Peer};
use crate::process::Control;
use crate::refusal::Refusal;
use crate::serve::Question;
use crate::trust::{Listed, MAX_HELD, MAX_HELD_BYTES, MAX_PENDING, MAX_RETURNING, MAX_USER_LISTS};
use crate::users::Token;
use control_protocol::Channel;
use control_protocol::data_plane::{
    Execute, FromDataPlane, PortState, Request, ToDataPlane, Upcall, VERSION,
};
use flow::{DropReason, Flow, PortId, PutMode, Statistics, SwitchId};
use management::{DataPlaneStatus, Response};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

/// The channel, and the requests under way on it.
pub(crate) struct DataPlane {
    pub peer: Peer<ToDataPlane>,
    serial: u32,
    pub pending: HashMap<u32, Pending>,
    pub welcome: Option<DataPlaneStatus>,
    /// Switches whose flows have not been taken over yet; `None` until ports are known.
    pub restoring: Option<usize>,
    pub held: Vec<Upcall>,
    held_bytes: usize,
    /// Entries of lists that are not complete.
    pub listed: Listed,
    /// It has violated the protocol in a way that is not tolerated even once.
    pub broken: bool,
    /// When its channel arrived.
    pub since_ms: u64,
    /// When flows were asked for last.
    pub polled_ms: u64,
    pub polls: usize,
}

impl Control {
    /// Sends a request; false when there is no data plane.
    pub fn ask(&mut self, request: Request, fds: Vec<OwnedFd>, pending: Pending) -> bool {
        let Some(data_plane) = &mut self.data_plane else {
            return false;
        };
        data_plane.serial = data_plane.serial.wrapping_add(1);
        data_plane.broken |= data_plane.pending.len() >= MAX_PENDING;
        data_plane.pending.insert(data_plane.serial, pending);
        data_plane.peer.send(
            ToDataPlane {
                serial: data_plane.serial,
                request,
            },
            fds,
        );
        true
    }

    /// Ends an upcall by a request without answer. The packet is left out if too many packets wait to be sent back already.
    fn end_upcall(&mut self, request: Request) {
        let Some(data_plane) = &mut self.data_plane else {
            return;
        };
        let (request, weight) = match request {
            Request::Execute(Execute {
                upcall: Some(upcall),
                packet,
                ..
            }) if data_plane.peer.weight() + packet.frame.len() > MAX_RETURNING => {
                let reason = DropReason::ControlLost;
                (Request::Discard { upcall, reason }, 0)
            }
            Request::Execute(execute) => {
                let weight = execute.packet.frame.len();
                (Request::Execute(execute), weight)
            }
            request => (request, 0),
        };
        data_plane.serial = data_plane.serial.wrapping_add(1);
        let serial = data_plane.serial;
        let message = ToDataPlane { serial, request };
        data_plane.peer.send_heavy(message, Vec::new(), weight);
    }

    /// Sends a request that fails only if this process has an error.
    pub fn ask_quietly(&mut self, request: Request) {
        let what = match request {
            Request::PortDel { .. } => "removing a port",
            Request::PortSet { .. } => "changing a port",
            Request::FlowDel { .. } => "removing a flow",
            Request::FlowFlush { .. } => "removing the flows of a switch",
            _ => "a request",
        };
        self.ask(request, Vec::new(), Pending::Quiet(what));
    }

    /// Sends a request whose failure is shown as a port's problem.
    pub fn ask_port(&mut self, request: Request, fds: Vec<OwnedFd>, name: &str) -> bool {
        let adding = matches!(request, Request::PortAdd(_));
        self.ask(request, fds, Pending::Port(name.into(), adding))
    }

    /// Whether the number of users who wait for lists has reached its bound.
    pub fn is_listing(&self) -> bool {
        let ports = self.data_plane.as_ref().map_or(0, DataPlane::user_lists);
        ports.max(self.gathered.len()) >= MAX_USER_LISTS
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

    /// A user does not wait for the answer any longer.
    pub fn forget_user(&mut self, token: Token) {
        self.gathered.remove(&token);
        let Some(data_plane) = &mut self.data_plane else {
            return;
        };
        for (_, forgotten) in data_plane
            .pending
            .extract_if(|_, pending| pending.user() == Some(token))
        {
            data_plane.listed.end(forgotten.gathered());
        }
    }

    pub fn attach_data_plane(&mut self, channel: Channel) {
        log::info!("connected to the data plane");
        self.lose_data_plane();
        self.absent_since_ms = None;
        self.data_plane = Some(DataPlane {
            peer: Peer::new(channel),
            serial: 0,
            pending: HashMap::new(),
            welcome: None,
            restoring: None,
            held: Vec::new(),
            held_bytes: 0,
            listed: Listed::default(),
            broken: false,
            since_ms: self.now_ms(),
            polled_ms: self.now_ms(),
            polls: 0,
        });
        self.ask(Request::Hello { version: VERSION }, Vec::new(), Pending::Hello);
        self.ask(Request::PortList, Vec::new(), Pending::SyncPorts(Vec::new()));
    }

    /// Forgets the data plane, and answers the users who wait for it.
    pub fn lose_data_plane(&mut self) {
        let Some(lost) = self.data_plane.take() else {
            return;
        };
        let mut answers = BTreeMap::new();
        for pending in lost.pending.into_values() {
            let ended = || Response::Error(Refusal::DataPlaneEnded.to_string());
            match pending {
                // The next data plane gets the change as well.
                Pending::User(token, Question::Settled(done)) => answers.insert(token, Response::Ok(done)),
                pending => pending.user().and_then(|token| answers.insert(token, ended())),
            };
        }
        for (token, answer) in answers {
            self.gathered.remove(&token);
            self.users.answer(token, &answer);
        }
        let mut threads = Vec::new();
        for run in self.ports.values_mut() {
            run.added = false;
            run.state = PortState::Disconnected;
            threads.extend(run.guest.forget());
        }
        threads.extend(self.vcpus.forget_foreign());
        self.forget_threads(threads);
    }

    /// Reads messages; answers to them are sent together.
    pub fn on_data_plane(&mut self, burst: usize) {
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.peer.flush();
            data_plane.peer.gather(true);
        }
        self.read_data_plane(burst);
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.peer.gather(false);
        }
    }

    fn read_data_plane(&mut self, burst: usize) {
        for _ in 0..burst {
            let Some(data_plane) = &mut self.data_plane else {
                return;
            };
            let broken = data_plane.broken.then_some(Lost::Malformed);
            match broken.map_or_else(|| data_plane.peer.receive(), Err) {
                Ok(Some((message, _))) => match clean::data_plane(message) {
                    FromDataPlane::Answer { serial, result } => self.answered(serial, result),
                    FromDataPlane::Upcall(upcall) => self.upcall(upcall),
                    FromDataPlane::PortState { port, state, peer } => self.port_changed(port, state, peer),
                    FromDataPlane::ForeignPort {
                        port,
                        connection,
                        state,
                        peer,
                    } => self.foreign_port_changed(port, connection, state, peer),
                },
                Ok(None) => return,
                Err(lost) => return self.detach_data_plane(lost),
            }
        }
    }

    fn port_changed(&mut self, port: PortId, state: PortState, peer: Option<u32>) {
        let Some(name) = self.names.get(&port).cloned() else {
            return;
        };
        let Some(run) = self.ports.get_mut(&name) else {
            return;
        };
        if state == PortState::Running && run.state == state && run.peer == peer {
            self.look_at_guest(port);
            return;
        }
        run.peer = peer;
        let switch = run.wanted.switch.clone();
        self.port_state(&name, state);
        self.guest_changed(port);
        self.up_changed(&switch, port);
    }

    /// Decides about a packet.
    pub fn upcall(&mut self, upcall: Upcall) {
        let now_ms = self.now_ms();
        if let Some(data_plane) = &mut self.data_plane
            && data_plane.restoring != Some(0)
        {
            let bytes = data_plane.held_bytes + upcall.packet.frame.len();
            if data_plane.held.len() < MAX_HELD && bytes <= MAX_HELD_BYTES {
                data_plane.held_bytes = bytes;
                data_plane.held.push(upcall);
                return;
            }
            let (upcall, reason) = (upcall.id, DropReason::MissQueueFull);
            return self.end_upcall(Request::Discard { upcall, reason });
        }
        let Upcall {
            id,
            switch,
            key,
            packet,
            ..
        } = upcall;
        let Some(run) = self.switch_by_id(switch) else {
            self.end_upcall(Request::Discard {
                upcall: id,
                reason: DropReason::PortRemoved,
            });
            return;
        };
        let (decision, changes) = run.l2.packet(&key, now_ms);
        match decision.verdict {
            Ok(actions) => {
                let in_port = PortId(key.in_port());
                self.end_upcall(Request::Execute(Execute {
                    upcall: Some(id),
                    in_port,
                    recirc_id: key.recirc_id(),
                    dp_hash: key.dp_hash(),
                    no_ethernet: key.no_ethernet() == 1,
                    actions,
                    packet,
                }));
            }
            Err(reason) => self.end_upcall(Request::Discard { upcall: id, reason }),
        }
        self.put_flows_of(switch, changes);
    }

    pub fn switch_by_id(&mut self, id: SwitchId) -> Option<&mut crate::process::SwitchRun> {
        self.switches.values_mut().find(|run| run.id == Some(id))
    }

    /// Makes changes to the flows of a switch.
    pub fn put_flows(&mut self, name: &str, changes: Vec<FlowChange>) {
        if let Some(id) = self.switch_id(name) {
            self.put_flows_of(id, changes);
        }
    }

    pub fn put_flows_of(&mut self, switch: SwitchId, changes: Vec<FlowChange>) {
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
}

impl DataPlane {
    /// Whether it has listed its ports and flows.
    pub fn is_synchronised(&self) -> bool {
        self.welcome.is_some() && self.restoring == Some(0)
    }

    /// Lists of ports that users wait for.
    fn user_lists(&self) -> usize {
        let ports = |pending: &&Pending| matches!(pending, Pending::UserPorts(..));
        self.pending.values().filter(ports).count()
    }
}
