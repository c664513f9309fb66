//! The guarded port of `docs/policies.md`, with containers: what is allowed passes, what is forbidden is
//! dropped and named, through a reload and the deaths of processes.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a condition is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace, gone when dropped.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Namespace {
        let name = format!("hs-{name}-{}", std::process::id());
        assert!(run(&format!("ip netns add {name}")).0);
        Namespace(name)
    }

    /// Whether a command succeeds there, and all that it says.
    fn run(&self, line: &str) -> (bool, String) {
        run(&format!("ip netns exec {} {line}", self.0))
    }

    fn pings(&self, options: &str) -> bool {
        self.run(&format!("ping -c 1 -W 1 {options}")).0
    }

    /// Whether a host answers at a TCP port, be it that nobody listens.
    fn reaches(&self, address: &str, port: u16) -> bool {
        let connect = format!("</dev/tcp/{address}/{port}");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "timeout", "2", "bash", "-c", &connect]);
        let said = command.output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        said.status.success() || text.contains("Connection refused")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(&format!("ip netns del {}", self.0));
    }
}

fn run(line: &str) -> (bool, String) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `hyperswitch run`, ended when dropped.
struct Instance {
    process: Child,
    run_dir: PathBuf,
}

impl Instance {
    fn start(run_dir: &Path, config: &Path) -> Instance {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        command
            .arg("--run-dir")
            .arg(run_dir)
            .args(["run", "--config"])
            .arg(config);
        let process = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Instance {
            process,
            run_dir: run_dir.into(),
        }
    }

    fn verb(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        let output = command
            .args(["--json", "--run-dir"])
            .arg(&self.run_dir)
            .args(arguments)
            .output()
            .unwrap();
        let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            Ok(said)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn is_running(&self, port: &str) -> bool {
        self.verb(&["port", "show", port])
            .is_ok_and(|ports| ports[0]["state"] == "running")
    }

    /// Whether all lists are in force.
    fn is_in_force(&self) -> bool {
        let lists = self.verb(&["policy", "list"]).unwrap_or_default();
        let lists = lists.as_array().cloned().unwrap_or_default();
        !lists.is_empty() && lists.iter().all(|list| list["state"] == "in force")
    }

    /// Packets that rules of this origin and action decided about.
    fn counted(&self, list: &str, origin: &str, action: &str) -> u64 {
        let shown = self.verb(&["policy", "show", list]).unwrap_or_default();
        let rules = shown["rules"].as_array().cloned().unwrap_or_default();
        let of = rules
            .iter()
            .filter(|rule| rule["origin"] == origin && rule["action"] == action);
        of.filter_map(|rule| rule["packets"].as_u64()).sum()
    }

    fn dropped(&self, port: &str) -> u64 {
        let stats = self.verb(&["stats", port]).unwrap_or_default();
        stats["ports"][0]["counters"]["dropped"]["policy"]
            .as_u64()
            .unwrap_or(0)
    }

    fn kill(&self, role: &str) {
        let status = self.verb(&["status"]).unwrap();
        let processes = status["processes"].as_array().unwrap();
        let process = processes.iter().find(|process| process["role"] == role).unwrap();
        let pid = process["pid"].as_u64().unwrap();
        assert!(run(&format!("kill -KILL {pid}")).0);
        let is_another = || {
            let status = self.verb(&["status"]).unwrap_or_default();
            let processes = status["processes"].as_array().cloned().unwrap_or_default();
            let now = processes.iter().find(|process| process["role"] == role);
            now.is_some_and(|now| now["pid"].as_u64().is_some_and(|now| now != pid))
        };
        eventually("another process", is_another);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        run(&format!("kill -TERM {}", self.process.id()));
        let _ = self.process.wait();
    }
}

/// The configuration of the document, for these namespaces.
fn example(web: &Namespace, client: &Namespace) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/policies.md");
    let text = std::fs::read_to_string(document).unwrap();
    let example = text
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let netns = |name: &str| format!("netns = \"{name}\"");
    example
        .replace(&netns("web"), &netns(&web.0))
        .replace(&netns("client"), &netns(&client.0))
}

#[test]
fn what_is_allowed_passes_and_what_is_forbidden_is_dropped_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, config) = (directory.path().join("run"), directory.path().join("c.toml"));
    let (web, client) = (Namespace::new("web"), Namespace::new("client"));
    let text = example(&web, &client);
    std::fs::write(&config, &text).unwrap();
    let instance = Instance::start(&run_dir, &config);
    eventually("ports run", || {
        instance.is_running("web") && instance.is_running("client")
    });
    // Whether its lists are there or on their way: nothing that `web` sends unasked gets through.
    assert!(!web.pings("10.0.0.2"));
    eventually("lists are in force", || instance.is_in_force());
    eventually("a ping passes", || client.pings("10.0.0.1"));
    assert!(client.reaches("10.0.0.1", 443));
    assert!(!client.reaches("10.0.0.1", 80));
    assert!(!web.pings("10.0.0.2"));
    assert!(instance.dropped("web") > 0 && instance.dropped("client") > 0);
    assert!(instance.counted("to: groups web", "default", "drop") > 0);

    assert!(client.run("ip addr add 10.0.0.9/24 dev client").0);
    assert!(!client.pings("-I 10.0.0.9 10.0.0.1"));
    assert!(instance.counted("client", "guard spoof", "drop") > 0);

    // From the answer on, packets obey the new rule.
    let other = text.replace("destination-port = 443", "destination-port = 80");
    std::fs::write(&config, &other).unwrap();
    let plan = instance.verb(&["reload", "--dry-run"]).unwrap();
    assert!(
        plan["changes"]
            .to_string()
            .contains("policy to: groups web changed"),
        "{plan}"
    );
    assert!(client.reaches("10.0.0.1", 443));
    instance.verb(&["reload"]).unwrap();
    assert!(!client.reaches("10.0.0.1", 443));
    assert!(client.reaches("10.0.0.1", 80));

    // Nothing changes if anything is wrong.
    let wrong = text.replace("icmp-type = 8", "icmp-type = 8, connection = \"new\"");
    std::fs::write(&config, wrong).unwrap();
    let refused = instance.verb(&["reload"]).unwrap_err();
    assert!(
        refused.contains("c.toml:5:") && refused.contains("until connection tracking exists"),
        "{refused}"
    );
    assert!(client.reaches("10.0.0.1", 80) && !client.reaches("10.0.0.1", 443));

    // Lists outlive the control process, and the next one knows them.
    let before = instance.counted("to: groups web", "group web to rule 1", "allow");
    instance.kill("control");
    assert!(!client.reaches("10.0.0.1", 443) && client.reaches("10.0.0.1", 80));
    eventually("lists are known", || instance.is_in_force());
    assert!(instance.counted("to: groups web", "group web to rule 1", "allow") > before && before > 0);

    // A new data plane gets them again, and lets nothing pass before.
    instance.kill("data-plane");
    assert!(!client.reaches("10.0.0.1", 443));
    eventually("what is allowed passes again", || client.reaches("10.0.0.1", 80));
    assert!(!client.reaches("10.0.0.1", 443));
    eventually("lists are in force again", || instance.is_in_force());
}
