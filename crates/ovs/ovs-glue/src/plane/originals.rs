//! Packets of which ovs-vswitchd was shown one segment only, until it says what is to be done with them.
//!
//! ovs-vswitchd repeats the number of an upcall when it has the packet executed. If the bytes are those that
//! it was shown too, the actions are carried out on the whole packet, with the offloads that its sender asked
//! for. ovs-vswitchd says nothing when it drops a packet, so a packet is kept for a second, whatever is done
//! with it. Packets are bounded per port, in number and in bytes, and in all in bytes; the oldest of the port
//! in question, or of the one that has most, is forgotten. The safe direction is to forget: then the segment
//! that ovs-vswitchd has goes alone.

use super::packets;
use crate::datapath::PortNo;
use control_protocol::data_plane::Packet;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most packets of a port.
const PORT_PACKETS: usize = 64;
/// Most bytes of a port.
const PORT_BYTES: usize = 512 * 1024;
/// Most bytes of all ports.
const ALL_BYTES: usize = 64 << 20;
/// How long a packet is kept, at least, and at most twice that.
const KEPT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Original {
    serial: u64,
    packet: Packet,
    since: Instant,
}

/// One port's, oldest first.
#[derive(Debug, Default)]
struct Kept {
    packets: VecDeque<Original>,
    bytes: usize,
}

impl Kept {
    fn forget_oldest(&mut self) -> usize {
        let bytes = self
            .packets
            .pop_front()
            .map_or(0, |original| original.packet.frame.len());
        self.bytes -= bytes;
        bytes
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Originals {
    ports: HashMap<PortNo, Kept>,
    bytes: usize,
    last_serial: u64,
    /// When to look for packets that were kept for long enough.
    due: Option<Instant>,
}

impl Originals {
    /// Keeps a packet; returns the number that ovs-vswitchd is to repeat.
    pub fn keep(&mut self, port: PortNo, packet: Packet, now: Instant) -> u64 {
        self.last_serial += 1;
        let serial = self.last_serial;
        let kept = self.ports.entry(port).or_default();
        kept.bytes += packet.frame.len();
        self.bytes += packet.frame.len();
        kept.packets.push_back(Original {
            serial,
            packet,
            since: now,
        });
        while kept.packets.len() > PORT_PACKETS || kept.bytes > PORT_BYTES {
            self.bytes -= kept.forget_oldest();
        }
        while self.bytes > ALL_BYTES
            && let Some(most) = self.ports.values_mut().max_by_key(|kept| kept.bytes)
        {
            self.bytes -= most.forget_oldest();
        }
        self.due.get_or_insert(now + KEPT);
        serial
    }

    /// The packet of a port that has this number, if `shown` is what ovs-vswitchd was shown of it.
    pub fn find(
        &self,
        port: PortNo,
        serial: u64,
        shown: &[u8],
        begins_behind_ethernet: bool,
    ) -> Option<&Packet> {
        let kept = &self.ports.get(&port)?.packets;
        let at = kept
            .binary_search_by_key(&serial, |original| original.serial)
            .ok()?;
        let packet = &kept[at].packet;
        let mut first = packets::alone(packet)?;
        if begins_behind_ethernet {
            packets::begin_behind_ethernet(&mut first);
        }
        (first == shown).then_some(packet)
    }

    /// When [`Originals::review`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Forgets packets that were kept for long enough.
    pub fn review(&mut self, now: Instant) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        for kept in self.ports.values_mut() {
            while kept
                .packets
                .front()
                .is_some_and(|oldest| now >= oldest.since + KEPT)
            {
                self.bytes -= kept.forget_oldest();
            }
        }
        self.ports.retain(|_, kept| !kept.packets.is_empty());
        self.due = (!self.ports.is_empty()).then_some(now + KEPT);
    }

    /// Forgets those of a port.
    pub fn remove(&mut self, port: PortNo) {
        if let Some(kept) = self.ports.remove(&port) {
            self.bytes -= kept.bytes;
        }
    }

    /// Forgets all. Numbers go on.
    pub fn clear(&mut self) {
        (self.ports, self.bytes) = (HashMap::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::packets::tests::large;

    const PORT: PortNo = PortNo(3);

    fn first(packet: &Packet) -> Vec<u8> {
        packets::alone(packet).unwrap()
    }

    #[test]
    fn what_comes_back_as_it_was_shown_is_the_packet() {
        let (mut originals, packet) = (Originals::default(), large(2500, 1000));
        let shown = first(&packet);
        let serial = originals.keep(PORT, packet.clone(), Instant::now());
        assert_ne!(serial, 0, "ovs-vswitchd takes 0 for none");
        let bare = &shown[14..];
        assert_eq!(originals.find(PORT, serial, &shown, false), Some(&packet));
        assert_eq!(originals.find(PORT, serial, bare, true), Some(&packet));
        // Changed on the way, of another port, another one, or none.
        let mut changed = shown.clone();
        changed[22] -= 1;
        assert_eq!(originals.find(PORT, serial, &changed, false), None);
        assert_eq!(originals.find(PORT, serial, &shown[1..], false), None);
        assert_eq!(originals.find(PortNo(4), serial, &shown, false), None);
        for number in [serial + 1, serial - 1, u64::MAX] {
            assert_eq!(originals.find(PORT, number, &shown, false), None);
        }
        originals.remove(PORT);
        assert_eq!(
            (originals.find(PORT, serial, &shown, false), originals.bytes),
            (None, 0)
        );
    }

    #[test]
    fn packets_are_kept_for_a_second_or_two() {
        let (mut originals, packet) = (Originals::default(), large(2500, 1000));
        let shown = first(&packet);
        let start = Instant::now();
        let serial = originals.keep(PORT, packet.clone(), start);
        let later = originals.keep(PORT, packet, start + KEPT / 2);
        assert_eq!(originals.due(), Some(start + KEPT));
        originals.review(start + KEPT / 2);
        assert!(originals.find(PORT, serial, &shown, false).is_some());
        originals.review(start + KEPT);
        assert!(originals.find(PORT, serial, &shown, false).is_none());
        assert!(originals.find(PORT, later, &shown, false).is_some());
        originals.review(originals.due().unwrap());
        assert_eq!((originals.due(), originals.bytes), (None, 0));
        assert!(originals.ports.is_empty());
    }

    #[test]
    fn packets_are_bounded_per_port_and_in_all() {
        let (mut originals, small) = (Originals::default(), large(2500, 1000));
        let now = Instant::now();
        let serials: Vec<_> = (0..=PORT_PACKETS)
            .map(|_| originals.keep(PORT, small.clone(), now))
            .collect();
        let shown = first(&small);
        assert!(originals.find(PORT, serials[0], &shown, false).is_none());
        assert!(originals.find(PORT, serials[1], &shown, false).is_some());
        let big = large(60_000, 8);
        for number in 0..200 {
            for _ in 0..10 {
                originals.keep(PortNo(number + 10), big.clone(), now);
            }
            let bytes: usize = originals.ports.values().map(|kept| kept.bytes).sum();
            assert_eq!(originals.bytes, bytes);
            assert!(bytes <= ALL_BYTES);
            assert!(originals.ports.values().all(|kept| kept.bytes <= PORT_BYTES));
        }
        let last = originals.last_serial;
        assert!(
            originals.find(PORT, serials[1], &shown, false).is_some(),
            "it has least"
        );
        assert!(originals.find(PortNo(209), last, &first(&big), false).is_some());
    }
}
