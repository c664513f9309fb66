//! Reads masks, given the key that they belong to.

use super::read::{Kinds, bit, read_labels, unwrap_tag};
use super::{
    Arp, Ethernet, Icmp, Ipv4, Ipv6, Key, Labels, Mask, Metadata, NeighbourDiscovery, Network, Nsh, Ports,
    SET, TAG_PRESENT, Table, Transport, Vlan, attr,
};
use crate::error::Error;
use crate::layout::Layout;

/// The exact mask of a VLAN tag.
const EXACT_TAG: Vlan = Vlan {
    tpid: u16::MAX,
    tci: u16::MAX,
};

/// Attributes that a mask may have only if it also matches the field that says that the packet has them.
const CONDITIONAL: [u16; 14] = [
    attr::IPV4,
    attr::IPV6,
    attr::ARP,
    attr::MPLS,
    attr::NSH,
    attr::CT_ORIG_TUPLE_IPV4,
    attr::CT_ORIG_TUPLE_IPV6,
    attr::TCP,
    attr::TCP_FLAGS,
    attr::UDP,
    attr::SCTP,
    attr::ICMP,
    attr::ICMPV6,
    attr::ND,
];

/// Whether an attribute of a mask matches any bit.
fn matches_a_bit(value: &[u8]) -> bool {
    value.iter().any(|byte| *byte != 0)
}

impl Key {
    /// Reads the mask of this key, whose attributes are `kinds`.
    pub(super) fn read_mask(&self, kinds: Kinds, bytes: &[u8]) -> Result<Mask, Error> {
        let mut table = Table::empty(&SET);
        table.extend(bytes, matches_a_bit)?;
        let vlans = self.read_tag_masks(&mut table)?;
        let mask_kinds: Kinds = table.kinds().map(bit).sum();
        let metadata = Metadata::read_mask(&mut table, &self.metadata)?;
        let ethernet = table.remove(attr::ETHERNET).and_then(Ethernet::from_bytes);
        let eth_type = if table.remove(attr::ETHERTYPE).is_some() {
            u16::MAX
        } else {
            0
        };
        let network = mask_network(&mut table, &self.network)?;
        let mask = Key {
            metadata,
            ethernet: self.ethernet.map(|_| ethernet.unwrap_or_default()),
            vlans,
            eth_type,
            network,
            transport: mask_transport(&mut table, &self.transport),
        };
        refuse(mask_kinds & !self.allowed(kinds, &mask) | table.kinds().map(bit).sum::<Kinds>())?;
        Ok(Mask(mask))
    }

    /// The mask of this key, whose attributes are `kinds`, if none was sent.
    pub(super) fn read_exact(&self, kinds: Kinds) -> Result<Mask, Error> {
        let mask = self.exact(kinds);
        refuse(kinds & !self.allowed(kinds, &mask.0))?;
        Ok(mask)
    }

    fn read_tag_masks(&self, table: &mut Table<'_>) -> Result<[Option<Vlan>; super::MAX_TAGS], Error> {
        let mut masks = self.exact_tags();
        for mask in &mut masks {
            let Some(encapsulated) = table.bytes(attr::ENCAP) else {
                break;
            };
            if mask.is_none() {
                return Err(table.misplaced(attr::ENCAP));
            }
            let tpid = table.be16(attr::ETHERTYPE).unwrap_or(0);
            // A mask of zero counts as absent. The kernel, which does not clear its table, then finds the
            // key's own tag or the outer tag's mask, and refuses neither. The intended meaning is: any tag.
            let tci = table.be16(attr::VLAN).unwrap_or(TAG_PRESENT);
            if tpid != u16::MAX {
                return Err(Error::Value {
                    what: "mask of a tag's OVS_KEY_ATTR_ETHERTYPE",
                    value: u64::from(tpid),
                });
            }
            if tci & TAG_PRESENT == 0 {
                return Err(Error::Value {
                    what: "mask of OVS_KEY_ATTR_VLAN",
                    value: u64::from(tci),
                });
            }
            *mask = Some(Vlan { tpid, tci });
            unwrap_tag(table, encapsulated, matches_a_bit)?;
        }
        Ok(masks)
    }

    /// A tag that the packet ends in has no mask.
    fn exact_tags(&self) -> [Option<Vlan>; super::MAX_TAGS] {
        let present = |tag: &Vlan| tag.tci & TAG_PRESENT != 0;
        self.vlans.map(|tag| tag.filter(present).map(|_| EXACT_TAG))
    }

    /// The attributes that `mask` may have (`match_validate`).
    fn allowed(&self, kinds: Kinds, mask: &Key) -> Kinds {
        let conditional: Kinds = CONDITIONAL.into_iter().map(bit).sum();
        let mut allowed = kinds & !conditional;
        allowed |= bit(attr::TUNNEL) | bit(attr::IN_PORT) | bit(attr::ETHERTYPE);
        if mask.eth_type == u16::MAX {
            allowed |= self.allowed_network();
        }
        if masked_protocol(&mask.network) == u8::MAX {
            allowed |= self.allowed_transport(mask);
        }
        allowed
    }

    fn allowed_network(&self) -> Kinds {
        // Neighbour discovery and the original tuple share a place in the kernel's key.
        let discovers = matches!(
            self.transport,
            Transport::Icmpv6 {
                neighbour: Some(_),
                ..
            }
        );
        match self.network {
            Network::None => 0,
            Network::Ipv4(_) => bit(attr::IPV4) | bit(attr::CT_ORIG_TUPLE_IPV4),
            Network::Ipv6(_) if discovers => bit(attr::IPV6),
            Network::Ipv6(_) => bit(attr::IPV6) | bit(attr::CT_ORIG_TUPLE_IPV6),
            Network::Arp(_) => bit(attr::ARP),
            Network::Mpls(_) => bit(attr::MPLS),
            Network::Nsh(_) => bit(attr::NSH),
        }
    }

    fn allowed_transport(&self, mask: &Key) -> Kinds {
        match (&self.transport, &mask.transport) {
            (Transport::None, _) => 0,
            (Transport::Tcp { .. }, _) => bit(attr::TCP) | bit(attr::TCP_FLAGS),
            (Transport::Udp(_), _) => bit(attr::UDP),
            (Transport::Sctp(_), _) => bit(attr::SCTP),
            (Transport::Icmp(_), _) => bit(attr::ICMP),
            (
                Transport::Icmpv6 {
                    neighbour: Some(_), ..
                },
                Transport::Icmpv6 { icmp, .. },
            ) if icmp.kind == u8::MAX => bit(attr::ICMPV6) | bit(attr::ND),
            (Transport::Icmpv6 { .. }, _) => bit(attr::ICMPV6),
        }
    }

    /// The exact mask of this key, whose attributes are `kinds`.
    fn exact(&self, kinds: Kinds) -> Mask {
        let network = match &self.network {
            Network::None => Network::None,
            Network::Ipv4(_) => Network::Ipv4(Ipv4::ones()),
            Network::Ipv6(_) => Network::Ipv6(Ipv6::ones()),
            Network::Arp(_) => Network::Arp(Arp::ones()),
            Network::Mpls(labels) => Network::Mpls(Labels {
                depth: labels.depth,
                entries: [0, 1, 2].map(|place| if place < labels.depth { u32::MAX } else { 0 }),
            }),
            Network::Nsh(_) => Network::Nsh(Nsh::exact()),
        };
        let transport = match self.transport {
            Transport::None => Transport::None,
            Transport::Tcp { .. } => Transport::Tcp {
                ports: Ports::ones(),
                flags: u16::MAX,
            },
            Transport::Udp(_) => Transport::Udp(Ports::ones()),
            Transport::Sctp(_) => Transport::Sctp(Ports::ones()),
            Transport::Icmp(_) => Transport::Icmp(Icmp::ones()),
            Transport::Icmpv6 { neighbour, .. } => Transport::Icmpv6 {
                icmp: Icmp::ones(),
                neighbour: neighbour.map(|_| NeighbourDiscovery::ones()),
            },
        };
        Mask(Self {
            metadata: self.metadata.exact(|kind| kinds & bit(kind) != 0),
            ethernet: self.ethernet.map(|_| Ethernet::ones()),
            vlans: self.exact_tags(),
            eth_type: u16::MAX,
            network,
            transport,
        })
    }

    /// The mask that matches all fields exactly, whether they are zero or not.
    #[must_use]
    pub fn exact_mask(&self) -> Mask {
        self.exact(Kinds::MAX)
    }
}

/// An error that names the first attribute in `kinds`.
fn refuse(kinds: Kinds) -> Result<(), Error> {
    match (0..64).find(|kind| kinds & bit(*kind) != 0) {
        Some(kind) => Err(Error::Misplaced { set: SET.name, kind }),
        None => Ok(()),
    }
}

/// The mask of the transport protocol.
fn masked_protocol(network: &Network) -> u8 {
    match network {
        Network::Ipv4(header) => header.protocol,
        Network::Ipv6(header) => header.protocol,
        _ => 0,
    }
}

fn mask_network(table: &mut Table<'_>, key: &Network) -> Result<Network, Error> {
    Ok(match key {
        Network::None => Network::None,
        Network::Ipv4(_) => Network::Ipv4(take(table, attr::IPV4)),
        Network::Ipv6(_) => Network::Ipv6(take(table, attr::IPV6)),
        Network::Arp(_) => Network::Arp(take(table, attr::ARP)),
        Network::Mpls(_) => match table.remove(attr::MPLS) {
            Some(bytes) => Network::Mpls(read_labels(bytes)?),
            None => Network::Mpls(Labels::default()),
        },
        Network::Nsh(_) => match table.remove(attr::NSH) {
            Some(bytes) => Network::Nsh(Nsh::read_mask(bytes)?),
            None => Network::Nsh(Nsh::default()),
        },
    })
}

fn mask_transport(table: &mut Table<'_>, key: &Transport) -> Transport {
    match key {
        Transport::None => Transport::None,
        Transport::Tcp { .. } => Transport::Tcp {
            ports: take(table, attr::TCP),
            flags: table
                .remove(attr::TCP_FLAGS)
                .and_then(u16::from_bytes)
                .unwrap_or(0),
        },
        Transport::Udp(_) => Transport::Udp(take(table, attr::UDP)),
        Transport::Sctp(_) => Transport::Sctp(take(table, attr::SCTP)),
        Transport::Icmp(_) => Transport::Icmp(take(table, attr::ICMP)),
        Transport::Icmpv6 { neighbour, .. } => Transport::Icmpv6 {
            icmp: take(table, attr::ICMPV6),
            neighbour: neighbour.map(|_| take(table, attr::ND)),
        },
    }
}

/// A header's mask; zeros if it is absent.
fn take<T: Layout + Default>(table: &mut Table<'_>, kind: u16) -> T {
    table.remove(kind).and_then(T::from_bytes).unwrap_or_default()
}
