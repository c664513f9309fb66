//! Access and trunk ports. Guests tag with the 8021q module of their own kernels.

use crate::rig::{boot, does_not_reach, finish, options, reaches, transfers, v4};
use anyhow::Result;
use testbed::{Endpoint, Guest, Lab, Switch};

const CONFIG: &str = r#"
    [[switch]]
    name = "sw0"
    [[switch.port]]
    name = "red1"
    vlan = { access = 10 }
    [[switch.port]]
    name = "red2"
    vlan = { access = 10 }
    [[switch.port]]
    name = "blue"
    vlan = { access = 20 }
    [[switch.port]]
    name = "trunk"
    vlan = { trunk = [10, 20] }
"#;

/// Adds an interface for a VLAN with an address in the network all share.
fn tag(guest: &Guest, vlan: u16, address: &str) -> Result<()> {
    guest
        .must(&format!(
            "ip link add link eth0 name eth0.{vlan} type vlan id {vlan} && ip link set eth0.{vlan} up && \
             ip addr add {address}/24 dev eth0.{vlan}"
        ))
        .map(drop)
}

#[test]
fn access_and_trunk_ports() -> Result<()> {
    let Some(_lab) = Lab::enter("access_and_trunk_ports") else {
        return Ok(());
    };
    let switch = Switch::start(CONFIG)?;
    let ports = ["red1", "red2", "blue", "trunk"];
    let all = ports
        .iter()
        .zip(1..)
        .map(|(port, number)| options(&switch, port, number));
    let [red1, red2, blue, trunk] = boot(all)?;
    reaches(&red1, &v4(2))?;
    does_not_reach(&red1, &v4(3))?;
    does_not_reach(&blue, &v4(2))?;
    // Untagged frames of a trunk without native VLAN belong nowhere.
    does_not_reach(&trunk, &v4(1))?;
    trunk.must("ip addr flush dev eth0")?;
    tag(&trunk, 10, &v4(4))?;
    reaches(&trunk, &v4(1))?;
    reaches(&red2, &v4(4))?;
    does_not_reach(&blue, &v4(4))?;
    transfers(&red1, &trunk, &v4(4), 8)?;
    transfers(&trunk, &red1, &v4(1), 8)?;
    trunk.must("ip link del eth0.10")?;
    tag(&trunk, 20, &v4(4))?;
    reaches(&trunk, &v4(3))?;
    does_not_reach(&trunk, &v4(1))?;
    // A VLAN the trunk does not carry, and a tag from a guest that must not tag.
    trunk.must("ip link del eth0.20")?;
    tag(&trunk, 30, &v4(4))?;
    does_not_reach(&trunk, &v4(1))?;
    blue.must("ip addr flush dev eth0")?;
    tag(&blue, 10, &v4(3))?;
    does_not_reach(&blue, &v4(1))?;
    finish(switch, [red1, red2, blue, trunk]).map(drop)
}

#[test]
fn native_vlan_and_trunk_of_all() -> Result<()> {
    let Some(_lab) = Lab::enter("native_vlan_and_trunk_of_all") else {
        return Ok(());
    };
    let switch = Switch::start(
        r#"
        [[switch]]
        name = "sw0"
        [[switch.port]]
        name = "red"
        vlan = { access = 10 }
        [[switch.port]]
        name = "native"
        vlan = { trunk = [20], native = 10 }
        [[switch.port]]
        name = "all"
        vlan = { trunk = "all" }
        "#,
    )?;
    let ports = ["red", "native", "all"];
    let [red, native, all] = boot(
        ports
            .iter()
            .zip(1..)
            .map(|(port, number)| options(&switch, port, number)),
    )?;
    reaches(&native, &v4(1))?;
    reaches(&red, &v4(2))?;
    does_not_reach(&all, &v4(1))?;
    all.must("ip addr flush dev eth0")?;
    tag(&all, 10, &v4(3))?;
    reaches(&all, &v4(1))?;
    reaches(&all, &v4(2))?;
    finish(switch, [red, native, all]).map(drop)
}
