//! Limits of ports: policing and queues, from ovs-vswitchd's database.
//!
//! ovs-vswitchd has the kernel limit a port's device at the host, which no packet of a guest passes. So
//! limits are made of means of the data plane: the bandwidth of a port, beyond which packets wait, and a
//! filter of the port ([`Stage`]) whose flows ask meters, beyond which packets are dropped. Packets from a
//! port meet one flow; packets to a port are told apart by their queue, which `set_queue` has written into
//! its priority. A queue's own meter comes first, then that of all queues.
//!
//! Numbers of meters and flows follow from those of ports, and are none that ovs-vswitchd has. So each data
//! plane, and each of our processes, has the same, and what is there already is replaced. When ovs-vswitchd
//! flushes its flows, filters lose theirs for the moment until they are put again; a packet that comes then
//! is a miss.

use super::questions::Pending;
use super::{Plane, SWITCH, policies};
use crate::datapath::{Errno, PortNo};
use crate::translate::{OWN_METERS, port_id, port_number};
use control_protocol::data_plane::Request;
use flow::{
    Action, Context, ContextMatch, Edit, Filter, Filters, Flow, FlowId, FlowKey, FlowMask, MAX_METERS,
    MeterBand, MeterSpec, MeterUnit, PortId, PortRates, PutMode, RateClass, RateLimit, Stage, Statistics,
};
use std::collections::BTreeMap;

/// Queues of a port.
pub const MAX_QUEUES: usize = 64;
/// Queues have numbers below this one (`dpif_netlink_queue_to_priority`).
pub const QUEUE_LIMIT: u16 = 0xf000;
/// Meters of all limits: those of the data plane that ovs-vswitchd may not have.
const MAX_LIMIT_METERS: usize = (MAX_METERS - super::meters::MAX_METERS) as usize;
/// Flows of all limits: more than two for each port, and for some ports those of their queues.
const MAX_LIMIT_FLOWS: usize = 10 * 1024;

/// Bits of a meter's number that say which of its port's it is.
const METER_BITS: u32 = 17;
const INGRESS: u32 = 0;
const INGRESS_PACKETS: u32 = 1;
const EGRESS: u32 = 2;
const FIRST_QUEUE: u32 = 16;

/// Flows with these in the upper half of their numbers come after all of ovs-vswitchd's.
const FLOWS: u128 = (u64::MAX as u128) << 64;
/// The bits of a priority in which queues differ.
const QUEUE_BITS: u32 = 16;

/// The limits of a port. Packets beyond its bandwidth wait, those beyond another limit are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// For packets from the port, in kilobits.
    pub ingress: Option<MeterBand>,
    /// For packets from the port, in packets.
    pub ingress_packets: Option<MeterBand>,
    /// Bandwidth of packets to the port.
    pub bandwidth: Option<RateLimit>,
    /// For packets to the port, in kilobits.
    pub egress: Option<MeterBand>,
    /// What its queues get of `bandwidth`, if there is one; they have numbers of their own.
    pub classes: BTreeMap<u16, RateClass>,
    /// Of its queues, at most [`MAX_QUEUES`], in kilobits. Packets of other queues are of queue 0. Those with
    /// numbers from [`QUEUE_LIMIT`] on have no packets.
    pub queues: BTreeMap<u16, Option<MeterBand>>,
}

/// The limits of all ports.
#[derive(Debug, Default)]
pub(super) struct PlaneLimits {
    /// By names of ports.
    wanted: BTreeMap<String, Limits>,
    told: BTreeMap<PortNo, Means>,
    /// Meters in `told`.
    meters: usize,
    /// Flows in `told`.
    flows: usize,
}

/// What limits a port in the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Means {
    rates: PortRates,
    classes: Vec<RateClass>,
    meters: BTreeMap<u32, MeterSpec>,
    flows: BTreeMap<FlowId, Flow>,
    filters: Filters,
}

impl PlaneLimits {
    /// The data plane has gone.
    pub fn lose(&mut self) {
        self.told.clear();
        (self.meters, self.flows) = (0, 0);
    }

    /// The meter that counts a queue of a port.
    pub fn meter_of_queue(&self, number: PortNo, queue: u16) -> Option<u32> {
        let meter = meter(number, FIRST_QUEUE + u32::from(queue));
        let means = self.told.get(&number)?;
        means.meters.contains_key(&meter).then_some(meter)
    }

    fn forget(&mut self, number: PortNo) -> Means {
        let told = self.told.remove(&number).unwrap_or_default();
        self.meters -= told.meters.len();
        self.flows -= told.flows.len();
        told
    }

    fn note(&mut self, number: PortNo, told: Means) {
        if told != Means::default() {
            self.meters += told.meters.len();
            self.flows += told.flows.len();
            self.told.insert(number, told);
        }
    }

    fn has_room(&self, means: &Means) -> bool {
        self.meters + means.meters.len() <= MAX_LIMIT_METERS
            && self.flows + means.flows.len() <= MAX_LIMIT_FLOWS
    }
}

impl Plane {
    /// From now on the ports of these names are limited so, and no others, whether they are there already or
    /// not.
    pub fn limit_all(&mut self, wanted: BTreeMap<String, Limits>) {
        self.limits.wanted = wanted;
        for number in self.ports.numbers() {
            self.limit(number);
        }
    }

    /// The data plane is to limit a port as wanted, and to ask the lists of its policy; one that is no more
    /// is not limited at all.
    pub(super) fn limit(&mut self, number: PortNo) {
        let told = self.limits.forget(number);
        let Some(port) = port_id(number) else {
            return;
        };
        let mut wanted = self.means(number, port);
        if !self.limits.has_room(&wanted) {
            telemetry::limited!(
                log::Level::Warn,
                "port {}: there are too many limits: it has none",
                number.0
            );
            wanted = Means::default();
        }
        policies::copy(&self.policy_filters(number, &told.filters), &mut wanted.filters);
        for request in changes(port, &told, &wanted) {
            self.tell_limit(number, request);
        }
        if self.ports.has(number) {
            self.limits.note(number, wanted);
        }
    }

    /// Limits a port that the data plane has from before, with whatever filters and bandwidth.
    pub(super) fn limit_anew(&mut self, number: PortNo) {
        self.limits.forget(number);
        self.limit(number);
        let Some(port) = port_id(number) else { return };
        let told = self.limits.told.get(&number);
        let is_told = told.is_some();
        let rates = told.map_or_else(PortRates::default, |told| told.rates);
        let has_classes = told.is_some_and(|told| !told.classes.is_empty());
        if !is_told {
            let filters = Filters::default();
            self.tell_limit(number, Request::PortFilters { port, filters });
        }
        if rates == PortRates::default() {
            self.tell_limit(number, Request::PortRates { port, rates });
        } else if !has_classes {
            let classes = Vec::new();
            self.tell_limit(number, Request::PortClasses { port, classes });
        }
    }

    /// Meters of ports that are left from the time of an earlier process: their flows go on until
    /// ovs-vswitchd wants them again.
    pub(super) fn tell_limits_meters(&mut self) {
        let left = self.ports.told.keys();
        let left = left.filter_map(|id| Some((port_number(*id)?, *id)));
        let means = left.map(|(number, id)| (number, self.means(number, id)));
        let meters =
            means.flat_map(|(number, means)| means.meters.into_iter().map(move |meter| (number, meter)));
        for (number, (meter, spec)) in meters.take(MAX_LIMIT_METERS).collect::<Vec<_>>() {
            self.tell_limit(number, Request::MeterSet { meter, spec });
        }
    }

    /// Puts flows again that ovs-vswitchd has flushed with its own.
    pub(super) fn put_limits(&mut self) {
        let told = self.limits.told.iter();
        let flows = told.flat_map(|(number, means)| means.flows.values().map(|flow| (*number, flow.clone())));
        for (number, flow) in flows.collect::<Vec<_>>() {
            self.tell_limit(number, put(flow));
        }
    }

    /// The data plane does not limit as it was told.
    pub(super) fn limit_refused(&mut self, number: PortNo, errno: Errno) {
        self.counters.limits_refused += 1;
        telemetry::limited!(
            log::Level::Error,
            "the data plane refuses a limit of port {}: {errno}",
            number.0
        );
    }

    fn tell_limit(&mut self, number: PortNo, request: Request) {
        self.request(request, Vec::new(), Pending::Limit(number));
    }

    fn means(&self, number: PortNo, port: PortId) -> Means {
        let told = || self.ports.told.get(&port).map(|told| told.spec.name.as_str());
        let name = self.ports.all.get(&number).map(|port| port.spec.name.as_str());
        let limits = name.or_else(told).and_then(|name| self.limits.wanted.get(name));
        limits.map_or_else(Means::default, |limits| means(number, port, limits))
    }
}

/// The requests that lead from the means that the data plane was told to those that are wanted. No packet
/// meets a flow without its meters, or a filter without its flows.
fn changes(port: PortId, told: &Means, wanted: &Means) -> Vec<Request> {
    let mut requests = Vec::new();
    for (meter, spec) in &wanted.meters {
        if told.meters.get(meter) != Some(spec) {
            let (meter, spec) = (*meter, *spec);
            requests.push(Request::MeterSet { meter, spec });
        }
    }
    for (id, flow) in &wanted.flows {
        if told.flows.get(id) != Some(flow) {
            requests.push(put(flow.clone()));
        }
    }
    if told.filters != wanted.filters {
        let filters = wanted.filters;
        requests.push(Request::PortFilters { port, filters });
    }
    if told.rates != wanted.rates {
        let rates = wanted.rates;
        requests.push(Request::PortRates { port, rates });
    }
    // Classes end with the bandwidth.
    let has_classes = told.rates.to.is_some() && told.classes == wanted.classes;
    if wanted.rates.to.is_some() && !has_classes && !(told.classes.is_empty() && wanted.classes.is_empty()) {
        let classes = wanted.classes.clone();
        requests.push(Request::PortClasses { port, classes });
    }
    let gone = told.flows.keys().filter(|id| !wanted.flows.contains_key(id));
    requests.extend(gone.map(|id| Request::FlowDel {
        switch: SWITCH,
        id: *id,
    }));
    let gone = told.meters.keys().filter(|id| !wanted.meters.contains_key(id));
    requests.extend(gone.map(|meter| Request::MeterDel { meter: *meter }));
    requests
}

fn put(flow: Flow) -> Request {
    let mode = PutMode::CreateOrModify(Statistics::Kept);
    Request::FlowPut { flow, mode }
}

fn means(number: PortNo, port: PortId, limits: &Limits) -> Means {
    let mut making = Making {
        number,
        port,
        means: Means::default(),
    };
    let ingress = [
        making.meter(INGRESS, MeterUnit::Kilobits, limits.ingress),
        making.meter(INGRESS_PACKETS, MeterUnit::Packets, limits.ingress_packets),
    ];
    making.ingress(ingress.into_iter().flatten());
    making.means.rates.to = limits.bandwidth;
    let all = making.meter(EGRESS, MeterUnit::Kilobits, limits.egress);
    making.egress(all, limits);
    making.means
}

/// Packets in whose priority that many of the [`QUEUE_BITS`] bits have this value, and their class.
struct Queue {
    value: u16,
    bits: u32,
    class: Option<u8>,
}

/// The number of a meter of a port.
fn meter(number: PortNo, which: u32) -> u32 {
    OWN_METERS | number.0 << METER_BITS | which
}

struct Making {
    number: PortNo,
    port: PortId,
    means: Means,
}

impl Making {
    /// A meter of the port, if it has such a limit.
    fn meter(&mut self, which: u32, unit: MeterUnit, band: Option<MeterBand>) -> Option<u32> {
        band?;
        Some(self.counting_meter(which, unit, band))
    }

    /// A meter of the port, which counts where there is no limit.
    fn counting_meter(&mut self, which: u32, unit: MeterUnit, band: Option<MeterBand>) -> u32 {
        let meter = meter(self.number, which);
        self.means.meters.insert(meter, MeterSpec::new(unit, band));
        meter
    }

    fn ingress(&mut self, meters: impl Iterator<Item = u32>) {
        let meters: Vec<_> = meters.map(Action::Meter).collect();
        if meters.is_empty() {
            return;
        }
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
        key.set_in_port(self.port.0);
        mask.0.set_in_port(u32::MAX);
        self.means.filters.ingress[0] = Filter::Flows;
        let flow = Flow::new(FlowId(0), SWITCH, key, mask, Vec::new());
        self.flow(0, Stage::Ingress(0), flow, meters);
    }

    fn egress(&mut self, all: Option<u32>, limits: &Limits) {
        let queues = &limits.queues;
        let counts = self.means.rates.to.is_some() && !queues.is_empty();
        if all.is_none() && !counts && queues.values().all(Option::is_none) {
            return;
        }
        let queues = queues.iter().filter(|(queue, _)| **queue < QUEUE_LIMIT);
        let mut meters = BTreeMap::new();
        for (queue, band) in queues.take(MAX_QUEUES) {
            let which = FIRST_QUEUE + u32::from(*queue);
            // Queues without a limit are counted.
            meters.insert(*queue, self.counting_meter(which, MeterUnit::Kilobits, *band));
        }
        self.tell_apart(&meters, all, limits);
    }

    /// Flows for packets of each queue, by the meters of queues.
    fn tell_apart(&mut self, meters: &BTreeMap<u16, u32>, all: Option<u32>, limits: &Limits) {
        let mut meters = meters.clone();
        let others = meters.remove(&0);
        self.means.filters.egress[0] = Filter::Flows;
        let class = |queue: u16, number| RateClass {
            number,
            ..limits.classes.get(&queue).copied().unwrap_or_default()
        };
        if limits.bandwidth.is_some() && !limits.queues.is_empty() {
            self.means.classes.push(class(0, 0));
        }
        for ((queue, meter), number) in meters.iter().zip(1u8..) {
            if limits.bandwidth.is_some() {
                self.means.classes.push(class(*queue, number));
            }
            let queue = Queue {
                value: queue + 1,
                bits: QUEUE_BITS,
                class: limits.bandwidth.is_some().then_some(number),
            };
            self.queue(&queue, [meter].into_iter().chain(&all));
        }
        let told_apart: Vec<_> = meters.keys().map(|queue| queue + 1).collect();
        for (value, bits) in all_but(&told_apart) {
            let queue = Queue {
                value,
                bits,
                class: None,
            };
            self.queue(&queue, others.iter().chain(&all));
        }
    }

    /// What is done to packets of a queue, or of several.
    fn queue<'a>(&mut self, queue: &Queue, meters: impl Iterator<Item = &'a u32>) {
        let Queue { value, bits, class } = *queue;
        let (mut context, mut mask) = (Context::NONE, Context::NONE);
        context.set_skb_priority(value.into());
        mask.set_skb_priority(leading_ones(bits).into());
        let flow = Flow {
            context: (bits > 0).then(|| Box::new(ContextMatch { context, mask })),
            ..Flow::new(FlowId(0), SWITCH, FlowKey::default(), FlowMask::ANY, Vec::new())
        };
        let which = u64::from(bits + 1) << 32 | u64::from(value);
        let class = class.map(|class| Action::Edit(Edit::Class(class)));
        let actions = meters.copied().map(Action::Meter).chain(class);
        self.flow(which, Stage::Egress(self.port, 0), flow, actions.collect());
    }

    /// A flow of the port with a number that follows from what it matches.
    fn flow(&mut self, which: u64, stage: Stage, flow: Flow, mut actions: Vec<Action>) {
        let id = FlowId(FLOWS | u128::from(self.number.0) << 40 | u128::from(which));
        actions.push(Action::Continue);
        let flow = Flow {
            id,
            stage,
            actions,
            ..flow
        };
        self.means.flows.insert(id, flow);
    }
}

/// The first of [`QUEUE_BITS`] bits.
fn leading_ones(bits: u32) -> u16 {
    u16::MAX.checked_shl(QUEUE_BITS - bits).unwrap_or(0)
}

/// Values and numbers of leading bits by which every number but these is matched, each once.
fn all_but(numbers: &[u16]) -> Vec<(u16, u32)> {
    let (mut found, mut open) = (Vec::new(), vec![(0u16, 0u32)]);
    while let Some((value, bits)) = open.pop() {
        let mask = leading_ones(bits);
        if !numbers.iter().any(|number| number & mask == value) {
            found.push((value, bits));
        } else if bits < QUEUE_BITS {
            let half = 1 << (QUEUE_BITS - bits - 1);
            open.extend([(value, bits + 1), (value | half, bits + 1)]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PORT: PortId = PortId(4100);
    const BANDWIDTH: RateLimit = RateLimit {
        bits_per_second: 1_000_000,
        burst: 1600,
    };

    fn band(rate: u32) -> Option<MeterBand> {
        Some(MeterBand { rate, burst: 9 })
    }

    fn means_of(limits: &Limits) -> Means {
        means(PortNo(4), PORT, limits)
    }

    /// The flow that a packet of that priority meets on its way to the port.
    fn flow_of(means: &Means, priority: u32) -> &Flow {
        let mut context = Context::NONE;
        context.set_skb_priority(priority);
        let matches = |flow: &&Flow| {
            flow.stage == Stage::Egress(PORT, 0)
                && flow
                    .context
                    .as_ref()
                    .is_none_or(|wanted| context.masked(&wanted.mask) == wanted.context)
        };
        let found: Vec<_> = means.flows.values().filter(matches).collect();
        assert_eq!(found.len(), 1, "{priority:#x}");
        found[0]
    }

    /// The rates of the meters that it meets.
    fn met(means: &Means, priority: u32) -> Vec<u32> {
        let meters = flow_of(means, priority)
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Meter(meter) => means.meters[meter].band.map(|band| band.rate),
                _ => None,
            });
        meters.collect()
    }

    /// Classes that tell of their queues.
    fn classes_of<'a>(queues: impl Iterator<Item = &'a u16>) -> BTreeMap<u16, RateClass> {
        let class = |queue: &u16| RateClass {
            least_rate: (*queue).into(),
            ..RateClass::default()
        };
        queues.map(|queue| (*queue, class(queue))).collect()
    }

    /// The least rate of packets with that priority.
    fn class_of(means: &Means, priority: u32) -> u64 {
        let number = flow_of(means, priority)
            .actions
            .iter()
            .find_map(|action| match action {
                Action::Edit(Edit::Class(number)) => Some(*number),
                _ => None,
            });
        let number = number.unwrap_or(0);
        let class = means.classes.iter().find(|class| class.number == number);
        class.map_or(0, |class| class.least_rate)
    }

    /// As `set_queue` writes it.
    fn priority(queue: u16) -> u32 {
        0x10000 | (u32::from(queue) + 1)
    }

    proptest! {
        #[test]
        fn each_packet_meets_the_meters_of_its_queue(
            all in prop::option::of(Just(1u32)),
            bandwidth in prop::option::of(Just(BANDWIDTH)),
            queues in prop::collection::btree_map(
                prop_oneof![0u16..8, 0..QUEUE_LIMIT, Just(QUEUE_LIMIT - 1)], prop::option::of(2u32..5), 0..MAX_QUEUES),
            others in prop::collection::vec(any::<u16>(), 0..20),
        ) {
            let limits = Limits {
                bandwidth,
                classes: classes_of(queues.keys()),
                egress: all.and_then(band),
                queues: queues.iter().map(|(queue, rate)| (*queue, rate.and_then(band))).collect(),
                ..Limits::default()
            };
            let means = means_of(&limits);
            prop_assert_eq!(means.rates.to, bandwidth);
            let counts = bandwidth.is_some() && !queues.is_empty();
            if all.is_none() && !counts && queues.values().all(Option::is_none) {
                prop_assert!(means.classes.is_empty());
                prop_assert_eq!(Means { rates: PortRates::default(), ..means }, Means::default());
                return Ok(());
            }
            prop_assert_eq!(means.filters, Filters::of_flows(0, 1));
            let others = others.into_iter().filter(|queue| *queue < QUEUE_LIMIT);
            let tried: Vec<_> = queues.keys().copied().chain(others).collect();
            // Each is counted by itself.
            let counting = means.meters.len() - usize::from(all.is_some());
            prop_assert_eq!(counting, queues.len());
            let untold = queues.get(&0).copied().flatten();
            prop_assert!(RateClass::are_valid(&means.classes));
            for queue in tried {
                let class = class_of(&means, priority(queue));
                let listed = queues.contains_key(&queue);
                let wanted = if listed { queue } else { 0 };
                let wanted = queues.contains_key(&wanted).then_some(u64::from(wanted));
                prop_assert_eq!(class, wanted.filter(|_| bandwidth.is_some()).unwrap_or(0));
                let own = queues.get(&queue).copied().unwrap_or(untold);
                let wanted: Vec<_> = own.into_iter().chain(all).collect();
                prop_assert_eq!(met(&means, priority(queue)), wanted);
            }
            let wanted: Vec<_> = untold.into_iter().chain(all).collect();
            prop_assert_eq!(met(&means, 0), wanted);
        }

        #[test]
        fn changes_lead_from_any_limits_to_any_others(
            steps in prop::collection::vec((any::<[bool; 4]>(), prop::collection::btree_map(0u16..6, prop::option::of(1u32..3), 0..5)), 1..6),
        ) {
            let mut there = Means::default();
            let mut told = Means::default();
            for ([ingress, packets, egress, bandwidth], queues) in steps {
                let wanted = means_of(&Limits {
                    ingress: band(1).filter(|_| ingress),
                    ingress_packets: band(2).filter(|_| packets),
                    bandwidth: bandwidth.then_some(BANDWIDTH),
                    classes: classes_of(queues.keys()),
                    egress: band(3).filter(|_| egress),
                    queues: queues.into_iter().map(|(queue, rate)| (queue, rate.and_then(band))).collect(),
                });
                for request in changes(PORT, &told, &wanted) {
                    match request {
                        Request::PortRates { rates, .. } => {
                            there.rates = rates;
                            if rates.to.is_none() {
                                there.classes.clear();
                            }
                        }
                        Request::PortClasses { classes, .. } => there.classes = classes,
                        Request::MeterSet { meter, spec } => drop(there.meters.insert(meter, spec)),
                        Request::MeterDel { meter } => assert!(there.meters.remove(&meter).is_some()),
                        Request::FlowPut { flow, .. } => drop(there.flows.insert(flow.id, flow)),
                        Request::FlowDel { id, .. } => assert!(there.flows.remove(&id).is_some()),
                        Request::PortFilters { filters, .. } => there.filters = filters,
                        other => panic!("{other:?}"),
                    }
                }
                prop_assert_eq!(&there, &wanted);
                told = wanted;
            }
        }
    }

    #[test]
    fn numbers_are_of_one_port_and_not_of_ovs_vswitchd() {
        let limits = Limits {
            ingress: band(1),
            ingress_packets: band(1),
            bandwidth: None,
            classes: BTreeMap::new(),
            egress: band(1),
            queues: [(0, band(1)), (QUEUE_LIMIT - 1, band(1)), (QUEUE_LIMIT, band(1))].into(),
        };
        let [first, last] = [0, 4095].map(|number| means(PortNo(number), PORT, &limits));
        assert_eq!(first.meters.len(), 5, "the last queue is none");
        assert!(first.meters.keys().all(|meter| *meter >= OWN_METERS));
        assert!(first.meters.keys().all(|meter| !last.meters.contains_key(meter)));
        assert!(first.flows.keys().all(|flow| !last.flows.contains_key(flow)));
        assert!(first.flows.keys().all(|flow| flow.0 >= FLOWS));
        let Some((id, ingress)) = first.flows.first_key_value() else {
            panic!()
        };
        assert_eq!((*id, ingress.stage), (FlowId(FLOWS), Stage::Ingress(0)));
        assert_eq!(ingress.key.in_port(), PORT.0);
        assert_eq!(ingress.actions.len(), 3);
    }
}
