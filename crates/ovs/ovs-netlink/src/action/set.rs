//! `set` and `set_masked`: the header that is changed, its new value, and the bits that change.

use super::attr;
use crate::attribute::{Attributes, Writer, attributes};
use crate::error::Error;
use crate::key::{Arp, Ethernet, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Nsh, Ports, Tunnel, attr as field};
use crate::layout::{Layout, LayoutField, halves, wrong_size};

/// A new value, and the bits that are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// The value; zero in bits that stay.
    pub value: T,
    /// The bits that are changed. None: all that may change (`set` instead of `set_masked`).
    pub mask: Option<T>,
}

/// The header or piece of metadata that is changed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// Queue or class (`skb->priority`).
    Priority(Change<u32>),
    /// Mark (`skb->mark`).
    Mark(Change<u32>),
    /// Outer headers for tunnel ports.
    Tunnel(Tunnel),
    /// Ethernet addresses.
    Ethernet(Change<Ethernet>),
    /// IPv4 header.
    Ipv4(Change<Ipv4>),
    /// IPv6 header.
    Ipv6(Change<Ipv6>),
    /// TCP ports.
    Tcp(Change<Ports>),
    /// UDP ports.
    Udp(Change<Ports>),
    /// SCTP ports.
    Sctp(Change<Ports>),
    /// ICMP type and code. The kernel refuses this and the next three.
    Icmp(Change<Icmp>),
    /// ICMPv6 type and code.
    Icmpv6(Change<Icmp>),
    /// ARP.
    Arp(Change<Arp>),
    /// Neighbour discovery.
    NeighbourDiscovery(Change<NeighbourDiscovery>),
    /// The outermost MPLS label stack entry.
    Mpls(Change<u32>),
    /// Network service header.
    Nsh(Change<Nsh>),
}

/// A number in the machine's order.
#[derive(Clone, Copy)]
struct Native(u32);

impl Layout for Native {
    const SIZE: usize = 4;

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        u32::take(&mut bytes).map(|number| Self(u32::from_ne_bytes(number.to_be_bytes())))
    }

    fn put_bytes(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.to_ne_bytes());
    }
}

impl<T> Change<T> {
    /// A change of all bits.
    pub fn all(value: T) -> Self {
        Self { value, mask: None }
    }

    fn map<U>(self, map: impl Fn(T) -> U) -> Change<U> {
        Change {
            value: map(self.value),
            mask: self.mask.map(map),
        }
    }
}

impl Set {
    /// Reads the value of `set`, or, with `masked`, of `set_masked`.
    pub(super) fn read(bytes: &[u8], masked: bool) -> Result<Self, Error> {
        let (kind, value) = only(bytes)?;
        let native = |change: Change<Native>| change.map(|number| number.0);
        Ok(match kind {
            field::PRIORITY => Self::Priority(native(change(kind, value, masked)?)),
            field::SKB_MARK => Self::Mark(native(change(kind, value, masked)?)),
            field::TUNNEL if !masked => {
                let tunnel = Tunnel::read(value)?;
                tunnel.check_options()?;
                Self::Tunnel(tunnel)
            }
            field::ETHERNET => Self::Ethernet(change(kind, value, masked)?),
            field::IPV4 => Self::Ipv4(change(kind, value, masked)?),
            field::IPV6 => Self::Ipv6(change(kind, value, masked)?),
            field::TCP => Self::Tcp(change(kind, value, masked)?),
            field::UDP => Self::Udp(change(kind, value, masked)?),
            field::SCTP => Self::Sctp(change(kind, value, masked)?),
            field::ICMP => Self::Icmp(change(kind, value, masked)?),
            field::ICMPV6 => Self::Icmpv6(change(kind, value, masked)?),
            field::ARP => Self::Arp(change(kind, value, masked)?),
            field::ND => Self::NeighbourDiscovery(change(kind, value, masked)?),
            field::MPLS => Self::Mpls(change(kind, value, masked)?),
            field::NSH => {
                let (value, mask) = Nsh::read_change(value, masked)?;
                Self::Nsh(Change { value, mask })
            }
            _ => {
                return Err(Error::Unknown {
                    set: "OVS_KEY_ATTR in a set action",
                    kind,
                });
            }
        })
    }

    /// Writes the action.
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Self::Priority(change) => put(writer, field::PRIORITY, &change.map(Native)),
            Self::Mark(change) => put(writer, field::SKB_MARK, &change.map(Native)),
            Self::Tunnel(tunnel) => writer.nested(attr::SET, |writer| {
                writer.nested(field::TUNNEL, |writer| tunnel.write(writer));
            }),
            Self::Ethernet(change) => put(writer, field::ETHERNET, change),
            Self::Ipv4(change) => put(writer, field::IPV4, change),
            Self::Ipv6(change) => put(writer, field::IPV6, change),
            Self::Tcp(change) => put(writer, field::TCP, change),
            Self::Udp(change) => put(writer, field::UDP, change),
            Self::Sctp(change) => put(writer, field::SCTP, change),
            Self::Icmp(change) => put(writer, field::ICMP, change),
            Self::Icmpv6(change) => put(writer, field::ICMPV6, change),
            Self::Arp(change) => put(writer, field::ARP, change),
            Self::NeighbourDiscovery(change) => put(writer, field::ND, change),
            Self::Mpls(change) => put(writer, field::MPLS, change),
            Self::Nsh(change) => writer.nested(outer(change), |writer| {
                writer.nested(field::NSH, |writer| {
                    change.value.write_change(writer, change.mask.as_ref())
                });
            }),
        }
    }
}

/// The one attribute in `bytes`.
pub(super) fn only(bytes: &[u8]) -> Result<(u16, &[u8]), Error> {
    let set = "OVS_ACTION_ATTR_SET";
    let mut all: Attributes<'_> = attributes(bytes);
    let first = all.next().transpose()?.ok_or(Error::Missing { set, kind: 0 })?;
    match all.next().transpose()? {
        None => Ok((first.kind, first.value)),
        Some(second) => Err(Error::Misplaced {
            set,
            kind: second.kind,
        }),
    }
}

/// Reads a value, or, with `masked`, a value and its mask.
fn change<T: Layout>(kind: u16, bytes: &[u8], masked: bool) -> Result<Change<T>, Error> {
    let (value, mask) = halves(kind, bytes, masked, T::SIZE)?;
    let wrong = wrong_size(kind, bytes);
    Ok(Change {
        value: T::from_bytes(value).ok_or(wrong)?,
        mask: mask.map(|mask| T::from_bytes(mask).ok_or(wrong)).transpose()?,
    })
}

fn outer<T>(change: &Change<T>) -> u16 {
    if change.mask.is_some() {
        attr::SET_MASKED
    } else {
        attr::SET
    }
}

fn put<T: Layout>(writer: &mut Writer, kind: u16, change: &Change<T>) {
    writer.nested(outer(change), |writer| {
        let mut bytes = change.value.to_bytes();
        if let Some(mask) = &change.mask {
            mask.put_bytes(&mut bytes);
        }
        writer.attribute(kind, &bytes);
    });
}
