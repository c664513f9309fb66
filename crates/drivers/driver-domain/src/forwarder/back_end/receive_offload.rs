//! Segments of TCP that came one by one, merged while they lie in the batch's next place, as generic receive
//! offload does (GRO; `wire::Run` has the rules). The data plane and a guest that takes large frames handle
//! one frame instead of up to 45; for a guest that does not, the data plane cuts it.
//!
//! A batch has one such frame under way at a time, since segments of a connection come in trains. The frame
//! is put at the end of the batch at the latest, so no segment waits for another one that has not come yet.

use super::Inbound;
use super::frame::put;
use nic_packet::VNET_HEADER_LEN;
use virtqueue::driver::{SharedMemory, Span};
use wire::{Mergeable, Run};

/// A frame that lies in the last place of the batch and is not put yet, since segments may be appended to it.
#[derive(Debug)]
pub(super) struct Held {
    room: Span,
    run: Run,
}

impl Held {
    /// Of a segment that was copied behind a header to `room`; `None` if no other one may follow.
    pub fn begin(room: Span, segment: &Mergeable<'_>) -> Option<Held> {
        Run::begin(segment).map(|run| Held { room, run })
    }

    /// Copies the payload of a segment that continues the frame behind it. Returns whether it does.
    pub fn append(&mut self, memory: &SharedMemory, segment: &Mergeable<'_>) -> bool {
        let end = self.room.offset + VNET_HEADER_LEN + self.run.frame_len();
        let payload = self.run.append(segment);
        payload.inspect(|payload| memory.write(end, payload)).is_some()
    }

    /// Puts the frame into the batch.
    pub fn put(mut self, batch: &mut Inbound<'_>) {
        let (offset, len) = (self.room.offset, VNET_HEADER_LEN + self.run.frame_len());
        let segments = self.run.segments();
        let Some((request, headers)) = self.run.headers() else {
            return put(batch, self.room, len, None);
        };
        batch.memory().write(offset, &request.to_bytes());
        batch.memory().write(offset + VNET_HEADER_LEN, headers);
        batch.put_merged(Span { offset, len }, segments);
    }
}
