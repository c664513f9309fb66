//! Frames in and out of an AF_XDP socket, for the process that moves them.
//!
//! What another process has left is found as the crate's description says: chunks for what arrives by two
//! numbers. Of chunks for what leaves it is not known which of them the kernel still has. So none is used
//! until the kernel has given all back that were under way, which takes as long as sending them.

use crate::area::Area;
use crate::rings::{Entry, Ring, Which};
use crate::{Layout, RECEIVE_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use std::io;
use std::time::{Duration, Instant};

/// How long frames of an earlier process may be under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// An open socket, with its memory and rings. Used by one thread.
#[derive(Debug)]
pub struct XdpSocket {
    socket: OwnedFd,
    area: Area,
    layout: Layout,
    fill: Ring<u64>,
    receive: Ring<Entry>,
    transmit: Ring<Entry>,
    completion: Ring<u64>,
    /// Chunks given to the kernel and frames taken from it, of which some are not published yet.
    given: u32,
    taken: u32,
    /// Frames put into the transmit ring, of which some are not published yet.
    put: u32,
    /// Addresses of chunks in which a frame can be sent.
    free: Vec<u64>,
    /// Since when frames of an earlier process are under way.
    earlier: Option<Instant>,
}

impl XdpSocket {
    /// Takes up a socket and its memory.
    ///
    /// # Errors
    ///
    /// The process has no room for them, or an earlier one has left the rings in disorder.
    pub fn new(socket: OwnedFd, memory: BorrowedFd<'_>, layout: Layout) -> io::Result<XdpSocket> {
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let (received, transmitted) = (layout.received(), layout.transmitted());
        let fd = socket.as_fd();
        let fill = Ring::map(fd, Which::Fill, &offsets, received)?;
        let receive = Ring::map(fd, Which::Receive, &offsets, received)?;
        let transmit = Ring::map(fd, Which::Transmit, &offsets, transmitted)?;
        let completion = Ring::map(fd, Which::Completion, &offsets, transmitted)?;
        let mut socket = XdpSocket {
            area: Area::map(memory)?,
            layout,
            given: fill.produced(),
            taken: receive.consumed(),
            put: transmit.produced(),
            free: Vec::new(),
            earlier: Some(Instant::now()),
            socket,
            fill,
            receive,
            transmit,
            completion,
        };
        socket.find_received()?;
        socket.collect()?;
        Ok(socket)
    }

    /// Gives the kernel all chunks for what arrives, or finds out where an earlier process has ended: chunks
    /// were given back whose frames were not yet counted as taken.
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
        self.publish_taken();
        Ok(())
    }

    /// Longest frame in bytes.
    pub fn longest(&self) -> usize {
        self.layout.longest() as usize
    }

    /// The oldest frame that arrived, which stays until [`Self::release`].
    ///
    /// # Errors
    ///
    /// The rings are in disorder.
    pub fn front(&mut self) -> io::Result<Option<&mut [u8]>> {
        let there = self.receive.produced().wrapping_sub(self.taken);
        if there == 0 {
            return Ok(None);
        }
        let entry = self.receive.get(self.taken);
        let place = self.layout.place(entry.address, entry.len);
        match place.filter(|_| there <= self.layout.received()) {
            Some(at) => Ok(Some(self.area.bytes(at, entry.len as usize))),
            None => Err(disorder("received")),
        }
    }

    /// Gives the chunk of the oldest frame back, once [`Self::publish_taken`] is called.
    pub fn release(&mut self) {
        let address = self.receive.get(self.taken).address;
        let chunk = u64::from(self.layout.chunk());
        // The kernel refuses an address outside of the memory, and counts.
        self.fill.set(self.given, address - address % chunk);
        self.given = self.given.wrapping_add(1);
        self.taken = self.taken.wrapping_add(1);
    }

    /// Shows the kernel what was released.
    pub fn publish_taken(&mut self) {
        // In this order, so that no chunk is lost if the process ends here: see `find_received`.
        self.fill.publish_produced(self.given);
        self.receive.publish_consumed(self.taken);
    }

    /// Collects chunks of frames that were sent.
    ///
    /// # Errors
    ///
    /// The rings are in disorder, or the kernel does not send.
    pub fn collect(&mut self) -> io::Result<()> {
        let (from, to) = (self.completion.consumed(), self.completion.produced());
        let count = to.wrapping_sub(from);
        if count > self.layout.transmitted() {
            return Err(disorder("sent"));
        }
        if self.earlier.is_none() {
            let sent = (0..count).map(|number| self.completion.get(from.wrapping_add(number)));
            self.free
                .extend(sent.filter(|address| self.layout.is_to_send(*address)));
        }
        self.completion.publish_consumed(to);
        if let Some(since) = self.earlier {
            if self.put == to {
                let chunk = u64::from(self.layout.chunk());
                let all = (0..self.layout.transmitted()).rev();
                self.free = all
                    .map(|number| u64::from(RECEIVE_BYTES) + u64::from(number) * chunk)
                    .collect();
                self.earlier = None;
            } else if since.elapsed() > PATIENCE {
                return Err(io::Error::other("frames of an earlier process are not sent"));
            }
        }
        if self.free.len() > self.layout.transmitted() as usize {
            return Err(disorder("free"));
        }
        Ok(())
    }

    /// Bytes in which a frame of this length can be put, of at most [`Self::longest`]; `None` as long as no
    /// chunk is free. Sent by [`Self::flush`].
    pub fn put(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.longest() {
            return None;
        }
        let address = self.free.pop()?;
        let entry = Entry {
            address,
            len: u32::try_from(len).ok()?,
            options: 0,
        };
        self.transmit.set(self.put, entry);
        self.put = self.put.wrapping_add(1);
        Some(self.area.bytes(usize::try_from(address).ok()?, len))
    }

    /// Has the kernel send what was put. False if some of it waits for room in the device, and this is to be
    /// called again.
    ///
    /// # Errors
    ///
    /// The device does not work any more.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.transmit.publish_produced(self.put);
        loop {
            let before = self.transmit.consumed();
            if before == self.put || !self.transmit.needs_wakeup() {
                return Ok(true);
            }
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                // Room, or memory, or more frames than the kernel sends in a call.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if self.transmit.consumed() == before {
                return Ok(false);
            }
        }
    }
}

/// Frames whose chunks were given back, and that were not counted as taken: the number of chunks given, less
/// that of frames taken, is that of `all` chunks otherwise. `None` if that cannot be, with so many frames
/// `there`.
fn uncounted(ahead: u32, all: u32, there: u32) -> Option<u32> {
    ahead.checked_sub(all).filter(|uncounted| *uncounted <= there)
}

fn disorder(what: &str) -> io::Error {
    io::Error::other(format!("the rings of the AF_XDP socket are in disorder ({what})"))
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
