//! Containers on a running switch: network namespaces, and the command as users run it.

#![allow(dead_code, reason = "shared by several test programs")]

pub mod pairs;

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a condition is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A line of `/proc/<pid>/status`, without its name.
pub fn kernel_says(pid: u64, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

/// A network namespace, gone when dropped.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(name: &str) -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hs-{name}-{}-{count}", std::process::id());
        assert!(run(&format!("ip netns add {name}")).0);
        Namespace(name)
    }

    /// Whether a command succeeds there, and all that it says.
    pub fn run(&self, line: &str) -> (bool, String) {
        run(&format!("ip netns exec {} {line}", self.0))
    }

    pub fn pings(&self, options: &str) -> bool {
        self.run(&format!("ping -c 1 -W 1 {options}")).0
    }

    /// A program with the number of an interface and hexadecimal digits as its arguments.
    fn perl(&self, program: &str, interface: &str, digits: &str) -> Command {
        let index = self.run(&format!("cat /sys/class/net/{interface}/ifindex")).1;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "perl", "-e", program]);
        command.args([index.trim(), digits]);
        command
    }

    /// Sends a frame from an interface, given in hexadecimal digits with spaces between.
    pub fn sends(&self, interface: &str, frame: &str) {
        let program = "socket(S, 17, 3, 0) or die $!; \
             bind(S, pack('S n i S C C a8', 17, 3, $ARGV[0], 0, 0, 0, '')) or die $!; \
             defined(send(S, pack('H*', $ARGV[1]), 0)) or die $!";
        let frame = frame.replace(' ', "");
        let said = self.perl(program, interface, &frame).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }

    /// The first frame with these bytes that an interface receives from now on. `act` is called once the
    /// interface is heard. Bytes are hexadecimal digits.
    pub fn hears(&self, interface: &str, bytes: &str, act: impl FnOnce()) -> Option<String> {
        let program = "socket(S, 17, 3, unpack('S', pack('n', 3))) or die $!; \
             bind(S, pack('S n i S C C a8', 17, 3, $ARGV[0], 0, 0, 0, '')) or die $!; \
             $| = 1; print qq(ready\\n); alarm 20; \
             while (defined(recv(S, $frame, 65536, 0))) { \
             $hex = unpack('H*', $frame); if (index($hex, $ARGV[1]) >= 0) { print qq($hex\\n); exit } }";
        let mut command = self.perl(program, interface, bytes);
        let mut listener = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        act();
        let heard = lines.next().map(Result::unwrap);
        listener.wait().unwrap();
        heard
    }

    /// Whether a host answers at a TCP port, be it that nobody listens.
    pub fn reaches(&self, address: &str, port: u16) -> bool {
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

pub fn run(line: &str) -> (bool, String) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `hyperswitch run`, ended when dropped. What it logs is in a file beside the configuration, whose name ends
/// in `.log`.
pub struct Instance {
    process: Child,
    run_dir: PathBuf,
}

impl Instance {
    pub fn start(run_dir: &Path, config: &Path) -> Instance {
        Instance::run(Command::new(env!("CARGO_BIN_EXE_hyperswitch")), run_dir, config)
    }

    /// Starts one in a namespace, so that its uplinks are devices there.
    pub fn start_in(namespace: &Namespace, run_dir: &Path, config: &Path) -> Instance {
        Instance::start_with(&[], namespace, run_dir, config)
    }

    /// As [`Self::start_in`], with these variables in its environment, as `NAME=VALUE`.
    pub fn start_with(variables: &[&str], namespace: &Namespace, run_dir: &Path, config: &Path) -> Instance {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.0, "env"]);
        command.args(variables).arg(env!("CARGO_BIN_EXE_hyperswitch"));
        Instance::run(command, run_dir, config)
    }

    fn run(mut command: Command, run_dir: &Path, config: &Path) -> Instance {
        command
            .arg("--run-dir")
            .arg(run_dir)
            .args(["run", "--config"])
            .arg(config);
        let log = File::create(config.with_extension("log")).unwrap();
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Instance {
            process,
            run_dir: run_dir.into(),
        }
    }

    /// Where its sockets are.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    pub fn verb(&self, arguments: &[&str]) -> Result<Value, String> {
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

    pub fn is_running(&self, port: &str) -> bool {
        self.verb(&["port", "show", port])
            .is_ok_and(|ports| ports[0]["state"] == "running")
    }

    /// Whether all lists are in force.
    pub fn is_in_force(&self) -> bool {
        let lists = self.verb(&["policy", "list"]).unwrap_or_default();
        let lists = lists.as_array().cloned().unwrap_or_default();
        !lists.is_empty() && lists.iter().all(|list| list["state"] == "in force")
    }

    /// A counter of a port; of drops for a reason, `dropped/REASON`.
    pub fn counter(&self, port: &str, path: &str) -> u64 {
        let stats = self.verb(&["stats", port]).unwrap_or_default();
        let counter = stats.pointer(&format!("/ports/0/counters/{path}"));
        counter.and_then(Value::as_u64).unwrap_or(0)
    }

    pub fn kill(&self, role: &str) {
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

impl Instance {
    /// `kill -9` of the supervisor.
    pub fn die(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            run(&format!("kill -TERM {}", self.process.id()));
            let _ = self.process.wait();
        }
    }
}
