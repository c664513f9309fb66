//! An open interface of any kind: opening, changing, closing it, and what others have to know of it.

use control_protocol::driver::{InterfaceKind, InterfaceSpec};
use control_protocol::forwarder::{Device, OpenInterface, Opened};
use nic_packet::{Addresses, NicError, Owner, Tap, TapSpec, Uplink, VNET_HEADER_LEN, addresses_of};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// An interface that is open. No frame is read or written here.
#[derive(Debug)]
pub enum Interface {
    /// A TAP.
    Tap(Tap),
    /// A device of the host.
    Uplink(Uplink),
    /// A device of the host, hidden from the host's stack; with its name.
    Device(Uplink, String),
}

impl Interface {
    /// Opens an interface for an instance. `stale` addresses are removed from a TAP.
    pub fn open(spec: &InterfaceSpec, stale: &[(IpAddr, u8)], owner: &Owner) -> Result<Interface, NicError> {
        if let Some(tap) = tap_spec(spec) {
            return Tap::open(&tap, stale, owner).map(Interface::Tap);
        }
        match spec.kind {
            InterfaceKind::Uplink => Uplink::open(&spec.name, spec.mtu).map(Interface::Uplink),
            InterfaceKind::Device => {
                let uplink = Uplink::open_hidden(&spec.name, spec.mtu, owner)?;
                Ok(Interface::Device(uplink, spec.name.clone()))
            }
            // The descriptor comes from the controller.
            InterfaceKind::Given { .. } | InterfaceKind::Tap { .. } => {
                Err(NicError::Missing(spec.name.clone()))
            }
        }
    }

    /// A TAP that came with its descriptor.
    pub fn given(name: &str, descriptor: OwnedFd) -> Result<Interface, NicError> {
        Tap::from_descriptor(descriptor, name).map(Interface::Tap)
    }

    /// One that an earlier broker has opened.
    pub fn kept(about: OpenInterface, descriptor: OwnedFd) -> Interface {
        let name = &about.spec.name;
        match about.opened {
            Opened::Tap { is_ours, namespace } => {
                let namespace = about.spec.netns().map(String::from).zip(namespace);
                Interface::Tap(Tap::of_earlier(descriptor, name, is_ours, namespace))
            }
            Opened::Packet {
                header_len,
                ring_refused,
            } => {
                let uplink = Uplink::of_descriptor(descriptor, header_len.into(), ring_refused);
                match about.spec.kind {
                    InterfaceKind::Device => Interface::Device(uplink, name.clone()),
                    _ => Interface::Uplink(uplink),
                }
            }
        }
    }

    /// How it was opened, for a later broker.
    pub fn opened(&self) -> Opened {
        match self {
            Interface::Tap(tap) => Opened::Tap {
                is_ours: tap.is_made_by_us(),
                namespace: tap.namespace(),
            },
            Interface::Uplink(uplink) | Interface::Device(uplink, _) => Opened::Packet {
                header_len: header_len(uplink),
                ring_refused: uplink.ring_refused().cloned(),
            },
        }
    }

    /// Another descriptor of the device, for a forwarder.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            Interface::Tap(tap) => tap.descriptor(),
            Interface::Uplink(uplink) | Interface::Device(uplink, _) => uplink.descriptor(),
        }
    }

    /// Changes the open device in place, from one specification of it to another. False if it has to be
    /// opened again for that.
    pub fn change(&self, old: &InterfaceSpec, new: &InterfaceSpec) -> Result<bool, NicError> {
        match (self, tap_spec(old), tap_spec(new)) {
            _ if old == new => Ok(true),
            (Interface::Tap(tap), Some(old), Some(new)) => tap.change(&old, &new).map(|()| true),
            _ => Ok(false),
        }
    }

    /// The addresses of a device that is configured here or belongs to the host alone; `None` for others.
    pub fn addresses(&self, spec: &InterfaceSpec) -> Option<Result<Addresses, NicError>> {
        match (self, &spec.kind) {
            (Interface::Tap(tap), InterfaceKind::Tap { .. }) => Some(tap.addresses()),
            (Interface::Uplink(_), _) => Some(addresses_of(&spec.name)),
            _ => None,
        }
    }

    /// Whether opening it again would find the same device.
    pub fn is_current(&self) -> bool {
        match self {
            Interface::Tap(tap) => tap.is_current(),
            Interface::Uplink(_) | Interface::Device(..) => true,
        }
    }

    /// Closes; a TAP of ours disappears. A forwarder that still has the descriptor gets no frame any more.
    pub fn remove(self, owner: &Owner) -> Result<(), NicError> {
        match self {
            Interface::Tap(tap) => tap.delete(),
            Interface::Uplink(uplink) => {
                uplink.close();
                Ok(())
            }
            Interface::Device(uplink, name) => {
                // The socket is closed first, so that no packet reaches both it and the host's stack.
                uplink.close();
                Uplink::show(&name, owner)
            }
        }
    }
}

/// What a forwarder has to know of a device.
pub fn device(opened: &Opened) -> Device {
    match opened {
        Opened::Tap { .. } => Device::Tap,
        Opened::Packet {
            header_len,
            ring_refused,
        } => Device::Packet {
            header_len: *header_len,
            has_ring: ring_refused.is_none(),
        },
    }
}

fn header_len(uplink: &Uplink) -> u8 {
    u8::try_from(uplink.header_len()).unwrap_or(VNET_HEADER_LEN as u8)
}

fn tap_spec(spec: &InterfaceSpec) -> Option<TapSpec> {
    let InterfaceKind::Tap {
        netns,
        mac,
        initial_mac,
        addresses,
    } = &spec.kind
    else {
        return None;
    };
    Some(TapSpec {
        name: spec.name.clone(),
        netns: netns.clone(),
        mac: *mac,
        initial_mac: *initial_mac,
        mtu: spec.mtu,
        addresses: addresses.clone(),
    })
}
