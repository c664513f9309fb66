//! The real ovs-vswitchd, unmodified, with the library in front of it and a glue process with a data plane in
//! memory.
//!
//! All of it runs in a network namespace of its own, with a private ovsdb-server. Without root or the
//! programs the test is left out, and says so; with `HYPERSWITCH_OVS=require` it fails then. This executable
//! plays three parts: the test, the test inside the namespace, and the glue process.

#![allow(clippy::unwrap_used)]

mod bridges;
mod client;
mod controller;
mod devices;
mod evasion;
mod forwarding;
mod glue;
mod host;
mod limits;
mod listening;
#[path = "../../../ovs-glue/tests/doubles/memory.rs"]
mod memory;
mod neutron;
mod plane;
mod policies;
mod rates;
mod restore;
#[path = "../../../../product/hyperswitch/tests/schema_check/mod.rs"]
mod schema_check;
mod shares;
mod verbs;
mod world;

use std::process::Command;
use world::{World, missing};

/// Runs a test of this executable in a network namespace of its own.
fn inside(name: &str) {
    inside_namespaces(name, &["--net", "--mount"]);
}

/// Runs a test of this executable in namespaces of these kinds.
fn inside_namespaces(name: &str, kinds: &[&str]) {
    if let Some(missing) = missing() {
        assert!(
            std::env::var("HYPERSWITCH_OVS").as_deref() != Ok("require"),
            "cannot run: {missing}"
        );
        eprintln!("left out: {missing}");
        return;
    }
    let status = Command::new("unshare")
        .args(kinds)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(world::INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{name}: {status}");
}

#[test]
fn ovs_vswitchd_runs_on_the_glue() {
    inside("inside_ports_flows_and_packets");
}

#[test]
fn ovs_vswitchd_makes_do_with_less() {
    inside("inside_less");
}

#[test]
fn ovs_vswitchd_survives_deaths() {
    inside("inside_deaths");
}

#[test]
fn ovs_vswitchd_does_not_wait_for_a_glue_that_hangs() {
    inside("inside_hang");
}

#[test]
#[ignore = "started by a test above"]
fn inside_hang() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.vsctl("add-br br0");
    world.stop_glue();
    // Its threads ask for flows and ports by themselves.
    world.wait_for_output("it hangs");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
}

#[test]
fn the_library_redirects_what_it_should_and_nothing_else() {
    inside("inside_library");
}

#[test]
#[ignore = "started by a test above"]
fn inside_library() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.run_preloaded("library_client");
}

/// A program that uses netlink, with the library in front of it.
#[test]
#[ignore = "started by a test above"]
fn library_client() {
    if std::env::var_os(world::CLIENT).is_some() {
        client::run();
    }
}

/// The glue process.
#[test]
#[ignore = "started by the tests above"]
fn glue_process() {
    let Some(socket) = std::env::var_os(world::GLUE) else {
        return;
    };
    if std::env::var_os(plane::PLANE).is_some() {
        plane::run(socket.as_ref());
    } else {
        glue::run(socket.as_ref());
    }
}

#[test]
#[ignore = "started by a test above"]
fn inside_ports_flows_and_packets() {
    let Some(mut world) = World::new() else { return };
    // ovs-vswitchd starts first, and waits.
    world.vsctl("--no-wait add-br br0");
    world.start_vswitchd();
    world.wait_for_output("waiting for the glue process");
    world.start_glue();
    for port in ["vm1", "vm2"] {
        world.vsctl(&format!(
            "add-port br0 {port} -- set Interface {port} type=internal external_ids:vhost-user=server"
        ));
    }
    ports_are_as_wanted(&world);
    probes_are_answered(&world);
    misses_become_flows(&mut world);
    statistics_arrive(&mut world);
    dumps_are_complete(&mut world);
    meters_and_limits(&world);
    tunnels_are_the_datapaths(&world);
    world.vsctl("del-port vm2");
    assert_eq!(world.ports(), ["br0", "ovs-system", "vm1"]);
    assert!(!world.has_device("vm2"), "its placeholder is gone as well");
    world.vsctl("del-br br0");
    world.until("the datapath is gone", |world| world.ports().is_empty());
    world.check_log();
}

fn ports_are_as_wanted(world: &World) {
    assert_eq!(world.ports(), ["br0", "ovs-system", "vm1", "vm2"]);
    let columns = "admin_state link_state mtu error mac_in_use";
    for port in ["vm1", "vm2"] {
        let mac = ovs_glue::placeholder::address(port)
            .map(|byte| format!("{byte:02x}"))
            .join(":");
        let wanted = format!("up\nup\n1500\n[]\n\"{mac}\"");
        world.until(&format!("{port} is {wanted}"), |world| {
            world.vsctl(&format!("get Interface {port} {columns}")) == wanted
        });
    }
    let shown = world.appctl("dpctl/show");
    for line in [
        "port 0: ovs-system (internal)",
        "port 2: vm1 (internal)",
        "port 3: vm2 (internal)",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
}

/// What the glue's capabilities say is what ovs-vswitchd found out.
fn probes_are_answered(world: &World) {
    let features = world.appctl("dpif/show-dp-features br0");
    for line in [
        "Masked set action: Yes",
        "Ufid: Yes",
        "Clone action: Yes",
        "Max VLAN headers: 2",
        "Max MPLS depth: 3",
        "Recirc: Yes",
        "CT state: Yes",
        "CT orig tuple for IPv6: Yes",
        "Check pkt length action: Yes",
        "Conntrack timeout policy: Yes",
        "Max dp_hash algorithm: 0",
        "IPv6 ND Extension: No",
    ] {
        assert!(features.contains(line), "{line} in {features}");
    }
}

fn misses_become_flows(world: &mut World) {
    misses_become_flows_of(world, "[1, 3]");
}

/// A broadcast goes to the bridge's own port and other machines; the packet is known by its number.
fn misses_become_flows_of(world: &mut World, ports: &str) {
    let before = world.sent();
    world.glue("inject vm1 1 1");
    world.until("the packet was sent on", |world| world.sent() == before + 1);
    let flows = world.appctl("dpctl/dump-flows");
    assert!(
        flows.contains("in_port(2)") && flows.contains("src=02:00:00:00:00:01"),
        "{flows}"
    );
    let sent = world.glue("last");
    assert_eq!(sent, format!("outputs={ports} serial=Some(1)"));
}

fn statistics_arrive(world: &mut World) {
    world.vsctl("-- set Bridge br0 fail_mode=standalone");
    world.ofctl("add-flow br0 priority=100,dl_src=02:00:00:00:00:07,actions=output:vm2");
    let before = world.sent();
    world.glue("inject vm1 7 1");
    world.until("the packet was sent on", |world| world.sent() == before + 1);
    world.glue("hit 9 900");
    // The revalidators read what the flow has seen with its removal.
    world.appctl("revalidator/purge");
    let flows = world.ofctl("dump-flows br0");
    assert!(
        flows.contains("n_packets=10, n_bytes="),
        "1 miss and 9 packets: {flows}"
    );
}

fn dumps_are_complete(world: &mut World) {
    let count = 500;
    let before = world.sent();
    world.glue(&format!("inject vm1 1000 {count}"));
    world.until("all were sent on", |world| world.sent() == before + count);
    let dumped = world.appctl("dpctl/dump-flows");
    let found = (1000..1000 + count).filter(|number| {
        let [.., high, low] = (*number as u32).to_be_bytes();
        dumped.contains(&format!("src=02:00:00:00:{high:02x}:{low:02x}"))
    });
    assert_eq!(found.count(), count, "flows in the dump");
}

fn meters_and_limits(world: &World) {
    world.ofctl("add-meter br0 meter=1,kbps,band=type=drop,rate=1000");
    assert!(
        world
            .ofctl("meter-features br0")
            .contains("max_meter:4096 max_bands:1")
    );
    assert!(world.ofctl("meter-stats br0").contains("meter:1"));
    world.appctl("dpctl/ct-set-limits default=10 zone=7,limit=3");
    let limits = world.appctl("dpctl/ct-get-limits zone=7,8");
    assert!(
        limits.contains("default limit=10") && limits.contains("zone=7,limit=3,count=0"),
        "{limits}"
    );
    // Connections of the host are out of reach; there are none of ours.
    assert_eq!(world.appctl("dpctl/dump-conntrack"), "");
    world.appctl("dpctl/flush-conntrack");
}

#[test]
#[ignore = "started by a test above"]
fn inside_less() {
    let Some(mut world) = World::new() else { return };
    world.start_glue_with(Some(glue::FIRST));
    world.start_vswitchd();
    world.add_bridge(&["vm1"]);
    let features = world.appctl("dpif/show-dp-features br0");
    for line in [
        "Masked set action: Yes",
        "Ufid: Yes",
        "Clone action: Yes",
        "Max VLAN headers: 2",
        "Max MPLS depth: 0",
        "Recirc: No",
        "CT state: No",
        "CT orig tuple: No",
        "Check pkt length action: Yes",
    ] {
        assert!(features.contains(line), "{line} in {features}");
    }
    assert!(world.ofctl("meter-features br0").contains("max_meter:0"));
    misses_become_flows_of(&mut world, "[1]");
    world.check_log();
}

/// No device of the kernel is made for a tunnel.
fn tunnels_are_the_datapaths(world: &World) {
    for kind in ["vxlan", "geneve"] {
        world.vsctl(&format!(
            "add-port br0 {kind}0 -- set Interface {kind}0 type={kind} options:remote_ip=192.0.2.1"
        ));
    }
    for port in ["vxlan_sys_4789", "genev_sys_6081"] {
        assert!(
            world.ports().iter().any(|there| there == port),
            "{port} in {:?}",
            world.ports()
        );
        assert!(!world.has_device(port));
    }
    world.vsctl("del-port vxlan0 -- del-port geneve0");
}

#[test]
#[ignore = "started by a test above"]
fn inside_deaths() {
    let Some(mut world) = World::new() else { return };
    world.start_glue();
    world.start_vswitchd();
    world.add_bridge(&["vm1"]);
    let number = world.vsctl("get Interface vm1 ofport ifindex");

    // ovs-vswitchd dies: ports stay, and it finds them again.
    world.kill_vswitchd();
    assert_eq!(world.ports(), ["br0", "ovs-system", "vm1"]);
    assert!(world.has_device("vm1"));
    world.start_vswitchd();
    world.wait_until_configured();
    assert_eq!(world.vsctl("get Interface vm1 ofport ifindex"), number);
    let before = world.sent();
    world.glue("inject vm1 1 1");
    world.until("the packet was sent on", |world| world.sent() == before + 1);

    // The glue dies: ovs-vswitchd ends by itself, to be started again.
    world.kill_glue();
    world.wait_for_output("the glue process is gone");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    assert!(world.has_device("vm1"), "placeholders outlive the glue");
    world.start_vswitchd();
    world.wait_for_output("waiting for the glue process");
    world.start_glue();
    world.wait_until_configured();
    assert_eq!(
        world.vsctl("get Interface vm1 ofport ifindex"),
        number,
        "the same device and port"
    );
    world.check_log();
}

#[test]
fn packets_go_as_ovs_vswitchd_says() {
    inside("inside_forwarding");
}

#[test]
#[ignore = "started by a test above"]
fn inside_forwarding() {
    if let Some(mut world) = World::new() {
        forwarding::normal_forwards(&mut world);
    }
}

#[test]
fn rules_of_ovs_vswitchd_are_not_evaded() {
    inside("inside_evasion");
}

#[test]
#[ignore = "started by a test above"]
fn inside_evasion() {
    if let Some(mut world) = World::new() {
        evasion::rules_are_not_evaded(&mut world);
    }
}

#[test]
fn forwarding_outlives_ovs_vswitchd_and_the_glue() {
    inside("inside_forwarding_deaths");
}

#[test]
#[ignore = "started by a test above"]
fn inside_forwarding_deaths() {
    if let Some(mut world) = World::new() {
        forwarding::forwarding_outlives(&mut world);
    }
}

#[test]
fn meters_and_ports_hold_through_deaths() {
    inside("inside_meters");
}

#[test]
#[ignore = "started by a test above"]
fn inside_meters() {
    if let Some(mut world) = World::new() {
        forwarding::meters_and_ports(&mut world);
    }
}

#[test]
fn bonds_mirrors_and_groups_are_as_ovs_vswitchd_says() {
    inside("inside_bridges");
}

#[test]
#[ignore = "started by a test above"]
fn inside_bridges() {
    if let Some(mut world) = World::new() {
        bridges::bonds_mirrors_and_groups(&mut world);
    }
}

#[test]
fn a_controller_decides() {
    inside("inside_controller");
}

#[test]
#[ignore = "started by a test above"]
fn inside_controller() {
    if let Some(mut world) = World::new() {
        controller::a_controller_decides(&mut world);
    }
}

#[test]
fn ports_have_the_policies_that_the_database_names() {
    inside_with_product("inside_policies");
}

#[test]
#[ignore = "started by a test above"]
fn inside_policies() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        policies::ports_have_the_policies_that_the_database_names(&mut world, program);
    }
}

#[test]
fn ports_are_limited_as_the_database_says() {
    inside_with_product("inside_limits");
}

#[test]
#[ignore = "started by a test above"]
fn inside_limits() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        limits::ports_are_limited(&mut world, program);
    }
}

/// The executable as cargo has built it beside this one.
fn product() -> Option<std::path::PathBuf> {
    testbed::build_dir::sibling("hyperswitch")
}

/// Whether the product is there to be tried.
fn product_is_built() -> bool {
    let is_built = product().is_some();
    if !is_built {
        assert!(
            std::env::var("HYPERSWITCH_OVS").as_deref() != Ok("require"),
            "hyperswitch is not built"
        );
        eprintln!("left out: hyperswitch is not built");
    }
    is_built
}

#[test]
fn the_product_forwards_as_ovs_vswitchd_says() {
    inside_with_product("inside_product");
}

#[test]
fn flows_outlive_the_data_plane() {
    inside_with_product("inside_restore");
}

#[test]
#[ignore = "started by a test above"]
fn inside_restore() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        restore::flows_outlive_the_data_plane(&mut world, program);
    }
}

/// Runs a test as [`inside`] does, if the product is built.
fn inside_with_product(name: &str) {
    if product_is_built() {
        inside(name);
    }
}

#[test]
fn the_product_connects_to_vmms_that_listen() {
    inside_with_product("inside_listening");
}

#[test]
#[ignore = "started by a test above"]
fn inside_listening() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        listening::vmms_that_listen(&mut world, program);
    }
}

#[test]
fn types_of_neutron_are_other_names_of_ours() {
    inside_with_product("inside_neutron");
}

#[test]
#[ignore = "started by a test above"]
fn inside_neutron() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        neutron::types_of_neutron_are_ours(&mut world, program);
    }
}

#[test]
fn the_product_starts_ovs_vswitchd_by_itself() {
    if product_is_built() {
        // What it leaves running ends with the namespace.
        let kinds = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ];
        inside_namespaces("inside_verbs", &kinds);
    }
}

#[test]
#[ignore = "started by a test above"]
fn inside_verbs() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        verbs::all(&mut world, program);
    }
}

#[test]
#[ignore = "started by a test above"]
fn inside_product() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        forwarding::product_forwards(&mut world, program);
    }
}

#[test]
fn frames_of_many_segments_leave_others_their_share_of_ovs_vswitchd() {
    inside_with_product("inside_large_frames");
}

#[test]
#[ignore = "started by a test above"]
fn inside_large_frames() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        shares::large_frames(&mut world, program);
    }
}

#[test]
fn ever_new_flows_leave_others_their_share_of_ovs_vswitchd() {
    inside_with_product("inside_small_frames");
}

#[test]
#[ignore = "started by a test above"]
fn inside_small_frames() {
    if let (Some(mut world), Some(program)) = (World::new(), product()) {
        shares::small_frames(&mut world, program);
    }
}

#[test]
fn a_refused_tunnel_says_why() {
    inside_with_product("inside_refused_tunnel");
}

#[test]
#[ignore = "started by a test above"]
fn inside_refused_tunnel() {
    let (Some(mut world), Some(program)) = (World::new(), product()) else {
        return;
    };
    world.start_product(program);
    world.start_vswitchd();
    world.vsctl("add-br br0");
    world.vsctl("--no-wait add-port br0 vx0 -- set Interface vx0 type=vxlan options:remote_ip=192.0.2.1");
    // As docs/openvswitch.md says.
    world.until("ovs-vswitchd says why", |world| {
        let error = world.vsctl("--no-wait get Interface vx0 error");
        error.contains("could not add network device vx0 to ofproto (Protocol not supported)")
    });
    world.until("our log says which port it was", |world| {
        let output = std::fs::read_to_string(world.path("product.output")).unwrap();
        output.contains("port 'vxlan_sys_4789' is refused: it is a tunnel")
    });
}
