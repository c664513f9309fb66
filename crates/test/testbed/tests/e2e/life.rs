//! Guests come, go, return and change their minds; the switch runs on.

use crate::rig::{self, finish, guests, options, private, reaches, v4, v6};
use anyhow::{Result, ensure};
use std::thread;
use std::time::Duration;
use testbed::guest::Network;
use testbed::ping::{PingOptions, ping, reachable};
use testbed::{Endpoint, IperfOptions, Lab, QemuGuest, QemuOptions, Switch, UmlGuest, iperf};

#[test]
fn a_machine_reboots_and_resets() -> Result<()> {
    let Some(lab) = Lab::enter("a_machine_reboots_and_resets") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2"], ""))?;
    let [uml] = guests(&switch, ["vm1"])?;
    let qemu = QemuGuest::boot(options(&switch, "vm2", 2), &QemuOptions::default())?;
    reaches(&*qemu, &v4(1))?;
    qemu.reboot()?;
    lab.note("rebooted");
    reachable(&*qemu, &v4(1), Duration::from_secs(5))?;
    reaches(&uml, &v4(2))?;
    qemu.reset()?;
    lab.note("reset");
    reachable(&*qemu, &v4(1), Duration::from_secs(5))?;
    reaches(&uml, &v6(2))?;
    drop(qemu);
    switch.wait_port("vm2", "disconnected")?;
    finish(switch, [uml]).map(drop)
}

#[test]
fn drivers_are_unloaded_and_loaded() -> Result<()> {
    let Some(_lab) = Lab::enter("drivers_are_unloaded_and_loaded") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "vm3"], ""))?;
    let [uml, other] = guests(&switch, ["vm1", "vm2"])?;
    let qemu = QemuGuest::boot(options(&switch, "vm3", 3), &QemuOptions::default())?;
    for _ in 0..2 {
        // In mid-traffic: the stream that goes away must not disturb the one that stays.
        let lost = iperf::start(
            &uml,
            &*qemu,
            &v4(3),
            &IperfOptions {
                port: 5202,
                seconds: 20,
                ..IperfOptions::default()
            },
        )?;
        let kept = iperf::start(&uml, &other, &v4(2), &IperfOptions::seconds(3))?;
        thread::sleep(Duration::from_millis(1000));
        qemu.unload_driver()?;
        let result = kept.wait()?;
        ensure!(result.worst_interval() > 0.0, "{result:?}");
        drop(lost);
        uml.run("killall -9 iperf3")?;
        qemu.run("killall -9 iperf3")?;
        qemu.load_driver()?;
        reachable(&*qemu, &v4(1), Duration::from_secs(5))?;
        reaches(&other, &v4(3))?;
        // Turning an offload off makes the driver negotiate nothing anew, reloading it does: try both.
        qemu.must("ethtool -K eth0 tx off")?;
        reaches(&*qemu, &v4(2))?;
    }
    drop(qemu);
    finish(switch, [uml, other]).map(drop)
}

#[test]
fn a_killed_guest_disturbs_nobody_and_returns() -> Result<()> {
    let Some(lab) = Lab::enter("a_killed_guest_disturbs_nobody_and_returns") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "vm3"], ""))?;
    let [a, b, mut victim] = guests(&switch, ["vm1", "vm2", "vm3"])?;
    // The victim receives from one and sends to the other when it dies.
    let to_victim = iperf::start(
        &a,
        &victim,
        &v4(3),
        &IperfOptions {
            port: 5202,
            seconds: 20,
            ..IperfOptions::default()
        },
    )?;
    let from_victim = iperf::start(
        &victim,
        &b,
        &v4(2),
        &IperfOptions {
            port: 5203,
            seconds: 20,
            ..IperfOptions::default()
        },
    )?;
    let kept = iperf::start(&a, &b, &v4(2), &IperfOptions::seconds(4))?;
    thread::sleep(Duration::from_millis(1500));
    victim.kill();
    lab.note("killed");
    switch.wait_port("vm3", "disconnected")?;
    let result = kept.wait()?;
    lab.note(format!("{result:?}"));
    ensure!(result.worst_interval() > 0.0, "{result:?}");
    drop((to_victim, from_victim));
    for guest in [&a, &b] {
        guest.run("killall -9 iperf3")?;
    }
    switch.wait_until_accounted()?;
    let mut back = UmlGuest::boot(options(&switch, "vm3", 3))?;
    reaches(&back, &v4(1))?;
    reaches(&b, &v4(3))?;
    // Again and again, with the table still full of what the earlier one did.
    for _ in 0..3 {
        back.kill();
        back = UmlGuest::boot(options(&switch, "vm3", 3))?;
    }
    reaches(&a, &v4(3))?;
    finish(switch, [a, b, back]).map(drop)
}

#[test]
fn the_switch_connects_to_a_machine_that_listens() -> Result<()> {
    let Some(_lab) = Lab::enter("the_switch_connects_to_a_machine_that_listens") else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vmm.sock");
    let config = private(&["vm1"], "")
        + &format!(
            "[[switch.port]]\nname = \"vm2\"\nmode = \"client\"\nsocket = \"{}\"\n",
            socket.display()
        );
    let switch = Switch::start(&config)?;
    let [uml] = guests(&switch, ["vm1"])?;
    for _ in 0..2 {
        let mut machine = options(&switch, "vm2", 2);
        machine.network = Network::VhostUserServer(socket.clone());
        let qemu = QemuGuest::boot(machine, &QemuOptions::default())?;
        reachable(&*qemu, &v4(1), Duration::from_secs(10))?;
        reaches(&uml, &v4(2))?;
        drop(qemu);
        switch.wait_port("vm2", "disconnected")?;
        std::fs::remove_file(&socket)?;
    }
    let stats = switch.wait_until_accounted()?;
    ensure!(stats.total.delivered > 0);
    drop(uml);
    // The port's VMM is gone for good, which deserves a warning, but nothing else.
    switch.stop()
}

#[test]
fn a_reload_disturbs_no_port_that_stays() -> Result<()> {
    let Some(_lab) = Lab::enter("a_reload_disturbs_no_port_that_stays") else {
        return Ok(());
    };
    let before = private(&["vm1", "vm2", "gone"], "");
    let after = private(&["vm1", "vm2", "new"], "");
    let switch = Switch::start(&before)?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    let kept = iperf::start(&a, &b, &v4(2), &IperfOptions::seconds(4))?;
    thread::sleep(Duration::from_millis(1500));
    switch.reload(&after)?;
    ensure!(switch.reload("[[switch]]\nnonsense = 1\n").is_err());
    let result = kept.wait()?;
    ensure!(result.worst_interval() > 0.0, "{result:?}");
    let names: Vec<String> = switch.ports()?.into_iter().map(|port| port.name).collect();
    ensure!(
        names.contains(&"new".into()) && !names.contains(&"gone".into()),
        "{names:?}"
    );
    let [new] = rig::boot([options(&switch, "new", 3)])?;
    reaches(&new, &v4(1))?;
    // Ports added by command serve as well.
    switch.verb(&["port", "del", "new"]).expect_err("from the file");
    let result = ping(&a, &v4(3), PingOptions::default())?;
    ensure!(result.complete(), "{result:?}");
    std::fs::write(switch.run_dir().join("config.toml"), &after)?;
    finish(switch, [a, b, new]).map(drop)
}
