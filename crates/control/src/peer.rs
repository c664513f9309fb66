//! A channel to another process that never makes the caller wait.
//!
//! What the socket does not take at once is kept, in order, and sent when the socket is writable. The queue
//! needs no bound of its own: what control says is either configuration, or ends an upcall, of which
//! the data plane has a bounded number under way.

use control_protocol::{Channel, ChannelError};
use rustix::event::PollFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The peer is gone.
#[derive(Debug)]
pub struct Gone;

/// Our end of a channel.
#[derive(Debug)]
pub struct Peer<Out> {
    channel: Channel,
    waiting: VecDeque<(Out, Vec<OwnedFd>)>,
}

impl<Out: Serialize> Peer<Out> {
    pub fn new(channel: Channel) -> Self {
        Peer {
            channel,
            waiting: VecDeque::new(),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// What to poll for.
    pub fn interest(&self) -> PollFlags {
        if self.waiting.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Sends, now or later. That the peer is gone is noticed by receiving.
    pub fn send(&mut self, message: Out, fds: Vec<OwnedFd>) {
        self.waiting.push_back((message, fds));
        if self.waiting.len() == 1 {
            self.flush();
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some((message, fds)) = self.waiting.front() {
            let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.channel.try_send(message, &borrowed) {
                Ok(()) => {}
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => log::error!("message not sent: {error}"),
                Err(_) => {
                    self.waiting.clear();
                    return;
                }
            }
            self.waiting.pop_front();
        }
    }

    /// Receives one message, if there is one. Messages that make no sense are logged and skipped.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn receive<In: DeserializeOwned>(&mut self) -> Result<Option<(In, Vec<OwnedFd>)>, Gone> {
        loop {
            match self.channel.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(ChannelError::WouldBlock) => return Ok(None),
                Err(ChannelError::Malformed(error)) => log::error!("message not understood: {error}"),
                Err(error) => {
                    log::debug!("channel: {error}");
                    return Err(Gone);
                }
            }
        }
    }
}
