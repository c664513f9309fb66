//! Driver domains against a back end that others have written, with real TAPs, namespaces and traffic.
//! Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::backend::{ALL, Backend, EVENT_IDX, MRG_RXBUF};
use common::pair::Pair;
use common::{Driver, Namespace, address, can_run, command, sh, tap, unique};
use control_protocol::Channel;
use control_protocol::driver::{
    BackEnd, InterfaceKind, InterfaceSpec, InterfaceState, StackSettings, ToDriver,
};
use control_protocol::supervisor::{ForwarderId, PriorityStatus, ToChild, VmStates};
use flow::PortId;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thread_priority::Priority;
use vm_state::TestArea;

fn uplink_spec(name: &str) -> InterfaceSpec {
    InterfaceSpec {
        kind: InterfaceKind::Uplink {
            back_end: BackEnd::Packet,
        },
        name: name.to_owned(),
        mtu: None,
    }
}

#[test]
fn carries_ping_and_tcp_with_offloads() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let pair = Pair::attach(&driver, ALL);
    pair.ping();
    for (options, label) in [("", "IPv4"), ("-R", "IPv4 reverse")] {
        let rate = pair.spaces[0].iperf(&pair.spaces[1], "10.77.0.2", options);
        println!("{label}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e8);
    }
    let rate = pair.spaces[0].iperf(&pair.spaces[1], "fd00:77::2", "");
    println!("IPv6: {:.2} Gb/s", rate / 1e9);
    for device in &pair.backend.devices {
        let device = device.lock().unwrap();
        println!(
            "{} frames, {} segmented, {} calls",
            device.frames, device.segmented, device.calls
        );
        assert_eq!(device.acked, ALL);
        assert!(device.segmented > 100 && device.unsummed > 100 && device.largest > 40_000);
        assert!(device.calls < device.frames, "notifications are suppressed");
    }
}

#[test]
fn does_without_offloads_merging_and_event_idx() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    for features in [
        1 << 32,
        1 << 32 | 1 << 30 | 0b11,
        ALL & !MRG_RXBUF,
        ALL & !EVENT_IDX,
    ] {
        let pair = Pair::attach(&driver, features);
        pair.ping();
        let rate = pair.spaces[0].iperf(&pair.spaces[1], "10.77.0.2", "");
        println!("features {features:#x}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e7);
        let device = pair.backend.devices[0].lock().unwrap();
        assert_eq!(device.segmented > 0, features & 1 << 11 != 0);
        assert_eq!(device.unsummed > 0, features & 1 != 0);
        drop(device);
        driver.detach(0);
        driver.detach(1);
    }
}

#[test]
fn a_data_plane_that_dies_is_replaced() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let mut pair = Pair::attach(&driver, ALL);
    pair.ping();
    let index = pair.spaces[0].sh(&format!("cat /sys/class/net/{}/ifindex", pair.names[0]));
    for _ in 0..3 {
        let (idle, _) = Backend::start(ALL);
        drop(std::mem::replace(&mut pair.backend, idle));
        driver.expect(0, |state| *state == InterfaceState::Disconnected);
        driver.expect(1, |state| *state == InterfaceState::Disconnected);
        pair.reattach(&driver);
        pair.ping();
    }
    assert_eq!(
        pair.spaces[0].sh(&format!("cat /sys/class/net/{}/ifindex", pair.names[0])),
        index
    );

    // One that breaks its ring is given up at once, without harm to the other port.
    pair.backend.corrupt(0);
    driver.expect_failed(0, "broke a ring");
    assert_eq!(driver.list()[1].2, InterfaceState::Up);
    pair.reattach(&driver);
    pair.ping();
}

#[test]
fn forwards_without_a_control_process() {
    if !can_run() {
        return;
    }
    let mut driver = Driver::start(None);
    let pair = Pair::attach(&driver, ALL);
    let (unused, _) = Channel::pair().unwrap();
    driver.control = unused;
    pair.ping();
    driver.new_control();
    let list = driver.list();
    assert_eq!(list.len(), 2);
    for (port, spec, state) in list {
        assert_eq!((&spec, state), (&pair.specs[port.0 as usize], InterfaceState::Up));
    }
    pair.ping();
}

#[test]
fn controllers_have_interfaces_of_their_own() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let mut other = driver.beside(2);
    let mine = Pair::attach(&driver, ALL);
    let others = Pair::attach(&other, ALL);
    let ports = |driver: &Driver| driver.list().iter().map(|(port, ..)| *port).collect::<Vec<_>>();
    assert_eq!(ports(&driver), [0, 1].map(PortId));
    assert_eq!(ports(&other), [0, 1].map(|number| other.own(number)));

    // Another's port, and another's interface.
    let (_backend, [first, second]) = Backend::start(ALL);
    let foreign = driver.own(0);
    other.attach_as(foreign, &tap(&unique(), &mine.spaces[0], &[]), first);
    let is_refused = |state: &InterfaceState| matches!(state, InterfaceState::Failed(reason) if reason.contains("another controller's"));
    other.expect_of(foreign, is_refused);
    other.attach(5, &mine.specs[0], second);
    other.expect(5, is_refused);
    let detach = ToDriver::Detach { port: foreign };
    other.control.send(&detach, &[]).unwrap();
    assert_eq!(ports(&other).len(), 2);
    assert_eq!(ports(&driver).len(), 2);
    mine.ping();

    // One goes and comes back.
    let (unused, _) = Channel::pair().unwrap();
    other.control = unused;
    mine.ping();
    others.ping();
    other.new_control();
    for (port, spec, state) in other.list() {
        let number = (port.0 - other.own(0).0) as usize;
        assert_eq!((&spec, state), (&others.specs[number], InterfaceState::Up));
    }
    other.detach(0);
    assert_eq!(ports(&other), [other.own(1)]);
    mine.ping();
}

#[test]
fn a_controller_that_reads_nothing_holds_up_nobody() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let mut deaf = driver.beside(1);
    // More than fits what the answers may wait in. Requests are read on: what is owed is a number.
    for _ in 0..5_000 {
        deaf.control.send(&ToDriver::List, &[]).unwrap();
        rustix::net::send(&deaf.control, &[0xee; 100], rustix::net::SendFlags::empty()).unwrap();
    }
    let pair = Pair::attach(&driver, ALL);
    pair.ping();
    assert_eq!(driver.list().len(), 2);
    deaf.new_control();
    assert!(deaf.list().is_empty());
}

#[test]
fn says_what_is_wrong_and_tries_again() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let (_backend, [first, second]) = Backend::start(ALL);
    let space = Namespace::new();
    let mut spec = tap(&unique(), &space, &["10.78.0.1/24"]);

    // The name of another kind of device.
    driver.attach(
        5,
        &InterfaceSpec {
            name: "lo".into(),
            ..spec.clone()
        },
        first.try_clone().unwrap(),
    );
    driver.expect_failed(5, "not a TAP");
    driver.attach(
        5,
        &InterfaceSpec {
            name: "no/such".into(),
            ..spec.clone()
        },
        first.try_clone().unwrap(),
    );
    driver.expect_failed(5, "not an interface name");
    driver.detach(5);

    // No namespace, until there is one.
    let later = unique();
    spec.kind = InterfaceKind::Tap(StackSettings {
        netns: Some(later.clone()),
        mac: Some([2, 0, 0, 0, 0, 7]),
        initial_mac: None,
        addresses: vec![("10.78.0.1".parse().unwrap(), 24)],
    });
    spec.mtu = Some(9000);
    let (_other, [fresh, _]) = Backend::start(ALL);
    driver.attach(6, &spec, fresh);
    driver.expect_failed(6, &format!("/run/netns/{later}"));
    sh(&format!("ip netns add {later}"));
    let space = Namespace(later);
    driver.expect_up(6);
    let shown = space.sh(&format!("ip -o addr show {}", spec.name));
    assert!(shown.contains("10.78.0.1/24"), "{shown}");
    let shown = space.sh(&format!("ip -o link show {}", spec.name));
    assert!(
        shown.contains("02:00:00:00:00:07") && shown.contains("mtu 9000"),
        "{shown}"
    );

    // The same device twice.
    driver.attach(7, &spec, second);
    driver.expect_failed(7, "in use");
    driver.detach(7);

    // The device is deleted: it is made again.
    space.sh(&format!("ip link del {}", spec.name));
    driver.expect_failed(6, "removed");
    driver.expect_up(6);
    assert!(space.has(&spec.name));
    driver.detach(6);
    // The answer comes after the detachment.
    assert!(driver.list().is_empty());
    assert!(!space.has(&spec.name), "our TAP disappears");
}

#[test]
fn changes_a_running_interface() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    let name = unique();
    let (_backend, [first, second]) = Backend::start(ALL);
    driver.attach(0, &tap(&name, &space, &["10.79.0.1/24", "fd00:79::1/64"]), first);
    driver.expect_up(0);
    space.sh(&format!("ip addr add 10.79.9.9/24 dev {name}"));
    driver.attach(0, &tap(&name, &space, &["10.79.0.2/24"]), second);
    driver.expect_up(0);
    let shown = space.sh(&format!("ip -o addr show {name}"));
    assert!(shown.contains("10.79.0.2/24"), "{shown}");
    assert!(shown.contains("10.79.9.9/24"), "not ours to take away: {shown}");
    assert!(
        !shown.contains("10.79.0.1/24") && !shown.contains("fd00:79::1/64"),
        "{shown}"
    );

    // TAPs that another program prepared for us are used, and stay.
    let several = unique();
    space.sh(&format!(
        "ip tuntap add dev {several} mode tap multi_queue vnet_hdr"
    ));
    let one = unique();
    space.sh(&format!("ip tuntap add dev {one} mode tap"));
    let (_other, [third, fourth]) = Backend::start(ALL);
    driver.attach(0, &tap(&several, &space, &[]), third);
    driver.expect_up(0);
    assert!(!space.has(&name), "the former one is gone");
    driver.attach(0, &tap(&one, &space, &[]), fourth);
    driver.expect_up(0);
    driver.shut_down();
    assert!(space.has(&several) && space.has(&one));
}

/// Each queue of a TAP, and its discipline, takes the kernel's memory: 256 of them are 6 MB.
#[test]
fn a_tap_has_one_queue() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    let name = unique();
    let (_backend, [first, _]) = Backend::start(ALL);
    driver.attach(0, &tap(&name, &space, &[]), first);
    driver.expect_up(0);
    let shown = space.sh(&format!("ip -d link show {name}"));
    assert!(shown.contains("numtxqueues 1 "), "{shown}");
}

/// Waits until the text has all that is `wanted`, and nothing that is `gone`.
fn eventually(text: impl Fn() -> String, wanted: &[&str], gone: &[&str]) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let text = text();
        let is_there = |part: &&str| text.contains(*part);
        if wanted.iter().all(is_there) && !gone.iter().any(is_there) {
            return;
        }
        assert!(Instant::now() < end, "not {wanted:?} without {gone:?}: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An interface with other settings.
fn set(spec: &InterfaceSpec, new_mtu: u16, new_mac: Option<[u8; 6]>, new: &[&str]) -> InterfaceSpec {
    let mut spec = spec.clone();
    spec.mtu = Some(new_mtu);
    if let InterfaceKind::Tap(stack) | InterfaceKind::Veth(stack) = &mut spec.kind {
        (stack.mac, stack.initial_mac) = (new_mac, Some([2, 0, 0, 0, 0, 1]));
        stack.addresses = new.iter().map(|text| address(text)).collect();
    }
    spec
}

#[test]
fn settings_change_in_place_and_routes_stay() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let pair = Pair::attach(&driver, ALL);
    let (space, name) = (&pair.spaces[0], &pair.names[0]);
    let link = || space.sh(&format!("ip -o link show {name}"));
    let addresses = || space.sh(&format!("ip -o addr show {name}"));
    let index = || space.sh(&format!("cat /sys/class/net/{name}/ifindex"));
    space.sh("ip route add default via 10.77.0.2");
    space.sh("ip -6 route add fd01::/64 via fd00:77::2");
    space.sh(&format!("ip addr add 10.79.9.9/24 dev {name}"));
    let device = index();
    let mut pings = pair.spaces[1].spawn("ping -c 60 -i 0.05 -W 1 fd00:77::1");

    let [first, second, other] = ["10.77.0.1/24", "10.77.0.3/24", "fd00:77::1/64"];
    let mac = Some([2, 0, 0, 0, 0, 0x77]);
    let change = |mtu, mac, addresses: &[&str]| driver.change(0, &set(&pair.specs[0], mtu, mac, addresses));
    change(4000, None, &[first, other]);
    eventually(link, &["mtu 4000"], &[]);
    change(4000, mac, &[first, other]);
    eventually(link, &["02:00:00:00:00:77"], &[]);
    change(4000, mac, &[first, second, other]);
    eventually(addresses, &[first, second, other], &["/32"]);
    // The first address is the primary one, with which the kernel removes the second, and then routes.
    change(4000, mac, &[second, other]);
    eventually(addresses, &[second, other, "10.79.9.9/24"], &[first, "/32"]);
    change(2000, None, &[first, other]);
    eventually(addresses, &[first, other, "10.79.9.9/24"], &[second, "/32"]);
    eventually(link, &["mtu 2000", "02:00:00:00:00:01"], &[]);

    let routes = space.sh("ip route") + &space.sh("ip -6 route");
    for kept in ["default via 10.77.0.2", "fd01::/64 via"] {
        assert!(routes.contains(kept), "{kept} has gone: {routes}");
    }
    assert_eq!(index(), device);
    assert!(pings.wait().unwrap().success());
    assert_eq!(driver.list()[0].2, InterfaceState::Up);

    // Where the user has moved it, and as it is called there.
    let elsewhere = Namespace::new();
    space.sh(&format!("ip link set {name} netns {}", elsewhere.0));
    elsewhere.sh(&format!("ip link set {name} name moved0"));
    change(1600, None, &[first]);
    eventually(|| elsewhere.sh("ip -o link show moved0"), &["mtu 1600"], &[]);
    assert!(!space.has(name), "no second device");
    driver.detach(0);
    assert_eq!(driver.list().len(), 1);
    assert!(!elsewhere.has("moved0"));
}

#[test]
fn a_device_that_is_made_gets_its_address_and_one_that_exists_keeps_its_own() {
    if !can_run() {
        return;
    }
    let space = Namespace::new();
    let name = unique();
    let spec = set(&tap(&name, &space, &[]), 1500, None, &[]);
    let link = || space.sh(&format!("ip -o link show {name}"));
    let run = || {
        let driver = Driver::start_process("driver_process", None);
        let (backend, [stream, _]) = Backend::start(ALL);
        driver.attach(0, &spec, stream);
        driver.expect_up(0);
        (driver, backend)
    };
    for _ in 0..2 {
        let (driver, _backend) = run();
        assert!(link().contains("02:00:00:00:00:01"), "{}", link());
        driver.shut_down();
        assert!(!space.has(&name));
    }
    let (driver, _backend) = run();
    space.sh(&format!("ip link set {name} address 02:00:00:00:00:55"));
    driver.kill();
    let (_driver, _backend) = run();
    assert!(
        link().contains("02:00:00:00:00:55"),
        "a user's choice: {}",
        link()
    );
}

#[test]
fn a_new_stream_replaces_the_old_without_a_disconnect() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    let spec = tap(&unique(), &space, &["10.81.0.1/24"]);
    let mut backends = Vec::new();
    for _ in 0..30 {
        let (backend, [stream, _]) = Backend::start(ALL);
        driver.attach(0, &spec, stream);
        driver.expect(0, |state| {
            assert_eq!(
                *state,
                InterfaceState::Up,
                "the control process would attach again"
            );
            true
        });
        backends.push(backend);
    }
    assert_eq!(driver.list(), [(flow::PortId(0), spec, InterfaceState::Up)]);
}

#[test]
fn follows_a_namespace_that_was_made_anew() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    let spec = tap(&unique(), &space, &["10.82.0.1/24"]);
    let (_first, [stream, _]) = Backend::start(ALL);
    driver.attach(0, &spec, stream);
    driver.expect_up(0);
    sh(&format!("ip netns del {}", space.0));
    sh(&format!("ip netns add {}", space.0));
    assert!(!space.has(&spec.name));
    let (_second, [stream, _]) = Backend::start(ALL);
    driver.attach(0, &spec, stream);
    driver.expect_up(0);
    assert!(space.has(&spec.name));
}

/// Not a test: the process that `survives_kill_9` kills.
#[test]
#[ignore = "runs as a child of another test"]
fn driver_process() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    driver_domain::run(Channel::from(stdin), common::owner()).unwrap();
}

/// Not a test: a forwarder that other tests kill.
#[test]
#[ignore = "runs as a child of another test"]
fn forwarder_process() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    driver_domain::forward(Channel::from(stdin)).unwrap();
}

#[test]
fn survives_kill_9() {
    if !can_run() {
        return;
    }
    let driver = Driver::start_process("driver_process", None);
    let mut pair = Pair::attach(&driver, ALL);
    pair.ping();
    pair.spaces[0].sh(&format!("ip addr add 10.77.5.5/24 dev {}", pair.names[0]));
    driver.kill();
    assert!(pair.spaces[0].has(&pair.names[0]), "the TAP waits for us");
    let driver = Driver::start_process("driver_process", None);
    pair.reattach(&driver);
    pair.ping();
    assert!(
        pair.spaces[0]
            .sh(&format!("ip addr show {}", pair.names[0]))
            .contains("10.77.5.5")
    );
    driver.shut_down();
    assert!(!pair.spaces[0].has(&pair.names[0]), "still known as ours");
}

#[test]
fn sleeps_when_idle() {
    if !can_run() {
        return;
    }
    // Other tests of this process have such threads, too: so in a process of its own, or not at all.
    if std::env::var_os("HYPERSWITCH_IDLE_TEST").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "sleeps_when_idle"])
            .env("HYPERSWITCH_IDLE_TEST", "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let driver = Driver::start(None);
    let pair = Pair::attach(&driver, ALL);
    for (space, name) in pair.spaces.iter().zip(&pair.names) {
        // No neighbour discovery of the kernel's own accord.
        let key = format!("net.ipv6.conf.{}.disable_ipv6=1", name.replace('.', "/"));
        space.sh(&format!("sysctl -q -w {key}"));
    }
    pair.spaces[0].ping("10.77.0.2");
    let switches = || -> Vec<String> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let statuses = threads.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let names = ["Name:\tport-", "Name:\twatchdog"];
        let ours = statuses.filter(|status| names.iter().any(|name| status.starts_with(name)));
        ours.flat_map(|status| {
            let lines = status
                .lines()
                .filter(|line| line.contains("ctxt_switches") || line.starts_with("Pid:"));
            lines.map(String::from).collect::<Vec<_>>()
        })
        .collect()
    };
    // The kernel may have something to say to its neighbours now and then, but not all the time.
    let quiet = (0..5).any(|_| {
        let before = switches();
        assert_eq!(before.len(), 9, "{before:?}");
        std::thread::sleep(Duration::from_secs(2));
        switches() == before
    });
    assert!(quiet);
}

/// Joins two namespaces by a pair of interfaces.
fn join(host: &Namespace, uplink: &str, outside: &Namespace, far: &str) {
    sh(&format!(
        "ip link add {uplink} netns {} type veth peer name {far} netns {}",
        host.0, outside.0
    ));
}

/// An uplink that was away for long, with ever longer delays between attempts, is open soon after its link is
/// up, the same one or another one of its name.
#[test]
fn an_uplink_that_comes_up_is_opened_soon() {
    if !can_run() {
        return;
    }
    let (host, outside) = (Namespace::new(), Namespace::new());
    let (uplink, far) = (unique(), unique());
    join(&host, &uplink, &outside, &far);
    host.sh(&format!("ip link set {uplink} up"));
    let driver = Driver::start(Some(&host));
    let (_backend, [stream, _]) = Backend::start(ALL);
    driver.attach(0, &uplink_spec(&uplink), stream);
    driver.expect_up(0);
    for (away, back) in [
        (
            format!("ip link set {uplink} down"),
            format!("ip link set {uplink} up"),
        ),
        (
            format!("ip link del {uplink}"),
            format!("ip link add {uplink} up type veth peer name {far}"),
        ),
    ] {
        host.sh(&away);
        driver.expect_failed(0, "");
        // Attempts 0.25, 0.75, 1.75 and 3.75 s later, and the next one 4 s after that.
        std::thread::sleep(Duration::from_millis(4500));
        host.sh(&back);
        let begin = Instant::now();
        driver.expect_up(0);
        let passed = begin.elapsed();
        assert!(passed < Duration::from_secs(2), "{passed:?}");
        println!("{back}: {passed:?}");
    }
}

#[test]
fn an_uplink_carries_traffic_and_vlan_tags() {
    if !can_run() {
        return;
    }
    let (host, outside, inside) = (Namespace::new(), Namespace::new(), Namespace::new());
    let (uplink, far, name) = (unique(), unique(), unique());
    join(&host, &uplink, &outside, &far);
    outside.sh(&format!("ip addr add 10.80.0.1/24 dev {far}"));
    outside.sh(&format!("ip link set {far} up"));

    let driver = Driver::start(Some(&host));
    let (backend, [first, second]) = Backend::start(ALL);
    let spec = uplink_spec(&uplink);
    driver.attach(0, &spec, first);
    driver.expect_failed(0, "is down");
    host.sh(&format!("ip link set {uplink} up"));
    driver.expect_up(0);
    driver.attach(1, &tap(&name, &inside, &["10.80.0.2/24"]), second);
    driver.expect_up(1);
    inside.ping("10.80.0.1");
    outside.ping("10.80.0.2");
    for options in ["", "-R"] {
        let rate = inside.iperf(&outside, "10.80.0.1", options);
        println!("uplink {options}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e8);
    }

    // A tagged frame, which the kernel takes apart on the way.
    let mut packet = vec![0; 12];
    packet.extend([0xff; 6]);
    packet.extend([2, 0, 0, 0, 0, 9]);
    packet.extend([0x81, 0x00, 0x20, 0x64, 0x88, 0xb5]);
    packet.extend([0x5a; 50]);
    let netns = std::fs::File::open(format!("/run/netns/{}", outside.0)).unwrap();
    let (interface, sent) = (far.clone(), packet.clone());
    backend.devices[0].lock().unwrap().kept.clear();
    let sender = std::thread::spawn(move || {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
        let socket = nic_packet::Uplink::open(&interface, None).unwrap();
        assert_eq!(socket.header_len(), 12);
        rustix::io::write(&socket, &sent).unwrap();
    });
    sender.join().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while !backend.devices[0]
        .lock()
        .unwrap()
        .kept
        .iter()
        .any(|kept| kept[12..] == packet[12..64])
    {
        assert!(std::time::Instant::now() < deadline, "the tag did not arrive");
        std::thread::sleep(Duration::from_millis(10));
    }

    host.sh(&format!("ip link set {uplink} down"));
    driver.expect_failed(0, "");
    host.sh(&format!("ip link set {uplink} up"));
    driver.expect_up(0);
    outside.ping("10.80.0.2");
    assert!(
        command(&format!("ip -n {} link del {uplink}", host.0))
            .status()
            .unwrap()
            .success()
    );
    driver.expect_failed(0, "");
    driver.expect_failed(0, "there is no interface");
}

/// An uplink that is moved to another namespace is visible there, and hidden when it is back.
#[test]
fn an_uplink_moves_to_another_namespace_and_back() {
    if !can_run() {
        return;
    }
    let (host, outside, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let (uplink, far) = (unique(), unique());
    join(&host, &uplink, &outside, &far);
    outside.sh(&format!("ip addr add 10.80.0.1/24 dev {far}"));
    outside.sh(&format!("ip link set {far} up"));
    let up = |namespace: &Namespace| {
        namespace.sh(&format!("ip addr add 10.80.0.2/24 dev {uplink}"));
        namespace.sh(&format!("ip link set {uplink} up"));
    };
    let answers = || {
        let line = format!("ip netns exec {} ping -c 1 -W 1 10.80.0.2", outside.0);
        command(&line).output().unwrap().status.success()
    };
    // On a busy machine the first answer may come late.
    let answers_soon = || (0..10).any(|_| answers());
    up(&host);
    assert!(answers_soon());
    let driver = Driver::start(Some(&host));
    let (_backend, [stream, _]) = Backend::start(ALL);
    let spec = uplink_spec(&uplink);
    driver.attach(0, &spec, stream);
    driver.expect_up(0);
    assert!(!answers());
    for _ in 0..2 {
        host.sh(&format!("ip link set {uplink} netns {}", other.0));
        driver.expect_failed(0, "there is no interface");
        up(&other);
        assert!(answers_soon(), "it is another namespace's");
        other.sh(&format!("ip link set {uplink} netns {}", host.0));
        up(&host);
        driver.expect_up(0);
        assert!(!answers(), "it is back");
    }
    driver.detach(0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !answers() {
        assert!(Instant::now() < deadline, "it stays hidden");
    }
}

/// A device that is down stays hidden while there is no broker, and the next one opens it.
#[test]
fn a_device_that_is_down_stays_hidden_when_the_broker_dies() {
    if !can_run() {
        return;
    }
    let (host, outside) = (Namespace::new(), Namespace::new());
    let (uplink, far) = (unique(), unique());
    join(&host, &uplink, &outside, &far);
    outside.sh(&format!("ip addr add 10.80.0.1/24 dev {far}"));
    outside.sh(&format!("ip link set {far} up"));
    host.sh(&format!("ip addr add 10.80.0.2/24 dev {uplink}"));
    host.sh(&format!("ip link set {uplink} up"));
    let answers = || {
        let line = format!("ip netns exec {} ping -c 1 -W 1 10.80.0.2", outside.0);
        command(&line).output().unwrap().status.success()
    };
    assert!(answers());
    let mut driver = Driver::start_process_in(&host, "driver_process");
    let (_backend, [stream, _]) = Backend::start(ALL);
    driver.attach(0, &uplink_spec(&uplink), stream);
    driver.expect_up(0);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    for _ in 0..2 {
        host.sh(&format!("ip link set {uplink} down"));
        driver.expect_failed(0, "");
        let supervision = &driver.supervision;
        until("it is kept", &|| {
            supervision.keeps_hidden(driver.own(0)) == Some(true)
        });
        driver.kill_broker();
        host.sh(&format!("ip link set {uplink} up"));
        assert!(!answers(), "the host hears it while there is no broker");
        driver.start_broker("driver_process");
        driver.new_control();
        until("it is open again", &|| {
            matches!(&driver.list()[..], [(_, _, InterfaceState::Up)])
        });
        assert!(!answers());
    }
    driver.detach(0);
    until("it stays hidden", &answers);
}

/// A kernel before 6.6 attaches no program: an uplink is visible to the host, a device of Open vSwitch is
/// hidden by a bridge, and users are told why.
#[test]
fn a_kernel_without_tcx_has_bridges_and_says_so() {
    if !can_run() {
        return;
    }
    let (host, outside, inside) = (Namespace::new(), Namespace::new(), Namespace::new());
    let (uplink, far, name) = (unique(), unique(), unique());
    join(&host, &uplink, &outside, &far);
    outside.sh(&format!("ip addr add 10.80.0.1/24 dev {far}"));
    outside.sh(&format!("ip link set {far} up"));
    host.sh(&format!("ip addr add 10.80.0.2/24 dev {uplink}"));
    host.sh(&format!("ip link set {uplink} up"));
    let answers = |address: &str| {
        let line = format!("ip netns exec {} ping -c 1 -W 1 {address}", outside.0);
        command(&line).output().unwrap().status.success()
    };
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let driver = Driver::start_on_kernel(Some(&host), false);
    let cause = "(no program at the device's ingress (Linux 6.6): Invalid argument";
    let (as_uplink, as_device) = (uplink_spec(&uplink), device_spec(&uplink));
    let cases = [
        (as_uplink, format!("not hidden from the host {cause}"), true),
        (
            as_device,
            format!("hidden from the host by a bridge {cause}"),
            false,
        ),
    ];
    for (spec, text, is_visible) in cases {
        let (_backend, [first, second]) = Backend::start(ALL);
        driver.attach(0, &spec, first);
        driver.attach(1, &tap(&name, &inside, &["10.80.0.3/24"]), second);
        driver.expect_up(0);
        driver.expect_up(1);
        let served = || driver.supervision.serves();
        until(&text, &|| served().iter().any(|(_, own)| own.contains(&text)));
        inside.ping("10.80.0.1");
        assert_eq!(answers("10.80.0.2"), is_visible);
        driver.detach(0);
        driver.detach(1);
        until("it stays hidden", &|| answers("10.80.0.2"));
    }
}

fn device_spec(name: &str) -> InterfaceSpec {
    InterfaceSpec {
        kind: InterfaceKind::Device,
        ..uplink_spec(name)
    }
}

/// Opens a device that another link hides already, in its namespace.
fn open_hidden_in(
    host: &Namespace,
    uplink: &str,
    program: &std::os::fd::OwnedFd,
) -> Result<nic_packet::Hiding, String> {
    let netns = std::fs::File::open(format!("/run/netns/{}", host.0)).unwrap();
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
            let (mut hiding, visible) = (None, nic_packet::Otherwise::Visible);
            let program = Ok(program.as_fd());
            let open = || nic_packet::Uplink::open(uplink, None);
            nic_packet::open_hidden(uplink, &common::owner(), program, visible, &mut hiding, open)
                .map_err(|error| error.to_string())?;
            Ok(hiding.unwrap())
        });
        opening.join().unwrap()
    })
}

/// A device is not opened as a visible one because the link of a process that is about to end still hides it.
#[test]
fn a_link_of_another_process_is_waited_for() {
    if !can_run() {
        return;
    }
    let (host, uplink) = (Namespace::new(), unique());
    host.sh(&format!("ip link add {uplink} type veth peer name peer"));
    host.sh(&format!("ip link set {uplink} up"));
    let program = driver_domain::load_hiding_program().unwrap();
    let first = open_hidden_in(&host, &uplink, &program).unwrap();
    let error = open_hidden_in(&host, &uplink, &program).unwrap_err();
    assert!(error.contains("is hidden by a process"), "{error}");
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
    });
    let second = open_hidden_in(&host, &uplink, &program).unwrap();
    assert!(second.link().is_some(), "{second:?}");
    holder.join().unwrap();
}

/// Frames of an uplink lie in slots of its ring, or in its socket if they are longer: whole and in order.
#[test]
fn frames_of_all_lengths_come_in_order_through_ring_and_socket() {
    if !can_run() {
        return;
    }
    const LENGTHS: [usize; 12] = [60, 64, 1514, 1900, 1940, 1954, 1960, 2000, 2048, 2100, 4000, 9014];
    let (host, outside) = (Namespace::new(), Namespace::new());
    let (uplink, far) = (unique(), unique());
    join(&host, &uplink, &outside, &far);
    host.sh(&format!("ip link set {uplink} mtu 9000 up"));
    outside.sh(&format!("ip link set {far} mtu 9000 up"));
    let driver = Driver::start(Some(&host));
    let (backend, [stream, _]) = Backend::start(ALL);
    let spec = uplink_spec(&uplink);
    driver.attach(0, &spec, stream);
    driver.expect_up(0);
    backend.devices[0].lock().unwrap().keep = usize::MAX;
    let frames: Vec<Vec<u8>> = (0..600)
        .map(|number: usize| {
            let len = LENGTHS[number * 7 % LENGTHS.len()];
            let mut frame = vec![number as u8; len];
            frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9]);
            // Every third one has a VLAN tag, which the kernel takes out.
            let kind: &[u8] = if number.is_multiple_of(3) {
                &[0x81, 0x00, 0x20, 0x64, 0x88, 0xb5]
            } else {
                &[0x88, 0xb5]
            };
            frame[12..12 + kind.len()].copy_from_slice(kind);
            frame[18..26].copy_from_slice(&(number as u64).to_be_bytes());
            frame
        })
        .collect();
    let netns = std::fs::File::open(format!("/run/netns/{}", outside.0)).unwrap();
    let sent = frames.clone();
    let sender = std::thread::spawn(move || {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
        let socket = nic_packet::Uplink::open(&far, None).unwrap();
        assert!(socket.ring_refused().is_none(), "this kernel has rings");
        let header = vec![0; socket.header_len()];
        for frame in sent {
            rustix::io::write(&socket, &[&header[..], &frame].concat()).unwrap();
            // Rings and buffers hold all that comes while this test has no processor for a while.
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    sender.join().unwrap();
    let ours = || -> Vec<Vec<u8>> {
        let device = backend.devices[0].lock().unwrap();
        let frames = device.kept.iter().map(|kept| kept[12..].to_vec());
        frames
            .filter(|frame| frame[6..12] == [2, 0, 0, 0, 0, 9])
            .collect()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while ours().len() < frames.len() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let ours = ours();
    let numbers =
        |frames: &[Vec<u8>]| -> Vec<Vec<u8>> { frames.iter().map(|f| f[18..26].to_vec()).collect() };
    assert_eq!(numbers(&ours), numbers(&frames));
    assert!(ours == frames, "all are whole");
}

/// Frames that find no room in the ring of a reader who does not read are counted, once.
#[test]
fn frames_without_room_in_the_ring_are_counted() {
    if !can_run() {
        return;
    }
    const FRAMES: u64 = 6000;
    let (host, outside) = (Namespace::new(), Namespace::new());
    let (uplink, far) = (unique(), unique());
    join(&host, &uplink, &outside, &far);
    host.sh(&format!("ip link set {uplink} up"));
    outside.sh(&format!("ip link set {far} up"));
    let open = |namespace: &Namespace, name: &str| {
        let netns = std::fs::File::open(format!("/run/netns/{}", namespace.0)).unwrap();
        let name = name.to_owned();
        let opened = std::thread::spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
            let uplink = nic_packet::Uplink::open(&name, None).unwrap();
            (uplink.speed(&name), uplink)
        });
        opened.join().unwrap()
    };
    let (speed, reader) = open(&host, &uplink);
    assert!(speed.is_some_and(|speed| speed > 0), "{speed:?}");
    let (_, writer) = open(&outside, &far);
    assert_eq!(reader.take_drops(), 0);
    let mut frame = vec![0xff; writer.header_len() + 60];
    frame[..writer.header_len()].fill(0);
    for _ in 0..FRAMES {
        while rustix::io::write(&writer, &frame).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (drops, again) = (reader.take_drops(), reader.take_drops());
    assert!((FRAMES / 2..FRAMES + 100).contains(&drops), "{drops}");
    assert!(again < 100, "{again}");
}

/// A device that is slower than what is sent to it takes all of that: frames wait while its queue is full, or
/// that of the socket.
#[test]
fn frames_wait_for_an_uplink_that_is_full() {
    if !can_run() {
        return;
    }
    const FRAMES: u64 = 300;
    for limit in ["1mb", "20kb"] {
        let (host, outside, inside) = (Namespace::new(), Namespace::new(), Namespace::new());
        let (uplink, far, name) = (unique(), unique(), unique());
        join(&host, &uplink, &outside, &far);
        outside.sh(&format!("ip link set {far} up"));
        host.sh(&format!("ip link set {uplink} up"));
        host.sh(&format!(
            "tc qdisc add dev {uplink} root tbf rate 5mbit burst 5kb limit {limit}"
        ));
        let driver = Driver::start(Some(&host));
        let (_backend, [first, second]) = Backend::start(ALL);
        let spec = InterfaceSpec {
            kind: InterfaceKind::Uplink {
                back_end: BackEnd::Packet,
            },
            name: uplink.clone(),
            mtu: None,
        };
        driver.attach(0, &spec, first);
        driver.attach(1, &tap(&name, &inside, &[]), second);
        driver.expect_up(0);
        driver.expect_up(1);
        let received = || -> u64 {
            let text = outside.sh(&format!("ip -s -j link show dev {far}"));
            let bytes = text.split("\"rx\":{\"bytes\":").nth(1).unwrap();
            bytes.split(',').next().unwrap().trim().parse().unwrap()
        };
        let before = received();
        let netns = std::fs::File::open(format!("/run/netns/{}", inside.0)).unwrap();
        let sender = std::thread::spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
            let socket = nic_packet::Uplink::open(&name, None).unwrap();
            let mut frame = vec![0; socket.header_len() + 1000];
            let ethernet = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
            frame[socket.header_len()..][..12].copy_from_slice(&ethernet);
            frame[socket.header_len() + 12..][..2].copy_from_slice(&[0x88, 0xb5]);
            for _ in 0..FRAMES {
                // The TAP has a queue as well.
                while rustix::io::write(&socket, &frame).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        sender.join().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let arrived = received() - before;
            if arrived >= FRAMES * 1000 {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "limit {limit}: only {arrived} bytes arrived"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        driver.shut_down();
    }
}

/// Threads of the process with this name.
fn threads_named(name: &str) -> Vec<std::path::PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let named = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    threads.map(|task| task.path()).filter(named).collect()
}

/// Each core in turn is said to wake the thread, whatever the kernel does.
#[test]
fn a_real_time_worker_goes_where_it_is_woken_from() {
    if !can_run() {
        return;
    }
    // Other tests of this process have threads of that name.
    if std::env::var_os("HYPERSWITCH_WAKING_TEST").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "a_real_time_worker_goes_where_it_is_woken_from"])
            .env("HYPERSWITCH_WAKING_TEST", "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let allowed = sched_getaffinity(None).unwrap();
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect();
    let class = thread_priority::grant(Priority::Realtime).class;
    if cores.len() < 2 || class != Priority::Realtime {
        println!("skipped: {} cores, class {class:?}", cores.len());
        return;
    }
    let area = TestArea::new().unwrap();
    let driver = Driver::start(None);
    let status = PriorityStatus {
        class,
        refused: String::new(),
    };
    let nothing: [std::os::fd::BorrowedFd<'_>; 0] = [];
    driver.supervision.greet_with(ToChild::Priority(status), &nothing);
    let published = ToChild::VmState(VmStates::Published);
    driver.supervision.greet_with(published, &[area.descriptor()]);
    let pair = Pair::attach(&driver, ALL);
    let worker = threads_named("port-0").pop().unwrap();
    let tid: u32 = worker.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let is_on = |core: usize| {
        let status = std::fs::read_to_string(worker.join("status")).unwrap();
        status.contains(&format!("Cpus_allowed_list:\t{core}\n"))
    };
    for core in cores.into_iter().take(2) {
        let arrived = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !arrived.load(Ordering::Relaxed) {
                    area.wakes_from(u32::try_from(core).unwrap(), tid);
                    std::thread::yield_now();
                }
            });
            // Beside loops on each core it took up to 30 s.
            let deadline = Instant::now() + Duration::from_secs(300);
            let mut is_there = false;
            while !is_there && Instant::now() < deadline {
                let _ = command(&format!(
                    "ip netns exec {} ping -q -f -c 300 -W 1 10.77.0.2",
                    pair.spaces[0].0
                ))
                .output();
                is_there = is_on(core);
            }
            arrived.store(true, Ordering::Relaxed);
            assert!(is_there, "not on core {core}");
        });
    }
    driver.shut_down();
}

/// Two TAPs and an uplink to a station outside, each with a forwarder process, and a broker process.
struct Site {
    driver: Driver,
    taps: [Namespace; 2],
    host: Namespace,
    outside: Namespace,
    specs: [InterfaceSpec; 4],
    _backends: Vec<Backend>,
}

/// The forwarder of the site's uplink.
const UPLINK: ForwarderId = ForwarderId(1);

impl Site {
    fn new() -> Site {
        let driver = Driver::start_process("driver_process", Some("forwarder_process"));
        let (host, outside) = (Namespace::new(), Namespace::new());
        let taps = [Namespace::new(), Namespace::new()];
        let (uplink, far) = (unique(), unique());
        sh(&format!(
            "ip link add {uplink} type veth peer name {far} netns {}",
            outside.0
        ));
        sh(&format!("ip link set {uplink} up"));
        outside.sh(&format!("ip addr add 10.83.0.9/24 dev {far}"));
        outside.sh(&format!("ip link set {far} up"));
        let device = InterfaceSpec {
            kind: InterfaceKind::Uplink {
                back_end: BackEnd::Packet,
            },
            name: uplink,
            mtu: None,
        };
        let specs = [
            tap(&unique(), &taps[0], &["10.77.0.1/24"]),
            tap(&unique(), &taps[1], &["10.77.0.2/24"]),
            tap(&unique(), &host, &["10.83.0.1/24"]),
            device,
        ];
        let mut site = Site {
            driver,
            taps,
            host,
            outside,
            specs,
            _backends: Vec::new(),
        };
        site.attach([0, 1]);
        site.attach([2, 3]);
        site.ping();
        site
    }

    /// Joins two ports.
    fn attach(&mut self, ports: [u32; 2]) {
        let (backend, streams) = Backend::start(ALL);
        for (port, stream) in ports.into_iter().zip(streams) {
            self.driver.attach(port, &self.specs[port as usize], stream);
            self.driver.expect_up(port);
        }
        self._backends.push(backend);
    }

    fn ping(&self) {
        self.taps[0].ping("10.77.0.2");
        self.host.ping("10.83.0.9");
        self.outside.ping("10.83.0.1");
    }

    /// Begins to ping: a thousand requests, in two seconds at least.
    fn start_ping(&self, from: &Namespace, to: &str) -> Child {
        let ping = format!("ping -n -c 1000 -i 0.002 -W 5 {to} | grep -o 'icmp_seq=[0-9]*'");
        let mut shell = command(&format!("ip netns exec {} sh -c", from.0));
        shell.arg(ping).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// The inode of the uplink's packet socket.
    fn socket(&self) -> String {
        let sockets = sh("ss -0 -H -n -e");
        let line = sockets.lines().find(|line| line.contains(&self.specs[3].name));
        let inode = line.unwrap().split("ino:").nth(1).unwrap();
        inode.split(' ').next().unwrap().into()
    }

    fn index(&self) -> String {
        self.taps[0].sh(&format!("cat /sys/class/net/{}/ifindex", self.specs[0].name))
    }

    fn forwarders(&self) -> [Option<u32>; 2] {
        [ForwarderId::TAPS, UPLINK].map(|id| self.driver.supervision.pid(id))
    }
}

/// Requests but the last 50 are answered: for those that are under way when it ends, `ping` waits two round
/// trips, which is too short on a busy machine.
fn loses_nothing(ping: Child) {
    let text = String::from_utf8(ping.wait_with_output().unwrap().stdout).unwrap();
    let number = |line: &str| line.strip_prefix("icmp_seq=")?.parse().ok();
    let answered: BTreeSet<u32> = text.lines().filter_map(number).collect();
    let lost: Vec<u32> = (1..=950).filter(|number| !answered.contains(number)).collect();
    assert!(lost.is_empty(), "no answers to {lost:?}");
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = command(&format!("ip link del {}", self.specs[3].name)).output();
    }
}

#[test]
fn brokers_die_and_no_frame_is_lost() {
    if !can_run() {
        return;
    }
    let mut site = Site::new();
    let before = (site.index(), site.socket(), site.forwarders());
    for is_outside in [false, true] {
        let ping = match is_outside {
            false => site.start_ping(&site.taps[0], "10.77.0.2"),
            true => site.start_ping(&site.outside, "10.83.0.1"),
        };
        for _ in 0..3 {
            site.driver.replace_broker("driver_process");
            site.driver.new_control();
            let list = site.driver.list();
            assert_eq!(list.len(), 4);
            for (port, spec, state) in list {
                assert_eq!((&spec, state), (&site.specs[port.0 as usize], InterfaceState::Up));
            }
        }
        loses_nothing(ping);
    }
    assert_eq!(before, (site.index(), site.socket(), site.forwarders()));
    // The new one has everything in hand.
    site.driver.detach(0);
    site.attach([0, 1]);
    site.driver.detach(3);
    site.attach([2, 3]);
    site.ping();
    site.driver.detach(0);
    site.driver.detach(1);
    site.driver.list();
    let is_there = |side: usize| site.taps[side].has(&site.specs[side].name);
    assert!(!is_there(0) && !is_there(1), "they are known as ours");
}

#[test]
fn a_forwarder_dies_and_others_lose_no_frame() {
    if !can_run() {
        return;
    }
    let mut site = Site::new();
    let socket = site.socket();
    for _ in 0..3 {
        let ping = site.start_ping(&site.taps[0], "10.77.0.2");
        site.driver.supervision.replace_forwarder(UPLINK);
        loses_nothing(ping);
        site.driver
            .expect(3, |state| *state == InterfaceState::Disconnected);
        site.attach([2, 3]);
        site.ping();
        assert_eq!(site.socket(), socket, "it was not opened again");
    }
    // Twice within a moment, and the broker with it.
    site.driver.supervision.replace_forwarder(UPLINK);
    site.driver.supervision.replace_forwarder(UPLINK);
    site.driver.replace_broker("driver_process");
    site.driver.supervision.replace_forwarder(UPLINK);
    site.driver.new_control();
    let states: Vec<InterfaceState> = site
        .driver
        .list()
        .into_iter()
        .map(|(_, _, state)| state)
        .collect();
    assert_eq!(states[..3], [const { InterfaceState::Up }; 3]);
    assert_eq!(states[3], InterfaceState::Disconnected);
    site.attach([2, 3]);
    site.ping();
    assert_eq!(site.socket(), socket, "it was not opened again");
}
