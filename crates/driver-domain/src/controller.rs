//! One controller, as the main thread serves it: its channel, and what it is owed besides the states of its interfaces.
//!
//! A controller that does not read is not waited for: what it is owed is a number of lists, and a bounded number of
//! refusals. Its interfaces outlive its channel; a successor asks for what it wants to know.

use control_protocol::driver::{FromDriver, InterfaceState, ToDriver};
use control_protocol::{Channel, ChannelError};
use flow::{ControllerId, PortId};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Refusals that a controller is owed at most; further ones are in the log only.
const MAX_REFUSALS: usize = 64;

pub struct Controller {
    pub id: ControllerId,
    pub channel: Option<Channel>,
    /// Answers owed to `List`.
    pub lists: u32,
    /// Why ports were not attached that it asked for.
    refusals: BTreeMap<PortId, String>,
}

/// What came from a controller.
pub enum Heard {
    /// A message, with its descriptors.
    Message(ToDriver, Vec<OwnedFd>),
    /// Something that is none.
    Nonsense,
    /// Nothing now, or it is gone.
    Nothing,
}

impl Controller {
    pub fn new(id: ControllerId, channel: Channel) -> Controller {
        Controller {
            id,
            channel: Some(channel),
            lists: 0,
            refusals: BTreeMap::new(),
        }
    }

    /// Its next message.
    pub fn hear(&mut self) -> Heard {
        let Some(channel) = &self.channel else {
            return Heard::Nothing;
        };
        match channel.try_recv() {
            Ok((message, fds)) => Heard::Message(message, fds),
            Err(ChannelError::WouldBlock) => Heard::Nothing,
            Err(ChannelError::Malformed(error)) => {
                telemetry::limited_by!(
                    self.id.0.into(),
                    log::Level::Error,
                    "from controller {}: {error}",
                    self.id
                );
                Heard::Nonsense
            }
            Err(error) => {
                log::info!("controller {}: {error}; forwarding goes on", self.id);
                self.channel = None;
                Heard::Nothing
            }
        }
    }

    /// It is to hear that a port was not attached.
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

    /// Whether there is something to be said besides states of interfaces.
    pub fn is_owed(&self) -> bool {
        self.lists > 0 || !self.refusals.is_empty()
    }

    /// Says it as far as there is room.
    pub fn tell_refusals(&mut self) {
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
        let Some(channel) = &self.channel else { return true };
        match channel.try_send(message, &[]) {
            Ok(()) => true,
            Err(ChannelError::WouldBlock) => false,
            // The end of the channel is noticed where it is read.
            Err(error) => {
                log::debug!("to controller {}: {error}", self.id);
                true
            }
        }
    }
}
