//! Private VLANs with containers, on two switches that a trunk joins: who hears whom, and what isolated ones
//! try to hear each other nevertheless.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

/// Containers: name, switch, and part in private VLAN 10. The place is the last byte of its addresses.
const PORTS: [(&str, &str, &str); 7] = [
    ("gw", "left", "promiscuous = [200, 201, 202]"),
    ("iso1", "left", "isolated = 200"),
    ("iso2", "left", "isolated = 200"),
    ("com1", "left", "community = 201"),
    ("com2", "left", "community = 202"),
    ("iso3", "right", "isolated = 200"),
    ("com3", "right", "community = 201"),
];

const GW: usize = 0;
const ISO1: usize = 1;
const ISO2: usize = 2;
const COM1: usize = 3;
const COM2: usize = 4;
const ISO3: usize = 5;
const COM3: usize = 6;

struct World {
    instance: Instance,
    containers: Vec<Namespace>,
    /// Where the switches and the trunk between them are.
    _wire: Namespace,
    _directory: tempfile::TempDir,
}

fn mac(place: usize) -> String {
    format!("52:54:00:00:03:{place:02x}")
}

fn address(place: usize) -> String {
    format!("10.0.3.{}", place + 1)
}

impl World {
    fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let wire = Namespace::new("wire");
        assert!(wire.run("ip link add left0 type veth peer name right0").0);
        assert!(wire.run("ip link set left0 up").0 && wire.run("ip link set right0 up").0);
        let mut text = String::new();
        let mut containers = Vec::new();
        for switch in ["left", "right"] {
            text +=
                &format!("[[switch]]\nname = \"{switch}\"\ntype = \"external\"\nuplink = \"{switch}0\"\n");
            for (place, (name, at, part)) in PORTS.iter().enumerate() {
                if *at != switch {
                    continue;
                }
                let namespace = Namespace::new(name);
                let off = "net.ipv6.conf.default.disable_ipv6=1";
                assert!(namespace.run(&format!("sysctl -qw {off}")).0);
                text += &format!(
                    "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{}\"\nmac = \"{}\"\n\
                     addresses = [\"{}/24\"]\nvlan = {{ primary = 10, {part} }}\n",
                    namespace.0,
                    mac(place),
                    address(place)
                );
                containers.push(namespace);
            }
        }
        let config = directory.path().join("c.toml");
        std::fs::write(&config, &text).unwrap();
        let instance = Instance::start_in(&wire, &directory.path().join("run"), &config);
        let ports = PORTS
            .iter()
            .map(|(name, ..)| *name)
            .chain(["left:uplink", "right:uplink"]);
        let ports: Vec<&str> = ports.collect();
        eventually("ports run", || ports.iter().all(|port| instance.is_running(port)));
        World {
            instance,
            containers,
            _wire: wire,
            _directory: directory,
        }
    }

    /// From now on nobody asks for addresses, so that no frames are sent but a test's.
    fn silence(&self) {
        for (place, (name, ..)) in PORTS.iter().enumerate() {
            for other in (0..PORTS.len()).filter(|other| *other != place) {
                let (address, mac) = (address(other), mac(other));
                let known = format!("ip neigh replace {address} lladdr {mac} dev {name} nud permanent");
                assert!(self.containers[place].run(&known).0);
            }
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.containers[from].pings(&address(to))
    }

    /// Frames that the switch has handed to a container.
    fn heard(&self, place: usize) -> u64 {
        self.instance.counter(PORTS[place].0, "transmitted")
    }

    /// Frames from a port that were dropped for a reason, be it that the control process said so.
    fn dropped(&self, port: &str, reason: &str) -> u64 {
        let counters = ["dropped", "discarded"].map(|kind| format!("{kind}/{reason}"));
        counters
            .iter()
            .map(|path| self.instance.counter(port, path))
            .sum()
    }

    /// Sends frames from a container until one was dropped for that reason; nobody else hears any.
    fn is_dropped(&self, from: usize, frame: &str, reason: &str, others: &[usize]) {
        let heard = || others.iter().map(|place| self.heard(*place)).collect::<Vec<_>>();
        let name = PORTS[from].0;
        let (before, dropped) = (heard(), self.dropped(name, reason));
        self.containers[from].sends(name, frame);
        eventually(&format!("{reason}: {frame}"), || {
            self.dropped(name, reason) > dropped
        });
        assert_eq!(heard(), before, "{frame}");
    }
}

/// An Ethernet frame of 60 bytes between two addresses, with these words behind them.
fn frame(to: &str, from: &str, rest: &str) -> String {
    format!(
        "{} {} {rest} {}",
        to.replace(':', ""),
        from.replace(':', ""),
        "00".repeat(46)
    )
}

#[test]
fn ports_of_a_private_vlan_hear_what_their_part_says_across_a_trunk() {
    let world = World::start();
    for (one, other) in [
        (ISO1, GW),
        (ISO2, GW),
        (COM1, GW),
        (COM2, GW),
        // Across the trunk.
        (ISO3, GW),
        (COM3, GW),
        (COM1, COM3),
    ] {
        eventually("a ping passes", || world.reaches(one, other));
        assert!(world.reaches(other, one), "{one} {other}");
    }
    for (one, other) in [
        (ISO1, ISO2),
        (ISO1, COM1),
        (COM1, COM2),
        (COM2, COM3),
        (ISO1, ISO3),
        (ISO3, ISO2),
        (ISO3, COM1),
    ] {
        assert!(
            !world.reaches(one, other) && !world.reaches(other, one),
            "{one} {other}"
        );
    }
    // Stations are learned in the primary VLAN, whatever VLAN they send in.
    let macs = world.instance.verb(&["mac", "list"]).unwrap();
    let learned = macs
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["switch"] == "left" && entry["vlan"].as_u64() > Some(0));
    let vlans: Vec<u64> = learned.map(|entry| entry["vlan"].as_u64().unwrap()).collect();
    assert!(
        !vlans.is_empty() && vlans.iter().all(|vlan| *vlan == 10),
        "{macs}"
    );

    let shown = world.instance.verb(&["port", "show", "iso1"]).unwrap();
    assert_eq!(shown[0]["vlan"], "private 10 isolated 200");
    let words = [
        "trace",
        "--in-port",
        "iso1",
        "--src",
        &mac(ISO1),
        "--dst",
        &mac(ISO2),
    ];
    let traced = world.instance.verb(&words).unwrap().to_string();
    assert!(traced.contains("\"reason\":\"isolated\""), "{traced}");

    // A change of the part holds at once, in place.
    let part = ["--primary", "10", "--community", "201"];
    world
        .instance
        .verb(&[&["port", "set", "iso2"][..], &part].concat())
        .unwrap();
    eventually("iso2 has joined the community", || world.reaches(ISO2, COM1));
    assert!(world.reaches(COM3, ISO2) && world.reaches(ISO2, GW) && !world.reaches(ISO1, ISO2));
    let wrong = ["port", "set", "iso1", "--primary", "10", "--isolated-vlan", "201"];
    let refused = world.instance.verb(&wrong).unwrap_err();
    assert!(refused.contains("VLAN 201 is"), "{refused}");
    assert!(world.reaches(ISO1, GW) && !world.reaches(ISO1, COM1));
}

#[test]
fn isolated_ports_find_no_way_around() {
    let world = World::start();
    for place in 1..PORTS.len() {
        eventually("a ping passes", || world.reaches(place, GW));
    }
    world.silence();
    let others = [ISO2, COM1, COM2, ISO3, COM3];
    // By broadcast: the promiscuous port hears it, and nobody else does.
    let (heard, at_gw) = (others.map(|place| world.heard(place)), world.heard(GW));
    let everybody = "ff:ff:ff:ff:ff:ff";
    world.containers[ISO1].sends("iso1", &frame(everybody, &mac(ISO1), "88b5"));
    eventually("gw hears a broadcast", || world.heard(GW) > at_gw);
    assert_eq!(others.map(|place| world.heard(place)), heard);
    // By the MAC address of another one, here and behind the trunk.
    for place in [ISO2, COM1] {
        world.is_dropped(ISO1, &frame(&mac(place), &mac(ISO1), "88b5"), "isolated", &others);
    }
    let (heard, on_wire) = (others.map(|place| world.heard(place)), || {
        world.dropped("right:uplink", "isolated")
    });
    let before = on_wire();
    world.containers[ISO1].sends("iso1", &frame(&mac(ISO3), &mac(ISO1), "88b5"));
    eventually("the other switch refuses it", || on_wire() > before);
    assert_eq!(others.map(|place| world.heard(place)), heard);
    // By a tag, by two, and by one behind a priority tag: of the community, and of the primary VLAN.
    for tags in [
        "8100 00c9",
        "8100 000a",
        "8100 00c9 8100 000a",
        "88a8 000a 8100 00c9",
    ] {
        let frame = frame(everybody, &mac(ISO1), &format!("{tags} 88b5"));
        world.is_dropped(ISO1, &frame, "vlan-filtered", &others);
    }
    let hidden = frame(everybody, &mac(ISO1), "8100 e000 8100 00c9 88b5");
    world.is_dropped(ISO1, &hidden, "nested-vlan", &others);
    // By the address of the promiscuous port: its `mac` says where it is, and iso2 still reaches it.
    let heard = world.heard(ISO1);
    world.containers[ISO1].sends("iso1", &frame(everybody, &mac(GW), "88b5"));
    assert!(world.reaches(ISO2, GW));
    assert_eq!(world.heard(ISO1), heard);
    // By an address that both claim: iso2 sends to it, and iso1 does not hear that.
    let nobody = "52:54:00:00:03:77";
    for (place, name) in [(GW, "gw"), (ISO1, "iso1")] {
        world.containers[place].sends(name, &frame(everybody, nobody, "88b5"));
    }
    eventually("the address is contested", || {
        let macs = world.instance.verb(&["mac", "list"]).unwrap_or_default();
        let of = |entry: &&serde_json::Value| entry["mac"] == nobody;
        macs.as_array()
            .is_some_and(|macs| macs.iter().filter(of).count() >= 2)
    });
    let (heard, at_gw) = (world.heard(ISO1), world.heard(GW));
    world.containers[ISO2].sends("iso2", &frame(nobody, &mac(ISO2), "88b5"));
    eventually("gw hears it", || world.heard(GW) > at_gw);
    assert_eq!(world.heard(ISO1), heard);
}
