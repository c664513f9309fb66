//! Guests that talk through a P4 program: a router between two networks, loaded while they are there.

use crate::rig::{boot, does_not_reach, finish, reaches, route, routed, transfers};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::switch::Role;
use testbed::{Endpoint, GuestOptions, Lab, Namespace, Switch};

/// What BMv2's command line is told about two networks, 10.1/16 at port 1 and 10.2/16 at port 2.
const COMMANDS: &str = "
table_add router_mac take 1 02:00:00:00:00:f1 =>
table_add router_mac take 2 02:00:00:00:00:f2 =>
table_add routes via 10.1.0.0/16 => 1
table_add routes via 10.2.0.0/16 => 2
table_add next_hops send 1 => 1 02:00:00:00:01:01
table_add next_hops send 2 => 2 02:00:00:00:01:02
table_add port_mac leave_as 1 => 02:00:00:00:00:f1
table_add port_mac leave_as 2 => 02:00:00:00:00:f2
";

const ONE: &str = "10.1.0.1";
const OTHER: &str = "10.2.0.1";

/// A program of the project.
fn program(name: &str) -> PathBuf {
    let programs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    programs.join(name).join(format!("{name}.json"))
}

/// The project's router.
fn router() -> PathBuf {
    program("router")
}

/// Loads the router between ports `a` and `b`.
fn load(switch: &Switch) -> Result<()> {
    let commands = switch.run_dir().join("commands.txt");
    std::fs::write(&commands, COMMANDS)?;
    let (program, commands) = (router(), commands.to_string_lossy().into_owned());
    let program = program.to_str().context("a path in UTF-8")?;
    let ports = ["--port", "1=a", "--port", "2=b"];
    let load = ["p4", "load", program, "--entries", &commands];
    switch.verb(&[&load[..], &ports].concat()).map(drop)
}

/// Entries of the loaded program are taken away and added again, all at once or none.
fn entries_change(switch: &Switch, one: &Namespace) -> Result<()> {
    let entry = |verb: &str, lines: &[&str]| switch.verb(&[&["p4", "entry", verb, "router"], lines].concat());
    let routes = || entry("list", &["routes"]);
    ensure!(routes()?.contains("0x0a020000/16 => "), "{}", routes()?);
    entry("delete", &["routes 10.2.0.0/16", "next_hops 1"])?;
    does_not_reach(one, OTHER)?;
    ensure!(!routes()?.contains("0x0a020000/16"), "{}", routes()?);
    // The second one is not there: the first one stays as it is.
    ensure!(entry("delete", &["routes 10.1.0.0/16", "next_hops 1"]).is_err());
    ensure!(routes()?.contains("0x0a010000/16"), "{}", routes()?);
    ensure!(entry("add", &["routes via 10.1.0.0/16 => 1"]).is_err(), "twice");
    entry(
        "add",
        &[
            "routes via 10.2.0.0/16 => 3",
            "next_hops send 1 => 1 02:00:00:00:01:01",
        ],
    )?;
    does_not_reach(one, OTHER)?;
    entry("set", &["routes via 10.2.0.0/16 => 2"])?;
    reaches(one, OTHER)
}

#[test]
fn containers_talk_through_a_router_that_outlives_control_and_returns_to_a_new_data_plane() -> Result<()> {
    let Some(_lab) = Lab::enter("containers_talk_through_a_router") else {
        return Ok(());
    };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let (a, b) = (routed("a", &one, 1), routed("b", &other, 2));
    let switch = Switch::start(&format!("[[switch]]\nname = \"lan\"\n{a}{b}"))?;
    for (name, container, number) in [("a", &one, 1), ("b", &other, 2)] {
        switch.wait_port(name, "running")?;
        route(container, "eth0", number)?;
    }
    does_not_reach(&one, OTHER)?;
    load(&switch)?;
    reaches(&one, OTHER)?;
    transfers(&one, &other, OTHER, 8)?;
    transfers(&other, &one, ONE, 8)?;
    let shown = switch.verb(&["p4", "show"])?;
    ensure!(shown.contains("1=a 2=b") && shown.contains("in force"), "{shown}");

    entries_change(&switch, &one)?;
    let old = switch.kill(Role::Control)?;
    reaches(&one, OTHER)?;
    switch.wait_replaced(Role::Control, old)?;
    reaches(&one, OTHER)?;
    let old = switch.kill(Role::DataPlane)?;
    switch.wait_replaced(Role::DataPlane, old)?;
    for name in ["a", "b"] {
        switch.wait_port(name, "running")?;
    }
    reachable(&one, OTHER, Duration::from_secs(20))?;
    transfers(&one, &other, OTHER, 4)?;

    // Freed, the ports are those of their switch, which does not route.
    switch.verb(&["p4", "unload", "router"])?;
    does_not_reach(&one, OTHER)?;
    finish(switch, []).map(drop)
}

/// The project's firewall denies what the first of these says.
const RULES: &str = "
table_set_default l2_forward forward 1
table_add rules rule_deny 0.0.0.0&&&0.0.0.0 0.0.0.0&&&0.0.0.0 1&&&0xff 0&&&0 0&&&0 => 1
";

#[test]
fn containers_talk_past_a_stage_that_comes_and_goes() -> Result<()> {
    let Some(_lab) = Lab::enter("containers_talk_past_a_stage_that_comes_and_goes") else {
        return Ok(());
    };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let (a, b) = (routed("a", &one, 1), routed("b", &other, 2));
    let switch = Switch::start(&format!("[[switch]]\nname = \"lan\"\n{a}{b}"))?;
    let router = [("a", &one), ("b", &other)];
    for ((name, container), number) in router.into_iter().zip(1..) {
        switch.wait_port(name, "running")?;
        route(container, "eth0", number)?;
    }
    load(&switch)?;
    reaches(&one, OTHER)?;
    let rules = switch.run_dir().join("rules.txt");
    std::fs::write(&rules, RULES)?;
    let firewall = program("firewall");
    let firewall = firewall.to_str().context("a path in UTF-8")?;
    let rules = rules.to_string_lossy().into_owned();
    switch.verb(&["p4", "load", firewall, "--entries", &rules])?;
    for _ in 0..3 {
        switch.verb(&["p4", "stage", "add", "firewall", "--switch", "lan"])?;
        does_not_reach(&one, OTHER)?;
        transfers(&one, &other, OTHER, 8)?;
        switch.verb(&["p4", "stage", "remove", "firewall"])?;
        reaches(&one, OTHER)?;
    }
    switch.verb(&["p4", "stage", "add", "firewall", "--port", "1=a"])?;
    let old = switch.kill(Role::DataPlane)?;
    switch.wait_replaced(Role::DataPlane, old)?;
    for name in ["a", "b"] {
        switch.wait_port(name, "running")?;
    }
    switch.verb(&[
        "p4",
        "entry",
        "delete",
        "firewall",
        "rules 0.0.0.0&&&0.0.0.0 0.0.0.0&&&0.0.0.0 1&&&0xff 0&&&0 0&&&0 => 1",
    ])?;
    reachable(&one, OTHER, Duration::from_secs(20))?;
    transfers(&other, &one, ONE, 4)?;
    finish(switch, []).map(drop)
}

/// What an operator's program is told of a router behind its ports 3 and 4.
const STATIONS: &str = "
table_set_default smac NoAction
table_add dmac forward 02:00:00:00:00:f1 => 3
table_add dmac forward 02:00:00:00:00:f2 => 4
table_add dmac forward 02:00:00:00:01:01 => 1
table_add dmac forward 02:00:00:00:01:02 => 2
";

/// As `docs/p4.md` has it.
#[test]
fn containers_talk_through_a_program_around_a_router() -> Result<()> {
    let Some(_lab) = Lab::enter("containers_talk_through_a_program_around_a_router") else {
        return Ok(());
    };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let (a, b) = (routed("a", &one, 1), routed("b", &other, 2));
    let switch = Switch::start(&format!("[[switch]]\nname = \"lan\"\n{a}{b}"))?;
    for (name, container, number) in [("a", &one, 1), ("b", &other, 2)] {
        switch.wait_port(name, "running")?;
        route(container, "eth0", number)?;
    }
    let write = |name: &str, text: &str| -> Result<String> {
        let path = switch.run_dir().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let (commands, stations) = (write("commands.txt", COMMANDS)?, write("stations.txt", STATIONS)?);
    let (router, operator) = (router(), router().with_file_name("../l2_switch/l2_switch.json"));
    let [router, operator] = [&router, &operator].map(|path| path.to_str().unwrap_or_default());
    switch.verb(&["p4", "load", router, "--name", "tenant", "--entries", &commands])?;
    let load = [
        "p4",
        "load",
        operator,
        "--name",
        "operator",
        "--entries",
        &stations,
    ];
    let ports = ["1=a", "2=b", "3=tenant:1", "4=tenant:2"].map(|port| ["--port", port]);
    switch.verb(&[&load[..], ports.as_flattened()].concat())?;
    reaches(&one, OTHER)?;
    transfers(&one, &other, OTHER, 8)?;
    transfers(&other, &one, ONE, 8)?;
    switch.verb(&["p4", "link", "remove", "operator:4"])?;
    does_not_reach(&one, OTHER)?;
    switch.verb(&["p4", "link", "add", "tenant:2", "operator:4"])?;
    reaches(&one, OTHER)?;
    let old = switch.kill(Role::DataPlane)?;
    switch.wait_replaced(Role::DataPlane, old)?;
    for name in ["a", "b"] {
        switch.wait_port(name, "running")?;
    }
    reachable(&one, OTHER, Duration::from_secs(20))?;
    finish(switch, []).map(drop)
}

#[test]
fn virtual_machines_talk_through_a_router_with_open_checksums_and_large_frames() -> Result<()> {
    let Some(_lab) = Lab::enter("virtual_machines_talk_through_a_router") else {
        return Ok(());
    };
    let switch = Switch::start(
        "[[switch]]\nname = \"lan\"\n\
         [[switch.port]]\nname = \"a\"\nmac = \"02:00:00:00:01:01\"\n\
         [[switch.port]]\nname = \"b\"\nmac = \"02:00:00:00:01:02\"\n",
    )?;
    let options = [("a", 1), ("b", 2)].map(|(name, number)| {
        GuestOptions::new(name)
            .vhost_user(switch.socket(name))
            .address(&format!("10.{number}.0.1/16"))
    });
    let [one, other] = boot(options)?;
    for (guest, number) in [(&one, 1u8), (&other, 2)] {
        guest.must(&format!("ip link set eth0 address 02:00:00:00:01:0{number}"))?;
        route(guest, "eth0", number)?;
    }
    load(&switch)?;
    reaches(&one, OTHER)?;
    transfers(&one, &other, OTHER, 8)?;
    transfers(&other, &one, ONE, 8)?;
    let (a, b) = (switch.counters("a")?, switch.counters("b")?);
    ensure!(a.received_bytes / a.received > 1500, "no large frames: {a:?}");
    ensure!(b.segments == 0 && a.segments == 0, "cut: {a:?} {b:?}");
    finish(switch, [one, other]).map(drop)
}
