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

/// Messages that lie in a [`SharedMemory`], each in some spans, in order.
#[derive(Debug, Default)]
pub struct Messages {
    spans: Vec<Span>,
    /// Where each message's spans end.
    ends: Vec<usize>,
}

impl Messages {
    /// Adds a message.
    ///
    /// # Panics
    ///
    /// With more than [`MAX_SPANS`] spans.
    pub fn push(&mut self, spans: impl IntoIterator<Item = Span>) {
        let start = self.spans.len();
        self.spans.extend(spans);
        assert!(self.spans.len() - start <= MAX_SPANS, "too many spans");
        self.ends.push(self.spans.len());
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.ends.clear();
    }

    /// The messages.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[Span]> {
        let start_of = |number: usize| number.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |number| &self.spans[start_of(number)..self.ends[number]])
    }
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

    /// Sends messages over a socket from number `first` on, without waiting (`sendmmsg(2)`). Returns how many
    /// the kernel took; an error concerns the first.
    pub fn send(&self, socket: BorrowedFd<'_>, messages: &Messages, first: usize) -> io::Result<usize> {
        let mut vectors: Vec<libc::iovec> = messages.spans.iter().map(|span| self.vector(*span)).collect();
        let mut rest = &mut vectors[..];
        let mut headers = Vec::with_capacity(messages.ends.len());
        for spans in messages.iter() {
            let (own, others) = rest.split_at_mut(spans.len());
            rest = others;
            // SAFETY: `mmsghdr` is plain data for which zeros are valid.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = own.as_mut_ptr();
            header.msg_hdr.msg_iovlen = own.len();
            headers.push(header);
        }
        let headers = &mut headers[first..];
        let count = libc::c_uint::try_from(headers.len()).expect("a batch");
        // SAFETY: `count` headers are live; their vectors are, too, and point into the mapping (`vector`
        // checked), which stays mapped during the call.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn vector(&self, span: Span) -> libc::iovec {
        libc::iovec {
            iov_base: self.at(span).cast(),
            iov_len: span.len,
        }
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
            *vector = self.vector(*span);
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
    fn messages_are_sent_from_any_number_on() {
        let memory = SharedMemory::new("test", 4096).unwrap();
        memory.write(0, b"abcdef");
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut messages = Messages::default();
        let span = |offset, len| Span { offset, len };
        messages.push([span(0, 2), span(5, 1)]);
        messages.push([span(2, 3)]);
        messages.push([span(1, 1)]);
        assert_eq!(messages.iter().len(), 3);
        assert_eq!(memory.send(ours.as_fd(), &messages, 1).unwrap(), 2);
        assert_eq!(memory.send(ours.as_fd(), &messages, 0).unwrap(), 3);
        let mut received = [0; 8];
        for expected in ["cde", "b", "abf", "cde", "b"] {
            let len = theirs.recv(&mut received).unwrap();
            assert_eq!(&received[..len], expected.as_bytes());
        }
        messages.clear();
        assert_eq!(messages.iter().len(), 0);
        drop(theirs);
        messages.push([span(0, 1)]);
        assert!(memory.send(ours.as_fd(), &messages, 0).is_err());
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
