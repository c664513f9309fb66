//! Bonds and VLAN devices of the kernel as uplinks, and a kernel before 6.6, which attaches no program to the
//! ingress of a device: the switch runs in a guest that has all of these, on the files of this machine.

use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use testbed::{Endpoint, Guest, GuestOptions, Lab, UmlGuest};

/// Programs of this machine, as the guest sees them. Its shell would take an own `ip` of less ability.
const PREPARE: &str = "mkdir -p /host /run/netns && rm -rf /var/run && ln -s /run /var/run && \
     mount -t hostfs none /host -o / && \
     for module in tun veth bonding/bonding; do \
     insmod /host/usr/lib/uml/modules/$(uname -r)/kernel/drivers/net/$module.ko || exit 1; done";

/// A bond of two cables, and a VLAN device, both to a namespace outside; containers are in another one.
const DEVICES: &str = "out=10.1.0.9/24; $IP netns add out && $IP netns add in && \
     $IP link add b0 type bond mode active-backup miimon 20 && \
     $IP -n out link add br0 type bridge && \
     for n in 0 1; do $IP link add s$n type veth peer name f$n netns out && $IP link set s$n master b0 && \
     $IP -n out link set f$n master br0 up || exit 1; done && \
     $IP link set b0 up && $IP -n out addr add $out dev br0 && $IP -n out link set br0 up && \
     $IP link add v0 type veth peer name w0 netns out && $IP link set v0 up && $IP -n out link set w0 up && \
     $IP link add link v0 name v0.100 type vlan id 100 && $IP link set v0.100 up && \
     $IP -n out link add link w0 name w0.100 type vlan id 100 && $IP -n out link set w0.100 up && \
     $IP -n out addr add 10.2.0.9/24 dev w0.100";

fn config() -> String {
    let switch = |name: &str, uplink: &str, number: u8| {
        format!(
            "[[switch]]\nname = \"{name}\"\ntype = \"external\"\nuplink = \"{uplink}\"\n\
             [[switch.port]]\nname = \"c{number}\"\ntype = \"tap\"\nnetns = \"in\"\n\
             addresses = [\"10.{number}.0.1/24\"]\n"
        )
    };
    format!("{}{}", switch("bond", "b0", 1), switch("vlan", "v0.100", 2))
}

/// Runs a command with the switch and `ip` in `$HS` and `$IP`.
fn must(guest: &Guest, command: &str) -> Result<String> {
    let program = testbed::switch::binary()?;
    guest.must(&format!(
        "export LD_LIBRARY_PATH=/host/lib/x86_64-linux-gnu IP=/host/bin/ip \
         HS='/host{} --run-dir /tmp/run'; {command}",
        program.display()
    ))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        ensure!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[test]
fn bonds_and_vlan_devices_are_uplinks_on_an_older_kernel() -> Result<()> {
    let Some(lab) = Lab::enter("bonds_and_vlan_devices_are_uplinks_on_an_older_kernel") else {
        return Ok(());
    };
    let mut options = GuestOptions::new("bonds");
    options.memory = 512;
    let guest = UmlGuest::boot(options)?;
    guest.must(PREPARE)?;
    must(&guest, DEVICES)?;
    must(
        &guest,
        &format!(
            "cat > /tmp/c.toml <<'X'\n{}X\n$HS run --config /tmp/c.toml > /tmp/log 2>&1 &",
            config()
        ),
    )?;
    let pings = |number: u8| {
        let ping = format!("$IP netns exec in /usr/bin/ping -c 2 -W 2 10.{number}.0.9");
        must(&guest, &ping).is_ok()
    };
    let status = || must(&guest, "$HS status").unwrap_or_default();
    until("traffic through the bond", || pings(1)).with_context(status)?;
    until("traffic through the VLAN device", || pings(2)).with_context(status)?;
    let said = status();
    let reason = "not hidden from the host (no program at the device's ingress (Linux 6.6)";
    ensure!(said.contains(reason), "{said}");
    lab.note("a cable of the bond is cut");
    must(&guest, "$IP -n out link set f0 down")?;
    until("the other cable", || pings(1))?;
    must(
        &guest,
        "$IP -n out link set f0 up && sleep 1 && $IP -n out link set f1 down",
    )?;
    until("the first cable again", || pings(1))?;
    ensure!(pings(2), "the VLAN device does not notice");
    lab.note("a VLAN device goes and comes");
    must(
        &guest,
        "$IP link set v0.100 down && sleep 1 && $IP link set v0.100 up",
    )?;
    until("traffic through the VLAN device again", || pings(2)).with_context(status)
}
