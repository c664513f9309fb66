//! The memory of frames on their way to the data plane: a chunk for each descriptor.
//!
//! The size of a frame is known only after it was read, so every chunk has room for the largest one:
//! [`TransmitArea::reserve`] returns the next free one, and [`TransmitArea::commit`] takes it for a
//! descriptor. Frames come back in any order, and each chunk is free as soon as its own frame is back: a
//! frame that a slow receiver holds takes its descriptor and nothing else from all others behind the
//! interface. (In a ring of bytes, which would need less room, all later frames would wait for it.) The chunk
//! that came back last is used first, so that light traffic stays within a few pages, and in the cache;
//! memory is sparse, and pages that were never used cost nothing. Chunks are an odd number of cache lines
//! long: heads of frames are in different sets of the cache.
//!
//! Used by one thread.

/// Frames begin on cache lines.
const ALIGN: usize = 64;

/// Distance of chunks that have room for `len` bytes.
pub const fn chunk(len: usize) -> usize {
    let lines = len.div_ceil(ALIGN);
    (lines + 1 - lines % 2) * ALIGN
}

/// Allocator of chunks from `start` on.
#[derive(Debug)]
pub struct TransmitArea {
    start: usize,
    chunk: usize,
    /// Free chunks; the last one is the next to be used.
    free: Vec<u16>,
    /// Per descriptor, the chunk whose frame it holds.
    held: Box<[Option<u16>]>,
}

impl TransmitArea {
    /// An empty area of a chunk for each of so many `descriptors`, each with room for `len` bytes.
    pub fn new(start: usize, len: usize, descriptors: u16) -> TransmitArea {
        TransmitArea {
            start,
            chunk: chunk(len),
            free: (0..descriptors).rev().collect(),
            held: vec![None; usize::from(descriptors)].into(),
        }
    }

    /// Where the next frame may be put, without taking the place. `None` while as many are under way as there
    /// are descriptors.
    pub fn reserve(&self) -> Option<usize> {
        let chunk = *self.free.last()?;
        Some(self.start + usize::from(chunk) * self.chunk)
    }

    /// Takes the chunk that was reserved last, for a frame in this descriptor.
    pub fn commit(&mut self, descriptor: u16) {
        let taken = self.free.pop();
        debug_assert!(taken.is_some(), "there are as many chunks as descriptors");
        self.held[usize::from(descriptor)] = taken;
    }

    /// The frame in this descriptor has come back.
    pub fn complete(&mut self, descriptor: u16) {
        let held = self.held.get_mut(usize::from(descriptor));
        self.free.extend(held.and_then(Option::take));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: usize = 3000;

    proptest! {
        /// Against a list of intervals: reservations lie in the area and touch nothing under way, and there
        /// is room for as many frames as there are descriptors, whichever of them came back.
        #[test]
        fn never_overlaps(steps in proptest::collection::vec((any::<bool>(), any::<usize>()), 1..400)) {
            const COUNT: u16 = 16;
            let mut area = TransmitArea::new(500, LEN, COUNT);
            let mut live: Vec<(u16, usize)> = Vec::new();
            let mut free: Vec<u16> = (0..COUNT).collect();
            for (add, pick) in steps {
                if !add {
                    if !live.is_empty() {
                        let (id, _) = live.remove(pick % live.len());
                        area.complete(id);
                        // Nothing happens when it comes back twice.
                        area.complete(id);
                        free.push(id);
                    }
                    continue;
                }
                prop_assert_eq!(area.reserve().is_some(), !free.is_empty());
                let Some(id) = free.pop() else { continue };
                let at = area.reserve().unwrap();
                prop_assert!(at >= 500 && at + LEN <= 500 + usize::from(COUNT) * chunk(LEN));
                for &(_, start) in &live {
                    prop_assert!(at.abs_diff(start) >= LEN, "{at} overlaps {start}");
                }
                area.commit(id);
                live.push((id, at));
            }
        }
    }

    /// One frame that does not come back takes nothing but its own place.
    #[test]
    fn a_frame_that_is_held_holds_up_nothing_else() {
        let mut area = TransmitArea::new(0, LEN, 8);
        area.commit(7);
        for round in 0..100 {
            for id in 0..7 {
                assert!(area.reserve().is_some(), "round {round}, frame {id}");
                area.commit(id);
            }
            assert_eq!(area.reserve(), None);
            (0..7).for_each(|id| area.complete(id));
        }
    }

    #[test]
    fn light_traffic_stays_in_place_and_lines_are_spread() {
        let mut area = TransmitArea::new(0, 65_536, 8);
        let first = area.reserve();
        for id in 0..8 {
            area.commit(id);
            area.complete(id);
            assert_eq!(area.reserve(), first);
        }
        assert_eq!(chunk(65_536), 65_536 + 64);
        assert_eq!(chunk(65), 192);
        assert_eq!(chunk(192), 192);
    }
}
