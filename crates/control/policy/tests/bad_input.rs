//! Policies that nobody should state: too many rules, rules that contradict each other, addresses that
//! several ports have, sets that name each other.

#![allow(clippy::unwrap_used)]

use flow::{FlowKey, FlowMask};
use policy::{Judge, compile, findings, parse};
use rule_list::{MAX_LOGGING_RULES, MAX_RULES};
use std::time::{Duration, Instant};

fn refused(text: &str) -> String {
    parse(text, "x.toml").unwrap_err().to_string()
}

/// What is found in a file that is right.
fn found(text: &str) -> Vec<String> {
    let config = parse(text, "x.toml").unwrap();
    let found = findings(&config, text, "x.toml");
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn a_list_of_a_million_rules_is_refused_at_once() {
    let text = "[[acl]]\nname = \"office\"\ndefault = \"drop\"\n\
                rule = [{ action = \"allow\", protocol = \"tcp\", destination-port = 1 }]\n\
                [[security-group]]\nname = \"web\"\nto = [{ protocol = \"tcp\" }]\nfrom = [{ protocol = \"udp\" }]\n";
    let mut config = parse(text, "x.toml").unwrap();
    let rule = config.acls[0].rules[0].clone();
    let said = |config: &configuration::Config| compile(config).map(drop).map_err(|error| error.message);
    // Equal rules cost no more than others.
    config.acls[0].rules = vec![rule.clone(); MAX_RULES];
    let begun = Instant::now();
    assert_eq!(said(&config), Ok(()));
    config.acls[0].rules = vec![rule.clone(); 1_000_000];
    let most = format!("a list has at most {MAX_RULES}");
    assert_eq!(
        said(&config),
        Err(format!("acl office has 1000000 rules; {most}"))
    );
    config.acls[0].rules.truncate(1);
    // Of both directions, as a port may have the rules of one and the replies of the other in one list.
    config.groups[0].to = Some(vec![rule.clone(); 500_000]);
    config.groups[0].from = Some(vec![rule; 500_000]);
    assert_eq!(
        said(&config),
        Err(format!("security group web has 1000000 rules; {most}"))
    );
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn more_rules_that_log_than_there_can_be_are_refused() {
    let list = |name: &str| {
        let rules = "{ action = \"drop\", protocol = \"tcp\", log = true },".repeat(MAX_RULES);
        let port = format!("[[switch.port]]\nname = \"{name}\"\nacl-to = \"{name}\"\n");
        (
            format!("[[acl]]\nname = \"{name}\"\ndefault = \"drop\"\nrule = [{rules}]\n"),
            port,
        )
    };
    let lists = ["a", "b", "c"].map(list);
    assert!(lists.len() * MAX_RULES > MAX_LOGGING_RULES);
    let acls: String = lists.iter().map(|(acl, _)| acl.as_str()).collect();
    let ports: String = lists.iter().map(|(_, port)| port.as_str()).collect();
    let said = refused(&format!("{acls}[[switch]]\nname = \"s\"\n{ports}"));
    let count = lists.len() * MAX_RULES;
    let expected = format!("all lists together have {count} rules that log");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn sets_that_name_each_other_or_themselves_are_refused() {
    let sets =
        |one: &str, other: &str| format!("[[set]]\nname = \"a\"\n{one}\n[[set]]\nname = \"b\"\n{other}\n");
    for (one, other) in [
        ("addresses = [\"b\"]", "addresses = [\"a\"]"),
        ("addresses = [\"a\"]", "addresses = []"),
    ] {
        let said = refused(&sets(one, other));
        assert!(
            said.starts_with("x.toml:3:") && said.contains("expected an IP address or network"),
            "{said}"
        );
    }
    // Names among ports are names of ports, which need not exist: no set is asked for.
    let text = sets("ports = [\"b\"]", "ports = [\"a\"]");
    let found = found(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("there is no port b at the moment"), "{found:?}");
}

/// What becomes of a packet from a MAC address and an IPv4 address that a port's guard judges.
fn judged(text: &str, port: &str, mac: u64, address: u32) -> String {
    let policies = compile(&parse(text, "x.toml").unwrap()).unwrap();
    let judge = Judge::new(&policies).unwrap();
    let mut key = FlowKey::default();
    key.set_eth_src(mac);
    key.set_eth_type(0x0800);
    key.set_ip_src(address.into());
    let noted = FlowMask(FlowKey {
        words: [u64::MAX; flow::KEY_WORDS],
    });
    let list = policies.ports[port].guards;
    let judgement = judge.judge(list, (port, &key, &noted), "allow");
    judgement.map_or("allow".into(), |judgement| judgement.verdict.to_string())
}

const ONE: u64 = 0x5254_0000_0001;
const OTHER: u64 = 0x5254_0000_0002;
const VRRP: u64 = 0x0000_5e00_0107;
const SHARED: u32 = 0x0a00_0007;

/// A router in two guests shares an address and a MAC address; each keeps its own besides.
#[test]
fn routers_share_an_address_and_cannot_take_each_others() {
    let router = |name: &str, last: u8| {
        format!(
            "[[switch.port]]\nname = \"{name}\"\nmac = \"52:54:00:00:00:0{last}\"\naddresses = [\"10.0.0.{last}/24\"]\n\
             guards = [\"spoof\"]\nallowed-pairs = [{{ mac = \"00:00:5e:00:01:07\", address = \"10.0.0.7\" }}]\n"
        )
    };
    let text = format!(
        "[[switch]]\nname = \"s\"\n{}{}",
        router("one", 1),
        router("other", 2)
    );
    let said = |port, mac, address| judged(&text, port, mac, address);
    for (port, mac, own) in [("one", ONE, 0x0a00_0001), ("other", OTHER, 0x0a00_0002)] {
        assert_eq!(said(port, VRRP, SHARED), "allow");
        assert_eq!(said(port, mac, own), "allow");
        assert_eq!(
            said(port, mac, SHARED),
            "drop",
            "the pair is of the other MAC address"
        );
        assert_eq!(said(port, VRRP, own), "drop");
    }
    assert_eq!(said("one", OTHER, 0x0a00_0002), "drop");
    assert_eq!(said("one", ONE, 0x0a00_0002), "drop");
}

/// Two ports state one address: each may use it with its own MAC address, and neither with the other's.
#[test]
fn an_address_that_two_ports_have_stays_with_their_mac_addresses() {
    let port = |name: &str, last: u8| {
        format!(
            "[[switch.port]]\nname = \"{name}\"\nmac = \"52:54:00:00:00:0{last}\"\naddresses = [\"10.0.0.7/24\"]\n\
             guards = [\"spoof\"]\n"
        )
    };
    let text = format!("[[switch]]\nname = \"s\"\n{}{}", port("one", 1), port("other", 2));
    for (port, own, others) in [("one", ONE, OTHER), ("other", OTHER, ONE)] {
        assert_eq!(judged(&text, port, own, SHARED), "allow");
        assert_eq!(judged(&text, port, others, SHARED), "drop");
    }
}

/// Of rules with one priority that contradict each other, the first one decides, and the other is reported.
#[test]
fn of_rules_with_one_priority_the_first_decides() {
    let rule = |action: &str| {
        format!("  {{ action = \"{action}\", protocol = \"tcp\", destination-port = 23, priority = 5 }},\n")
    };
    for (first, second) in [("allow", "drop"), ("drop", "allow"), ("reject", "drop")] {
        let text = format!(
            "[[acl]]\nname = \"a\"\ndefault = \"drop\"\nrule = [\n{}{}]\n[[switch]]\nname = \"s\"\n\
             [[switch.port]]\nname = \"web\"\nacl-to = \"a\"\n",
            rule(first),
            rule(second)
        );
        let found = found(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("x.toml:6:3: the rule never matches"),
            "{found:?}"
        );
        let policies = compile(&parse(&text, "x.toml").unwrap()).unwrap();
        let judge = Judge::new(&policies).unwrap();
        let mut key = FlowKey::default();
        key.set_eth_type(0x0800);
        key.set_ip_proto(6);
        key.set_tp_dst(23);
        let noted = FlowMask(FlowKey {
            words: [u64::MAX; flow::KEY_WORDS],
        });
        let list = policies.ports["web"].to;
        let differs = |before| judge.judge(list, ("web", &key, &noted), before).is_some();
        assert!(!differs(first) && differs(second), "{first} {second}");
    }
}

/// Rules of one priority, contradictions, an empty range and a prefix of the wrong family in one list: what
/// cannot be is refused with its line, and what can be is reported with its own.
#[test]
fn what_is_wrong_in_one_list_is_named_line_by_line() {
    const EMPTY: &str =
        "{ action = \"drop\", protocol = \"tcp\", destination-port = \"30-20\", priority = 5 }";
    const FAMILY: &str =
        "{ action = \"drop\", ethernet-type = \"ipv6\", source = \"10.0.0.0/8\", priority = 5 }";
    let rule = |action: &str, ports: &str| {
        format!(
            "{{ action = \"{action}\", protocol = \"tcp\", destination-port = \"{ports}\", priority = 5 }}"
        )
    };
    let text = |wrong: &[&str]| {
        let [first, second, third] = [("allow", "20-30"), ("drop", "25"), ("reject", "20-30")]
            .map(|(action, ports)| rule(action, ports));
        let rules = [&first[..], &second]
            .into_iter()
            .chain(wrong.iter().copied())
            .chain([&third[..]]);
        let rules: String = rules.map(|rule| format!("  {rule},\n")).collect();
        format!("[[acl]]\nname = \"a\"\ndefault = \"drop\"\nrule = [\n{rules}]\n")
    };
    for (wrong, place, what) in [
        (&[EMPTY][..], "x.toml:7:", "the smaller number first"),
        (&[FAMILY], "x.toml:7:", "`source` is of IPv4"),
        (&[EMPTY, FAMILY], "x.toml:7:", "the smaller number first"),
    ] {
        let said = refused(&text(wrong));
        assert!(said.starts_with(place) && said.contains(what), "{said}");
    }
    let text = text(&[]);
    let found = found(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    for (found, line) in found.iter().zip([6, 7]) {
        let expected = format!("x.toml:{line}:3: the rule never matches: rule 1");
        assert!(found.starts_with(&expected), "{found}");
    }
}
