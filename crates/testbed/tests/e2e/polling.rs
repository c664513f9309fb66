//! Polling drivers: DPDK's virtio-user.

use crate::rig::{finish, guests, private, reaches_with, v4};
use anyhow::{Result, ensure};
use std::time::Duration;
use testbed::ping::PingOptions;
use testbed::{Endpoint, Lab, Switch, Testpmd, TestpmdOptions};

#[test]
fn packets_circle_through_testpmd() -> Result<()> {
    let Some(lab) = Lab::enter("packets_circle_through_testpmd") else {
        return Ok(());
    };
    for (name, properties, size) in [
        ("mergeable", "", 64),
        ("single buffers", "mrg_rxbuf=0", 1500),
        ("in order off", "in_order=0", 200),
    ] {
        let switch = Switch::start(&private(&["p1", "p2"], ""))?;
        let mut options = TestpmdOptions::guest(&[switch.socket("p1"), switch.socket("p2")], properties);
        options.packet_size = size;
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.start_loop(2)?;
        let rate = testpmd.packets_per_second(Duration::from_secs(2))?;
        lab.note(format!("{name}: {:.2} million packets per second", rate / 1e6));
        ensure!(rate > 10_000.0, "{name}: {rate} packets per second");
        // Nothing in this loop may lose packets; they would not come back.
        let again = testpmd.packets_per_second(Duration::from_secs(1))?;
        ensure!(
            again > rate / 10.0,
            "{name}: from {rate} to {again} packets per second"
        );
        testpmd.stop()?;
        switch.settle()?;
        testpmd.kill();
        switch.wait_port("p1", "disconnected")?;
        // And again on the same ports.
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.start_loop(1)?;
        let rate = testpmd.packets_per_second(Duration::from_secs(1))?;
        ensure!(
            rate > 10_000.0,
            "{name}: {rate} packets per second after the restart"
        );
        testpmd.kill();
        finish(switch, [])?;
    }
    Ok(())
}

/// A receiver that has a driver but takes nothing must not hold up anybody.
#[test]
fn a_receiver_that_stalls_delays_nobody() -> Result<()> {
    let Some(lab) = Lab::enter("a_receiver_that_stalls_delays_nobody") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "stalled"], ""))?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    let mut testpmd = Testpmd::start(&TestpmdOptions::guest(&[switch.socket("stalled")], ""))?;
    testpmd.start_loop(0)?;
    switch.wait_port("stalled", "running")?;
    testpmd.stop()?;
    // From now on it posts no buffers. Frames to an address nobody has go to the neighbour and to the one that stalls.
    let flood = |packets: u32| {
        format!(
            "arp -s 10.9.0.77 02:00:00:00:00:77; dd if=/dev/zero bs=1000 count={packets} 2>/dev/null | busybox nc -u 10.9.0.77 9 & sleep 3; kill %1; true"
        )
    };
    let flooding = a.start(&flood(5000))?;
    reaches_with(
        &b,
        &v4(1),
        PingOptions {
            count: 200,
            interval: 0.01,
            ..PingOptions::default()
        },
    )?;
    flooding.wait(Duration::from_secs(30))?;
    let dropped = switch.counters("stalled")?.egress_dropped;
    lab.note(format!("{dropped:?}"));
    ensure!(dropped.values().sum::<u64>() > 1000, "{dropped:?}");
    testpmd.start_loop(0)?;
    let before = testpmd.stats()?[0].received;
    a.must(&flood(10))?;
    let after = testpmd.stats()?[0].received;
    ensure!(
        after >= before + 10,
        "it takes packets again, but gets none: {before}, {after}"
    );
    testpmd.kill();
    finish(switch, [a, b]).map(drop)
}
