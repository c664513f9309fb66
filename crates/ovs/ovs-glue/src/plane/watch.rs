//! One descriptor for the channels to data plane and driver domain, which come and go.

use rustix::event::{PollFlags, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// A channel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    DataPlane,
    Driver,
}

/// Readable when a channel has the events that its client waits for.
#[derive(Debug)]
pub(super) struct Watch {
    events: OwnedFd,
    /// What is waited for of each channel; `None`: it is not known here.
    watched: [Option<PollFlags>; 2],
}

impl Watch {
    pub fn new() -> std::io::Result<Watch> {
        Ok(Watch {
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: [None; 2],
        })
    }

    /// The channel was closed, and so is not waited for any longer.
    pub fn forget(&mut self, peer: Peer) {
        self.watched[peer as usize] = None;
    }

    /// From now on these events are waited for.
    pub fn follow(
        &mut self,
        peer: Peer,
        interest: Option<(BorrowedFd<'_>, PollFlags)>,
    ) -> std::io::Result<()> {
        let watched = &mut self.watched[peer as usize];
        let Some((channel, flags)) = interest.filter(|(_, flags)| *watched != Some(*flags)) else {
            return Ok(());
        };
        let mut events = epoll::EventFlags::IN;
        events.set(epoll::EventFlags::OUT, flags.contains(PollFlags::OUT));
        let data = epoll::EventData::new_u64(0);
        match watched.replace(flags) {
            Some(_) => epoll::modify(&self.events, channel, data, events)?,
            None => epoll::add(&self.events, channel, data, events)?,
        }
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
