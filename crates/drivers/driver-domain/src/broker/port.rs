//! A port: what its opener and its forwarder have said, and what follows for its controller.

use super::open_interface::{device, layout_of};
use super::opener::Command;
use control_protocol::driver::{InterfaceKind, InterfaceSpec, InterfaceState};
use control_protocol::forwarder::{Hiding, Opened, ToForwarder};
use control_protocol::supervisor::ForwarderId;
use flow::PortId;
use nic_packet::{Addresses, LinkEvent};
use nic_xdp::Layout;
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
    /// As [`Opened::descriptors`] counts them.
    pub descriptors: Vec<OwnedFd>,
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

impl Open {
    /// Descriptors for the forwarder.
    fn for_forwarder(&self) -> io::Result<Vec<OwnedFd>> {
        let own = match self.opened {
            Opened::Tap { .. } | Opened::Veth { .. } | Opened::Packet { .. } => 0..1,
            Opened::Xdp { frames, .. } => 1..2 + frames.sockets(),
        };
        let all = self.descriptors.get(own).unwrap_or_default();
        all.iter().map(OwnedFd::try_clone).collect()
    }
}

/// How an open interface is forwarded, for users.
fn describe(opened: &Opened) -> String {
    let hiding = match opened.hiding() {
        None => return of_stack(opened),
        Some(Hiding::Program) => "hidden from the host".into(),
        Some(Hiding::Bridge(reason)) => format!("hidden from the host by a bridge ({reason})"),
        Some(Hiding::Nothing(reason)) => format!("not hidden from the host ({reason})"),
    };
    match opened {
        Opened::Tap { .. } | Opened::Veth { .. } => hiding,
        Opened::Packet {
            ring_refused, no_xdp, ..
        } => {
            let ring = match ring_refused {
                None => "with receive ring".into(),
                Some(reason) => format!("without receive ring ({reason})"),
            };
            let xdp = match no_xdp {
                None => "AF_XDP is not asked for".into(),
                Some(reason) => format!("not AF_XDP, since {reason}"),
            };
            format!("packet socket {ring}, {hiding}; passes TCP segmentation and open checksums; {xdp}")
        }
        Opened::Xdp {
            frames,
            generic,
            is_zero_copy,
            ..
        } => {
            let place = match generic {
                None => "in its driver".into(),
                Some(reason) => format!("behind its driver ({reason})"),
            };
            let copies = match is_zero_copy {
                true => "zero copy",
                false => "copied by the kernel (no zero copy here)",
            };
            let longest = layout_of(*frames).map_or(0, Layout::longest);
            let queues = match frames.queues {
                1 => String::new(),
                more => format!(", from {more} queues"),
            };
            format!(
                "AF_XDP {place}, {copies}{queues}, {hiding}; frames up to {longest} bytes, no TCP segmentation, completes open checksums"
            )
        }
    }
}

/// How an interface is forwarded that a network stack has, for users.
fn of_stack(opened: &Opened) -> String {
    match opened {
        Opened::Veth { .. } => "veth pair, behind a TAP".into(),
        Opened::Tap {
            no_veth: Some(reason),
            ..
        } => format!("TAP, and no veth pair: {reason}"),
        _ => "TAP".into(),
    }
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
            let descriptors = open.for_forwarder()?;
            connection.number = connection.number.wrapping_add(1);
            let stream = connection.waiting.take().map(OwnedFd::from);
            let attach = ToForwarder::Attach {
                port: id,
                stream: connection.number,
                device,
            };
            (attach, stream.into_iter().chain(descriptors).collect())
        } else if connection.is_attached && !open.is_handed_over {
            let change = ToForwarder::Device {
                port: id,
                device: Some(device),
            };
            (change, open.for_forwarder()?)
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
            (Some(Open { opened, .. }), _) => format!("{name}: {}", describe(opened)),
            (None, Some(_)) => format!("{name}: not open"),
            (None, None) => format!("{name}: being opened"),
        }
    }

    /// Why an AF_XDP socket does not fit its device any more, of which the kernel has said that; `None` if it
    /// does, or there is none. Unlike a packet socket, it notices nothing of that itself.
    pub fn misfit(&self, event: LinkEvent) -> Option<&'static str> {
        let Opened::Xdp { frames, .. } = self.open.as_ref()?.opened else {
            return None;
        };
        match event {
            LinkEvent::Is(link) if !link.up => Some("the interface was set down"),
            LinkEvent::Is(link) => {
                let fitting = Layout::of_device(link.mtu, frames.queues);
                (fitting != layout_of(frames)).then_some("its MTU has changed")
            }
            LinkEvent::Gone { .. } | LinkEvent::Moved { .. } => Some("the interface is gone"),
            LinkEvent::Addresses { .. } | LinkEvent::Lost => None,
        }
    }

    /// Whether a veth pair is open.
    pub fn is_veth(&self) -> bool {
        let opened = self.open.as_ref().map(|open| &open.opened);
        matches!(opened, Some(Opened::Veth { .. }))
    }

    /// Whether a forwarder takes the interface for a TAP.
    pub fn is_tap(spec: &InterfaceSpec) -> bool {
        matches!(
            spec.kind,
            InterfaceKind::Tap(_) | InterfaceKind::Veth(_) | InterfaceKind::Given { .. }
        )
    }
}
