//! The glue: the socket, the switch behind it, and upcalls on their way from the data plane to ovs-vswitchd.

use crate::connection::Delivery;
use crate::datapath::Datapath;
use crate::placeholder::Placeholders;
use crate::server::{Limits, Ready, Server, ServerCounters, ServerError};
use crate::switch::{Next, Switch};
use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd};
use std::cell::Cell;
use std::path::Path;

/// Upcalls forwarded before requests have their turn.
const UPCALL_BURST: usize = 64;
/// Time between looks for room while upcalls wait, in nanoseconds: at first, and when nothing was read for
/// long. ovs-vswitchd says something sooner, mostly.
const PAUSES: (i64, i64) = (500_000, 32_000_000);
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// See the module. One thread owns it.
pub struct Glue<D: Datapath, P: Placeholders> {
    server: Server,
    /// As of the last turn.
    ready: Ready,
    /// As of the last turn.
    upcalls: Upcalls,
    /// Time until the next look for room.
    pause: Timespec,
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
            upcalls: Upcalls::None,
            pause: AT_ONCE,
            switch,
        })
    }

    /// Waits for requests, at most `timeout` (`None`: for ever), and serves them; then forwards upcalls. To
    /// be called again when its descriptor is readable, and when the data plane has upcalls or carriers to
    /// tell. `true`: there may be more to do already.
    ///
    /// # Errors
    ///
    /// The kernel refused to wait.
    pub fn turn(&mut self, timeout: Option<&Timespec>) -> Result<bool, ServerError> {
        self.switch.datapath.flush();
        let timeout = match self.upcalls {
            _ if self.switch.can_go_on() => Some(&AT_ONCE),
            Upcalls::Wait if timeout.is_none_or(|timeout| *timeout > self.pause) => Some(&self.pause),
            _ => timeout,
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
        self.upcalls = self.forward_upcalls();
        self.server.send_delivered();
        Ok(self.upcalls == Upcalls::More)
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

    /// Forwards upcalls, as far as there are some whose sockets have room. Others stay with the data plane,
    /// whose queues are per port: so the port that floods loses. One whose socket is gone is lost, as from
    /// the kernel, unless all are, as when ovs-vswitchd starts again.
    fn forward_upcalls(&mut self) -> Upcalls {
        let server = &mut self.server;
        let serves = server.look_for_room(self.switch.upcall_sockets());
        let waits = Cell::new(false);
        self.pause.tv_nsec = (2 * self.pause.tv_nsec).clamp(PAUSES.0, PAUSES.1);
        for _ in 0..UPCALL_BURST {
            let may_go = |socket| {
                let goes = server.has_room(socket) || serves && !server.is_open(socket);
                waits.set(waits.get() || !goes && serves);
                goes
            };
            match self.switch.next_upcall(may_go) {
                Next::Nothing if waits.get() => return Upcalls::Wait,
                Next::Nothing => return Upcalls::None,
                Next::Lost => {}
                Next::Message(datapath, socket, message) => {
                    self.pause.tv_nsec = PAUSES.0;
                    if server.deliver(socket, &message) != Delivery::Taken {
                        self.switch.upcall_lost(datapath);
                    }
                }
            }
        }
        Upcalls::More
    }
}

/// Upcalls that were not forwarded yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upcalls {
    /// There are none.
    None,
    /// There may be some whose sockets have room.
    More,
    /// Sockets of clients have no room.
    Wait,
}

impl<D: Datapath, P: Placeholders> AsFd for Glue<D, P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.server.as_fd()
    }
}
