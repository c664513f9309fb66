//! Frames out by queue 0 of a device, for the process that moves them.
//!
//! Of chunks for what leaves it is not known which of them the kernel still has when a process takes up what
//! another one has left. So none is used until the kernel has given all back that were under way, which takes
//! as long as sending them.

use crate::area::Area;
use crate::rings::{Entry, Ring, Which};
use crate::{Layout, disorder};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::xdp::XdpMmapOffsets;
use rustix::net::{SendFlags, send};
use std::io;
use std::time::{Duration, Instant};

/// How long frames of an earlier process may be under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// The rings of a socket by which frames leave. Used by one thread.
#[derive(Debug)]
pub struct Sender {
    layout: Layout,
    transmit: Ring<Entry>,
    completion: Ring<u64>,
    /// Chunks put into the transmit ring, of which some are not published yet.
    put: u32,
    /// Addresses of chunks in which a frame, or a part of one, can be sent.
    free: Vec<u64>,
    /// Since when frames of an earlier process are under way.
    earlier: Option<Instant>,
}

impl Sender {
    /// Takes up the rings of a socket.
    ///
    /// # Errors
    ///
    /// The process has no room for them, or an earlier one has left them in disorder.
    pub fn new(socket: BorrowedFd<'_>, offsets: &XdpMmapOffsets, layout: Layout) -> io::Result<Sender> {
        let transmit = Ring::map(socket, Which::Transmit, offsets, layout.transmitted())?;
        let completion = Ring::map(socket, Which::Completion, offsets, layout.transmitted())?;
        let mut sender = Sender {
            layout,
            put: transmit.produced(),
            free: Vec::new(),
            earlier: Some(Instant::now()),
            transmit,
            completion,
        };
        sender.collect()?;
        Ok(sender)
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
                self.free = self.layout.to_send().rev().collect();
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

    /// Puts a frame of this length, of at most [`Layout::longest`], into chunks, each filled by `fill` in the
    /// order of the frame; sent by [`Self::flush`]. False as long as too few chunks are free.
    pub fn put(&mut self, area: &mut Area, len: usize, mut fill: impl FnMut(&mut [u8])) -> bool {
        let mut rest = u32::try_from(len).unwrap_or(u32::MAX);
        debug_assert!(rest <= self.layout.longest(), "{len} bytes");
        let parts = rest.div_ceil(self.layout.chunk()) as usize;
        let Some(left) = self.free.len().checked_sub(parts) else {
            return false;
        };
        for address in self.free.drain(left..).rev() {
            let part = rest.min(self.layout.chunk());
            rest -= part;
            // What is free was found to lie in the memory: see `collect`.
            fill(area.bytes(address as usize, part as usize));
            self.transmit.set(self.put, Entry::new(address, part, rest > 0));
            self.put = self.put.wrapping_add(1);
        }
        true
    }

    /// Has the kernel send what was put. False if some of it waits for room in the device, and this is to be
    /// called again.
    ///
    /// # Errors
    ///
    /// The device does not work any more.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.transmit.publish_produced(self.put);
        loop {
            let before = self.transmit.consumed();
            if before == self.put || !self.transmit.needs_wakeup() {
                return Ok(true);
            }
            match send(socket, &[], SendFlags::DONTWAIT) {
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
