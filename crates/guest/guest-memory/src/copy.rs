//! Moving bytes from, to and between guests.

use crate::{GuestMemory, GuestRange};
use cpu::{Access, prefetch};
use std::ptr::NonNull;

/// Bytes that the processor loads at a time.
const CACHE_LINE: u32 = 64;

impl GuestMemory {
    /// Copies the beginning of `range` into `to`: as many bytes as both have, which is returned; 0 if the
    /// range is not in this memory.
    #[inline]
    pub fn read(&self, range: GuestRange, to: &mut [u8]) -> usize {
        let Some(from) = self.pointer(range) else { return 0 };
        let len = to.len().min(range.len as usize);
        // SAFETY: `from` is valid for `range.len` bytes (`pointer`), `to` for its length; private memory
        // and guest mappings do not overlap. The guest may write meanwhile: bytes have no invalid values.
        unsafe { copy_apart(from.as_ptr(), to.as_mut_ptr(), len) };
        len
    }

    /// Copies `from` to the beginning of `range`: as many bytes as both have, which is returned; 0 if the
    /// range is not in this memory.
    #[inline]
    pub fn write(&self, range: GuestRange, from: &[u8]) -> usize {
        let Some(to) = self.pointer(range) else { return 0 };
        let len = from.len().min(range.len as usize);
        // SAFETY: as in `read`, the other way round.
        unsafe { copy_apart(from.as_ptr(), to.as_ptr(), len) };
        len
    }

    /// As [`write`](Self::write), for the first `at` bytes of `prefix` and then `from`, which has those that
    /// the prefix has behind them at least. A range that is shorter than the prefix gets nothing of `from`.
    /// Nothing is put together before: to read what was written a moment ago in other pieces makes a
    /// processor wait.
    #[inline]
    pub fn write_both<const PREFIX: usize>(
        &self,
        range: GuestRange,
        prefix: &[u8; PREFIX],
        at: usize,
        from: &[u8],
    ) -> usize {
        let (room, at) = (range.len as usize, at.min(PREFIX));
        let to = match self.pointer(range) {
            Some(to) if room >= PREFIX => to,
            _ => return self.write(range, &prefix[..at]),
        };
        let len = from.len().min(room - at);
        // SAFETY: as in `read`, the other way round; the range has `PREFIX` bytes, and `len` from byte `at`
        // on.
        unsafe {
            copy_block::<PREFIX>(prefix.as_ptr(), to.as_ptr());
            copy_apart(from.as_ptr(), to.as_ptr().add(at), len);
        }
        at + len
    }

    /// Prefetches the first `len` bytes of a range, or all of it if it is shorter.
    #[inline]
    pub fn prefetch(&self, range: GuestRange, len: u32, access: Access) {
        const LINES: u32 = 4;
        let Some(start) = self.pointer(range) else { return };
        let (len, mut done) = (range.len.min(len), 0);
        while len - done >= LINES * CACHE_LINE {
            (0..LINES).for_each(|line| prefetch_line(start, done + line * CACHE_LINE, access));
            done += LINES * CACHE_LINE;
        }
        prefetch_bytes(start, done, len, access);
    }
}

/// Prefetches the bytes from `first` to `end`, few of them.
#[inline]
pub(crate) fn prefetch_bytes(start: NonNull<u8>, first: u32, end: u32, access: Access) {
    let mut at = first;
    while at < end {
        prefetch_line(start, at, access);
        at = at.saturating_add(CACHE_LINE);
    }
}

/// Prefetches the cache line of a byte behind `start`.
#[inline(always)]
fn prefetch_line(start: NonNull<u8>, at: u32, access: Access) {
    prefetch(start.as_ptr().wrapping_add(at as usize), access);
}

/// Copies bytes. Short copies, such as heads, need no call: whole blocks of a size that is known here, then
/// one more block that ends with the last byte. So some bytes may be copied twice, the second time as they
/// are by then.
///
/// # Safety
///
/// `from` must be valid for reading `len` bytes and `to` for writing them, and they must not overlap.
#[inline]
unsafe fn copy_apart(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both blocks of a call lie within `len` bytes, and the caller vouches for those.
    unsafe {
        match len {
            64..=128 => copy_ends::<64>(from, to, len),
            129..=192 => {
                copy_block::<64>(from, to);
                copy_ends::<64>(from.add(64), to.add(64), len - 64);
            }
            32..=63 => copy_ends::<32>(from, to, len),
            16..=31 => copy_ends::<16>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies the first and the last `N` bytes of `len`.
///
/// # Safety
///
/// As [`copy_apart`]; and `len` must be at least `N`.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        copy_block::<N>(from, to);
        copy_block::<N>(from.add(len - N), to.add(len - N));
    }
}

/// # Safety
///
/// As [`copy_apart`], for `N` bytes.
#[inline(always)]
unsafe fn copy_block<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's; an array of bytes has no alignment.
    unsafe { to.cast::<[u8; N]>().write(from.cast::<[u8; N]>().read()) };
}

/// Copies from one guest to another: as many bytes as both ranges have, which is returned; 0 if a range is
/// not in its memory. The guests may be the same and the ranges may overlap.
#[inline]
pub fn copy(from: &GuestMemory, source: GuestRange, to: &GuestMemory, target: GuestRange) -> usize {
    let (Some(source_address), Some(target_address)) = (from.pointer(source), to.pointer(target)) else {
        return 0;
    };
    let len = source.len.min(target.len) as usize;
    // SAFETY: both are valid for `len` bytes (`pointer`). Two mappings of one file can be the same bytes, as
    // can two ranges of one guest: `copy` allows overlap.
    unsafe { std::ptr::copy(source_address.as_ptr(), target_address.as_ptr(), len) };
    len
}
