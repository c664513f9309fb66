//! Metrics of a running instance, and the process that serves them.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, eventually, kernel_says, run};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

struct World {
    directory: TempDir,
    instance: Instance,
}

impl World {
    fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("c.toml");
        let socket = directory.path().join("metrics.sock");
        let config = format!(
            "[view]\nlisten = \"{}\"\n[[switch]]\nname = \"s\"\n[[switch.port]]\nname = \"a\"\n",
            socket.display()
        );
        std::fs::write(&file, config).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &file);
        let world = World { directory, instance };
        eventually("metrics of the port and the threads", || {
            let text = world.scrape("text/plain").unwrap_or_default();
            text.contains("port_received_total{port=\"a\"") && text.contains("thread=\"worker-0\"")
        });
        world
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("metrics.sock")
    }

    /// The metrics, if they can be had.
    fn scrape(&self, accept: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 OK").then(|| body.to_owned())
    }

    fn pid(&self, role: &str) -> u64 {
        let status = self.instance.verb(&["status"]).unwrap();
        let processes = status["processes"].as_array().unwrap();
        let process = processes.iter().find(|process| process["role"] == role);
        process.unwrap()["pid"].as_u64().unwrap()
    }
}

#[test]
fn metrics_return_after_the_death_of_any_process() {
    let world = World::start();
    for role in ["view", "control", "data-plane"] {
        world.instance.kill(role);
        let restarted = format!("hyperswitch_process_restarts_total{{role=\"{role}\"}} 1\n");
        eventually("metrics of the next process", || {
            let text = world.scrape("").unwrap_or_default();
            text.contains(&restarted) && text.contains("port_received_total{port=\"a\"")
        });
    }
}

/// What a family is called in expressions: the names of its samples.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.split(|c| !word(c));
    let found = parts.filter(|part| part.starts_with("hyperswitch_"));
    found.map(str::to_owned).collect()
}

/// Alert rules and dashboard name metrics that there are.
#[test]
fn rules_and_dashboard_know_the_metrics() {
    let world = World::start();
    let known = names(&world.scrape("").unwrap());
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging");
    for file in ["hyperswitch-alerts.yml", "hyperswitch-dashboard.json"] {
        let text = std::fs::read_to_string(packaging.join(file)).unwrap();
        let used = names(&text);
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
        if file.ends_with("json") {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }
}

/// Where promtool is, it has no complaint.
#[test]
fn promtool_accepts_metrics_and_rules() {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("left out: there is no promtool (apt-get install prometheus)");
        return;
    }
    let world = World::start();
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = world.scrape("").unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = check.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success() && complaint.is_empty(), "{complaint}");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/hyperswitch-alerts.yml");
    let (accepted, said) = run(&format!("promtool check rules {}", rules.display()));
    assert!(accepted, "{said}");
}

#[test]
fn the_process_that_serves_metrics_reaches_nothing_else() {
    let world = World::start();
    let pid = world.pid("view");
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(kernel_says(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(kernel_says(pid, "Seccomp"), "2");
    assert_eq!(kernel_says(pid, "NoNewPrivs"), "1");
    let status = world.instance.verb(&["status"]).unwrap();
    let processes = status["processes"].as_array().unwrap();
    let process = processes
        .iter()
        .find(|process| process["role"] == "view")
        .unwrap();
    if process["missing"]
        .as_array()
        .is_none_or(|missing| !missing.is_empty())
    {
        eprintln!("left out: lacks privileges for a user and namespaces: {process}");
        return;
    }
    let user = sandbox::VIEW_USER;
    assert_eq!(kernel_says(pid, "Uid"), format!("{user}\t{user}\t{user}\t{user}"));
    assert_eq!(kernel_says(pid, "Groups"), "");
    assert_eq!(std::fs::read_dir(format!("/proc/{pid}/root")).unwrap().count(), 0);
    for namespace in ["mnt", "net", "ipc", "uts"] {
        let of = |pid: &str| std::fs::read_link(Path::new("/proc").join(pid).join("ns").join(namespace));
        assert_ne!(of(&pid.to_string()).unwrap(), of("self").unwrap(), "{namespace}");
    }
    // The listener, the supervisor, and the control process.
    eventually("three sockets", || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        open.filter(|to| to.to_string_lossy().starts_with("socket:"))
            .count()
            == 3
    });
}
