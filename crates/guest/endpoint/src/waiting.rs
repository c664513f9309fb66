//! When there is something to do: frames, room for frames, timers, or another data plane.

use crate::attached::{AttachError, Attached};
use crate::{Endpoint, EndpointError};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Time between attempts to connect to another data plane.
const RETRY: Duration = Duration::from_millis(20);
/// How often it is looked whether the data plane is still there, by who does not sleep.
const LOOK: Duration = Duration::from_millis(1);

/// What is waited for.
pub(crate) struct Waiting {
    /// Watches both calls, edge-triggered, and the connection, which hangs up with the data plane.
    events: OwnedFd,
    /// When to connect again, without a data plane.
    retry: Instant,
    /// When to look whether it is still there.
    look: Instant,
}

impl Waiting {
    pub fn new(attached: &Attached) -> Result<Waiting, Errno> {
        let waiting = Waiting {
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            retry: Instant::now(),
            look: Instant::now(),
        };
        waiting.follow(attached)?;
        Ok(waiting)
    }

    /// Watches rings until they are dropped.
    fn follow(&self, attached: &Attached) -> Result<(), Errno> {
        let (none, edge) = (
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        );
        for bell in [&attached.receiver.bell, &attached.transmitter.bell] {
            epoll::add(&self.events, &bell.call, none, edge)?;
        }
        epoll::add(&self.events, &attached.stream, none, epoll::EventFlags::RDHUP)
    }
}

impl AsFd for Endpoint {
    /// Readable when [`Endpoint::poll`] has something to do, after [`Endpoint::prepare`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.events.as_fd()
    }
}

impl Endpoint {
    /// Takes turns until the state of a socket may have changed, or `limit` has passed. Looks at the rings
    /// for as long as [`Settings::spin`](crate::Settings::spin) says, then sleeps. Returns whether it has
    /// changed.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<bool, EndpointError> {
        let begin = Instant::now();
        loop {
            if self.poll()? {
                return Ok(true);
            }
            let passed = begin.elapsed();
            let left = limit.map(|limit| limit.saturating_sub(passed));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            if passed < self.settings.spin {
                std::hint::spin_loop();
                continue;
            }
            let due = self.prepare();
            let until = [left, due].into_iter().flatten().min();
            if until != Some(Duration::ZERO) {
                self.sleep(until)?;
                self.waiting.look = Instant::now();
            }
            if let Some(attached) = &mut self.card.attached {
                attached.disarm();
            }
        }
    }

    /// Prepares to sleep until the descriptor is readable ([`Endpoint::as_fd`]): returns the time until
    /// [`Endpoint::poll`] has something to do without it, zero if it has now.
    pub fn prepare(&mut self) -> Option<Duration> {
        let now = self.now();
        let retry = self.waiting.retry;
        let Some(attached) = &mut self.card.attached else {
            return Some(retry.saturating_duration_since(Instant::now()));
        };
        match attached.arm() {
            Ok(false) => {}
            Ok(true) => return Some(Duration::ZERO),
            Err(error) => {
                self.card.detach(Some(error));
                return Some(Duration::ZERO);
            }
        }
        let delay = self.interface.poll_delay(now, &self.sockets);
        let delay = delay.map(Duration::from);
        // A socket that has something to send, and no room to send it, waits for room.
        let is_full = self.card.is_full();
        delay.filter(|delay| !(is_full && delay.is_zero()))
    }

    fn sleep(&self, limit: Option<Duration>) -> Result<(), Errno> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        match epoll::wait(&self.waiting.events, &mut events, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Connects to the next data plane when the one before has gone and it is time.
    pub(crate) fn attach_anew(&mut self) -> Result<(), EndpointError> {
        let now = Instant::now();
        if now >= self.waiting.look {
            self.waiting.look = now + LOOK;
            if self.card.attached.as_ref().is_some_and(has_hung_up) {
                self.card.detach(None);
            }
        }
        if self.card.attached.is_some() || now < self.waiting.retry {
            return Ok(());
        }
        self.waiting.retry = now + RETRY;
        match Attached::connect(&self.path) {
            Ok(attached) if self.card.offers(&attached) => {
                self.waiting.follow(&attached)?;
                self.card.attached = Some(attached);
            }
            Ok(_) => self.card.problem = Some(AttachError::OffersLess),
            // The next attempt may succeed.
            Err(error) => self.card.problem = Some(error),
        }
        Ok(())
    }
}

fn has_hung_up(attached: &Attached) -> bool {
    let mut fd = [rustix::event::PollFd::new(
        &attached.stream,
        rustix::event::PollFlags::RDHUP,
    )];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fd, Some(&now)).is_ok_and(|ready| ready > 0)
}
