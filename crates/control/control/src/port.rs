//! A port as it runs: what data plane and driver domain have reported, and when to try again.

use crate::groups::Groups;
use crate::l2::Readiness;
use crate::refusal::Problem;
use crate::state::{DesiredPort, Link};
use control_protocol::data_plane::PortState;
use control_protocol::driver::InterfaceState;
use control_protocol::p4::P4Attachment;
use controller::Retry;
use flow::{Filters, Mirror, PortId};
use rustix::fs::Mode;
use socket_path::{Access, SocketPath};
use std::os::fd::OwnedFd;

/// A port as it runs.
pub(crate) struct PortRun {
    /// As it should be.
    pub wanted: DesiredPort,
    /// Number in the data plane; `None` until the data plane has listed the numbers in use.
    pub id: Option<PortId>,
    /// Whether the data plane in use has it.
    pub added: bool,
    /// The filters that the data plane was told.
    pub filters: Filters,
    /// The mirrors that the data plane was told.
    pub mirrors: Vec<Mirror>,
    /// P4 switches that the data plane was told its packets meet.
    pub p4: P4Attachment,
    /// State of the port as the data plane reported it last.
    pub state: PortState,
    /// The process behind it, as the data plane reported it last.
    pub peer: Option<u32>,
    /// Whether the driver domain reports that its interface works.
    pub interface_up: bool,
    /// Our copy of the listening socket: with it, guests that connect while the data plane restarts wait
    /// instead of being refused.
    listener: Option<OwnedFd>,
    /// Why it is not connected, for users.
    pub problem: Option<Problem>,
    /// What its VMM wants and it does not have, as the data plane reported it last.
    pub shortfall: Option<String>,
    /// Why no queue of its device is used although that is wanted, for users.
    pub no_queue: Option<String>,
    /// Why packets do not come by the queue, for users.
    pub no_arrivals: Option<String>,
    /// Filters of the queue by which packets come, if they can.
    pub steering: Option<Box<crate::filters::Filters>>,
    /// When to try to connect, or to see whether that worked.
    pub retry: Retry,
}

impl PortRun {
    pub fn new(wanted: DesiredPort) -> Self {
        PortRun {
            wanted,
            id: None,
            added: false,
            filters: Filters::default(),
            mirrors: Vec::new(),
            p4: P4Attachment::default(),
            state: PortState::Disconnected,
            peer: None,
            interface_up: false,
            listener: None,
            problem: None,
            shortfall: None,
            no_queue: None,
            no_arrivals: None,
            steering: None,
            retry: Retry::default(),
        }
    }

    /// Removes the socket file, if it is ours and not one that another process made before us.
    pub fn remove_socket(&self) {
        if let (Link::Listen(path), true) = (&self.wanted.link, self.added || self.listener.is_some()) {
            socket_path::remove(path);
        }
    }

    /// The data plane had another port of this name, and its listening socket, which may be ours too, goes
    /// with it.
    pub fn clear_the_way(&mut self) {
        if let Link::Listen(path) = &self.wanted.link {
            self.listener = None;
            socket_path::remove(path);
        }
    }

    /// The data plane has reported its state.
    pub fn on_state(&mut self, state: PortState, now_ms: u64) {
        self.retry.on_port_state(&state, now_ms);
        match &state {
            PortState::Running => self.problem = None,
            PortState::Broken(text) => self.problem = Some(Problem::DataPlane(text.clone())),
            PortState::Disconnected | PortState::Connected => {}
        }
        self.state = state;
    }

    /// The driver domain has reported the state of its interface.
    pub fn on_interface_state(&mut self, state: InterfaceState, now_ms: u64) {
        self.interface_up = state == InterfaceState::Up;
        match state {
            InterfaceState::Up => self.problem = None,
            InterfaceState::Disconnected => self.retry.try_later(now_ms),
            InterfaceState::Failed(text) => {
                self.problem = Some(Problem::Driver(text));
                self.retry.try_later(now_ms);
            }
        }
    }

    /// The data plane that had it is gone.
    pub fn forget_data_plane(&mut self) {
        self.added = false;
        self.shortfall = None;
        self.state = PortState::Disconnected;
    }

    /// What is wrong with it, for users.
    pub fn trouble(&self) -> Option<String> {
        let problem = self.problem.as_ref().map(ToString::to_string);
        let texts: Vec<_> = problem.into_iter().chain(self.shortfall.clone()).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Whether packets of its switch can reach it. A program's port is none of the switch.
    pub fn readiness(&self) -> Readiness {
        if self.p4.forwarder.is_some() {
            return Readiness::Disconnected;
        }
        match self.state {
            PortState::Disconnected => Readiness::Disconnected,
            PortState::Connected | PortState::Broken(_) => Readiness::Connected,
            PortState::Running => Readiness::Running,
        }
    }

    pub fn is_interface(&self) -> bool {
        matches!(self.wanted.link, Link::Interface(_))
    }

    /// The data plane refused a request about this port; it is repeated later.
    pub fn refused(&mut self, adding: bool, error: String, now_ms: u64) {
        self.problem = Some(Problem::DataPlane(error));
        self.added &= !adding;
        self.retry.attempted(now_ms);
    }

    /// A listening socket for the data plane, bound if there is none yet.
    pub fn listening(&mut self, path: &SocketPath, groups: &Groups) -> Result<OwnedFd, Problem> {
        let wanted = &self.wanted.access;
        let problem = |error: String| Problem::Listen {
            path: path.path.clone(),
            error,
        };
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                let group = wanted.group.as_ref().map(|group| groups.number(group));
                let access = Access {
                    mode: Mode::from_raw_mode(wanted.mode.bits()),
                    group: group.transpose().map_err(|error| problem(error.to_string()))?,
                };
                let listener =
                    socket_path::listen_at(path, access).map_err(|error| problem(error.to_string()))?;
                // The data plane has a thread that waits in accept.
                rustix::io::ioctl_fionbio(&listener, false).map_err(|error| problem(error.to_string()))?;
                listener
            }
        };
        let copy =
            rustix::io::fcntl_dupfd_cloexec(&listener, 0).map_err(|error| problem(error.to_string()))?;
        self.listener = Some(listener);
        Ok(copy)
    }

    /// The data plane has this port already.
    pub fn adopt(&mut self, state: PortState, peer: Option<u32>, now_ms: u64) {
        self.added = true;
        self.state = state;
        self.peer = peer;
        // An earlier attempt failed because the data plane had the port already.
        self.problem = None;
        // Whether it has to be connected is checked when the attempt is due.
        self.retry.ensure_due(now_ms);
    }
}
