//! The ports' network devices: what is done to them is told to the data plane, and the other way round.

use crate::inside;
use crate::world::World;
use ovs_glue::Owner;
use ovs_glue::datapath::Errno;
use ovs_glue::placeholder::Placeholders;
use ovs_glue::tap::TapPlaceholders;

#[test]
fn devices_and_guests_are_followed() {
    inside("devices::inside_devices");
}

#[test]
#[ignore = "started by a test above"]
fn inside_devices() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.add_bridge(&["vm1", "vm2"]);
    let state_becomes = |world: &World, wanted: &str| {
        world.until(wanted, |world| world.glue("state vm1") == wanted);
        assert_eq!(world.glue("state vm2"), "up=true mtu=1500", "the other one");
    };
    let column_becomes = |world: &World, column: &str, wanted: &str| {
        world.until(&format!("{column} {wanted}"), |world| {
            world.vsctl(&format!("get Interface vm1 {column}")) == wanted
        });
    };
    // Otherwise ovs-vswitchd gives all ports of a bridge the lowest MTU.
    world.vsctl("set Interface vm2 mtu_request=1500");
    state_becomes(&world, "up=true mtu=1500");
    world.ofctl("mod-port br0 vm1 down");
    state_becomes(&world, "up=false mtu=1500");
    column_becomes(&world, "admin_state", "down");
    world.ofctl("mod-port br0 vm1 up");
    state_becomes(&world, "up=true mtu=1500");
    world.vsctl("set Interface vm1 mtu_request=1400");
    state_becomes(&world, "up=true mtu=1400");

    for (guest, link) in [("off", "down"), ("on", "up")] {
        world.glue(&format!("carrier vm1 {guest}"));
        column_becomes(&world, "link_state", link);
        assert_eq!(world.vsctl("get Interface vm2 link_state"), "up", "the other one");
    }
    world.check_log();
}

#[test]
fn devices_of_ports_that_are_no_more_are_removed() {
    inside("devices::inside_abandoned");
}

#[test]
#[ignore = "started by a test above"]
fn inside_abandoned() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.add_bridge(&["vm1", "vm2"]);
    world.kill_glue();
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    // Not ours: no alias, though it looks the same.
    world.ip("tuntap add dev other mode tap multi_queue vnet_hdr");
    world.vsctl("--no-wait del-port vm2");
    world.start_glue();
    world.start_vswitchd();
    world.wait_until_configured();
    assert!(world.has_device("vm2"), "nobody has said that it may go");
    assert_eq!(world.glue("remove-abandoned"), "1");
    assert!(!world.has_device("vm2"));
    for device in ["vm1", "br0", "ovs-system", "other"] {
        assert!(world.has_device(device), "{device}");
    }
    assert_eq!(world.glue("remove-abandoned"), "0");
    world.check_log();
}

#[test]
fn a_device_in_another_namespace_is_told_with_it() {
    inside("devices::inside_moved");
}

#[test]
#[ignore = "started by a test above"]
fn inside_moved() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.add_bridge(&["vm1"]);
    assert!(world.glue("vport vm1").starts_with("namespace=None "));
    let other = world.other_namespace();
    world.ip(&format!("link set vm1 netns {}", other.id()));
    world.until("the namespace is told", |world| {
        world
            .glue("vport vm1")
            .starts_with("namespace=Some(0) index=Some(")
    });
    assert!(!world.has_device("vm1"));
    assert_eq!(world.ports(), ["br0", "ovs-system", "vm1"], "it is still a port");
    world.vsctl("del-port vm1");
    assert_eq!(world.ports(), ["br0", "ovs-system"]);
    let devices = std::fs::read_to_string(format!("/proc/{}/net/dev", other.id())).unwrap();
    assert!(!devices.contains("vm1"), "gone there as well: {devices}");
    world.check_log();
}

#[test]
fn instances_leave_each_others_devices_alone() {
    inside("devices::inside_instances");
}

#[test]
#[ignore = "started by a test above"]
fn inside_instances() {
    let Some(world) = World::new() else { return };
    for directory in ["a", "b"] {
        std::fs::create_dir(world.path(directory)).unwrap();
    }
    let process = |instance: &str| TapPlaceholders::new(Owner::new(&world.path(instance))).unwrap();
    let mut first = process("a");
    let index = first.create("vm1").unwrap();
    first.create("vm2").unwrap();
    // Its process is being restarted, and nobody has its devices open.
    drop(first);
    let mut other = process("b");
    other.create("vm3").unwrap();
    drop(other);
    let mut other = process("b");
    assert_eq!(other.create("vm1"), Err(Errno::EEXIST), "it is another one's");
    assert_eq!(other.remove_abandoned(), 1, "its own");
    assert!(!world.has_device("vm3"));
    let mut next = process("a");
    assert_eq!(next.create("vm1"), Ok(index), "the same device");
    assert_eq!(next.remove_abandoned(), 1);
    assert!(world.has_device("vm1") && !world.has_device("vm2"));
    drop(next);
    // One of a version that did not name instances is used by those who ask for it, and else let alone.
    let mut ip = std::process::Command::new("ip");
    ip.args(["link", "set", "vm1", "alias", "hyperswitch placeholder"]);
    assert!(ip.status().unwrap().success());
    let mut next = process("a");
    assert_eq!(next.remove_abandoned(), 0);
    assert_eq!(next.create("vm1"), Ok(index));
}

#[test]
fn a_device_that_vanishes_is_made_again() {
    inside("devices::inside_vanishing");
}

#[test]
#[ignore = "started by a test above"]
fn inside_vanishing() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.add_bridge(&["vm1", "vm2"]);
    let number = world.vsctl("get Interface vm1 ofport");
    let other = world.other_namespace();
    world.ip(&format!("link set vm1 netns {}", other.id()));
    world.until("the namespace is told", |world| {
        world.glue("vport vm1").starts_with("namespace=Some(0) ")
    });
    // With its namespace.
    drop(other);
    world.until("it is back", |world| world.has_device("vm1"));
    assert!(world.glue("vport vm1").starts_with("namespace=None "));
    // By an administrator. As a machine is its other end, its link is up.
    world.ip("link del vm1");
    world.until("it is back again", |world| world.has_device("vm1"));
    world.until("its state is told", |world| {
        world.vsctl("get Interface vm1 admin_state link_state error ofport")
            == format!("up\nup\n[]\n{number}")
    });
    // Its name is taken: ovs-vswitchd says so, and has it again when the name is free.
    let other = world.other_namespace();
    world.ip(&format!("link set vm1 netns {}", other.id()));
    world.ip("link add vm1 type veth peer name far1");
    drop(other);
    world.until("the error is told", |world| {
        world.vsctl("get Interface vm1 error").contains("File exists")
    });
    world.ip("link del vm1");
    world.until("it is a port again", |world| {
        world.vsctl("get Interface vm1 error") == "[]"
    });
    assert!(world.has_device("vm1"));
    assert_eq!(world.ports(), ["br0", "ovs-system", "vm1", "vm2"]);
}
