//! The command line, run as users run it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn hyperswitch(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help_names_every_verb_and_no_internals() {
    let output = hyperswitch(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    let commands = help
        .split("Commands:")
        .nth(1)
        .unwrap()
        .split("Options:")
        .next()
        .unwrap();
    let names: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let expected = [
        "run", "status", "report", "switch", "port", "mac", "flow", "events", "stats", "top", "trace",
        "capture", "policy", "check", "config", "apply", "confirm", "reload", "version", "p4", "ovs",
        "schema", "help",
    ];
    assert_eq!(names, expected);
    assert!(help.contains("[default: /run/hyperswitch]"), "{help}");
}

#[test]
fn every_verb_has_help_of_its_own() {
    let verbs = "run|status|report|switch add|switch del|switch list|port add|port del|port set|port show|port list|\
        mac list|mac flush|flow list|flow flush|events|stats|stats placement|top|trace|capture|policy check|policy list|policy show|policy log|policy explain|policy diff|check|config show|apply|confirm|reload|version|schema|p4 check|p4 graph|p4 run|\
        ovs start|ovs stop|ovs status|ovs plug|ovs trace";
    for verb in verbs.split('|') {
        let mut arguments: Vec<&str> = verb.split(' ').collect();
        arguments.push("--help");
        let output = hyperswitch(&arguments);
        assert!(output.status.success(), "{verb}");
        let help = text(&output.stdout);
        assert!(help.contains(&format!("Usage: hyperswitch {verb}")), "{help}");
        assert!(help.contains("--json") && help.contains("--run-dir"), "{help}");
    }
}

#[test]
fn wrong_usage_says_what_is_allowed_and_exits_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["frobnicate"], "unrecognized subcommand"),
        (
            &["port", "add", "sw0", "vm1", "--access", "4095"],
            "a VLAN identifier, 1 to 4094",
        ),
        (&["port", "add", "sw0", "vm1", "--mtu", "67"], "68 to 65535"),
        (&["port", "add", "sw0", "../vm1"], "a name: 1 to 63"),
        (
            &["port", "add", "sw0", "vm1", "--access", "1", "--trunk", "2"],
            "cannot be used with",
        ),
        (&["port", "add", "sw0", "vm1", "--native", "2"], "--trunk"),
        (&["port", "add", "sw0", "vm1", "--trunk", "2,x"], "1 to 4094"),
        (
            &["port", "add", "sw0", "vm1", "--type", "bond"],
            "one of vhost-user tap",
        ),
        (
            &["switch", "add", "sw0", "--type", "public"],
            "one of external internal private",
        ),
        (
            &["trace", "--in-port", "vm1", "--src", "52:54:00:00:00:01"],
            "--dst",
        ),
        (&["trace", "--in-port", "vm1", "--pcap", "x", "--index", "0"], "0"),
        (
            &["status", "--wait=dead"],
            "[possible values: well, degraded, down]",
        ),
        (&["report"], "--output"),
        (&["report", "x", "--output", "y"], "cannot be used with"),
        (&["capture", "vm1"], "--write"),
        (&["apply", "x.toml", "--confirm", "0"], "1..=86400"),
        (
            &["apply", "x.toml", "--confirm", "9", "--dry-run"],
            "cannot be used with",
        ),
        (&["ovs", "plug", "br0", "-vm1"], "unexpected argument"),
        (&["ovs", "plug", "br0", "sixteen-bytes-xx"], "1 to 15"),
        (
            &["capture", "vm1", "-w", "x", "--snap-length", "70000"],
            "14..=65553",
        ),
        (&["stats", "--watch=0"], "0.1..=86400"),
        (&["stats", "--top", "3"], "--watch"),
        (&["top", "--interval", "0"], "0.1..=86400"),
        (&["top", "--count", "0"], "1.."),
        (&["stats", "vm1", "placement"], "cannot be used with"),
    ];
    for (arguments, expected) in cases {
        let output = hyperswitch(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
        let output = hyperswitch(&[&["--json"], *arguments].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), error));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(told["error"].as_str().unwrap().contains(expected), "{told}");
        assert_eq!(told["code"], "usage");
    }
}

#[test]
fn without_an_instance_verbs_fail_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().to_str().unwrap();
    for verb in ["status", "reload", "stats"] {
        let output = hyperswitch(&["--run-dir", run_dir, verb]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(
            error.contains(run_dir) && error.contains("is it running"),
            "{error}"
        );
    }
    let output = hyperswitch(&["version", "--json", "--run-dir", run_dir]);
    assert!(
        output.status.success(),
        "the version of the command itself is known"
    );
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        version,
        serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "schema": 1, "running": null })
    );
}

#[test]
fn the_children_are_not_for_users() {
    for role in ["data-plane", "driver", "control", "ovs-glue"] {
        let output = hyperswitch(&[role]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("started by `hyperswitch run`"),
            "{role}"
        );
    }
}
