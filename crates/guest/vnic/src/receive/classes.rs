//! Classes of a receiver's packets, each with a queue of its own, where the bandwidth is bounded.
//!
//! Linux' HTB is the model (`net/sched/sch_htb.c`). A class that has a largest rate gets no more. Of the
//! others, those that are below their least rate go first, the highest priority before lower ones; then all,
//! by priority again. Classes of one priority share in the ratio of their least rates: each has a virtual
//! time, which goes on by the bytes that it was served, divided by its part, and the one that is behind is
//! next (start-time fair queueing: P. Goyal, H. M. Vin and H. Cheng, 1996). A class that begins to wait gets
//! the virtual time of those that are served, so it saves nothing.
//!
//! In a class, packets wait in turn by sender. A sender may have packets in several classes, so none is held:
//! copies wait, with a bounded room for each class, beyond which the sender that has most loses its newest.

use crate::backlog::{FairQueue, Portion, Waiting};
use crate::packet::Packet;
use flow::{RateClass, RateLimit};
use lock_free::Shared;
use pacing::ByteBucket;

/// Part of a class without a least rate, in bits per second: HTB's, with the least quantum that it has.
const LEAST_PART: u64 = 80_000;

/// Virtual time of a byte where the part is one bit per second.
const SCALE: u128 = 1 << 48;

/// For how long packets of a class wait at most, in milliseconds, if the room suffices.
const WAIT_MS: u64 = 50;

/// Least and most bytes of copies that wait in a class, and the most of all as long as that leaves the least.
const ROOM: (usize, usize) = (128 << 10, 1 << 20);
const ALL_ROOM: usize = 8 << 20;

/// Least and most packets that wait in a class, and the most of all as long as that leaves the least.
const PACKETS: (usize, usize) = (256, 2048);
const ALL_PACKETS: usize = 8192;

/// Longest time for which a class waits after its debt is paid, so that packets go in batches, in
/// nanoseconds.
const GATHER_NS: u64 = 1_000_000;

/// The classes of a port, class 0 among them. Used by the holder of the receive side.
#[derive(Debug)]
pub(super) struct Classes {
    /// By number.
    all: Vec<Class>,
    /// Virtual times of those that were served last, by priority.
    served: [u128; RateClass::PRIORITIES],
    /// Most bytes and packets of a class.
    room: usize,
    packets: usize,
    /// Total of packets in the queues.
    waiting: usize,
}

#[derive(Debug)]
struct Class {
    is: RateClass,
    most: Option<ByteBucket>,
    least: Option<ByteBucket>,
    /// Share among those of its priority.
    part: u64,
    /// Virtual time.
    start: u128,
    queue: FairQueue,
    /// Packets in the queue.
    waiting: usize,
}

impl Class {
    fn new(is: RateClass, now_ns: u64) -> Class {
        let burst = RateLimit::usual_burst(is.least_rate);
        Class {
            is,
            most: is
                .most
                .map(|most| ByteBucket::new(most.bits_per_second, most.burst, now_ns)),
            least: (is.least_rate > 0).then(|| ByteBucket::new(is.least_rate, burst, now_ns)),
            part: is.least_rate.max(LEAST_PART),
            start: 0,
            queue: FairQueue::default(),
            waiting: 0,
        }
    }

    fn may_pass(&self, now_ns: u64) -> bool {
        self.waiting > 0 && self.most.as_ref().is_none_or(|most| most.paid_ns() <= now_ns)
    }

    /// Order in which classes are served, the least first.
    fn rank(&self, now_ns: u64) -> (bool, u8, u128) {
        let is_owed = self.least.as_ref().is_some_and(|least| least.paid_ns() <= now_ns);
        (!is_owed, RateClass::HIGHEST - self.is.priority, self.start)
    }

    fn due_ns(&self) -> u64 {
        self.most.as_ref().map_or(0, |most| {
            most.paid_ns().saturating_add(GATHER_NS.min(most.burst_ns() / 2))
        })
    }

    fn take(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_bytes(0)?;
        self.waiting -= 1;
        Some(waiting)
    }
}

impl Classes {
    /// Queues of these classes, which are valid, and of class 0 if it is not among them.
    pub fn new(classes: &[RateClass], now_ns: u64) -> Classes {
        let first = RateClass::default();
        let has_first = classes.iter().any(|class| class.number == first.number);
        let first = (!has_first).then_some(&first);
        let all: Vec<_> = first
            .into_iter()
            .chain(classes)
            .map(|class| Class::new(*class, now_ns))
            .collect();
        let number = all.len();
        Classes {
            all,
            served: [0; RateClass::PRIORITIES],
            room: (ALL_ROOM / number).clamp(ROOM.0, ROOM.1),
            packets: (ALL_PACKETS / number).clamp(PACKETS.0, PACKETS.1),
            waiting: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Packets in the queues; there are fewer than 2^32.
    pub fn waiting(&self) -> u32 {
        self.waiting as u32
    }

    fn place(&self, packet: &Packet) -> usize {
        self.all
            .binary_search_by_key(&packet.class(), |class| class.is.number)
            .unwrap_or(0)
    }

    /// Appends a packet of its class as a copy, or gives it or others to `refuse`. `rate` is the port's, in
    /// bits per second. Returns how many bytes were copied.
    pub fn push(
        &mut self,
        packet: &Shared<Packet>,
        (portion, rate): (Portion, u64),
        mut refuse: impl FnMut(Shared<Packet>),
    ) -> usize {
        let (place, most_room, packets) = (self.place(packet), self.room, self.packets);
        let class = &mut self.all[place];
        let rate = class.is.most.map_or(rate, |most| most.bits_per_second.min(rate));
        let room = usize::try_from(rate / 8 * WAIT_MS / 1000).unwrap_or(usize::MAX);
        let room = room.clamp(ROOM.0, most_room);
        let (origin, bytes) = (packet.origin, packet.frame_len());
        let mut lost = 0;
        let mut count = |packet| {
            lost += 1;
            refuse(packet);
        };
        let has_room = class.queue.make_room(origin, packets, &mut count)
            && class.queue.make_room_for_bytes(origin, bytes, room, &mut count);
        class.waiting -= lost;
        self.waiting -= lost;
        if !has_room {
            refuse(packet.clone());
            return 0;
        }
        let (packet, moved) = Packet::copy_out(packet);
        let waiting = Waiting {
            packet,
            since_us: None,
            bytes,
        };
        self.append(place, portion, waiting);
        moved
    }

    fn append(&mut self, place: usize, portion: Portion, waiting: Waiting) {
        let class = &mut self.all[place];
        if class.waiting == 0 {
            class.start = class.start.max(self.served[usize::from(class.is.priority)]);
        }
        class.queue.push_of(portion, waiting);
        class.waiting += 1;
        self.waiting += 1;
    }

    fn next(&self, now_ns: u64) -> Option<usize> {
        let able = self
            .all
            .iter()
            .enumerate()
            .filter(|(_, class)| class.may_pass(now_ns));
        able.min_by_key(|(_, class)| class.rank(now_ns))
            .map(|(place, _)| place)
    }

    /// Whether a packet may be delivered as far as its class goes.
    pub fn may_deliver(&self, now_ns: u64) -> bool {
        self.next(now_ns).is_some()
    }

    /// The priority of the packet that is next; 0 if there is none.
    pub fn next_priority(&self, now_ns: u64) -> u8 {
        self.next(now_ns).map_or(0, |place| self.all[place].is.priority)
    }

    /// When a packet may be delivered, if none may now.
    pub fn due_ns(&self) -> u64 {
        let waiting = self.all.iter().filter(|class| class.waiting > 0);
        waiting.map(Class::due_ns).min().unwrap_or(0)
    }

    /// Takes the packet that is next, for which its class pays.
    pub fn pop(&mut self, now_ns: u64) -> Option<Waiting> {
        let place = self.next(now_ns)?;
        let class = &mut self.all[place];
        let (is_beyond, ..) = class.rank(now_ns);
        let waiting = class.take()?;
        self.waiting -= 1;
        let bytes = waiting.packet.frame_len() as u64;
        if let Some(most) = &mut class.most {
            most.charge(bytes, now_ns);
        }
        if let Some(least) = class.least.as_mut().filter(|_| !is_beyond) {
            least.charge(bytes, now_ns);
        }
        let served = &mut self.served[usize::from(class.is.priority)];
        *served = class.start.max(*served);
        class.start += u128::from(bytes) * SCALE / u128::from(class.part);
        Some(waiting)
    }

    /// Takes a packet whose class may not have it delivered yet, and does not pay.
    pub fn pop_any(&mut self) -> Option<Waiting> {
        let class = self.all.iter_mut().find(|class| class.waiting > 0)?;
        let waiting = class.take()?;
        self.waiting -= 1;
        Some(waiting)
    }

    /// Takes over the packets of other classes. There may be more of them than have room until they are
    /// delivered.
    pub fn take_over(&mut self, mut others: Classes) {
        while let Some(waiting) = others.pop_any() {
            let place = self.place(&waiting.packet);
            self.append(place, Portion::Weight(1), waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Source;
    use flow::Edit;

    const LENGTH: usize = 1000;
    const RATE: u64 = 1_000_000_000;
    /// Time of a frame at that rate.
    const FRAME_NS: u64 = 8000;

    fn class(number: u8, priority: u8, least_rate: u64, most: u64) -> RateClass {
        RateClass {
            number,
            priority,
            least_rate,
            most: (most > 0).then_some(RateLimit {
                bits_per_second: most,
                burst: 2000,
            }),
        }
    }

    fn packet(source: &mut Source, number: u8) -> Shared<Packet> {
        let mut frame = vec![2; LENGTH];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        let mut packet = source.packet(&frame);
        packet.edit(&Edit::Class(number)).unwrap();
        packet.share()
    }

    fn push(classes: &mut Classes, source: &mut Source, number: u8) -> bool {
        let mut has_room = true;
        let packet = packet(source, number);
        classes.push(&packet, (Portion::Weight(1), RATE), |_| has_room = false);
        has_room
    }

    /// Megabits per second that each of these classes gets of a port, while all have packets.
    fn served(all: &[RateClass]) -> Vec<u64> {
        let (mut source, mut now_ns) = (Source::new(1), 1_000_000_000_000);
        let mut classes = Classes::new(all, now_ns);
        let mut bytes = vec![0; all.len()];
        for class in all {
            (0..20).for_each(|_| assert!(push(&mut classes, &mut source, class.number)));
        }
        let (begin_ns, end_ns) = (now_ns, now_ns + 300_000_000);
        while now_ns < end_ns {
            let Some(waiting) = classes.pop(now_ns) else {
                assert!(!classes.may_deliver(now_ns) && classes.due_ns() > now_ns);
                now_ns = classes.due_ns();
                continue;
            };
            let number = waiting.packet.class();
            let place = all.iter().position(|class| class.number == number).unwrap();
            bytes[place] += waiting.packet.frame_len() as u64;
            push(&mut classes, &mut source, number);
            now_ns += FRAME_NS;
        }
        let megabits = |bytes: u64| bytes * 8 * 1000 / (now_ns - begin_ns);
        bytes.into_iter().map(megabits).collect()
    }

    fn close(found: &[u64], wanted: &[u64]) {
        let is_close = |(found, wanted): (&u64, &u64)| found.abs_diff(*wanted) <= 10 + wanted / 50;
        assert!(
            found.iter().zip(wanted).all(is_close),
            "{found:?}, not {wanted:?}"
        );
    }

    #[test]
    fn classes_share_by_their_least_rates() {
        let least = |number, least_rate| class(number, 0, least_rate, 0);
        close(
            &served(&[least(1, 300_000_000), least(2, 100_000_000)]),
            &[750, 250],
        );
        close(&served(&[least(0, 0), least(1, 0)]), &[500, 500]);
        close(
            &served(&[least(0, 0), least(1, 0), least(9, 500_000_000)]),
            &[0, 0, 1000],
        );
    }

    #[test]
    fn a_priority_goes_before_what_is_beyond_the_least_rate() {
        let found = served(&[class(1, 1, 0, 0), class(2, 0, 200_000_000, 0), class(3, 0, 0, 0)]);
        close(&found, &[800, 200, 0]);
        let found = served(&[
            class(1, 7, 0, 300_000_000),
            class(2, 3, 0, 0),
            class(3, 0, 50_000_000, 0),
        ]);
        close(&found, &[300, 650, 50]);
    }

    #[test]
    fn a_class_gets_no_more_than_its_largest_rate() {
        close(
            &served(&[class(1, 0, 0, 100_000_000), class(2, 0, 0, 0)]),
            &[100, 900],
        );
        // Nobody else wants the rest.
        close(&served(&[class(1, 0, 0, 100_000_000)]), &[100]);
    }

    #[test]
    fn a_class_saves_nothing_while_it_has_no_packets() {
        let (mut source, now_ns) = (Source::new(1), 1_000_000_000_000);
        let mut classes = Classes::new(&[class(1, 0, 1_000_000, 0), class(2, 0, 1_000_000, 0)], now_ns);
        for _ in 0..500 {
            push(&mut classes, &mut source, 1);
            push(&mut classes, &mut source, 1);
            classes.pop(now_ns);
            classes.pop(now_ns);
        }
        for number in [1, 2] {
            (0..50).for_each(|_| assert!(push(&mut classes, &mut source, number)));
        }
        let next: Vec<_> = (0..20)
            .map(|_| classes.pop(now_ns).unwrap().packet.class())
            .collect();
        assert_eq!(next.iter().filter(|number| **number == 1).count(), 10, "{next:?}");
    }

    #[test]
    fn what_waits_is_copied_and_bounded_and_outlives_a_change() {
        let (mut source, now_ns) = (Source::new(1), 1_000_000_000_000);
        let mut classes = Classes::new(&[class(1, 0, 0, 100_000), class(2, 0, 0, 100_000)], now_ns);
        let mut number_of = |classes: &mut Classes, number| {
            (0..1000)
                .take_while(|_| push(classes, &mut source, number))
                .count()
        };
        let room = ROOM.0 / LENGTH;
        assert_eq!(
            [number_of(&mut classes, 1), number_of(&mut classes, 2)],
            [room, room]
        );
        // Those of no class that there is.
        assert_eq!(number_of(&mut classes, 77), 1000);
        assert_eq!(source.free(), Source::SLOTS, "senders lend nothing");
        assert_eq!(packet(&mut source, 2).class(), 2);
        source.free();
        let mut frame = vec![2; LENGTH];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert_eq!(source.packet(&frame).class(), 0, "the slot was cleared");
        let before = std::mem::replace(&mut classes, Classes::new(&[class(2, 0, 0, 0)], now_ns));
        classes.take_over(before);
        let left = std::iter::from_fn(|| classes.pop(now_ns)).count();
        assert_eq!((left, classes.is_empty()), (1000 + 2 * room, true));
    }
}
