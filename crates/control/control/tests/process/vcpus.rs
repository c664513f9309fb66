//! The vCPU threads of each port's guest.

use crate::rig::{Rig, wait};
use crate::two_ports;
use control_protocol::data_plane::{Connection, FromDataPlane, PortState};
use control_protocol::driver::thread_name;
use control_protocol::supervisor::{ForwarderId, ProcessStatus, Role, ToChild, VmStates};
use flow::{ControllerId, PortId};
use management::{PortInfo, Reply, Request as Verb, Status};
use std::process::{Child, Command};
use vm_state::Publisher;

/// A VMM that looks like any other: all its threads count.
struct Vmm(Child);

impl Vmm {
    fn start() -> Vmm {
        Vmm(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn status(rig: &Rig) -> Status {
    match rig.call(Verb::Status) {
        Reply::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn port(rig: &Rig, name: &str) -> PortInfo {
    match rig.call(Verb::PortShow { port: name.into() }) {
        Reply::Ports(mut ports) => ports.remove(0),
        other => panic!("{other:?}"),
    }
}

fn slots(rig: &Rig, port: PortId) -> Vec<u16> {
    let plane = rig.plane.lock().unwrap();
    plane.threads.get(&port).cloned().unwrap_or_default()
}

fn publish(rig: &Rig, publisher: &Publisher) {
    let message = ToChild::VmState(VmStates::Published);
    rig.supervisor.send(&message, &[publisher.area()]).unwrap();
}

#[test]
fn users_are_told_why_nothing_is_known() {
    let (rig, a, _) = two_ports();
    let reason = "no privilege".to_owned();
    rig.supervisor
        .send(&ToChild::VmState(VmStates::Unavailable(reason.clone())), &[])
        .unwrap();
    wait("the reason", || {
        (status(&rig).vm_state.reason == Some(reason.clone())).then_some(())
    });
    assert!(!status(&rig).vm_state.published);
    rig.set_peer(a, PortState::Running, Some(std::process::id()));
    wait("the port", || (port(&rig, "a").state == "running").then_some(()));
    assert!(port(&rig, "a").vcpus.is_empty());
    assert!(slots(&rig, a).is_empty());
}

#[test]
fn threads_of_guests_come_and_go() {
    // Without the privilege there is nothing to try.
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let (rig, a, b) = two_ports();
    publish(&rig, &publisher);
    wait("it is published", || {
        status(&rig).vm_state.published.then_some(())
    });

    // Two ports of one machine, and then one.
    let vmm = Vmm::start();
    let pid = vmm.0.id();
    rig.set_peer(a, PortState::Connected, Some(pid));
    let slot = wait("a's thread", || slots(&rig, a).first().copied());
    assert_eq!(port(&rig, "a").vcpus, [pid]);
    rig.set_peer(b, PortState::Running, Some(pid));
    wait("b's thread", || (slots(&rig, b) == [slot]).then_some(()));
    rig.set_peer(a, PortState::Disconnected, None);
    wait("a has none", || slots(&rig, a).is_empty().then_some(()));
    let state = vm_state::VmState::map(publisher.area()).unwrap();
    wait("it is still known", || {
        matches!(
            state.thread(vm_state::Slot(slot)),
            vm_state::ThreadState::Blocked(_)
        )
        .then_some(())
    });

    // It ends, and only the scheduler reports it.
    drop(vmm);
    wait("b's thread is gone", || {
        status(&rig);
        slots(&rig, b).is_empty().then_some(())
    });
    assert_eq!(state.thread(vm_state::Slot(slot)), vm_state::ThreadState::Unknown);
}

#[test]
fn a_new_control_process_or_data_plane_is_told_anew() {
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let (mut rig, a, _) = two_ports();
    publish(&rig, &publisher);
    let vmm = Vmm::start();
    rig.set_peer(a, PortState::Running, Some(vmm.0.id()));
    let told = |rig: &Rig| wait("a's thread", || slots(rig, a).first().copied());
    told(&rig);
    rig.plane.lock().unwrap().threads.clear();
    rig.restart_control();
    publish(&rig, &publisher);
    rig.connect_plane();
    told(&rig);
    rig.plane.lock().unwrap().threads.clear();
    rig.connect_plane();
    told(&rig);
}

#[test]
fn the_thread_of_an_interface_is_found_in_the_driver_domain() {
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let config = "[[switch]]\nname = \"s\"\ntype = \"internal\"\nhost = { addresses = [\"10.1.2.3/24\"] }\n";
    let rig = Rig::start(Some(config));
    let host = rig.number("s:host");
    publish(&rig, &publisher);
    // Before anything is known of the driver domain, and then with one that has such a thread.
    rig.set_peer(host, PortState::Running, Some(std::process::id()));
    wait("the port", || {
        (port(&rig, "s:host").state == "running").then_some(())
    });
    assert!(slots(&rig, host).is_empty());
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(thread_name(host))
        .spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
                .unwrap();
            let _ = ended.recv();
        });
    let tid = told.recv().unwrap();
    let driver = ProcessStatus {
        role: Role::Forwarder(ForwarderId::TAPS),
        pid: Some(std::process::id()),
        restarts: 0,
        last_exit: None,
        missing: None,
        trouble: None,
        serves: None,
        started_ms: None,
    };
    let processes = ToChild::Processes(vec![driver]);
    rig.supervisor.send(&processes, &[]).unwrap();
    wait("its thread", || (slots(&rig, host).len() == 1).then_some(()));
    assert_eq!(port(&rig, "s:host").vcpus, [tid]);
    rig.set_peer(host, PortState::Disconnected, None);
    wait("it is forgotten", || slots(&rig, host).is_empty().then_some(()));
    drop(end);
    thread.unwrap().join().unwrap();
}

/// Ports of another controller, which cannot register threads, get theirs registered.
#[test]
fn guests_of_others_ports_are_looked_up_too() {
    let Ok(publisher) = Publisher::attach() else {
        return;
    };
    let (mut rig, a, _) = two_ports();
    publish(&rig, &publisher);
    let foreign = ControllerId::OVS.port(3).unwrap();
    let (vmm, other) = (Vmm::start(), Vmm::start());
    let tell = |rig: &Rig, state, peer: Option<&Vmm>| {
        let message = FromDataPlane::ForeignPort {
            port: foreign,
            connection: Connection::Listener,
            state,
            peer: peer.map(|vmm| vmm.0.id()),
        };
        rig.to_control.send(&message, &[]).unwrap();
    };
    let forget = |rig: &Rig| rig.plane.lock().unwrap().threads.clear();
    let told = |rig: &Rig| wait("its thread", || slots(rig, foreign).first().copied());
    tell(&rig, PortState::Running, Some(&vmm));
    let slot = told(&rig);
    rig.set_peer(a, PortState::Running, Some(vmm.0.id()));
    wait("a's thread", || (slots(&rig, a) == [slot]).then_some(()));
    // The same of a new port of that number: it has to be told again.
    forget(&rig);
    tell(&rig, PortState::Running, Some(&vmm));
    assert_eq!(told(&rig), slot);
    tell(&rig, PortState::Running, Some(&other));
    wait("the other's thread", || {
        slots(&rig, foreign).first().filter(|new| **new != slot).copied()
    });
    tell(&rig, PortState::Disconnected, None);
    let state = vm_state::VmState::map(publisher.area()).unwrap();
    let is_known = |slot| state.thread(vm_state::Slot(slot)) != vm_state::ThreadState::Unknown;
    let gone = slots(&rig, foreign)[0];
    wait("nobody's thread is forgotten", || (!is_known(gone)).then_some(()));
    assert!(is_known(slot), "it is a's");
    // A new data plane says anew what there is.
    tell(&rig, PortState::Running, Some(&other));
    told(&rig);
    forget(&rig);
    rig.connect_plane();
    tell(&rig, PortState::Running, Some(&other));
    told(&rig);
    // Numbers that no such port can have, from a data plane that lies.
    for port in [a, PortId(PortId::LIMIT), PortId(u32::MAX)] {
        let message = FromDataPlane::ForeignPort {
            port,
            connection: Connection::Driver,
            state: PortState::Running,
            peer: Some(other.0.id()),
        };
        rig.to_control.send(&message, &[]).unwrap();
    }
    status(&rig);
    assert!(slots(&rig, PortId(PortId::LIMIT)).is_empty() && slots(&rig, PortId(u32::MAX)).is_empty());
}
