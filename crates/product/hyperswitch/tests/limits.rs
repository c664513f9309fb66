//! Limits of ports with containers: what is over is dropped and named by its class, and nothing else is.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

/// Pings that a test sends at once.
const SENT: u64 = 200;

/// Classes of frames that go to all ports, and addresses of each.
const CLASSES: [(&str, &str); 3] = [
    ("broadcast", "-b 10.0.2.255"),
    ("multicast", "224.0.0.99"),
    ("unknown", "10.0.2.77"),
];

/// A container that sends, and two that may get what goes to all.
struct World {
    instance: Instance,
    sender: Namespace,
    _others: [Namespace; 2],
    _directory: tempfile::TempDir,
}

impl World {
    fn start(lines: &str) -> World {
        let directory = tempfile::tempdir().unwrap();
        let [sender, one, other] = ["sender", "one", "other"].map(Namespace::new);
        let mut text = String::from("[[switch]]\nname = \"lan\"\n");
        for (number, namespace) in [&sender, &one, &other].iter().enumerate() {
            let off = "net.ipv6.conf.default.disable_ipv6=1";
            assert!(namespace.run(&format!("sysctl -qw {off}")).0);
            let (name, lines) = [("sender", lines), ("one", ""), ("other", "")][number];
            text += &format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{}\"\naddresses = [\"10.0.2.{}/24\"]\n{lines}\n",
                namespace.0,
                number + 1
            );
        }
        let config = directory.path().join("c.toml");
        std::fs::write(&config, &text).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &config);
        eventually("ports run", || {
            ["sender", "one", "other"]
                .iter()
                .all(|port| instance.is_running(port))
        });
        let neighbour = "ip neigh replace 10.0.2.77 lladdr 02:00:00:00:00:77 dev sender nud permanent";
        assert!(sender.run(neighbour).0);
        assert!(sender.run("ip route replace 224.0.0.0/4 dev sender").0);
        eventually("a ping passes", || sender.pings("10.0.2.2"));
        World {
            instance,
            sender,
            _others: [one, other],
            _directory: directory,
        }
    }

    /// Frames of the sender that were dropped, by class.
    fn dropped(&self) -> [u64; 3] {
        CLASSES.map(|(class, _)| self.instance.counter("sender", &format!("dropped/storm-{class}")))
    }

    /// Sends pings of a class at once; returns how many of each class were dropped by then.
    fn storm(&self, class: usize, size: usize) -> [u64; 3] {
        let sent = || self.instance.counter("sender", "received");
        let (before, dropped) = (sent(), self.dropped());
        let to = CLASSES[class].1;
        self.sender
            .run(&format!("ping -q -c {SENT} -i 0.001 -W 0.1 -s {size} {to}"));
        eventually("all were sent", || sent() >= before + SENT);
        let now = self.dropped();
        std::array::from_fn(|class| now[class] - dropped[class])
    }

    fn set(&self, options: &[&str]) -> Result<(), String> {
        let words = [&["port", "set", "sender"], options].concat();
        self.instance.verb(&words).map(drop)
    }
}

#[test]
fn each_class_of_storms_has_its_limit_and_its_reason() {
    let world = World::start("storm-control = { broadcast = 5, multicast = 5, unknown = 5 }");
    for class in 0..3 {
        let dropped = world.storm(class, 56);
        for (other, dropped) in dropped.into_iter().enumerate() {
            // A second's worth at once, and what comes while it takes.
            let expected = if other == class { SENT / 2..SENT - 4 } else { 0..1 };
            assert!(expected.contains(&dropped), "{class} {other}: {dropped}");
        }
    }
    let shown = world.instance.verb(&["port", "show", "sender"]).unwrap();
    assert_eq!(shown[0]["config"]["storm-control"], 5, "{shown}");
    let words = [
        "trace",
        "--in-port",
        "sender",
        "--src",
        "52:54:00:00:00:01",
        "--dst",
        "ff:ff:ff:ff:ff:ff",
    ];
    let traced = world.instance.verb(&words).unwrap().to_string();
    assert!(traced.contains("storm-control(broadcast)"), "{traced}");

    // A limit in bits: each of these frames has 11,000, and 525,000 pass at once.
    let bits = ["--storm-control", "0", "--storm-control-bits", "multicast=100k"];
    world.set(&bits).unwrap();
    assert_eq!(world.storm(0, 1400), [0; 3]);
    let [broadcast, multicast, unknown] = world.storm(1, 1400);
    assert!((SENT / 4..SENT - 40).contains(&multicast), "{multicast}");
    assert_eq!((broadcast, unknown), (0, 0));
    assert_eq!(world.storm(2, 1400), [0; 3]);
}

/// No limit at all, limits that nobody reaches, the least ones, and those that are none.
#[test]
fn limits_at_the_ends_of_their_ranges() {
    let world = World::start("storm-control = 0\nstorm-control-bits = \"100G\"");
    let none = |when: &str| {
        for class in 0..3 {
            assert_eq!(world.storm(class, 1400), [0; 3], "{when}");
        }
    };
    none("no limit, and one beyond any device");
    world
        .set(&["--storm-control", "10000000", "--storm-control-bits", "none"])
        .unwrap();
    none("a limit that nobody reaches");
    for (option, value, allowed) in [
        ("--storm-control", "10000001", "0 (no limit) to 10000000"),
        ("--storm-control", "-1", "0 (no limit) to 10000000"),
        ("--storm-control", "broadcasts=1", "CLASS=VALUE"),
        ("--storm-control", "broadcast=1,broadcast=2", "CLASS=VALUE"),
        ("--storm-control-bits", "0", "\"100k\" to \"100G\""),
        // One byte per second.
        ("--storm-control-bits", "8", "\"100k\" to \"100G\""),
        ("--storm-control-bits", "multicast=101G", "\"100k\" to \"100G\""),
    ] {
        let refused = world.set(&[&format!("{option}={value}")]).unwrap_err();
        assert!(refused.contains(allowed), "{value}: {refused}");
    }
    world.set(&["--storm-control", "broadcast=1"]).unwrap();
    let dropped = world.storm(0, 56)[0];
    assert!(
        (SENT / 2..SENT).contains(&dropped),
        "one per second passes: {dropped}"
    );
}
