//! The client of a data plane, which the tests play.

#![allow(clippy::unwrap_used)]

use control_protocol::data_plane::*;
use control_protocol::port_counts::PortCount;
use control_protocol::supervisor::{FromChild, Role};
use control_protocol::{Channel, RequestError};
use controller::{ABSENCE_MS, Client, Event, Lost, SYNC_MS};
use flow::{
    Action, ControllerId, Filters, Flow, FlowId, FlowKey, FlowMask, FlowStats, PortCounters, PortId, PutMode,
    Stage, SwitchId,
};
use std::collections::BTreeMap;

const SWITCH: SwitchId = SwitchId(1);
const PORT: PortId = PortId(1);

/// A client, whose purposes are texts, and the other end of its channel.
struct World {
    client: Client<&'static str>,
    peer: Channel,
}

impl World {
    /// Client and data plane agree already.
    fn new() -> World {
        let mut world = World::silent();
        let hello = world.hear();
        assert!(matches!(hello.request, Request::Hello { version: VERSION }));
        let welcome = Answer::Welcome {
            controller: ControllerId::OVS,
            workers: 2,
            pid: 42,
        };
        world.answer(&hello, welcome);
        assert!(world.next().is_none());
        world.client.compare(0);
        world
    }

    /// The data plane has not said anything yet.
    fn silent() -> World {
        let (ours, peer) = Channel::pair().unwrap();
        let mut client = Client::default();
        client.attach(ours, 0);
        World { client, peer }
    }

    fn hear(&self) -> ToDataPlane {
        self.peer.try_recv().unwrap().0
    }

    fn heard(&self) -> Vec<Request> {
        let heard = std::iter::from_fn(|| self.peer.try_recv::<ToDataPlane>().ok());
        heard.map(|(message, _)| message.request).collect()
    }

    fn say(&self, message: &FromDataPlane) {
        self.peer.try_send(message, &[]).unwrap();
    }

    fn answer(&self, asked: &ToDataPlane, answer: Answer) {
        self.say(&FromDataPlane::Answer {
            serial: asked.serial,
            result: Ok(answer),
        });
    }

    fn next(&mut self) -> Option<Event<&'static str>> {
        self.client.receive(2).unwrap()
    }

    /// The answer that comes next.
    fn answered(&mut self) -> (&'static str, Result<Answer, RequestError>) {
        match self.next() {
            Some(Event::Answered(purpose, result)) => (purpose, result),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, request: Request, purpose: &'static str) {
        self.client.ask(request, Vec::new(), purpose).unwrap();
    }
}

fn flow(id: u128) -> Flow {
    Flow::new(
        FlowId(id),
        SWITCH,
        FlowKey::default(),
        FlowMask::ANY,
        vec![Action::Output(PORT)],
    )
}

fn put(id: u128) -> Request {
    Request::FlowPut {
        flow: flow(id),
        mode: PutMode::Create,
    }
}

fn port_set(port: PortId, mtu: u16) -> Request {
    Request::PortSet {
        port,
        mtu,
        miss_rate: 1,
    }
}

fn ended() -> Answer {
    Answer::Ended {
        flows: Vec::new(),
        complete: true,
    }
}

fn info(number: u32) -> PortInfo {
    PortInfo {
        spec: PortSpec {
            port: PortId(number),
            switch: SWITCH,
            name: "a".into(),
            connection: Connection::Attached,
            mtu: 1500,
            miss_rate: 1,
            mac: None,
            masked_features: 0,
            filters: Filters::default(),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        },
        state: PortState::Disconnected,
        peer: None,
        shortfall: None,
        guest: GuestState::Unknown,
        features: 0,
        counters: PortCounters::default(),
        costly: Costly::default(),
        kernel_path: None,
        device_queue: None,
    }
}

fn upcall(serial: u64, bytes: usize) -> Upcall {
    Upcall {
        id: UpcallId { port: PORT, serial },
        switch: SWITCH,
        cause: UpcallCause::Miss {
            stage: Stage::Forward,
        },
        key: FlowKey::default(),
        context: None,
        packet: Packet {
            vnet_header: [0; 12],
            frame: vec![7; bytes],
        },
    }
}

fn execute(upcall: Upcall) -> Request {
    Request::Execute(Execute {
        upcall: Some(upcall.id),
        in_port: PORT,
        stage: Stage::Forward,
        recirc_id: 0,
        dp_hash: 0,
        no_ethernet: false,
        actions: Vec::new(),
        packet: upcall.packet,
    })
}

#[test]
fn each_answer_finds_its_purpose_once() {
    let mut world = World::new();
    world.ask(put(1), "first");
    world.ask(Request::MeterGet { meter: 1 }, "second");
    let (first, second) = (world.hear(), world.hear());
    world.answer(&second, Answer::Meter(None));
    world.answer(&first, ended());
    assert_eq!(world.answered(), ("second", Ok(Answer::Meter(None))));
    assert_eq!(world.answered(), ("first", Ok(ended())));
    world.answer(&first, ended());
    assert!(world.next().is_none());
    assert_eq!(world.client.violations(), 1, "nobody had asked");
    assert_eq!(world.client.detach(Some(Lost::Gone), 0), Some(Vec::new()));
    assert_eq!(world.client.ask(put(2), Vec::new(), "none"), Err("none"));
}

#[test]
fn requests_without_answers_come_back_when_the_channel_is_given_up() {
    let mut world = World::new();
    world.ask(put(1), "first");
    world.ask(put(2), "second");
    world.client.tell(port_set(PORT, 1500));
    world.client.forget(|purpose| *purpose == "second");
    assert_eq!(world.client.detach(None, 0), Some(vec!["first"]));
    assert_eq!(world.client.detach(None, 0), None);
}

#[test]
fn an_answer_of_another_kind_is_an_error() {
    let requests = [
        put(1),
        Request::FlowDel {
            switch: SWITCH,
            id: FlowId(1),
        },
        Request::PortDel { port: PORT },
        Request::PortList,
        Request::Counters,
        Request::FlowGet {
            switch: SWITCH,
            id: FlowId(1),
        },
        Request::MeterFlush,
        Request::MeterGet { meter: 1 },
    ];
    let mut world = World::new();
    for (number, request) in (1..).zip(requests) {
        world.ask(request, "it");
        let asked = world.hear();
        world.answer(&asked, Answer::Trace(Vec::new()));
        let (_, result) = world.answered();
        assert_eq!(
            (result.unwrap_err().errno, world.client.violations()),
            (5, number)
        );
    }
}

#[test]
fn lists_arrive_whole_and_pages_one_by_one() {
    let mut world = World::new();
    world.ask(Request::PortList, "ports");
    let asked = world.hear();
    for number in 0..3 {
        let ports = vec![info(number)];
        let more = number < 2;
        world.answer(&asked, Answer::Ports { ports, more });
    }
    let (ports, more) = ((0..3).map(info).collect(), false);
    assert_eq!(world.answered(), ("ports", Ok(Answer::Ports { ports, more })));

    world.ask(Request::Counters, "counters");
    let asked = world.hear();
    let counted = |number: u32| PortCount {
        port: PortId(number),
        core: Some(1),
        counters: info(number).counters,
    };
    for number in 0..3 {
        let ports = [counted(number)].iter().collect();
        let more = number < 2;
        world.answer(&asked, Answer::Counters { ports, more });
    }
    let all: Vec<PortCount> = (0..3).map(counted).collect();
    let (ports, more) = (all.iter().collect(), false);
    assert_eq!(
        world.answered(),
        ("counters", Ok(Answer::Counters { ports, more }))
    );

    let full = |id| (flow(id), FlowStats::default());
    let ways = |id| vec![(FlowId(id), Way::Kernel)];
    world.client.ask_for_flows(SWITCH, Detail::Full, "flows").unwrap();
    for id in 1..=3 {
        let asked = world.hear();
        let wanted = Request::FlowList {
            switch: SWITCH,
            after: (id > 1).then(|| FlowId(id - 1)),
            detail: Detail::Full,
        };
        assert_eq!(asked.request, wanted);
        let (flows, more) = (vec![full(id)], id < 3);
        let ways = ways(id);
        world.answer(&asked, Answer::Flows { flows, ways, more });
        if more {
            assert!(world.next().is_none());
        }
    }
    let flows = (1..=3).map(full).collect();
    let ways = (1..=3).flat_map(ways).collect();
    let more = false;
    let whole = Answer::Flows { flows, ways, more };
    assert_eq!(world.answered(), ("flows", Ok(whole)));

    let page = Request::FlowList {
        switch: SWITCH,
        after: Some(FlowId(4)),
        detail: Detail::Terse,
    };
    world.ask(page, "page");
    let (flows, more) = (vec![(FlowId(5), FlowStats::default())], true);
    let answer = Answer::FlowStats { flows, more };
    world.answer(&world.hear(), answer.clone());
    assert_eq!(world.answered(), ("page", Ok(answer)));
    assert!(world.heard().is_empty());
}

#[test]
fn a_page_without_order_is_an_error_and_a_list_without_order_is_the_end() {
    let terse = |ids: &[u128]| Answer::FlowStats {
        flows: ids.iter().map(|id| (FlowId(*id), FlowStats::default())).collect(),
        more: true,
    };
    for ids in [&[4][..], &[5, 5], &[7, 6]] {
        let mut world = World::new();
        let page = Request::FlowList {
            switch: SWITCH,
            after: Some(FlowId(4)),
            detail: Detail::Terse,
        };
        world.ask(page, "page");
        world.answer(&world.hear(), terse(ids));
        assert!(world.answered().1.is_err());
        world.client.ask_for_flows(SWITCH, Detail::Terse, "list").unwrap();
        world.answer(&world.hear(), terse(&[4]));
        assert!(world.next().is_none());
        world.answer(&world.hear(), terse(ids));
        assert_eq!(world.client.receive(2).err(), Some(Lost::Malformed));
        assert_eq!(world.client.detach(Some(Lost::Malformed), 0), Some(vec!["list"]));
        assert_eq!(
            world.client.complaint(0),
            Some(FromChild::Replace(Role::DataPlane))
        );
    }
}

#[test]
fn lists_end_or_the_channel_does() {
    let nothing = Answer::Ports {
        ports: Vec::new(),
        more: true,
    };
    let mut world = World::new();
    world.ask(Request::PortList, "ports");
    world.answer(&world.hear(), nothing);
    assert_eq!(world.client.receive(2).err(), Some(Lost::Malformed));
    // Pages whose flows are in order, and whose number has no end.
    let mut world = World::new();
    world.client.ask_for_flows(SWITCH, Detail::Terse, "list").unwrap();
    let mut entries = 0;
    let lost = loop {
        let asked = world.hear();
        let flows = (entries + 1..=entries + 1000).map(|id| (FlowId(id), FlowStats::default()));
        entries += 1000;
        let (flows, more) = (flows.collect(), true);
        world.answer(&asked, Answer::FlowStats { flows, more });
        match world.client.receive(2) {
            Ok(event) => assert!(event.is_none()),
            Err(lost) => break lost,
        }
        assert!(entries < 1 << 20);
    };
    assert_eq!(lost, Lost::Malformed);
    assert!(entries > 65_536, "as many as there may be");
}

/// A list that nobody waits for any longer takes no part of what others may have.
#[test]
fn forgotten_lists_are_not_gone_on_with() {
    let mut world = World::new();
    for _ in 0..700 {
        world.client.ask_for_flows(SWITCH, Detail::Terse, "list").unwrap();
        let flows = (1..=1000).map(|id| (FlowId(id), FlowStats::default()));
        let (flows, more) = (flows.collect(), true);
        world.answer(&world.hear(), Answer::FlowStats { flows, more });
        assert!(world.next().is_none());
        assert!(matches!(world.hear().request, Request::FlowList { .. }));
        assert_eq!(world.client.count(|purpose| *purpose == "list"), 1);
        world.client.forget(|_| true);
        assert_eq!(world.client.count(|_| true), 0);
    }
    assert_eq!(world.client.violations(), 0);
}

#[test]
fn a_flow_with_more_actions_than_there_are_ports_is_not_taken() {
    let mut world = World::new();
    world.client.ask_for_flows(SWITCH, Detail::Full, "flows").unwrap();
    let mut flow = flow(1);
    flow.actions = vec![Action::Output(PORT); 11];
    let (flows, more) = (vec![(flow, FlowStats::default())], false);
    let ways = Vec::new();
    world.answer(&world.hear(), Answer::Flows { flows, ways, more });
    assert_eq!(world.client.receive(2).err(), Some(Lost::Malformed));
}

#[test]
fn what_is_told_takes_the_place_of_what_was_told_about_the_same() {
    let mut world = World::new();
    world.client.gather(true);
    for mtu in 1..=10 {
        world.client.tell(port_set(PORT, mtu));
        world.client.tell(port_set(PortId(2), mtu));
        world.client.tell(Request::PortEnable {
            port: PORT,
            up: mtu % 2 == 0,
        });
        // Somebody waits for the answer.
        world.ask(port_set(PORT, 100 + mtu), "asked");
    }
    world.client.gather(false);
    let heard = world.heard();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for request in &heard {
        let what = match request {
            Request::PortSet { mtu, .. } if *mtu > 100 => "asked".into(),
            other => format!("{other:?}"),
        };
        *counts.entry(what).or_default() += 1;
    }
    assert_eq!(counts.remove("asked"), Some(10));
    // Whatever was sent in between, the last one of each is there.
    for last in [port_set(PORT, 10), port_set(PortId(2), 10)] {
        assert!(counts.contains_key(&format!("{last:?}")));
    }
    assert!(heard.len() < 30, "{} of 40 were sent", heard.len());
    assert_eq!(world.client.detach(None, 0).unwrap().len(), 10);
}

#[test]
fn packets_wait_until_both_agree() {
    let mut world = World::silent();
    let hello = world.hear();
    for serial in 1..=3 {
        world.say(&FromDataPlane::Upcall(upcall(serial, 60)));
    }
    assert!(world.next().is_none());
    let welcome = Answer::Welcome {
        controller: ControllerId::OVS,
        workers: 2,
        pid: 42,
    };
    world.answer(&hello, welcome);
    world.client.compare(2);
    assert!(world.next().is_none());
    world.client.compared();
    assert!(world.next().is_none());
    world.say(&FromDataPlane::Upcall(upcall(4, 60)));
    assert!(world.next().is_none());
    world.client.compared();
    assert!(
        world
            .client
            .interest()
            .unwrap()
            .1
            .contains(rustix::event::PollFlags::OUT)
    );
    for serial in 1..=4 {
        match world.next() {
            Some(Event::Upcall(upcall)) => assert_eq!(upcall.id.serial, serial),
            other => panic!("{other:?}"),
        }
    }
    assert!(world.next().is_none());
    assert_eq!(world.client.welcome().unwrap().pid, 42);
    assert_eq!(world.client.check(SYNC_MS), Ok(()));
}

/// Whether they wait or not, whether the answers are read or not: one end for each, and a bound on what is
/// kept.
#[test]
fn each_packet_ends_once_and_few_are_kept() {
    for agrees in [false, true] {
        let mut world = if agrees { World::new() } else { World::silent() };
        const COUNT: u64 = 1500;
        let mut ends: BTreeMap<u64, u32> = BTreeMap::new();
        for serial in 1..=COUNT {
            world.say(&FromDataPlane::Upcall(upcall(serial, 60_000)));
            while let Some(Event::Upcall(upcall)) = world.next() {
                assert!(world.client.end_upcall(execute(upcall)));
            }
        }
        world.client.compare(0);
        while let Some(Event::Upcall(upcall)) = world.next() {
            assert!(world.client.end_upcall(execute(upcall)));
        }
        let mut bytes = 0;
        loop {
            for request in world.heard() {
                match request {
                    Request::Execute(execute) => {
                        bytes += execute.packet.frame.len();
                        *ends.entry(execute.upcall.unwrap().serial).or_default() += 1;
                    }
                    Request::Discard { upcall, .. } => *ends.entry(upcall.serial).or_default() += 1,
                    _ => {}
                }
            }
            if !world.client.has_to_send() {
                break;
            }
            world.client.flush();
        }
        assert_eq!(ends.len() as u64, COUNT);
        assert!(ends.values().all(|count| *count == 1));
        assert!(
            (10 << 20..40 << 20).contains(&bytes),
            "{bytes} bytes; agrees: {agrees}"
        );
    }
}

#[test]
fn a_packet_that_ends_nothing_is_not_kept_without_end() {
    let mut world = World::new();
    let injected = || {
        let mut request = execute(upcall(0, 60_000));
        if let Request::Execute(execute) = &mut request {
            execute.upcall = None;
        }
        request
    };
    let sent = (0..2000).filter(|_| world.client.end_upcall(injected())).count();
    assert!((100..1000).contains(&sent), "{sent}");
    assert_eq!(world.next().map(|_| ()), None, "that is no violation");
}

#[test]
fn a_data_plane_that_never_lists_its_state_is_replaced() {
    let mut world = World::silent();
    assert_eq!(world.client.check(SYNC_MS - 1), Ok(()));
    assert!(world.client.due_ms().unwrap() <= SYNC_MS);
    assert_eq!(world.client.check(SYNC_MS), Err(Lost::Unresponsive));
    world.client.detach(Some(Lost::Unresponsive), SYNC_MS);
    let complaint = world.client.complaint(SYNC_MS);
    assert_eq!(complaint, Some(FromChild::Replace(Role::DataPlane)));
    assert_eq!(world.client.complaint(SYNC_MS), None);
}

#[test]
fn a_data_plane_that_does_not_come_back_is_replaced_again_and_again() {
    let mut world = World::new();
    drop(world.peer);
    assert_eq!(world.client.receive(2).err(), Some(Lost::Gone));
    world.client.detach(Some(Lost::Gone), 5);
    let mut replaced = 0;
    for now_ms in 5..5 + 3 * ABSENCE_MS + 10 {
        let complaint = world.client.complaint(now_ms);
        if let Some(complaint) = complaint {
            assert_eq!(complaint, FromChild::Replace(Role::DataPlane));
            replaced += 1;
        }
    }
    assert_eq!(replaced, 3);
    let (ours, peer) = Channel::pair().unwrap();
    world.client.attach(ours, 100_000);
    world.peer = peer;
    assert_eq!(world.client.complaint(100_000), None);
}

#[test]
fn a_data_plane_that_owes_an_answer_is_looked_at() {
    let mut world = World::new();
    assert_eq!(world.client.complaint(0), None);
    world.ask(put(1), "it");
    assert_eq!(world.client.complaint(1000), None);
    let due_ms = world.client.due_ms().unwrap();
    assert_eq!(
        world.client.complaint(due_ms),
        Some(FromChild::Owes(Role::DataPlane))
    );
    world.answer(&world.hear(), ended());
    assert_eq!(world.answered(), ("it", Ok(ended())));
    assert_eq!(world.client.complaint(due_ms + 100_000), None);
    assert_eq!(world.client.due_ms(), None);
}

#[test]
fn texts_are_cleaned() {
    let mut world = World::new();
    let evil = || "\x1b]0;title\x07".repeat(1000);
    world.say(&FromDataPlane::PortState {
        port: PORT,
        state: PortState::Broken(evil()),
        peer: None,
        shortfall: Some(evil()),
    });
    world.ask(put(1), "it");
    let (serial, errno) = (world.hear().serial, 22);
    let result = Err(RequestError { errno, text: evil() });
    world.say(&FromDataPlane::Answer { serial, result });
    for _ in 0..2 {
        let event = format!("{:?}", world.next().unwrap());
        assert!(!event.contains('\x1b') && event.len() < 2000, "{event}");
    }
}
