//! Guests with a kernel of their own under an unmodified ovs-vswitchd that drives our data plane. Needs root,
//! User Mode Linux and Open vSwitch; `make test-ovs` runs them.

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::ovs::{Driven, Forwarding};
use testbed::ping::{PingOptions, ping, reachable};
use testbed::{Endpoint, Guest, GuestOptions, IperfOptions, Lab, UmlGuest, iperf};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Enters the lab if there is an Open vSwitch with this program.
fn enter(name: &'static str, program: &str) -> Option<Lab> {
    if Path::new(program).exists() {
        return Lab::enter(name);
    }
    let required = std::env::var("HYPERSWITCH_OVS").is_ok_and(|value| value == "require");
    assert!(!required, "{name}: needs {program}: scripts/setup --ovs");
    let _ = writeln!(std::io::stderr(), "{name}: skipped: there is no {program}");
    None
}

fn v4(number: usize) -> String {
    format!("10.9.0.{number}")
}

/// A guest on each of these ports, with the addresses from number `first` on.
fn guests<const N: usize>(ovs: &Driven, ports: [&str; N], first: usize) -> Result<[Guest; N]> {
    let options = ports.iter().zip(first..).map(|(port, number)| {
        GuestOptions::new(port)
            .vhost_user(ovs.socket(port))
            .address(&format!("{}/24", v4(number)))
    });
    let guests = UmlGuest::boot_all(options)?;
    guests.try_into().ok().context("a guest for each port")
}

/// Waits until no ping is answered: ovs-vswitchd changes flows some time after its tables.
fn does_not_reach(from: &Guest, address: &str) -> Result<()> {
    let few = PingOptions {
        count: 2,
        ..PingOptions::default()
    };
    let begin = Instant::now();
    while ping(from, address, few)?.received > 0 {
        ensure!(begin.elapsed() < TIMEOUT, "{} reaches {address}", from.name());
    }
    Ok(())
}

/// Packets that a guest's interface received.
fn received(guest: &Guest) -> Result<u64> {
    Ok(guest
        .must("cat /sys/class/net/eth0/statistics/rx_packets")?
        .trim()
        .parse()?)
}

/// Sends ten pings at a time until so many packets come to `watched` meanwhile.
fn until_seen(watched: &Guest, wanted: Range<u64>, from: &Guest, to: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        let seen = seen_by(watched, from, to)?;
        if wanted.contains(&seen) {
            return Ok(());
        }
        ensure!(begin.elapsed() < TIMEOUT, "{} has {seen} packets", watched.name());
    }
}

/// Sends ten pings and returns how many packets came to `watched` meanwhile.
fn seen_by(watched: &Guest, from: &Guest, to: &str) -> Result<u64> {
    let before = received(watched)?;
    let ten = PingOptions {
        count: 10,
        ..PingOptions::default()
    };
    ensure!(ping(from, to, ten)?.complete(), "{} to {to}", from.name());
    Ok(received(watched)? - before)
}

#[test]
fn vlans_mirrors_and_bonds() -> Result<()> {
    let Some(lab) = enter("vlans_mirrors_and_bonds", testbed::ovs::PROGRAM) else {
        return Ok(());
    };
    let ovs = Driven::start(&["vm1", "vm2", "vm3"], Forwarding::Learning)?;
    let [a, b, c] = guests(&ovs, ["vm1", "vm2", "vm3"], 1)?;
    reachable(&a, &v4(2), TIMEOUT)?;
    reachable(&a, &v4(3), TIMEOUT)?;
    lab.note("VLANs");
    ovs.vsctl("set Port vm1 tag=10 -- set Port vm2 tag=10 -- set Port vm3 tag=20")?;
    reachable(&a, &v4(2), TIMEOUT)?;
    does_not_reach(&a, &v4(3))?;
    // The trunk's guest tags by itself.
    ovs.vsctl("clear Port vm3 tag -- set Port vm3 trunks=10")?;
    c.must(&format!(
        "ip addr flush dev eth0 && ip link add link eth0 name eth0.10 type vlan id 10 && ip link set eth0.10 up && \
         ip addr add {}/24 dev eth0.10",
        v4(3)
    ))?;
    reachable(&a, &v4(3), TIMEOUT)?;
    c.must(&format!(
        "ip link del eth0.10 && ip addr add {}/24 dev eth0",
        v4(3)
    ))?;
    ovs.vsctl("clear Port vm1 tag -- clear Port vm2 tag -- clear Port vm3 trunks")?;
    reachable(&a, &v4(3), TIMEOUT)?;

    lab.note("mirrors");
    reachable(&a, &v4(2), TIMEOUT)?;
    until_seen(&c, 0..10, &a, &v4(2))?;
    ovs.vsctl(
        "-- --id=@from get Port vm1 -- --id=@to get Port vm3 -- --id=@mirror create Mirror name=m select-src-port=@from \
         select-dst-port=@from output-port=@to -- set Bridge br0 mirrors=@mirror",
    )?;
    // ovs-vswitchd 3.1 leaves flows as they are when mirrors change.
    ovs.appctl("revalidator/purge")?;
    until_seen(&c, 20..100, &a, &v4(2))?;
    ovs.vsctl("clear Bridge br0 mirrors")?;
    ovs.appctl("revalidator/purge")?;
    until_seen(&c, 0..10, &a, &v4(2))?;
    drop(c);

    lab.note("bonds");
    let member = "type=internal external_ids:vhost-user=server";
    ovs.vsctl(&format!(
        "del-port vm3 -- add-bond br0 bond0 vm4 vm5 bond_mode=active-backup -- set Interface vm4 {member} \
         -- set Interface vm5 {member}"
    ))?;
    ovs.wait_socket("vm4")?;
    ovs.wait_socket("vm5")?;
    let members = guests(&ovs, ["vm4", "vm5"], 4)?;
    for (active, waiting) in [(0, 1), (1, 0)] {
        let names = ["vm4", "vm5"];
        ovs.appctl(&format!("bond/set-active-slave bond0 {}", names[active]))?;
        reachable(&a, &v4(4 + active), TIMEOUT)?;
        does_not_reach(&a, &v4(4 + waiting))?;
    }
    let [first, second] = members;
    drop(second);
    // The link of the active one is down: the other takes over.
    reachable(&a, &v4(4), TIMEOUT)?;
    drop((a, b, first));
    ovs.stop()
}

#[test]
fn filters_groups_meters_and_tables() -> Result<()> {
    let Some(lab) = enter("filters_groups_meters_and_tables", testbed::ovs::PROGRAM) else {
        return Ok(());
    };
    let ovs = Driven::start(&["vm1", "vm2", "vm3"], Forwarding::Learning)?;
    let [a, b, c] = guests(&ovs, ["vm1", "vm2", "vm3"], 1)?;
    reachable(&a, &v4(2), TIMEOUT)?;
    reachable(&c, &v4(2), TIMEOUT)?;

    lab.note("filters, in several tables");
    let (own, other) = (v4(1), v4(3));
    ovs.ofctl(
        "add-flow",
        "priority=40000,icmp,actions=load:1->NXM_NX_REG2[],resubmit(,1)",
    )?;
    ovs.ofctl(
        "add-flow",
        &format!("table=1,priority=10,icmp,reg2=1,nw_src={own},actions=resubmit(,2)"),
    )?;
    ovs.ofctl(
        "add-flow",
        &format!("table=1,priority=10,icmp,nw_src={},actions=resubmit(,2)", v4(2)),
    )?;
    ovs.ofctl("add-flow", "table=2,actions=normal")?;
    reachable(&a, &v4(2), TIMEOUT)?;
    // No flow of table 1 is for it.
    does_not_reach(&c, &v4(2))?;
    ovs.ofctl(
        "add-flow",
        &format!("table=1,priority=20,icmp,nw_src={other},actions=resubmit(,2)"),
    )?;
    reachable(&c, &v4(2), TIMEOUT)?;
    ovs.ofctl(
        "--strict del-flows",
        &format!("table=1,priority=20,icmp,nw_src={other}"),
    )?;
    does_not_reach(&c, &v4(2))?;
    ovs.ofctl("del-flows", "icmp")?;
    reachable(&c, &v4(2), TIMEOUT)?;

    lab.note("groups");
    ovs.ofctl("add-group", "group_id=7,type=all,bucket=output:2,bucket=output:3")?;
    ovs.ofctl("add-flow", "priority=40000,in_port=1,actions=group:7")?;
    until_seen(&c, 10..100, &a, &v4(2))?;
    ovs.ofctl("del-flows", "in_port=1")?;

    lab.note("meters");
    let udp = IperfOptions {
        arguments: "-u -b 40M -l 1000".into(),
        ..IperfOptions::seconds(3)
    };
    let free = iperf::run(&a, &b, &v4(2), &udp)?.bits_per_second;
    ovs.ofctl(
        "add-meter",
        "meter=3,kbps,burst,bands=type=drop,rate=2000,burst_size=200",
    )?;
    ovs.ofctl("add-flow", "priority=40000,udp,in_port=1,actions=meter:3,normal")?;
    let bounded = iperf::run(&a, &b, &v4(2), &udp)?.bits_per_second;
    lab.note(format!("{free} without a meter, {bounded} with one of 2 Mb/s"));
    // On a machine that is busy with something else it is a quarter of what is sent.
    ensure!(free > 7.5e6, "{free}");
    ensure!((1.25e6..2.5e6).contains(&bounded), "{bounded}");
    drop((a, b, c));
    ovs.stop()
}

/// Makes each of these guests know the others' hardware addresses for ever, so that none asks for one again.
fn introduce(guests: &[(&Guest, String)]) -> Result<()> {
    for (guest, address) in guests {
        let mac = guest.must("cat /sys/class/net/eth0/address")?;
        for (other, of_other) in guests {
            if address != of_other {
                other.must(&format!("arp -i eth0 -s {address} {}", mac.trim()))?;
            }
        }
    }
    Ok(())
}

/// Pings all the time while something happens; no packet may be lost.
fn without_loss(from: &Guest, to: &str, happens: impl FnOnce() -> Result<()>) -> Result<()> {
    let over = AtomicBool::new(false);
    let ten = PingOptions {
        count: 10,
        interval: 0.1,
        ..PingOptions::default()
    };
    thread::scope(|scope| {
        let pings = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let result = ping(from, to, ten)?;
                ensure!(result.complete(), "{} to {to}: {result:?}", from.name());
            }
            Ok(())
        });
        let outcome = happens();
        over.store(true, Ordering::Relaxed);
        let pings = pings.join().expect("pinging does not panic");
        pings.and(outcome)
    })
}

/// Whether ovs-vswitchd is a learning switch for want of a controller: all packets have a flow for that,
/// which `ovs-ofctl` does not show.
fn stands_alone(ovs: &Driven) -> Result<bool> {
    Ok(ovs.appctl("bridge/dump-flows br0")?.contains("actions=NORMAL"))
}

/// Pings until the controller has given the bridge so many flows for pings, and the data plane has got them.
fn pings_have_flows(ovs: &Driven, from: &Guest, to: &str, flows: usize) -> Result<()> {
    wait_until("pings have flows", || {
        reachable(from, to, TIMEOUT)?;
        let shown = ovs.appctl("bridge/dump-flows br0")?;
        Ok(shown.lines().filter(|flow| flow.contains("icmp,")).count() >= flows)
    })?;
    ovs.appctl("revalidator/wait").map(drop)
}

/// Pings twice, and ensures that nobody answers.
fn unanswered(from: &Guest, to: &str) -> Result<()> {
    let few = PingOptions {
        count: 2,
        ..PingOptions::default()
    };
    let result = ping(from, to, few)?;
    ensure!(result.received == 0, "{} reaches {to}: {result:?}", from.name());
    Ok(())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !holds()? {
        ensure!(begin.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
fn a_controller_comes_and_goes() -> Result<()> {
    let Some(lab) = enter("a_controller_comes_and_goes", testbed::ovs::CONTROLLER) else {
        return Ok(());
    };
    let ovs = Driven::start(&["vm1", "vm2", "vm3"], Forwarding::Learning)?;
    // The first controller that is named empties the tables.
    ovs.vsctl(&format!(
        "set-fail-mode br0 secure -- set-controller br0 {}",
        ovs.controller()
    ))?;
    // ovs-vswitchd heeds this once it has been connected; until then it waits for 8 s at most between two
    // attempts.
    ovs.vsctl("set Controller br0 max_backoff=1000")?;
    let [a, b, c] = guests(&ovs, ["vm1", "vm2", "vm3"], 1)?;
    lab.note("no controller yet");
    does_not_reach(&a, &v4(2))?;
    does_not_reach(&c, &v4(2))?;

    lab.note("the first one decides");
    // With this version it is asked about what no flow matches, with later ones only if a flow says so.
    let first = ovs.start_controller("OpenFlow10")?;
    // ovs-vswitchd does not examine its flows again for that: one that drops would stay as long as ARP asks
    // each second.
    ovs.appctl("revalidator/purge")?;
    reachable(&a, &v4(2), TIMEOUT)?;
    introduce(&[(&a, v4(1)), (&b, v4(2)), (&c, v4(3))])?;
    pings_have_flows(&ovs, &a, &v4(2), 2)?;

    lab.note("it is killed, and a second one takes over");
    let mut second = None;
    without_loss(&a, &v4(2), || {
        ovs.kill_controller(first)?;
        unanswered(&a, &v4(3))?;
        second = Some(ovs.start_controller("OpenFlow13")?);
        pings_have_flows(&ovs, &a, &v4(3), 4)
    })?;
    let second = second.context("the second controller")?;

    lab.note("it is killed, and nobody decides");
    ovs.kill_controller(second)?;
    unanswered(&b, &v4(3))?;
    without_loss(&a, &v4(3), || unanswered(&c, &v4(2)))?;
    ensure!(!stands_alone(&ovs)?);

    lab.note("the switch decides by itself");
    // It does after three times as many milliseconds without a controller.
    ovs.vsctl("set-fail-mode br0 standalone -- set Controller br0 inactivity_probe=1000")?;
    reachable(&b, &v4(3), TIMEOUT)?;
    ensure!(stands_alone(&ovs)?);
    // It floods no more.
    until_seen(&a, 0..10, &b, &v4(3))?;
    reachable(&a, &v4(2), TIMEOUT)?;

    lab.note("the third one decides");
    let third = ovs.start_controller("OpenFlow13")?;
    wait_until("the switch leaves decisions to the controller", || {
        Ok(!stands_alone(&ovs)?)
    })?;
    pings_have_flows(&ovs, &b, &v4(3), 2)?;
    drop((a, b, c, third));
    ovs.stop()
}
