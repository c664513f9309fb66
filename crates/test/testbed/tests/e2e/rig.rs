//! Parts that most tests share: addresses, guests on ports, checks.

use anyhow::{Context, Result, ensure};
use management::Stats;
use std::time::Duration;
use testbed::ping::{PingOptions, ping};
use testbed::{Endpoint, Guest, GuestOptions, Namespace, Switch, UmlGuest};

/// A private switch `sw0` with these vhost-user ports. `extra` goes into the switch's own table.
pub fn private(ports: &[&str], extra: &str) -> String {
    let mut config = format!("[[switch]]\nname = \"sw0\"\ntype = \"private\"\n{extra}\n");
    for port in ports {
        config += &format!("[[switch.port]]\nname = \"{port}\"\ntype = \"vhost-user\"\n");
    }
    config
}

/// IPv4 address of endpoint `number`.
pub fn v4(number: u8) -> String {
    format!("10.9.0.{number}")
}

/// IPv6 address of endpoint `number`.
pub fn v6(number: u8) -> String {
    format!("fd00:9::{number}")
}

/// A guest on a port, named like it, with the addresses of endpoint `number`.
pub fn options(switch: &Switch, port: &str, number: u8) -> GuestOptions {
    GuestOptions::new(port)
        .vhost_user(switch.socket(port))
        .address(&format!("{}/24", v4(number)))
        .address(&format!("{}/64", v6(number)))
}

/// User mode guests on these ports, numbered from 1, booted side by side.
pub fn guests<const N: usize>(switch: &Switch, ports: [&str; N]) -> Result<[Guest; N]> {
    boot(
        ports
            .iter()
            .zip(1..)
            .map(|(port, number)| options(switch, port, number)),
    )
}

/// User mode guests, booted side by side.
pub fn boot<const N: usize>(options: impl IntoIterator<Item = GuestOptions>) -> Result<[Guest; N]> {
    let guests = UmlGuest::boot_all(options)?;
    let count = guests.len();
    guests
        .try_into()
        .ok()
        .with_context(|| format!("{count} guests instead of {N}"))
}

/// A port for a container in network 10.`number`/16 of a P4 router.
pub fn routed(name: &str, container: &Namespace, number: u8) -> String {
    format!(
        "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
         mac = \"02:00:00:00:01:0{number}\"\naddresses = [\"10.{number}.0.1/16\"]\n",
        container.netns()
    )
}

/// Leads to the other network by the router's address at this port, whose MAC address the router's tables
/// have: the program answers no ARP.
pub fn route(endpoint: &dyn Endpoint, device: &str, number: u8) -> Result<()> {
    let (gateway, mac) = (format!("10.{number}.0.254"), format!("02:00:00:00:00:f{number}"));
    // Busybox, in virtual machines, has no neighbours.
    endpoint
        .must(&format!(
            "{{ ip neigh replace {gateway} lladdr {mac} dev {device} 2>/dev/null || \
             busybox arp -i {device} -s {gateway} {mac}; }} && ip route replace 10.0.0.0/8 via {gateway}"
        ))
        .map(drop)
}

/// Every ping must be answered, once.
pub fn reaches(from: &dyn Endpoint, address: &str) -> Result<()> {
    reaches_with(from, address, PingOptions::default())
}

/// Every ping must be answered, once.
pub fn reaches_with(from: &dyn Endpoint, address: &str, options: PingOptions) -> Result<()> {
    let result = ping(from, address, options)?;
    ensure!(
        result.complete(),
        "{} to {address} with {options:?}: {result:?}",
        from.name()
    );
    Ok(())
}

/// No ping may be answered.
pub fn does_not_reach(from: &dyn Endpoint, address: &str) -> Result<()> {
    let result = ping(
        from,
        address,
        PingOptions {
            count: 2,
            ..PingOptions::default()
        },
    )?;
    ensure!(
        result.received == 0,
        "{} must not reach {address}: {result:?}",
        from.name()
    );
    Ok(())
}

/// Sends `megabytes` of random bytes over TCP and compares what arrives: throughput alone proves nothing
/// about contents.
pub fn transfers(from: &dyn Endpoint, to: &dyn Endpoint, address: &str, megabytes: u32) -> Result<()> {
    let file = format!("/tmp/random-{}-{}", std::process::id(), from.name());
    let sum = from.must(&format!(
        "dd if=/dev/urandom of={file} bs=1M count={megabytes} 2>/dev/null; sha256sum < {file}"
    ))?;
    // A server whose own input ends would close the connection: it gets a pipe that never does.
    let server = to.start(&format!(
        "mkfifo {file}.in; exec 3<>{file}.in; rm {file}.in; busybox nc -l -p 7777 <&3 | sha256sum"
    ))?;
    to.must("for i in $(seq 100); do grep -q ':1E61 .* 0A ' /proc/net/tcp /proc/net/tcp6 && exit 0; sleep 0.05; done; exit 1")?;
    from.start(&format!("busybox nc {address} 7777 < {file}; rm {file}"))?
        .wait(Duration::from_secs(60))?;
    let arrived = server.wait(Duration::from_secs(60))?.stdout;
    ensure!(
        sum == arrived,
        "{} to {} ({address}): sent {sum} arrived {arrived}",
        from.name(),
        to.name()
    );
    Ok(())
}

/// Ends a test: all packets accounted for, guests gone, a clean stop of the switch. Returns the last
/// counters.
pub fn finish(switch: Switch, guests: impl IntoIterator<Item = Guest>) -> Result<Stats> {
    let stats = switch.wait_until_accounted()?;
    drop(guests.into_iter().collect::<Vec<_>>());
    // Again with all guests gone: packets that were queued for them count too.
    switch.wait_until_accounted()?;
    let warnings = switch.status()?.warnings;
    ensure!(warnings.is_empty(), "{warnings:?}");
    switch.stop()?;
    Ok(stats)
}
