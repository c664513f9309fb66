//! The channel to the data plane. Nothing waits for it: what it has no room for is kept, in order.

use control_protocol::data_plane::{FromDataPlane, Request, ToDataPlane};
use control_protocol::{Channel, ChannelError};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;

/// See the module. Its descriptor is readable when the channel can be read, or written to where something waits.
#[derive(Debug)]
pub(super) struct Link {
    events: OwnedFd,
    channel: Option<Channel>,
    waiting: VecDeque<(ToDataPlane, Vec<OwnedFd>)>,
    serial: u32,
    is_full: bool,
}

/// What was received.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one receive; a box would only add an allocation"
)]
pub(super) enum Received {
    Message(FromDataPlane),
    /// No message.
    Garbage,
    /// Nothing for now.
    Nothing,
    Gone,
}

impl Link {
    pub fn new() -> std::io::Result<Link> {
        Ok(Link {
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            channel: None,
            waiting: VecDeque::new(),
            serial: 0,
            is_full: false,
        })
    }

    pub fn connect(&mut self, channel: Channel) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.events, &channel, data, epoll::EventFlags::IN)?;
        self.channel = Some(channel);
        self.is_full = false;
        Ok(())
    }

    /// Whether there was one.
    pub fn disconnect(&mut self) -> bool {
        self.waiting.clear();
        self.channel.take().is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.channel.is_some()
    }

    /// Messages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a request and returns its number. Without a data plane it is forgotten.
    pub fn push(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        if self.channel.is_some() {
            self.waiting
                .push_back((ToDataPlane { serial, request }, descriptors));
        }
        serial
    }

    /// Sends what there is room for.
    pub fn send(&mut self) {
        while let (Some(channel), Some((message, descriptors))) = (&self.channel, self.waiting.front()) {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match channel.try_send(message, &descriptors) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(ChannelError::WouldBlock) => break,
                // That it has gone is noticed by who reads.
                Err(ChannelError::Closed) => self.waiting.clear(),
                Err(error) => {
                    log::error!("cannot tell the data plane: {error}");
                    self.waiting.pop_front();
                }
            }
        }
        self.watch();
    }

    fn watch(&mut self) {
        let is_full = !self.waiting.is_empty();
        if is_full != self.is_full
            && let Some(channel) = &self.channel
        {
            let wanted = if is_full {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            // It can only fail for descriptors that are not there.
            let _ = epoll::modify(&self.events, channel, epoll::EventData::new_u64(0), wanted);
            self.is_full = is_full;
        }
    }

    pub fn receive(&self) -> Received {
        let Some(channel) = &self.channel else {
            return Received::Nothing;
        };
        match channel.try_recv::<FromDataPlane>() {
            Ok((message, _)) => Received::Message(message),
            Err(ChannelError::WouldBlock) => Received::Nothing,
            Err(ChannelError::Malformed(error)) => {
                log::debug!("data plane: {error}");
                Received::Garbage
            }
            Err(_) => Received::Gone,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
