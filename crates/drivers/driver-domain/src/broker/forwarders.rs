//! The forwarders: which there are to be, what they are told, and what they say.
//!
//! A forwarder is believed about the ports that it serves, and about nothing else. What it can do to the
//! broker is to have a device of its own opened again, after a delay that grows.

use super::opener::Command;
use super::outbox::Outbox;
use super::port::Port;
use super::{BATCH, Broker};
use control_protocol::driver::{InterfaceSpec, InterfaceState};
use control_protocol::forwarder::{FromForwarder, OpenInterface, Opened, ToForwarder};
use control_protocol::supervisor::{ForwarderId, FromChild, MAX_KEPT, Role};
use control_protocol::{Channel, ChannelError, encoded_len};
use flow::PortId;
use std::os::fd::OwnedFd;

/// Characters of a forwarder's text that are kept.
const MAX_TEXT: usize = 200;

/// A forwarder that runs.
pub struct Forwarder {
    pub outbox: Outbox<ToForwarder>,
    /// Whether the process has said what it serves; nothing is sent before.
    has_said: bool,
}

impl Broker {
    /// A forwarder runs, and says what it serves.
    pub(super) fn connect_forwarder(&mut self, id: ForwarderId, mut fds: Vec<OwnedFd>) {
        let Some(fd) = fds.pop() else {
            return log::error!("forwarder {} without a channel", id.0);
        };
        if self.forwarders.contains_key(&id) {
            self.lose_forwarder(id);
        }
        let forwarder = Forwarder {
            outbox: Outbox::new(Channel::from(fd)),
            has_said: false,
        };
        self.forwarders.insert(id, forwarder);
    }

    pub(super) fn on_forwarders(&mut self) {
        let all: Vec<ForwarderId> = self.forwarders.keys().copied().collect();
        for id in all {
            for _ in 0..BATCH {
                let Some(forwarder) = self.forwarders.get_mut(&id) else {
                    break;
                };
                forwarder.outbox.flush();
                match forwarder.outbox.channel.try_recv() {
                    Ok((message, _)) => self.on_message(id, message),
                    Err(ChannelError::WouldBlock) => break,
                    Err(ChannelError::Closed | ChannelError::Io(_)) => self.lose_forwarder(id),
                    Err(ChannelError::Malformed(error)) => self.replace_forwarder(id, &error),
                }
            }
        }
    }

    fn on_message(&mut self, id: ForwarderId, message: FromForwarder) {
        let served = |port: &&mut Port| port.forwarder == id;
        match message {
            FromForwarder::Ports(list) => self.on_list(id, &list),
            FromForwarder::State { port, stream, state } => {
                let Some(known) = self.ports.get_mut(&port).filter(served) else {
                    return;
                };
                if known.connection.number == stream {
                    known.connection.state = Some(bounded(state));
                    known.refresh(port);
                }
            }
            FromForwarder::Broken { port, reason } => {
                if let Some(known) = self.ports.get_mut(&port).filter(served) {
                    known.send(Command::Broken(shortened(&reason)));
                }
            }
        }
    }

    /// A forwarder says what it serves. It may know ports of an earlier broker that there are no more.
    fn on_list(&mut self, id: ForwarderId, list: &[(PortId, u32, InterfaceState)]) {
        let Some(forwarder) = self.forwarders.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut forwarder.has_said, true) {
            return;
        }
        for (port, stream, state) in list {
            match self.ports.get_mut(port).filter(|port| port.forwarder == id) {
                Some(known) => {
                    known.connection.is_attached = true;
                    known.connection.number = *stream;
                    known.connection.state = Some(bounded(state.clone()));
                }
                None => self.tell_forwarder(id, ToForwarder::Detach { port: *port }, Vec::new()),
            }
        }
        let served = self.ports.iter_mut().filter(|(_, port)| port.forwarder == id);
        let mut ids = Vec::new();
        for (number, port) in served {
            port.connection.state.get_or_insert(InterfaceState::Disconnected);
            ids.push(*number);
        }
        ids.into_iter().for_each(|number| self.hand_over(number));
    }

    /// Gives a port's forwarder what it has not got, if it runs.
    pub(super) fn hand_over(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        let forwarder = port.forwarder;
        if !self
            .forwarders
            .get(&forwarder)
            .is_some_and(|forwarder| forwarder.has_said)
        {
            return;
        }
        match port.hand_over(id) {
            Ok(Some((message, fds))) => self.tell_forwarder(forwarder, message, fds),
            Ok(None) => {}
            Err(error) => log::error!("port {id}: {error}"),
        }
    }

    /// A port's forwarder is to throw away what the data plane sends, as there is no device.
    pub(super) fn take_device_away(&mut self, id: PortId) {
        let port = self.ports.get(&id).filter(|port| port.connection.is_attached);
        let Some(forwarder) = port.map(|port| port.forwarder) else {
            return;
        };
        let message = ToForwarder::Device {
            port: id,
            device: None,
        };
        self.tell_forwarder(forwarder, message, Vec::new());
    }

    pub(super) fn tell_forwarder(&mut self, id: ForwarderId, message: ToForwarder, fds: Vec<OwnedFd>) {
        let Some(forwarder) = self.forwarders.get_mut(&id) else {
            return;
        };
        if forwarder.outbox.send(message, fds).is_err() {
            self.replace_forwarder(id, "it does not read");
        }
    }

    fn replace_forwarder(&mut self, id: ForwarderId, reason: &str) {
        log::error!("forwarder {}: {reason}; it is to be replaced", id.0);
        self.tell_supervisor(FromChild::Replace(Role::Forwarder(id)), Vec::new());
        self.lose_forwarder(id);
    }

    /// A forwarder has ended: the data plane's ends of its streams are closed.
    fn lose_forwarder(&mut self, id: ForwarderId) {
        self.forwarders.remove(&id);
        let served = self.ports.iter_mut().filter(|(_, port)| port.forwarder == id);
        for (number, port) in served {
            port.connection.is_attached = false;
            port.connection.state = Some(InterfaceState::Disconnected);
            if port.connection.waiting.is_none() && !port.connection.is_awaited {
                port.refresh(*number);
            }
        }
    }

    /// Has the supervisor keep what a port has open, with this specification.
    pub(super) fn keep(&mut self, id: PortId, spec: InterfaceSpec) {
        let Some((port, open)) = self
            .ports
            .get(&id)
            .and_then(|port| Some((port, port.open.as_ref()?)))
        else {
            return;
        };
        let about = OpenInterface {
            port: id,
            spec,
            forwarder: port.forwarder,
            opened: Some(open.opened.clone()),
        };
        let all = open.descriptors.iter().chain(&open.link);
        let descriptors: Result<Vec<_>, _> = all.map(OwnedFd::try_clone).collect();
        let message = match descriptors {
            Ok(descriptors) if encoded_len(&about) <= MAX_KEPT => (FromChild::Keep(about), descriptors),
            // The next broker opens it again.
            _ => (FromChild::Forget(id), Vec::new()),
        };
        self.tell_supervisor(message.0, message.1);
    }

    /// Has the supervisor keep the program that hides a port's device, which is not open, if there is one.
    pub(super) fn keep_hidden(&mut self, id: PortId, link: Option<OwnedFd>) {
        let Some((port, link)) = self.ports.get(&id).zip(link) else {
            return self.tell_supervisor(FromChild::Forget(id), Vec::new());
        };
        let about = OpenInterface {
            port: id,
            spec: port.spec.clone(),
            forwarder: port.forwarder,
            opened: None,
        };
        self.tell_supervisor(FromChild::Keep(about), vec![link]);
    }

    /// Tells the supervisor which forwarders there are to be, if that has changed.
    pub(super) fn tell_forwarders_wanted(&mut self) {
        if !self.is_recalled {
            return;
        }
        let mut wanted: Vec<(ForwarderId, String)> = Vec::new();
        let number = |port: &&Port| port.forwarder;
        let mut ports: Vec<&Port> = self.ports.values().collect();
        ports.sort_by_key(number);
        for served in ports.chunk_by(|a, b| a.forwarder == b.forwarder) {
            let text = match served {
                [one] if one.forwarder != ForwarderId::TAPS => one.describe(),
                [first, ..] if first.forwarder == ForwarderId::TAPS => describe_taps(served),
                _ => format!("devices: {}", served.len()),
            };
            wanted.push((served[0].forwarder, text));
        }
        if wanted != self.wanted {
            self.wanted.clone_from(&wanted);
            self.tell_supervisor(FromChild::Forwarders(wanted), Vec::new());
        }
    }
}

/// The interfaces of network stacks, for users.
fn describe_taps(served: &[&Port]) -> String {
    let opened = |port: &&&Port| port.open.as_ref().map(|open| open.opened.clone());
    let pairs = served.iter().filter(|port| port.is_veth()).count();
    let refused = served.iter().find_map(|port| match opened(&port) {
        Some(Opened::Tap { no_veth, .. }) => no_veth,
        _ => None,
    });
    let pairs = match (pairs, refused) {
        (_, Some(reason)) => format!(", no veth pairs: {reason}"),
        (0, None) => String::new(),
        (pairs, None) => format!(", {pairs} behind veth pairs"),
    };
    format!("TAPs: {}{pairs}", served.len())
}

/// A text, within bounds.
fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

fn bounded(state: InterfaceState) -> InterfaceState {
    match state {
        InterfaceState::Failed(reason) => InterfaceState::Failed(shortened(&reason)),
        state => state,
    }
}
