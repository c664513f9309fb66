//! The memory of a device's frames: a memfd with a slice for each queue. The process that opens the sockets
//! has the kernel pin its pages; each process that moves frames maps it.

use super::Layout;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create, seek};
use rustix::io::write;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ptr::NonNull;

/// The mapped slice of a queue. Unmapped when dropped.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value, and stays where it is until it is dropped.
unsafe impl Send for Area {}

impl Area {
    /// Makes the memory of a device.
    pub fn make(layout: Layout) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("hyperswitch-xdp", flags)?;
        // Not by ftruncate(2), which its maker may not call: that could cut any file.
        seek(&file, SeekFrom::Start(u64::from(layout.bytes()) - 1))?;
        write(&file, &[0])?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Maps the slice of a queue.
    pub fn map(file: BorrowedFd<'_>, layout: Layout, queue: u32) -> io::Result<Area> {
        let size = rustix::fs::fstat(file)?.st_size;
        if u32::try_from(size) != Ok(layout.bytes()) {
            return Err(io::Error::other("the memory of frames has another size"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let slice = layout.slice(queue);
        let len = slice.len();
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of this length, which its
        // maker has sealed, so that no access faults.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                u64::from(slice.start),
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { base, len })
    }

    /// Address of the slice in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Length of the slice in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the slice that the caller has to itself: the kernel has handed them out, and does not write
    /// there until they are given back.
    ///
    /// # Panics
    ///
    /// Outside the slice.
    pub fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at}");
        // SAFETY: the range was just checked to lie in the mapping, which lives as long as `self`; the borrow
        // of `self` keeps other slices of this process away. The kernel leaves chunks that it has handed out
        // alone. Another process that writes there can change bytes, which are copied and never trusted.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
