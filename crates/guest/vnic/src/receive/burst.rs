//! The short way, for packets that fit one buffer each and need no offload in software.

use super::ReceiveRing;
use super::cursor::copy_tail;
use crate::packet::Packet;
use crate::transmit::HEAD_PREFETCH;
use crate::turn::BURST;
use guest_memory::{Access, GuestMemory, GuestRange};
use lock_free::Unique;
use wire::VnetHeader;

/// Most bytes of a packet's tail, and of its destination, that are prefetched before it is copied.
const TAIL_PREFETCH: u32 = 1536;

impl ReceiveRing {
    /// Delivers packets that fit one buffer each and need no offload in software: all buffers are found
    /// first, then filled while the next ones come into the cache. Returns their number; the first other
    /// packet ends them.
    pub(super) fn deliver_burst(&mut self, packets: &[Unique<Packet>]) -> usize {
        let wanted = packets.len().min(BURST);
        // The caller finds an error of the ring again, and handles it.
        if self.posted.len() < wanted && self.posted.find(&mut self.queue).is_err() {
            return 0;
        }
        let fitting = self.count_fitting(&packets[..wanted.min(self.posted.len())]);
        self.fill_all(&packets[..fitting]);
        self.posted.advance(fitting);
        if self.posted.len() < wanted {
            self.queue.look_ahead();
        }
        fitting
    }

    /// First pass: for how many packets there are fitting buffers, of which there are as many as packets.
    #[inline(never)]
    fn count_fitting(&self, packets: &[Unique<Packet>]) -> usize {
        let (_, targets) = self.posted.known();
        let fits = |(packet, target): (&Unique<Packet>, &GuestRange)| {
            let needed = self.header_len + packet.frame_len() as u32;
            target.len() >= needed && self.goes_as_it_is(packet)
        };
        let misfit = packets.iter().zip(targets).position(|pair| !fits(pair));
        misfit.unwrap_or(packets.len())
    }

    /// Second pass: fills the first buffers, as many as packets.
    #[inline(never)]
    fn fill_all(&mut self, packets: &[Unique<Packet>]) {
        let (heads, targets) = self.posted.known();
        let (mut written, header_len) = (0, self.header_len);
        for (at, ((packet, &head), &target)) in packets.iter().zip(heads).zip(targets).enumerate() {
            if let (Some(next), Some(&next_target)) = (packets.get(at + 1), targets.get(at + 1))
                && next.tail_len > 0
            {
                prefetch_tail(next, self.queue.memory(), next_target);
            }
            let len = fill(packet, self.queue.memory(), target, header_len);
            self.queue.push_used(head, len);
            written += u64::from(len - header_len);
        }
        self.copied += written;
    }
}

/// Prefetches the tail, if it lies in one piece, and its destination.
#[inline]
fn prefetch_tail(packet: &Packet, memory: &GuestMemory, target: GuestRange) {
    let Some((from, tail)) = packet.tail_in_one() else {
        return;
    };
    from.prefetch(tail, TAIL_PREFETCH, Access::Read);
    let behind = target.split_at(HEAD_PREFETCH).1;
    memory.prefetch(behind, tail.len().min(TAIL_PREFETCH), Access::Write);
}

/// Writes a frame into a buffer that has room for it; returns how many bytes.
#[inline]
fn fill(packet: &Packet, memory: &GuestMemory, buffer: GuestRange, header_len: u32) -> u32 {
    let header = VnetHeader {
        num_buffers: 1,
        ..*packet.offload.header()
    };
    // A short header is this one without `num_buffers`.
    let front = memory.write_both(
        buffer,
        &header.to_bytes(),
        header_len as usize,
        packet.head.bytes(),
    );
    let written = front as u32;
    if packet.tail_len == 0 {
        return written;
    }
    written + copy_tail(packet, memory, buffer.split_at(written).1) as u32
}
