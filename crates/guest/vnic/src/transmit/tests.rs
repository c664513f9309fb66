use super::*;
use crate::features::VERSION_1;
use crate::packet::Piece;
use crate::testing::{DATA, Driver};

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
