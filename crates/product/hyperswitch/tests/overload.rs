//! A machine that is busy with other things: no process of the switch gets a processor when it wants one, and
//! none of them hangs.
//!
//! A binary of its own, since the tests of others would be slow beside it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Programs that compute, for each processor.
const HOGS: usize = 16;

/// How long the switch is asked while they do.
const TIME: Duration = Duration::from_secs(12);

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn verb(run_dir: &Path, arguments: &str) -> Option<serde_json::Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(["--json", "--run-dir"])
        .arg(run_dir)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .ok()
        .filter(|_| output.status.success())
}

/// Role, process and restarts of each.
fn processes(run_dir: &Path) -> Option<Vec<String>> {
    let status = verb(run_dir, "status --timeout 120")?;
    let processes = status["processes"].as_array()?.iter();
    let life = |process: &serde_json::Value| {
        let [role, pid, restarts] = ["role", "pid", "restarts"].map(|key| process[key].clone());
        format!("{role} {pid} {restarts}")
    };
    Some(processes.map(life).collect())
}

#[test]
fn a_switch_that_gets_hardly_any_processor_time_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let file = directory.path().join("c.toml");
    // In a raised class its threads would get what they want.
    std::fs::write(
        &file,
        "[placement]\npriority = \"normal\"\n[[switch]]\nname = \"lan\"\n",
    )
    .unwrap();
    let switch = Command::new("nice")
        .args(["-n", "19", env!("CARGO_BIN_EXE_hyperswitch"), "--run-dir"])
        .arg(&run_dir)
        .args(["run", "--config"])
        .arg(&file)
        .env("WATCHDOG_USEC", "1000000")
        .env_remove("WATCHDOG_PID")
        .env_remove("NOTIFY_SOCKET")
        .stderr(Stdio::null())
        .spawn();
    let _switch = Running(switch.unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    let before = loop {
        if let Some(processes) = processes(&run_dir) {
            break processes;
        }
        assert!(Instant::now() < end, "it does not start");
        std::thread::sleep(Duration::from_millis(20));
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    let hog = || {
        Running(
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap(),
        )
    };
    let hogs: Vec<Running> = (0..cores * HOGS).map(|_| hog()).collect();
    let end = Instant::now() + TIME;
    let mut number = 0;
    while Instant::now() < end {
        // Work for control, data plane and driver domain; each status has all of them answer.
        number += 1;
        let tap = format!("port add lan t{number} --type tap --netns hs-none --timeout 120");
        let _ = verb(&run_dir, &tap);
        let _ = verb(&run_dir, "stats --timeout 120");
        let _ = verb(&run_dir, "status --timeout 120");
    }
    drop(hogs);
    let after = processes(&run_dir).expect("it answers once there is time");
    println!("{number} rounds under {HOGS} hogs for each processor");
    // A forwarder starts with its first interface.
    let still: Vec<&String> = after.iter().filter(|process| before.contains(process)).collect();
    assert_eq!(
        before.iter().collect::<Vec<_>>(),
        still,
        "a healthy process was replaced"
    );
}
