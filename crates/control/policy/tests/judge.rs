//! What lists of another configuration say about packets that cached decisions are about.

#![allow(clippy::unwrap_used)]

use flow::{FlowKey, FlowMask, ListId};
use policy::{Judge, Policies, compile, parse};

const TCP: u8 = 6;

fn policies(rules: &str) -> Policies {
    let text = format!(
        "[[set]]
name = \"front\"
ports = [\"client\", \"later\"]
[[acl]]
name = \"office\"
default = \"allow\"
rule = [ {rules} ]
[[switch]]
name = \"lan\"
[[switch.port]]
name = \"web\"
acl-to = \"office\"
[[switch.port]]
name = \"client\"
"
    );
    compile(&parse(&text, "a.toml").unwrap()).unwrap()
}

/// Packets of TCP over IPv4, and of one port if it is given.
fn kind(port: Option<u16>) -> (FlowKey, FlowMask) {
    let (mut key, mut noted) = (FlowKey::default(), FlowMask::ANY);
    key.set_eth_type(0x0800);
    noted.0.set_eth_type(u16::MAX);
    key.set_ip_proto(TCP);
    noted.0.set_ip_proto(u8::MAX);
    noted.0.set_ip_frag(u8::MAX);
    if let Some(port) = port {
        key.set_tp_dst(port);
        noted.0.set_tp_dst(u16::MAX);
    }
    (key, noted)
}

/// What is said about packets that passed, or were dropped: verdict, rule, and whether it is about all.
fn said(rules: &str, from: &str, port: Option<u16>, before: &str) -> Option<(String, String, bool)> {
    let policies = policies(rules);
    let judge = Judge::new(&policies).unwrap();
    let list = policies.ports["web"].to;
    let (key, noted) = kind(port);
    let judgement = judge.judge(list, (from, &key, &noted), before)?;
    let rule = judgement
        .rule
        .map_or("default".into(), |rule| rule.origin.to_string());
    Some((judgement.verdict.to_string(), rule, judgement.of_all))
}

#[test]
fn kinds_of_packets_are_judged_by_other_lists() {
    let telnet = "{ action = \"drop\", protocol = \"tcp\", destination-port = 23 }";
    let dropped = |of_all| Some(("drop".to_owned(), "acl office rule 1".to_owned(), of_all));
    assert_eq!(said(telnet, "client", Some(23), "allow"), dropped(true));
    assert_eq!(said(telnet, "client", Some(24), "allow"), None);
    assert_eq!(said(telnet, "client", Some(23), "drop"), None);
    // Packets to any port: those to one would be dropped.
    assert_eq!(said(telnet, "client", None, "allow"), dropped(false));
    let udp = "{ action = \"drop\", protocol = \"udp\", destination-port = 23 }";
    assert_eq!(said(udp, "client", None, "allow"), None, "none of them");
    let trial = "{ action = \"drop\", protocol = \"tcp\", destination-port = 23, trial = true }";
    assert_eq!(said(trial, "client", None, "allow"), None);
    let allowed = Some(("allow".to_owned(), "default".to_owned(), true));
    assert_eq!(said(udp, "client", Some(7), "drop"), allowed);
}

#[test]
fn rules_about_senders_know_ports_by_name() {
    let front = "{ action = \"reject\", protocol = \"tcp\", sender = \"front\" }";
    let rejected = Some(("reject".to_owned(), "acl office rule 1".to_owned(), true));
    assert_eq!(said(front, "client", Some(23), "allow"), rejected);
    assert_eq!(said(front, "web", Some(23), "allow"), None);
    assert_eq!(said(front, "unknown", Some(23), "allow"), None);
}

#[test]
fn a_port_without_a_list_lets_all_pass() {
    let policies = policies("");
    let judge = Judge::new(&policies).unwrap();
    let (key, noted) = kind(None);
    for list in [None, Some(ListId(1))] {
        let verdict = |before| {
            judge
                .judge(list, ("web", &key, &noted), before)
                .map(|it| it.of_all)
        };
        assert_eq!(
            (verdict("drop"), verdict("allow"), verdict("mark(dscp=1)")),
            (Some(true), None, None)
        );
    }
}
