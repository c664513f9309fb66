//! The rights that the running processes have given up, as the kernel shows them.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::kernel_says;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

struct Instance {
    process: Child,
    directory: tempfile::TempDir,
}

impl Instance {
    /// Starts one and waits until it is ready; its log goes on to be read.
    fn start() -> Instance {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
            .arg("--run-dir")
            .arg(directory.path().join("run"))
            .arg("run")
            .env_remove("HYPERSWITCH_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        loop {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("it ended:\n{seen}"))
                .unwrap();
            seen += &format!("{line}\n");
            if line.contains("supervisor: ready") {
                break;
            }
        }
        std::thread::spawn(move || lines.for_each(drop));
        Instance { process, directory }
    }

    fn status(&self, more: &[&str]) -> String {
        self.ask(&[&["status"], more].concat())
    }

    /// What a command prints.
    fn ask(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.run(arguments).stdout).unwrap()
    }

    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        command.arg("--run-dir").arg(self.directory.path().join("run"));
        command.args(arguments).output().unwrap()
    }

    /// Adds a port with this socket; returns what is said of errors.
    fn add(&self, port: &str, mode: &str, socket: &Path) -> String {
        let socket = socket.to_str().unwrap();
        let output = self.run(&["port", "add", "sw0", port, "--mode", mode, "--socket", socket]);
        String::from_utf8(output.stderr).unwrap()
    }

    /// Waits until a line of `port show` says something.
    fn wait_for(&self, port: &str, said: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let shown = self.ask(&["port", "show", port]);
            if shown.contains(said) {
                return;
            }
            assert!(Instant::now() < deadline, "not said: {said}\n{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The processes, once each has reported the rights that it could not give up.
    fn processes(&self) -> Vec<serde_json::Value> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status: serde_json::Value =
                serde_json::from_str(&self.status(&["--json"])).unwrap_or_default();
            let processes = status["processes"].as_array().cloned().unwrap_or_default();
            if processes.len() == 3 && processes.iter().all(|process| process["missing"].is_array()) {
                return processes;
            }
            assert!(Instant::now() < deadline, "not told: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Its children die with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn capabilities(pid: u64, set: &str) -> u64 {
    u64::from_str_radix(&kernel_says(pid, set), 16).unwrap()
}

const DAC_OVERRIDE: u64 = 1 << 1;
const SETGID: u64 = 1 << 6;
const NETWORK: u64 = 1 << 12 | 1 << 13 | 1 << 21;
/// Kept where the supervisor may not raise resource limits.
const SYS_NICE: u64 = 1 << 23;
/// SETUID, SETGID, KILL and SYS_ADMIN: what a user and namespaces of its own take.
const SEPARATION: u64 = 1 << 7 | 1 << 6 | 1 << 5 | 1 << 21;

#[test]
fn each_process_has_given_up_what_it_does_not_need() {
    let instance = Instance::start();
    for process in instance.processes() {
        let pid = process["pid"].as_u64().unwrap();
        let role = process["role"].as_str().unwrap();
        let allowed = match role {
            "data-plane" => SYS_NICE,
            "control" => DAC_OVERRIDE | SETGID,
            "driver" => NETWORK | SYS_NICE,
            other => panic!("what is {other}?"),
        };
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(capabilities(pid, set) & !allowed, 0, "{role}: {set}");
        }
        assert_eq!(kernel_says(pid, "Seccomp"), "2", "{role}");
        assert_eq!(kernel_says(pid, "NoNewPrivs"), "1", "{role}");
        // All threads, whenever they were started.
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let task = task.unwrap().path().join("status");
            let status = std::fs::read_to_string(task).unwrap_or_default();
            assert!(
                status.is_empty() || status.contains("Seccomp:\t2\n"),
                "{role}: {status}"
            );
        }
    }
}

#[test]
fn the_data_plane_of_root_is_nobody_and_sees_nothing() {
    let own = capabilities(std::process::id().into(), "CapEff");
    if own & SEPARATION != SEPARATION {
        eprintln!("left out: lacks privileges");
        return;
    }
    let instance = Instance::start();
    for process in instance.processes() {
        let pid = process["pid"].as_u64().unwrap();
        let missing = process["missing"].as_array().unwrap();
        if process["role"] != "data-plane" {
            continue;
        }
        assert!(missing.is_empty(), "{missing:?}");
        let user = sandbox::DATA_PLANE_USER;
        assert_eq!(kernel_says(pid, "Uid"), format!("{user}\t{user}\t{user}\t{user}"));
        assert_eq!(kernel_says(pid, "Gid"), format!("{user}\t{user}\t{user}\t{user}"));
        assert_eq!(kernel_says(pid, "Groups"), "");
        for namespace in ["mnt", "net", "ipc", "uts"] {
            let of = |pid: &str| std::fs::read_link(Path::new("/proc").join(pid).join("ns").join(namespace));
            assert_ne!(of(&pid.to_string()).unwrap(), of("self").unwrap(), "{namespace}");
        }
        let root = std::fs::read_dir(format!("/proc/{pid}/root")).unwrap();
        assert_eq!(root.count(), 0, "its root directory is empty");
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
    }
}

/// No process has a terminal as descriptor, or any other way to write to it.
#[test]
fn standard_descriptors_lead_nowhere_but_to_the_supervisor() {
    let instance = Instance::start();
    for process in instance.processes() {
        let pid = process["pid"].as_u64().unwrap();
        let Ok(stderr) = std::fs::read_link(format!("/proc/{pid}/fd/2")) else {
            eprintln!("left out: not root");
            return;
        };
        let to = |fd: u32| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        assert_eq!((to(0), to(1)), ("/dev/null".into(), "/dev/null".into()));
        let supervisors = std::fs::read_link(format!("/proc/{}/fd/2", instance.process.id())).unwrap();
        assert!(stderr.to_string_lossy().starts_with("pipe:"), "{stderr:?}");
        assert_ne!(stderr, supervisors);
    }
}

#[test]
fn status_says_what_is_missing() {
    let instance = Instance::start();
    let missing: Vec<String> = instance
        .processes()
        .iter()
        .flat_map(|process| process["missing"].as_array().unwrap().clone())
        .map(|what| what.as_str().unwrap().to_owned())
        .collect();
    let status = instance.status(&[]);
    let line = status
        .lines()
        .find(|line| line.starts_with("isolation:"))
        .unwrap();
    if missing.is_empty() {
        assert_eq!(line, "isolation:     complete");
    }
    for what in missing {
        assert!(line.contains(&what), "{what:?} in {line:?}");
    }
}

/// A user makes links to the socket of another one's VMM and to that one's directory, where they should have
/// their own.
#[test]
fn no_user_leads_the_switch_to_another_one_s_vmm() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: files can be given to other users by root only");
        return;
    }
    let instance = Instance::start();
    let [a, b] = [("a", 1001), ("b", 1002)].map(|(name, user)| {
        let path = instance.directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        path
    });
    let vmm = |path: &Path, user| {
        let listener = UnixListener::bind(path).unwrap();
        chown(path, Some(user), Some(user)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let others = vmm(&b.join("vm.sock"), 1002);
    for (target, name) in [(b.join("vm.sock"), "vm.sock"), (b.clone(), "there")] {
        symlink(target, a.join(name)).unwrap();
        lchown(a.join(name), Some(1001), Some(1001)).unwrap();
    }
    assert_eq!(instance.add("vm1", "client", &a.join("vm.sock")), "");
    instance.wait_for(
        "vm1",
        "/a/vm.sock is a symbolic link that users other than root can make",
    );
    let refusal = instance.add("vm2", "server", &a.join("there/new.sock"));
    assert!(refusal.contains("/a/there is a symbolic link"), "{refusal}");
    assert!(others.accept().is_err(), "it was connected");
    assert!(!b.join("new.sock").exists());
    // Where the user's own VMM listens, it is connected, through a link of root's as well.
    let link = instance.directory.path().join("link");
    symlink(&a, &link).unwrap();
    std::fs::remove_file(a.join("vm.sock")).unwrap();
    let own = ["vm.sock", "vm3.sock"].map(|name| vmm(&a.join(name), 1001));
    assert_eq!(instance.add("vm3", "client", &link.join("vm3.sock")), "");
    let deadline = Instant::now() + TIMEOUT;
    for vmm in own {
        while vmm.accept().is_err() {
            assert!(Instant::now() < deadline, "{}", instance.status(&[]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
