//! Controllers that add, change, die and return in any order, beside sets of what each has: nobody's deeds
//! change what is another's, and each finds its own whenever it returns.

use crate::support::Switch;
use crate::support::control::Controller;
use control_protocol::data_plane::{Answer, Detail, Request};
use flow::{Action, Flow, FlowId, FlowKey, FlowMask, PortId, PutMode, Statistics, SwitchId};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeSet;

const CONTROLLERS: u8 = 3;
const PORTS: u32 = 3;
const SWITCHES: u32 = 2;

/// What a controller does.
#[derive(Clone, Debug)]
enum Deed {
    AddPort(u32),
    DeletePort(u32),
    PutFlow { switch: u32, from: u32, to: u32 },
    DeleteFlow { switch: u32, from: u32 },
    Flush(u32),
    Die,
    Return,
}

fn deed() -> impl Strategy<Value = Deed> {
    let (port, switch) = (0..PORTS, 1..=SWITCHES);
    prop_oneof![
        4 => port.clone().prop_map(Deed::AddPort),
        2 => port.clone().prop_map(Deed::DeletePort),
        6 => (switch.clone(), port.clone(), port.clone())
            .prop_map(|(switch, from, to)| Deed::PutFlow { switch, from, to }),
        2 => (switch.clone(), port).prop_map(|(switch, from)| Deed::DeleteFlow { switch, from }),
        1 => switch.prop_map(Deed::Flush),
        1 => Just(Deed::Die),
        2 => Just(Deed::Return),
    ]
}

/// A controller and what it should have.
struct Played {
    controller: Controller,
    ports: BTreeSet<PortId>,
    flows: BTreeSet<(u32, FlowId)>,
}

impl Played {
    fn new(controller: Controller) -> Played {
        Played {
            controller,
            ports: BTreeSet::new(),
            flows: BTreeSet::new(),
        }
    }

    /// Does it with ports of `owner`, which may be itself.
    fn act(&mut self, deed: &Deed, owner: u8) {
        if matches!(deed, Deed::Return) {
            return self.controller.connect();
        }
        if self.controller.control.is_none() {
            return;
        }
        let own = owner == self.controller.id.0;
        let port = |number| flow::ControllerId(owner).port(number).unwrap();
        match *deed {
            Deed::AddPort(number) => {
                let expected = if !own {
                    Some(Errno::PERM)
                } else if self.ports.insert(port(number)) {
                    None
                } else {
                    Some(Errno::EXIST)
                };
                self.expect(Request::PortAdd(Switch::spec(port(number).0)), expected);
            }
            Deed::DeletePort(number) => {
                let gone = self.ports.remove(&port(number));
                let expected = (!gone).then_some(Errno::NODEV);
                self.expect(Request::PortDel { port: port(number) }, expected);
            }
            Deed::PutFlow { switch, from, to } => {
                let flow = flow_of(switch, port(from), port(to));
                if own {
                    self.flows.insert((switch, flow.id));
                }
                let mode = PutMode::CreateOrModify(Statistics::New);
                self.expect(Request::FlowPut { flow, mode }, (!own).then_some(Errno::PERM));
            }
            Deed::DeleteFlow { switch, from } => {
                // The same identifiers are others' too.
                let id = FlowId(from.into());
                self.flows.remove(&(switch, id));
                let switch = SwitchId(switch);
                self.expect(Request::FlowDel { switch, id }, None);
            }
            Deed::Flush(switch) => {
                self.flows.retain(|(other, _)| *other != switch);
                let switch = SwitchId(switch);
                self.expect(Request::FlowFlush { switch }, None);
            }
            Deed::Die => self.controller.disconnect(),
            Deed::Return => {}
        }
    }

    fn expect(&mut self, request: Request, expected: Option<Errno>) {
        let result = self.controller.ask(request.clone());
        let errno = result.err().map(|error| Errno::from_raw_os_error(error.errno));
        assert_eq!(errno, expected, "{request:?}");
    }

    /// The data plane says what it should have.
    fn check(&mut self) {
        if self.controller.control.is_none() {
            return;
        }
        let ports = self.controller.ports();
        assert!(
            ports.iter().map(|info| &info.spec.port).eq(&self.ports),
            "{ports:?}"
        );
        let mut flows = Vec::new();
        for switch in 1..=SWITCHES {
            let request = Request::FlowList {
                switch: SwitchId(switch),
                after: None,
                detail: Detail::Terse,
            };
            match self.controller.ask(request) {
                Ok(Answer::FlowStats { flows: page, .. }) => {
                    flows.extend(page.iter().map(|(id, _)| (switch, *id)));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(flows.iter().eq(&self.flows), "{flows:?}");
    }
}

/// For packets of a port; its identifier is the port's number with its controller.
fn flow_of(switch: u32, from: PortId, to: PortId) -> Flow {
    let mut key = FlowKey::default();
    key.set_in_port(from.0);
    let mut mask = FlowMask::default();
    mask.0.set_in_port(u32::MAX);
    let id = FlowId((from.0 % flow::ControllerId::PORTS).into());
    Flow::new(id, SwitchId(switch), key, mask, vec![Action::Output(to)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_keeps_its_own_whatever_happens(
        deeds in prop::collection::vec((0..CONTROLLERS, deed(), prop::option::weighted(0.2, 0..CONTROLLERS)), 1..150),
    ) {
        let mut switch = Switch::start();
        let mut all: Vec<_> = (1..=CONTROLLERS).map(|number| Played::new(switch.controller(number))).collect();
        for (actor, deed, owner) in &deeds {
            let actor = usize::from(*actor);
            let owner = owner.map_or(all[actor].controller.id.0, |owner| owner + 1);
            all[actor].act(deed, owner);
            all.iter_mut().for_each(Played::check);
        }
        for played in &mut all {
            played.controller.connect();
            played.check();
        }
        prop_assert!(switch.ports().is_empty());
        switch.finish();
    }
}
