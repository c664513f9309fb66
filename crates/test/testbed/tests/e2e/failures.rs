//! Processes of the switch die in mid-traffic.

use crate::rig::{finish, guests, options, private, reaches, v4};
use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::switch::Role;
use testbed::{Endpoint, IperfOptions, Lab, Namespace, QemuGuest, QemuOptions, Switch, iperf};

#[test]
fn forwarding_outlives_the_control_process() -> Result<()> {
    let Some(lab) = Lab::enter("forwarding_outlives_the_control_process") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "vm3"], ""))?;
    let [a, b, c] = guests(&switch, ["vm1", "vm2", "vm3"])?;
    reaches(&a, &v4(2))?;
    let stream = iperf::start(&a, &b, &v4(2), &IperfOptions::seconds(8))?;
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1500));
        let old = switch.kill(Role::Control)?;
        switch.wait_replaced(Role::Control, old)?;
        lab.note("control process is back");
    }
    let result = stream.wait()?;
    lab.note(format!("{result:?}"));
    ensure!(result.intervals.len() >= 8, "{result:?}");
    ensure!(
        result.worst_interval() > 1e6,
        "throughput fell to zero: {result:?}"
    );
    // It learns and decides again, and has not forgotten.
    reaches(&c, &v4(1))?;
    reaches(&b, &v4(3))?;
    let macs = switch.macs()?;
    for guest in [&a, &b, &c] {
        let known = macs
            .iter()
            .any(|entry| entry.mac == guest.options().mac && entry.port == guest.name());
        ensure!(known, "{} in {macs:?}", guest.name());
    }
    let status = switch.status()?;
    let control = status
        .processes
        .iter()
        .find(|process| process.role == Role::Control.name())
        .context("control")?;
    ensure!(control.restarts == 3, "{control:?}");
    finish(switch, [a, b, c]).map(drop)
}

pub fn with_container(container: &Namespace) -> String {
    let netns = container.netns();
    let address = v4(50);
    private(&["vm1", "vm2"], "")
        + &format!(
            "[[switch.port]]\nname = \"ct\"\ntype = \"tap\"\nnetns = \"{netns}\"\ninterface = \"eth0\"\naddresses = [\"{address}/24\"]\n"
        )
}

#[test]
fn the_driver_process_dies_and_taps_return() -> Result<()> {
    let Some(lab) = Lab::enter("the_driver_process_dies_and_taps_return") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let switch = Switch::start(&with_container(&container))?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    reaches(&a, &v4(50))?;
    let stream = iperf::start(&a, &b, &v4(2), &IperfOptions::seconds(4))?;
    let lost = iperf::start(
        &a,
        &container,
        &v4(50),
        &IperfOptions {
            port: 5202,
            seconds: 20,
            ..IperfOptions::default()
        },
    )?;
    thread::sleep(Duration::from_millis(1500));
    for role in [Role::Driver, Role::Taps] {
        let old = switch.kill(role)?;
        switch.wait_replaced(role, old)?;
    }
    let result = stream.wait()?;
    lab.note(format!("{result:?}"));
    ensure!(
        result.worst_interval() > 1e6,
        "guest to guest traffic suffered: {result:?}"
    );
    drop(lost);
    a.run("killall -9 iperf3")?;
    reachable(&a, &v4(50), Duration::from_secs(10))?;
    reaches(&container, &v4(2))?;
    finish(switch, [a, b]).map(drop)
}

#[test]
fn the_data_plane_dies_and_who_reconnects_returns() -> Result<()> {
    let Some(lab) = Lab::enter("the_data_plane_dies_and_who_reconnects_returns") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let switch = Switch::start(&with_container(&container))?;
    let reconnect = QemuOptions {
        reconnect: true,
        ..QemuOptions::default()
    };
    let qemu = QemuGuest::boot(options(&switch, "vm1", 1), &reconnect)?;
    reaches(&*qemu, &v4(50))?;
    for _ in 0..2 {
        let old = switch.kill(Role::DataPlane)?;
        switch.wait_replaced(Role::DataPlane, old)?;
        lab.note("data plane is back");
        reachable(&*qemu, &v4(50), Duration::from_secs(20))?;
        reaches(&container, &v4(1))?;
    }
    drop(qemu);
    finish(switch, []).map(drop)
}

#[test]
fn several_instances_side_by_side() -> Result<()> {
    let Some(_lab) = Lab::enter("several_instances_side_by_side") else {
        return Ok(());
    };
    let first = Switch::start(&private(&["vm1", "vm2"], ""))?;
    let second = Switch::start(&private(&["vm1"], ""))?;
    let [a, b] = guests(&first, ["vm1", "vm2"])?;
    let [other] = guests(&second, ["vm1"])?;
    reaches(&a, &v4(2))?;
    ensure!(!other.must("ip addr")?.is_empty());
    finish(second, [other])?;
    reaches(&b, &v4(1))?;
    finish(first, [a, b]).map(drop)
}
