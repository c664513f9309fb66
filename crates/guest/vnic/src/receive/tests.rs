use super::*;
use crate::features::{NET_MRG_RXBUF, VERSION_1};
use crate::testing::{DATA, Driver, Source, WRITE};
use cpu::Deadline;
use flow::{Edit, PortId, RateClass, RateLimit, Share};
use lock_free::{Queue, Unique};
use std::sync::atomic::AtomicU64;
use wire::{GSO_TCPV4, NEEDS_CSUM, VnetHeader};

const MERGED: u64 = VERSION_1 | NET_MRG_RXBUF;

struct Seen {
    delivered: u64,
    dropped: Vec<(PortId, DropReason)>,
}

impl Observer for Seen {
    fn delivered(&mut self, _packet: &Packet) {
        self.delivered += 1;
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        self.dropped.push((packet.origin, reason));
    }
}

/// A receive side, its driver and its inbox.
struct Scene {
    driver: Driver,
    side: ReceiveSide,
    inbox: Arc<Queue<Shared<Packet>>>,
    seen: Seen,
    now_ms: u64,
}

impl Scene {
    fn new(features: u64) -> Scene {
        let (inbox, receiver) = Queue::new(1024);
        let driver = Driver::new();
        let mut side = ReceiveSide::new(receiver, Arc::default());
        side.start(driver.setup(features), 65_535).unwrap();
        Scene {
            driver,
            side,
            inbox,
            seen: Seen {
                delivered: 0,
                dropped: Vec::new(),
            },
            now_ms: 1000,
        }
    }

    /// A turn of so many attempts.
    fn run(&mut self, packets: usize) -> bool {
        let turn = Turn::new(packets, Deadline::after_us(3_600_000_000));
        self.side.run(self.now_ms, turn, &mut self.seen).unwrap()
    }

    fn used(&mut self) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| self.driver.take_used()).collect()
    }

    fn looked_at(&self) -> u64 {
        self.side.ring.as_ref().map_or(0, |ring| ring.looked_at)
    }
}

/// A frame of an unassigned Ethernet type.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((14..len).map(|at| at as u8 ^ (at >> 8) as u8));
    frame
}

#[test]
fn buffers_that_do_not_suffice_are_looked_at_once() {
    let mut scene = Scene::new(MERGED);
    let mut source = Source::new(1);
    scene.driver.post(0..200, 1);
    scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    assert!(!scene.run(256));
    assert_eq!(scene.looked_at(), 200);
    // The driver kicks, with nothing new.
    for _ in 0..1000 {
        assert!(!scene.run(256));
    }
    assert_eq!(scene.looked_at(), 200);
    assert_eq!(scene.used(), []);
    // A few more small ones, and then one that suffices.
    scene.driver.post(200..210, 1);
    assert!(!scene.run(256));
    assert_eq!(scene.looked_at(), 210);
    scene.driver.descriptor(0, 210, DATA + 0x1000, 2048, WRITE);
    scene.driver.offer(210);
    assert!(!scene.run(256));
    assert_eq!(scene.seen.delivered, 1);
    let used = scene.used();
    assert_eq!(used.len(), 211);
    assert_eq!(used.iter().map(|(_, len)| len).sum::<u32>(), 1012);
    let mut bytes = scene.driver.get(DATA, 210);
    bytes.extend(scene.driver.get(DATA + 0x1000, 1012 - 210));
    assert_eq!(bytes[12..], frame(1000));
    assert_eq!(bytes[10..12], 211u16.to_le_bytes());
}

#[test]
fn a_frame_is_spread_over_a_bounded_number_of_buffers() {
    let mut scene = Scene::new(MERGED);
    let mut source = Source::new(1);
    scene.driver.post(0..1000, 1);
    for len in [1000, 243, 245] {
        scene.inbox.push(source.packet(&frame(len)).share()).unwrap();
    }
    assert!(!scene.run(256));
    let small = (PortId(1), DropReason::BufferTooSmall);
    assert_eq!(
        scene.seen.dropped,
        [small, small],
        "of more than 256 bytes with header"
    );
    assert_eq!((scene.seen.delivered, scene.used().len()), (1, 255));
    assert!(scene.looked_at() <= 3 * 256);
    // Chains of many descriptors.
    let mut scene = Scene::new(MERGED | crate::features::RING_INDIRECT_DESC);
    for head in 0..20 {
        let table = DATA + 0x1_0000 + 0x1000 * u64::from(head);
        scene.driver.table(head, table, 200, DATA + 0x10_0000, 1, WRITE);
        scene.driver.offer(head);
    }
    scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    assert!(!scene.run(256));
    assert_eq!(scene.seen.dropped, [small]);
    assert!(scene.looked_at() <= 3 * 200);
}

/// Buffers that wait for more of their kind belong to the ring still when that is stopped.
#[test]
fn buffers_of_a_waiting_frame_are_given_up_with_the_ring() {
    let mut scene = Scene::new(MERGED);
    let mut source = Source::new(1);
    scene.driver.post(0..100, 1);
    scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    assert!(!scene.run(256));
    assert_eq!(scene.side.stop(), Some(0));
    assert!(!scene.run(256));
    assert_eq!(scene.seen.dropped, [(PortId(1), DropReason::PortRemoved)]);
    // Likewise when the packet goes for another reason.
    let mut scene = Scene::new(MERGED);
    scene.driver.post(0..100, 1);
    for len in [1000, 60] {
        scene.inbox.push(source.packet(&frame(len)).share()).unwrap();
    }
    assert!(!scene.run(256));
    scene.side.set_mtu(500);
    assert!(!scene.run(256));
    assert_eq!(scene.seen.dropped, [(PortId(1), DropReason::ExceedsMtu)]);
    let heads: Vec<_> = scene.used().into_iter().map(|(head, _)| head).collect();
    assert_eq!(heads, (0..72).collect::<Vec<_>>());
}

/// A TCP packet of which a receiver without offloads gets `payload / 8` segments.
fn segmented(source: &mut Source, payload: usize) -> Unique<Packet> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend((40 + payload as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| at as u8 ^ (at >> 8) as u8));
    let mut packet = source.packet(&frame);
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 8,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    packet.header = header.to_bytes();
    packet.parse_flow_key().unwrap();
    packet
}

#[test]
fn segmentation_is_done_in_parts_and_goes_on_where_it_stopped() {
    let mut scene = Scene::new(VERSION_1);
    let mut source = Source::new(1);
    const SEGMENTS: usize = 1000;
    let packet = segmented(&mut source, 8 * SEGMENTS).share();
    scene.inbox.push(packet).unwrap();
    let (mut got, mut turns, mut posted) = (0usize, 0, 0u16);
    while scene.seen.delivered == 0 {
        // Sometimes fewer buffers than segments are due.
        let more = if turns % 2 == 0 { 100 } else { 10 };
        for _ in 0..more {
            let head = posted % 1024;
            scene.driver.post(head..head + 1, 128);
            posted += 1;
        }
        let before = got;
        let _ = scene.run(1);
        for (head, len) in scene.used() {
            let bytes = scene.driver.get(DATA + 128 * u64::from(head), len as usize);
            assert_eq!(bytes.len(), 12 + 54 + 8);
            let payload = &bytes[66..];
            let expected: Vec<u8> = (8 * got..8 * got + 8)
                .map(|at| at as u8 ^ (at >> 8) as u8)
                .collect();
            assert_eq!(payload, expected, "segment {got}");
            let sequence = u32::from_be_bytes(bytes[12 + 38..12 + 42].try_into().unwrap());
            assert_eq!(sequence as usize, 8 * got);
            got += 1;
        }
        assert!(got - before <= 64, "{} segments in one go", got - before);
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!(got, SEGMENTS);
    assert_eq!(scene.side.account.read().segments, SEGMENTS as u64);
}

/// A driver that posts too few buffers again and again gets as many attempts as a turn has.
#[test]
fn attempts_without_success_end_a_turn() {
    let mut scene = Scene::new(VERSION_1);
    let mut source = Source::new(1);
    for _ in 0..300 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    scene.driver.post(0..1000, 100);
    assert!(scene.run(50), "there is more to do");
    assert_eq!(scene.seen.dropped.len(), 50);
    // Time counts as well, however many packets are allowed.
    let late = Turn::new(usize::MAX, Deadline::after_us(0));
    assert!(scene.side.run(1000, late, &mut scene.seen).unwrap());
    assert!(scene.seen.dropped.len() < 50 + 40);
}

/// The senders of delivered packets, in order.
#[derive(Default)]
struct Origins(Vec<u32>);

impl Observer for Origins {
    fn delivered(&mut self, packet: &Packet) {
        self.0.push(packet.origin.0);
    }

    fn dropped(&mut self, packet: &Packet, reason: DropReason) {
        panic!("a packet of {}: {reason:?}", packet.origin);
    }
}

/// A sender that has filled the queue does not delay others, whether there are buffers or not.
#[test]
fn senders_are_served_in_turn() {
    for posted in [1000, 0] {
        let mut scene = Scene::new(VERSION_1);
        let mut origins = Origins::default();
        let mut run = |scene: &mut Scene, packets| {
            let turn = Turn::new(packets, Deadline::after_us(3_600_000_000));
            scene.side.run(scene.now_ms, turn, &mut origins).unwrap()
        };
        let (mut flood, mut other) = (Source::new(1), Source::new(2));
        scene.driver.post(0..posted, 2048);
        for _ in 0..500 {
            scene.inbox.push(flood.packet(&frame(60)).share()).unwrap();
        }
        scene.inbox.push(other.packet(&frame(60)).share()).unwrap();
        run(&mut scene, 16);
        scene.driver.post(posted..1000, 2048);
        while run(&mut scene, 16) {}
        assert_eq!(origins.0.len(), 501);
        assert!(
            origins.0.iter().position(|origin| *origin == 2) < Some(16),
            "{posted} posted"
        );
    }
}

/// While packets of some senders wait for buffers, the internal receive queue stays empty for others.
#[test]
fn a_queue_that_waits_makes_room() {
    let mut scene = Scene::new(VERSION_1);
    let (mut floods, mut other) = ([Source::new(1), Source::new(2)], Source::new(3));
    for _ in 0..3 {
        for number in 0..1024 {
            let packet = floods[number % 2].packet(&frame(60)).share();
            scene.inbox.push(packet).unwrap();
        }
        assert!(!scene.run(16));
    }
    let full = |port: u32| (PortId(port), DropReason::QueueFull);
    let dropped = scene.seen.dropped.len();
    assert!(dropped > 512, "the queue is bounded");
    assert!(
        scene
            .seen
            .dropped
            .iter()
            .all(|drop| *drop == full(1) || *drop == full(2))
    );
    scene.inbox.push(other.packet(&frame(60)).share()).unwrap();
    assert!(!scene.run(16));
    assert_eq!(scene.seen.dropped.len(), dropped + 1, "others make room for it");
    assert_ne!(scene.seen.dropped[dropped], full(3));
    scene.driver.post(0..16, 2048);
    assert!(!scene.run(64));
    assert_eq!(other.free(), Source::SLOTS, "it was among the first");
}

/// A bandwidth at which the test sees next to nothing pass after the burst: a frame per second.
fn slow() -> RateLimit {
    RateLimit {
        bits_per_second: 100_000,
        burst: 10_000,
    }
}

fn limited(limit: RateLimit) -> (Scene, Arc<AtomicU64>) {
    let mut scene = Scene::new(MERGED);
    let waits = Arc::default();
    scene.side.set_limit(Some(limit), &waits);
    scene.driver.post(0..512, 20_000);
    (scene, waits)
}

/// A source of a port that sends to two others in turn.
fn gateway(port: u32, scene: &Scene) -> Source {
    let source = Source::new(port);
    source.account.lender.sends_to(PortId(8), scene.now_ms);
    source.account.lender.sends_to(PortId(9), scene.now_ms);
    source
}

#[test]
fn what_exceeds_the_bandwidth_waits_and_its_sender_is_held() {
    let (mut scene, waits) = limited(slow());
    let mut source = Source::new(1);
    // Twelve frames of 1,000 bytes pass, the last of them in debt; the others wait.
    for _ in 0..220 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert_eq!(source.account.lender.room(), None);
    assert!(!scene.run(1000), "nothing is to be done at once");
    let passed = scene.used().len();
    assert!((10..=12).contains(&passed), "{passed}");
    assert_eq!(waits.load(Relaxed), 1);
    assert!(scene.seen.dropped.is_empty());
    assert_eq!(
        source.account.lender.room(),
        Some(0),
        "its ring is not to be read"
    );
    // The receive side runs again when the debt is paid, and not for the 100 ms of a stall.
    let watch_us = scene.side.watch_us(scene.now_ms).unwrap();
    assert!((1..=2_000_000).contains(&watch_us), "{watch_us}");
    assert_eq!(scene.side.wait(), Wait::No);
    // Without the limit all that waits is delivered, in one go, and the queue is as it was.
    scene.side.set_limit(None, &waits);
    assert!(
        scene.side.is_limited(),
        "packets that come now go behind those that wait"
    );
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), 220 - passed);
    assert!(!scene.side.is_limited() && scene.side.watch_us(scene.now_ms).is_none());
    assert!(source.account.lender.room() > Some(0));
}

/// A sender that looks ahead has a bound.
#[test]
fn a_sender_lends_a_bounded_number() {
    let (mut scene, _) = limited(slow());
    let mut source = Source::new(1);
    for _ in 0..256 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    let (passed, refused) = (scene.used().len(), scene.seen.dropped.len());
    assert_eq!(256 - passed - refused, 224);
    assert!((scene.seen.dropped.iter()).all(|(_, reason)| *reason == DropReason::MaxRate));
    // Short ones as well.
    let mut short = Source::new(2);
    (0..192).for_each(|_| scene.inbox.push(short.packet(&frame(60)).share()).unwrap());
    assert!(!scene.run(1000));
    assert_eq!(short.account.lender.room(), Some(0));
}

/// Who serves others is not held, and loses what has no room.
#[test]
fn what_has_no_room_is_dropped() {
    let (mut scene, waits) = limited(slow());
    let mut source = gateway(1, &scene);
    for _ in 0..256 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    let (passed, refused) = (scene.used().len(), scene.seen.dropped.len());
    assert!((scene.seen.dropped.iter()).all(|(_, reason)| *reason == DropReason::MaxRate));
    let waiting = 256 - passed - refused;
    assert_eq!(waiting, (128 << 10) / 1000);
    assert_eq!(source.account.lender.room(), None);
    scene.side.set_limit(None, &waits);
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), waiting);
}

/// One packet to all stations does not make a sender one that serves others.
#[test]
fn what_is_for_all_is_copied_and_its_sender_held_all_the_same() {
    let (mut scene, _) = limited(slow());
    let mut source = Source::new(1);
    source.account.lender.sends_to(PortId(8), scene.now_ms);
    source.account.lender.floods_to(PortId(9), scene.now_ms);
    let mut to_all = frame(1000);
    to_all[..6].fill(0xff);
    for _ in 0..16 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
        scene.inbox.push(source.packet(&to_all).share()).unwrap();
    }
    assert!(!scene.run(1000));
    let waiting = 32 - scene.used().len();
    assert_eq!(
        source.free(),
        Source::SLOTS - waiting / 2,
        "half of them are lent"
    );
    assert_eq!(source.account.lender.room(), Some(0));
}

/// The number of packets of each sender among the next ones to be delivered.
fn delivered(scene: &mut Scene, sources: &mut [Source], count: usize) -> Vec<usize> {
    let free: Vec<_> = sources.iter_mut().map(Source::free).collect();
    scene.run(count);
    let now = sources.iter_mut().map(Source::free);
    now.zip(free).map(|(now, before)| now - before).collect()
}

#[test]
fn a_bandwidth_is_shared_by_weight_and_by_least_rate() {
    let limit = RateLimit {
        bits_per_second: 1_000_000_000,
        burst: 1600,
    };
    // In units of 100 kb/s: half of the bandwidth.
    let shares = [(1, 0), (4, 0), (1, 5000), (5, 0)].map(|(weight, least_rate)| Share {
        priority: 0,
        weight,
        least_rate,
    });
    let (mut scene, waits) = limited(limit);
    let mut sources: Vec<_> = (1..=4).map(Source::new).collect();
    for (source, share) in sources.iter_mut().zip(shares) {
        source.account.lender.set_share(share);
        (0..250).for_each(|_| scene.inbox.push(source.packet(&frame(1000)).share()).unwrap());
    }
    // Nothing passes at first, so all wait.
    scene
        .side
        .limit
        .as_mut()
        .unwrap()
        .charge(100_000_000, cpu::now_ns());
    scene.run(1);
    assert!(scene.used().is_empty());
    scene.side.set_limit(None, &waits);
    let counts = delivered(&mut scene, &mut sources, 400);
    for (count, wanted) in counts.iter().zip([20, 80, 200, 100]) {
        assert!(count.abs_diff(wanted) <= 18, "{counts:?}");
    }
}

#[test]
fn a_class_waits_and_holds_up_no_other() {
    let (mut scene, waits) = limited(RateLimit {
        bits_per_second: 1_000_000_000,
        burst: 200_000,
    });
    let class = RateClass {
        number: 1,
        most: Some(slow()),
        ..RateClass::default()
    };
    scene.side.set_classes(&[class]);
    let mut source = Source::new(1);
    for _ in 0..100 {
        let mut packet = source.packet(&frame(1000));
        packet.edit(&Edit::Class(1)).unwrap();
        scene.inbox.push(packet.share()).unwrap();
    }
    assert!(!scene.run(1000));
    let passed = scene.used().len();
    assert!((10..=12).contains(&passed), "{passed}");
    let watch_us = scene.side.watch_us(scene.now_ms).unwrap();
    assert!((1..=2_000_000).contains(&watch_us), "{watch_us}");
    for _ in 0..50 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), 50);
    assert_eq!(source.free(), Source::SLOTS, "copies wait");
    assert_eq!(source.account.lender.room(), None, "its ring is read");
    assert!(scene.seen.dropped.is_empty());
    // Without classes, those that wait are as others.
    scene.side.set_classes(&[]);
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), 100 - passed);
    scene.side.set_limit(None, &waits);
    scene.run(1);
    assert!(!scene.side.is_limited());
}

#[test]
fn classes_that_are_set_while_packets_wait_concern_those_that_come() {
    let (mut scene, waits) = limited(slow());
    let mut source = Source::new(1);
    for _ in 0..50 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    let passed = scene.used().len();
    let class = RateClass {
        number: 1,
        ..RateClass::default()
    };
    scene.side.set_classes(&[class]);
    scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    assert!(!scene.run(1000));
    scene.side.set_limit(None, &waits);
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), 51 - passed);
    assert!(scene.seen.dropped.is_empty() && !scene.side.is_limited());
    // Where no bandwidth is bounded, there are none.
    scene.side.set_classes(&[class]);
    assert!(!scene.side.is_limited());
}

#[test]
fn a_priority_goes_first_and_waits_for_no_debt_of_others() {
    let (mut scene, _) = limited(slow());
    let (mut usual, mut urgent) = (Source::new(1), Source::new(2));
    let priority = Share {
        priority: 5,
        ..Share::default()
    };
    urgent.account.lender.set_share(priority);
    for _ in 0..100 {
        scene.inbox.push(usual.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    scene.used();
    let before = usual.free();
    (0..5).for_each(|_| scene.inbox.push(urgent.packet(&frame(100)).share()).unwrap());
    assert!(!scene.run(1000));
    assert_eq!(scene.used().len(), 5);
    assert_eq!((usual.free(), urgent.free()), (before, Source::SLOTS));
    // But it makes no debt without a bound: 64 KiB take five seconds.
    (0..200).for_each(|_| scene.inbox.push(urgent.packet(&frame(1000)).share()).unwrap());
    assert!(!scene.run(1000));
    let passed = scene.used().len();
    assert!((60..=67).contains(&passed), "{passed}");
    let watch_us = scene.side.watch_us(scene.now_ms).unwrap();
    assert!(
        (1..=200_000).contains(&watch_us),
        "as soon as one more may pass: {watch_us}"
    );
    assert!(scene.seen.dropped.is_empty());
}

#[test]
fn senders_that_serve_others_lend_nothing_to_a_limited_receiver() {
    let (mut scene, _) = limited(slow());
    let mut gateway = gateway(1, &scene);
    for _ in 0..64 {
        scene.inbox.push(gateway.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    assert_eq!(gateway.free(), Source::SLOTS, "all slots are back");
    let mut other = Source::new(2);
    for _ in 0..16 {
        scene.inbox.push(other.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    assert_eq!(
        other.free(),
        Source::SLOTS - 16,
        "these wait in their sender's memory"
    );
    assert!(scene.seen.dropped.is_empty());
}

/// The sender with most packets loses them, and not one that has few.
#[test]
fn room_at_a_limited_receiver_is_shared() {
    let (mut scene, _) = limited(slow());
    let (mut many, mut few) = (gateway(1, &scene), gateway(2, &scene));
    for _ in 0..300 {
        scene.inbox.push(many.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    for _ in 0..20 {
        scene.inbox.push(few.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    assert!(scene.seen.dropped.iter().all(|(port, _)| *port == PortId(1)));
}

/// Where the receiver lacks buffers, packets wait for those, by the rules of the backlog.
#[test]
fn a_limited_receiver_without_buffers_stalls_like_any_other() {
    let mut scene = Scene::new(MERGED);
    scene.side.set_limit(Some(slow()), &Arc::default());
    let mut source = Source::new(1);
    for _ in 0..8 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    assert!(!scene.run(1000));
    assert!(matches!(scene.side.wait(), Wait::First(_)));
    for _ in 0..20 {
        scene.now_ms += STALL_TIMEOUT_MS / 5;
        scene.run(1000);
    }
    assert_eq!(scene.side.wait(), Wait::Stalled);
    assert_eq!(
        scene.seen.dropped.len(),
        8,
        "dropped at once, and not at the bandwidth"
    );
    assert_eq!(source.free(), Source::SLOTS);
}

#[test]
fn a_limited_receiver_that_stops_drops_what_waits() {
    let (mut scene, _) = limited(slow());
    let mut source = Source::new(1);
    for _ in 0..64 {
        scene.inbox.push(source.packet(&frame(1000)).share()).unwrap();
    }
    scene.run(1000);
    scene.side.stop();
    assert!(!scene.run(1000));
    assert_eq!(source.free(), Source::SLOTS);
    assert!(
        scene
            .seen
            .dropped
            .iter()
            .all(|(_, reason)| *reason == DropReason::PortRemoved)
    );
}
