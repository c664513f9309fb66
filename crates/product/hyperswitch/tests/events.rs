//! Events as they are followed.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A line that is not there by then does not come.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn events_are_followed_over_the_death_of_the_control_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.toml");
    std::fs::write(&file, "[[switch]]\nname = \"s\"\n").unwrap();
    let run_dir = directory.path().join("run");
    let instance = Instance::start(&run_dir, &file);
    eventually("it answers", || instance.verb(&["status"]).is_ok());
    let mut follower = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(["--json", "--run-dir"])
        .arg(&run_dir)
        .args(["events", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let wait_for = |what: &str, is_meant: &dyn Fn(&Value) -> bool| loop {
        let line = receiver.recv_timeout(TIMEOUT);
        let event: Value = serde_json::from_str(&line.unwrap_or_else(|_| panic!("no {what}"))).unwrap();
        assert!(event["number"].is_u64() && event["time-ms"].is_u64(), "{event}");
        if is_meant(&event) {
            return;
        }
    };
    wait_for("start", &|event| {
        event["event"] == "process-started" && event["role"] == "data-plane"
    });
    instance.verb(&["port", "add", "s", "a"]).unwrap();
    wait_for("port", &|event| {
        event["event"] == "port-added" && event["port"] == "a"
    });
    instance.kill("control");
    wait_for("port again", &|event| {
        event["event"] == "port-added" && event["port"] == "a"
    });
    wait_for("death", &|event| {
        event["event"] == "process-ended"
            && event["role"] == "control"
            && event["end"] == "was killed by signal 9"
    });
    follower.kill().unwrap();
    follower.wait().unwrap();
    let all = instance.verb(&["events"]).unwrap();
    assert!(all.as_array().is_some_and(|events| !events.is_empty()), "{all}");
}
