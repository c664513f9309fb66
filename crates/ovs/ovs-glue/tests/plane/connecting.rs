//! Answers about new ports, which wait for devices.

use super::{Channel, DATAPATH, FIRST, World};
use control_protocol::data_plane::{PortState, Request};
use control_protocol::driver::{FromDriver, InterfaceState};
use flow::PortId;
use ovs_glue::datapath::{Answer, Datapath, PortNo, Question, Ticket};
use ovs_glue::plane::Plug;
use std::time::{Duration, Instant};

/// A driver domain without interfaces, and a port with a device that it is to attach.
fn with_device() -> (World, Channel) {
    let mut world = World::new();
    let driver = world.connect_driver();
    world.add_device(1, "eth1");
    let added = world.hear();
    assert!(matches!(added.request, Request::PortAdd(_)), "{added:?}");
    world.answer(&added, control_protocol::data_plane::Answer::Done);
    (world, driver)
}

fn say(driver: &Channel, state: InterfaceState) {
    let port = PortId(FIRST + 1);
    driver.try_send(&FromDriver::State { port, state }, &[]).unwrap();
}

fn done(ticket: Ticket) -> Option<(Ticket, Result<Answer, ovs_glue::datapath::Errno>)> {
    Some((ticket, Ok(Answer::Done)))
}

#[test]
fn a_port_is_there_once_its_device_is_attached_on_both_sides() {
    let (mut world, driver) = with_device();
    let ticket = world.ask(Question::Connected(PortNo(1)));
    assert_eq!(world.plane.next_answer(), None, "it is held");
    world.plane.release(world.plane.held().unwrap());
    assert_eq!(world.plane.next_device(), None);
    assert!(matches!(world.hear().request, Request::PortAttach { .. }));
    say(&driver, InterfaceState::Up);
    world.plane.exchange();
    assert_eq!(
        world.plane.next_answer(),
        None,
        "the data plane has no rings of it"
    );
    world.say_state(PortState::Running);
    assert_eq!(world.plane.next_answer(), done(ticket));
    assert_eq!(world.plane.next_answer(), None);
    let again = world.ask(Question::Connected(PortNo(1)));
    assert_eq!(world.plane.next_answer(), done(again));
}

#[test]
fn a_device_that_fails_holds_up_nobody() {
    let (mut world, driver) = with_device();
    let ticket = world.ask(Question::Connected(PortNo(1)));
    assert_eq!(world.plane.next_answer(), None);
    say(&driver, InterfaceState::Failed("it is a member of a bond".into()));
    world.plane.exchange();
    assert_eq!(world.plane.next_answer(), done(ticket));
}

#[test]
fn nobody_waits_for_what_cannot_come() {
    // A guest connects when it likes, and a port that is not there never does.
    let (mut world, _driver) = with_device();
    world.plane.plug("vm2", Plug::Server);
    world.add_port(2, "vm2");
    for port in [2, 3] {
        let ticket = world.ask(Question::Connected(PortNo(port)));
        assert_eq!(world.plane.next_answer(), done(ticket), "{port}");
    }
    // The port goes, and either process.
    let ticket = world.ask(Question::Connected(PortNo(1)));
    assert_eq!(world.plane.next_answer(), None);
    world.plane.remove_port(DATAPATH, PortNo(1));
    assert_eq!(world.plane.next_answer(), done(ticket));
    let (mut world, driver) = with_device();
    let ticket = world.ask(Question::Connected(PortNo(1)));
    drop(driver);
    world.plane.exchange();
    assert_eq!(world.plane.next_answer(), done(ticket));
    let (mut world, _driver) = with_device();
    let ticket = world.ask(Question::Connected(PortNo(1)));
    world.lose();
    assert_eq!(world.plane.next_answer(), done(ticket));
}

#[test]
fn a_device_that_says_nothing_is_waited_for_half_a_second() {
    let (mut world, _driver) = with_device();
    let begin = Instant::now();
    let ticket = world.ask(Question::Connected(PortNo(1)));
    let answer = loop {
        if let Some(answer) = world.plane.next_answer() {
            break answer;
        }
        let left = world.plane.time_left().expect("a timer");
        assert!(left <= Duration::from_millis(500), "{left:?}");
        std::thread::sleep(left.max(Duration::from_millis(1)));
    };
    assert_eq!(Some(answer), done(ticket));
    assert!(
        begin.elapsed() >= Duration::from_millis(499),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn of_many_ports_at_once_the_first_ones_are_waited_for() {
    let (mut world, _driver) = with_device();
    let begin = Instant::now();
    let tickets: Vec<_> = (0..20)
        .map(|_| world.ask(Question::Connected(PortNo(1))))
        .collect();
    let answered: Vec<_> = std::iter::from_fn(|| world.plane.next_answer()).collect();
    if begin.elapsed() < Duration::from_millis(400) {
        let last: Vec<_> = tickets[16..]
            .iter()
            .map(|ticket| (*ticket, Ok(Answer::Done)))
            .collect();
        assert_eq!(answered, last);
    }
}
