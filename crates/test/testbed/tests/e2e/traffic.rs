//! Packets of all kinds between guests, the host and containers.

use crate::rig::{
    self, does_not_reach, finish, guests, options, private, reaches, reaches_with, transfers, v4, v6,
};
use anyhow::{Result, ensure};
use testbed::ping::{PingOptions, ping};
use testbed::{Endpoint, Guest, IperfOptions, Lab, Namespace, QemuGuest, QemuOptions, Switch, iperf};

#[test]
fn two_guests_talk() -> Result<()> {
    let Some(lab) = Lab::enter("two_guests_talk") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2"], ""))?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    switch.wait_port("vm1", "running")?;
    reaches(&a, &v4(2))?;
    reaches(&b, &v6(1))?;
    reaches_with(
        &a,
        &v4(2),
        PingOptions {
            count: 500,
            interval: 0.002,
            ..PingOptions::default()
        },
    )?;
    // Larger than the interface's MTU: fragments.
    reaches_with(
        &a,
        &v4(2),
        PingOptions {
            size: 20_000,
            ..PingOptions::default()
        },
    )?;
    for (from, to, address) in [(&a, &b, v4(2)), (&b, &a, v4(1)), (&a, &b, v6(2)), (&b, &a, v6(1))] {
        let result = iperf::run(from, to, &address, &IperfOptions::default())?;
        lab.note(format!(
            "{} to {address}: {:.2} Gb/s",
            from.name(),
            result.gigabits()
        ));
        ensure!(result.gigabits() > 0.2, "{result:?}");
    }
    let udp = IperfOptions {
        arguments: "-u -b 20M -l 1400".into(),
        ..IperfOptions::default()
    };
    // A guest with one processor may be too slow for its own socket; on the way there nothing may be lost.
    let before = switch.stats()?.total;
    let result = iperf::run(&a, &b, &v4(2), &udp)?;
    let after = switch.stats()?.total;
    ensure!(result.bits_per_second > 5e6, "{result:?}");
    ensure!(after.dropped == before.dropped, "{before:?} {after:?}");
    transfers(&a, &b, &v4(2), 16)?;
    transfers(&b, &a, &v6(1), 16)?;

    let macs = switch.macs()?;
    for guest in [&a, &b] {
        let known = macs.iter().find(|entry| entry.mac == guest.options().mac);
        ensure!(
            known.is_some_and(|entry| entry.port == guest.name()),
            "{} in {macs:?}",
            guest.name()
        );
    }
    ensure!(!switch.flows()?.is_empty());
    let stats = finish(switch, [a, b])?;
    // Large frames pass whole: far fewer packets than segments of 1,448 bytes.
    let total = &stats.total;
    let mean = total.received_bytes / total.received.max(1);
    ensure!(mean > 3000, "{mean} bytes per packet: {total:?}");
    ensure!(total.segments == 0, "{total:?}");
    // Payload is copied once: beyond what was delivered only heads of 128 bytes, and packets without a flow
    // (which the control process saw, few and small).
    let heads = 128 * (total.received + total.upcalls);
    let misses = total.upcalls * 2000;
    ensure!(
        (total.transmitted_bytes..=total.transmitted_bytes + heads + misses).contains(&total.copied_bytes),
        "{total:?}"
    );
    lab.note(format!(
        "{} bytes delivered, {} copied",
        total.transmitted_bytes, total.copied_bytes
    ));
    Ok(())
}

#[test]
fn jumbo_frames() -> Result<()> {
    let Some(_lab) = Lab::enter("jumbo_frames") else {
        return Ok(());
    };
    let mut config = private(&["vm1", "vm2"], "mtu = 9000");
    config += "[[switch.port]]\nname = \"small\"\ntype = \"vhost-user\"\nmtu = 1500\n";
    let switch = Switch::start(&config)?;
    let names = ["vm1", "vm2", "small"];
    let all = names.iter().zip(1..).map(|(port, number)| {
        let options = options(&switch, port, number);
        if *port == "small" {
            options
        } else {
            options.mtu(9000)
        }
    });
    let [a, b, small] = rig::boot(all)?;
    let whole = |size| PingOptions {
        size,
        whole: true,
        ..PingOptions::default()
    };
    reaches_with(&a, &v4(2), whole(8972))?;
    reaches_with(&b, &v6(1), whole(8952))?;
    let result = iperf::run(&a, &b, &v4(2), &IperfOptions::default())?;
    ensure!(result.gigabits() > 0.2, "{result:?}");
    transfers(&a, &b, &v4(2), 8)?;
    // The third cannot take such frames, and gets none.
    reaches(&a, &v4(3))?;
    let result = ping(&a, &v4(3), whole(8972))?;
    ensure!(result.received == 0, "{result:?}");
    let dropped = switch.counters("small")?.egress_dropped;
    ensure!(
        dropped.get("exceeds-mtu").is_some_and(|&count| count >= 3),
        "{dropped:?}"
    );
    // With TCP, each side announces the largest segment that it can take.
    let result = iperf::run(&a, &small, &v4(3), &IperfOptions::default())?;
    ensure!(result.gigabits() > 0.2, "{result:?}");
    finish(switch, [a, b, small]).map(drop)
}

#[test]
fn broadcast_and_multicast_reach_everybody_once() -> Result<()> {
    let Some(_lab) = Lab::enter("broadcast_and_multicast_reach_everybody_once") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "vm3"], ""))?;
    let all = guests(&switch, ["vm1", "vm2", "vm3"])?;
    for guest in &all {
        guest.must("echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts")?;
    }
    // ping stops waiting for further answers after the first to its last packet: the receivers know better.
    let echoes = |guest: &Guest| -> Result<[u64; 2]> {
        let v4 = guest.must("awk '/^Icmp:/ { n = $10 } END { print n }' /proc/net/snmp")?;
        let v6 = guest.must("awk '/^Icmp6InEchos / { print $2 }' /proc/net/snmp6")?;
        Ok([v4.trim().parse()?, v6.trim().parse()?])
    };
    for sender in 0..all.len() {
        let before = all.iter().map(echoes).collect::<Result<Vec<_>>>()?;
        for target in ["-b 10.9.0.255", "ff02::1%eth0"] {
            let result = ping(
                &all[sender],
                target,
                PingOptions {
                    count: 5,
                    ..PingOptions::default()
                },
            )?;
            ensure!(
                result.received == 5 && result.duplicates > 0,
                "vm{} {target}: {result:?}",
                sender + 1
            );
        }
        for (index, guest) in all.iter().enumerate().filter(|&(index, _)| index != sender) {
            let after = echoes(guest)?;
            let counts = [after[0] - before[index][0], after[1] - before[index][1]];
            ensure!(
                counts == [5, 5],
                "of 5 packets of vm{} {} received {counts:?}",
                sender + 1,
                guest.name()
            );
        }
    }
    let stats = finish(switch, all)?;
    ensure!(stats.total.copies > 0, "{:?}", stats.total);
    Ok(())
}

#[test]
fn host_and_container_of_an_internal_switch() -> Result<()> {
    let Some(lab) = Lab::enter("host_and_container_of_an_internal_switch") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let config = format!(
        r#"
        [[switch]]
        name = "sw0"
        type = "internal"
        host = {{ interface = "hs0", addresses = ["{host}/24", "{host6}/64"] }}
        [[switch.port]]
        name = "vm1"
        type = "vhost-user"
        [[switch.port]]
        name = "ct1"
        type = "tap"
        interface = "eth0"
        netns = "{netns}"
        addresses = ["{ct}/24", "{ct6}/64"]
        "#,
        host = v4(100),
        host6 = v6(100),
        netns = container.netns(),
        ct = v4(50),
        ct6 = v6(50),
    );
    let switch = Switch::start(&config)?;
    let [vm] = guests(&switch, ["vm1"])?;
    let host = switch.host();
    // Duplicate address detection of the TAPs takes its second.
    for (endpoint, interface) in [(host, "hs0"), (&container, "eth0")] {
        switch.wait(|| {
            Ok(!endpoint
                .must(&format!("ip -6 addr show dev {interface}"))?
                .contains("tentative"))
        })?;
    }
    let endpoints: [(&dyn Endpoint, u8); 3] = [(&vm, 1), (host, 100), (&container, 50)];
    for (from, from_number) in endpoints {
        for (to, number) in endpoints {
            if from_number == number {
                continue;
            }
            reaches(from, &v4(number))?;
            reaches(from, &v6(number))?;
            let result = iperf::run(from, to, &v4(number), &IperfOptions::seconds(1))?;
            lab.note(format!(
                "{} to {}: {:.2} Gb/s",
                from.name(),
                to.name(),
                result.gigabits()
            ));
            ensure!(result.gigabits() > 0.2, "{result:?}");
            transfers(from, to, &v6(number), 4)?;
        }
    }
    finish(switch, [vm]).map(drop)
}

#[test]
fn a_private_switch_is_private() -> Result<()> {
    let Some(_lab) = Lab::enter("a_private_switch_is_private") else {
        return Ok(());
    };
    let config = private(&["vm1"], "") + "[[switch]]\nname = \"sw1\"\n[[switch.port]]\nname = \"vm2\"\n";
    let switch = Switch::start(&config)?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    does_not_reach(&a, &v4(2))?;
    ensure!(switch.host().must("ip -o link show type tun")?.is_empty());
    let stats = finish(switch, [a, b])?;
    ensure!(
        stats.total.delivered == 0 && stats.total.received > 0,
        "{:?}",
        stats.total
    );
    Ok(())
}

/// Large segments to a receiver that takes them, and to ones that do not, from both kinds of guest.
#[test]
fn segmentation_for_a_receiver_that_cannot() -> Result<()> {
    let Some(lab) = Lab::enter("segmentation_for_a_receiver_that_cannot") else {
        return Ok(());
    };
    const NO_TSO: &[&str] = &[
        "guest_tso4=off",
        "guest_tso6=off",
        "guest_ecn=off",
        "guest_ufo=off",
    ];
    const NO_OFFLOAD: &[&str] = &[
        "guest_tso4=off",
        "guest_tso6=off",
        "guest_ecn=off",
        "guest_ufo=off",
        "guest_csum=off",
        "csum=off",
        "gso=off",
    ];
    const SINGLE_BUFFERS: &[&str] = &["mrg_rxbuf=off"];
    for (name, device, segments) in [
        ("all", &[][..], false),
        ("no-tso", NO_TSO, true),
        ("no-offload", NO_OFFLOAD, true),
        ("single-buffers", SINGLE_BUFFERS, false),
    ] {
        let switch = Switch::start(&private(&["vm1", "vm2"], ""))?;
        let [uml] = guests(&switch, ["vm1"])?;
        let qemu = QemuGuest::boot(options(&switch, "vm2", 2), &QemuOptions::device(device))?;
        reaches(&uml, &v4(2))?;
        for (from, to, address) in [
            (&uml as &dyn Endpoint, &*qemu as &dyn Endpoint, v4(2)),
            (&uml, &*qemu, v6(2)),
            (&*qemu, &uml, v4(1)),
            (&*qemu, &uml, v6(1)),
        ] {
            let result = iperf::run(from, to, &address, &IperfOptions::seconds(1))?;
            lab.note(format!(
                "{name}: {} to {address}: {:.2} Gb/s",
                from.name(),
                result.gigabits()
            ));
            ensure!(result.gigabits() > 0.02, "{name} to {address}: {result:?}");
        }
        transfers(&uml, &*qemu, &v4(2), 2)?;
        transfers(&*qemu, &uml, &v6(1), 2)?;
        let cut = switch.counters("vm2")?.segments;
        ensure!((cut > 0) == segments, "{name}: {cut} segments made");
        drop(qemu);
        finish(switch, [uml])?;
    }
    Ok(())
}
