//! Sending over a socket straight from guests' memory.
//!
//! The kernel reads the pages itself: a page that is gone is an error of the call (EFAULT) and no signal.

use crate::{GuestMemory, GuestRange};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::marker::PhantomData;

/// Messages to be sent with few calls, each of pieces that lie in guests' memory or in ours.
#[derive(Debug, Default)]
pub struct Messages<'a> {
    vectors: Vec<libc::iovec>,
    /// Where the pieces of each message end in `vectors`.
    ends: Vec<usize>,
    /// The memory that the pieces lie in.
    lives: PhantomData<&'a GuestMemory>,
}

impl<'a> Messages<'a> {
    /// None, with room for that many.
    pub fn with_capacity(messages: usize) -> Messages<'a> {
        Messages {
            vectors: Vec::with_capacity(3 * messages),
            ends: Vec::with_capacity(messages),
            lives: PhantomData,
        }
    }

    /// Adds bytes of ours to the message that is being made.
    pub fn push_bytes(&mut self, bytes: &'a [u8]) {
        self.vectors.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    }

    /// Adds a range of a guest's memory to it; nothing if the range is not in that memory.
    pub fn push_guest(&mut self, memory: &'a GuestMemory, range: GuestRange) {
        if let Some(start) = memory.pointer(range) {
            self.vectors.push(libc::iovec {
                iov_base: start.as_ptr().cast(),
                iov_len: range.len as usize,
            });
        }
    }

    /// Ends the message that is being made.
    pub fn end(&mut self) {
        self.ends.push(self.vectors.len());
    }

    /// Messages that are complete.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Copies a message to the beginning of `to`, for devices with memory of their own for frames. Returns
    /// its length in bytes, or `None`, with nothing copied, if `to` is shorter or there is no such message.
    pub fn copy(&self, number: usize, to: &mut [u8]) -> Option<usize> {
        let end = *self.ends.get(number)?;
        let begin = number.checked_sub(1).map_or(0, |last| self.ends[last]);
        let pieces = &self.vectors[begin..end];
        let len = pieces
            .iter()
            .try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len));
        let len = len.filter(|len| *len <= to.len())?;
        let mut at = 0;
        for piece in pieces {
            let target = to[at..at + piece.iov_len].as_mut_ptr();
            // SAFETY: the piece is a live slice of ours, or lies in a mapping of a `GuestMemory` (`pointer`
            // checked), which `'a` keeps borrowed; the target was just checked to have as many bytes. `to` is
            // borrowed mutably, so neither lies in it. The guest may write meanwhile: bytes have no invalid
            // values.
            unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>(), target, piece.iov_len) };
            at += piece.iov_len;
        }
        Some(len)
    }

    /// Sends messages over a connected or bound socket from number `first` on, without waiting
    /// (`sendmmsg(2)`). Returns how many the kernel took; 0 if there are none.
    ///
    /// # Errors
    ///
    /// As `sendmmsg(2)`, about the first of these messages.
    pub fn send(&mut self, socket: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        let mut begin = first.checked_sub(1).map_or(0, |last| self.ends[last]);
        let base = self.vectors.as_mut_ptr();
        let mut headers = Vec::with_capacity(self.ends.len() - first);
        for &end in &self.ends[first..] {
            // SAFETY: `mmsghdr` is plain data for which zeros are valid.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = base.wrapping_add(begin);
            header.msg_hdr.msg_iovlen = end - begin;
            headers.push(header);
            begin = end;
        }
        let count = libc::c_uint::try_from(headers.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: `count` headers are live, and the vectors that they name lie in `vectors`, which does not
        // change during the call. Each vector is a live slice of ours, or lies in a mapping of a
        // `GuestMemory` (`pointer` checked), which `'a` keeps borrowed. The kernel only reads; guests may
        // write meanwhile.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}
