//! Ways of flows beside a device, a driver domain and a data plane that are simulated, with a number on each
//! frame.
//!
//! The device's ring is polled by the kernel, which reads the filters frame by frame, gives frames of the
//! slow path to the forwarder's socket at once, and publishes those of queues when the poll ends. The
//! forwarder moves frames from socket to ring in batches, and dies. The data plane takes turns. All of them
//! run in any order, and filters come and go meanwhile. Each flow's numbers have to arrive without a gap, and
//! in order but for frames of one poll.

use accelerator::{BOUND_US, State, Way};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, VecDeque};

const FLOWS: usize = 3;
/// Frames that the kernel takes in one poll.
const POLL: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Frame {
    flow: usize,
    number: u64,
    poll: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Arrive(usize, u64),
    /// The kernel takes frames; `true` ends the poll afterwards.
    Poll(usize, bool),
    /// The forwarder takes that many frames out of its socket.
    Take(usize),
    Publish,
    /// The forwarder answers those who asked for marks: it empties its socket and publishes.
    Mark,
    Death,
    /// The data plane takes a turn, at most so many frames of the ring. After it has emptied the queues, the
    /// kernel and the forwarder go on with so many frames.
    Turn(usize, usize),
    Attach(usize),
    /// Eviction, detach, a MAC address that moves.
    Detach(usize),
    /// The link goes down: what the device has is gone, and so are the filters.
    LinkDown,
    Wait(u64),
}

/// What a world does wrong, for tests of this test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A turn takes what the ring gets while the queues are emptied.
    NoIndex,
    /// A queue is served before the mark.
    NoMark,
    /// A filter is removed while its flow is arming.
    EarlyRemoval,
    /// A queue is forgotten when the filter is removed.
    Forgotten,
}

#[derive(Default)]
struct Device {
    ring: VecDeque<Frame>,
    filters: [bool; FLOWS],
    /// Frames for queues that the present poll has not published.
    unpublished: Vec<Frame>,
    polls: u64,
    in_poll: usize,
}

#[derive(Default)]
struct Forwarder {
    socket: VecDeque<Frame>,
    hands: Vec<Frame>,
    ring: VecDeque<Frame>,
    /// Frames that were ever published, and taken from the ring.
    published: u64,
    taken: u64,
    asked: Vec<usize>,
}

#[derive(Default)]
struct World {
    device: Device,
    forwarder: Forwarder,
    queues: [VecDeque<Frame>; FLOWS],
    ways: [Way; FLOWS],
    next: [u64; FLOWS],
    arrived: Vec<Frame>,
    lost: Vec<Frame>,
    now_us: u64,
    fault: Option<Fault>,
}

impl World {
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
            Op::Attach(flow) => {
                // A filter at most for all but one flow, as there are fewer than flows.
                let others = self.device.filters.iter().filter(|is_set| **is_set).count();
                if others < FLOWS - 1 && self.ways[flow].attach() {
                    self.device.filters[flow] = true;
                }
            }
            Op::Detach(flow) => {
                self.ways[flow].detach();
                self.ask(flow);
                self.remove_unwanted();
            }
            Op::LinkDown => {
                self.lost.extend(self.device.ring.drain(..));
                (0..FLOWS).for_each(|flow| {
                    self.ways[flow].detach();
                    self.ask(flow);
                });
                self.remove_unwanted();
            }
            Op::Wait(us) => self.now_us += us,
        }
    }

    fn arrive(&mut self, flow: usize, count: u64) {
        for _ in 0..count {
            let number = self.next[flow];
            self.next[flow] += 1;
            let poll = 0;
            self.device.ring.push_back(Frame { flow, number, poll });
        }
    }

    fn poll(&mut self, count: usize, ends: bool) {
        for _ in 0..count {
            if self.device.in_poll == POLL {
                break;
            }
            let Some(mut frame) = self.device.ring.pop_front() else {
                break;
            };
            frame.poll = self.device.polls;
            self.device.in_poll += 1;
            if self.device.filters[frame.flow] {
                self.device.unpublished.push(frame);
            } else {
                self.forwarder.socket.push_back(frame);
            }
        }
        if ends || self.device.in_poll == POLL {
            self.device.polls += 1;
            self.device.in_poll = 0;
            for frame in self.device.unpublished.drain(..) {
                self.queues[frame.flow].push_back(frame);
            }
        }
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(frame) = self.forwarder.socket.pop_front() {
                self.forwarder.hands.push(frame);
            }
        }
    }

    fn publish(&mut self) {
        let forwarder = &mut self.forwarder;
        forwarder.published += forwarder.hands.len() as u64;
        forwarder.ring.extend(forwarder.hands.drain(..));
    }

    fn mark(&mut self) {
        self.take(self.forwarder.socket.len());
        self.publish();
        for flow in std::mem::take(&mut self.forwarder.asked) {
            self.ways[flow].on_mark(self.forwarder.published);
        }
    }

    fn die(&mut self) {
        let forwarder = &mut self.forwarder;
        self.lost.append(&mut forwarder.hands);
        self.lost.extend(forwarder.ring.drain(..));
        forwarder.taken = forwarder.published;
        forwarder.asked.clear();
        for flow in 0..FLOWS {
            if self.ways[flow].on_death() {
                self.forwarder.asked.push(flow);
            }
        }
    }

    fn ask(&mut self, flow: usize) {
        if self.ways[flow].ask_for_mark(self.now_us) {
            self.forwarder.asked.push(flow);
        }
    }

    fn remove_unwanted(&mut self) {
        for flow in 0..FLOWS {
            let is_early =
                self.fault == Some(Fault::EarlyRemoval) && self.ways[flow].state() == State::Arming;
            if is_early {
                self.device.filters[flow] = false;
            }
            if self.ways[flow].may_remove() {
                if self.fault == Some(Fault::Forgotten) {
                    self.queues[flow].clear();
                }
                self.device.filters[flow] = false;
                self.ways[flow].on_removed(self.now_us);
            }
        }
    }

    fn turn(&mut self, most: usize, meanwhile: usize) {
        let known = self.forwarder.ring.len();
        for flow in 0..FLOWS {
            if !self.queues[flow].is_empty() {
                self.ask(flow);
            }
            // Late frames, of a poll that took longer than the filter's end lasted, are not left behind.
            let is_late = self.ways[flow].state() == State::Slow;
            let is_early = self.fault == Some(Fault::NoMark);
            if self.ways[flow].serves_queue(self.forwarder.taken, self.now_us) || is_late || is_early {
                self.arrived.extend(self.queues[flow].drain(..));
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
            self.arrived.push(frame);
        }
        if index >= known {
            self.ways.iter_mut().for_each(|way| way.on_drained(self.now_us));
        }
        self.remove_unwanted();
    }

    /// Lets everything that is under way arrive.
    fn settle(&mut self) {
        for _ in 0..20 {
            while !self.device.ring.is_empty() || self.device.in_poll > 0 {
                self.poll(POLL, true);
            }
            self.mark();
            self.turn(usize::MAX, 0);
            self.now_us += BOUND_US / 4;
        }
    }

    /// Numbers of a flow that lack, and pairs in the wrong order that no poll or late mark excuses.
    fn faults(&self) -> (usize, usize) {
        let mut seen: BTreeMap<usize, Vec<Frame>> = BTreeMap::new();
        for frame in &self.arrived {
            seen.entry(frame.flow).or_default().push(*frame);
        }
        let mut lacking = 0;
        let mut wrong = 0;
        for flow in 0..FLOWS {
            let own = seen.remove(&flow).unwrap_or_default();
            let lost = self.lost.iter().filter(|frame| frame.flow == flow).count();
            lacking += (self.next[flow] as usize).abs_diff(own.len() + lost);
            if self.ways[flow].counts().overdue == 0 {
                let mut highest: Option<Frame> = None;
                for frame in own {
                    let is_behind =
                        |before: &Frame| before.number > frame.number && before.poll != frame.poll;
                    wrong += usize::from(highest.as_ref().is_some_and(is_behind));
                    let is_higher = highest.is_none_or(|before| before.number < frame.number);
                    highest = if is_higher { Some(frame) } else { highest };
                }
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
        4 => flow().prop_map(Op::Detach),
        1 => Just(Op::LinkDown),
        2 => (0..BOUND_US / 2).prop_map(Op::Wait),
    ]
}

fn run(ops: &[Op], fault: Option<Fault>) -> World {
    let mut world = World {
        fault,
        ..World::default()
    };
    ops.iter().for_each(|op| world.run(op));
    world.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_frame_is_lost_or_overtaken_whatever_comes_and_goes(ops in prop::collection::vec(op(), 1..200)) {
        let world = run(&ops, None);
        prop_assert_eq!(world.faults(), (0, 0));
        for (flow, way) in world.ways.iter().enumerate() {
            prop_assert!(way.state() != State::Arming || world.queues[flow].is_empty());
        }
    }
}

#[test]
fn the_twin_sees_each_fault() {
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
        assert!((0..2000).any(|_| fails()), "{fault:?}");
    }
}
