//! Rules as users read them: conditions by the names of their keys in the configuration.

use crate::lists::{Policies, SetMembers};
use rule_list::{
    Addresses, Fragment, IpPrefix, MacPrefix, Macs, Match, Ports, Range, SetId, TcpFlags, Transport, Vlan,
};
use std::fmt::Display;

const ARP: u16 = 0x0806;

impl Policies {
    /// The conditions of a rule; `any packet` if there are none.
    pub fn text(&self, rule: &Match) -> String {
        let mut parts = Vec::new();
        let mut say = |key: &str, value: &dyn Display| parts.push(format!("{key}={value}"));
        if let Some(Ports::Set(set)) = rule.in_port {
            say("sender", &self.set_text(set));
        }
        for (key, macs) in [("source-mac", rule.eth_src), ("destination-mac", rule.eth_dst)] {
            match macs {
                Some(Macs::Prefix(prefix)) => say(key, &mac_text(prefix)),
                Some(Macs::Set(set)) => say(key, &self.set_text(set)),
                None => {}
            }
        }
        if let Some(kind) = rule.eth_type {
            say("ethernet-type", &ethernet_type_text(kind));
        }
        match rule.vlan {
            Some(Vlan::Untagged) => say("vlan", &"untagged"),
            Some(Vlan::Tagged) => say("vlan", &"tagged"),
            Some(Vlan::Id(id)) => say("vlan", &id),
            None => {}
        }
        for (key, addresses) in [("source", rule.ip_src), ("destination", rule.ip_dst)] {
            match addresses {
                Some(Addresses::Prefix(prefix)) => say(key, &network_text(prefix)),
                Some(Addresses::Set(set)) => say(key, &self.set_text(set)),
                None => {}
            }
        }
        say_transport(&mut say, rule);
        if parts.is_empty() {
            "any packet".into()
        } else {
            parts.join(" ")
        }
    }

    /// A set's name, with its members where they are few.
    fn set_text(&self, set: SetId) -> String {
        let Some(set) = self.sets.get(&set) else {
            return format!("set {}", set.0);
        };
        let members: Vec<String> = match &set.members {
            SetMembers::Addresses(members) if members.len() <= 4 => {
                members.iter().map(|it| network_text(*it)).collect()
            }
            SetMembers::Macs(members) if members.len() <= 4 => {
                members.iter().map(|it| mac_text(*it)).collect()
            }
            SetMembers::Ports(members) if members.len() <= 4 => members.iter().cloned().collect(),
            _ => return format!("<{}>", set.name),
        };
        format!("<{}>({})", set.name, members.join(","))
    }
}

fn say_transport(say: &mut impl FnMut(&str, &dyn Display), rule: &Match) {
    if let Some(protocol) = rule.ip_proto {
        match rule.eth_type {
            Some(ARP) => say("operation", &protocol),
            _ => say("protocol", &protocol_text(protocol)),
        }
    }
    match rule.transport {
        Some(Transport::Ports { source, destination }) => {
            say_range(say, "source-port", source);
            say_range(say, "destination-port", destination);
        }
        Some(Transport::Icmp { kind, code }) => {
            say_range(say, "icmp-type", kind);
            say_range(say, "icmp-code", code);
        }
        None => {}
    }
    if let Some(flags) = rule.tcp_flags {
        say("tcp-flags", &flags_text(flags));
    }
    match rule.fragment {
        Some(Fragment::No) => say("fragments", &"none"),
        Some(Fragment::NotLater) => say("fragments", &"first"),
        Some(Fragment::Later) => say("fragments", &"later"),
        None => {}
    }
    if let Some(target) = rule.nd_target {
        say("nd-target", &network_text(target));
    }
    for (key, mac) in [("sender-link", rule.nd_sll), ("target-link", rule.nd_tll)] {
        if let Some(mac) = mac {
            say(
                key,
                &if mac.address == 0 {
                    "absent".into()
                } else {
                    mac_text(mac)
                },
            );
        }
    }
}

fn say_range(say: &mut impl FnMut(&str, &dyn Display), key: &str, range: Range) {
    if range.first == range.last {
        say(key, &range.first);
    } else if range != Range::ALL {
        say(key, &format_args!("{}-{}", range.first, range.last));
    }
}

fn network_text(prefix: IpPrefix) -> String {
    let width = if prefix.address.is_ipv4() { 32 } else { 128 };
    if prefix.len == width {
        prefix.address.to_string()
    } else {
        format!("{}/{}", prefix.address, prefix.len)
    }
}

fn mac_text(prefix: MacPrefix) -> String {
    let bytes = prefix.address.to_be_bytes();
    let bytes: Vec<String> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
    let address = bytes.join(":");
    if prefix.len == 48 {
        address
    } else {
        format!("{address}/{}", prefix.len)
    }
}

fn ethernet_type_text(kind: u16) -> String {
    match kind {
        0 => "none".into(),
        0x0800 => "ipv4".into(),
        0x86dd => "ipv6".into(),
        0x0806 => "arp".into(),
        0x8035 => "rarp".into(),
        kind => format!("{kind:#06x}"),
    }
}

fn protocol_text(protocol: u8) -> String {
    let named = [
        (6, "tcp"),
        (17, "udp"),
        (132, "sctp"),
        (1, "icmp"),
        (58, "icmpv6"),
    ];
    let found = named.iter().find(|(number, _)| *number == protocol);
    found.map_or_else(|| protocol.to_string(), |(_, name)| (*name).into())
}

fn flags_text(flags: TcpFlags) -> String {
    let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];
    let named = names
        .iter()
        .enumerate()
        .filter(|(bit, _)| flags.mask >> bit & 1 == 1);
    let texts =
        named.map(|(bit, name)| format!("{}{name}", if flags.value >> bit & 1 == 1 { "" } else { "!" }));
    texts.collect::<Vec<_>>().join(",")
}
