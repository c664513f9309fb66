//! Ways of flows over a real device behind the traits: the card, its control driver and a queue in shared
//! memory, beside a forwarder that is simulated. Frames have numbers.
//!
//! The card gives frames without a filter to the forwarder's socket at once, and those of queues when a poll
//! ends. Filters are programmed and removed, VIs break and are closed with their driver, addresses change,
//! the link goes down and forwarders die, in any order.

#![allow(clippy::unwrap_used)]

use accelerator::{Accelerator, Arrivals, Arrived, BOUND_US, Filter, FilterId, Match, State, Way};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use smart_nic::{Control, Device, Driver, Memory, Register};
use std::collections::VecDeque;
use std::sync::Arc;

const FLOWS: usize = 3;
const POLL: usize = 64;
/// Frames for one queue that may be on their way: less than its receive ring has.
const MOST: u64 = 150;

#[derive(Clone, Debug)]
enum Op {
    Arrive(usize, u64),
    /// The card takes frames off the wire; `true` ends the poll.
    Poll(usize, bool),
    Take(usize),
    Publish,
    Mark,
    /// The forwarder dies.
    Death,
    /// A turn of the data plane, as in `way_twin.rs` of crate `accelerator`.
    Turn(usize, usize),
    Attach(usize),
    /// Eviction, or an address that moves to another queue or host.
    Detach(usize),
    LinkDown,
    /// A driver breaks the rules of its ring, so that the card stops its VI.
    Break(usize),
    /// The driver of a queue dies with its memory: the broker closes the VI and opens another one.
    Close(usize),
    /// A station gets another address.
    NewAddress(usize),
    Wait(u64),
}

/// What a world does wrong, for tests of this test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    NoIndex,
    NoMark,
    EarlyRemoval,
    Forgotten,
}

#[derive(Default)]
struct Forwarder {
    socket: VecDeque<Vec<u8>>,
    hands: Vec<Vec<u8>>,
    ring: VecDeque<Vec<u8>>,
    published: u64,
    taken: u64,
    asked: Vec<usize>,
}

/// A flow of numbered frames, and its queue.
struct Flow {
    driver: Driver,
    registers: rustix::fd::OwnedFd,
    way: Way,
    filter: Option<FilterId>,
    /// Distinguishes the addresses that the station has had.
    address: u8,
    next: u64,
    /// The poll that took each frame off the wire, and the station's address then.
    polls: Vec<(u64, u8)>,
    /// Frames that have come by the queue since it was opened, and that went into it.
    came: u64,
    given: u64,
    lost: u64,
    arrived: Vec<u64>,
    overdue: u64,
}

impl Flow {
    /// Takes what lies in the queue.
    fn collect(&mut self) {
        let queue: &mut dyn Arrivals = &mut self.driver;
        while queue.oldest().is_some() {
            let mut room = [[0; 24]; 4];
            let [front, middle @ ..] = &mut room;
            let arrived = queue.receive([front, middle.as_flattened_mut()]);
            // A header of 12 bytes, and a frame of 60.
            assert_eq!(arrived, Arrived::Frame(72));
            self.arrived.push(parse(&room.as_flattened()[12..72]).1);
            self.came += 1;
        }
    }
}

struct World {
    device: Arc<Mutex<Device>>,
    control: Box<dyn Accelerator>,
    flows: Vec<Flow>,
    wire: VecDeque<Vec<u8>>,
    poll: u64,
    in_poll: usize,
    forwarder: Forwarder,
    now_us: u64,
    fault: Option<Fault>,
}

fn destination(flow: usize, address: u8) -> Match {
    Match::Mac([2, 0, 0, 0, address, flow as u8])
}

fn frame(flow: usize, address: u8, number: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, address, flow as u8, 2, 0, 0, 9, 9, 9, 8, 0];
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

fn parse(frame: &[u8]) -> (usize, u64) {
    (
        usize::from(frame[5]),
        u64::from_be_bytes(frame[14..22].try_into().unwrap()),
    )
}

fn open(control: &mut dyn Accelerator, queue: usize) -> (Driver, rustix::fd::OwnedFd) {
    let descriptors = control.open(queue as u32).unwrap();
    let registers = descriptors[1].try_clone().unwrap();
    (Driver::new(descriptors, 0).unwrap(), registers)
}

impl World {
    fn new(fault: Option<Fault>) -> World {
        let device = Arc::new(Mutex::new(Device::default()));
        let mut control: Box<dyn Accelerator> = Box::new(Control::new(&device));
        let flows = (0..FLOWS).map(|flow| {
            let (driver, registers) = open(control.as_mut(), flow);
            Flow {
                driver,
                registers,
                way: Way::default(),
                filter: None,
                address: 0,
                next: 0,
                polls: Vec::new(),
                came: 0,
                given: 0,
                lost: 0,
                arrived: Vec::new(),
                overdue: 0,
            }
        });
        World {
            flows: flows.collect(),
            device,
            control,
            wire: VecDeque::new(),
            poll: 0,
            in_poll: 0,
            forwarder: Forwarder::default(),
            now_us: 0,
            fault,
        }
    }

    fn run(&mut self, op: &Op) {
        self.now_us += 20;
        match *op {
            Op::Arrive(flow, count) => self.arrive(flow, count),
            Op::Poll(count, ends) => self.poll(count, ends),
            Op::Take(count) => self.take(count),
            Op::Publish => self.publish(),
            Op::Mark => self.mark(),
            Op::Death => self.die(),
            Op::Turn(most, meanwhile) => self.turn(most, meanwhile),
            Op::Attach(flow) => self.attach(flow),
            Op::Detach(flow) => self.detach(flow),
            Op::LinkDown => self.link_down(),
            Op::Break(flow) => {
                let page = Memory::map(&self.flows[flow].registers).unwrap();
                assert!(page.write(Register::ReceiveWritten.offset(), &[0xff; 4]));
            }
            Op::Close(flow) => self.close(flow),
            Op::NewAddress(flow) => {
                self.detach(flow);
                self.flows[flow].address = self.flows[flow].address.wrapping_add(1);
            }
            Op::Wait(us) => self.now_us += us,
        }
    }

    fn arrive(&mut self, which: usize, count: u64) {
        let waiting = self.wire.iter().filter(|frame| parse(frame).0 == which).count() as u64;
        let flow = &mut self.flows[which];
        for _ in 0..count.min(MOST.saturating_sub(flow.given - flow.came + waiting)) {
            self.wire.push_back(frame(which, flow.address, flow.next));
            flow.polls.push((0, flow.address));
            flow.next += 1;
        }
    }

    fn poll(&mut self, count: usize, ends: bool) {
        let mut device = self.device.lock();
        for _ in 0..count {
            let Some(frame) = self.wire.pop_front_if(|_| self.in_poll < POLL) else {
                break;
            };
            let (flow, number) = parse(&frame);
            self.flows[flow].polls[number as usize].0 = self.poll;
            self.in_poll += 1;
            device.receive(&frame);
            let before = self.forwarder.socket.len();
            self.forwarder.socket.extend(device.take_slow());
            self.flows[flow].given += u64::from(self.forwarder.socket.len() == before);
        }
        if ends || self.in_poll == POLL {
            self.poll += 1;
            self.in_poll = 0;
            device.finish(usize::MAX);
        }
        let stopped = |flow: &usize| device.stopped(*flow as u32).is_some();
        let stopped: Vec<usize> = (0..FLOWS).filter(stopped).collect();
        drop(device);
        stopped.into_iter().for_each(|flow| self.give_up(flow));
    }

    /// A VI has stopped, and its frames take the slow path. What lies in it arrives if it may already; else
    /// it would be overtaken.
    fn give_up(&mut self, which: usize) {
        let flow = &mut self.flows[which];
        if flow.way.serves_queue(self.forwarder.taken, self.now_us) {
            flow.collect();
        }
        self.close(which);
    }

    fn take(&mut self, count: usize) {
        let count = count.min(self.forwarder.socket.len());
        self.forwarder.hands.extend(self.forwarder.socket.drain(..count));
    }

    fn publish(&mut self) {
        let forwarder = &mut self.forwarder;
        forwarder.published += forwarder.hands.len() as u64;
        forwarder.ring.extend(forwarder.hands.drain(..));
    }

    fn mark(&mut self) {
        self.take(usize::MAX);
        self.publish();
        for flow in std::mem::take(&mut self.forwarder.asked) {
            self.flows[flow].way.on_mark(self.forwarder.published);
        }
    }

    fn die(&mut self) {
        let forwarder = &mut self.forwarder;
        for frame in forwarder.hands.drain(..).chain(forwarder.ring.drain(..)) {
            self.flows[parse(&frame).0].lost += 1;
        }
        forwarder.taken = forwarder.published;
        forwarder.asked.clear();
        for (number, flow) in self.flows.iter_mut().enumerate() {
            if flow.way.on_death() {
                forwarder.asked.push(number);
            }
        }
    }

    fn attach(&mut self, flow: usize) {
        let own = &mut self.flows[flow];
        if own.filter.is_none() && own.way.attach() {
            let filter = Filter {
                what: destination(flow, own.address),
                queue: flow as u32,
            };
            own.filter = Some(self.control.program(&filter).unwrap());
        }
    }

    fn ask(&mut self, flow: usize) {
        if self.flows[flow].way.ask_for_mark(self.now_us) {
            self.forwarder.asked.push(flow);
        }
    }

    fn detach(&mut self, flow: usize) {
        self.flows[flow].way.detach();
        self.ask(flow);
        self.remove_unwanted();
    }

    fn link_down(&mut self) {
        for frame in self.wire.drain(..) {
            self.flows[parse(&frame).0].lost += 1;
        }
        (0..FLOWS).for_each(|flow| self.detach(flow));
    }

    fn close(&mut self, which: usize) {
        self.control.close(which as u32);
        let (driver, registers) = open(self.control.as_mut(), which);
        let flow = &mut self.flows[which];
        flow.lost += flow.given - flow.came;
        flow.overdue += flow.way.counts().overdue;
        (flow.driver, flow.registers, flow.way) = (driver, registers, Way::default());
        (flow.filter, flow.came, flow.given) = (None, 0, 0);
    }

    fn remove_unwanted(&mut self) {
        for flow in &mut self.flows {
            let is_early = self.fault == Some(Fault::EarlyRemoval) && flow.way.state() == State::Arming;
            if let Some(filter) = flow.filter.filter(|_| is_early || flow.way.may_remove()) {
                if self.fault == Some(Fault::Forgotten) {
                    flow.came += flow.driver.take_all(|_| {}) as u64;
                }
                self.control.remove(filter).unwrap();
                flow.filter = None;
                flow.way.on_removed(self.now_us);
            }
        }
    }

    fn turn(&mut self, most: usize, meanwhile: usize) {
        let known = self.forwarder.ring.len();
        for which in 0..FLOWS {
            if self.flows[which].driver.oldest().is_some() {
                self.ask(which);
            }
            let flow = &mut self.flows[which];
            let is_late = flow.way.state() == State::Slow;
            let is_early = self.fault == Some(Fault::NoMark);
            if flow.way.serves_queue(self.forwarder.taken, self.now_us) || is_late || is_early {
                flow.collect();
            }
        }
        if meanwhile > 0 {
            (0..2).for_each(|_| self.poll(meanwhile, true));
            self.mark();
        }
        let index = match self.fault {
            Some(Fault::NoIndex) => usize::MAX,
            _ => known.min(most),
        };
        for _ in 0..index {
            let Some(frame) = self.forwarder.ring.pop_front() else {
                break;
            };
            self.forwarder.taken += 1;
            let (flow, number) = parse(&frame);
            self.flows[flow].arrived.push(number);
        }
        if index >= known {
            let now_us = self.now_us;
            self.flows.iter_mut().for_each(|flow| flow.way.on_drained(now_us));
        }
        self.remove_unwanted();
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            while !self.wire.is_empty() || self.in_poll > 0 {
                self.poll(POLL, true);
            }
            self.mark();
            self.turn(usize::MAX, 0);
            self.now_us += BOUND_US / 4;
        }
    }

    /// Numbers that lack, and pairs in the wrong order that neither a poll nor a late mark excuses.
    fn faults(&self) -> (u64, usize) {
        let (mut lacking, mut wrong) = (0, 0);
        for flow in &self.flows {
            lacking += flow.next.abs_diff(flow.arrived.len() as u64 + flow.lost);
            if flow.overdue + flow.way.counts().overdue > 0 {
                continue;
            }
            let mut highest = None;
            for number in &flow.arrived {
                // Frames for different addresses have no order.
                let is_behind = |before: &u64| {
                    let (earlier, own) = (flow.polls[*before as usize], flow.polls[*number as usize]);
                    before > number && earlier.0 != own.0 && earlier.1 == own.1
                };
                wrong += usize::from(highest.as_ref().is_some_and(is_behind));
                highest = highest.max(Some(*number));
            }
        }
        (lacking, wrong)
    }
}

fn op() -> impl Strategy<Value = Op> {
    let flow = || 0..FLOWS;
    prop_oneof![
        8 => (flow(), 1..40u64).prop_map(|(flow, count)| Op::Arrive(flow, count)),
        8 => (1..80usize, any::<bool>()).prop_map(|(count, ends)| Op::Poll(count, ends)),
        6 => (1..60usize).prop_map(Op::Take),
        6 => Just(Op::Publish),
        3 => Just(Op::Mark),
        1 => Just(Op::Death),
        10 => (0..80usize, 0..40usize).prop_map(|(most, meanwhile)| Op::Turn(most, meanwhile)),
        4 => flow().prop_map(Op::Attach),
        3 => flow().prop_map(Op::Detach),
        1 => Just(Op::LinkDown),
        1 => flow().prop_map(Op::Break),
        1 => flow().prop_map(Op::Close),
        1 => flow().prop_map(Op::NewAddress),
        2 => (0..BOUND_US / 2).prop_map(Op::Wait),
    ]
}

fn run(ops: &[Op], fault: Option<Fault>) -> World {
    let mut world = World::new(fault);
    ops.iter().for_each(|op| world.run(op));
    world.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_frame_is_lost_or_overtaken_whatever_comes_and_goes(ops in prop::collection::vec(op(), 1..200)) {
        let world = run(&ops, None);
        prop_assert_eq!(world.faults(), (0, 0));
        prop_assert_eq!(world.device.lock().counts().no_room, 0);
    }
}

#[test]
fn the_test_sees_each_fault() {
    let ops = prop::collection::vec(op(), 100..200);
    for fault in [
        Fault::NoIndex,
        Fault::NoMark,
        Fault::EarlyRemoval,
        Fault::Forgotten,
    ] {
        let mut runner = TestRunner::deterministic();
        let mut fails = || {
            let ops = ops.new_tree(&mut runner).unwrap().current();
            run(&ops, Some(fault)).faults() != (0, 0)
        };
        assert!((0..1000).any(|_| fails()), "{fault:?}");
    }
}
