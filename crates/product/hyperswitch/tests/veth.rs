//! Containers whose ports are veth pairs, on a running switch.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::eventually;
use containers::pairs::Site;

#[test]
fn containers_reach_each_other_through_every_death() {
    let site = Site::start(2);
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
    assert_eq!(devices.lines().count(), 1, "lo: {devices}");
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
    let mut site = Site::start(2);
    eventually("they reach each other", || site.pings());
    site.instance.die();
    eventually("nothing is left", || !site.has(0) && !site.has(1));
}

#[test]
fn a_port_becomes_a_pair_and_a_tap_again() {
    let site = Site::start(2);
    for kind in ["tap", "veth"] {
        site.instance.verb(&["port", "del", "c1"]).unwrap();
        site.add(1, kind);
        eventually("they reach each other", || site.pings());
        let is_pair = site.spaces[1].run("ip -d link show eth0").1.contains("veth");
        assert_eq!(is_pair, kind == "veth");
    }
    let shown = site.instance.verb(&["port", "show", "c1"]).unwrap();
    assert_eq!(shown[0]["type"], "veth");
}

/// What a port has counted.
fn count(site: &Site, port: &str) -> [u64; 5] {
    let names = [
        "received",
        "received-bytes",
        "delivered",
        "transmitted",
        "transmitted-bytes",
    ];
    names.map(|name| site.instance.counter(port, name))
}

#[test]
fn the_kernel_forwards_and_counts_as_the_data_plane_does() {
    let site = Site::start(2);
    site.on_kernel_path();
    let (before, other) = (count(&site, "c0"), count(&site, "c1"));
    assert_eq!(site.answered(200, " -s 100"), 200);
    let differences = |now: [u64; 5], before: [u64; 5]| [0, 1, 2, 3, 4].map(|at| now[at] - before[at]);
    let (now, other) = (
        differences(count(&site, "c0"), before),
        differences(count(&site, "c1"), other),
    );
    // 200 requests or answers of 142 bytes, and a few of ARP.
    for [
        received,
        received_bytes,
        delivered,
        transmitted,
        transmitted_bytes,
    ] in [now, other]
    {
        assert!(
            (200..220).contains(&received) && (200..220).contains(&transmitted),
            "{now:?} {other:?}"
        );
        assert_eq!(received, delivered);
        assert!((28_400..30_000).contains(&received_bytes), "{received_bytes}");
        assert!(
            (28_400..30_000).contains(&transmitted_bytes),
            "{transmitted_bytes}"
        );
    }
    assert_eq!(now[..2], other[3..], "what one sent the other one got");
    let flows = site.instance.verb(&["flow", "list"]).unwrap();
    let packets: u64 = flows
        .as_array()
        .unwrap()
        .iter()
        .map(|flow| flow["packets"].as_u64().unwrap())
        .sum();
    assert!(packets >= 400, "{flows}");
}

#[test]
fn frames_of_the_kernel_path_do_not_reach_the_data_plane() {
    let site = Site::start(2);
    site.on_kernel_path();
    let status = site.instance.verb(&["status"]).unwrap();
    let processes = status["processes"].as_array().unwrap().clone();
    let pid = |role: &str| {
        let process = processes.iter().find(|process| process["role"] == role);
        process.unwrap()["pid"].to_string()
    };
    // Neighbours are known, so no ARP has to pass.
    containers::run(&format!("kill -STOP {}", pid("forwarder-0")));
    let answers = site.answered(20, "");
    containers::run(&format!("kill -CONT {}", pid("forwarder-0")));
    assert_eq!(answers, 20);
    assert!(site.kernel_path("c0").0 > 0);
}

#[test]
fn a_change_is_obeyed_by_the_first_packet_after_its_answer() {
    let site = Site::start(2);
    for round in 0..10 {
        site.on_kernel_path();
        let (space, instance) = (&site.spaces[0], &site.instance);
        // From the answer on, not one packet may pass.
        let pinging = std::thread::scope(|scope| {
            let flood = scope.spawn(|| space.run("ping -q -i 0.002 -c 300 -W 1 10.66.0.2"));
            std::thread::sleep(std::time::Duration::from_millis(100));
            instance
                .verb(&["port", "set", "c1", "--isolated", "true"])
                .unwrap();
            instance
                .verb(&["port", "set", "c0", "--isolated", "true"])
                .unwrap();
            let received = || {
                site.spaces[1]
                    .run("cat /sys/class/net/eth0/statistics/rx_packets")
                    .1
            };
            let at_answer: u64 = received().trim().parse().unwrap();
            flood.join().unwrap();
            let later: u64 = received().trim().parse().unwrap();
            later - at_answer
        });
        assert_eq!(pinging, 0, "round {round}");
        assert_eq!(site.kernel_path("c0").0, 0);
        site.instance
            .verb(&["port", "set", "c0", "--isolated", "false"])
            .unwrap();
        site.instance
            .verb(&["port", "set", "c1", "--isolated", "false"])
            .unwrap();
    }
}

#[test]
fn what_has_to_be_seen_goes_through_the_data_plane() {
    let site = Site::start(2);
    site.on_kernel_path();
    site.say("port set c1 --max-rate-to 100M");
    assert_eq!(site.kernel_path("c0").0, 0, "at once");
    assert!(site.pings());
    assert!(
        site.kernel_path("c1").1.contains("bandwidth"),
        "{:?}",
        site.kernel_path("c1")
    );
    site.say("port set c1 --max-rate-to none");
    site.on_kernel_path();
    site.say("port set c0 --guards dhcp");
    assert_eq!(site.kernel_path("c0").0, 0, "at once");
    assert!(site.pings());
    assert!(site.kernel_path("c0").1.contains("policies"));
}

#[test]
fn entries_do_not_outlive_their_data_plane() {
    let site = Site::start(2);
    for _ in 0..3 {
        site.on_kernel_path();
        site.instance.kill("data-plane");
        // The next one has none until it has decided itself.
        site.on_kernel_path();
    }
    site.instance.kill("driver");
    assert_eq!(site.answered(50, ""), 50, "the broker's death costs nothing");
    site.instance.kill("control");
    assert_eq!(site.answered(50, ""), 50, "nor that of the control process");
    site.on_kernel_path();
}

#[test]
fn odd_frames_take_the_way_through_the_data_plane() {
    let site = Site::start(2);
    site.on_kernel_path();
    let (from, to) = (site.mac(0), site.mac(1));
    let payload = "5a".repeat(50);
    let dropped = |reason: &str| site.instance.counter("c0", &format!("dropped/{reason}"));
    // A tag is no business of an untagged port; a source of another is learned, not forwarded by the entry.
    let before = dropped("vlan-not-allowed");
    let heard = |frame: String, marker: &str| {
        let act = || {
            site.spaces[0].sends("eth0", &frame);
            site.spaces[0].sends("eth0", &format!("{to}{from}88b5aaaaaaaaaaaa{payload}"));
        };
        site.spaces[1].hears("eth0", marker, act)
    };
    let last = heard(format!("{to}{from}8100000508004500{payload}"), "aaaaaaaaaaaa").unwrap();
    assert!(last.contains("88b5aaaaaaaaaaaa"), "{last}");
    eventually("the tagged frame was dropped", || {
        ["vlan-not-allowed", "vlan", "tagged"]
            .iter()
            .any(|reason| dropped(reason) > 0)
            || before > 0
            || site
                .instance
                .verb(&["stats", "c0"])
                .unwrap()
                .to_string()
                .contains("vlan")
    });
    let forged = format!("{to}02000000ee0188b5bbbbbbbbbbbb{payload}");
    assert!(heard(forged, "bbbbbbbbbbbb").is_some(), "through the data plane");
    // A short one must harm nobody.
    site.spaces[0].sends("eth0", &format!("{to}{from}88b5"));
    assert!(site.pings());
}

#[test]
fn large_segments_and_mtus_are_as_before() {
    let site = Site::start(2);
    site.on_kernel_path();
    site.instance
        .verb(&["port", "set", "c1", "--mtu", "1400"])
        .unwrap();
    eventually("the interface has it", || {
        site.spaces[1].run("ip link show eth0").1.contains("mtu 1400")
    });
    site.on_kernel_path();
    let before = site.instance.counter("c0", "dropped/exceeds-mtu")
        + site.instance.counter("c1", "egress-dropped/exceeds-mtu");
    assert_eq!(site.answered(5, " -s 1450 -M do"), 0, "too long for the receiver");
    let after = site.instance.counter("c0", "dropped/exceeds-mtu")
        + site.instance.counter("c1", "egress-dropped/exceeds-mtu");
    assert!(after > before, "{before} {after}");
    assert_eq!(site.answered(5, " -s 1300"), 5);
}
