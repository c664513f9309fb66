//! Mirrors of ports with containers: what is copied, through reloads and the deaths of processes, and that a
//! mirror's port that goes costs nothing.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

/// Bytes of a ping of 1,000 with its headers.
const PING: u64 = 1042;

/// Two containers that talk, and one that watches.
struct World {
    instance: Instance,
    _web: Namespace,
    client: Namespace,
    watch: Namespace,
    directory: tempfile::TempDir,
}

impl World {
    fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let [web, client, watch] = ["web", "client", "watch"].map(Namespace::new);
        let mut text = String::from("[[switch]]\nname = \"lan\"\n");
        for (number, namespace) in [&web, &client, &watch].iter().enumerate() {
            // Neighbour discovery would be copied, too.
            let off = "net.ipv6.conf.default.disable_ipv6=1";
            assert!(namespace.run(&format!("sysctl -qw {off}")).0);
            let name = ["web", "client", "watch"][number];
            text += &format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{}\"\naddresses = [\"10.0.0.{}/24\"]\n",
                namespace.0,
                number + 1
            );
        }
        // Nobody is connected there.
        text += "[[switch.port]]\nname = \"vm\"\n";
        let config = directory.path().join("base.toml");
        std::fs::write(&config, &text).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &config);
        let world = World {
            instance,
            _web: web,
            client,
            watch,
            directory,
        };
        let ports = ["web", "client", "watch"];
        eventually("ports run", || {
            ports.iter().all(|port| world.instance.is_running(port))
        });
        eventually("a ping passes", || world.client.pings("10.0.0.1"));
        world
    }

    /// Reloads the configuration with these tables before it.
    fn reload(&self, tables: &str) -> Result<(), String> {
        let config = self.directory.path().join("base.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let switch = text.find("[[switch]]").unwrap();
        std::fs::write(&config, format!("{tables}{}", &text[switch..])).unwrap();
        self.instance.verb(&["reload"]).map(drop)
    }

    fn ping(&self) {
        assert!(self.client.run("ping -q -c 20 -i 0.01 -s 1000 10.0.0.1").0);
    }

    /// Packets and bytes that the watching container has got.
    fn watched(&self) -> (u64, u64) {
        let (_, text) = self
            .watch
            .run("cat /sys/class/net/watch/statistics/rx_packets /sys/class/net/watch/statistics/rx_bytes");
        let mut numbers = text.lines().map(|line| line.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Waits until a ping brings the watcher so many bytes for each packet, there and back, and little else.
    fn expect(&self, what: &str, bytes: u64) {
        eventually(what, || {
            let (packets, before) = self.watched();
            self.ping();
            let (now, got) = self.watched();
            // ARP now and then.
            let count = if bytes == 0 { 0 } else { 40 };
            (count..count + 6).contains(&(now - packets))
                && (40 * bytes..40 * bytes + 6 * 64).contains(&(got - before))
        });
    }
}

#[test]
fn copies_reach_the_mirror_and_a_stopped_mirror_costs_nothing() {
    const MIRROR: &str = "[[mirror]]\nname = \"ids\"\nsources = [\"web\"]\ndestination = \"watch\"\n";
    let world = World::start();
    world.expect("nothing is copied", 0);
    world.reload(MIRROR).unwrap();
    world.expect("pings and answers are copied", PING);
    let shown = world.instance.verb(&["port", "show", "web"]).unwrap();
    assert_eq!(shown[0]["policies"][0], "mirror ids to watch: from, to");

    world
        .reload(&format!("{MIRROR}length = 60\nvlan = 999\n"))
        .unwrap();
    world.expect("copies are cut and tagged", 64);
    let acl =
        "[[acl]]\nname = \"tcp\"\ndefault = \"drop\"\nrule = [{ action = \"allow\", protocol = \"tcp\" }]\n";
    world.reload(&format!("{acl}{MIRROR}filter = \"tcp\"\n")).unwrap();
    eventually("the list is in force", || world.instance.is_in_force());
    world.expect("the list allows TCP only", 0);
    let (before, _) = world.watched();
    assert!(world.client.reaches("10.0.0.1", 443));
    eventually("TCP is copied", || world.watched().0 >= before + 2);

    // Nothing changes if anything is wrong.
    let wrong = MIRROR.replace("\"watch\"", "\"web\"");
    let refused = world.reload(&wrong).unwrap_err();
    assert!(
        refused.contains("base.toml:4:") && refused.contains("copies of its own packets"),
        "{refused}"
    );
    world.expect("the list still allows TCP only", 0);
    world.reload(MIRROR).unwrap();

    world.instance.kill("control");
    world.expect("mirrors outlive the control process", PING);
    world.instance.kill("data-plane");
    eventually("pings pass again", || world.client.pings("10.0.0.1"));
    world.expect("a new data plane has them again", PING);

    // Nobody takes them: copies are lost and counted, and packets are not.
    let lost = |port| world.instance.counter(port, "egress-dropped/mirror-lost");
    world.reload(&MIRROR.replace("watch", "vm")).unwrap();
    world.ping();
    assert!(lost("vm") >= 40, "{}", lost("vm"));
    world.reload("").unwrap();
    // What is flooded is copied, too.
    eventually("no copies are made", || {
        let before = world.instance.counter("web", "copies");
        world.ping();
        world.instance.counter("web", "copies") == before
    });
}

#[test]
fn the_sender_of_a_rejected_packet_is_told() {
    let world = World::start();
    let acl = "[[acl]]\nname = \"no\"\ndefault = \"allow\"\nrule = [\n\
        { action = \"reject\", protocol = \"tcp\", destination-port = 25 },\n\
        { action = \"reject\", protocol = \"icmp\" },\n]\n";
    assert!(!world.client.reaches("10.0.0.9", 25), "nobody is there");
    assert!(world.client.pings("10.0.0.1"));
    let config = world.directory.path().join("base.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let with = text.replace("name = \"client\"\n", "name = \"client\"\nacl-from = \"no\"\n");
    std::fs::write(&config, with).unwrap();
    world.reload(acl).unwrap();
    eventually("the list is in force", || world.instance.is_in_force());
    let rejected = || world.instance.counter("client", "dropped/rejected");
    let before = rejected();
    let (passed, said) = world.client.run("ping -c 1 -W 5 10.0.0.1");
    assert!(!passed && said.contains("Packet filtered"), "{said}");
    // The reset ends the attempt at once.
    assert!(world.client.reaches("10.0.0.1", 25));
    assert!(rejected() >= before + 2);
    assert!(world.instance.counter("client", "injected") >= 2);
}
