//! An open interface of any kind: opening, changing, closing it, and what others have to know of it.

use control_protocol::driver::{BackEnd, InterfaceKind, InterfaceSpec, StackSettings};
use control_protocol::forwarder::{self, Device, Opened, XdpFrames};
use flow::PortId;
use nic_packet::{
    Addresses, FanOut, Hiding, NicError, Otherwise, Owner, Tap, TapSpec, Uplink, VNET_HEADER_LEN, Veth,
    VethMeans, addresses_of, users_of,
};
use nic_xdp::{Layout, Steering, Target, XdpDevice};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

/// An interface that is open. No frame is read or written here.
#[derive(Debug)]
pub enum Interface {
    /// A TAP; with the reason, if a veth pair was wanted.
    Tap(Tap, Option<String>),
    /// A veth pair.
    Veth(Veth),
    /// A device of the host.
    Uplink(Uplink, Frames, Hiding),
}

/// Where the frames of a device come and go.
#[derive(Debug)]
pub enum Frames {
    /// Through its packet socket; with the reason, if AF_XDP was wanted.
    Packet(Option<String>),
    /// Through AF_XDP sockets. The packet socket receives nothing.
    Xdp(XdpDevice),
}

/// What opening interfaces takes besides their specifications.
#[derive(Debug)]
pub struct Means {
    /// Whose the interfaces are.
    pub owner: Owner,
    /// The program that hides devices from the host's stack, or why there is none.
    pub hiding_program: Result<OwnedFd, String>,
    /// The program that hands frames to AF_XDP sockets, or why there is none.
    pub steering: Result<Steering, String>,
    /// What divides frames between an uplink and its queue, or why nothing does.
    pub fan_out: Result<FanOut, String>,
    /// What veth pairs take, or why there is none.
    pub veth: Result<VethMeans, String>,
}

impl Means {
    /// Removes the filters of a device: its frames come by the uplink.
    pub fn forget_filters(&self, name: &str) {
        if let (Ok(fan_out), Ok(Some(device))) = (&self.fan_out, nic_packet::interface_index(name)) {
            fan_out.clear(device);
        }
    }
}

impl Interface {
    /// Opens an interface of a port for an instance. `stale` addresses are removed from a TAP. What hides a
    /// device that is not open stays in `hiding` if that fails.
    pub fn open(
        port: PortId,
        spec: &InterfaceSpec,
        stale: &[(IpAddr, u8)],
        means: &Means,
        hiding: &mut Option<Hiding>,
    ) -> Result<Interface, NicError> {
        if let Some((stack, is_veth)) = stack_spec(spec) {
            let no_veth = match &means.veth {
                Ok(veth) if is_veth => return Veth::open(port.0, &stack, veth).map(Interface::Veth),
                Err(reason) if is_veth => Some(reason.clone()),
                _ => None,
            };
            return Tap::open(&stack, stale, &means.owner).map(|tap| Interface::Tap(tap, no_veth));
        }
        let otherwise = match spec.kind {
            InterfaceKind::Uplink { .. } => Otherwise::Visible,
            InterfaceKind::Device => Otherwise::Bridge,
            // The descriptor comes from the controller.
            InterfaceKind::Given { .. } | InterfaceKind::Tap(_) | InterfaceKind::Veth(_) => {
                return Err(NicError::Missing(spec.name.clone()));
            }
        };
        means.forget_filters(&spec.name);
        let program = means.hiding_program.as_ref();
        let program = program.map(AsFd::as_fd).map_err(String::as_str);
        let open = || open_device(spec, means);
        let (uplink, frames) =
            nic_packet::open_hidden(&spec.name, &means.owner, program, otherwise, hiding, open)?;
        let hiding = hiding.take();
        let hiding = hiding.unwrap_or_else(|| Hiding::Nothing("nothing hides it".into()));
        Ok(Interface::Uplink(uplink, frames, hiding))
    }

    /// A TAP that came with its descriptor.
    pub fn given(name: &str, descriptor: OwnedFd) -> Result<Interface, NicError> {
        Tap::from_descriptor(descriptor, name).map(|tap| Interface::Tap(tap, None))
    }

    /// One that an earlier broker has opened, with what hides it if that is a program. `None` if it cannot be
    /// such a one.
    pub fn kept(
        (port, spec): (PortId, &InterfaceSpec),
        opened: Opened,
        descriptors: Vec<OwnedFd>,
        link: Option<OwnedFd>,
        means: &Means,
    ) -> Option<Interface> {
        let name = &spec.name;
        let mut descriptors = descriptors.into_iter();
        let first = descriptors.next()?;
        match opened {
            Opened::Tap {
                is_ours,
                namespace,
                no_veth,
            } => {
                let namespace = spec.netns().map(String::from).zip(namespace);
                let tap = Tap::of_earlier(first, name, is_ours, namespace);
                Some(Interface::Tap(tap, no_veth))
            }
            Opened::Veth { namespace } => {
                let namespace = spec.netns().map(String::from).zip(namespace);
                let all = [first, descriptors.next()?, descriptors.next()?];
                let veth = Veth::of_earlier(all, port.0, namespace, means.veth.as_ref().ok()?);
                veth.ok().map(Interface::Veth)
            }
            Opened::Packet {
                header_len,
                ring_refused,
                hiding,
                no_xdp,
            } => {
                let uplink = Uplink::of_descriptor(first, header_len.into(), ring_refused);
                let frames = Frames::Packet(no_xdp);
                Some(Interface::Uplink(uplink, frames, kept_hiding(hiding, link)))
            }
            Opened::Xdp {
                frames,
                generic,
                is_zero_copy,
                hiding,
            } => {
                let uplink = Uplink::of_descriptor(first, VNET_HEADER_LEN, None);
                let layout = layout_of(frames)?;
                let xdp = XdpDevice::of_descriptors(descriptors.collect(), layout, generic, is_zero_copy)?;
                Some(Interface::Uplink(
                    uplink,
                    Frames::Xdp(xdp),
                    kept_hiding(hiding, link),
                ))
            }
        }
    }

    /// How it was opened, for a later broker.
    pub fn opened(&self) -> Opened {
        match self {
            Interface::Tap(tap, no_veth) => Opened::Tap {
                is_ours: tap.is_made_by_us(),
                namespace: tap.namespace(),
                no_veth: no_veth.clone(),
            },
            Interface::Veth(veth) => Opened::Veth {
                namespace: veth.namespace(),
            },
            Interface::Uplink(uplink, Frames::Packet(no_xdp), hiding) => Opened::Packet {
                header_len: header_len(uplink),
                ring_refused: uplink.ring_refused().cloned(),
                hiding: told_hiding(hiding),
                no_xdp: no_xdp.clone(),
            },
            Interface::Uplink(_, Frames::Xdp(xdp), hiding) => Opened::Xdp {
                frames: told_frames(xdp.layout()),
                generic: xdp.generic().cloned(),
                is_zero_copy: xdp.is_zero_copy(),
                hiding: told_hiding(hiding),
            },
        }
    }

    /// Other descriptors of the device, as [`Opened::descriptors`] counts them.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        match self {
            Interface::Tap(tap, _) => Ok(vec![tap.descriptor()?]),
            Interface::Veth(veth) => {
                let all = veth.descriptors().into_iter();
                all.map(|descriptor| descriptor.try_clone_to_owned()).collect()
            }
            Interface::Uplink(uplink, Frames::Packet(_), _) => Ok(vec![uplink.descriptor()?]),
            Interface::Uplink(uplink, Frames::Xdp(xdp), _) => {
                let all = [uplink.as_fd()].into_iter().chain(xdp.descriptors());
                all.map(|descriptor| descriptor.try_clone_to_owned()).collect()
            }
        }
    }

    /// Whether nothing else may have the device open when it is opened again.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Interface::Uplink(_, Frames::Xdp(_), _))
    }

    /// Another descriptor of the program that hides the device, if one does.
    pub fn link(&self) -> io::Result<Option<OwnedFd>> {
        let Interface::Uplink(_, _, hiding) = self else {
            return Ok(None);
        };
        hiding.link().map(|link| link.try_clone_to_owned()).transpose()
    }

    /// Changes the open device in place, from one specification of it to another. False if it has to be
    /// opened again for that.
    pub fn change(&self, old: &InterfaceSpec, new: &InterfaceSpec, means: &Means) -> Result<bool, NicError> {
        match (self, stack_spec(old), stack_spec(new), &means.veth) {
            _ if old == new => Ok(true),
            (Interface::Tap(tap, _), Some((old, _)), Some((new, _)), _) => {
                tap.change(&old, &new).map(|()| true)
            }
            (Interface::Veth(veth), Some((old, _)), Some((new, _)), Ok(means)) => {
                veth.change(&old, &new, means).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The addresses of a device that is configured here or belongs to the host alone; `None` for others.
    pub fn addresses(&self, spec: &InterfaceSpec, means: &Means) -> Option<Result<Addresses, NicError>> {
        match (self, &spec.kind) {
            (Interface::Tap(tap, _), InterfaceKind::Tap(_) | InterfaceKind::Veth(_)) => Some(tap.addresses()),
            (Interface::Veth(veth), _) => {
                let (stack, _) = stack_spec(spec)?;
                Some(veth.addresses(&stack, means.veth.as_ref().ok()?))
            }
            (Interface::Uplink(..), InterfaceKind::Uplink { .. }) => Some(of_device(&spec.name)),
            _ => None,
        }
    }

    /// Whether a container has removed it, which nobody would notice at its descriptors.
    pub fn is_gone(&self) -> bool {
        matches!(self, Interface::Veth(veth) if !veth.exists().unwrap_or(true))
    }

    /// Whether opening it again would find the same device.
    pub fn is_current(&self) -> bool {
        match self {
            Interface::Tap(tap, _) => tap.is_current(),
            Interface::Veth(veth) => veth.is_current(),
            Interface::Uplink(..) => true,
        }
    }

    /// Closes; a TAP of ours disappears. A forwarder that still has the descriptor gets no frame any more.
    pub fn remove(self, name: &str, owner: &Owner) -> Result<(), NicError> {
        match self {
            Interface::Tap(tap, _) => tap.delete(),
            Interface::Veth(veth) => veth.delete(),
            Interface::Uplink(uplink, frames, hiding) => {
                // The socket is closed first, so that no packet reaches both it and the host's stack.
                uplink.close();
                frames.close();
                hiding.end();
                nic_packet::show(name, owner)
            }
        }
    }
}

impl Frames {
    /// No frame arrives from now on, even if other processes have the sockets open.
    pub fn close(self) {
        if let Frames::Xdp(xdp) = self {
            xdp.close();
        }
    }
}

/// Opens a device by AF_XDP, if that is wanted and possible, or else by a packet socket.
fn open_device(spec: &InterfaceSpec, means: &Means) -> Result<(Uplink, Frames), NicError> {
    let wants_xdp = InterfaceKind::Uplink {
        back_end: BackEnd::AfXdp,
    };
    let mut reason = None;
    if spec.kind == wants_xdp {
        let deaf = Uplink::open_deaf(&spec.name, spec.mtu)?;
        match open_xdp(&spec.name, &deaf, means) {
            Ok(xdp) => return Ok((deaf, Frames::Xdp(xdp))),
            Err(why) => reason = Some(why),
        }
    }
    Ok((Uplink::open(&spec.name, spec.mtu)?, Frames::Packet(reason)))
}

fn open_xdp(name: &str, device: &Uplink, means: &Means) -> Result<XdpDevice, String> {
    let steering = means.steering.as_ref().map_err(Clone::clone)?;
    let (index, mtu) = nic_packet::index_and_mtu(name).map_err(|error| error.to_string())?;
    let target = Target {
        name,
        index,
        mtu,
        queues: device.receive_queues(name).unwrap_or(1),
        takes_tags_out: device.takes_tags_out(name),
    };
    XdpDevice::open(target, steering).map_err(|refused| refused.to_string())
}

fn told_frames(layout: Layout) -> XdpFrames {
    XdpFrames {
        chunk: layout.chunk(),
        in_parts: layout.in_parts(),
        queues: layout.queues(),
    }
}

/// How the memory for frames is divided; `None` if that cannot be.
pub fn layout_of(frames: XdpFrames) -> Option<Layout> {
    Layout::new(frames.chunk, frames.in_parts, frames.queues)
}

fn told_hiding(hiding: &Hiding) -> forwarder::Hiding {
    match hiding {
        Hiding::Program(_) => forwarder::Hiding::Program,
        Hiding::Bridge(reason) => forwarder::Hiding::Bridge(reason.clone()),
        Hiding::Nothing(reason) => forwarder::Hiding::Nothing(reason.clone()),
    }
}

fn kept_hiding(told: forwarder::Hiding, link: Option<OwnedFd>) -> Hiding {
    match (told, link) {
        (forwarder::Hiding::Program, Some(link)) => Hiding::Program(link),
        (forwarder::Hiding::Program, None) => Hiding::Nothing("its program is lost".into()),
        (forwarder::Hiding::Bridge(reason), _) => Hiding::Bridge(reason),
        (forwarder::Hiding::Nothing(reason), _) => Hiding::Nothing(reason),
    }
}

/// What a forwarder has to know of a device.
pub fn device(opened: &Opened) -> Device {
    match opened {
        Opened::Tap { .. } | Opened::Veth { .. } => Device::Tap,
        Opened::Packet {
            header_len,
            ring_refused,
            ..
        } => Device::Packet {
            header_len: *header_len,
            has_ring: ring_refused.is_none(),
        },
        Opened::Xdp { frames, .. } => Device::Xdp(*frames),
    }
}

fn header_len(uplink: &Uplink) -> u8 {
    u8::try_from(uplink.header_len()).unwrap_or(VNET_HEADER_LEN as u8)
}

/// The addresses of a device of the host, and other devices that have it.
fn of_device(name: &str) -> Result<Addresses, NicError> {
    Ok(Addresses {
        users: users_of(name)?,
        ..addresses_of(name)?
    })
}

/// What is set on an interface that we make, and whether that is to be a veth pair.
fn stack_spec(spec: &InterfaceSpec) -> Option<(TapSpec, bool)> {
    let (stack, is_veth) = match &spec.kind {
        InterfaceKind::Tap(stack) => (stack, false),
        InterfaceKind::Veth(stack) => (stack, true),
        _ => return None,
    };
    let StackSettings {
        netns,
        mac,
        initial_mac,
        addresses,
    } = stack.clone();
    let stack = TapSpec {
        name: spec.name.clone(),
        netns,
        mac,
        initial_mac,
        mtu: spec.mtu,
        addresses,
    };
    Some((stack, is_veth))
}
