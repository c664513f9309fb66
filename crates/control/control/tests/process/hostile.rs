//! A data plane that a guest has taken over, and messages that guests and VMMs can make an honest one send.

use crate::rig::{Rig, wait, welcome};
use crate::{running, two_ports};
use control_protocol::Channel;
use control_protocol::data_plane::*;
use control_protocol::supervisor::{FromChild, Role, ToChild, VmStates};
use flow::{Action, PortId, Stage};
use management::{Reply, Request as Verb};
use rustix::net::{SendFlags, send};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A VMM connects and disconnects all the time, while another port's guest has thousands of flows that flood.
#[test]
fn connects_change_the_flows_that_they_concern_at_a_pace() {
    let (mut rig, a, b) = two_ports();
    running(&rig, 2);
    for from in 1..=200 {
        rig.upcall(a, from, 0xff);
        rig.upcall(a, from, 0xfe);
    }
    rig.executed(b, 0xee, 0xff);
    rig.executed(a, 1, 0xee);
    rig.flow(a, 1, 0xee, Some(&[Action::Output(b)]));
    rig.plane.lock().unwrap().log.clear();
    for _ in 0..300 {
        rig.set_state(b, PortState::Disconnected);
        rig.set_state(b, PortState::Running);
    }
    // The flows are right in the end, and a packet is decided about in between.
    rig.executed(a, 3, 0xee);
    rig.set_state(b, PortState::Running);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    rig.flow(a, 200, 0xfe, Some(&[Action::Output(b)]));
    let puts = |request: &&Request| matches!(request, Request::FlowPut { .. });
    let changed = rig.plane.lock().unwrap().log.iter().filter(puts).count();
    assert!(changed < 600 * 400 / 4, "{changed} flows were changed");
    // The flow to a known station never was.
    let known = control::l2::flow_id(&crate::rig::key(a, 1, 0xee));
    let again = |request: &&Request| matches!(request, Request::FlowPut { flow, .. } if flow.id == known);
    assert_eq!(rig.plane.lock().unwrap().log.iter().filter(again).count(), 0);
}

/// Environment variable that makes the test program a VMM.
const VMM: &str = "CONTROL_TEST_VMM";

/// Not a test: a process that starts a thread for each byte it reads, when started by one.
#[test]
fn vmm() {
    if std::env::var_os(VMM).is_none() {
        return;
    }
    let (mut input, mut output) = (std::io::stdin(), std::io::stderr());
    while input.read_exact(&mut [0]).is_ok() {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(1000)));
        output.write_all(b".").unwrap();
    }
}

struct Vmm(Child);

impl Vmm {
    fn start() -> Vmm {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "hostile::vmm", "--nocapture"])
            .env(VMM, "1");
        let pipes = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Vmm(pipes.spawn().unwrap())
    }

    fn start_thread(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b".").unwrap();
        self.0.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A guest's threads are looked up when it connects and when it runs, and not again however often its rings
/// start.
#[test]
fn a_guest_is_looked_at_once_per_connection() {
    let Ok(publisher) = vm_state::Publisher::attach() else {
        return;
    };
    let (rig, a, _) = two_ports();
    let message = ToChild::VmState(VmStates::Published);
    rig.supervisor.send(&message, &[publisher.area()]).unwrap();
    let mut vmm = Vmm::start();
    vmm.start_thread();
    let peer = Some(vmm.0.id());
    let threads = |rig: &Rig| rig.plane.lock().unwrap().threads.get(&a).map_or(0, Vec::len);
    // Its threads are looked up once, now: after its first connection they are looked up again later, as the
    // pace allows.
    rig.set_peer(a, PortState::Running, peer);
    let before = wait("its threads", || Some(threads(&rig)).filter(|count| *count > 1));
    running(&rig, 2);
    vmm.start_thread();
    for _ in 0..200 {
        rig.set_peer(a, PortState::Connected, peer);
        rig.set_peer(a, PortState::Running, peer);
    }
    rig.set_peer(a, PortState::Connected, peer);
    running(&rig, 1);
    assert_eq!(threads(&rig), before, "it was looked at again");
    rig.set_peer(a, PortState::Disconnected, None);
    wait("it is gone", || (threads(&rig) == 0).then_some(()));
    rig.set_peer(a, PortState::Connected, peer);
    wait("another look", || (threads(&rig) == before + 1).then_some(()));
    // It runs, and the data plane says so once more, since it has packets while all these threads sleep.
    rig.set_peer(a, PortState::Running, peer);
    running(&rig, 2);
    vmm.start_thread();
    rig.set_peer(a, PortState::Running, peer);
    wait("the thread that sends", || {
        (threads(&rig) == before + 2).then_some(())
    });
}

/// Resident memory of a process in megabytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Waits until the control process has asked the supervisor for another process of that role.
fn replaced(rig: &Rig, role: Role) {
    let asked = wait("a request to replace", || {
        let said = rig.supervisor.try_recv::<FromChild>().ok().map(|(said, _)| said);
        // Before that, the supervisor may have been asked to look at it.
        said.filter(|said| *said != FromChild::Owes(role))
    });
    assert_eq!(asked, FromChild::Replace(role));
}

/// A channel of ours that the control process takes for one to a data plane.
pub fn fallen_plane(rig: &Rig) -> Channel {
    let (ours, theirs) = Channel::pair().unwrap();
    let message = ToChild::Peer(Role::DataPlane);
    rig.supervisor.send(&message, &[theirs.as_fd()]).unwrap();
    ours
}

/// The control process gets on with users, and with the next data plane.
fn recovers(rig: &mut Rig) {
    assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
    rig.connect_plane();
    let (a, b) = (rig.number("a"), rig.number("b"));
    rig.set_state(a, PortState::Running);
    rig.set_state(b, PortState::Running);
    running(rig, 2);
    assert_eq!(rig.executed(a, 1, 0xff), [Action::Output(b)]);
}

fn nonsense(channel: &Channel, count: usize) {
    for _ in 0..count {
        // In the end the channel is closed.
        if send(channel, &[0xff; 100], SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

#[test]
fn a_data_plane_that_speaks_nonsense_is_replaced() {
    let (mut rig, ..) = two_ports();
    nonsense(&rig.to_control, 10_000);
    replaced(&rig, Role::DataPlane);
    recovers(&mut rig);
}

#[test]
fn so_is_a_driver_domain() {
    let (mut rig, ..) = two_ports();
    nonsense(&rig.connect_driver(), 10_000);
    replaced(&rig, Role::Driver);
    recovers(&mut rig);
}

#[test]
fn a_data_plane_that_closes_its_channel_and_lives_on_is_replaced() {
    let (mut rig, ..) = two_ports();
    drop(fallen_plane(&rig));
    replaced(&rig, Role::DataPlane);
    recovers(&mut rig);
}

/// What hangs keeps its channel. The supervisor finds out, once it is told, long before a list is overdue.
#[test]
fn peers_that_owe_answers_are_looked_at() {
    let (mut rig, ..) = two_ports();
    let told = |rig: &Rig, role| {
        wait("a request to look", || {
            let said = rig.supervisor.try_recv::<FromChild>().ok()?;
            (said.0 == FromChild::Owes(role)).then_some(())
        });
    };
    let _silent = fallen_plane(&rig);
    told(&rig, Role::DataPlane);
    let _silent_too = rig.connect_driver();
    told(&rig, Role::Driver);
    recovers(&mut rig);
    // Who answers is not looked at.
    while rig.supervisor.try_recv::<FromChild>().is_ok() {}
    for _ in 0..10 {
        rig.call(Verb::PortList { switch: None });
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
    let said = rig.supervisor.try_recv::<FromChild>().map(|(said, _)| said);
    assert!(!matches!(said, Ok(FromChild::Owes(Role::DataPlane))), "{said:?}");
}

/// Answers requests about lists with parts that never end.
fn list_without_end(channel: &Channel, part: &Answer, after: &Answer) {
    while let Ok((ToDataPlane { serial, request }, _)) = channel.recv::<ToDataPlane>() {
        let say = |answer: &Answer| {
            let result = Ok(answer.clone());
            channel.send(&FromDataPlane::Answer { serial, result }, &[])
        };
        let answered = match request {
            Request::Hello { .. } => say(&welcome(1)),
            Request::PortList if !matches!(part, Answer::Ports { .. }) => say(after),
            Request::PortList => {
                while say(part).is_ok() {}
                return;
            }
            Request::FlowList { .. } => say(part),
            _ => say(&Answer::Done),
        };
        if answered.is_err() {
            return;
        }
    }
}

#[test]
fn lists_without_end_are_not_waited_for() {
    let (mut rig, ..) = two_ports();
    let none = Answer::Ports {
        ports: Vec::new(),
        more: false,
    };
    let flow = flow::Flow::new(
        flow::FlowId(1),
        flow::SwitchId(1),
        flow::FlowKey::default(),
        flow::FlowMask::ANY,
        Vec::new(),
    );
    let flows = |count| Answer::Flows {
        flows: vec![(flow.clone(), flow::FlowStats::default()); count],
        ways: Vec::new(),
        more: true,
    };
    let nothing = Answer::Ports {
        ports: Vec::new(),
        more: true,
    };
    for part in [nothing, flows(0), flows(400)] {
        let before = memory(rig.child.id());
        list_without_end(&fallen_plane(&rig), &part, &none);
        replaced(&rig, Role::DataPlane);
        let after = memory(rig.child.id());
        assert!(after < before + 400, "from {before} to {after} MB");
    }
    recovers(&mut rig);
}

fn large_upcall(port: PortId, switch: flow::SwitchId, serial: u64) -> FromDataPlane {
    FromDataPlane::Upcall(Upcall {
        id: UpcallId { port, serial },
        switch,
        cause: UpcallCause::Miss {
            stage: Stage::Forward,
        },
        key: crate::rig::key(port, serial % 50, 0xff),
        context: None,
        packet: Packet {
            vnet_header: [0; 12],
            frame: vec![7; 60_000],
        },
    })
}

/// Sends packets and never reads the answers, before and after it has listed its ports.
#[test]
fn packets_without_end_are_not_kept() {
    for greeted in [false, true] {
        let (mut rig, a, _) = two_ports();
        let switch = rig.plane.lock().unwrap().ports[&a].spec.switch;
        let channel = fallen_plane(&rig);
        if greeted {
            let ports: Vec<PortInfo> = rig.plane.lock().unwrap().ports.values().cloned().collect();
            let mut left = 3;
            while left > 0 {
                let (ToDataPlane { serial, request }, _) = channel.recv::<ToDataPlane>().unwrap();
                let (ports, more) = (ports.clone(), false);
                let result = Ok(match request {
                    Request::Hello { .. } => welcome(1),
                    Request::PortList => Answer::Ports { ports, more },
                    Request::FlowList { .. } => Answer::Flows {
                        flows: Vec::new(),
                        ways: Vec::new(),
                        more,
                    },
                    _ => continue,
                });
                channel
                    .send(&FromDataPlane::Answer { serial, result }, &[])
                    .unwrap();
                left -= 1;
            }
        }
        let before = memory(rig.child.id());
        for serial in 0..5000 {
            channel.send(&large_upcall(a, switch, serial), &[]).unwrap();
        }
        assert!(matches!(rig.call(Verb::Status), Reply::Status(_)));
        let after = memory(rig.child.id());
        assert!(
            after < before + 120,
            "from {before} to {after} MB; greeted: {greeted}"
        );
        recovers(&mut rig);
    }
}

#[test]
fn no_text_of_others_controls_a_terminal() {
    let (rig, a, _) = two_ports();
    let evil = "\x1b]0;title\x07\x1b[2J\u{9b}31m\r\n\u{202e}".repeat(500);
    rig.tell(a, PortState::Broken(evil.clone()), None, Some(&evil));
    let problem = wait("the problem", || {
        match rig.call(Verb::PortShow { port: "a".into() }) {
            Reply::Ports(mut ports) => ports.remove(0).problem,
            other => panic!("{other:?}"),
        }
    });
    assert!(problem.contains("\\u{1b}]0;title"), "{problem:?}");
    // Of two texts.
    assert!(
        problem.chars().count() < 2 * 300,
        "{} characters",
        problem.chars().count()
    );
    let plain = |c: char| !c.is_control() && c != '\u{202e}';
    assert!(problem.chars().all(plain), "{problem:?}");
    let Reply::Status(status) = rig.call(Verb::Status) else {
        panic!()
    };
    assert!(status.warnings.iter().all(|warning| warning.chars().all(plain)));
}
