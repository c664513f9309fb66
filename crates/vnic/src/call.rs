//! Calls: notifications to a guest's driver that its rings have changed.

use crate::counters::{Calls, add_alone};
use crate::descriptor::{self, Kind, WrongKind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::sync::Arc;

/// How to call a driver: an eventfd (a UNIX socket, with User Mode Linux), or nothing for a driver that polls.
#[derive(Clone, Debug, Default)]
pub struct Call(Option<Arc<Bell>>);

#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    kind: Kind,
    /// The process at the other end leaves the eventfd's flags and counter alone.
    trusted: bool,
}

impl Call {
    /// Takes the descriptor a front end passed. Only kinds that never make a forwarding thread wait are accepted: UNIX
    /// sockets, to which nothing is sent that would have to wait, and eventfds, which are signalled as in `notifier`,
    /// full or not. A trusted eventfd is written to, which takes half the time.
    pub(crate) fn new(fd: Option<OwnedFd>, trusted: bool) -> Result<Call, WrongKind> {
        let Some(fd) = fd else { return Ok(Call(None)) };
        let kind = descriptor::bell(fd.as_fd(), "call")?;
        if kind == Kind::Eventfd && (trusted || notifier::prepare().is_err()) {
            // If this fails, so will calling.
            let flags = rustix::fs::fcntl_getfl(&fd).unwrap_or(OFlags::empty());
            let _ = rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK);
        }
        Ok(Call(Some(Arc::new(Bell { fd, kind, trusted }))))
    }

    /// Calls the driver if `wanted`. A descriptor that made the thread wait until it was interrupted is not used again.
    pub(crate) fn notify(&mut self, wanted: bool, account: &Calls) {
        if !wanted {
            add_alone(&account.suppressed, 1);
            return;
        }
        add_alone(&account.made, 1);
        let Some(bell) = &self.0 else { return };
        // Other failures mean that an earlier call is still pending at the driver.
        if bell.ring() == Err(Errno::INTR) {
            telemetry::limited!(
                log::Level::Warn,
                "a call descriptor blocks; it is not used any more"
            );
            self.0 = None;
        }
    }

    /// Whether calling never waits, so that any thread may do it.
    pub(crate) fn never_waits(&self) -> bool {
        let waits = |bell: &Bell| bell.kind == Kind::Eventfd && !bell.trusted && notifier::prepare().is_err();
        !self.0.as_deref().is_some_and(waits)
    }
}

impl Bell {
    fn ring(&self) -> Result<(), Errno> {
        let one = 1u64.to_ne_bytes();
        if self.kind == Kind::UnixSocket {
            return send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop);
        }
        if self.trusted {
            return self.write();
        }
        notifier::signal(self.fd.as_fd()).or_else(|_| self.write())
    }

    /// Used with a trusted peer, or where no asynchronous I/O context is available. A flag prevents waiting, but it is shared
    /// with the other end, which may clear it and fill the counter at any moment: forwarding threads have a watchdog for that.
    fn write(&self) -> Result<(), Errno> {
        rustix::io::write(&self.fd, &1u64.to_ne_bytes()).map(drop)
    }
}
