//! How the switch is, in a word and an exit status; and the report of a fault.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, eventually, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A comment of the file is nobody's business.
const CONFIG: &str = "# s3cr3t\n[[switch]]\nname = \"lan\"\n";

fn command(run_dir: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
    command.arg("--run-dir").arg(run_dir).args(arguments.split(' '));
    command
}

fn ask(run_dir: &Path, arguments: &str) -> (Option<i32>, String) {
    let output = command(run_dir, arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn start(directory: &TempDir) -> (Instance, PathBuf) {
    let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
    fs::write(&file, CONFIG).unwrap();
    (Instance::start(&run_dir, &file), run_dir)
}

#[test]
fn the_exit_status_says_how_the_switch_is() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let (code, said) = ask(&run_dir, "status --check");
    assert!(code == Some(4) && said.starts_with("down\n"), "{said}");
    assert_eq!(ask(&run_dir, "status --wait=down").0, Some(0));
    // One who waits before it is started.
    let waiting = command(&run_dir, "status --wait --timeout 60")
        .stdout(Stdio::piped())
        .spawn();
    let (instance, run_dir) = start(&directory);
    let waited = waiting.and_then(Child::wait_with_output).unwrap();
    let said = String::from_utf8(waited.stdout).unwrap();
    assert_eq!((waited.status.code(), said.as_str()), (Some(0), "well\n"));
    assert_eq!(ask(&run_dir, "status --check"), (Some(0), "well\n".into()));
    instance
        .verb(&["port", "add", "lan", "bad", "--type", "tap", "--netns", "hs-none"])
        .unwrap();
    assert_eq!(
        ask(&run_dir, "status --wait=degraded").0,
        Some(0),
        "that or better"
    );
    eventually("it is degraded", || ask(&run_dir, "status --check").0 == Some(3));
    let (code, said) = ask(&run_dir, "status --wait --timeout 1 --json");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["health"]), (Some(3), &"degraded".into()));
    assert!(
        said["reasons"][0].as_str().unwrap().starts_with("port bad: "),
        "{said}"
    );
    instance.verb(&["port", "del", "bad"]).unwrap();
    assert_eq!(ask(&run_dir, "status --wait=well --timeout 60").0, Some(0));
    drop(instance);
    assert_eq!(ask(&run_dir, "status --check").0, Some(4));
}

/// Contents of all files below a directory, by name.
fn files(directory: &Path) -> Vec<(String, String)> {
    let output = Command::new("find")
        .arg(directory)
        .args(["-type", "f", "-printf", "%P\\n"])
        .output()
        .unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| (name.to_owned(), fs::read_to_string(directory.join(name)).unwrap());
    names.lines().map(read).collect()
}

#[test]
fn a_report_has_all_outputs_and_no_comments() {
    let directory = tempfile::tempdir().unwrap();
    let (_instance, run_dir) = start(&directory);
    assert_eq!(ask(&run_dir, "status --wait=degraded --timeout 60").0, Some(0));
    let place = directory.path().join("report");
    let verb = format!("report {} --seconds 5", place.display());
    assert_eq!(
        ask(&run_dir, &verb),
        (Some(0), format!("{} written\n", place.display()))
    );
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    let found = files(&place);
    let names: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    for name in [
        "text/status.txt",
        "json/port-list.json",
        "json/flow-list.json",
        "host/topology.txt",
        "log.txt",
    ] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    for (name, text) in &found {
        assert!(!text.contains("s3cr3t"), "{name}");
        // There is no Open vSwitch.
        if name.ends_with(".json") && !name.contains("ovs") {
            let value: Result<Value, _> = serde_json::from_str(text);
            assert!(
                value.is_ok_and(|value| value.get("error").is_none()),
                "{name}: {text}"
            );
        }
        if name.ends_with(".jsonl") {
            assert!(text.lines().count() >= 1, "{name}");
            assert!(
                text.lines()
                    .all(|line| serde_json::from_str::<Value>(line).is_ok()),
                "{name}: {text}"
            );
        }
    }
    let config = found
        .iter()
        .find(|(name, _)| name == "text/config-show.txt")
        .unwrap();
    assert!(config.1.contains("name = \"lan\""), "{}", config.1);
    let again = command(&run_dir, &verb).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("cannot make"));
}

/// Also where there is nothing to ask.
#[test]
fn a_report_can_be_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("r.tar");
    let verb = format!("report -o {} --seconds 1", archive.display());
    assert_eq!(ask(&directory.path().join("run"), &verb).0, Some(0));
    assert_eq!(
        fs::metadata(&archive).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let (listed, names) = run(&format!("tar -tf {}", archive.display()));
    assert!(
        listed && names.contains("./text/status.txt") && names.contains("./log.txt"),
        "{names}"
    );
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "the archive alone is left"
    );
}
