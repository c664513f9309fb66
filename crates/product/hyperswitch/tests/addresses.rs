//! Addresses of ports by DHCP and by first use, with containers: what is learned, what attacks gain, and that
//! it outlives processes.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

const CLIENT: &str = "525400000302";
const SERVER: &str = "525400000301";

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A message of DHCP, as hexadecimal digits: a request, or the grant of an address with its lease.
fn dhcp(source: &str, client: &str, transaction: u32, granted: Option<([u8; 4], u32)>) -> String {
    let reply = granted.is_some();
    let mut message = format!("{}010600{transaction:08x}", if reply { "02" } else { "01" });
    message += &"0".repeat(16);
    message += &hex(granted.map_or([0; 4], |(address, _)| address));
    message += &"0".repeat(16);
    message += client;
    message += &"0".repeat(2 * (236 - 34));
    message += "63825363";
    message += if reply { "350105" } else { "350103" };
    if let Some((_, lease)) = granted {
        message += &format!("3304{lease:08x}");
    }
    message += "ff";
    let length = message.len() / 2;
    let (from, to) = if reply { (67, 68) } else { (68, 67) };
    let server = if reply { "0a000301" } else { "00000000" };
    format!(
        "ffffffffffff{source}080045{:02x}{:04x}0000000040110000{server}ffffffff{from:04x}{to:04x}{:04x}0000{message}",
        0,
        length + 28,
        length + 8
    )
}

/// A client gives an address up.
fn release(address: [u8; 4]) -> String {
    let mut frame = dhcp(CLIENT, CLIENT, 99, None).replace("350103ff", "350107ff");
    // Behind the headers of Ethernet, IP and UDP, at byte 12 of the message.
    frame.replace_range(2 * 54..2 * 58, &hex(address));
    frame
}

/// A message of DHCPv6 with the address `fd00::9`: 3 asks for it, 7 grants it, 8 gives it up.
fn dhcpv6(kind: u8, transaction: u32) -> String {
    let is_reply = kind == 7;
    let (to, from) = match is_reply {
        true => (CLIENT, SERVER),
        false => ("333300010002", CLIENT),
    };
    let (source, from_port, to_port) = if is_reply { (1, 547, 546) } else { (2, 546, 547) };
    let address = format!("fd00{:028x}", 9);
    let option = format!("00050018{address}{:08x}{:08x}", 0, 3600);
    format!(
        "{to}{from}86dd60000000003811 40fe80{source:028x}fe80{:028x}{from_port:04x}{to_port:04x}00380000\
         {kind:02x}{transaction:06x}00030028{}{option}",
        9,
        "0".repeat(24)
    )
    .replace(' ', "")
}

struct World {
    instance: Instance,
    server: Namespace,
    client: Namespace,
    other: Namespace,
    _directory: tempfile::TempDir,
}

impl World {
    /// A server, a client with these lines of configuration, and another guest, each a container.
    fn start(lines: &str) -> World {
        let directory = tempfile::tempdir().unwrap();
        let names = ["server", "client", "other"];
        let [server, client, other] = names.map(Namespace::new);
        let port = |name: &str, Namespace(netns): &Namespace, last: u8, lines: &str| {
            format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{netns}\"\n\
                 mac = \"52:54:00:00:03:0{last}\"\n{lines}\n"
            )
        };
        let text = [
            "[[switch]]\nname = \"lan\"\n".into(),
            port(
                "server",
                &server,
                1,
                "addresses = [\"10.0.3.1/24\"]\ndhcp-server = true",
            ),
            port("client", &client, 2, &format!("guards = [\"spoof\"]\n{lines}")),
            port("other", &other, 3, "addresses = [\"10.0.3.3/24\"]"),
        ]
        .concat();
        let config = directory.path().join("c.toml");
        std::fs::write(&config, text).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &config);
        for name in names {
            eventually("the port runs", || instance.is_running(name));
        }
        eventually("lists are in force", || instance.is_in_force());
        assert!(client.run("ip addr add 10.0.3.9/24 dev client").0);
        World {
            instance,
            server,
            client,
            other,
            _directory: directory,
        }
    }

    fn asks(&self, transaction: u32) {
        self.client
            .sends("client", &dhcp(CLIENT, CLIENT, transaction, None));
    }

    /// The server's port grants an address; or another one does, from its own MAC address.
    fn grants(&self, from: &str, client: &str, transaction: u32, granted: ([u8; 4], u32)) {
        let (namespace, source) = match from {
            "server" => (&self.server, SERVER),
            _ => (&self.other, "525400000303"),
        };
        namespace.sends(from, &dhcp(source, client, transaction, Some(granted)));
    }

    /// Whether the client may use an address, by the rules of its guards.
    fn has(&self, address: &str) -> bool {
        let shown = self
            .instance
            .verb(&["policy", "show", "client"])
            .unwrap_or_default();
        shown.to_string().contains(address)
    }

    fn pings(&self, source: &str) -> bool {
        self.client.pings(&format!("-I {source} 10.0.3.1"))
    }
}

#[test]
fn a_lease_gives_an_address_and_forged_ones_do_not() {
    let world = World::start("address-source = \"dhcp\"\naddress-limit = 2");
    assert!(!world.pings("10.0.3.9"), "no lease");
    let own = [10, 0, 3, 9];
    // From a port that is no server's, for a question that was asked; and from the server without a question,
    // or for another's MAC address.
    world.asks(7);
    world.grants("other", CLIENT, 7, (own, 3600));
    world.grants("server", CLIENT, 8, (own, 3600));
    world.grants("server", "525400000303", 7, (own, 3600));
    // Of an address that another port states.
    world.asks(9);
    world.grants("server", CLIENT, 9, ([10, 0, 3, 3], 3600));
    // A lease that counts shows that those before were seen.
    world.asks(10);
    world.grants("server", CLIENT, 10, ([10, 0, 3, 8], 3600));
    eventually("a lease counts", || world.has("10.0.3.8"));
    assert!(!world.has("10.0.3.9") && !world.has("10.0.3.3"));
    assert!(!world.pings("10.0.3.9"));

    world.grants("server", CLIENT, 7, (own, 3600));
    eventually("the lease counts", || world.pings("10.0.3.9"));
    // The port has as many as it may.
    world.asks(11);
    world.grants("server", CLIENT, 11, ([10, 0, 3, 10], 3600));
    // Another end to a lease that counts.
    world.asks(12);
    world.grants("server", CLIENT, 12, ([10, 0, 3, 8], 2));
    eventually("the lease ends", || !world.has("10.0.3.8"));
    assert!(!world.has("10.0.3.10"), "it came when there was no room");

    world.instance.kill("control");
    assert!(world.pings("10.0.3.9"), "rules outlive the control process");
    eventually("lists are known", || world.instance.is_in_force());
    assert!(world.has("10.0.3.9") && world.pings("10.0.3.9"));
    world.instance.kill("data-plane");
    eventually("the next data plane has the address", || world.pings("10.0.3.9"));
    assert!(!world.client.pings("-I 10.0.3.8 10.0.3.1"));
    world.client.sends("client", &release(own));
    eventually("the guest has given it up", || !world.has("10.0.3.9"));
    assert!(!world.pings("10.0.3.9"));
}

#[test]
fn leases_by_dhcpv6_count_until_they_are_given_up() {
    let world = World::start("address-source = \"dhcp\"");
    let replies = |transaction| world.server.sends("server", &dhcpv6(7, transaction));
    // A reply to nobody's question; the lease behind it shows that it was seen.
    replies(6);
    world.asks(5);
    world.grants("server", CLIENT, 5, ([10, 0, 3, 8], 3600));
    eventually("a lease counts", || world.has("10.0.3.8"));
    assert!(!world.has("fd00::9"));
    world.client.sends("client", &dhcpv6(3, 7));
    eventually("the lease counts", || {
        replies(7);
        world.has("fd00::9")
    });
    world.client.sends("client", &dhcpv6(8, 8));
    eventually("the guest has given it up", || !world.has("fd00::9"));
    assert!(world.has("10.0.3.8"));
}

#[test]
fn addresses_are_the_ports_that_used_them_first_and_few() {
    let world = World::start("address-source = \"first-use\"\naddress-limit = 2");
    assert!(world.pings("10.0.3.9"), "from the first packet on");
    eventually("the address is the port's", || world.has("10.0.3.9"));
    for address in ["10.0.3.3", "10.0.3.8", "10.0.3.10"] {
        let add = format!("ip addr add {address}/24 dev client");
        assert!(world.client.run(&add).0);
    }
    assert!(!world.pings("10.0.3.3"), "it is another port's");
    eventually("an address was another's", || {
        world.instance.counter("client", "discarded/address-taken") > 0
    });
    assert!(world.pings("10.0.3.8"));
    // A flood of addresses.
    assert!(!world.pings("10.0.3.10"));
    eventually("the port has as many as it may", || {
        world.instance.counter("client", "discarded/address-limit") > 0
    });
    eventually("both are the port's", || world.has("10.0.3.8"));
    assert!(!world.has("10.0.3.10") && !world.has("10.0.3.3,"));
    world.instance.kill("control");
    eventually("lists are known", || world.instance.is_in_force());
    assert!(world.pings("10.0.3.9") && world.pings("10.0.3.8"));
}
