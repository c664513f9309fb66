//! A batch of frames on their way to an interface: the buffers in which the data plane put them, and what of
//! these is sent.

use super::back_end::{Full, Sent};
use nic_packet::VNET_HEADER_LEN;
use std::time::{Duration, Instant};
use virtqueue::driver::{Messages, Span, Used};

/// Frames per batch at most.
pub const BATCH: usize = 64;
/// Bytes after which a batch ends although more frames may be there, so that the other side can go on.
pub const BATCH_BYTES: usize = 128 << 10;

/// How long a frame waits for a device whose queue is full.
const PATIENCE: Duration = Duration::from_millis(100);

/// Buffers that were taken from the receive ring and not given back yet.
#[derive(Debug, Default)]
pub struct Outbound {
    buffers: Vec<Used>,
    frames: Messages,
    /// Frames that were taken, with those that are too short to be sent.
    count: usize,
    bytes: usize,
    /// Frames that the interface took or refused, of those that can be sent.
    sent: usize,
    /// Since when the next one has found no room.
    full_since: Option<Instant>,
}

impl Outbound {
    /// Whether a further frame belongs into this batch.
    pub fn has_room(&self) -> bool {
        self.count < BATCH && self.bytes < BATCH_BYTES
    }

    /// Adds a frame in its buffers, behind a header of [`VNET_HEADER_LEN`], of which the interface takes the
    /// first `header_len` bytes. Returns bytes of header and frame.
    pub fn add(&mut self, buffers: &[Used], header_len: usize) -> usize {
        self.count += 1;
        self.buffers.extend_from_slice(buffers);
        let spans = buffers.iter().map(|used| Span {
            offset: used.buffer.offset,
            len: used.written,
        });
        let bytes = spans.clone().map(|span| span.len).sum::<usize>();
        self.bytes += bytes;
        let Some(first) = spans.clone().next().filter(|first| first.len >= VNET_HEADER_LEN) else {
            return bytes;
        };
        if header_len == VNET_HEADER_LEN {
            self.frames.push(spans);
            return bytes;
        }
        let header = Span {
            offset: first.offset,
            len: header_len,
        };
        let behind = Span {
            offset: first.offset + VNET_HEADER_LEN,
            len: first.len - VNET_HEADER_LEN,
        };
        self.frames
            .push([header, behind].into_iter().chain(spans.skip(1)));
        bytes
    }

    /// Frames that can be sent.
    pub fn frames(&self) -> &Messages {
        &self.frames
    }

    /// Whether frames wait for room in a queue of the kernel.
    pub fn is_waiting(&self) -> bool {
        self.full_since.is_some()
    }

    /// The first frame that is not sent yet.
    pub fn next(&self) -> usize {
        self.sent
    }

    /// Frames of the batch were sent, or have found no room. One that finds none in the device's queue for
    /// [`PATIENCE`] is refused. Returns how many are refused now.
    pub fn note(&mut self, sent: &Sent, now: Instant) -> usize {
        let done = sent.taken + sent.refused;
        self.sent += done;
        if done > 0 {
            self.full_since = None;
        }
        let Some(full) = sent.full else {
            return sent.refused;
        };
        let since = *self.full_since.get_or_insert(now);
        if full == Full::Device && now.duration_since(since) >= PATIENCE {
            self.full_since = Some(now);
            self.sent += 1;
            return sent.refused + 1;
        }
        sent.refused
    }

    /// Frames that are left when there is no interface any more, with those that cannot be sent.
    pub fn left(&self) -> usize {
        self.count - self.sent
    }

    /// Whether all frames that can be sent are done.
    pub fn is_done(&self) -> bool {
        self.sent >= self.frames.iter().len()
    }

    /// Buffers to be given back. The batch is empty then.
    pub fn end(&mut self) -> impl Iterator<Item = Used> {
        self.frames.clear();
        (self.count, self.bytes, self.sent) = (0, 0, 0);
        self.full_since = None;
        self.buffers.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(offset: usize, written: usize) -> Used {
        Used {
            id: 0,
            buffer: Span { offset, len: 4096 },
            written,
        }
    }

    fn spans(batch: &Outbound) -> Vec<Vec<(usize, usize)>> {
        let pairs = |spans: &[Span]| spans.iter().map(|span| (span.offset, span.len)).collect();
        batch.frames().iter().map(pairs).collect()
    }

    #[test]
    fn short_headers_leave_the_count_out() {
        let mut batch = Outbound::default();
        let frame = [used(100, 50), used(300, 7)];
        batch.add(&frame, 12);
        batch.add(&frame, 10);
        let whole = vec![(100, 50), (300, 7)];
        assert_eq!(spans(&batch), [whole, vec![(100, 10), (112, 38), (300, 7)]]);
    }

    #[test]
    fn frames_without_a_header_are_counted_and_not_sent() {
        let mut batch = Outbound::default();
        batch.add(&[used(0, 11)], 12);
        assert_eq!((batch.left(), batch.frames().iter().len()), (1, 0));
        assert!(batch.is_done());
        assert_eq!(batch.end().count(), 1);
        assert_eq!(batch.left(), 0);
    }

    #[test]
    fn a_frame_waits_for_room_and_not_for_ever() {
        let (mut batch, begin) = (Outbound::default(), Instant::now());
        for _ in 0..4 {
            batch.add(&[used(0, 60)], 12);
        }
        let sent = |taken, full| Sent {
            taken,
            refused: 0,
            full,
        };
        assert_eq!(batch.note(&sent(1, Some(Full::Socket)), begin), 0);
        assert!(batch.is_waiting() && !batch.is_done());
        let later = begin + 10 * PATIENCE;
        assert_eq!(batch.note(&sent(0, Some(Full::Socket)), later), 0);
        assert_eq!(batch.next(), 1, "the socket will have room");
        assert_eq!(batch.note(&sent(1, Some(Full::Device)), later), 0);
        assert_eq!(batch.note(&sent(0, Some(Full::Device)), later + PATIENCE / 2), 0);
        assert_eq!(batch.note(&sent(0, Some(Full::Device)), later + PATIENCE), 1);
        assert_eq!((batch.next(), batch.left()), (3, 1));
        assert_eq!(batch.note(&sent(1, None), later + PATIENCE), 0);
        assert!(batch.is_done() && !batch.is_waiting());
    }

    #[test]
    fn a_batch_ends_by_frames_or_bytes() {
        let mut batch = Outbound::default();
        for _ in 0..BATCH {
            assert!(batch.has_room());
            batch.add(&[used(0, 60)], 12);
        }
        assert!(!batch.has_room());
        assert_eq!(batch.end().count(), BATCH);
        assert!(batch.has_room());
        batch.add(&vec![used(0, 4096); BATCH_BYTES / 4096], 12);
        assert!(!batch.has_room());
    }
}
