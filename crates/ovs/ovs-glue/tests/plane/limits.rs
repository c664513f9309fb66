//! Policing and queues of ports, as the data plane is told of them.

use super::*;
use flow::{Action as Step, Filters, Flow, MeterBand, MeterUnit, PortRates, RateClass, RateLimit, Stage};
use ovs_glue::plane::Limits;
use ovs_glue::translate::OWN_METERS;

const VM1: PortId = PortId(FIRST + 1);

fn none() -> Filters {
    Filters::default()
}

fn ingress() -> Filters {
    Filters::of_flows(1, 0)
}

/// What a data plane has been told.
#[derive(Debug, Default, PartialEq)]
struct Listener {
    ports: Vec<PortId>,
    meters: BTreeMap<u32, flow::MeterSpec>,
    flows: BTreeMap<Id, Flow>,
    filters: BTreeMap<PortId, Filters>,
    rates: BTreeMap<PortId, PortRates>,
    classes: BTreeMap<PortId, Vec<RateClass>>,
}

impl Listener {
    /// Takes in all that is said, as a data plane would, and says so.
    fn listen(&mut self, world: &mut World) {
        world.plane.exchange();
        while let Ok((asked, _)) = world.peer.try_recv::<ToDataPlane>() {
            let told = self.take(asked.request.clone());
            world.answer(&asked, told);
        }
    }

    fn take(&mut self, request: Request) -> Told {
        match request {
            Request::PortAdd(spec) => self.ports.push(spec.port),
            Request::PortDel { port } => {
                self.ports.retain(|there| *there != port);
                self.filters.remove(&port);
                self.rates.remove(&port);
            }
            Request::PortClasses { port, classes } => {
                assert!(self.rates[&port].to.is_some(), "{port} has a bandwidth");
                self.classes.insert(port, classes);
            }
            Request::PortRates { port, rates } => {
                assert!(self.ports.contains(&port), "{port} is not there yet");
                self.rates.insert(port, rates);
            }
            Request::PortFilters { port, filters } => self.filter(port, filters),
            Request::FlowPut { flow, .. } => {
                let lacks =
                    |action: &Step| matches!(action, Step::Meter(meter) if !self.meters.contains_key(meter));
                assert!(!flow.actions.iter().any(lacks));
                self.flows.insert(flow.id, flow);
                return ended(&[]);
            }
            Request::FlowDel { id, .. } => {
                assert!(self.flows.remove(&id).is_some());
                return ended(&[]);
            }
            Request::FlowFlush { .. } => self.flows.clear(),
            Request::MeterSet { meter, spec } => {
                self.meters.insert(meter, spec);
                return Told::Meter(None);
            }
            Request::MeterDel { meter } => {
                assert!(self.meters.remove(&meter).is_some());
                return Told::Meter(None);
            }
            Request::MeterFlush => self.meters.clear(),
            Request::PortSet { .. } | Request::PortEnable { .. } => {}
            other => panic!("{other:?}"),
        }
        Told::Done
    }

    fn filter(&mut self, port: PortId, filters: Filters) {
        assert!(self.ports.contains(&port), "{port} is not there yet");
        let has = |stage| self.flows.values().any(|flow| flow.stage == stage);
        assert!(filters.ingress == none().ingress || has(Stage::Ingress(0)));
        assert!(filters.egress == none().egress || has(Stage::Egress(port, 0)));
        self.filters.insert(port, filters);
    }

    /// Rates of all meters.
    fn metered(&self) -> Vec<(u32, MeterUnit)> {
        let rates = self
            .meters
            .values()
            .map(|spec| (spec.band.unwrap().rate, spec.unit));
        rates.collect()
    }
}

fn band(rate: u32) -> Option<MeterBand> {
    Some(MeterBand { rate, burst: 525 })
}

fn limited(limits: &[(&str, Limits)]) -> BTreeMap<String, Limits> {
    let limits = limits
        .iter()
        .map(|(name, limits)| ((*name).to_owned(), limits.clone()));
    limits.collect()
}

fn policed(rate: u32) -> Limits {
    Limits {
        ingress: band(rate),
        ..Limits::default()
    }
}

const BANDWIDTH: RateLimit = RateLimit {
    bits_per_second: 4_000_000,
    burst: 5000,
};

const CLASS: RateClass = RateClass {
    number: 0,
    priority: 2,
    least_rate: 1_000_000,
    most: None,
};

fn shaped() -> Limits {
    Limits {
        bandwidth: Some(BANDWIDTH),
        classes: [(1, CLASS)].into(),
        egress: band(9),
        queues: [(1, band(3))].into(),
        ..policed(5)
    }
}

#[test]
fn limits_come_change_and_go_with_their_ports() {
    let (mut world, mut told) = (World::new(), Listener::default());
    world
        .plane
        .limit_all(limited(&[("vm1", policed(5)), ("vm2", policed(6))]));
    world.hears_nothing();
    world.add_port(1, "vm1");
    told.listen(&mut world);
    assert_eq!(told.metered(), [(5, MeterUnit::Kilobits)]);
    assert_eq!(told.filters, [(VM1, ingress())].into());
    // One that is there already, and a meter that stays what it is.
    world.add_port(3, "vm3");
    told.listen(&mut world);
    let before = told.meters.clone();
    world
        .plane
        .limit_all(limited(&[("vm1", policed(5)), ("vm3", shaped())]));
    told.listen(&mut world);
    assert_eq!(told.meters.len(), 4);
    let bounded = PortRates {
        to: Some(BANDWIDTH),
        ..PortRates::default()
    };
    assert_eq!(told.rates, [(PortId(FIRST + 3), bounded)].into());
    let classes = vec![RateClass::default(), RateClass { number: 1, ..CLASS }];
    assert_eq!(told.classes, [(PortId(FIRST + 3), classes)].into());
    assert!(
        before
            .iter()
            .all(|(meter, spec)| told.meters.get(meter) == Some(spec))
    );
    world.plane.limit_all(limited(&[("vm1", policed(7))]));
    told.listen(&mut world);
    assert_eq!(told.metered(), [(7, MeterUnit::Kilobits)]);
    assert_eq!(told.flows.len(), 1);
    world.plane.remove_port(DATAPATH, PortNo(1));
    told.listen(&mut world);
    assert_eq!((told.meters.len(), told.flows.len()), (0, 0));
    world.plane.limit_all(BTreeMap::new());
    told.listen(&mut world);
    assert_eq!(told.filters, [(PortId(FIRST + 3), none())].into());
    assert_eq!(told.rates, [(PortId(FIRST + 3), PortRates::default())].into());
    assert_eq!(world.violations(), 0);
}

#[test]
fn limits_outlive_data_planes_and_flushes() {
    let (mut world, mut told) = (World::new(), Listener::default());
    world.plane.limit_all(limited(&[("vm1", shaped())]));
    world.add_port(1, "vm1");
    told.listen(&mut world);
    let ticket = world.ask(Question::FlushFlows);
    let before = told.flows.len();
    told.listen(&mut world);
    assert_eq!(world.plane.next_answer(), Some((ticket, Ok(Answer::Done))));
    assert_eq!(told.flows.len(), before);
    // While there is no data plane, nothing is told, and nothing is forgotten.
    world.lose();
    world.plane.limit_all(BTreeMap::new());
    world.plane.limit_all(limited(&[("vm1", shaped())]));
    assert!(world.plane.has_room());
    world.connect(Vec::new());
    let mut next = Listener::default();
    next.listen(&mut world);
    assert_eq!(next, told);
    assert_eq!(world.violations(), 0);
}

#[test]
fn the_next_process_finds_limits_and_sets_what_it_wants() {
    let (mut first, mut told) = (World::new(), Listener::default());
    first
        .plane
        .limit_all(limited(&[("vm1", policed(5)), ("vm2", policed(6))]));
    let mut infos = Vec::new();
    for (number, name) in [(1, "vm1"), (2, "vm2")] {
        first.plane.plug(name, Plug::Server);
        first.add_port(number, name);
        let Request::PortAdd(spec) = first.hear().request else {
            panic!()
        };
        told.take(Request::PortAdd(spec.clone()));
        infos.push(info(spec, PortCounters::default()));
        told.listen(&mut first);
    }
    let mut world = World::with(infos);
    for name in ["vm1", "vm2"] {
        world.plane.plug(name, Plug::Server);
    }
    world.plane.limit_all(limited(&[("vm1", policed(8))]));
    // ovs-vswitchd comes back: its datapath has no meters, but what is policed is so still.
    world.plane.remove(DATAPATH);
    world.plane.create(DATAPATH).unwrap();
    told.listen(&mut world);
    assert_eq!(told.metered(), [(8, MeterUnit::Kilobits)]);
    for (number, name) in [(1, "vm1"), (2, "vm2")] {
        world.add_port(number, name);
    }
    told.listen(&mut world);
    assert_eq!(
        told.filters,
        [(VM1, ingress()), (PortId(FIRST + 2), none())].into()
    );
    assert_eq!((told.metered().len(), told.flows.len()), (1, 1));
    // The process before may have bounded them.
    let [one, two] = [1, 2].map(|number| (PortId(FIRST + number), PortRates::default()));
    assert_eq!(told.rates, [one, two].into());
}

#[test]
fn a_refused_limit_is_counted_and_meters_of_limits_are_not_ovs_vswitchds() {
    let mut world = World::new();
    world.plane.limit_all(limited(&[("vm1", policed(5))]));
    world.add_port(1, "vm1");
    world.hear();
    let asked = world.hear();
    let Request::MeterSet { meter, .. } = asked.request else {
        panic!("{asked:?}")
    };
    assert!(meter >= OWN_METERS);
    world.refuse(&asked, 27);
    assert_eq!(
        (world.plane.counters().limits_refused, world.violations()),
        (1, 0)
    );
    world.ask(Question::SetMeter(meter, rate(5)));
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EINVAL)))));
    let mut flow = put(1, PutMode::Create);
    let Question::PutFlow(spec, _) = &mut flow else {
        panic!()
    };
    spec.actions = vec![Action::Meter(meter)];
    world.ask(flow);
    assert!(matches!(world.plane.next_answer(), Some((_, Err(Errno::EINVAL)))));
}

#[test]
fn limits_are_bounded_in_all() {
    let (mut world, mut told) = (World::new(), Listener::default());
    let queues = (0..64).map(|queue| (queue * 900 + 1, band(2))).collect();
    let many = Limits {
        queues,
        ..Limits::default()
    };
    let names: Vec<_> = (1..90).map(|number| format!("vm{number}")).collect();
    world
        .plane
        .limit_all(names.iter().map(|name| (name.clone(), many.clone())).collect());
    for (name, number) in names.iter().zip(1..) {
        world.add_port(number, name);
        told.listen(&mut world);
    }
    let most = told.flows.len();
    assert!((5000..=10 * 1024).contains(&most), "{most}");
    // Others have room again when one goes.
    world.plane.limit_all([("vm89".to_owned(), many)].into());
    told.listen(&mut world);
    assert_eq!(told.meters.len(), 64);
    assert_eq!(world.violations(), 0);
}
