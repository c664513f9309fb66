//! A port with a queue of the device: a driver plays the forwarder, and a socket the device.

use super::*;
use crate::features::{NET_MRG_RXBUF, VERSION_1};
use crate::receive::device_queue::WhySlow;
use crate::testing::{DATA, Driver, Source};
use accelerator::PacketQueue;
use cpu::Deadline;
use lock_free::Queue as Inbox;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::os::unix::net::UnixDatagram;

/// Descriptors of the ring, each of which the forwarder uses for one buffer.
const RING: u16 = 1024;
const BUFFER: u32 = 2048;

struct Ends {
    dropped: Vec<DropReason>,
}

impl Observer for Ends {
    fn delivered(&mut self, _: &Packet) {}

    fn dropped(&mut self, _: &Packet, reason: DropReason) {
        self.dropped.push(reason);
    }
}

struct Scene {
    driver: Driver,
    side: ReceiveSide,
    inbox: Arc<Inbox<Shared<Packet>>>,
    sources: Vec<Source>,
    sent: Vec<u32>,
    counts: Arc<QueueCounts>,
    /// Where frames arrive that were sent by the queue.
    wire: Option<UnixDatagram>,
    /// Buffers that the forwarder has taken out of the ring.
    hands: VecDeque<(u32, u32)>,
    /// Sender and number of each frame, as the device sent them.
    device: Vec<(u8, u32)>,
    ends: Ends,
}

impl Scene {
    fn new() -> Scene {
        let (inbox, receiver) = Inbox::new(2048);
        let mut scene = Scene {
            driver: Driver::new(),
            side: ReceiveSide::new(receiver, Arc::default()),
            inbox,
            sources: (1..=3).map(Source::new).collect(),
            sent: vec![0; 3],
            counts: Arc::default(),
            wire: None,
            hands: VecDeque::new(),
            device: Vec::new(),
            ends: Ends { dropped: Vec::new() },
        };
        scene.start();
        scene.open();
        scene
    }

    fn start(&mut self) {
        self.driver = Driver::new();
        self.driver.post(0..RING, BUFFER);
        let setup = self.driver.setup(VERSION_1 | NET_MRG_RXBUF);
        self.side.start(setup, 1500).unwrap();
    }

    fn open(&mut self) {
        let (ours, wire) = UnixDatagram::pair().unwrap();
        wire.set_nonblocking(true).unwrap();
        self.read_wire();
        self.wire = Some(wire);
        let queue = PacketQueue::new(ours.into(), 12).unwrap();
        self.side.set_queue(Some(Box::new(queue)), &self.counts);
        self.side.end_pause();
    }

    fn send(&mut self, sender: usize, count: u32) {
        for _ in 0..count {
            let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, sender as u8];
            frame.extend(self.sent[sender].to_le_bytes());
            frame.resize(200, 7);
            if self.sources[sender].free() > 0
                && self
                    .inbox
                    .push(self.sources[sender].packet(&frame).share())
                    .is_ok()
            {
                self.sent[sender] += 1;
            }
        }
    }

    fn run(&mut self, packets: usize) -> bool {
        let turn = Turn::new(packets, Deadline::after_us(3_600_000_000));
        self.side.run(1000, turn, &mut self.ends).unwrap()
    }

    /// What the queue has sent is the device's before anything that comes later.
    fn read_wire(&mut self) {
        let mut bytes = [0; 2048];
        while let Some(Ok(len)) = self.wire.as_ref().map(|wire| wire.recv(&mut bytes)) {
            assert_eq!(len, 212);
            self.note(&bytes[12..len]);
        }
    }

    fn note(&mut self, frame: &[u8]) {
        assert!(frame[19..].iter().all(|&byte| byte == 7));
        let number = u32::from_le_bytes(frame[15..19].try_into().unwrap());
        self.device.push((frame[14], number));
    }

    /// The forwarder takes frames from its ring.
    fn take(&mut self, count: usize) {
        let used = std::iter::from_fn(|| self.driver.take_used()).take(count);
        self.hands.extend(used);
    }

    /// The forwarder sends all that it has taken, and makes the buffers available again.
    fn forward(&mut self) {
        self.read_wire();
        for (head, len) in std::mem::take(&mut self.hands) {
            let bytes = self
                .driver
                .get(DATA + u64::from(head) * u64::from(BUFFER), len as usize);
            self.note(&bytes[12..]);
            self.driver.offer(head as u16);
        }
    }

    /// The forwarder dies; returns how many frames it had.
    fn die(&mut self) -> usize {
        self.read_wire();
        self.side.stop();
        let rest = std::iter::from_fn(|| self.driver.take_used()).count();
        let lost = rest + std::mem::take(&mut self.hands).len();
        self.start();
        lost
    }

    fn settle(&mut self) {
        for _ in 0..300 {
            self.run(256);
            self.read_wire();
            self.take(usize::MAX);
            self.forward();
        }
    }

    fn why(&self) -> WhySlow {
        self.counts.why_slow()
    }

    /// Asserts that frames of each sender are in order; returns how many there are.
    fn in_order(&self) -> usize {
        let mut last: HashMap<u8, u32> = HashMap::new();
        for (sender, number) in &self.device {
            let before = last.insert(*sender, *number);
            assert!(before.is_none_or(|before| before < *number), "{:?}", self.device);
        }
        self.device.len()
    }
}

#[test]
fn packets_leave_by_the_queue_when_the_forwarder_has_nothing_left() {
    let mut scene = Scene::new();
    scene.side.set_queue(None, &scene.counts.clone());
    scene.send(0, 5);
    assert!(!scene.run(256));
    scene.open();
    scene.send(0, 5);
    assert!(!scene.run(256));
    assert_eq!((scene.why(), scene.device.len()), (WhySlow::Arming, 0));
    assert!(scene.side.watch_us(1000).is_some(), "somebody looks again");
    scene.take(3);
    scene.forward();
    assert!(!scene.run(256));
    assert_eq!((scene.why(), scene.device.len()), (WhySlow::Arming, 3));
    scene.take(2);
    scene.forward();
    assert!(!scene.run(256));
    scene.read_wire();
    assert_eq!(scene.in_order(), 10);
    assert_eq!((scene.why(), scene.side.watch_us(1000)), (WhySlow::Fast, None));
    let counts = &scene.counts;
    assert_eq!((counts.packets.load(Relaxed), counts.calls.load(Relaxed)), (5, 1));
    assert_eq!(counts.bytes.load(Relaxed), 5 * 200);
    assert_eq!(scene.sources[0].free(), Source::SLOTS, "nothing is kept");
}

#[test]
fn a_full_socket_makes_the_way_slow_and_nothing_is_lost() {
    let mut scene = Scene::new();
    scene.send(0, 1);
    assert!(!scene.run(256));
    assert_eq!(scene.why(), WhySlow::Fast);
    scene.send(0, 2000);
    while scene.run(256) {}
    assert_eq!(scene.why(), WhySlow::SocketFull);
    assert!(scene.counts.full.load(Relaxed) > 0);
    scene.settle();
    assert_eq!((scene.in_order(), scene.ends.dropped.len()), (2001, 0));
}

#[test]
fn a_device_that_does_not_work_and_a_forwarder_that_died_end_the_queues_turn() {
    let mut scene = Scene::new();
    scene.send(0, 1);
    assert!(!scene.run(256));
    scene.read_wire();
    scene.wire = None;
    scene.send(0, 40);
    while scene.run(256) {}
    assert_eq!(scene.why(), WhySlow::Device);
    scene.settle();
    assert_eq!(scene.in_order(), 41);
    scene.open();
    scene.send(0, 1);
    assert!(!scene.run(256));
    assert_eq!(scene.why(), WhySlow::Fast);
    assert_eq!(scene.die(), 0);
    assert_eq!(scene.why(), WhySlow::NoForwarder);
    scene.send(0, 3);
    scene.settle();
    assert_eq!(scene.in_order(), 45);
    assert_eq!(scene.ends.dropped, []);
}

#[test]
fn frames_longer_than_the_mtu_are_dropped_by_that_name() {
    let mut scene = Scene::new();
    let long = vec![2; 1600];
    scene.inbox.push(scene.sources[1].packet(&long).share()).unwrap();
    scene.send(0, 3);
    scene.settle();
    assert_eq!(scene.ends.dropped, [DropReason::ExceedsMtu]);
    assert_eq!((scene.in_order(), scene.why()), (3, WhySlow::Offload));
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, u32),
    Run(usize),
    Take(usize),
    Forward,
    Read,
    Death,
    /// The device goes away, or comes.
    Break,
    Open,
    Close,
    /// The pause after a change is over.
    Resume,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..3usize, 1..60u32).prop_map(|(sender, count)| Op::Send(sender, count)),
        8 => (1..100usize).prop_map(Op::Run),
        4 => (1..100usize).prop_map(Op::Take),
        4 => Just(Op::Forward),
        4 => Just(Op::Read),
        1 => Just(Op::Death),
        1 => Just(Op::Break),
        1 => Just(Op::Open),
        1 => Just(Op::Close),
        6 => Just(Op::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_frame_is_lost_or_overtaken_whatever_comes_and_goes(ops in prop::collection::vec(op(), 1..120)) {
        let mut scene = Scene::new();
        let mut lost = 0;
        for op in ops {
            match op {
                Op::Send(sender, count) => scene.send(sender, count),
                Op::Run(packets) => { scene.run(packets); }
                Op::Take(count) => scene.take(count),
                Op::Forward => scene.forward(),
                Op::Read => scene.read_wire(),
                Op::Death => lost += scene.die(),
                Op::Break => {
                    scene.read_wire();
                    scene.wire = None;
                }
                Op::Open => scene.open(),
                Op::Close => scene.side.set_queue(None, &scene.counts.clone()),
                Op::Resume => scene.side.end_pause(),
            }
        }
        scene.settle();
        let sent = scene.sent.iter().sum::<u32>() as usize;
        prop_assert_eq!(scene.in_order() + lost, sent);
        prop_assert_eq!(scene.ends.dropped, []);
    }
}
