//! Ports that are veth pairs, with real namespaces and traffic. Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::backend::{ALL, Backend};
use common::pair::Pair;
use common::supervision::Supervision;
use common::{Driver, Namespace, can_run, sh, tap, unique, veth};
use control_protocol::Channel;
use control_protocol::driver::{InterfaceKind, InterfaceState};
use control_protocol::supervisor::ForwarderId;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Not a test: the process that others run as a broker.
#[test]
#[ignore = "run by other tests"]
fn driver_process() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    driver_domain::run(Channel::from(stdin), common::owner()).unwrap();
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the broker says of the forwarder of TAPs.
fn said(supervision: &Supervision) -> String {
    let serves = supervision.serves();
    let of_taps = serves.into_iter().find(|(id, _)| *id == ForwarderId::TAPS);
    of_taps.map(|(_, text)| text).unwrap_or_default()
}

#[test]
fn a_pair_carries_what_a_tap_does() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let pair = Pair::attach_as(&driver, ALL, veth);
    pair.ping();
    for (options, address) in [("", "10.77.0.2"), ("-R", "10.77.0.2"), ("", "fd00:77::2")] {
        let rate = pair.spaces[0].iperf(&pair.spaces[1], address, options);
        assert!(rate > 1e8, "{rate}");
    }
    for device in &pair.backend.devices {
        let device = device.lock().unwrap();
        assert_eq!(device.acked, ALL);
        assert!(device.segmented > 100 && device.unsummed > 100 && device.largest > 40_000);
    }
    for (space, name) in pair.spaces.iter().zip(&pair.names) {
        let shown = space.sh(&format!("ip -d link show {name}"));
        assert!(shown.contains("veth"), "{shown}");
    }
    until("it says what it serves", || {
        said(&driver.supervision) == "TAPs: 2, 2 behind veth pairs"
    });
}

/// An end of the switch has no network stack that would speak: the container hears nothing that nobody sent,
/// and the switch nothing that the container did not send.
#[test]
fn the_ends_of_the_switch_are_silent() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    for scope in ["all", "default"] {
        space.sh(&format!("sysctl -qw net.ipv6.conf.{scope}.disable_ipv6=1"));
    }
    let (backend, [stream, _]) = Backend::start(ALL);
    let name = unique();
    driver.attach(0, &veth(&name, &space, &[]), stream);
    driver.expect_up(0);
    // Longer than the kernel takes to choose an address and to ask for routers.
    std::thread::sleep(Duration::from_millis(2500));
    let received = space.sh(&format!("cat /sys/class/net/{name}/statistics/rx_packets"));
    assert_eq!(received.trim(), "0", "the container hears the switch's end");
    assert_eq!(backend.devices[0].lock().unwrap().frames, 0);
}

#[test]
fn a_pair_that_its_container_removes_is_made_again() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let mut pair = Pair::attach_as(&driver, ALL, veth);
    pair.ping();
    for _ in 0..3 {
        pair.spaces[0].sh(&format!("ip link del {}", pair.names[0]));
        driver.expect_failed(0, "removed");
        driver.expect_up(0);
        pair.ping();
    }
    // Detached and attached again at once, many times: late notices are of earlier pairs.
    for _ in 0..5 {
        driver.detach(0);
        driver.detach(1);
        pair.reattach(&driver);
    }
    pair.ping();
    driver.detach(0);
    assert_eq!(driver.list().len(), 1);
    assert!(!pair.spaces[0].has(&pair.names[0]), "it disappears with its port");
    driver.shut_down();
    assert!(!pair.spaces[1].has(&pair.names[1]), "and with the driver domain");
}

#[test]
fn a_running_pair_changes_in_place() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let pair = Pair::attach_as(&driver, ALL, veth);
    let [space, other] = &pair.spaces;
    let shown = || space.sh(&format!("ip -o addr show {0}", pair.names[0])) + &space.sh("ip -o link");
    let index = space.sh(&format!("cat /sys/class/net/{}/ifindex", pair.names[0]));
    space.sh(&format!("ip addr add 10.77.5.5/24 dev {}", pair.names[0]));
    let mut specs = pair.specs.clone();
    for (port, spec) in specs.iter_mut().enumerate() {
        spec.mtu = Some(9000);
        if let InterfaceKind::Veth(stack) = &mut spec.kind {
            stack.mac = Some([2, 0, 0, 0, 0, 9 + port as u8]);
            stack.addresses.truncate(1);
        }
        driver.change(port as u32, spec);
    }
    until("the settings are there", || {
        let text = shown();
        let there = ["10.77.0.1/24", "10.77.5.5/24", "mtu 9000", "02:00:00:00:00:09"];
        there.iter().all(|part| text.contains(part)) && !text.contains("fd00:77::1")
    });
    let at_the_other = || other.sh("ip -o link").contains("mtu 9000");
    until("the other one's, too", at_the_other);
    space.sh("ping -c 2 -i 0.05 -W 5 -s 8000 -M do 10.77.0.2");
    let now = space.sh(&format!("cat /sys/class/net/{}/ifindex", pair.names[0]));
    assert_eq!(now, index, "it was not made anew");
}

#[test]
fn a_pair_outlives_its_broker() {
    if !can_run() {
        return;
    }
    let mut driver = Driver::start_process("driver_process", None);
    let pair = Pair::attach_as(&driver, ALL, veth);
    pair.ping();
    let index = |side: usize| {
        let path = format!("cat /sys/class/net/{}/ifindex", pair.names[side]);
        pair.spaces[side].sh(&path)
    };
    let before = [index(0), index(1)];
    for _ in 0..2 {
        driver.kill_broker();
        pair.ping();
        driver.start_broker("driver_process");
        driver.new_control();
        for (port, spec, state) in driver.list() {
            assert_eq!((&spec, state), (&pair.specs[port.0 as usize], InterfaceState::Up));
        }
        pair.ping();
    }
    assert_eq!([index(0), index(1)], before);
    driver.detach(0);
    assert_eq!(driver.list().len(), 1);
    assert!(!pair.spaces[0].has(&pair.names[0]), "the next broker removes it");
    // Nobody is left who could: the namespace of its end ends.
    driver.kill();
    until("the pair is gone", || !pair.spaces[1].has(&pair.names[1]));
}

#[test]
fn an_old_kernel_gives_a_tap_and_the_reason() {
    if !can_run() {
        return;
    }
    let driver = Driver::start_on_kernel(None, false);
    let pair = Pair::attach_as(&driver, ALL, veth);
    pair.ping();
    let shown = pair.spaces[0].sh(&format!("ip -d link show {}", pair.names[0]));
    assert!(shown.contains("tun type tap"), "{shown}");
    until("it says why", || {
        said(&driver.supervision) == "TAPs: 2, no veth pairs: this kernel is told to be old"
    });
}

#[test]
fn says_what_is_wrong() {
    if !can_run() {
        return;
    }
    let driver = Driver::start(None);
    let space = Namespace::new();
    let name = unique();
    space.sh(&format!("ip link add {name} type bridge"));
    let (_backend, [first, second]) = Backend::start(ALL);
    driver.attach(0, &veth(&name, &space, &[]), first);
    driver.expect_failed(0, "there is an interface");
    space.sh(&format!("ip link del {name}"));
    driver.expect_up(0);
    // Another kind of the same name takes its place.
    driver.attach(0, &tap(&name, &space, &[]), second);
    driver.expect_up(0);
    let shown = space.sh(&format!("ip -d link show {name}"));
    assert!(shown.contains("tun type tap"), "{shown}");
    driver.detach(0);
    // A namespace that comes later.
    let (later, (_other, [third, _])) = (unique(), Backend::start(ALL));
    let space = {
        let mut spec = veth(&name, &space, &["10.78.0.1/24"]);
        if let InterfaceKind::Veth(stack) = &mut spec.kind {
            stack.netns = Some(later.clone());
        }
        driver.attach(1, &spec, third);
        driver.expect_failed(1, &format!("/run/netns/{later}"));
        sh(&format!("ip netns add {later}"));
        Namespace(later)
    };
    driver.expect_up(1);
    assert!(space.has(&name));
}
