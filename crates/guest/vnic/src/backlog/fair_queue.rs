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

use crate::Packet;
use crate::turn::DESCRIPTOR_WORK;
use flow::PortId;
use lock_free::Shared;
use std::collections::{BTreeMap, VecDeque};

/// Credit of a turn: one frame of 1,500 bytes, or three small ones.
const QUANTUM: i64 = 3 * DESCRIPTOR_WORK as i64;

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

/// One sender's packets, oldest first.
#[derive(Debug)]
struct Sender {
    packets: VecDeque<Waiting>,
    credit: i64,
    /// Bytes that its packets take.
    bytes: usize,
}

impl Sender {
    /// One without packets.
    fn with_credit(credit: i64) -> Sender {
        Sender {
            packets: VecDeque::new(),
            credit,
            bytes: 0,
        }
    }
}

/// A queue per sender, and whose turn it is. See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// Senders with packets or debts.
    senders: BTreeMap<PortId, Sender>,
    /// Whose turn it is, and then the others.
    turns: VecDeque<PortId>,
    packets: usize,
    /// Bytes that packets of all senders take.
    bytes: usize,
}

impl FairQueue {
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a sender may have one more packet, of `most` for all; that may cost the newest one of another.
    pub fn make_room(&mut self, sender: PortId, most: usize, mut refuse: impl FnMut(Shared<Packet>)) -> bool {
        if self.packets < most {
            return true;
        }
        let own = self.senders.get(&sender).map_or(0, |own| own.packets.len());
        if own * self.senders.len() >= self.packets {
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
        while self.bytes + size > most {
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
        sender.bytes -= newest.bytes;
        self.bytes -= newest.bytes;
        self.packets -= 1;
        Some(newest)
    }

    /// Appends a packet, for which there is room.
    pub fn push(&mut self, waiting: Waiting) {
        let port = waiting.packet.origin;
        let sender = self.senders.entry(port).or_insert_with(|| {
            self.turns.push_back(port);
            Sender::with_credit(QUANTUM)
        });
        sender.bytes += waiting.bytes;
        self.bytes += waiting.bytes;
        self.packets += 1;
        sender.packets.push_back(waiting);
    }

    /// Takes the oldest packet of the sender that has its turn.
    pub fn pop(&mut self) -> Option<Waiting> {
        while self.packets > 0
            && let Some(port) = self.turns.front()
            && let Some(sender) = self.senders.get_mut(port)
        {
            if sender.credit <= 0 {
                sender.credit += QUANTUM;
                self.turns.rotate_left(1);
            } else if let Some(oldest) = sender.packets.pop_front() {
                sender.credit -= (oldest.packet.frame_len() as u64 + DESCRIPTOR_WORK) as i64;
                sender.bytes -= oldest.bytes;
                self.bytes -= oldest.bytes;
                self.packets -= 1;
                return Some(oldest);
            } else {
                self.senders.remove(port);
                self.turns.pop_front();
            }
        }
        // When nobody waits, nobody is owed anything.
        if !self.turns.is_empty() {
            *self = FairQueue::default();
        }
        None
    }

    /// Takes all packets out, to be popped in turn. Turns and credit of their senders stay, for those that
    /// are pushed again.
    pub fn take_packets(&mut self) -> FairQueue {
        let senders = self.senders.iter();
        let emptied = FairQueue {
            senders: senders
                .map(|(port, sender)| (*port, Sender::with_credit(sender.credit)))
                .collect(),
            turns: self.turns.clone(),
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
