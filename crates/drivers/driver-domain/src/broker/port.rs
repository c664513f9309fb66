//! A port: what its opener and its forwarder have said, and what follows for its controller.

use super::open_interface::device;
use super::opener::Command;
use control_protocol::driver::{InterfaceKind, InterfaceSpec, InterfaceState};
use control_protocol::forwarder::{Hiding, Opened, ToForwarder};
use control_protocol::supervisor::ForwarderId;
use flow::PortId;
use nic_packet::Addresses;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

pub struct Port {
    pub spec: InterfaceSpec,
    /// The forwarder that serves it.
    pub forwarder: ForwarderId,
    /// What its opener has open.
    pub open: Option<Open>,
    /// Why nothing is open.
    pub trouble: Option<String>,
    pub connection: Connection,
    /// As the controller was told, or is about to be.
    told: Option<InterfaceState>,
    /// The controller has not yet been told this state.
    pub unreported: bool,
    pub addresses: Option<Addresses>,
    /// Frames that found no room in ring or socket.
    pub ring_full: u64,
    /// The controller has not yet been told these addresses.
    pub unreported_addresses: bool,
    /// Number of the opener.
    pub generation: u64,
    pub commands: Sender<Command>,
    pub thread: JoinHandle<()>,
}

/// An open device.
pub struct Open {
    pub descriptor: OwnedFd,
    /// The program that hides it, if one does.
    pub link: Option<OwnedFd>,
    pub opened: Opened,
    /// The forwarder has this one.
    pub is_handed_over: bool,
}

/// The connection to the data plane, which the forwarder has.
pub struct Connection {
    /// A stream is to come from the opener.
    pub is_awaited: bool,
    /// Waits for the forwarder.
    pub waiting: Option<UnixStream>,
    /// Number of the stream that was sent last.
    pub number: u32,
    /// The forwarder knows the port.
    pub is_attached: bool,
    /// As the forwarder says; `None` as long as one of an earlier broker's has said nothing.
    pub state: Option<InterfaceState>,
}

impl Port {
    /// A port with a new opener.
    pub fn new(
        spec: InterfaceSpec,
        forwarder: ForwarderId,
        generation: u64,
        commands: Sender<Command>,
        thread: JoinHandle<()>,
    ) -> Port {
        Port {
            spec,
            forwarder,
            open: None,
            trouble: None,
            connection: Connection {
                is_awaited: false,
                waiting: None,
                number: 0,
                is_attached: false,
                state: Some(InterfaceState::Disconnected),
            },
            told: None,
            unreported: false,
            addresses: None,
            ring_full: 0,
            unreported_addresses: false,
            generation,
            commands,
            thread,
        }
    }

    /// The port's state.
    pub fn state(&self) -> InterfaceState {
        match (&self.trouble, &self.connection.state) {
            (Some(reason), _) => InterfaceState::Failed(reason.clone()),
            (None, Some(state)) => state.clone(),
            (None, None) => InterfaceState::Disconnected,
        }
    }

    /// Has the controller told the state if it is another one.
    pub fn refresh(&mut self, id: PortId) {
        let state = self.state();
        if self.told.as_ref() != Some(&state) {
            // The controller tells users, once: each of its attempts makes the state new here, with the same
            // outcome most often.
            log::debug!("port {id} ({}): {state:?}", self.spec.name);
            self.told = Some(state);
            self.unreported = true;
        }
    }

    /// As [`Self::refresh`], unless a new stream is under way, whose state will follow.
    pub fn refresh_if_told(&mut self, id: PortId) {
        if self.told.is_some() {
            self.refresh(id);
        }
    }

    /// Has the controller told the next state in any case, as soon as it is known.
    pub fn forget_told(&mut self) {
        (self.told, self.unreported) = (None, false);
    }

    /// Sends the opener a command.
    pub fn send(&self, command: Command) {
        // An opener that crashed is replaced by the next `Attach`.
        let _ = self.commands.send(command);
    }

    /// What the forwarder is to be told: a stream that waits goes with the device, a device alone to a
    /// forwarder that knows the port.
    pub fn hand_over(&mut self, id: PortId) -> io::Result<Option<(ToForwarder, Vec<OwnedFd>)>> {
        let connection = &mut self.connection;
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let device = device(&open.opened);
        let message = if connection.waiting.is_some() {
            let descriptor = open.descriptor.try_clone()?;
            connection.number = connection.number.wrapping_add(1);
            let stream = connection.waiting.take().map(OwnedFd::from);
            let attach = ToForwarder::Attach {
                port: id,
                stream: connection.number,
                device,
            };
            (attach, stream.into_iter().chain([descriptor]).collect())
        } else if connection.is_attached && !open.is_handed_over {
            let change = ToForwarder::Device {
                port: id,
                device: Some(device),
            };
            (change, vec![open.descriptor.try_clone()?])
        } else {
            return Ok(None);
        };
        open.is_handed_over = true;
        connection.is_attached = true;
        Ok(Some(message))
    }

    /// How it is forwarded, for users.
    pub fn describe(&self) -> String {
        let name = &self.spec.name;
        match (&self.open, &self.trouble) {
            (Some(Open { opened, .. }), _) => match opened {
                Opened::Tap { .. } => format!("{name}: TAP"),
                Opened::Packet {
                    ring_refused, hiding, ..
                } => {
                    let ring = match ring_refused {
                        None => "with receive ring".into(),
                        Some(reason) => format!("without receive ring ({reason})"),
                    };
                    let hiding = match hiding {
                        Hiding::Program => "hidden from the host".into(),
                        Hiding::Bridge(reason) => format!("hidden from the host by a bridge ({reason})"),
                        Hiding::Nothing(reason) => format!("not hidden from the host ({reason})"),
                    };
                    format!(
                        "{name}: packet socket {ring}, {hiding}; passes TCP segmentation and open checksums; this version has no AF_XDP"
                    )
                }
            },
            (None, Some(_)) => format!("{name}: not open"),
            (None, None) => format!("{name}: being opened"),
        }
    }

    /// Whether the interface is a TAP.
    pub fn is_tap(spec: &InterfaceSpec) -> bool {
        matches!(spec.kind, InterfaceKind::Tap { .. } | InterfaceKind::Given { .. })
    }
}
