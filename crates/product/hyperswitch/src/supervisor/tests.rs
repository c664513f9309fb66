//! The supervisor with stand-ins for its children: this test binary again, which greets each peer it is given
//! and logs the messages that it gets. Signals are left out here, since a test binary has several threads;
//! `tests/run.rs` covers them with the real executable.

use super::*;
use control_protocol::supervisor::{ForwarderId, FromChild, StuckThread};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const ROLE: &str = "SUPERVISOR_TEST_ROLE";
const LOG: &str = "SUPERVISOR_TEST_LOG";

/// In the directory of the log: what a stand-in does instead of answering its next ping.
const FAULT: &str = "fault";

/// Not a test by itself: a stand-in.
#[test]
fn child() {
    let (Ok(role), Ok(log)) = (std::env::var(ROLE), std::env::var(LOG)) else {
        return;
    };
    let say = |line: String| {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&log)
            .unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    };
    let me = std::process::id();
    let supervisor = Channel::from(process::supervisor_channel().unwrap());
    supervisor.send(&FromChild::Isolated(Vec::new()), &[]).unwrap();
    let mut peers = Vec::new();
    let mut meet = |peer: &str, fds: Vec<OwnedFd>| {
        let channel = Channel::from(fds.into_iter().next().unwrap());
        // A peer may be gone before it is greeted.
        if let (Ok(()), Ok((other, _))) = (channel.send(&me, &[]), channel.recv::<u32>()) {
            say(format!("{role} {me} met {peer} {other}"));
        }
        peers.push(channel);
    };
    while let Ok((message, fds)) = supervisor.recv::<ToChild>() {
        match message {
            ToChild::Peer(peer) => meet(&peer.to_string(), fds),
            ToChild::Controller(id) => meet(&format!("controller {id}"), fds),
            ToChild::Processes(all) => {
                let all: Vec<String> = all
                    .iter()
                    .map(|status| {
                        let trouble = if status.trouble.is_some() { "!" } else { "" };
                        format!("{}:{}{trouble}", status.role, status.restarts)
                    })
                    .collect();
                say(format!("{role} {me} knows {}", all.join(" ")));
            }
            ToChild::VmState(states) => say(format!("{role} {me} is told {states:?} with {}", fds.len())),
            ToChild::Constraints(cpus) => {
                for file in &fds {
                    rustix::io::write(file, b"n/a").unwrap();
                }
                say(format!("{role} {me} keeps {cpus:?} awake"));
            }
            ToChild::IdlePoll(status) => say(format!("{role} {me} shows {status:?}")),
            ToChild::HidingProgram(_)
            | ToChild::SteeringProgram(_)
            | ToChild::FanOut(_)
            | ToChild::VethMeans(_)
            | ToChild::KernelPath => {}
            ToChild::Kept(interface) => say(format!(
                "{role} {me} gets {} with {}",
                interface.spec.name,
                fds.len()
            )),
            ToChild::Placement(_) | ToChild::Priority(_) | ToChild::Recalled(_) => {}
            ToChild::Ping(ping) => {
                let file = PathBuf::from(&log).with_file_name(format!("{FAULT}-{role}"));
                let fault = std::fs::read_to_string(&file).unwrap_or_default();
                // The next one is healthy.
                let _ = std::fs::remove_file(file);
                misbehave(&fault, &supervisor);
                say(format!("{role} {me} answers"));
                supervisor.send(&FromChild::Pong(ping), &[]).unwrap();
            }
            ToChild::Reload => {
                say(format!("{role} reloads"));
                // A stand-in takes this for a sign that its peers misbehave.
                for victim in Role::ALL {
                    supervisor.send(&FromChild::Replace(victim), &[]).unwrap();
                }
            }
            ToChild::Shutdown => break,
        }
    }
}

/// What a stand-in does instead of answering.
fn misbehave(fault: &str, supervisor: &Channel) {
    let mut count = 0u32;
    match fault {
        "sleep" => std::thread::sleep(Duration::from_secs(3600)),
        "compute" => loop {
            count = std::hint::black_box(count.wrapping_add(1));
        },
        // All threads compute for a while, in a class in which they get what others leave over.
        "starve" => {
            let work = || {
                for number in 0..200_000_000 {
                    std::hint::black_box(number);
                }
            };
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        }
        // One of its threads sleeps, and the others go on.
        "stuck" | "slow" => {
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(tid.unsigned_abs()).unwrap();
                std::thread::sleep(Duration::from_secs(3600));
            });
            let tid = told.recv().unwrap();
            for number in 0..20 {
                std::thread::sleep(Duration::from_millis(80));
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                let report = StuckThread {
                    tid,
                    beats: if fault == "slow" { number } else { 7 },
                    at_ms: u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap(),
                };
                supervisor.send(&FromChild::Stuck(report), &[]).unwrap();
            }
        }
        "ask" | "ask for nothing" => {
            let wanted = (fault == "ask").then(|| (ForwarderId(1), "eth0: well".into()));
            let wanted = FromChild::Forwarders(wanted.into_iter().collect());
            supervisor.send(&wanted, &[]).unwrap();
            let keep = FromChild::Keep(interfaces::tests::interface(7, "eth0"));
            let device = interfaces::tests::device();
            supervisor.send(&keep, &[device[0].as_fd()]).unwrap();
            supervisor.send(&FromChild::Recall(None), &[]).unwrap();
        }
        "accuse" => {
            for role in Role::ALL {
                supervisor.send(&FromChild::Owes(role), &[]).unwrap();
            }
        }
        _ => {}
    }
}

struct Scene {
    supervisor: Supervisor,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Scene {
    /// Starts stand-ins, or `program` instead of one of them.
    fn start(broken: Option<(Role, &'static str)>) -> Scene {
        Scene::start_with(broken, None, &[])
    }

    fn start_with(
        broken: Option<(Role, &'static str)>,
        constraints: Option<Constraints>,
        without: &[Role],
    ) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let child_log = log.clone();
        let launch = move |role| {
            if let Some((_, program)) = broken.filter(|(broken, _)| *broken == role) {
                let mut command = Command::new(program);
                // One that reads it waits for as long as we live.
                command.stdin(Stdio::piped());
                return command;
            }
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "supervisor::tests::child", "--nocapture"]);
            command
                .env(ROLE, role.to_string())
                .env(LOG, &child_log)
                .stdout(Stdio::null());
            command
        };
        let mut supervisor = Supervisor::new(
            Box::new(launch),
            None,
            placement::Config::default(),
            Err(Unavailable::NoPrivilege),
        );
        supervisor.constraints = constraints;
        supervisor
            .children
            .retain(|child| !without.contains(&child.role()));
        supervisor.start_all().unwrap();
        Scene {
            supervisor,
            log,
            _directory: directory,
        }
    }

    fn pid(&mut self, role: Role) -> u32 {
        self.supervisor.child(role).status().pid.unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn restarts(&mut self, role: Role) -> u32 {
        self.supervisor.child(role).status().restarts
    }

    /// The stand-in does this instead of answering its next ping, which is sent now.
    fn ping_with_fault(&mut self, role: Role, fault: &str) {
        std::fs::write(self.log.with_file_name(format!("{FAULT}-{role}")), fault).unwrap();
        self.ping(role);
    }

    fn ping(&mut self, role: Role) {
        // One whose messages were not all read yet is asked later.
        self.until("it is asked", |scene| {
            let child = scene.supervisor.child(role);
            child.ping(Instant::now());
            child.is_unsure()
        });
    }

    /// Does the supervisor's work until the condition holds.
    fn until(&mut self, what: &str, condition: impl Fn(&mut Scene) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition(self) {
            assert!(
                Instant::now() < deadline,
                "never happened: {what}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
            self.supervisor.keep_running(Instant::now());
        }
    }

    /// Whether the present processes of every pair have greeted each other.
    fn all_have_met(&mut self) -> bool {
        JOINED.into_iter().all(|(server, controller, id)| {
            let (pid, pid_of_controller) = (self.pid(server), self.pid(controller));
            let log = self.log();
            log.contains(&format!(
                "{server} {pid} met controller {id} {pid_of_controller}\n"
            )) && log.contains(&format!("{controller} {pid_of_controller} met {server} {pid}\n"))
        })
    }
}

#[test]
fn survivors_get_channels_to_whoever_was_started_again() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    for victim in Role::ALL {
        let before = Role::ALL.map(|role| scene.pid(role));
        scene.supervisor.child(victim).kill();
        scene.until("the victim is noticed", |scene| {
            !scene.supervisor.child(victim).is_running()
        });
        scene.until("the victim is back", |scene| {
            scene.supervisor.child(victim).is_running()
        });
        scene.until("everybody meets again", Scene::all_have_met);
        let after = Role::ALL.map(|role| scene.pid(role));
        for (role, (before, after)) in Role::ALL.into_iter().zip(before.into_iter().zip(after)) {
            assert_eq!(before != after, role == victim, "{role} when {victim} was killed");
        }
        let status = scene.supervisor.child(victim).status();
        assert_eq!(
            (status.restarts, status.last_exit.as_deref()),
            (1, Some("was killed by signal 9"))
        );
    }
    // The control process, itself one of the victims, knows of all deaths.
    let control = scene.pid(Role::Control);
    let line = format!("control {control} knows data-plane:1 driver:1 control:1 ovs:1 view:1 p4runtime:1\n");
    scene.until("control knows", |scene| scene.log().contains(&line));
    // Processes that place threads got the state of vm-state: unavailable here.
    let unavailable = VmStates::Unavailable(Unavailable::NoPrivilege.to_string());
    for role in Role::ALL {
        let told = format!("{role} {} is told {unavailable:?} with 0\n", scene.pid(role));
        assert_eq!(
            scene.log().contains(&told),
            !matches!(role, Role::Ovs | Role::Driver | Role::View | Role::P4Runtime),
            "{told}{}",
            scene.log()
        );
    }
}

/// The files of so many cores, as the kernel has them, of which the last one is set by an administrator.
fn cores(count: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value).unwrap();
    };
    write("cpuidle/current_driver", "test\n");
    for cpu in 0..count {
        let value = if cpu + 1 == count { "70\n" } else { "0\n" };
        write(&format!("cpu{cpu}/power/pm_qos_resume_latency_us"), value);
    }
    directory
}

#[test]
fn a_dead_data_plane_keeps_no_core_from_halting() {
    // Files for a full message, and for another one.
    const FILES: usize = MAX_DESCRIPTORS + 1;
    let directory = cores(FILES + 1);
    let path = directory.path().to_owned();
    let values = move || -> Vec<String> {
        let file = |cpu| path.join(format!("cpu{cpu}/power/pm_qos_resume_latency_us"));
        let value = |cpu| std::fs::read_to_string(file(cpu)).unwrap();
        (0..=FILES).map(|cpu| value(cpu).trim().to_owned()).collect()
    };
    let all = |value| [[value; FILES].as_slice(), &["70"]].concat();
    let cpus = [(0..MAX_DESCRIPTORS).collect(), vec![MAX_DESCRIPTORS]];
    let constraints = Constraints::open(directory.path(), &directory.path().join("note"));
    let mut scene = Scene::start_with(None, Some(constraints), &[]);
    for life in 0..2 {
        let pid = scene.pid(Role::DataPlane);
        for cpus in &cpus {
            let line = format!("data-plane {pid} keeps {cpus:?} awake\n");
            scene.until("the data plane has the files", |scene| {
                scene.log().contains(&line)
            });
        }
        scene.until("another one runs", |scene| {
            let is_new = scene.supervisor.child(Role::DataPlane).status().restarts == life + 1;
            if is_new {
                return true;
            }
            // Only once it is started again may the next one write.
            if scene.supervisor.child(Role::DataPlane).is_running() {
                scene.supervisor.child(Role::DataPlane).kill();
            } else {
                assert_eq!(values(), all("0"), "its constraints are lifted at once");
            }
            false
        });
    }
    let control = scene.pid(Role::Control);
    let shown = format!("control {control} shows IdlePollStatus {{ cores: {FILES}, refused: \"CPU {FILES}: ");
    scene.until("control knows", |scene| scene.log().contains(&shown));
    let pid = scene.pid(Role::DataPlane);
    let line = format!("data-plane {pid} keeps [{MAX_DESCRIPTORS}] awake\n");
    scene.until("the third has the files", |scene| scene.log().contains(&line));
    drop(scene);
    assert_eq!(values(), all("0"), "nothing is left behind at the end");
}

/// The supervisor does not wait for a data plane that does not read yet.
#[test]
fn the_files_of_many_cores_fit_into_the_channel() {
    let directory = cores(513);
    let constraints = Constraints::open(directory.path(), &directory.path().join("note"));
    assert_eq!(constraints.files().count(), 512);
    let mut scene = Scene::start_with(Some((Role::DataPlane, "/bin/cat")), Some(constraints), &[]);
    scene.supervisor.keep_running(Instant::now());
    let status = scene.supervisor.child(Role::DataPlane).status();
    assert_eq!((status.restarts, status.last_exit), (0, None));
    assert!(
        scene.supervisor.child(Role::DataPlane).due().is_none(),
        "it was killed"
    );
}

#[test]
fn whoever_serves_controllers_hears_which_one_it_is() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    // Any child can be one; here it is one that is none otherwise.
    let (server, controller) = (Role::Driver, Role::DataPlane);
    scene
        .supervisor
        .join(server, controller, ControllerId(3))
        .unwrap();
    let (pid, pid_of_controller) = (scene.pid(server), scene.pid(controller));
    scene.until("they meet", |scene| {
        let log = scene.log();
        log.contains(&format!("{server} {pid} met controller 3 {pid_of_controller}\n"))
            && log.contains(&format!("{controller} {pid_of_controller} met {server} {pid}\n"))
    });
}

#[test]
fn a_child_that_always_dies_is_started_less_and_less_often() {
    let mut scene = Scene::start(Some((Role::Driver, "/bin/false")));
    let end = Instant::now() + Duration::from_millis(1300);
    scene.until("time passes", |_| Instant::now() >= end);
    let status = scene.supervisor.child(Role::Driver).status();
    // After 100, 200, 300, 400, 600 and 1000 ms; the next would be after 1800 ms.
    assert!((3..=6).contains(&status.restarts), "{} restarts", status.restarts);
    assert_eq!(status.last_exit.as_deref(), Some("exited with status 1"));
    for role in [Role::DataPlane, Role::Control] {
        assert_eq!(
            scene.supervisor.child(role).status().restarts,
            0,
            "{role} has nothing to do with it"
        );
    }
}

#[test]
fn a_child_that_does_not_listen_is_replaced() {
    let mut scene = Scene::start(Some((Role::Driver, "/bin/cat")));
    let first = scene.pid(Role::Driver);
    // The child does not read: the socket's buffer fills up.
    scene.until("it is given up", |scene| {
        scene.supervisor.child(Role::Driver).send(&ToChild::Reload, &[]);
        scene.supervisor.child(Role::Driver).status().last_exit.is_some()
    });
    scene.until("another one runs", |scene| {
        scene.supervisor.child(Role::Driver).is_running()
    });
    assert_ne!(scene.pid(Role::Driver), first);
}

/// All but one thread of a data plane may have ended, and its descriptors with them, while the kernel holds
/// the last one.
#[test]
fn a_child_that_hung_up_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("hang-up");
    std::fs::write(&script, "#!/bin/sh\nexec 3>&-\nexec sleep 600\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).unwrap();
    let program: &'static str = script.to_str().unwrap().to_owned().leak();
    let mut scene = Scene::start(Some((Role::Driver, program)));
    scene.until("it is replaced", |scene| {
        scene.supervisor.child(Role::Driver).status().restarts > 0
    });
    let status = scene.supervisor.child(Role::Driver).status();
    assert_eq!(status.last_exit.as_deref(), Some("was killed by signal 9"));
}

/// A process that waits in the kernel without interruption outlives SIGKILL.
#[test]
fn a_child_that_cannot_be_killed_is_replaced_and_ending_does_not_wait_for_it() {
    let mut scene = Scene::start(Some((Role::Driver, "/bin/cat")));
    let first = scene.pid(Role::Driver);
    scene.supervisor.child(Role::Driver).make_immortal(true);
    scene.supervisor.child(Role::Driver).kill();
    let due = scene.supervisor.child(Role::Driver).due();
    assert!(due.is_some(), "nobody would look again");
    scene.until("another one runs", |scene| {
        let status = scene.supervisor.child(Role::Driver).status();
        status.pid.is_some_and(|pid| pid != first)
    });
    let status = scene.supervisor.child(Role::Driver).status();
    assert_eq!(
        (status.restarts, status.last_exit.as_deref()),
        (1, Some("was killed and did not end"))
    );
    // It is waited for once the kernel has let go of it.
    let lost = scene.supervisor.child(Role::Driver).lost();
    assert_eq!(
        lost.iter().map(std::process::Child::id).collect::<Vec<_>>(),
        [first]
    );
    lost[0].kill().unwrap();
    scene.until("it is gone", |scene| {
        scene.supervisor.child(Role::Driver).lost().is_empty()
    });
    // The second one does not end either.
    let started = Instant::now();
    scene.supervisor.child(Role::Driver).end();
    assert!(started.elapsed() >= child::KILL_TIMEOUT);
    assert!(!scene.supervisor.child(Role::Driver).is_running());
    scene.supervisor.child(Role::Driver).lost()[0].kill().unwrap();
}

#[test]
fn what_cannot_be_started_at_all_is_an_error() {
    let launch = |role| {
        Command::new(if role == Role::Driver {
            "/nonexistent"
        } else {
            "/bin/cat"
        })
    };
    let error = Supervisor::new(
        Box::new(launch),
        None,
        placement::Config::default(),
        Err(Unavailable::NoPrivilege),
    )
    .start_all()
    .unwrap_err();
    assert!(
        format!("{error:#}").starts_with("cannot start the driver process: "),
        "{error:#}"
    );
}

#[test]
fn a_configuration_is_refused_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(&path, "[[switch]]\nname = \"sw0\"\ncolour = 1\n").unwrap();
    let error = read_config(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}:3:", path.display())) && error.contains("colour"),
        "{error}"
    );
    let error = read_config(&directory.path().join("none")).unwrap_err();
    assert!(format!("{error:#}").contains("No such file"), "{error:#}");
}

#[test]
fn only_controllers_have_others_replaced_and_slowly() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    // Other processes may not send it.
    for role in [Role::DataPlane, Role::Driver] {
        scene.supervisor.child(role).send(&ToChild::Reload, &[]);
        let line = format!("{role} reloads\n");
        scene.until("it has said so", |scene| scene.log().contains(&line));
    }
    (0..20).for_each(|_| scene.supervisor.keep_running(Instant::now()));
    for role in Role::ALL {
        assert_eq!(scene.supervisor.child(role).status().restarts, 0, "{role}");
    }
    let control = scene.pid(Role::Control);
    let asked = Instant::now();
    scene.supervisor.child(Role::Control).send(&ToChild::Reload, &[]);
    scene.until("the data plane is another one", |scene| {
        scene.supervisor.child(Role::DataPlane).status().restarts == 1
    });
    scene.until("so is the driver domain", |scene| {
        scene.supervisor.child(Role::Driver).status().restarts == 1
    });
    assert!(asked.elapsed() >= Duration::from_secs(1), "one at a time");
    scene.until("everybody meets again", Scene::all_have_met);
    assert_eq!(
        scene.pid(Role::Control),
        control,
        "it cannot have itself replaced"
    );
}

/// Data plane and driver domain, the only peers of the process `ovs`, serve others as well.
#[test]
fn ovs_has_its_peers_replaced_and_more_slowly() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    scene.supervisor.child(Role::Ovs).send(&ToChild::Reload, &[]);
    scene.until("the data plane is another one", |scene| {
        scene.restarts(Role::DataPlane) == 1
    });
    scene.until("everybody meets again", Scene::all_have_met);
    // Longer than the control process would have to wait.
    let later = Instant::now() + Duration::from_millis(1500);
    scene.until("some time has passed", |_| Instant::now() > later);
    for role in [Role::Driver, Role::Control, Role::Ovs] {
        assert_eq!(scene.restarts(role), 0, "{role}");
    }
    // What it has said about the driver domain is not about the next one.
    signal(scene.pid(Role::Driver), rustix::process::Signal::KILL);
    scene.until("the driver domain is another one", |scene| {
        scene.restarts(Role::Driver) == 1
    });
    scene.until("everybody meets once more", Scene::all_have_met);
    let later = Instant::now() + Duration::from_secs(11);
    assert_eq!(scene.supervisor.child(Role::Ovs).take_victim(later), None);
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_stopped_child_is_replaced_and_nobody_else() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    for (deaths, victim) in Role::ALL.into_iter().enumerate() {
        let pid = scene.pid(victim);
        signal(pid, rustix::process::Signal::STOP);
        scene.until("it is replaced", |scene| scene.restarts(victim) == 1);
        scene.until("everybody meets again", Scene::all_have_met);
        let status = scene.supervisor.child(victim).status();
        assert_eq!(status.last_exit.as_deref(), Some("was stopped by signal 19"));
        let all: u32 = Role::ALL.map(|role| scene.restarts(role)).iter().sum();
        assert_eq!(all as usize, deaths + 1);
    }
}

#[test]
fn a_child_that_goes_on_is_not_replaced() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    let pid = scene.pid(Role::Driver);
    for _ in 0..5 {
        signal(pid, rustix::process::Signal::STOP);
        scene.until("it is noticed", |scene| {
            scene.supervisor.child(Role::Driver).due().is_some()
        });
        signal(pid, rustix::process::Signal::CONT);
        scene.until("it was looked at", |scene| {
            scene.supervisor.child(Role::Driver).due().is_none()
        });
    }
    assert_eq!((scene.restarts(Role::Driver), scene.pid(Role::Driver)), (0, pid));
}

#[test]
fn a_child_that_does_not_answer_is_replaced() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    for (role, fault) in [(Role::Control, "sleep"), (Role::Driver, "compute")] {
        // One that has never answered has longer.
        scene.ping_with_fault(role, "");
        scene.until("it answers", |scene| !scene.supervisor.child(role).is_unsure());
        scene.ping_with_fault(role, fault);
        scene.until("it is replaced", |scene| scene.restarts(role) == 1);
        let end = scene.supervisor.child(role).status().last_exit.unwrap();
        assert!(end.contains("did not answer"), "{end}");
        scene.until("everybody meets again", Scene::all_have_met);
    }
    assert_eq!(scene.restarts(Role::DataPlane) + scene.restarts(Role::Ovs), 0);
}

/// The child's main thread may work all the same.
#[test]
fn a_child_with_a_thread_that_does_not_go_on_is_replaced() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    let role = Role::DataPlane;
    scene.ping_with_fault(role, "slow");
    scene.until("it answers", |scene| !scene.supervisor.child(role).is_unsure());
    assert_eq!(scene.restarts(role), 0, "the thread has gone on each time");
    scene.ping_with_fault(role, "stuck");
    scene.until("it is replaced", |scene| scene.restarts(role) == 1);
    let end = scene.supervisor.child(role).status().last_exit.unwrap();
    assert_eq!(end, "has a thread that does not go on");
}

/// In the class `SCHED_IDLE` beside threads that never sleep it gets one processor in a hundred.
#[test]
fn a_child_that_gets_no_processor_is_not_replaced() {
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    let role = Role::Control;
    scene.ping_with_fault(role, "");
    scene.until("it answers", |scene| !scene.supervisor.child(role).is_unsure());
    let pid = scene.pid(role).to_string();
    let class = |name: &str| {
        let chrt = Command::new("chrt")
            .args(["--all-tasks", name, "--pid", "0", &pid])
            .status();
        assert!(chrt.unwrap().success(), "chrt of util-linux");
    };
    class("--idle");
    let ending = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let hogs = std::thread::available_parallelism().unwrap().get() * 2;
    for _ in 0..hogs {
        let ending = ending.clone();
        std::thread::spawn(move || while !ending.load(std::sync::atomic::Ordering::Relaxed) {});
    }
    scene.ping_with_fault(role, "starve");
    let end = Instant::now() + Duration::from_secs(4);
    scene.until("time passes", |scene| {
        Instant::now() >= end || !scene.supervisor.child(role).is_unsure()
    });
    let still_computes = scene.supervisor.child(role).is_unsure();
    ending.store(true, std::sync::atomic::Ordering::Relaxed);
    // Whatever else the machine does.
    class("--other");
    scene.until("it answers", |scene| !scene.supervisor.child(role).is_unsure());
    assert_eq!(scene.restarts(role), 0);
    assert!(still_computes, "it was no test: it had time enough");
    // Users hear that it is over, as they heard of it.
    scene.until("its trouble is over", |scene| {
        let log = scene.log();
        let mut told = log.lines().filter(|line| line.contains(" knows "));
        let heard = told.any(|line| line.contains("control:0!"));
        heard && told.next_back().is_some_and(|line| !line.contains('!'))
    });
}

/// The supervisor asks for itself, and does not believe.
#[test]
fn accusing_others_of_silence_does_them_no_harm() {
    let mut scene = Scene::start(None);
    // Children that nobody has to meet may still be starting, and are not asked then.
    for role in Role::ALL {
        scene.ping(role);
        scene.until("it has started", |scene| {
            !scene.supervisor.child(role).is_unsure()
        });
    }
    for role in Role::ALL {
        let before = scene.log().matches(" answers").count();
        scene.ping_with_fault(role, "accuse");
        scene.until("all but itself are asked", |scene| {
            scene.log().matches(" answers").count() >= before + Role::ALL.len()
        });
        scene.until("all have answered", |scene| {
            Role::ALL
                .into_iter()
                .all(|role| !scene.supervisor.child(role).is_unsure())
        });
    }
    assert!(Role::ALL.into_iter().all(|role| scene.restarts(role) == 0));
}

/// A process that is not there can be named all the same.
#[test]
fn a_process_that_is_not_configured_cannot_be_replaced() {
    let mut scene = Scene::start_with(None, None, &[Role::Ovs]);
    scene.supervisor.child(Role::Control).send(&ToChild::Reload, &[]);
    for role in [Role::DataPlane, Role::Driver] {
        scene.until("the others are replaced", |scene| scene.restarts(role) == 1);
    }
    let end = Instant::now() + Duration::from_millis(1200);
    scene.until("the last wish was heard", |_| Instant::now() >= end);
}

/// The broker has forwarders started and ended, and they outlive it. Other processes do not.
#[test]
fn forwarders_are_started_for_the_broker_and_outlive_it() {
    let forwarder = Role::Forwarder(ForwarderId(1));
    let mut scene = Scene::start(None);
    scene.until("everybody meets", Scene::all_have_met);
    scene.ping_with_fault(Role::Control, "ask");
    scene.until("it has answered", |scene| scene.log().contains("control "));
    scene.ping_with_fault(Role::Driver, "ask");
    scene.until("the forwarder runs", |scene| {
        let forwarder = scene.supervisor.find_child(forwarder);
        forwarder.is_some_and(|child| child.status().missing.is_some())
    });
    let have_met = |scene: &mut Scene| {
        let (broker, forwarder) = (scene.pid(Role::Driver), scene.pid(forwarder));
        let log = scene.log();
        log.contains(&format!("driver {broker} met forwarder-1 {forwarder}\n"))
            && log.contains(&format!("forwarder-1 {forwarder} met driver {broker}\n"))
    };
    scene.until("they meet", have_met);
    let status = scene.supervisor.child(forwarder).status();
    assert_eq!(status.serves.as_deref(), Some("eth0: well"));
    let broker = scene.pid(Role::Driver);
    let line = format!("driver {broker} gets eth0 with 1\n");
    scene.until("it gets what was kept", |scene| scene.log().contains(&line));
    // Each is replaced without the other.
    for (victim, survivor) in [(Role::Driver, forwarder), (forwarder, Role::Driver)] {
        let (dead, alive) = (scene.pid(victim), scene.pid(survivor));
        signal(dead, rustix::process::Signal::KILL);
        scene.until("it is back", |scene| scene.restarts(victim) == 1);
        scene.until("they meet again", have_met);
        assert_eq!(scene.pid(survivor), alive);
    }
    scene.ping_with_fault(Role::Driver, "ask");
    let line = format!("driver {} gets eth0 with 1\n", scene.pid(Role::Driver));
    scene.until("so does its successor", |scene| scene.log().contains(&line));
    scene.ping_with_fault(Role::Driver, "ask for nothing");
    scene.until("it has ended", |scene| {
        scene.supervisor.find_child(forwarder).is_none()
    });
    assert!(
        Role::ALL
            .into_iter()
            .all(|role| role == Role::Driver || scene.restarts(role) == 0)
    );
}
