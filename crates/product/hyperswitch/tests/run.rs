//! `hyperswitch run` as a whole, with its real children.

#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A running instance whose log is read along.
struct Instance {
    process: Child,
    log: Receiver<String>,
    seen: String,
}

impl Instance {
    fn start(run_dir: &Path, more: impl FnOnce(&mut Command)) -> Instance {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        command
            .arg("--run-dir")
            .arg(run_dir)
            .arg("run")
            .stderr(Stdio::piped())
            .stdin(Stdio::null());
        command.env_remove("HYPERSWITCH_LOG").env_remove("NOTIFY_SOCKET");
        command.env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        more(&mut command);
        let mut process = command.spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Instance {
            process,
            log,
            seen: String::new(),
        }
    }

    /// The next line of the log with these words in it.
    fn says(&mut self, words: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self
                .log
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.seen += &format!("{line}\n");
                    if line.contains(words) {
                        return line;
                    }
                }
                Err(error) => panic!("{words:?} was never said ({error:?}):\n{}", self.seen),
            }
        }
    }

    fn pid_of(&mut self, role: &str) -> i32 {
        let line = self.says(&format!("{role} started as process "));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                while let Ok(line) = self.log.recv_timeout(Duration::from_millis(100)) {
                    self.seen += &format!("{line}\n");
                }
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.seen);
            std::thread::sleep(Duration::from_millis(10));
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

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn in_run_dir(name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    (directory, path)
}

#[test]
fn starts_in_order_and_ends_in_order() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    let pids = ["data-plane", "driver", "control"].map(|role| instance.pid_of(role));
    instance.says("supervisor: ready");
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
    let at = |role: &str| {
        let words = format!("supervisor: {role} exited with status 0");
        instance
            .seen
            .find(&words)
            .unwrap_or_else(|| panic!("{words:?} is not in\n{}", instance.seen))
    };
    assert!(
        at("control") < at("driver") && at("driver") < at("data-plane"),
        "{}",
        instance.seen
    );
    assert!(pids.iter().all(|&pid| !alive(pid)));
    assert!(!instance.seen.contains("ERROR"), "{}", instance.seen);
}

#[test]
fn the_dead_come_back() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    let pids = ["data-plane", "driver", "control"].map(|role| (role, instance.pid_of(role)));
    instance.says("supervisor: ready");
    for (role, pid) in pids {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        instance.says(&format!(
            "{role} was killed by signal 9; starting it again in 100 ms"
        ));
        assert_ne!(instance.pid_of(role), pid);
    }
    instance.signal(Signal::INT);
    assert!(instance.end().success(), "{}", instance.seen);
}

#[test]
fn children_do_not_outlive_the_supervisor() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    let pids = ["data-plane", "driver", "control"].map(|role| instance.pid_of(role));
    instance.says("supervisor: ready");
    instance.signal(Signal::KILL);
    assert_eq!(instance.end().signal(), Some(9));
    eventually("all children end", || pids.iter().all(|&pid| !alive(pid)));
    // What is left behind is no obstacle.
    let mut next = Instance::start(&run_dir, |_| {});
    next.says("supervisor: ready");
}

#[test]
fn instances_run_side_by_side_but_not_in_one_directory() {
    let (directory, run_dir) = in_run_dir("a");
    let mut first = Instance::start(&run_dir, |_| {});
    first.says("supervisor: ready");
    let mut beside = Instance::start(&directory.path().join("b"), |_| {});
    beside.says("supervisor: ready");
    let mut intruder = Instance::start(&run_dir, |_| {});
    assert_eq!(intruder.end().code(), Some(1));
    let expected = format!(
        "another instance (process {}) uses the run directory",
        first.process.id()
    );
    assert!(intruder.seen.contains(&expected), "{}", intruder.seen);
}

#[test]
fn a_bad_configuration_starts_nothing() {
    let (directory, run_dir) = in_run_dir("run");
    let file = directory.path().join("bad.toml");
    std::fs::write(
        &file,
        "[[switch]]\nname = \"sw0\"\n\n[[switch.port]]\nname = \"p\"\nmtu = 1\n",
    )
    .unwrap();
    let mut instance = Instance::start(&run_dir, |command| {
        command.arg("--config").arg(&file);
    });
    assert_eq!(instance.end().code(), Some(2));
    let place = format!("{}:6:", file.display());
    assert!(
        instance.seen.contains(&place) && instance.seen.contains("68 to 65535"),
        "{}",
        instance.seen
    );
    assert!(!run_dir.exists());
}

#[test]
fn the_service_manager_hears_of_ready_and_stopping() {
    let (directory, run_dir) = in_run_dir("run");
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let hears = || {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut instance = Instance::start(&run_dir, |command| {
        command.env("NOTIFY_SOCKET", &socket);
    });
    assert_eq!(hears(), "READY=1");
    // Ready means that verbs work.
    let mut status = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
    let output = status
        .arg("--run-dir")
        .arg(&run_dir)
        .args(["status", "--json"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["processes"].as_array().unwrap().len(), 3, "{status}");
    instance.signal(Signal::TERM);
    assert_eq!(hears(), "STOPPING=1");
    assert!(instance.end().success());
}

#[test]
fn verbs_change_and_show_a_running_instance() {
    let (directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    instance.says("supervisor: ready");
    let ask = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
        let output = command
            .arg("--run-dir")
            .arg(&run_dir)
            .args(arguments.split(' '))
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            error,
        )
    };
    let done = |arguments: &str| {
        let (code, output, error) = ask(arguments);
        assert_eq!(code, Some(0), "{arguments}: {error}");
        output
    };
    assert_eq!(done("switch add lan --type private --mtu 9000"), "");
    done("port add lan vm1 --access 10");
    done("port add lan vm2 --trunk 10,20 --native 10");
    let ports: serde_json::Value = serde_json::from_str(&done("port list --switch lan --json")).unwrap();
    let names: Vec<&str> = ports
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["vm1", "vm2"]);
    assert!(run_dir.join("vm1.sock").exists());
    let shown = done("port show vm2");
    assert!(
        shown.contains("vlan:         trunk 10,20 native 10") && shown.contains("mtu:          9000"),
        "{shown}"
    );
    // The data plane may still be giving up its privileges.
    let trace = "trace --in-port vm1 --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff";
    eventually("the data plane is there", || ask(trace).0 == Some(0));
    let trace = done("trace --in-port vm1 --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff");
    assert!(
        trace.contains("miss        no flow") && trace.contains("decided     VLAN 10: "),
        "{trace}"
    );
    let file = directory.path().join("vm1.pcapng");
    let (code, _, error) = ask(&format!("capture vm1 -w {} --duration 1", file.display()));
    assert!(code == Some(0) && error.contains("0 packets captured"), "{error}");
    assert!(
        std::fs::read(&file)
            .unwrap()
            .starts_with(&[0x0a, 0x0d, 0x0d, 0x0a])
    );

    // Errors are on standard error, with exit status 1.
    for (arguments, words) in [
        ("port add lan vm1", "vm1"),
        ("port show vm3", "vm3"),
        ("switch del nolan", "nolan"),
        ("capture vm3 -w -", "vm3"),
        ("reload", "no configuration file"),
    ] {
        let (code, output, error) = ask(arguments);
        assert!(
            code == Some(1) && output.is_empty() && error.contains(words),
            "{arguments}: {output}{error}"
        );
    }

    // Ports and switches that were added outlive each process, the control process in particular.
    for role in ["control", "data-plane"] {
        let status: serde_json::Value = serde_json::from_str(&done("status --json")).unwrap();
        let process = status["processes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["role"] == role)
            .unwrap();
        let pid = i32::try_from(process["pid"].as_i64().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        instance.says(&format!("{role} started as process"));
        eventually("both ports are back", || {
            let (_, ports, _) = ask("port list --switch lan");
            ports.matches("disconnected").count() == 2
        });
    }
    done("port del vm1");
    assert!(!run_dir.join("vm1.sock").exists());
    done("switch del lan");
    assert!(!done("port list").contains("vm2"));
}

/// With the privilege, the process behind a port is watched, also by processes that were started again.
/// Without it, `status` shows the reason.
#[test]
fn what_guests_do_is_known_or_said_to_be_unknown() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    let mut pids = ["data-plane", "control"].map(|role| (role, instance.pid_of(role)));
    instance.says("supervisor: ready");
    let ask = |verb: &str| -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
            .args(["--json", "--run-dir"])
            .arg(&run_dir)
            .args(verb.split(' '))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    ask("port add sw0 vm1");
    eventually("the class is known", || {
        let class = &ask("status")["priority"]["class"];
        ["realtime", "nice", "slice", "normal"].contains(&class.as_str().unwrap_or(""))
    });
    eventually("whether cores may be kept from halting is known", || {
        let idle_poll = &ask("status")["idle-poll"];
        idle_poll["cores"].as_u64().is_some_and(|cores| cores > 0) || idle_poll["refused"].is_string()
    });
    let vm_state = &ask("status")["vm-state"];
    if vm_state["published"] == false {
        assert!(vm_state["reason"].is_string(), "{vm_state}");
        return;
    }
    let socket = run_dir.join("vm1.sock");
    let mut guest = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let watched = || {
        let port = &ask("port show vm1")[0];
        let own = port["vcpus"]
            .as_array()
            .is_some_and(|vcpus| vcpus.contains(&std::process::id().into()));
        own && port["guest"]
            .as_str()
            .is_some_and(|guest| guest.contains(" on core "))
    };
    eventually("the guest is watched", watched);
    for (role, pid) in &mut pids {
        kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
        *pid = instance.pid_of(role);
        if *role == "data-plane" {
            guest = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        }
        eventually("the guest is watched again", watched);
    }
    drop(guest);
    eventually("nobody is watched", || {
        ask("port show vm1")[0]["vcpus"] == serde_json::json!([])
    });
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
}

/// Context switches of a process's main thread.
fn switches(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("voluntary_ctxt_switches:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A process that is stopped by a signal works as little as one that has died. The best of several times
/// counts, as this machine may be busy.
#[test]
fn stopped_processes_are_replaced_within_half_a_second() {
    let floor = Duration::from_millis(500);
    let mut best = [
        ("data-plane", Duration::MAX),
        ("driver", Duration::MAX),
        ("control", Duration::MAX),
    ];
    for _ in 0..5 {
        let (_directory, run_dir) = in_run_dir("run");
        let mut instance = Instance::start(&run_dir, |_| {});
        let pids = best.map(|(role, _)| instance.pid_of(role));
        instance.says("supervisor: ready");
        for ((role, best), pid) in best.iter_mut().zip(pids) {
            let stopped = Instant::now();
            kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
            instance.says(&format!(
                "{role} was stopped by signal 19; starting it again in 100 ms"
            ));
            assert_ne!(instance.pid_of(role), pid);
            *best = stopped.elapsed().min(*best);
        }
        instance.signal(Signal::TERM);
        assert!(instance.end().success(), "{}", instance.seen);
        if best.iter().all(|(_, time)| *time < floor / 2) {
            break;
        }
    }
    for (role, time) in best {
        println!(
            "{role} stopped by SIGSTOP: replaced after {} ms",
            time.as_millis()
        );
        assert!(time < floor, "{role}: {time:?}");
    }
}

/// Runs a verb on an instance; returns exit status, output and error output.
fn ask(run_dir: &Path, arguments: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .arg("--run-dir")
        .arg(run_dir)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Verbs that ask the control process.
const VERBS: [&str; 23] = [
    "status",
    "switch add lan",
    "switch del lan",
    "switch list",
    "port add sw0 vm1",
    "port del vm1",
    "port set vm1 --mtu 1400",
    "port show vm1",
    "port list",
    "mac list",
    "flow list",
    "mac flush",
    "flow flush",
    "events",
    "stats",
    "stats placement",
    "trace --in-port vm1 --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff",
    "capture vm1 -w -",
    "config show",
    "apply /dev/null",
    "confirm",
    "reload",
    "version",
];

#[test]
fn every_verb_has_a_time_limit_and_says_who_did_not_answer() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |command| {
        command.env("HYPERSWITCH_HANGS", "leave");
    });
    let control = instance.pid_of("control");
    instance.says("supervisor: ready");
    kill_process(Pid::from_raw(control).unwrap(), Signal::STOP).unwrap();
    let watch = ["stats --watch=1"];
    // These are more users than may wait to be accepted.
    for verb in VERBS.into_iter().chain(watch) {
        for json in ["", " --json"] {
            let started = Instant::now();
            let (code, output, error) = ask(&run_dir, &format!("--timeout 1 {verb}{json}"));
            let expected = "hyperswitch: no answer within 1 s: control was stopped by signal 19\n";
            assert_eq!((code, error.as_str()), (Some(1), expected), "{verb}: {output}");
            let elapsed = started.elapsed();
            let limits = Duration::from_millis(900)..Duration::from_secs(10);
            assert!(limits.contains(&elapsed), "{verb}: {elapsed:?}");
            let is_silent = verb != "status" && (json.is_empty() || verb.starts_with("capture"));
            assert_eq!(output.is_empty(), is_silent, "{verb}: {output}");
        }
    }
    kill_process(Pid::from_raw(control).unwrap(), Signal::CONT).unwrap();
    eventually("it answers again", || ask(&run_dir, "port list").0 == Some(0));
}

/// The only JSON value on standard output, and exit status and error output.
fn ask_json(run_dir: &Path, verb: &str) -> (Option<i32>, serde_json::Value, String) {
    let (code, output, error) = ask(run_dir, &format!("{verb} --json"));
    let value = serde_json::from_str(&output);
    let value = value.unwrap_or_else(|not| panic!("{verb}: {not}: {output:?}, {error:?}"));
    (code, value, error)
}

#[test]
fn with_json_every_verb_prints_json_whether_it_succeeds_or_fails() {
    let (directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    instance.says("supervisor: ready");
    let capture = format!(
        "capture vm1 --duration 1 -w {}",
        directory.path().join("c.pcapng").display()
    );
    let trace = "trace --in-port vm1 --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff";
    eventually("the data plane is there", || ask(&run_dir, "stats").0 == Some(0));
    let good = [
        "status",
        "switch add lan",
        "port add lan vm1",
        "port set vm1 --mtu 1400",
        "port show vm1",
        "port list",
        "switch list",
        "mac list",
        "flow list",
        "stats",
        "stats vm1",
        "stats placement",
        trace,
        &capture,
        "port del vm1",
        "switch del lan",
        "version",
    ];
    for verb in good {
        let (code, value, error) = ask_json(&run_dir, verb);
        assert_eq!(code, Some(0), "{verb}: {error}");
        assert!(value["error"].is_null(), "{verb}: {value}");
    }
    let bad = [
        "switch del no",
        "port add no p",
        "port del no",
        "port set no --mtu 1400",
        "port show no",
        "port list --switch no",
        "mac list --switch no",
        "flow list --switch no",
        "stats no",
        "stats no --watch",
        "stats --watch no",
        "trace --in-port no --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff",
        "capture no -w /dev/null",
        "apply /nonexistent",
        "confirm",
        "reload",
        "ovs plug br0 vm1",
        "ovs trace --in-port no --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff",
        "p4 check /nonexistent",
        "p4 graph /nonexistent",
        "p4 run /nonexistent --pcap 1=/nonexistent --out /nonexistent",
    ];
    let fails = |verb: &str, run_dir: &Path| {
        let (code, value, error) = ask_json(run_dir, verb);
        assert_eq!(code, Some(1), "{verb}: {value}");
        let text = value["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{verb}: {value}"));
        assert_eq!(error.trim_end(), format!("hyperswitch: {text}"), "{verb}");
    };
    bad.into_iter().for_each(|verb| fails(verb, &run_dir));
    let nobody = directory.path().join("nobody");
    for verb in VERBS
        .into_iter()
        .filter(|verb| !verb.starts_with("capture") && *verb != "version")
    {
        fails(verb, &nobody);
    }
    // Packets take the place of JSON.
    let (code, output, _) = ask(&run_dir, "capture no -w - --json");
    assert_eq!((code, output.as_str()), (Some(1), ""));
    // The forms of an interval.
    for form in [
        "stats --watch 1 --json",
        "stats --watch=1 --json",
        "stats --json --watch",
    ] {
        let mut process = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
            .arg("--run-dir")
            .arg(&run_dir)
            .args(form.split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let stats: serde_json::Value = serde_json::from_str(&line).expect(form);
        assert!(stats["ports"].is_array(), "{form}: {line}");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn status_without_control_is_what_the_supervisor_knows() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |command| {
        command.env("HYPERSWITCH_HANGS", "leave");
    });
    let roles = ["data-plane", "driver", "control"];
    let pids = roles.map(|role| instance.pid_of(role));
    instance.says("supervisor: ready");
    let status = |arguments: &str| {
        let (code, output, error) = ask(&run_dir, &format!("status --json {arguments}"));
        let status: serde_json::Value = serde_json::from_str(&output).expect(&error);
        (code, status)
    };
    let stop = |pid| kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    // Others are asked as well: a stopped driver domain does not look well.
    stop(pids[1]);
    eventually("the driver domain is seen to be stopped", || {
        let (code, status) = status("");
        assert_eq!(code, Some(0));
        status["warnings"][0] == "driver was stopped by signal 19"
    });
    stop(pids[2]);
    let (code, status) = status("--timeout 1");
    assert_eq!(code, Some(1));
    for (role, pid) in roles.into_iter().zip(pids) {
        let is_it = |process: &&serde_json::Value| process["role"] == role && process["pid"] == pid;
        let processes = status["processes"].as_array().unwrap();
        assert!(processes.iter().any(|process| is_it(&process)), "{status}");
    }
    let warnings = status["warnings"].as_array().unwrap();
    assert!(
        warnings.iter().any(|it| it == "control was stopped by signal 19"),
        "{status}"
    );
    assert!(
        status["error"].as_str().unwrap().contains("no answer within 1 s"),
        "{status}"
    );
    let (code, text, _) = ask(&run_dir, "status --timeout 1");
    assert_eq!(code, Some(1));
    assert!(
        text.contains("supervisor up") && text.contains("data-plane") && text.contains("\nwarning: "),
        "{text}"
    );
    for pid in &pids[1..] {
        kill_process(Pid::from_raw(*pid).unwrap(), Signal::CONT).unwrap();
    }
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
    assert!(!run_dir.join("supervisor.sock").exists());
}

/// Questions wait for the next control process, changes say that they may have been made.
#[test]
fn verbs_outlast_a_control_process_that_is_replaced() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    let mut control = instance.pid_of("control");
    instance.says("supervisor: ready");
    for verb in ["status", "port list", "version"] {
        kill_process(Pid::from_raw(control).unwrap(), Signal::STOP).unwrap();
        let (code, _, error) = ask(&run_dir, &format!("{verb} --timeout 60"));
        assert_eq!(code, Some(0), "{verb}: {error}");
        control = instance.pid_of("control");
    }
    kill_process(Pid::from_raw(control).unwrap(), Signal::STOP).unwrap();
    let (code, _, error) = ask(&run_dir, "port add sw0 vm1 --timeout 60");
    // The first one may have been dead already, so that the next one was asked.
    let is_told = error.contains("the control process ended before it answered")
        && error.contains("control was stopped");
    assert!(code == Some(0) || is_told, "{error}");
}

#[test]
fn hundreds_of_broken_ports_hide_nobody_s_lines() {
    let (directory, run_dir) = in_run_dir("run");
    let file = directory.path().join("many.toml");
    let mut text = "[[switch]]\nname = \"lan\"\n".to_owned();
    for number in 0..1_200 {
        text += &format!(
            "[[switch.port]]\nname = \"bad{number}\"\ntype = \"tap\"\nnetns = \"hs-none-{number}\"\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    let mut instance = Instance::start(&run_dir, |command| {
        command.arg("--config").arg(&file);
    });
    instance.says("supervisor: ready");
    eventually("the ports are broken", || {
        ask(&run_dir, "status --timeout 60")
            .1
            .matches("warning: port bad")
            .count()
            == 1_200
    });
    std::thread::sleep(Duration::from_secs(10));
    let (code, _, error) = ask(
        &run_dir,
        "port add lan other --type tap --netns hs-none-other --timeout 60",
    );
    assert_eq!(code, Some(0), "{error}");
    instance.says("port other: ");
    instance.signal(Signal::TERM);
    instance.end();
    let log = &instance.seen;
    assert!(!log.contains("log lines were too many"), "{log}");
    assert!(
        log.contains("lines about problems of ports are left out; `hyperswitch status` shows all"),
        "{log}"
    );
    let lines = log.lines().count();
    assert!(lines < 300, "{lines} lines:\n{log}");
}

/// What is broken stays broken, and is tried again and again.
#[test]
fn one_broken_port_is_told_once() {
    let (directory, run_dir) = in_run_dir("run");
    let file = directory.path().join("bad.toml");
    let text = "[[switch]]\nname = \"lan\"\n[[switch.port]]\nname = \"bad\"\ntype = \"tap\"\nnetns = \"hs-none\"\n\
        [[switch.port]]\nname = \"far\"\nmode = \"client\"\nsocket = \"/nonexistent/s\"\n";
    std::fs::write(&file, text).unwrap();
    let mut instance = Instance::start(&run_dir, |command| {
        command.arg("--config").arg(&file);
    });
    instance.says("supervisor: ready");
    // An interface is opened again after 0.25, 0.75, 1.75 and 3.75 s, a client port connects every 5 s at
    // least.
    std::thread::sleep(Duration::from_secs(7));
    instance.signal(Signal::TERM);
    assert!(instance.end().success());
    let log = &instance.seen;
    for port in ["bad", "far"] {
        let count = log.matches(&format!("port {port}: ")).count();
        assert_eq!(count, 1, "{port}:\n{log}");
    }
    assert!(log.lines().count() < 30, "{log}");
}

/// As on a file system that is full, where the file can be made and not be filled.
#[test]
fn a_state_that_cannot_be_saved_is_an_error_and_a_warning() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    instance.says("supervisor: ready");
    // A directory of that name cannot be replaced by the file.
    let state = run_dir.join("state.json");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir_all(state.join("full")).unwrap();
    for verb in [
        "port add sw0 a1",
        "switch add lan",
        "port set a1 --mtu 1400",
        "switch del sw0",
    ] {
        let (code, output, error) = ask(&run_dir, verb);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{verb}: {error}");
    }
    let (_, _, error) = ask(&run_dir, "port add sw0 a1");
    assert!(
        error.contains("cannot save the state in") && error.contains("state.json"),
        "{error}"
    );
    assert!(
        !ask(&run_dir, "port list").1.contains("a1"),
        "nothing has changed"
    );
    assert!(!run_dir.join("a1.sock").exists() && !run_dir.join("state.json.new").exists());
    let (code, status, _) = ask(&run_dir, "status");
    assert_eq!(code, Some(0));
    assert!(status.contains("warning: cannot save the state in"), "{status}");
    std::fs::remove_dir_all(&state).unwrap();
    let (_, status, _) = ask(&run_dir, "status");
    assert!(!status.contains("cannot save") && state.is_file(), "{status}");
    assert_eq!(ask(&run_dir, "port add sw0 a1").0, Some(0));
    instance.signal(Signal::TERM);
    assert!(instance.end().success());
    assert_eq!(
        instance.seen.matches("cannot save the state").count(),
        1,
        "told once: {}",
        instance.seen
    );
}

/// For those who want to look at it.
#[test]
fn stopped_processes_are_left_alone_if_the_environment_says_so() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |command| {
        command.env("HYPERSWITCH_HANGS", "leave");
    });
    let pid = instance.pid_of("driver");
    instance.says("supervisor: ready");
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        alive(pid) && !instance.seen.contains("stopped"),
        "{}",
        instance.seen
    );
    kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT).unwrap();
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
    assert!(!instance.seen.contains("ERROR"), "{}", instance.seen);
}

/// A service manager and a user may both ask, or a script twice.
#[test]
fn being_asked_twice_at_once_to_end_is_being_asked_once() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    instance.says("supervisor: ready");
    instance.signal(Signal::TERM);
    instance.signal(Signal::INT);
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
    assert_eq!(
        instance.seen.matches("exited with status 0").count(),
        3,
        "{}",
        instance.seen
    );
    // Whether the states of cores can be had depends on the machine, and on how busy it is.
    let of_machine = |line: &&str| line.contains("vm-state:");
    let mut lines = instance.seen.lines().filter(|line| !of_machine(line));
    assert!(
        !lines.any(|line| line.contains("WARN") || line.contains("ERROR")),
        "{}",
        instance.seen
    );
}

/// A later signal is a user who has waited long enough.
#[test]
fn being_asked_again_to_end_skips_the_waiting() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |command| {
        command.env("HYPERSWITCH_HANGS", "leave");
    });
    let pid = instance.pid_of("control");
    instance.says("supervisor: ready");
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    // Signals of the first half second count as the first one, whenever the supervisor has seen that.
    while instance.process.try_wait().unwrap().is_none() {
        instance.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(instance.end().success(), "{}", instance.seen);
    assert!(
        instance.seen.contains("asked to end once more: killing control"),
        "{}",
        instance.seen
    );
    assert!(!alive(pid));
}

/// With a service manager that wants signs of life the supervisor gives them, and does not wake processes
/// that have slept.
#[test]
fn the_service_manager_s_watchdog_wakes_the_supervisor_alone() {
    let (directory, run_dir) = in_run_dir("run");
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut instance = Instance::start(&run_dir, |command| {
        command
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "400000");
    });
    let pids = ["data-plane", "driver", "control"].map(|role| instance.pid_of(role));
    instance.says("supervisor: ready");
    let hears_life = || {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).unwrap();
        bytes[..length] == *b"WATCHDOG=1"
    };
    eventually("it gives a sign of life", hears_life);
    // The children settle in, and each is asked once.
    let counts = || pids.map(switches);
    let sleeps = || {
        let before = counts();
        let end = Instant::now() + Duration::from_secs(1);
        let signs = std::iter::from_fn(|| (Instant::now() < end).then(hears_life))
            .filter(|is| *is)
            .count();
        (3..=7).contains(&signs) && counts() == before
    };
    eventually("for a second, only the supervisor wakes, some five times", sleeps);
    instance.signal(Signal::TERM);
    assert!(instance.end().success(), "{}", instance.seen);
}

#[test]
fn an_idle_supervisor_sleeps() {
    let (_directory, run_dir) = in_run_dir("run");
    let mut instance = Instance::start(&run_dir, |_| {});
    instance.says("supervisor: ready");
    let switches = || switches(i32::try_from(instance.process.id()).unwrap());
    // The children settle in first.
    eventually("it does nothing for two seconds", || {
        while instance.log.try_recv().is_ok() {}
        let before = switches();
        std::thread::sleep(Duration::from_secs(2));
        switches() == before && instance.log.try_recv().is_err()
    });
}
