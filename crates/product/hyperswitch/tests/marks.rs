//! Priorities of a port that is not trusted, with containers: what it writes into its packets, and what
//! arrives.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

struct World {
    instance: Instance,
    sender: Namespace,
    peer: Namespace,
    config: std::path::PathBuf,
    text: String,
    _directory: tempfile::TempDir,
}

impl World {
    fn start(marks: &str) -> World {
        let directory = tempfile::tempdir().unwrap();
        let [sender, peer] = ["sender", "peer"].map(Namespace::new);
        let port = |name: &str, namespace: &Namespace, last: u8, lines: &str| {
            let netns = &namespace.0;
            format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{netns}\"\nvlan = {{ access = 10 }}\n\
                 mac = \"52:54:00:00:04:0{last}\"\naddresses = [\"10.0.4.{last}/24\", \"fd00:4::{last}/64\"]\n{lines}\n"
            )
        };
        let text = [
            "[[switch]]\nname = \"lan\"\n".into(),
            port("peer", &peer, 2, ""),
            format!(
                "[[switch.port]]\nname = \"trunk\"\ntype = \"tap\"\nnetns = \"{}\"\nvlan = {{ trunk = [10] }}\n",
                peer.0
            ),
            port("sender", &sender, 1, marks),
        ]
        .concat();
        let config = directory.path().join("c.toml");
        std::fs::write(&config, &text).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &config);
        eventually("ports run", || {
            ["sender", "peer", "trunk"]
                .iter()
                .all(|port| instance.is_running(port))
        });
        eventually("pings pass", || {
            sender.pings("10.0.4.2") && sender.pings("-6 fd00:4::2")
        });
        World {
            instance,
            sender,
            peer,
            config,
            text,
            _directory: directory,
        }
    }

    /// The traffic class with which a ping arrives that was sent with this one. The peer answers, so the
    /// header's checksum is right.
    fn arrives(&self, version: u8, class: u8) -> u8 {
        let pattern = format!("{class:02x}5a7e{class:02x}c3");
        let to = if version == 4 { "10.0.4.2" } else { "-6 fd00:4::2" };
        let frame = self.peer.hears("peer", &pattern, || {
            assert!(
                self.sender.pings(&format!("-Q {class} -p {pattern} {to}")),
                "{class}"
            );
        });
        let frame = frame.unwrap();
        let byte = |at: usize| u8::from_str_radix(&frame[2 * at..2 * at + 2], 16).unwrap();
        match version {
            4 => byte(15),
            _ => byte(14) << 4 | byte(15) >> 4,
        }
    }

    fn classes(&self, class: u8) -> [u8; 2] {
        [4, 6].map(|version| self.arrives(version, class))
    }

    fn set(&self, options: &[&str]) -> Result<(), String> {
        let words = [&["port", "set", "sender"], options].concat();
        self.instance.verb(&words)?;
        Ok(())
    }

    fn in_force(&self) {
        eventually("lists are in force", || self.instance.is_in_force());
    }
}

#[test]
fn what_an_untrusted_port_writes_is_cleared_or_set() {
    let world = World::start("dscp = 0\nvlan-priority = 5");
    world.in_force();
    // Expedited forwarding is cleared; the congestion bits stay.
    assert_eq!(world.classes(46 << 2 | 2), [2, 2]);
    let shown = world.instance.verb(&["port", "show", "sender"]).unwrap();
    let policies = shown[0]["policies"].to_string();
    assert!(
        policies.contains("marks: vlan-priority=5,dscp=0 (in force)"),
        "{policies}"
    );
    let words = [
        "trace",
        "--in-port",
        "sender",
        "--src",
        "52:54:00:00:04:01",
        "--dst",
        "ff:ff:ff:ff:ff:ff",
    ];
    let traced = world.instance.verb(&words).unwrap().to_string();
    assert!(
        traced.contains("vid=10,pcp=5"),
        "a trunk's tag has the priority: {traced}"
    );
    let ip = ["--ip", "10.0.4.1,10.0.4.2"];
    let traced = world
        .instance
        .verb(&[&words[..], &ip].concat())
        .unwrap()
        .to_string();
    assert!(
        traced.contains("mark(dscp=0)") && traced.contains("marks: ethernet-type=ipv4"),
        "{traced}"
    );
    let rules = world
        .instance
        .verb(&["policy", "show", "marks: vlan-priority=5,dscp=0"])
        .unwrap();
    let counted = rules["rules"].as_array().unwrap().iter();
    let counted: u64 = counted.filter_map(|rule| rule["packets"].as_u64()).sum();
    assert!(counted > 0, "{rules}");
}

#[test]
fn marks_change_in_place_and_outlive_processes() {
    let world = World::start("dscp = 0\nvlan-priority = 5");
    // By command, in place: another value, then the sender's own again.
    world.set(&["--dscp", "46", "--vlan-priority", "trust"]).unwrap();
    assert_eq!(world.classes(0), [46 << 2; 2]);
    world.set(&["--dscp", "trust"]).unwrap();
    assert_eq!(world.classes(10 << 2), [10 << 2; 2]);
    let shown = world.instance.verb(&["port", "show", "sender"]).unwrap();
    assert_eq!(shown[0]["policies"], serde_json::json!([]));
    for wrong in [["--dscp", "64"], ["--vlan-priority", "8"], ["--dscp", "-1"]] {
        let refused = world.set(&[&wrong.join("=")]).unwrap_err();
        assert!(refused.contains("\"trust\", or a number from 0 to"), "{refused}");
    }

    // By reload; if anything is wrong, nothing changes.
    let other = world.text.replace("dscp = 0", "dscp = 8");
    std::fs::write(
        &world.config,
        other.replace("vlan-priority = 5", "vlan-priority = 9"),
    )
    .unwrap();
    let refused = world.instance.verb(&["reload"]).unwrap_err();
    assert!(
        refused.contains("c.toml:") && refused.contains("from 0 to 7"),
        "{refused}"
    );
    assert_eq!(world.classes(10 << 2), [10 << 2; 2]);
    std::fs::write(&world.config, other).unwrap();
    world.instance.verb(&["reload"]).unwrap();
    assert_eq!(world.classes(10 << 2), [8 << 2; 2]);

    // Marks outlive the control process, and a new data plane marks from its first packet on.
    world.instance.kill("control");
    assert_eq!(world.classes(10 << 2), [8 << 2; 2]);
    world.instance.kill("data-plane");
    eventually("pings pass again", || {
        world.sender.pings("10.0.4.2") && world.sender.pings("-6 fd00:4::2")
    });
    assert_eq!(world.classes(10 << 2), [8 << 2; 2]);
}
