//! P4 programs as stages of ports, of the configuration and by command: shown, moved, replaced, traced,
//! refused.

#![allow(clippy::unwrap_used)]

mod containers;
mod p4_world;

use containers::eventually;
use p4_world::{PORTS, World, program, with};

/// Programs that are stages, in the order in which packets see them, with what says where.
fn stages(world: &World) -> Vec<String> {
    let all = world.instance.verb(&["p4", "stage", "show"]).unwrap_or_default();
    let all = all.as_array().cloned().unwrap_or_default();
    let shown = all.iter().map(|own| {
        let ports: Vec<&str> = own["ports"].as_array().map_or_else(Vec::new, |ports| {
            ports.iter().filter_map(|port| port.as_str()).collect()
        });
        let switch = own["switch"].as_str().unwrap_or("-");
        let [program, state] = ["program", "state"].map(|key| own[key].as_str().unwrap());
        format!("{} {program} {switch} {} {state}", own["at"], ports.join(","))
    });
    shown.collect()
}

fn until(world: &World, wanted: &[&str]) {
    eventually(&format!("{wanted:?}"), || stages(world) == wanted);
}

const RULES: &str = "table_set_default l2_forward forward 1\n\
                     table_add rules rule_deny 0.0.0.0&&&0.0.0.0 0.0.0.0&&&0.0.0.0 6&&&0xff 0&&&0 23&&&0xffff => 1\n";

const STAGE: &str = "entries = [\"rules.txt\"]\nstage = { at = 20, switch = \"lan\", ports = [\"7=a\"] }\n";

fn start() -> World {
    let world = World::start(PORTS);
    world.write("rules.txt", RULES);
    world.write("start.toml", &with("fire", "firewall.json", STAGE));
    world.says(&["reload"]);
    world
}

/// A packet of port `a` to the address of a station that the switch does not know.
fn trace(world: &World, port: &str) -> String {
    let packet = [
        "--dst",
        "02:00:00:00:00:02",
        "--ip",
        "10.0.0.1,10.0.0.2",
        "--proto",
        "tcp",
        "--dport",
        port,
    ];
    world.says(
        &[
            &["trace", "--in-port", "a", "--src", "02:00:00:00:00:01"],
            &packet[..],
        ]
        .concat(),
    )
}

#[test]
fn a_stage_of_the_file_is_in_force_shown_traced_and_outlives_processes() {
    let world = start();
    let in_force = ["20 fire lan 7=a in force"];
    until(&world, &in_force);
    assert!(world.says(&["p4", "show"]).contains("stage 20 of lan 7=a"));
    let shown = world.says(&["config", "show"]);
    assert!(shown.contains("at = 20") && shown.contains("\"7=a\""), "{shown}");
    let all = world.write("all.toml", &shown);
    assert_eq!(world.says(&["apply", "--dry-run", &all]), "nothing to change\n");
    for role in ["control", "data-plane"] {
        world.instance.kill(role);
        until(&world, &in_force);
        assert_eq!(world.says(&["reload"]), "nothing to change\n");
    }
    eventually("a trace", || {
        let said = trace(&world, "80");
        said.contains("program     fire, by its port 7\n") && said.contains("miss")
    });
    let denied = trace(&world, "23");
    assert!(
        denied.contains("rule_deny") && denied.contains("dropped"),
        "{denied}"
    );
    assert!(!denied.contains("miss "), "{denied}");
    world.write("start.toml", PORTS);
    let said = world.says(&["reload"]);
    assert!(said.contains("P4 program fire removed"), "{said}");
    until(&world, &[]);
    assert!(!trace(&world, "23").contains("program"));
}

#[test]
fn stages_are_added_moved_replaced_and_removed_by_command() {
    let world = start();
    for name in ["one", "two"] {
        let file = program("firewall");
        world.says(&["p4", "load", file.to_str().unwrap(), "--name", name]);
    }
    world.says(&["p4", "stage", "add", "one", "--at", "10", "--port", "3=b"]);
    until(&world, &["10 one - 3=b in force", "20 fire lan 7=a in force"]);
    world.says(&["p4", "stage", "move", "one", "30"]);
    until(&world, &["20 fire lan 7=a in force", "30 one - 3=b in force"]);
    world.says(&["p4", "stage", "replace", "one", "two"]);
    until(&world, &["20 fire lan 7=a in force", "30 two - 3=b in force"]);
    // Another version keeps its place, and so does the next control process.
    let file = program("firewall");
    world.says(&["p4", "load", file.to_str().unwrap(), "--name", "two"]);
    world.instance.kill("control");
    until(&world, &["20 fire lan 7=a in force", "30 two - 3=b in force"]);
    world.says(&["p4", "stage", "move", "fire", "5"]);
    let said = world.says(&["reload"]);
    assert!(said.contains("P4 program fire has another stage"), "{said}");
    until(&world, &["20 fire lan 7=a in force", "30 two - 3=b in force"]);
    world.says(&["p4", "stage", "remove", "two"]);
    until(&world, &["20 fire lan 7=a in force"]);
    assert!(
        world.programs().contains(&"two  in force".to_owned()),
        "it stays loaded"
    );
}

#[test]
fn stages_that_cannot_be_are_refused_and_change_nothing() {
    let world = start();
    let file = program("firewall");
    for name in ["one", "two", "three", "four"] {
        world.says(&["p4", "load", file.to_str().unwrap(), "--name", name]);
    }
    let router = program("router");
    world.says(&[
        "p4",
        "load",
        router.to_str().unwrap(),
        "--name",
        "router",
        "--port",
        "2=b",
    ]);
    for name in ["one", "two", "three"] {
        world.says(&["p4", "stage", "add", name, "--switch", "lan"]);
    }
    let before = stages(&world);
    for (arguments, expected) in [
        (&["add", "none", "--switch", "lan"][..], "no P4 switch none"),
        (
            &["add", "four", "--switch", "lan"],
            "would have 5 stages; 4 is the most",
        ),
        (&["add", "four", "--switch", "lxn"], "there is no switch lxn"),
        (&["add", "four"], "--switch"),
        (&["add", "four", "--port", "511=a"], "NUMBER=PORT"),
        (&["add", "four", "--port", "1=x:2"], "a stage has no links"),
        (
            &["add", "four", "--port", "1=x", "--port", "2=x"],
            "has the stage twice",
        ),
        (&["add", "router", "--switch", "lan"], "forwards for no port"),
        (&["move", "four", "3"], "P4 switch four is no stage"),
        (&["move", "one", "65536"], "65535"),
        (&["replace", "four", "one"], "P4 switch four is no stage"),
        (&["replace", "one", "router"], "forwards for no port"),
        (&["remove", "four"], "P4 switch four is no stage"),
    ] {
        world.refuses(&[&["p4", "stage"], arguments].concat(), expected);
    }
    world.refuses(&["p4", "port", "set", "one", "1=a"], "forwards for no port");
    world.refuses(
        &["p4", "link", "add", "router:3", "one:1"],
        "a stage has no links",
    );
    assert_eq!(stages(&world), before);
    // A port beyond the limit comes later.
    for (text, expected) in [
        (
            "ports = [\"1=a\"]\nstage = { ports = [\"2=b\"] }\n",
            "forwards for no port",
        ),
        ("stage = {}\n", "needs a switch or ports"),
        ("stage = { at = 70000, switch = \"lan\" }\n", "70000"),
        ("stage = { switch = \"lxn\" }\n", "there is no switch lxn"),
        ("stage = { colour = 1 }\n", "colour"),
    ] {
        let file = world.write("bad.toml", &with("fire", "firewall.json", text));
        world.refuses(&["apply", &file], expected);
    }
    assert_eq!(stages(&world), before);
}
