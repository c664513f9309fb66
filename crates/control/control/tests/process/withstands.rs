//! The control process before data planes that a guest has taken over: the tests that each client of the
//! contract passes.

#[path = "../../../controller/tests/hostile/mod.rs"]
mod suite;

use crate::hostile::fallen_plane;
use crate::rig::Rig;
use crate::two_ports;
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, Role};
use flow::{ControllerId, PortId, SwitchId};
use std::time::Duration;
use suite::Victim;

struct Control {
    rig: Rig,
    port: (PortId, SwitchId),
}

impl Victim for Control {
    fn meet(&mut self) -> Channel {
        fallen_plane(&self.rig)
    }

    fn go_on(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }

    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn take_replace_request(&mut self) -> bool {
        let supervisor = &self.rig.supervisor;
        let mut said = std::iter::from_fn(|| Some(supervisor.try_recv::<FromChild>().ok()?.0));
        said.any(|said| said == FromChild::Replace(Role::DataPlane))
    }

    fn memory(&self) -> u64 {
        suite::memory(self.rig.child.id())
    }

    fn controller(&self) -> ControllerId {
        ControllerId::BUILT_IN
    }

    fn port(&self) -> Option<(PortId, SwitchId)> {
        Some(self.port)
    }
}

fn control() -> Control {
    let (rig, a, _) = two_ports();
    let switch = rig.plane.lock().unwrap().ports[&a].spec.switch;
    Control {
        rig,
        port: (a, switch),
    }
}

#[test]
fn a_data_plane_that_answers_what_nobody_asked_is_replaced() {
    suite::answers_that_nobody_asked_for(&mut control());
}

#[test]
fn a_data_plane_that_answers_other_questions_is_replaced() {
    suite::answers_to_other_questions(&mut control());
}

#[test]
fn the_control_process_withstands_nonsense() {
    suite::nonsense(&mut control());
}

#[test]
fn the_control_process_withstands_lists_without_end() {
    suite::lists_without_end(&mut control());
}

#[test]
fn the_control_process_withstands_absence() {
    suite::absence(&mut control());
}

#[test]
fn the_control_process_withstands_packets_without_end() {
    suite::packets_without_end(&mut control());
}

#[test]
fn each_packet_ends_once() {
    suite::each_packet_ends_once(&mut control());
}
