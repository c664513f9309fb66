//! Packets of several senders, served in turn and bounded.
//!
//! Deficit round robin (M. Shreedhar and G. Varghese, "Efficient fair queuing using deficit round robin",
//! 1995): the sender that has its turn is served as long as it has credit, and a packet costs as much credit
//! as it is work ([`Turn`](crate::Turn)). Then the sender gets [`QUANTUM`] more and goes behind the others.
//! The last packet of a turn may overdraw the credit, and a sender in debt waits until it is paid. So a
//! sender gets the same share of the receiver with small packets as with large ones, and the first packet of
//! a sender waits for a quantum, or a packet, of each other one. Packets of one sender keep their order.
//!
//! When all places are taken, a sender that has an equal share of them or more gets no further one. For any
//! other sender, the one with most packets loses its newest. So a sender that has less than an equal share
//! loses nothing. Bytes are shared alike.
//!
//! A sender with a *weight* gets that many quanta. One with a *least* part of the receiver gets as many as
//! make that part of a round, whatever the weights of others are. Where a bandwidth is shared, packets cost
//! their bytes alone, and a sender may be *held*: it is told how much more it may have here.

use crate::Packet;
use crate::turn::{BURST, DESCRIPTOR_WORK, MAX_SLOTS};
use flow::{PortId, Share};
use lock_free::Shared;
use std::collections::{BTreeMap, VecDeque};

/// Credit of a turn: one frame of 1,500 bytes, or three small ones.
const QUANTUM: i64 = 3 * DESCRIPTOR_WORK as i64;

/// Packets with which a sender is held, however short they are: those of a burst behind have slots.
const HELD_PACKETS: usize = MOST_LENT - BURST;

/// Most packets that a sender that is held lends: all that it has but those of a burst, which may be for
/// others.
pub(crate) const MOST_LENT: usize = MAX_SLOTS as usize - BURST;

/// A packet that waits for its turn.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub packet: Shared<Packet>,
    /// When it was found to lack buffers, or came behind one that did, by [`cpu::now_us`].
    pub since_us: Option<u64>,
    /// Bytes that it takes of those that are shared: memory of ours, 0 while its sender lends it; or, where
    /// the bandwidth is bounded, of all that waits.
    pub bytes: usize,
}

/// The part of a receiver that a sender gets while others want it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    /// In the ratio of weights.
    Weight(u8),
    /// At least that many thousandths.
    Least(u16),
}

impl Portion {
    /// Of a receiver with that many bits per second.
    pub fn of(share: Share, rate: u64) -> Portion {
        if share.least_rate == 0 {
            return Portion::Weight(share.weight);
        }
        let part = u64::from(share.least_rate) * Share::UNIT * WHOLE as u64 / rate.max(1);
        Portion::Least(part.clamp(1, WHOLE as u64) as u16)
    }
}

/// Thousandths.
const WHOLE: i64 = 1000;

/// Thousandths that are left to senders with weights, however much others are to get at least.
const LEFT: i64 = 20;

/// One sender's packets, oldest first.
#[derive(Debug)]
struct Sender {
    packets: VecDeque<Waiting>,
    portion: Portion,
    credit: i64,
    /// Bytes that its packets take.
    bytes: usize,
    /// Bytes of the frames themselves, wherever they lie.
    frames: usize,
    /// Whether it was told how much more it may have.
    is_held: bool,
}

impl Sender {
    /// One without packets.
    fn new(portion: Portion, credit: i64) -> Sender {
        Sender {
            packets: VecDeque::new(),
            portion,
            credit,
            bytes: 0,
            frames: 0,
            is_held: false,
        }
    }

    fn append(&mut self, waiting: Waiting) {
        self.bytes += waiting.bytes;
        self.frames += waiting.packet.frame_len();
        self.packets.push_back(waiting);
    }

    /// Counts a packet out that was taken.
    fn count_out(&mut self, waiting: &Waiting) {
        self.bytes -= waiting.bytes;
        self.frames -= waiting.packet.frame_len();
    }
}

/// A queue per sender, and whose turn it is. See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// Senders with packets or debts.
    senders: BTreeMap<PortId, Sender>,
    /// Whose turn it is, and then the others.
    turns: VecDeque<PortId>,
    /// Sums of the senders' weights, and of their least parts.
    weights: u32,
    least: u32,
    packets: u32,
    /// Bytes that packets of all senders take.
    bytes: u32,
}

impl FairQueue {
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Packets of all senders.
    pub fn waiting(&self) -> u32 {
        self.packets
    }

    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether a sender may have one more packet, of `most` for all; that may cost the newest one of another.
    pub fn make_room(&mut self, sender: PortId, most: usize, mut refuse: impl FnMut(Shared<Packet>)) -> bool {
        let packets = self.packets as usize;
        if packets < most {
            return true;
        }
        let own = self.senders.get(&sender).map_or(0, |own| own.packets.len());
        if own * self.senders.len() >= packets {
            return false;
        }
        if let Some(newest) = self.pop_newest_of_most(|other| other.packets.len()) {
            refuse(newest.packet);
        }
        true
    }

    /// Whether packets of a sender may take `size` bytes more, of `most` for all; that may cost the newest
    /// packets of others.
    pub fn make_room_for_bytes(
        &mut self,
        sender: PortId,
        size: usize,
        most: usize,
        mut refuse: impl FnMut(Shared<Packet>),
    ) -> bool {
        let own = self.senders.get(&sender).map_or(0, |own| own.bytes);
        let others = self.senders.len() - usize::from(self.senders.contains_key(&sender));
        while self.bytes() + size > most {
            if (own + size) * (others + 1) > most {
                return false;
            }
            match self.pop_newest_of_most(|other| other.bytes) {
                Some(newest) => refuse(newest.packet),
                None => return false,
            }
        }
        true
    }

    /// Takes the newest packet of the sender that has most.
    fn pop_newest_of_most(&mut self, measure: impl Fn(&Sender) -> usize) -> Option<Waiting> {
        let sender = self.senders.values_mut().max_by_key(|sender| measure(sender))?;
        let newest = sender.packets.pop_back()?;
        sender.count_out(&newest);
        if sender.packets.is_empty() {
            newest.packet.account.lender.forget_room();
        }
        self.count_out(&newest);
        Some(newest)
    }

    fn count_out(&mut self, waiting: &Waiting) {
        self.bytes -= waiting.bytes as u32;
        self.packets -= 1;
    }

    /// Appends a packet, for which there is room.
    pub fn push(&mut self, waiting: Waiting) {
        self.push_of(Portion::Weight(1), waiting);
    }

    /// Appends a packet of a sender with that portion, for which there is room.
    pub fn push_of(&mut self, portion: Portion, waiting: Waiting) {
        let port = waiting.packet.origin;
        self.bytes += waiting.bytes as u32;
        self.packets += 1;
        if let Some(sender) = self.senders.get_mut(&port) {
            sender.append(waiting);
            let before = std::mem::replace(&mut sender.portion, portion);
            self.sum_up(before, -1);
            self.sum_up(portion, 1);
            return;
        }
        self.sum_up(portion, 1);
        let mut sender = Sender::new(portion, self.quantum(portion));
        sender.append(waiting);
        self.senders.insert(port, sender);
        self.turns.push_back(port);
    }

    /// Adds a portion to the sums, or takes it out.
    fn sum_up(&mut self, portion: Portion, sign: i32) {
        let (sum, number) = match portion {
            Portion::Weight(weight) => (&mut self.weights, i32::from(weight)),
            Portion::Least(part) => (&mut self.least, i32::from(part)),
        };
        *sum = sum.wrapping_add_signed(sign * number);
    }

    /// Thousandths that are left to senders with weights.
    fn left(&self) -> i64 {
        (WHOLE - i64::from(self.least)).max(LEFT)
    }

    /// Credit that a sender gets with each turn.
    fn quantum(&self, portion: Portion) -> i64 {
        match portion {
            Portion::Weight(weight) => QUANTUM * i64::from(weight),
            Portion::Least(part) => {
                let of_weights = QUANTUM * i64::from(self.weights.max(1));
                (of_weights * i64::from(part) / self.left()).max(1)
            }
        }
    }

    /// The part that a sender with that portion has of an amount.
    fn part_of(&self, portion: Portion, amount: usize) -> usize {
        let of_weights = QUANTUM * i64::from(self.weights.max(1));
        let round = of_weights + of_weights * i64::from(self.least) / self.left();
        let part = amount as u128 * self.quantum(portion) as u128 / round as u128;
        (part as usize).max(1)
    }

    /// Packets of a sender.
    pub fn packets_of(&self, port: PortId) -> usize {
        self.senders.get(&port).map_or(0, |sender| sender.packets.len())
    }

    /// Tells a sender that has packets here how much it may have besides, of `most` bytes for all senders.
    pub fn hold(&mut self, port: PortId, most: usize) {
        if let Some(sender) = self.senders.get_mut(&port) {
            sender.is_held = true;
        }
        if let Some(sender) = self.senders.get(&port)
            && let Some(newest) = sender.packets.back()
        {
            let has_few = sender.packets.len() <= HELD_PACKETS;
            let room = self.part_of(sender.portion, most).saturating_sub(sender.frames);
            newest
                .packet
                .account
                .lender
                .set_room(if has_few { room } else { 0 });
        }
    }

    /// As [`pop`](Self::pop), where packets cost their bytes. A sender that is held is told when it has less
    /// than half of what it may have, of `most` bytes for all senders; so it is never held without packets.
    pub fn pop_bytes(&mut self, most: usize) -> Option<Waiting> {
        let oldest = self.pop_at_cost(0)?;
        if let Some(sender) = self.senders.get(&oldest.packet.origin)
            && sender.is_held
        {
            let part = self.part_of(sender.portion, most);
            if sender.frames <= part / 2 && sender.packets.len() <= HELD_PACKETS / 2 {
                oldest.packet.account.lender.set_room(part - sender.frames);
            }
        }
        Some(oldest)
    }

    /// Takes the oldest packet of the sender that has its turn.
    pub fn pop(&mut self) -> Option<Waiting> {
        self.pop_at_cost(DESCRIPTOR_WORK)
    }

    /// A packet costs its bytes and `per_packet`.
    fn pop_at_cost(&mut self, per_packet: u64) -> Option<Waiting> {
        let mut turns = 0;
        while self.packets > 0
            && let Some(port) = self.turns.front().copied()
            && let Some(sender) = self.senders.get_mut(&port)
        {
            let portion = sender.portion;
            if sender.credit <= 0 {
                turns += 1;
                if turns > self.turns.len() {
                    self.skip_rounds();
                    turns = 0;
                }
                self.credit(port, 1);
                self.turns.rotate_left(1);
            } else if let Some(oldest) = sender.packets.pop_front() {
                sender.credit -= (oldest.packet.frame_len() as u64 + per_packet) as i64;
                sender.count_out(&oldest);
                self.count_out(&oldest);
                return Some(oldest);
            } else {
                self.senders.remove(&port);
                self.turns.pop_front();
                self.sum_up(portion, -1);
            }
        }
        // When nobody waits, nobody is owed anything.
        if !self.turns.is_empty() {
            *self = FairQueue::default();
        }
        None
    }

    /// Gives a sender its credit for some turns.
    fn credit(&mut self, port: PortId, turns: i64) {
        let portion = self.senders.get(&port).map(|sender| sender.portion);
        let quantum = portion.map_or(0, |portion| self.quantum(portion));
        if let Some(sender) = self.senders.get_mut(&port) {
            sender.credit += quantum * turns;
        }
    }

    /// While all senders are in debt: lets rounds pass in which they all stay so.
    fn skip_rounds(&mut self) {
        let owed = self.senders.values().map(|sender| {
            let quantum = self.quantum(sender.portion);
            -sender.credit / quantum
        });
        let rounds = owed.min().unwrap_or(0);
        for at in 0..self.turns.len() {
            self.credit(self.turns[at], rounds);
        }
    }

    /// Takes all packets out, to be popped in turn. Turns and credit of their senders stay, for those that
    /// are pushed again.
    pub fn take_packets(&mut self) -> FairQueue {
        let senders = self.senders.iter();
        let emptied = FairQueue {
            senders: senders
                .map(|(port, sender)| (*port, Sender::new(sender.portion, sender.credit)))
                .collect(),
            turns: self.turns.clone(),
            weights: self.weights,
            least: self.least,
            ..FairQueue::default()
        };
        std::mem::replace(self, emptied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Source;
    use proptest::prelude::*;

    const SENDERS: usize = 4;

    /// The number that a packet carries.
    fn serial(packet: &Packet) -> u32 {
        let bytes = packet.head.bytes();
        u32::from_be_bytes([bytes[14], bytes[15], bytes[16], bytes[17]])
    }

    fn sources() -> Vec<Source> {
        (0..SENDERS as u32).map(Source::new).collect()
    }

    fn packet(source: &mut Source, serial: u32, len: usize) -> Waiting {
        let mut frame = vec![2; len];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&serial.to_be_bytes());
        Waiting {
            packet: source.packet(&frame).share(),
            since_us: None,
            bytes: 0,
        }
    }

    /// All packets in the order in which they came, each with its sender, number and bytes of a copy.
    type Twin = Vec<(PortId, u32, usize)>;

    /// How much each sender has, by a measure of its packets.
    fn shares(twin: &Twin, measure: fn(usize) -> usize) -> BTreeMap<PortId, usize> {
        let mut shares = BTreeMap::new();
        for (port, _, bytes) in twin {
            *shares.entry(*port).or_default() += measure(*bytes);
        }
        shares
    }

    /// Takes a packet out of the twin, of which it must be the oldest or newest of its sender.
    fn remove(twin: &mut Twin, packet: &Packet, oldest: bool) {
        let of_sender = |(port, ..): &(PortId, u32, usize)| *port == packet.origin;
        let at = if oldest {
            twin.iter().position(of_sender)
        } else {
            twin.iter().rposition(of_sender)
        };
        let (_, number, _) = twin.remove(at.expect("a packet of that sender"));
        assert_eq!(number, serial(packet));
    }

    /// Takes the packet whose turn it is out of both.
    fn serve(queue: &mut FairQueue, twin: &mut Twin) {
        match queue.pop() {
            Some(waiting) => remove(twin, &waiting.packet, true),
            None => assert!(twin.is_empty()),
        }
    }

    proptest! {
        /// Beside a list of all packets: each comes out once, those of a sender in order, and only the newest
        /// of one that has more than an equal share is lost to another.
        #[test]
        fn who_has_less_than_a_share_loses_nothing(
            operations in prop::collection::vec((0..SENDERS, 14..200usize, 0..3u8), 0..300),
        ) {
            const MOST: usize = 24;
            let (mut queue, mut twin, mut sources) = (FairQueue::default(), Twin::new(), sources());
            for (number, (sender, len, kind)) in operations.into_iter().enumerate() {
                if kind == 0 {
                    serve(&mut queue, &mut twin);
                    continue;
                }
                let port = PortId(sender as u32);
                let before = shares(&twin, |_| 1);
                let own = before.get(&port).copied().unwrap_or_default();
                let is_full = twin.len() == MOST;
                let mut refused = Vec::new();
                let has_room = queue.make_room(port, MOST, |packet| refused.push(packet));
                for packet in &refused {
                    prop_assert!(is_full && has_room);
                    prop_assert_eq!(before.get(&packet.origin), before.values().max());
                    prop_assert!(own < before[&packet.origin]);
                    remove(&mut twin, packet, false);
                }
                prop_assert_eq!(refused.len(), usize::from(is_full && has_room));
                // Senders that have just been served may still have a share.
                prop_assert!(has_room || is_full && own * SENDERS >= MOST);
                if has_room {
                    queue.push(packet(&mut sources[sender], number as u32, 18 + len));
                    twin.push((port, number as u32, 0));
                }
            }
            prop_assert_eq!(queue.is_empty(), twin.is_empty());
            while let Some(waiting) = queue.pop() {
                remove(&mut twin, &waiting.packet, true);
            }
            prop_assert!(twin.is_empty());
        }

        /// Copies likewise, in bytes.
        #[test]
        fn copies_have_a_share_of_bytes(
            copies in prop::collection::vec((0..SENDERS, 1..100usize, 0..3u8), 0..200),
        ) {
            const MOST: usize = 400;
            let (mut queue, mut twin, mut sources) = (FairQueue::default(), Twin::new(), sources());
            for (number, (sender, size, kind)) in copies.into_iter().enumerate() {
                if kind == 0 {
                    serve(&mut queue, &mut twin);
                    continue;
                }
                let port = PortId(sender as u32);
                let own = shares(&twin, |bytes| bytes).get(&port).copied().unwrap_or_default();
                let has_room = queue.make_room_for_bytes(port, size, MOST, |packet| {
                    let now = shares(&twin, |bytes| bytes);
                    assert!(packet.origin != port && now.get(&packet.origin) == now.values().max());
                    remove(&mut twin, &packet, false);
                });
                prop_assert!(has_room || (own + size) * SENDERS > MOST);
                if has_room {
                    let mut waiting = packet(&mut sources[sender], number as u32, 60);
                    waiting.bytes = size;
                    queue.push(waiting);
                    twin.push((port, number as u32, size));
                }
                prop_assert_eq!(queue.bytes(), twin.iter().map(|(.., bytes)| bytes).sum::<usize>());
                prop_assert!(queue.bytes() <= MOST);
            }
        }

        /// Senders that all have packets are served the same amount of work, whatever their packets' lengths.
        #[test]
        fn senders_are_served_alike(lens in prop::collection::vec(18..9000usize, SENDERS), served in 1..100usize) {
            let (mut queue, mut sources) = (FairQueue::default(), sources());
            for (source, len) in sources.iter_mut().zip(&lens) {
                for number in 0..served as u32 {
                    queue.push(packet(source, number, *len));
                }
            }
            let mut work = [0; SENDERS];
            for _ in 0..served {
                let waiting = queue.pop().expect("packets");
                work[waiting.packet.origin.0 as usize] += waiting.packet.frame_len() as u64 + DESCRIPTOR_WORK;
            }
            let most_at_once = *lens.iter().max().expect("lengths") as u64 + DESCRIPTOR_WORK + QUANTUM as u64;
            let (least, most) = (work.iter().min().unwrap(), work.iter().max().unwrap());
            prop_assert!(most - least <= most_at_once, "{work:?} of {lens:?}");
        }
    }

    proptest! {
        /// Senders that all have packets are served in the ratio of their weights, and those with a least
        /// part get it, whatever their packets' lengths.
        #[test]
        fn senders_are_served_by_their_portions(
            senders in prop::collection::vec((18..9000usize, prop_oneof![
                (1..20u8).prop_map(Portion::Weight),
                (1..250u16).prop_map(Portion::Least),
            ]), SENDERS),
        ) {
            let (mut queue, mut sources) = (FairQueue::default(), sources());
            let mut push = |queue: &mut FairQueue, at: usize| {
                let (len, portion) = senders[at];
                queue.push_of(portion, packet(&mut sources[at], 0, len));
            };
            (0..SENDERS).for_each(|at| (0..2).for_each(|_| push(&mut queue, at)));
            let mut served = [0; SENDERS];
            let of_all = |served: &[i64; SENDERS]| served.iter().sum::<i64>();
            while of_all(&served) < 40_000_000 {
                let waiting = queue.pop_bytes(1).expect("packets");
                let at = waiting.packet.origin.0 as usize;
                served[at] += waiting.packet.frame_len() as i64;
                drop(waiting);
                push(&mut queue, at);
            }
            let least = senders.iter().filter_map(|(_, portion)| match portion {
                Portion::Least(part) => Some(i64::from(*part)),
                Portion::Weight(_) => None,
            });
            let weights: i64 = senders.iter().map(|(_, portion)| match portion {
                Portion::Weight(weight) => i64::from(*weight),
                Portion::Least(_) => 0,
            }).sum();
            let (least, all) = (least.sum::<i64>(), of_all(&served));
            for ((_, portion), served) in senders.iter().zip(served) {
                let thousandths = match portion {
                    Portion::Least(part) if weights == 0 => i64::from(*part) * WHOLE / least,
                    Portion::Least(part) => i64::from(*part),
                    Portion::Weight(weight) => (WHOLE - least) * i64::from(*weight) / weights,
                };
                let wanted = all * thousandths / WHOLE;
                prop_assert!((served - wanted).abs() <= all / 100, "{served} of {wanted}: {senders:?}");
            }
        }
    }

    /// The first packet of a sender waits for a turn of each other one, however many packets they have.
    #[test]
    fn the_first_packet_of_a_sender_waits_for_one_turn_of_others() {
        let (mut queue, mut sources) = (FairQueue::default(), sources());
        for number in 0..200 {
            for source in &mut sources[1..] {
                queue.push(packet(source, number, 60));
            }
        }
        queue.push(packet(&mut sources[0], 0, 60));
        let before =
            std::iter::from_fn(|| queue.pop()).take_while(|waiting| waiting.packet.origin != PortId(0));
        let small = DESCRIPTOR_WORK as usize + 60;
        assert!(before.count() <= (SENDERS - 1) * (QUANTUM as usize).div_ceil(small));
    }

    /// Packets that are taken out to be looked at, and put back, change no turn.
    #[test]
    fn turns_stay_with_those_that_are_put_back() {
        let order = |looks: bool| {
            let (mut queue, mut sources) = (FairQueue::default(), sources());
            for number in 0..40 {
                for (source, len) in sources.iter_mut().zip([60, 400, 1500, 3000]) {
                    queue.push(packet(source, number, len));
                }
            }
            let mut order = Vec::new();
            while let Some(waiting) = queue.pop() {
                order.push((waiting.packet.origin, serial(&waiting.packet)));
                if looks {
                    let mut packets = queue.take_packets();
                    while let Some(waiting) = packets.pop() {
                        queue.push(waiting);
                    }
                }
            }
            order
        };
        assert_eq!(order(true), order(false));
    }
}
