//! A whole virtual machine as driver domain: it bridges a network card of its own to its port, as
//! `docs/driver-domain.md` says.

use crate::rig::transfers;
use anyhow::{Result, ensure};
use std::time::Duration;
use testbed::ping::{PingOptions, ping, reachable};
use testbed::{Endpoint, Guest, GuestOptions, Lab, Namespace, Switch, UmlGuest};

const SOON: Duration = Duration::from_secs(20);

/// What the guest runs: the lines of the recipe.
const BRIDGE: &str = "ip link add br0 type bridge && ip link set eth0 master br0 && ip link set vec0 master br0 && \
     ip link set vec0 up && ip link set eth0 up && ip link set br0 up";

/// A guest whose second card is the TAP in that namespace.
fn driver(switch: &Switch, card: &Namespace) -> Result<Guest> {
    let options = GuestOptions::new("driver").vhost_user(switch.socket("driver"));
    let guest = UmlGuest::boot(options.card("nic0", card.netns()))?;
    guest.must(BRIDGE)?;
    Ok(guest)
}

#[test]
fn a_virtual_machine_drives_the_network_card() -> Result<()> {
    let Some(lab) = Lab::enter("a_virtual_machine_drives_the_network_card") else {
        return Ok(());
    };
    let [card, one, two] = ["card", "one", "two"].map(Namespace::new);
    let (card, one, two) = (card?, one?, two?);
    // The station outside is the other end of the card's cable.
    card.must(
        "ip tuntap add dev nic0 mode tap vnet_hdr && ip addr add 10.8.0.9/24 dev nic0 && ip link set nic0 up",
    )?;
    let port = |name: &str, namespace: &Namespace, number: u8| {
        format!(
            "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
             addresses = [\"10.8.0.{number}/24\"]\n",
            namespace.netns()
        )
    };
    let switch = Switch::start(&format!(
        "[[switch]]\nname = \"lan\"\n[[switch.port]]\nname = \"driver\"\n{}{}",
        port("one", &one, 1),
        port("two", &two, 2)
    ))?;
    for name in ["one", "two"] {
        switch.wait_port(name, "running")?;
    }
    let guest = driver(&switch, &card)?;
    reachable(&card, "10.8.0.1", SOON)?;
    reachable(&two, "10.8.0.9", SOON)?;
    transfers(&card, &one, "10.8.0.1", 4)?;
    transfers(&one, &card, "10.8.0.9", 4)?;
    lab.note("the machine that drives the card dies");
    drop(guest);
    let result = ping(&one, "10.8.0.2", PingOptions::default())?;
    ensure!(result.complete(), "containers reach each other: {result:?}");
    let _guest = driver(&switch, &card)?;
    reachable(&card, "10.8.0.1", SOON)?;
    reachable(&one, "10.8.0.9", SOON)?;
    switch.stop()
}
