//! Frames in at one queue of a device, for the process that moves them.
//!
//! What another process has left is found by two numbers, as the crate's description says.

use crate::area::Area;
use crate::layout::MAX_PARTS;
use crate::rings::{Entry, Ring, Which};
use crate::{Layout, disorder};
use rustix::fd::BorrowedFd;
use rustix::net::xdp::XdpMmapOffsets;
use rustix::net::{RecvFlags, recv};
use std::io;

/// The rings of a socket in which frames arrive. Used by one thread.
#[derive(Debug)]
pub struct Receiver {
    layout: Layout,
    fill: Ring<u64>,
    receive: Ring<Entry>,
    /// Chunks given to the kernel and taken from it, of which some are not published yet.
    given: u32,
    taken: u32,
    /// Chunks of the frame that was found last.
    parts: u32,
    /// A frame that lies in several chunks, put together.
    whole: Vec<u8>,
}

impl Receiver {
    /// Takes up the rings of a socket.
    ///
    /// # Errors
    ///
    /// The process has no room for them, or an earlier one has left them in disorder.
    pub fn new(socket: BorrowedFd<'_>, offsets: &XdpMmapOffsets, layout: Layout) -> io::Result<Receiver> {
        let fill = Ring::map(socket, Which::Fill, offsets, layout.received())?;
        let receive = Ring::map(socket, Which::Receive, offsets, layout.received())?;
        let mut receiver = Receiver {
            layout,
            given: fill.produced(),
            taken: receive.consumed(),
            parts: 0,
            whole: Vec::new(),
            fill,
            receive,
        };
        receiver.find_received()?;
        Ok(receiver)
    }

    /// Gives the kernel all chunks for what arrives, or finds out where an earlier process has ended: chunks
    /// were given back that were not yet counted as taken.
    fn find_received(&mut self) -> io::Result<()> {
        let all = self.layout.received();
        let ahead = self.given.wrapping_sub(self.taken);
        if ahead == 0 {
            let chunk = u64::from(self.layout.chunk());
            for number in 0..all {
                self.fill
                    .set(self.given.wrapping_add(number), u64::from(number) * chunk);
            }
            self.given = self.given.wrapping_add(all);
        } else {
            let there = self.receive.produced().wrapping_sub(self.taken);
            let uncounted = uncounted(ahead, all, there).ok_or_else(|| disorder("given"))?;
            self.taken = self.taken.wrapping_add(uncounted);
        }
        self.publish();
        Ok(())
    }

    /// Whether no frame is there.
    pub fn is_empty(&self) -> bool {
        self.receive.produced() == self.taken
    }

    /// The oldest frame that arrived, which stays until [`Self::release`].
    ///
    /// # Errors
    ///
    /// The rings are in disorder.
    pub fn front<'a>(&'a mut self, area: &'a mut Area) -> io::Result<Option<&'a mut [u8]>> {
        let there = self.receive.produced().wrapping_sub(self.taken);
        if there == 0 {
            return Ok(None);
        }
        if there > self.layout.received() {
            return Err(disorder("received"));
        }
        let entry = self.receive.get(self.taken);
        let at = self.place(entry)?;
        self.parts = 1;
        if !entry.is_continued() {
            return Ok(Some(area.bytes(at, entry.len as usize)));
        }
        self.gather(area, entry, at, there.min(MAX_PARTS))?;
        Ok(Some(&mut self.whole))
    }

    /// Puts a frame together whose `first` part lies at `at`, of `most` parts.
    fn gather(&mut self, area: &mut Area, first: Entry, at: usize, most: u32) -> io::Result<()> {
        self.whole.clear();
        let (mut entry, mut at) = (first, at);
        loop {
            self.whole.extend_from_slice(area.bytes(at, entry.len as usize));
            if !entry.is_continued() {
                return Ok(());
            }
            if self.parts >= most {
                return Err(disorder("parts"));
            }
            entry = self.receive.get(self.taken.wrapping_add(self.parts));
            at = self.place(entry)?;
            self.parts += 1;
        }
    }

    fn place(&self, entry: Entry) -> io::Result<usize> {
        let is_possible = self.layout.in_parts() || !entry.is_continued();
        let place = self.layout.place(entry.address, entry.len);
        place.filter(|_| is_possible).ok_or_else(|| disorder("received"))
    }

    /// Gives the chunks of the oldest frame back, which [`Self::front`] has found, once [`Self::publish`] is
    /// called.
    pub fn release(&mut self) {
        for _ in 0..std::mem::take(&mut self.parts) {
            let address = self.receive.get(self.taken).address;
            let chunk = u64::from(self.layout.chunk());
            // The kernel refuses an address outside of the memory, and counts.
            self.fill.set(self.given, address - address % chunk);
            self.given = self.given.wrapping_add(1);
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// Shows the kernel what was released.
    pub fn publish(&mut self) {
        // In this order, so that no chunk is lost if the process ends here: see `find_received`.
        self.fill.publish_produced(self.given);
        self.receive.publish_consumed(self.taken);
    }

    /// Wakes a driver that has found no chunk to receive into, if it has.
    pub fn wake_driver(&self, socket: BorrowedFd<'_>) {
        if self.fill.needs_wakeup() {
            // Nothing is received by the call, and whatever it says, the next batch tries again.
            let mut nothing = [0_u8; 0];
            let _ = recv(socket, &mut nothing[..], RecvFlags::DONTWAIT);
        }
    }
}

/// Chunks that were given back, and that were not counted as taken: the number of chunks given, less that of
/// chunks taken, is that of `all` chunks otherwise. `None` if that cannot be, with so many chunks `there`.
fn uncounted(ahead: u32, all: u32, there: u32) -> Option<u32> {
    ahead.checked_sub(all).filter(|uncounted| *uncounted <= there)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::net::xdp::XdpRingOffset;

    /// Rings in a file that is no socket, with this process as the kernel, too.
    struct Kernel {
        receive: Ring<Entry>,
        fill: Ring<u64>,
        area: Area,
        receiver: Receiver,
        _files: [OwnedFd; 2],
    }

    impl Kernel {
        fn new(layout: Layout) -> Kernel {
            let rings = memfd_create("rings", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&rings, 0x2_0000_0000).unwrap();
            let each = XdpRingOffset {
                producer: 0,
                consumer: 64,
                desc: 192,
                flags: Some(128),
            };
            let offsets = XdpMmapOffsets {
                rx: each,
                tx: each,
                fr: each,
                cr: each,
            };
            let memory = Area::make(layout).unwrap();
            Kernel {
                receive: Ring::map(rings.as_fd(), Which::Receive, &offsets, layout.received()).unwrap(),
                fill: Ring::map(rings.as_fd(), Which::Fill, &offsets, layout.received()).unwrap(),
                area: Area::map(memory.as_fd(), layout, 0).unwrap(),
                receiver: Receiver::new(rings.as_fd(), &offsets, layout).unwrap(),
                _files: [rings, memory],
            }
        }

        /// Publishes entries: address, length, whether another part follows.
        fn publish(&mut self, entries: &[(u64, u32, bool)]) {
            let from = self.receive.produced();
            for ((address, len, is_continued), number) in entries.iter().zip(0..) {
                let entry = Entry::new(*address, *len, *is_continued);
                self.receive.set(from.wrapping_add(number), entry);
            }
            self.receive
                .publish_produced(from + u32::try_from(entries.len()).unwrap());
        }

        fn front(&mut self) -> io::Result<Option<usize>> {
            let front = self.receiver.front(&mut self.area);
            front.map(|frame| frame.map(|frame| frame.len()))
        }
    }

    fn layout(in_parts: bool) -> Layout {
        Layout::new(4096, in_parts, 1).unwrap()
    }

    #[test]
    fn parts_are_put_together_and_their_chunks_given_back() {
        let mut kernel = Kernel::new(layout(true));
        let all = layout(true).received();
        assert_eq!(kernel.fill.produced(), all);
        for (chunk, byte) in [(0, b'a'), (2, b'b'), (1, b'c')] {
            kernel.area.bytes(chunk * 4096 + 256, 3840).fill(byte);
        }
        kernel.publish(&[
            (256, 3840, true),
            (2 * 4096 + 256, 3840, true),
            (4096 + 256, 7, false),
        ]);
        kernel.publish(&[(3 * 4096 + 256, 60, false)]);
        let frame = kernel.receiver.front(&mut kernel.area).unwrap().unwrap().to_vec();
        assert_eq!(
            frame,
            [vec![b'a'; 3840], vec![b'b'; 3840], vec![b'c'; 7]].concat()
        );
        assert_eq!(kernel.front().unwrap(), Some(7687), "it stays");
        kernel.receiver.release();
        assert_eq!(kernel.front().unwrap(), Some(60));
        kernel.receiver.release();
        assert!(kernel.receiver.is_empty());
        kernel.receiver.publish();
        assert_eq!((kernel.fill.produced(), kernel.receive.consumed()), (all + 4, 4));
        let back: Vec<u64> = (all..all + 4).map(|number| kernel.fill.get(number)).collect();
        assert_eq!(back, [0, 2 * 4096, 4096, 3 * 4096]);
    }

    #[test]
    fn entries_that_cannot_be_are_an_error() {
        let whole: &[(u64, u32, bool)] = &[(256, 3840, true), (4096 + 256, 1, false)];
        assert_eq!(Kernel::new(layout(false)).front().unwrap(), None);
        for (in_parts, entries) in [
            // Parts without an end: none published, more than a frame has, more than there are.
            (true, vec![(256, 60, true)]),
            (true, vec![(256, 60, true); 19]),
            (true, vec![(256, 60, true); 1025]),
            // A later part outside its chunk, or outside of what receives.
            (true, vec![(256, 3840, true), (256, 3841, false)]),
            (true, vec![(256, 3840, true), (u64::MAX, 1, false)]),
            (true, vec![(256, 3840, true), (4 << 20, 1, false)]),
            // Parts where none were agreed upon.
            (false, whole.to_vec()),
            (false, vec![(256, u32::MAX, false)]),
        ] {
            let mut kernel = Kernel::new(layout(in_parts));
            kernel.publish(&entries);
            assert!(kernel.front().is_err(), "{in_parts}, {entries:?}");
        }
        let mut kernel = Kernel::new(layout(true));
        kernel.publish(whole);
        assert_eq!(kernel.front().unwrap(), Some(3841));
    }

    /// Wherever a process ends, the next one goes on with the frame behind the last one given back.
    #[test]
    fn the_next_process_counts_what_the_last_one_had_given_back() {
        let all = 8;
        for begin in [0_u32, u32::MAX - 3] {
            let (taken, given, produced) = (begin, begin.wrapping_add(all), begin.wrapping_add(5));
            let there = produced.wrapping_sub(taken);
            for batch in 0..=there {
                let ahead = given.wrapping_add(batch).wrapping_sub(taken);
                assert_eq!(uncounted(ahead, all, there), Some(batch));
            }
            let ahead = |extra: u32| given.wrapping_add(extra).wrapping_sub(taken);
            assert_eq!(uncounted(ahead(there + 1), all, there), None);
            assert_eq!(uncounted(ahead(0) - 1, all, there), None, "chunks are missing");
        }
    }
}
