//! A data plane that has fallen to a guest, and what guests and VMMs can make an honest one say.

use crate::rig::{Rig, wait};
use crate::{running, two_ports};
use control_protocol::data_plane::*;
use control_protocol::supervisor::ToChild;
use flow::Action;
use std::io::{Read, Write};
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
    rig.plane.lock().unwrap().log.clear();
    for _ in 0..300 {
        rig.set_state(b, PortState::Disconnected);
        rig.set_state(b, PortState::Running);
    }
    // What is right in the end is there in the end, and a packet is decided about in between.
    rig.executed(a, 3, 0xee);
    rig.set_state(b, PortState::Running);
    rig.flow(a, 1, 0xff, Some(&[Action::Output(b)]));
    rig.flow(a, 200, 0xfe, Some(&[Action::Output(b)]));
    let puts = |request: &&Request| matches!(request, Request::FlowPut(_));
    let changed = rig.plane.lock().unwrap().log.iter().filter(puts).count();
    assert!(changed < 600 * 400 / 4, "{changed} flows were changed");
    // The flow to a known station never was.
    let known = control::l2::flow_id(&crate::rig::key(a, 1, 0xee));
    let again = |request: &&Request| matches!(request, Request::FlowPut(flow) if flow.id == known);
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

/// A guest's threads are looked up when it connects and when it runs, and not again however often its rings start.
#[test]
fn a_guest_is_looked_at_once_per_connection() {
    let Ok(publisher) = vm_state::Publisher::attach() else {
        return;
    };
    let (rig, a, _) = two_ports();
    let message = ToChild::VmState(Ok(()));
    rig.supervisor.send(&message, &[publisher.area()]).unwrap();
    let mut vmm = Vmm::start();
    vmm.start_thread();
    let peer = Some(vmm.0.id());
    let threads = |rig: &Rig| rig.plane.lock().unwrap().threads.get(&a).map_or(0, Vec::len);
    rig.set_peer(a, PortState::Connected, peer);
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
}
