//! A channel to another process that never makes the caller wait, and that is given up when the other side
//! violates the protocol.

use crate::clean;
use crate::outbox::{Outbox, Subject};
use control_protocol::supervisor::{FromChild, Role};
use control_protocol::{Channel, ChannelError};
use rustix::event::PollFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Violations that are tolerated before the peer is given up: messages that are malformed, or that nobody
/// asked for.
pub(crate) const MAX_VIOLATIONS: u32 = 16;

/// Messages that are [gathered](Link::gather) before they are sent.
const TOGETHER: usize = 32;

/// Why a channel was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The peer has closed its end.
    Gone,
    /// The peer sends messages that are malformed or not allowed.
    Malformed,
    /// The peer does not read its messages, or does not answer.
    Unresponsive,
}

/// Our end of a channel.
#[derive(Debug)]
pub struct Link<Out> {
    channel: Channel,
    outbox: Outbox<Out>,
    gathers: bool,
    violations: u32,
    /// A violation was one that is not tolerated even once.
    is_broken: bool,
}

impl<Out: Serialize> Link<Out> {
    /// Takes a channel.
    pub fn new(channel: Channel) -> Self {
        Link {
            channel,
            outbox: Outbox::default(),
            gathers: false,
            violations: 0,
            is_broken: false,
        }
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// The events to poll for. If a message was received already, polling for room makes `poll` return at
    /// once most often; if there is no room, the peer will make some, or has sent something.
    pub fn interest(&self) -> PollFlags {
        if self.outbox.len() == 0 && !self.channel.has_received() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Messages that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Bytes of frames that wait to be sent.
    pub(crate) fn bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// Sends, now or later. That the peer is gone is noticed by receiving.
    pub fn send(&mut self, message: Out, fds: Vec<OwnedFd>) {
        self.send_about(message, fds, 0, None);
    }

    /// Sends a message with so many bytes of frames, which takes the place of one about the same subject that
    /// waits. Returns that one.
    pub(crate) fn send_about(
        &mut self,
        message: Out,
        fds: Vec<OwnedFd>,
        bytes: usize,
        subject: Option<Subject>,
    ) -> Option<Out> {
        let replaced = self.outbox.push(message, fds, bytes, subject);
        let enough = if self.gathers { TOGETHER } else { 1 };
        if self.outbox.len() == enough {
            self.flush();
        }
        replaced
    }

    /// Gathers messages from now on, to send many at a time, or gathers no longer and sends those that wait.
    pub fn gather(&mut self, gathers: bool) {
        self.gathers = gathers;
        if !gathers {
            self.flush();
        }
    }

    /// Sends messages that wait, as far as there is room.
    pub fn flush(&mut self) {
        self.outbox.send_to(&self.channel);
    }

    /// Violations so far.
    pub(crate) fn violations(&self) -> u32 {
        self.violations
    }

    /// A message is not what may be sent.
    pub(crate) fn count_violation(&mut self, what: &str) {
        self.violations += 1;
        telemetry::limited!(log::Level::Error, "{what}");
    }

    /// A message is what is not tolerated even once.
    pub(crate) fn give_up(&mut self, what: &str) {
        self.count_violation(what);
        self.is_broken = true;
    }

    /// Receives one message, if there is one. Malformed messages are logged and skipped, up to a bound for
    /// the whole connection.
    ///
    /// # Errors
    /// The channel is given up.
    pub fn receive<In: DeserializeOwned>(&mut self) -> Result<Option<(In, Vec<OwnedFd>)>, Lost> {
        if self.outbox.is_beyond_bounds() {
            return Err(Lost::Unresponsive);
        }
        while self.violations <= MAX_VIOLATIONS && !self.is_broken {
            match self.channel.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(ChannelError::WouldBlock) => return Ok(None),
                Err(ChannelError::Malformed(error)) => {
                    self.count_violation(&format!("message not understood: {}", clean::text(&error)));
                }
                Err(error) => {
                    log::debug!("channel: {error}");
                    return Err(Lost::Gone);
                }
            }
        }
        Err(Lost::Malformed)
    }
}

impl Link<FromChild> {
    /// Tells the supervisor something about a peer, once, however long the supervisor does not read.
    pub fn complain(&mut self, complaint: FromChild) {
        let kind = |kind, role: Role| Some((kind, role.number()));
        let subject = match complaint {
            FromChild::Owes(role) => kind(0, role),
            FromChild::Replace(role) => kind(1, role),
            _ => None,
        };
        self.send_about(complaint, Vec::new(), 0, subject);
    }
}
