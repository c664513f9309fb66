//! The receive ring of a packet socket: frames that the kernel has put into mapped memory, so that reading
//! one costs no system call (`Documentation/networking/packet_mmap.rst`, TPACKET_V2).
//!
//! | status of a slot | whose | meaning |
//! |---|---|---|
//! | `TP_STATUS_KERNEL` | the kernel's | free |
//! | `TP_STATUS_USER` | ours | holds a frame, whole or its beginning |
//! | with `TP_STATUS_COPY` | ours | the frame is longer than the slot and lies in the socket as well, whole |
//!
//! Slots are small, since most frames are; a large one (of TCP segmentation, of jumbo size) is read with
//! `recvmsg` when its slot is reached, so the order stays. If the socket's buffer is full by then, only
//! the beginning was kept. When all slots are full, the kernel drops and counts.
//!
//! A ring belongs to its socket and outlives the process that has it mapped. The next process finds frames
//! there, and is not told which is the oldest: that one is behind a free slot. If it is wrong, since the
//! kernel was just filling a slot, or no slot is free, frames come in another order once. None is missed:
//! the kernel fills slots in turn, and so the reader arrives at each.
//!
//! Used by one thread.

use crate::vlan_tag::VlanTag;
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot: a frame of 1,500 bytes of IP with its headers, and the kernel's notes.
const SLOT: usize = 2048;
/// Slots: 4 MiB in all, what frames could take in the socket's buffer.
const SLOTS: usize = 2048;
/// Bytes that the kernel allocates in one piece.
const BLOCK: usize = 16 * SLOT;

/// `struct virtio_net_hdr`, which the kernel puts directly in front of the frame.
pub const SHORT_HEADER_LEN: usize = 10;

/// The oldest frame of a ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Front<'a> {
    /// A whole frame with its virtio-net header, and the VLAN tag that the kernel took out.
    Frame(&'a [u8; SHORT_HEADER_LEN], &'a [u8], Option<VlanTag>),
    /// The next message of the socket is the frame.
    InSocket,
    /// The frame was too long, and the socket had no room for it.
    Cut,
}

/// A mapped ring. Unmapped when dropped.
#[derive(Debug)]
pub struct ReceiveRing {
    base: NonNull<u8>,
    /// Number of the slot that is filled next, or was.
    next: usize,
    /// Whether `next` is known. Where no slot has a frame it is not, until one has.
    is_found: bool,
}

// SAFETY: the mapping is owned by this value alone, and stays where it is until it is dropped.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// Gives a packet socket a ring, to be [mapped](Self::map). The length of virtio-net headers must be set
    /// before, and the socket must not be bound yet.
    ///
    /// # Errors
    ///
    /// The kernel has no such rings, or no memory.
    pub fn make(socket: BorrowedFd<'_>) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set(socket, libc::PACKET_VERSION, &version)?;
        // Frames that are longer than a slot are kept in the socket as well.
        set::<libc::c_int>(socket, libc::PACKET_COPY_THRESH, &1)?;
        let request = libc::tpacket_req {
            tp_block_size: small(BLOCK),
            tp_block_nr: small(SLOTS * SLOT / BLOCK),
            tp_frame_size: small(SLOT),
            tp_frame_nr: small(SLOTS),
        };
        set(socket, libc::PACKET_RX_RING, &request)
    }

    /// Maps the ring of a socket. Long frames that an earlier process has left are lost, since it may have
    /// taken one from the socket and left its slot.
    ///
    /// # Errors
    ///
    /// The socket has none, or there is no room in the address space.
    pub fn map(socket: BorrowedFd<'_>) -> io::Result<ReceiveRing> {
        // SAFETY: a new mapping at an address of the kernel's choice; its length is that of the ring.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOTS * SLOT,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut ring = ReceiveRing {
            base,
            next: 0,
            is_found: false,
        };
        for slot in 0..SLOTS {
            if ring.is_ours(slot) {
                ring.status(slot)
                    .fetch_and(!libc::TP_STATUS_COPY, Ordering::AcqRel);
            }
        }
        discard_messages(socket);
        ring.find();
        Ok(ring)
    }

    /// Looks for the oldest frame.
    fn find(&mut self) {
        let is_first = |slot: usize| self.is_ours(slot) && !self.is_ours((slot + SLOTS - 1) % SLOTS);
        let is_full = self.is_ours(self.next);
        if let Some(first) = (0..SLOTS)
            .find(|slot| is_first(*slot))
            .or(is_full.then_some(self.next))
        {
            (self.next, self.is_found) = (first, true);
        }
    }

    fn is_ours(&self, slot: usize) -> bool {
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The oldest frame, which stays until [`Self::release`].
    pub fn front(&mut self) -> Option<Front<'_>> {
        if !self.is_found {
            self.find();
        }
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        if status & libc::TP_STATUS_COPY != 0 {
            return Some(Front::InSocket);
        }
        // SAFETY: a slot begins with this structure, and is aligned to its own size; the kernel has given
        // the slot to us (the load above), and writes to it no more until it is released.
        let notes = unsafe { self.slot(self.next).cast::<libc::tpacket2_hdr>().read() };
        let (at, len) = (usize::from(notes.tp_mac), notes.tp_snaplen as usize);
        if notes.tp_len != notes.tp_snaplen || at < SHORT_HEADER_LEN || at + len > SLOT {
            return Some(Front::Cut);
        }
        // SAFETY: the range was just checked to lie in the slot, which is ours as above; the slice lives no
        // longer than the borrow of `self`, without which `release` cannot be called.
        let bytes = unsafe {
            let first = self.slot(self.next).add(at - SHORT_HEADER_LEN);
            std::slice::from_raw_parts(first, SHORT_HEADER_LEN + len)
        };
        let (header, frame) = bytes.split_first_chunk()?;
        let tag = VlanTag::reported(status, notes.tp_vlan_tci, notes.tp_vlan_tpid);
        Some(Front::Frame(header, frame, tag))
    }

    /// Gives the slot of the oldest frame back to the kernel.
    pub fn release(&mut self) {
        self.status(self.next)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
    }

    fn slot(&self, number: usize) -> *mut u8 {
        debug_assert!(number < SLOTS);
        // SAFETY: all callers have numbers below SLOTS, and the mapping has as many slots.
        unsafe { self.base.as_ptr().add(number * SLOT) }
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: `tp_status` is the first word of a slot, aligned as the slot is, and lives as long as
        // `self`; atomics tolerate the kernel's accesses.
        unsafe { AtomicU32::from_ptr(self.slot(number).cast()) }
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SLOTS * SLOT) };
    }
}

/// Throws away the messages of a socket, as many as a ring could have announced.
fn discard_messages(socket: BorrowedFd<'_>) {
    let mut byte = [0];
    let _ = (0..2 * SLOTS).all(|_| rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT).is_ok());
}

fn small(number: usize) -> libc::c_uint {
    libc::c_uint::try_from(number).expect("small constants")
}

/// Sets an option of a packet socket, whose value is plain data as `linux/if_packet.h` has it.
pub(crate) fn set<T>(socket: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    set_at(libc::SOL_PACKET, socket, name, value)
}

/// As [`set`], of options of that level.
pub(crate) fn set_at<T>(
    level: libc::c_int,
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("sizes of structures");
    // SAFETY: pointer and length describe one live value of plain data.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
