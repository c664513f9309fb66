//! Polling drivers: DPDK's virtio-user.

use crate::rig::{finish, guests, private, reaches_with, v4};
use anyhow::{Result, ensure};
use control_protocol::work::WorkReport;
use std::time::Duration;
use testbed::ping::PingOptions;
use testbed::polling::{Traffic, udp_ports};
use testbed::process::own_memory;
use testbed::switch::Role;
use testbed::{Controlled, Endpoint, Lab, PollingGuest, Switch, Testpmd, TestpmdOptions};

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
        switch.wait_until_accounted()?;
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

/// The data plane alone, with a controller that is played by the test bed: packets go by their UDP ports, and
/// those of which no flow knows are lost.
#[test]
fn a_played_controller_tells_flows_apart() -> Result<()> {
    let Some(_lab) = Lab::enter("a_played_controller_tells_flows_apart") else {
        return Ok(());
    };
    let ports = ["p1", "p2"];
    let mut plane = Controlled::start(&ports)?;
    plane.join_by_udp_ports((0..100).map(udp_ports))?;
    ensure!(plane.flows()? == 200, "a flow for each way");
    let mut guest = PollingGuest::connect(&ports.map(|port| plane.socket(port)), 1514)?;
    plane.register_guest(&ports)?;
    let of_flows = |flows| Traffic {
        flows,
        ..Traffic::new(64)
    };
    let (known, [before, after]) =
        guest.circulate(&of_flows(200), Duration::from_millis(200), || plane.work())?;
    ensure!(known.lost == 0 && known.packets > 0, "{known:?}");
    let packets = |work: &WorkReport| work.workers.iter().map(|worker| worker.packets).sum::<u64>();
    ensure!(packets(&after) > packets(&before), "its work is known");
    let (unknown, _) = guest.circulate(&of_flows(400), Duration::from_millis(200), || Ok(()))?;
    ensure!(unknown.lost > 0, "half of the flows are not in the table");
    drop(guest);
    plane.stop()
}

/// Memory that the data plane had for drivers goes back to the system when they have gone, whichever thread
/// it was for.
#[test]
fn drivers_that_have_gone_leave_no_memory_behind() -> Result<()> {
    let Some(lab) = Lab::enter("drivers_that_have_gone_leave_no_memory_behind") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["p1", "p2"], ""))?;
    let data_plane = switch.pid(Role::DataPlane)?;
    let options = TestpmdOptions::guest(&[switch.socket("p1"), switch.socket("p2")], "");
    let come_and_go = || -> Result<u64> {
        let mut testpmd = Testpmd::start(&options)?;
        testpmd.start_loop(4)?;
        testpmd.kill();
        switch.wait_port("p1", "disconnected")?;
        switch.wait_port("p2", "disconnected")?;
        Ok(own_memory(data_plane))
    };
    let before = come_and_go()?;
    let mut after = before;
    for _ in 0..8 {
        after = come_and_go()?;
    }
    lab.note(format!("from {before} to {after} bytes"));
    ensure!(
        after < before + (2 << 20),
        "from {before} to {after} bytes of memory"
    );
    finish(switch, []).map(drop)
}

/// A receiver that has a driver but takes nothing must not hold up others.
#[test]
fn a_receiver_that_stalls_delays_nobody() -> Result<()> {
    let Some(lab) = Lab::enter("a_receiver_that_stalls_delays_nobody") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2", "stalled", "sender"], ""))?;
    let [a, b] = guests(&switch, ["vm1", "vm2"])?;
    // Neither may send back what it gets: the switch would believe that the guests have moved there.
    let quiet = |port| {
        let options = TestpmdOptions::guest(&[switch.socket(port)], "");
        Testpmd::start(&TestpmdOptions {
            forward_mode: "rxonly",
            ..options
        })
    };
    let mut stalled = quiet("stalled")?;
    let mut sender = quiet("sender")?;
    stalled.start_loop(0)?;
    switch.wait_port("stalled", "running")?;
    stalled.stop()?;
    // From now on it posts no buffers. What the sender sends is for an address that nobody has: it goes to
    // all.
    let pings = b.start("ping -n -q -c 200 -i 0.01 -W 2 10.9.0.1")?;
    sender.start_loop(100)?;
    let output = pings.wait(Duration::from_secs(30))?;
    lab.note(&output.stdout);
    ensure!(output.stdout.contains(" 0% packet loss"), "{output:?}");
    // The sender gives up what does not fit into its ring, and the receiver has buffers for the first ones:
    // it takes a few rounds until enough have come too late.
    let mut dropped = switch.counters("stalled")?.egress_dropped;
    for _ in 0..30 {
        if dropped.values().sum::<u64>() > 50 {
            break;
        }
        sender.stop()?;
        sender.start_loop(100)?;
        switch.wait_until_accounted()?;
        dropped = switch.counters("stalled")?.egress_dropped;
    }
    lab.note(format!("{dropped:?}"));
    ensure!(dropped.values().sum::<u64>() > 50, "{dropped:?}");
    reaches_with(
        &a,
        &v4(2),
        PingOptions {
            count: 100,
            interval: 0.01,
            ..PingOptions::default()
        },
    )?;

    // It takes packets again: it gets them again.
    stalled.start_loop(0)?;
    sender.stop()?;
    let before = stalled.stats()?[0].received;
    sender.start_loop(1)?;
    switch.wait(|| Ok(stalled.stats()?[0].received >= before + 32))?;
    sender.kill();
    stalled.kill();
    finish(switch, [a, b]).map(drop)
}
