//! What a running switch prints with `--json` is what `docs/schema.json` says, and so are errors.

#![allow(clippy::unwrap_used)]

mod containers;
mod schema_check;

use containers::{Instance, Namespace, eventually};
use schema_check::{check, check_output};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const CONFIG: &str = r#"
[[set]]
name = "office"
addresses = ["10.0.0.0/8"]

[[acl]]
name = "web"
default = "drop"
rule = [
  { action = "allow", protocol = "tcp", destination-port = "80-81", source = "office", log = true },
  { action = "reject", protocol = 6, tcp-flags = "syn,!ack", trial = true },
  { action = "allow", protocol = "icmp", log = true },
]

[[mirror]]
name = "ids"
sources = ["vm1"]
destination = "vm2"

[[switch]]
name = "lan"
type = "internal"

[[switch.port]]
name = "vm1"
vlan = { trunk = [10, "20-29"], native = 10 }
storm-control = { broadcast = 10 }
dscp = 46
mac = "52:54:00:00:00:01"
addresses = ["10.0.0.1/24"]
guards = ["spoof", "dhcp"]
static-macs = ["52:54:00:00:00:07"]
max-rate-from = "10M"

[[switch.port]]
name = "vm2"
vlan = { access = 10 }
max-rate-to = "20M"
max-burst = "64k"
"#;

fn schema() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .arg("schema")
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn outputs_of_a_running_switch_are_as_the_schema_says() {
    let directory = tempfile::tempdir().unwrap();
    let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
    fs::write(&file, CONFIG).unwrap();
    let (namespace, schema) = (Namespace::new("schema"), schema());
    let instance = Instance::start(&run_dir, &file);
    let said = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let said = instance.verb(&arguments);
        said.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    };
    eventually("lists are in force", || instance.is_in_force());
    let tap = format!(
        "port add lan web --type tap --netns {} --access 10 --acl-to web",
        namespace.0
    );
    let path = file.to_str().unwrap();
    let cases = [
        (tap.as_str(), "port add"),
        ("port set web --mtu 1400", "port set"),
        ("status", "status"),
        ("status --check", "status --check"),
        ("switch list", "switch list"),
        ("port list", "port list"),
        ("port show vm1", "port show"),
        ("mac list", "mac list"),
        ("mac flush", "mac flush"),
        ("flow list", "flow list"),
        ("flow flush", "flow flush"),
        ("events", "events"),
        ("stats", "stats"),
        ("stats placement", "stats placement"),
        (
            "trace --in-port web --src 52:54:00:00:00:09 --dst ff:ff:ff:ff:ff:ff",
            "trace",
        ),
        ("policy list", "policy list"),
        ("policy show vm1", "policy show"),
        ("policy log", "policy log"),
        (&format!("policy check {path}"), "policy check"),
        (&format!("policy diff {path}"), "policy diff"),
        (
            "policy explain --in-port vm1 --to web --ip 10.0.0.1,10.0.0.2 --src 52:54:00:00:00:01",
            "policy explain",
        ),
        (&format!("check {path}"), "check"),
        ("config show", "config show"),
        ("reload --dry-run", "reload"),
        ("reload", "reload"),
        ("version", "version"),
        ("port del web", "port del"),
    ];
    for (arguments, verb) in cases {
        if verb == "status --check" {
            eventually("it is well", || instance.verb(&["status", "--check"]).is_ok());
        }
        let fault = check_output(&schema, verb, &said(arguments));
        assert_eq!(fault, Ok(()), "{arguments}");
    }
}

/// A file of the project's P4 programs.
fn program(name: &str, file: &str) -> String {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    let path = programs.join(name).join(file);
    path.to_str().unwrap().to_owned()
}

#[test]
fn outputs_of_p4_verbs_are_as_the_schema_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (file, out, exported) = (path("x.toml"), path("out"), path("x.p4x"));
    fs::write(
        &file,
        "[[switch]]\nname = \"lan\"\n[[switch.port]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n",
    )
    .unwrap();
    let schema = schema();
    let instance = Instance::start(&directory.path().join("run"), file.as_ref());
    eventually("it answers", || {
        let status = instance.verb(&["status"]).unwrap_or_default();
        status["data-plane"]["workers"].is_u64()
    });
    let json = |name: &str| program(name, &format!("{name}.json"));
    let (router, limiter, firewall) = (json("router"), json("rate_limiter"), json("stateful_firewall"));
    let [counter, meter] = ["counter_arrays", "meter_arrays"].map(|list| first_of(&limiter, list));
    let register = first_of(&firewall, "register_arrays");
    let script = program("router", "test.stf");
    let cases = [
        (format!("p4 check {router}"), "p4 check"),
        (
            format!("p4 run {router} --entries {script} --out {out} --trace"),
            "p4 run",
        ),
        (format!("p4 load {router} --name r --port 1=a"), "p4 load"),
        (
            "p4 entry add r|routes via 10.2.0.0/16 => 2".into(),
            "p4 entry add",
        ),
        (
            "p4 entry set r|routes via 10.2.0.0/16 => 1".into(),
            "p4 entry set",
        ),
        ("p4 entry list r".into(), "p4 entry list"),
        ("p4 show".into(), "p4 show"),
        ("p4 entry delete r|routes 10.2.0.0/16".into(), "p4 entry delete"),
        (format!("p4 load {limiter} --name r --discard"), "p4 load"),
        (format!("p4 counter set r {counter} 0 5 500"), "p4 counter set"),
        ("p4 counter list r".into(), "p4 counter list"),
        (
            format!("p4 meter set r {meter} all 1000:10 2000:20"),
            "p4 meter set",
        ),
        ("p4 meter list r".into(), "p4 meter list"),
        ("p4 rollback r".into(), "p4 rollback"),
        (format!("p4 load {firewall} --name f"), "p4 load"),
        (format!("p4 register set f {register} 3 1"), "p4 register set"),
        ("p4 register list f".into(), "p4 register list"),
        (format!("p4 export f {exported}"), "p4 export"),
        ("p4 unload f".into(), "p4 unload"),
        (format!("p4 import {exported} --name g"), "p4 import"),
    ];
    for (arguments, verb) in cases {
        let (words, entry) = arguments
            .split_once('|')
            .map_or((&*arguments, None), |(words, entry)| (words, Some(entry)));
        let arguments: Vec<&str> = words.split(' ').chain(entry).collect();
        let said = instance
            .verb(&arguments)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_ne!(said, json!([]), "{arguments:?}: nothing to compare");
        assert_eq!(check_output(&schema, verb, &said), Ok(()), "{arguments:?}");
    }
}

/// The first element of a program's list that belongs to no table.
fn first_of(file: &str, list: &str) -> String {
    let program: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let all = program[list].as_array().unwrap();
    let own = all.iter().find(|one| one["is_direct"] != true).unwrap();
    own["name"].as_str().unwrap().to_owned()
}

fn failed(run_dir: &Path, arguments: &str) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(["--json", "--run-dir"])
        .arg(run_dir)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap(),
    )
}

#[test]
fn errors_have_a_text_a_code_and_a_place() {
    let directory = tempfile::tempdir().unwrap();
    let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
    fs::write(&file, CONFIG).unwrap();
    let bad = directory.path().join("bad.toml");
    fs::write(&bad, "[[switch]]\nname = \"lan\"\nmtu = 1\n").unwrap();
    let (bad, schema) = (bad.to_str().unwrap(), schema());
    let test = |arguments: &str, exit: i32, code: &str, place: Value| {
        let (status, said) = failed(&run_dir, arguments);
        let fault = check(&schema, &schema["outputs"]["error"], &said, "");
        assert_eq!((status, fault), (Some(exit), Ok(())), "{arguments}: {said}");
        assert_eq!(
            (said["code"].as_str(), &said["place"]),
            (Some(code), &place),
            "{said}"
        );
    };
    test("port list", 1, "unreachable", Value::Null);
    test("port frobnicate", 2, "usage", Value::Null);
    let place = json!({ "file": bad, "line": 3, "column": 7 });
    test(&format!("check {bad}"), 2, "configuration", place.clone());
    test(&format!("policy check {bad}"), 1, "configuration", place.clone());
    let instance = Instance::start(&run_dir, &file);
    eventually("it answers", || instance.verb(&["status"]).is_ok());
    test("port show vm9", 1, "not-found", json!({ "port": "vm9" }));
    test("mac list --switch x", 1, "not-found", json!({ "switch": "x" }));
    test("port del vm1", 1, "of-file", json!({ "port": "vm1" }));
    test(
        "port add lan vm1 --exists-ok --mtu 99",
        1,
        "conflict",
        json!({ "port": "vm1" }),
    );
    test(&format!("apply {bad}"), 1, "configuration", place);
}

#[test]
fn what_is_not_as_a_schema_says_is_found() {
    let schema = json!({
        "part": { "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": ["null", "string"] } },
            "required": ["a"] },
        "whole": { "anyOf": [{ "$ref": "#/part" }, { "const": 7 }] },
    });
    let check = |value: Value| check(&schema, &schema["whole"], &value, "");
    for good in [json!(7), json!({ "a": 1 }), json!({ "a": 1, "b": null })] {
        assert_eq!(check(good), Ok(()));
    }
    for bad in [
        json!(8),
        json!({}),
        json!({ "a": "1" }),
        json!({ "a": 1, "c": 1 }),
        json!({ "a": 1, "b": 1 }),
    ] {
        assert!(check(bad.clone()).is_err(), "{bad}");
    }
}
