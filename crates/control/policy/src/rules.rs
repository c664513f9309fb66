//! One rule: from the keys that a user wrote to conditions on packets, and what contradicts itself.
//!
//! Each contradiction is reported at the key that a reader would change. What is left for [`rule_list`] to
//! refuse is reported at the rule.

use crate::lists::Direction;
use crate::names::{Names, at, mac_block, network};
use configuration::{
    AddressMatch, CheckError, FragmentMatch, MacMatch, MacsOrSet, NetworkOrSet, NumberRange, PathSegment,
    RuleAction, RuleConfig, VlanTag,
};
use rule_list::{
    Addresses, Builder, Fragment, Macs, Match, Ports, Range, Rule, SetKind, TcpFlags, Transport, Verdict,
    Vlan,
};

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV6: u16 = 0x86dd;

pub(crate) fn verdict(action: RuleAction) -> Verdict {
    match action {
        RuleAction::Allow => Verdict::Allow,
        RuleAction::Drop => Verdict::Drop,
        RuleAction::Reject => Verdict::Reject,
    }
}

/// The conditions of a rule about packets in this direction.
///
/// # Errors
/// What contradicts itself, is not known, or cannot be asked for; with its place.
pub(crate) fn matches(
    rule: &RuleConfig,
    direction: Direction,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Match, CheckError> {
    if rule.connection.is_some() {
        let message = "the state of connections cannot be asked for until connection tracking exists".into();
        return Err(at(place, "connection", message));
    }
    check_versions(rule, place)?;
    let protocol = rule.protocol.map(|protocol| protocol.get());
    let flags = rule.tcp_flags.map(|flags| *flags.get());
    let matches = Match {
        in_port: in_port(rule, direction, names, place)?,
        eth_src: macs(rule.source_mac.as_ref(), "source-mac", names, place)?,
        eth_dst: macs(rule.destination_mac.as_ref(), "destination-mac", names, place)?,
        eth_type: rule.ethernet_type.map(|kind| kind.get()),
        vlan: rule.vlan.map(|vlan| match vlan.get() {
            VlanTag::Untagged => Vlan::Untagged,
            VlanTag::Tagged => Vlan::Tagged,
            VlanTag::Id(id) => Vlan::Id(id),
        }),
        ip_src: addresses(rule.source.as_ref(), "source", names, place)?,
        ip_dst: destination(rule, direction, names, place)?,
        ip_proto: protocol,
        fragment: rule.fragments.map(|fragments| match fragments {
            FragmentMatch::None => Fragment::No,
            FragmentMatch::First => Fragment::NotLater,
            FragmentMatch::Later => Fragment::Later,
        }),
        transport: transport(rule, protocol, place)?,
        tcp_flags: flags.map(|(value, mask)| TcpFlags { value, mask }),
        ..Match::default()
    };
    if flags.is_some() && protocol != Some(TCP) {
        return Err(at(
            place,
            "tcp-flags",
            "`tcp-flags` needs `protocol = \"tcp\"`".into(),
        ));
    }
    let stated = Rule {
        number: 0,
        priority: 0,
        matches: matches.clone(),
        verdict: Verdict::Drop,
        trial: false,
        log: false,
    };
    let refused = |refused: rule_list::Refused| CheckError {
        path: place.to_vec(),
        message: refused.to_string(),
    };
    Builder::new(Verdict::Drop).add(stated).map_err(refused)?;
    Ok(matches)
}

fn in_port(
    rule: &RuleConfig,
    direction: Direction,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Option<Ports>, CheckError> {
    let other = match (&rule.sender, &rule.remote_group) {
        (Some(_), Some(_)) => {
            let message =
                "`sender` and `remote-group` both say where packets come from; leave one out".into();
            return Err(at(place, "sender", message));
        }
        (Some(_), None) if direction == Direction::From => {
            let message = "packets from a port come from that port; `sender` is for packets to a port".into();
            return Err(at(place, "sender", message));
        }
        (Some(sender), None) => names
            .senders(sender)
            .map_err(|message| at(place, "sender", message))?,
        (None, Some(group)) if direction == Direction::To => names
            .others(group, direction)
            .map_err(|message| at(place, "remote-group", message))?,
        (None, _) => return Ok(None),
    };
    Ok(Some(Ports::Set(other)))
}

fn destination(
    rule: &RuleConfig,
    direction: Direction,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Option<Addresses>, CheckError> {
    match &rule.remote_group {
        Some(_) if direction == Direction::From && rule.destination.is_some() => {
            let message = "`destination` and `remote-group` both say where packets go; leave one out".into();
            Err(at(place, "destination", message))
        }
        Some(group) if direction == Direction::From => {
            let set = names.others(group, direction);
            Ok(Some(Addresses::Set(
                set.map_err(|message| at(place, "remote-group", message))?,
            )))
        }
        _ => addresses(rule.destination.as_ref(), "destination", names, place),
    }
}

fn addresses(
    wanted: Option<&AddressMatch>,
    key: &'static str,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Option<Addresses>, CheckError> {
    Ok(match wanted.map(AddressMatch::get) {
        None => None,
        Some(NetworkOrSet::Network(it)) => Some(Addresses::Prefix(network(*it))),
        Some(NetworkOrSet::Set(name)) => {
            let set = names.set(name, SetKind::Addresses);
            Some(Addresses::Set(set.map_err(|message| at(place, key, message))?))
        }
    })
}

fn macs(
    wanted: Option<&MacMatch>,
    key: &'static str,
    names: &mut Names<'_>,
    place: &[PathSegment],
) -> Result<Option<Macs>, CheckError> {
    Ok(match wanted.map(MacMatch::get) {
        None => None,
        Some(MacsOrSet::Macs(block)) => Some(Macs::Prefix(mac_block(*block))),
        Some(MacsOrSet::Set(name)) => {
            let set = names.set(name, SetKind::Macs);
            Some(Macs::Set(set.map_err(|message| at(place, key, message))?))
        }
    })
}

fn transport(
    rule: &RuleConfig,
    protocol: Option<u8>,
    place: &[PathSegment],
) -> Result<Option<Transport>, CheckError> {
    let range = |range: Option<NumberRange>| {
        range.map_or(Range::ALL, |range| {
            let (first, last) = range.get();
            Range { first, last }
        })
    };
    let first =
        |keys: [(&'static str, bool); 2]| keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key);
    let port = first([
        ("source-port", rule.source_port.is_some()),
        ("destination-port", rule.destination_port.is_some()),
    ]);
    let icmp = first([
        ("icmp-type", rule.icmp_type.is_some()),
        ("icmp-code", rule.icmp_code.is_some()),
    ]);
    match (port, icmp) {
        (None, None) => Ok(None),
        (Some(key), _) if !matches!(protocol, Some(TCP | UDP | SCTP)) => {
            let message = format!("`{key}` needs `protocol`: \"tcp\", \"udp\" or \"sctp\"");
            Err(at(place, key, message))
        }
        (_, Some(key)) if !matches!(protocol, Some(ICMP | ICMPV6)) => {
            let message = format!("`{key}` needs `protocol`: \"icmp\" or \"icmpv6\"");
            Err(at(place, key, message))
        }
        (Some(_), _) => {
            let (source, destination) = (range(rule.source_port), range(rule.destination_port));
            Ok(Some(Transport::Ports { source, destination }))
        }
        (None, Some(_)) => {
            for (key, number) in [("icmp-type", rule.icmp_type), ("icmp-code", rule.icmp_code)] {
                if number.is_some_and(|number| number.get().1 > 255) {
                    return Err(at(place, key, format!("`{key}` is at most 255")));
                }
            }
            let (kind, code) = (range(rule.icmp_type), range(rule.icmp_code));
            Ok(Some(Transport::Icmp { kind, code }))
        }
    }
}

/// Keys that say which version of IP a rule is about say the same.
fn check_versions(rule: &RuleConfig, place: &[PathSegment]) -> Result<(), CheckError> {
    let of = |address: &Option<AddressMatch>| match address.as_ref()?.get() {
        NetworkOrSet::Network((address, _)) => Some(address.is_ipv6()),
        NetworkOrSet::Set(_) => None,
    };
    let kind = rule.ethernet_type.and_then(|kind| match kind.get() {
        IPV4 | ARP => Some(false),
        IPV6 => Some(true),
        _ => None,
    });
    let protocol = rule.protocol.and_then(|protocol| match protocol.get() {
        ICMP => Some(false),
        ICMPV6 => Some(true),
        _ => None,
    });
    let keys = [
        ("ethernet-type", kind),
        (
            "protocol",
            protocol.filter(|_| rule.ethernet_type.is_none_or(|kind| kind.get() != ARP)),
        ),
        ("source", of(&rule.source)),
        ("destination", of(&rule.destination)),
    ];
    let mut said = keys
        .into_iter()
        .filter_map(|(key, is_ipv6)| Some((key, is_ipv6?)));
    let Some((first, is_ipv6)) = said.next() else {
        return Ok(());
    };
    let name = |is_ipv6: bool| if is_ipv6 { "IPv6" } else { "IPv4" };
    match said.find(|(_, other)| *other != is_ipv6) {
        None => Ok(()),
        Some((key, other)) => {
            let message = format!(
                "`{key}` is of {}, and `{first}` of the same rule of {}",
                name(other),
                name(is_ipv6)
            );
            Err(at(place, key, message))
        }
    }
}
