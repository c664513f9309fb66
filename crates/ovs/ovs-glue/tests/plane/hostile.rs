//! Data planes that a guest has taken over: the tests that each client of the contract passes.

#[path = "../../../../control/controller/tests/hostile/mod.rs"]
mod suite;

use crate::{FIRST, World};
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, Role};
use flow::{ControllerId, PortId, SwitchId};
use ovs_glue::datapath::Datapath;
use std::time::Duration;
use suite::Victim;

struct Ovs {
    world: World,
    has_replaced: bool,
}

impl Victim for Ovs {
    fn meet(&mut self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        self.world.plane.connect(ours).unwrap();
        self.world.plane.flush();
        theirs
    }

    fn go_on(&mut self) {
        let plane = &mut self.world.plane;
        plane.exchange();
        while plane.next_upcall(&|_| true).is_some() {}
        plane.flush();
        while let Some(complaint) = plane.complaint() {
            self.has_replaced |= complaint == FromChild::Replace(Role::DataPlane);
        }
    }

    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn take_replace_request(&mut self) -> bool {
        std::mem::take(&mut self.has_replaced)
    }

    fn memory(&self) -> u64 {
        suite::memory(std::process::id())
    }

    fn controller(&self) -> ControllerId {
        ControllerId::OVS
    }

    fn port(&self) -> Option<(PortId, SwitchId)> {
        Some((PortId(FIRST + 1), SwitchId(1)))
    }
}

fn ovs() -> Ovs {
    let mut world = World::new();
    world.add_port(1, "vm1");
    Ovs {
        world,
        has_replaced: false,
    }
}

#[test]
fn a_data_plane_that_speaks_nonsense_is_replaced_for_ovs_too() {
    suite::nonsense(&mut ovs());
}

#[test]
fn so_is_one_that_answers_what_nobody_asked() {
    suite::answers_that_nobody_asked_for(&mut ovs());
}

#[test]
fn so_is_one_that_answers_other_questions() {
    suite::answers_to_other_questions(&mut ovs());
}

/// One after the other, since both measure the memory of this process.
#[test]
fn neither_lists_nor_packets_without_end_are_kept() {
    suite::lists_without_end(&mut ovs());
    suite::packets_without_end(&mut ovs());
}

#[test]
fn so_is_one_that_closes_its_channel_and_lives_on() {
    suite::absence(&mut ovs());
}

#[test]
fn each_packet_for_ovs_vswitchd_ends_once() {
    suite::each_packet_ends_once(&mut ovs());
}
