//! Messages that wait for ovs-vswitchd, in a queue per port.
//!
//! ovs-vswitchd pays for each message, and for its bytes; so a message costs [`MESSAGE`] and its length.
//! Ports are served by start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queueing", 1996): a
//! message starts in virtual time where the one before it at the same port ended, but not in the past, and
//! the message that starts first is served. So ports that want something get equal shares, and a port that
//! wanted nothing for a while waits for no more than one message of each other one. A port whose next message
//! has no room waits, and no other port waits for it.
//!
//! A queue is bounded in messages and in bytes. All queues together are bounded in bytes, which only a data
//! plane that lies reaches: then the longest one gives way. The safe direction is to drop what belongs to the
//! port that has most.

use crate::datapath::{PortNo, Upcall};
use control_protocol::data_plane::UpcallId;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Most messages of a port that wait.
const PORT_MESSAGES: usize = 1024;
/// Most bytes of a port that wait.
const PORT_BYTES: usize = 1 << 20;
/// Most bytes of all ports that wait.
const ALL_BYTES: usize = 64 << 20;
/// Bytes that take ovs-vswitchd about as long as a message does besides its bytes.
const MESSAGE: usize = 16 * 1024;

/// A message, and what the data plane is told when it has been handed over.
#[derive(Debug)]
pub(super) struct Message {
    pub upcall: Upcall,
    /// The packet of which this is the last message.
    pub ends: Option<UpcallId>,
}

impl Message {
    fn bytes(&self) -> usize {
        self.upcall.packet.len()
    }
}

/// One port's messages, oldest first.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
    /// Virtual time at which the oldest message starts, or the next one will.
    start: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Upcalls {
    /// Of ports with messages, and of those whose last message has not ended yet.
    queues: HashMap<PortNo, Queue>,
    /// Ports with messages, by the start of the oldest.
    order: BTreeSet<(u64, PortNo)>,
    /// Virtual time: the start of the message that was served last.
    now: u64,
    bytes: usize,
}

impl Upcalls {
    /// Queues the messages of a packet. Returns how many messages, and which packets, were dropped for lack
    /// of room.
    pub fn push(
        &mut self,
        port: PortNo,
        id: UpcallId,
        messages: impl IntoIterator<Item = Upcall>,
    ) -> (u64, Vec<UpcallId>) {
        let queue = self.queues.entry(port).or_default();
        let (before, mut dropped) = (queue.messages.len(), 0);
        for upcall in messages {
            let bytes = upcall.packet.len();
            if queue.messages.len() >= PORT_MESSAGES || queue.bytes + bytes > PORT_BYTES {
                dropped += 1;
                continue;
            }
            queue.bytes += bytes;
            self.bytes += bytes;
            queue.messages.push_back(Message { upcall, ends: None });
        }
        if queue.messages.len() == before {
            return (dropped, vec![id]);
        }
        if let Some(last) = queue.messages.back_mut() {
            last.ends = Some(id);
        }
        if before == 0 {
            queue.start = queue.start.max(self.now);
            self.order.insert((queue.start, port));
        }
        let mut lost = Vec::new();
        while self.bytes > ALL_BYTES {
            dropped += 1;
            lost.extend(self.drop_newest());
        }
        (dropped, lost)
    }

    /// Drops the newest message of the port that has most bytes; returns the packet that ended with it.
    fn drop_newest(&mut self) -> Option<UpcallId> {
        let (port, queue) = self.queues.iter_mut().max_by_key(|(_, queue)| queue.bytes)?;
        let message = queue.messages.pop_back()?;
        queue.bytes -= message.bytes();
        self.bytes -= message.bytes();
        match queue.messages.back_mut() {
            // What is left of the packet ends with its last message that is left.
            Some(last) if last.ends.is_none() => {
                last.ends = message.ends;
                return None;
            }
            Some(_) => {}
            None => drop(self.order.remove(&(queue.start, *port))),
        }
        message.ends
    }

    /// Takes the next message for which there is room.
    pub fn next(&mut self, has_room: impl Fn(&Upcall) -> bool) -> Option<Message> {
        let may_go = |port: &PortNo| {
            let oldest = self.queues.get(port).and_then(|queue| queue.messages.front());
            oldest.is_some_and(|oldest| has_room(&oldest.upcall))
        };
        let &(start, port) = self.order.iter().find(|(_, port)| may_go(port))?;
        self.order.remove(&(start, port));
        let queue = self.queues.get_mut(&port)?;
        let message = queue.messages.pop_front()?;
        queue.bytes -= message.bytes();
        self.bytes -= message.bytes();
        // One that had to wait for room does not catch up.
        let start = start.max(self.now);
        self.now = start;
        queue.start = start + (MESSAGE + message.bytes()) as u64;
        if !queue.messages.is_empty() {
            self.order.insert((queue.start, port));
        } else if self.order.is_empty() {
            // Nobody waits, so nobody has had more than another one.
            self.queues.clear();
        }
        Some(message)
    }

    /// Forgets a port and its messages, which the data plane does as well.
    pub fn remove(&mut self, port: PortNo) {
        if let Some(queue) = self.queues.remove(&port) {
            self.order.remove(&(queue.start, port));
            self.bytes -= queue.bytes;
        }
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        *self = Upcalls::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{DatapathId, UpcallKind};
    use flow::PortId;

    fn upcall(port: u32, bytes: usize) -> Upcall {
        Upcall {
            datapath: DatapathId(1),
            port: PortNo(port),
            kind: UpcallKind::Miss,
            packet: vec![0; bytes],
            key: Box::default(),
            mru: None,
            length: None,
            serial: 0,
            hash: 0,
        }
    }

    fn id(port: u32, serial: u64) -> UpcallId {
        UpcallId {
            port: PortId(port),
            serial,
        }
    }

    /// Queues a packet of so many messages.
    fn push(upcalls: &mut Upcalls, port: u32, serial: u64, lengths: &[usize]) -> (u64, Vec<UpcallId>) {
        let messages = lengths.iter().map(|length| upcall(port, *length));
        upcalls.push(PortNo(port), id(port, serial), messages)
    }

    fn next(upcalls: &mut Upcalls) -> Option<(u32, Option<u64>)> {
        let message = upcalls.next(|_| true)?;
        Some((message.upcall.port.0, message.ends.map(|id| id.serial)))
    }

    #[test]
    fn a_packet_ends_with_its_last_message() {
        let mut upcalls = Upcalls::default();
        assert_eq!(push(&mut upcalls, 1, 7, &[60, 60, 60]), (0, vec![]));
        let served: Vec<_> = std::iter::from_fn(|| next(&mut upcalls)).collect();
        assert_eq!(served, [(1, None), (1, None), (1, Some(7))]);
        assert!(upcalls.queues.is_empty() && upcalls.order.is_empty() && upcalls.bytes == 0);
    }

    #[test]
    fn who_wants_little_waits_for_one_message_of_each_other() {
        let mut upcalls = Upcalls::default();
        for serial in 0..500 {
            push(&mut upcalls, 1, serial, &[60_000]);
            push(&mut upcalls, 2, serial, &[60]);
        }
        for _ in 0..40 {
            next(&mut upcalls);
            push(&mut upcalls, 3, 0, &[60]);
            let before = (0..3).position(|_| next(&mut upcalls) == Some((3, Some(0))));
            assert!(before.is_some(), "it waits for longer");
        }
    }

    #[test]
    fn shares_are_equal_in_messages_and_bytes() {
        let mut upcalls = Upcalls::default();
        let mut cost = [0; 3];
        for serial in 0..3000 {
            for (port, length) in [(0, 60_000), (1, 1500), (2, 0)] {
                push(&mut upcalls, port, serial, &[length]);
            }
            let message = upcalls.next(|_| true).unwrap();
            cost[message.upcall.port.0 as usize] += MESSAGE + message.upcall.packet.len();
        }
        let (least, most) = (cost.iter().min().unwrap(), cost.iter().max().unwrap());
        assert!(most - least <= 2 * (MESSAGE + 60_000), "{cost:?}");
    }

    #[test]
    fn who_has_no_room_waits_alone_and_does_not_catch_up() {
        let mut upcalls = Upcalls::default();
        for serial in 0..400 {
            push(&mut upcalls, 1, serial, &[60]);
            push(&mut upcalls, 2, serial, &[60]);
        }
        for _ in 0..100 {
            let message = upcalls.next(|upcall| upcall.port != PortNo(1)).unwrap();
            assert_eq!(message.upcall.port, PortNo(2));
        }
        assert!(upcalls.next(|_| false).is_none());
        let of_first = (0..100).filter(|_| next(&mut upcalls).unwrap().0 == 1).count();
        assert!(of_first.abs_diff(50) <= 1, "{of_first}");
    }

    #[test]
    fn a_port_is_bounded_in_messages_and_bytes() {
        let mut upcalls = Upcalls::default();
        assert_eq!(push(&mut upcalls, 1, 0, &vec![1; PORT_MESSAGES - 1]), (0, vec![]));
        // A part of a packet has room.
        assert_eq!(push(&mut upcalls, 1, 1, &[1, 1, 1]), (2, vec![]));
        assert_eq!(push(&mut upcalls, 1, 2, &[1, 1]), (2, vec![id(1, 2)]));
        let sixteenth = PORT_BYTES / 16;
        assert_eq!(push(&mut upcalls, 2, 0, &[sixteenth; 15]), (0, vec![]));
        assert_eq!(push(&mut upcalls, 2, 1, &[sixteenth + 1]), (1, vec![id(2, 1)]));
        assert_eq!(push(&mut upcalls, 2, 2, &[sixteenth]), (0, vec![]));
        let served: Vec<_> = std::iter::from_fn(|| next(&mut upcalls)).collect();
        assert_eq!(served.len(), PORT_MESSAGES + 16);
        assert_eq!(served.iter().filter(|(_, ends)| ends.is_some()).count(), 4);
    }

    #[test]
    fn all_ports_are_bounded_and_the_longest_gives_way() {
        let mut upcalls = Upcalls::default();
        let ports = (ALL_BYTES / PORT_BYTES) as u32;
        assert_eq!(push(&mut upcalls, 0, 9, &[1000]), (0, vec![]));
        let mut lost = Vec::new();
        for port in 1..ports + 10 {
            for serial in 0..16 {
                let (dropped, ids) = push(&mut upcalls, port, serial, &[PORT_BYTES / 32; 2]);
                assert!(ids.len() as u64 <= dropped);
                lost.extend(ids);
            }
            assert!(upcalls.bytes <= ALL_BYTES);
        }
        assert!(!lost.is_empty() && lost.iter().all(|id| id.port != PortId(0)));
        upcalls.remove(PortNo(1));
        let (mut messages, mut ended) = (0, 0);
        while let Some((port, ends)) = next(&mut upcalls) {
            assert_ne!(port, 1);
            messages += 1;
            ended += usize::from(ends.is_some());
        }
        assert!(messages > ended && ended > 0);
        assert_eq!((upcalls.bytes, upcalls.queues.len()), (0, 0));
    }
}
