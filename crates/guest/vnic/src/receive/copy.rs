//! Copies of packets for a mirror's port: written into buffers that are there, or not at all. Where packets
//! are queued that need not wait for buffers, the caller queues a copy of its own memory behind them.

use super::write::Frame;
use super::{Outcome, ReceiveRing, ReceiveSide, Wait};
use crate::packet::{COPY_TPID, CopyForm, Packet};
use wire::Offload;

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The guest sees it after the next [`ReceiveSide::run`], and the caller counts it for the sender.
    Written,
    /// Other packets are to be delivered before.
    Behind,
    /// There are too few buffers for it, or packets wait for some, or the guest cannot take it.
    Lost,
}

impl ReceiveSide {
    /// Writes a copy of a packet into the guest's buffers. No copy waits for buffers.
    pub fn write_copy(&mut self, packet: &Packet, form: &CopyForm) -> Copied {
        let others_wait = self.wait != Wait::No || self.backlog.waits();
        if !others_wait && (self.pending.is_some() || self.has_others()) {
            return Copied::Behind;
        }
        let Some(ring) = self.ring.as_mut().filter(|_| !others_wait) else {
            return Copied::Lost;
        };
        let written = if packet.is_broken() {
            None
        } else {
            ring.write_copy(packet, form)
        };
        ring.work = 0;
        match written {
            Some(bytes) => {
                self.tally.packets += 1;
                self.tally.bytes += bytes as u64;
                Copied::Written
            }
            None => {
                ring.put_back();
                Copied::Lost
            }
        }
    }
}

impl ReceiveRing {
    /// Returns how many bytes the copy has.
    fn write_copy(&mut self, packet: &Packet, form: &CopyForm) -> Option<usize> {
        let frame_len = packet.frame_len();
        let kept = form
            .length
            .map_or(frame_len, |length| frame_len.min(length as usize));
        if kept == frame_len && form.vlan.is_none() {
            let outcome = self.deliver(packet, 0);
            return matches!(outcome, Outcome::Delivered { .. }).then_some(frame_len);
        }
        let mut head = packet.head.clone();
        head.truncate(kept);
        let tail_len = kept - head.len();
        let (mut offload, l3_len) = if kept < frame_len {
            (Offload::NONE, kept.saturating_sub(packet.layers.l3.into()))
        } else {
            (packet.offload, packet.offload.l3_len(&packet.layers, frame_len))
        };
        let is_segmented = offload.segmentation().is_some();
        if l3_len > self.mtu as usize || is_segmented && !self.can_take_segmented(packet) {
            return None;
        }
        if let Some(vlan) = form.vlan {
            if !head.push_vlan(COPY_TPID, vlan) {
                return None;
            }
            offload = offload.moved(4);
        }
        let (header, checksum) = self.split_checksum(*offload.header(), offload.needs_checksum());
        let frame = Frame {
            header,
            head: head.bytes(),
            packet,
            offset: 0,
            len: u32::try_from(tail_len).ok()?,
            checksum,
        };
        self.write(&frame).ok()?;
        Some(head.len() + tail_len)
    }
}
