//! The channel to data plane or driver domain. Nothing waits for it: what it has no room for is kept, in order.

use control_protocol::data_plane::{FromDataPlane, Request, ToDataPlane};
use control_protocol::{Channel, ChannelError};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::marker::PhantomData;

/// See the module. Its descriptor is readable when the channel can be read, or written to where something waits.
#[derive(Debug)]
pub(super) struct Link<S = ToDataPlane, R = FromDataPlane> {
    events: OwnedFd,
    channel: Option<Channel>,
    waiting: VecDeque<(S, Vec<OwnedFd>)>,
    serial: u32,
    is_full: bool,
    received: PhantomData<fn() -> R>,
}

/// What was received.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one receive; a box would only add an allocation"
)]
pub(super) enum Received<R> {
    Message(R),
    /// No message.
    Garbage,
    /// Nothing for now.
    Nothing,
    Gone,
}

impl<S: Serialize, R: DeserializeOwned> Link<S, R> {
    pub fn new() -> std::io::Result<Self> {
        Ok(Link {
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            channel: None,
            waiting: VecDeque::new(),
            serial: 0,
            is_full: false,
            received: PhantomData,
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

    /// Queues a message. Without a peer it is forgotten.
    pub fn queue(&mut self, message: S, descriptors: Vec<OwnedFd>) {
        if self.channel.is_some() {
            self.waiting.push_back((message, descriptors));
        }
    }

    /// Sends what there is room for, messages without descriptors together.
    pub fn send(&mut self) {
        while let (Some(channel), Some((message, descriptors))) = (&self.channel, self.waiting.front()) {
            let sent = if descriptors.is_empty() {
                let bare = self.waiting.iter().take_while(|(_, fds)| fds.is_empty());
                channel.try_send_all(bare.map(|(message, _)| message))
            } else {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                channel.try_send(message, &descriptors).map(|()| 1)
            };
            match sent {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(ChannelError::WouldBlock) => break,
                // That it has gone is noticed by who reads.
                Err(ChannelError::Closed) => self.waiting.clear(),
                Err(error) => {
                    log::error!("a message cannot be sent: {error}");
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

    pub fn receive(&self) -> Received<R> {
        let Some(channel) = &self.channel else {
            return Received::Nothing;
        };
        match channel.try_recv::<R>() {
            Ok((message, _)) => Received::Message(message),
            Err(ChannelError::WouldBlock) => Received::Nothing,
            Err(ChannelError::Malformed(error)) => {
                log::debug!("no message: {error}");
                Received::Garbage
            }
            Err(_) => Received::Gone,
        }
    }
}

impl Link {
    /// Queues a request and returns its number. Without a data plane it is forgotten.
    pub fn push(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        self.queue(ToDataPlane { serial, request }, descriptors);
        serial
    }
}

impl<S, R> AsFd for Link<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
