//! The memory of a socket's frames: a memfd of [`AREA`] bytes, mapped once. The process that opens the socket
//! has the kernel pin its pages; each process that moves frames maps it.

use super::AREA;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create, seek};
use rustix::io::write;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ptr::NonNull;

/// A mapped area. Unmapped when dropped.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
}

// SAFETY: the mapping is owned by this value, and stays where it is until it is dropped.
unsafe impl Send for Area {}

impl Area {
    /// Makes the memory.
    pub fn make() -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("hyperswitch-xdp", flags)?;
        // Not by ftruncate(2), which its maker may not call: that could cut any file.
        seek(&file, SeekFrom::Start(AREA as u64 - 1))?;
        write(&file, &[0])?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Maps the memory of a socket.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Area> {
        let len = rustix::fs::fstat(file)?.st_size;
        if usize::try_from(len) != Ok(AREA) {
            return Err(io::Error::other("the memory of frames has another size"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of this length, which its
        // maker has sealed, so that no access faults.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                AREA,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { base })
    }

    /// Address of the memory in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes of the memory that the caller has to itself: the kernel has handed them out, and does not write
    /// there until they are given back.
    ///
    /// # Panics
    ///
    /// Outside the memory.
    pub fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= AREA && len <= AREA - at, "{len} bytes at {at}");
        // SAFETY: the range was just checked to lie in the mapping, which lives as long as `self`; the borrow
        // of `self` keeps other slices of this process away. The kernel leaves chunks that it has handed out
        // alone. Another process that writes there can change bytes, which are copied and never trusted.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), AREA) };
    }
}
