//! A split ring as a driver sees it, every byte of which tests may write.

use super::memory::Memory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// One ring as a driver sees it; offsets are in the guest's memory.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<Memory>,
    pub size: u16,
    pub descriptors: usize,
    pub available: usize,
    pub used: usize,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    event_idx: bool,
    /// Our index of the available ring.
    pub next: u16,
    /// Entries of the used ring taken so far.
    pub seen: u16,
    pub kicks: u64,
}

impl Ring {
    pub fn new(memory: &Arc<Memory>, at: usize, size: u16, event_idx: bool) -> (Ring, usize) {
        let entries = usize::from(size);
        let available = at + 16 * entries;
        let used = (available + 6 + 2 * entries).next_multiple_of(64);
        let end = (used + 6 + 8 * entries).next_multiple_of(4096);
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let ring = Ring {
            memory: memory.clone(),
            size,
            descriptors: at,
            available,
            used,
            kick: bell(),
            call: bell(),
            event_idx,
            next: 0,
            seen: 0,
            kicks: 0,
        };
        (ring, end)
    }

    /// As a driver does on probe.
    pub fn reset(&mut self) {
        self.memory
            .write(self.available, &vec![0; 6 + 2 * usize::from(self.size)]);
        self.memory
            .write(self.used, &vec![0; 6 + 8 * usize::from(self.size)]);
        (self.next, self.seen) = (0, 0);
    }

    pub fn descriptor_bytes(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        bytes
    }

    pub fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = self.descriptors + 16 * usize::from(index);
        self.memory
            .write(at, &Self::descriptor_bytes(address, len, flags, next));
    }

    /// Puts a head in the available ring, not yet visible.
    pub fn offer(&mut self, head: u16) {
        let slot = usize::from(self.next & (self.size - 1));
        self.memory.store16(self.available + 4 + 2 * slot, head);
        self.next = self.next.wrapping_add(1);
    }

    /// Makes what was offered visible; true if the device wants a kick.
    pub fn publish(&self) -> bool {
        let old = self.memory.load16(self.available + 2);
        self.memory.store16(self.available + 2, self.next);
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.memory.load16(self.used + 4 + 8 * usize::from(self.size));
            self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(old)
        } else {
            self.memory.load16(self.used) & 1 == 0
        }
    }

    pub fn kick(&mut self) {
        self.kicks += 1;
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    pub fn publish_and_kick(&mut self) {
        if self.publish() {
            self.kick();
        }
    }

    pub fn available_index(&self) -> u16 {
        self.memory.load16(self.available + 2)
    }

    pub fn used_index(&self) -> u16 {
        self.memory.load16(self.used + 2)
    }

    /// The head in the available ring at an index.
    pub fn available_head(&self, index: u16) -> u16 {
        let slot = usize::from(index & (self.size - 1));
        self.memory.load16(self.available + 4 + 2 * slot)
    }

    /// The head in the used ring at an index.
    pub fn used_head(&self, index: u16) -> u16 {
        let slot = usize::from(index & (self.size - 1));
        self.memory.load16(self.used + 4 + 8 * slot)
    }

    /// The next used entry: head and length.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        let ahead = self.used_index().wrapping_sub(self.seen);
        assert!(ahead <= self.size, "the device gave back {ahead} chains at once");
        if ahead == 0 {
            return None;
        }
        let at = self.used + 4 + 8 * usize::from(self.seen & (self.size - 1));
        let (id, len) = (self.memory.load32(at), self.memory.load32(at + 4));
        self.seen = self.seen.wrapping_add(1);
        assert!(id < self.size.into(), "used chain {id}");
        Some((id as u16, len))
    }

    /// Asks for a call at the next used entry; true if one is there already.
    pub fn ask_for_call(&self) -> bool {
        if self.event_idx {
            self.memory
                .store16(self.available + 4 + 2 * usize::from(self.size), self.seen);
        } else {
            self.memory.store16(self.available, 0);
        }
        fence(Ordering::SeqCst);
        self.used_index() != self.seen
    }

    /// Asks for no calls.
    pub fn refuse_calls(&self) {
        if self.event_idx {
            let never = self.seen.wrapping_sub(1);
            self.memory
                .store16(self.available + 4 + 2 * usize::from(self.size), never);
        } else {
            self.memory.store16(self.available, 1);
        }
    }

    /// Sleeps until called; false when the time is up and there is nothing.
    pub fn wait_for_call(&self, longest: Duration) -> bool {
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        if self.ask_for_call() {
            return true;
        }
        let timeout = Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: longest.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
        let called = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap() > 0;
        if called {
            return true;
        }
        if self.used_index() != self.seen {
            // Perhaps in this very moment, or when the thread that calls gets a core.
            let soon = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let called = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&soon))).unwrap() > 0;
            assert!(called, "the driver was not called");
            return true;
        }
        false
    }
}
