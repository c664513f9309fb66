//! Where frames lie on their way to the data plane: a ring of bytes.
//!
//! The size of a frame is known only after it was read, so [`TransmitArea::reserve`] finds room for the largest one and
//! [`TransmitArea::commit`] keeps what was used of it. Small frames so lie close together, and the bytes under way are
//! bounded by the size of the area and not by the number of descriptors times the largest frame. Frames come
//! back in any order, but room is freed in the order in which it was taken: one frame that a slow receiver holds
//! makes the ring fill up behind it in the end, which is the back-pressure that a ring of descriptors would give
//! as well. Whenever nothing is under way, the area starts over at its beginning, so that light traffic
//! stays within a few pages, and in the cache.
//!
//! Used by one thread.

use std::collections::VecDeque;

/// Frames begin on cache lines.
const ALIGN: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Frame {
    start: usize,
    done: bool,
}

/// Allocator of `len` bytes from `start` on.
#[derive(Debug)]
pub struct TransmitArea {
    start: usize,
    len: usize,
    /// Where the next frame goes, relative to `start`.
    head: usize,
    /// Frames under way, oldest first; those that came back early stay until all before them have.
    frames: VecDeque<Frame>,
    /// How many frames were ever removed from the front of `frames`.
    removed: u64,
    /// Per descriptor, the number of the frame that it holds, counted from the beginning.
    number: Box<[u64]>,
}

impl TransmitArea {
    /// An empty area for a queue of `descriptors`.
    pub fn new(start: usize, len: usize, descriptors: u16) -> TransmitArea {
        let number = vec![u64::MAX; usize::from(descriptors)].into();
        let frames = VecDeque::with_capacity(usize::from(descriptors));
        TransmitArea {
            start,
            len,
            head: 0,
            frames,
            removed: 0,
            number,
        }
    }

    /// Finds `len` bytes in one piece, without taking them. `None` while too much is under way.
    pub fn reserve(&mut self, len: usize) -> Option<usize> {
        let Some(oldest) = self.frames.front() else {
            self.head = 0;
            return (len <= self.len).then_some(self.start);
        };
        let at = if self.head > oldest.start {
            if self.len - self.head >= len {
                self.head
            } else if oldest.start > len {
                // The piece at the end is skipped; it is free again when the frame before it is.
                0
            } else {
                return None;
            }
        } else if oldest.start - self.head > len {
            self.head
        } else {
            return None;
        };
        self.head = at;
        Some(self.start + at)
    }

    /// Takes the first `len` bytes (not zero) of what was reserved last, for a frame in this descriptor.
    pub fn commit(&mut self, descriptor: u16, len: usize) {
        self.number[usize::from(descriptor)] = self.removed + self.frames.len() as u64;
        self.frames.push_back(Frame {
            start: self.head,
            done: false,
        });
        self.head = (self.head + len).next_multiple_of(ALIGN).min(self.len);
    }

    /// The frame in this descriptor has come back.
    pub fn complete(&mut self, descriptor: u16) {
        let number = self.number[usize::from(descriptor)];
        let index = number
            .checked_sub(self.removed)
            .and_then(|index| usize::try_from(index).ok());
        if let Some(frame) = index.and_then(|index| self.frames.get_mut(index)) {
            frame.done = true;
        }
        while self.frames.front().is_some_and(|frame| frame.done) {
            self.frames.pop_front();
            self.removed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of intervals: reservations lie in the area and touch nothing under way, and there is
        /// always room when nothing is.
        #[test]
        fn never_overlaps(steps in proptest::collection::vec((any::<bool>(), 1usize..3000, any::<usize>()), 1..400)) {
            const LEN: usize = 10_000;
            const LARGEST: usize = 3000;
            let mut area = TransmitArea::new(500, LEN, 16);
            let mut live: Vec<(u16, usize, usize)> = Vec::new();
            let mut free: Vec<u16> = (0..16).collect();
            for (add, len, pick) in steps {
                if !add {
                    if !live.is_empty() {
                        let (id, ..) = live.remove(pick % live.len());
                        area.complete(id);
                        free.push(id);
                    }
                    continue;
                }
                let Some(id) = free.pop() else { continue };
                let Some(at) = area.reserve(LARGEST) else {
                    prop_assert!(!live.is_empty());
                    free.push(id);
                    continue;
                };
                prop_assert!(at >= 500 && at + LARGEST <= 500 + LEN);
                for &(_, start, end) in &live {
                    prop_assert!(at + LARGEST <= start || at >= end, "{at} overlaps {start}..{end}");
                }
                area.commit(id, len);
                live.push((id, at, at + len));
            }
            for (id, ..) in live {
                area.complete(id);
            }
            prop_assert_eq!(area.reserve(LEN), Some(500));
        }
    }

    #[test]
    fn fills_up_and_goes_round() {
        let mut area = TransmitArea::new(0, 1024, 8);
        for id in 0..4 {
            assert_eq!(area.reserve(256), Some(usize::from(id) * 256));
            area.commit(id, 256);
        }
        assert_eq!(area.reserve(256), None);
        area.complete(1);
        assert_eq!(area.reserve(256), None, "the oldest is still there");
        area.complete(0);
        assert_eq!(area.reserve(256), Some(0));
        area.commit(0, 100);
        assert_eq!(area.reserve(256), Some(128));
        assert_eq!(area.reserve(500), None);
    }
}
