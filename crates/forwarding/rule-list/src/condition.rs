//! From a rule's [`Match`] to conditions on dimensions: what is implied is added, and what cannot be is
//! refused.

use crate::dimension::{Dimension, IPV6};
use crate::refused::Refused;
use crate::rule::{
    Addresses, Fragment, IpPrefix, MacPrefix, Macs, Match, Ports, Range, SetId, TcpFlags, Transport, Vlan,
};
use crate::trie::Prefix;
use flow::{PortId, VLAN_PRESENT};
use smallvec::SmallVec;
use std::net::IpAddr;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// A condition on one dimension. Rules with equal conditions share what a list keeps about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    /// The value begins so.
    Prefix(Prefix),
    /// An IPv6 address begins so.
    LongPrefix(Prefix),
    /// A 16-bit number lies in the range.
    Range(Range),
    /// The Ethernet type is IPv4 or IPv6.
    Ip,
    /// The value is a member.
    Set(SetId),
    /// Some flags have these values.
    Flags(TcpFlags),
}

/// The conditions of a rule, at most one for a dimension.
pub(crate) type Conditions = SmallVec<[(Dimension, Condition); 8]>;

impl Match {
    /// The conditions of the rule.
    ///
    /// # Errors
    ///
    /// No packet could match as the rule's author meant.
    pub(crate) fn conditions(&self) -> Result<Conditions, Refused> {
        if self.connection.is_some() {
            return Err(Refused::NoConnections);
        }
        let mut conditions = Conditions::new();
        self.push_link(&mut conditions)?;
        self.push_network(&mut conditions)?;
        self.push_transport(&mut conditions)?;
        self.push_discovery(&mut conditions)?;
        conditions.retain(|(_, condition)| !condition.is_always_true());
        Ok(conditions)
    }

    fn push_link(&self, conditions: &mut Conditions) -> Result<(), Refused> {
        match self.in_port {
            Some(Ports::One(port)) => {
                conditions.push((Dimension::InPort, Condition::Prefix(port_prefix(port)?)))
            }
            Some(Ports::Set(set)) => conditions.push((Dimension::InPort, Condition::Set(set))),
            None => {}
        }
        let macs = [
            (Dimension::EthSrc, self.eth_src),
            (Dimension::EthDst, self.eth_dst),
        ];
        for (dimension, macs) in macs {
            match macs {
                Some(Macs::Prefix(prefix)) => {
                    conditions.push((dimension, Condition::Prefix(mac_prefix(prefix)?)));
                }
                Some(Macs::Set(set)) => conditions.push((dimension, Condition::Set(set))),
                None => {}
            }
        }
        let present = u128::from(VLAN_PRESENT);
        let vlan = match self.vlan {
            Some(Vlan::Untagged) => Prefix::new(0, 13, 1),
            Some(Vlan::Tagged) => Prefix::new(present, 13, 1),
            Some(Vlan::Id(id)) if id < VLAN_PRESENT => Prefix::new(present | u128::from(id), 13, 13),
            Some(Vlan::Id(_)) => return Err(Refused::BadRange),
            None => return Ok(()),
        };
        conditions.push((Dimension::Vlan, Condition::Prefix(vlan)));
        Ok(())
    }

    fn push_network(&self, conditions: &mut Conditions) -> Result<(), Refused> {
        let eth_type = self.eth_type()?;
        if let Some(eth_type) = eth_type {
            let prefix = Prefix::new(eth_type.into(), 16, 16);
            conditions.push((Dimension::EthType, Condition::Prefix(prefix)));
        } else if self.is_about_network() {
            conditions.push((Dimension::EthType, Condition::Ip));
        }
        for (dimension, addresses) in [(Dimension::IpSrc, self.ip_src), (Dimension::IpDst, self.ip_dst)] {
            match addresses {
                Some(Addresses::Prefix(prefix)) => conditions.push((dimension, ip_condition(prefix)?)),
                Some(Addresses::Set(set)) => conditions.push((dimension, Condition::Set(set))),
                None => {}
            }
        }
        if let Some(protocol) = self.ip_proto {
            let prefix = Prefix::new(protocol.into(), 8, 8);
            conditions.push((Dimension::IpProto, Condition::Prefix(prefix)));
        }
        let has_transport = self.transport.is_some() || self.tcp_flags.is_some();
        let fragment = match self.fragment {
            Some(Fragment::Later) if has_transport => return Err(Refused::Contradiction),
            Some(Fragment::No) => Prefix::new(0, 8, 8),
            Some(Fragment::Later) => Prefix::new(2, 8, 8),
            Some(Fragment::NotLater) => Prefix::new(0, 8, 7),
            None if has_transport => Prefix::new(0, 8, 7),
            None => return Ok(()),
        };
        conditions.push((Dimension::IpFrag, Condition::Prefix(fragment)));
        Ok(())
    }

    fn push_transport(&self, conditions: &mut Conditions) -> Result<(), Refused> {
        if let Some(transport) = self.transport {
            let (source, destination, limit) = match (transport, self.ip_proto) {
                (Transport::Ports { source, destination }, Some(TCP | UDP | SCTP)) => {
                    (source, destination, u16::MAX)
                }
                (Transport::Icmp { kind, code }, Some(ICMP | ICMPV6)) => {
                    let whole = |range| {
                        if range == Range::ALL {
                            Range { first: 0, last: 255 }
                        } else {
                            range
                        }
                    };
                    (whole(kind), whole(code), 255)
                }
                _ => return Err(Refused::NeedsProtocol),
            };
            for (dimension, range) in [(Dimension::TpSrc, source), (Dimension::TpDst, destination)] {
                if range.first > range.last || range.last > limit {
                    return Err(Refused::BadRange);
                }
                if range
                    != (Range {
                        first: 0,
                        last: limit,
                    })
                {
                    conditions.push((dimension, Condition::Range(range)));
                }
            }
        }
        if let Some(flags) = self.tcp_flags {
            if self.ip_proto != Some(TCP) {
                return Err(Refused::NeedsProtocol);
            }
            if flags.mask == 0 || flags.value & !flags.mask != 0 {
                return Err(Refused::BadFlags);
            }
            conditions.push((Dimension::TcpFlags, Condition::Flags(flags)));
        }
        Ok(())
    }

    /// Whether the condition on a port, or on ICMP's type or code, holds for a number. Other dimensions have
    /// none.
    pub(crate) fn allows(&self, dimension: Dimension, number: u16) -> bool {
        let Some(
            Transport::Ports { source, destination }
            | Transport::Icmp {
                kind: source,
                code: destination,
            },
        ) = self.transport
        else {
            return true;
        };
        let range = match dimension {
            Dimension::TpSrc => source,
            Dimension::TpDst => destination,
            _ => Range::ALL,
        };
        (range.first..=range.last).contains(&number)
    }

    fn push_discovery(&self, conditions: &mut Conditions) -> Result<(), Refused> {
        let is_icmpv6 = self.ip_proto == Some(ICMPV6);
        if let Some(target) = self.nd_target {
            if !target.address.is_ipv6() {
                return Err(Refused::Contradiction);
            }
            if !is_icmpv6 {
                return Err(Refused::NeedsProtocol);
            }
            conditions.push((Dimension::NdTarget, Condition::Prefix(ip_prefix(target)?)));
        }
        for (dimension, mac) in [(Dimension::NdSll, self.nd_sll), (Dimension::NdTll, self.nd_tll)] {
            let Some(mac) = mac else { continue };
            if !is_icmpv6 && !matches!(self.eth_type, Some(ARP | RARP)) {
                return Err(Refused::NeedsProtocol);
            }
            conditions.push((dimension, Condition::Prefix(mac_prefix(mac)?)));
        }
        Ok(())
    }

    /// Whether a condition is about a message of ARP or neighbour discovery.
    fn is_about_message(&self) -> bool {
        self.nd_target.is_some() || self.nd_sll.is_some() || self.nd_tll.is_some()
    }

    /// Whether a condition makes sense for IP or ARP only.
    fn is_about_network(&self) -> bool {
        self.ip_src.is_some()
            || self.ip_dst.is_some()
            || self.ip_proto.is_some()
            || self.fragment.is_some()
            || self.transport.is_some()
            || self.tcp_flags.is_some()
    }

    /// The one Ethernet type that packets must have, as the rule says or as its conditions imply.
    fn eth_type(&self) -> Result<Option<u16>, Refused> {
        let of = |addresses: Option<Addresses>| match addresses {
            Some(Addresses::Prefix(prefix)) => Some(prefix.address.is_ipv6()),
            Some(Addresses::Set(_)) | None => None,
        };
        let icmp = matches!(self.transport, Some(Transport::Icmp { .. }))
            .then_some(self.ip_proto)
            .flatten()
            .map(|protocol| protocol == ICMPV6);
        let is_discovery = self.is_about_message() && !matches!(self.eth_type, Some(ARP | RARP));
        let discovery = is_discovery.then_some(true);
        let mut versions = [of(self.ip_src), of(self.ip_dst), icmp, discovery]
            .into_iter()
            .flatten();
        let is_ipv6 = versions.next();
        if versions.any(|other| Some(other) != is_ipv6) {
            return Err(Refused::Contradiction);
        }
        let needs_ip = self.fragment.is_some() || self.transport.is_some() || self.tcp_flags.is_some();
        match (self.eth_type, is_ipv6) {
            (None, Some(is_ipv6)) => Ok(Some(if is_ipv6 { IPV6 } else { IPV4 })),
            (Some(IPV6), Some(false)) | (Some(IPV4 | ARP), Some(true)) => Err(Refused::Contradiction),
            (Some(ARP), _) if needs_ip => Err(Refused::Contradiction),
            (Some(eth_type), _) if self.is_about_network() && !matches!(eth_type, IPV4 | ARP | IPV6) => {
                Err(Refused::Contradiction)
            }
            (eth_type, _) => Ok(eth_type),
        }
    }
}

impl Condition {
    fn is_always_true(&self) -> bool {
        // Prefixes of addresses are never: a packet of the other version, or without addresses, has none.
        // Rules say so by the Ethernet type.
        matches!(self, Condition::Prefix(prefix) | Condition::LongPrefix(prefix) if prefix.len == 0)
    }

    /// Whether a value that may have any bits outside `known` may fulfil the condition. The value begins at
    /// the highest bit.
    pub fn may_hold(&self, dimension: Dimension, value: u128, known: u128) -> bool {
        let prefix = |prefix: Prefix| (prefix.value ^ value) & prefix.mask() & known == 0;
        match *self {
            Condition::Prefix(one) | Condition::LongPrefix(one) => prefix(one),
            Condition::Range(range) => prefixes(range).any(prefix),
            Condition::Ip => ip_types().into_iter().any(prefix),
            Condition::Set(_) => true,
            Condition::Flags(flags) => {
                let shift = 128 - dimension.width(false);
                let (wanted, mask) = (u128::from(flags.value) << shift, u128::from(flags.mask) << shift);
                (wanted ^ value) & mask & known == 0
            }
        }
    }
}

/// The Ethernet types of [`Condition::Ip`].
pub(crate) fn ip_types() -> [Prefix; 2] {
    [IPV4, IPV6].map(|eth_type| Prefix::new(eth_type.into(), 16, 16))
}

/// The fewest prefixes of 16-bit numbers that cover a range: at most 30.
pub(crate) fn prefixes(range: Range) -> impl Iterator<Item = Prefix> {
    let (mut next, last) = (u32::from(range.first), u32::from(range.last));
    std::iter::from_fn(move || {
        if next > last {
            return None;
        }
        let aligned = next.trailing_zeros().min(16);
        let fitting = (last - next + 1).ilog2();
        let bits = aligned.min(fitting);
        let prefix = Prefix::new(next.into(), 16, 16 - bits);
        next += 1 << bits;
        Some(prefix)
    })
}

pub(crate) fn port_prefix(port: PortId) -> Result<Prefix, Refused> {
    if port.0 < PortId::LIMIT {
        Ok(Prefix::new(port.0.into(), 32, 32))
    } else {
        Err(Refused::BadPort)
    }
}

pub(crate) fn mac_prefix(prefix: MacPrefix) -> Result<Prefix, Refused> {
    checked(prefix.address.into(), 48, prefix.len)
}

pub(crate) fn ip_prefix(prefix: IpPrefix) -> Result<Prefix, Refused> {
    match prefix.address {
        IpAddr::V4(address) => checked(address.to_bits().into(), 32, prefix.len),
        IpAddr::V6(address) => checked(address.to_bits(), 128, prefix.len),
    }
}

fn ip_condition(prefix: IpPrefix) -> Result<Condition, Refused> {
    let found = ip_prefix(prefix)?;
    Ok(if prefix.address.is_ipv6() {
        Condition::LongPrefix(found)
    } else {
        Condition::Prefix(found)
    })
}

fn checked(value: u128, width: u32, len: u8) -> Result<Prefix, Refused> {
    let prefix = Prefix::new(value, width, len.into());
    let is_whole = prefix.value >> (128 - width) == value;
    if u32::from(len) > width || !is_whole {
        return Err(Refused::BadPrefix);
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::ConnectionState;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_cover_a_range_and_no_more(first in any::<u16>(), last in any::<u16>(), number in any::<u16>()) {
            let range = Range { first: first.min(last), last: first.max(last) };
            let count = prefixes(range).count();
            prop_assert!((1..=30).contains(&count));
            for number in [number, range.first, range.last, range.first.wrapping_sub(1), range.last.wrapping_add(1)] {
                let value = u128::from(number) << 112;
                let covering = prefixes(range).filter(|prefix| (prefix.value ^ value) & prefix.mask() == 0).count();
                prop_assert_eq!(covering, usize::from((range.first..=range.last).contains(&number)));
            }
        }
    }

    fn refused(change: impl FnOnce(&mut Match)) -> Option<Refused> {
        let mut matches = Match::default();
        change(&mut matches);
        matches.conditions().err()
    }

    fn prefix(text: &str, len: u8) -> Option<Addresses> {
        let address = text.parse().unwrap();
        Some(Addresses::Prefix(IpPrefix { address, len }))
    }

    #[test]
    fn what_no_packet_can_match_is_refused() {
        let ports = Some(Transport::Ports {
            source: Range::ALL,
            destination: Range::one(22),
        });
        let echo = Some(Transport::Icmp {
            kind: Range::one(8),
            code: Range::ALL,
        });
        let target = |m: &mut Match| {
            let address = "fe80::1".parse().unwrap();
            m.nd_target = Some(IpPrefix { address, len: 128 });
        };
        let link = Some(MacPrefix { address: 2, len: 48 });
        let cases: [(Option<Refused>, Refused); 18] = [
            (refused(target), Refused::NeedsProtocol),
            (refused(|m| m.nd_sll = link), Refused::NeedsProtocol),
            (
                refused(|m| (m.nd_tll, m.eth_type, m.ip_proto) = (link, Some(IPV4), Some(ICMPV6))),
                Refused::Contradiction,
            ),
            (
                refused(|m| m.connection = Some(ConnectionState::New)),
                Refused::NoConnections,
            ),
            (
                refused(|m| (m.ip_src, m.eth_type) = (prefix("10.0.0.0", 8), Some(IPV6))),
                Refused::Contradiction,
            ),
            (
                refused(|m| (m.ip_src, m.ip_dst) = (prefix("10.0.0.0", 8), prefix("fd00::", 8))),
                Refused::Contradiction,
            ),
            (
                refused(|m| (m.ip_src, m.eth_type) = (prefix("10.0.0.0", 8), Some(0x8847))),
                Refused::Contradiction,
            ),
            (refused(|m| m.ip_src = prefix("10.0.0.1", 8)), Refused::BadPrefix),
            (refused(|m| m.ip_src = prefix("10.0.0.0", 33)), Refused::BadPrefix),
            (refused(|m| m.transport = ports), Refused::NeedsProtocol),
            (
                refused(|m| (m.transport, m.ip_proto) = (ports, Some(ICMP))),
                Refused::NeedsProtocol,
            ),
            (
                refused(|m| (m.transport, m.ip_proto) = (echo, Some(TCP))),
                Refused::NeedsProtocol,
            ),
            (
                refused(|m| (m.transport, m.ip_proto, m.eth_type) = (echo, Some(ICMP), Some(IPV6))),
                Refused::Contradiction,
            ),
            (
                refused(|m| {
                    (m.transport, m.ip_proto, m.fragment) = (ports, Some(TCP), Some(Fragment::Later))
                }),
                Refused::Contradiction,
            ),
            (
                refused(|m| {
                    let source = Range { first: 2, last: 1 };
                    (m.transport, m.ip_proto) = (
                        Some(Transport::Ports {
                            source,
                            destination: Range::ALL,
                        }),
                        Some(UDP),
                    );
                }),
                Refused::BadRange,
            ),
            (
                refused(|m| (m.tcp_flags, m.ip_proto) = (Some(TcpFlags { value: 3, mask: 1 }), Some(TCP))),
                Refused::BadFlags,
            ),
            (refused(|m| m.vlan = Some(Vlan::Id(4096))), Refused::BadRange),
            (
                refused(|m| m.in_port = Some(Ports::One(PortId(PortId::LIMIT)))),
                Refused::BadPort,
            ),
        ];
        for (at, (found, expected)) in cases.into_iter().enumerate() {
            assert_eq!(found, Some(expected), "case {at}");
        }
    }

    #[test]
    fn conditions_bring_along_what_they_imply() {
        let mut ssh = Match {
            ip_proto: Some(TCP),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination: Range::one(22),
            }),
            ..Match::default()
        };
        let dimensions = |matches: &Match| {
            let conditions = matches.conditions().unwrap();
            conditions
                .iter()
                .map(|(dimension, _)| *dimension)
                .collect::<Vec<_>>()
        };
        use Dimension::{EthType, IpFrag, IpProto, TpDst};
        assert_eq!(dimensions(&ssh), [EthType, IpProto, IpFrag, TpDst]);
        assert_eq!(ssh.conditions().unwrap()[0].1, Condition::Ip);
        ssh.transport = Some(Transport::Icmp {
            kind: Range::ALL,
            code: Range::one(0),
        });
        ssh.ip_proto = Some(ICMPV6);
        assert_eq!(ssh.conditions().unwrap()[0].1, Condition::Prefix(ip_types()[1]));
        // Any address is still an address of this version.
        let any = Match {
            ip_src: prefix("0.0.0.0", 0),
            ..Match::default()
        };
        assert_eq!(dimensions(&any), [EthType]);
    }
}
