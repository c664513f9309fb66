//! Giving chains back, in the order in which the driver made them available.
//!
//! VIRTIO lets a device give chains back in any order, but front ends do not live with that: when a device
//! dies, they start the queue again at the used index (QEMU, and DPDK's back end whatever the front end
//! says). With another order a chain before that index may never come back, and one behind it may come back
//! twice, at which a Linux driver stops. With this order the used index is all that a successor needs, and it
//! lies in the guest's memory, which outlives every process of the switch.
//!
//! So each chain has a *place*, its entry of the used ring, from the moment it is taken. A chain that is done
//! is written there at once, and the driver sees it when all older chains are done as well. Until then it is
//! *early*. Entries behind the used index mean nothing to the driver.

use super::DeviceQueue;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which chains are early, by place.
#[derive(Debug)]
pub(super) struct Early {
    /// A bit for each entry of the used ring.
    marks: Box<[u64]>,
    count: u16,
}

impl Early {
    /// None, in a queue of that size.
    pub fn new(size: u16) -> Early {
        Early {
            marks: vec![0; usize::from(size).div_ceil(64)].into(),
            count: 0,
        }
    }

    fn mark(&mut self, entry: usize) {
        debug_assert_eq!(
            self.marks[entry / 64] >> (entry % 64) & 1,
            0,
            "a chain comes back twice"
        );
        self.marks[entry / 64] |= 1 << (entry % 64);
        self.count += 1;
    }

    /// Whether that one is early; if so, not any more.
    fn take(&mut self, entry: usize) -> bool {
        let is_early = self.count > 0 && self.marks[entry / 64] >> (entry % 64) & 1 != 0;
        if is_early {
            self.marks[entry / 64] &= !(1 << (entry % 64));
            self.count -= 1;
        }
        is_early
    }
}

impl DeviceQueue {
    /// The place of the next chain to be taken; those of the chains behind it follow.
    #[inline]
    pub fn next_place(&self) -> u16 {
        self.next_available.wrapping_add(self.lead)
    }

    /// Gives back the oldest chain that was not given back, `len` bytes of it written. The driver sees it
    /// after [`publish`](Self::publish).
    #[inline]
    pub fn push_used(&mut self, head: u16, len: u32) {
        self.write_used(self.next_used, head, len);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Gives back a chain of which nothing was written, with its place. The driver sees it after
    /// [`publish`](Self::publish) and after all older chains were given back.
    #[inline]
    pub fn give_back(&mut self, place: u16, head: u16) {
        self.write_used(place, head, 0);
        if place != self.next_used {
            return self.early.mark(self.entry(place));
        }
        self.next_used = self.next_used.wrapping_add(1);
        if self.early.count > 0 {
            self.pass_early();
        }
    }

    /// Gives back chains that were taken one behind the other, the first one of which has that place.
    #[inline]
    pub fn give_back_all(&mut self, place: u16, heads: &[u16]) {
        let places = (0..).map(|number| place.wrapping_add(number));
        if place == self.next_used && self.early.count == 0 {
            for (place, &head) in places.zip(heads) {
                self.write_used(place, head, 0);
            }
            self.next_used = place.wrapping_add(heads.len() as u16);
        } else {
            self.give_back_some(places.zip(heads.iter().copied()));
        }
    }

    /// Gives back any chains, given as places and heads.
    #[inline(never)]
    pub fn give_back_some(&mut self, chains: impl Iterator<Item = (u16, u16)>) {
        chains.for_each(|(place, head)| self.give_back(place, head));
    }

    /// The oldest chain is done, and so are those behind it that were early.
    #[inline(never)]
    fn pass_early(&mut self) {
        while self.early.take(self.entry(self.next_used)) {
            self.next_used = self.next_used.wrapping_add(1);
        }
    }

    #[inline]
    fn write_used(&self, place: u16, head: u16, len: u32) {
        let [id, written] = self.used_entry(place);
        id.store(u32::from(head).to_le(), Ordering::Relaxed);
        written.store(len.to_le(), Ordering::Relaxed);
    }

    /// Entry of the used ring: the chain's head, and how many bytes were written.
    pub(super) fn used_entry(&self, place: u16) -> &[AtomicU32; 2] {
        let slot = self.entry(place);
        // SAFETY: the used ring is `flags, idx, size * (id, len)`; slot < size, and `locate` checked that all
        // of it lies in a mapping kept by `memory`, 4-aligned.
        unsafe { self.used.cast::<AtomicU32>().add(1 + 2 * slot).cast().as_ref() }
    }

    fn entry(&self, place: u16) -> usize {
        usize::from(place & (self.addresses.size - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AVAILABLE, BUFFERS, Guest, SIZE, USED};
    use super::*;
    use crate::{Chain, Direction};
    use proptest::prelude::*;

    /// A driver that notices when a chain comes back that it did not send, or does so in another order.
    struct Driver {
        guest: Guest,
        seen: u16,
        /// Heads that the device has, oldest first.
        sent: Vec<u16>,
    }

    impl Driver {
        /// A ring whose indices are at `start`.
        fn new(start: u16) -> Driver {
            let mut guest = Guest::new();
            guest.available = start;
            for ring in [AVAILABLE, USED] {
                guest.put(ring + 2, &start.to_le_bytes());
            }
            for slot in 0..SIZE {
                guest.descriptor(slot, BUFFERS + 64 * u64::from(slot), 8, 0, 0);
            }
            Driver {
                guest,
                seen: start,
                sent: Vec::new(),
            }
        }

        fn offer(&mut self) {
            // Never the same order of heads twice.
            let step = (0..SIZE).map(|number| (self.seen ^ number) % SIZE);
            let mut free = step.filter(|head| !self.sent.contains(head));
            if let Some(head) = free.next_back() {
                self.guest.offer(head);
                self.sent.push(head);
            }
        }

        fn take_used(&mut self) {
            while self.guest.get16(USED + 2) != self.seen {
                let head = self.guest.get16(USED + 4 + 8 * u64::from(self.seen % SIZE));
                assert!(!self.sent.is_empty(), "chain {head} comes back twice");
                assert_eq!(head, self.sent.remove(0));
                self.seen = self.seen.wrapping_add(1);
            }
        }

        fn base(&self, kind: u8) -> u16 {
            match kind {
                0 => 0,
                1 => self.guest.available,
                _ => self.guest.get16(USED + 2),
            }
        }
    }

    fn take(queue: &mut DeviceQueue) -> Option<(u16, u16)> {
        let (place, mut chain) = (queue.next_place(), Chain::default());
        let taken = queue.take(Direction::FromDriver, &mut chain).unwrap();
        taken.map(|_| (place, chain.head))
    }

    proptest! {
        /// Chains that are done in any order come back in the driver's, each once, while the device dies
        /// again and again and goes on at whatever base the front end says.
        #[test]
        fn each_chain_comes_back_once_and_in_order(
            start in prop_oneof![Just(0u16), Just(u16::MAX - 3), any::<u16>()],
            operations in prop::collection::vec((0u8..6, any::<u8>()), 1..300),
        ) {
            let mut driver = Driver::new(start);
            let mut queue = driver.guest.queue_at(start, true);
            let mut taken: Vec<(u16, u16)> = Vec::new();
            for (operation, which) in operations {
                match operation {
                    0 => driver.offer(),
                    1 => taken.extend(take(&mut queue)),
                    2 if !taken.is_empty() => {
                        let (place, head) = taken.swap_remove(usize::from(which) % taken.len());
                        queue.give_back(place, head);
                    }
                    3 => drop(queue.publish()),
                    4 => driver.take_used(),
                    5 if which < 64 => {
                        queue = driver.guest.queue_at(driver.base(which % 3), which < 32);
                        taken.clear();
                    }
                    5 if which < 96 => {
                        queue.rewind_all();
                        taken.clear();
                    }
                    _ => {}
                }
            }
            queue = driver.guest.queue_at(driver.base(1), true);
            let all: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
            let heads: Vec<_> = all.iter().map(|&(_, head)| head).collect();
            if let Some(&(first, _)) = all.first() {
                queue.give_back_all(first, &heads);
            }
            queue.publish();
            driver.take_used();
            prop_assert!(driver.sent.is_empty(), "{:?} are lost", driver.sent);
        }
    }

    #[test]
    fn a_used_index_that_contradicts_the_driver_gives_way_to_the_base() {
        let mut driver = Driver::new(1000);
        driver.guest.put(USED + 2, &5000u16.to_le_bytes());
        driver.seen = 5000;
        driver.offer();
        driver.offer();
        let mut queue = driver.guest.queue_at(1000, false);
        let (first, second) = (take(&mut queue).unwrap(), take(&mut queue).unwrap());
        queue.give_back(second.0, second.1);
        queue.publish();
        assert_eq!(driver.guest.get16(USED + 2), 5000);
        queue.give_back(first.0, first.1);
        queue.publish();
        driver.take_used();
        assert!(driver.sent.is_empty());
        assert_eq!(queue.base(), 1002);
    }

    #[test]
    fn no_entry_of_the_used_ring_belongs_to_two_chains() {
        let mut driver = Driver::new(0);
        (0..SIZE).for_each(|_| driver.offer());
        let mut queue = driver.guest.queue(false);
        let first = take(&mut queue).unwrap();
        let second = take(&mut queue).unwrap();
        queue.give_back(second.0, second.1);
        queue.publish();
        // A driver that takes the second one for free.
        driver.guest.offer(second.1);
        assert_eq!(
            queue.look(),
            Err(super::super::QueueError::AvailableIndex(SIZE - 1))
        );
        queue.give_back(first.0, first.1);
        assert_eq!(queue.look(), Ok(SIZE - 1));
    }
}
