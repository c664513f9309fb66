//! The short way, for packets that fit one buffer each and go as they are.

use super::ReceiveRing;
use super::cursor::copy_tail;
use crate::packet::Packet;
use crate::transmit::{BURST, HEAD_PREFETCH};
use guest_memory::{Access, GuestRange};
use ring::Unique;
use wire::VnetHeader;

/// Most bytes of a packet's tail, and of the place it goes to, that are asked for ahead of copying it.
const TAIL_PREFETCH: u32 = 1536;

impl ReceiveRing {
    /// Delivers packets that fit one buffer each and go as they are: all buffers are found first, then filled while
    /// the next ones come into the cache. Returns how many, which ends before the first packet that is different.
    pub(super) fn deliver_burst(&mut self, packets: &[Unique<Packet>]) -> usize {
        let (mut heads, mut targets) = ([0; BURST], [GuestRange::default(); BURST]);
        let wanted = packets.len().min(BURST);
        let taken = self.queue.take_heads(&mut heads[..wanted]).unwrap_or(0);
        let fitting = self.find_targets(&packets[..taken], &heads[..taken], &mut targets[..taken]);
        self.queue.untake((taken - fitting) as u16);
        self.fill_all(&packets[..fitting], &heads[..fitting], &targets[..fitting]);
        self.queue.look_ahead();
        fitting
    }

    /// First pass: the buffers that packets go to, and for how many packets there are fitting ones. All slices are equally
    /// long.
    #[inline(never)]
    fn find_targets(&self, packets: &[Unique<Packet>], heads: &[u16], targets: &mut [GuestRange]) -> usize {
        for (at, ((packet, &head), target)) in packets.iter().zip(heads).zip(&mut *targets).enumerate() {
            let needed = self.header_len + packet.frame_len() as u32;
            match self.queue.buffer(head, needed.min(HEAD_PREFETCH)) {
                Some(buffer) if buffer.len() >= needed && self.goes_as_it_is(packet) => *target = buffer,
                _ => return at,
            }
        }
        packets.len()
    }

    /// Second pass: fills them. All slices are equally long.
    #[inline(never)]
    fn fill_all(&mut self, packets: &[Unique<Packet>], heads: &[u16], targets: &[GuestRange]) {
        for (at, ((packet, &head), &target)) in packets.iter().zip(heads).zip(targets).enumerate() {
            if let Some(next) = packets.get(at + 1)
                && next.tail_len > 0
            {
                self.prefetch_tail(next, targets[at + 1]);
            }
            self.fill(packet, head, target);
        }
    }

    /// Asks for what is to be copied besides the head, if it lies in one piece, and for the place it goes to.
    #[inline]
    fn prefetch_tail(&self, packet: &Packet, target: GuestRange) {
        let Some((from, tail)) = packet.tail_in_one() else {
            return;
        };
        from.prefetch(tail, TAIL_PREFETCH, Access::Read);
        let behind = target.split_at(HEAD_PREFETCH).1;
        self.queue
            .memory()
            .prefetch(behind, tail.len().min(TAIL_PREFETCH), Access::Write);
    }

    /// Writes a frame into a buffer that has room for it and gives that back, unpublished.
    #[inline]
    fn fill(&mut self, packet: &Packet, head: u16, buffer: GuestRange) {
        let header = VnetHeader {
            num_buffers: 1,
            ..*packet.offload.header()
        };
        let header = header.to_bytes();
        let memory = &**self.queue.memory();
        let front = match header.first_chunk::<{ VnetHeader::SHORT_LEN }>() {
            Some(short) if self.header_len as usize == VnetHeader::SHORT_LEN => {
                memory.write_both(buffer, short, packet.head.bytes())
            }
            _ => memory.write_both(buffer, &header, packet.head.bytes()),
        };
        let mut written = front as u32;
        if packet.tail_len > 0 {
            written += copy_tail(packet, memory, buffer.split_at(written).1) as u32;
        }
        self.copied += u64::from(written - self.header_len);
        self.queue.give_back(head, written);
    }
}
