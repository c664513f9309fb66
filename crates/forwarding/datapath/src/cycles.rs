//! What the pipeline alone costs per packet: two guests' rings driven from the thread that forwards, so that
//! no wake-up, no other core and no scheduler is in the figures. For development; `make bench` has the peers.
//!
//! `cargo test --release -p datapath cycles -- --ignored --nocapture`
//!
//! And what it does not cost: no allocation and no system call, hence no waiting for a lock.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../tests/support/mod.rs"]
pub(crate) mod support;

use crate::meter::Meters;
use crate::pipeline::Pipeline;
use crate::port::{Port, Switch};
use crate::state::{Datapath, transmit_ring};
use crate::switches::Switches;
use ::placement::{Config, Costs, Policy, Shape, Topology};
use classifier::Rules;
use control_protocol::data_plane::{Connection, PortSpec};
use flow::{
    Action, Edit, Filter, Filters, Flow, FlowId, FlowKey, FlowMask, ListId, MeterBand, MeterSpec, MeterUnit,
    PortId, Stage, SwitchId,
};
use rule_list::{Addresses, Builder, IpPrefix, MacPrefix, Macs, Match, Range, Rule, Transport, Verdict};
use scheduler::{Placement, Scheduler};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, mpsc};
use std::time::Instant;
use support::guest::{ALL, Guest, Setup};
use support::memory::Memory;

const RING: u16 = 256;
const BURSTS: usize = 20_000;
/// Distance of buffers, about as DPDK has them. A power of two would put all heads in few sets of the caches.
const STRIDE: usize = 2048 + 256;

struct Loop {
    scheduler: Scheduler<Pipeline>,
    guests: Guests,
    ports: [Arc<Port>; 2],
    meters: Arc<Meters>,
    rules: Arc<Rules>,
    /// Of the reading of the clock, in nanoseconds.
    overhead: u128,
    /// Number of the next packet, if there are several flows.
    serial: usize,
    tag: Tag,
    /// Connections differ in all bits of both ports.
    spread: bool,
}

/// What the flow does to the tags of frames.
#[derive(Clone, Copy)]
enum Tag {
    Kept,
    Pushed,
    Popped,
}

/// The rule list of filters.
const LIST: ListId = ListId(1);
/// The list of guards.
const GUARDS: ListId = ListId(2);

const TAG: [u8; 4] = [0x81, 0, 0, 3];

/// One guest that sends, and one that receives.
pub(crate) struct Guests {
    pub sender: Guest,
    pub receiver: Guest,
}

/// Two ports, and the guests behind them: what the first one sends to the station of the second arrives
/// there.
pub(crate) fn pair(datapath: &Arc<Datapath>) -> ([Arc<Port>; 2], Guests) {
    let mut switches = Switches::new(datapath.rules.clone());
    let switch = switches.get_or_new(SwitchId(1)).unwrap().clone();
    pair_from(datapath, &switch, 1)
}

/// As [`pair`], with ports of these numbers.
pub(crate) fn pair_from(
    datapath: &Arc<Datapath>,
    switch: &Arc<Switch>,
    number: u32,
) -> ([Arc<Port>; 2], Guests) {
    let (first, sender) = port(datapath, switch, number);
    let (second, receiver) = port(datapath, switch, number + 1);
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(u64::MAX);
    let mut key = FlowKey::default();
    key.set_in_port(number);
    key.set_eth_dst(0x0200_0000_0002);
    let id = u128::from(number + 1);
    insert_with(switch, id, key, mask, vec![Action::Output(second.id())]);
    ([first, second], Guests { sender, receiver })
}

fn port(datapath: &Arc<Datapath>, switch: &Arc<Switch>, number: u32) -> (Arc<Port>, Guest) {
    let setup = Setup {
        features: ALL,
        receive_size: RING,
        transmit_size: RING,
        buffers: vec![STRIDE as u32],
        posted: RING.into(),
    };
    let (port, mut guest) = port_with(datapath, switch, number, setup);
    guest.repost = false;
    guest.bring_up();
    (port, guest)
}

/// A port with a guest that has said nothing yet.
pub(crate) fn port_with(
    datapath: &Arc<Datapath>,
    switch: &Arc<Switch>,
    number: u32,
    setup: Setup,
) -> (Arc<Port>, Guest) {
    let port = datapath.make_port(spec(number), switch.clone()).unwrap();
    datapath.set_port(port.id(), Some(port.clone()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    port.attach(ours).unwrap();
    (port, Guest::new(number, theirs, setup))
}

fn spec(number: u32) -> PortSpec {
    PortSpec {
        port: PortId(number),
        switch: SwitchId(1),
        name: number.to_string(),
        connection: Connection::Attached,
        mtu: 65_535,
        miss_rate: 1000,
        mac: None,
        masked_features: 0,
        filters: Filters::default(),
        mirrors: Vec::new(),
        p4: control_protocol::p4::P4Attachment::default(),
    }
}

/// A UDP frame of one of many flows.
pub(crate) fn frame(len: usize, flow: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((len as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(flow.to_be_bytes());
    frame.extend([0, 53]);
    frame.extend((len as u16 - 34).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(len, 0x5a);
    frame
}

/// From the sender to the receiver, for frames to a station.
fn put_flow(switch: &Switch, station: u64, mask: FlowMask) {
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_eth_dst(0x0200_0000_0000 + station);
    insert(switch, station.into(), key, mask);
}

fn insert(switch: &Switch, id: u128, key: FlowKey, mask: FlowMask) {
    insert_with(switch, id, key, mask, vec![Action::Output(PortId(2))]);
}

pub(crate) fn insert_with(switch: &Switch, id: u128, key: FlowKey, mask: FlowMask, actions: Vec<Action>) {
    let flow = Flow::new(FlowId(id), SwitchId(1), key, mask, actions);
    switch.flows.lock().insert(flow).unwrap();
}

/// A flow with these actions for each pair of UDP ports, and none for a station.
fn put_flow_per_pair(switch: &Switch, flows: usize, actions: &[Action]) {
    switch.flows.lock().remove(FlowId(2)).unwrap();
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_type(u16::MAX);
    mask.0.set_ip_proto(u8::MAX);
    mask.0.set_tp_src(u16::MAX);
    mask.0.set_tp_dst(u16::MAX);
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_eth_type(0x0800);
    key.set_ip_proto(17);
    for pair in 0..flows {
        key.set_tp_src((pair >> 16) as u16);
        key.set_tp_dst(pair as u16);
        insert_with(switch, 16 + pair as u128, key, mask, actions.to_vec());
    }
}

/// One egress filter for a port, whose flow compares these bits and lets packets pass.
fn put_egress_filter(switch: &Switch, port: PortId, mask: FlowMask) {
    switch.flows.lock().set_filters(port, Filters::of_flows(0, 1));
    let flow = Flow {
        stage: Stage::Egress(port, 0),
        ..Flow::new(
            FlowId(1),
            SwitchId(1),
            FlowKey::default(),
            mask,
            vec![Action::Continue],
        )
    };
    switch.flows.lock().insert(flow).unwrap();
}

/// A meter that nobody exceeds.
const METER: u32 = 1;
/// The pass in which a group selects one of two buckets.
const SELECTING: u32 = 1;

/// The second pass of a group that selects: a flow for each value of the hash, as Open vSwitch makes them.
fn put_buckets(switch: &Switch) {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
    key.set_in_port(1);
    mask.0.set_in_port(u32::MAX);
    key.set_recirc_id(SELECTING);
    mask.0.set_recirc_id(u32::MAX);
    mask.0.set_dp_hash(0xf);
    for hash in 0..16 {
        key.set_dp_hash(hash);
        insert(switch, 3 + 1_000_000 * u128::from(hash + 1), key, mask);
    }
}

impl Guests {
    fn data(&self) -> usize {
        self.sender.data - 32 * 80 * 1024
    }

    /// Has the sender's buffers hold frames of that length.
    pub fn prepare(&mut self, len: usize) {
        self.prepare_with(&frame(len, 0));
    }

    fn prepare_with(&mut self, frame: &[u8]) {
        self.prepare_each(std::iter::once(frame));
    }

    /// Has the sender's buffers hold these frames in turn.
    pub fn prepare_each(&mut self, frames: impl Iterator<Item = impl AsRef<[u8]>> + Clone) {
        for (slot, frame) in (0..usize::from(RING)).zip(frames.cycle()) {
            let at = self.data() + slot * STRIDE;
            let mut bytes = vec![0; 12];
            bytes.extend(frame.as_ref());
            self.sender.memory.write(at, &bytes);
            let (slot, len) = (slot as u16, bytes.len() as u32);
            self.sender
                .transmit
                .descriptor(slot, Memory::guest(at), len, 0, 0);
        }
    }

    /// Sends a burst. `flow` says of which flow a packet is, unless that is the flow of the packet in this
    /// buffer before.
    pub fn send(&mut self, burst: usize, mut flow: impl FnMut() -> Option<u32>) {
        for _ in 0..burst {
            let slot = self.sender.transmit.next & (RING - 1);
            if let Some(flow) = flow() {
                let at = self.data() + usize::from(slot) * STRIDE + 12;
                self.sender.memory.write(at + 34, &flow.to_be_bytes());
            }
            self.sender.transmit.offer(slot);
        }
        self.sender.transmit.publish();
    }

    /// Has both rings full again; returns how many frames have arrived.
    pub fn fill_up(&mut self) -> u64 {
        let mut arrived = 0;
        for ring in [&mut self.receiver.receive, &mut self.sender.receive] {
            while let Some((head, _)) = ring.take_used() {
                ring.offer(head);
                arrived += 1;
            }
            ring.publish();
        }
        while self.sender.transmit.take_used().is_some() {}
        let ring = &self.sender.transmit;
        let room = RING - ring.next.wrapping_sub(ring.used_index());
        self.send(room.into(), || None);
        arrived
    }

    /// Takes what arrived; returns how many frames.
    pub fn take_arrived(&mut self) -> u64 {
        let (ring, mut arrived) = (&mut self.receiver.receive, 0);
        while let Some((head, _)) = ring.take_used() {
            ring.offer(head);
            arrived += 1;
        }
        ring.publish();
        while self.sender.transmit.take_used().is_some() {}
        arrived
    }

    /// Takes what arrived, which are `burst` frames of that length.
    pub fn collect(&mut self, len: usize, burst: usize) {
        let mut delivered = 0;
        while let Some((head, written)) = self.receiver.receive.take_used() {
            assert_eq!(written as usize, len + 12);
            self.receiver.receive.offer(head);
            delivered += 1;
        }
        assert_eq!(delivered, burst);
        self.receiver.receive.publish();
        while self.sender.transmit.take_used().is_some() {}
    }
}

impl Loop {
    fn new() -> Loop {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let (ports, guests) = pair(&datapath);
        let mut readings: Vec<_> = (0..1000).map(|_| Instant::now().elapsed().as_nanos()).collect();
        readings.sort_unstable();
        Loop {
            meters: datapath.meters.clone(),
            rules: datapath.rules.clone(),
            scheduler: Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath)),
            guests,
            ports,
            overhead: readings[500],
            serial: 0,
            tag: Tag::Kept,
            spread: false,
        }
    }

    /// A flow for each pair of ports, whose packets go through a meter, and then, if they are hashed, through
    /// a group that selects.
    fn put_metered(&self, flows: usize, hashed: bool) {
        let band = Some(MeterBand {
            rate: u32::MAX,
            burst: u32::MAX,
        });
        let spec = MeterSpec::new(MeterUnit::Kilobits, band);
        self.meters.set(PortId(1).controller(), METER, spec).unwrap();
        let switch = &self.ports[0].switch;
        let then = if hashed {
            put_buckets(switch);
            vec![Action::Hash { basis: 0 }, Action::Recirc(SELECTING)]
        } else {
            vec![Action::Output(PortId(2))]
        };
        put_flow_per_pair(switch, flows, &[vec![Action::Meter(METER)], then].concat());
    }

    /// Has the flow push or pop a tag. `filtered` says whether the receiver has an egress filter, which lets
    /// everything pass.
    fn put_tags(&mut self, tag: Tag, filtered: bool) {
        self.tag = tag;
        let switch = &self.ports[0].switch;
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_dst(u64::MAX);
        let change = match tag {
            Tag::Popped => Action::Edit(Edit::PopVlan),
            Tag::Kept | Tag::Pushed => Action::Edit(Edit::PushVlan {
                tpid: 0x8100,
                tci: 0x1003,
            }),
        };
        let mut key = FlowKey::default();
        key.set_in_port(1);
        key.set_eth_dst(0x0200_0000_0002);
        insert_with(switch, 2, key, mask, vec![change, Action::Output(PortId(2))]);
        if filtered {
            put_egress_filter(switch, PortId(2), FlowMask::ANY);
        }
    }

    /// Gives ports a rule list as a filter, which lets everything pass that is sent here. It has a rule that
    /// does so, behind `others` rules about addresses and ports.
    fn put_rules(&self, others: u32, filters: &[(PortId, Filters)]) {
        let udp = |first, len, destination| Match {
            eth_type: Some(0x0800),
            ip_src: Some(Addresses::Prefix(IpPrefix {
                address: Ipv4Addr::from_bits(first).into(),
                len,
            })),
            ip_proto: Some(17),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination,
            }),
            ..Match::default()
        };
        let rule = |number, matches, verdict| Rule {
            number,
            priority: others - number,
            matches,
            verdict,
            trial: false,
            log: false,
        };
        let mut builder = Builder::new(Verdict::Drop);
        for number in 0..others {
            let port = Range::one(1000 + number as u16);
            let matches = udp(0x0b00_0000 | number << 8, 24, port);
            builder.add(rule(number, matches, Verdict::Drop)).unwrap();
        }
        let all = rule(others, udp(0x0a00_0000, 8, Range::ALL), Verdict::Allow);
        builder.add(all).unwrap();
        let (list, _) = builder.compile().finish().unwrap();
        self.rules.put(LIST, list, 0, None).unwrap().finish();
        self.set_filters(filters);
    }

    fn set_filters(&self, filters: &[(PortId, Filters)]) {
        for (port, filters) in filters {
            self.ports[0].switch.flows.lock().set_filters(*port, *filters);
        }
    }

    /// Guards the sender, and gives both ports a list of 1,000 rules that are about single ports of sender
    /// and receiver, so that it tells nearly all connections apart.
    fn put_policies(&mut self) {
        self.spread = true;
        let rule = |number, matches, verdict| Rule {
            number,
            priority: 10_000 - number,
            matches,
            verdict,
            trial: false,
            log: false,
        };
        let udp = |destination| Match {
            eth_type: Some(0x0800),
            ip_proto: Some(17),
            transport: Some(Transport::Ports {
                source: Range::ALL,
                destination,
            }),
            ..Match::default()
        };
        let network = |bits: u32, len| {
            let address = Ipv4Addr::from_bits(bits).into();
            Some(Addresses::Prefix(IpPrefix { address, len }))
        };
        let pair = Match {
            eth_src: Some(Macs::Prefix(MacPrefix {
                address: 0x0200_0000_0001,
                len: 48,
            })),
            eth_type: Some(0x0800),
            ip_src: network(0x0a00_0001, 32),
            ..Match::default()
        };
        let mut guards = Builder::new(Verdict::Drop);
        let server = udp(Range::ALL);
        let server = Match {
            transport: Some(Transport::Ports {
                source: Range::one(67),
                destination: Range::one(68),
            }),
            ..server
        };
        guards.add(rule(0, server, Verdict::Drop)).unwrap();
        guards.add(rule(1, pair, Verdict::Allow)).unwrap();
        let mut acl = Builder::new(Verdict::Drop);
        for number in 0..1000 {
            let one = Range::one(number as u16 * 65);
            let (source, destination) = if number % 2 == 0 {
                (one, Range::ALL)
            } else {
                (Range::ALL, one)
            };
            let transport = Some(Transport::Ports { source, destination });
            let matches = Match {
                transport,
                ..udp(Range::ALL)
            };
            acl.add(rule(number, matches, Verdict::Allow)).unwrap();
        }
        acl.add(rule(1000, udp(Range::ALL), Verdict::Allow)).unwrap();
        for (id, list) in [(GUARDS, guards), (LIST, acl)] {
            let (list, _) = list.compile().finish().unwrap();
            self.rules.put(id, list, 0, None).unwrap().finish();
        }
        let mut filters = Filters::default();
        filters.ingress[1] = Filter::Rules(GUARDS);
        filters.ingress[2] = Filter::Rules(LIST);
        filters.egress[2] = Filter::Rules(LIST);
        self.set_filters(&[(PortId(1), filters), (PortId(2), filters)]);
    }

    /// Forwards a burst of packets of the next of so many flows; returns how long the switch took, in
    /// nanoseconds.
    fn forward(&mut self, flows: usize, burst: usize) -> u128 {
        let (serial, spread) = (&mut self.serial, self.spread);
        self.guests.send(burst, || {
            let flow = *serial % flows;
            *serial += 7919;
            let factor = if spread { 0x9e37_79b1 } else { 1 };
            (flows > 1).then_some((flow as u32).wrapping_mul(factor))
        });
        self.scheduler.schedule.later(transmit_ring(PortId(1)));
        let start = Instant::now();
        while self.scheduler.step() {}
        start.elapsed().as_nanos()
    }

    /// Nanoseconds per packet: of a burst that little disturbed, which is the tenth percentile, and the 50th
    /// and 90th. Before each burst comes one that is not measured, of so many other connections, unless that
    /// is 0.
    fn measure(&mut self, len: usize, flows: usize, others: usize, burst: usize) -> [f64; 3] {
        let mut sent = frame(len, 0);
        if matches!(self.tag, Tag::Popped) {
            sent.splice(12..12, TAG);
        }
        let received = match self.tag {
            Tag::Pushed => len + TAG.len(),
            Tag::Kept | Tag::Popped => len,
        };
        self.guests.prepare_with(&sent);
        // Fewer under valgrind.
        let bursts = std::env::var("BURSTS").map_or(BURSTS, |text| text.parse().unwrap());
        let mut times = Vec::with_capacity(bursts);
        let mut other = 0;
        for _ in 0..bursts {
            if others > 0 {
                std::mem::swap(&mut self.serial, &mut other);
                self.forward(others, burst);
                self.guests.collect(received, burst);
                std::mem::swap(&mut self.serial, &mut other);
            }
            times.push(self.forward(flows, burst));
            self.guests.collect(received, burst);
        }
        times.sort_unstable();
        [1, 5, 9]
            .map(|tenths| times[bursts * tenths / 10].saturating_sub(self.overhead) as f64 / burst as f64)
    }
}

/// From now on, this process ends at any system call of this thread but the ones that wait for ever.
fn forbid_system_calls() {
    let waiting = [
        libc::SYS_ppoll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause,
    ];
    let filter = SeccompFilter::new(
        waiting.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Each length on a thread of its own, which cannot even end afterwards.
#[test]
fn steady_forwarding_allocates_nothing_and_makes_no_system_call() {
    for len in [64, 1500] {
        let (done, result) = mpsc::channel();
        let allocated = Arc::new(AtomicU64::new(u64::MAX));
        let told = allocated.clone();
        std::thread::spawn(move || {
            let mut all = Loop::new();
            all.guests.prepare(len);
            let mut forward = || {
                for (flows, burst) in [(1, 32), (1, 1), (100, 32), (100, 3)] {
                    for _ in 0..20 {
                        all.forward(flows, burst);
                        all.guests.collect(len, burst);
                    }
                }
            };
            forward();
            done.send(()).unwrap();
            forbid_system_calls();
            told.store(allocation_counter::measure(forward).count_total, Release);
            loop {
                rustix::event::pause();
            }
        });
        result.recv().unwrap();
        support::eventually("packets are forwarded", || allocated.load(Acquire) != u64::MAX);
        assert_eq!(allocated.load(Acquire), 0, "frames of {len} bytes");
    }
}

/// What comes later does not widen unseen what each port takes before its guest says anything.
#[test]
fn an_idle_port_takes_no_more_bytes_than_it_did() {
    const BYTES: i64 = 37_896;
    const HEAD_OF_ARC: i64 = 16;
    let two_cores = Topology::regular(Shape {
        nodes: 1,
        llcs: 1,
        modules: 2,
        cpus: 1,
    });
    let policy = Policy::new(Config::default(), two_cores, Costs::default());
    let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
    let switch = Switches::default().get_or_new(SwitchId(1)).unwrap().clone();
    let mut ports = Vec::with_capacity(2);
    let mut make = |number| {
        let spec = spec(number);
        let made = allocation_counter::measure(|| ports.push(datapath.make_port(spec, switch.clone())));
        made.bytes_current
    };
    // The first one may fill what all share, and makes accounts for others.
    make(1);
    let bytes = make(2) + size_of::<vnic::Counters>() as i64 + HEAD_OF_ARC;
    assert!(ports.iter().all(Result::is_ok));
    assert!(bytes <= BYTES, "{bytes} bytes");
}

/// What lists tell apart is compared at the first look where all packets of a port come to lists.
#[test]
fn connections_that_lists_tell_apart_need_no_further_look_for_long() {
    let mut all = Loop::new();
    all.put_policies();
    all.guests.prepare(64);
    let (mut one, mut other) = (FlowKey::default(), FlowKey::default());
    one.set_tp_src(1);
    other.set_tp_dst(1);
    let [one, other] = [one, other].map(|key| flow::ExactKey::of(&key));
    let mut bursts = 0;
    let flows = all.ports[0].flows.clone();
    while one.is_equal_in(&other, flows.mask_union(&one)) {
        all.forward(1000, 32);
        all.guests.collect(64, 32);
        bursts += 1;
        assert!(bursts < 1000);
    }
    assert!(bursts > 10, "a few packets prove nothing");
}

#[test]
#[ignore = "a measurement"]
fn cycles() {
    let mhz = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let mhz: f64 = mhz
        .lines()
        .find_map(|line| {
            line.strip_prefix("cpu MHz")?
                .split(':')
                .nth(1)?
                .trim()
                .parse()
                .ok()
        })
        .unwrap();
    let mut all = Loop::new();
    println!("clock {} ns, {mhz} MHz", all.overhead);
    println!("frame flows burst apart  ns/packet  cycles   median  90th percentile, ns");
    // The last number says how flows of packets are told apart: 0 not at all, as a learning switch has it; 1
    // by a flow in the table that looks at all fields; 2 by a flow for each; 3 and 4 the same with a meter,
    // and 4 with a group that selects. 5 and 6: a tag is pushed, in 6 in front of an egress filter; 7 and 8:
    // a tag is popped, in 8 in front of one. 9: as 0, while an egress filter of a third port looks at all
    // fields. 10 and 11: both ports have a list of one rule, or of a thousand more, as a filter; 12: as 0,
    // while a third port has the list as its egress filter. 13: both ports have 1,000 rules that tell
    // connections apart, and the sender has guards.
    let mut cases = vec![
        [64, 1, 32, 0],
        [512, 1, 32, 0],
        [1500, 1, 32, 0],
        [64, 1_000, 32, 0],
        [64, 100_000, 32, 0],
        [64, 1, 1, 0],
        [64, 1, 4, 0],
        [64, 1_000, 32, 1],
        [64, 100_000, 32, 1],
        [64, 1_000, 32, 2],
        [64, 10_000, 32, 2],
        [64, 100_000, 32, 2],
        [64, 1_000, 32, 3],
        [64, 20_000, 32, 3],
        [64, 1_000, 32, 4],
        [64, 20_000, 32, 4],
        [64, 1, 32, 5],
        [64, 1, 32, 6],
        [64, 1, 32, 7],
        [64, 1, 32, 8],
        [64, 1_000, 32, 0],
        [64, 1_000, 32, 9],
        [64, 1, 32, 10],
        [64, 1_000, 32, 10],
        [64, 1_000, 32, 11],
        [64, 1_000, 32, 12],
        [64, 1_000, 32, 13],
        [64, 100_000, 32, 13],
        [64, 1_000, 32, 1],
    ];
    // One alone, for a profiler: `CASE=64,1,32,0`.
    if let Ok(case) = std::env::var("CASE") {
        let case: Vec<usize> = case.split(',').map(|number| number.parse().unwrap()).collect();
        cases = vec![case.try_into().unwrap()];
    }
    // And what a guest that makes up connections costs another one: `OTHERS=300000 CASE=64,1000,32,1`.
    let others = std::env::var("OTHERS").map_or(0, |text| text.parse().unwrap());
    for [len, flows, burst, apart] in cases {
        match apart {
            0 => all = Loop::new(),
            1 => put_flow(&all.ports[0].switch, 3, FlowMask::EXACT),
            2 => {
                all = Loop::new();
                put_flow_per_pair(&all.ports[0].switch, flows, &[Action::Output(PortId(2))]);
            }
            3 | 4 => {
                all = Loop::new();
                all.put_metered(flows, apart == 4);
            }
            5..=8 => {
                all = Loop::new();
                let tag = if apart < 7 { Tag::Pushed } else { Tag::Popped };
                all.put_tags(tag, apart % 2 == 0);
            }
            10..=12 => {
                all = Loop::new();
                let mut filters = [Filter::Absent; 4];
                filters[2] = Filter::Rules(LIST);
                let (ingress, egress) = (filters, filters);
                let [first, second, third] = [
                    (
                        PortId(1),
                        Filters {
                            ingress,
                            ..Filters::default()
                        },
                    ),
                    (
                        PortId(2),
                        Filters {
                            egress,
                            ..Filters::default()
                        },
                    ),
                    (
                        PortId(3),
                        Filters {
                            egress,
                            ..Filters::default()
                        },
                    ),
                ];
                match apart {
                    10 => all.put_rules(0, &[first, second]),
                    11 => all.put_rules(1000, &[first, second]),
                    _ => all.put_rules(1000, &[third]),
                }
            }
            13 => {
                all = Loop::new();
                all.put_policies();
            }
            _ => {
                all = Loop::new();
                put_egress_filter(&all.ports[0].switch, PortId(3), FlowMask::EXACT);
            }
        }
        let [ns, median, late] = all.measure(len, flows, others, burst);
        println!(
            "{len:5} {flows:6} {burst:4} {apart:5} {ns:8.1} {:8.0} {median:8.1} {late:8.1}",
            ns * mhz / 1000.0
        );
    }
}
