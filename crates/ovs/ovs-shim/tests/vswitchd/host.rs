//! Ports whose other end is a network device of the host: internal ports, the bridge's own, devices that were
//! there before.

use crate::forwarding::process;
use crate::world::{Bystander, World};
use crate::{inside_with_product, product};
use serde_json::json;

/// The product and ovs-vswitchd with `br0`.
fn begin() -> Option<World> {
    let (mut world, program) = (World::new()?, product()?);
    world.ip("link set lo up");
    world.start_product(program);
    world.start_vswitchd();
    world.vsctl("add-br br0");
    Some(world)
}

/// Gives a device of this namespace to another one, with an address.
fn give(world: &World, device: &str, to: &Bystander, address: &str) {
    world.ip(&format!("link set {device} netns {}", to.id()));
    for arguments in [
        format!("ip address add {address} dev {device}"),
        format!("ip link set {device} up"),
    ] {
        let (done, text) = world.run_at(to, &arguments);
        assert!(done, "{arguments}: {text}");
    }
}

fn reaches(world: &World, from: &Bystander, address: &str) {
    let ping = format!("ping -c 1 -W 1 {address}");
    world.until(&ping, |world| world.run_at(from, &ping).0);
}

/// No address resolution is needed from now on, so that one flow each way does.
fn know(world: &World, from: &Bystander, device: &str, to: &Bystander, far: &str, address: &str) {
    let (_, text) = world.run_at(to, &format!("ip -o link show {far}"));
    let station = text.split("link/ether ").nth(1).unwrap();
    let station = station.split(' ').next().unwrap();
    let (done, text) = world.run_at(
        from,
        &format!("ip neigh replace {address} lladdr {station} nud permanent dev {device}"),
    );
    assert!(done, "{text}");
}

/// There are flows for that, which no packet has to wait for.
fn has_flows(world: &World, from: &Bystander, address: &str) {
    let ping = format!("ping -c 5 -i 0.2 -W 1 {address}");
    world.until(&ping, |world| {
        world.run_at(from, &ping).1.contains(" 0% packet loss")
    });
}

fn kill(world: &World, role: &str) {
    let before = process(world, role);
    let pid = i32::try_from(before["pid"].as_u64().unwrap()).unwrap();
    // SAFETY: plain integers; the process is one of the product under test.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let restarts = before["restarts"].as_u64().unwrap() + 1;
    world.until("it was started again", |world| {
        let now = process(world, role);
        now["restarts"] == json!(restarts) && now["pid"].is_u64()
    });
}

#[test]
fn internal_ports_carry_packets() {
    inside_with_product("host::inside_internal");
}

/// Also when they were moved to other namespaces, and whoever dies; the bridge's own port reaches them.
#[test]
#[ignore = "started by a test above"]
fn inside_internal() {
    let Some(mut world) = begin() else { return };
    let (a, b) = (world.other_namespace(), world.other_namespace());
    for port in ["int1", "int2"] {
        world.vsctl(&format!(
            "add-port br0 {port} -- set Interface {port} type=internal"
        ));
    }
    world.ip("address add 10.7.0.9/24 dev br0");
    world.ip("link set br0 up");
    let host_reaches = |world: &World, address: &str| {
        world.until(&format!("the host reaches {address}"), |_| {
            let mut ping = std::process::Command::new("ping");
            ping.args(["-c", "1", "-W", "1", address]);
            ping.output().unwrap().status.success()
        });
    };
    give(&world, "int1", &a, "10.7.0.1/24");
    give(&world, "int2", &b, "10.7.0.2/24");
    reaches(&world, &a, "10.7.0.2");
    reaches(&world, &b, "10.7.0.1");
    reaches(&world, &a, "10.7.0.9");
    host_reaches(&world, "10.7.0.1");
    // A flow that is installed forwards without Open vSwitch's process; ovs-vswitchd makes all anew.
    kill(&world, "driver");
    kill(&world, "forwarder-0");
    reaches(&world, &a, "10.7.0.2");
    host_reaches(&world, "10.7.0.2");
    know(&world, &a, "int1", &b, "int2", "10.7.0.2");
    know(&world, &b, "int2", &a, "int1", "10.7.0.1");
    has_flows(&world, &a, "10.7.0.2");
    kill(&world, "ovs");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    has_flows(&world, &a, "10.7.0.2");
    world.start_vswitchd();
    world.wait_until_configured();
    assert_eq!(world.vsctl("get Interface br0 error"), "[]");
    reaches(&world, &a, "10.7.0.2");
    reaches(&world, &b, "10.7.0.9");
    host_reaches(&world, "10.7.0.1");
    kill(&world, "data-plane");
    reaches(&world, &a, "10.7.0.2");
    host_reaches(&world, "10.7.0.2");
    // The name is free at once, here and there.
    for _ in 0..2 {
        world.vsctl("add-port br0 int3 -- set Interface int3 type=internal");
        give(&world, "int3", &a, "10.7.0.3/24");
        host_reaches(&world, "10.7.0.3");
        world.vsctl("del-port int3");
        world.until("the device is gone", |world| {
            let (_, there) = world.run_at(&a, "ip link");
            !there.contains("int3")
        });
    }
    for role in ["driver", "data-plane", "control", "ovs", "forwarder-0"] {
        assert_eq!(process(&world, role)["missing"], json!([]), "{role}");
    }
}

#[test]
fn devices_of_the_host_carry_packets_and_are_hidden() {
    inside_with_product("host::inside_devices");
}

#[test]
#[ignore = "started by a test above"]
fn inside_devices() {
    let Some(mut world) = begin() else { return };
    let (a, b) = (world.other_namespace(), world.other_namespace());
    for (port, far) in [("veth1", "far1"), ("veth2", "far2")] {
        world.ip(&format!("link add {port} type veth peer name {far}"));
        world.ip(&format!("link set {port} up"));
    }
    give(&world, "far1", &a, "10.8.0.1/24");
    give(&world, "far2", &b, "10.8.0.2/24");
    // The host answers on its devices until they are ports.
    world.ip("address add 10.8.0.7/24 dev veth1");
    reaches(&world, &a, "10.8.0.7");
    world.vsctl("add-port br0 veth1 -- add-port br0 veth2");
    reaches(&world, &a, "10.8.0.2");
    reaches(&world, &b, "10.8.0.1");
    hidden(&world, &a);
    know(&world, &a, "far1", &b, "far2", "10.8.0.2");
    know(&world, &b, "far2", &a, "far1", "10.8.0.1");
    has_flows(&world, &a, "10.8.0.2");
    kill(&world, "ovs");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    has_flows(&world, &a, "10.8.0.2");
    world.start_vswitchd();
    world.wait_until_configured();
    assert_eq!(world.vsctl("get Interface br0 error"), "[]");
    reaches(&world, &b, "10.8.0.1");
    hidden(&world, &a);
    for role in ["driver", "forwarder-1", "data-plane"] {
        kill(&world, role);
        reaches(&world, &a, "10.8.0.2");
        hidden(&world, &a);
    }
    // A device that vanishes and comes back.
    world.ip("link del veth2");
    world.ip("link add veth2 type veth peer name far2");
    world.ip("link set veth2 up");
    give(&world, "far2", &b, "10.8.0.2/24");
    know(&world, &a, "far1", &b, "far2", "10.8.0.2");
    reaches(&world, &b, "10.8.0.1");
    // Given back.
    world.vsctl("del-port veth1");
    reaches(&world, &a, "10.8.0.7");
}

/// The host does not see what its device receives.
fn hidden(world: &World, from: &Bystander) {
    // It would answer there for all of its addresses, as on any bridge's port.
    world.ip("link set br0 down");
    let (answered, _) = world.run_at(from, "ping -c 3 -i 0.2 -W 1 10.8.0.7");
    assert!(!answered, "the host answers on a device that is a port");
}

#[test]
fn an_internal_port_outlives_the_namespace_where_it_is() {
    inside_with_product("host::inside_vanishing");
}

#[test]
#[ignore = "started by a test above"]
fn inside_vanishing() {
    let Some(world) = begin() else { return };
    world.vsctl("add-port br0 in0 -- set Interface in0 type=internal");
    world.ip("address add 10.7.0.9/24 dev br0");
    world.ip("link set br0 up");
    for _ in 0..2 {
        let there = world.other_namespace();
        give(&world, "in0", &there, "10.7.0.1/24");
        reaches(&world, &there, "10.7.0.9");
        drop(there);
        world.until("the port is back", |world| world.has_device("in0"));
        world.until("its state is told", |world| {
            world.vsctl("get Interface in0 link_state error") == "down\n[]"
        });
    }
    let said = std::fs::read_to_string(world.path("product.output")).unwrap();
    let lines = said.lines().filter(|line| line.contains("in0")).count();
    assert!(lines <= 30, "{lines} lines about it:\n{said}");
}

#[test]
fn the_host_says_nothing_through_a_port_by_itself() {
    inside_with_product("host::inside_silence");
}

/// A device that is up makes the host ask for routers and join groups.
#[test]
#[ignore = "started by a test above"]
fn inside_silence() {
    let Some(world) = begin() else { return };
    for round in 0..5 {
        let (guest, internal) = (format!("vm{round}"), format!("in{round}"));
        world.vsctl(&format!(
            "add-port br0 {guest} -- set Interface {guest} type=internal external_ids:vhost-user=server \
             -- add-port br0 {internal} -- set Interface {internal} type=internal"
        ));
        world.until("the guest's device is up", |world| {
            world.vsctl(&format!("get Interface {guest} admin_state")) == "up"
        });
        assert_eq!(
            world.vsctl(&format!("get Interface {internal} admin_state")),
            "down",
            "until the administrator sets it up"
        );
    }
    // Long enough for what the host says about a new address (RFC 4861, RFC 3810).
    std::thread::sleep(std::time::Duration::from_secs(2));
    let counted = "get Interface in0 statistics:rx_packets";
    let received = world.vsctl("--columns=name,statistics list Interface");
    assert!(!received.contains("rx_packets=1"), "{received}");
    let stations = world.appctl("fdb/show br0");
    assert_eq!(stations.lines().count(), 1, "{stations}");
    assert_eq!(world.vsctl(counted), "0");
    // What the host says through a device that it uses is forwarded.
    world.ip("link set in0 up");
    world.until("the host speaks", |world| world.vsctl(counted) != "0");
}

#[test]
fn many_ports_at_once_cost_little() {
    inside_with_product("host::inside_many");
}

/// ovs-vswitchd's main thread waits for each port. Time of the processor is counted, as other work on the
/// machine takes none of it.
#[test]
#[ignore = "started by a test above"]
fn inside_many() {
    const PORTS: u64 = 100;
    /// Milliseconds per device. When a device had 256 queues, they were 14.
    const MOST_MS: u64 = 5;
    let Some(world) = begin() else { return };
    let used = |world: &World| {
        let pid = process(world, "ovs")["pid"].as_u64().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // `utime` and `stime` (proc_pid_stat(5)), in hundredths of a second.
        let ticks = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap());
        10 * ticks.sum::<u64>()
    };
    // What is not counted is not shown as 0.
    let shown = world.appctl("dpctl/show");
    assert!(shown.contains("lookups:") && !shown.contains("masks:"), "{shown}");
    let before = used(&world);
    let ports: Vec<_> = (0..PORTS)
        .map(|port| format!("add-port br0 q{port} -- set Interface q{port} type=internal"))
        .collect();
    world.vsctl(&ports.join(" -- "));
    // Until all are attached, and nothing is left to be done.
    let mut last = before;
    world.until("it rests", |world| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let now = used(world);
        std::mem::replace(&mut last, now) == now
    });
    let took = used(&world) - before;
    assert!(took <= MOST_MS * PORTS, "{took} ms for {PORTS} ports");
}
