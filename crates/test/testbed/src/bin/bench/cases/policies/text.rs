//! Configuration with policies, as users write it.

use std::fmt::Write as _;
use testbed::ovs::learning_by_ports;

/// Rules of the list.
const RULES: u32 = 1000;

struct Rule {
    side: &'static str,
    /// Name of the same field for Open vSwitch.
    field: &'static str,
    port: u32,
    protocol: &'static str,
    network: String,
}

/// 1,000 rules about single ports of sender or receiver, which tell nearly all connections apart.
fn rules() -> impl Iterator<Item = Rule> {
    (0..RULES).map(|number| Rule {
        side: ["source", "destination"][(number % 2) as usize],
        field: ["tp_src", "tp_dst"][(number % 2) as usize],
        // Spread over all ports but those on which somebody listens.
        port: 1024 + number * 61 % 64_000,
        protocol: ["tcp", "udp"][(number / 2 % 2) as usize],
        network: format!("192.0.{}.0/24", number % 256),
    })
}

/// A list of the rules. What no rule is about passes.
pub fn policies() -> String {
    let mut text = String::from("[[acl]]\nname = \"office\"\ndefault = \"allow\"\nrule = [\n");
    for rule in rules() {
        let Rule {
            side,
            port,
            protocol,
            network,
            ..
        } = rule;
        writeln!(
            text,
            "  {{ action = \"drop\", protocol = \"{protocol}\", {side}-port = {port}, destination = \"{network}\" }},"
        )
        .expect("strings grow");
    }
    text + "]\n"
}

/// Rules and guards in the words of `ovs-ofctl`, in front of a learning switch.
pub fn flows() -> Vec<String> {
    let guards = [
        "udp,tp_src=67",
        "udp6,tp_src=547",
        "icmp6,icmp_type=134",
        "dl_dst=01:80:c2:00:00:00/ff:ff:ff:ff:ff:f0",
    ];
    let guards = guards.map(|guard| format!("priority=200,{guard},actions=drop"));
    let rules = rules().map(|rule| {
        let Rule {
            field,
            port,
            protocol,
            network,
            ..
        } = rule;
        format!("priority=100,{protocol},{field}={port},nw_dst={network},actions=drop")
    });
    guards
        .into_iter()
        .chain(rules)
        .chain(learning_by_ports())
        .collect()
}

/// Lines of a port with the list in both directions, and with guards.
pub const PORT: &str =
    "acl-from = \"office\"\nacl-to = \"office\"\nguards = [\"dhcp\", \"router\", \"bpdu\"]\n";
