//! Security groups: what a port that is a member of some may send or receive.
//!
//! All rules allow, so they have one priority and no order. What a host needs to be on a network at all
//! is allowed to every member: ARP, neighbour and router discovery, multicast listeners, and the client's
//! side of DHCP. Guards say who may answer.
//!
//! Replies are what the rule says with both sides exchanged, in the other direction: of TCP only packets with
//! ACK, which cannot begin a connection; of ICMP the answers to echo requests. Nothing is remembered: whoever
//! is allowed to be asked can send such packets unasked.

use crate::lists::{Direction, Origin, Rules};
use crate::names::{Names, at};
use crate::rules::{ARP, ICMP, ICMPV6, IPV4, IPV6, TCP, UDP, matches};
use configuration::{CheckError, GroupConfig, NumberRange, PathSegment, RuleConfig};
use rule_list::{Match, Range, Transport, Verdict};

/// Priority of all rules of groups, below those of access control lists.
pub(crate) const PRIORITY: u32 = 0;

/// ICMPv6: multicast listeners, routers and neighbours (RFC 2710, RFC 4861).
const DISCOVERY: Range = Range {
    first: 130,
    last: 136,
};
/// Multicast listeners, second version (RFC 3810).
const LISTENERS: Range = Range::one(143);

/// The rules of a group for a direction, if they limit it.
pub(crate) fn stated(group: &GroupConfig, direction: Direction) -> Option<&[RuleConfig]> {
    match direction {
        Direction::From => group.from.as_deref(),
        Direction::To => group.to.as_deref(),
    }
}

/// The place of a group's rule.
pub(crate) fn place(group: usize, direction: Direction, rule: usize) -> [PathSegment; 4] {
    let key = match direction {
        Direction::From => "from",
        Direction::To => "to",
    };
    [
        PathSegment::Key("security-group"),
        PathSegment::Index(group),
        PathSegment::Key(key),
        PathSegment::Index(rule),
    ]
}

/// Adds what the group allows in a direction.
pub(crate) fn add(
    rules: &mut Rules,
    (index, group): (usize, &GroupConfig),
    direction: Direction,
    names: &mut Names<'_>,
) -> Result<(), CheckError> {
    for (number, rule) in stated(group, direction).into_iter().flatten().enumerate() {
        let place = place(index, direction, number);
        if rule.action.is_some() {
            let message =
                "rules of security groups allow, and have no `action`; an `acl` can drop and reject".into();
            return Err(at(&place, "action", message));
        }
        if rule.trial {
            let message = "a rule that only counts would allow nothing; `trial` is for an `acl`".into();
            return Err(at(&place, "trial", message));
        }
        if rule.priority.is_some() {
            let message =
                "rules of security groups allow, whatever their order; `priority` is for an `acl`".into();
            return Err(at(&place, "priority", message));
        }
        let origin = Origin::Group(group.name.clone(), direction, number + 1);
        let matches = matches(rule, direction, names, &place)?;
        rules.add(PRIORITY, matches, Verdict::Allow, origin).log = rule.log;
    }
    let opposite = direction.opposite();
    for (number, rule) in stated(group, opposite).into_iter().flatten().enumerate() {
        if rule.replies {
            let place = place(index, opposite, number);
            let origin = Origin::Replies(group.name.clone(), opposite, number + 1);
            let reply = reply(rule, &place)?;
            rules.add(
                PRIORITY,
                matches(&reply, direction, names, &place)?,
                Verdict::Allow,
                origin,
            );
        }
    }
    Ok(())
}

/// The rule about replies to what a rule allows.
pub(crate) fn reply(rule: &RuleConfig, place: &[PathSegment]) -> Result<RuleConfig, CheckError> {
    let number = |number: u16| number.to_string().parse::<NumberRange>().ok();
    let mut reply = RuleConfig {
        source: rule.destination.clone(),
        destination: rule.source.clone(),
        source_mac: rule.destination_mac.clone(),
        destination_mac: rule.source_mac.clone(),
        source_port: rule.destination_port,
        destination_port: rule.source_port,
        replies: false,
        ..rule.clone()
    };
    if rule.sender.is_some() {
        let message =
            "replies go to addresses, not to a `sender`; use `remote-group`, or a rule of its own".into();
        return Err(at(place, "replies", message));
    }
    let kind = rule.icmp_type.map(NumberRange::get);
    match (rule.protocol.map(|protocol| protocol.get()), kind) {
        (Some(TCP), _) => reply.tcp_flags = "ack".parse().ok(),
        (Some(UDP), _) => {}
        (Some(ICMP), Some((8, 8))) => reply.icmp_type = number(0),
        (Some(ICMPV6), Some((128, 128))) => reply.icmp_type = number(129),
        _ => {
            let message = "`replies` needs `protocol` \"tcp\" or \"udp\", or an echo request: \"icmp\" with `icmp-type = 8`, or \
                           \"icmpv6\" with `icmp-type = 128`";
            return Err(at(place, "replies", message.into()));
        }
    }
    Ok(reply)
}

/// Adds what every member may do in a direction that groups limit.
pub(crate) fn add_common(rules: &mut Rules, direction: Direction) {
    let icmpv6 = |kind| Match {
        ip_proto: Some(ICMPV6),
        transport: Some(Transport::Icmp {
            kind,
            code: Range::ALL,
        }),
        ..Match::default()
    };
    let udp = |eth_type, client: u16, server: u16| {
        let (source, destination) = match direction {
            Direction::From => (Range::one(client), Range::one(server)),
            Direction::To => (Range::one(server), Range::one(client)),
        };
        Match {
            eth_type: Some(eth_type),
            ip_proto: Some(UDP),
            transport: Some(Transport::Ports { source, destination }),
            ..Match::default()
        }
    };
    let arp = Match {
        eth_type: Some(ARP),
        ..Match::default()
    };
    for common in [
        arp,
        icmpv6(DISCOVERY),
        icmpv6(LISTENERS),
        udp(IPV4, 68, 67),
        udp(IPV6, 546, 547),
    ] {
        rules.add(PRIORITY, common, Verdict::Allow, Origin::Member);
    }
}
