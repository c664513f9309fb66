//! Numbered frames that leave by a queue or by a forwarder, while the way between both changes at any time.
//!
//! What a ring has taken is not on the wire yet, and a frame of the forwarder's would overtake it. So the way
//! is left only when the queue has an event for each frame that it took.

#![allow(clippy::unwrap_used)]

use accelerator::{Accelerator, BOUND_US, Queue, State, Way};
use guest_memory::Messages;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use smart_nic::{Control, Device, Driver};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Op {
    /// The switch has decided that so many frames leave.
    Offer(u64),
    /// The card begins, and ends, to send.
    Start(usize),
    Finish(usize),
    /// The forwarder takes frames out of its ring, and sends what it has taken.
    Take(usize),
    Send,
    Attach,
    Detach,
    Wait(u64),
}

/// What a world does wrong, for tests of this test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Frames take the slow path while the queue has some.
    NoFlush,
    /// Frames take the queue while the forwarder has some.
    NoMark,
}

struct World {
    device: Arc<Mutex<Device>>,
    driver: Driver,
    way: Way,
    waiting: VecDeque<u64>,
    ring: VecDeque<u64>,
    hands: VecDeque<u64>,
    /// Frames that the forwarder was given, and that it has sent.
    given: u64,
    sent: u64,
    next: u64,
    wire: Vec<u64>,
    now_us: u64,
    fault: Option<Fault>,
}

fn frame(number: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

impl World {
    fn new(fault: Option<Fault>) -> World {
        let device = Arc::new(Mutex::new(Device::default()));
        let descriptors = Control::new(&device).open(0).unwrap();
        World {
            driver: Driver::new(descriptors, 0).unwrap(),
            device,
            way: Way::default(),
            waiting: VecDeque::new(),
            ring: VecDeque::new(),
            hands: VecDeque::new(),
            given: 0,
            sent: 0,
            next: 0,
            wire: Vec::new(),
            now_us: 0,
            fault,
        }
    }

    fn run(&mut self, op: &Op) {
        self.now_us += 20;
        match *op {
            Op::Offer(count) => {
                self.waiting.extend(self.next..self.next + count);
                self.next += count;
            }
            Op::Start(most) => self.device.lock().start_sends(most),
            Op::Finish(most) => self.device.lock().finish(most),
            Op::Take(count) => {
                let count = count.min(self.ring.len());
                self.hands.extend(self.ring.drain(..count));
            }
            Op::Send => {
                let mut device = self.device.lock();
                self.sent += self.hands.len() as u64;
                self.hands
                    .drain(..)
                    .for_each(|number| device.send_slow(&frame(number)));
            }
            Op::Attach => {
                if self.way.attach() && self.way.ask_for_mark(self.now_us) {
                    self.way.on_mark(self.given);
                }
            }
            Op::Detach => self.way.on_removed(self.now_us),
            Op::Wait(us) => self.now_us += us,
        }
        let numbers = |frame: Vec<u8>| u64::from_be_bytes(frame[14..22].try_into().unwrap());
        self.wire.extend(self.device.lock().take_wire().map(numbers));
        self.forward();
    }

    /// The data plane gives frames to the way whose turn it is.
    fn forward(&mut self) {
        self.driver.take_all(|_| {});
        let is_flushed = self.driver.under_way() == 0 || self.fault == Some(Fault::NoFlush);
        if self.way.state() == State::Leaving && is_flushed {
            self.way.on_sent();
        }
        if self.way.state() == State::Arming && self.way.is_overdue(self.now_us) {
            self.way.give_up();
        }
        let is_early = self.fault == Some(Fault::NoMark) && self.way.state() == State::Arming;
        match self.way.state() {
            State::Slow => {
                self.given += self.waiting.len() as u64;
                self.ring.extend(self.waiting.drain(..));
            }
            State::Leaving => {}
            State::Arming | State::Fast => {
                if is_early || self.way.serves_queue(self.sent, self.now_us) {
                    self.send();
                }
            }
        }
    }

    fn send(&mut self) {
        let frames: Vec<Vec<u8>> = self.waiting.iter().map(|number| frame(*number)).collect();
        let header = [0; 12];
        let mut messages = Messages::with_capacity(frames.len());
        for frame in &frames {
            messages.push_bytes(&header);
            messages.push_bytes(frame);
            messages.end();
        }
        let sent = self.driver.send(&mut messages);
        self.waiting.drain(..sent.taken);
        if sent.refused.is_some() {
            self.way.on_removed(self.now_us);
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..60u64).prop_map(Op::Offer),
        4 => (1..80usize).prop_map(Op::Start),
        4 => (1..80usize).prop_map(Op::Finish),
        4 => (1..60usize).prop_map(Op::Take),
        4 => Just(Op::Send),
        2 => Just(Op::Attach),
        1 => Just(Op::Detach),
        1 => (0..BOUND_US / 2).prop_map(Op::Wait),
    ]
}

/// The numbers of frames in the order in which they left, and how many were offered.
fn run(ops: &[Op], fault: Option<Fault>) -> (Vec<u64>, u64) {
    let mut world = World::new(fault);
    ops.iter().for_each(|op| world.run(op));
    for _ in 0..4 {
        let all = usize::MAX;
        let rest = [
            Op::Start(4096),
            Op::Finish(all),
            Op::Take(all),
            Op::Send,
            Op::Wait(BOUND_US),
        ];
        rest.iter().for_each(|op| world.run(op));
    }
    (world.wire, world.next)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn frames_leave_whole_and_in_order(ops in prop::collection::vec(op(), 1..150)) {
        let (wire, offered) = run(&ops, None);
        prop_assert!(wire.iter().copied().eq(0..offered), "{:?} of {}", wire, offered);
    }
}

#[test]
fn the_test_sees_each_fault() {
    let ops = prop::collection::vec(op(), 100..150);
    for fault in [Fault::NoFlush, Fault::NoMark] {
        let mut runner = TestRunner::deterministic();
        let mut fails = || {
            let ops = ops.new_tree(&mut runner).unwrap().current();
            let (wire, offered) = run(&ops, Some(fault));
            !wire.iter().copied().eq(0..offered)
        };
        assert!((0..300).any(|_| fails()), "{fault:?}");
    }
}
