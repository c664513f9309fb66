//! The test bed itself, without any switch of ours: guests on a Linux bridge. When these fail, failures of
//! the end-to-end tests say nothing about the switch.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use testbed::ping::{PingOptions, ping};
use testbed::{
    Bridge, Endpoint, GuestOptions, IperfOptions, Lab, QemuGuest, QemuOptions, Testpmd, TestpmdOptions,
    UmlGuest, iperf,
};

fn guest(name: &str, number: u8) -> GuestOptions {
    GuestOptions::new(name)
        .address(&format!("10.9.0.{number}/24"))
        .address(&format!("fd00:9::{number}/64"))
}

#[test]
fn user_mode_guests_on_a_bridge() -> Result<()> {
    let Some(lab) = Lab::enter("user_mode_guests_on_a_bridge") else {
        return Ok(());
    };
    let bridge = Bridge::new("bridge", Some("10.9.0.100/24"))?;
    let mut guests = Vec::new();
    for number in 1..=2 {
        let tap = format!("tap{number}");
        bridge.add_tap(&tap, "")?;
        let options = guest(&format!("uml{number}"), number).tap(&tap, Some(bridge.namespace().netns()));
        guests.push(UmlGuest::start(options)?);
    }
    for guest in &mut guests {
        guest.wait_ready()?;
        lab.note(format!("{} booted in {:?}", guest.name(), guest.boot_time()));
    }
    let [a, b] = &mut guests[..] else {
        unreachable!("two guests were made")
    };
    ensure!(a.must("hostname")? == "uml1\n");
    for address in ["10.9.0.2", "fd00:9::2", "10.9.0.100"] {
        let result = ping(a, address, PingOptions::default())?;
        lab.note(format!("{address}: {result:?}"));
        ensure!(result.complete(), "{address}: {result:?}");
    }
    ensure!(
        ping(
            a,
            "10.9.0.77",
            PingOptions {
                count: 1,
                ..PingOptions::default()
            }
        )?
        .received
            == 0
    );

    let result = iperf::run(a, b, "10.9.0.2", &IperfOptions::default())?;
    lab.note(format!("guest to guest {result:?}"));
    ensure!(
        result.gigabits() > 0.05 && result.intervals.len() >= 2,
        "{result:?}"
    );
    let result = iperf::run(bridge.namespace(), a, "10.9.0.1", &IperfOptions::default())?;
    lab.note(format!("namespace to guest {result:?}"));
    let udp = IperfOptions {
        arguments: "-u -b 10M".into(),
        ..IperfOptions::default()
    };
    let result = iperf::run(a, bridge.namespace(), "10.9.0.100", &udp)?;
    lab.note(format!("UDP {result:?}"));
    ensure!(result.bits_per_second > 5e6, "{result:?}");

    // Commands run side by side, and one that hangs is given up.
    let begin = Instant::now();
    let slow = a.start("sleep 2; echo slow")?;
    ensure!(a.must("echo quick")? == "quick\n" && begin.elapsed() < Duration::from_secs(2));
    ensure!(slow.wait(Duration::from_secs(10))?.stdout == "slow\n");
    ensure!(a.start("sleep 100")?.wait(Duration::from_millis(100)).is_err());
    let long = a.must("dd if=/dev/zero bs=1000 count=100 2>/dev/null | tr '\\0' x")?;
    ensure!(long.len() == 100_000 && long.bytes().all(|byte| byte == b'x'));

    // Both kernels can tag; a Linux bridge passes tags on.
    for (guest, number) in [(&*a, 1), (&*b, 2)] {
        guest.must(&format!(
            "ip link add link eth0 name eth0.5 type vlan id 5 && ip link set eth0.5 up && ip addr add 10.8.0.{number}/24 dev eth0.5"
        ))?;
    }
    ensure!(ping(a, "10.8.0.2", PingOptions::default())?.complete());

    b.kill();
    ensure!(b.reap() && b.run("true").is_err());
    ensure!(
        ping(
            a,
            "10.9.0.2",
            PingOptions {
                count: 1,
                ..PingOptions::default()
            }
        )?
        .received
            == 0
    );
    Ok(())
}

/// A command that arrives while another one ends must not be lost.
#[test]
fn commands_arrive_while_others_end() -> Result<()> {
    let Some(_lab) = Lab::enter("commands_arrive_while_others_end") else {
        return Ok(());
    };
    let emulated = QemuGuest::boot(GuestOptions::new("qemu"), &QemuOptions::default())?;
    let user_mode = UmlGuest::boot(GuestOptions::new("uml"))?;
    for (guest, rounds) in [(&*emulated, 1), (&user_mode, 4)] {
        for _ in 0..rounds {
            let running = (0..10)
                .map(|number| guest.start(&format!("echo {number} # {}", "x".repeat(100))))
                .collect::<Result<Vec<_>>>()?;
            for (number, running) in running.into_iter().enumerate() {
                ensure!(running.wait(Duration::from_secs(30))?.stdout == format!("{number}\n"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_user_mode_guest_reboots() -> Result<()> {
    let Some(lab) = Lab::enter("a_user_mode_guest_reboots") else {
        return Ok(());
    };
    let guest = UmlGuest::boot(GuestOptions::new("uml"))?;
    guest.must("touch /tmp/gone")?;
    guest.reboot()?;
    lab.note("rebooted");
    ensure!(!guest.run("ls /tmp/gone")?.success());
    Ok(())
}

#[test]
fn a_machine_on_a_bridge() -> Result<()> {
    let Some(lab) = Lab::enter("a_machine_on_a_bridge") else {
        return Ok(());
    };
    let bridge = Bridge::new("bridge", Some("10.9.0.100/24"))?;
    bridge.add_tap("tap1", "vnet_hdr")?;
    let options = guest("qemu", 1).tap("tap1", Some(bridge.namespace().netns()));
    let mac = options.mac.clone();
    let qemu = QemuGuest::boot(options, &QemuOptions::device(&["guest_tso4=off"]))?;
    lab.note(format!(
        "booted with {} in {:?}",
        qemu.accelerator(),
        qemu.boot_time()
    ));
    ensure!(qemu.must("cat /sys/class/net/eth0/address")?.trim() == mac);
    let result = ping(&*qemu, "10.9.0.100", PingOptions::default())?;
    ensure!(result.complete(), "{result:?}");
    let result = iperf::run(&*qemu, bridge.namespace(), "10.9.0.100", &IperfOptions::default())?;
    lab.note(format!("machine to namespace {result:?}"));
    ensure!(result.gigabits() > 0.01, "{result:?}");

    qemu.unload_driver()?;
    ensure!(!qemu.run("ls /sys/class/net/eth0")?.success());
    qemu.load_driver()?;
    ensure!(ping(&*qemu, "10.9.0.100", PingOptions::default())?.complete());

    qemu.reboot()?;
    lab.note("rebooted");
    ensure!(ping(&*qemu, "10.9.0.100", PingOptions::default())?.complete());
    qemu.reset()?;
    lab.note("reset");
    ensure!(ping(&*qemu, "10.9.0.100", PingOptions::default())?.complete());
    Ok(())
}

#[test]
fn two_testpmd_play_guest_and_switch() -> Result<()> {
    let Some(lab) = Lab::enter("two_testpmd_play_guest_and_switch") else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let sockets = [dir.path().join("s0"), dir.path().join("s1")];
    let mut switch = Testpmd::start(&TestpmdOptions::switch(&sockets))?;
    switch.start_loop(0)?;
    let mut guest = Testpmd::start(&TestpmdOptions::guest(&sockets, ""))?;
    guest.start_loop(2)?;
    let rate = guest.packets_per_second(Duration::from_millis(500))?;
    lab.note(format!("{rate} packets per second"));
    ensure!(rate > 100.0, "{rate}");
    guest.stop()?;
    guest.clear()?;
    let stats = guest.stats()?;
    ensure!(stats.len() == 2 && stats[0].received < 200, "{stats:?}");
    guest.kill();
    ensure!(guest.stats().is_err());
    Ok(())
}
