//! The glue: the socket, the switch behind it, and upcalls on their way from the data plane to ovs-vswitchd.

use crate::connection::Delivery;
use crate::datapath::Datapath;
use crate::placeholder::Placeholders;
use crate::server::{Limits, Ready, Server, ServerCounters, ServerError};
use crate::switch::Switch;
use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Upcalls forwarded before requests have their turn.
const UPCALL_BURST: usize = 64;
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// See the module. One thread owns it.
pub struct Glue<D: Datapath, P: Placeholders> {
    server: Server,
    /// As of the last turn.
    ready: Ready,
    /// Datapaths and ports.
    pub switch: Switch<D, P>,
}

impl<D: Datapath, P: Placeholders> Glue<D, P> {
    /// Listens on `path` for the preloaded library. `instance` as in [`Server::listen`].
    ///
    /// # Errors
    ///
    /// The path cannot be bound.
    pub fn listen(
        path: &Path,
        instance: u64,
        limits: Limits,
        switch: Switch<D, P>,
    ) -> Result<Self, ServerError> {
        let server = Server::listen(path, instance, limits)?;
        if let Some(changes) = switch.placeholders.changes() {
            server.wake_for(changes)?;
        }
        if let Some(changes) = switch.datapath.changes() {
            server.wake_for_datapath(changes)?;
        }
        Ok(Self {
            server,
            ready: Ready::default(),
            switch,
        })
    }

    /// Waits for requests, at most `timeout` (`None`: for ever), and serves them; then forwards upcalls. To be called again
    /// when its descriptor is readable, and when the data plane has upcalls or carriers to tell. `true`: there may be more to do
    /// already.
    ///
    /// # Errors
    ///
    /// The kernel refused to wait.
    pub fn turn(&mut self, timeout: Option<&Timespec>) -> Result<bool, ServerError> {
        self.switch.datapath.flush();
        let timeout = if self.switch.can_go_on() {
            Some(&AT_ONCE)
        } else {
            timeout
        };
        self.ready = self.server.turn(&mut self.switch, timeout)?;
        if self.ready.datapath || self.switch.datapath.changes().is_none() {
            self.switch.datapath.exchange();
        } else {
            self.switch.datapath.flush();
        }
        let more = self.server.send_answers(&mut self.switch);
        let are_devices_ready = self.ready.other || self.switch.placeholders.changes().is_none();
        self.switch.follow_devices(are_devices_ready);
        if more {
            return Ok(true);
        }
        let more = (0..UPCALL_BURST).all(|_| self.forward_upcall());
        self.server.send_delivered();
        Ok(more)
    }

    /// Whether something else was readable, as of the last turn.
    pub fn is_other_ready(&self) -> bool {
        self.ready.other
    }

    /// Makes [`Glue::turn`] return when something else is readable as well, which the caller then reads.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn wake_for(&self, other: impl AsFd) -> Result<(), ServerError> {
        self.server.wake_for(other)
    }

    /// What happened to connections so far.
    pub fn counters(&self) -> ServerCounters {
        self.server.counters()
    }

    /// Forwards one upcall, if there is one. While no socket has room, upcalls stay with the data plane, whose queues are per
    /// port: so the port that floods loses. One that cannot be delivered though another socket has room is lost, as from the
    /// kernel.
    fn forward_upcall(&mut self) -> bool {
        let mut sockets = self.switch.upcall_sockets().peekable();
        let wait = sockets.peek().is_some() && !sockets.any(|socket| self.server.has_room(socket));
        drop(sockets);
        if wait {
            return false;
        }
        let Some(upcall) = self.switch.datapath.next_upcall() else {
            return false;
        };
        if let Some((socket, message)) = self.switch.upcall(&upcall)
            && self.server.deliver(socket, &message) != Delivery::Taken
        {
            self.switch.upcall_lost(&upcall);
        }
        true
    }
}

impl<D: Datapath, P: Placeholders> AsFd for Glue<D, P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.server.as_fd()
    }
}
