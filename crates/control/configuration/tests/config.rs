//! Configuration files that are accepted, and the errors for others.

use configuration::*;

const GOOD: &str = r#"
[[switch]]
name = "sw0"
type = "internal"
mac-ageing = 60
mac-table-size = 100
flood = false
mtu = 9000
host = { interface = "hs0", addresses = ["10.0.0.1/24", "fd00::1/64"], mac = "52:54:00:00:00:01" }

[[switch.port]]
name = "vm1"
type = "vhost-user"
socket = "/run/hyperswitch/vm1.sock"
mode = "client"
vlan = { trunk = [10, 20], native = 10 }
mac-limit = 4
static-macs = ["52:54:00:00:00:02"]
isolated = true

[[switch.port]]
name = "tap1"
type = "tap"
netns = "blue"
addresses = ["10.0.0.2/24"]
vlan = { access = 10 }

[[switch]]
name = "sw1"
type = "external"
uplink = "eth0"
[[switch.port]]
name = "vm2"
vlan = { trunk = "all" }
"#;

fn error(text: &str) -> String {
    parse(text, "x.toml")
        .expect_err("not a configuration")
        .to_string()
}

#[test]
fn accepts_the_documented_shape() {
    let config = parse(GOOD, "x.toml").unwrap();
    assert_eq!(config.switches.len(), 2);
    let sw0 = &config.switches[0];
    assert_eq!(
        (sw0.kind, sw0.flood, sw0.mtu.get()),
        (SwitchKind::Internal, false, 9000)
    );
    assert_eq!(sw0.host_interface().unwrap().as_str(), "hs0");
    let vm1 = &sw0.ports[0];
    assert_eq!(vm1.vlan.to_string(), "trunk 10,20 native 10");
    assert_eq!(
        (vm1.mode, vm1.isolated, vm1.flood),
        (Some(PortMode::Client), true, true)
    );
    assert_eq!(sw0.ports[1].interface_name().as_str(), "tap1");
    let vm2 = &config.switches[1].ports[0];
    assert_eq!(
        vm2.socket_path("/run/x".as_ref()).to_str(),
        Some("/run/x/vm2.sock")
    );
    assert_eq!(vm2.vlan.to_string(), "trunk all");
    assert_eq!((vm2.kind, vm2.mac_limit.get()), (PortKind::VhostUser, 1024));
}

#[test]
fn survives_json_and_toml() {
    let config = parse(GOOD, "x.toml").unwrap();
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    let toml = toml::to_string(&config).unwrap();
    assert_eq!(parse(&toml, "again").unwrap(), config);
    assert_eq!(parse("", "empty").unwrap(), Config::default());
}

#[test]
fn an_unknown_key_is_shown_with_the_known_ones() {
    let text = error("[[switch]]\nname = \"a\"\n\n[[switch.port]]\nname = \"b\"\nvlann = { access = 1 }\n");
    assert!(text.starts_with("x.toml:6:1: "), "{text}");
    for expected in ["vlann", "`vlan`", "`static-macs`", "`mac-limit`"] {
        assert!(text.contains(expected), "{text}");
    }
    let text = error("switches = []\n");
    assert!(
        text.starts_with("x.toml:1:1: ") && text.contains("`switch`"),
        "{text}"
    );
    let text = error("[[switch]]\nname = \"a\"\nhost = { interfaces = \"x\" }\n");
    assert!(
        text.starts_with("x.toml:3:10: ") && text.contains("`interface`"),
        "{text}"
    );
    let text = error("[[switch]]\nname=\"a\"\n[[switch.port]]\nname=\"b\"\nvlan = { access = 1, tag = 2 }\n");
    assert!(
        text.starts_with("x.toml:5:22: ") && text.contains("`access`"),
        "{text}"
    );
}

/// Line and column, offending fragment, and part of the message.
#[test]
fn values_out_of_range_are_shown_with_the_range() {
    let in_port = |line: &str| format!("[[switch]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n{line}\n");
    for (line, column, expected) in [
        (
            "vlan = { access = 4095 }",
            19,
            "`4095`, expected a VLAN identifier, 1 to 4094",
        ),
        ("vlan = { access = 0 }", 19, "1 to 4094"),
        ("vlan = { access = \"x\" }", 19, "1 to 4094"),
        ("vlan = { trunk = [10, 5000] }", 23, "1 to 4094"),
        (
            "vlan = { trunk = [] }",
            18,
            "a list of VLAN identifiers, 1 to 4094, and ranges like \"100-199\", or \"all\"",
        ),
        ("vlan = { trunk = \"some\" }", 18, "or \"all\""),
        (
            "vlan = { trunk = [10, \"9-8\"] }",
            23,
            "or a range like \"100-199\"",
        ),
        ("vlan = { native = 7 }", 8, "`native` needs `trunk`"),
        ("vlan = { primary = 7 }", 8, "`primary` needs one of"),
        ("vlan = { community = 7 }", 8, "needs its `primary = N`"),
        (
            "vlan = { primary = 7, isolated = 8, community = 9 }",
            8,
            "a port is one of `isolated`, `community` and `promiscuous`",
        ),
        (
            "vlan = { primary = 7, isolated = 8, access = 9 }",
            8,
            "excludes `access`",
        ),
        (
            "vlan = { primary = 7, promiscuous = [8, 7] }",
            8,
            "differ from its `primary`",
        ),
        ("vlan = { primary = 7, promiscuous = [8, 4095] }", 41, "1 to 4094"),
        (
            "vlan = { access = 7, trunk = [8] }",
            8,
            "`access` excludes `trunk`",
        ),
        ("mtu = 67", 7, "68 to 65535"),
        ("mtu = 70000", 7, "68 to 65535"),
        ("mac-limit = 70000", 13, "0 to 65536"),
        (
            "dscp = 64",
            8,
            "`64`, expected \"trust\", or a number from 0 to 63",
        ),
        ("dscp = -1", 8, "0 to 63"),
        ("dscp = \"ef\"", 8, "\"trust\", or a number from 0 to 63"),
        ("vlan-priority = 8", 17, "\"trust\", or a number from 0 to 7"),
        ("storm-control = 10000001", 17, "0 (no limit) to 10000000"),
        (
            "storm-control = { broadcast = -1 }",
            31,
            "0 (no limit) to 10000000",
        ),
        (
            "storm-control = { broadcasts = 1 }",
            19,
            "`broadcast`, `multicast`, `unknown`",
        ),
        ("storm-control = [1, 2, 3]", 17, "one value, or a table"),
        ("storm-control-bits = 0", 22, "\"100k\" to \"100G\""),
        (
            "storm-control-bits = { unknown = \"8\" }",
            34,
            "\"100k\" to \"100G\"",
        ),
        (
            "storm-control-bits = { unknown = \"101G\" }",
            34,
            "\"100k\" to \"100G\"",
        ),
        ("mac = \"01:00:5e:00:00:01\"", 7, "a unicast MAC address like"),
        (
            "static-macs = [\"52:54:00:00:00:01\", \"nonsense\"]",
            37,
            "a unicast MAC address like",
        ),
        ("type = \"macvtap\"", 8, "`vhost-user`"),
        ("mode = \"both\"", 8, "`server`"),
        ("interface = \"longer-than-15-bytes\"", 13, "1 to 15"),
        ("addresses = [\"10.0.0.1\"]", 14, "prefix length"),
        ("isolated = 1", 12, "expected true or false"),
    ] {
        let text = error(&in_port(line));
        assert!(
            text.starts_with(&format!("x.toml:5:{column}: ")),
            "{line}: {text}"
        );
        assert!(text.contains(expected), "{line}: {text}");
    }
    for (line, expected) in [
        ("name = \"a/b\"", "1 to 63 of the characters"),
        ("name = \"a\"\ntype = \"bridge\"", "`external`, `internal`"),
        ("name = \"a\"\nmac-ageing = 5", "10 to 1000000"),
        ("name = \"a\"\nmac-table-size = 1", "16 to 1048576"),
        ("name = \"a\"\nname = \"b\"", "duplicate key"),
        ("type = \"private\"", "missing field `name`"),
        ("name = ", "string"),
    ] {
        let text = error(&format!("[[switch]]\n{line}\n"));
        assert!(text.starts_with("x.toml:"), "{text}");
        assert!(text.contains(expected), "{line}: {text}");
        assert!(!text.contains('\n'), "{text:?}");
    }
}

/// Each contradiction names its line and what would be allowed.
#[test]
fn contradictions_are_found_with_their_line() {
    let tap = |name: &str, rest: &str| format!("[[switch.port]]\nname=\"{name}\"\ntype=\"tap\"\n{rest}\n");
    let private = "[[switch]]\nname=\"a\"\n".to_string();
    for (text, line, expected) in [
        (
            private.clone() + "[[switch]]\nname=\"a\"\n",
            4,
            "already a switch a",
        ),
        (private.clone() + "type=\"external\"\n", 3, "needs `uplink`"),
        (
            private.clone() + &tap("p", "weight=2\nmin-rate=\"1M\""),
            6,
            "p has `weight` and `min-rate`",
        ),
        (
            private.clone() + "[[port-policy]]\nname=\"p\"\nmax-burst=\"2k\"\n",
            5,
            "p has neither",
        ),
        (
            private.clone() + "type=\"external\"\nuplink=\"lo\"\n",
            4,
            "lo leads nowhere",
        ),
        (
            private.clone() + "type=\"internal\"\nmtu=65522\n",
            4,
            "at most 65521",
        ),
        (
            private.clone() + "type=\"internal\"\nhost={mtu=1000,addresses=[\"fd00::1/64\"]}\n",
            4,
            "fd00::1/64 needs an MTU of at least 1280",
        ),
        (
            private.clone() + &tap("p", "mtu=65535"),
            6,
            "port p: an MTU of 65535",
        ),
        (
            private.clone() + "mtu=1279\n" + &tap("p", "addresses=[\"fd00::1/64\"]"),
            7,
            "port p: fd00::1/64 needs",
        ),
        (
            private.clone() + "uplink-back-end=\"af-xdp\"\n",
            3,
            "`uplink-back-end` is for switches with an `uplink`",
        ),
        (
            private.clone() + "uplink=\"eth0\"\n",
            3,
            "`uplink` is for external",
        ),
        (
            private.clone() + "host={}\n",
            3,
            "`host` is for internal and external",
        ),
        (
            private.clone() + "[[switch.port]]\nname=\"control\"\n",
            4,
            "reserved",
        ),
        (
            private.clone()
                + "[[switch.port]]\nname=\"p\"\n[[switch]]\nname=\"b\"\n[[switch.port]]\nname=\"p\"\n",
            8,
            "switch a",
        ),
        (
            private.clone() + &tap("p", "socket=\"/x\""),
            6,
            "`socket` is for ports of type vhost-user",
        ),
        (
            private.clone() + &tap("p", "mode=\"client\""),
            6,
            "`mode` is for ports of type vhost-user",
        ),
        (
            private.clone() + "[[switch.port]]\nname=\"p\"\nnetns=\"x\"\n",
            5,
            "`netns` is for ports of type tap",
        ),
        (
            private.clone() + "[[switch.port]]\nname=\"p\"\nsocket=\"p.sock\"\n",
            5,
            "absolute path",
        ),
        (
            private.clone() + &tap("p", "interface=\"i\"") + &tap("q", "interface=\"i\""),
            10,
            "already that of port p",
        ),
        (
            private.clone() + "type=\"internal\"\n" + &tap("a", ""),
            5,
            "already the host interface of a",
        ),
        (
            private.clone()
                + &tap("p", "static-macs=[\"52:54:00:00:00:01\"]")
                + &tap("q", "static-macs=[\"52:54:00:00:00:01\"]"),
            10,
            "already a static address of port p",
        ),
        (
            private.clone()
                + "type=\"external\"\nuplink=\"e\"\n[[switch]]\nname=\"b\"\ntype=\"external\"\nuplink=\"e\"\n",
            8,
            "already the uplink of switch a",
        ),
    ] {
        let error = parse(&text, "x.toml").unwrap_err();
        assert_eq!(error.line, line, "{error}\n{text}");
        assert!(error.message.contains(expected), "{error}");
    }
    // The same interface name in two namespaces is two interfaces.
    parse(
        &(private + &tap("p", "interface=\"i\"\nnetns=\"x\"") + &tap("q", "interface=\"i\"")),
        "x.toml",
    )
    .unwrap();
}

/// The keys that the parser knows in a table, which it names when there is another one.
fn keys(table: &str) -> Vec<String> {
    let text = error(&format!("{table}nonsense = 1\n"));
    let (_, known) = text
        .split_once("expected")
        .unwrap_or_else(|| panic!("{table}: {text}"));
    let keys = known.split('`').skip(1).step_by(2).map(str::to_owned);
    keys.collect()
}

/// Whatever is given instead of whichever value: the message has the place, and no words of the programming
/// language.
#[test]
fn every_wrong_value_of_every_key_is_refused_in_words_of_users() {
    let switch = "[[switch]]\nname = \"a\"\ntype = \"internal\"\n";
    let port = format!("{switch}[[switch.port]]\nname = \"b\"\ntype = \"tap\"\n");
    let tables = [
        String::new(),
        "[[switch]]\n".to_owned(),
        "[[switch]]\nname = \"a\"\n[[switch.port]]\n".to_owned(),
        format!("{switch}[switch.host]\n"),
        format!("{port}[switch.port.vlan]\n"),
        format!("{switch}[switch.host.vlan]\n"),
        "[ovs]\n".to_owned(),
        "[placement]\n".to_owned(),
    ];
    let values = [
        "-1",
        "1.5",
        "nan",
        "true",
        "\"\"",
        "\"?\"",
        "[]",
        "[1]",
        "[[]]",
        "[{}]",
        "{}",
        "{ x = 1 }",
        "1979-05-27",
        "07:32:00",
        "99999999999999999999",
        "-99999999999999999999",
    ];
    let foreign = [
        "struct",
        "enum",
        "variant",
        "sequence",
        "map,",
        "u16",
        "u32",
        "u64",
        "i64",
        "i128",
        "Raw",
        "Config",
        "unit",
        "path string",
        "expected a boolean",
        "wanted",
        "private_datetime",
    ];
    let mut wrong = 0;
    for table in &tables {
        for key in keys(table) {
            for value in values {
                let text = format!("{table}{key} = {value}\n");
                let Err(error) = parse(&text, "x.toml") else {
                    continue;
                };
                wrong += 1;
                let error = error.to_string();
                assert!(error.starts_with("x.toml:"), "{text}: {error}");
                // A wrong word is answered by the right ones, whatever they are called.
                let shown = error.replace("unknown variant", "").replace("community", "");
                let found = foreign.iter().find(|word| shown.contains(**word));
                assert!(found.is_none(), "{text}: {error}: {found:?}");
            }
        }
    }
    assert!(wrong > 500, "{wrong}: the keys were not found");
}

#[test]
fn tables_say_how_they_are_written() {
    let port = "[[switch]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n";
    for (text, place, expected) in [
        (
            "[switch]\nname = \"a\"\n".to_owned(),
            "1:1",
            "each switch begins with [[switch]]",
        ),
        (
            "switch = 1\n".to_owned(),
            "1:10",
            "`switch` is the number 1, expected a list of tables",
        ),
        (
            "switch = [1]\n".to_owned(),
            "1:10",
            "each switch begins with [[switch]]",
        ),
        (
            format!("{port}vlan = 10\n"),
            "5:8",
            "`vlan` is the number 10, expected a table: { access = N }",
        ),
        // The parser would take the first value for `access`.
        (
            format!("{port}vlan = [10]\n"),
            "5:8",
            "`vlan` is a list, expected a table: { access = N }",
        ),
        ("ovs = [true]\n".to_owned(), "1:7", "[ovs]"),
        ("[[placement]]\n".to_owned(), "1:1", "[placement]"),
        (
            "[[switch]]\nname = \"a\"\n[switch.port]\nname = \"b\"\n".to_owned(),
            "3:1",
            "[[switch.port]]",
        ),
        (
            format!("{port}static-macs = \"52:54:00:00:00:01\"\n"),
            "5:15",
            "a list of unicast MAC addresses",
        ),
        (
            format!("{port}flood = \"yes\"\n"),
            "5:9",
            "`flood` is the string \"yes\", expected true or false",
        ),
        (
            "[placement]\nmode = 1\n".to_owned(),
            "2:8",
            "\"hyperswitch\", \"poll\"",
        ),
        (
            "[placement]\nhysteresis-us = \"50\"\n".to_owned(),
            "2:17",
            "microseconds, 0 to 10000",
        ),
        (
            "[placement]\ndedicated-cores = [-1]\n".to_owned(),
            "2:20",
            "CPU numbers, 0 to 65535",
        ),
    ] {
        let error = error(&text);
        assert!(
            error.starts_with(&format!("x.toml:{place}: ")) && error.contains(expected),
            "{text}: {error}"
        );
    }
}

/// One value is for all classes; a table leaves the others at their default. What is written is read again.
#[test]
fn mirrors_to_other_hosts_are_refused_by_name() {
    let text =
        error("[[mirror]]\nname = \"m\"\nsources = [\"a\"]\ndestination = \"b\"\nerspan = \"192.0.2.1\"\n");
    assert!(text.starts_with("x.toml:5:"), "{text}");
    assert!(text.contains("ERSPAN is not supported"), "{text}");
}

#[test]
fn storm_limits_are_one_value_or_a_table() {
    let port = |lines: &str| {
        let text = format!("[[switch]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n{lines}\n");
        let config = parse(&text, "x.toml").unwrap();
        let again = toml::to_string(&config).unwrap();
        assert_eq!(parse(&again, "again").unwrap(), config, "{again}");
        config.switches[0].ports[0].clone()
    };
    let rates = |port: &PortConfig| port.storm_control.values().map(|rate| rate.get());
    let bits = |port: &PortConfig| port.storm_control_bits.values().map(|rate| rate.get());
    let usual = port("");
    assert_eq!((rates(&usual), bits(&usual)), ([10_000; 3], [None; 3]));
    assert_eq!(rates(&port("storm-control = 7")), [7; 3]);
    let some =
        port("storm-control = { broadcast = 7, unknown = 0 }\nstorm-control-bits = { multicast = \"1M\" }");
    assert_eq!(
        (rates(&some), bits(&some)),
        ([7, 10_000, 0], [None, Some(1_000_000), None])
    );
    let text = some.storm_control.to_string();
    assert_eq!(text, "broadcast=7,multicast=10000,unknown=0");
    assert_eq!(text.parse(), Ok(some.storm_control));
}

/// Ports of a switch agree about which VLANs belong together, and other switches need not.
#[test]
fn ports_that_disagree_about_private_vlans_are_shown_with_each_other() {
    let text = |first: &str, second: &str| {
        let port = |name: &str, vlan: &str| format!("[[switch.port]]\nname = \"{name}\"\nvlan = {vlan}\n");
        let other = "[[switch]]\nname = \"b\"\n[[switch.port]]\nname = \"o\"\nvlan = { primary = 9, community = 10 }\n";
        format!(
            "[[switch]]\nname = \"a\"\n{}{}{other}",
            port("p", first),
            port("q", second)
        )
    };
    let good = [
        (
            "{ primary = 10, isolated = 20 }",
            "{ primary = 10, promiscuous = [20, 30] }",
        ),
        (
            "{ primary = 10, promiscuous = [20] }",
            "{ primary = 10, community = 20 }",
        ),
        (
            "{ primary = 10, community = 20 }",
            "{ primary = 11, community = 21 }",
        ),
        (
            "{ primary = 10, community = 20 }",
            "{ trunk = [20], native = 10 }",
        ),
    ];
    for (first, second) in good {
        let config = parse(&text(first, second), "x.toml").unwrap();
        let again = toml::to_string(&config).unwrap();
        assert_eq!(parse(&again, "again").unwrap(), config, "{again}");
    }
    for (first, second, message) in [
        (
            "{ primary = 10, isolated = 20 }",
            "{ primary = 11, isolated = 20 }",
            "VLAN 20 is the isolated VLAN of private VLAN 11 here, and the isolated VLAN of private VLAN 10 as port p says",
        ),
        (
            "{ primary = 10, isolated = 20 }",
            "{ primary = 10, community = 20 }",
            "VLAN 20 is a community of private VLAN 10 here, and the isolated VLAN of",
        ),
        (
            "{ primary = 10, promiscuous = [20] }",
            "{ primary = 20, community = 30 }",
            "VLAN 20 is the primary VLAN of private VLAN 20 here, and a secondary VLAN of private VLAN 10",
        ),
        (
            "{ primary = 10, isolated = 20 }",
            "{ access = 10 }",
            "VLAN 10 is the primary VLAN of private VLAN 10, as port p says; q needs a part in it",
        ),
        (
            "{ primary = 10, isolated = 20 }",
            "{ access = 20 }",
            "VLAN 20 is the isolated VLAN of",
        ),
    ] {
        let text = error(&text(first, second));
        assert!(text.starts_with("x.toml:8:") && text.contains(message), "{text}");
    }
}

/// Nothing, a byte a second, and more than any device sends.
#[test]
fn bandwidths_outside_their_ranges_are_refused() {
    let said = |key: &str, value: &str| {
        let text = format!(
            "[[switch]]\nname=\"s\"\n[[switch.port]]\nname=\"p\"\nmax-rate-to=\"1M\"\n{key}=\"{value}\"\n"
        );
        parse(&text, "x.toml")
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let rates =
        ["max-rate-from", "min-rate"].map(|key| (key, ["0", "8", "99999", "101G"], "\"100k\" to \"100G\""));
    let burst = ("max-burst", ["0", "1", "1599", "101M"], "\"1600\" to \"100M\"");
    for (key, values, allowed) in rates.into_iter().chain([burst]) {
        for value in values.into_iter().chain(["-1", "18446744073709551616", ""]) {
            let refused = said(key, value).unwrap_err();
            assert!(
                refused.starts_with("x.toml:6:") && refused.contains(allowed),
                "{value}: {refused}"
            );
        }
    }
    for (key, value) in [
        ("max-rate-from", "100k"),
        ("max-rate-from", "100G"),
        ("max-burst", "1600"),
        ("max-burst", "100M"),
    ] {
        assert_eq!(said(key, value), Ok(()), "{key} {value}");
    }
}
