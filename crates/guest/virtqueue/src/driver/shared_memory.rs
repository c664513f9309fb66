//! Memory that we own and share with a device: a sealed memfd, mapped once.
//!
//! A device's process may write anywhere in it at any time. So nothing here ever makes a reference to
//! plain data in it: bytes are copied in and out, ring indices are atomics, and files are read and
//! written through the kernel, straight from and to the mapping. The file is sealed at its size, so no
//! access to the mapping can fault. It is sparse: pages exist from when they are first touched.
//!
//! Offsets and lengths come from our own bookkeeping, never from the device; one that lies outside is
//! a bug of the caller and panics. Any thread may call.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32};

/// Part of a [`SharedMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Bytes from the start of the memory.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Most spans in one transfer. A frame of 65,565 bytes in buffers of 4 KiB has 17.
pub const MAX_SPANS: usize = 64;

/// What [`SharedMemory::recv`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of data.
    pub bytes: usize,
    /// Bytes of control messages.
    pub control: usize,
    /// The data was longer than the spans.
    pub truncated: bool,
}

/// A mapped memfd. Unmapped when dropped.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value, is never moved or unmapped before drop, and every access goes
// through raw copies, atomics or the kernel, none of which assumes to be alone.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; `&self` methods never create references to non-atomic data in the mapping.
unsafe impl Sync for SharedMemory {}

/// Pages that memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB, which must have been reserved.
    Huge,
}

impl Pages {
    const fn len(self) -> usize {
        match self {
            Pages::Small => 4096,
            Pages::Huge => 2 << 20,
        }
    }
}

impl SharedMemory {
    /// Makes `len` bytes of zeros (at least one), rounded up to whole pages. `name` shows in
    /// `/proc/PID/maps`.
    pub fn new(name: &str, len: usize) -> io::Result<Self> {
        SharedMemory::of(Pages::Small, name, len)
    }

    /// A new area in pages of that size.
    pub fn of(pages: Pages, name: &str, len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(pages.len());
        let (file_flags, map_flags) = match pages {
            Pages::Small => (0, libc::MAP_NORESERVE),
            // Without enough of them the mapping is refused, where a later access would end the process.
            Pages::Huge => (libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, 0),
        };
        let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let fd = unsafe {
            libc::memfd_create(
                name.as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | file_flags,
            )
        };
        check(fd)?;
        // SAFETY: `fd` was just created and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: plain system calls on a descriptor we own, without pointers.
        unsafe {
            check(libc::ftruncate(fd, length))?;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            check(libc::fcntl(fd, libc::F_ADD_SEALS, seals))?;
        }
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is `len` bytes long and
        // can no longer shrink.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | map_flags,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMemory { file, base, len })
    }

    /// Size in bytes, a multiple of the page size.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(Span {
            offset,
            len: to.len(),
        });
        // SAFETY: `at` checked that the range lies in the mapping; `to` is a distinct Rust allocation.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(Span {
            offset,
            len: from.len(),
        });
        // SAFETY: `at` checked that the range lies in the mapping; `from` is a distinct Rust allocation.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// A naturally aligned 16-bit cell.
    pub fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        let cell = self.at(Span { offset, len: 2 });
        assert!(offset.is_multiple_of(2), "cell at {offset} is not aligned");
        // SAFETY: the cell lies in the mapping (`at`), which lives as long as `self` and starts on a page, so
        // it is aligned; atomics tolerate concurrent access.
        unsafe { AtomicU16::from_ptr(cell.cast()) }
    }

    /// A naturally aligned 32-bit cell.
    pub fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        let cell = self.at(Span { offset, len: 4 });
        assert!(offset.is_multiple_of(4), "cell at {offset} is not aligned");
        // SAFETY: as for `atomic_u16`.
        unsafe { AtomicU32::from_ptr(cell.cast()) }
    }

    /// Reads once from a file into the spans, in order (`readv(2)`).
    pub fn read_from(&self, file: BorrowedFd<'_>, spans: &[Span]) -> io::Result<usize> {
        let (vectors, count) = self.vectors(spans)?;
        // SAFETY: the first `count` vectors point into the mapping (`vectors` checked), which stays mapped
        // during the call.
        transferred(unsafe { libc::readv(file.as_raw_fd(), vectors.as_ptr(), count) })
    }

    /// Writes the spans, in order, to a file, once (`writev(2)`).
    pub fn write_to(&self, file: BorrowedFd<'_>, spans: &[Span]) -> io::Result<usize> {
        let (vectors, count) = self.vectors(spans)?;
        // SAFETY: as in `read_from`.
        transferred(unsafe { libc::writev(file.as_raw_fd(), vectors.as_ptr(), count) })
    }

    /// Receives one message from a socket into the spans, without waiting, with its control messages.
    pub fn recv(&self, socket: BorrowedFd<'_>, spans: &[Span], control: &mut [u8]) -> io::Result<Received> {
        let (mut vectors, _) = self.vectors(spans)?;
        // SAFETY: `msghdr` is plain data for which zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = spans.len();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
        // SAFETY: the vectors point into the mapping, the control buffer is a live slice of the given length,
        // and there is no name buffer.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        let bytes = transferred(result)?;
        let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
        Ok(Received {
            bytes,
            control: message.msg_controllen.min(control.len()),
            truncated,
        })
    }

    fn vectors(&self, spans: &[Span]) -> io::Result<([libc::iovec; MAX_SPANS], libc::c_int)> {
        if spans.len() > MAX_SPANS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut vectors = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MAX_SPANS];
        for (vector, span) in vectors.iter_mut().zip(spans) {
            *vector = libc::iovec {
                iov_base: self.at(*span).cast(),
                iov_len: span.len,
            };
        }
        let count = libc::c_int::try_from(spans.len()).expect("at most MAX_SPANS");
        Ok((vectors, count))
    }

    fn at(&self, span: Span) -> *mut u8 {
        let end = span.offset.checked_add(span.len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{span:?} lies outside {} bytes",
            self.len
        );
        // SAFETY: the offset was just checked to lie in the mapping or at its end.
        unsafe { self.base.as_ptr().add(span.offset) }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this base and length, and no reference into it outlives
        // `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn transferred(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn copies_and_transfers_stay_in_their_spans() {
        let memory = SharedMemory::new("test", 5000).unwrap();
        assert_eq!(memory.len(), 8192);
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"abcdef").unwrap();
        let spans = [Span { offset: 10, len: 2 }, Span { offset: 20, len: 100 }];
        assert_eq!(memory.read_from(far.as_fd(), &spans).unwrap(), 6);
        let mut bytes = [0; 16];
        memory.read(9, &mut bytes);
        assert_eq!(&bytes, b"\0ab\0\0\0\0\0\0\0\0cdef\0");
        memory.write(8190, b"xy");
        memory
            .write_to(far.as_fd(), &[Span { offset: 8190, len: 2 }])
            .unwrap();
        let mut back = [0; 2];
        near.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"xy");
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn outside_is_a_bug() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        memory.write(4095, b"xy");
    }

    #[test]
    fn nobody_can_shrink_the_file() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        // SAFETY: a plain system call on a live descriptor.
        let result = unsafe { libc::ftruncate(memory.as_fd().as_raw_fd(), 0) };
        assert_eq!(result, -1);
    }
}
