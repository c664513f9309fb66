//! What a configuration says without effect: rules that can never match, and names of ports that do not
//! exist.
//!
//! A rule can never match if one rule before it matches all of its packets. What several rules before it
//! cover together is not looked for, so no finding is not a proof. Members of sets count as they are
//! stated.

use crate::groups;
use crate::lists::{Direction, SetMembers};
use crate::mirrors;
use crate::names::{Names, at};
use crate::rules::{self, matches};
use configuration::{CheckError, Config, PathSegment, RuleAction, RuleConfig};
use rule_list::{
    Addresses, Fragment, IpPrefix, MacPrefix, Macs, Match, Ports, Range, SetId, Transport, Vlan,
};
use std::cmp::Reverse;
use std::net::IpAddr;

/// What has no effect, each with its place; of a configuration that [`parse`](crate::parse) takes.
pub(crate) fn findings(config: &Config) -> Vec<CheckError> {
    let Ok(mut names) = Names::of(config) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, acl) in config.acls.iter().enumerate() {
        let place = |rule: usize| crate::compile::acl_place(index, rule).to_vec();
        let mut order: Vec<usize> = (0..acl.rules.len()).collect();
        order.sort_by_key(|rule| Reverse(acl.rules[*rule].priority));
        found.extend(covered(&acl.rules, &order, Direction::To, &mut names, place));
    }
    for (index, group) in config.groups.iter().enumerate() {
        for direction in [Direction::To, Direction::From] {
            let Some(rules) = groups::stated(group, direction) else {
                continue;
            };
            let order: Vec<usize> = (0..rules.len()).collect();
            let place = |rule: usize| groups::place(index, direction, rule).to_vec();
            found.extend(covered(rules, &order, direction, &mut names, place));
        }
    }
    for (index, set) in config.sets.iter().enumerate() {
        for (member, port) in set.ports.iter().flatten().enumerate() {
            if !names.has_port(port) {
                let place = [
                    PathSegment::Key("set"),
                    PathSegment::Index(index),
                    PathSegment::Key("ports"),
                ];
                let path = [&place[..], &[PathSegment::Index(member)]].concat();
                found.push(CheckError {
                    path,
                    message: format!("there is no port {port} at the moment"),
                });
            }
        }
    }
    found.extend(mirrors::findings(config));
    found
}

/// Rules that an earlier one covers, in the order in which they are tried.
fn covered(
    stated: &[RuleConfig],
    order: &[usize],
    direction: Direction,
    names: &mut Names<'_>,
    place: impl Fn(usize) -> Vec<PathSegment>,
) -> Vec<CheckError> {
    let mut found = Vec::new();
    let mut before: Vec<(usize, Match)> = Vec::with_capacity(order.len());
    for &number in order {
        let rule = &stated[number];
        let Ok(matches) = matches(rule, direction, names, &place(number)) else {
            continue;
        };
        let earlier = before
            .iter()
            .find(|(_, earlier)| covers(earlier, &matches, names));
        if let Some((earlier, other)) = earlier {
            let effect = match (stated[*earlier].action, rule.action) {
                (one, other) if one == other => "already says so",
                (Some(RuleAction::Allow), _) => "allows them",
                (Some(RuleAction::Drop), _) => "drops them",
                _ => "rejects them",
            };
            let same = if *other == matches {
                "the same packets"
            } else {
                "all of its packets"
            };
            let message = format!(
                "the rule never matches: rule {} matches {same}, and {effect}",
                earlier + 1
            );
            found.push(CheckError {
                path: place(number),
                message,
            });
        } else if !rule.trial {
            before.push((number, matches));
        }
        if let Some(sender) = rule
            .sender
            .as_ref()
            .filter(|sender| !names.is_port_or_set(sender))
        {
            found.push(at(
                &place(number),
                "sender",
                format!("there is no port {sender} at the moment"),
            ));
        }
    }
    found
}

/// Whether the first match holds for each packet for which the second one does.
fn covers(one: &Match, other: &Match, names: &Names<'_>) -> bool {
    implied(&one.in_port, &other.in_port, |one, other| {
        ports(*one, *other, names)
    }) && implied(&one.eth_src, &other.eth_src, |one, other| {
        macs(*one, *other, names)
    }) && implied(&one.eth_dst, &other.eth_dst, |one, other| {
        macs(*one, *other, names)
    }) && implied(&ethernet_types(one), &ethernet_types(other), |one, other| {
        other.iter().all(|kind| one.contains(kind))
    }) && implied(&one.vlan, &other.vlan, |one, other| {
        one == other || *one == Vlan::Tagged && matches!(other, Vlan::Id(_))
    }) && implied(&one.ip_src, &other.ip_src, |one, other| {
        addresses(*one, *other, names)
    }) && implied(&one.ip_dst, &other.ip_dst, |one, other| {
        addresses(*one, *other, names)
    }) && implied(&one.ip_proto, &other.ip_proto, |one, other| one == other)
        && implied(&fragments(one), &fragments(other), |one, other| {
            one == other || *one == Fragment::NotLater && *other == Fragment::No
        })
        && implied(&one.transport, &other.transport, |one, other| {
            transport(*one, *other)
        })
        && implied(&one.tcp_flags, &other.tcp_flags, |one, other| {
            one.mask & other.mask == one.mask && other.value & one.mask == one.value
        })
}

/// Whether a condition holds wherever the other one does. No condition holds everywhere.
fn implied<T>(one: &Option<T>, other: &Option<T>, is_wider: impl Fn(&T, &T) -> bool) -> bool {
    match (one, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(one), Some(other)) => is_wider(one, other),
    }
}

/// The Ethernet types that packets must have.
fn ethernet_types(rule: &Match) -> Option<Vec<u16>> {
    if let Some(kind) = rule.eth_type {
        return Some(vec![kind]);
    }
    let version = |addresses: Option<Addresses>| match addresses {
        Some(Addresses::Prefix(prefix)) => Some(if prefix.address.is_ipv6() {
            rules::IPV6
        } else {
            rules::IPV4
        }),
        Some(Addresses::Set(_)) | None => None,
    };
    let icmp = match (rule.transport, rule.ip_proto) {
        (Some(Transport::Icmp { .. }), Some(rules::ICMPV6)) => Some(rules::IPV6),
        (Some(Transport::Icmp { .. }), _) => Some(rules::IPV4),
        _ => None,
    };
    let known = version(rule.ip_src).or(version(rule.ip_dst)).or(icmp);
    let is_ip = rule.ip_src.or(rule.ip_dst).is_some() || rule.ip_proto.is_some() || rule.fragment.is_some();
    known
        .map(|kind| vec![kind])
        .or(is_ip.then(|| vec![rules::IPV4, rules::IPV6]))
}

fn fragments(rule: &Match) -> Option<Fragment> {
    let has_transport = rule.transport.is_some() || rule.tcp_flags.is_some();
    rule.fragment.or(has_transport.then_some(Fragment::NotLater))
}

fn ports(one: Ports, other: Ports, names: &Names<'_>) -> bool {
    match (one, other) {
        (Ports::Set(one), Ports::Set(other)) => one == other || sets(one, other, names),
        _ => one == other,
    }
}

fn macs(one: Macs, other: Macs, names: &Names<'_>) -> bool {
    let contains = |one: MacPrefix, other: MacPrefix| {
        one.len <= other.len && (one.address ^ other.address) >> (48 - one.len) == 0
    };
    let members = |set: SetId| match names.needed(set).map(|set| &set.members) {
        Some(SetMembers::Macs(members)) => members.iter().copied().collect(),
        _ => Vec::new(),
    };
    match (one, other) {
        (Macs::Prefix(one), Macs::Prefix(other)) => contains(one, other),
        (Macs::Prefix(one), Macs::Set(set)) => members(set).into_iter().all(|other| contains(one, other)),
        (Macs::Set(set), Macs::Prefix(other)) => members(set).into_iter().any(|one| contains(one, other)),
        (Macs::Set(one), Macs::Set(other)) => one == other || sets(one, other, names),
    }
}

fn addresses(one: Addresses, other: Addresses, names: &Names<'_>) -> bool {
    let members = |set: SetId| match names.needed(set).map(|set| &set.members) {
        Some(SetMembers::Addresses(members)) => members.iter().copied().collect(),
        _ => Vec::new(),
    };
    match (one, other) {
        (Addresses::Prefix(one), Addresses::Prefix(other)) => contains(one, other),
        (Addresses::Prefix(one), Addresses::Set(set)) => {
            members(set).into_iter().all(|other| contains(one, other))
        }
        (Addresses::Set(set), Addresses::Prefix(other)) => {
            members(set).into_iter().any(|one| contains(one, other))
        }
        (Addresses::Set(one), Addresses::Set(other)) => one == other || sets(one, other, names),
    }
}

fn contains(one: IpPrefix, other: IpPrefix) -> bool {
    let (differing, width) = match (one.address, other.address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u128::from(one.to_bits() ^ other.to_bits()), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits(), 128),
        _ => return false,
    };
    one.len <= other.len && differing.checked_shr(width - u32::from(one.len)).unwrap_or(0) == 0
}

/// Whether one set has all members of the other one.
fn sets(one: SetId, other: SetId, names: &Names<'_>) -> bool {
    let [Some(one), Some(other)] = [one, other].map(|set| names.needed(set)) else {
        return false;
    };
    match (&one.members, &other.members) {
        (SetMembers::Addresses(one), SetMembers::Addresses(other)) => other.is_subset(one),
        (SetMembers::Macs(one), SetMembers::Macs(other)) => other.is_subset(one),
        (SetMembers::Ports(one), SetMembers::Ports(other)) => other.is_subset(one),
        _ => false,
    }
}

fn transport(one: Transport, other: Transport) -> bool {
    let wider = |one: Range, other: Range| one.first <= other.first && other.last <= one.last;
    match (one, other) {
        (
            Transport::Ports { source, destination },
            Transport::Ports {
                source: other_source,
                destination: other_destination,
            },
        ) => wider(source, other_source) && wider(destination, other_destination),
        (
            Transport::Icmp { kind, code },
            Transport::Icmp {
                kind: other_kind,
                code: other_code,
            },
        ) => wider(kind, other_kind) && wider(code, other_code),
        _ => false,
    }
}
