//! The list that guards a port: what its guest may not send.
//!
//! | guard | packets from the port that are dropped |
//! |---|---|
//! | `bpdu` | to the addresses of spanning tree protocols |
//! | `dhcp` | of a DHCP server: from its UDP port, or to a client's |
//! | `router` | redirects and router advertisements (ICMP 5 and 9, ICMPv6 137 and 134) |
//! | `spoof` | from a MAC address and an IP address that do not belong together, or not to the port |
//!
//! # What a guard cannot see
//!
//! | what | where | dropped with |
//! |---|---|---|
//! | a third tag; a frame of 802.3 without a type in SNAP | any | `dhcp`, `router`, `spoof` |
//! | later fragments of IPv6, headers of it that are broken or of unknown kind | any | `dhcp`, `router`, `spoof` |
//! | later fragments of IPv4 | UDP | `dhcp` |
//! | | ICMP | `router` |
//!
//! (RFC 7113 and RFC 7610 say so of IPv6's.) SNAP with organisation 0 is read as the Ethernet frame that
//! it stands for. Fields that lie behind the bytes that were read are a matter of the data plane, which
//! reads on or drops.
//!
//! # Addresses
//!
//! A pair is a MAC address and IP addresses. `mac` makes one with `addresses`, and `allowed-pairs` are pairs.
//! With its pair a packet passes as
//!
//! | packet | condition |
//! |---|---|
//! | IP | the pair's MAC and address |
//! | ARP | the pair's as Ethernet source and sender, hardware and protocol address |
//! | ARP probe (RFC 5227), DHCP client | MAC; address 0.0.0.0 |
//! | neighbour solicitation | the pair's; source link-layer address the MAC or absent |
//! | neighbour advertisement | the same, target link-layer address likewise; *target* the pair's |
//! | duplicate address detection (RFC 4862) | MAC; source `::`, target the pair's, no link-layer address |
//! | multicast listeners, router solicitation | MAC; source `::` |
//! | RARP | MAC as Ethernet source and sender |
//! | anything but IP, ARP and RARP | MAC |
//!
//! Link-local addresses of IPv6 belong to each MAC of the port, unless its pair names some: then only those.
//!
//! With `address-source` the controller sees what it learns further addresses from: the client's side of
//! DHCP, and what servers send from ports with `dhcp-server`; or what would be dropped for its address alone.
//! An address that it has learned is stated as an allowed pair.

use crate::lists::{List, Origin, Rules, SetMembers};
use crate::names::{Names, at, host, network};
use crate::rules::{ARP, ICMP, ICMPV6, IPV4, IPV6, UDP};
use configuration::{AddressSource, CheckError, Guard, MacAddr, PathSegment, PortConfig};
use rule_list::{Addresses, Fragment, IpPrefix, MacPrefix, Macs, Match, Range, SetId, Transport, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Priorities, in the order in which a guard asks.
const LEASE: u32 = 8;
const BPDU: u32 = 7;
const HIDDEN: u32 = 6;
const SERVER: u32 = 5;
const MESSAGE: u32 = 4;
const OTHER_MESSAGE: u32 = 3;
const ADDRESS: u32 = 2;
const OTHER_ADDRESS: u32 = 1;
const MAC: u32 = 0;

const RARP: u16 = 0x8035;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// The type of frames of 802.3 that tell none.
const NO_TYPE: u16 = 0;

/// Spanning tree at bridges, at provider bridges (IEEE 802.1Q-2018 table 8-1, 8-2), and per VLAN.
const SPANNING_TREE: [u64; 3] = [0x0180_c200_0000, 0x0180_c200_0008, 0x0100_0ccc_cccd];

/// IPv6 protocol numbers behind which more headers follow that nobody reads: hop-by-hop options that are
/// broken (the parser says so by this number), mobility, HIP, shim6, and two for experiments (RFC 7045).
const UNKNOWN_HEADERS: [u8; 6] = [0, 135, 139, 140, 253, 254];

const NEIGHBOUR_SOLICITATION: u16 = 135;
const NEIGHBOUR_ADVERTISEMENT: u16 = 136;
const ROUTER_SOLICITATION: u16 = 133;
const LISTENER_REPORTS: [Range; 2] = [
    Range {
        first: 131,
        last: 132,
    },
    Range::one(143),
];

const LINK_LOCAL: IpPrefix = IpPrefix {
    address: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)),
    len: 10,
};
const ANY_IPV4: IpPrefix = IpPrefix {
    address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    len: 32,
};
const ANY_IPV6: IpPrefix = IpPrefix {
    address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    len: 128,
};
const NO_MAC: MacPrefix = MacPrefix { address: 0, len: 48 };

/// The list of a port's guards, if it has any. What the list needs is named after the owner.
pub(crate) fn list(
    port: &PortConfig,
    owner: &str,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Option<List>, CheckError> {
    let spoof = port.guards.contains(&Guard::Spoof);
    if !spoof && !port.allowed_pairs.is_empty() {
        let message = "`allowed-pairs` is for ports with the guard \"spoof\"".into();
        return Err(at(place, "allowed-pairs", message));
    }
    check_source(port, place)?;
    if port.guards.is_empty() && !port.dhcp_server {
        return Ok(None);
    }
    let mut rules = Rules::default();
    if port.dhcp_server {
        rules.add(LEASE, udp(67, 68), Verdict::Copy, Origin::Leases);
        rules.add(LEASE, udp_v6(547, 546), Verdict::Copy, Origin::Leases);
    }
    if port.guards.contains(&Guard::Bpdu) {
        add_bpdu(&mut rules);
    }
    if port.guards.iter().any(|guard| *guard != Guard::Bpdu) {
        add_hidden(&mut rules, &port.guards);
    }
    if port.guards.contains(&Guard::Dhcp) {
        add_dhcp(&mut rules);
    }
    if port.guards.contains(&Guard::Router) {
        add_router(&mut rules);
    }
    let default = if spoof {
        add_spoof(&mut rules, (port, owner), names, place)?;
        Verdict::Drop
    } else {
        Verdict::Allow
    };
    if port.log_drops {
        rules.log_drops(default);
    }
    Ok(Some(rules.into_list(format!("guards of {owner}"), default)))
}

fn check_source(port: &PortConfig, place: &[PathSegment]) -> Result<(), CheckError> {
    if port.dhcp_server && port.guards.contains(&Guard::Dhcp) {
        let message =
            "the guard \"dhcp\" drops what a DHCP server sends, so leases cannot come from this port".into();
        return Err(at(place, "dhcp-server", message));
    }
    let learns = port.address_source != AddressSource::Configuration;
    if learns && !port.guards.contains(&Guard::Spoof) {
        let message = "`address-source` is for ports with the guard \"spoof\"".into();
        return Err(at(place, "address-source", message));
    }
    Ok(())
}

/// Datagrams over IPv4.
fn udp(source: u16, destination: u16) -> Match {
    Match {
        eth_type: Some(IPV4),
        ip_proto: Some(UDP),
        transport: Some(Transport::Ports {
            source: Range::one(source),
            destination: Range::one(destination),
        }),
        ..Match::default()
    }
}

/// Datagrams over IPv6.
fn udp_v6(source: u16, destination: u16) -> Match {
    Match {
        eth_type: Some(IPV6),
        ..udp(source, destination)
    }
}

fn drop(rules: &mut Rules, priority: u32, guard: Guard, matches: Match) {
    rules.add(priority, matches, Verdict::Drop, Origin::Guard(guard));
}

fn add_bpdu(rules: &mut Rules) {
    for address in SPANNING_TREE {
        let eth_dst = Some(Macs::Prefix(MacPrefix { address, len: 48 }));
        drop(
            rules,
            BPDU,
            Guard::Bpdu,
            Match {
                eth_dst,
                ..Match::default()
            },
        );
    }
}

fn add_hidden(rules: &mut Rules, guards: &BTreeSet<Guard>) {
    let mut hidden = |matches| {
        rules.add(HIDDEN, matches, Verdict::Drop, Origin::Hidden);
    };
    for eth_type in TAGS.into_iter().chain([NO_TYPE]) {
        hidden(Match {
            eth_type: Some(eth_type),
            ..Match::default()
        });
    }
    let fragment = Some(Fragment::Later);
    hidden(Match {
        eth_type: Some(IPV6),
        fragment,
        ..Match::default()
    });
    for protocol in UNKNOWN_HEADERS {
        hidden(Match {
            eth_type: Some(IPV6),
            ip_proto: Some(protocol),
            ..Match::default()
        });
    }
    for (guard, protocol) in [(Guard::Dhcp, UDP), (Guard::Router, ICMP)] {
        if guards.contains(&guard) {
            hidden(Match {
                eth_type: Some(IPV4),
                ip_proto: Some(protocol),
                fragment,
                ..Match::default()
            });
        }
    }
}

fn add_dhcp(rules: &mut Rules) {
    for (eth_type, server, client) in [(IPV4, 67, 68), (IPV6, 547, 546)] {
        for (source, destination) in [(Range::one(server), Range::ALL), (Range::ALL, Range::one(client))] {
            let matches = Match {
                eth_type: Some(eth_type),
                ip_proto: Some(UDP),
                transport: Some(Transport::Ports { source, destination }),
                ..Match::default()
            };
            drop(rules, SERVER, Guard::Dhcp, matches);
        }
    }
}

fn add_router(rules: &mut Rules) {
    for (protocol, kind) in [(ICMP, 5), (ICMP, 9), (ICMPV6, 134), (ICMPV6, 137)] {
        drop(rules, SERVER, Guard::Router, icmp(protocol, Range::one(kind)));
    }
}

fn icmp(protocol: u8, kind: Range) -> Match {
    Match {
        ip_proto: Some(protocol),
        transport: Some(Transport::Icmp {
            kind,
            code: Range::ALL,
        }),
        ..Match::default()
    }
}

fn add_spoof(
    rules: &mut Rules,
    (port, owner): (&PortConfig, &str),
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<(), CheckError> {
    let learns = port.address_source != AddressSource::Configuration;
    if port.mac.is_none() && (learns || !port.addresses.is_empty() || port.allowed_pairs.is_empty()) {
        let message = "the guard \"spoof\" needs the port's `mac`".into();
        return Err(at(place, "guards", message));
    }
    let is_stated = port.address_source == AddressSource::Configuration;
    if is_stated && port.addresses.is_empty() && port.allowed_pairs.is_empty() {
        let message = "the guard \"spoof\" needs the port's `addresses`, or `allowed-pairs`".into();
        return Err(at(place, "guards", message));
    }
    let mut pairs: BTreeMap<MacAddr, BTreeSet<IpPrefix>> = BTreeMap::new();
    if let Some(mac) = port.mac {
        let own = port.addresses.iter().map(|address| host(address.parts().0));
        pairs.entry(mac).or_default().extend(own);
    }
    for pair in &port.allowed_pairs {
        pairs
            .entry(pair.mac)
            .or_default()
            .insert(network(*pair.address.get()));
    }
    for (mac, addresses) in pairs {
        add_pair(rules, &mac, addresses, owner, names);
    }
    if let Some(mac) = port.mac {
        add_source(rules, port.address_source, number(&mac));
    }
    let messages = Range {
        first: NEIGHBOUR_SOLICITATION,
        last: NEIGHBOUR_ADVERTISEMENT,
    };
    drop(rules, OTHER_MESSAGE, Guard::Spoof, icmp(ICMPV6, messages));
    for eth_type in [IPV4, IPV6, ARP, RARP] {
        let matches = Match {
            eth_type: Some(eth_type),
            ..Match::default()
        };
        drop(rules, OTHER_ADDRESS, Guard::Spoof, matches);
    }
    Ok(())
}

/// From link-local addresses.
fn of_link(matches: Match) -> Match {
    Match {
        ip_src: Some(Addresses::Prefix(LINK_LOCAL)),
        ..matches
    }
}

/// Adds what the controller sees to know further addresses of a MAC address: requests to DHCP servers, or
/// packets from addresses that no rule before allows.
fn add_source(rules: &mut Rules, source: AddressSource, own: MacPrefix) {
    let mut see = |priority, matches, verdict| {
        let eth_src = Some(Macs::Prefix(own));
        rules.add(priority, Match { eth_src, ..matches }, verdict, Origin::Leases);
    };
    match source {
        AddressSource::Configuration => {}
        AddressSource::Dhcp => {
            see(LEASE, udp(68, 67), Verdict::Copy);
            see(LEASE, of_link(udp_v6(546, 547)), Verdict::Copy);
        }
        AddressSource::FirstUse => {
            for kind in [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT] {
                for link in [own, NO_MAC] {
                    let message = icmp(ICMPV6, Range::one(kind));
                    let matches = match kind {
                        NEIGHBOUR_SOLICITATION => Match {
                            nd_sll: Some(link),
                            ..message
                        },
                        _ => Match {
                            nd_tll: Some(link),
                            ..message
                        },
                    };
                    see(OTHER_MESSAGE, matches, Verdict::Ask);
                }
            }
            for eth_type in [IPV4, IPV6] {
                let eth_type = Some(eth_type);
                see(
                    OTHER_ADDRESS,
                    Match {
                        eth_type,
                        ..Match::default()
                    },
                    Verdict::Ask,
                );
            }
            let arp = Match {
                eth_type: Some(ARP),
                nd_sll: Some(own),
                ..Match::default()
            };
            see(OTHER_ADDRESS, arp, Verdict::Ask);
        }
    }
}

fn number(mac: &MacAddr) -> MacPrefix {
    let address = mac
        .bytes()
        .iter()
        .fold(0, |address, byte| address << 8 | u64::from(*byte));
    MacPrefix { address, len: 48 }
}

/// What passes with a MAC address and the addresses that go with it.
fn add_pair(
    rules: &mut Rules,
    mac: &MacAddr,
    mut addresses: BTreeSet<IpPrefix>,
    owner: &str,
    names: &mut Names<'_>,
) {
    let is_link_local = |prefix: &IpPrefix| matches!(prefix.address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80);
    if !addresses.iter().any(is_link_local) {
        addresses.insert(LINK_LOCAL);
    }
    let targets: Vec<IpPrefix> = addresses
        .iter()
        .copied()
        .filter(|prefix| prefix.address.is_ipv6())
        .collect();
    let set = names.need(
        format!("addresses of {owner} with {mac}"),
        SetMembers::Addresses(addresses),
    );
    let own = number(mac);
    let mut pair = Pair { rules, own, set };
    pair.add_ip();
    pair.add_arp();
    pair.add_discovery(&targets);
    pair.allow(MAC, Match::default());
}

/// A MAC address and a set of addresses, of which rules are made.
struct Pair<'a> {
    rules: &'a mut Rules,
    own: MacPrefix,
    set: SetId,
}

impl Pair<'_> {
    /// Allows packets from the MAC address.
    fn allow(&mut self, priority: u32, matches: Match) {
        let matches = Match {
            eth_src: Some(Macs::Prefix(self.own)),
            ..matches
        };
        self.rules
            .add(priority, matches, Verdict::Allow, Origin::Guard(Guard::Spoof));
    }

    fn add_ip(&mut self) {
        let ip_src = Some(Addresses::Set(self.set));
        for eth_type in [IPV4, IPV6] {
            self.allow(
                ADDRESS,
                Match {
                    eth_type: Some(eth_type),
                    ip_src,
                    ..Match::default()
                },
            );
        }
        let ports = Transport::Ports {
            source: Range::one(68),
            destination: Range::one(67),
        };
        self.allow(
            ADDRESS,
            Match {
                ip_src: Some(Addresses::Prefix(ANY_IPV4)),
                ip_proto: Some(UDP),
                transport: Some(ports),
                ..Match::default()
            },
        );
    }

    fn add_arp(&mut self) {
        let arp = Match {
            eth_type: Some(ARP),
            nd_sll: Some(self.own),
            ..Match::default()
        };
        self.allow(
            ADDRESS,
            Match {
                ip_src: Some(Addresses::Set(self.set)),
                ..arp.clone()
            },
        );
        let probe = Some(Addresses::Prefix(ANY_IPV4));
        self.allow(
            ADDRESS,
            Match {
                ip_src: probe,
                ip_proto: Some(1),
                ..arp
            },
        );
        let rarp = Match {
            eth_type: Some(RARP),
            nd_sll: Some(self.own),
            ..Match::default()
        };
        self.allow(ADDRESS, rarp);
    }

    fn add_discovery(&mut self, targets: &[IpPrefix]) {
        let solicitation = icmp(ICMPV6, Range::one(NEIGHBOUR_SOLICITATION));
        let advertisement = icmp(ICMPV6, Range::one(NEIGHBOUR_ADVERTISEMENT));
        let (own, nobody) = (Some(Addresses::Set(self.set)), Some(Addresses::Prefix(ANY_IPV6)));
        for link in [self.own, NO_MAC] {
            self.allow(
                MESSAGE,
                Match {
                    ip_src: own,
                    nd_sll: Some(link),
                    ..solicitation.clone()
                },
            );
            for target in targets {
                let nd_target = Some(*target);
                let matches = Match {
                    ip_src: own,
                    nd_target,
                    nd_tll: Some(link),
                    ..advertisement.clone()
                };
                self.allow(MESSAGE, matches);
            }
        }
        for target in targets {
            let detection = Match {
                nd_target: Some(*target),
                nd_sll: Some(NO_MAC),
                ..solicitation.clone()
            };
            self.allow(
                MESSAGE,
                Match {
                    ip_src: nobody,
                    ..detection
                },
            );
        }
        for kind in LISTENER_REPORTS
            .into_iter()
            .chain([Range::one(ROUTER_SOLICITATION)])
        {
            self.allow(
                MESSAGE,
                Match {
                    ip_src: nobody,
                    ..icmp(ICMPV6, kind)
                },
            );
        }
    }
}
