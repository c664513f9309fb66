use super::*;
use crate::features::VERSION_1;
use crate::packet::Piece;
use crate::testing::{DATA, Driver};
use flow::RateLimit;

const INDIRECT: u64 = RING_INDIRECT_DESC | VERSION_1;

/// Fetches all, burst by burst; returns of how many chains each was.
fn bursts(driver: &mut Driver, side: &mut TransmitSide) -> Vec<usize> {
    let mut burst = Vec::with_capacity(BURST);
    let mut all = Vec::new();
    loop {
        let end = side.fetch(&mut burst).unwrap();
        side.finish(burst.drain(..));
        side.publish();
        all.push(std::iter::from_fn(|| driver.take_used()).count());
        if end == Fetched::Empty {
            return all;
        }
    }
}

/// Sends `count` chains that share a table of `entries` descriptors of `len` bytes.
fn flood(count: u16, entries: u16, len: u32) -> (Vec<usize>, Arc<Counters>) {
    let mut driver = Driver::new();
    let account = Arc::new(Counters::default());
    let mut side = TransmitSide::new(driver.setup(INDIRECT), PortId(1), account.clone()).unwrap();
    for head in 0..count {
        driver.table(head, DATA, entries, DATA + 0x8_0000, len, 0);
        driver.offer(head);
    }
    (bursts(&mut driver, &mut side), account)
}

#[test]
fn a_burst_ends_after_as_many_descriptors_as_a_turn_may_have() {
    // As many as a Linux guest needs for a frame, more, and the most.
    for (entries, most) in [(1, 32), (8, 32), (17, 16), (64, 4), (256, 2)] {
        let (bursts, account) = flood(64, entries, 4);
        assert_eq!(bursts.iter().sum::<usize>(), 64, "{entries}: nothing is lost");
        assert!(
            bursts.iter().all(|&chains| chains <= most),
            "{entries}: {bursts:?}"
        );
        assert_eq!(account.read().received, 64);
    }
}

#[test]
fn a_burst_ends_after_as_many_bytes_as_a_turn_may_have() {
    let (bursts, account) = flood(64, 2, 32_000);
    assert!(bursts.iter().all(|&chains| chains <= 5), "{bursts:?}");
    assert_eq!(account.read().received, 64);
    assert_eq!(account.read().dropped.total(), 0);
    let (bursts, _) = flood(64, 1, 1500);
    assert_eq!(bursts[0], 32, "usual packets come in whole bursts");
}

/// A table of thousands of entries of a byte each is contiguous, and so is one segment; all chains may share
/// it.
#[test]
fn large_tables_cost_no_more_than_their_bound() {
    for entries in [257, 1024, 32_768] {
        let (bursts, account) = flood(64, entries, 1);
        assert!(bursts.iter().all(|&chains| chains <= 2), "{entries}: {bursts:?}");
        assert_eq!(account.read().dropped.get(DropReason::ChainTooLong), 64);
    }
}

/// Sends a frame; true if the driver is owed a call then.
fn send(driver: &mut Driver, side: &mut TransmitSide, head: u16) -> bool {
    driver.descriptor(0, head, DATA, 100, 0);
    driver.offer(head);
    let mut burst = Vec::with_capacity(BURST);
    side.fetch(&mut burst).unwrap();
    side.finish(burst.drain(..));
    side.publish();
    side.owes_call()
}

#[test]
fn the_call_for_sent_frames_is_spared_if_the_driver_looks() {
    const MS: u64 = 1_000_000;
    let mut driver = Driver::new();
    let account = Arc::new(Counters::default());
    let features = VERSION_1 | RING_EVENT_IDX;
    let mut side = TransmitSide::new(driver.setup(features), PortId(1), account.clone()).unwrap();
    let calls = || account.read().calls;
    // The first is forced, and a guest that has received nothing is called.
    assert!(send(&mut driver, &mut side, 0));
    assert_eq!(side.put_off_call(10 * MS, MS), None);
    side.call();
    assert_eq!(calls(), 1);
    // One that receives is not, and has taken the frame before the time is over.
    add_alone(&account.transmitted, 1);
    driver.ask_for_call_at(1);
    assert!(send(&mut driver, &mut side, 1));
    assert_eq!(side.put_off_call(20 * MS, MS), Some(21 * MS));
    driver.ask_for_call_at(2);
    side.publish();
    assert!(!side.owes_call());
    assert_eq!(calls(), 1);
    // If not, it is called; and nobody forgets it when the ring goes.
    assert!(send(&mut driver, &mut side, 2));
    assert_eq!(side.put_off_call(20 * MS, MS), Some(21 * MS));
    side.publish();
    assert!(side.owes_call());
    assert_eq!(side.put_off_call(21 * MS, MS), None);
    side.call();
    assert_eq!(calls(), 2);
    driver.ask_for_call_at(3);
    assert!(send(&mut driver, &mut side, 3));
    assert!(side.drain(), "nothing is under way");
    assert_eq!(calls(), 2);
    side.call_if_owed();
    assert_eq!(calls(), 3);
}

/// The only packet there is, detached: where its tail lies, and its bytes.
fn detached(side: &mut TransmitSide) -> (*const u8, Vec<u8>) {
    let mut burst = Vec::with_capacity(BURST);
    side.fetch(&mut burst).unwrap();
    side.detach(&mut burst);
    let [packet] = &burst[..] else {
        panic!("{} packets", burst.len())
    };
    let mut tail = None;
    packet.tail(0, packet.tail_len).for_each(|piece| match piece {
        Piece::Bytes(bytes) => tail = Some((bytes.as_ptr(), bytes.to_vec())),
        Piece::Guest(..) => panic!("the tail lies in the guest's memory"),
    });
    side.finish(burst.drain(..));
    side.publish();
    tail.unwrap()
}

#[test]
fn tails_are_copied_to_memory_that_is_used_again() {
    let mut driver = Driver::new();
    let account = Arc::new(Counters::default());
    let mut side = TransmitSide::new(driver.setup(VERSION_1), PortId(1), account.clone()).unwrap();
    let (mut places, mut taken) = (Vec::new(), Vec::new());
    for (head, len, byte) in [(0, 9000_u32, 1_u8), (1, 300, 2), (2, 9000, 3)] {
        driver.put(DATA, &vec![byte; len as usize]);
        driver.descriptor(0, head, DATA, len, 0);
        driver.offer(head);
        let (place, tail) = detached(&mut side);
        assert_eq!(driver.take_used(), Some((head.into(), 0)), "the chain is free");
        assert_eq!(tail, vec![byte; len as usize - 12 - Snapshot::CAPACITY]);
        places.push(place);
        // Memory that was freed, if any, belongs to another allocation now.
        taken.push(tail.clone());
    }
    assert_eq!(places, [places[0]; 3]);
}

#[test]
fn what_cannot_be_read_shows_nothing_of_earlier_packets() {
    let mut driver = Driver::new();
    let account = Arc::new(Counters::default());
    let mut side = TransmitSide::new(driver.setup(VERSION_1), PortId(1), account).unwrap();
    driver.put(DATA, &[7; 2000]);
    for (head, len) in [(0, 2000), (1, 1000)] {
        driver.descriptor(0, head, DATA, len, 0);
        driver.offer(head);
        let mut burst = Vec::with_capacity(BURST);
        side.fetch(&mut burst).unwrap();
        // More than its chain has.
        burst[0].tail_len = 1800;
        side.detach(&mut burst);
        let read = len as usize - 12 - Snapshot::CAPACITY;
        burst[0].tail(0, 1800).for_each(|piece| {
            let Piece::Bytes(bytes) = piece else {
                panic!("the tail lies in the guest's memory")
            };
            let (there, beyond) = bytes.split_at(read.min(1800));
            assert!(there.iter().all(|byte| *byte == 7), "{head}");
            assert!(beyond.iter().all(|byte| *byte == 0), "{head}: {beyond:?}");
        });
        side.finish(burst.drain(..));
        side.publish();
    }
}

const SECOND: u64 = 1_000_000_000;

/// A ring that offers frames of `len` bytes without end, and a port with such a bandwidth.
struct Limited {
    driver: Driver,
    side: TransmitSide,
    head: u16,
    offered: u64,
    sent: u64,
}

impl Limited {
    fn new(limit: RateLimit, len: u32, now_ns: u64) -> Limited {
        let mut driver = Driver::new();
        let features = INDIRECT;
        let mut side = TransmitSide::new(driver.setup(features), PortId(1), Arc::default()).unwrap();
        side.set_limit(Some(Arc::new(SendLimit::new(limit, now_ns))));
        for head in 0..128 {
            driver.descriptor(0, head, DATA, len, 0);
            driver.offer(head);
        }
        Limited {
            driver,
            side,
            head: 0,
            offered: 128,
            sent: 0,
        }
    }

    /// Fetches all that may pass at that time, and has the driver offer as many again. Returns how many bytes
    /// they have, and how long the ring waits.
    fn fetch_all(&mut self, now_ns: u64) -> (u64, u64) {
        let (mut burst, mut bytes) = (Vec::with_capacity(BURST), 0);
        loop {
            let end = self.side.fetch_limited(&mut burst, now_ns, BURST).unwrap();
            bytes += burst.iter().map(|packet| packet.frame_len() as u64).sum::<u64>();
            self.sent += burst.len() as u64;
            self.side.finish(burst.drain(..));
            self.side.publish();
            while self.driver.take_used().is_some() {
                self.driver.offer(self.head % 128);
                self.head = self.head.wrapping_add(1);
                self.offered += 1;
            }
            if end == Fetched::Waits {
                return (bytes, self.side.limit.as_ref().unwrap().left_ns(now_ns));
            }
        }
    }
}

/// By a clock of the test: a ring that is looked at when its time has come, or somewhat later.
#[test]
fn a_ring_gives_what_its_bandwidth_allows_and_loses_nothing() {
    for bits_per_second in [1_000_000, 100_000_000, 5_000_000_000_u64] {
        for (len, late_ns) in [(72, 0), (1526, 3_000_000), (65_000, 50_000)] {
            let limit = RateLimit {
                bits_per_second,
                burst: RateLimit::usual_burst(bits_per_second),
            };
            let (mut now_ns, mut bytes) = (SECOND, 0);
            let mut ring = Limited::new(limit, len, now_ns);
            // What was saved before.
            ring.fetch_all(now_ns);
            // As long as a second, or many frames, take.
            let frames_ns = 8 * u64::from(len) * (200_000 * SECOND / bits_per_second);
            let end_ns = now_ns + SECOND.min(frames_ns);
            while now_ns < end_ns {
                let (passed, wait_ns) = ring.fetch_all(now_ns);
                bytes += passed;
                assert!(!ring.side.has_work(), "the ring is not looked at meanwhile");
                assert!(
                    !ring.side.enable_kicks().unwrap(),
                    "nor is the guest asked to kick"
                );
                now_ns += wait_ns.max(1) + late_ns;
            }
            let expected = bits_per_second as f64 / 8.0 * (end_ns - SECOND) as f64 / SECOND as f64;
            let off = (bytes as f64 - expected).abs();
            // A look that comes late finds what was saved, up to the burst.
            let late = bits_per_second as f64 / 8.0 * (late_ns + 1_000_000) as f64 / SECOND as f64;
            assert!(
                off < 0.001 * expected + f64::from(len) + late,
                "{bits_per_second} {len}: {bytes} {expected}"
            );
            assert_eq!(ring.offered - ring.sent, 128, "what did not pass is in the ring");
        }
    }
}

/// A frame that costs half a second passes at once, and only the next one waits for it.
#[test]
fn a_long_frame_passes_at_a_low_rate() {
    let limit = RateLimit {
        bits_per_second: 1_000_000,
        burst: RateLimit::LEAST_BURST,
    };
    let mut ring = Limited::new(limit, 65_000, SECOND);
    let (bytes, wait_ns) = ring.fetch_all(SECOND);
    assert_eq!(bytes, 64_988);
    assert!((500_000_000..530_000_000).contains(&wait_ns), "{wait_ns}");
    assert_eq!(ring.fetch_all(SECOND + wait_ns / 2).0, 0);
    assert_eq!(ring.fetch_all(SECOND + wait_ns).0, 64_988);
}

/// Changes hold at once, and a ring that stops is not kept from doing so.
#[test]
fn a_limit_comes_and_goes_while_the_ring_runs() {
    let limit = RateLimit {
        bits_per_second: 1_000_000,
        burst: RateLimit::LEAST_BURST,
    };
    let mut ring = Limited::new(limit, 1526, SECOND);
    ring.fetch_all(SECOND);
    assert!(!ring.side.has_work());
    ring.side.set_limit(None);
    assert!(ring.side.has_work());
    let mut burst = Vec::with_capacity(BURST);
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Full));
    assert_eq!(burst.len(), BURST);
    ring.side.finish(burst.drain(..));
    ring.side.set_limit(Some(Arc::new(SendLimit::new(limit, 0))));
    assert!(ring.side.drain());
    ring.side.set_limit(None);
    assert_eq!(
        ring.side.fetch(&mut burst),
        Ok(Fetched::Empty),
        "the ring is about to stop"
    );
}

/// A receiver whose bandwidth is bounded says for how much it has room.
#[test]
fn a_ring_is_read_as_far_as_its_receiver_has_room() {
    let mut ring = Limited::new(
        RateLimit {
            bits_per_second: 1_000_000,
            burst: RateLimit::LEAST_BURST,
        },
        1526,
        SECOND,
    );
    ring.side.set_limit(None);
    let lender = &ring.side.account.clone().lender;
    let mut burst = Vec::with_capacity(BURST);
    lender.set_room(0);
    ring.side.heed_receiver();
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Waits));
    assert_eq!((burst.len(), ring.side.has_work()), (0, false));
    assert_eq!(ring.side.enable_kicks(), Ok(false));
    assert!((SECOND / 2..=SECOND).contains(&ring.side.wait_ns()));
    // Others may wait behind packets for that receiver.
    let now_ns = cpu::now_ns();
    let mut fetch_at = |now_ns| {
        let fetched = ring.side.fetch_limited(&mut burst, now_ns, BURST);
        let count = burst.len();
        ring.side.finish(burst.drain(..));
        lender.set_room(0);
        fetched.map(|_| count)
    };
    assert_eq!(fetch_at(now_ns + SECOND / 2), Ok(0));
    assert_eq!(fetch_at(now_ns + SECOND), Ok(BURST));
    assert_eq!(fetch_at(now_ns + SECOND + SECOND / 20), Ok(0));
    assert_eq!(fetch_at(now_ns + SECOND + SECOND / 5), Ok(BURST));
    // Of 1,500 bytes each, so that the last one begins within them.
    lender.set_room(4000);
    ring.side.heed_receiver();
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Full));
    assert_eq!(burst.len(), 3);
    ring.side.finish(burst.drain(..));
    // Unless the receiver says so again, nothing is bounded.
    ring.side.heed_receiver();
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Full));
    assert_eq!(burst.len(), BURST);
    ring.side.finish(burst.drain(..));
    // A bandwidth of the sender's own holds as well.
    let limit = SendLimit::new(
        RateLimit {
            bits_per_second: 1_000_000,
            burst: 1600,
        },
        cpu::now_ns(),
    );
    ring.side.set_limit(Some(Arc::new(limit)));
    lender.set_room(100_000);
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Full));
    assert_eq!(burst.len(), 2);
    ring.side.finish(burst.drain(..));
    assert_eq!(ring.side.fetch(&mut burst), Ok(Fetched::Waits));
    assert!((1..SECOND).contains(&ring.side.wait_ns()));
}
