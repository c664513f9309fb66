//! Containers whose ports are veth pairs, on a running switch.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

/// An instance with two containers, in a host of its own.
struct Site {
    instance: Instance,
    spaces: [Namespace; 2],
    host: Namespace,
    _directory: tempfile::TempDir,
}

impl Site {
    fn start() -> Site {
        let (directory, host) = (tempfile::tempdir().unwrap(), Namespace::new("veth"));
        let spaces = [Namespace::new("veth"), Namespace::new("veth")];
        let config = format!(
            "[[switch]]\nname = \"lan\"\ntype = \"internal\"\n[[switch.port]]\nname = \"c0\"\ntype = \"veth\"\n\
             interface = \"eth0\"\nnetns = \"{}\"\naddresses = [\"10.66.0.1/24\"]\n",
            spaces[0].0
        );
        let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
        std::fs::write(&file, config).unwrap();
        let instance = Instance::start_in(&host, &run_dir, &file);
        eventually("it is running", || instance.is_running("c0"));
        let site = Site {
            instance,
            spaces,
            host,
            _directory: directory,
        };
        site.add("veth");
        site
    }

    /// Adds the second container's port.
    fn add(&self, kind: &str) {
        let line = format!(
            "port add lan c1 --type {kind} --netns {} --interface eth0 --address 10.66.0.2/24",
            self.spaces[1].0
        );
        let words: Vec<&str> = line.split(' ').collect();
        self.instance.verb(&words).unwrap();
        eventually("the port is running", || self.instance.is_running("c1"));
    }

    fn pings(&self) -> bool {
        self.spaces[0].pings("10.66.0.2") && self.spaces[1].pings("10.66.0.1")
    }

    fn has(&self, space: usize) -> bool {
        self.spaces[space].run("ip link show eth0").0
    }
}

#[test]
fn containers_reach_each_other_through_every_death() {
    let site = Site::start();
    eventually("they reach each other", || site.pings());
    let shown = site.instance.verb(&["port", "show", "c0"]).unwrap();
    assert_eq!(
        (&shown[0]["type"], &shown[0]["interface"]),
        (&"veth".into(), &"eth0".into())
    );
    let mac = shown[0]["mac"].as_str().unwrap().to_owned();
    assert!(site.spaces[0].run("ip link show eth0").1.contains(&mac));
    // The host has no further device for them.
    let devices = site.host.run("ip -o link").1;
    assert_eq!(devices.lines().count(), 2, "lo and the host's port: {devices}");
    for role in ["driver", "forwarder-0", "control", "data-plane"] {
        site.instance.kill(role);
        eventually(role, || site.pings());
    }
    site.instance.verb(&["port", "del", "c1"]).unwrap();
    eventually("it is gone with its port", || !site.has(1));
    assert!(site.has(0));
}

#[test]
fn pairs_go_with_the_switch_however_it_ends() {
    let mut site = Site::start();
    eventually("they reach each other", || site.pings());
    site.instance.die();
    eventually("nothing is left", || !site.has(0) && !site.has(1));
}

#[test]
fn a_port_becomes_a_pair_and_a_tap_again() {
    let site = Site::start();
    for kind in ["tap", "veth"] {
        site.instance.verb(&["port", "del", "c1"]).unwrap();
        site.add(kind);
        eventually("they reach each other", || site.pings());
        let is_pair = site.spaces[1].run("ip -d link show eth0").1.contains("veth");
        assert_eq!(is_pair, kind == "veth");
    }
    let shown = site.instance.verb(&["port", "show", "c1"]).unwrap();
    assert_eq!(shown[0]["type"], "veth");
}
