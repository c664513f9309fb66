//! A channel to another process that never makes the caller wait, and that is given up when the other side violates the
//! protocol.
//!
//! Messages that the socket does not take at once are kept, in order, and sent when the socket is writable. A correct peer
//! needs no bound for that: a message of the control process is either configuration, or ends an upcall, of which the data
//! plane has a bounded number under way. For a peer that reads nothing, or sends malformed messages, there are bounds far
//! beyond that, and a process that reaches them is [replaced](crate::trust).

use crate::clean;
use control_protocol::{Channel, ChannelError};
use rustix::event::PollFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Malformed messages that are tolerated before the peer is given up.
const MAX_MALFORMED: u32 = 16;

/// Messages that wait to be sent before the peer is given up.
const MAX_WAITING: usize = 1 << 18;

/// Why a channel was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It has closed its end.
    Gone,
    /// It sends messages that are malformed or not allowed.
    Malformed,
    /// It does not read its messages.
    Unresponsive,
}

#[derive(Debug)]
struct Waiting<Out> {
    message: Out,
    fds: Vec<OwnedFd>,
    weight: usize,
}

/// Our end of a channel.
#[derive(Debug)]
pub struct Peer<Out> {
    channel: Channel,
    waiting: VecDeque<Waiting<Out>>,
    /// Sum of the weights of messages that wait.
    weight: usize,
    malformed: u32,
    deaf: bool,
}

impl<Out: Serialize> Peer<Out> {
    pub fn new(channel: Channel) -> Self {
        Peer {
            channel,
            waiting: VecDeque::new(),
            weight: 0,
            malformed: 0,
            deaf: false,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// What to poll for. A message that was received already is as good as one that waits: there is most often room, and if there is
    /// none, the peer will make some, or has sent something.
    pub fn interest(&self) -> PollFlags {
        if self.waiting.is_empty() && !self.channel.has_received() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Sum of the weights of what waits to be sent.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Sends, now or later. That the peer is gone is noticed by receiving.
    pub fn send(&mut self, message: Out, fds: Vec<OwnedFd>) {
        self.send_heavy(message, fds, 0);
    }

    /// As [`send`](Self::send), a message of some [`weight`](Self::weight).
    pub fn send_heavy(&mut self, message: Out, fds: Vec<OwnedFd>, weight: usize) {
        if self.waiting.len() >= MAX_WAITING {
            self.deaf = true;
            return;
        }
        self.weight += weight;
        self.waiting.push_back(Waiting { message, fds, weight });
        if self.waiting.len() == 1 {
            self.flush();
        }
    }

    /// Sends messages that wait, as far as there is room.
    pub fn flush(&mut self) {
        while let Some(first) = self.waiting.front() {
            let borrowed: Vec<_> = first.fds.iter().map(|fd| fd.as_fd()).collect();
            match self.channel.try_send(&first.message, &borrowed) {
                Ok(()) => {}
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => log::error!("message not sent: {error}"),
                Err(_) => {
                    self.waiting.clear();
                    self.weight = 0;
                    return;
                }
            }
            self.weight -= self.waiting.pop_front().map_or(0, |sent| sent.weight);
        }
    }

    /// Receives one message, if there is one. Malformed messages are logged and skipped, up to a bound for the whole
    /// connection.
    ///
    /// # Errors
    /// The channel is given up.
    pub fn receive<In: DeserializeOwned>(&mut self) -> Result<Option<(In, Vec<OwnedFd>)>, Lost> {
        if self.deaf {
            return Err(Lost::Unresponsive);
        }
        while self.malformed <= MAX_MALFORMED {
            match self.channel.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(ChannelError::WouldBlock) => return Ok(None),
                Err(ChannelError::Malformed(error)) => {
                    self.malformed += 1;
                    telemetry::limited!(
                        log::Level::Error,
                        "message not understood: {}",
                        clean::text(&error)
                    );
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send};

    #[test]
    fn a_few_messages_may_make_no_sense() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut peer: Peer<()> = Peer::new(ours);
        let nonsense = || send(&theirs, &[0xff; 9], SendFlags::empty()).unwrap();
        for round in 1..=MAX_MALFORMED {
            nonsense();
            theirs.send(&round, &[]).unwrap();
            assert_eq!(
                peer.receive::<u32>().map(|got| got.map(|(got, _)| got)),
                Ok(Some(round))
            );
        }
        assert!(matches!(peer.receive::<u32>(), Ok(None)));
        nonsense();
        theirs.send(&7u32, &[]).unwrap();
        for _ in 0..3 {
            assert_eq!(
                peer.receive::<u32>().err(),
                Some(Lost::Malformed),
                "and it stays like that"
            );
        }
    }

    #[test]
    fn what_nobody_reads_is_kept_up_to_a_bound() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut peer: Peer<u32> = Peer::new(ours);
        for number in 0..20 {
            peer.send_heavy(number, Vec::new(), 10);
        }
        assert_eq!(peer.weight(), 0, "sent");
        for number in 0..100_000 {
            peer.send_heavy(number, Vec::new(), 1);
        }
        let kept = peer.weight();
        assert!(kept > 90_000 && !peer.deaf, "{kept}");
        for _ in kept..=MAX_WAITING {
            peer.send_heavy(0, Vec::new(), 1);
        }
        assert_eq!(
            (peer.weight(), peer.receive::<u32>().err()),
            (MAX_WAITING, Some(Lost::Unresponsive))
        );
        drop(theirs);
        peer.flush();
        assert_eq!(peer.weight(), 0);
    }
}
