//! Calls: notifications to a guest's driver that its rings have changed.

use crate::call_cost::{CallCost, Maker};
use crate::call_thread;
use crate::counters::{Calls, add_alone};
use crate::descriptor::{self, Kind, WrongKind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// How to call a driver: an eventfd (a UNIX socket, with User Mode Linux), or nothing for a driver that
/// polls.
#[derive(Clone, Debug, Default)]
pub struct Call(Option<Arc<Bell>>);

/// The ring whose driver is called, whatever the descriptor is.
#[derive(Clone, Debug)]
pub(crate) struct Callee {
    /// The number of its queue.
    pub ring: usize,
    pub cost: Arc<CallCost>,
    /// The process at the other end leaves the eventfd's flags and counter alone.
    pub trusted: bool,
    /// The connection by which the descriptor came. Its gate closes the last descriptor of a socket, whose
    /// `close` may wait.
    #[expect(dead_code, reason = "held until the descriptor is closed")]
    pub line: Option<Arc<UnixStream>>,
}

#[derive(Debug)]
pub(crate) struct Bell {
    // Closed before the line is.
    fd: OwnedFd,
    kind: Kind,
    callee: Callee,
}

impl Call {
    /// Takes the descriptor a front end passed. Only kinds that never make a forwarding thread wait are
    /// accepted: UNIX sockets, to which nothing is sent that would have to wait, and eventfds, which are
    /// signalled as in crate `eventfd`, full or not. A trusted eventfd is written to, which takes half the
    /// time.
    pub(crate) fn new(fd: Option<OwnedFd>, callee: Callee) -> Result<Call, WrongKind> {
        let Some(fd) = fd else { return Ok(Call(None)) };
        let kind = descriptor::bell(fd.as_fd(), "call")?;
        if kind == Kind::Eventfd && (callee.trusted || eventfd::prepare().is_err()) {
            // If this fails, so will calling.
            let flags = rustix::fs::fcntl_getfl(&fd).unwrap_or(OFlags::empty());
            let _ = rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK);
        }
        Ok(Call(Some(Arc::new(Bell { fd, kind, callee }))))
    }

    /// Calls the driver if `wanted`.
    #[inline]
    pub(crate) fn notify(&mut self, wanted: bool, account: &Calls) {
        if wanted {
            self.make(account);
        } else {
            add_alone(&account.suppressed, 1);
        }
    }

    /// Calls the driver. A descriptor that made the thread wait until it was interrupted is not used again.
    #[inline(never)]
    fn make(&mut self, account: &Calls) {
        add_alone(&account.made, 1);
        let Some(bell) = &self.0 else { return };
        // Other failures mean that an earlier call is still pending at the driver.
        if bell.ring(account) == Err(Errno::INTR) {
            telemetry::limited!(
                log::Level::Warn,
                "a call descriptor blocks; it is not used any more"
            );
            self.0 = None;
        }
    }

    /// Whether calling never waits, so that any thread may do it.
    pub(crate) fn never_waits(&self) -> bool {
        let waits = |bell: &Bell| bell.needs_watchdog() && !bell.callee.trusted;
        !self.0.as_deref().is_some_and(waits)
    }
}

impl Bell {
    /// Whether the other end can make a call wait until a watchdog ends it.
    fn needs_watchdog(&self) -> bool {
        self.kind == Kind::Eventfd && eventfd::prepare().is_err()
    }

    /// Makes a call, or leaves it to the call thread. What a trusted peer's call costs is the machine's
    /// doing, and no reason to wait.
    fn ring(self: &Arc<Self>, account: &Calls) -> Result<(), Errno> {
        if self.callee.trusted {
            return self.signal();
        }
        let cost = &self.callee.cost;
        match cost.maker() {
            Maker::Usual => cost.time(|| self.signal()),
            Maker::Watched => cost.measure(|| self.signal()),
            Maker::Apart if self.needs_watchdog() => self.signal(),
            Maker::Apart => {
                add_alone(&account.apart, 1);
                call_thread::leave(cost, self.callee.ring, self);
                Ok(())
            }
        }
    }

    fn signal(&self) -> Result<(), Errno> {
        if self.kind == Kind::Eventfd && self.callee.trusted {
            self.write()
        } else {
            self.signal_apart()
        }
    }

    /// Makes a call by a means with which the other end cannot make the thread wait, if there is one.
    pub(crate) fn signal_apart(&self) -> Result<(), Errno> {
        if self.kind == Kind::UnixSocket {
            let one = 1u64.to_ne_bytes();
            return send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop);
        }
        eventfd::signal(self.fd.as_fd()).or_else(|_| self.write())
    }

    /// Used with a trusted peer, or where no asynchronous I/O context is available. A flag prevents waiting,
    /// but it is shared with the other end, which may clear it and fill the counter at any moment: forwarding
    /// threads have a watchdog for that.
    fn write(&self) -> Result<(), Errno> {
        rustix::io::write(&self.fd, &1u64.to_ne_bytes()).map(drop)
    }
}
