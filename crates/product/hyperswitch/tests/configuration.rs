//! A configuration as a cycle: checked, applied, confirmed or taken back, shown, and applied again.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, eventually};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Something of each table; nothing that takes privileges.
const ALL: &str = r#"
[placement]
hysteresis-us = 60
[ovs]
claim-connections = true
[[switch]]
name = "lan"
mac-ageing = 60
contested-macs = "drop"
[[switch.port]]
name = "a"
vlan = { trunk = [10, 20], native = 10 }
mac = "52:54:00:00:00:01"
addresses = ["10.0.0.1/24", "fd00::1/64"]
allowed-pairs = [{ mac = "52:54:00:00:00:09", address = "10.0.0.9/32" }]
guards = ["spoof", "dhcp"]
max-rate-to = "100M"
max-burst = "64k"
acl-from = "web"
security-groups = ["all"]
[[switch.port]]
name = "b"
mode = "client"
socket = "/tmp/hs-nobody-listens"
vlan = { trunk = "all" }
[[switch]]
name = "other"
[[set]]
name = "net"
addresses = ["10.0.0.0/8"]
[[acl]]
name = "web"
default = "drop"
[[acl.rule]]
action = "allow"
protocol = "tcp"
destination-port = "8000-8100"
destination = "net"
[[security-group]]
name = "all"
[[port-policy]]
name = "uplinks"
guards = ["bpdu"]
[[mirror]]
name = "ids"
sources = ["a"]
destination = "b"
filter = "web"
"#;

/// Another one, where port `a` has to be replaced.
const OTHER: &str = r#"
[[switch]]
name = "lan"
[[switch.port]]
name = "a"
mac = "52:54:00:00:00:02"
[[switch.port]]
name = "c"
"#;

struct World {
    directory: TempDir,
    instance: Instance,
}

impl World {
    fn start(config: &str) -> World {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("start.toml");
        fs::write(&file, config).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &file);
        let world = World { directory, instance };
        eventually("it answers", || world.instance.verb(&["status"]).is_ok());
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// What a command prints for humans.
    fn says(&self, arguments: &[&str]) -> String {
        let output = hyperswitch(&self.path("run"), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn ports(&self) -> Vec<String> {
        let ports = self.instance.verb(&["port", "list"]).unwrap_or_default();
        let ports = ports.as_array().cloned().unwrap_or_default();
        ports
            .iter()
            .map(|port| port["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn is_waiting(&self) -> bool {
        let status = self.instance.verb(&["status"]).unwrap_or_default();
        status["warnings"].to_string().contains("waits to be confirmed")
    }
}

fn hyperswitch(run_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
    command
        .arg("--run-dir")
        .arg(run_dir)
        .args(arguments)
        .output()
        .unwrap()
}

/// What `check` says of a text: its status, what it prints, and its error.
fn check(directory: &Path, text: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let file = directory.join("x.toml");
    fs::write(&file, text).unwrap();
    let arguments = [&["check", file.to_str().unwrap()], more].concat();
    let output = hyperswitch(&directory.join("run"), &arguments);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

#[test]
fn a_good_file_is_checked_without_an_instance() {
    let directory = tempfile::tempdir().unwrap();
    let (code, said, error) = check(directory.path(), ALL, &[]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(said.ends_with("x.toml: 2 switches, 2 ports\n"), "{said}");
    let cores = "[placement]\ndedicated-cores = [4095]\n";
    let (code, said, _) = check(directory.path(), cores, &["--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, Some(0));
    assert!(
        said["warnings"][0].as_str().unwrap().contains("names 4095"),
        "{said}"
    );
}

#[test]
fn a_bad_file_is_an_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    let switch = "[[switch]]\nname = \"a\"\n";
    let port = format!("{switch}[[switch.port]]\nname = \"p\"\n");
    for (text, expected) in [
        (
            format!("{switch}{switch}"),
            "x.toml:4:8: there is already a switch a",
        ),
        (format!("{switch}mtu = 1\n"), "x.toml:3:"),
        (format!("{port}acl-to = \"no\"\n"), "x.toml:5:"),
        (
            format!("{port}socket = {socket:?}\n"),
            "x.toml:5:10: port p: socket",
        ),
    ] {
        let (code, said, error) = check(directory.path(), &text, &[]);
        assert_eq!((code, said.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(expected), "{error}");
        let (code, said, _) = check(directory.path(), &text, &["--json"]);
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(code, Some(2));
        assert!(said["error"].as_str().unwrap().contains(expected), "{said}");
    }
    let output = hyperswitch(directory.path(), &["check", "/nonexistent/x.toml"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_is_shown_is_in_force() {
    let world = World::start(ALL);
    for command in [
        "switch add added --mac-ageing 30",
        "port add added d --access 7 --exists-ok",
        "port add lan e --isolated",
        "port set b --mtu 1400",
    ] {
        world.says(&command.split(' ').collect::<Vec<_>>());
    }
    let before = world.instance.verb(&["port", "list"]).unwrap();
    let shown = world.says(&["config", "show"]);
    let all = world.write("all.toml", &shown);
    assert!(world.says(&["check", &all]).contains("3 switches, 4 ports"));
    assert_eq!(world.says(&["apply", "--dry-run", &all]), "nothing to change\n");
    let said = world.says(&["apply", &all]);
    assert!(
        said.starts_with("nothing to change\n") && said.contains("start.toml replaced"),
        "{said}"
    );
    // What commands have added belongs to the file now, and is the same otherwise.
    let after = world.instance.verb(&["port", "list"]).unwrap();
    let of_file = before
        .to_string()
        .replace("\"origin\":\"runtime\"", "\"origin\":\"config\"");
    assert_ne!(of_file, before.to_string());
    let mtu = |ports: &str| ports.contains("\"mtu\":1400");
    assert!(
        mtu(&after.to_string()) && after == serde_json::from_str::<Value>(&of_file).unwrap(),
        "{after}\n{of_file}"
    );
    assert_eq!(world.says(&["config", "show"]), shown);
    assert_eq!(
        (world.read("start.toml"), world.read("start.toml.old")),
        (shown, ALL.to_owned())
    );
    assert_eq!(world.says(&["reload"]), "nothing to change\n");
    assert_eq!(world.says(&["apply", &all]), "nothing to change\n");
    assert_eq!(
        world.read("start.toml.old"),
        ALL,
        "a file that says the same replaces nothing"
    );
    assert!(!world.path("start.toml.new").exists() && !world.path("start.toml.old.new").exists());
}

#[test]
fn what_is_not_confirmed_is_taken_back() {
    let world = World::start(ALL);
    let other = world.write("other.toml", OTHER);
    let plan = world.says(&["apply", "--dry-run", &other]);
    for expected in [
        "port a replaced, since mac changed",
        "port b removed",
        "switch other removed",
        "port c added",
    ] {
        assert!(plan.contains(expected), "{plan}");
    }
    let said = world.says(&["apply", &other, "--confirm", "4"]);
    assert!(
        said.contains("port c added") && said.contains("hyperswitch confirm"),
        "{said}"
    );
    assert_eq!(world.ports(), ["a", "c"]);
    assert!(world.is_waiting());
    let refused = world.instance.verb(&["reload"]).unwrap_err();
    assert!(refused.contains("waits to be confirmed"), "{refused}");
    // What is added meanwhile outlasts it.
    world.says(&["port", "add", "lan", "late"]);
    world.instance.kill("control");
    eventually("it is taken back", || world.ports() == ["a", "b", "late"]);
    assert!(!world.is_waiting());
    let a = world.instance.verb(&["port", "show", "a"]).unwrap();
    assert_eq!(a[0]["mac"], "52:54:00:00:00:01");
    assert_eq!(world.says(&["reload"]), "nothing to change\n");
    assert_eq!(world.read("start.toml"), ALL);
    let nothing = world.instance.verb(&["confirm"]).unwrap_err();
    assert!(nothing.contains("no configuration waits"), "{nothing}");
}

#[test]
fn what_is_confirmed_stays() {
    let world = World::start(ALL);
    let other = world.write("other.toml", OTHER);
    world.says(&["apply", &other, "--confirm", "600"]);
    assert_eq!(world.read("start.toml"), ALL);
    world.instance.kill("control");
    // The file may be gone by then.
    fs::remove_file(&other).unwrap();
    let said = world.says(&["confirm"]);
    assert!(
        said.contains("start.toml replaced") && said.contains("start.toml.old"),
        "{said}"
    );
    assert!(!world.is_waiting());
    assert_eq!(
        (world.read("start.toml"), world.read("start.toml.old")),
        (OTHER.to_owned(), ALL.to_owned())
    );
    assert_eq!(world.says(&["reload"]), "nothing to change\n");
    assert_eq!(world.ports(), ["a", "c"]);
    // A second one on probation returns to what was confirmed last.
    let all = world.write("all.toml", ALL);
    world.says(&["apply", &all, "--confirm", "600"]);
    let empty = world.write("empty.toml", "");
    world.says(&["apply", &empty, "--confirm", "1"]);
    eventually("both are taken back", || world.ports() == ["a", "c"]);
}

#[test]
fn what_cannot_be_applied_changes_nothing() {
    let world = World::start(ALL);
    let refused = |arguments: &[&str], expected: &str| {
        let error = world.instance.verb(arguments).unwrap_err();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    };
    let bad = world.write("bad.toml", "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"\n");
    refused(&["apply", &bad], "bad.toml:4:8: ");
    refused(&["apply", &bad, "--dry-run"], "bad.toml:4:8: ");
    let start = world.path("start.toml");
    refused(
        &["apply", start.to_str().unwrap(), "--confirm", "9"],
        "another file",
    );
    refused(&["apply", "/nonexistent/x.toml"], "cannot read");
    // Nowhere to write the file to.
    fs::create_dir(world.path("start.toml.new")).unwrap();
    let other = world.write("other.toml", OTHER);
    refused(&["apply", &other], "start.toml.new");
    fs::remove_dir(world.path("start.toml.new")).unwrap();
    assert_eq!(world.ports(), ["a", "b"]);
    assert_eq!(world.read("start.toml"), ALL);
    assert!(!world.path("start.toml.new").exists());
}
