//! Moving bytes from, to and between guests.

use crate::{GuestMemory, GuestRange};

/// Bytes that the processor loads at a time.
const CACHE_LINE: usize = 64;

impl GuestMemory {
    /// Copies the beginning of `range` into `to`: as many bytes as both have, which is returned; 0 if the
    /// range is not in this memory.
    #[inline]
    pub fn read(&self, range: GuestRange, to: &mut [u8]) -> usize {
        let Some(from) = self.pointer(range) else { return 0 };
        let len = to.len().min(range.len as usize);
        // SAFETY: `from` is valid for `range.len` bytes (`pointer`), `to` for its length; private memory
        // and guest mappings do not overlap. The guest may write meanwhile: bytes have no invalid values.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), len) };
        len
    }

    /// Copies `from` to the beginning of `range`: as many bytes as both have, which is returned; 0 if the
    /// range is not in this memory.
    #[inline]
    pub fn write(&self, range: GuestRange, from: &[u8]) -> usize {
        let Some(to) = self.pointer(range) else { return 0 };
        let len = from.len().min(range.len as usize);
        // SAFETY: as in `read`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) };
        len
    }

    /// Asks the processor to load the first `len` bytes of a range, or all of it if it is shorter.
    #[inline]
    pub fn prefetch(&self, range: GuestRange, len: u32) {
        let Some(start) = self.pointer(range) else { return };
        let mut left = range.len.min(len) as usize;
        let mut at = start.as_ptr();
        while left > 0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: prefetching never faults.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
            at = at.wrapping_add(CACHE_LINE);
            left = left.saturating_sub(CACHE_LINE);
        }
    }
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
