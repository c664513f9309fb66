//! A channel with messages that wait for room: the broker waits for no other process.

use control_protocol::{Channel, ChannelError};
use rustix::event::PollFlags;
use serde::Serialize;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Messages that wait at most. A process that lets more of them wait does not read.
const MOST: usize = 16_384;

pub struct Outbox<M> {
    pub channel: Channel,
    waiting: VecDeque<(M, Vec<OwnedFd>)>,
}

/// Error: the other process does not read.
#[derive(Debug)]
pub struct Full;

impl<M: Serialize> Outbox<M> {
    pub fn new(channel: Channel) -> Outbox<M> {
        Outbox {
            channel,
            waiting: VecDeque::new(),
        }
    }

    /// Sends a message behind those that wait.
    pub fn send(&mut self, message: M, fds: Vec<OwnedFd>) -> Result<(), Full> {
        if self.waiting.len() >= MOST {
            return Err(Full);
        }
        self.waiting.push_back((message, fds));
        self.flush();
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some((message, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.channel.try_send(message, &fds) {
                Err(ChannelError::WouldBlock) => return,
                Ok(()) => {}
                // The end of the channel is noticed when it is read.
                Err(error) => log::debug!("a message is lost: {error}"),
            }
            self.waiting.pop_front();
        }
    }

    /// The events to poll for.
    pub fn interest(&self) -> PollFlags {
        if self.waiting.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }
}
