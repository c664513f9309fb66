//! What a running switch prints with `--json` is what `docs/schema.json` says, and so are errors.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
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

/// Whether a value is as a schema says, and has no keys that the schema does not name.
fn check(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let named = named_keys(document, schema, value, place)?;
    let mut keys = value.as_object().into_iter().flat_map(|object| object.keys());
    match keys.find(|key| !named.is_empty() && !named.contains(*key)) {
        Some(unknown) => Err(format!("{place}/{unknown} is not in the schema")),
        None => Ok(()),
    }
}

/// The keys that a schema and those that it refers to name, if the value is as they say.
fn named_keys(
    document: &Value,
    schema: &Value,
    value: &Value,
    place: &str,
) -> Result<BTreeSet<String>, String> {
    let mut named = BTreeSet::new();
    if let Some(path) = schema["$ref"].as_str() {
        let target = document.pointer(path.trim_start_matches('#')).unwrap();
        named.extend(named_keys(document, target, value, place)?);
    }
    let kinds = schema["type"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![schema["type"].clone()]);
    if !kinds.iter().any(|kind| is_of_kind(value, kind.as_str())) {
        return Err(format!("{place} is no {kinds:?}: {value}"));
    }
    let wanted = schema["enum"]
        .as_array()
        .cloned()
        .or_else(|| Some(vec![schema.get("const")?.clone()]));
    if wanted.is_some_and(|wanted| !wanted.contains(value)) {
        return Err(format!("{place} has none of the values of the schema: {value}"));
    }
    for key in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        value
            .get(key)
            .ok_or_else(|| format!("{place}/{key} is missing"))?;
    }
    for (key, part) in value.as_object().into_iter().flatten() {
        let place = format!("{place}/{key}");
        let patterns = schema["patternProperties"]
            .as_object()
            .and_then(|it| it.values().next());
        let others = schema
            .get("additionalProperties")
            .filter(|it| it.is_object())
            .or(patterns);
        if let Some(schema) = schema["properties"].get(key).or(others) {
            check(document, schema, part, &place)?;
            named.insert(key.clone());
        }
    }
    for part in value.as_array().into_iter().flatten() {
        if let Some(schema) = schema.get("items") {
            check(document, schema, part, &format!("{place}[]"))?;
        }
    }
    for cases in ["oneOf", "anyOf"]
        .iter()
        .filter_map(|key| schema[*key].as_array())
    {
        let tried: Vec<_> = cases
            .iter()
            .map(|case| named_keys(document, case, value, place))
            .collect();
        let found = tried.iter().find_map(|case| case.as_ref().ok());
        named.extend(
            found
                .ok_or_else(|| format!("{place} is no case: {tried:?}"))?
                .iter()
                .cloned(),
        );
    }
    Ok(named)
}

fn is_of_kind(value: &Value, kind: Option<&str>) -> bool {
    match kind {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other} is new: teach the test"),
        None => true,
    }
}

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
        let output = said(arguments);
        let part = &schema["outputs"][verb];
        assert!(part.is_object(), "{verb} has no schema");
        if let Err(fault) = check(&schema, part, &output, "") {
            panic!("{arguments}: {fault}\n{output:#}");
        }
    }
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
