//! Large frames of kernels that come through an uplink or a TAP: they are cut into packets, and none is
//! dropped.

use crate::rig::transfers;
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use testbed::ping::reachable;
use testbed::{Endpoint, IperfOptions, Lab, Namespace, Switch, iperf};

/// Far above the 0.3 Mb/s of TCP that sends all again in small pieces, and far below what a busy machine
/// does.
const LEAST: f64 = 20e6;

/// A container on an external switch, and a peer behind its uplink, with VXLAN between them: 10.8.0.N
/// outside, 10.9.0.N inside.
fn pair() -> Result<(Switch, Namespace, Namespace)> {
    let (container, peer) = (Namespace::new("container")?, Namespace::new("peer")?);
    let switch = Switch::start("")?;
    switch.host().must(&format!(
        "ip link add up0 type veth peer name eth0 netns {} && ip link set up0 up",
        peer.netns()
    ))?;
    peer.must("ip addr add 10.8.0.2/24 dev eth0 && ip link set eth0 up")?;
    switch.reload(&format!(
        "[[switch]]\nname = \"out\"\ntype = \"external\"\nuplink = \"up0\"\n\
         [[switch.port]]\nname = \"web\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
         addresses = [\"10.8.0.1/24\"]\n",
        container.netns()
    ))?;
    for port in ["out:uplink", "web"] {
        switch.wait_port(port, "running")?;
    }
    for (at, number, other) in [(&container, 1, 2), (&peer, 2, 1)] {
        at.must(&format!(
            "ip link add vx0 type vxlan id 7 dev eth0 dstport 4789 local 10.8.0.{number} remote 10.8.0.{other} && \
             ip addr add 10.9.0.{number}/24 dev vx0 && ip link set vx0 up"
        ))?;
    }
    reachable(&peer, "10.8.0.1", Duration::from_secs(10))?;
    reachable(&peer, "10.9.0.1", Duration::from_secs(10))?;
    Ok((switch, container, peer))
}

/// How many packets were dropped since their offloads were refused.
fn refused(switch: &Switch) -> Result<u64> {
    let dropped = switch.stats()?.total.dropped;
    Ok(["bad-offload", "cannot-segment"]
        .iter()
        .filter_map(|reason| dropped.get(*reason))
        .sum())
}

#[test]
fn tcp_in_a_kernels_tunnel_passes_an_uplink() -> Result<()> {
    let Some(lab) = Lab::enter("tcp_in_a_kernels_tunnel_passes_an_uplink") else {
        return Ok(());
    };
    let (switch, container, peer) = pair()?;
    for (from, to, address) in [(&peer, &container, "10.9.0.1"), (&container, &peer, "10.9.0.2")] {
        transfers(from, to, address, 4)?;
        let result = iperf::run(from, to, address, &IperfOptions::seconds(1))?;
        lab.note(format!(
            "{} to {}: {:.2} Gb/s",
            from.name(),
            to.name(),
            result.gigabits()
        ));
        ensure!(result.bits_per_second > LEAST, "{result:?}");
    }
    let total = switch.stats()?.total;
    ensure!(total.segments > 1000, "nothing was cut: {total:?}");
    ensure!(refused(&switch)? == 0, "{total:?}");
    switch.wait_until_accounted()?;
    switch.stop()
}

/// A sender with the socket option UDP_SEGMENT (103 at level 17), and a receiver that counts datagrams and
/// sums up their bytes.
const SEND: &str = "socket(S, PF_INET, SOCK_DGRAM, 17); setsockopt(S, 17, 103, pack('i', 1400)) or die $!; \
     connect(S, sockaddr_in(5400, inet_aton($ARGV[0]))) or die $!; \
     for $round (1 .. 20) { defined(send(S, chr(64 + $round) x 28700, 0)) or die $!; select(undef, undef, undef, 0.02) }";
const RECEIVE: &str = "socket(S, PF_INET, SOCK_DGRAM, 17); bind(S, sockaddr_in(5400, INADDR_ANY)) or die $!; \
     $| = 1; alarm 30; \
     for (1 .. 420) { recv(S, $data, 65536, 0); $sizes{length $data}++; $sum += unpack('%32C*', $data) } \
     print join(' ', (map { \"$_:$sizes{$_}\" } sort keys %sizes), $sum)";

#[test]
fn large_datagrams_pass_an_uplink_and_a_tap() -> Result<()> {
    let Some(_lab) = Lab::enter("large_datagrams_pass_an_uplink_and_a_tap") else {
        return Ok(());
    };
    let (switch, container, peer) = pair()?;
    // 20 times 20 datagrams of 1,400 bytes and one of 700.
    let sum: u64 = (1..=20).map(|round| 28_700 * (64 + round)).sum();
    let wanted = format!("1400:400 700:20 {sum}");
    for (from, to, address) in [(&peer, &container, "10.8.0.1"), (&container, &peer, "10.8.0.2")] {
        let receiver = to.start(&format!("exec perl -MSocket -e \"{}\"", escaped(RECEIVE)))?;
        to.must(
            "for i in $(seq 200); do grep -q ':1518 ' /proc/net/udp && exit 0; sleep 0.05; done; exit 1",
        )?;
        from.must(&format!("perl -MSocket -e \"{}\" {address}", escaped(SEND)))?;
        let arrived = receiver.wait(Duration::from_secs(40))?.stdout;
        ensure!(
            arrived == wanted,
            "{} to {}: {arrived}, not {wanted}",
            from.name(),
            to.name()
        );
    }
    // Kernels before 6.2 have no large datagrams at TAPs, nor those before 6.4 at uplinks: they are cut then.
    let total = switch.stats()?.total;
    ensure!(
        total.segments == 0 || total.segments >= 420,
        "some were cut: {total:?}"
    );
    ensure!(refused(&switch)? == 0, "{total:?}");
    switch.wait_until_accounted().context("in the end")?;
    switch.stop()
}

/// A program in double quotes of a shell.
fn escaped(program: &str) -> String {
    program.replace('"', "\\\"").replace('$', "\\$")
}
