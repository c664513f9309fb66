//! Mirrors of a file: what ports have of them, and what is refused or reported with file and line.

#![allow(clippy::unwrap_used)]

use flow::{MAX_MIRRORS, Mirrored};
use policy::{PortMirror, compile, differences, findings, parse};

const GOOD: &str = r#"[[acl]]
name = "web"
default = "drop"
rule = [{ action = "allow", protocol = "tcp", sender = "vm2" }]

[[mirror]]
name = "ids"
sources = ["vm1", "sw0:host"]
destination = "detector"

[[mirror]]
name = "losses"
sources = ["vm1", "later"]
destination = "detector"
packets = ["dropped"]
filter = "web"
length = 128
vlan = 99

[[switch]]
name = "sw0"
type = "internal"
port = [{ name = "vm1" }, { name = "vm2" }, { name = "detector" }]

[[switch]]
name = "sw1"
port = [{ name = "far" }]
"#;

#[test]
fn ports_have_mirrors_and_lists_for_them() {
    let policies = compile(&parse(GOOD, "x.toml").unwrap()).unwrap();
    let of = |port: &str| policies.mirrors.get(port).cloned().unwrap_or_default();
    let packets = |from, to, dropped| Mirrored { from, to, dropped };
    let ids = PortMirror {
        name: "ids".into(),
        destination: "detector".into(),
        packets: packets(true, true, false),
        list: None,
        length: None,
        vlan: None,
    };
    assert_eq!(of("sw0:host"), std::slice::from_ref(&ids));
    assert_eq!(of("detector"), []);
    let [first, second] = of("vm1").try_into().unwrap();
    assert_eq!(first, ids);
    assert_eq!(of("later"), std::slice::from_ref(&second));
    assert_eq!((second.length, second.vlan), (Some(128), Some(99)));
    assert_eq!(second.packets, packets(false, false, true));
    let list = &policies.lists[&second.list.unwrap()];
    assert_eq!((list.name.as_str(), list.rules.len()), ("mirrors: acl web", 1));
    assert_eq!(first.to_string(), "mirror ids to detector: from, to");
    // No port is judged by it.
    assert!(policies.ports.is_empty());
}

#[test]
fn changes_of_mirrors_are_told() {
    let of = |text: &str| compile(&parse(text, "x.toml").unwrap()).unwrap();
    let changed =
        GOOD.replacen("name = \"ids\"", "name = \"other\"", 1)
            .replacen("vlan = 99", "vlan = 98", 1);
    let lines = differences(&of(GOOD), &of(&changed));
    assert_eq!(
        lines,
        [
            "mirror losses changed",
            "mirror other added, sources 2",
            "mirror ids removed"
        ]
    );
    assert_eq!(differences(&of(GOOD), &of(GOOD)), [""; 0]);
}

/// The error, or the findings, of the file with another text in the place of one.
fn said(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    match parse(&text, "x.toml") {
        Err(error) => error.to_string(),
        Ok(config) => {
            let found = findings(&config, &text, "x.toml");
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            found.join("; ")
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    let losses = "destination = \"detector\"\npackets";
    let many = "[[mirror]]\nname = \"mN\"\nsources = [\"vm2\"]\ndestination = \"detector\"\n";
    let many: String = (0..=MAX_MIRRORS)
        .map(|number| many.replace('N', &number.to_string()))
        .collect();
    for (said, place, what) in [
        (
            said("\"detector\"", "\"vm1\""),
            "x.toml:9:",
            "copies of its own packets",
        ),
        (
            said(losses, "destination = \"sw0:host\"\npackets"),
            "x.toml:14:",
            "copies are not copied again",
        ),
        (
            said("\"sw0:host\"]", "\"detector\"]"),
            "x.toml:9:",
            "copies of its own packets",
        ),
        (
            said("\"sw0:host\"]", "\"vm1\"]"),
            "x.toml:8:",
            "vm1 is there twice",
        ),
        (
            said("\"sw0:host\"]", "\"far\"]"),
            "x.toml:9:",
            "no packet crosses",
        ),
        (
            said("[\"vm1\", \"sw0:host\"]", "[]"),
            "x.toml:8:",
            "`sources` is empty",
        ),
        (said("[\"dropped\"]", "[]"), "x.toml:15:", "`packets` is empty"),
        (
            said("[\"dropped\"]", "[\"lost\"]"),
            "x.toml:15:",
            "`from`, `to`, `dropped`",
        ),
        (said("[\"dropped\"]", "\"dropped\""), "x.toml:15:", "a list of"),
        (
            said("name = \"losses\"", "name = \"ids\""),
            "x.toml:12:",
            "already a mirror ids",
        ),
        (
            said("filter = \"web\"", "filter = \"wed\""),
            "x.toml:16:",
            "no acl wed",
        ),
        (said("length = 128", "length = 13"), "x.toml:17:", "14 to 65553"),
        (said("vlan = 99", "vlan = 4095"), "x.toml:18:", "1 to 4094"),
        (
            said(
                "[[mirror]]\nname = \"ids\"",
                &format!("{many}[[mirror]]\nname = \"ids\""),
            ),
            "x.toml:24:",
            "4 mirrors already",
        ),
        (said("vlan = 99", "vlan = 99\ncolour = 1"), "x.toml:19:", "colour"),
        // Nothing is wrong but a port that is not there.
        (
            said("ids", "ids"),
            "x.toml:13:",
            "there is no port later at the moment",
        ),
    ] {
        assert!(
            said.starts_with(place) && said.contains(what),
            "{place} {what}: {said}"
        );
    }
}
