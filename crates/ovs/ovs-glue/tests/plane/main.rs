//! Data planes of all sorts behind the channel: those that behave, and those that lie, hang or die.

#![allow(clippy::unwrap_used)]

mod connecting;
mod flow_shares;
mod hostile;
mod limits;
mod policies;
mod restore;
mod upcalls;

use control_protocol::Channel;
use control_protocol::data_plane::{
    Answer as Told, Connection, EndedFlow, FromDataPlane, Packet, PortInfo, PortState, Request, ToDataPlane,
    Upcall, UpcallCause, UpcallId,
};
use control_protocol::driver::{FromDriver, ToDriver};
use flow::{FlowId as Id, FlowKey, FlowStats, MeterStats, PortCounters, PortId, Stage, SwitchId};
use ovs_glue::datapath::{
    Answer, Datapath, DatapathId, Detail, Errno, FlowId, FlowSpec, MeterSpec, PortNo, PortSpec, PutMode,
    Question, Ticket,
};
use ovs_glue::plane::{Options, Plane, Plug};
use ovs_netlink::action::Action;
use ovs_netlink::flow::Ufid;
use ovs_netlink::key::{Ethernet, Key, Match};
use ovs_netlink::meter::Band;
use ovs_netlink::packet::Execute;
use ovs_netlink::vport::Kind;
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

const DATAPATH: DatapathId = DatapathId(7);
const FIRST: u32 = 4096;

struct World {
    directory: tempfile::TempDir,
    plane: Plane,
    /// The data plane's end.
    peer: Channel,
    tickets: u64,
}

impl World {
    /// A data plane that has these ports from before.
    fn with(infos: Vec<PortInfo>) -> World {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            miss_rate: 1000,
            directory: directory.path().to_owned(),
            plugs: BTreeMap::new(),
        };
        let mut world = World {
            plane: Plane::new(options).unwrap(),
            peer: Channel::pair().unwrap().0,
            directory,
            tickets: 0,
        };
        world.plane.create(DATAPATH).unwrap();
        world.connect(infos);
        world
    }

    fn new() -> World {
        World::with(Vec::new())
    }

    /// Another data plane.
    fn connect(&mut self, infos: Vec<PortInfo>) {
        let asked = self.connect_silent();
        let ports = Told::Ports {
            ports: infos,
            more: false,
        };
        self.answer(&asked, ports);
        assert!(self.plane.is_ready());
    }

    /// Another data plane, which is asked for its ports.
    fn connect_silent(&mut self) -> ToDataPlane {
        let (ours, theirs) = Channel::pair().unwrap();
        self.plane.connect(ours).unwrap();
        self.peer = theirs;
        assert!(!self.plane.is_ready());
        assert!(matches!(self.hear().request, Request::Hello { .. }));
        let asked = self.hear();
        assert_eq!(asked.request, Request::PortList);
        let switch = SwitchId(1);
        assert_eq!(self.hear().request, Request::FlowFlush { switch });
        assert_eq!(self.hear().request, Request::MeterFlush);
        asked
    }

    /// The data plane dies.
    fn lose(&mut self) {
        self.peer = Channel::pair().unwrap().0;
        self.plane.exchange();
    }

    /// The next request.
    fn hear(&mut self) -> ToDataPlane {
        self.plane.exchange();
        self.peer.try_recv().unwrap().0
    }

    fn hears_nothing(&mut self) {
        self.plane.exchange();
        assert!(self.peer.try_recv::<ToDataPlane>().is_err());
    }

    fn say(&mut self, message: FromDataPlane) {
        self.peer.try_send(&message, &[]).unwrap();
        self.plane.exchange();
    }

    /// How the port number 1 is.
    fn say_state(&mut self, state: PortState) {
        self.say(FromDataPlane::PortState {
            port: PortId(FIRST + 1),
            state,
            peer: None,
            shortfall: None,
        });
    }

    fn answer(&mut self, asked: &ToDataPlane, told: Told) {
        self.say(FromDataPlane::Answer {
            serial: asked.serial,
            result: Ok(told),
        });
    }

    fn refuse(&mut self, asked: &ToDataPlane, errno: i32) {
        let text = "a test".into();
        self.say(FromDataPlane::Answer {
            serial: asked.serial,
            result: Err(control_protocol::RequestError { errno, text }),
        });
    }

    fn ask(&mut self, question: Question) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.plane.ask(ticket, DATAPATH, question);
        ticket
    }

    /// A driver domain without interfaces.
    fn connect_driver(&mut self) -> Channel {
        let (ours, driver) = Channel::pair().unwrap();
        self.plane.connect_driver(ours).unwrap();
        self.plane.exchange();
        driver.try_recv::<ToDriver>().unwrap();
        driver.try_send(&FromDriver::Interfaces(Vec::new()), &[]).unwrap();
        self.plane.exchange();
        driver
    }

    fn add_port(&mut self, number: u32, name: &str) {
        self.add(number, name, Kind::Internal);
    }

    /// A device that was there before.
    fn add_device(&mut self, number: u32, name: &str) {
        self.add(number, name, Kind::Netdev);
    }

    fn add(&mut self, number: u32, name: &str, kind: Kind) {
        let spec = PortSpec {
            number: PortNo(number),
            name: name.into(),
            kind,
            options: None,
        };
        self.plane.add_port(DATAPATH, &spec).unwrap();
    }

    /// A flow that is installed, and what the data plane calls it.
    fn flow(&mut self, number: u8) -> Id {
        let ticket = self.ask(put(number, PutMode::Create));
        let asked = self.hear();
        let Request::FlowPut { flow, .. } = &asked.request else {
            panic!("{asked:?}")
        };
        let id = flow.id;
        self.answer(&asked, ended(&[]));
        assert_eq!(self.plane.next_answer(), Some((ticket, Ok(Answer::Done))));
        id
    }

    fn violations(&self) -> u64 {
        self.plane.counters().violations
    }
}

fn ended(flows: &[(Id, u64)]) -> Told {
    let ended = |(id, packets): &(Id, u64)| EndedFlow {
        id: *id,
        stats: counted(*packets),
    };
    Told::Ended {
        flows: flows.iter().map(ended).collect(),
        complete: true,
    }
}

fn counted(packets: u64) -> FlowStats {
    FlowStats {
        packets,
        bytes: 60 * packets,
        idle_ms: Some(5),
        tcp_flags: 0x112,
    }
}

fn name(number: u8) -> FlowId {
    FlowId::Ufid(Ufid::new(&[number; 16]).unwrap())
}

fn matches(number: u8) -> Box<Match> {
    let key = Key {
        ethernet: Some(Ethernet {
            source: [2, 0, 0, 0, 0, number],
            destination: [2; 6],
        }),
        eth_type: 0x88b5,
        ..Key::default()
    };
    Box::new(Match {
        mask: key.exact_mask(),
        key,
    })
}

fn put(number: u8, mode: PutMode) -> Question {
    let spec = FlowSpec {
        id: name(number),
        matches: matches(number),
        actions: vec![Action::Output(1)],
    };
    Question::PutFlow(spec, mode)
}

fn packets(answer: Option<(Ticket, Result<Answer, Errno>)>) -> u64 {
    match answer {
        Some((_, Ok(Answer::Flow(flow)))) => flow.seen.stats.packets,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flows_are_under_way_until_the_data_plane_has_answered() {
    let mut world = World::new();
    let tickets: Vec<_> = (1..=3)
        .map(|number| world.ask(put(number, PutMode::Create)))
        .collect();
    let asked: Vec<_> = (0..3).map(|_| world.hear()).collect();
    assert_eq!(world.plane.next_answer(), None);
    // One that is refused is not there.
    world.answer(&asked[0], ended(&[]));
    world.refuse(&asked[1], 28);
    world.refuse(&asked[2], -7);
    let mut answers = BTreeMap::new();
    while let Some((ticket, answer)) = world.plane.next_answer() {
        answers.insert(ticket, answer);
    }
    let wanted = [Ok(Answer::Done), Err(Errno::ENOSPC), Err(Errno::EIO)];
    assert_eq!(answers, tickets.into_iter().zip(wanted).collect());
    world.ask(Question::Flow(name(2), Detail::Seen));
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::ENOENT)))));
    world.ask(put(1, PutMode::Create));
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EEXIST)))));
}

#[test]
fn a_flow_is_told_as_it_was_given_with_its_last_statistics() {
    let mut world = World::new();
    let id = world.flow(1);
    world.ask(Question::Flow(name(1), Detail::Whole));
    let asked = world.hear();
    world.answer(
        &asked,
        Told::FlowStats {
            flows: vec![(id, counted(3))],
            more: false,
        },
    );
    let Some((_, Ok(Answer::Flow(flow)))) = world.plane.next_answer() else {
        panic!()
    };
    let rule = flow.rule.unwrap();
    assert_eq!(
        (rule.matches, rule.actions),
        (matches(1), vec![Action::Output(1)])
    );
    assert_eq!((flow.seen.stats.packets, flow.seen.tcp_flags), (3, 0x12));
    assert!(flow.seen.used.is_some());
    // A change that is refused leaves what was there.
    let question = Question::SetFlow {
        id: name(1),
        actions: Some(vec![Action::PopVlan]),
        clear: false,
    };
    world.ask(question);
    let asked = world.hear();
    world.refuse(&asked, 28);
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::ENOSPC)))));
    world.ask(Question::RemoveFlow(name(1), Detail::Whole));
    let asked = world.hear();
    assert_eq!(
        asked.request,
        Request::FlowDel {
            switch: SwitchId(1),
            id
        }
    );
    world.answer(&asked, ended(&[(id, 9)]));
    let answer = world.plane.next_answer();
    let Some((_, Ok(Answer::Flow(flow)))) = &answer else {
        panic!("{answer:?}")
    };
    assert_eq!(flow.rule.as_ref().unwrap().actions, [Action::Output(1)]);
    assert_eq!(packets(answer), 9);
}

#[test]
fn what_is_asked_is_said_before_waiting() {
    let mut world = World::new();
    world.ask(put(1, PutMode::Create));
    world.plane.flush();
    let (asked, _) = world.peer.try_recv::<ToDataPlane>().unwrap();
    assert!(matches!(asked.request, Request::FlowPut { .. }));
    // It takes nothing in: who waits next would not be woken for it.
    let told = FromDataPlane::Answer {
        serial: asked.serial,
        result: Ok(ended(&[])),
    };
    world.peer.try_send(&told, &[]).unwrap();
    world.plane.flush();
    assert_eq!(world.plane.next_answer(), None);
    world.plane.exchange();
    assert!(matches!(world.plane.next_answer(), Some((_, Ok(Answer::Done)))));
}

#[test]
fn lists_go_on_where_they_ended_and_must_make_progress() {
    let mut world = World::new();
    let ids: Vec<_> = (1..=3).map(|number| world.flow(number)).collect();
    world.ask(Question::FlowsAfter(0, Detail::Seen));
    let asked = world.hear();
    // Of an earlier process, or ended meanwhile: left out.
    let other = Id(ids[1].0 | 1 << 40);
    let flows = vec![(ids[0], counted(1)), (ids[1], counted(2)), (other, counted(1))];
    world.answer(&asked, Told::FlowStats { flows, more: true });
    let Some((_, Ok(Answer::Flows { flows, more_after }))) = world.plane.next_answer() else {
        panic!()
    };
    let found: Vec<_> = flows.iter().map(|(_, flow)| flow.id.clone()).collect();
    assert_eq!(found, [name(1), name(2)]);
    for flows in [
        vec![(ids[2], counted(1)), (ids[2], counted(1))],
        vec![(ids[0], counted(1))],
    ] {
        world.ask(Question::FlowsAfter(more_after.unwrap().min(2), Detail::Seen));
        let asked = world.hear();
        let before = world.violations();
        world.answer(&asked, Told::FlowStats { flows, more: true });
        assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EIO)))));
        assert_eq!(world.violations(), before + 1);
    }
}

#[test]
fn answers_to_other_questions_are_errors() {
    let mut world = World::new();
    world.add_port(1, "vm1");
    let made = world.hear();
    world.answer(&made, Told::Done);
    let id = world.flow(1);
    let questions = [
        put(2, PutMode::Create),
        Question::FlushFlows,
        Question::FlowsAfter(0, Detail::Seen),
        Question::PortStats(PortNo(1)),
        Question::SetMeter(1, rate(1)),
        Question::Meter(1),
    ];
    for question in questions {
        world.ask(question.clone());
        let asked = world.hear();
        let before = world.violations();
        world.answer(&asked, Told::Trace(Vec::new()));
        let answer = world.plane.next_answer();
        // An error would make ovs-vswitchd remove the port.
        let is_as_it_should = match question {
            Question::PortStats(_) => matches!(answer, Some((_, Ok(Answer::Done)))),
            _ => matches!(answer, Some((_, Err(Errno::EIO)))),
        };
        assert!(is_as_it_should, "{question:?}: {answer:?}");
        assert_eq!(world.violations(), before + 1);
        // Once more, unasked.
        world.answer(&asked, ended(&[(id, 1)]));
        assert_eq!(
            (world.plane.next_answer(), world.violations()),
            (None, before + 2)
        );
    }
}

fn upcall(port: u32, serial: u64) -> FromDataPlane {
    let mut key = FlowKey::default();
    key.set_in_port(port);
    FromDataPlane::Upcall(Upcall {
        id: UpcallId {
            port: PortId(port),
            serial,
        },
        switch: SwitchId(1),
        cause: UpcallCause::Miss {
            stage: Stage::Forward,
        },
        key,
        context: None,
        packet: Packet {
            vnet_header: [0xff; 12],
            frame: vec![0; 60],
        },
    })
}

#[test]
fn packets_for_ovs_vswitchd_are_handed_over_one_by_one() {
    let mut world = World::new();
    world.add_port(1, "vm1");
    world.hear();
    world.say(upcall(FIRST + 1, 5));
    world.hears_nothing();
    let upcall_of = world.plane.next_upcall(&|_| true).unwrap();
    assert_eq!(
        (upcall_of.port, upcall_of.key.metadata.in_port),
        (PortNo(1), Some(1))
    );
    // The data plane is told of it with the next request, or a moment later.
    let due = world.plane.has_to_tell().unwrap();
    std::thread::sleep(due.saturating_duration_since(std::time::Instant::now()));
    let taken = world.hear().request;
    assert_eq!(world.plane.has_to_tell(), None);
    let id = UpcallId {
        port: PortId(FIRST + 1),
        serial: 5,
    };
    assert_eq!(taken, Request::Taken { upcall: id });
    // From ports that are not there, or not ours.
    for port in [FIRST + 2, FIRST + 100, 1, u32::MAX] {
        let before = world.violations();
        world.say(upcall(port, 1));
        assert!(matches!(world.hear().request, Request::Discard { .. }));
        assert!(world.plane.next_upcall(&|_| true).is_none());
        assert_eq!(world.violations(), before + 1);
    }
    // More than any data plane has under way: bounded, and it is told.
    let mut discarded = 0;
    for serial in 0..20_000 {
        world.say(upcall(FIRST + 1, serial));
        while let Ok((message, _)) = world.peer.try_recv::<ToDataPlane>() {
            assert!(matches!(message.request, Request::Discard { .. }));
            discarded += 1;
        }
    }
    assert_eq!(discarded, world.plane.counters().upcalls_dropped);
    assert!(discarded > 0 && discarded < 20_000);
}

#[test]
fn packets_from_ovs_vswitchd_are_checked_before_they_are_sent() {
    let mut world = World::new();
    world.add_port(1, "vm1");
    world.hear();
    let mut execute = Execute {
        datapath: DATAPATH.0,
        packet: &[0; 60],
        metadata: ovs_netlink::key::Metadata {
            in_port: Some(1),
            mark: 3,
            recirc_id: 4,
            dp_hash: 5,
            ..Default::default()
        },
        eth_type: None,
        actions: vec![Action::Output(1)],
        probe: false,
        mru: None,
        hash: None,
        upcall_pid: None,
    };
    assert_eq!(world.plane.execute(&execute), Ok(()));
    let Request::Execute(sent) = world.hear().request else {
        panic!()
    };
    assert_eq!((sent.recirc_id, sent.dp_hash), (4, 5));
    let actions: Vec<_> = sent.actions.iter().map(ToString::to_string).collect();
    assert_eq!(actions, ["set(skb_mark=0x3)", "output(4097)"]);
    assert!(!sent.no_ethernet);
    // A packet that begins with its network header gets one for an Ethernet header's place.
    execute.eth_type = Some(0x894f);
    assert_eq!(world.plane.execute(&execute), Ok(()));
    let Request::Execute(sent) = world.hear().request else {
        panic!()
    };
    assert!(sent.no_ethernet);
    assert_eq!(
        sent.packet.frame,
        [&[0; 12][..], &[0x89, 0x4f], &[0; 60]].concat()
    );
    execute.eth_type = None;
    execute.probe = true;
    assert_eq!(world.plane.execute(&execute), Ok(()));
    execute.actions = vec![Action::ClearConnection];
    assert_eq!(world.plane.execute(&execute), Err(Errno::EINVAL));
    execute.metadata.in_port = Some(2);
    assert_eq!(world.plane.execute(&execute), Err(Errno::EINVAL));
    world.hears_nothing();
}

#[test]
fn what_was_asked_of_a_data_plane_that_dies_is_answered_and_the_next_one_gets_the_ports() {
    let mut world = World::new();
    world.plane.plug("vm1", Plug::Server);
    world.add_port(1, "vm1");
    assert_eq!(world.plane.next_carrier(), Some((DATAPATH, PortNo(1), false)));
    let asked = world.hear();
    let Request::PortAdd(made) = &asked.request else {
        panic!()
    };
    assert!(world.directory.path().join("vm1.sock").exists());
    // About an earlier port of that number.
    world.say_state(PortState::Running);
    assert_eq!(world.plane.next_carrier(), None);
    world.answer(&asked, Told::Done);
    world.say_state(PortState::Running);
    assert_eq!(world.plane.next_carrier(), Some((DATAPATH, PortNo(1), true)));
    world.ask(Question::PortStats(PortNo(1)));
    let asked = world.hear();
    let counters = PortCounters {
        received: 10,
        ..PortCounters::default()
    };
    world.answer(
        &asked,
        Told::Ports {
            ports: vec![info(made.clone(), counters)],
            more: false,
        },
    );
    assert!(matches!(world.plane.next_answer(), Some((_, Ok(Answer::Done)))));
    // An error would make ovs-vswitchd remove the port.
    let counted = world.ask(Question::PortStats(PortNo(1)));
    world.lose();
    assert_eq!(world.plane.next_answer(), Some((counted, Ok(Answer::Done))));
    assert_eq!(world.plane.next_carrier(), Some((DATAPATH, PortNo(1), false)));
    // Meanwhile there are the last counters.
    assert_eq!(world.plane.port_stats(DATAPATH, PortNo(1)).rx_packets, 10);
    world.connect(Vec::new());
    let Request::PortAdd(again) = world.hear().request else {
        panic!()
    };
    assert_eq!(again, *made);
    assert_eq!(
        world.plane.port_stats(DATAPATH, PortNo(1)).rx_packets,
        10,
        "none goes back"
    );
    assert_eq!(world.plane.counters().lost, 1);
    world.plane.remove_port(DATAPATH, PortNo(1));
    assert!(!world.directory.path().join("vm1.sock").exists());
}

fn info(spec: control_protocol::data_plane::PortSpec, counters: PortCounters) -> PortInfo {
    PortInfo {
        spec,
        state: PortState::Running,
        peer: None,
        shortfall: None,
        guest: Default::default(),
        features: 0,
        costly: Default::default(),
        kernel_path: None,
        device_queue: None,
        counters,
    }
}

#[test]
fn ports_of_an_earlier_process_are_found_again_or_removed() {
    let mut first = World::new();
    for (number, name) in [(3, "vm1"), (4, "vm2")] {
        first.plane.plug(name, Plug::Server);
        first.add_port(number, name);
    }
    let specs: Vec<_> = (0..2)
        .map(|_| match first.hear().request {
            Request::PortAdd(spec) => spec,
            other => panic!("{other:?}"),
        })
        .collect();
    let infos = specs.into_iter().map(|spec| info(spec, PortCounters::default()));
    let mut world = World::with(infos.collect());
    assert_eq!(world.plane.number_of("vm1"), Some(PortNo(3)));
    world.plane.plug("vm1", Plug::Server);
    world.add_port(3, "vm1");
    assert!(
        matches!(world.hear().request, Request::PortSet { .. }),
        "its guest stays connected"
    );
    assert!(matches!(
        world.hear().request,
        Request::PortEnable { up: true, .. }
    ));
    assert!(matches!(world.hear().request, Request::PortFilters { .. }));
    assert!(matches!(world.hear().request, Request::PortRates { .. }));
    let port = (DATAPATH, PortNo(3));
    let carriers: Vec<_> = std::iter::from_fn(|| world.plane.next_carrier()).collect();
    assert_eq!(carriers, [(port.0, port.1, true)]);
    world.plane.remove_abandoned();
    let removed = Request::PortDel {
        port: PortId(FIRST + 4),
    };
    assert_eq!(world.hear().request, removed);
    world.hears_nothing();
}

/// A VMM that listens, and the port `vm1` that is to be connected to it.
fn client() -> (World, UnixListener, ToDataPlane) {
    let mut world = World::new();
    let path = world.directory.path().join("vmm.sock");
    let vmm = UnixListener::bind(&path).unwrap();
    vmm.set_nonblocking(true).unwrap();
    world.plane.plug("vm1", Plug::Client(path.into()));
    world.add_port(1, "vm1");
    let added = world.hear();
    assert!(matches!(&added.request, Request::PortAdd(spec) if spec.connection == Connection::Attached));
    (world, vmm, added)
}

impl World {
    /// Waits until the data plane is given a connection.
    fn hears_attach(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            self.plane.flush();
            if let Ok((heard, descriptors)) = self.peer.try_recv::<ToDataPlane>() {
                let port = PortId(FIRST + 1);
                assert_eq!(heard.request, Request::PortAttach { port });
                assert_eq!(descriptors.len(), 1);
                return self.answer(&heard, Told::Done);
            }
            assert!(Instant::now() < end && self.plane.next_attempt().is_some());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_vmm_that_listens_is_connected_to_again_and_again() {
    let (mut world, vmm, added) = client();
    world.plane.flush();
    assert!(vmm.accept().is_err(), "the data plane does not have the port yet");
    assert_eq!(world.plane.next_attempt(), None);
    world.answer(&added, Told::Done);
    world.hears_attach();
    vmm.accept().unwrap();
    // One that came to nothing.
    world.hears_attach();
    vmm.accept().unwrap();
    world.say_state(PortState::Connected);
    world.say_state(PortState::Running);
    while world.plane.next_attempt().is_some() {
        world.plane.flush();
        std::thread::sleep(Duration::from_millis(5));
    }
    world.hears_nothing();
    world.say_state(PortState::Disconnected);
    world.hears_attach();
    vmm.accept().unwrap();
    // Another data plane has the port anew, and its connection.
    world.lose();
    assert_eq!(world.plane.next_attempt(), None);
    world.connect(Vec::new());
    let added = world.hear();
    world.answer(&added, Told::Done);
    world.hears_attach();
    assert_eq!(world.violations(), 0);
}

#[test]
fn a_vmm_is_left_when_its_path_is_changed_or_taken_back() {
    let (mut world, vmm, added) = client();
    world.answer(&added, Told::Done);
    world.hears_attach();
    vmm.accept().unwrap();
    world.say_state(PortState::Running);
    let other = world.directory.path().join("other.sock");
    let there = UnixListener::bind(&other).unwrap();
    world.plane.plug("vm1", Plug::Client(other.into()));
    let port = PortId(FIRST + 1);
    assert_eq!(world.hear().request, Request::PortDel { port });
    let added = world.hear();
    // Of the port before.
    world.say_state(PortState::Running);
    world.answer(&added, Told::Done);
    world.hears_attach();
    there.accept().unwrap();
    assert!(vmm.accept().is_err());
    world.plane.plug_all(&BTreeMap::new());
    assert_eq!(world.hear().request, Request::PortDel { port });
    let added = world.hear();
    world.answer(&added, Told::Done);
    assert_eq!(world.plane.next_attempt(), None);
    world.hears_nothing();
}

#[test]
fn a_connection_of_an_earlier_process_stays_unless_it_is_not_wanted_any_more() {
    let (world, _vmm, added) = client();
    let Request::PortAdd(spec) = added.request else {
        panic!()
    };
    let path = world.directory.path().join("vmm.sock");
    for (is_wanted, state) in [
        (true, PortState::Running),
        (true, PortState::Disconnected),
        (false, PortState::Running),
    ] {
        let mut told = info(spec.clone(), PortCounters::default());
        told.state = state.clone();
        let mut next = World::with(vec![told]);
        if is_wanted {
            next.plane.plug("vm1", Plug::Client(path.clone().into()));
        }
        next.add_port(1, "vm1");
        let first = next.hear().request;
        assert_eq!(matches!(first, Request::PortSet { .. }), is_wanted, "{first:?}");
        assert_eq!(matches!(first, Request::PortDel { .. }), !is_wanted, "{first:?}");
        if is_wanted {
            assert!(matches!(
                next.hear().request,
                Request::PortEnable { up: true, .. }
            ));
            assert!(matches!(next.hear().request, Request::PortFilters { .. }));
            assert!(matches!(next.hear().request, Request::PortRates { .. }));
        }
        if state == PortState::Disconnected {
            next.hears_attach();
        } else {
            while next.plane.next_attempt().is_some() {
                next.plane.flush();
            }
            assert!(!is_wanted || next.peer.try_recv::<ToDataPlane>().is_err());
        }
    }
}

fn rate(rate: u32) -> MeterSpec {
    MeterSpec {
        kilobits: true,
        bands: vec![Band { rate, burst: 9 }],
    }
}

/// What a meter is told to have seen, and to have dropped.
fn metered(answer: Option<(Ticket, Result<Answer, Errno>)>) -> Option<(u64, u64)> {
    match answer {
        Some((_, Ok(Answer::Meter(meter)))) => {
            meter.map(|meter| (meter.seen.stats.packets, meter.bands[0].packets))
        }
        other => panic!("{other:?}"),
    }
}

fn told(packets: u64) -> Told {
    Told::Meter(Some(MeterStats {
        packets,
        dropped_packets: packets / 2,
        ..MeterStats::default()
    }))
}

#[test]
fn meters_outlive_data_planes_and_no_counter_goes_back() {
    let mut world = World::new();
    world.ask(Question::SetMeter(3, rate(5)));
    let asked = world.hear();
    let Request::MeterSet { meter: 3, spec } = asked.request else {
        panic!("{asked:?}")
    };
    world.answer(&asked, Told::Meter(None));
    assert_eq!(metered(world.plane.next_answer()), None);
    world.ask(Question::Meter(3));
    let asked = world.hear();
    world.answer(&asked, told(10));
    assert_eq!(metered(world.plane.next_answer()), Some((10, 5)));
    // A change that is refused leaves what was there.
    world.ask(Question::SetMeter(3, rate(6)));
    let asked = world.hear();
    world.refuse(&asked, 27);
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EFBIG)))));
    world.lose();
    world.ask(Question::Meter(3));
    assert_eq!(
        metered(world.plane.next_answer()),
        Some((10, 5)),
        "without data plane"
    );
    world.ask(Question::SetMeter(4, rate(1)));
    assert_eq!(metered(world.plane.next_answer()), None);
    world.connect(Vec::new());
    assert_eq!(world.hear().request, Request::MeterSet { meter: 3, spec });
    assert!(matches!(world.hear().request, Request::MeterSet { meter: 4, .. }));
    world.ask(Question::RemoveMeter(3));
    let asked = world.hear();
    assert_eq!(asked.request, Request::MeterDel { meter: 3 });
    world.answer(&asked, told(4));
    assert_eq!(metered(world.plane.next_answer()), Some((14, 7)));
    world.plane.remove(DATAPATH);
    assert_eq!(world.hear().request, Request::MeterFlush);
}

#[test]
fn meters_that_no_data_plane_could_have_are_refused_at_once() {
    let mut world = World::new();
    let two = MeterSpec {
        kilobits: false,
        bands: vec![Band { rate: 1, burst: 1 }; 2],
    };
    for spec in [rate(0), two] {
        world.ask(Question::SetMeter(1, spec));
        assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EINVAL)))));
    }
    let none = MeterSpec {
        kilobits: false,
        bands: Vec::new(),
    };
    for number in 0..ovs_glue::plane::MAX_METERS {
        world.ask(Question::SetMeter(number, none.clone()));
        let asked = world.hear();
        world.answer(&asked, Told::Meter(None));
        assert!(matches!(
            world.plane.next_answer(),
            Some((_, Ok(Answer::Meter(None))))
        ));
    }
    world.ask(Question::SetMeter(ovs_glue::translate::OWN_METERS - 1, rate(1)));
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EFBIG)))));
    // Replacing takes no room, and all of them are told to the next one.
    world.ask(Question::SetMeter(0, rate(u32::MAX)));
    let asked = world.hear();
    world.answer(&asked, Told::Meter(None));
    world.connect(Vec::new());
    for number in 0..ovs_glue::plane::MAX_METERS {
        let Request::MeterSet { meter, .. } = world.hear().request else {
            panic!()
        };
        assert_eq!(meter, number);
    }
    world.hears_nothing();
}

#[test]
fn a_port_stays_down_in_the_next_data_plane() {
    let mut world = World::new();
    world.plane.plug("vm1", Plug::Server);
    world.add_port(1, "vm1");
    let id = PortId(FIRST + 1);
    let enable = |up| Request::PortEnable { port: id, up };
    let device = |up| ovs_glue::datapath::DeviceSettings { up, mtu: 1500 };
    assert!(matches!(world.hear().request, Request::PortAdd(_)));
    for up in [true, false, false] {
        world.plane.set_device(DATAPATH, PortNo(1), device(up));
    }
    assert_eq!(world.hear().request, enable(false));
    world.hears_nothing();
    world.connect(Vec::new());
    assert!(matches!(world.hear().request, Request::PortAdd(_)));
    assert_eq!(world.hear().request, enable(false));
    // Nor does another guest bring it up.
    let path = world.directory.path().join("vmm.sock");
    world.plane.plug("vm1", Plug::Client(path.into()));
    assert_eq!(world.hear().request, Request::PortDel { port: id });
    assert!(matches!(world.hear().request, Request::PortAdd(_)));
    assert_eq!(world.hear().request, enable(false));
    world.plane.set_device(DATAPATH, PortNo(1), device(true));
    assert_eq!(world.hear().request, enable(true));
    world.hears_nothing();
    // Packets that go through a device are stopped by it.
    world.add_port(2, "int1");
    assert!(matches!(world.hear().request, Request::PortAdd(_)));
    world.plane.set_device(DATAPATH, PortNo(2), device(false));
    world.hears_nothing();
}

#[test]
fn no_device_is_attached_before_the_database_has_told_all() {
    let mut world = World::new();
    let _driver = world.connect_driver();
    assert_eq!(world.plane.held(), None);
    world.add_port(1, "int1");
    world.add_port(2, "vm2");
    assert_eq!(world.plane.held(), Some(2));
    for _ in 0..2 {
        assert_eq!(world.plane.next_device(), None, "who it is for is not known");
        assert_eq!(
            world.plane.next_attempt(),
            None,
            "nothing is to be done before it is"
        );
        // Whatever dies meanwhile.
        world.connect(Vec::new());
    }
    world.add_port(3, "int3");
    // What the database had to tell then.
    world.plane.plug("vm2", Plug::Server);
    world.plane.release(2);
    assert_eq!(world.plane.next_device(), Some((DATAPATH, PortNo(1))));
    assert_eq!(world.plane.next_device(), None, "made later, or a guest's");
    assert_eq!(world.plane.held(), Some(3));
    world.plane.release(3);
    assert_eq!(world.plane.next_device(), Some((DATAPATH, PortNo(3))));
    assert_eq!(world.plane.held(), None);
    // A port that is no guest's any more.
    world.plane.plug_all(&BTreeMap::new());
    assert_eq!(world.plane.next_device(), None);
    world.plane.release(world.plane.held().unwrap());
    assert_eq!(world.plane.next_device(), Some((DATAPATH, PortNo(2))));
}

#[test]
fn a_device_of_the_host_waits_for_its_ports_policy() {
    let mut world = World::new();
    let driver = world.connect_driver();
    world.add_device(1, "eth1");
    assert_eq!(world.plane.next_device(), None);
    world.plane.exchange();
    assert!(driver.try_recv::<ToDriver>().is_err());
    world.plane.release(world.plane.held().unwrap());
    assert_eq!(world.plane.next_device(), None, "there is one");
    world.plane.exchange();
    let attached = driver.try_recv::<ToDriver>().unwrap().0;
    assert!(matches!(attached, ToDriver::Attach { .. }), "{attached:?}");
}

#[test]
fn what_a_packet_bears_is_told() {
    let mut world = World::new();
    world.add_port(1, "vm1");
    world.hear();
    let FromDataPlane::Upcall(mut upcall) = upcall(FIRST + 1, 1) else {
        panic!()
    };
    upcall.key.set_recirc_id(5);
    upcall.key.set_dp_hash(6);
    upcall.key.set_skb_mark(7);
    let mut context = flow::Context::default();
    context.set_skb_priority(8);
    upcall.context = Some(Box::new(context));
    world.say(FromDataPlane::Upcall(upcall.clone()));
    let told = world.plane.next_upcall(&|_| true).unwrap().key.metadata;
    let told = (told.recirc_id, told.dp_hash, told.mark, told.priority);
    assert_eq!(told, (5, 6, 7, 8));
    // Without an Ethernet header.
    upcall.key.set_no_ethernet(1);
    let whole = upcall.packet.frame.clone();
    world.say(FromDataPlane::Upcall(upcall));
    let told = world.plane.next_upcall(&|_| true).unwrap();
    assert_eq!(told.key.ethernet, None);
    assert_eq!(told.packet, whole[14..]);
}
