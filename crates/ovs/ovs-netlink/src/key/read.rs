//! Reads keys.

use super::{
    Arp, Ethernet, Icmp, Ipv4, Ipv6, Key, Labels, Match, Metadata, NeighbourDiscovery, Network, Nsh, Ports,
    SET, TAG_PRESENT, Table, Transport, Vlan, attr, ether, ip,
};
use crate::error::Error;
use crate::layout::Layout;

/// The kinds of attributes that a key has: bit n stands for attribute n.
pub(super) type Kinds = u64;

pub(super) fn bit(kind: u16) -> Kinds {
    1 << kind
}

impl Key {
    /// Reads a key.
    ///
    /// # Errors
    ///
    /// An attribute is wrong, is missing, or belongs to a header that the packet does not have.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self::read_with_kinds(bytes)?.0)
    }

    /// Also returns which attributes the key has, including those inside of `ENCAP`.
    pub(super) fn read_with_kinds(bytes: &[u8]) -> Result<(Self, Kinds), Error> {
        let mut table = Table::read(&SET, bytes)?;
        let vlans = read_tags(&mut table)?;
        let kinds = table.kinds().map(bit).sum();
        let metadata = Metadata::read(&mut table)?;
        let ethernet = table.remove(attr::ETHERNET).and_then(Ethernet::from_bytes);
        let eth_type = read_eth_type(&mut table, ethernet.is_some())?;
        let network = read_network(&mut table, eth_type)?;
        let transport = read_transport(&mut table, &network)?;
        if let Some(kind) = table.kinds().next() {
            return Err(table.misplaced(kind));
        }
        let key = Self {
            metadata,
            ethernet,
            vlans,
            eth_type,
            network,
            transport,
        };
        Ok((key, kinds))
    }

    /// Reads only the metadata of a key, for messages that contain the packet itself
    /// (`ovs_nla_get_flow_metadata`). The second result is the Ethernet type, if the packet begins with its
    /// network header.
    ///
    /// # Errors
    ///
    /// An attribute is wrong.
    pub fn read_metadata(bytes: &[u8]) -> Result<(Metadata, Option<u16>), Error> {
        let mut table = Table::read(&SET, bytes)?;
        let metadata = Metadata::read(&mut table)?;
        let eth_type = if table.has(attr::ETHERNET) || !table.has(attr::ETHERTYPE) {
            None
        } else {
            Some(read_eth_type(&mut table, false)?)
        };
        Ok((metadata, eth_type))
    }
}

impl Match {
    /// Reads a key and its mask; without a mask, all fields of the key match exactly.
    ///
    /// # Errors
    ///
    /// An attribute is wrong or missing, or the mask matches a field that the key may lack.
    pub fn read(key: &[u8], mask: Option<&[u8]>) -> Result<Self, Error> {
        let (key, kinds) = Key::read_with_kinds(key)?;
        let mask = match mask {
            Some(mask) => key.read_mask(kinds, mask)?,
            None => key.read_exact(kinds)?,
        };
        Ok(Self { key, mask })
    }
}

/// Takes VLAN tags off, so that `table` holds the attributes behind them.
fn read_tags(table: &mut Table<'_>) -> Result<[Option<Vlan>; super::MAX_TAGS], Error> {
    let mut tags = [None; super::MAX_TAGS];
    for tag in &mut tags {
        let tpid = table.be16(attr::ETHERTYPE).filter(|tpid| ether::is_vlan(*tpid));
        let Some(tpid) = tpid.filter(|_| table.has(attr::ETHERNET)) else {
            break;
        };
        let tci = table.required(attr::VLAN, table.be16(attr::VLAN))?;
        let encapsulated = table.required(attr::ENCAP, table.bytes(attr::ENCAP))?;
        let present = tci & TAG_PRESENT != 0;
        if !present && tci != 0 {
            return Err(Error::Value {
                what: "OVS_KEY_ATTR_VLAN",
                value: u64::from(tci),
            });
        }
        if !present && !encapsulated.is_empty() {
            return Err(table.misplaced(attr::ENCAP));
        }
        *tag = Some(Vlan { tpid, tci });
        unwrap_tag(table, encapsulated, |_| true)?;
        if !present {
            break;
        }
    }
    Ok(tags)
}

/// Replaces the attributes of a tag by those behind the tag.
pub(super) fn unwrap_tag<'a>(
    table: &mut Table<'a>,
    encapsulated: &'a [u8],
    keep: impl Fn(&[u8]) -> bool,
) -> Result<(), Error> {
    for kind in [attr::ETHERTYPE, attr::VLAN, attr::ENCAP] {
        table.remove(kind);
    }
    table.extend(encapsulated, keep)
}

fn read_eth_type(table: &mut Table<'_>, ethernet: bool) -> Result<u16, Error> {
    match table.remove(attr::ETHERTYPE).and_then(u16::from_bytes) {
        Some(kind) if kind < ether::FIRST => Err(Error::Value {
            what: "OVS_KEY_ATTR_ETHERTYPE",
            value: u64::from(kind),
        }),
        Some(kind) => Ok(kind),
        None if ethernet => Ok(ether::LENGTH),
        None => Err(table.missing(attr::ETHERTYPE)),
    }
}

fn read_network(table: &mut Table<'_>, eth_type: u16) -> Result<Network, Error> {
    match eth_type {
        ether::IPV4 => take(table, attr::IPV4).and_then(check_ipv4).map(Network::Ipv4),
        ether::IPV6 => take(table, attr::IPV6).and_then(check_ipv6).map(Network::Ipv6),
        ether::ARP | ether::RARP => take(table, attr::ARP).and_then(check_arp).map(Network::Arp),
        ether::NSH => {
            let bytes = table.remove(attr::NSH);
            Nsh::read(table.required(attr::NSH, bytes)?).map(Network::Nsh)
        }
        kind if ether::is_mpls(kind) => {
            let bytes = table.remove(attr::MPLS);
            read_labels(table.required(attr::MPLS, bytes)?).map(Network::Mpls)
        }
        _ => Ok(Network::None),
    }
}

fn check_ipv4(header: Ipv4) -> Result<Ipv4, Error> {
    check_fragment(header.fragment)?;
    Ok(header)
}

fn check_ipv6(header: Ipv6) -> Result<Ipv6, Error> {
    check_fragment(header.fragment)?;
    check_label(header.label)?;
    Ok(header)
}

fn check_fragment(fragment: u8) -> Result<(), Error> {
    if fragment > ip::MAX_FRAGMENT {
        return Err(Error::Value {
            what: "fragment type",
            value: u64::from(fragment),
        });
    }
    Ok(())
}

/// A flow label has 20 bits.
pub(crate) fn check_label(label: u32) -> Result<(), Error> {
    if label >> 20 != 0 {
        return Err(Error::Value {
            what: "IPv6 flow label",
            value: u64::from(label),
        });
    }
    Ok(())
}

fn check_arp(header: Arp) -> Result<Arp, Error> {
    if header.operation > 0xff {
        return Err(Error::Value {
            what: "ARP operation",
            value: u64::from(header.operation),
        });
    }
    Ok(header)
}

pub(super) fn read_labels(bytes: &[u8]) -> Result<Labels, Error> {
    let entries: Vec<u32> = bytes.chunks_exact(4).filter_map(u32::from_bytes).collect();
    let whole = bytes.len().is_multiple_of(4);
    Labels::new(&entries).filter(|_| whole).ok_or(Error::Size {
        set: SET.name,
        kind: attr::MPLS,
        found: bytes.len(),
    })
}

/// Transport protocol of a network header, if a transport header follows.
pub(super) fn protocol(network: &Network) -> Option<u8> {
    let (protocol, fragment) = match network {
        Network::Ipv4(header) => (header.protocol, header.fragment),
        Network::Ipv6(header) => (header.protocol, header.fragment),
        _ => return None,
    };
    (fragment != ip::LATER_FRAGMENT).then_some(protocol)
}

fn read_transport(table: &mut Table<'_>, network: &Network) -> Result<Transport, Error> {
    let over_ipv6 = matches!(network, Network::Ipv6(_));
    match protocol(network) {
        Some(ip::TCP) => Ok(Transport::Tcp {
            ports: take::<Ports>(table, attr::TCP)?,
            flags: take(table, attr::TCP_FLAGS)?,
        }),
        Some(ip::UDP) => take(table, attr::UDP).map(Transport::Udp),
        Some(ip::SCTP) => take(table, attr::SCTP).map(Transport::Sctp),
        Some(ip::ICMP) if !over_ipv6 => take(table, attr::ICMP).map(Transport::Icmp),
        Some(ip::ICMPV6) if over_ipv6 => {
            let icmp: Icmp = take(table, attr::ICMPV6)?;
            let neighbour = if ip::NEIGHBOUR.contains(&icmp.kind) {
                Some(take::<NeighbourDiscovery>(table, attr::ND)?)
            } else {
                None
            };
            Ok(Transport::Icmpv6 { icmp, neighbour })
        }
        _ => Ok(Transport::None),
    }
}

/// Takes a header that must be present.
fn take<T: Layout>(table: &mut Table<'_>, kind: u16) -> Result<T, Error> {
    let value = table.remove(kind).and_then(T::from_bytes);
    table.required(kind, value)
}
