//! The rings of a socket: numbers of entries that one side has produced and the other consumed, which count
//! through and wrap, and the entries themselves. For each ring this process is one side, and the kernel the
//! other.

use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpMmapOffsets, XdpRingOffset};
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Flag of a ring whose consumer, the kernel, has to be woken.
const NEED_WAKEUP: u32 = 1;

/// Which of a socket's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Chunks for what arrives, to the kernel.
    Fill,
    /// Frames that arrived, from the kernel.
    Receive,
    /// Frames to be sent, to the kernel.
    Transmit,
    /// Chunks of frames that were sent, from the kernel.
    Completion,
}

impl Which {
    /// `XDP_PGOFF_*` and `XDP_UMEM_PGOFF_*`.
    fn file_offset(self) -> u64 {
        match self {
            Which::Receive => 0,
            Which::Transmit => 0x8000_0000,
            Which::Fill => 0x1_0000_0000,
            Which::Completion => 0x1_8000_0000,
        }
    }

    fn offsets(self, all: &XdpMmapOffsets) -> XdpRingOffset {
        match self {
            Which::Receive => all.rx,
            Which::Transmit => all.tx,
            Which::Fill => all.fr,
            Which::Completion => all.cr,
        }
    }
}

/// A frame, or a part of one, in a chunk (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// Bytes from the begin of the memory.
    pub address: u64,
    /// Bytes of the frame.
    pub len: u32,
    /// [`CONTINUED`], or zero.
    options: u32,
}

/// The next entry is of the same frame (`XDP_PKT_CONTD`).
const CONTINUED: u32 = 1;

impl Entry {
    /// A frame, or a part of it that others follow.
    pub fn new(address: u64, len: u32, is_continued: bool) -> Entry {
        Entry {
            address,
            len,
            options: if is_continued { CONTINUED } else { 0 },
        }
    }

    /// Whether the next entry is of the same frame.
    pub fn is_continued(self) -> bool {
        self.options & CONTINUED != 0
    }
}

/// A mapped ring with entries of type `T`. Unmapped when dropped.
#[derive(Debug)]
pub struct Ring<T> {
    base: NonNull<u8>,
    mapped: usize,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    mask: u32,
    kind: PhantomData<T>,
}

// SAFETY: the mapping is owned by this value alone in its process, and stays where it is until dropped.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `count` entries, a power of two.
    pub fn map(
        socket: BorrowedFd<'_>,
        which: Which,
        all: &XdpMmapOffsets,
        count: u32,
    ) -> io::Result<Ring<T>> {
        let place = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let offsets = which.offsets(all);
        let entries = place(offsets.desc)?;
        let mapped = entries + count as usize * size_of::<T>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice. The kernel refuses one that is longer
        // than the ring.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                access,
                flags,
                socket,
                which.file_offset(),
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Ring {
            base,
            mapped,
            producer: place(offsets.producer)?,
            consumer: place(offsets.consumer)?,
            flags: offsets.flags.map(place).transpose()?,
            entries,
            mask: count - 1,
            kind: PhantomData,
        };
        let words = [Some(ring.producer), Some(ring.consumer), ring.flags];
        let is_word = |at: usize| at.is_multiple_of(4) && at + 4 <= entries;
        let is_aligned = entries.is_multiple_of(align_of::<T>());
        if !count.is_power_of_two() || !is_aligned || !words.into_iter().flatten().all(is_word) {
            return Err(io::Error::other("the kernel has other rings"));
        }
        Ok(ring)
    }

    /// Entries that were produced so far, modulo 2^32.
    pub fn produced(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire)
    }

    /// Entries that were consumed so far, modulo 2^32.
    pub fn consumed(&self) -> u32 {
        self.word(self.consumer).load(Ordering::Acquire)
    }

    /// Shows the kernel entries up to this number.
    pub fn publish_produced(&self, number: u32) {
        self.word(self.producer).store(number, Ordering::Release);
    }

    /// Gives the places of entries up to this number back to the kernel.
    pub fn publish_consumed(&self, number: u32) {
        self.word(self.consumer).store(number, Ordering::Release);
    }

    /// Whether the kernel has to be woken to consume.
    pub fn needs_wakeup(&self) -> bool {
        self.flags
            .is_some_and(|flags| self.word(flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    /// The entry with this number.
    pub fn get(&self, number: u32) -> T {
        // SAFETY: `entry` lies in the mapping and is aligned; any bytes are a `T`, which is a number or plain
        // numbers. Another process may change them meanwhile, and nothing trusts them.
        unsafe { self.entry(number).read_volatile() }
    }

    /// Writes the entry with this number.
    pub fn set(&self, number: u32, value: T) {
        // SAFETY: as for `get`.
        unsafe { self.entry(number).write_volatile(value) }
    }

    fn entry(&self, number: u32) -> *mut T {
        let at = self.entries + (number & self.mask) as usize * size_of::<T>();
        // SAFETY: the mask keeps the entry in the mapping, which has room for `mask + 1` of them.
        unsafe { self.base.as_ptr().add(at).cast() }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` has checked that the word is aligned and lies in the mapping, which lives as long as
        // `self`; atomics tolerate the accesses of others.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
