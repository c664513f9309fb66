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

/// Messages that are [gathered](Peer::gather) before they are sent.
const TOGETHER: usize = 32;

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
    /// Whether messages are gathered.
    gathers: bool,
    malformed: u32,
    deaf: bool,
}

impl<Out: Serialize> Peer<Out> {
    pub fn new(channel: Channel) -> Self {
        Peer {
            channel,
            waiting: VecDeque::new(),
            weight: 0,
            gathers: false,
            malformed: 0,
            deaf: false,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// The events to poll for. If a message was received already, polling for room makes `poll` return at once most often; if there is
    /// no room, the peer will make some, or has sent something.
    pub fn interest(&self) -> PollFlags {
        if self.waiting.is_empty() && !self.channel.has_received() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Sum of the weights of messages that wait to be sent.
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
        let enough = if self.gathers { TOGETHER } else { 1 };
        if self.waiting.len() == enough {
            self.flush();
        }
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
        while !self.waiting.is_empty() {
            let sent = match self.send_some() {
                Ok(count) => count,
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Malformed(error)) => {
                    log::error!("message not sent: {error}");
                    1
                }
                Err(_) => self.waiting.len(),
            };
            let sent = self.waiting.drain(..sent);
            self.weight -= sent.map(|sent| sent.weight).sum::<usize>();
        }
    }

    /// Sends the first of the messages that wait, with those after it that may go with it; returns how many. If one cannot be sent,
    /// it is the first.
    fn send_some(&self) -> Result<usize, ChannelError> {
        let together = self.waiting.iter().take_while(|waiting| waiting.fds.is_empty());
        match self
            .channel
            .try_send_all(together.map(|waiting| &waiting.message))
        {
            Ok(0) | Err(ChannelError::Malformed(_)) => {}
            result => return result,
        }
        let Some(first) = self.waiting.front() else {
            return Ok(0);
        };
        let borrowed: Vec<_> = first.fds.iter().map(|fd| fd.as_fd()).collect();
        self.channel.try_send(&first.message, &borrowed).map(|()| 1)
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
    fn what_is_gathered_arrives_in_order() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut peer: Peer<u32> = Peer::new(ours);
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        peer.gather(true);
        for number in 0..3 {
            peer.send(number, Vec::new());
        }
        peer.send(3, vec![file()]);
        peer.send(4, Vec::new());
        assert!(matches!(theirs.try_recv::<u32>(), Err(ChannelError::WouldBlock)));
        peer.gather(false);
        for number in 0..5 {
            let (got, fds) = theirs.try_recv::<u32>().unwrap();
            assert_eq!((got, fds.len()), (number, usize::from(number == 3)));
        }
        // Not without end.
        peer.gather(true);
        for number in 0..40 {
            peer.send(number, Vec::new());
        }
        let arrived = std::iter::from_fn(|| theirs.try_recv::<u32>().ok());
        assert_eq!(arrived.count(), TOGETHER);
    }

    /// The others are sent all the same.
    #[test]
    fn a_message_that_is_too_long_is_dropped() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut peer: Peer<Vec<u8>> = Peer::new(ours);
        peer.gather(true);
        for len in [1, control_protocol::MAX_MESSAGE + 1, 2] {
            peer.send(vec![0; len], Vec::new());
        }
        peer.gather(false);
        for len in [1, 2] {
            assert_eq!(theirs.try_recv::<Vec<u8>>().unwrap().0.len(), len);
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
