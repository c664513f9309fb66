//! A chain of providers that decides for a real data plane: the learning switch behind a guard against DHCP
//! servers.

#![allow(clippy::unwrap_used)]

#[path = "../../../control/control/tests/provider/dhcp_guard.rs"]
mod dhcp_guard;
#[path = "../../../control/control/tests/provider/three_ports.rs"]
mod three_ports;

use control::l2::LearningSwitch;
use control::provider::{Chain, Decide, Filter, FlowChange, Look, Side, Verdict, pass};
use control_protocol::Channel;
use control_protocol::data_plane::{
    Answer, Connection, Detail, Execute, FromDataPlane, Packet, PortSpec, Request, ToDataPlane, Upcall,
    UpcallCause, VERSION,
};
use control_protocol::supervisor::{ToChild, VmStates};
use dhcp_guard::DhcpGuard;
use flow::{
    Action, ControllerId, DropReason, Flow, FlowStats, PortCounters, PortId, ProviderId, PutMode, Stage,
    Statistics, SwitchId,
};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use three_ports::learning_switch;

const SWITCH: SwitchId = SwitchId(1);
const SENDER: PortId = PortId(2);

/// A filter that packets sent by the test leave: they begin their walk behind it.
struct Entrance;

impl Decide for Entrance {
    fn decide(&self, _: Stage, _: &Look<'_>) -> Verdict {
        pass()
    }
}

fn chain(with_guard: bool) -> Chain<LearningSwitch> {
    let mut chain = Chain::new(learning_switch());
    (1..=3).for_each(|port| chain.add_port(PortId(port)));
    chain
        .add(Side::Ingress, Filter::new(ProviderId(200), Entrance))
        .unwrap();
    let trusted = BTreeSet::new();
    if with_guard {
        let guard = Filter::new(ProviderId(201), DhcpGuard { trusted });
        chain.add(Side::Ingress, guard).unwrap();
    }
    chain
}

/// A controller of a data plane, and the supervisor of both.
struct World {
    supervisor: Channel,
    control: Channel,
    serial: u32,
    upcalls: Vec<Upcall>,
}

impl World {
    fn start() -> World {
        let (supervisor, child) = Channel::pair().unwrap();
        let config = placement::Config::default();
        supervisor.send(&ToChild::Placement(config), &[]).unwrap();
        let states = VmStates::Unavailable("a test".into());
        supervisor.send(&ToChild::VmState(states), &[]).unwrap();
        std::thread::spawn(|| {
            datapath::run(
                child,
                placement::Topology::of_machine(),
                datapath::Queues::Refused,
            )
        });
        let mut world = World {
            control: Channel::pair().unwrap().0,
            supervisor,
            serial: 0,
            upcalls: Vec::new(),
        };
        world.connect();
        world
    }

    /// A controller takes the place of the one before, which is gone.
    fn connect(&mut self) {
        let (control, theirs) = Channel::pair().unwrap();
        let order = ToChild::Controller(ControllerId::BUILT_IN);
        self.supervisor.send(&order, &[theirs.as_fd()]).unwrap();
        self.control = control;
        self.ask(Request::Hello { version: VERSION });
    }

    fn tell(&mut self, request: Request) -> u32 {
        self.serial += 1;
        let serial = self.serial;
        self.control.send(&ToDataPlane { serial, request }, &[]).unwrap();
        serial
    }

    fn ask(&mut self, request: Request) -> Answer {
        let asked = self.tell(request);
        loop {
            match self.control.recv().unwrap().0 {
                FromDataPlane::Answer { serial, result } if serial == asked => return result.unwrap(),
                FromDataPlane::Upcall(upcall) => self.upcalls.push(upcall),
                _ => {}
            }
        }
    }

    fn put(&mut self, changes: Vec<FlowChange>) {
        for change in changes {
            self.ask(match change.into_flow(SWITCH) {
                Err(id) => Request::FlowDel { switch: SWITCH, id },
                Ok(flow) => {
                    let mode = PutMode::CreateOrModify(Statistics::New);
                    Request::FlowPut { flow, mode }
                }
            });
        }
    }

    /// Sends a datagram behind the entrance, and answers the upcalls that come of it. Returns their number.
    fn send(&mut self, chain: &mut Chain<LearningSwitch>, source: u16) -> usize {
        let before = self.counters();
        let execute = |upcall, stage, actions, packet| {
            Request::Execute(Execute {
                upcall,
                in_port: SENDER,
                stage,
                recirc_id: 0,
                dp_hash: 0,
                no_ethernet: false,
                actions,
                packet,
            })
        };
        let packet = Packet {
            vnet_header: [0; 12],
            frame: udp(source),
        };
        self.tell(execute(None, Stage::Ingress(0), vec![Action::Continue], packet));
        let mut answered = 0;
        loop {
            let now = self.counters();
            for upcall in std::mem::take(&mut self.upcalls) {
                answered += 1;
                let UpcallCause::Miss { stage } = upcall.cause else {
                    panic!("{upcall:?}")
                };
                let outcome = chain.missed(stage, &upcall.key, 0);
                self.tell(match outcome.verdict {
                    Ok(actions) => execute(Some(upcall.id), outcome.stage, actions, upcall.packet),
                    Err(reason) => Request::Discard {
                        upcall: upcall.id,
                        reason,
                    },
                });
                self.put(outcome.changes);
            }
            let ended = |counters: &PortCounters| {
                counters.delivered + counters.dropped.total() + counters.discarded.total()
            };
            if ended(&now) > ended(&before) {
                return answered;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn counters(&mut self) -> PortCounters {
        match self.ask(Request::PortGet { port: SENDER }) {
            Answer::Ports { mut ports, .. } => ports.remove(0).counters,
            other => panic!("{other:?}"),
        }
    }

    fn flows(&mut self) -> Vec<(Flow, FlowStats)> {
        let request = Request::FlowList {
            switch: SWITCH,
            after: None,
            detail: Detail::Full,
        };
        match self.ask(request) {
            Answer::Flows {
                flows, more: false, ..
            } => flows,
            other => panic!("{other:?}"),
        }
    }
}

/// A UDP datagram over IPv4 to everybody.
fn udp(source: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    (frame[14], frame[17], frame[22], frame[23]) = (0x45, 46, 64, 17);
    frame[26..34].fill(10);
    frame[34..36].copy_from_slice(&source.to_be_bytes());
    frame[37] = 68;
    frame[39] = 26;
    frame
}

#[test]
fn a_guard_decides_in_front_of_the_learning_switch_and_outlives_its_process() {
    let mut world = World::start();
    let mut first = chain(true);
    for port in 1..=3 {
        world.ask(Request::PortAdd(PortSpec {
            port: PortId(port),
            switch: SWITCH,
            name: format!("vm{port}"),
            connection: Connection::Attached,
            mtu: 1500,
            miss_rate: 1000,
            mac: None,
            masked_features: 0,
            filters: first.filters(),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        }));
    }
    // The first of a kind comes up once, for all stages; the next one does not.
    for source in [67, 68] {
        assert_eq!(
            [(); 3].map(|()| world.send(&mut first, source)),
            [1, 0, 0],
            "{source}"
        );
    }
    let counters = world.counters();
    assert_eq!(counters.discarded.get(DropReason::Policy), 1);
    assert_eq!(counters.dropped.get(DropReason::Policy), 2);
    let before = world.flows();
    assert_eq!(
        before.len(),
        3,
        "drop and pass of the guard, and one of the learning switch"
    );
    assert_eq!(
        before
            .iter()
            .filter(|(flow, _)| flow.stage == Stage::Ingress(1))
            .count(),
        2
    );

    // The successor finds the flows of both as it would make them.
    world.connect();
    let mut second = chain(true);
    let found = world.flows();
    assert_eq!(second.restored(found.clone(), 0), []);
    assert_eq!(second.forward().mac_count(), 1, "the flow shows the station");
    assert_eq!([67, 68].map(|source| world.send(&mut second, source)), [0, 0]);
    let packets = |flows: &[(Flow, FlowStats)]| flows.iter().map(|(_, stats)| stats.packets).sum::<u64>();
    assert!(packets(&world.flows()) > packets(&found), "statistics go on");

    // Without the guard its flows go, and the learning switch keeps its own.
    let mut alone = chain(false);
    let changes = alone.restored(world.flows(), 0);
    world.put(changes);
    let filters = alone.filters();
    for port in (1..=3).map(PortId) {
        world.ask(Request::PortFilters { port, filters });
    }
    let left = world.flows();
    assert!(matches!(&left[..], [(flow, _)] if flow.id.provider() == ProviderId::LEARNING_SWITCH));
    world.send(&mut alone, 67);
    assert_eq!(
        world.counters().dropped.get(DropReason::Policy),
        3,
        "no more than before"
    );
}
