use super::*;
use guest_memory::{GuestRange, Region};
use proptest::prelude::*;
use std::collections::VecDeque;

pub(super) const SIZE: u16 = 8;
const FRONT_END: u64 = 1 << 40;
const DESCRIPTORS: u64 = 0;
pub(super) const AVAILABLE: u64 = 0x1000;
pub(super) const USED: u64 = 0x2000;
pub(super) const BUFFERS: u64 = 0x4000;
const MEMORY: u64 = 0x10_000;

/// A driver that can write anything anywhere.
pub(super) struct Guest {
    memory: Arc<GuestMemory>,
    pub available: u16,
}

impl Guest {
    pub fn new() -> Guest {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY).unwrap();
        let region = Region::map(0, FRONT_END, MEMORY, file, 0).unwrap();
        Guest {
            memory: Arc::new(GuestMemory::new().with(region).unwrap()),
            available: 0,
        }
    }

    pub fn queue(&self, event_idx: bool) -> DeviceQueue {
        self.queue_at(0, event_idx)
    }

    pub fn queue_at(&self, base: u16, event_idx: bool) -> DeviceQueue {
        DeviceQueue::new(self.memory.clone(), addresses(), base, event_idx, true).unwrap()
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.memory
            .write(self.memory.range(address, bytes.len() as u32).unwrap(), bytes);
    }

    pub fn get16(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory
            .read(self.memory.range(address, 2).unwrap(), &mut bytes);
        u16::from_le_bytes(bytes)
    }

    fn descriptor_at(&self, table: u64, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.put(table + 16 * u64::from(index), &bytes);
    }

    pub fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_at(DESCRIPTORS, index, address, len, flags, next);
    }

    pub fn offer(&mut self, head: u16) {
        self.put(
            AVAILABLE + 4 + 2 * u64::from(self.available % SIZE),
            &head.to_le_bytes(),
        );
        self.available = self.available.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
    }
}

fn addresses() -> QueueAddresses {
    QueueAddresses {
        size: SIZE,
        descriptors: FRONT_END + DESCRIPTORS,
        available: FRONT_END + AVAILABLE,
        used: FRONT_END + USED,
    }
}

fn take(queue: &mut DeviceQueue) -> Result<Option<Result<Vec<GuestRange>, ChainError>>, QueueError> {
    let mut chain = Chain::default();
    let taken = queue.take(Direction::FromDriver, &mut chain)?;
    Ok(taken.map(|result| result.map(|()| chain.segments().to_vec())))
}

#[test]
fn impossible_layouts_are_refused() {
    let guest = Guest::new();
    let new = |addresses| {
        DeviceQueue::new(guest.memory.clone(), addresses, 0, true, true)
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        new(QueueAddresses {
            size: 0,
            ..addresses()
        }),
        QueueError::Size(0)
    );
    assert_eq!(
        new(QueueAddresses {
            size: 6,
            ..addresses()
        }),
        QueueError::Size(6)
    );
    for size in [2048, 32768] {
        assert_eq!(
            new(QueueAddresses { size, ..addresses() }),
            QueueError::Size(size)
        );
    }
    let odd = |offset| FRONT_END + offset + 1;
    assert_eq!(
        new(QueueAddresses {
            descriptors: odd(DESCRIPTORS),
            ..addresses()
        }),
        QueueError::Address("descriptor table")
    );
    assert_eq!(
        new(QueueAddresses {
            available: odd(AVAILABLE),
            ..addresses()
        }),
        QueueError::Address("available ring")
    );
    assert_eq!(
        new(QueueAddresses {
            used: FRONT_END + MEMORY - 8,
            ..addresses()
        }),
        QueueError::Address("used ring")
    );
    assert_eq!(
        new(QueueAddresses {
            used: u64::MAX - 3,
            ..addresses()
        }),
        QueueError::Address("used ring")
    );
}

#[test]
fn chains_are_walked_joined_and_given_back() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(true);
    guest.descriptor(3, BUFFERS, 12, DESC_F_NEXT, 1);
    guest.descriptor(1, BUFFERS + 12, 100, DESC_F_NEXT, 2);
    guest.descriptor(2, BUFFERS + 0x800, 50, 0, 0);
    guest.offer(3);
    let mut chain = Chain::default();
    queue
        .take(Direction::FromDriver, &mut chain)
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!((chain.head, chain.len(), chain.segments().len()), (3, 162, 2));
    let rest: Vec<_> = chain.from(100).collect();
    let range = |at, len| guest.memory.range(BUFFERS + at, len).unwrap();
    assert_eq!(rest, [range(100, 12), range(0x800, 50)]);
    assert_eq!(chain.from(162).count(), 0);
    queue.push_used(3, 0);
    assert_eq!(guest.get16(USED + 2), 0, "not before publishing");
    assert!(queue.publish(), "the first publication always notifies");
    assert_eq!((guest.get16(USED + 2), guest.get16(USED + 4)), (1, 3));
    assert!(!queue.publish());
}

#[test]
fn malformed_chains_are_errors_and_the_queue_goes_on() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(false);
    type Case<'a> = (&'a str, &'a dyn Fn(&Guest));
    let cases: [Case; 11] = [
        ("outside memory", &|g| g.descriptor(0, MEMORY, 1, 0, 0)),
        ("runs out of memory", &|g| g.descriptor(0, MEMORY - 1, 2, 0, 0)),
        ("wraps around", &|g| g.descriptor(0, u64::MAX, 2, 0, 0)),
        ("empty", &|g| g.descriptor(0, BUFFERS, 0, 0, 0)),
        ("wrong direction", &|g| {
            g.descriptor(0, BUFFERS, 1, DESC_F_WRITE, 0)
        }),
        ("loop", &|g| g.descriptor(0, BUFFERS, 1, DESC_F_NEXT, 0)),
        ("next outside table", &|g| {
            g.descriptor(0, BUFFERS, 1, DESC_F_NEXT, SIZE)
        }),
        ("indirect and next", &|g| {
            g.descriptor(0, BUFFERS, 16, DESC_F_INDIRECT | DESC_F_NEXT, 0)
        }),
        ("indirect size", &|g| {
            g.descriptor(0, BUFFERS, 17, DESC_F_INDIRECT, 0)
        }),
        ("indirect outside memory", &|g| {
            g.descriptor(0, MEMORY - 8, 16, DESC_F_INDIRECT, 0)
        }),
        ("nested indirect", &|g| {
            g.descriptor(0, BUFFERS, 16, DESC_F_INDIRECT, 0);
            g.descriptor_at(BUFFERS, 0, BUFFERS, 16, DESC_F_INDIRECT, 0);
        }),
    ];
    for (what, make) in cases {
        make(&guest);
        guest.offer(0);
        assert_eq!(take(&mut queue), Ok(Some(Err(ChainError::Malformed))), "{what}");
        queue.push_used(0, 0);
    }
    guest.descriptor(0, BUFFERS, 5, 0, 0);
    guest.offer(0);
    assert_eq!(take(&mut queue).unwrap().unwrap().unwrap()[0].len(), 5);
}

#[test]
fn an_indirect_loop_ends() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(false);
    guest.descriptor(0, BUFFERS, 48, DESC_F_INDIRECT, 0);
    for (index, next) in [(0, 2), (2, 0)] {
        guest.descriptor_at(
            BUFFERS,
            index,
            BUFFERS + 0x100 * u64::from(index),
            1,
            DESC_F_NEXT,
            next,
        );
    }
    guest.offer(0);
    assert_eq!(take(&mut queue), Ok(Some(Err(ChainError::Malformed))));
}

#[test]
fn too_many_segments_are_refused() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(false);
    let count = crate::MAX_SEGMENTS as u16 + 1;
    guest.descriptor(0, BUFFERS, 16 * u32::from(count), DESC_F_INDIRECT, 0);
    for index in 0..count {
        let flags = if index + 1 < count { DESC_F_NEXT } else { 0 };
        guest.descriptor_at(
            BUFFERS,
            index,
            0x8000 + 16 * u64::from(index),
            8,
            flags,
            index + 1,
        );
    }
    guest.offer(0);
    assert_eq!(take(&mut queue), Ok(Some(Err(ChainError::TooLong))));
}

/// Fills a table at `BUFFERS` with descriptors of `len` bytes that lie behind each other from 0x8000 on, and
/// offers it.
fn offer_table(guest: &mut Guest, count: u16, len: u32) {
    guest.descriptor(0, BUFFERS, 16 * u32::from(count), DESC_F_INDIRECT, 0);
    for index in 0..count {
        let flags = if index + 1 < count { DESC_F_NEXT } else { 0 };
        let address = 0x8000 + u64::from(len) * u64::from(index);
        guest.descriptor_at(BUFFERS, index, address, len, flags, index + 1);
    }
    guest.offer(0);
}

/// Descriptors that lie behind each other become one segment, however many there are: their number has a
/// bound of its own.
#[test]
fn a_chain_costs_no_more_than_its_bound() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(false);
    let mut chain = Chain::default();
    let bound = crate::MAX_DESCRIPTORS as u16;
    for count in [1, 2, bound - 1, bound, bound + 1, 2 * bound, 900] {
        offer_table(&mut guest, count, 1);
        let taken = queue.take(Direction::FromDriver, &mut chain).unwrap().unwrap();
        let expected = if count > bound {
            Err(ChainError::TooLong)
        } else {
            Ok(())
        };
        assert_eq!(taken, expected, "{count} descriptors");
        assert_eq!(chain.walked(), u32::from(count.min(bound)));
    }
}

/// Descriptors behind the largest frame are not examined, so that they need not even be valid.
#[test]
fn a_chain_ends_where_no_frame_needs_more() {
    let mut guest = Guest::new();
    let mut queue = guest.queue(false);
    let mut chain = Chain::default();
    guest.descriptor(0, BUFFERS, 16 * 200, DESC_F_INDIRECT, 0);
    for index in 0..200 {
        guest.descriptor_at(BUFFERS, index, 0x8000, 0x4000, DESC_F_NEXT, index + 1);
    }
    guest.offer(0);
    assert_eq!(queue.take(Direction::FromDriver, &mut chain), Ok(Some(Ok(()))));
    assert_eq!(chain.walked(), ENOUGH.div_ceil(0x4000));
    assert!(chain.len() >= ENOUGH);
}

#[test]
fn a_broken_ring_is_reported() {
    let mut guest = Guest::new();
    guest.available = 100;
    guest.offer(0);
    assert_eq!(
        take(&mut guest.queue(false)),
        Err(QueueError::AvailableIndex(101))
    );
    guest.available = 0;
    guest.offer(SIZE);
    assert_eq!(take(&mut guest.queue(false)), Err(QueueError::Head(SIZE)));
}

#[test]
fn two_queues_are_shown_at_once() {
    let (guest, other_guest) = (Guest::new(), Guest::new());
    let (mut queue, mut other) = (guest.queue(true), other_guest.queue(false));
    queue.push_used(0, 0);
    queue.show_both(&mut other);
    let shown = || (guest.get16(USED + 2), other_guest.get16(USED + 2));
    assert_eq!(shown(), (1, 0));
    other.push_used(0, 0);
    other.push_used(1, 0);
    other.show_both(&mut queue);
    assert_eq!(shown(), (1, 2));
    // Both drivers are notified nevertheless, also of chains that are given back later.
    queue.push_used(1, 0);
    assert!(queue.publish() && other.publish());
    assert_eq!(shown(), (2, 2));
    assert!(!queue.publish() && !other.publish());
}

#[test]
fn notifications_follow_the_drivers_wish() {
    let guest = Guest::new();
    let mut queue = guest.queue(true);
    let used_event = AVAILABLE + 4 + 2 * u64::from(SIZE);
    queue.push_used(0, 0);
    assert!(queue.publish());
    guest.put(used_event, &3u16.to_le_bytes());
    for expected in [false, false, true, false] {
        queue.push_used(0, 0);
        assert_eq!(queue.publish(), expected, "used index {}", queue.next_used);
    }
    let mut guest = Guest::new();
    let mut plain = guest.queue(false);
    guest.descriptor(0, BUFFERS, 5, 0, 0);
    for (flags, expected) in [(AVAIL_F_NO_INTERRUPT, false), (0, true)] {
        guest.put(AVAILABLE, &flags.to_le_bytes());
        guest.offer(0);
        assert!(take(&mut plain).unwrap().is_some());
        plain.push_used(0, 0);
        assert_eq!(plain.publish(), expected);
    }
    assert_eq!(plain.enable_kicks(), Ok(false));
    guest.offer(0);
    assert_eq!(plain.enable_kicks(), Ok(true));
}

#[test]
fn a_notification_that_is_put_off_is_wanted_until_the_driver_has_looked() {
    let guest = Guest::new();
    let mut queue = guest.queue(true);
    let used_event = |index: u16| guest.put(AVAILABLE + 4 + 2 * u64::from(SIZE), &index.to_le_bytes());
    let give_back = |queue: &mut DeviceQueue| {
        queue.push_used(0, 0);
        queue.publish()
    };
    assert!(give_back(&mut queue));
    queue.notified();
    used_event(1);
    for _ in 0..3 {
        assert!(give_back(&mut queue), "still");
        queue.put_off_notification();
        assert!(queue.look_for_notification());
        assert_eq!(queue.suppression_seen(), 1);
    }
    // The driver has taken two of them, and waits for one behind the third.
    used_event(4);
    assert!(!queue.look_for_notification());
    assert_eq!(queue.suppression_seen(), 4);
    assert!(give_back(&mut queue), "used index 5");
    queue.put_off_notification();
    queue.notified();
    assert!(!give_back(&mut queue) && !queue.look_for_notification());
    // A driver without event indices says that it has looked by wanting none.
    let mut plain = guest.queue(false);
    assert!(give_back(&mut plain));
    plain.put_off_notification();
    assert!(plain.look_for_notification());
    guest.put(AVAILABLE, &AVAIL_F_NO_INTERRUPT.to_le_bytes());
    assert!(!plain.look_for_notification());
}

proptest! {
    /// Whatever the ring says, taking ends, stays inside memory, and never takes more than was offered.
    #[test]
    fn arbitrary_rings_are_survived(
        words in prop::collection::vec(any::<u64>(), 2 * SIZE as usize),
        tame in prop::collection::vec((0u64..MEMORY, 0u32..0x2000, 0u16..8, 0u16..SIZE), SIZE as usize),
        use_tame in any::<bool>(),
        heads in prop::collection::vec(0u16..SIZE + 1, SIZE as usize),
        index in 0u16..SIZE + 2,
    ) {
        let mut guest = Guest::new();
        for slot in 0..SIZE {
            if use_tame {
                let (address, len, flags, next) = tame[usize::from(slot)];
                guest.descriptor(slot, address, len, flags, next);
            } else {
                for half in 0..2 {
                    let word = words[usize::from(2 * slot + half)];
                    guest.put(u64::from(16 * slot + 8 * half), &word.to_le_bytes());
                }
            }
        }
        heads.iter().for_each(|&head| guest.offer(head));
        guest.put(AVAILABLE + 2, &index.to_le_bytes());
        let mut queue = guest.queue(true);
        for taken in 0.. {
            match take(&mut queue) {
                Ok(Some(Ok(segments))) => {
                    let mut byte = [0];
                    prop_assert!(segments.iter().all(|&segment| guest.memory.read(segment, &mut byte) == 1));
                }
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
            prop_assert!(taken < usize::from(SIZE));
        }
    }

    /// Twin: the ring as a `VecDeque` of heads, any order of offering, taking, rewinding and giving back.
    #[test]
    fn order_is_kept(operations in prop::collection::vec(0u8..4, 1..200)) {
        let mut guest = Guest::new();
        for slot in 0..SIZE {
            guest.descriptor(slot, BUFFERS + 64 * u64::from(slot), 8, 0, 0);
        }
        let mut queue = guest.queue(true);
        let (mut free, mut offered, mut taken) =
            ((0..SIZE).collect::<VecDeque<_>>(), VecDeque::new(), VecDeque::new());
        let (mut used, mut chain) = (0u16, Chain::default());
        for operation in operations {
            match operation {
                0 => if let Some(head) = free.pop_front() {
                    guest.offer(head);
                    offered.push_back(head);
                },
                1 => {
                    let result = queue.take(Direction::FromDriver, &mut chain).unwrap();
                    prop_assert_eq!(result.is_some(), !offered.is_empty());
                    if let Some(head) = offered.pop_front() {
                        prop_assert_eq!(chain.head, head);
                        taken.push_back(head);
                    }
                },
                2 => if let Some(head) = taken.pop_back() {
                    queue.rewind(1);
                    offered.push_front(head);
                },
                _ => if let Some(head) = taken.pop_front() {
                    queue.push_used(head, 0);
                    queue.publish();
                    prop_assert_eq!(guest.get16(USED + 4 + 8 * u64::from(used % SIZE)), head);
                    used = used.wrapping_add(1);
                    prop_assert_eq!(guest.get16(USED + 2), used);
                    free.push_back(head);
                },
            }
        }
    }
}
