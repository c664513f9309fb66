//! One controller, as the main thread serves it: its channel, and the messages that wait for it besides the
//! states of its interfaces.
//!
//! The thread does not wait for a controller that does not read: it keeps the number of lists to be sent, and
//! a bounded number of refusals. A controller's interfaces outlive its channel; a successor asks for their
//! list.

use control_protocol::driver::{FromDriver, InterfaceState, ToDriver};
use control_protocol::{Channel, ChannelError};
use flow::{ControllerId, PortId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Refusals kept for a controller at most; further ones are in the log only.
const MAX_REFUSALS: usize = 64;

/// Queues that a controller waits for at most.
const MAX_QUEUES: usize = 64;

/// Answers about filters kept for a controller at most; a controller that does not read gets no others.
const MAX_STEERED: usize = 256;

pub struct Controller {
    pub id: ControllerId,
    pub channel: Option<Channel>,
    /// Answers to `List` that are still to be sent.
    pub lists: u32,
    /// The states of devices are still to be sent.
    pub wants_devices: bool,
    /// Ports for whose devices queues are still to be opened.
    pub wants_queues: BTreeSet<PortId>,
    /// What became of filters, to be told.
    steered: VecDeque<FromDriver>,
    /// Why ports were not attached although it asked for that.
    refusals: BTreeMap<PortId, String>,
}

/// What came from a controller.
pub enum Received {
    /// A message, with its descriptors.
    Message(ToDriver, Vec<OwnedFd>),
    /// A malformed message.
    Malformed,
    /// Nothing now, or it is gone.
    Nothing,
}

impl Controller {
    pub fn new(id: ControllerId, channel: Channel) -> Controller {
        Controller {
            id,
            channel: Some(channel),
            lists: 0,
            wants_devices: false,
            wants_queues: BTreeSet::new(),
            steered: VecDeque::new(),
            refusals: BTreeMap::new(),
        }
    }

    /// The controller's next message.
    pub fn receive(&mut self) -> Received {
        let Some(channel) = &self.channel else {
            return Received::Nothing;
        };
        match channel.try_recv() {
            Ok((message, fds)) => Received::Message(message, fds),
            Err(ChannelError::WouldBlock) => Received::Nothing,
            Err(ChannelError::Malformed(error)) => {
                telemetry::limited_by!(
                    self.id.0.into(),
                    log::Level::Error,
                    "from controller {}: {error}",
                    self.id
                );
                Received::Malformed
            }
            Err(error) => {
                log::info!("controller {}: {error}; forwarding goes on", self.id);
                self.channel = None;
                Received::Nothing
            }
        }
    }

    /// Notes that a port was not attached, to be sent to the controller.
    pub fn refuse(&mut self, port: PortId, reason: String) {
        telemetry::limited_by!(
            self.id.0.into(),
            log::Level::Error,
            "port {port} of controller {}: {reason}",
            self.id
        );
        if self.refusals.len() < MAX_REFUSALS || self.refusals.contains_key(&port) {
            self.refusals.insert(port, reason);
        }
    }

    /// Notes that it wants a queue of a port's device.
    pub fn want_queue(&mut self, port: PortId) {
        if self.wants_queues.len() < MAX_QUEUES {
            self.wants_queues.insert(port);
        }
    }

    /// Notes what became of a filter, to be sent to the controller.
    pub fn note_steered(&mut self, port: PortId, mac: [u8; 6], is_on: bool, result: Result<(), String>) {
        if self.steered.len() < MAX_STEERED {
            self.steered.push_back(FromDriver::Steered {
                port,
                mac,
                is_on,
                result,
            });
        }
    }

    /// Sends what became of filters, as far as there is room.
    pub fn send_steered(&mut self) {
        while let Some(message) = self.steered.front() {
            if !self.send(message) {
                return;
            }
            self.steered.pop_front();
        }
    }

    /// Whether messages wait for it besides states of interfaces.
    pub fn is_owed(&self) -> bool {
        let has_queued = !self.wants_queues.is_empty() || !self.steered.is_empty();
        self.lists > 0 || self.wants_devices || has_queued || !self.refusals.is_empty()
    }

    /// Sends the refusals that wait, as far as there is room.
    pub fn send_refusals(&mut self) {
        while let Some((port, reason)) = self.refusals.first_key_value() {
            let message = FromDriver::State {
                port: *port,
                state: InterfaceState::Failed(reason.clone()),
            };
            if !self.send(&message) {
                return;
            }
            self.refusals.pop_first();
        }
    }

    /// Whether the message was sent, or cannot ever be.
    pub fn send(&self, message: &FromDriver) -> bool {
        self.send_with(message, &[])
    }

    /// As [`Self::send`], with descriptors.
    pub fn send_with(&self, message: &FromDriver, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(channel) = &self.channel else { return true };
        match channel.try_send(message, fds) {
            Ok(()) => true,
            Err(ChannelError::WouldBlock) => false,
            // The end of the channel is noticed when it is read.
            Err(error) => {
                log::debug!("to controller {}: {error}", self.id);
                true
            }
        }
    }
}
