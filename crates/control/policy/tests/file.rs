//! Policies of files: what is accepted, and what is refused or reported with file and line.

#![allow(clippy::unwrap_used)]

use flow::NamedPolicy;
use policy::{SetMembers, compile, findings, parse};
use rule_list::Verdict;

const GOOD: &str = r#"
[[set]]
name = "office"
addresses = ["192.0.2.0/24", "2001:db8::/32"]

[[set]]
name = "phones"
macs = ["00:11:22:00:00:00/24"]

[[set]]
name = "front"
ports = ["vm1", "later"]

[[acl]]
name = "no-smtp"
default = "allow"
rule = [
  { action = "allow", protocol = "tcp", destination-port = 25, destination = "192.0.2.25" },
  { action = "reject", protocol = "tcp", destination-port = 25 },
  { action = "drop", source-mac = "phones", vlan = "tagged", priority = 9 },
]

[[security-group]]
name = "web"
to = [
  { protocol = "tcp", destination-port = "443-444", replies = true },
  { protocol = "icmp", icmp-type = 8, source = "office", replies = true },
]
from = [{ remote-group = "db", protocol = "tcp", destination-port = 5432, replies = true }]

[[security-group]]
name = "db"
to = [
  { remote-group = "web", protocol = "tcp", destination-port = 5432 },
  { sender = "front", protocol = "udp" },
]

[[switch]]
name = "sw0"

[[switch.port]]
name = "vm1"
mac = "52:54:00:00:00:01"
addresses = ["10.0.0.1/24"]
guards = ["spoof", "dhcp", "router", "bpdu"]
allowed-pairs = [{ mac = "00:00:5e:00:01:07", address = "10.0.0.7" }]
security-groups = ["web"]
acl-from = "no-smtp"

[[switch.port]]
name = "vm2"
addresses = ["10.0.0.2/24", "fd00::2/64"]
security-groups = ["db"]

[[switch.port]]
name = "free"
"#;

#[test]
fn a_file_becomes_lists_sets_and_what_ports_have_of_them() {
    let config = parse(GOOD, "x.toml").unwrap();
    let policies = compile(&config).unwrap();
    let of = |port: &str| policies.ports[port];
    assert!(
        !policies.ports.contains_key("free"),
        "a port without policies has no lists"
    );
    let vm1 = of("vm1");
    let names: Vec<&str> = [vm1.guards, vm1.from, vm1.to]
        .iter()
        .map(|list| policies.lists[&list.unwrap()].name.as_str())
        .collect();
    assert_eq!(
        names,
        ["guards of vm1", "from: acl no-smtp, groups web", "to: groups web"]
    );
    // Group `db` does not limit what its members send.
    assert_eq!((of("vm2").guards, of("vm2").from), (None, None));
    let from = &policies.lists[&vm1.from.unwrap()];
    assert_eq!(
        from.default,
        Verdict::Drop,
        "groups take the place of the default"
    );
    let texts: Vec<String> = from
        .rules
        .iter()
        .map(|rule| format!("{}: {}", rule.origin, policies.text(&rule.rule.matches)))
        .collect();
    assert_eq!(
        texts[..7],
        [
            "acl no-smtp rule 3: source-mac=<macs phones>(00:11:22:00:00:00/24) vlan=tagged",
            "acl no-smtp rule 1: destination=192.0.2.25 protocol=tcp destination-port=25",
            "acl no-smtp rule 2: protocol=tcp destination-port=25",
            "guard headers-hidden: protocol=tcp destination-port=0",
            "group web from rule 1: destination=<addresses of group db>(10.0.0.2,fd00::2) protocol=tcp destination-port=5432",
            "group web replies to to rule 1: protocol=tcp source-port=443-444 tcp-flags=ack",
            "group web replies to to rule 2: destination=<addresses office>(192.0.2.0/24,2001:db8::/32) protocol=icmp icmp-type=0",
        ]
    );
    let priorities: Vec<u32> = from.rules.iter().map(|rule| rule.rule.priority).collect();
    assert!(
        priorities.is_sorted_by(|one, other| one >= other),
        "{priorities:?}"
    );
    let ports = policies
        .sets
        .values()
        .find(|set| set.name == "ports of group web")
        .unwrap();
    assert_eq!(ports.members, SetMembers::Ports(["vm1".to_owned()].into()));
    // Who asks again gets the same.
    assert_eq!(compile(&parse(GOOD, "y.toml").unwrap()).unwrap(), policies);
}

#[test]
fn ports_share_lists_and_changes_elsewhere_move_no_numbers() {
    let config = parse(GOOD, "x.toml").unwrap();
    let before = compile(&config).unwrap();
    let mut changed = config.clone();
    let mut twin = changed.switches[0].ports[0].clone();
    twin.name = "twin".parse().unwrap();
    twin.mac = "52:54:00:00:00:02".parse().ok();
    changed.switches[0].ports.insert(0, twin);
    // A rule between two others of the same verdict.
    let rule = changed.acls[0].rules[1].clone();
    changed.acls[0].rules.insert(
        2,
        configuration::RuleConfig {
            source_port: "7".parse().ok(),
            ..rule
        },
    );
    let after = compile(&changed).unwrap();
    let (vm1, twin) = (after.ports["vm1"], after.ports["twin"]);
    assert_eq!((vm1.from, vm1.to), (twin.from, twin.to));
    assert_ne!(vm1.guards, twin.guards);
    assert_eq!(vm1, before.ports["vm1"]);
    let rules = |policies: &policy::Policies| policies.lists[&vm1.from.unwrap()].rules.clone();
    let (old, new) = (rules(&before), rules(&after));
    let kept = old
        .iter()
        .filter(|rule| new.iter().any(|other| other.rule == rule.rule));
    assert_eq!(
        kept.count(),
        old.len(),
        "rules that stay have the same number and priority"
    );
}

/// Policies with a name, for a host, an uplink and ports of others.
const NAMED: &str = r#"
[[port-policy]]
name = "outside"
guards = ["dhcp"]
acl-from = "no-smtp"

[[port-policy]]
name = "vm"
guards = ["spoof"]
allowed-pairs = [{ mac = "52:54:00:00:00:09", address = "10.0.0.9" }]
security-groups = ["web"]

[[switch]]
name = "sw1"
type = "external"
uplink = "eth0"
uplink-policy = "outside"
host = { policy = "vm" }
"#;

#[test]
fn a_policy_with_a_name_has_all_its_lists_under_numbers_that_follow_from_the_name() {
    let config = parse(&(GOOD.to_owned() + NAMED), "x.toml").unwrap();
    let policies = compile(&config).unwrap();
    let (outside, vm) = (NamedPolicy::of("outside"), NamedPolicy::of("vm"));
    assert_eq!(policies.ports["sw1:uplink"], outside.into());
    assert_eq!(policies.ports["sw1:host"], vm.into());
    let list = |number| {
        let list = &policies.lists[&number];
        (list.name.as_str(), list.default, list.rules.is_empty())
    };
    let is = |name, default, is_empty| (name, default, is_empty);
    assert_eq!(
        list(outside.guards),
        is("port-policy outside: guards", Verdict::Allow, false)
    );
    assert_eq!(
        list(outside.from),
        is("port-policy outside: from", Verdict::Allow, false)
    );
    // What it does not limit has a list as well, or nothing would pass.
    assert_eq!(
        list(outside.to),
        is("port-policy outside: to", Verdict::Allow, true)
    );
    assert_eq!(
        list(vm.guards),
        is("port-policy vm: guards", Verdict::Drop, false)
    );
    assert_eq!(list(vm.to), is("port-policy vm: to", Verdict::Drop, false));
    let set = |name: &str| {
        let set = policies.sets.values().find(|set| set.name == name);
        set.unwrap_or_else(|| panic!("{name}")).members.clone()
    };
    let members = ["vm1", "sw1:host"].map(str::to_owned);
    assert_eq!(set("ports of group web"), SetMembers::Ports(members.into()));
    // Others have numbers that these never have.
    let others = policies
        .lists
        .iter()
        .filter(|(_, list)| !list.name.starts_with("port-policy"));
    assert!(
        others
            .map(|(number, _)| number.0)
            .all(|number| number < 1 << NamedPolicy::OTHER_BITS)
    );
}

#[test]
fn policies_with_names_that_contradict_themselves_are_refused_with_their_line() {
    let said = |from: &str, to: &str| {
        assert!(NAMED.contains(from), "{from}");
        let text = GOOD.to_owned() + &NAMED.replacen(from, to, 1);
        parse(&text, "x.toml").unwrap_err().to_string()
    };
    let line = |inside: usize| format!("x.toml:{}:", GOOD.lines().count() + inside);
    for (said, place, what) in [
        (
            said("\"vm\"\nguards", "\"outside\"\nguards"),
            8,
            "already a port policy outside",
        ),
        (
            said("\"outside\"\nhost", "\"none\"\nhost"),
            17,
            "no port policy none",
        ),
        (
            said("policy = \"vm\" }", "policy = \"none\" }"),
            18,
            "no port policy none",
        ),
        (
            said("groups = [\"web\"]", "groups = [\"none\"]"),
            11,
            "no security group none",
        ),
        (said("\"no-smtp\"", "\"none\""), 5, "no acl none"),
        (said("[\"dhcp\"]", "[\"spoof\"]"), 4, "needs `allowed-pairs`"),
        (said("[\"spoof\"]", "[]"), 10, "is for ports with the guard"),
        (
            said("\"external\"\nuplink = \"eth0\"", "\"internal\""),
            16,
            "`uplink-policy` is for switches with an `uplink`",
        ),
    ] {
        assert!(
            said.starts_with(&line(place)) && said.contains(what),
            "{said}: {place}, {what}"
        );
    }
}

/// The error, or the findings, of a file in which the first text is replaced by the second.
fn said(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    match parse(&text, "x.toml") {
        Err(error) => error.to_string(),
        Ok(config) => {
            let found: Vec<String> = findings(&config, &text, "x.toml")
                .iter()
                .map(ToString::to_string)
                .collect();
            found.join("; ")
        }
    }
}

#[test]
fn what_contradicts_itself_is_refused_with_its_line() {
    let rule = r#"{ action = "reject", protocol = "tcp", destination-port = 25 }"#;
    let with = |rule_text: &str| said(rule, &format!("{{ action = \"drop\", {rule_text} }}"));
    let mut wrong = Vec::new();
    for (said, place, what) in [
        (
            with("connection = \"new\""),
            "x.toml:19:35",
            "until connection tracking exists",
        ),
        (
            with("source = \"10.0.0.0/8\", destination = \"fd00::/8\""),
            "x.toml:19:59",
            "`destination` is of IPv6",
        ),
        (
            with("ethernet-type = \"ipv6\", source = \"10.0.0.0/8\""),
            "x.toml:19:55",
            "`source` is of IPv4",
        ),
        (
            with("protocol = \"icmpv6\", source = \"10.0.0.0/8\""),
            "x.toml:19",
            "of IPv4",
        ),
        (
            with("ethernet-type = \"arp\", protocol = \"tcp\", destination-port = 1"),
            "x.toml:19",
            "exclude each other",
        ),
        (
            with("destination-port = \"30-20\""),
            "x.toml:19",
            "the smaller number first",
        ),
        (
            with("destination-port = 22"),
            "x.toml:19",
            "`destination-port` needs `protocol`",
        ),
        (with("icmp-type = 8"), "x.toml:19", "\"icmp\" or \"icmpv6\""),
        (
            with("protocol = \"icmp\", icmp-code = 256"),
            "x.toml:19",
            "at most 255",
        ),
        (
            with("protocol = \"udp\", tcp-flags = \"syn\""),
            "x.toml:19",
            "needs `protocol = \"tcp\"`",
        ),
        (
            with("protocol = \"tcp\", source-port = 1, fragments = \"later\""),
            "x.toml:19",
            "exclude each other",
        ),
        (
            with("source = \"10.0.0.1/8\""),
            "x.toml:19",
            "bits behind the prefix are zero",
        ),
        (
            with("source = \"nowhere\""),
            "x.toml:19:31",
            "there is no set nowhere",
        ),
        (
            with("source = \"phones\""),
            "x.toml:19",
            "set phones has MAC addresses as members, and IP addresses are needed",
        ),
        (
            with("replies = true"),
            "x.toml:19",
            "`replies` is for rules of security groups",
        ),
        (
            with("sender = \"vm2\""),
            "x.toml:19",
            "`sender` is for packets to a port",
        ),
        (
            with("remote-group = \"web\", sender = \"vm2\""),
            "x.toml:19",
            "leave one out",
        ),
        (
            with("remote-group = \"none\""),
            "x.toml:19",
            "there is no security group none",
        ),
        (said("action = \"reject\", ", ""), "x.toml:19:3", "needs `action`"),
        (
            said(
                "{ protocol = \"tcp\", destination-port = \"443",
                "{ action = \"drop\", protocol = \"tcp\", destination-port = \"443",
            ),
            "x.toml:26:14",
            "rules of security groups allow",
        ),
        (
            said("protocol = \"udp\" }", "protocol = \"udp\", replies = true }"),
            "x.toml:35:51",
            "use `remote-group`",
        ),
        (said("icmp-type = 8, ", ""), "x.toml:27", "`icmp-type = 8`"),
        (
            said("addresses = [\"10.0.0.2/24\", \"fd00::2/64\"]", ""),
            "x.toml:29",
            "port vm2 has no `addresses`",
        ),
        (
            said("\"192.0.2.0/24\"", "\"office\""),
            "x.toml:4:14",
            "expected an IP address or network",
        ),
        (
            said("macs = [", "ports = []\nmacs = ["),
            "x.toml:7:8",
            "members of one kind",
        ),
        (
            said("macs = [\"00:11:22:00:00:00/24\"]", ""),
            "x.toml:7:8",
            "needs `addresses`, `macs` or `ports`",
        ),
        (
            said("name = \"phones\"", "name = \"office\""),
            "x.toml:7:8",
            "there is already a set office",
        ),
        (
            said("name = \"phones\"", "name = \"10.0.0.1\""),
            "x.toml:7",
            "give it another name",
        ),
        (
            said("name = \"db\"", "name = \"web\""),
            "x.toml:32",
            "already a security group web",
        ),
        (
            said("security-groups = [\"db\"]", "security-groups = [\"db\", \"db\"]"),
            "x.toml:53:26",
            "is there twice",
        ),
        (
            said("security-groups = [\"db\"]", "security-groups = [\"dp\"]"),
            "x.toml:53:20",
            "no security group dp",
        ),
        (
            said("acl-from = \"no-smtp\"", "acl-from = \"no\""),
            "x.toml:48:12",
            "there is no acl no",
        ),
        (
            said("mac = \"52:54:00:00:00:01\"\n", ""),
            "x.toml:44",
            "needs the port's `mac`",
        ),
        (
            said("guards = [\"spoof\", ", "guards = ["),
            "x.toml:46",
            "`allowed-pairs` is for ports with the guard",
        ),
        (
            said("default = \"allow\"\n", ""),
            "x.toml:14",
            "missing field `default`",
        ),
    ] {
        if !said.starts_with(place) || !said.contains(what) {
            wrong.push(format!("{said}\nlacks {place} {what}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_that_can_never_match_are_found_with_their_line() {
    assert_eq!(said("", ""), "x.toml:12:17: there is no port later at the moment");
    let rule = r#"{ action = "reject", protocol = "tcp", destination-port = 25 }"#;
    let behind = |rules: &str| {
        let found = said(rule, &format!("{rule},\n  {rules}"));
        found
            .strip_suffix("; x.toml:12:17: there is no port later at the moment")
            .unwrap_or_default()
            .to_owned()
    };
    let same = r#"{ action = "allow", protocol = "tcp", destination-port = 25, source = "office" }"#;
    assert_eq!(
        behind(same),
        "x.toml:20:3: the rule never matches: rule 2 matches all of its packets, and rejects them"
    );
    let never = [
        r#"{ action = "allow", source = "10.0.0.0/8" }, { action = "drop", source = "10.1.0.0/16" }"#,
        r#"{ action = "allow", source = "office" }, { action = "drop", source = "192.0.2.7" }"#,
        r#"{ action = "allow", vlan = "tagged" }, { action = "drop", vlan = 7 }"#,
        r#"{ action = "allow", protocol = "udp", source-port = "1-9" }, { action = "drop", protocol = "udp", source-port = 9 }"#,
        r#"{ action = "allow" }, { action = "drop", ethernet-type = "arp" }"#,
        r#"{ action = "drop", ethernet-type = "ipv4" }, { action = "drop", source = "10.0.0.0/8" }"#,
        r#"{ action = "drop", protocol = "tcp", tcp-flags = "syn" }, { action = "drop", protocol = "tcp", tcp-flags = "syn,!ack" }"#,
        r#"{ action = "drop", source-mac = "phones" }, { action = "allow", source-mac = "00:11:22:33:44:55" }"#,
    ];
    for rules in never {
        let found = behind(rules);
        assert!(
            found.contains("the rule never matches: rule 3"),
            "{rules}: {found}"
        );
    }
    let may = [
        r#"{ action = "allow", source = "10.1.0.0/16" }, { action = "drop", source = "10.0.0.0/8" }"#,
        r#"{ action = "allow", protocol = "udp", source-port = "1-8" }, { action = "drop", protocol = "udp", source-port = "8-9" }"#,
        r#"{ action = "allow", source = "192.0.2.0/25" }, { action = "drop", source = "office" }"#,
        r#"{ action = "allow", protocol = "udp", source-port = 1 }, { action = "drop", protocol = "udp", fragments = "later" }"#,
        r#"{ action = "drop", source = "0.0.0.0/0" }, { action = "allow", ethernet-type = "arp" }"#,
    ];
    for rules in may {
        assert_eq!(behind(rules), "", "{rules}");
    }
}
