use super::*;
use crate::features::VERSION_1;
use crate::testing::{DATA, Driver};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const FRAME: usize = 60;

/// Frames that a device has for its queue: header and frame, or something that is none.
#[derive(Clone, Debug)]
struct Device(Arc<Mutex<VecDeque<Vec<u8>>>>, Arc<OwnedFd>);

impl Device {
    fn new() -> Device {
        let file = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        Device(Arc::default(), Arc::new(file))
    }

    fn frames(&self) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals for Device {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }

    fn oldest(&mut self) -> Option<usize> {
        self.frames().front().map(Vec::len)
    }

    fn receive(&mut self, [front, behind]: [&mut [u8]; 2]) -> Arrived {
        let Some(frame) = self.frames().pop_front() else {
            return Arrived::Nothing;
        };
        if frame.is_empty() {
            return Arrived::Unusable;
        }
        let first = frame.len().min(front.len());
        front[..first].copy_from_slice(&frame[..first]);
        behind[..frame.len() - first].copy_from_slice(&frame[first..]);
        Arrived::Frame(frame.len())
    }
}

/// An uplink whose frames have numbers: a forwarder with a socket and a ring, and a queue.
struct Scene {
    driver: Driver,
    side: Option<TransmitSide>,
    device: Device,
    queue: ArrivalQueue,
    counts: Arc<ArrivalCounts>,
    account: Arc<Counters>,
    /// Frames that the forwarder has not taken.
    socket: VecDeque<u32>,
    is_steered: bool,
    /// The mark that the forwarder was asked for.
    due: Option<u16>,
    mark: u16,
    sent: u32,
    chains: u16,
    seen: Vec<u32>,
}

fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0; VnetHeader::LEN + 14];
    frame.extend(number.to_be_bytes());
    frame.resize(VnetHeader::LEN + FRAME, 0);
    frame
}

impl Scene {
    fn new() -> Scene {
        let (driver, account) = (Driver::new(), Arc::new(Counters::default()));
        account.mark(Mark::Queued);
        let (device, counts) = (Device::new(), Arc::new(ArrivalCounts::default()));
        let queue = Box::new(device.clone());
        Scene {
            side: Some(TransmitSide::new(driver.setup(VERSION_1), PortId(1), account.clone()).unwrap()),
            queue: ArrivalQueue::new(queue, None, PortId(1), &account, counts.clone()),
            driver,
            device,
            counts,
            account,
            socket: VecDeque::new(),
            is_steered: false,
            due: None,
            mark: 0,
            sent: 0,
            chains: 0,
            seen: Vec::new(),
        }
    }

    fn arrive(&mut self, frames: u32) {
        for _ in 0..frames {
            self.sent += 1;
            if self.is_steered {
                self.device.frames().push_back(frame(self.sent));
            } else {
                self.socket.push_back(self.sent);
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let head = self.chains % 1024;
        let address = DATA + 2048 * u64::from(head);
        self.driver.put(address, bytes);
        self.driver.descriptor(0, head, address, bytes.len() as u32, 0);
        self.driver.offer(head);
        self.chains += 1;
    }

    /// The forwarder takes some frames from its socket, and marks its ring if it has none left.
    fn forward(&mut self, frames: usize) {
        for _ in 0..frames.min(self.socket.len()) {
            let number = self.socket.pop_front().unwrap();
            self.put(&frame(number));
        }
        if self.socket.is_empty()
            && let Some(mark) = self.due.take()
        {
            self.put(&VnetHeader::mark(mark).to_bytes());
        }
    }

    fn steer(&mut self) {
        self.mark += 1;
        self.queue.arm(self.mark);
        (self.is_steered, self.due) = (true, Some(self.mark));
    }

    fn end_steering(&mut self) {
        self.queue.leave();
        self.is_steered = false;
    }

    /// One round of a turn.
    fn fetch(&mut self, most: usize) -> Fetched {
        let mut burst = Vec::with_capacity(BURST);
        let end = self.queue.fetch(self.side.as_mut(), most, &mut burst).unwrap();
        for packet in burst.drain(..) {
            let number = packet.head.bytes()[14..18].try_into().unwrap();
            self.seen.push(u32::from_be_bytes(number));
            if let Some(side) = &mut self.side {
                side.finish_one(packet);
            }
        }
        if let Some(side) = &mut self.side {
            side.publish();
        }
        end
    }

    fn fetch_all(&mut self) {
        while self.fetch(BURST) != Fetched::Empty {}
    }

    fn is_in_order(&self) -> bool {
        self.seen.is_sorted()
    }
}

#[test]
fn no_frame_is_lost_or_overtaken_whatever_filters_do() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut changes = 0;
    for _ in 0..200 {
        let mut scene = Scene::new();
        for _ in 0..100 {
            match random(8) {
                0..3 => scene.arrive(random(20) as u32),
                3 | 4 => scene.forward(random(30) as usize),
                5 if scene.is_steered && scene.due.is_none() => scene.end_steering(),
                // A station that has lost its filter gets none for seconds.
                5 if !scene.is_steered && scene.device.frames().is_empty() => scene.steer(),
                _ => drop(scene.fetch(1 + random(32) as usize)),
            }
        }
        scene.forward(usize::MAX);
        scene.fetch_all();
        let sent: Vec<u32> = (1..=scene.sent).collect();
        let mut seen = scene.seen.clone();
        seen.sort_unstable();
        assert_eq!(seen, sent, "lost or doubled");
        let is_overdue = scene.counts.overdue.load(Relaxed) > 0;
        assert!(scene.is_in_order() || is_overdue, "{:?}", scene.seen);
        assert_eq!(scene.account.read().received, u64::from(scene.sent));
        assert_eq!(scene.account.read().dropped.total(), 0, "marks are no packets");
        changes += scene.mark;
    }
    assert!(changes > 300, "{changes}");
}

#[test]
fn packets_wait_for_the_mark_and_no_longer_than_10_ms() {
    let mut scene = Scene::new();
    scene.arrive(3);
    scene.steer();
    scene.arrive(2);
    scene.fetch_all();
    assert!(scene.seen.is_empty() && !scene.queue.has_work());
    assert!(scene.queue.watch_us().is_some());
    scene.forward(10);
    scene.fetch_all();
    assert_eq!(scene.seen, [1, 2, 3, 4, 5]);
    assert_eq!(scene.counts.armed.load(Relaxed), 1);
    scene.steer();
    scene.due = None;
    scene.arrive(1);
    scene.fetch_all();
    std::thread::sleep(std::time::Duration::from_micros(accelerator::BOUND_US));
    scene.fetch_all();
    assert_eq!(scene.seen.last(), Some(&6));
    assert_eq!(scene.counts.overdue.load(Relaxed), 1);
}

#[test]
fn a_mark_of_an_earlier_filter_ends_no_wait_and_a_guests_is_a_short_frame() {
    let mut scene = Scene::new();
    scene.steer();
    let early = scene.due.take().unwrap();
    scene.steer();
    scene.arrive(1);
    scene.put(&VnetHeader::mark(early).to_bytes());
    scene.fetch_all();
    assert!(scene.seen.is_empty());
    let mut other = Scene::new();
    other.put(&VnetHeader::mark(1).to_bytes());
    let account = Arc::new(Counters::default());
    let mut side = TransmitSide::new(other.driver.setup(VERSION_1), PortId(2), account.clone()).unwrap();
    let mut burst = Vec::with_capacity(BURST);
    side.fetch(&mut burst).unwrap();
    assert_eq!(account.read().dropped.get(flow::DropReason::ShortFrame), 1);
    assert_eq!(side.take_mark(), None);
}

#[test]
fn packets_come_without_a_ring_and_wait_without_a_slot() {
    let mut scene = Scene::new();
    (scene.side, scene.is_steered) = (None, true);
    scene.arrive(1000);
    let mut held = Vec::new();
    let mut burst = Vec::with_capacity(BURST);
    while scene.queue.fetch(None, BURST, &mut burst).unwrap() != Fetched::Empty {
        held.append(&mut burst);
    }
    assert_eq!(held.len(), MAX_SLOTS as usize);
    assert!(!scene.queue.has_work());
    drop(held);
    scene.fetch_all();
    assert_eq!(scene.seen.len(), 1000 - MAX_SLOTS as usize);
    assert!(scene.is_in_order());
}

#[test]
fn frames_that_cannot_be_are_counted_and_others_come_whole() {
    let mut scene = Scene::new();
    let of_len = |len: usize| {
        let mut frame = frame(9);
        frame.resize(VnetHeader::LEN + len, 0xee);
        frame
    };
    for unusable in [vec![], vec![0; 3], of_len(13), of_len(MAX_LEN + 1)] {
        scene.device.frames().push_back(unusable);
    }
    for len in [60, 128, 129, 1514, MAX_LEN] {
        scene.device.frames().push_back(of_len(len));
    }
    let mut burst = Vec::with_capacity(BURST);
    scene.queue.fetch(None, BURST, &mut burst).unwrap();
    let lens: Vec<usize> = burst.iter().map(|packet| packet.frame_len()).collect();
    assert_eq!(lens, [60, 128, 129, 1514, MAX_LEN]);
    for packet in &burst {
        let bytes = packet.to_bytes(usize::MAX);
        assert_eq!(bytes.len(), packet.frame_len());
        assert!(bytes[FRAME..].iter().all(|byte| *byte == 0xee));
    }
    assert_eq!(scene.counts.unusable.load(Relaxed), 4);
    assert_eq!(
        scene.counts.bytes.load(Relaxed),
        lens.iter().sum::<usize>() as u64
    );
}

const MAX_LEN: usize = crate::MAX_FRAME as usize;

#[test]
fn a_closed_queue_and_an_earlier_one_give_what_they_have() {
    let mut scene = Scene::new();
    scene.is_steered = true;
    scene.arrive(5);
    let later = Device::new();
    later.frames().push_back(frame(6));
    scene.queue.close();
    assert!(!scene.queue.is_over(), "it has frames");
    let fresh = Scene::new().queue;
    let before = std::mem::replace(&mut scene.queue, fresh);
    let counts = Arc::new(ArrivalCounts::default());
    let queue = Box::new(later);
    scene.queue = ArrivalQueue::new(queue, Some(before), PortId(1), &scene.account, counts);
    scene.fetch_all();
    assert_eq!(scene.seen, [1, 2, 3, 4, 5, 6]);
    scene.queue.close();
    assert!(!scene.queue.is_over(), "not yet");
    std::thread::sleep(std::time::Duration::from_micros(CLOSE_US));
    assert!(scene.queue.is_over());
}
