//! Messages that wait until a peer has room for them, in order.
//!
//! Nothing waits for a peer: what its socket does not take at once is kept. A correct peer needs no bound for
//! that. A peer that reads nothing is found out by [`MAX_WAITING`] and [`MAX_BYTES`], which lie far beyond
//! what a correct one leaves unread. A message about a subject takes the place of one about the same subject
//! that still waits.

use control_protocol::{Channel, ChannelError};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

/// Messages that wait before the peer is given up.
pub(crate) const MAX_WAITING: usize = 1 << 18;

/// Bytes of frames in them before the peer is given up.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// What a message is about: a kind of message, and the port or process that it names. The later message says
/// all that the earlier one said.
pub(crate) type Subject = (u8, u32);

#[derive(Debug)]
struct Waiting<Out> {
    /// `None`: a later message has taken its place.
    message: Option<Out>,
    fds: Vec<OwnedFd>,
    bytes: usize,
    subject: Option<Subject>,
}

/// Messages that wait; see the module.
#[derive(Debug)]
pub(crate) struct Outbox<Out> {
    waiting: VecDeque<Waiting<Out>>,
    /// Sum of the bytes of messages that wait.
    bytes: usize,
    /// The number of the message that waits about each subject.
    subjects: HashMap<Subject, u64>,
    /// The number of the first message that waits.
    first: u64,
    is_beyond_bounds: bool,
}

impl<Out> Default for Outbox<Out> {
    fn default() -> Self {
        Outbox {
            waiting: VecDeque::new(),
            bytes: 0,
            subjects: HashMap::new(),
            first: 0,
            is_beyond_bounds: false,
        }
    }
}

impl<Out: Serialize> Outbox<Out> {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a bound was reached, and messages are missing since.
    pub fn is_beyond_bounds(&self) -> bool {
        self.is_beyond_bounds
    }

    /// Queues a message that carries so many bytes of frames. Returns the message whose place it has taken.
    pub fn push(
        &mut self,
        message: Out,
        fds: Vec<OwnedFd>,
        bytes: usize,
        subject: Option<Subject>,
    ) -> Option<Out> {
        if self.waiting.len() >= MAX_WAITING || self.bytes + bytes > MAX_BYTES {
            self.is_beyond_bounds = true;
            return None;
        }
        let number = self.first + self.waiting.len() as u64;
        let earlier = subject.and_then(|subject| self.subjects.insert(subject, number));
        let replaced = earlier.and_then(|earlier| {
            let waiting = &mut self.waiting[usize::try_from(earlier - self.first).ok()?];
            waiting.fds.clear();
            waiting.message.take()
        });
        self.bytes += bytes;
        self.waiting.push_back(Waiting {
            message: Some(message),
            fds,
            bytes,
            subject,
        });
        replaced
    }

    /// Sends messages as far as there is room. If the peer has closed its end, which is noticed by receiving,
    /// they are dropped.
    pub fn send_to(&mut self, channel: &Channel) {
        while !self.waiting.is_empty() {
            let sent = match self.send_some(channel) {
                Ok(count) => count,
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => {
                    log::error!("message not sent: {error}");
                    1
                }
                Err(_) => self.waiting.len(),
            };
            self.remove_first(sent);
        }
    }

    /// Sends the first of the messages, with those after it that may go with it; returns how many places they
    /// had. If one cannot be sent, it is the first.
    fn send_some(&self, channel: &Channel) -> Result<usize, ChannelError> {
        let replaced = self
            .waiting
            .iter()
            .take_while(|waiting| waiting.message.is_none());
        let replaced = replaced.count();
        if replaced > 0 {
            return Ok(replaced);
        }
        let together = self.waiting.iter().take_while(|waiting| waiting.fds.is_empty());
        let together = together.map_while(|waiting| waiting.message.as_ref());
        match channel.try_send_all(together) {
            Ok(0) | Err(ChannelError::Malformed(_)) => {}
            result => return result,
        }
        let Some(Waiting {
            message: Some(message),
            fds,
            ..
        }) = self.waiting.front()
        else {
            return Ok(0);
        };
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        channel.try_send(message, &borrowed).map(|()| 1)
    }

    fn remove_first(&mut self, count: usize) {
        for (number, gone) in (self.first..).zip(self.waiting.drain(..count)) {
            self.bytes -= gone.bytes;
            if let Some(subject) = gone.subject
                && self.subjects.get(&subject) == Some(&number)
            {
                self.subjects.remove(&subject);
            }
        }
        self.first += count as u64;
    }
}
